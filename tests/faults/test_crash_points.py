"""The process dies at every durable boundary, is started again, and both sides are equal."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence

import pytest

from replicator.model.documents.status import DesiredState, ReplicatorState, ReplicatorStatus
from replicator.model.schema import TableId
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.demo.sources import Shop
from replicator_testbed.journals.captured import Sealed
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.present import present
from replicator_testbed.rig import Rig, crashes, has_snapshots, with_crashes
from replicator_testbed.target_tables import TargetTables

POSTGRESQL = ("source.publication_made", "source.slot_made")
CAPTURE = (
    "capture.intent_recorded",
    "capture.start_recorded",
    "capture.mark_written",
    "capture.chunk_read",
    "capture.chunk_read:3",
    "journal.claim_recorded",
    "journal.files_written:2",
    "journal.before_index:3",
    "journal.after_index:2",
    "capture.before_seal:2",
    "capture.after_seal:4",
    "capture.before_ack:2",
    "capture.after_ack:3",
    "capture.mid_transaction",
)
POSTGRESQL_SLICE = ("source.slot_made", "journal.files_written:2", "capture.before_ack:2")
SQLSERVER_SLICE = ("capture.chunk_read:3", "journal.before_index:4", "capture.after_seal:4")
APPLY = (
    "apply.claim_recorded",
    "apply.claimed",
    "target.claimed:2",
    "target.before_ddl",
    "target.after_ddl",
    "apply.batch_planned:2",
    "target.before_merge:2",
    "target.after_merge",
    "apply.after_unit:3",
)
PUT = ("target.before_put", "target.after_put:2")
"""Of first versions, and of claims that another lease makes of Delta tables that are there: under its own it has nothing to put."""
DIRECT = ("lane.rows_written:2", "lane.vectors_written", "lane.before_put:3", "lane.after_put:2")
"""Of batches that are committed without Spark, or whose rows Spark finds and writes."""
MORE_THAN_A_PULL = 60_000
FOUND_BY_SPARK = "index_memory: 0\n  maintenance: {enabled: false}"
"""Of a target whose batches are found and written by Spark (`L2`): no key of a table fits into memory. Nothing else is committed."""
DELETE = (
    "delete.begun",
    "delete.source_cleaned",
    "delete.target_cleaned",
    "delete.journal_removed",
    "delete.before_state",
)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("kind", "target", "points"),
    [
        pytest.param("postgresql", "delta", DIRECT[2:], marks=pytest.mark.matrix, id="slice"),
        *(
            pytest.param(kind, "delta", (*CAPTURE, *APPLY, *PUT, *DIRECT, *more), marks=pytest.mark.matrix, id=kind)
            for kind, more in (("postgresql", POSTGRESQL), ("mariadb", ()), ("mysql", ()), ("sqlserver", ()))
        ),
        pytest.param("postgresql", "spark", (*APPLY, *PUT), marks=pytest.mark.matrix, id="spark"),
    ],
)
def test_a_crash_at_any_boundary_of_the_workers_loses_and_doubles_nothing(
    rig: Rig, writer: ShopWriter, shop: Shop, points: Sequence[str], target_tables: TargetTables
) -> None:
    with_crashes(rig, points)
    process = rig.start()
    rig.wait_for_status(has_snapshots, process, timeout_s=200)
    if "capture.mid_transaction" in points:
        # A transaction larger than a pull, so that one of them ends inside.
        shop.view_pages(MORE_THAN_A_PULL)
    rig.wait_for_status(lambda _: set(crashes(rig)) >= set(points) - set(PUT), process, timeout_s=600)
    assert rig.stop(process) == 0, rig.output()
    process = rig.start()
    rig.wait_for_status(lambda _: set(crashes(rig)) == set(points), process, timeout_s=600)
    writer.stop()
    rig.settle(process)
    assert rig.stop(process) == 0, rig.output()
    assert rig.differences(target_tables) == {}


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(("lane.rows_written",), marks=pytest.mark.matrix, id="one"),
        pytest.param(("target.before_merge:2", *DIRECT, "target.after_merge"), marks=pytest.mark.matrix, id="all"),
    ],
)
def test_a_crash_while_spark_finds_and_writes_a_batch_loses_and_doubles_nothing(
    rig: Rig, writer: ShopWriter, points: Sequence[str], target_tables: TargetTables
) -> None:
    rig.target = f"  type: delta\n  path: {rig.lake}\n  {FOUND_BY_SPARK}"
    rig.write_yaml()
    process = rig.start()
    # Snapshots are appended, without a look at any key.
    rig.wait_for_status(lambda status: _rung(status, "customers") == "L2", process, timeout_s=400)
    assert rig.stop(process) == 0, rig.output()
    with_crashes(rig, points)
    process = rig.start()
    rig.wait_for_status(lambda _: set(crashes(rig)) == set(points), process, timeout_s=600)
    writer.stop()
    rig.settle(process)
    assert _rung(present(rig.status()), "customers") == "L2"
    assert rig.stop(process) == 0, rig.output()
    assert rig.differences(target_tables) == {}


def _rung(status: ReplicatorStatus, table: str) -> str | None:
    """What applied the table's last batch."""
    engines = [found.engine for found in status.tables if found.table.endswith(f".{table}")]
    return engines[0].rung if engines and engines[0] else None


