"""Statements of the log and replicated tables, on real servers: what changed a table is seen, everyday work is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from replicator.model.errors import TableError
from replicator.model.events import OPERATION, ROW, DDLOperation
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import PullLimits
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer

_LIMITS = PullLimits(rows=10_000, bytes=64 << 20, wait_s=1.0)
Make = Callable[..., MysqlSource]


class Watched:
    """An open log, and what it said of the replicated tables."""

    def __init__(self, source: MysqlSource, *tables: TableId) -> None:
        self.source = source
        schemas = {t: d.schema for t, d in source.describe(tables).items()}
        self.reader = source.open_log(source.prepare(tables, is_first=True), schemas)
        self.rows: list[Any] = []
        self.ddl: list[str] = []
        self.shapes: list[TableSchema | None] = []
        self.keys: set[tuple[str, ...]] = set()
        self.errors: dict[str, TableError] = {}

    def drain(self) -> None:
        """Read everything up to now."""
        mark = self.source.mark()
        for _ in range(1000):
            batch = self.reader.pull(_LIMITS)
            for changes in batch.changes:
                self.keys.add(changes.schema.key)
                self.rows += [(c[OPERATION], tuple((c[ROW] or {}).values())) for c in changes.rows.to_pylist()]
            self.shapes += [e.schema for e in batch.ddl if e.operation is DDLOperation.ALTER_TABLE]
            self.ddl += [f"{e.operation.value} {e.table.name}" for e in batch.ddl]
            self.errors |= {table.name: e for table, e in [*batch.table_errors.items(), *batch.unlogged_errors.items()]}
            if mark in batch.marks:
                return
        raise AssertionError("the mark did not come")


@pytest.fixture
def watch(source_of: Make) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(database: MysqlDatabase, *names: str, **settings: Any) -> Watched:
        watched = Watched(source_of(database.server, **settings), *(TableId(database.name, n) for n in names))
        made.append(watched)
        return watched

    yield make
    for watched in made:
        watched.reader.close()


Watch = Callable[..., Watched]


def _in_session(database: MysqlDatabase, *statements: str) -> None:
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.parametrize("word", ["key", "index", "check", "unique", "foreign", "constraint", "fulltext", "spatial"])
def test_a_column_that_is_called_like_a_key_word_is_a_column(
    mysql_database: MysqlDatabase, watch: Watch, word: str
) -> None:
    mysql_database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, a int, `{word}` int)", "INSERT INTO t VALUES (1, 1, 1)"
    )
    log = watch(mysql_database, "t")
    mysql_database.execute(f"ALTER TABLE t DROP `{word}`, ADD `{word}` int DEFAULT 5")
    log.drain()
    assert log.ddl == ["ALTER_TABLE t"]


@pytest.mark.parametrize(
    "statement",
    [
        "/*!50000 ALTER TABLE t /* c */ TRUNCATE PARTITION p0 */",
        "/*!50000 ALTER TABLE t /* c */ DROP PRIMARY KEY, ADD PRIMARY KEY (a) */",
        "ALTER TABLE t ALTER b SET DEFAULT (5--1), DROP PRIMARY KEY, ADD PRIMARY KEY (a)",
        "DROP INDEX `PRIMARY` ON t",
        "ALTER TABLE t DROP INDEX `PRIMARY`, ADD CONSTRAINT PRIMARY KEY (a)",
        "ALTER TABLE t COMMENT 'x' REMOVE PARTITIONING",
    ],
)
def test_a_statement_is_read_as_the_server_reads_it(
    mysql_database: MysqlDatabase, watch: Watch, statement: str
) -> None:
    partitions = "PARTITION BY HASH (a) PARTITIONS 2" if "PARTITION" in statement else ""
    mysql_database.execute(f"CREATE TABLE t (id int, a int, b int, PRIMARY KEY (id, a)) {partitions}")
    log = watch(mysql_database, "t")
    mysql_database.execute(statement)
    log.drain()
    expected = "CREATE_TABLE t" if "TRUNCATE" in statement else "ALTER_TABLE t"
    assert log.ddl == ([] if statement.endswith("PARTITIONING") else [expected])
    assert log.errors == {}


def test_a_comment_is_no_part_of_a_statement(mysql_database: MysqlDatabase, watch: Watch) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    log = watch(mysql_database, "t")
    mysql_database.execute("ALTER TABLE t ADD INDEX (a) -- START TRANSACTION", "INSERT INTO t VALUES (1, 1)")
    log.drain()
    assert (log.rows, log.ddl) == ([("INSERT", (1, 1))], [])


@pytest.mark.parametrize("statement_format", ["STATEMENT", "MIXED"])
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM `{d}`.`t`",
        "INSERT INTO log VALUES (1)",
        "UPDATE v SET a = a + 1",
        "SELECT f(5)",
        "DO f(5)",
        "CALL p()",
        "ANALYZE DELETE FROM v",
    ],
)
def test_a_statement_in_place_of_rows_fails_what_it_may_have_changed(
    mysql_database: MysqlDatabase, watch: Watch, statement_format: str, statement: str
) -> None:
    if statement.startswith("ANALYZE") and mysql_database.server.flavor == "mysql":
        pytest.skip("MySQL has no ANALYZE of a statement that is executed")
    d = mysql_database.name
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    with mysql_database.server.database() as app:
        app.server.execute("SET GLOBAL log_bin_trust_function_creators = 1")
        app.execute(
            "CREATE TABLE log (id int)",
            f"CREATE TRIGGER g AFTER INSERT ON log FOR EACH ROW DELETE FROM `{d}`.t",
            f"CREATE VIEW v AS SELECT * FROM `{d}`.t",
            f"CREATE FUNCTION f(x int) RETURNS int MODIFIES SQL DATA BEGIN DELETE FROM `{d}`.t; RETURN x; END",
            f"CREATE PROCEDURE p() DELETE FROM `{d}`.t",
        )
        log = watch(mysql_database, "t")
        _in_session(app, f"SET SESSION binlog_format = {statement_format}", statement.format(d=d))
    log.drain()
    # MIXED may have logged rows after all.
    assert {n: e.code for n, e in log.errors.items()} == {"t": "statement_format"} or (
        statement_format == "MIXED" and log.rows
    )


@pytest.mark.parametrize("statement", ["TRUNCATE t", "ALTER TABLE t ADD x int", "ALTER TABLE t RENAME TO x"])
def test_a_temporary_table_of_the_same_name_empties_and_fails_nothing(
    mysql_database: MysqlDatabase, watch: Watch, statement: str
) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    log = watch(mysql_database, "t")
    _in_session(
        mysql_database,
        "SET SESSION binlog_format = STATEMENT",
        "CREATE TEMPORARY TABLE t (id int)",
        statement,
        f"DROP TEMPORARY TABLE {'x' if 'TO x' in statement else 't'}",
    )
    log.drain()
    # A new snapshot is right whichever of the two it was.
    assert (log.ddl, log.errors) == (["CREATE_TABLE t"], {})


def test_temporary_tables_in_row_format_are_nobody_s_business(mysql_database: MysqlDatabase, watch: Watch) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    log = watch(mysql_database, "t")
    _in_session(
        mysql_database,
        "CREATE TEMPORARY TABLE t AS SELECT 5 AS id",
        "INSERT INTO t VALUES (6)",
        "ALTER TABLE t ADD x int",
        "TRUNCATE t",
        "DROP TEMPORARY TABLE t",
        "CREATE TEMPORARY TABLE q LIKE t",
        "INSERT INTO q SELECT * FROM t",
    )
    log.drain()
    assert (log.rows, log.ddl, log.errors) == ([], [], {})


def test_memory_tables_that_the_server_empties_concern_nobody_else(mysql_database: MysqlDatabase, watch: Watch) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE m (id int) ENGINE = MEMORY")
    log = watch(mysql_database, "t")
    mysql_database.execute("INSERT INTO m VALUES (1)", "TRUNCATE m /* generated by server */")
    log.drain()
    assert (log.ddl, log.errors) == ([], {})


def test_what_cannot_be_read_is_told_with_its_text_and_without_its_values(
    mysql_database: MysqlDatabase, watch: Watch
) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a varchar(20))")
    log = watch(mysql_database, "t")
    _in_session(mysql_database, "SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (4711, 's3cret')")
    log.drain()
    assert "INSERT INTO t VALUES (?, ?)" in log.errors["t"].message
    assert "s3cret" not in str(log.errors["t"])


# --- tables that come and go ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (["DROP TABLE t, u"], ["DROP_TABLE t", "DROP_TABLE u"]),
        (["DROP TABLE IF EXISTS nosuch, u"], ["DROP_TABLE u"]),
        (
            ["DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)"],
            ["DROP_TABLE t"],
        ),
        (["TRUNCATE t", "INSERT INTO t VALUES (1, 1)"], ["TRUNCATE_TABLE t"]),
        (["CREATE TABLE x LIKE t", "CREATE TABLE IF NOT EXISTS t (b int)", "DROP TABLE x"], []),
        (["CREATE TABLE x (id int PRIMARY KEY) SELECT * FROM t", "INSERT INTO u VALUES (1)"], []),
        (["CREATE DATABASE {d}_2", "CREATE TABLE {d}_2.t (id int)", "DROP DATABASE {d}_2"], []),
        (["ALTER DATABASE CHARACTER SET latin1"], []),
        (["DROP DATABASE {d}", "CREATE DATABASE {d}"], ["DROP_TABLE t", "DROP_TABLE u"]),
    ],
)
def test_what_becomes_of_tables_is_told(
    mysql_database: MysqlDatabase, watch: Watch, statements: list[str], expected: list[str]
) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE u (id int PRIMARY KEY)")
    log = watch(mysql_database, "t", "u")
    mysql_database.execute(*(statement.format(d=mysql_database.name) for statement in statements))
    log.drain()
    assert (sorted(log.ddl), log.errors) == (expected, {})


def test_partitions_that_are_exchanged_lead_to_new_snapshots_of_both_tables(
    mysql_database: MysqlDatabase, watch: Watch
) -> None:
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10))",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
    )
    log = watch(mysql_database, "t", "u")
    mysql_database.execute("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u", "INSERT INTO t VALUES (2)")
    log.drain()
    assert (sorted(log.ddl), log.errors) == (["CREATE_TABLE t", "CREATE_TABLE u"], {})


def test_a_table_that_replaces_another_has_its_own_columns(mysql_database: MysqlDatabase, watch: Watch) -> None:
    replaced = ["DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, b int)"]
    if mysql_database.server.flavor == "mariadb":
        replaced = ["CREATE OR REPLACE TABLE t (id int PRIMARY KEY, b int)"]
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    log = watch(mysql_database, "t")
    mysql_database.execute("INSERT INTO t VALUES (1, 1)", *replaced, "ALTER TABLE t ADD c int")
    log.drain()
    assert log.shapes == [None]


# --- keys -----------------------------------------------------------------------------------------------------------

_KEYED = {
    "primary": ("b int NOT NULL, a int NOT NULL, PRIMARY KEY (a, b)", ("a", "b")),
    "primary_too": ("a int NOT NULL UNIQUE, id int PRIMARY KEY", ("id",)),
    "by_definition": ("a int NOT NULL, b int NOT NULL, UNIQUE zz (a), UNIQUE aa (b)", ("a",)),
    "nullable_first": ("a int, b int NOT NULL, UNIQUE aa (a), UNIQUE zz (b)", ("b",)),
    "prefix_first": ("a varchar(20) NOT NULL, b int NOT NULL, UNIQUE aa (a(5)), UNIQUE zz (b)", ("b",)),
    "primary_prefix": ("a varchar(20) NOT NULL, b int NOT NULL, PRIMARY KEY (a(5)), UNIQUE zz (b)", ()),
    "float_first": ("f float NOT NULL, b int NOT NULL, UNIQUE zz (f), UNIQUE aa (b)", ()),
    "stored": ("a int NOT NULL, v int AS (a + 1) STORED {not_null}, UNIQUE (v)", {"mysql": ("v",), "mariadb": ()}),
    "virtual": ("a int NOT NULL, v int AS (a + 1) VIRTUAL {not_null}, UNIQUE (v)", ()),
    "descending": ("a int NOT NULL, b int NOT NULL, UNIQUE zz (b DESC, a), UNIQUE aa (a)", ("b", "a")),
    "text": ("a varchar(100) NOT NULL, UNIQUE (a)", ("a",)),
    "binary": ("a varbinary(16) NOT NULL, b char(3) NOT NULL, UNIQUE (b, a)", ("b", "a")),
    "whole_prefix": ("a varchar(20) NOT NULL, UNIQUE (a(20))", ("a",)),
    "none": ("a int NOT NULL, KEY (a)", ()),
    "partitioned": ("a int NOT NULL, b int NOT NULL, UNIQUE zz (a), UNIQUE aa (a, b)) PARTITION BY HASH (a", ("a",)),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [*_KEYED, "hashed", "functional", "period", "instant"])
def test_log_and_catalogue_name_the_same_key(mysql_database: MysqlDatabase, watch: Watch, name: str) -> None:
    flavor = mysql_database.server.flavor
    definition, expected = _KEYED.get(name, ("", ()))
    if name == "hashed":
        definition = "a text NOT NULL, b int NOT NULL, UNIQUE aa (a), UNIQUE zz (b)"
        expected = ("b",)
    elif name == "functional":
        definition, expected = "a int NOT NULL, b int NOT NULL, UNIQUE aa ((a + 1)), UNIQUE zz (b)", ("b",)
    elif name == "period":
        definition = (
            "a int NOT NULL, s date NOT NULL, e date NOT NULL, PERIOD FOR p (s, e), UNIQUE aa (a, p WITHOUT OVERLAPS)"
        )
        expected = ("a", "e", "s")
    elif name == "instant":
        definition, expected = "a int NOT NULL, b int NOT NULL, UNIQUE zz (a)", ("b",)
    if (name in {"hashed", "period"} and flavor == "mysql") or (name == "functional" and flavor == "mariadb"):
        pytest.skip("the other server's")
    mysql_database.execute(f"CREATE TABLE t ({definition.format(not_null='NOT NULL' if flavor == 'mysql' else '')})")
    if name == "instant":
        mysql_database.execute(
            "ALTER TABLE t ADD UNIQUE aa (b)", "ALTER TABLE t DROP INDEX zz", "ALTER TABLE t ADD UNIQUE zz (a)"
        )
    log = watch(mysql_database, "t")
    columns = [c for (c,) in mysql_database.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 't'"
        " AND extra NOT LIKE '%GENERATED'"
    )]  # fmt: skip
    values = ["'2024-01-01'" if c == "s" else "'2025-01-01'" if c == "e" else "1" for c in columns]
    mysql_database.execute(f"INSERT INTO t ({', '.join(columns)}) VALUES ({', '.join(values)})")
    log.drain()
    assert log.ddl == [], "what the log names is what the catalogue named"
    if isinstance(expected, dict):
        expected = expected[flavor]
    assert log.keys == {expected}


@pytest.mark.parametrize("is_logged", [True, False], ids=["logged", "unlogged"])
def test_a_unique_key_that_is_dropped_and_made_again_leads_to_a_new_snapshot(
    mysql_database: MysqlDatabase, watch: Watch, is_logged: bool
) -> None:
    mysql_database.execute(
        "CREATE TABLE t (a int NOT NULL, b int NOT NULL, UNIQUE zz (a), UNIQUE aa (b))",
        "INSERT INTO t VALUES (1, 1), (5, 5)",
    )
    log = watch(mysql_database, "t")
    switch = "SET sql_log_bin = 1" if is_logged else "SET sql_log_bin = 0"
    _in_session(mysql_database, switch, "DROP INDEX zz ON t")
    mysql_database.execute("INSERT INTO t VALUES (1, 2)", "DELETE FROM t WHERE b = 2")
    _in_session(mysql_database, switch, "CREATE UNIQUE INDEX zz ON t (a)")
    mysql_database.execute("INSERT INTO t VALUES (7, 7)")
    log.drain()
    assert log.ddl == ["CREATE_TABLE t"]
    assert log.errors == {}


def test_another_unique_key_is_not_what_rows_are_known_by(mysql_database: MysqlDatabase, watch: Watch) -> None:
    mysql_database.execute("CREATE TABLE t (a int NOT NULL, b int NOT NULL, UNIQUE zz (a), UNIQUE aa (b))")
    log = watch(mysql_database, "t")
    mysql_database.execute(
        "INSERT INTO t VALUES (1, 1)",
        "DROP INDEX aa ON t",
        "INSERT INTO t VALUES (2, 1)",
        "DELETE FROM t WHERE a = 2",
        "CREATE UNIQUE INDEX aa ON t (b)",
    )
    log.drain()
    assert (log.ddl, log.keys) == ([], {("a",)})
    assert [operation for operation, _ in log.rows] == ["INSERT", "INSERT", "DELETE"]


def test_columns_that_were_changed_at_once_and_without_a_log_are_seen(mysql: MysqlServer, source_of: Make) -> None:
    with mysql.database() as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "INSERT INTO t VALUES (1, 1, 1)")
        source, table = source_of(mysql), TableId(database.name, "t")
        before = source.describe([table])[table]
        _in_session(
            database,
            "SET sql_log_bin = 0",
            "ALTER TABLE t DROP b, ALGORITHM = INSTANT",
            "ALTER TABLE t ADD b int DEFAULT 5",
        )
        after = source.describe([table])[table]
        assert before.schema == after.schema
        assert before.identity != after.identity
        database.execute("OPTIMIZE TABLE t", "TRUNCATE t")
        storage = source.describe([table])[table].identity.storage
        assert isinstance(storage, str)
        assert all(number.isdigit() for number in storage.split(":"))
