"""The log's reader on the model: what is delivered, in what order, and what is noticed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyodbc
import pytest

from replicator.model.errors import OffsetExpiredError, SourceUnavailableError
from replicator.model.schema import TableId
from replicator.plugins.source import PullLimits
from replicator_source_sqlserver.catalogue import discovery
from replicator_source_sqlserver.cdc import queries as capturelog
from replicator_source_sqlserver.cdc.job import CaptureHealth
from replicator_source_sqlserver.cdc.log import _Turned
from replicator_source_sqlserver.cdc.position import Position
from replicator_source_sqlserver.cdc.tables import CapturedTables, Turn
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.world import WIDE, World, drained, labels, shown, world_of_two
from replicator_testing.source_harness import Change, Delivered

T, U = TableId("dbo", "t"), TableId("dbo", "u")


@pytest.fixture
def two(postgres: PostgresServer) -> Iterator[World]:
    """Two captured tables, t and u."""
    with world_of_two(postgres) as two:
        yield two


def test_a_turn_is_made_once_and_so_are_all_in_front_of_it() -> None:
    turned = _Turned().behind(Turn(lsn=b"2", table=T))
    made = {
        (lsn, table.name) for lsn in (b"1", b"2", b"3") for table in (T, U) if turned.has(Turn(lsn=lsn, table=table))
    }
    assert made == {(b"1", "t"), (b"1", "u"), (b"2", "t")}
    assert turned.behind(Turn(lsn=b"2", table=U)).has(Turn(lsn=b"2", table=T))
    assert not turned.behind(Turn(lsn=b"3", table=U)).has(Turn(lsn=b"3", table=T))


@pytest.mark.matrix
def test_changes_of_several_tables_come_in_the_order_of_the_log(two: World) -> None:
    reader = two.open(two.position())
    two.execute(
        "BEGIN TRANSACTION; INSERT INTO dbo.t (id, name) VALUES (1, N'a'); INSERT INTO dbo.u (id) VALUES (1);"
        " UPDATE dbo.t SET name = N'b' WHERE id = 1; DELETE FROM dbo.u WHERE id = 1; INSERT INTO dbo.u (id) VALUES (2); COMMIT",
        "UPDATE dbo.t SET id = 5 WHERE id = 1",
    )
    two.capture()
    delivered = drained(reader)
    assert shown(delivered) == [
        ("t", "INSERT", 1), ("u", "INSERT", 1), ("t", "UPDATE", 1), ("u", "DELETE", 1), ("u", "INSERT", 2),
        ("t", "UPDATE", 5),
    ]  # fmt: skip
    assert len(delivered.transactions) == 2
    moved = delivered.changes[-1]
    assert (moved.before, moved.row and moved.row["name"]) == ({"id": 1}, "b")
    reader.close()


@pytest.mark.matrix
def test_a_large_value_that_an_update_leaves_alone_is_absent(two: World) -> None:
    reader = two.open(two.position())
    two.execute(
        "INSERT INTO dbo.t (id, name, note) VALUES (1, N'a', N'long')",
        "UPDATE dbo.t SET name = N'b' WHERE id = 1",
        "UPDATE dbo.t SET note = NULL WHERE id = 1",
    )
    two.capture()
    changes = drained(reader).changes
    assert [(c.row["name"], c.row["note"], c.absent) for c in changes if c.row] == [
        ("a", "long", frozenset()),
        ("b", None, {"note"}),
        ("b", None, frozenset()),
    ]
    reader.close()


@pytest.mark.matrix
@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [1, 7, 1000, 10_000])
def test_a_large_transaction_is_read_in_parts_and_stays_open_until_its_end(
    two: World, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr("replicator_source_sqlserver.cdc.log.PAGE_ROWS", 51)  # odd: an UPDATE has two rows
    reader = two.open(two.position())
    values = ", ".join(f"({n})" for n in range(200))
    two.execute(
        f"BEGIN TRANSACTION; INSERT INTO dbo.t (id) VALUES {values}; INSERT INTO dbo.u (id) VALUES {values};"
        " UPDATE dbo.t SET name = N'x'; UPDATE dbo.u SET id = id + 1000; COMMIT",
        "INSERT INTO dbo.t (id) VALUES (7000)",
    )
    two.capture()
    delivered = drained(reader, PullLimits(rows=rows, bytes=64 << 20, wait_s=0.0))
    of_t = [(op, id_) for table, op, id_ in shown(delivered) if table == "t"]
    of_u = [(op, id_) for table, op, id_ in shown(delivered) if table == "u"]
    assert of_t == [
        *(("INSERT", n) for n in range(200)), *(("UPDATE", n) for n in range(200)), ("INSERT", 7000),
    ]  # fmt: skip
    assert of_u[:200] == [("INSERT", n) for n in range(200)]
    assert of_u[200:] == [*(("DELETE", n) for n in range(200)), *(("INSERT", n + 1000) for n in range(200))]
    assert len(delivered.transactions) == 2
    assert delivered.open_transaction is None
    reader.close()


@pytest.mark.matrix
def test_resuming_behind_any_offset_gives_the_rest(two: World) -> None:
    start = two.position()
    for n in range(6):
        two.execute(f"INSERT INTO dbo.t (id) VALUES ({n}), ({n + 100})")
    two.capture()
    reader = two.open(start)
    delivered = drained(reader, PullLimits(rows=3, bytes=64 << 20, wait_s=0.0))
    everything = shown(delivered)
    assert len(everything) == 12
    for offset, events in delivered.offsets:
        again = two.open(Position.of(offset))
        assert shown(drained(again)) == everything[events:]
        again.close()
    reader.close()


@pytest.mark.matrix
def test_what_cleanup_has_deleted_is_noticed(two: World) -> None:
    start = two.position()
    two.execute("INSERT INTO dbo.t (id) VALUES (1)")
    two.capture()
    two.execute("INSERT INTO dbo.t (id) VALUES (2)")
    two.capture()
    two.model.capture.raise_low_watermark(two.position().lsn)
    two.model.capture.delete_below()
    reader = two.open(start)
    with pytest.raises(OffsetExpiredError):
        drained(reader)
    reader.close()


@pytest.mark.matrix
def test_a_low_watermark_at_the_next_commit_has_lost_nothing(two: World) -> None:
    """Of one instance: the entries that tell which commits there were are kept for the other one."""
    two.execute("INSERT INTO dbo.u (id) VALUES (0)")
    two.capture()
    start = two.position()
    two.execute("INSERT INTO dbo.t (id) VALUES (1)")
    two.capture()
    two.model.capture.raise_low_watermark(two.last_commit(T), "dbo_t")
    two.model.capture.delete_below()
    reader = two.open(start)
    assert shown(drained(reader)) == [("t", "INSERT", 1)]
    reader.close()


@pytest.mark.matrix
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_low_watermark_behind_the_next_commit_has_lost_it(two: World, *, is_deleted: bool) -> None:
    """Whatever is left of the entries that would tell which commits there were."""
    two.execute("INSERT INTO dbo.u (id) VALUES (0)")
    two.capture()
    start = two.position()
    for n in (1, 2):
        two.execute(f"INSERT INTO dbo.t (id) VALUES ({n})")
        two.capture()
    two.model.capture.raise_low_watermark(two.position().lsn)
    if is_deleted:
        two.model.capture.delete_below()
    reader = two.open(start)
    with pytest.raises(OffsetExpiredError):
        drained(reader)
    reader.close()


@pytest.mark.matrix
@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_counted", [False, True])
def test_what_cleanup_deletes_while_it_is_read_is_noticed(
    two: World, monkeypatch: pytest.MonkeyPatch, *, is_counted: bool
) -> None:
    """The low watermark rises between the question for it and the reading: the range reads as empty. Nothing is counted, or all of it."""
    reader = two.open(two.position())
    two.execute("INSERT INTO dbo.t (id) VALUES (1)", "INSERT INTO dbo.t (id) VALUES (2)")
    two.capture()
    counts = capturelog.counts

    def clean() -> None:
        two.model.capture.raise_low_watermark(two.position().lsn)
        two.model.capture.delete_below()

    def count_and_clean(*arguments: Any) -> Any:
        if not is_counted:
            clean()
        found = counts(*arguments)
        if is_counted:
            clean()
        return found

    monkeypatch.setattr(capturelog, "counts", count_and_clean)
    with pytest.raises((SourceUnavailableError, OffsetExpiredError)):
        drained(reader)
    reader.close()


@pytest.mark.matrix
@pytest.mark.condition("D27")
def test_a_page_of_wide_rows_ends_where_a_pull_is_full(two: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of two tables, one of them larger than a page."""
    monkeypatch.setattr("replicator_source_sqlserver.cdc.log.PAGE_BYTES", 1)
    monkeypatch.setattr("replicator_source_sqlserver.snapshot.blocks.FIRST_LOB_ROWS", 2)
    reader = two.open(two.position())
    wide, narrow = "REPLICATE(N'w', 5000)", "N'n'"
    for n in range(20):
        two.execute(f"INSERT INTO dbo.{'tu'[n % 2]} (id, note) VALUES ({n}, {narrow if n % 5 else wide})")
    two.execute(f"INSERT INTO dbo.t (id, note) VALUES {', '.join(f'({n}, {wide})' for n in range(100, 120))}")
    two.execute(
        "BEGIN TRANSACTION; UPDATE dbo.t SET name = N'x', note = CONCAT(note, N'y') WHERE id >= 100;"
        " UPDATE dbo.t SET id = id + 1000 WHERE id >= 110; DELETE FROM dbo.t WHERE id < 110; UPDATE dbo.u SET name = N'z'; COMMIT"
    )
    two.capture()
    limits, delivered, largest = PullLimits(rows=10_000, bytes=20_000, wait_s=0.0), Delivered(), 0
    while (batch := reader.pull(limits)).events or batch.offset is not None or batch.open_transaction is not None:
        delivered.add(batch)
        assert reader._page is not None
        largest = max(largest, reader._page.bytes)
    reader.close()
    of_t = [(op, id_) for table, op, id_ in shown(delivered) if table == "t"]
    small = [n for n in range(20) if n % 2 == 0]
    assert of_t[: len(small)] == [("INSERT", n) for n in small]
    assert of_t[len(small) :][:20] == [("INSERT", n) for n in range(100, 120)]
    assert sorted(of_t[len(small) + 20 :]) == sorted(
        [
            *(("UPDATE", n) for n in range(100, 120)),
            *(("DELETE", n) for n in range(110, 120)),
            *(("INSERT", n + 1000) for n in range(110, 120)),
            *(("DELETE", n) for n in (*small, *range(100, 110))),
        ]
    )
    assert [id_ for table, op, id_ in shown(delivered) if table == "u"] == [n for n in range(20) if n % 2] * 2
    assert len(delivered.transactions) == 22
    assert delivered.open_transaction is None
    # Each of the two tables may go beyond its share by a block, which has as many rows as those before let expect.
    assert largest < 4 * 20_000


