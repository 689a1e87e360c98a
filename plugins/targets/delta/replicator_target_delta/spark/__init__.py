"""Batches that Spark applies: a folded batch comes in, a MERGE or an append with its ledger entry goes out."""