@pytest.mark.parametrize(
    ("kind", "points"),
    [
        pytest.param("postgresql", POSTGRESQL_SLICE, marks=pytest.mark.matrix, id="postgresql slice"),
        pytest.param("postgresql", (*CAPTURE, *POSTGRESQL), marks=pytest.mark.matrix, id="postgresql"),
        pytest.param("mariadb", CAPTURE, marks=pytest.mark.matrix, id="mariadb"),
        pytest.param("mysql", CAPTURE, marks=pytest.mark.matrix, id="mysql"),
        pytest.param("sqlserver", SQLSERVER_SLICE, marks=pytest.mark.matrix, id="sqlserver slice"),
        pytest.param("sqlserver", CAPTURE, marks=pytest.mark.matrix, id="sqlserver"),
        # A round of net changes has few rows of these tables: none ends a pull inside.
        pytest.param("sqlserver_tracking", CAPTURE[:-1], marks=pytest.mark.matrix, id="sqlserver_tracking"),
    ],
)
def test_a_crash_at_any_boundary_of_the_capture_loses_and_doubles_nothing(
    rig: Rig, writer: ShopWriter, shop: Shop, points: Sequence[str]
) -> None:
    """Without a target: what is sealed is compared."""
    with_crashes(rig, points)
    rig.command("start", str(rig.file))
    rig.command("pause", rig.name, "--apply")
    process = rig.start("serve")
    rig.wait_for_status(has_snapshots, process)
    if "capture.mid_transaction" in points:
        shop.view_pages(MORE_THAN_A_PULL)
    rig.wait_for_status(lambda _: set(crashes(rig)) == set(points), process, timeout_s=600)
    writer.stop()
    assert rig.store is not None
    sealed = Sealed(name=rig.name, store=rig.store)
    position = sealed.request("position")
    rig.wait_for_status(lambda _: sealed.is_done(position), process)
    assert rig.stop(process) == 0, rig.output()
    for table in rig.tables:
        found = sealed.rows(TableId(rig.database.namespace, table))
        wanted = Counter(map(tuple, rig.database.rows(table, rig.database.columns(table))))
        assert found == wanted, f"{table}: too many {found - wanted}, lacking {wanted - found}"


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("postgresql", "duckdb"),
        ("postgresql", "bigquery"),
        *((kind, "delta") for kind in ("postgresql", "mariadb", "mysql", "sqlserver")),
    ],
)
def test_pause_resume_and_delete_can_be_repeated_from_any_half_way_point(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables
) -> None:
    rig.command("start", str(rig.file))
    rig.command("pause", rig.name, "--apply")
    process = rig.start("serve")
    rig.wait_for_status(has_snapshots, process)
    with_crashes(rig, ["pause.recorded", "resume.error_cleared", *DELETE])
    assert rig.command("pause", rig.name, check=None).returncode == -signal.SIGKILL
    rig.wait_for_status(lambda s: s.state is ReplicatorState.PAUSED, process)
    process.kill()
    process.wait()
    assert "paused" in rig.command("run", str(rig.file), check=1).stderr
    assert rig.command("resume", rig.name, check=None).returncode == -signal.SIGKILL
    assert present(rig.status()).desired is DesiredState.PAUSED
    rig.command("resume", rig.name)
    writer.stop()
    rig.catch_up()
    assert rig.differences(target_tables) == {}

    journal = rig.home / "journal" / rig.name
    assert any(journal.iterdir())
    for _ in DELETE:
        assert rig.command("delete", rig.name, "--yes", check=None).returncode == -signal.SIGKILL
    assert crashes(rig)[2:] == list(DELETE)
    rig.command("delete", rig.name, "--yes")
    assert rig.command("status", rig.name, check=2).returncode == 2
    if isinstance(rig.database, ScratchDatabase):  # nothing is made on the others
        assert rig.database.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []
        assert rig.database.execute("SELECT 1 FROM pg_publication") == []
    assert not journal.exists()
    assert rig.differences(target_tables) == {}, "the target's tables stay"
