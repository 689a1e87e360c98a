"""Upkeep: when it is due, that it changes no row, and that it gives way."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from replicator.model.schema import Column, TableId, TableSchema
from replicator_target_delta.config import MaintenanceConfig
from replicator_target_delta.upkeep import data_files as datafiles
from replicator_target_delta.upkeep import due as maintenance
from replicator_target_delta.upkeep import purge
from replicator_target_delta.upkeep.due import (
    PATIENCE,
    Condition,
    Turns,
    UpkeepKind,
    condition_of,
    due,
    takes_turn,
    vacuum_statement,
)
from replicator_testbed.present import present
from replicator_testing.waiting import wait_until

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

    from plugins.targets.delta.tests.conftest import Lake

NOW = datetime(2026, 1, 10, tzinfo=UTC)
CONFIG = MaintenanceConfig(small_files_max=10)


def condition(**changes: Any) -> Condition:
    values = {"files": 1, "small_files": 1, "bytes": 9, "cube_bytes": 0, "vectors": 0, "rows": 100, "deleted_rows": 0}
    return Condition(**{**values, "last_vacuum": NOW, **changes})


def test_the_most_urgent_comes_first() -> None:
    assert due(condition(), CONFIG, NOW) is None
    assert due(condition(last_vacuum=NOW - timedelta(days=1)), CONFIG, NOW) is UpkeepKind.VACUUM
    assert due(condition(small_files=11, last_vacuum=NOW - timedelta(days=9)), CONFIG, NOW) is UpkeepKind.COMPACT
    assert due(condition(small_files=11, deleted_rows=21), CONFIG, NOW) is UpkeepKind.PURGE
    assert due(condition(small_files=11), MaintenanceConfig(enabled=False), NOW) is None


def test_a_table_is_clustered_again_when_more_than_half_of_it_was_not() -> None:
    assert due(condition(small_files=11), CONFIG, NOW) is UpkeepKind.COMPACT
    assert due(condition(small_files=11, bytes=9, cube_bytes=4), CONFIG, NOW) is UpkeepKind.COMPACT
    assert due(condition(small_files=11, bytes=9, cube_bytes=5), CONFIG, NOW) is UpkeepKind.JOIN
    assert due(condition(small_files=10, bytes=9, cube_bytes=4), CONFIG, NOW) is None


def test_vacuum_looks_at_the_folder_and_keeps_what_the_retention_says() -> None:
    assert vacuum_statement("/x", timedelta(days=7)) == "VACUUM delta.`/x` RETAIN 168 HOURS"


def test_upkeep_takes_no_turn_while_a_merge_has_it() -> None:
    turns = Turns()
    with turns.writing(), turns.upkeep(None, "tag") as has_turn:
        assert not has_turn


@pytest.mark.matrix
def test_vacuum_runs_beside_a_merge_unless_its_retention_is_short(
    new_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert takes_turn(UpkeepKind.COMPACT, timedelta(days=7))
    assert not takes_turn(UpkeepKind.VACUUM, timedelta(days=1))
    lake = new_lake(maintenance={"vacuum_retention": "5m"})
    monkeypatch.setattr(maintenance, "last_vacuum", lambda _storage, _path, now: now - timedelta(days=2))
    with lake.target._turns(lake.table.table).writing():
        assert present(lake.target.maintain(lake.table))["outcome"] == "merge_in_progress"
    assert present(lake.target.maintain(lake.table))["outcome"] == "done"


class Context:
    """Counts how often its jobs are cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        pass

    removeJobTag = addJobTag  # noqa: N815

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        self.cancelled += 1


def test_merge_cuts_upkeep_short_but_not_without_end() -> None:
    turns, context = Turns(), Context()
    session = SimpleNamespace(sparkContext=context)
    for attempt in range(PATIENCE + 2):
        with turns.upkeep(session, "tag") as has_turn:
            assert has_turn
            assert turns._cut_short() is (attempt < PATIENCE)
    assert context.cancelled == PATIENCE
    turns.done()
    with turns.upkeep(session, "tag"):
        assert turns._cut_short()


@contextmanager
def busy_cores(session: SparkSession) -> Iterator[StatusTracker]:
    """Every core has something else to do."""

    def work() -> None:
        session.sparkContext.addJobTag("busy")
        session.sparkContext.setInterruptOnCancel(True)
        with suppress(Py4JJavaError, PySparkException):
            session.range(0, 8, 1, 8).selectExpr("java_method('java.lang.Thread', 'sleep', 600000L)").collect()

    tracker = session.sparkContext.statusTracker()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(tracker.getActiveJobsIds, "the cores are busy")
        yield tracker
    finally:
        session.sparkContext.cancelJobsWithTag("busy")
        thread.join()


