"""Applies a batch as one Delta commit of our own: no Spark job, no MERGE. What it does not know well enough it refuses.

`engine.py` of the target calls it: `lane.Lane` for batches, `rewrite` for upkeep.
"""

__all__: list[str] = []
