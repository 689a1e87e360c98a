"""An example of a polling source: SQLite."""

__all__: list[str] = []
