"""A value that no text can hold fails its table, also where the database knows no encoding: the others continue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from replicator.model.errors import Severity, TableError
from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator.state.records import Stage
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.journals.captured import Captured
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testing.defaults import chunk_request

Make = Callable[..., Captured]

GOOD, BAD, KEY = (TableId("public", name) for name in ("good", "bad", "key"))
NOT_UTF8: Final = "E'\\xff'"


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[ScratchDatabase]:
    """A database without an encoding."""
    options = "TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    with postgres.database(options=options) as database:
        database.execute(
            'CREATE TABLE good (id int PRIMARY KEY, "größe" text)',
            "CREATE TABLE bad (id int PRIMARY KEY, v text)",
            "CREATE TABLE key (id text PRIMARY KEY, v int)",
            "INSERT INTO good VALUES (1, 'é'), (2, '')",
            "INSERT INTO bad VALUES (1, '日本')",
            "INSERT INTO key VALUES ('ü', 1)",
        )
        yield database


@pytest.fixture
def make(tmp_path: Path, database: ScratchDatabase) -> Iterator[Make]:
    made: list[Captured] = []

    def of(*tables: TableId, **settings: Any) -> Captured:
        server = database.server

        def source(context: SourceContext) -> PostgresqlSource:
            config = PostgresqlConfig(
                host=server.host, port=server.port, user=server.user, database=database.name, **settings
            )
            return PostgresqlSource(config, context)

        folder = tmp_path / f"capture{len(made)}"
        folder.mkdir()
        made.append(Captured(folder=folder, name=database.name, make_source=source, tables=list(tables)))
        return made[-1]

    yield of
    for captured in made:
        captured.close()


def test_bytes_that_are_no_text_fail_their_table_alone(database: ScratchDatabase, make: Make) -> None:
    captured = make(GOOD, BAD, KEY)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            f"INSERT INTO bad VALUES (2, {NOT_UTF8})",
            f"INSERT INTO key VALUES ({NOT_UTF8}, 2)",
            "INSERT INTO good VALUES (3, 'ñ')",
            "UPDATE good SET id = 4 WHERE id = 2",
        )
        captured.catch_up(running)
        assert {captured.stage(BAD), captured.stage(KEY)} == {Stage.FAILED}
        assert captured.rows(GOOD) == Counter([(1, "é"), (4, ""), (3, "ñ")])
        assert captured.stage(GOOD) is Stage.STREAMING
    error = captured.record(BAD).error
    assert error is not None
    assert (error.code, "Column v" in error.message) == ("unrepresentable_value", True)


@pytest.mark.matrix
def test_bytes_that_are_no_text_may_become_null_in_log_and_snapshot(database: ScratchDatabase, make: Make) -> None:
    database.execute(f"INSERT INTO bad VALUES (2, {NOT_UTF8})")
    captured = make(BAD, unrepresentable="null")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(f"INSERT INTO bad VALUES (3, {NOT_UTF8}), (4, 'é')")
        captured.catch_up(running)
    assert captured.rows(BAD) == Counter([(1, "日本"), (2, None), (3, None), (4, "é")])


ODD_BYTES = {
    "a table": (r'CREATE TABLE "t\xff" (id int PRIMARY KEY)',),
    "a schema": (r'CREATE SCHEMA "s\xff"', r'CREATE TABLE "s\xff".t (id int PRIMARY KEY)'),
    "a partition": (r'CREATE TABLE "p\xff" PARTITION OF parts DEFAULT',),
    "a comment": (r"COMMENT ON TABLE bad IS ''c\xff''", r"COMMENT ON COLUMN bad.v IS ''c\xff''"),
    "an index": (r'ALTER INDEX bad_pkey RENAME TO "i\xff"',),
    "a label": (r"CREATE TYPE e AS ENUM (''l\xff'')", "ALTER TABLE bad ADD w e"),
    "another's publication": (r'CREATE TABLE "t\xff" (id int PRIMARY KEY)', r'CREATE PUBLICATION other FOR TABLE bad, "t\xff"'),
}  # fmt: skip
UNREADABLE = {
    "a column": (r'ALTER TABLE bad ADD "c\xff" int', r"the column c\xff"),
    "a key": (r'ALTER TABLE bad RENAME id TO "c\xff"', r"the column c\xff"),
    "a type": (r'CREATE DOMAIN "d\xff" AS text; ALTER TABLE bad ADD w "d\xff"', r'the type public."d\xff"'),
    "a filter": (
        r"ALTER TABLE bad REPLICA IDENTITY FULL; CREATE PUBLICATION own FOR TABLE good, bad WHERE (v <> ''\xff'')",
        r"the publication's row filter (v <> '\xff'::text)",
    ),
}


def execute_bytes(database: ScratchDatabase, *statements: str) -> None:
    r"""Run statements in which `\xff` is that byte."""
    database.execute(*(f"DO $$BEGIN EXECUTE E'{statement}'; END$$" for statement in statements))


def source_of(database: ScratchDatabase, **settings: Any) -> PostgresqlSource:
    server = database.server
    config = PostgresqlConfig(host=server.host, port=server.port, user=server.user, database=database.name, **settings)
    return PostgresqlSource(config, SourceContext(replicator="shop", uuid="u1", epoch=1))


@pytest.mark.matrix
@pytest.mark.parametrize("what", ODD_BYTES)
def test_names_that_are_not_utf8_and_in_no_statement_stop_nothing(
    database: ScratchDatabase, make: Make, what: str
) -> None:
    parts = TableId("public", "parts")
    database.execute("CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    settings = {"publication": "other"} if "publication" in what else {}
    if settings:
        database.execute("ALTER TABLE bad REPLICA IDENTITY FULL")
    execute_bytes(database, *ODD_BYTES[what])
    if settings:
        database.execute(
            "ALTER PUBLICATION other ADD TABLE good, parts",
            "ALTER PUBLICATION other SET (publish_via_partition_root = true)",
        )
    source = source_of(database, **settings)
    names = {str(summary.table): summary.left_out for summary in source.list_tables()}
    assert {"public.good", "public.bad"} <= {name for name, left_out in names.items() if left_out is None}
    assert [left_out for name, left_out in names.items() if "\\xff" in name] == [
        "its name, or that of its schema, is not UTF-8"
    ] * sum("CREATE TABLE" in s for s in ODD_BYTES[what])
    assert [p for p in source.check([GOOD, BAD, parts]) if p.severity is Severity.BLOCKING] == []
    source.close()
    captured = make(GOOD, BAD, parts, **settings)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute("INSERT INTO good VALUES (3, 'ñ')", "UPDATE bad SET v = 'new' WHERE id = 1")
        if "p\\xff" in ODD_BYTES[what][0]:
            database.execute("INSERT INTO parts VALUES (1, 'a')")
            execute_bytes(database, r'INSERT INTO "p\xff" SELECT 2, chr(98)')
        captured.catch_up(running)
        assert {captured.stage(table) for table in (GOOD, BAD, parts)} == {Stage.STREAMING}
    assert captured.rows(GOOD) == Counter([(1, "é"), (2, ""), (3, "ñ")])
    assert [tuple(row)[:2] for row in captured.rows(BAD)] == [(1, "new")]
    assert captured.rows(parts) == Counter([(1, "a"), (2, "b")] if "p\\xff" in ODD_BYTES[what][0] else [])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", UNREADABLE)
def test_a_table_that_no_statement_can_name_is_a_finding_of_its_own(database: ScratchDatabase, what: str) -> None:
    statement, said = UNREADABLE[what]
    execute_bytes(database, statement)
    source = source_of(database, **({"publication": "own"} if "own" in statement else {}))
    found = source.describe([GOOD, BAD])
    blocking = [p for p in source.check([GOOD, BAD]) if p.severity is Severity.BLOCKING and p.code != "identity_full"]
    assert [(p.code, p.location, p.message) for p in blocking] == [
        ("not_utf8", "public.bad", f"this is not UTF-8: {said}")
    ]
    assert [
        tuple(row)
        for row in zip(
            *(c.to_pylist() for c in source.read_chunk(chunk_request(found[GOOD].schema)).rows.columns), strict=True
        )
    ] == [(1, "é"), (2, "")]
    with pytest.raises(TableError) as caught:
        source.read_chunk(chunk_request(found[BAD].schema))
    assert (caught.value.code, caught.value.table) == ("not_utf8", "public.bad")
    source.close()


@pytest.mark.matrix
def test_a_role_that_another_database_named_stops_nothing(postgres: PostgresServer, database: ScratchDatabase) -> None:
    """Roles belong to all databases of a server, whatever the encodings of those."""
    execute_bytes(database, r'CREATE ROLE "o\xff"')
    try:
        with postgres.database() as other:
            for one in (database, other):
                one.execute("CREATE TABLE owned (id int PRIMARY KEY)")
                role = "SELECT rolname FROM pg_roles WHERE oid > 16384 AND rolname ^@ 'o' AND octet_length(rolname) = 2"
                one.execute(f"DO $$BEGIN EXECUTE 'ALTER TABLE owned OWNER TO \"' || ({role}) || '\"'; END$$")
                source = source_of(one)
                owned = TableId("public", "owned")
                assert set(source.describe([owned])) == {owned}
                assert [p for p in source.check([owned]) if p.severity is Severity.BLOCKING] == []
                source.close()
                one.execute("DROP TABLE owned")
    finally:
        execute_bytes(database, r'DROP ROLE "o\xff"')


@pytest.mark.matrix
def test_a_session_of_such_a_role_can_be_told(postgres: PostgresServer, database: ScratchDatabase) -> None:
    """A snapshot waits for its transaction, in a database with an encoding, too."""
    with postgres.database() as other:
        for one in (database, other):
            one.execute("CREATE ROLE plain LOGIN")
            server = one.server
            # No text can spell the name, so the role gets it while it is logged in.
            with psycopg.connect(host=server.host, port=server.port, user="plain", dbname=one.name) as session:
                session.execute("SELECT pg_current_xact_id()")
                execute_bytes(database, r'ALTER ROLE plain RENAME TO "p\xff"')
                source = source_of(one)
                try:
                    told = source.status(source.visibility()).waiting_for
                finally:
                    source.close()
            execute_bytes(database, r'DROP ROLE "p\xff"')
            assert [line for line in told if r"user p\xff" in line]
