"""The server's own words reach the user, and the class says who acts: provoked on real servers where they can be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import closing

import pymysql
import pytest

from replicator.model.errors import (
    AccessDeniedError,
    FatalError,
    OffsetExpiredError,
    ReplicatorError,
    SchemaConflictError,
    SourceUnavailableError,
    TableError,
)
from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.plugins.source import LogReader, PullLimits
from replicator_source_mysql.connecting.errors import translate, translate_log
from replicator_source_mysql.coordinates import CoordinateSystems
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.programs import has_mysql
from replicator_testbed.mysql.servers import Flavor, MysqlDatabase, MysqlServer
from replicator_testing.defaults import chunk_request
from replicator_testing.waiting import wait_until

Make = Callable[..., MysqlSource]

LIMITS = PullLimits(rows=10_000, bytes=64 << 20, wait_s=0.5)


def chunk(source: MysqlSource, table: TableId) -> None:
    source.read_chunk(chunk_request(source.describe([table])[table].schema))


def opened(source: MysqlSource, table: TableId) -> LogReader:
    return source.open_log(
        source.prepare([table], is_first=True), {t: d.schema for t, d in source.describe([table]).items()}
    )


def pull_until_it_fails(reader: LogReader) -> ReplicatorError:
    for _ in range(100):
        try:
            reader.pull(LIMITS)
        except ReplicatorError as error:
            reader.close()
            return error
    raise AssertionError("nothing failed")


@pytest.fixture
def table(mysql_database: MysqlDatabase) -> TableId:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v longtext)", "INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    return TableId(mysql_database.name, "t")


def test_a_dump_that_was_killed_says_so(mysql_database: MysqlDatabase, table: TableId, source_of: Make) -> None:
    server = mysql_database.server
    reader = opened(source_of(server), table)
    reader.pull(LIMITS)

    def dumps() -> list[int]:
        rows = server.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
        return [number for (number,) in rows]

    wait_until(dumps, "the server knows of the dump")
    for number in dumps():
        server.execute(f"KILL {number}")
    error = pull_until_it_fails(reader)
    assert isinstance(error, SourceUnavailableError)
    assert str(server.port) in str(error)


def test_a_refused_password_is_about_the_account_and_not_about_a_table(
    mysql_database: MysqlDatabase, table: TableId, source_of: Make
) -> None:
    server = mysql_database.server
    server.execute("CREATE USER 'late'@'%' IDENTIFIED BY 'before'", "GRANT ALL ON *.* TO 'late'@'%'")
    try:
        source = source_of(server, user="late", password=Secret("before"))
        schema = source.describe([table])[table].schema
        server.execute("ALTER USER 'late'@'%' IDENTIFIED BY 'after'")
        with pytest.raises(AccessDeniedError) as found:
            source.read_chunk(chunk_request(schema))
        assert (found.value.code, found.value.table) == ("access_denied", None)
        assert "(1045) Access denied for user 'late'@" in str(found.value)
    finally:
        server.execute("DROP USER 'late'@'%'")


def test_a_privilege_that_is_missing_on_one_table_is_about_that_table(
    mysql_database: MysqlDatabase, table: TableId, source_of: Make
) -> None:
    server = mysql_database.server
    more = (
        "BINLOG MONITOR, REPLICATION SLAVE, PROCESS"
        if server.flavor == "mariadb"
        else "REPLICATION CLIENT, REPLICATION SLAVE, PROCESS"
    )
    server.execute("CREATE USER 'few'@'%' IDENTIFIED BY 'few'", f"GRANT {more} ON *.* TO 'few'@'%'")
    server.execute(f"GRANT SELECT ON `{table.namespace}`.t TO 'few'@'%'")
    try:
        source = source_of(server, user="few", password=Secret("few"))
        schema = source.describe([table])[table].schema
        source.read_chunk(chunk_request(schema))
        server.execute(
            f"REVOKE SELECT ON `{table.namespace}`.t FROM 'few'@'%'",
            f"GRANT INSERT ON `{table.namespace}`.t TO 'few'@'%'",
        )
        with pytest.raises(AccessDeniedError) as found:
            source.read_chunk(chunk_request(schema))
        assert (found.value.code, found.value.table) == ("access_denied", str(table))
        assert "(1142) SELECT command denied" in str(found.value)
    finally:
        server.execute("DROP USER 'few'@'%'")


def test_a_missing_table_is_about_that_table(mysql_database: MysqlDatabase, table: TableId, source_of: Make) -> None:
    source = source_of(mysql_database.server)
    schema = source.describe([table])[table].schema
    source.read_chunk(chunk_request(schema))
    mysql_database.execute("DROP TABLE t")
    with pytest.raises(SchemaConflictError) as found:
        source.read_chunk(chunk_request(schema))
    assert (found.value.code, found.value.table) == ("table_changed", str(table))
    assert "(1146)" in str(found.value)
    with pytest.raises(TableError, match="no longer exists"):
        source.read_chunk(chunk_request(schema))


def test_a_read_that_takes_too_long_names_its_table_and_what_to_do(
    mysql_database: MysqlDatabase, table: TableId, source_of: Make
) -> None:
    source = source_of(mysql_database.server, statement_timeout="1s", lock_timeout="60s")
    schema = source.describe([table])[table].schema
    source.read_chunk(chunk_request(schema))
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")
        with pytest.raises(SourceUnavailableError) as found:
            source.read_chunk(chunk_request(schema))
    assert (found.value.code, found.value.table) == ("statement_timeout", str(table))
    assert "source.statement_timeout" in (found.value.action or "")
    assert "(1969)" in str(found.value) or "(3024)" in str(found.value)


def test_too_many_connections_keep_the_servers_words(source_of: Make, mariadb: MysqlServer) -> None:
    ((before,),) = mariadb.execute("SELECT @@GLOBAL.max_connections")
    with closing(mariadb.connect()) as keeping:
        mariadb.execute("SET GLOBAL max_connections = 10")
        held = []
        try:
            with contextlib.suppress(pymysql.MySQLError):
                while True:
                    held.append(mariadb.connect())
            with pytest.raises(SourceUnavailableError) as found:
                source_of(mariadb).status()
            assert found.value.code == "too_many_connections"
            assert "(1040) Too many connections" in str(found.value)
        finally:
            for connection in held:
                connection.close()
            with keeping.cursor() as cursor:
                cursor.execute(f"SET GLOBAL max_connections = {before}")


def test_a_purged_log_keeps_the_servers_words(
    mysql_database: MysqlDatabase, table: TableId, source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, source = mysql_database.server, source_of(mysql_database.server)
    schemas = {t: d.schema for t, d in source.describe([table]).items()}
    offset = source.prepare([table], is_first=True)
    mysql_database.execute("INSERT INTO t VALUES (11, '')", "FLUSH LOGS", "INSERT INTO t VALUES (12, '')", "FLUSH LOGS")
    newest = server.execute("SHOW BINARY LOGS")[-1][0]

    def is_purged() -> bool:
        server.execute(f"PURGE BINARY LOGS TO '{newest}'")
        return len(server.execute("SHOW BINARY LOGS")) == 1

    wait_until(is_purged, "the log is purged")
    if server.flavor == "mysql":
        with pytest.raises(OffsetExpiredError) as found:
            source.open_log(offset, schemas)
        assert (found.value.code, found.value.table) == ("log_removed", None)
    # As if it were purged only now, behind our own look: the server's answer decides.
    monkeypatch.setattr(CoordinateSystems, "open", lambda systems, _, __, position: systems.of_position(position))
    error = pull_until_it_fails(source.open_log(offset, schemas))
    assert isinstance(error, OffsetExpiredError)
    assert (error.code, error.table) == ("log_removed", None)
    assert "(1236)" in str(error)
    assert "purged" in str(error).lower() or "could not find" in str(error).lower()


@pytest.mark.parametrize(
    ("number", "text", "table", "kind", "code", "named"),
    [
        (1030, "Got error 168 from storage engine", "s.t", TableError, "source_error", True),
        (1030, "Got error 168 from storage engine", None, FatalError, "source_error", False),
        (1153, "Got a packet bigger than 'max_allowed_packet' bytes", "s.t", TableError, "max_allowed_packet", True),
        (1114, "The table '/tmp/#sql1' is full", "s.t", SourceUnavailableError, "source_out_of_resources", True),
        (1227, "Access denied; you need the BINLOG MONITOR privilege", "s.t", AccessDeniedError, "access_denied", False),
        (1045, "Access denied for user 'x'@'y'", "s.t", AccessDeniedError, "access_denied", False),
        (1370, "execute command denied to user 'x'@'y' for routine 'f'", "s.t", AccessDeniedError, "access_denied", True),
        (3024, "Query execution was interrupted, maximum statement execution time exceeded", "s.t", SourceUnavailableError,
         "statement_timeout", True),
    ],
)  # fmt: skip
def test_the_class_says_who_acts(
    number: int, text: str, table: str | None, kind: type[ReplicatorError], code: str, named: bool
) -> None:
    error = translate(pymysql.err.OperationalError(number, text), doing="reading a chunk on h:1", table=table)
    assert isinstance(error, kind)
    assert (error.code, error.table is not None) == (code, named)
    assert f"reading a chunk on h:1: ({number}) {text}" in str(error)


@pytest.mark.parametrize(
    ("number", "action"),
    [
        (1045, "Check source.user and source.password"),
        (1698, "Check source.user and source.password"),
        (1227, "Grant the privilege that the message names"),
        (1142, "Grant the privilege that the message names"),
        (2003, "Check that the server runs, and that source.host and source.port are right"),
        (2005, "Check that the server runs, and that source.host and source.port are right"),
    ],
)
def test_what_keeps_us_from_connecting_says_what_to_check(number: int, action: str) -> None:
    error = translate(pymysql.err.OperationalError(number, "a text"), doing="reading the catalogue on h:1")
    assert (error.action or "").startswith(action)


def test_values_in_the_servers_words_are_left_out() -> None:
    error = translate(
        pymysql.err.DataError(1292, "Incorrect datetime value: 'it''s 'secret'' for column `s`.`t`.`c`"),
        doing="reading",
    )
    assert "(1292) Incorrect datetime value: …" in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("A slave with the same server_uuid/server_id as this slave has connected", SourceUnavailableError, "server_id_taken"),
        ("Could not find first log file name in binary log index file", OffsetExpiredError, "log_removed"),
        ("log event entry exceeded max_allowed_packet; Increase max_allowed_packet on master", FatalError, "max_allowed_packet"),
    ],
)  # fmt: skip
def test_what_ends_a_dump_is_told_by_its_words(text: str, kind: type[ReplicatorError], code: str) -> None:
    error = translate_log(1236, text, doing="reading the log of h:1")
    assert isinstance(error, kind)
    assert error.code == code
    assert f"(1236) {text}" in str(error)


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_an_event_that_no_server_sends_names_its_tables_and_its_transaction(kind: Flavor, source_of: Make) -> None:
    if kind == "mysql" and not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer(kind) as server, server.database() as database:
        # Engines that can write such rows quickly; a row of InnoDB's can be as large.
        engine = "BLACKHOLE" if kind == "mysql" else "MyISAM"
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v longblob)",
            f"CREATE TABLE u (a longblob, b longblob) ENGINE = {engine}",
        )
        table = TableId(database.name, "t")
        reader = opened(source_of(server), table)
        server.execute("SET GLOBAL max_allowed_packet = 1073741824")
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1, REPEAT('x', 8000000))")
            server.execute("SET GLOBAL max_allowed_packet = 1048576")
            cursor.execute("INSERT INTO u SELECT REPEAT('x', 600000000), REPEAT('y', 600000000)")
        error = pull_until_it_fails(reader)
    assert isinstance(error, FatalError)
    assert (error.code, error.table) == ("max_allowed_packet", None), "nobody can read the log past it"
    assert "(1236)" in str(error), "what was larger than the server's setting came"
    assert f"more than 1 GiB and rows of {database.name}.u in the transaction " in str(error)
    assert "--restart" in (error.action or "")


def test_a_table_whose_privilege_was_revoked_is_no_dropped_one(
    mysql_database: MysqlDatabase, table: TableId, source_of: Make
) -> None:
    """`describe` leaves dropped tables out, and a policy may drop their targets."""
    server, other = mysql_database.server, TableId(mysql_database.name, "u")
    mysql_database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    monitor = "BINLOG MONITOR" if server.flavor == "mariadb" else "REPLICATION CLIENT"
    server.execute(
        "CREATE USER fading IDENTIFIED BY 'Pw-1234567'",
        f"GRANT REPLICATION SLAVE, {monitor}, PROCESS ON *.* TO fading",
        f"GRANT SELECT ON {mysql_database.name}.t TO fading",
        f"GRANT SELECT ON {mysql_database.name}.u TO fading",
    )
    try:
        source = source_of(server, user="fading", password=Secret("Pw-1234567"))
        assert set(source.describe([table, other])) == {table, other}
        server.execute(f"REVOKE SELECT ON {mysql_database.name}.t FROM fading")
        with pytest.raises(AccessDeniedError) as refused:
            source.describe([table, other])
        assert (refused.value.code, refused.value.table) == ("select_missing", str(table))
        assert [(p.code, p.table) for p in source.check([table, other]) if p.table] == [("select_missing", str(table))]
        mysql_database.execute("DROP TABLE t")
        assert set(source.describe([table, other])) == {other}
        assert [(p.code, p.table) for p in source.check([table, other]) if p.table] == [("table_missing", str(table))]
    finally:
        server.execute("DROP USER fading")
