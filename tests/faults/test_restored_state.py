"""A state store restored from an older copy, while source and target have gone on: the replicator stops and names the way out."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from replicator.journal.claim import CLAIM
from replicator.model.documents.status import ErrorStatus
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.present import present
from replicator_testbed.rig import Rig
from replicator_testbed.target_tables import TargetTables


def _copy(source: str, target: str) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def _error_of_run(rig: Rig) -> ErrorStatus:
    rig.command("run", str(rig.file), "--until-caught-up", check=1)
    return rig.error()


@pytest.mark.parametrize(
    ("kind", "target"),
    [pytest.param(*pair, marks=pytest.mark.matrix) for pair in (("mariadb", "bigquery"), ("postgresql", "delta"))],
)
def test_a_state_store_older_than_its_target_is_refused(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables
) -> None:
    rig.catch_up()
    state, backup = str(rig.home / "state.db"), str(rig.folder / "backup.db")
    _copy(state, backup)
    rig.catch_up()
    if rig.store is not None:
        rig.store.close()
    rig.store = None
    _copy(backup, state)

    # It looks like a copy of the one that was lost, until somebody says that it was.
    rig.command("run", str(rig.file), "--until-caught-up", check=2)
    assert rig.error().code == "home_copied"
    (rig.home / "journal" / rig.name / CLAIM).unlink()

    if rig.database.namespace == "public":
        # PostgreSQL's slot, too, knows that its log was read further; who begins at a new position still has the target before him.
        assert _error_of_run(rig).code in {"slot_ahead", "ledger_ahead"}
        rig.command("snapshot", rig.name, "--restart")
    for _ in range(2):
        error = _error_of_run(rig)
        assert error.code == "ledger_ahead"
    assert f"replicator delete {rig.name} --drop-target" in present(error.action)

    rig.command("delete", rig.name, "--drop-target", "--yes")
    writer.stop()
    rig.catch_up()
    assert rig.differences(target_tables) == {}
