"""What cannot be read of one table's part of the log is that table's error; the others continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from replicator.model.errors import CorruptStreamError, TableError
from replicator.model.events import ROW, DDLOperation
from replicator.model.schema import TableId
from replicator.plugins.kit.arrow import Longs
from replicator.plugins.source import LogBatch, PullLimits
from replicator_source_postgresql.log import pgoutput
from replicator_source_postgresql.source import PostgresqlSource
from replicator_source_postgresql.wire import Frames, MalformedError, read_tuples
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase

MakeSource = Callable[..., PostgresqlSource]

LIMITS = PullLimits(rows=10_000, bytes=64 << 20, wait_s=1.0)
NAMES = ("a", "bad", "c")
WRITTEN = (
    # All three tables, in one transaction and then in three.
    "BEGIN; " + "; ".join(f"INSERT INTO {name} VALUES ({id_}, '2024-05-0{id_}')" for id_ in (1, 2) for name in NAMES)
    + "; COMMIT",
    *(f"INSERT INTO {name} VALUES (3, '2024-05-03')" for name in NAMES),
)  # fmt: skip
DAYS_FOR_DATES = "UPDATE pg_type SET typoutput = 'int4out' WHERE oid = 'date'::regtype"
"""In this database, the text of a date is a number from here on."""


@pytest.fixture
def database(any_database: ScratchDatabase) -> ScratchDatabase:
    any_database.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v {'date' if name == 'bad' else 'text'})" for name in NAMES)
    )
    return any_database


@pytest.fixture
def raw_database(any_postgres: PostgresServer) -> Iterator[ScratchDatabase]:
    """Without an encoding: names and prefixes in the log may be any bytes."""
    options = "TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    with any_postgres.database(options=options) as database:
        database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in NAMES))
        yield database


def read(
    source: PostgresqlSource, database: ScratchDatabase, *statements: str, limits: PullLimits = LIMITS
) -> list[LogBatch]:
    """What the log brings for these statements."""
    tables = [TableId("public", name) for name in NAMES]
    schemas = {table: found.schema for table, found in source.describe(tables).items()}
    reader = source.open_log(source.prepare(tables, is_first=True), schemas)
    database.execute(*statements)
    mark, batches = source.mark(), list[LogBatch]()
    try:
        while True:
            batches.append(reader.pull(limits))
            if mark in batches[-1].marks:
                return batches
    finally:
        reader.close()


def ids(batches: Sequence[LogBatch], name: str) -> list[int]:
    changes = [c for batch in batches for c in batch.changes if c.schema.table.name == name]
    return [row["id"] for c in changes for row in c.rows.column(ROW).to_pylist()]


def errors_of(batches: Sequence[LogBatch]) -> dict[str, TableError]:
    return {table.name: error for batch in batches for table, error in batch.table_errors.items()}


def check(batches: Sequence[LogBatch], *words: str) -> None:
    assert (ids(batches, "a"), ids(batches, "bad"), ids(batches, "c")) == ([1, 2, 3], [], [1, 2, 3])
    errors = errors_of(batches)
    assert list(errors) == ["bad"]
    assert (errors["bad"].code, errors["bad"].table) == ("corrupt_rows", "public.bad")
    assert "replicator snapshot NAME TABLE" in (errors["bad"].action or "")
    assert all(word in errors["bad"].message for word in words), errors["bad"]


def test_a_value_that_is_none_of_its_type_is_its_tables_error(
    database: ScratchDatabase, make_source: MakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    batches = read(make_source(database), database, DAYS_FOR_DATES, *WRITTEN)
    check(batches, "column v", "date")
    days = database.execute("SELECT v - '2000-01-01' FROM bad ORDER BY id")[0][0]
    assert str(days) not in str(errors_of(batches)["bad"])
    # The traceback goes to the log, without the value.
    assert "Traceback" in caplog.text
    assert "values.py" in caplog.text
    assert str(days) not in caplog.text


def test_an_error_of_a_table_is_told_once_and_its_later_rows_are_skipped(
    database: ScratchDatabase, make_source: MakeSource
) -> None:
    batches = read(make_source(database), database, DAYS_FOR_DATES, *WRITTEN, limits=replace(LIMITS, rows=1))
    check(batches, "column v", "date")
    assert len([batch for batch in batches if batch.changes]) > 3
    assert len([batch for batch in batches if batch.table_errors]) == 1


def test_rows_with_another_number_of_columns_are_their_tables_error(
    database: ScratchDatabase, make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("ALTER TABLE bad ADD w int")

    def reading(frames: Frames, offsets: Longs, limits: Longs, column_count: int) -> object:
        return read_tuples(frames, offsets, limits, column_count + (column_count == 3))

    monkeypatch.setattr(pgoutput, "read_tuples", reading)
    check(read(make_source(database), database, *WRITTEN), "4 columns")


def test_what_does_not_keep_to_the_protocol_stops_the_reader(
    database: ScratchDatabase, make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reading(*_: object) -> object:
        raise MalformedError("a value runs over the end of its message")

    monkeypatch.setattr(pgoutput, "read_tuples", reading)
    with pytest.raises(CorruptStreamError):
        read(make_source(database), database, *WRITTEN)


# -- names


def test_a_table_with_a_name_that_is_no_text_is_none_of_ours(
    raw_database: ScratchDatabase, make_source: MakeSource
) -> None:
    raw_database.execute("CREATE PUBLICATION mine FOR ALL TABLES")
    source = make_source(raw_database, publication="mine")
    batches = read(
        source,
        raw_database,
        "DO $$ BEGIN EXECUTE E'CREATE TABLE \"caf\\xe9\" (id int PRIMARY KEY)'; END $$",
        "DO $$ BEGIN EXECUTE E'INSERT INTO \"caf\\xe9\" VALUES (1)'; END $$",
        "INSERT INTO a VALUES (1, 'x')",
    )
    assert ids(batches, "a") == [1]
    assert not errors_of(batches)


def test_a_table_that_gets_such_a_name_was_renamed(raw_database: ScratchDatabase, make_source: MakeSource) -> None:
    batches = read(
        make_source(raw_database),
        raw_database,
        "INSERT INTO bad VALUES (1, 'x')",
        "DO $$ BEGIN EXECUTE E'ALTER TABLE bad RENAME TO \"caf\\xe9\"'; END $$",
        "DO $$ BEGIN EXECUTE E'INSERT INTO \"caf\\xe9\" VALUES (2)'; END $$",
        "INSERT INTO a VALUES (1, 'x')",
    )
    assert (ids(batches, "a"), ids(batches, "bad")) == ([1], [1])
    events = [(event.operation, event.table.name) for batch in batches for event in batch.ddl]
    assert events == [(DDLOperation.RENAME_TABLE, "bad")]


def test_a_column_with_such_a_name_is_its_tables_error(raw_database: ScratchDatabase, make_source: MakeSource) -> None:
    rows = [s.replace("'2024-05-0", "'x") for s in WRITTEN]
    add = "DO $$ BEGIN EXECUTE E'ALTER TABLE bad ADD \"caf\\xe9\" int'; END $$"
    check(read(make_source(raw_database), raw_database, add, *rows), "column", "UTF-8")


def test_a_message_of_others_with_such_a_prefix_is_passed_over(
    raw_database: ScratchDatabase, make_source: MakeSource
) -> None:
    batches = read(
        make_source(raw_database),
        raw_database,
        "SELECT pg_logical_emit_message(true, E'caf\\xe9', E'\\xe9'), pg_logical_emit_message(false, E'caf\\xe9', 'x')",
        "INSERT INTO a VALUES (1, 'x')",
    )
    assert ids(batches, "a") == [1]
