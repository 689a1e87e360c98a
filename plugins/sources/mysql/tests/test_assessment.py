"""`check` finds what would go wrong, and says the fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal

import pytest

from replicator.model.errors import AccessDeniedError, Problem, Severity, TableError
from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.plugins.source import PullLimits
from replicator_source_mysql.assessment.server import assess_server
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.filters import Filters
from replicator_source_mysql.flavors import MYSQL
from replicator_source_mysql.server import ServerFacts, read_facts
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer

Make = Callable[..., MysqlSource]


def blocking(problems: list[Problem] | Any) -> list[tuple[str, str | None]]:
    return [(p.code, p.location) for p in problems if p.severity is Severity.BLOCKING]


@pytest.fixture
def facts(any_mysql: MysqlServer) -> ServerFacts:
    connection = any_mysql.connect()
    try:
        return read_facts(connection)
    finally:
        connection.close()


CONFIG = MysqlConfig(host="127.0.0.1", user="someone")


@pytest.mark.parametrize(
    ("variables", "locations"),
    [
        ({}, []),
        ({"log_bin": "OFF"}, ["log_bin"]),
        ({"binlog_format": "MIXED"}, ["binlog_format"]),
        ({"binlog_row_image": "MINIMAL"}, ["binlog_row_image"]),
        ({"binlog_row_metadata": "NO_LOG"}, ["binlog_row_metadata"]),
        ({"binlog_row_value_options": "PARTIAL_JSON"}, ["binlog_row_value_options"]),
        ({"sync_binlog": "0"}, ["sync_binlog"]),
        ({"innodb_flush_log_at_trx_commit": "2"}, ["innodb_flush_log_at_trx_commit"]),
        ({"aurora_version": "3.1", "innodb_read_only": "ON"}, ["source.host"]),
        ({"lower_case_table_names": "2"}, ["lower_case_table_names"]),
        ({"binlog_storage_engine": "innodb"}, ["binlog_storage_engine"]),
        ({"binlog_row_event_fragment_threshold": "1048576"}, ["binlog_row_event_fragment_threshold"]),
    ],
)
@pytest.mark.condition("M38")
def test_settings_that_break_replication_are_blocking(
    facts: ServerFacts, variables: Mapping[str, str], locations: list[str]
) -> None:
    changed = replace(facts, variables={**facts.variables, **variables})
    found = assess_server(changed, CONFIG)
    assert [location for _, location in blocking(found)] == locations
    assert all(p.action for p in found)


@pytest.mark.parametrize(
    ("seconds", "severity", "action"),
    [
        (
            3600,
            Severity.WARNING,
            "SET GLOBAL binlog_expire_logs_seconds = 604800; -- a week; more if a pause may be longer",
        ),
        (2_592_000, Severity.NOTICE, "If a pause may be longer, raise binlog_expire_logs_seconds."),
    ],
)
def test_a_long_retention_is_not_answered_with_a_shorter_one(
    facts: ServerFacts, seconds: int, severity: Severity, action: str
) -> None:
    changed = replace(facts, variables={**facts.variables, "binlog_expire_logs_seconds": str(seconds)})
    [problem] = [p for p in assess_server(changed, CONFIG) if p.code == "log_retention"]
    assert (problem.severity, problem.action) == (severity, action)


def test_gtids_that_are_being_switched_and_replicas_without_a_log_are_refused(facts: ServerFacts) -> None:
    if facts.flavor is MYSQL:
        between = {"gtid_mode": "OFF_PERMISSIVE", "log_replica_updates": "OFF"}
        changed = replace(facts, variables={**facts.variables, **between})
        expected = [("server_setting", "gtid_mode"), ("replica_does_not_log", "log_replica_updates")]
    else:
        changed = replace(facts, variables={**facts.variables, "log_slave_updates": "OFF"})
        expected = [("replica_does_not_log", "log_slave_updates")]
    assert blocking(assess_server(replace(changed, is_replica=True), CONFIG)) == expected
    # A server that replicates from nobody has nothing to leave out.
    alone = blocking(assess_server(replace(changed, is_replica=False), CONFIG))
    assert ("replica_does_not_log", "log_slave_updates") not in alone


@pytest.mark.parametrize(
    ("filters", "left_out"),
    [
        ({"replicate_do_db": ("shop",)}, ["Shop.t", "other.t"]),
        ({"replicate_ignore_db": ("shop",)}, ["shop.t", "shop.u"]),
        ({"replicate_do_table": ("shop.t",)}, ["Shop.t", "other.t", "shop.u"]),
        ({"replicate_ignore_table": ("shop.t",)}, ["shop.t"]),
        ({"replicate_wild_do_table": ("sh%.t", "o_her.%")}, ["shop.u"]),
        ({"replicate_wild_ignore_table": ("sh%.\\_", "%.u")}, ["shop.u"]),
    ],
)
def test_a_replica_s_filters_leave_tables_out(filters: Mapping[str, tuple[str, ...]], left_out: list[str]) -> None:
    names = ["Shop.t", "other.t", "shop.t", "shop.u"]
    found = Filters(replica=({}, filters))
    assert [n for n in names if found.of_replica(TableId.parse(n), is_lower_case=False)] == left_out


@pytest.mark.parametrize("flavor", ["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def test_filters_that_leave_out_a_table_are_refused(
    flavor: Literal["mariadb", "mysql"], request: pytest.FixtureRequest, source_of: Make
) -> None:
    if flavor == "mysql" and request.getfixturevalue("mysql").lacks((8, 0, 26)):
        pytest.skip("the settings have other names before MySQL 8.0.26")
    settings = {"binlog-ignore-db": "quiet", "replicate-wild-ignore-table": "shop.not%", "skip-replica-start": "ON"}
    if flavor == "mariadb":
        settings["skip-slave-start"] = settings.pop("skip-replica-start")
    with MysqlServer(flavor, settings=settings) as server:
        change = "CHANGE MASTER TO MASTER" if flavor == "mariadb" else "CHANGE REPLICATION SOURCE TO SOURCE"
        server.execute(
            "CREATE DATABASE shop",
            "CREATE DATABASE quiet",
            f"{change}_HOST = '127.0.0.1'",
            *(f"CREATE TABLE {t} (id int PRIMARY KEY)" for t in ("shop.t", "shop.not_here", "quiet.t")),
        )
        source = source_of(server)
        found = source.check([TableId("shop", "t"), TableId("shop", "not_here"), TableId("quiet", "t")])
        assert ("log_filter", "binlog_ignore_db") in [(p.code, p.location) for p in found]
        codes = sorted((p.code, p.location) for p in found if p.code.startswith("left_out"))
        assert codes == [("left_out_of_log", "quiet.t"), ("left_out_of_replica", "shop.not_here")]
        assert ("left_out_of_log", "quiet.t") in blocking(found)
        assert flavor == "mariadb" or ("left_out_of_replica", "shop.not_here") in blocking(found)


def test_a_risk_that_was_accepted_is_a_warning(facts: ServerFacts) -> None:
    changed = replace(facts, variables={**facts.variables, "sync_binlog": "0"})
    accepted = MysqlConfig(host="127.0.0.1", user="someone", accept_log_loss=True)
    assert blocking(assess_server(changed, accepted)) == []


def test_a_server_that_is_too_old_is_told_so_and_nothing_else(facts: ServerFacts) -> None:
    old = replace(facts, version=(5, 7, 44) if facts.flavor is MYSQL else (10, 4, 1))
    assert [p.code for p in assess_server(old, CONFIG)] == ["server_too_old"]


def test_the_least_privileges_are_enough_and_each_missing_one_is_named(
    mysql_database: MysqlDatabase, source_of: Make
) -> None:
    server = mysql_database.server
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    monitor = "BINLOG MONITOR" if server.flavor == "mariadb" else "REPLICATION CLIENT"
    user = mysql_database.name[-20:]
    server.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'")
    try:
        table = TableId(mysql_database.name, "t")
        source = source_of(server, user=user, password=Secret("secret"))
        found = source.check([table])
        missing = {p.action for p in found if p.code == "privilege_missing"}
        assert len(missing) == 3
        assert ("table_missing", str(table)) in blocking(found)
        for action in missing:
            assert action is not None
            server.execute(action)
        server.execute(f"GRANT SELECT ON `{mysql_database.name}`.* TO '{user}'@'%'")
        assert monitor in " ".join(a or "" for a in missing)
        source.close()
        source = source_of(server, user=user, password=Secret("secret"))
        assert blocking(source.check([table])) == []
        assert not [p for p in source.check([table]) if p.code == "privilege_excess"]
        # They are enough for all that it does.
        schema = source.describe([table])[table].schema
        reader = source.open_log(source.prepare([table], is_first=True), {table: schema})
        source.mark()
        source.visibility()
        reader.close()
        wrong = source_of(server, user=user, password=Secret("wrong"))
        with pytest.raises(AccessDeniedError):
            wrong.identity()
    finally:
        server.execute(f"DROP USER '{user}'@'%'")


@pytest.mark.condition("D09", "D13", "D14", "D22", "M27")
def test_tables_that_cannot_be_replicated_right_are_refused(mysql_database: MysqlDatabase, source_of: Make) -> None:
    mysql_database.execute(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, p int,"
        " CONSTRAINT `f k``; -- \n'x` FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "CREATE TABLE isam (id int PRIMARY KEY) ENGINE = MyISAM",
        "CREATE TABLE keyless (v int)",
        "CREATE TABLE prefix (v text NOT NULL, PRIMARY KEY (v(10)))",
        "CREATE TABLE approximate (v double PRIMARY KEY, w int NOT NULL UNIQUE)",
        "CREATE TABLE perhaps (v int UNIQUE, w int)",
        "CREATE VIEW view_of_it AS SELECT * FROM parent",
    )
    is_mariadb = mysql_database.server.flavor == "mariadb"
    names = ["parent", "child", "isam", "keyless", "prefix", "approximate", "perhaps"]
    if is_mariadb:
        mysql_database.execute(
            "CREATE TABLE versioned (id int PRIMARY KEY) WITH SYSTEM VERSIONING", "CREATE SEQUENCE seq"
        )
        names.append("versioned")
    source = source_of(mysql_database.server)
    found = source.check([TableId(mysql_database.name, n) for n in names])
    expected = [("engine_not_transactional", "isam")]
    if is_mariadb or mysql_database.server.lacks((9, 6)):
        expected.append(("unlogged_cascade", "child"))
    if is_mariadb:
        expected.append(("system_versioned", "versioned"))
    assert sorted(blocking(found)) == sorted((code, f"{mysql_database.name}.{name}") for code, name in expected)
    assert {p.location for p in found if p.code == "no_key"} == {
        f"{mysql_database.name}.{n}" for n in ("keyless", "prefix", "approximate", "perhaps")
    }
    keys = source.describe([TableId(mysql_database.name, n) for n in names])
    assert keys[TableId(mysql_database.name, "approximate")].schema.key == (), "rows are clustered by a DOUBLE"
    assert keys[TableId(mysql_database.name, "perhaps")].schema.key == (), "NULLs would be skipped"
    listed = {s.table.name: s for s in source.list_tables() if s.table.namespace == mysql_database.name}
    assert listed["view_of_it"].left_out is not None
    assert not is_mariadb or listed["seq"].left_out is not None
    for policy in ("warn", "resnapshot"):
        accepted = source_of(mysql_database.server, foreign_keys=policy).check([TableId(mysql_database.name, "child")])
        assert blocking(accepted) == []
    # The advice is a statement with the key's name in it, whatever that is.
    for problem in found:
        if problem.code == "unlogged_cascade":
            mysql_database.execute(str(problem.action).partition("; -- or exclude")[0])
    assert blocking(source.check([TableId(mysql_database.name, "child")])) == []


def test_columns_that_the_account_may_not_read_are_named(mysql_database: MysqlDatabase, source_of: Make) -> None:
    server, name = mysql_database.server, mysql_database.name
    user = name[-20:]
    tables = [TableId(name, t) for t in ("some", "seen", "whole", "by_database")]
    for table in tables:
        mysql_database.execute(f"CREATE TABLE {table.name} (id int PRIMARY KEY, `a ``(b)` int, c int)")
    server.execute(
        f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'",
        f"GRANT SELECT (id, `a ``(b)`) ON `{name}`.some TO '{user}'@'%'",
        f"GRANT SELECT (id), INSERT ON `{name}`.seen TO '{user}'@'%'",
        f"GRANT SELECT, UPDATE (c) ON `{name}`.whole TO '{user}'@'%'",
        f"GRANT SELECT (id) ON `{name}`.by_database TO '{user}'@'%'",
    )
    try:

        def found() -> list[tuple[str | None, str]]:
            source = source_of(server, user=user, password=Secret("secret"))
            problems = source.check(tables)
            source.close()
            return [(p.location, p.message) for p in problems if p.code == "select_missing"]

        first, second, third = found()
        assert first[0] == str(tables[0])
        assert "column by column" in first[1]
        assert second[0] == str(tables[1])
        assert "its columns a `(b), c may not be read" in second[1]
        assert third[0] == str(tables[3])
        pattern = name.replace("_", "\\_")[:-1] + "%"
        server.execute(f"GRANT SELECT ON `{pattern}`.* TO '{user}'@'%'")
        assert found() == [], "a grant of the database covers its tables"
    finally:
        server.execute(f"DROP USER '{user}'@'%'")


def test_transactions_that_are_prepared_before_the_first_start_are_named_with_what_ends_them(
    mysql_database: MysqlDatabase, source_of: Make
) -> None:
    server, xid = mysql_database.server, "'early\"`','b\\'',7"
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = TableId(mysql_database.name, "t")

    def found(**settings: Any) -> list[Problem]:
        problems = source_of(server, **settings).check([table])
        return [p for p in problems if p.code == "prepared_before_start"]

    assert found() == []
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        for text in (f"XA START {xid}", "INSERT INTO t VALUES (1)", f"XA END {xid}", f"XA PREPARE {xid}"):
            cursor.execute(text)
    (problem,) = found()
    assert problem.severity is Severity.WARNING
    assert "An XA transaction is prepared: X'6561726c792260',X'6227',7." in problem.message
    assert problem.action is not None
    statements = problem.action.removeprefix("Before the first start: ").split(" or ")
    assert statements == ["XA COMMIT X'6561726c792260',X'6227',7;", "XA ROLLBACK X'6561726c792260',X'6227',7;"]
    server.execute("CREATE USER 'few'@'%' IDENTIFIED BY 'few'")
    try:
        # MySQL tells them to XA_RECOVER_ADMIN only.
        of_few = found(user="few", password=Secret("few"))
        assert [p.message for p in of_few] == ([problem.message] if server.flavor == "mariadb" else [])
    finally:
        server.execute("DROP USER 'few'@'%'")
    server.execute(statements[1])
    assert found() == []


@pytest.mark.parametrize("holder", ["outer", "inner", "PUBLIC"])
def test_columns_granted_by_a_role_count_as_those_of_the_account(
    mysql_database: MysqlDatabase, source_of: Make, holder: str
) -> None:
    server, is_mariadb = mysql_database.server, mysql_database.server.flavor == "mariadb"
    if holder == "PUBLIC" and not (is_mariadb and server.version >= (10, 11)):
        pytest.skip("grants to PUBLIC came with MariaDB 10.11")
    mysql_database.execute("CREATE TABLE t (a int PRIMARY KEY, b int)")
    table, grant = TableId(mysql_database.name, "t"), f"SELECT (a) ON `{mysql_database.name}`.t"
    server.execute("CREATE USER 'few'@'%' IDENTIFIED BY 'few'", "CREATE ROLE `outer`, `inner`")
    try:
        server.execute(
            f"GRANT {grant} TO {holder if holder == 'PUBLIC' else f'`{holder}`'}",
            "GRANT `inner` TO `outer`",
            "GRANT `outer` TO 'few'@'%'",
            f"SET DEFAULT ROLE `outer` {'FOR' if is_mariadb else 'TO'} 'few'@'%'",
        )
        problems = source_of(server, user="few", password=Secret("few")).check([table])
        (problem,) = [p for p in problems if p.code == "select_missing"]
        assert "column by column" in problem.message
    finally:
        if holder == "PUBLIC":
            server.execute(f"REVOKE {grant} FROM PUBLIC")
        server.execute("DROP USER 'few'@'%'", "DROP ROLE `outer`, `inner`")


def test_a_table_that_becomes_system_versioned_is_refused_as_such(mariadb: MysqlServer, source_of: Make) -> None:
    made = {
        "plain": "ALTER TABLE plain ADD SYSTEM VERSIONING",
        "keyless": "ALTER TABLE keyless ADD SYSTEM VERSIONING",
        "named": "ALTER TABLE named ADD s timestamp(6) GENERATED ALWAYS AS ROW START, ADD e timestamp(6) GENERATED ALWAYS AS"
        " ROW END, ADD PERIOD FOR SYSTEM_TIME(s, e), ADD SYSTEM VERSIONING",
    }
    with mariadb.database() as database:
        for name, statement in made.items():
            key = "" if name == "keyless" else " PRIMARY KEY"
            database.execute(f"CREATE TABLE {name} (id int{key}, v int)")
            table = TableId(database.name, name)
            source = source_of(mariadb)
            schema = source.describe([table])[table].schema
            reader = source.open_log(source.prepare([table], is_first=True), {table: schema})
            database.execute(statement, f"INSERT INTO {name} (id) VALUES (1)", f"UPDATE {name} SET v = 2")
            mark = source.mark()
            errors: dict[TableId, TableError] = {}
            while True:
                batch = reader.pull(PullLimits(rows=1000, bytes=1 << 20, wait_s=1.0))
                errors |= batch.table_errors
                assert not batch.changes
                if mark in batch.marks:
                    break
            reader.close()
            assert errors[table].code == "system_versioned"
            assert blocking(source.check([table])) == [("system_versioned", str(table))]
            with pytest.raises(TableError) as refused, source.read_whole(schema):
                pass
            assert refused.value.code == "system_versioned"


def test_helpers_of_schema_changes_are_left_out_next_to_their_table(
    mysql_database: MysqlDatabase, source_of: Make
) -> None:
    for name in ("t", "_t_gho", "_t_old", "_other_new"):
        mysql_database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    found = {
        s.table.name: s.left_out
        for s in source_of(mysql_database.server).list_tables()
        if s.table.namespace == mysql_database.name
    }
    assert {n for n, why in found.items() if why} == {"_t_gho", "_t_old"}


@pytest.mark.parametrize("flavor", ["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
@pytest.mark.condition("M15")
def test_a_server_s_certificate_is_proved(
    flavor: Literal["mariadb", "mysql"], request: pytest.FixtureRequest, source_of: Make
) -> None:
    if flavor == "mysql":
        request.getfixturevalue("mysql")
    with MysqlServer(flavor, tls=True, settings={"bind-address": "0.0.0.0"}) as server:
        assert source_of(server, tls="verify-full", tls_ca=server.certificate_file).identity()
        with pytest.raises(AccessDeniedError) as refused:
            source_of(server, tls="verify-full").identity()
        assert refused.value.code == "tls_untrusted"
        # The certificate is for localhost and 127.0.0.1.
        with pytest.raises(AccessDeniedError):
            source_of(server, host="127.0.0.2", tls="verify-full", tls_ca=server.certificate_file).identity()
        assert source_of(server, tls="require").identity()


def test_tls_is_verified_unless_the_host_is_this_machine() -> None:
    assert MysqlConfig(host="db.internal", user="u").tls_mode == "verify-full"
    assert MysqlConfig(host="localhost", user="u").tls_mode == "prefer"
    assert MysqlConfig(host="127.8.0.1", user="u").tls_mode == "prefer"
    context = MysqlConfig(host="db.internal", user="u").tls_context()
    assert context is not None
    assert context.check_hostname
