"""The judge: compares the tables of both sides at positions of the journal."""

from replicator.verify.judge import Judge
from replicator.verify.keys import ids_of
from replicator.verify.repair import Repair
from replicator.verify.scope import Keys, OfIds, Sample, Scope, Since, Whole
from replicator.verify.verdicts import Counts, Difference, Extent, Kind, Result, Verdict

__all__ = [
    "Counts",
    "Difference",
    "Extent",
    "Judge",
    "Keys",
    "Kind",
    "OfIds",
    "Repair",
    "Result",
    "Sample",
    "Scope",
    "Since",
    "Verdict",
    "Whole",
    "ids_of",
]
