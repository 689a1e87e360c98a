"""What the server says when it ends the log or refuses a statement reaches the user: each case is provoked on a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from replicator.model.errors import (
    AccessDeniedError,
    ConfigError,
    FatalError,
    LogGapError,
    OffsetExpiredError,
    ReplicatorError,
    SourceUnavailableError,
    TableError,
)
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins.source import LogReader, PullLimits
from replicator_source_postgresql.catalogue.queries import COLUMNS_QUERY
from replicator_source_postgresql.connecting.connection import SameServer
from replicator_source_postgresql.connecting.errors import translate
from replicator_source_postgresql.log.feed import KEEPALIVE_SIZE, Feed
from replicator_source_postgresql.lsn import lsn_from_text
from replicator_source_postgresql.source import PostgresqlSource
from replicator_source_postgresql.wire import Frames
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testing.defaults import chunk_request
from replicator_testing.waiting import wait_until

MakeSource = Callable[..., PostgresqlSource]
A, B = TableId("public", "a"), TableId("public", "b")
LIMITS = PullLimits(rows=1000, bytes=1 << 24, wait_s=1.0)
# Only who got no answer at all is sent to look for the server.
UNANSWERED = "Check that the server runs"


@pytest.fixture
def tables(any_database: ScratchDatabase) -> ScratchDatabase:
    any_database.execute("CREATE TABLE a (id int PRIMARY KEY, n int)", "CREATE TABLE b (id int PRIMARY KEY, v bytea)")
    return any_database


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may change and stop."""
    with PostgresServer.embedded() as server:
        yield server


def opened(source: PostgresqlSource, *tables: TableId) -> tuple[LogReader, Offset]:
    offset = source.prepare(tables, is_first=True)
    return source.open_log(offset, {t: d.schema for t, d in source.describe(tables).items()}), offset


def ending(reader: LogReader) -> tuple[ReplicatorError, int]:
    """What ends the log, and how many rows came before."""
    rows = 0
    try:
        for _ in range(20):
            rows += sum(changes.rows.num_rows for changes in reader.pull(LIMITS).changes)
    except ReplicatorError as error:
        return error, rows
    finally:
        reader.close()
    pytest.fail("nothing ended the log")


def walsender(database: ScratchDatabase) -> int | None:
    rows = database.execute(
        f"SELECT active_pid FROM pg_replication_slots WHERE database = '{database.name}' AND active_pid IS NOT NULL"
    )
    return rows[0][0] if rows else None


# -- the log


def test_a_dropped_publication_is_told_and_what_came_before_it_is_delivered(
    tables: ScratchDatabase, source: PostgresqlSource
) -> None:
    if tables.server.major_version >= 18:
        pytest.skip("PostgreSQL 18 passes over a missing publication with a warning; the catalogue shows it")
    reader, offset = opened(source, A)
    name = source.identity()["publication"]
    tables.execute("INSERT INTO a VALUES (1, 1)", f'DROP PUBLICATION "{name}"', "INSERT INTO a VALUES (2, 2)")
    error, rows = ending(reader)
    assert isinstance(error, LogGapError)
    assert error.code == "slot_or_publication_missing"
    assert f'publication "{name}" does not exist (SQLSTATE 42704' in error.message
    assert "--restart" in str(error)
    assert rows == 1
    # Made again it does not help: the log before it does not know it.
    source.prepare([A], is_first=False)
    again, _ = ending(source.open_log(offset, {t: d.schema for t, d in source.describe([A]).items()}))
    assert again.code == "slot_or_publication_missing"