@pytest.mark.matrix
def test_rows_of_a_large_transaction_that_vanish_between_two_parts_are_noticed(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator_source_sqlserver.cdc.log.PAGE_ROWS", 5)
    reader = two.open(two.position())
    two.execute(f"INSERT INTO dbo.t (id) VALUES {', '.join(f'({n})' for n in range(20))}")
    two.capture()
    assert reader.pull(PullLimits(rows=5, bytes=64 << 20, wait_s=0.0)).events == 5
    two.model.database.execute('DELETE FROM cdc."dbo_t_CT"')
    with pytest.raises(SourceUnavailableError) as raised:
        drained(reader, PullLimits(rows=5, bytes=64 << 20, wait_s=0.0))
    assert raised.value.code == "instance_changed"
    reader.close()


@pytest.mark.matrix
def test_an_idle_table_is_not_lost_by_cleanup(two: World) -> None:
    reader = two.open(two.position(), [T])
    for n in range(3):
        two.execute(f"INSERT INTO dbo.u (id) VALUES ({n})")
    two.capture()
    delivered = drained(reader)
    assert delivered.offsets
    two.model.capture.raise_low_watermark(two.position().lsn)
    two.model.capture.delete_below()
    two.execute("INSERT INTO dbo.t (id) VALUES (1)")
    two.capture()
    assert shown(drained(reader)) == [("t", "INSERT", 1)]
    reader.close()


@pytest.mark.matrix
def test_a_second_instance_takes_over_where_it_begins(two: World) -> None:
    reader = two.open(two.position())
    two.execute("INSERT INTO dbo.t (id) VALUES (1)")
    two.enable(T, capture_instance="dbo_t_2")
    two.execute("INSERT INTO dbo.t (id) VALUES (2)")
    two.capture()
    assert shown(drained(reader)) == [("t", "INSERT", 1), ("t", "INSERT", 2)]
    two.execute(
        "EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', @source_name = N't', @capture_instance = N'dbo_t'"
    )
    two.execute("INSERT INTO dbo.t (id) VALUES (3)")
    two.capture()
    assert shown(drained(reader)) == [("t", "INSERT", 3)]
    reader.close()


@pytest.mark.matrix
def test_an_added_column_that_is_not_captured_fails_its_table_alone(two: World) -> None:
    reader = two.open(two.position())
    two.execute(
        "INSERT INTO dbo.t (id) VALUES (1)", "ALTER TABLE dbo.t ADD more int NULL", "INSERT INTO dbo.u (id) VALUES (1)"
    )
    two.capture()
    delivered = drained(reader)
    assert shown(delivered) == [("t", "INSERT", 1), ("u", "INSERT", 1)]
    assert {str(table): error.code for table, error in delivered.table_errors.items()} == {
        "dbo.t": "column_not_captured"
    }
    reader.close()


@pytest.mark.matrix
def test_what_a_table_says_that_lacks_a_column_can_be_run_as_it_is(two: World) -> None:
    """Also where there are two instances: then the older one has to go first."""
    for number in (2, 3):
        reader = two.open(two.position())
        two.execute(f"ALTER TABLE dbo.t ADD more{number} int NULL", "INSERT INTO dbo.u (id) VALUES (1)", "DELETE dbo.u")
        two.capture()
        action = drained(reader).table_errors[T].action
        reader.close()
        assert action is not None
        statements = re.findall(r"(?:EXEC|GRANT) [^;]*;", action)
        assert ("sp_cdc_disable_table" in action) == (number == 3)
        two.execute(*statements)
        two.capture()
    found = two.sql.execute(
        "SELECT capture_instance FROM cdc.change_tables WHERE source_object_id = OBJECT_ID(N'dbo.t')"
    )
    assert sorted(row[0] for row in found) == ["dbo_t_2", "dbo_t_3"], (
        "the name of the one that is dropped is not free yet"
    )


@pytest.mark.matrix
def test_a_change_table_without_command_id_fails_its_table_alone(two: World) -> None:
    two.model.database.execute('ALTER TABLE cdc."dbo_t_CT" DROP COLUMN "__$command_id"')
    two.model.database.changed()
    reader = two.open(two.position())
    two.execute("INSERT INTO dbo.u (id) VALUES (1)")
    two.capture()
    delivered = drained(reader)
    assert shown(delivered) == [("u", "INSERT", 1)]
    (error,) = delivered.table_errors.values()
    assert (error.code, error.table) == ("command_id_missing", "dbo.t")
    assert "@capture_instance = N'dbo_t_2'" in str(error.action)
    reader.close()


@pytest.mark.matrix
def test_a_second_instance_with_a_new_column_is_an_event_where_it_begins(two: World) -> None:
    reader = two.open(two.position())
    two.execute("INSERT INTO dbo.t (id) VALUES (1)", "ALTER TABLE dbo.t ADD more int NULL")
    two.enable(T, capture_instance="dbo_t_2")
    two.execute("INSERT INTO dbo.t (id, more) VALUES (2, 7)")
    two.capture()
    delivered = drained(reader)
    events = delivered.events
    assert labels(delivered) == [1, "ALTER_TABLE", 2]
    assert isinstance(events[-1], Change)
    assert events[-1].row is not None
    assert events[-1].row["more"] == 7
    reader.close()


@pytest.mark.matrix
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("statement", "types"),
    [
        ("ALTER TABLE dbo.t DROP COLUMN name", {"id": "int32", "note": "string"}),
        ("ALTER TABLE dbo.u ALTER COLUMN id bigint NOT NULL", None),
        ("ALTER TABLE dbo.t ALTER COLUMN name nvarchar(100) NULL", {"id": "int32", "name": "string", "note": "string"}),
    ],
)
def test_a_table_that_is_altered_is_an_event_at_its_position(
    two: World, statement: str, types: dict[str, str] | None
) -> None:
    if types is None:
        with pytest.raises(pyodbc.Error):
            two.execute(statement)
        return
    reader = two.open(two.position())
    two.execute(
        "INSERT INTO dbo.t (id, note) VALUES (1, N'x')", statement, "INSERT INTO dbo.t (id, note) VALUES (2, N'y')"
    )
    two.capture()
    delivered = drained(reader)
    events = delivered.events
    assert labels(delivered) == [1, "ALTER_TABLE", 2]
    event = events[1]
    assert not isinstance(event, Change)
    assert event.schema is not None
    assert {c.name: str(c.type) for c in event.schema.columns} == types
    reader.close()


