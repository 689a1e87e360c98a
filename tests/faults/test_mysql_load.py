"""Random transactions on MariaDB and MySQL while their tables are read again and again, and the capture is killed: nothing differs."""

from __future__ import annotations

import logging

import psutil
import pytest

from replicator.model.documents.status import ReplicatorStatus
from replicator_testbed.mysql import load as mysql_load
from replicator_testbed.mysql.load import TABLES, Load
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.rig import Rig, has_snapshots
from replicator_testbed.target_tables import TargetTables

_log = logging.getLogger(__name__)

TRANSACTIONS = 200_000
KEYS = 3_000


def kill_capture(worker: psutil.Process) -> None:
    for process in worker.children():
        if "capture" in process.cmdline():
            process.kill()


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_many_random_transactions_with_snapshots_and_kills_leave_no_difference(
    rig: Rig, target_tables: TargetTables, kind: str
) -> None:
    """A slice of it, without a target, is in `tests/integration/test_capture_mysql.py`."""
    assert isinstance(rig.database, MysqlDatabase)
    mysql_load.create(rig.database, KEYS)
    rig.tables = TABLES
    rig.extra = rig.extra.replace("chunk_rows: 1000", "chunk_rows: 200") + "apply: {max_wait: 30s}\n"
    rig.write_yaml()
    process = rig.start()
    round_ = prepared = 0

    def has_snapshot(status: ReplicatorStatus) -> bool:
        assert rig.store is not None
        assert not any(t.error for t in status.tables), status
        return has_snapshots(status) and not rig.store.requests.open(rig.name)

    with Load(rig.database, keys=KEYS) as load:
        rig.wait_for_status(has_snapshot, process)
        load.begin_xa()
        while load.transactions < TRANSACTIONS:
            round_ += 1
            table = TABLES[round_ % len(TABLES)]
            rig.command("snapshot", rig.name, rig.full_name(table), *(["--recreate"] if round_ % 23 == 0 else []))
            if round_ % 9 == 4:
                load.swap(("plain", "named", "pair")[round_ % 3])
            if round_ % 19 == 7:
                load.empty("alt")
            if round_ % 13 == 0:
                kill_capture(psutil.Process(process.pid))
            rig.wait_for_status(has_snapshot, process)
            _log.info("%s: %d transactions, %d XA, %d snapshots", kind, load.transactions, load.prepared, round_)
        prepared = load.prepared
    assert prepared > 0
    assert rig.stop(process) == 0, rig.output()
    rig.catch_up_at_its_pace()
    rig.verify()
    assert rig.differences(target_tables) == {}
