"""Statements that are rehearsed, on real servers: what is said is what the log brings, and nothing is executed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from replicator.model.errors import ConfigError, TableError
from replicator.model.events import DDLEvent
from replicator.model.schema import TableId
from replicator.plugins.source import PullLimits
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase

Make = Callable[..., MysqlSource]

_LIMITS = PullLimits(rows=10_000, bytes=64 << 20, wait_s=1.0)


def _told(event: DDLEvent) -> tuple[Any, ...]:
    fill = None if event.fill is None else event.fill.to_pylist()
    return event.operation, event.table, event.before, event.schema, event.new_table, fill


def _logged(source: MysqlSource, tables: list[TableId], execute: Callable[[], Any]) -> list[DDLEvent]:
    schemas = {table: found.schema for table, found in source.describe(tables).items()}
    offset = source.prepare(tables, is_first=True)
    execute()
    mark = source.mark()
    events: list[DDLEvent] = []
    with closing(source.open_log(offset, schemas)) as reader:
        while True:
            batch = reader.pull(_LIMITS)
            events += batch.ddl
            if mark in batch.marks:
                return events


def test_what_is_said_is_what_the_log_brings(mysql_database: MysqlDatabase, source_of: Make) -> None:
    source = source_of(mysql_database.server)
    mysql_database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    name = mysql_database.name
    for statement in (
        f"ALTER TABLE {name}.t ADD b int NOT NULL DEFAULT 5 FIRST, DROP a, CHANGE c d bigint NOT NULL;",
        f"ALTER TABLE {name}.t ADD b datetime DEFAULT CURRENT_TIMESTAMP",
        f"ALTER TABLE {name}.t DROP PRIMARY KEY, ADD PRIMARY KEY (id, c)",
        f"ALTER TABLE {name}.t ADD INDEX (a)",
        f"DROP INDEX `PRIMARY` ON {name}.t",
        f"TRUNCATE TABLE {name}.t",
        f"ALTER TABLE {name}.t ENGINE = InnoDB",
        f"DROP TABLE {name}.t",
    ):
        mysql_database.execute("DROP TABLE IF EXISTS t", "CREATE TABLE t (id int PRIMARY KEY, a int, c int NOT NULL)")
        tables = [TableId(name, "t"), TableId(name, "u")]
        before = source.describe(tables)
        said = source.rehearse(statement)
        assert source.rehearse(statement) == said
        assert {t: replace(f, estimated_rows=None) for t, f in source.describe(tables).items()} == {
            t: replace(f, estimated_rows=None) for t, f in before.items()
        }
        logged = _logged(source, tables, partial(mysql_database.execute, statement))
        assert list(map(_told, said)) == list(map(_told, logged)), statement
        assert [event.statement for event in said] == [statement] * len(said)


def test_a_table_without_a_database_is_the_only_one_of_its_name(mysql_database: MysqlDatabase, source_of: Make) -> None:
    source = source_of(mysql_database.server)
    name = f"only_{mysql_database.name}"
    mysql_database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    (event,) = source.rehearse(f"ALTER TABLE {name} ADD b int")
    assert event.table == TableId(mysql_database.name, name)
    with mysql_database.server.database() as other:
        other.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
        with pytest.raises(ConfigError) as caught:
            source.rehearse(f"ALTER TABLE {name} ADD b int")
        assert caught.value.code == "ddl_not_understood"


@pytest.mark.parametrize("statement", ["SELECT 1", "INSERT INTO t VALUES (1)", "nonsense", "", "SET x = 1", "'"])
def test_what_defines_no_table_is_refused(mysql_database: MysqlDatabase, source_of: Make, statement: str) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(ConfigError) as caught:
        source_of(mysql_database.server).rehearse(statement)
    assert caught.value.code == "ddl_not_understood"


@pytest.mark.parametrize("rest", ["ADD b text(100)", "DO something", "DROP nosuch", "ADD b int AFTER nosuch"])
def test_what_would_fail_a_table_is_told(mysql_database: MysqlDatabase, source_of: Make, rest: str) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(TableError) as caught:
        source_of(mysql_database.server).rehearse(f"ALTER TABLE {mysql_database.name}.t {rest}")
    assert (caught.value.code, caught.value.table) == ("ddl_not_understood", f"{mysql_database.name}.t")
