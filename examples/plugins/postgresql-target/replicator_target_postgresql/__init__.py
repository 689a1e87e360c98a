"""An example of a target: PostgreSQL."""

__all__: list[str] = []
