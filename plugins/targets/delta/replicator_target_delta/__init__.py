"""Delta tables, written by Spark: each batch and its ledger entry in one commit."""

__all__: list[str] = []
