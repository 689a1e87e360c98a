"""Paused and deleted while a snapshot is running, the first one and one in place; then it continues, or begins again under one name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from replicator.model.documents.status import ReplicatorState
from replicator_testbed.amid import amid, is_amid, rows_read
from replicator_testbed.databases import Database
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.present import present
from replicator_testbed.rig import Rig, is_fresh, is_running
from replicator_testbed.target_tables import TargetTables, query
from replicator_testing.waiting import wait_until

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

Held = Callable[[], tuple[set[str], set[str]]]
TABLE = "customers"
SMALL_CHUNKS = ("chunk_rows: 1000", "chunk_rows: 10")


@pytest.fixture
def small(rig: Rig) -> Rig:
    """Its snapshots take hundreds of chunks."""
    rig.extra = rig.extra.replace(*SMALL_CHUNKS)
    rig.write_yaml()
    return rig


def pause_and_resume(rig: Rig, process: subprocess.Popen[str], writer: ShopWriter, *, in_place: bool = False) -> None:
    with amid(rig, process, TABLE, in_place=in_place):
        rig.command("pause", rig.name)
        paused = rig.wait_for_status(lambda s: s.state is ReplicatorState.PAUSED, process)
        assert is_amid(rig, paused, TABLE, in_place=in_place)
    wait_until(lambda: not workers(process), "the read that was under way has ended")
    before = rows_read(rig, present(rig.status()), TABLE)
    until = writer.transactions + 30
    wait_until(lambda: writer.transactions >= until, "the writer continues meanwhile")
    assert rows_read(rig, present(rig.status()), TABLE) == before, "nothing is read while it is paused"
    rig.command("resume", rig.name)
    rig.wait_for_status(lambda s: is_running(s) and is_fresh(s), process)


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Its capture and its apply. One that reads from a server that makes it wait ends only behind that."""
    return psutil.Process(process.pid).children()


def assert_nothing_is_left(rig: Rig) -> None:
    assert rig.command("status", rig.name, check=2).returncode == 2
    left = [path for path in rig.home.rglob(f"{rig.name}*") if path.name.split(".")[0] == rig.name]
    assert left == []
    database = rig.database
    if isinstance(database, ScratchDatabase):
        assert database.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []
        assert database.execute("SELECT pubname FROM pg_publication") == []
    elif database.execute("SHOW TABLES FROM replicator LIKE 'watermarks'" if has_watermarks(database) else "DO 0"):
        assert database.execute("SELECT * FROM replicator.watermarks") == []


def has_watermarks(database: Database) -> bool:
    return bool(database.execute("SHOW DATABASES LIKE 'replicator'"))


@pytest.fixture
def held(target: str, rig: Rig, request: pytest.FixtureRequest) -> Held:
    """Tells the names of the target's tables, and those of ledgers and staging tables next to them."""
    if target == "delta":
        # The ledger of a Delta table is in it; empty folders of the lake are nobody's.
        lake, tables = rig.lake, rig.lake / rig.database.namespace
        return lambda: (
            {folder.name for folder in tables.glob("*")},
            {file.name for file in lake.rglob("*") if file.is_file() and tables not in file.parents},
        )
    if target == "duckdb":
        return lambda: duckdb_holds(rig)
    client: Client = request.getfixturevalue("client")

    def of(dataset: str) -> set[str]:
        return {table.table_id for table in client.list_tables(dataset)}

    return lambda: (of(f"{rig.database.name}_{rig.database.namespace}"), of(f"_{rig.database.name}"))


def duckdb_holds(rig: Rig) -> tuple[set[str], set[str]]:
    """The tables of the rig's file, and those that the ledger names; it is read while nobody else has the file open."""
    found = query(
        rig.duckdb,
        "SELECT schema_name, table_name FROM duckdb_tables()",
    )
    tables = {name for schema, name in found if schema == rig.database.namespace}
    has_ledger = ("_replicator", "ledger") in found
    entries = query(rig.duckdb, "SELECT table_name FROM _replicator.ledger") if has_ledger else []
    return tables, {f"ledger of {name}" for (name,) in entries}


OTHERS = ("mariadb", "mysql", "mysql_without_gtids")


def cases() -> list[Any]:
    """Every source with BigQuery, and PostgreSQL with each target; all of the matrix."""
    kinds = [("postgresql", target) for target in ("duckdb", "bigquery", "delta")]
    kinds += [(kind, "bigquery") for kind in OTHERS]
    return [pytest.param(*kind, marks=pytest.mark.matrix) for kind in kinds]


@pytest.mark.parametrize(("kind", "target"), cases())
def test_a_snapshot_that_is_paused_half_way_continues_there(
    small: Rig, writer: ShopWriter, target_tables: TargetTables
) -> None:
    small.command("start", str(small.file))
    process = small.start("serve")
    pause_and_resume(small, process, writer)
    pause_and_resume(small, process, writer, in_place=True)
    writer.stop()
    small.settle(process)
    assert small.differences(target_tables) == {}


@pytest.mark.parametrize(("kind", "target"), cases())
def test_a_first_snapshot_that_is_deleted_half_way_leaves_nothing(
    small: Rig, writer: ShopWriter, target_tables: TargetTables, held: Held
) -> None:
    small.command("start", str(small.file))
    process = small.start("serve")
    with amid(small, process, TABLE):
        told = small.command("delete", small.name, "--yes", "--drop-target").stdout
        assert "\n  removed: 2 target tables (" in told
        assert f"\n  removed: journal {small.home}/journal/{small.name}\n" in told
        assert_nothing_is_left(small)
    assert held() == (set(), set())

    small.command("start", str(small.file))
    small.wait_for_status(is_fresh, process)
    writer.stop()
    small.settle(process)
    assert small.differences(target_tables) == {}


@pytest.mark.parametrize(("kind", "target"), cases())
def test_a_snapshot_in_place_that_is_deleted_half_way_leaves_the_target(
    small: Rig, writer: ShopWriter, target_tables: TargetTables, held: Held
) -> None:
    small.command("start", str(small.file))
    process = small.start("serve")
    small.wait_for_status(is_fresh, process)
    with amid(small, process, TABLE, in_place=True):
        told = small.command("delete", small.name, "--yes").stdout
        assert "\n  kept: 2 target tables (" in told
        assert_nothing_is_left(small)
    tables, own = held()
    assert tables == set(small.tables)
    assert [name for name in own if name.startswith(("ledger", "staging"))] == []

    # The tables that stayed belong to nobody: they are replaced only where that is asked for.
    small.target = (small.target or f"  type: delta\n  path: {small.lake}") + "\n  adopt: replace"
    small.write_yaml()
    small.command("start", str(small.file))
    small.wait_for_status(is_fresh, process)
    writer.stop()
    small.settle(process)
    assert small.differences(target_tables) == {}
