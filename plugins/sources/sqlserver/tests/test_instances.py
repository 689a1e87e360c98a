"""The log's reader and capture instances: columns that are altered, and instances that come, go and begin late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from replicator.model.errors import SourceUnavailableError
from replicator.model.identity import TableIdentity
from replicator.model.isolation import TableFailedError
from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator_source_sqlserver.catalogue.tables import Accepted
from replicator_source_sqlserver.cdc import queries as capturelog
from replicator_source_sqlserver.cdc.job import CaptureHealth
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.world import World, codes, drained, labels, shown, world_of_two

T, U = TableId("dbo", "t"), TableId("dbo", "u")
SECOND = (
    "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N't', @capture_instance = N'dbo_t_2',"
    " @role_name = NULL, @supports_net_changes = 0"
)
DISABLE = "EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', @source_name = N't', @capture_instance = N'dbo_t'"


@pytest.fixture
def two(postgres: PostgresServer) -> Iterator[World]:
    """Two captured tables, t and u."""
    with world_of_two(postgres) as two:
        yield two


@pytest.mark.matrix
@pytest.mark.parametrize("is_one_transaction", [False, True])
def test_a_column_with_the_name_of_a_dropped_one_is_not_captured(two: World, *, is_one_transaction: bool) -> None:
    """Its values would be NULL from then on, whatever they are."""
    reader = two.open(two.position())
    two.execute("INSERT INTO dbo.t (id, name) VALUES (1, N'a')")
    altered = ("ALTER TABLE dbo.t DROP COLUMN name", "ALTER TABLE dbo.t ADD name nvarchar(50) NULL")
    two.execute(*([f"BEGIN TRANSACTION; {'; '.join(altered)}; COMMIT"] if is_one_transaction else altered))
    two.execute("INSERT INTO dbo.t (id, name) VALUES (2, N'b')")
    two.capture()
    delivered = drained(reader)
    assert labels(delivered) == [1]
    assert codes(delivered) == {"dbo.t": "column_not_captured"}
    two.execute(SECOND, "INSERT INTO dbo.t (id, name) VALUES (3, N'c')")
    reader._tables.accept({T: Accepted(TableIdentity(object=str(reader._tables._numbers[T])), None)})
    two.capture()
    assert [(c.row["id"], c.row["name"]) for c in drained(reader).changes if c.row] == [(3, "c")]
    reader.close()


@pytest.mark.matrix
def test_a_column_that_the_newer_instance_lacks_fails_its_table(two: World) -> None:
    """It is not a column that was dropped."""
    reader = two.open(two.position())
    two.execute(f"{SECOND}, @captured_column_list = N'id, note'")
    two.execute("INSERT INTO dbo.t (id, name) VALUES (1, N'a')")
    two.capture()
    delivered = drained(reader)
    assert labels(delivered) == []
    assert codes(delivered) == {"dbo.t": "column_not_captured"}
    reader.close()


@pytest.mark.matrix
def test_a_second_instance_that_has_not_begun_brings_its_columns_when_it_begins(two: World) -> None:
    reader = two.open(two.position())
    two.execute(
        "INSERT INTO dbo.t (id) VALUES (1)", "ALTER TABLE dbo.t ADD more int NULL", "INSERT INTO dbo.u (id) VALUES (1)"
    )
    two.capture()
    two.execute(SECOND)
    assert labels(drained(reader)) == [1, 1]
    two.execute("INSERT INTO dbo.t (id, more) VALUES (2, 7)")
    two.capture()
    delivered = drained(reader)
    assert labels(delivered) == ["ALTER_TABLE", 2]
    assert delivered.changes[-1].row == {"id": 2, "name": None, "note": None, "more": 7}
    assert not delivered.table_errors
    reader.close()


@pytest.mark.matrix
def test_a_column_that_is_altered_in_front_of_a_second_instance_is_altered_there(two: World) -> None:
    """Otherwise what comes between would have to be in the type before."""
    reader = two.open(two.position())
    two.execute(
        "ALTER TABLE dbo.t ALTER COLUMN name nvarchar(100) NULL",
        "INSERT INTO dbo.t (id) VALUES (1)",
        "ALTER TABLE dbo.t ADD more int NULL",
        "INSERT INTO dbo.t (id) VALUES (2)",
        SECOND,
        "INSERT INTO dbo.t (id) VALUES (3)",
    )
    two.capture()
    assert labels(drained(reader)) == ["ALTER_TABLE", 1, 2, "ALTER_TABLE", 3]
    reader.close()


@pytest.mark.matrix
def test_a_second_instance_brings_its_columns_though_the_first_was_disabled(two: World) -> None:
    """With the first goes what it said of altered tables."""
    reader = two.open(two.position())
    assert labels(drained(reader)) == []
    two.execute("ALTER TABLE dbo.t ADD more int NULL", SECOND, DISABLE, "INSERT INTO dbo.t (id, more) VALUES (2, 7)")
    two.capture()
    delivered = drained(reader)
    assert labels(delivered) == ["ALTER_TABLE", 2]
    assert delivered.changes[-1].row == {"id": 2, "name": None, "note": None, "more": 7}
    reader.close()


@pytest.mark.matrix
def test_a_table_that_is_accepted_in_front_of_its_second_instance_is_read_from_there(two: World) -> None:
    """It is read again, and that read sees what only the first instance has."""
    reader = two.open(two.position())
    two.execute("ALTER TABLE dbo.t ADD more int NULL", "INSERT INTO dbo.u (id) VALUES (0)")
    two.capture()
    assert codes(drained(reader)) == {"dbo.t": "column_not_captured"}
    two.execute("INSERT INTO dbo.t (id) VALUES (1)", "INSERT INTO dbo.u (id) VALUES (1)")
    two.capture()
    two.execute(SECOND)
    reader._tables.accept({T: Accepted(TableIdentity(object=str(reader._tables._numbers[T])), None)})
    delivered = drained(reader)
    assert shown(delivered) == [("u", "INSERT", 1)]
    assert not delivered.table_errors
    two.execute("INSERT INTO dbo.t (id, more) VALUES (2, 7)")
    two.capture()
    delivered = drained(reader)
    assert [c.row for c in delivered.changes] == [{"id": 2, "name": None, "note": None, "more": 7}]
    assert not delivered.table_errors
    reader.close()


@pytest.mark.matrix
def test_a_column_that_came_since_the_table_was_described_is_told_by_the_log(two: World) -> None:
    """The host accepted the table as it was described; rows with one column more would contradict that."""
    context = SourceContext(replicator="shop", uuid="u1", epoch=1)
    with closing(SqlServerSource(two.connector.config, context)) as source:
        found = source.describe([T])
        reader = source.open_log(source.prepare([T], is_first=True), {T: found[T].schema})
        two.execute("ALTER TABLE dbo.t ADD more int NULL", SECOND)
        assert source.describe([T])[T].schema != found[T].schema
        source.accept({T: found[T].identity})
        two.execute("INSERT INTO dbo.t (id, more) VALUES (1, 7)")
        two.capture()
        delivered = drained(reader)
        assert labels(delivered) == ["ALTER_TABLE", 1]
        assert delivered.changes[0].row == {"id": 1, "name": None, "note": None, "more": 7}
        assert not delivered.table_errors
        reader.close()


@pytest.mark.matrix
def test_a_column_that_came_while_its_table_had_failed_is_told_when_the_table_is_accepted(two: World) -> None:
    """The log has passed the beginning of the instance that brought it."""
    context = SourceContext(replicator="shop", uuid="u1", epoch=1)
    with closing(SqlServerSource(two.connector.config, context)) as source:
        schemas = {table: d.schema for table, d in source.describe([T, U]).items()}
        reader = source.open_log(source.prepare([T, U], is_first=True), schemas)
        two.execute("ALTER TABLE dbo.t ADD more int NULL", "INSERT INTO dbo.u (id) VALUES (1)")
        two.capture()
        assert codes(drained(reader)) == {"dbo.t": "column_not_captured"}
        found = source.describe([T])
        two.execute(SECOND, "INSERT INTO dbo.u (id) VALUES (2)")
        two.capture()
        assert labels(drained(reader)) == [2]
        source.accept({T: found[T].identity})
        two.execute("INSERT INTO dbo.t (id, more) VALUES (3, 7)")
        two.capture()
        delivered = drained(reader)
        assert labels(delivered) == ["ALTER_TABLE", 3]
        assert delivered.changes[0].row == {"id": 3, "name": None, "note": None, "more": 7}
        reader.close()


@pytest.mark.matrix
def test_a_change_table_that_was_altered_far_behind_the_page_is_read_as_it_is(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator_source_sqlserver.cdc.log._COMMITS_MAX", 2)
    reader = two.open(two.position())
    drained(reader)
    two.execute(*(f"INSERT INTO dbo.t (id, name) VALUES ({n}, N'{n}')" for n in range(5)))
    two.execute("ALTER TABLE dbo.t ALTER COLUMN name int NULL", "INSERT INTO dbo.t (id, name) VALUES (5, 5)")
    two.capture()
    delivered = drained(reader)
    assert labels(delivered) == [0, 1, 2, 3, 4, "ALTER_TABLE", 5]
    assert [c.row["name"] for c in delivered.changes if c.row] == ["0", "1", "2", "3", "4", 5]
    reader.close()


@pytest.mark.matrix
def test_a_transaction_that_alters_a_table_and_changes_rows_is_two(two: World) -> None:
    reader = two.open(two.position())
    two.execute(
        "BEGIN TRANSACTION; INSERT INTO dbo.t (id) VALUES (1); ALTER TABLE dbo.t DROP COLUMN name; INSERT INTO dbo.t (id)"
        " VALUES (2); COMMIT"
    )
    two.capture()
    delivered = drained(reader)
    assert labels(delivered) == ["ALTER_TABLE", 1, 2]
    assert len(delivered.transactions) == 2
    reader.close()


@pytest.mark.matrix
@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (flag, id)"])
def test_a_deleted_row_without_its_bit_fails_a_table_that_needs_it_to_find_the_row(two: World, key: str) -> None:
    two.execute(
        "DROP TABLE IF EXISTS dbo.bits",
        f"CREATE TABLE dbo.bits (id int NOT NULL, flag bit NOT NULL{key})",
        "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'bits', @role_name = NULL,"
        " @supports_net_changes = 0",
    )
    two.capture()
    reader = two.open(two.position(), [TableId("dbo", "bits")])
    two.execute("INSERT INTO dbo.bits VALUES (1, 0), (2, 1)")
    two.capture()
    assert labels(drained(reader)) == [1, 2]
    two.execute("DELETE FROM dbo.bits WHERE id = 2")
    two.capture()
    with pytest.raises(TableFailedError) as raised:
        drained(reader)
    error = raised.value.error
    assert error.code == "corrupt_rows"
    reader.close()
    if key:
        assert "a primary key that has no bit" in str(error.action)
        return
    assert "replicator snapshot NAME TABLE" in str(error.action)
    two.execute(str(error.action).partition("or: ")[2].partition(" Then")[0])
    two.capture()
    again = two.open(two.position(), [TableId("dbo", "bits")])
    two.execute("DELETE FROM dbo.bits WHERE id = 1")
    two.capture()
    assert [change.before for change in drained(again).changes] == [{"id": 1, "flag": False}]
    again.close()


@pytest.mark.matrix
def test_a_table_whose_changes_cannot_be_decoded_fails_alone_though_more_rows_are_on_their_way(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection runs one statement at a time: what failed is ended before the catalogue is asked."""
    monkeypatch.setattr("replicator_source_sqlserver.snapshot.blocks.FIRST_ROWS", 2)
    two.execute("CREATE TABLE dbo.bits (id int NOT NULL, flag bit NOT NULL, name char(2000) NOT NULL)")
    two.enable(TableId("dbo", "bits"))
    two.execute(
        f"INSERT INTO dbo.bits VALUES {', '.join(f'({n}, 1, REPLICATE(N{chr(39)}x{chr(39)}, 2000))' for n in range(900))}"
    )
    two.capture()
    reader = two.open(two.position(), [TableId("dbo", "bits")])
    two.execute("DELETE FROM dbo.bits")
    two.capture()
    with pytest.raises(TableFailedError) as raised:
        drained(reader)
    assert raised.value.error.code == "corrupt_rows"
    reader.close()