@pytest.mark.matrix
def test_another_description_is_no_event(two: World) -> None:
    reader = two.open(two.position())
    two.execute(
        "EXEC sys.sp_addextendedproperty @name = N'MS_Description', @value = N'Of the table', @level0type = N'SCHEMA',"
        " @level0name = N'dbo', @level1type = N'TABLE', @level1name = N't', @level2type = N'COLUMN', @level2name = N'name'",
        "ALTER TABLE dbo.t ALTER COLUMN name nvarchar(50) NULL",
        "INSERT INTO dbo.t (id) VALUES (1)",
    )
    two.capture()
    assert labels(drained(reader)) == [1]
    reader.close()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("statement", "column"),
    [
        ("ALTER TABLE dbo.t ADD v sql_variant NULL", "v (sql_variant)"),
        ("ALTER TABLE dbo.t ALTER COLUMN name sql_variant NULL", "name (sql_variant)"),
        ("ALTER TABLE dbo.t ADD v xml COLUMN_SET FOR ALL_SPARSE_COLUMNS", "v (column set)"),
    ],
)
def test_a_column_that_cannot_be_replicated_fails_its_table_alone(two: World, statement: str, column: str) -> None:
    reader = two.open(two.position())
    two.execute("INSERT INTO dbo.t (id) VALUES (1)", statement, "INSERT INTO dbo.t (id) VALUES (2)")
    two.execute("INSERT INTO dbo.u (id) VALUES (1)")
    two.capture()
    delivered = drained(reader)
    # A change table whose column was altered cannot be read at all, so rows in front of that do not come either.
    assert shown(delivered) == [*([("t", "INSERT", 1)] if "ADD" in statement else []), ("u", "INSERT", 1)]
    assert delivered.ddl == []
    error = delivered.table_errors[T]
    assert error.code == "unsupported_type"
    assert column in error.message
    reader.close()


