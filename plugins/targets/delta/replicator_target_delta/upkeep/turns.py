"""Carries out upkeep of a table, never at the same time as a conflicting merge."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime
from typing import Any
from uuid import uuid4

from replicator.plugins.target import EMPTY_LEDGER
from replicator_target_delta.config import MaintenanceConfig
from replicator_target_delta.errors import is_concurrent
from replicator_target_delta.ledger import Claimed, record_alone
from replicator_target_delta.storage import Storage
from replicator_target_delta.upkeep import due as maintenance


def run(
    session: Any,
    storage: Storage,
    path: str,
    turns: maintenance.Turns,
    kind: maintenance.UpkeepKind,
    config: MaintenanceConfig,
    now: datetime,
) -> str:
    """Carry out upkeep, unless a merge holds the table; return the outcome, for logs and status."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from replicator.spark.session import spark_error

    tag = f"upkeep-{uuid4().hex}"
    try:
        with ExitStack() as stack:
            takes_turn = maintenance.takes_turn(kind, config.vacuum_retention)
            if takes_turn and not stack.enter_context(turns.upkeep(session, tag)):
                return "merge_in_progress"
            was_done = maintenance.carry_out(session, kind, path, config)
        if kind is maintenance.UpkeepKind.VACUUM:
            done = Claimed(records={maintenance.VACUUM_LEDGER: int(now.timestamp())}, last=EMPTY_LEDGER)
            record_alone(session, storage, path, lambda _: done)
    except (PySparkException, Py4JError) as error:
        # A merge is what matters: upkeep that met one is simply done another time.
        if is_concurrent(error):
            return "lost_to_another_commit"
        # A job is also cancelled when Spark ends.
        if turns.is_cut and "cancelled" in str(error).lower() and spark_error(error) is None:
            return "cut_short_by_a_merge"
        raise
    turns.done()
    return "done" if was_done else "nothing_to_do"
