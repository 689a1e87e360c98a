"""The judge: compares the tables of both sides at positions of the journal."""

from replicator.verify.judge import Judge
from replicator.verify.verdicts import Counts, Difference, Kind, Result, Verdict

__all__ = ["Counts", "Difference", "Judge", "Kind", "Result", "Verdict"]
