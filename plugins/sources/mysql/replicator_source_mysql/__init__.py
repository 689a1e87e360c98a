"""MySQL and MariaDB as a source: tables in chunks, and every change from the binary log."""

__all__: list[str] = []
