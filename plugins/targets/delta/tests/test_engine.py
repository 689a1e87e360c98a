"""Both engines on one table: the lane commits where it can, Spark merges the rest, and each continues behind the other's version."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError

from replicator.model.errors import FencedError, TableError, TargetUnavailableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.folding import arrow, keys, needed
from replicator.plugins.kit.folding.needed import BATCH_TOO_LARGE
from replicator.plugins.kit.lake.index import KEYS_TOO_LARGE
from replicator.plugins.kit.lake.joining import FILES_PER_TIER
from replicator.plugins.target import EngineReport, TableOptions
from replicator_target_delta import engine, target
from replicator_target_delta.config import DIRECT_ROWS
from replicator_target_delta.engine import DIRECT, DirectTable, found_by_spark, merged_by_spark
from replicator_target_delta.lane import lane, parquet
from replicator_target_delta.lane.actions import Action
from replicator_target_delta.lane.bulk import BulkHits
from replicator_target_delta.log import history, mapping
from replicator_target_delta.log import store as logstore
from replicator_target_delta.log.table import COLUMNS, read_log
from replicator_target_delta.spark.fold import SparkBulk
from replicator_target_delta.target import DeltaLakeTarget
from replicator_target_delta.upkeep import due as maintenance
from replicator_target_delta.upkeep.due import UpkeepKind
from replicator_testbed.present import present
from replicator_testbed.workloads.alterations import AlteredWorkloads
from replicator_testbed.workloads.changes import SCHEMA, Replay, Workloads, change_table
from replicator_testing.waiting import wait_until

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake


def used(lake: Lake) -> EngineReport | None:
    return lake.target.engine(lake.table.table)


def commits(lake: Lake) -> list[dict[str, Any]]:
    """What each version says of itself."""
    files = sorted((lake.path / "_delta_log").glob("*.json"))
    return [
        json.loads(line)["commitInfo"] for f in files for line in f.read_text().splitlines() if "commitInfo" in line
    ]


def fields_of(lake: Lake) -> set[tuple[str, str, str]]:
    """What the actions of a table's log have: for each operation the kinds of actions, and their fields."""
    found = set()
    for file in (lake.path / "_delta_log").glob("*.json"):
        actions = [next(iter(json.loads(line).items())) for line in file.read_text().splitlines()]
        ((_, info),) = (action for action in actions if action[0] == "commitInfo")
        found |= {(info["operation"], kind, name) for kind, value in actions for name in value}
        found |= {(info["operation"], "operationMetrics", name) for name in info["operationMetrics"]}
    return found


@pytest.fixture
def direct(new_lake: Callable[..., Lake]) -> Lake:
    """A lake whose table has a lane."""
    return new_lake(engine="auto")


# -- one table, both engines ------------------------------------------------------------------------------------------


