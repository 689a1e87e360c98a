"""TDS 7.4, SQL Server's protocol, as pure functions: bytes to values and back [DOC: MS-TDS]."""

__all__: list[str] = []
