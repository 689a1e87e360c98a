"""The direct writer: applies a batch as one Delta commit of our own, without Spark job or MERGE. It refuses what it does not know.

`engine.py` of the target calls it: `lane.Lane` for batches, `rewrite` for upkeep.
"""

__all__: list[str] = []
