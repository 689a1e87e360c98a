"""Tables that are rebuilt out of readers' sight, or renamed, under load, while processes of the replicator are killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

import pytest

from replicator_testbed.databases import Database
from replicator_testbed.delta import read_delta
from replicator_testbed.processes import kill_all
from replicator_testbed.rig import Rig, crashes, is_streaming, with_crashes
from replicator_testbed.target_tables import DeltaLakeTables
from replicator_testing.waiting import wait_until
from tests.faults.conftest import QUICK

if TYPE_CHECKING:
    from replicator.model.documents.status import ReplicatorStatus

ROWS: Final = 3000
REBUILDING: Final = ("capture.chunk_read:2", "target.files_shared", "target.swapped")
"""Capture dies amid the new snapshot; apply once the new table is complete and not published, and once it is."""
FILLING: Final = ("target.before_ddl", "target.rows_filled", "target.after_ddl")


def whole(points: tuple[str, ...]) -> list[Any]:
    """All the points, from two sources, in `make test-matrix`: each costs the start of a Spark."""
    return [pytest.param(kind, points, marks=pytest.mark.matrix, id=kind) for kind in ("postgresql", "mariadb")]


@pytest.fixture
def rebuilt(tmp_path: Path, origin: Database) -> Iterator[Rig]:
    """A replicator of one table, which is rebuilt where its columns get other types."""
    origin.execute(
        "CREATE TABLE items (id int NOT NULL PRIMARY KEY, v int)",
        "INSERT INTO items VALUES (0, 0)",
        *(f"INSERT INTO items SELECT id + {1 << n}, 7 FROM items" for n in range(11)),
    )
    rig = Rig(folder=tmp_path, database=origin, tables=("items",), extra=f"{QUICK}\nddl: {{change_type: apply}}\n")
    yield rig
    rig.kill()


@contextmanager
def _seen(rig: Rig) -> Iterator[set[tuple[str, int]]]:
    """Read the target table all the time: the type of its column and its number of rows, of each version that was read."""
    found: set[tuple[str, int]] = set()
    failures: list[Exception] = []
    is_over = Event()

    def look() -> None:
        while not is_over.wait(0.1):
            try:
                rows = read_delta(rig.lake / rig.database.namespace / "items", ["v"])
            except Exception as error:  # noqa: BLE001 - whatever a reader fails with is what the test looks for
                failures.append(error)
                return
            found.add((str(rows.schema.field("v").type).replace("_view", ""), rows.num_rows))

    reader = Thread(target=look)
    reader.start()
    try:
        yield found
    finally:
        is_over.set()
        reader.join()
    assert failures == []


def _copied(rig: Rig, points: Sequence[str], *, is_new: str) -> subprocess.Popen[str]:
    """Let it copy the table, and die from then on at the points; it passes `is_new` for the first time after that."""
    if points == (is_new,):
        with_crashes(rig, points)
    process = rig.start()
    rig.wait_for_status(is_streaming, process)
    rig.settle(process)
    if points == (is_new,):
        assert crashes(rig) == []
        return process
    with_crashes(rig, points)
    kill_all(process)
    return rig.start()


def _retype(kind: str) -> str:
    change = "ALTER v TYPE text" if kind == "postgresql" else "MODIFY v varchar(20)"
    return f"ALTER TABLE items {change}"


def _is_rebuilt(status: ReplicatorStatus) -> bool:
    return is_streaming(status) and all(table.incarnation > 1 for table in status.tables)


@pytest.mark.parametrize(
    ("kind", "points"),
    [pytest.param("postgresql", REBUILDING[-1:], marks=pytest.mark.matrix, id="slice"), *whole(REBUILDING)],
)
def test_readers_see_the_old_table_or_the_new_one_while_its_rebuilding_is_killed(
    rebuilt: Rig, origin: Database, kind: str, points: Sequence[str]
) -> None:
    process = _copied(rebuilt, points, is_new="target.swapped")
    with _seen(rebuilt) as seen:
        origin.execute(_retype(kind), *(f"INSERT INTO items VALUES ({ROWS + n}, 'new')" for n in range(20)))
        rebuilt.wait_for_status(lambda status: status.tables[0].incarnation > 1, process)
        if len(points) > 1:
            kill_all(process)
            process = rebuilt.start()
        rebuilt.wait_for_status(_is_rebuilt, process)
        rebuilt.settle(process)
    old = {rows for type_, rows in seen if type_ == "int32"}
    new = {rows for type_, rows in seen if type_ == "string"}
    assert (old, {rows >= 2048 for rows in new}) == ({2048}, {True}), seen
    assert set(crashes(rebuilt)) == set(points)
    assert rebuilt.differences(DeltaLakeTables(rebuilt.lake)) == {}
    assert rebuilt.stop(process) == 0, rebuilt.output()
    assert list((rebuilt.lake / "_replicator" / "building").rglob("*")) == []


@pytest.mark.parametrize(("kind", "points"), whole(FILLING))
def test_rows_get_the_value_of_a_new_column_once_although_that_is_killed(
    rebuilt: Rig, origin: Database, kind: str, points: Sequence[str]
) -> None:
    process = _copied(rebuilt, points, is_new="target.rows_filled")
    origin.execute("ALTER TABLE items ADD c int DEFAULT 5", "UPDATE items SET v = 8 WHERE id < 10")
    rebuilt.wait_for_status(lambda _: set(crashes(rebuilt)) == set(points), process)
    origin.execute("DELETE FROM items WHERE id = 3")
    rebuilt.settle(process)
    assert rebuilt.differences(DeltaLakeTables(rebuilt.lake)) == {}
    assert rebuilt.table("items").incarnation == 1, kind
    assert rebuilt.stop(process) == 0, rebuilt.output()


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_renamed_table_continues_in_its_target_table_whatever_is_killed(
    tmp_path: Path, origin: Database, kind: str
) -> None:
    origin.execute(
        "CREATE TABLE items (id int NOT NULL PRIMARY KEY, v int)",
        "INSERT INTO items VALUES (0, 0)",
        *(f"INSERT INTO items SELECT id + {1 << n}, 7 FROM items" for n in range(8)),
    )
    rig = Rig(folder=tmp_path, database=origin, extra=QUICK)
    try:
        process = rig.start()
        rig.wait_for_status(is_streaming, process)
        rig.settle(process)
        origin.execute("ALTER TABLE items RENAME TO goods", "UPDATE goods SET v = 8 WHERE id < 100")
        kill_all(process)
        origin.execute("INSERT INTO goods VALUES (1000, 9)", "DELETE FROM goods WHERE id = 5")
        process = rig.start()
        rig.settle(process)
        origin.execute("ALTER TABLE goods RENAME TO wares", "INSERT INTO wares VALUES (2000, 10)")
        rig.settle(process)
        tables = DeltaLakeTables(rig.lake)
        wait_until(lambda: rig.table("items").source_table == rig.full_name("wares"), "the status shows the name")
        wanted = tables.wanted(origin.rows("wares", ["id", "v"]))
        assert tables.found(origin.namespace, "items", ["id", "v"]) == wanted
        status = rig.status()
        assert status is not None
        assert [table.table for table in status.tables] == [rig.full_name("items")]
        assert status.tables[0].snapshot is not None
        assert not status.tables[0].snapshot.is_in_place, "it continued without a new snapshot"
        assert rig.stop(process) == 0, rig.output()
        rig.command("validate", str(rig.file))
        shown = rig.command("status", rig.name).stdout
        assert f"{rig.full_name('items')}: its name in the source is {rig.full_name('wares')}" in shown
    finally:
        rig.kill()
