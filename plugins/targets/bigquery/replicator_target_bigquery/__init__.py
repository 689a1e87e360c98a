"""BigQuery tables: journal files loaded as they are, merged by one script together with its ledger row."""

__all__: list[str] = []