def test_an_error_that_follows_changes_at_once_does_not_take_them_along(
    tables: ScratchDatabase, source: PostgresqlSource
) -> None:
    """The server ends the stream while the reader lets changes gather."""
    offset = source.prepare([A], is_first=True)
    slot, publication = source.identity()["slot"], source.identity()["publication"]
    where = f"FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE slot_name = '{slot}'"

    def terminate(_seconds: float) -> None:
        tables.execute(f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'")
        wait_until(lambda: walsender(tables) is None, "the WAL sender has ended")

    feed = Feed.open(
        conninfo_to_dict(tables.dsn),
        SameServer(),
        slot=slot,
        publication=publication,
        start_lsn=lsn_from_text(offset.value["lsn"]),
        is_raw=False,
        pause=terminate,
    )
    tables.execute("INSERT INTO a VALUES (1, 1)")
    (end,) = tables.execute("SELECT pg_current_wal_lsn()")[0]
    wait_until(lambda: tables.execute(f"SELECT sent_lsn >= '{end}' {where}") == [(True,)], "the change was sent")
    with closing(feed):
        frames = Frames.join(feed.receive(count_max=1000, bytes_max=1 << 20, wait_s=60))
    kinds = [
        chr(frames.data[start + 25])
        for start, end in zip(frames.starts, frames.ends, strict=True)
        if end - start > KEEPALIVE_SIZE
    ]
    assert kinds == ["B", "R", "I", "C"]


def test_an_ended_wal_sender_says_so(tables: ScratchDatabase, source: PostgresqlSource) -> None:
    reader, _ = opened(source, A)
    tables.execute(f"SELECT pg_terminate_backend({walsender(tables)})")
    error, _ = ending(reader)
    assert isinstance(error, SourceUnavailableError)
    assert "terminating connection due to administrator command (SQLSTATE 57P01" in error.message
    assert UNANSWERED not in str(error)


def test_an_error_while_a_row_is_decoded_is_the_servers_and_names_the_position(
    tables: ScratchDatabase, make_source: MakeSource
) -> None:
    if tables.server.major_version < 15:
        pytest.skip("row filters came with PostgreSQL 15")
    tables.execute("CREATE PUBLICATION divides FOR TABLE a WHERE (1 / id > -10)")
    source = make_source(tables, publication="divides")
    reader, _ = opened(source, A)
    tables.execute("INSERT INTO a VALUES (1, 1)", "INSERT INTO a VALUES (0, 0)")
    error, rows = ending(reader)
    assert isinstance(error, FatalError)
    assert error.code == "source_error"
    assert "division by zero (SQLSTATE 22012, at " in error.message
    assert rows == 1
    # The same in a chunk is about the one table that was read.
    with pytest.raises(TableError) as refused:
        source.read_chunk(chunk_request(source.describe([A])[A].schema))
    assert refused.value.code == "source_error"
    assert "division by zero" in refused.value.message


@pytest.mark.matrix
def test_a_row_too_large_to_be_sent_is_told_with_its_transaction_and_table(
    tables: ScratchDatabase, source: PostgresqlSource
) -> None:
    reader, _ = opened(source, A, B)
    tables.execute("INSERT INTO a VALUES (1, 1)")
    # bytea takes two characters a byte as text.
    with tables.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO b VALUES (1, convert_to(repeat('x', 550000000), 'UTF8'))")
        ((xid,),) = connection.execute("SELECT pg_current_xact_id()::text").fetchall()
    error, rows = ending(reader)
    assert isinstance(error, FatalError)
    assert error.code == "row_too_large"
    assert "invalid memory alloc request size 1100000003 (SQLSTATE XX000, at " in error.message
    assert f"in transaction {xid}, a row of public.b" in error.message
    assert "--restart" in str(error)
    assert rows == 1


def test_what_is_dropped_while_a_default_is_spelled_passes(any_database: ScratchDatabase) -> None:
    any_database.execute(
        "CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TABLE a (id int PRIMARY KEY, n int DEFAULT one())",
    )
    ((oid,),) = any_database.execute("SELECT 'a'::regclass::int8")
    with any_database.connect(autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        any_database.execute("DROP FUNCTION one() CASCADE")
        with pytest.raises(psycopg.Error) as dropped:
            connection.execute(COLUMNS_QUERY, ([oid],))
    error: ReplicatorError = translate(dropped.value, doing="reading the catalogue")
    assert isinstance(error, SourceUnavailableError)
    assert "cache lookup failed for function" in error.message


def test_a_slot_that_lost_its_log_while_it_was_read(make_source: MakeSource, own_server: PostgresServer) -> None:
    own_server.configure({"max_slot_wal_keep_size": "1MB", "wal_keep_size": "0"})
    with own_server.database() as database:
        database.execute("CREATE TABLE a (id int PRIMARY KEY, n int)", "CREATE TABLE fill (v text)")
        source = make_source(database)
        reader, offset = opened(source, A)

        def has_lost() -> bool:
            database.execute(
                "INSERT INTO fill SELECT repeat('x', 1000) FROM generate_series(1, 2000)",
                "SELECT pg_switch_wal()",
                "CHECKPOINT",
            )
            return walsender(database) is None

        wait_until(has_lost, "the server gives the slot up")
        error, _ = ending(reader)
        assert isinstance(error, SourceUnavailableError)
        assert "terminating" in error.message
        with pytest.raises(OffsetExpiredError) as lost:
            source.open_log(offset, {})
        assert lost.value.code == "slot_lost"
        assert "--restart" in str(lost.value)


def test_a_slot_that_was_idle_for_too_long(make_source: MakeSource, own_server: PostgresServer) -> None:
    own_server.configure({"idle_replication_slot_timeout": "1s"})
    with own_server.database() as database:
        database.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
        source = make_source(database)
        reader, offset = opened(source, A)
        reader.close()

        def is_lost() -> bool:
            database.execute("CHECKPOINT")
            rows = database.execute("SELECT invalidation_reason FROM pg_replication_slots")
            return rows == [("idle_timeout",)]

        wait_until(is_lost, "the server gives the slot up")
        with pytest.raises(OffsetExpiredError, match="idle_timeout"):
            source.open_log(offset, {})


def test_a_slot_that_somebody_reads(tables: ScratchDatabase, source: PostgresqlSource, make_source: MakeSource) -> None:
    reader, offset = opened(source, A)
    with pytest.raises(SourceUnavailableError) as active:
        make_source(tables).open_log(offset, {})
    assert active.value.code == "slot_active"
    assert UNANSWERED not in str(active.value)
    reader.close()


# -- connecting


def test_a_server_that_answers_is_not_looked_for(
    tables: ScratchDatabase, make_source: MakeSource, source_of: MakeSource
) -> None:
    role = f"{tables.name}_r"
    tables.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")
    with pytest.raises(SourceUnavailableError) as full:
        make_source(tables, user=role).list_tables()
    assert f'too many connections for role "{role}"' in full.value.message
    assert UNANSWERED not in str(full.value)
    tables.execute(f"ALTER ROLE {role} NOLOGIN CONNECTION LIMIT -1")
    with pytest.raises(AccessDeniedError, match="is not permitted to log in"):
        make_source(tables, user=role).list_tables()
    other = f"{tables.name}_o"
    tables.execute(f"CREATE DATABASE {other} ALLOW_CONNECTIONS false")
    try:
        with pytest.raises(SourceUnavailableError) as closed:
            source_of(tables.server, other).list_tables()
        assert "not currently accepting connections" in closed.value.message
        assert UNANSWERED not in str(closed.value)
    finally:
        tables.execute(f"DROP DATABASE {other}", f"DROP ROLE {role}")


def test_a_server_that_does_not_answer_is_looked_for(tables: ScratchDatabase, make_source: MakeSource) -> None:
    with pytest.raises(SourceUnavailableError) as away:
        make_source(tables, port=1).list_tables()
    assert UNANSWERED in str(away.value)


# -- one table's privilege


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("REVOKE SELECT ON a FROM {role}", "permission denied for table a"),
        ("REVOKE USAGE ON SCHEMA public FROM PUBLIC, {role}", "permission denied for schema public"),
        ("ALTER TABLE a ENABLE ROW LEVEL SECURITY", "row-level security"),
    ],
)
def test_a_read_that_one_tables_privileges_forbid_is_an_error_of_that_table(
    tables: ScratchDatabase, make_source: MakeSource, statement: str, words: str
) -> None:
    role = f"{tables.name}_r"
    tables.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT USAGE ON SCHEMA public TO {role}",
        f"GRANT SELECT ON a, b TO {role}",
    )
    try:
        source = make_source(tables, user=role)
        schema = source.describe([A])[A].schema
        source.read_chunk(chunk_request(schema))
        tables.execute(statement.format(role=role))
        with pytest.raises(TableError) as denied:
            source.read_chunk(chunk_request(schema))
        assert (denied.value.code, denied.value.table) == ("access_denied", "public.a")
        assert words in denied.value.message
        assert "42501" in denied.value.message
        source.close()
    finally:
        tables.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_column_that_is_dropped_while_the_catalogue_is_read_is_not_one_that_we_may_not_read(
    any_database: ScratchDatabase,
) -> None:
    """The server answers questions about privileges from the catalogue as it is, not as the transaction sees it."""
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    with any_database.connect(autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        ((oid,),) = connection.execute("SELECT 't'::regclass::oid::int8").fetchall()
        any_database.execute("ALTER TABLE t DROP COLUMN a")
        rows = connection.execute(COLUMNS_QUERY, ([oid],)).fetchall()
        assert [(row[1], row[8]) for row in rows] == [("id", True), ("a", True)]


def test_settings_that_something_between_us_and_the_server_drops_are_noticed(
    database: ScratchDatabase, monkeypatch: pytest.MonkeyPatch, make_source: Callable[..., PostgresqlSource]
) -> None:
    """As PgBouncer does with `ignore_startup_parameters = options`."""

    def without_options(*, options: str, **parameters: Any) -> psycopg.Connection[Any]:
        return dropped(**parameters)

    dropped = psycopg.connect
    source = make_source(database)
    monkeypatch.setattr(psycopg, "connect", without_options)
    with pytest.raises(ConfigError, match=r"\(.*search_path.*lock_timeout.*\): a connection pooler") as refused:
        source.list_tables()
    monkeypatch.undo()
    assert refused.value.code == "connection_pooler"
    source.list_tables()
