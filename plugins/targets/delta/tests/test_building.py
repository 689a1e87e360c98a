"""A new incarnation is built where readers do not look, and swapped in by one commit."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from replicator.model import crash
from replicator.model.errors import FencedError, TargetUnavailableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import EMPTY_LEDGER, Claim, Ledger, TableOptions
from replicator_target_delta.definition import swapping
from replicator_target_delta.definition.building import Buildings
from replicator_target_delta.log.table import read_log
from replicator_target_delta.storage import Storage
from replicator_target_delta.upkeep import due as maintenance
from replicator_testbed.delta import read_delta, rows_of
from replicator_testbed.present import present
from replicator_testing.alterations import Killed, killed_at

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake


def schema_of(**columns: pa.DataType) -> TableSchema:
    """The table with a key `id` and other columns, numbered in this order."""
    return TableSchema(
        table=TableId("public", "people"),
        columns=tuple(
            Column(name=name, type=type_, source_type="?", nullable=name != "id", id=number)
            for number, (name, type_) in enumerate({"id": pa.int64(), **columns}.items(), 1)
        ),
        key=("id",),
    )


OLD = schema_of(name=pa.string())
NEW = schema_of(name=pa.int32(), more=pa.string())
"""What no ALTER makes of it: text becomes numbers."""


def building_of(lake: Lake) -> Path:
    """Where the incarnation is built."""
    return Path(lake.target._storage.building_path("u-1", lake.schema.table, lake.table.incarnation))


def buildings(lake: Lake) -> list[str]:
    return sorted(path.name for path in building_of(lake).parent.glob("*"))


def by_spark(lake: Lake) -> list[tuple[Any, ...]]:
    rows = lake.spark.read.format("delta").load(str(lake.path)).drop("_sequence_num", "_is_deleted")
    return sorted(map(tuple, rows.collect()))


def seen(lake: Lake) -> list[tuple[Any, ...]]:
    """What Spark and delta-rs read at the table's path alike."""
    found = by_spark(lake)
    names = lake.spark.read.format("delta").load(str(lake.path)).columns
    wanted = [name for name in names if name not in {"_sequence_num", "_is_deleted"}]
    assert sorted(rows_of(read_delta(lake.path, wanted))) == found
    return found


def begin(lake: Lake, schema: TableSchema = NEW, incarnation: int = 1, epoch: int = 1) -> None:
    """Begin another incarnation."""
    lake.schema = schema
    lake.table = lake.owned(incarnation=incarnation, epoch=epoch, options=lake.table.options)
    lake.target.claim(lake.table)
    lake.create()


@pytest.fixture
def old(new_lake: Callable[..., Lake]) -> Lake:
    lake = new_lake(OLD, engine="auto")
    lake.apply(lake.insert(id=1, name="a"), lake.insert(id=2, name="b"))
    return lake


