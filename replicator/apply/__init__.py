"""Brings the journal into the target: plans batches per table, applies them side by side, keeps each table's order."""

from replicator.apply.plan import BatchLimits
from replicator.apply.progress import TableProgress
from replicator.apply.pump import Apply
from replicator.apply.settings import ApplySettings

__all__ = ["Apply", "ApplySettings", "BatchLimits", "TableProgress"]
