"""What the target promises, on real Spark and Delta."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from replicator.model.errors import FencedError, SchemaConflictError, TableError, TargetUnavailableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import Column, TableId
from replicator.plugins.target import EMPTY_LEDGER, TableOptions
from replicator_target_delta.ledger import Transaction
from replicator_target_delta.target import DeltaLakeTarget
from replicator_testbed.present import present
from replicator_testing.defaults import target_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from plugins.targets.delta.tests.conftest import Lake

SOFT = TableOptions(deletes="soft")


def test_changes_of_a_batch_are_folded_and_merged(lake: Lake) -> None:
    lake.apply(lake.insert(id=1, name="a", note="x"), lake.insert(id=2, name="b", note="y"))
    lake.apply(lake.update(id=1, name="c", note=None), lake.delete(id=2), lake.insert(id=3, name="d", note="z"))
    assert lake.rows() == {(1, "c", None), (3, "d", "z")}


def test_replayed_batch_changes_nothing(lake: Lake) -> None:
    batch = lake.batch([lake.insert(id=1, name="a", note="x")])
    lake.target.apply_batch(lake.table, batch)
    version = lake.version()
    assert lake.target.apply_batch(lake.table, batch).was_skipped
    restarted = lake.process()
    assert restarted.claim(lake.table).last_applied == batch.last
    assert restarted.apply_batch(lake.table, batch).was_skipped
    assert lake.version() == version


@pytest.mark.matrix
def test_claim_of_a_new_epoch_keeps_the_ledger_and_fences_the_old_one(lake: Lake) -> None:
    lake.apply(lake.insert(id=1, name="a", note="x"))
    paused = lake.target
    woken = lake.batch([lake.insert(id=9, name="zombie", note="")])
    successor, table = lake.process(), lake.owned(epoch=2)
    claim = successor.claim(table)
    assert claim.last_applied == 1
    version = lake.version()
    for attempt in (
        lambda: paused.apply_batch(lake.table, woken),
        lambda: paused.apply_batch(
            lake.table, lake.batch([lake.insert(id=9, name="z", note="")], is_append=True, has_absent=False)
        ),
        lambda: paused.advance(lake.table, 1000),
        lambda: paused.complete_snapshot(lake.table, 1000, 1001),
        lambda: lake.create(paused, lake.owned(incarnation=1)),
        lambda: lake.event(DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=lake.schema.table), paused),
        lambda: lake.event(DDLEvent(operation=DDLOperation.DROP_TABLE, table=lake.schema.table), paused),
        lambda: paused.claim(lake.table),
    ):
        with pytest.raises(FencedError):
            attempt()
    assert lake.version() == version
    assert lake.rows() == {(1, "a", "x")}
    successor.apply_batch(table, lake.batch([lake.insert(id=2, name="b", note="y")]))
    assert lake.rows() == {(1, "a", "x"), (2, "b", "y")}


@pytest.mark.matrix
def test_old_incarnation_cannot_write_into_its_replacement(lake: Lake) -> None:
    lake.apply(lake.insert(id=1, name="a", note="x"))
    paused = lake.target
    successor, table = lake.process(), lake.owned(epoch=2, incarnation=1)
    claim = successor.claim(table)
    assert claim.last_applied == -1
    assert lake.rows() == {(1, "a", "x")}
    lake.create(successor, table)
    with pytest.raises(FencedError):
        paused.apply_batch(lake.table, lake.batch([lake.insert(id=9, name="zombie", note="")]))
    assert lake.rows() == {(1, "a", "x")}
    successor.publish(table, lake.number())
    assert lake.rows() == set()
    with pytest.raises(FencedError):
        paused.apply_batch(lake.table, lake.batch([lake.insert(id=9, name="zombie", note="")]))
    with pytest.raises(FencedError):
        lake.create(paused, lake.table)
    successor.apply_batch(table, lake.batch([lake.insert(id=2, name="b", note="y")]))
    assert lake.rows() == {(2, "b", "y")}


def test_late_creation_by_an_older_incarnation_is_replaced(
    spark: SparkSession, tmp_path: Path, new_lake: Callable[..., Lake]
) -> None:
    lake = new_lake()
    successor, table = lake.process(), lake.owned(epoch=2, incarnation=1)
    assert successor.claim(table).last_applied == EMPTY_LEDGER
    lake.create(successor, table)
    assert successor.claim(table).last_applied > EMPTY_LEDGER


@pytest.mark.matrix
def test_new_incarnation_replaces_columns_key_and_rows_in_one_commit(lake: Lake) -> None:

    lake.apply(lake.insert(id=1, name="a", note="x"))
    version = lake.version()
    shape = replace(
        lake.schema, columns=(Column(name="odd name;", type=pa.timestamp("us"), source_type="timestamp"),), key=()
    )
    table = lake.owned(incarnation=1)
    lake.target.claim(table)
    lake.create(lake.target, table, shape)
    assert lake.version() == version + 1  # the claim
    lake.target.publish(table, lake.number())
    assert lake.version() == version + 2  # one commit that replaces
    lake.schema = shape
    lake.table = table
    assert lake.rows() == set()
    lake.apply(lake.insert(c1=None))
    assert lake.rows() == {(None,)}
    detail = present(lake.spark.sql(f"DESCRIBE DETAIL delta.`{lake.path}`").first())
    assert list(detail["clusteringColumns"]) == []


@pytest.mark.matrix
def test_table_of_somebody_else_is_refused_unless_adopted(lake: Lake) -> None:
    lake.apply(lake.insert(id=1, name="a", note="x"))
    stranger = lake.owned(uuid="u-2")
    with pytest.raises(TableError) as caught:
        lake.process().claim(stranger)
    assert caught.value.code == "not_ours"
    lake.config = {"adopt": "replace"}
    adopter = lake.process()
    assert adopter.claim(stranger) == adopter.claim(stranger)
    with pytest.raises(FencedError):
        lake.apply(lake.insert(id=9, name="former owner", note=""))
    lake.create(adopter, stranger)
    assert lake.rows() == set()


@pytest.mark.matrix
def test_a_table_whose_columns_are_not_mapped_is_adopted(lake: Lake) -> None:
    lake.spark.sql(f"CREATE OR REPLACE TABLE delta.`{lake.path}` USING delta AS SELECT 1 AS id, 'x' AS other")
    lake.config = {"adopt": "replace"}
    adopter, stranger = lake.process(), lake.owned(uuid="u-2")
    adopter.claim(stranger)
    lake.create(adopter, stranger)
    assert lake.rows() == set()


def test_truncate_empties_and_its_replay_spares_later_rows(lake: Lake) -> None:
    lake.apply(lake.insert(id=1, name="a", note="x"))
    event = DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=lake.schema.table)
    number = lake.event(event)
    assert lake.rows() == set()
    lake.apply(lake.insert(id=2, name="b", note="y"))
    for target in (lake.target, lake.process()):
        target.apply_ddl(lake.table, event, number)
    assert lake.rows() == {(2, "b", "y")}
    assert lake.process().claim(lake.table).last_applied == lake.next - 1


@pytest.mark.matrix
def test_dropped_table_keeps_its_ledger_and_can_come_again(lake: Lake) -> None:
    lake.apply(lake.insert(id=1, name="a", note="x"))
    number = lake.event(DDLEvent(operation=DDLOperation.DROP_TABLE, table=lake.schema.table))
    assert {p.relative_to(lake.path).parts[0] for p in lake.path.rglob("*") if p.is_file()} == {"_delta_log"}
    claim = lake.process().claim(lake.table)
    assert claim.last_applied == number
    table = lake.owned(incarnation=1)
    lake.target.claim(table)
    lake.create(lake.target, table)
    lake.table = table
    lake.apply(lake.insert(id=2, name="b", note="y"))
    assert lake.rows() == {(2, "b", "y")}


@pytest.mark.matrix
def test_soft_deletes_mark_rows_and_return(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(options=SOFT)
    lake.apply(lake.insert(id=1, name="a", note="x"), lake.insert(id=2, name="b", note="y"))
    lake.apply(lake.delete(id=1), lake.insert(id=3, name="c", note="z"), lake.delete(id=3))
    assert lake.rows("id", "name", "_is_deleted") == {(1, "a", True), (2, "b", False), (3, "c", True)}
    lake.apply(lake.insert(id=1, name="again", note=None))
    assert lake.rows("id", "name", "note", "_is_deleted") == {
        (1, "again", None, False),
        (2, "b", "y", False),
        (3, "c", "z", True),
    }
    number = lake.event(DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=lake.schema.table))
    assert {row[1:] for row in lake.rows("id", "_is_deleted")} == {(True,)}
    assert (2, number) in lake.rows("id", "_sequence_num")


@pytest.mark.parametrize("deletes", ["hard", pytest.param("soft", marks=pytest.mark.matrix)])
def test_completed_snapshot_removes_what_it_did_not_find(new_lake: Callable[..., Lake], deletes: str) -> None:
    lake = new_lake(options=TableOptions(deletes=deletes))
    lake.apply(lake.insert(id=1, name="gone", note=""), lake.insert(id=2, name="kept", note=""))
    start = lake.next
    lake.apply(lake.change("INSERT", is_snapshot=True, row={"id": 2, "name": "kept", "note": ""}))
    number = lake.number()
    for target in (lake.target, lake.target, lake.process()):
        target.complete_snapshot(lake.table, start, number)
    if deletes == "hard":
        assert lake.rows("id") == {(2,)}
    else:
        assert lake.rows("id", "_is_deleted") == {(1, True), (2, False)}
    assert lake.process().claim(lake.table).last_applied == number


def test_ledger_moves_alone_and_at_most_once(lake: Lake) -> None:
    lake.target.advance(lake.table, 7)
    version = lake.version()
    lake.target.advance(lake.table, 7)
    restarted = lake.process()
    restarted.advance(lake.table, 5)
    assert lake.version() == version
    assert restarted.claim(lake.table).last_applied == 7


def test_appended_rows_are_skipped_by_their_replay(lake: Lake) -> None:
    changes = [lake.change("INSERT", is_snapshot=True, row={"id": i, "name": "n", "note": None}) for i in range(10)]
    batch = lake.batch(changes, is_append=True, has_absent=False, has_key_changes=False)
    assert present(lake.target.apply_batch(lake.table, batch).details)["way"] == "append"
    assert lake.process().apply_batch(lake.table, batch).was_skipped
    assert len(lake.rows()) == 10


def test_rows_at_or_below_skip_to_are_not_applied_again(lake: Lake) -> None:
    first = lake.insert(id=1, name="a", note="x")
    lake.apply(first)
    lake.apply(lake.update(id=1, name="b", note="x"))
    second = lake.insert(id=2, name="c", note="y")
    lake.apply(first, second, skip_to=second["_sequence_num"] - 1)
    assert lake.rows() == {(1, "b", "x"), (2, "c", "y")}


def test_drop_removes_the_folder_and_only_ours(lake: Lake) -> None:
    lake.target.drop(lake.owned(uuid="u-2"))
    lake.apply(lake.insert(id=1, name="a", note="x"))
    assert lake.rows() == {(1, "a", "x")}
    lake.target.drop(lake.table)
    lake.target.drop(lake.table)
    assert not lake.path.exists()


def test_changed_shape_is_refused(lake: Lake) -> None:
    with pytest.raises(TableError) as caught:
        lake.apply(lake.insert(id=1, name="a"), schema=replace(lake.schema, columns=lake.schema.columns[:2]))
    assert caught.value.code == "schema_conflict"
    with pytest.raises(TableError) as caught:
        lake.event(DDLEvent(operation=DDLOperation.ALTER_TABLE, table=lake.schema.table, schema=lake.schema))
    assert caught.value.code == "ddl_not_supported"


def test_table_made_by_an_older_epoch_behind_the_claim_is_claimed_again(lake: Lake) -> None:
    lake.schema = replace(lake.schema, table=TableId("public", "later"))
    paused, successor, table = lake.target, lake.process(), lake.owned(epoch=2)
    paused.claim(lake.owned())
    assert successor.claim(table).last_applied == EMPTY_LEDGER
    event = DDLEvent(operation=DDLOperation.CREATE_TABLE, table=lake.schema.table, schema=lake.schema)
    paused.apply_ddl(lake.owned(), event, 0)
    with pytest.raises(TargetUnavailableError) as caught:
        successor.apply_ddl(table, event, 0)
    assert caught.value.code == "target_busy"
    assert successor.claim(table).last_applied == 0
    successor.apply_ddl(table, event, 0)
    successor.apply_batch(table, lake.batch([lake.insert(id=1, name="a", note="x")], last=1))
    assert lake.rows("id") == {(1,)}


@pytest.mark.matrix
def test_dropped_table_takes_no_changes_until_it_is_recreated(lake: Lake) -> None:
    last = lake.batch([lake.insert(id=1, name="a", note="x")])
    lake.target.apply_batch(lake.table, last)
    lake.event(DDLEvent(operation=DDLOperation.DROP_TABLE, table=lake.schema.table))
    assert lake.target.apply_batch(lake.table, last).was_skipped
    start = lake.number()
    lake.target.advance(lake.table, start)
    for attempt in (
        lambda: lake.apply(lake.change("INSERT", row={"id": 2, "name": "b", "note": None}, is_snapshot=True)),
        lambda: lake.target.complete_snapshot(lake.table, start, lake.number()),
        lambda: lake.event(DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=lake.schema.table)),
    ):
        with pytest.raises(SchemaConflictError, match="--recreate"):
            attempt()
    assert lake.process().claim(lake.table).last_applied == start
    assert lake.rows() == set()


@pytest.mark.matrix
def test_drop_of_an_old_holder_spares_the_files_of_the_next(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.apply(lake.insert(id=1, name="a", note="x"))
    successor, table = lake.process(), lake.owned(epoch=2, incarnation=1)
    empty = Transaction.empty

    def sleep_behind(transaction: Transaction, *args: Any) -> None:
        empty(transaction, *args)
        successor.claim(table)
        lake.create(successor, table)
        successor.apply_batch(table, lake.batch([lake.insert(id=7, name="new", note=None)]))
        successor.publish(table, lake.number())

    monkeypatch.setattr(Transaction, "empty", sleep_behind)
    lake.event(DDLEvent(operation=DDLOperation.DROP_TABLE, table=lake.schema.table))
    assert lake.rows() == {(7, "new", None)}


@pytest.mark.parametrize("owner", ["u-1", "u-2"])
def test_changes_go_into_no_table_recreated_since_the_claim(lake: Lake, owner: str) -> None:
    lake.apply(lake.insert(id=1, name="a", note="x"))
    late = [
        lake.batch([lake.insert(id=98, name="late", note=None)]),
        lake.batch([lake.insert(id=99, name="late", note=None)], is_append=True, has_absent=False),
    ]
    # After an error a process claims the table again, so each one is late once.
    writers = [lake.process() for _ in range(3)]
    for writer in writers:
        writer.claim(lake.table)
    lake.process().drop(lake.table)
    context = target_context(replicator="test", uuid=owner, epoch=2, spark=lambda: lake.spark)
    other, table = DeltaLakeTarget(lake.target.config, context), lake.owned(uuid=owner, epoch=2, incarnation=1)
    other.claim(table)
    lake.create(other, table)
    for writer, batch in zip(writers, late, strict=False):
        with pytest.raises(TableError if owner == "u-2" else TargetUnavailableError):
            writer.apply_batch(lake.table, batch)
    with pytest.raises(TableError if owner == "u-2" else TargetUnavailableError):
        writers[2].complete_snapshot(lake.table, 100, 101)
    with pytest.raises(TableError if owner == "u-2" else FencedError):
        writers[2].advance(lake.table, 102)
    assert lake.rows() == set()


def test_a_damaged_log_fails_its_table_with_hadoops_words(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(engine="spark")
    lake.apply(lake.insert(id=1, name="a", note="x"))
    commit = lake.path / "_delta_log" / f"{lake.version():020}.json"
    assert (commit.parent / f".{commit.name}.crc").exists()
    # Still JSON, and nothing that is looked at without Spark.
    commit.write_bytes(commit.read_bytes().replace(b'"operation":"', b'"operatioN":"'))
    present(lake.spark._jvm).org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises(TableError) as caught:
        lake.process().apply_batch(lake.owned(epoch=2), lake.batch([lake.insert(id=2, name="b", note="y")]))
    assert (caught.value.code, caught.value.table) == ("target_unreadable", "public.people")
    assert "Checksum" in caught.value.message
    assert commit.name in caught.value.message


@pytest.mark.matrix
def test_a_statement_that_spark_refuses_fails_its_table_with_sparks_words(
    new_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(engine="spark")
    statement = "MERGE INTO nothing t USING replicator_batch s ON t.x = s.y WHEN MATCHED THEN DELETE"
    monkeypatch.setattr("replicator_target_delta.spark.statements.merge_statement", lambda *_, **__: statement)
    with pytest.raises(TableError) as caught:
        lake.apply(lake.insert(id=1, name="a", note="x"))
    assert (caught.value.code, caught.value.table) == ("spark_refused", "public.people")
    assert "TABLE_OR_VIEW_NOT_FOUND" in caught.value.message


def test_columns_that_were_never_validated_are_refused_when_the_table_is_made(lake: Lake) -> None:
    columns = (*lake.schema.columns, Column(name="_Is_Deleted", type=pa.string(), source_type="text"))
    with pytest.raises(SchemaConflictError) as caught:
        lake.create(schema=replace(lake.schema, columns=columns))
    assert (caught.value.code, caught.value.table) == ("column_name_reserved", "public.people")
