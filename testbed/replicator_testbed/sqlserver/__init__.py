"""A model of a SQL Server with Change Data Capture, which real ODBC drivers speak to; README.md says what it is and what it is not."""

__all__: list[str] = []