OLD_ROWS = [(1, "a"), (2, "b")]


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ["auto", "spark"])
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_the_old_table_stays_until_the_new_one_is_whole(
    new_lake: Callable[..., Lake], engine: str, deletes: str
) -> None:
    lake = new_lake(OLD, TableOptions(deletes=deletes), engine=engine)
    lake.apply(lake.insert(id=1, name="a"), lake.insert(id=2, name="b"))
    version = lake.version()
    begin(lake)
    for step in (
        lambda: lake.apply(
            *[lake.change("INSERT", row={"id": i, "name": i, "more": "x"}, is_snapshot=True) for i in range(5)],
            is_append=True,
            has_absent=False,
        ),
        lambda: lake.apply(lake.update(id=1, name=-1, absent=["more"]), lake.delete(id=0)),
        lambda: lake.alter(schema_of(name=pa.int64(), more=pa.string(), new=pa.int32()), {"new": 7}),
        lambda: lake.apply(lake.update(id=3, name=2**40, more="y", new=8)),
        lambda: lake.alter(schema_of(name=pa.decimal128(20, 0), more=pa.string(), new=pa.int64())),
        lambda: lake.apply(lake.insert(id=9, name=10**19, more="z", new=2**40)),
    ):
        step()
        assert seen(lake) == OLD_ROWS
    assert lake.version() == version + 1  # the claim
    files = {path.name for path in building_of(lake).rglob("*.parquet")}
    lake.target.publish(lake.table, lake.number())
    assert lake.version() == version + 2
    assert buildings(lake) == []
    wanted = [(1, -1, "x", 7), (2, 2, "x", 7), (3, 2**40, "y", 8), (4, 4, "x", 7), (9, 10**19, "z", 2**40)]
    rows = lake.spark.read.format("delta").load(str(lake.path))
    living = rows.where("NOT _is_deleted").drop("_is_deleted") if deletes == "soft" else rows
    assert sorted(map(tuple, living.drop("_sequence_num").collect())) == wanted
    assert {name.rpartition("/")[2] for name in rows.inputFiles()} <= files
    log = present(read_log(lake.target._storage, str(lake.path)))
    assert (log.properties["replicator.incarnation"], log.properties["delta.enableTypeWidening"]) == ("1", "true")
    if engine == "auto":
        lake.rung = "L1"
    lake.apply(lake.update(id=2, name=5, more="p", new=1), lake.delete(id=9), expects_rows=True)
    assert lake.target.audit(lake.table, None).changed_by_others == []
    assert lake.spark.sql(f"DESCRIBE DETAIL delta.`{lake.path}`").first()["clusteringColumns"] == ["id"]  # type: ignore[index]


@pytest.mark.matrix
def test_no_reader_sees_anything_between_the_two(old: Lake) -> None:
    begin(old)
    old.apply(*[old.insert(id=i, name=i, more="new") for i in range(100)])
    found, done = set[tuple[int, ...]](), threading.Event()

    def look() -> None:
        while True:
            is_last = done.is_set()
            found.add(tuple(sorted(row[0] for row in rows_of(read_delta(old.path, ["id"])))))
            if is_last:
                return

    reader = threading.Thread(target=look)
    reader.start()
    try:
        old.target.publish(old.table, old.number())
    finally:
        done.set()
        reader.join()
    assert tuple(range(100)) in found
    assert found <= {(1, 2), tuple(range(100))}


@pytest.mark.matrix
def test_the_ledger_that_is_read_is_the_building_s(old: Lake) -> None:
    begin(old, epoch=2)
    old.apply(old.insert(id=5, name=5))
    number = old.next - 1
    assert old.process().read_ledger(old.owned()) == Ledger(incarnation=1, epoch=2, last_applied=number)
    successor = old.process()
    table = replace(old.table, epoch=3)
    assert successor.claim(table) == Claim(last_applied=number)
    assert successor.read_ledger(table) == Ledger(incarnation=1, epoch=3, last_applied=number)
    successor.publish(table, number + 1)
    assert successor.read_ledger(table) == Ledger(incarnation=1, epoch=3, last_applied=number + 1)


@pytest.mark.matrix
def test_upkeep_works_on_the_building_and_leaves_what_it_needs(old: Lake) -> None:
    begin(old)
    for i in range(4):
        old.apply(old.insert(id=i, name=i))
    old.apply(old.delete(id=0))
    old.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    for path in (building_of(old), old.path):
        old.spark.sql(f"OPTIMIZE delta.`{path}`")
        old.spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    assert seen(old) == OLD_ROWS
    # As a process that continues: its lane begins at what the log says now.
    old.target = old.process()
    old.apply(old.update(id=1, name=-1), expects_rows=True)
    assert maintenance.last_vacuum(old.target._storage, str(building_of(old)), datetime.now(UTC)) < datetime.now(UTC)
    old.target.publish(old.table, old.number())
    old.spark.sql(f"VACUUM delta.`{old.path}` RETAIN 0 HOURS")
    assert seen(old) == [(1, -1, None), (2, 2, None), (3, 3, None)]