def test_a_pause_of_the_reader_is_none_of_the_capture_job(two: World) -> None:
    now, beats = [0.0], list[float]()

    def beat() -> int:
        beats.append(now[0])
        return len(beats)

    health, session = CaptureHealth(beat, clock=lambda: now[0]), two.session()

    def look(at: float, head: bytes) -> None:
        now[0] = at
        with session.use("looking") as connection:
            health.see(connection, head)

    look(0.0, b"1")
    look(1.0, b"2")
    look(300.0, b"2")
    assert beats == [0.0, 300.0]
    look(359.0, b"2")
    with pytest.raises(SourceUnavailableError) as raised:
        look(361.0, b"2")
    assert raised.value.code == "capture_stalled"
    session.close()


def test_a_mark_table_that_nobody_captures_is_told_when_a_mark_waits(two: World) -> None:
    reader = two.open(two.position())
    two.execute("INSERT INTO dbo.u (id) VALUES (1)")
    two.capture()
    assert shown(drained(reader)) == [("u", "INSERT", 1)]
    two.board.add()
    two.execute("INSERT INTO dbo.u (id) VALUES (2)")
    two.capture()
    with pytest.raises(SourceUnavailableError) as raised:
        drained(reader)
    assert raised.value.code == "marks_not_captured"
    reader.close()


