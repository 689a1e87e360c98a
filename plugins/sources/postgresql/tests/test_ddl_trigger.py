"""The script that announces changes of tables in the log, on real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator.model.errors import Severity
from replicator.model.schema import TableId
from replicator.plugins.source import LogReader, PullLimits
from replicator_source_postgresql.replication.ddl_trigger import SCRIPT, VERSION
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.postgresql.servers import ScratchDatabase

LIMITS = PullLimits(rows=1000, bytes=1 << 24, wait_s=1.0)
T = TableId("public", "t")


def install(database: ScratchDatabase) -> None:
    """As psql would."""
    with database.connect() as connection:
        connection.pgconn.exec_(SCRIPT.encode())
        assert connection.execute("SELECT count(*) FROM pg_event_trigger").fetchone() == (2,)


class Log:
    """An open log, and which transactions announced something."""

    def __init__(self, database: ScratchDatabase, source: PostgresqlSource) -> None:
        self.database = database
        self.source = source
        self._reader: LogReader = source.open_log(
            source.prepare([T], is_first=True), {t: d.schema for t, d in source.describe([T]).items()}
        )

    def announces(self, *statements: str) -> bool:
        """Whether one of the statements is announced, in its own transaction."""
        self.database.execute(*statements)
        mark, announced = self.source.mark(), False
        for _ in range(100):
            batch = self._reader.pull(LIMITS)
            announced = announced or batch.announced_by is not None
            if mark in batch.marks:
                return announced
        pytest.fail("the mark did not come")

    def close(self) -> None:
        self._reader.close()


def test_what_happens_to_tables_is_announced_and_nothing_else(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    install(any_database)
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "CREATE TYPE mood AS ENUM ('sad')")
    opened = Log(any_database, source)
    has_messages = any_database.server.major_version * 10000 >= VERSION
    try:
        for statement in (
            "ALTER TABLE t ADD b int DEFAULT 5",
            "ALTER TABLE t RENAME b TO c",
            "ALTER TABLE t ALTER c TYPE bigint",
            "ALTER TABLE t DROP c",
            "ALTER TABLE t ALTER a SET NOT NULL",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "CREATE UNIQUE INDEX CONCURRENTLY t_a ON t (a)",
            "DROP INDEX CONCURRENTLY t_a",
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'glad'",
            "CREATE TABLE u (LIKE t INCLUDING ALL)",
            "CREATE TABLE p (id int) PARTITION BY RANGE (id)",
            "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1)",
            "ALTER TABLE p DETACH PARTITION p1",
            "CREATE SCHEMA s CREATE TABLE x (id int)",
            "ALTER TABLE u SET SCHEMA s",
            "DROP SCHEMA s CASCADE",
            "SELECT 1 AS id INTO v",
            "ALTER TABLE v RENAME TO w",
            "CREATE PUBLICATION other FOR TABLE t",
            "DROP TABLE w",
        ):
            assert opened.announces(statement) is has_messages, statement
        for statement in (
            "INSERT INTO t VALUES (1, 'a')",
            "CREATE TEMP TABLE temporary (id int); ALTER TABLE temporary ADD b int; DROP TABLE temporary",
            "CREATE VIEW seen AS SELECT 1; DROP VIEW seen",
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; DROP FUNCTION f()",
            "COMMENT ON DATABASE " + any_database.name + " IS 'x'",
            "ANALYZE t",
            "VACUUM t",
        ):
            assert not opened.announces(*statement.split("; ")), statement
    finally:
        opened.close()


def test_a_failure_inside_breaks_no_statement(any_database: ScratchDatabase) -> None:
    install(any_database)
    role = f"{any_database.name}_r"
    writers = "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message'"
    any_database.execute(
        f"CREATE ROLE {role}",
        f"GRANT ALL ON SCHEMA public TO {role}",
        *(f"REVOKE EXECUTE ON FUNCTION {writer} FROM PUBLIC" for (writer,) in any_database.execute(writers)),
    )
    try:
        with any_database.connect() as connection:
            notices: list[str] = []
            connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
            connection.execute(f"SET ROLE {role}".encode())
            connection.execute("CREATE TABLE t (id int)")
            connection.execute("DROP TABLE t")
        assert len(notices) == 2
        assert all(notice.startswith("replicator.announce_ddl: permission denied") for notice in notices)
    finally:
        any_database.execute(f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def test_a_database_without_it_is_told_how_to_install_it(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    def found() -> list[tuple[Severity, bool]]:
        problems = [p for p in source.check([]) if p.code == "ddl_trigger_missing"]
        return [(p.severity, SCRIPT in (p.action or "")) for p in problems]

    has_messages = any_database.server.major_version * 10000 >= VERSION
    assert found() == ([(Severity.NOTICE, True)] if has_messages else [])
    install(any_database)
    assert found() == []
    any_database.execute("ALTER EVENT TRIGGER replicator_ddl DISABLE")
    assert found() == ([(Severity.NOTICE, True)] if has_messages else [])


def test_the_page_has_the_script() -> None:
    page = Path(__file__).parents[4] / "docs" / "sources" / "postgresql.md"
    assert SCRIPT in page.read_text()
