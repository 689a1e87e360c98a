"""The pure decisions around the window.

What is read next, what a difference in the catalogue means, when a mark is due.
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replicator.capture.definitions.catalogue import CatalogChange, judge, truncated
from replicator.capture.marks import MarkBoard
from replicator.capture.snapshots.progress import (
    Reading,
    after_chunk,
    is_complete,
    next_reading,
    start_over,
    with_moves,
)
from replicator.capture.snapshots.spool import Spool
from replicator.capture.window import Move
from replicator.model.identity import TableIdentity
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.cursors import cursors
from replicator.plugins.source import TableDescription
from replicator.state.records import SnapshotProgress, SnapshotRange
from replicator_testbed.present import present

SCHEMA = TableSchema(
    table=TableId("public", "t"),
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="a", type=pa.string(), source_type="text"),
    ),
    key=("id",),
)
WIDER = replace(SCHEMA, columns=(*SCHEMA.columns, Column(name="b", type=pa.string(), source_type="text")))
LOOSER = replace(SCHEMA, columns=(SCHEMA.columns[0], replace(SCHEMA.columns[1], nullable=False)))
IDENTITY = TableIdentity(object="1", storage="1", parts={"publish": ["insert"]})


def test_reading_follows_its_cursor_to_the_end() -> None:
    progress = SnapshotProgress()
    reading = next_reading(progress, SCHEMA, 2)
    assert reading is not None
    progress = after_chunk(progress, reading, cursor=("2",), is_last=False, rows=2)
    reading = next_reading(progress, SCHEMA, 2)
    assert reading is not None
    assert reading.request().after == ("2",)
    progress = after_chunk(progress, reading, cursor=None, is_last=True, rows=0)
    assert is_complete(progress)
    assert progress.rows == 2
    assert next_reading(progress, SCHEMA, 2) is None


def moved(before: str, after: str) -> Move:
    return Move((before,), (after,))


@pytest.mark.parametrize(("length", "most"), [(6, 7_000), (500, 500), (300_000, 1)])
def test_one_statement_names_only_so_many_keys_that_a_server_takes_it(length: int, most: int) -> None:
    keys = tuple((f"{number:0{length}}",) for number in range(most + 1_000 if length < 10_000 else 2))
    done = SnapshotProgress(ranges=(SnapshotRange(is_done=True),), keys=keys)
    first = present(next_reading(done, SCHEMA, 50_000)).keys
    assert 0 < len(first) <= most
    assert first == keys[: len(first)]
    assert len(present(next_reading(done, SCHEMA, 1)).keys) == 1


def test_keys_are_read_last_and_stay_until_settled() -> None:
    progress = with_moves(SnapshotProgress(), [moved("7", "1"), moved("8", "2"), moved("9", "1")])
    progress = replace(progress, ranges=(SnapshotRange(is_done=True),))
    reading = next_reading(progress, SCHEMA, 10)
    assert reading is not None
    assert reading.request().keys == (("1",), ("2",))
    assert not is_complete(progress)
    progress = after_chunk(progress, reading, cursor=None, is_last=True, rows=1, unsettled=[("2",), ("3",)])
    assert progress.keys == (("2",),), "3 came from a row that is complete, or it would have been on the list"


def test_a_range_that_did_not_see_a_move_brings_its_key_to_the_list() -> None:
    """The list was emptied when the table was begun again, while the move was not visible yet."""
    reading = Reading(schema=SCHEMA, limit=10)
    progress = after_chunk(SnapshotProgress(), reading, cursor=("9",), is_last=True, rows=1, unsettled=[("2",), ("2",)])
    assert progress.keys == (("2",),)
    assert not is_complete(progress)


def test_keys_that_stay_are_read_behind_the_others() -> None:
    progress = SnapshotProgress(ranges=(SnapshotRange(is_done=True),), keys=(("1",), ("2",), ("3",)))
    reading = next_reading(progress, SCHEMA, 2)
    assert reading is not None
    assert reading.keys == (("1",), ("2",))
    progress = after_chunk(progress, reading, cursor=None, is_last=True, rows=1, unsettled=[("1",)])
    assert progress.keys == (("3",), ("1",))


def test_once_ranges_are_read_only_what_comes_from_a_key_of_the_list_joins_it() -> None:
    progress = SnapshotProgress(ranges=(SnapshotRange(is_done=True),), keys=(("1",),))
    assert with_moves(progress, [moved("7", "8"), moved("8", "9")]) is progress
    assert with_moves(progress, [moved("1", "8"), moved("7", "6"), moved("8", "9")]).keys == (("1",), ("8",), ("9",))
    half = replace(progress, ranges=(SnapshotRange(is_done=True), SnapshotRange()))
    assert with_moves(half, [moved("7", "8")]).keys == (("1",), ("8",))


def test_too_many_keys_begin_the_table_again() -> None:
    progress = SnapshotProgress(ranges=(SnapshotRange(after=("9",), is_done=True),), keys=(("1",),))
    assert with_moves(progress, [moved("1", "2")], keys_max=1) == SnapshotProgress()


def test_starting_over_keeps_the_bounds_of_ranges() -> None:
    ranges = (SnapshotRange(after=("3",), upto=("5",), is_done=True), SnapshotRange(after=("7",)))
    assert start_over(SnapshotProgress(ranges=ranges)).ranges == (
        SnapshotRange(upto=("5",)),
        SnapshotRange(after=("5",)),
    )


@pytest.mark.parametrize(
    ("schema", "identity", "change"),
    [
        (SCHEMA, IDENTITY, CatalogChange.NONE),
        (LOOSER, IDENTITY, CatalogChange.NONE),
        (SCHEMA, replace(IDENTITY, storage="2"), CatalogChange.STORAGE),
        (SCHEMA, replace(IDENTITY, storage=None), CatalogChange.STORAGE),
        (SCHEMA, replace(IDENTITY, object="2"), CatalogChange.OBJECT),
        (SCHEMA, replace(IDENTITY, object="2", storage="2", parts={}), CatalogChange.OBJECT),
        (SCHEMA, replace(IDENTITY, parts={"publish": ["insert", "update"]}), CatalogChange.DEFINITION),
        (SCHEMA, replace(IDENTITY, parts={}), CatalogChange.DEFINITION),
        (SCHEMA, replace(IDENTITY, storage="2", parts={}), CatalogChange.DEFINITION),
        (replace(SCHEMA, key=()), IDENTITY, CatalogChange.KEY),
        (WIDER, IDENTITY, CatalogChange.COLUMNS),
        (None, IDENTITY, CatalogChange.DROPPED),
    ],
)
def test_difference_in_the_catalogue(
    schema: TableSchema | None, identity: TableIdentity, change: CatalogChange
) -> None:
    found = None if schema is None else TableDescription(schema=schema, identity=identity)
    assert judge(SCHEMA, IDENTITY, found, truncates_since=0) is change


def test_what_was_not_known_is_learned() -> None:
    found = TableDescription(schema=SCHEMA, identity=replace(IDENTITY, parts={**IDENTITY.parts, "new": None}))
    assert judge(SCHEMA, IDENTITY, found, truncates_since=0) is CatalogChange.EXPLAINED
    for older in (replace(IDENTITY, object=None), replace(IDENTITY, storage=None)):
        assert judge(SCHEMA, older, found, truncates_since=0) is CatalogChange.EXPLAINED


def test_what_is_said_of_single_columns_counts_while_both_have_them() -> None:
    accepted = replace(IDENTITY, columns={"1": 23, "2": 25})
    for columns, change in (
        ({"1": 23, "2": 25}, CatalogChange.NONE),
        ({"1": 23, "2": 25, "3": 16}, CatalogChange.EXPLAINED),
        ({"1": 23}, CatalogChange.EXPLAINED),
        ({"1": 23, "2": 1043}, CatalogChange.DEFINITION),
    ):
        found = TableDescription(schema=SCHEMA, identity=replace(IDENTITY, columns=columns))
        assert judge(SCHEMA, accepted, found, truncates_since=0) is change


def test_truncate_explains_new_storage_and_nothing_else() -> None:
    def found(storage: str = "2", **others: Any) -> TableDescription:
        return TableDescription(schema=SCHEMA, identity=replace(IDENTITY, storage=storage, **others), storage_by="7")

    accepted = truncated(IDENTITY, "7")
    assert judge(SCHEMA, accepted, found(), truncates_since=0) is CatalogChange.EXPLAINED
    assert judge(SCHEMA, accepted, found(), truncates_since=1) is CatalogChange.ASK_AGAIN
    assert judge(SCHEMA, accepted, found(object="2"), truncates_since=0) is CatalogChange.OBJECT
    assert judge(SCHEMA, accepted, found(parts={}), truncates_since=0) is CatalogChange.DEFINITION


@pytest.mark.parametrize(("truncated_by", "made_by"), [("7", "8"), ("7", None), (None, "7"), (None, None)])
def test_truncate_explains_the_storage_that_it_made_and_no_other(truncated_by: str | None, made_by: str | None) -> None:
    accepted = truncated(IDENTITY, truncated_by)
    found = TableDescription(schema=SCHEMA, identity=replace(IDENTITY, storage="2"), storage_by=made_by)
    assert judge(SCHEMA, accepted, found, truncates_since=0) is CatalogChange.STORAGE


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [("1", "1", CatalogChange.EXPLAINED), ("1", "2", CatalogChange.STORAGE), (None, None, CatalogChange.STORAGE)],
)
def test_truncate_explains_storage_of_a_table_that_nothing_else_altered(
    before: str | None, now: str | None, change: CatalogChange
) -> None:
    accepted = truncated(replace(IDENTITY, altered=before), "7")
    found = TableDescription(schema=SCHEMA, identity=replace(IDENTITY, storage="2", altered=now))
    assert judge(SCHEMA, accepted, found, truncates_since=0) is change
    assert judge(SCHEMA, accepted, found, truncates_since=1) is CatalogChange.ASK_AGAIN


def test_an_alteration_that_keeps_the_storage_is_learned() -> None:
    found = TableDescription(schema=SCHEMA, identity=replace(IDENTITY, altered="2"))
    assert judge(SCHEMA, replace(IDENTITY, altered="1"), found, truncates_since=0) is CatalogChange.EXPLAINED
    assert judge(SCHEMA, replace(IDENTITY, altered="2"), found, truncates_since=0) is CatalogChange.NONE


def test_truncate_makes_no_storage_for_a_source_that_names_none() -> None:
    nameless = replace(IDENTITY, storage=None)
    assert truncated(nameless, "7") == nameless
    assert truncated(None, "7") is None


def test_identity_read_back_is_the_same_identity() -> None:
    stored = json.dumps(replace(IDENTITY, parts={"publish": ("insert",)}).to_json())
    assert TableIdentity.from_json(json.loads(stored)) == IDENTITY


def test_mark_delivered_before_its_writer_knows_it() -> None:
    board, written = MarkBoard[str](), Future[str]()
    board.expect(written, "one")
    board.deliver(["x"])
    assert board.take_due() == []
    written.set_result("x")
    assert board.take_due() == ["one"]
    assert len(board) == 0


def test_what_waits_no_longer_for_its_mark_is_forgotten_though_it_could_not_be_written() -> None:
    board, written, other = MarkBoard[str](), Future[str](), Future[str]()
    board.expect(written, "one")
    board.expect(other, "two")
    board.drop(["one"])
    written.set_exception(RuntimeError("the source is away"))
    other.set_result("y")
    board.deliver(["y"])
    assert board.take_due() == ["two"]


def test_cursor_texts() -> None:
    columns = [pa.array([1, 2]), pa.array([b"\x00\xff", None])]
    assert cursors(columns) == [("1", "\\x00ff")]


def test_spool_gives_back_what_was_added_more_than_once(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"a": [1, 2]})
    spool = Spool(tmp_path / "new", rows.schema)
    spool.append(rows)
    assert [b.num_rows for b in spool.batches()] == [2]
    assert [b.num_rows for b in spool.batches()] == [2]
    assert spool.rows == 2
    spool.close()
    spool.close()


def test_empty_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path, pa.schema([("a", pa.int64())]))
    assert list(spool.batches()) == []
    spool.close()