def after_counting(monkeypatch: pytest.MonkeyPatch, do: Any) -> None:
    counts = capturelog.counts

    def count_then_do(*arguments: Any) -> Mapping[tuple[int, bytes], int]:
        found = counts(*arguments)
        do()
        return found

    monkeypatch.setattr(capturelog, "counts", count_then_do)


@pytest.mark.matrix
def test_a_change_table_that_is_altered_while_it_is_read_is_read_again(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = two.position()
    two.execute("INSERT INTO dbo.t (id, name) VALUES (1, N'5')")
    two.capture()
    reader = two.open(position)

    def alter() -> None:
        two.execute("ALTER TABLE dbo.t ALTER COLUMN name int NULL")
        two.capture()

    with monkeypatch.context() as patch:
        after_counting(patch, alter)
        with pytest.raises(SourceUnavailableError) as raised:
            drained(reader)
    assert raised.value.code == "instance_changed"
    reader.close()
    again = two.open(position)
    assert [c.row["name"] for c in drained(again).changes if c.row] == [5]
    again.close()


@pytest.mark.matrix
def test_an_instance_that_is_disabled_before_its_changes_are_counted_is_noticed(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = two.open(two.position())
    two.execute("INSERT INTO dbo.t (id) VALUES (1)", "INSERT INTO dbo.u (id) VALUES (1)")
    two.capture()
    counts = capturelog.counts

    def disable_then_count(*arguments: Any) -> Any:
        two.execute(DISABLE)
        return counts(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(capturelog, "counts", disable_then_count)
        with pytest.raises(SourceUnavailableError) as raised:
            drained(reader)
    assert raised.value.code == "instance_changed"
    reader.close()
