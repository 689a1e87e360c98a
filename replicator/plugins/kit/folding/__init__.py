"""Folds a batch to its net changes, for targets of every kind: `docs/plugins.md`, "How a target merges".

Journal files come in; what goes out is, once per key, the row to write or the key to remove, and which values only the target has. The
executor here is Arrow's (`arrow.net_changes`, `arrow.net_rows`); `replicator.spark.reduce` is Spark's.
"""

__all__: list[str] = []
