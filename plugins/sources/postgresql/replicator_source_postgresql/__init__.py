"""PostgreSQL as a source: snapshots in chunks by COPY, then every change by logical replication."""

__all__: list[str] = []