@pytest.mark.matrix
def test_a_column_that_gets_an_alias_for_its_type_or_loses_it_stays_as_it_is(two: World) -> None:
    reader = two.open(two.position())
    two.execute(
        "CREATE TYPE dbo.code FROM nvarchar(50)",
        "ALTER TABLE dbo.t ALTER COLUMN name dbo.code NULL",
        "INSERT INTO dbo.t (id, name) VALUES (1, N'x')",
        "ALTER TABLE dbo.t ALTER COLUMN name nvarchar(50) NULL",
        "INSERT INTO dbo.t (id, name) VALUES (2, N'y')",
    )
    two.capture()
    delivered = drained(reader)
    assert labels(delivered) == [1, 2]
    assert delivered.table_errors == {}
    # Its name now means another type.
    two.execute(
        "DROP TYPE dbo.code",
        "CREATE TYPE dbo.code FROM varchar(9)",
        "ALTER TABLE dbo.t ALTER COLUMN name dbo.code NULL",
        "INSERT INTO dbo.t (id, name) VALUES (3, 'z')",
    )
    two.capture()
    delivered = drained(reader)
    assert labels(delivered) == ["ALTER_TABLE", 3]
    (event,) = delivered.ddl
    assert event.schema is not None
    assert event.schema.column("name").source_type == "varchar(9)"
    reader.close()