@pytest.mark.matrix
@pytest.mark.parametrize("upkeep", [UpkeepKind.PURGE, pytest.param(UpkeepKind.COMPACT, marks=pytest.mark.matrix)])
def test_merge_does_not_wait_for_upkeep(new_lake: Callable[..., Lake], upkeep: UpkeepKind) -> None:
    """Upkeep whose job waits for a core is cancelled by a merge, and the table is as it was."""
    lake = new_lake()
    for i in (0, 10, 20):
        lake.apply(*[lake.insert(id=n, name="a", note="x") for n in range(i, i + 10)], is_append=True)
    lake.apply(*[lake.delete(id=n) for n in range(0, 30, 2)])
    version, turns = lake.version(), lake.target._turns(lake.table.table)
    with busy_cores(lake.spark) as tracker, ThreadPoolExecutor() as pool:
        known = set(tracker.getActiveJobsIds())
        outcome = pool.submit(lake.maintain, turns, upkeep, NOW)
        wait_until(lambda: set(tracker.getActiveJobsIds()) - known, "upkeep's job waits")
        with turns.writing():
            assert outcome.result() == "cut_short_by_a_merge"
    assert lake.version() == version
    assert lake.maintain(turns, upkeep, NOW) == "done"
    assert len(lake.rows()) == 15


@contextmanager
def files_of(spark: SparkSession, size: int) -> Iterator[None]:
    """Delta writes files of about so many bytes where it clusters."""
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(size))
    try:
        yield
    finally:
        spark.conf.unset("spark.databricks.delta.optimize.maxFileSize")


@pytest.mark.matrix
def test_small_files_are_joined_although_all_were_clustered_together(new_lake: Callable[..., Lake]) -> None:
    """Delta's OPTIMIZE leaves them alone."""
    lake = new_lake(maintenance={"small_files_max": 2})
    for i in range(4):
        lake.apply(lake.insert(id=i, name="a", note="x"), is_append=True)
    with files_of(lake.spark, 1000):
        lake.spark.sql(f"OPTIMIZE delta.`{lake.path}`")
    assert len(live(lake)) > 2
    rows = lake.rows()
    report = lake.target.maintain(lake.table)
    assert report is not None
    assert (report["upkeep"], report["outcome"]) == ("join", "done")
    assert len(live(lake)) == 1
    assert lake.rows() == rows
    assert lake.target.maintain(lake.table) is None


def live(lake: Lake) -> set[str]:
    """The files of the newest version."""
    return set(lake.spark.read.format("delta").load(str(lake.path)).inputFiles())


def many(lake: Lake, start: int, count: int) -> list[dict[str, Any]]:
    """Changes that insert rows which compress badly."""
    draw = random.Random(start)
    return [lake.insert(id=i, name=draw.randbytes(50).hex(), note="x") for i in range(start, start + count)]


@pytest.mark.matrix
def test_large_files_of_a_clustered_table_are_left_alone_until_it_has_doubled(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(maintenance={"small_files_max": 2, "small_file_size": "32KiB"})
    for start in (0, 1000, 2000):
        lake.apply(*many(lake, start, 250), is_append=True)
    assert present(lake.target.maintain(lake.table))["upkeep"] == "compact"
    (clustered,) = live(lake)
    seen = []
    for turn in range(1, 5):
        for part in range(3):
            lake.apply(*many(lake, 10_000 * turn + 1000 * part, 100), is_append=True)
        while (report := lake.target.maintain(lake.table)) is not None:
            assert report["outcome"] == "done"
            seen.append(report["upkeep"])
        assert len(live(lake)) <= 2 + turn
        if turn == 1:
            assert clustered in live(lake)
    assert seen.count("compact") == 1
    assert "join" in seen
    assert len(lake.rows()) == 3 * 250 + 4 * 300


ONE_KEY = TableSchema(
    table=TableId("public", "people"),
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="name", type=pa.string(), source_type="text"),
    ),
    key=("id",),
)
KEYLESS = TableSchema(
    table=TableId("public", "events"),
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint"),
        Column(name="na`me", type=pa.string(), source_type="text"),
    ),
    key=(),
)
TWO_KEYS = TableSchema(
    table=TableId("public", "locations"),
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="na`me. x", type=pa.string(), source_type="text", nullable=False),
    ),
    key=("id", "na`me. x"),
)


