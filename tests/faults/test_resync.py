"""`snapshot --changed-only` after the log was lost: what changed in the gap is read again and nothing else, also with kills meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.state.records import RequestKind
from replicator_testbed.databases import Database
from replicator_testbed.demo.sources import Shop
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.rig import Rig, crashes, is_streaming, with_crashes
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import wait_until

ROWS = 5_000
PAIRS = [
    ("postgresql", "duckdb"),
    ("mariadb", "duckdb"),
    ("postgresql", "delta"),
    ("mariadb", "delta"),
    ("postgresql", "bigquery"),
    ("mysql", "delta"),
    ("sqlserver", "delta"),
    ("mysql", "bigquery"),
]


def pairs(*quick: tuple[str, str]) -> list[Any]:
    """All of them; those that are not `quick` are of the matrix."""
    return [pytest.param(*pair, marks=() if pair in quick else pytest.mark.matrix) for pair in PAIRS]


GAP = (
    "UPDATE items SET v = v + 1 WHERE id IN (1, 2, 2500, 5000)",
    "DELETE FROM items WHERE id IN (3, 4, 4999)",
    "INSERT INTO items VALUES (-1, 1), (6001, 2)",
    "UPDATE items SET id = 7000 WHERE id = 77",
)
ENABLE = "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'{}', @role_name = NULL, @supports_net_changes = 0"
"""SQL Server captures no table by itself."""
BEGINNINGS = (RequestKind.RESTART, RequestKind.SNAPSHOT)
KEYS_IN_GAP = 4 + 3 + 2 + 2
"""Of the row that has another key now, both."""


@pytest.fixture
def rig(rig: Rig) -> Rig:
    """A replicator of a table with a key, and of one without."""
    rig.database.execute(
        "CREATE TABLE items (id bigint PRIMARY KEY, v bigint)", "CREATE TABLE bag (a bigint)", "INSERT INTO bag VALUES (1), (1), (2)"
    )  # fmt: skip
    if isinstance(rig.database, ScratchDatabase):
        rig.database.execute("ALTER TABLE bag REPLICA IDENTITY FULL")
    if rig.database.source["type"] == "sqlserver":
        rig.database.execute(*(ENABLE.format(table) for table in ("items", "bag")))
    for start in range(1, ROWS, 1_000):
        rows = ", ".join(f"({id_}, {id_ % 7})" for id_ in range(start, start + 1_000))
        rig.database.execute(f"INSERT INTO items VALUES {rows}")
    rig.tables = ("items", "bag", "customers")
    rig.write_yaml()
    return rig


def lose_the_log(database: Database) -> None:
    """Have the source forget what nobody has read. No worker runs."""
    if isinstance(database, ScratchDatabase):
        slots = "FROM pg_replication_slots WHERE database = current_database()"
        wait_until(lambda: not database.execute(f"SELECT 1 {slots} AND active"), "the slot is free")
        assert len(database.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}")) == 1
        return
    if not isinstance(database, MysqlDatabase):
        capture = database.server.capture
        capture.stop()
        capture.scan_all()
        ((last,),) = database.execute("SELECT sys.fn_cdc_get_max_lsn()")
        capture.raise_low_watermark(bytes(last))
        capture.delete_below()
        capture.start()
        return
    database.execute("FLUSH BINARY LOGS", "CREATE TABLE later (a int)", "FLUSH BINARY LOGS")
    last = database.execute("SHOW BINARY LOGS")[-1][0]
    database.execute(f"PURGE BINARY LOGS TO '{last}'")


def rows_read(rig: Rig, table: str) -> int:
    """Rows that were read again, deletions included."""
    snapshot = rig.table(table).snapshot
    assert snapshot is not None
    return snapshot.rows


@pytest.mark.parametrize(("kind", "target"), pairs())
def test_what_changed_in_the_gap_is_read_again_and_nothing_else(rig: Rig, target_tables: TargetTables) -> None:
    rig.catch_up()
    rig.database.execute(*GAP)
    lose_the_log(rig.database)
    stopped = rig.command("run", str(rig.file), "--until-caught-up", check=1)
    assert f"replicator snapshot {rig.name} --changed-only" in stopped.stderr
    rig.command("snapshot", rig.name, "--changed-only")
    # No schedule is configured, and the worker ends by itself once nothing is left to do.
    rig.catch_up()
    assert rig.differences(target_tables) == {}
    assert rows_read(rig, "items") == KEYS_IN_GAP
    assert (rows_read(rig, "bag"), rows_read(rig, "customers")) == (0, 0)
    found = rig.status()
    assert found is not None
    assert {table.verify.result for table in found.tables} == {"equal"}
    assert {table.incarnation for table in found.tables} == {1}


def has_resynced(rig: Rig) -> bool:
    """Whether all that was asked for is done, and the tables stream; in this order, as what closes a request brings what it asks for."""
    assert rig.store is not None, "it has a status"
    is_asked = any(request.kind in BEGINNINGS for request in rig.store.requests.open(rig.name))
    status = rig.status()
    return not is_asked and status is not None and is_streaming(status)


POINTS = (
    "capture.intent_recorded",
    "capture.start_recorded",
    "verify.compared",
    "verify.asked",
    "verify.repaired",
    "capture.chunk_read",
    "apply.after_unit:2",
)


@pytest.mark.parametrize(("kind", "target"), pairs())
def test_kills_while_rows_change_leave_both_sides_equal(rig: Rig, shop: Shop, target_tables: TargetTables) -> None:
    rig.catch_up()
    busy = shop.writer()
    busy.start()
    try:
        wait_until(lambda: busy.transactions > 20, "rows changed in the gap")
        rig.database.execute(*GAP, "INSERT INTO bag VALUES (1), (3)")
        lose_the_log(rig.database)
        rig.command("snapshot", rig.name, "--changed-only")
        with_crashes(rig, POINTS)
        process = rig.start()

        rig.wait_for_status(lambda _: has_resynced(rig), process)
    finally:
        busy.stop()
    rig.settle(process)
    assert rig.stop(process) == 0, rig.output()
    assert rig.differences(target_tables) == {}
    assert {"capture.intent_recorded", "verify.compared", "verify.asked", "verify.repaired"} <= set(crashes(rig))
    # A snapshot would have read all rows; without a key, that is what it did.
    assert KEYS_IN_GAP <= rows_read(rig, "items") < 2 * KEYS_IN_GAP
    assert rows_read(rig, "customers") < 2_000
    assert rows_read(rig, "bag") == 5
