"""What a table's log says of our merges and of others, read without Spark."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.merged import Merged
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import TargetTable
from replicator_target_delta.lane.creation import first_version
from replicator_target_delta.ledger import Entry
from replicator_target_delta.log import history
from replicator_target_delta.log.table import DamagedLogError
from replicator_target_delta.shape.tables import new_table
from replicator_target_delta.storage import Storage

TABLE = TargetTable(table=TableId("public", "people"), uuid="u-1", incarnation=2, epoch=3)
MERGED = {"numTargetRowsUpdated": "1", "numTargetRowsInserted": "2", "numTargetRowsDeleted": "3"}
ADD = {"add": {"path": "a", "dataChange": True, "stats": '{"maxValues":{"v":"\\"dataChange\\":true"}}'}}
MOVED = {"add": {"path": "b", "dataChange": False, "stats": '{"maxValues":{"v":"\\"dataChange\\":true"}}'}}


class Log:
    """A Delta log written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "table" / "_delta_log"
        self.storage = Storage(str(folder))
        self.path = str(folder / "table")
        self.next = 0
        self.position: str | None = None
        self.merged = Merged()
        self.unseen: str | None = None

    def commit(self, operation: str, *actions: dict[str, Any], ledger: str | None = None, **info: Any) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        version, self.next = self.next, self.next + 1
        head = {"commitInfo": {"operation": operation, "txnId": f"{operation}-{version}", **info}}
        own = [] if ledger is None else [{"txn": {"appId": ledger, "version": Entry(3, version).version}}]
        lines = [json.dumps(line, separators=(",", ":")) for line in [head, *own, *actions]]
        (self.folder / f"{version:020}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return version

    def merge(self, **more: Any) -> int:
        return self.commit("MERGE", ADD, ledger=TABLE.ledger_name, operationMetrics=MERGED, **more)

    def forget(self, *versions: int) -> None:
        for version in versions:
            (self.folder / f"{version:020}.json").unlink()

    def audit(self) -> list[str]:
        found = history.audit(self.storage, self.path, TABLE, self.position)
        self.position, self.merged, self.unseen = found.position, found.merged, found.unseen
        return list(found.changed_by_others)


def made() -> dict[str, Any]:
    """The metadata with which the table was made."""
    columns = (Column(name=name, type=pa.string(), source_type="text") for name in ("id", "note"))
    new = new_table(TABLE, TableSchema(table=TABLE.table, columns=tuple(columns), key=("id",)), clustering=False)
    found = next(action["metaData"] for action in first_version(new, {}, 0) if "metaData" in action)
    return copy.deepcopy(found)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path)
    log.commit("CREATE TABLE", ledger=TABLE.ledger_name)
    log.audit()
    return log


def test_a_table_is_followed_from_before_it_is_there(tmp_path: Path) -> None:
    log = Log(tmp_path)
    assert log.audit() == []
    log.commit("ManualUpdate", ADD, ledger=TABLE.ledger_name)
    log.merge()
    assert (log.audit(), log.merged) == ([], Merged(matched=1, inserted=2, deleted=3))


