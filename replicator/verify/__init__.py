"""The judge: compares the tables of both sides at positions of the journal."""

from replicator.model.verdict import Result
from replicator.verify.judge import Judge
from replicator.verify.keys import ids_of
from replicator.verify.proofs import Proofs
from replicator.verify.repair import Repair
from replicator.verify.schedule import VerifySchedule
from replicator.verify.scope import Keys, OfIds, Sample, Scope, Since, Whole
from replicator.verify.verdicts import Counts, Difference, Extent, Kind, Verdict

__all__ = [
    "Counts",
    "Difference",
    "Extent",
    "Judge",
    "Keys",
    "Kind",
    "OfIds",
    "Proofs",
    "Repair",
    "Result",
    "Sample",
    "Scope",
    "Since",
    "Verdict",
    "VerifySchedule",
    "Whole",
    "ids_of",
]
