"""`validate --sql` on real servers: the script that it prints, run by a superuser, fixes everything that SQL can fix."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replicator.config import LoadedConfig
from replicator.model.errors import Problem, Severity
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.service.configuring import assess
from replicator_testbed.databases import Database
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.rig import Rig
from replicator_testing.waiting import PATIENCE

Open = Callable[..., Rig]


@pytest.fixture
def open_rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """A replicator whose source is read by an account of its own; further arguments replace keys of its source block."""

    def of(database: Database, tables: tuple[str, ...], **source: str) -> Rig:
        rig = Rig(folder=tmp_path, database=database, tables=tables)
        rig.write_yaml(source=source)
        for name, value in rig._environ().items():
            monkeypatch.setenv(name, value)
        return rig

    return of


def found(rig: Rig) -> list[Problem]:
    """What `validate` finds."""
    registry, home = Registry.discover(), Home.from_environment()
    loaded: LoadedConfig = registry.load(rig.file)
    return list(assess.assess(loaded, registry, home).problems)


def codes(problems: list[Problem]) -> set[str]:
    return {problem.code for problem in problems if problem.sql}


@pytest.fixture
def role(database: ScratchDatabase) -> Iterator[str]:
    """A role that may log in, and nothing else, and one that owns the tables."""
    reader, owner = f"reader_{database.name}", f"owner_{database.name}"
    database.execute(f"CREATE ROLE {reader} LOGIN", f"CREATE ROLE {owner}", f"CREATE SCHEMA s AUTHORIZATION {owner}")
    database.execute(
        "CREATE TABLE s.keyed (id int PRIMARY KEY, v text)",
        "CREATE TABLE s.bag (v text)",
        "CREATE TABLE s.secret (id int PRIMARY KEY)",
        "ALTER TABLE s.secret ENABLE ROW LEVEL SECURITY",
        "CREATE TABLE s.parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE s.part1 PARTITION OF s.parts FOR VALUES FROM (0) TO (100)",
        "ALTER TABLE s.part1 REPLICA IDENTITY NOTHING",
        "CREATE UNLOGGED TABLE s.part2 PARTITION OF s.parts FOR VALUES FROM (100) TO (200)",
        *(f"ALTER TABLE s.{table} OWNER TO {owner}" for table in ("keyed", "bag", "secret", "parts", "part1", "part2")),
    )
    yield reader
    database.execute(
        *(f"DROP OWNED BY {name} CASCADE" for name in (reader, owner)),
        *(f"DROP ROLE {name}" for name in (reader, owner)),
    )


def run_as_superuser(database: ScratchDatabase, script: str) -> None:
    """As a person does, with psql; an error ends it."""
    done = subprocess.run(
        ["psql", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", database.dsn],
        input=script, capture_output=True, text=True, check=False, timeout=60 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stderr}\n{script}"


@pytest.mark.matrix
def test_a_role_that_may_nothing_may_everything_after_the_script(
    database: ScratchDatabase, role: str, open_rig: Open
) -> None:
    rig = open_rig(database, (), user=role)
    rig.extra = "tables: {include: [s.keyed, s.bag, s.secret, s.parts]}"
    rig.write_yaml(source={"user": role})
    before = found(rig)
    wanted = {
        "role_lacks_replication", "schema_usage_missing", "select_missing", "row_level_security", "unlogged_partition",
        "no_primary_key", "partition_identity", "may_not_create_publication", "table_not_owned",
    }  # fmt: skip
    assert wanted == codes(before) - {"ddl_trigger_missing"}
    done = rig.command("validate", str(rig.file), "--sql", check=2)
    needed = done.stdout.partition("-- Optional.")[0]
    statements = [line for line in needed.splitlines() if line and not line.startswith("--")]
    assert len(statements) == len(set(statements))
    run_as_superuser(database, done.stdout)
    after = found(rig)
    assert codes(after) == set()
    assert [p for p in after if p.severity is Severity.BLOCKING] == []
    told = rig.command("validate", str(rig.file)).stdout.splitlines()
    assert told[-1].startswith("No blocking problems found: 4 tables") or told[-1].startswith(
        "No problems found: 4 tables"
    )
    assert rig.command("validate", str(rig.file), "--sql").stdout == (
        f"-- {rig.name}: nothing that was found can be fixed by SQL.\n"
    )


@pytest.mark.matrix
def test_a_publication_and_a_slot_of_the_users_are_made_and_completed_by_the_script(
    database: ScratchDatabase, role: str, open_rig: Open
) -> None:
    named = {"user": role, "publication": f"p_{database.name}", "slot": f"s_{database.name}"}
    rig = open_rig(database, (), **named)
    rig.extra = "tables: {include: [s.keyed, s.bag]}"
    rig.write_yaml(source=named)
    assert {"publication_missing", "slot_missing", "no_primary_key"} <= codes(found(rig))
    run_as_superuser(database, rig.command("validate", str(rig.file), "--sql", check=2).stdout)
    assert codes(found(rig)) == set()

    publication = named["publication"]
    database.execute(
        f"ALTER PUBLICATION {publication} SET (publish = 'insert', publish_via_partition_root = false)",
        f"ALTER PUBLICATION {publication} DROP TABLE ONLY s.bag",
        "ALTER TABLE s.bag REPLICA IDENTITY NOTHING",
    )
    rig.extra = "tables: {include: [s.keyed, s.bag, s.parts]}"
    rig.write_yaml(source=named)
    wanted = {"publication_lacks_operations", "table_not_published", "partitions_not_via_root"}
    assert wanted <= codes(found(rig))
    run_as_superuser(database, rig.command("validate", str(rig.file), "--sql", check=2).stdout)
    after = found(rig)
    assert codes(after) == set()
    assert [p for p in after if p.severity is Severity.BLOCKING] == []
    database.execute(f"SELECT pg_drop_replication_slot('{named['slot']}')")


@pytest.fixture
def account(mysql_database: MysqlDatabase) -> Iterator[str]:
    """An account that may log in and read, and settings of the server that nothing can be replicated with."""
    server, name = mysql_database.server, f"r{mysql_database.name[-20:]}"
    mysql_database.execute(
        "CREATE TABLE plain (id int PRIMARY KEY)",
        "CREATE TABLE old (id int PRIMARY KEY) ENGINE = MyISAM",
        "CREATE TABLE partly (id int PRIMARY KEY, v int)",
        f"CREATE USER {name}@'%' IDENTIFIED BY '{server.password}'",
        *(f"GRANT SELECT ON {mysql_database.name}.{table} TO {name}@'%'" for table in ("plain", "old")),
        f"GRANT SELECT (id) ON {mysql_database.name}.partly TO {name}@'%'",
        "SET GLOBAL binlog_row_image = 'MINIMAL'",
        "SET GLOBAL binlog_row_metadata = 'MINIMAL'",
        "SET GLOBAL sync_binlog = 0",
        "SET GLOBAL binlog_expire_logs_seconds = 3600",
    )
    yield name
    mysql_database.execute(
        f"DROP USER {name}@'%'",
        "SET GLOBAL binlog_row_image = 'FULL'",
        "SET GLOBAL binlog_row_metadata = 'FULL'",
        "SET GLOBAL sync_binlog = 1",
        "SET GLOBAL binlog_expire_logs_seconds = 604800",
    )


def test_an_account_and_a_server_of_mysql_are_right_after_the_script(
    mysql_database: MysqlDatabase, account: str, open_rig: Open
) -> None:
    rig = open_rig(mysql_database, ("plain", "old", "partly"), user=account)
    wanted = {
        "privilege_missing",
        "select_missing",
        "engine_not_transactional",
        "server_setting",
        "log_may_be_lost",
        "log_retention",
    }
    before = found(rig)
    assert codes(before) == wanted, before
    script = rig.command("validate", str(rig.file), "--sql", check=2).stdout
    statements = [line for line in script.splitlines() if line and not line.startswith("--")]
    assert len(statements) == len(set(statements))
    mysql_database.execute(*statements)
    after = found(rig)
    assert codes(after) == set()
    assert [p for p in after if p.severity is Severity.BLOCKING] == []