def test_what_was_there_before_the_first_look_is_nobodys(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.commit("WRITE", ADD)
    log.merge()
    assert (log.audit(), log.merged) == ([], Merged())
    assert log.audit() == []


def test_our_merges_and_appends_are_counted_once(log: Log) -> None:
    log.commit("WRITE", ADD, ledger=TABLE.ledger_name, operationMetrics={"numOutputRows": "10"})
    log.merge(userMetadata=history.note(not_found=4))
    log.commit("ManualUpdate", ledger=TABLE.ledger_name)
    log.commit("DELETE", ADD, ledger=TABLE.ledger_name, operationMetrics={"numDeletedRows": "9"})
    for _ in range(2):
        assert log.audit() == []
        assert log.merged == Merged(matched=1, inserted=12, deleted=3, not_found=4)
    log.merge(userMetadata=history.note(removals=5))
    assert (log.audit(), log.merged.not_found) == ([], 6)


def test_the_counts_of_another_incarnation_are_not_ours_and_its_commits_are(log: Log) -> None:
    log.commit("MERGE", ADD, ledger="u-1/public.people/1", operationMetrics=MERGED)
    assert (log.audit(), log.merged) == ([], Merged())


@pytest.mark.parametrize(
    "operation", ["DELETE", "UPDATE", "MERGE", "WRITE", "STREAMING UPDATE", "CREATE OR REPLACE TABLE AS SELECT"]
)
@pytest.mark.parametrize("ledger", [None, "somebody/else"])
def test_others_commits_that_change_data_are_named(log: Log, operation: str, ledger: str | None) -> None:
    log.merge()
    log.commit(operation, MOVED, {"remove": {"path": "a", "dataChange": True}}, ledger=ledger)
    log.merge()
    assert log.audit() == [f"version 2: {operation}"]
    assert log.audit() == []
    assert log.merged == Merged(matched=2, inserted=4, deleted=6)


def test_a_restore_is_somebody_elses_although_it_keeps_our_ledgers(log: Log) -> None:
    log.commit("RESTORE", ADD, ledger=TABLE.ledger_name)
    assert log.audit() == ["version 1: RESTORE"]


def test_upkeep_by_anybody_changes_no_data(log: Log) -> None:
    for operation in ("OPTIMIZE", "REORG", "COMPUTE STATS"):
        log.commit(operation, MOVED, {"remove": {"path": "a", "dataChange": False}})
    log.commit("VACUUM START")
    log.commit("VACUUM END")
    metadata = made()
    metadata["configuration"]["x"] = "y"
    log.commit("SET TBLPROPERTIES", {"metaData": metadata})
    assert log.audit() == []


def test_others_who_change_our_columns_are_named_although_no_file_changes(log: Log) -> None:
    metadata = made()
    log.commit(
        "RENAME COLUMN", {"metaData": {**metadata, "schemaString": metadata["schemaString"].replace("note", "x")}}
    )
    log.commit("RENAME COLUMN", {"metaData": metadata})
    assert log.audit() == ["version 1: RENAME COLUMN"]


def test_a_log_that_went_back_is_named(log: Log) -> None:
    last = log.merge()
    log.audit()
    log.forget(last)
    assert log.audit() == [f"its log was set back from version {last} to 0"]
    assert log.audit() == []
    log.next = last
    log.merge()
    assert log.audit() == []


def test_a_log_that_is_gone_is_named(log: Log) -> None:
    log.forget(0)
    assert log.audit() == ["its log was removed"]


def test_a_log_that_has_another_past_is_named(log: Log) -> None:
    last = log.merge()
    log.audit()
    log.next = last
    log.commit("DELETE", ADD)
    log.merge()
    assert log.audit() == [f"version {last} was replaced"]


@pytest.mark.parametrize("checkpoint", ["checkpoint.parquet", "checkpoint.80a083e8.json"])
def test_commits_that_delta_removed_before_they_were_seen_are_named_once(log: Log, checkpoint: str) -> None:
    for operation in ("DELETE", "OPTIMIZE", "OPTIMIZE"):
        log.commit(operation, MOVED)
    log.merge()
    (log.folder / f"{2:020}.{checkpoint}").write_bytes(b"")
    log.forget(0, 1, 2)
    assert (log.audit(), log.unseen) == ([], "versions 1 to 2")
    assert log.merged == Merged(matched=1, inserted=2, deleted=3)
    log.merge()
    log.forget(3)
    assert (log.audit(), log.unseen, log.merged.matched) == ([], None, 2)


def test_a_log_that_has_only_a_checkpoint_of_what_was_not_seen(log: Log) -> None:
    version = log.commit("DELETE", ADD)
    (log.folder / f"{version:020}.checkpoint.parquet").write_bytes(b"")
    log.forget(0, version)
    assert (log.audit(), log.unseen) == ([], "version 1")
    log.merge()
    assert (log.audit(), log.unseen, log.merged.matched) == ([], None, 1)


def test_what_was_seen_may_be_removed(log: Log) -> None:
    log.merge()
    log.audit()
    log.merge()
    log.forget(0, 1)
    assert (log.audit(), log.unseen, log.merged.matched) == ([], None, 2)


def test_a_damaged_commit_is_an_error(log: Log) -> None:
    version = log.merge()
    (log.folder / f"{version:020}.json").write_text('{"commitInfo":{"oper', encoding="utf-8")
    with pytest.raises(DamagedLogError):
        log.audit()
