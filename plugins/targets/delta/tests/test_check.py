"""Everything that can be said without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replicator.model.errors import FencedError, Severity, TableError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import Ledger, TableOptions, TargetTable
from replicator_target_delta.check import existing_problems
from replicator_target_delta.config import DeltaLakeConfig
from replicator_target_delta.ledger import EPOCH_MAX, Entry, plan_claim
from replicator_target_delta.log.table import UUID, DamagedLogError, read_log
from replicator_target_delta.shape.tables import new_table, with_log_retention
from replicator_target_delta.shape.types import clustering_columns
from replicator_target_delta.storage import DROP_MARK, Storage
from replicator_target_delta.target import DeltaLakeTarget
from replicator_testbed.present import present
from replicator_testing.defaults import target_context

PEOPLE = TableSchema(
    table=TableId("public", "people"),
    columns=(Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),),
    key=("id",),
)
TABLE = TargetTable(table=PEOPLE.table, uuid="u-1", incarnation=3, epoch=5)


def checked(path: Path, *tables: TableSchema, **config: Any) -> list[tuple[str, bool]]:
    target = DeltaLakeTarget(DeltaLakeConfig(path=str(path), **config), target_context(replicator="test", uuid="u-1"))
    return [(p.code, p.severity is Severity.BLOCKING) for p in target.check(tables or [PEOPLE])]


def write_log(folder: Path, *commits: list[dict[str, Any]], version: int = 0) -> None:
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    for number, actions in enumerate(commits, start=version):
        (log / f"{number:020}.json").write_text("\n".join(json.dumps(a, separators=(",", ":")) for a in actions))


def metadata(**properties: str) -> dict[str, Any]:
    return {"metaData": {"id": "x", "configuration": properties, "createdTime": 1_000}}


def test_missing_folder_is_fine_and_nothing_is_left_behind(tmp_path: Path) -> None:
    assert checked(tmp_path / "a" / "b") == []
    assert list(tmp_path.iterdir()) == []


def test_table_that_is_created_while_the_probe_is_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = tmp_path / "a" / "b" / "public" / "people" / "_delta_log" / f"{0:020}.json"
    write = Storage.write_json

    def with_a_table(self: Storage, path: str, document: Any) -> None:
        write(self, path, document)
        write_log(tmp_path / "a" / "b" / "public" / "people", [metadata(**{UUID: "u-1"})])

    monkeypatch.setattr(Storage, "write_json", with_a_table)
    assert checked(tmp_path / "a" / "b") == []
    assert commit.exists()
    assert [each.name for each in (tmp_path / "a" / "b").iterdir()] == ["public"], "the probe is removed"


def test_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    assert checked(tmp_path / "a" / "b") == [("target_not_writable", True)]
    assert checked(tmp_path / "a") == [("target_not_writable", True)]


@pytest.mark.parametrize(
    ("owner", "config", "found"),
    [
        ("u-1", {}, []),
        ("u-2", {}, [("not_ours", True)]),
        (None, {}, [("not_ours", True)]),
        ("u-2", {"adopt": "replace"}, []),
    ],
)
def test_table_of_somebody_else_is_found(
    tmp_path: Path, owner: str | None, config: dict[str, str], found: list[tuple[str, bool]]
) -> None:
    write_log(tmp_path / "public" / "people", [metadata(**({UUID: owner} if owner else {}))])
    assert checked(tmp_path, **config) == found


def test_folder_with_files_of_another_kind_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "public" / "people"
    folder.mkdir(parents=True)
    assert checked(tmp_path) == []
    (folder / "notes.txt").write_text("")
    assert checked(tmp_path, adopt="replace") == [("target_occupied", True)]


def test_types_and_names_are_looked_at(tmp_path: Path) -> None:
    columns = (
        Column(name="id", type=pa.float64(), source_type="double", nullable=False),
        Column(name="at", type=pa.time64("us"), source_type="time"),
        Column(name="much", type=pa.list_(pa.decimal256(76, 0)), source_type="numeric(76)[]"),
        Column(name="ID", type=pa.int32(), source_type="int"),
        Column(name="_sequence_num", type=pa.int64(), source_type="bigint"),
        Column(name="odd", type=pa.duration("s"), source_type="odd"),
    )
    other = replace(PEOPLE, table=TableId("public", "People"))
    found = checked(tmp_path, PEOPLE, other, TableSchema(table=TableId("public", "odd"), columns=columns, key=("id",)))
    assert sorted(found) == [
        ("column_name_reserved", True),
        ("column_names_clash", True),
        ("key_type_unsupported", True),
        ("table_names_clash", True),
        ("type_changed", False),
        ("type_changed", False),
        ("unsupported_type", True),
    ]


def test_what_is_left_of_a_first_version_that_was_never_put_is_nobodys(tmp_path: Path) -> None:
    log = tmp_path / "public" / "people" / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.0b1c.tmp").write_text("{}")
    storage = Storage(str(tmp_path))
    assert existing_problems(storage, TableId("public", "people"), "u-1", "refuse") == []
    (log.parent / "part-1.parquet").touch()
    (problem,) = existing_problems(storage, TableId("public", "people"), "u-1", "refuse")
    assert problem.code == "target_occupied"


def test_log_is_read_back_to_front(tmp_path: Path) -> None:
    txn = {"txn": {"appId": "a", "version": 7, "lastUpdated": 1}}
    newer = {"txn": {"appId": "a", "version": 9, "lastUpdated": 1}}
    write_log(tmp_path, [metadata(x="1")], [txn], [metadata(x="2"), newer], [{"add": {"path": '{"txn"'}}])
    log = read_log(Storage(str(tmp_path)), str(tmp_path))
    assert log is not None
    assert (log.version, log.properties, log.transactions) == (3, {"x": "2"}, {"a": 9})
    (tmp_path / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(DamagedLogError, match="version 1 is missing"):
        read_log(Storage(str(tmp_path)), str(tmp_path))


def test_the_ledger_is_that_of_the_newest_incarnation_while_the_table_is_ours(tmp_path: Path) -> None:
    target = DeltaLakeTarget(DeltaLakeConfig(path=str(tmp_path)), target_context(replicator="test", uuid="u-1"))
    assert target.read_ledger(TABLE) is None
    ledger = {"txn": {"appId": TABLE.ledger_name, "version": Entry(4, 50).version}}
    write_log(tmp_path / "public" / "people", [metadata(**{UUID: "u-1"}), ledger])
    found = Ledger(incarnation=TABLE.incarnation, epoch=4, last_applied=50)
    assert target.read_ledger(TABLE) == target.read_ledger(replace(TABLE, incarnation=2)) == found
    write_log(tmp_path / "public" / "people", [metadata(**{UUID: "u-2"})], version=1)
    assert target.read_ledger(TABLE) is None


def test_a_checkpoint_of_which_a_part_is_missing_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "_delta_log"
    write_log(tmp_path, [metadata(x="1")], [{"txn": {"appId": "a", "version": 7}}], [{"add": {"path": "x"}}])
    configured = {"id": pa.string(), "configuration": pa.map_(pa.string(), pa.string()), "createdTime": pa.int64()}
    txn = pa.struct({"appId": pa.string(), "version": pa.int64()})
    schema = pa.schema({"metaData": pa.struct(configured), "txn": txn})
    parts = (
        {"metaData": {"id": "x", "configuration": [("x", "2")], "createdTime": 1}},
        {"txn": {"appId": "a", "version": 8}},
    )
    for number, (row, found) in enumerate(zip(parts, [({"x": "1"}, {"a": 7}), ({"x": "2"}, {"a": 8})], strict=True)):
        name = f"{2:020}.checkpoint.{number + 1:010}.{2:010}.parquet"
        pq.write_table(pa.Table.from_pylist([row], schema=schema), folder / name)
        log = read_log(Storage(str(tmp_path)), str(tmp_path))
        assert log is not None
        assert (log.properties, log.transactions) == found


@pytest.mark.parametrize("text", ["{", '{"txn":{"appId":"x"}}', '{"commitInfo":{}}'])
def test_a_log_that_cannot_be_read_is_the_tables_matter(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "public" / "people" / "_delta_log"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.json").write_text(text)
    target = DeltaLakeTarget(DeltaLakeConfig(path=str(tmp_path)), target_context(replicator="test", uuid="u-1"))
    with pytest.raises(TableError) as refused:
        target.read_ledger(TABLE)
    assert (refused.value.code, refused.value.table) == ("target_unreadable", "public.people")
    assert [problem.code for problem in target.check([PEOPLE])] == ["target_unreadable"]


def test_deleting_that_ended_inside_the_log_is_taken_up_again(tmp_path: Path) -> None:
    target = DeltaLakeTarget(DeltaLakeConfig(path=str(tmp_path)), target_context(replicator="test", uuid="u-1"))
    folder = tmp_path / "public" / "people"
    write_log(folder, [{"add": {"path": "x"}}], version=1)
    for mark in ("", json.dumps({"uuid": "u-2"})):
        (folder / DROP_MARK).write_text(mark)
        with pytest.raises(TableError, match="version 0 is missing"):
            target.drop(TABLE)
    (folder / DROP_MARK).write_text(json.dumps({"uuid": "u-1"}))
    target.drop(TABLE)
    assert not folder.exists()


def test_entry_is_ordered_by_epoch_first() -> None:
    assert Entry.of(Entry(5, -1).version) == (5, -1)
    assert Entry(5, -1).version > Entry(4, 2**43).version
    assert Entry(EPOCH_MAX, 2**43).version < 2**63
    assert Entry.of(None) is None


def test_claim_raises_every_older_ledger_to_its_epoch() -> None:
    transactions = {
        "u-1/public.people/2": Entry(3, 40).version,
        "u-1/public.people/3": Entry(4, 50).version,
        "u-1/public.people_2/9": Entry(9, 1).version,
        "replicator/vacuum": 1,
    }
    claimed = plan_claim(TABLE, transactions, {UUID: "u-1"}, may_adopt=False)
    assert claimed.last == 50
    assert claimed.records == {"u-1/public.people/2": Entry(5, 40).version, "u-1/public.people/3": Entry(5, 50).version}
    again = plan_claim(TABLE, {**transactions, **claimed.records}, {UUID: "u-1"}, may_adopt=False)
    assert (again.last, again.records) == (50, {})


@pytest.mark.parametrize(
    "newer", [{"u-1/public.people/3": Entry(6, 1).version}, {"u-1/public.people/4": Entry(5, 1).version}]
)
def test_claim_gives_way_to_a_newer_epoch_or_incarnation(newer: dict[str, int]) -> None:
    with pytest.raises(FencedError):
        plan_claim(TABLE, newer, {UUID: "u-1"}, may_adopt=True)


def test_a_table_that_is_being_taken_over_is_not_ours(tmp_path: Path) -> None:
    target = DeltaLakeTarget(DeltaLakeConfig(path=str(tmp_path)), target_context(replicator="test", uuid="u-1"))
    transactions = {TABLE.ledger_name: Entry(EPOCH_MAX, 9).version}
    actions = [{"txn": {"appId": name, "version": version}} for name, version in transactions.items()]
    write_log(tmp_path / "public" / "people", [metadata(**{UUID: "u-1"}), *actions])
    for look in (
        lambda: target.read_ledger(TABLE),
        lambda: plan_claim(TABLE, transactions, {UUID: "u-1"}, may_adopt=False),
    ):
        with pytest.raises(TableError) as refused:
            look()
        assert refused.value.code == "not_ours"


def test_former_owner_is_shut_out_by_an_adopter() -> None:
    transactions = {"u-2/public.people/0": Entry(1, 9).version}
    with pytest.raises(TableError, match="u-2"):
        plan_claim(TABLE, transactions, {UUID: "u-2"}, may_adopt=False)
    records = plan_claim(TABLE, transactions, {UUID: "u-2"}, may_adopt=True).records
    assert records["u-2/public.people/0"] == Entry(EPOCH_MAX, 9).version


def test_columns_keep_names_types_and_comments() -> None:
    columns = (
        Column(name="a`b", type=pa.binary(), source_type="bytea", nullable=False),
        *(
            Column(name=f"c{i}", type=pa.string(), source_type="text", nullable=False, comment="it's")
            for i in range(40)
        ),
    )
    schema = TableSchema(table=TableId("s", "t"), columns=columns, key=("a`b", "c0", "c1", "c2", "c3", "c4"))
    assert clustering_columns(schema) == ("c0", "c1", "c2", "c3")
    made = new_table(replace(TABLE, options=TableOptions(deletes="soft")), schema, clustering=True)
    assert made.fields[:2] == [
        {"name": "a`b", "type": "binary", "nullable": False, "metadata": {}},
        {"name": "c0", "type": "string", "nullable": False, "metadata": {"comment": "it's"}},
    ]
    assert made.cluster_by == ("c0", "c1", "c2", "c3")
    assert made.properties["delta.dataSkippingStatsColumns"] == "`c0`,`c1`,`c2`,`c3`,`_sequence_num`"
    kept = with_log_retention(made, timedelta(days=7)).properties
    retentions = dict.fromkeys(
        ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration"), "interval 604800 seconds"
    )
    assert kept == {**made.properties, **retentions}


def test_no_comment_of_a_column_is_a_reference_and_none_is_longer_than_files_should_carry(tmp_path: Path) -> None:
    schema = replace(
        PEOPLE,
        columns=(replace(PEOPLE.columns[0], comment="${env.X} and $${a} " + "x" * 4_000),),
        comment="${env.X}" + "x" * 16_000,
    )
    assert checked(tmp_path, schema) == [("comment_changed", False)] * 3
    made = new_table(TABLE, schema, clustering=True)
    comment = made.fields[0]["metadata"]["comment"]
    assert comment.startswith("$ {env.X} and $$ {a} xxx")
    told = present(made.comment)
    assert (len(told), told[:8], told[-1]) == (16_000, "${env.X}", "…")


@pytest.mark.parametrize(
    "name", ["_metadata", "_Row_Id_", "__delta_internal_row_index", "_\u0130s_deleted", "_\u017fequence_num"]
)
def test_columns_that_delta_would_take_for_its_own_or_ours_are_refused(tmp_path: Path, name: str) -> None:
    column = Column(name=name, type=pa.string(), source_type="text")
    assert checked(tmp_path, replace(PEOPLE, columns=(*PEOPLE.columns, column))) == [("column_name_reserved", True)]


def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path) -> None:
    table = TableId("public", "\u5b57" * 64)
    assert checked(tmp_path, replace(PEOPLE, table=table)) == [("table_name_too_long", True)]


def test_a_table_is_not_written_where_new_incarnations_are_built(tmp_path: Path) -> None:
    assert checked(tmp_path, replace(PEOPLE, table=TableId("_replicator", "building"))) == [("target_occupied", True)]
    assert checked(tmp_path, replace(PEOPLE, table=TableId("_replicator", "people"))) == []
