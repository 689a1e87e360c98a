"""The DuckDB target: tables of one file, each batch and its ledger entry in one transaction."""

__all__: list[str] = []
