"""Migrations as people run them on MySQL and MariaDB: each table's columns and rows arrive, or that table stops with the statement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from replicator.apply import Apply
from replicator.config import DDLConfig
from replicator.journal import JournalReader
from replicator.model.schema import TableId
from replicator.state import table_life
from replicator.state.records import RequestKind, Stage
from replicator_testbed.journals.applied import Control
from replicator_testbed.journals.captured import Captured, RunningCapture
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testing.defaults import AT_ONCE, apply_settings, target_context
from replicator_testing.memory import MemoryTarget, MemoryTargetConfig, MemoryWarehouse

Make = Callable[..., Captured]

TABLE: Final = "CREATE TABLE {t} (id INT NOT NULL PRIMARY KEY, a INT, b VARCHAR(20), c TEXT)"
ROWS: Final = "INSERT INTO {t} VALUES (1, 10, 'one', 'x'), (2, 20, 'two', NULL), (3, NULL, NULL, 'größe')"


class Case(NamedTuple):
    """A sequence about `{t}`, in one session.

    Attributes:
        statements: They may make further tables, whose names begin with `{t}_`.
        stops: The statement that stops the table, as its message shows it; empty: nothing stops it.
        only: The server that knows it; empty: both.
    """

    statements: Sequence[str]
    stops: str = ""
    only: str = ""


CASES: Final[Mapping[str, Case]] = {
    "names that are swapped": Case(["ALTER TABLE {t} RENAME COLUMN b TO c, RENAME COLUMN c TO b"]),
    "a name that is given up and taken": Case(["ALTER TABLE {t} RENAME COLUMN a TO old, ADD COLUMN a INT DEFAULT 99"]),
    "moved behind one that is renamed": Case(
        ["ALTER TABLE {t} CHANGE a z BIGINT FIRST, ADD n INT DEFAULT 1 AFTER z, MODIFY b VARCHAR(30) AFTER n"]
    ),
    "altered and renamed at once": Case(["ALTER TABLE {t} ADD n INT DEFAULT 2, RENAME TO {t}_u", "UPDATE {t}_u SET n = 3"]),
    "comments": Case(
        ["ALTER TABLE {t} /*!50100 ADD COLUMN n INT DEFAULT 7, */ -- DROP COLUMN a\n ADD /* x */ m INT # the end"]
    ),
    "quotes of names": Case(
        ["SET sql_mode = 'ANSI_QUOTES'", 'ALTER TABLE "{t}" ADD "my col" VARCHAR(5) NOT NULL DEFAULT \'x\', ADD `q.r` INT']
    ),
    "swapped by a tool": Case(
        ["CREATE TABLE {t}_new LIKE {t}", "ALTER TABLE {t}_new ADD n INT NOT NULL DEFAULT 7",
         "INSERT INTO {t}_new (id, a) SELECT id, a FROM {t}",
         "RENAME TABLE {t} TO {t}_old, {t}_new TO {t}", "UPDATE {t} SET a = 1", "DROP TABLE {t}_old"]
    ),
    "hidden by a temporary table": Case(
        ["CREATE TEMPORARY TABLE {t} (x INT)", "ALTER TABLE {t} ADD n INT", "TRUNCATE TABLE {t}", "DROP TABLE {t}"]
    ),
    "another key": Case(["ALTER TABLE {t} ADD k INT NOT NULL DEFAULT 1 FIRST, DROP PRIMARY KEY, ADD PRIMARY KEY (k, id)"]),
    "geometry": Case(["ALTER TABLE {t} ADD area MULTIPOLYGON, ADD parts GEOMETRYCOLLECTION", "UPDATE {t} SET a = 5"]),
    "a long text": Case(["ALTER TABLE {t} ADD n VARCHAR(20000) CHARACTER SET latin1", "UPDATE {t} SET n = 'x'"]),
    "text whose type the statement does not say": Case(
        ["ALTER TABLE {t} ADD n TEXT(100) COMMENT 'a value'"], stops="ALTER TABLE {t} ADD n TEXT (?) COMMENT ?"
    ),
    "a character set that the statement does not name": Case(
        ["ALTER TABLE {t} CONVERT TO CHARACTER SET DEFAULT"], stops="ALTER TABLE {t} CONVERT TO CHARACTER SET DEFAULT"
    ),
    "an alteration in two phases": Case(
        ["SET SESSION binlog_alter_two_phase = 1", "ALTER TABLE {t} ADD n INT DEFAULT 3, ALGORITHM = COPY"],
        stops="ALTER TABLE {t} ADD n INT DEFAULT ?, ALGORITHM = COPY", only="mariadb",
    ),
    "only if it is there": Case(
        ["ALTER TABLE {t} ADD IF NOT EXISTS a BIGINT, DROP IF EXISTS nosuch, ADD IF NOT EXISTS n INT DEFAULT 6"], only="mariadb"
    ),
    "another settings for one statement": Case(
        ["SET STATEMENT max_statement_time = 60 FOR ALTER TABLE {t} ADD n INT DEFAULT 4"], only="mariadb"
    ),
}  # fmt: skip


class Bench:
    """A capture of all tables of a database, and what applies it to a target in memory."""

    def __init__(self, database: MysqlDatabase, captured: Captured, folder: Path) -> None:
        self.database, self.captured, self.folder = database, captured, folder
        policies = DDLConfig(change_key="apply", change_type="apply", drop_column="apply")
        captured.settings = replace(
            captured.settings, compare_every_s=0.2, ddl=lambda _: policies, selects=lambda table: table.namespace == database.name
        )  # fmt: skip

    def names(self) -> list[str]:
        return [name for name, kind in self.database.execute("SHOW FULL TABLES") if kind == "BASE TABLE"]

    def select(self) -> None:
        self.captured.tables[:] = [TableId(self.database.name, name) for name in self.names()]

    def stopped(self) -> dict[str, str]:
        """What the tables that wait for somebody say."""
        records = self.captured.store.tables(self.captured.name)
        return {
            r.table.name: f"{r.error.code}: {r.error.message}"
            for r in records
            if table_life.waits_for_acceptance(r) and r.error
        }

    def settle(self, running: RunningCapture) -> None:
        """Wait until every table has stopped, or is in the target as it is in the source."""
        running.wait_until(lambda: not self._differences(running), lambda: f"it settles: {self._differences(running)}")

    def _differences(self, running: RunningCapture) -> list[str]:
        self.select()
        self.captured.catch_up(running)
        records = {(r.source_table or r.table).name: r for r in self.captured.store.tables(self.captured.name)
                   if table_life.is_replicated(r) and not table_life.is_dropped(r)}  # fmt: skip
        names, stopped = self.names(), self.stopped()
        waiting = [
            n for n in names if n not in records or (n not in stopped and records[n].stage is not Stage.STREAMING)
        ]
        if waiting:
            return [f"{name} waits" for name in waiting]
        self._apply(running)
        stored = MemoryWarehouse.open(str(self.folder)).tables
        found = []
        for name in names:
            table = records[name].table
            if table.name in stopped:
                continue
            held = stored.get(table)
            columns = [] if held is None or held.schema is None else [column.name for column in held.schema.columns]
            wanted = self.database.columns(name)
            if held is None or columns != wanted:
                found.append(f"{name} has {columns} instead of {wanted}")
            elif Counter(tuple(row[c] for c in columns) for row in held.live()) != Counter(
                map(tuple, self.database.rows(name, columns))
            ):
                found.append(f"{name} has other rows")
        return found

    def _apply(self, running: RunningCapture) -> None:
        store, name = self.captured.store, self.captured.name
        record = store.replicator(name)
        assert record is not None
        context = target_context(replicator=name, uuid=record.uuid, epoch=running.lease.epoch)

        def is_applied() -> bool:
            applied = store.applied(name)
            return all(
                t in applied and (applied[t].has_failed or applied[t].last_applied >= n)
                for t, n in store.journal.feed_tables(name).items()
            )

        target: Any = MemoryTarget(MemoryTargetConfig(database=str(self.folder)), context)
        apply = Apply(
            target,
            store,
            JournalReader(store, name),
            name=name,
            uuid=record.uuid,
            epoch=running.lease.epoch,
            settings=apply_settings(AT_ONCE),
        )
        apply.run(Control(is_applied))


def test_each_arrives_or_stops_its_table_alone_with_the_statement(
    mysql_database: MysqlDatabase, make_mysql: Make, tmp_path: Path
) -> None:
    flavor = mysql_database.server.flavor
    cases = {f"t{number}": case for number, case in enumerate(CASES.values()) if case.only in {"", flavor}}
    mysql_database.execute(*(text.format(t=name) for name in cases for text in (TABLE, ROWS)))
    captured = make_mysql(mysql_database)
    bench = Bench(mysql_database, captured, tmp_path)
    bench.select()
    with captured.running() as running:
        bench.settle(running)
        for name, case in cases.items():
            with closing(mysql_database.connect()) as session, session.cursor() as cursor:
                for text in case.statements:
                    cursor.execute(text.format(t=name))
        bench.settle(running)
        wanted = {name: case.stops.format(t=name) for name, case in cases.items() if case.stops}
        told = {name: text.rpartition("understood: ")[2] for name, text in bench.stopped().items()}
        assert told == wanted, bench.stopped()
        captured.request(RequestKind.ACCEPT, tables=[f"{mysql_database.name}.{name}" for name in wanted])
        running.wait_until(lambda: not bench.stopped(), lambda: f"they continue: {bench.stopped()}")
        mysql_database.execute(*(f"INSERT INTO {name} (id) VALUES (100)" for name in wanted))
        bench.settle(running)
