"""SIGTERM while Delta merges: the worker ends without waiting for a merge that hangs, and nothing is lost or doubled."""

from __future__ import annotations

import signal

import psutil
import pytest

from replicator_testbed.processes import name_of, put_to_sleep
from replicator_testbed.rig import Rig, is_streaming
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import PATIENCE, wait_until

ENDS_WITHIN_S = 60
"""Far more than the seven seconds that a merge gets, for a busy machine, and half of what it got before it was abandoned."""


@pytest.mark.parametrize("target", ["spark"])
def test_a_merge_in_flight_is_abandoned_and_applied_once(rig: Rig, target_tables: TargetTables) -> None:
    rig.tables = ("customers",)
    rig.extra = rig.extra.replace(
        "chunk_rows: 1000", "chunk_rows: 10000"
    )  # each chunk would be a merge of some seconds
    rig.write_yaml()
    process = rig.start()
    rig.wait_for_status(is_streaming, process)
    rig.settle(process)
    folder = rig.lake / rig.database.namespace / "customers"
    log = folder / "_delta_log"

    def commits() -> int:
        return len(list(log.glob("*.json")))

    def files() -> int:
        return len(list(folder.rglob("*.parquet")))

    (java,) = (child for child in psutil.Process(process.pid).children(recursive=True) if name_of(child) == "java")

    def is_amid_a_merge() -> bool:
        """Stop Spark behind the first rows that a merge writes; one that was quicker than that is followed by another."""
        before, written = commits(), files()
        rig.database.execute("UPDATE customers SET name = name || ' again'")
        wait_until(lambda: files() > written, "the merge has written rows", every_s=0.01)
        put_to_sleep([java])
        if commits() == before:
            return True
        java.resume()
        rig.settle(process)
        return False

    wait_until(is_amid_a_merge, "Spark is stopped between a merge's rows and its commit")

    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=ENDS_WITHIN_S * PATIENCE) == 0, rig.output()
    assert "worker_abandoned" in rig.output()

    # The merge that was abandoned wakes up, next to the one that does its work.
    java.resume()
    rig.catch_up()
    psutil.wait_procs([java], timeout=60 * PATIENCE)
    assert rig.differences(target_tables) == {}
