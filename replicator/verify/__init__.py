"""Verification: compares the tables of source and target at positions of the journal."""

from replicator.model.documents.verdict import Result
from replicator.verify.judge import Judge
from replicator.verify.keys import ids_of
from replicator.verify.pace import Pace
from replicator.verify.proofs import Proofs
from replicator.verify.repair import Repair
from replicator.verify.resync import Resync
from replicator.verify.schedule import VerifySchedule
from replicator.verify.scope import Keys, OfIds, Sample, Since, VerifyScope, Whole
from replicator.verify.verdicts import Counts, Difference, Extent, Kind, Verdict
from replicator.verify.walk import Visit

__all__ = [
    "Counts",
    "Difference",
    "Extent",
    "Judge",
    "Keys",
    "Kind",
    "OfIds",
    "Pace",
    "Proofs",
    "Repair",
    "Result",
    "Resync",
    "Sample",
    "Since",
    "Verdict",
    "VerifySchedule",
    "VerifyScope",
    "Visit",
    "Whole",
    "ids_of",
]
