"""One state of a table, as `replicator verify` compares it with the source.

A table and a moment of its history come in; checksums and rows in canonical form, computed by BigQuery, come out.
"""

__all__: list[str] = []
