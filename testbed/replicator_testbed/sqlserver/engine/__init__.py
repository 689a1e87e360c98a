"""The engine of the model: T-SQL is translated and run by a real PostgreSQL, one session for each connection of a driver."""

__all__: list[str] = []