@contextmanager
def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Iterator[None]:
    """Something that happens when the building's files are shared, once."""
    waiting = [act]

    def crash_point(name: str) -> None:
        if name == "target.files_shared" and waiting:
            waiting.pop()()

    with monkeypatch.context() as patch:
        patch.setattr(swapping, "crash_point", crash_point)
        yield
    assert not waiting


@pytest.mark.matrix
@pytest.mark.parametrize("statement", ["INSERT INTO {} VALUES (7, 'z', 0)", "DELETE FROM {} WHERE id = 1"])
def test_others_change_the_old_table_meanwhile(old: Lake, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    begin(old)
    old.apply(old.insert(id=5, name=5))
    with between(monkeypatch, lambda: old.spark.sql(statement.format(f"delta.`{old.path}`"))):
        old.target.publish(old.table, old.number())
    assert seen(old) == [(5, 5, None)]


@pytest.mark.matrix
def test_a_successor_that_claims_while_files_are_shared_fences(old: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(old)
    old.apply(old.insert(id=5, name=5))
    successor, table = old.process(), replace(old.table, epoch=2)
    with between(monkeypatch, lambda: successor.claim(table)), pytest.raises(FencedError):
        old.target.publish(old.table, old.number())
    assert seen(old) == OLD_ROWS
    successor.publish(table, old.number())
    assert seen(old) == [(5, 5, None)]


@pytest.mark.matrix
def test_a_successor_may_publish_while_files_are_shared(old: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(old)
    old.apply(old.insert(id=5, name=5))
    successor, table = old.process(), replace(old.table, epoch=2)

    def overtake() -> None:
        successor.claim(table)
        successor.publish(table, old.number())
        successor.apply_batch(table, old.batch([old.insert(id=6, name=6)]))

    with between(monkeypatch, overtake), pytest.raises((FencedError, TargetUnavailableError)):
        old.target.publish(old.table, old.number())
    assert seen(old) == [(5, 5, None), (6, 6, None)]


@pytest.mark.matrix
def test_a_zombie_s_building_is_never_published(old: Lake) -> None:
    """It had claimed before there was a building, and makes one behind the claim of its successor."""
    old.schema, old.table = NEW, old.owned(incarnation=1)
    zombie, heir, table = old.target, old.process(), old.owned(incarnation=1, epoch=2)
    zombie.claim(old.table)
    assert heir.claim(table) == Claim(last_applied=EMPTY_LEDGER)
    event = DDLEvent(operation=DDLOperation.CREATE_TABLE, table=NEW.table, schema=NEW)
    zombie.apply_ddl(old.table, event, 10)
    zombie.apply_batch(old.table, old.batch([old.insert(id=99, name=99)], last=11))
    with pytest.raises(FencedError):
        zombie.publish(old.table, 12)
    assert seen(old) == OLD_ROWS
    with pytest.raises(TargetUnavailableError):
        heir.apply_ddl(table, event, 10)
    # The same events of the same journal: what the zombie applied is not applied again.
    assert heir.claim(table) == Claim(last_applied=11)
    with pytest.raises(FencedError):
        zombie.advance(old.table, 12)
    heir.publish(table, 12)
    assert seen(old) == [(99, 99, None)]


@pytest.mark.matrix
def test_a_writer_of_the_old_incarnation_changes_nothing(old: Lake) -> None:
    zombie, table, late = old.target, old.table, old.batch([old.insert(id=9, name="zombie")])
    old.target = old.process()
    begin(old, epoch=2)
    for act in (
        lambda: zombie.apply_batch(table, late),
        lambda: zombie.advance(table, 100),
        lambda: zombie.drop(replace(table, uuid="u-2")),
    ):
        try:
            act()
        except FencedError:
            continue
    assert seen(old) == OLD_ROWS
    old.target.publish(old.table, old.number())
    with pytest.raises(FencedError):
        zombie.apply_batch(table, late)
    assert seen(old) == []


@pytest.mark.matrix
@pytest.mark.parametrize("point", ["target.files_shared", "target.swapped"])
def test_a_crash_leaves_nothing_that_the_next_claim_does_not_remove(
    old: Lake, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    begin(old)
    old.apply(*[old.insert(id=i, name=i) for i in range(3)])
    old.apply(old.delete(id=0))
    number = old.number()
    with killed_at(point, monkeypatch), pytest.raises(Killed):
        old.target.publish(old.table, number)
    assert crash.POINTS  # the variable that named it
    assert buildings(old) == ["1"]
    is_done = point == "target.swapped"
    assert seen(old) == ([(1, 1, None), (2, 2, None)] if is_done else OLD_ROWS)
    old.target, table = old.process(), replace(old.table, epoch=2)
    old.table = table
    assert old.target.claim(table).last_applied == (number if is_done else number - 1)
    assert buildings(old) == ([] if is_done else ["1"])
    old.target.publish(table, number)
    assert seen(old) == [(1, 1, None), (2, 2, None)]


def test_a_building_that_is_given_up_is_removed(old: Lake) -> None:
    begin(old)
    old.apply(old.insert(id=5, name=5))
    begin(old, OLD, incarnation=2)
    assert buildings(old) == ["2"]
    assert seen(old) == OLD_ROWS
    old.target.forget(old.table)
    assert buildings(old) == []
    begin(old, OLD, incarnation=3)
    old.target.drop(old.table)
    assert not old.path.exists()
    assert not building_of(old).parent.exists()


@pytest.mark.matrix
def test_no_folder_of_a_building_stays(old: Lake) -> None:
    uuid = building_of(old).parents[2]
    another = uuid.with_name("u-2") / "public"
    another.mkdir(parents=True)
    begin(old)
    old.apply(old.insert(id=5, name=5))
    assert uuid.exists()
    old.target.publish(old.table, old.number())
    assert (uuid.exists(), another.exists()) == (False, True)
    begin(old, OLD, incarnation=2)
    old.target.forget(old.table)
    assert not uuid.exists()


def test_folders_stay_above_a_building_that_is_begun(tmp_path: Path, old: Lake) -> None:
    storage, buildings = Storage(str(tmp_path)), Buildings()
    other = replace(old.table, table=TableId("public", "other"))
    above = Path(storage.buildings(old.table.uuid, old.table.table)).parent
    above.mkdir(parents=True)
    buildings.sweep(storage, old.table, but=1)
    buildings.sweep(storage, other)
    assert above.exists()
    buildings.sweep(storage, old.table)
    assert list((tmp_path / "_replicator" / "building").iterdir()) == []


@pytest.mark.matrix
def test_what_was_dropped_or_removed_is_made_where_it_was(old: Lake) -> None:
    old.event(DDLEvent(operation=DDLOperation.DROP_TABLE, table=OLD.table))
    begin(old)
    old.apply(old.insert(id=5, name=5))
    assert (seen(old), buildings(old)) == ([(5, 5, None)], [])
    begin(old, incarnation=2)
    old.target.drop(old.table)
    begin(old, incarnation=3)
    assert (seen(old), buildings(old)) == ([], [])
    version = old.version()
    old.target.publish(old.table, old.number())
    assert old.version() == version + 1


@pytest.mark.matrix
def test_a_table_that_lost_its_files_is_made_again(old: Lake) -> None:
    for path in old.path.glob("*.parquet"):
        path.unlink()
    begin(old)
    old.apply(old.insert(id=5, name=5))
    old.target.publish(old.table, old.number())
    assert seen(old) == [(5, 5, None)]


@pytest.mark.matrix
def test_a_building_with_what_the_lane_does_not_know_is_published(old: Lake) -> None:
    begin(old)
    old.apply(*[old.insert(id=i, name=i) for i in range(3)])
    for properties in ("'delta.enableRowTracking' = 'true'", "'delta.checkpointPolicy' = 'v2'"):
        old.spark.sql(f"ALTER TABLE delta.`{building_of(old)}` SET TBLPROPERTIES ({properties})")
    old.apply(old.delete(id=0), old.update(id=1, name=-1))
    assert present(old.target.engine(OLD.table)).rung == "L0"
    old.target.publish(old.table, old.number())
    old.apply(old.insert(id=7, name=7))
    assert by_spark(old) == [(1, -1, None), (2, 2, None), (7, 7, None)]
    numbers = old.spark.read.format("delta").load(str(old.path)).selectExpr("_metadata.row_id").collect()
    assert len({row[0] for row in numbers}) == 3


@pytest.mark.matrix
def test_a_building_is_published_whatever_its_ledger_says(old: Lake) -> None:
    begin(old)
    old.apply(old.insert(id=5, name=5))
    old.target.publish(old.table, old.next - 1)
    assert seen(old) == [(5, 5, None)]
    assert old.process().claim(old.table) == Claim(last_applied=old.next - 1)


@pytest.mark.matrix
def test_a_table_that_was_restored_to_an_older_incarnation_is_not_built_upon(old: Lake) -> None:
    version = old.version()
    begin(old)
    old.target.publish(old.table, old.number())
    old.spark.sql(f"RESTORE TABLE delta.`{old.path}` TO VERSION AS OF {version}")
    number = old.next - 1
    assert old.process().claim(old.table) == Claim(last_applied=number)
    assert buildings(old) == []


@pytest.mark.matrix
def test_counts_and_others_changes_continue_behind_the_swap(old: Lake) -> None:
    position = old.target.audit(old.table, None).position
    old.schema, old.table = NEW, old.owned(incarnation=1)
    old.target.claim(old.table)
    position = old.target.audit(old.table, None).position
    old.create()
    old.apply(*[old.insert(id=i, name=i) for i in range(3)])
    old.spark.sql(f"DELETE FROM delta.`{old.path}` WHERE id = 1")  # of what is replaced
    found = old.target.audit(old.table, position)
    assert (found.merged.inserted, found.changed_by_others) == (3, [])
    old.target.publish(old.table, old.number())
    old.spark.sql(f"DELETE FROM delta.`{old.path}` WHERE id = 1")
    old.apply(old.insert(id=7, name=7))
    for target in (old.target, old.process()):
        behind = target.audit(old.table, found.position)
        assert behind.merged.inserted == 4
        assert [what.partition(": ")[2] for what in behind.changed_by_others] == ["DELETE"]
        again = target.audit(old.table, behind.position)
        assert (again.changed_by_others, again.merged) == ([], behind.merged)


def test_a_file_gets_another_name_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Storage(str(tmp_path))
    (tmp_path / "a").write_bytes(b"x")
    for _ in range(2):
        store.share(f"{tmp_path}/a", f"{tmp_path}/b/c")
        assert (tmp_path / "b" / "c").samefile(tmp_path / "a")

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "b" / "d").write_bytes(b"half of an earlier attempt")
    store.share(f"{tmp_path}/a", f"{tmp_path}/b/d")
    assert (tmp_path / "b" / "d").read_bytes() == b"x"
    assert not (tmp_path / "b" / "d").samefile(tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["c", "d"]


@pytest.mark.matrix
def test_the_swap_says_what_it_is(old: Lake) -> None:
    begin(old)
    old.target.publish(old.table, old.number())
    commit = max((old.path / "_delta_log").glob("*.json")).read_text().splitlines()
    (info,) = (json.loads(line)["commitInfo"] for line in commit if "commitInfo" in line)
    assert json.loads(info["userMetadata"]) == {"replicator": {"swapped": 1}}
    assert {kind for line in commit for kind in json.loads(line)} >= {"metaData", "remove", "txn"}
