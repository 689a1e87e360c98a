"""Commits that nobody can read: who says so, and how a table is recreated behind them. Without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.errors import TableError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import EMPTY_LEDGER, Ledger, TargetTable
from replicator_target_delta.config import DeltaLakeConfig
from replicator_target_delta.definition.building import claim_log
from replicator_target_delta.errors import translate
from replicator_target_delta.ledger import Claimed, Entry, Look
from replicator_target_delta.log.table import DamagedLogError, read_log
from replicator_target_delta.storage import Storage
from replicator_target_delta.target import DeltaLakeTarget
from replicator_testing.defaults import target_context

SCHEMA = TableSchema(
    table=TableId("public", "people"),
    columns=(Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),),
    key=("id",),
)
OLD = TargetTable(table=SCHEMA.table, uuid="u-1", incarnation=3, epoch=5)
NEW = replace(OLD, incarnation=4)
HALVES = [
    '{"commitInfo":{"timestamp":1,"opera',
    '{"add":{"path":"x","partitionValues":{}',
    "{",
    "null",
    '{"txn":{"appId":"x"}}',
]


class Damaged:
    """A table of ours whose log ends with version 2, and commits behind it that nobody can read."""

    def __init__(self, root: Path, *texts: str, owner: str = "u-1") -> None:
        self.storage = Storage(str(root))
        self.target = DeltaLakeTarget(DeltaLakeConfig(path=str(root)), target_context(replicator="test", uuid="u-1"))
        self.path = root / "public" / "people"
        self.log = self.path / "_delta_log"
        self.log.mkdir(parents=True)
        properties = {"replicator.uuid": owner, "replicator.incarnation": "3", "replicator.state": "live"}
        entry = Entry(5, 7).version
        self.put(0, {"metaData": {"id": "x", "configuration": properties, "createdTime": 1}})
        self.put(1, {"txn": {"appId": "u-1/public.people/3", "version": entry}})
        self.put(2, {"commitInfo": {"operation": "MERGE"}})
        for version, text in enumerate(texts, 3):
            (self.log / f"{version:020}.json").write_text(text)
            (self.log / f".{version:020}.json.crc").write_bytes(b"crc")

    def put(self, version: int, *actions: dict[str, Any]) -> None:
        lines = [json.dumps(action, separators=(",", ":")) for action in actions]
        (self.log / f"{version:020}.json").write_text("\n".join(lines) + "\n")

    def claim(self, table: TargetTable) -> int | None:
        """The version that the table is claimed behind."""
        seen: list[Look] = []

        def plan(log: Look) -> Claimed:
            seen.append(log)
            return Claimed(records={}, last=EMPTY_LEDGER)

        assert claim_log(None, self.storage, str(self.path), table, plan) is not None
        found = read_log(self.storage, str(self.path))
        return None if found is None else found.version


@pytest.mark.parametrize("half", HALVES)
def test_a_commit_that_was_written_in_half_is_named_with_advice(tmp_path: Path, half: str) -> None:
    damaged = Damaged(tmp_path, half)
    with pytest.raises(DamagedLogError) as caught:
        read_log(damaged.storage, str(damaged.path))
    said = translate(caught.value, "public.people")
    assert isinstance(said, TableError)
    assert said.code == "target_unreadable"
    assert f"{3:020}.json" in said.message
    assert said.action is not None
    assert "--recreate" in said.action
    # Claims of what it was do not continue behind it, and change nothing.
    with pytest.raises(DamagedLogError):
        damaged.claim(OLD)
    with pytest.raises(TableError):
        damaged.target.read_ledger(OLD)
    assert (damaged.log / f"{3:020}.json").read_text() == half


@pytest.mark.parametrize("texts", [HALVES[:1], HALVES[:3], [*HALVES, '{"commitInfo":{}}']])
def test_a_table_that_is_recreated_leaves_them_out(tmp_path: Path, texts: list[str]) -> None:
    damaged = Damaged(tmp_path, *texts)
    assert damaged.target.check([SCHEMA]) == [], "otherwise it could not be recreated"
    assert damaged.target.read_ledger(NEW) == Ledger(incarnation=3, epoch=5, last_applied=7)
    assert damaged.claim(NEW) == 2
    names = [path.name for path in damaged.log.iterdir() if path.name.lstrip(".")[0].isdigit()]
    assert sorted(names) == [f"{version:020}.json" for version in range(3)]
    kept = {path.read_text() for path in damaged.log.glob("unreadable-*.json-*")}
    assert kept == set(texts), "nothing is lost"
    assert damaged.claim(NEW) == 2


def test_damage_in_the_middle_of_a_commit_is_found_before_anything_is_built(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, '{"add":{"path":"x"\n{"commitInfo":{}}\n')
    assert damaged.claim(OLD) == 3, "who needs its files meets it"
    assert damaged.claim(NEW) == 2


@pytest.mark.parametrize("table", [OLD, replace(NEW, uuid="u-2")])
def test_what_is_not_to_be_recreated_or_is_not_ours_stays_as_it_is(tmp_path: Path, table: TargetTable) -> None:
    damaged = Damaged(tmp_path, "{")
    before = sorted(damaged.log.iterdir())
    with pytest.raises(DamagedLogError):
        damaged.claim(table)
    assert sorted(damaged.log.iterdir()) == before


def test_the_folder_has_to_be_moved_away_where_nothing_says_whose_it_is(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path)
    (damaged.log / f"{0:020}.json").write_text("{")
    (problem,) = damaged.target.check([SCHEMA])
    assert (problem.code, problem.action) == ("target_unreadable", "Move the folder away.")
    with pytest.raises(DamagedLogError) as caught:
        damaged.claim(NEW)
    said = translate(caught.value, "public.people")
    assert said is not None
    assert "move the folder away" in (said.action or "")
    damaged.path.rename(tmp_path / "away")
    assert damaged.target.check([SCHEMA]) == []


def test_a_log_of_somebody_else_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    (problem,) = Damaged(tmp_path, "{", owner="u-2").target.check([SCHEMA])
    assert problem.code == "target_unreadable"


def test_our_table_is_dropped_although_its_newest_commit_cannot_be_read(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, "{", "{")
    damaged.target.drop(OLD)
    assert not damaged.path.exists()