def alternate(lake: Lake, seed: int, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random batches by either engine, with claims and other processes between them, against a plain replay.

    In more than three rounds there is upkeep, too, and rows lack columns.
    """
    rng, replay, numbers = random.Random(seed), Replay(), itertools.count(lake.next)
    possible = Workloads(seed, range(40), numbers, valid=True)
    arbitrary = Workloads(seed + 1, range(40, 80), numbers, valid=False)
    lakes = {kind: _process(lake, kind) for kind in ("auto", "spark")}
    epoch, kind, seen = 1, "", set()
    for number in range(rounds):
        is_large = number == 2 or (number > 0 and rng.random() < 0.3)
        has_absent = rounds > 3 and rng.random() < 0.7
        possible._absent = arbitrary._absent = has_absent
        monkeypatch.setattr(lane, "DIRECT_ROWS_MAX", 0 if is_large else 1000)
        changes = possible.round(3) + arbitrary.round(3)
        for change in changes:
            replay.apply(change)
        forced = {0: "auto", 1: "spark", 2: "auto"}
        before, kind = kind, forced.get(number) or rng.choice(["auto", "auto", "auto", "spark"])
        if kind != before:
            epoch += 1
            lake.table = lake.owned(epoch=epoch)
            lakes[kind].claim(lake.table)
        result = lakes[kind].apply_batch(lake.table, lake.batch_of(change_table(changes), has_absent=has_absent))
        assert not result.was_skipped
        seen.add(present(lakes[kind].engine(lake.table.table)).rung)
        match rounds > 3 and rng.choice(["optimize", "purge", "vacuum", "checkpoint", *["nothing"] * 3]):
            case "optimize":
                lake.spark.sql(f"OPTIMIZE delta.`{lake.path}`")
            case "purge":
                turns = lake.target._turns(lake.table.table)
                lake.maintain(turns, UpkeepKind.PURGE, datetime.now(UTC))  # fmt: skip
            case "vacuum":
                lake.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
                lake.spark.sql(f"VACUUM delta.`{lake.path}` RETAIN 0 HOURS")
            case "checkpoint":
                engine.SparkCommits(lake.spark, str(lake.path)).checkpoint()
        if number % 4 == 3 or number == rounds - 1:
            wanted = {(*key, *values) for key, values in replay.rows.items()}
            assert lake.rows() ^ wanted == set()
            read = (
                lake.spark.read.format("delta").load(str(lake.path)).select("workload", "id", "a", "b", "c").collect()
            )
            assert len(read) == len(wanted)
            assert {tuple(row) for row in read} ^ wanted == set()
    assert seen == {"L0", "L1", "L2"}


def _process(lake: Lake, kind: str) -> DeltaLakeTarget:
    lake.config["engine"] = kind
    return lake.process()


@pytest.mark.parametrize("rounds", [3, pytest.param(7, marks=pytest.mark.matrix)])
def test_engines_continue_behind_each_other_s_versions(
    new_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    alternate(new_lake(SCHEMA), 1, rounds, monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10, 20))  # of 40 batches each
def test_engines_continue_behind_each_other_s_versions_for_long(
    new_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    alternate(new_lake(SCHEMA), seed, 40, monkeypatch)


def apply_by_every_rung(
    new_lake: Callable[..., Lake], options: TableOptions, seed: int, *, batches: int, has_absent: bool
) -> None:
    """The same batches, possible and impossible ones, into three tables: rows with all their marks, ledgers and counts are equal."""
    lakes = {
        rung: new_lake(SCHEMA, options, folder=rung, engine="spark" if rung == "L0" else "auto")
        for rung in ("L0", "L1", "L2")
    }
    first, replay, rng = lakes["L0"], Replay(), random.Random(seed)
    begins = {rung: lake.target.audit(lake.table, None).position for rung, lake in lakes.items()}
    numbers = itertools.count(first.next)
    possible = Workloads(seed, range(300), numbers, valid=True, absent=has_absent)
    arbitrary = Workloads(seed + 1, range(300, 600), numbers, valid=False, absent=has_absent)
    marks = ["_sequence_num", "_source_timestamp", *(["_is_deleted"] if options.deletes == "soft" else [])]
    columns = ["workload", "id", "a", "b", "c"]
    for number in range(batches):
        changes = possible.round(6) + arbitrary.round(6)
        for change in changes:
            replay.apply(change)
        rows = change_table(changes)
        for rung, lake in lakes.items():
            with pytest.MonkeyPatch.context() as patch:
                if rung == "L2":
                    patch.setattr(lane, "DIRECT_ROWS_MAX", 0)
                lake.target.apply_batch(lake.table, lake.batch_of(rows, expects_rows=True, has_absent=has_absent))
            assert present(used(lake)).rung == rung
        if rng.random() < 0.1 and number < batches - 1:
            replay.rows.clear()
            possible.source.clear()
            arbitrary.source.clear()
            truncation = next(numbers)
            for lake in lakes.values():
                event = DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=lake.schema.table)
                lake.target.apply_ddl(lake.table, event, truncation)
        found = {rung: lake.rows(*columns, *marks) for rung, lake in lakes.items()}
        assert found["L1"] ^ found["L0"] == set()
        assert found["L2"] ^ found["L0"] == set()
        living = {row[:5] for row in found["L0"] if options.deletes == "hard" or not row[-1]}
        assert living == {(*key, *values) for key, values in replay.rows.items()}
        ledgers = [lake.target.read_ledger(lake.table) for lake in lakes.values()]
        assert ledgers == [ledgers[0]] * 3
    counts = [lake.target.audit(lake.table, begins[rung]).merged for rung, lake in lakes.items()]
    assert counts == [counts[0]] * 3
    assert counts[0].not_found > 0
    for rung in ("L1", "L2"):
        assert fields_of(lakes[rung]) - fields_of(first) == set()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("deletes", "has_absent"),
    [
        ("soft", True),
        *(pytest.param(*case, marks=pytest.mark.matrix) for case in (("hard", True), ("hard", False), ("soft", False))),
    ],
)
def test_every_rung_makes_the_same_table(
    new_lake: Callable[..., Lake], deletes: Literal["hard", "soft"], has_absent: bool
) -> None:
    options = TableOptions(deletes=deletes, source_timestamp=True)
    apply_by_every_rung(new_lake, options, 31, batches=2, has_absent=has_absent)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 130))
def test_every_rung_makes_the_same_table_for_long(new_lake: Callable[..., Lake], seed: int) -> None:
    options = TableOptions(deletes="soft" if seed % 2 else "hard", source_timestamp=True)
    apply_by_every_rung(new_lake, options, seed, batches=10, has_absent=seed % 4 < 2)


def alter_on_every_rung(
    new_lake: Callable[..., Lake], options: TableOptions, seed: int, *, workloads: int, rounds: int, has_absent: bool
) -> None:
    """The same batches and alterations by each rung, with values in new columns: each table equals a plain replay."""
    world = AlteredWorkloads(seed, workloads, 1, deletes=options.deletes, absent=has_absent)
    lakes = {
        rung: new_lake(world.schema, options, folder=rung, engine="spark" if rung == "L0" else "auto")
        for rung in ("L0", "L1", "L2")
    }
    begins = {rung: lake.target.audit(lake.table, None).position for rung, lake in lakes.items()}
    for number in range(rounds):
        if number:
            event, at = world.alter(), next(world.numbers)
            for lake in lakes.values():
                lake.target.apply_ddl(lake.table, event, at)
        batch = world.batch(lakes["L0"].folder / "journal", 4, expects_rows=True)
        for rung, lake in lakes.items():
            with pytest.MonkeyPatch.context() as patch:
                if rung == "L2":
                    patch.setattr(lane, "DIRECT_ROWS_MAX", 0)
                lake.target.apply_batch(lake.table, batch)
            assert present(used(lake)).rung == rung
        names = [*world.names, *(["_is_deleted"] if options.deletes == "soft" else [])]
        wanted = world.wanted()
        for rung, lake in lakes.items():
            assert (rung, lake.rows(*names) ^ wanted) == (rung, set())
    audits = [lake.target.audit(lake.table, begins[rung]) for rung, lake in lakes.items()]
    assert [audit.merged for audit in audits] == [audits[0].merged] * 3
    assert [audit.changed_by_others for audit in audits] == [[]] * 3


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("deletes", "has_absent", "rounds"),
    [
        ("soft", False, 2),
        *(
            pytest.param(*case, 4, marks=pytest.mark.matrix)
            for case in (("hard", True), ("hard", False), ("soft", True), ("soft", False))
        ),
    ],
)
def test_every_rung_continues_on_a_table_that_is_altered(
    new_lake: Callable[..., Lake], deletes: Literal["hard", "soft"], has_absent: bool, rounds: int
) -> None:
    """The first alteration renames a key column and another, keeps one that goes, and fills a new one."""
    options = TableOptions(deletes=deletes, source_timestamp=True)
    alter_on_every_rung(new_lake, options, 29, workloads=100, rounds=rounds, has_absent=has_absent)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(400, 430))
def test_every_rung_continues_on_a_table_that_is_altered_for_long(new_lake: Callable[..., Lake], seed: int) -> None:
    options = TableOptions(deletes="soft" if seed % 2 else "hard")
    alter_on_every_rung(new_lake, options, seed, workloads=200, rounds=12, has_absent=seed % 4 < 2)


@pytest.mark.matrix
def test_rows_are_cleared_by_either_engine(new_lake: Callable[..., Lake]) -> None:
    """A truncation, and the end of a snapshot in place: the same rows stay, and the ledger says the same."""
    lakes = [new_lake(folder=kind, engine=kind) for kind in ("auto", "spark")]
    for lake in lakes:
        lake.apply(*[lake.insert(id=i, name="a", note="x") for i in range(10)])
        lake.event(DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=lake.schema.table))
        lake.apply(*[lake.insert(id=i, name="b", note="x") for i in range(10)])
        start = lake.next
        lake.apply(*[lake.update(id=i, name="c", note="x") for i in range(4)])
        lake.target.complete_snapshot(lake.table, start, lake.number())
        assert lake.rows("id", "name") == {(i, "c") for i in range(4)}
    assert [info["engineInfo"] for info in commits(lakes[0])] == ["Replicator"] * len(commits(lakes[0]))
    ledgers = [lake.target.read_ledger(lake.table) for lake in lakes]
    assert ledgers[0] == ledgers[1]
    assert fields_of(lakes[0]) - fields_of(lakes[1]) == set()


@pytest.mark.matrix
def test_rows_that_are_kept_are_cleared_by_spark(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(options=TableOptions(deletes="soft"), engine="auto")
    lake.apply(lake.insert(id=1, name="a", note="x"))
    lake.event(DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=lake.schema.table))
    lake.apply(lake.insert(id=2, name="b", note="x"))
    assert lake.rows("id", "_is_deleted") == {(1, True), (2, False)}
    assert used(lake) == DIRECT


def test_a_batch_is_committed_without_spark(direct: Lake) -> None:
    first = direct.apply(direct.insert(id=1, name="a", note="x"), direct.insert(id=2, name="b", note="y"))
    second = direct.apply(direct.update(id=1, name="z", note="x"), direct.delete(id=2))
    assert [first.details, second.details] == [
        {"way": "direct", "matched": 0, "inserted": 2, "deleted": 0},
        {"way": "direct", "matched": 1, "inserted": 0, "deleted": 1},
    ]
    assert used(direct) == DIRECT
    assert [info["engineInfo"] for info in commits(direct)[-2:]] == ["Replicator", "Replicator"]
    assert direct.rows() == {(1, "z", "x")}


def test_a_snapshot_is_appended_without_spark(direct: Lake) -> None:
    rows = [direct.change("INSERT", row={"id": i, "name": "a", "note": None}, is_snapshot=True) for i in range(100)]
    assert direct.apply(*rows, is_append=True).details == {"way": "append", "rows": 100}
    assert used(direct) == DIRECT
    direct.apply(direct.update(id=50, name="b", note=None))
    assert direct.rows() == {(i, "b" if i == 50 else "a", None) for i in range(100)}


def test_statements_of_spark_find_what_the_lane_wrote(direct: Lake) -> None:
    """TRUNCATE, the end of a snapshot in place, and a new incarnation are Spark's."""
    direct.apply(*[direct.insert(id=i, name="a", note="x") for i in range(10)])
    start = direct.number()
    direct.apply(direct.insert(id=1, name="b", note="x"), direct.insert(id=99, name="b", note="x"))
    direct.target.complete_snapshot(direct.table, start, direct.number())
    assert {row[0] for row in direct.rows()} == {1, 99}
    direct.apply(direct.insert(id=2, name="c", note="x"))
    assert used(direct) == DIRECT
    assert {row[0] for row in direct.rows()} == {1, 2, 99}


def column(name: str, type_: pa.DataType, **parts: Any) -> Column:
    return Column(name=name, type=type_, source_type="any", **parts)


SHAPES = {
    "usual": TableSchema(
        table=TableId("public", "usual"),
        columns=(
            column("id", pa.int64(), nullable=False),
            column("a.b `c`", pa.list_(pa.decimal128(9, 2)), comment='an \u00e4 and a "quote", ${env:HOME}'),
            column("at", pa.timestamp("us")),
        ),
        key=("id",),
        comment="a \u2764",
    ),
    "keyless": TableSchema(
        table=TableId("public", "keyless"),
        columns=(column("n", pa.int16()), column("d", pa.date32()), column("u", pa.timestamp("us", tz="UTC"))),
    ),
    "wide": TableSchema(
        table=TableId("public", "wide"),
        columns=tuple(column(f"c{i}", pa.string(), nullable=i > 1) for i in range(40)),
        key=("c0", "c1"),
    ),
    "flag": TableSchema(
        table=TableId("public", "flag"), columns=(column("f", pa.bool_(), nullable=False),), key=("f",)
    ),
}


def shape_of(lake: Lake) -> dict[str, Any]:
    """What version 0 says of a table, without what is drawn by lot."""
    text = (lake.path / "_delta_log" / f"{0:020}.json").read_text()
    actions = {kind: value for line in text.splitlines() for kind, value in json.loads(line).items()}
    assert mapping.conflict(actions["metaData"]) is None
    fields = mapping.fields_of(actions["metaData"])
    for number, field in enumerate(fields):
        text = text.replace(field["metadata"]["delta.columnMapping.physicalName"], f"column {number}")
    actions = {kind: value for line in text.splitlines() for kind, value in json.loads(line).items()}
    for name in ("readerFeatures", "writerFeatures"):
        actions["protocol"][name].sort()
    meta, info, ledger = actions["metaData"], actions["commitInfo"], actions["txn"]
    meta["schemaString"] = json.loads(meta["schemaString"])
    # The first mark of each column is of its physical name.
    marks = json.loads(meta["configuration"].pop(COLUMNS))
    meta["columns"] = {name: mark for name, (_, mark) in marks.items()}
    if "domainMetadata" in actions:
        actions["domainMetadata"]["configuration"] = json.loads(actions["domainMetadata"]["configuration"])
    for part, name in ((meta, "id"), (meta, "createdTime"), (ledger, "lastUpdated")):
        assert part.pop(name)
    return actions | {"commitInfo": {name: info.get(name) for name in ("operation", "isBlindAppend", "isolationLevel")}}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("shape", "retention"), [*((shape, "7d") for shape in SHAPES), ("flag", "1h")])