def test_a_dropped_table_is_an_event_and_one_that_is_not_captured_any_more_fails(two: World) -> None:
    reader = two.open(two.position())
    two.execute("DROP TABLE dbo.t")
    two.execute(
        "EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', @source_name = N'u', @capture_instance = N'all'"
    )
    two.execute("CREATE TABLE dbo.v (id int NOT NULL PRIMARY KEY)")
    two.enable(TableId("dbo", "v"))
    delivered = drained(reader)
    assert [str(e.operation) for e in delivered.events] == ["DROP_TABLE"]
    assert {str(t): e.code for t, e in delivered.table_errors.items()} == {"dbo.u": "table_not_captured"}
    reader.close()


@pytest.mark.matrix
@pytest.mark.parametrize("behind", ["starts", "columns"])
def test_a_table_that_is_dropped_while_the_catalogue_is_read_is_dropped(
    two: World, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    """Behind the look at the instances it seemed hidden from the account, and in front of that at its own, not captured."""
    reader = two.open(two.position())
    drained(reader)
    two.execute("ALTER TABLE dbo.u ALTER COLUMN name nvarchar(60) NULL", "INSERT INTO dbo.u (id) VALUES (1)")
    two.capture()
    starts, instances, drops = capturelog.starts, discovery._instances, ["DROP TABLE dbo.t"]

    def starts_then_drop(*arguments: Any) -> Any:
        found = starts(*arguments)
        two.execute(*(drops.pop() for _ in drops[:]))
        return found

    def drop_then_instances(*arguments: Any) -> Any:
        two.execute(*(drops.pop() for _ in drops[:]))
        return instances(*arguments)

    if behind == "starts":
        monkeypatch.setattr(capturelog, "starts", starts_then_drop)
    else:
        monkeypatch.setattr(discovery, "_instances", drop_then_instances)
    delivered = drained(reader)
    assert drops == []
    assert delivered.table_errors == {}
    assert [str(e.table) for e in delivered.events if str(e.operation) == "DROP_TABLE"] == ["dbo.t"]
    assert [change.row["id"] for change in delivered.changes if change.row] == [1]
    reader.close()


@pytest.mark.matrix
def test_a_table_that_was_gone_when_the_log_was_opened_is_missing(two: World) -> None:
    (known,) = [t for t in two.tables if t.name == "t"]
    with two.session().use("reading") as connection:
        schema = discovery.read_tables(connection, [known])[known].schema
        tables = CapturedTables({known: schema}, {})
        tables.refresh(connection, {}, is_altered=False)
    assert {str(t): e.code for t, e in tables.take_errors().items()} == {"dbo.t": "table_missing"}


@pytest.mark.matrix
def test_a_capture_job_that_stands_still_is_told(two: World) -> None:
    now = [0.0]
    reader = two.open(two.position())
    reader._health = CaptureHealth(None, clock=lambda: now[0])
    reader.pull(WIDE)
    now[0] = 611.0
    with pytest.raises(SourceUnavailableError) as raised:
        reader.pull(WIDE)
    assert raised.value.code == "capture_stalled"
    reader.close()