def hidden(lake: Lake) -> tuple[int, int]:
    """Files with deletion vectors, and the rows that these hide."""
    files = lake.spark.sql(f"DESCRIBE DETAIL delta.`{lake.path}`").select("numFiles").collect()[0][0]
    found = condition_of(lake.spark, str(lake.path), CONFIG, NOW)
    assert found.files == files
    return found.vectors, found.deleted_rows


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("schema", "clustering"),
    [
        pytest.param(ONE_KEY, True, marks=pytest.mark.matrix, id="clustered"),
        pytest.param(ONE_KEY, False, marks=pytest.mark.matrix, id="not clustered"),
        pytest.param(TWO_KEYS, True, id="clustered by two columns"),
        pytest.param(KEYLESS, True, marks=pytest.mark.matrix, id="without a key"),
    ],
)
def test_purge_leaves_no_deletion_vector_and_every_row(
    new_lake: Callable[..., Lake], schema: TableSchema, clustering: bool
) -> None:
    """Also where all files were clustered together, which Delta's REORG leaves as they are."""
    lake = new_lake(schema, engine="spark", clustering=clustering, maintenance={"small_files_max": 2})
    names = [c.name for c in schema.columns]
    fields = [schema.fields[name] for name in names]

    def values(number: int) -> dict[str, Any]:
        return dict(zip(fields, (number, "a", "x"), strict=False))

    def before(number: int) -> dict[str, Any]:
        return {k: v for k, v in values(number).items() if not schema.key or k in schema.key_fields}

    for i in range(3):
        lake.apply(*[lake.insert(**values(n)) for n in range(i * 10, i * 10 + 10)], is_append=True)
    assert present(lake.target.maintain(lake.table))["upkeep"] == "compact"
    lake.apply(*[lake.delete(**before(n)) for n in range(0, 30, 2)])
    assert hidden(lake) == (1, 15)
    rows, version = lake.rows(), lake.version()
    report = lake.target.maintain(lake.table)
    assert report is not None
    assert (report["upkeep"], report["outcome"]) == ("purge", "done")
    assert hidden(lake) == (0, 0)
    assert lake.rows() == rows
    assert len(rows) == 15
    assert lake.version() == version + 1
    assert lake.target.maintain(lake.table) is None
    lake.apply(lake.insert(**values(99)))
    assert len(lake.rows()) == 16


@pytest.mark.matrix
def test_purge_gives_way_to_a_commit_that_changed_its_files(
    new_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake()
    lake.apply(*[lake.insert(id=n, name="a", note="x") for n in range(10)], is_append=True)
    lake.apply(lake.delete(id=0))
    choose = purge._hidden

    def meet_another_writer(*arguments: Any) -> Sequence[Any]:
        files = choose(*arguments)
        lake.spark.sql(f"DELETE FROM delta.`{lake.path}` WHERE id = 1")
        return files

    monkeypatch.setattr(purge, "_hidden", meet_another_writer)
    turns = lake.target._turns(lake.table.table)
    outcome = lake.maintain(turns, UpkeepKind.PURGE, NOW)
    assert outcome == "lost_to_another_commit"
    assert {row[0] for row in lake.rows()} == set(range(2, 10))
    assert hidden(lake) == (1, 2)


@pytest.mark.matrix
def test_purge_takes_a_portion_at_a_time_the_worst_files_first(
    new_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake()
    for i in (0, 10, 20):
        lake.apply(*[lake.insert(id=n, name="a", note="x") for n in range(i, i + 10)], is_append=True)
    lake.apply(*[lake.delete(id=n) for n in (0, 10, 11, 20)])
    monkeypatch.setattr(datafiles, "_BYTES_MAX", 1)
    turns = lake.target._turns(lake.table.table)
    left = []
    for _ in range(4):
        left.append(hidden(lake))
        outcome = lake.maintain(turns, UpkeepKind.PURGE, NOW)
        assert outcome == ("done" if left[-1] != (0, 0) else "nothing_to_do")
    assert left == [(3, 4), (2, 2), (1, 1), (0, 0)]
    assert len(lake.rows()) == 26


@pytest.mark.matrix
def test_upkeep_leaves_every_row_where_it_was(new_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"small_files_max": 2, "vacuum_retention": "0s", "vacuum_every": "1h"}
    lake = new_lake(maintenance=small)
    lake.apply(*[lake.insert(id=i, name="a", note="x") for i in range(20)])
    lake.apply(*[lake.delete(id=i) for i in range(10)])
    rows = lake.rows()
    orphan = lake.path / "part-of-a-killed-merge.parquet"
    orphan.write_bytes(b"")
    report = lake.target.maintain(lake.table)
    assert report is not None
    assert (report["upkeep"], report["outcome"]) == ("purge", "done")
    assert lake.rows() == rows
    for i in range(30, 33):
        lake.apply(lake.insert(id=i, name="a", note="x"), is_append=True)
    report = lake.target.maintain(lake.table)
    assert report is not None
    assert (report["upkeep"], report["outcome"]) == ("compact", "done")
    assert lake.target.maintain(lake.table) is None
    monkeypatch.setattr(maintenance, "last_vacuum", lambda _storage, _path, now: now - timedelta(hours=2))
    report = lake.target.maintain(lake.table)
    assert report is not None
    assert (report["upkeep"], report["outcome"]) == ("vacuum", "done")
    assert not orphan.exists()
    assert len(lake.rows()) == 13
    lake.apply(lake.update(id=15, name="still writable", note=None))
    assert (15, "still writable", None) in lake.rows()