def test_a_table_is_created_as_spark_creates_it(new_lake: Callable[..., Lake], shape: str, retention: str) -> None:
    kept = {"vacuum_retention": retention}
    lakes = [new_lake(SHAPES[shape], folder=kind, engine=kind, maintenance=kept) for kind in ("auto", "spark")]
    ours, spark_s = map(shape_of, lakes)
    assert ours == spark_s
    assert fields_of(lakes[0]) - fields_of(lakes[1]) == set()
    assert [info["engineInfo"] for info in commits(lakes[0])] == ["Replicator"]
    assert (
        dict(present(lakes[0].target.held(lakes[0].table)).properties).items()
        <= ours["metaData"]["configuration"].items()
    )
    frame = lakes[0].spark.read.format("delta").load(str(lakes[0].path))
    assert frame.schema == lakes[1].spark.read.format("delta").load(str(lakes[1].path)).schema
    detail = [lake.spark.sql(f"DESCRIBE DETAIL delta.`{lake.path}`").collect()[0] for lake in lakes]
    assert detail[0]["clusteringColumns"] == detail[1]["clusteringColumns"]
    assert detail[0]["description"] == detail[1]["description"]


@pytest.mark.matrix
def test_somebody_who_creates_the_table_first_is_not_overwritten(
    new_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(engine="auto")
    lake.schema, lake.config["engine"] = replace(lake.schema, table=TableId("public", "others")), "auto"
    target, lake.table = lake.process(), lake.owned()
    target.claim(lake.table)

    def crash_point(name: str) -> None:
        if name == "target.before_put" and not any((lake.path / "_delta_log").glob("*.json")):
            lake.spark.range(1).toDF("a").write.format("delta").save(str(lake.path))

    monkeypatch.setattr(logstore, "crash_point", crash_point)
    with pytest.raises(TableError) as caught:
        lake.create(target)
    assert caught.value.code == "not_ours"
    assert lake.spark.read.format("delta").load(str(lake.path)).columns == ["a"]


# -- who does it ------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_spark_merges_all_batches_if_it_is_told_to(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(engine="spark")
    assert used(lake) is None
    assert present(lake.apply(lake.insert(id=1, name="a", note="x")).details)["way"] == "merge"
    assert used(lake) == EngineReport(rung="L0")
    assert lake.rows() == {(1, "a", "x")}


def test_a_table_without_a_key_is_spark_s(new_lake: Callable[..., Lake]) -> None:
    columns = (Column(name="n", type=pa.int64(), source_type="bigint"),)
    lake = new_lake(TableSchema(table=TableId("public", "keyless"), columns=columns), engine="auto")
    lake.apply(lake.insert(n=1), lake.insert(n=2))
    assert used(lake) == merged_by_spark("the table has no key")
    assert lake.rows() == {(1,), (2,)}
    assert lake.target.rows_max(lake.table.table) is None


@pytest.mark.matrix
def test_a_larger_batch_is_found_by_spark_and_the_next_ones_are_of_the_lane_s_size(
    direct: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "DIRECT_ROWS_MAX", 2)
    monkeypatch.setattr(target, "DIRECT_ROWS", 2)
    assert direct.target.rows_max(direct.table.table) == 2
    direct.apply(*(direct.insert(id=number, name="a", note="x") for number in range(3)), has_absent=False)
    assert used(direct) == found_by_spark(BATCH_TOO_LARGE)
    assert direct.target.rows_max(direct.table.table) == 2
    direct.apply(*(direct.update(id=number, name="b", note="x") for number in range(2)))
    assert used(direct) == DIRECT
    assert direct.rows() == {(0, "b", "x"), (1, "b", "x"), (2, "a", "x")}


@pytest.mark.matrix
def test_rows_that_lack_columns_are_put_together_in_smaller_batches(
    direct: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct.apply(*(direct.insert(id=number, name="a", note="x") for number in range(3)))
    monkeypatch.setattr(lane, "DIRECT_ROWS", 2)
    direct.apply(*(direct.update(id=number, name="b", note="y") for number in range(3)), has_absent=False)
    assert used(direct) == DIRECT
    direct.apply(*(direct.update(id=number, name="c", absent=["note"]) for number in range(3)))
    assert used(direct) == found_by_spark(BATCH_TOO_LARGE)
    assert direct.rows() == {(0, "c", "y"), (1, "c", "y"), (2, "c", "y")}


@pytest.fixture
def bulk(direct: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """The lane takes no batch by itself."""
    direct.apply(*(direct.insert(id=number, name="a", note="x") for number in range(6)))
    monkeypatch.setattr(lane, "DIRECT_ROWS_MAX", 0)
    return direct


@pytest.mark.matrix
def test_what_others_commit_while_spark_finds_rows_is_found_again(bulk: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are in another file afterwards, and two of them are not there any more."""
    find, versions = SparkBulk.find, list[int]()

    def beside(self: SparkBulk, version: int, names: Mapping[str, int]) -> BulkHits:
        versions.append(version)
        hits = find(self, version, names)
        if len(versions) == 1:
            bulk.spark.sql(f"DELETE FROM delta.`{bulk.path}` WHERE id IN (1, 4)")
            bulk.spark.sql(f"REORG TABLE delta.`{bulk.path}` APPLY (PURGE)")
        return hits

    monkeypatch.setattr(SparkBulk, "find", beside)
    since = bulk.target.audit(bulk.table, None).position
    changes = [bulk.update(id=0, name="b", note="x"), bulk.update(id=1, name="b", note="x"), bulk.delete(id=2)]
    bulk.apply(*changes, bulk.insert(id=9, name="b", note="x"), has_absent=False, expects_rows=True)
    assert used(bulk) == found_by_spark(BATCH_TOO_LARGE)
    assert len(versions) == 2
    assert bulk.rows() == {(0, "b", "x"), (1, "b", "x"), (3, "a", "x"), (5, "a", "x"), (9, "b", "x")}
    assert bulk.target.audit(bulk.table, since).merged.not_found == 1


@pytest.mark.matrix
def test_what_others_change_while_rows_are_completed_is_what_they_are_completed_with(
    bulk: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, versions = SparkBulk.write, list[int]()

    def beside(self: SparkBulk, version: int) -> Sequence[Action]:
        versions.append(version)
        written = write(self, version)
        if len(versions) == 1:
            bulk.spark.sql(f"UPDATE delta.`{bulk.path}` SET note = 'theirs' WHERE id = 0")
        return written

    monkeypatch.setattr(SparkBulk, "write", beside)
    before = set(bulk.path.glob("**/*.parquet"))
    bulk.apply(bulk.update(id=0, name="b", absent=["note"]), bulk.update(id=1, name="b", note="new"), has_absent=True)
    assert used(bulk) == found_by_spark(BATCH_TOO_LARGE)
    assert len(versions) == 2
    assert bulk.rows() == {(0, "b", "theirs"), (1, "b", "new"), *((i, "a", "x") for i in range(2, 6))}
    live = {
        Path(file.replace("file:", "")) for file in bulk.spark.read.format("delta").load(str(bulk.path)).inputFiles()
    }
    # Files that Spark wrote; upkeep of the lane may have begun one of its own.
    found = {path for path in {*bulk.path.glob("*/*.parquet")} - before if pq.read_metadata(path).num_rows}
    assert len(found - live) <= 1  # theirs, whose row is in ours by now


@pytest.mark.matrix
@pytest.mark.parametrize(("module", "limit"), [(needed, "BYTES_MAX"), (parquet, "BYTES_MAX")])
def test_batches_of_few_but_large_rows_are_large(
    direct: Lake, monkeypatch: pytest.MonkeyPatch, module: Any, limit: str
) -> None:
    direct.apply(direct.insert(id=1, name="a", note="x"), direct.insert(id=2, name="a", note="x"))
    monkeypatch.setattr(module, limit, 1)
    monkeypatch.setattr(target, "_ROWS_MIN", 1)
    direct.apply(direct.update(id=1, name="b", absent=["note"]), direct.delete(id=2))
    assert present(used(direct)).rung == "L2"
    assert direct.target.rows_max(direct.table.table) == 1, "half of it may fit"
    assert direct.rows() == {(1, "b", "x")}


@pytest.mark.matrix
def test_keys_that_do_not_fit_into_memory_are_found_by_spark(direct: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    direct.apply(*(direct.insert(id=number, name="a", note="x") for number in range(3)))
    monkeypatch.setattr(keys, "_BYTES_PER_INTEGER", 1 << 40)
    direct.apply(direct.update(id=1, name="b", note="x"))
    assert used(direct) == found_by_spark(KEYS_TOO_LARGE)
    assert direct.target.rows_max(direct.table.table) is None  # each of its batches reads all of them
    with monkeypatch.context() as smaller:
        smaller.setattr(target, "_ROWS_MIN", 1)
        direct.apply(direct.update(id=1, name="b", note="y"), direct.update(id=2, name="b", note="y"))
        smaller.setattr(keys, "_BYTES_PER_INTEGER", 1)
        direct.apply(direct.update(id=1, name="b", note="x"), direct.update(id=2, name="a", note="x"))
        assert used(direct) == DIRECT
        assert direct.target.rows_max(direct.table.table) == DIRECT_ROWS, "its batches were not too large"
    direct.apply(direct.update(id=1, name="b", note="x"))
    monkeypatch.setattr(target, "DIRECT_ROWS", 1)
    monkeypatch.setattr(arrow, "fold", None)
    direct.apply(direct.update(id=1, name="c", note="x"), direct.delete(id=2))
    assert used(direct) == found_by_spark(KEYS_TOO_LARGE), "a large batch is not folded in vain"
    assert direct.rows() == {(0, "a", "x"), (1, "c", "x")}


@pytest.mark.matrix
def test_an_older_epoch_finds_the_newer_one_s_claim_and_leaves_nothing(
    bulk: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = SparkBulk.find

    def beside(self: SparkBulk, version: int, names: Mapping[str, int]) -> BulkHits:
        hits = find(self, version, names)
        bulk.process().claim(bulk.owned(epoch=2))
        return hits

    monkeypatch.setattr(SparkBulk, "find", beside)
    before = set(bulk.path.glob("**/*.parquet"))
    with pytest.raises(FencedError):
        bulk.apply(bulk.update(id=0, name="b", note="x"), has_absent=False)
    assert (0, "a", "x") in bulk.rows()
    # Spark leaves a file without rows where a job has nothing for its first partition.
    assert [path for path in {*bulk.path.glob("**/*.parquet")} - before if pq.read_metadata(path).num_rows] == []


@pytest.mark.matrix
def test_large_batches_that_spark_cannot_find_are_merged(bulk: Lake) -> None:
    """A key that stands in the table twice."""
    twice = "SELECT CAST(id AS BIGINT) id, 'c' name, 'x' note, CAST(0 AS BIGINT) _sequence_num FROM VALUES (1) AS v(id)"
    bulk.spark.sql(f"INSERT INTO delta.`{bulk.path}` {twice}")
    bulk.apply(bulk.delete(id=1), has_absent=False)
    assert used(bulk) == merged_by_spark("a key stands in the table twice")
    assert bulk.target.rows_max(bulk.table.table) is not None  # smaller ones are for the lane
    assert {row[0] for row in bulk.rows()} == {0, 2, 3, 4, 5}


@pytest.mark.matrix
def test_a_large_append_is_written_by_spark_for_the_lane(bulk: Lake) -> None:
    rows = [bulk.insert(id=number, name="b", note=None) for number in range(10, 13)]
    bulk.apply(*rows, has_absent=False, is_append=True)
    assert used(bulk) == found_by_spark(BATCH_TOO_LARGE)
    assert {row[0] for row in bulk.rows()} == {*range(6), 10, 11, 12}
    assert commits(bulk)[-1]["isBlindAppend"] is True


@pytest.fixture
def due_for_a_vacuum(direct: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A table whose last VACUUM was long ago, whatever it does."""
    direct.apply(direct.insert(id=1, name="a", note="x"))
    monkeypatch.setattr(maintenance, "last_vacuum", lambda *_: datetime(2000, 1, 1, tzinfo=UTC))
    return direct


@pytest.mark.matrix
def test_batches_are_committed_while_a_vacuum_runs(due_for_a_vacuum: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, vacuum = due_for_a_vacuum, maintenance.carry_out
    has_begun, may_end = threading.Event(), threading.Event()

    def carry_out(*arguments: Any) -> bool:
        has_begun.set()
        assert may_end.wait(120)
        return vacuum(*arguments)

    monkeypatch.setattr(maintenance, "carry_out", carry_out)
    report = present(lake.target.maintain(lake.table))
    assert (report["upkeep"], report["outcome"]) == ("vacuum", "begun")
    assert has_begun.wait(120)
    lake.apply(lake.insert(id=2, name="b", note="x"))
    assert used(lake) == DIRECT
    assert lake.target.maintain(lake.table) is None
    may_end.set()
    storage = lake.target._storage
    wait_until(
        lambda: maintenance.VACUUM_LEDGER in present(read_log(storage, str(lake.path))).transactions, "it is recorded"
    )
    assert lake.rows("id") == {(1,), (2,)}


@pytest.mark.matrix
def test_a_vacuum_that_fails_in_the_background_is_told_at_the_next_upkeep(
    due_for_a_vacuum: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = due_for_a_vacuum

    def carry_out(*_: Any) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(maintenance, "carry_out", carry_out)
    assert present(lake.target.maintain(lake.table))["outcome"] == "begun"
    with pytest.raises(TargetUnavailableError, match="No space left"):
        wait_until(lambda: lake.target.maintain(lake.table) is not None, "it is told")


@pytest.mark.matrix
def test_what_a_user_switches_on_sends_the_table_to_spark_and_back(direct: Lake) -> None:
    direct.apply(direct.insert(id=1, name="a", note="x"))
    alter = f"ALTER TABLE delta.`{direct.path}`"
    direct.spark.sql(f"{alter} SET TBLPROPERTIES (delta.enableChangeDataFeed = 'true')")
    direct.apply(direct.update(id=1, name="b", note="x"))
    assert used(direct) == merged_by_spark("the table has the feature changeDataFeed")
    assert direct.rows() == {(1, "b", "x")}


@pytest.mark.matrix
def test_files_that_spark_does_not_see_are_not_written(new_lake: Callable[..., Lake], tmp_path: Path) -> None:
    """Spark's default file system shows another folder under the same name, as the host of a driver elsewhere would."""
    lake = new_lake(engine="auto")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    session = lake.spark.newSession()
    session.conf.set("fs.defaultFS", "viewfs:///")
    session.conf.set(f"fs.viewfs.mounttable.default.link.{tmp_path}", elsewhere.as_uri())
    why = engine._why_apart(session, lake.target._storage)
    assert why == "Spark does not see the files that this process writes"
    assert engine._why_apart(lake.spark, lake.target._storage) is None
    # A file system that cannot be reached now tells nothing.
    session.conf.unset(f"fs.viewfs.mounttable.default.link.{tmp_path}")
    session.conf.set("fs.defaultFS", "hdfs://127.0.0.1:9/")
    session.conf.set("ipc.client.connect.max.retries", "0")
    with pytest.raises(Py4JJavaError):
        engine._why_apart(session, lake.target._storage)
    assert not any((tmp_path / "lake" / "_replicator.tmp" / "probes").iterdir())


# -- upkeep ----------------------------------------------------------------------------------------------------------


def lane_of(lake: Lake) -> DirectTable:
    """The lane that the table must have."""
    return present(present(lake.target.held(lake.table)).direct)


def is_rewriting(lane: DirectTable) -> bool:
    """Whether files are being rewritten, or were and wait for a commit."""
    return lane._rewriting is not None


def rewritten(lake: Lake) -> None:
    """Waits until what is being rewritten is ready."""
    wait_until(present(lane_of(lake)._rewriting).done, "the files are rewritten")


@pytest.mark.matrix
def test_small_files_are_joined_behind_a_later_batch(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(engine="auto")
    for i in range(FILES_PER_TIER):
        lake.apply(lake.insert(id=i, name="a", note="x"))
    rewritten(lake)
    # A row that is deleted in the meantime, as far as the new file knows.
    lake.apply(lake.delete(id=3), lake.update(id=4, name="b", note="x"))
    assert [info["operation"] for info in commits(lake)[-2:]] == ["OPTIMIZE", "MERGE"]
    assert lake.rows() == {(i, "b" if i == 4 else "a", "x") for i in range(FILES_PER_TIER) if i != 3}
    files = lake.spark.read.format("delta").load(str(lake.path)).inputFiles()
    assert len(files) == 2
    lake.spark.sql(f"OPTIMIZE delta.`{lake.path}`")
    lake.apply(lake.update(id=5, name="c", note="x"))
    assert used(lake) == DIRECT
    assert len(lake.rows()) == FILES_PER_TIER - 1


def test_an_idle_table_gets_what_was_rewritten(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(engine="auto")
    lake.apply(*[lake.insert(id=i, name="a", note="x") for i in range(10)])
    lake.apply(*[lake.delete(id=i) for i in range(5)])
    rewritten(lake)
    assert lake.target.maintain(lake.table) is None
    assert commits(lake)[-1]["operation"] == "OPTIMIZE"
    assert {row[0] for row in lake.rows()} == set(range(5, 10))


def test_upkeep_that_fails_ends_no_batch_and_is_told_the_host(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(engine="auto")
    lake.apply(*[lake.insert(id=i, name="a", note="x") for i in range(10)])
    direct = lane_of(lake)
    direct._rewriting = Future()
    direct._rewriting.set_exception(OSError(28, "No space left on device"))
    lake.apply(*[lake.delete(id=i) for i in range(5)])
    assert not is_rewriting(direct)  # nothing is begun until it was told
    with pytest.raises(TargetUnavailableError) as caught:
        lake.target.maintain(lake.table)
    assert caught.value.code == "target_full"
    lake.apply(lake.update(id=7, name="b", note="x"))
    rewritten(lake)
    assert len(lake.rows()) == 5


@pytest.mark.matrix
def test_a_vacuum_without_retention_does_not_meet_a_rewrite(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(engine="auto", maintenance={"vacuum_every": "1m", "vacuum_retention": "0s"})
    lake.apply(*[lake.insert(id=i, name="a", note="x") for i in range(10)])
    lake.apply(*[lake.delete(id=i) for i in range(5)])
    direct = lane_of(lake)
    assert direct.make_way(UpkeepKind.VACUUM, timedelta(0))
    assert not is_rewriting(direct)
    lake.apply(lake.update(id=7, name="b", note="x"))
    assert len(lake.rows()) == 5


@pytest.mark.matrix
def test_a_checkpoint_that_is_being_made_holds_no_batch_up(direct: Lake) -> None:
    """Delta keeps the lock of its log for as long as it takes to read the state."""
    direct.create()
    direct.apply(direct.insert(id=1, name="a", note="x"))
    store = logstore.LogStore(direct.spark, str(direct.path))
    lock = store._log().snapshotLock()
    with ThreadPoolExecutor(1) as pool:
        lock.lock()
        try:
            made = pool.submit(engine.SparkCommits(direct.spark, str(direct.path)).checkpoint)
            is_alone = bool(wait([made], timeout=60).done)
        finally:
            lock.unlock()
    assert is_alone, "a put would have waited for it"
    assert list((direct.path / "_delta_log").glob("*.checkpoint*.parquet"))


def test_checkpoints_are_made_now_and_then(new_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CHECKPOINT_INTERVAL", 3)
    lake = new_lake(engine="auto")
    for i in range(7):
        lake.apply(lake.insert(id=i, name="a", note="x"))
    wait_until(present(lane_of(lake)._checkpoint).done, "the checkpoint is made")
    assert list((lake.path / "_delta_log").glob("*.checkpoint*.parquet"))
    # Another process reads it, and so does Spark.
    other, lake.table = lake.process(), lake.owned(epoch=2)
    other.claim(lake.table)
    other.apply_batch(lake.table, lake.batch([lake.delete(id=0)]))
    assert other.engine(lake.table.table) == DIRECT
    assert lake.spark.read.format("delta").load(str(lake.path)).count() == 6


# -- replaced processes -----------------------------------------------------------------------------------------------


def test_the_lane_of_a_replaced_process_changes_nothing(direct: Lake) -> None:
    direct.apply(direct.insert(id=1, name="a", note="x"))
    old, table = direct.target, direct.table
    new = direct.process()
    new.claim(direct.owned(epoch=2))
    with pytest.raises(FencedError):
        old.apply_batch(table, direct.batch([direct.update(id=1, name="old", note="x")]))
    assert direct.rows() == {(1, "a", "x")}
    new.apply_batch(direct.owned(epoch=2), direct.batch([direct.update(id=1, name="new", note="x")]))
    assert new.engine(table.table) == DIRECT
    assert direct.rows() == {(1, "new", "x")}
    assert len(list(direct.path.glob("*.parquet"))) == 2  # what the old one wrote was removed


@pytest.mark.matrix
def test_a_merge_of_a_replaced_process_changes_nothing_behind_the_lane(direct: Lake) -> None:
    direct.config["engine"] = "spark"
    old = direct.process()
    old.claim(direct.table)
    old.apply_batch(direct.table, direct.batch([direct.insert(id=1, name="a", note="x")]))
    direct.config["engine"] = "auto"
    new, table = direct.process(), direct.owned(epoch=2)
    new.claim(table)
    new.apply_batch(table, direct.batch([direct.insert(id=2, name="b", note="x")]))
    with pytest.raises(FencedError):
        old.apply_batch(direct.table, direct.batch([direct.update(id=1, name="old", note="x")]))
    assert direct.rows() == {(1, "a", "x"), (2, "b", "x")}


def test_a_batch_that_was_applied_is_skipped_by_either_engine(direct: Lake) -> None:
    batch = direct.batch([direct.insert(id=1, name="a", note="x")])
    direct.target.apply_batch(direct.table, batch)
    for kind in ("auto", "spark"):
        direct.config["engine"] = kind
        assert direct.process().apply_batch(direct.table, batch).was_skipped
    assert direct.rows() == {(1, "a", "x")}


def test_what_the_lane_counts_is_audited(direct: Lake) -> None:
    direct.apply(direct.insert(id=1, name="a", note="x"))
    begin = direct.target.audit(direct.table, None).position
    direct.apply(direct.update(id=1, name="b", note="x"), direct.delete(id=9), expects_rows=True)
    found = direct.target.audit(direct.table, begin)
    assert (found.merged.matched, found.merged.not_found, found.changed_by_others) == (1, 1, [])
    assert history.audit(direct.target._storage, str(direct.path), direct.table, begin) == found
