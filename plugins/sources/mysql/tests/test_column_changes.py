"""Columns that change while the log is read, on real servers: events, and rows before and behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from replicator.model.events import BEFORE, OPERATION, ROW, DDLEvent
from replicator.model.offset import Offset
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import PullLimits
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.present import present

_LIMITS = PullLimits(rows=10_000, bytes=64 << 20, wait_s=1.0)
Make = Callable[..., MysqlSource]


class Log:
    """An open log of one table, and what it said in its order: shapes of rows with the rows, and events."""

    def __init__(self, source: MysqlSource, table: TableId) -> None:
        self.source = source
        self.table = table
        self.offset = source.prepare([table], is_first=True)
        self.open(source.describe([table])[table].schema)

    def open(self, schema: TableSchema, offset: Offset | None = None) -> None:
        """Open the log, as after a restart."""
        self.reader = self.source.open_log(offset or self.offset, {self.table: schema})

    def drain(self) -> list[Any]:
        """Everything up to now: `(schema, rows)` and events."""
        mark = self.source.mark()
        found: list[Any] = []
        for _ in range(1000):
            batch = self.reader.pull(_LIMITS)
            assert not batch.table_errors
            found += [(changes.schema, changes.rows.to_pylist()) for changes in batch.changes]
            found += batch.ddl
            self.offset = batch.offset or self.offset
            if mark in batch.marks:
                return found
        raise AssertionError("the mark did not come")

    def catalogue(self) -> TableSchema:
        return self.source.describe([self.table])[self.table].schema


@pytest.fixture
def log_of(source_of: Make) -> Iterator[Callable[[MysqlDatabase], Log]]:
    made: list[Log] = []

    def make(database: MysqlDatabase) -> Log:
        made.append(Log(source_of(database.server), TableId(database.name, "t")))
        return made[-1]

    yield make
    for log in made:
        log.reader.close()


LogOf = Callable[[MysqlDatabase], Log]


def _plain(schema: TableSchema) -> TableSchema:
    """The schema as the catalogue has it, without numbers and what is kept."""
    return replace(schema, columns=tuple(replace(c, id=None) for c in schema.columns), kept=())


def _events(found: list[Any]) -> list[DDLEvent]:
    return [f for f in found if isinstance(f, DDLEvent)]


def _images(found: list[Any], image: str = ROW) -> list[Mapping[str, Any]]:
    return [row[image] for f in found if isinstance(f, tuple) for row in f[1]]


def test_three_shapes_in_one_poll_are_three(each_mysql_database: MysqlDatabase, log_of: LogOf) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a varchar(9))")
    log = log_of(each_mysql_database)
    each_mysql_database.execute(
        "INSERT INTO t VALUES (1, 'x')",
        "ALTER TABLE t ADD b decimal(9,2) NOT NULL DEFAULT 1.5 AFTER id",
        "INSERT INTO t VALUES (2, 2.25, 'y')",
        "ALTER TABLE t RENAME COLUMN a TO c, ADD a enum('n','m') NOT NULL",
        "UPDATE t SET b = 3 WHERE id = 1",
    )
    first_rows, first, second_rows, second, third_rows = found = log.drain()
    assert isinstance(first, DDLEvent)
    assert isinstance(second, DDLEvent)
    assert first.before is not None
    assert first.fill is not None
    assert second.schema is not None
    assert _plain(first.before) == first_rows[0]
    assert (first.schema, second.before) == (second_rows[0], second_rows[0])
    assert second.schema == third_rows[0]
    assert _plain(third_rows[0]) == log.catalogue()
    assert [r.to_pylist() for r in (first.fill, second.fill) if r is not None] == [
        [{"b": first.fill.column("b")[0].as_py()}], [{"a": "n"}],
    ]  # fmt: skip
    assert str(first.fill.column("b")[0]) == "1.50"
    assert [list(map(str, row.values())) for row in _images(found)] == [
        ["1", "x"], ["2", "2.25", "y"], ["1", "3.00", "x", "n"],
    ]  # fmt: skip
    assert [c.id for c in second.schema.columns] == [1, 3, 2, 4]
    assert first.statement == "ALTER TABLE t ADD b decimal(9,2) NOT NULL DEFAULT 1.5 AFTER id"


def test_a_column_that_is_dropped_and_added_again_is_another_one(
    each_mysql_database: MysqlDatabase, log_of: LogOf
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    log = log_of(each_mysql_database)
    each_mysql_database.execute(
        "INSERT INTO t VALUES (1, 2, 3)",
        "ALTER TABLE t DROP b",
        "ALTER TABLE t ADD b int",
        "INSERT INTO t VALUES (2, 2, 3)",
        "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a",
        "INSERT INTO t VALUES (3, 2, 3)",
    )
    found = log.drain()
    shapes = [[(c.name, c.id) for c in f[0].columns] for f in found if isinstance(f, tuple)]
    assert shapes == [
        [("id", None), ("a", None), ("b", None)],
        [("id", 1), ("a", 2), ("b", 4)],
        [("id", 1), ("b", 2), ("a", 4)],
    ]
    assert _images(found)[-1] == {"id": 3, "b": 2, "a": 3}


def test_numbers_continue_after_a_restart(each_mysql_database: MysqlDatabase, log_of: LogOf) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    log = log_of(each_mysql_database)
    each_mysql_database.execute("ALTER TABLE t DROP a, ADD b int")
    (event,) = log.drain()
    assert event.schema is not None
    gone = Column(name="a", type=event.before.columns[1].type, source_type="int", id=2)
    known = replace(event.schema, kept=(gone,))
    log.reader.close()
    log.open(known)
    each_mysql_database.execute("INSERT INTO t VALUES (1, 2)", "ALTER TABLE t DROP b", "ALTER TABLE t ADD a int")
    rows, dropped, added = log.drain()
    assert rows[0] == known
    assert dropped.before == known
    assert added.schema.kept == (gone,)
    assert [(c.name, c.id) for c in added.schema.columns] == [("id", 1), ("a", 4)]


def test_what_is_read_twice_is_the_same(each_mysql_database: MysqlDatabase, log_of: LogOf) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    log = log_of(each_mysql_database)
    before, begin = log.catalogue(), log.offset
    each_mysql_database.execute(
        "ALTER TABLE t ADD b char(3) DEFAULT 'x'", "INSERT INTO t VALUES (1, 2, 'y')", "ALTER TABLE t DROP a"
    )
    found = log.drain()
    log.reader.close()
    log.open(before, begin)
    assert log.drain() == found


@pytest.mark.parametrize("key", ["PRIMARY KEY (a, b)", "UNIQUE (a, b)"])
def test_a_key_whose_columns_get_other_names_and_positions_is_the_same_key(
    each_mysql_database: MysqlDatabase, log_of: LogOf, key: str
) -> None:
    each_mysql_database.execute(f"CREATE TABLE t (a int NOT NULL, b int NOT NULL, c int, {key})")
    log = log_of(each_mysql_database)
    each_mysql_database.execute(
        "INSERT INTO t VALUES (1, 2, 3)",
        "ALTER TABLE t RENAME COLUMN a TO x, CHANGE b a int NOT NULL FIRST",
        "UPDATE t SET x = 5",
        "DELETE FROM t",
    )
    found = log.drain()
    (event,) = _events(found)
    assert event.schema is not None
    assert event.schema.key == ("x", "a")
    assert _plain(event.schema) == log.catalogue()
    assert [dict(r) for r in _images(found, BEFORE)[1:]] == [{"x": 1, "a": 2}, {"x": 5, "a": 2}]
    assert _images(found)[1] == {"a": 2, "x": 5, "c": 3}


def test_each_row_has_the_key_of_its_position(each_mysql_database: MysqlDatabase, log_of: LogOf) -> None:
    each_mysql_database.execute("CREATE TABLE t (a int NOT NULL, b int NOT NULL, c int, PRIMARY KEY (a), UNIQUE u (b))")
    log = log_of(each_mysql_database)
    each_mysql_database.execute(
        "INSERT INTO t VALUES (1, 1, 1)",
        "ALTER TABLE t DROP PRIMARY KEY",
        "UPDATE t SET c = 2",
        "ALTER TABLE t MODIFY b bigint NOT NULL, ADD PRIMARY KEY (a, b)",
        "UPDATE t SET c = 3",
        "DROP INDEX u ON t",
        "DROP INDEX `PRIMARY` ON t",
        "UPDATE t SET c = 4",
    )
    found = log.drain()
    assert [f[0].key if isinstance(f, tuple) else (f.before.key, f.schema.key, f.fill is not None) for f in found] == [
        ("a",),
        (("a",), (), True),
        ((), ("b",), True),
        ("b",),
        (("b",), ("a", "b"), True),
        ("a", "b"),
        (("a", "b"), (), True),
        (),
    ]
    for earlier, later in zip(_events(found), _events(found)[1:], strict=False):
        assert earlier.schema == later.before
    assert [c.id for c in found[-1][0].columns] == [1, 2, 3]
    assert _plain(found[-1][0]) == log.catalogue()


def test_a_key_that_is_read_twice_is_the_same(each_mysql_database: MysqlDatabase, log_of: LogOf) -> None:
    each_mysql_database.execute("CREATE TABLE t (a int NOT NULL, b int NOT NULL, UNIQUE u (a))")
    log = log_of(each_mysql_database)
    before, begin = log.catalogue(), log.offset
    each_mysql_database.execute(
        "INSERT INTO t VALUES (1, 1)", "ALTER TABLE t DROP INDEX u, ADD UNIQUE (b)", "INSERT INTO t VALUES (2, 2)"
    )
    found = log.drain()
    log.reader.close()
    log.open(before, begin)
    assert log.drain() == found
    assert [present(event.schema).key for event in _events(found)] == [("b",)]


def test_types_that_change_between_rows_are_those_of_their_positions(
    each_mysql_database: MysqlDatabase, log_of: LogOf
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b varchar(5), c date)")
    log = log_of(each_mysql_database)
    each_mysql_database.execute(
        "INSERT INTO t VALUES (1, 2, 'x', '2024-02-29')",
        "ALTER TABLE t MODIFY a bigint, MODIFY c datetime(3)",
        "INSERT INTO t VALUES (2, 9223372036854775807, 'y', '2024-02-29 01:02:03.25')",
        "ALTER TABLE t MODIFY a varchar(20), MODIFY b enum('x', 'y')",
        "INSERT INTO t VALUES (3, 'text', 'x', NULL)",
    )
    found = log.drain()
    rows, first, more, second, last = found
    assert (first.schema, second.before, second.schema) == (more[0], more[0], last[0])
    assert (first.fill is not None, second.fill) == (True, None)
    assert [list(map(str, row.values())) for row in _images(found)] == [
        ["1", "2", "x", "2024-02-29"],
        ["2", "9223372036854775807", "y", "2024-02-29 01:02:03.250000"],
        ["3", "text", "x", "None"],
    ]
    assert _plain(rows[0]) == _plain(first.before)
    assert _plain(last[0]) == log.catalogue()


def test_a_table_without_a_key_continues(each_mysql_database: MysqlDatabase, log_of: LogOf) -> None:
    each_mysql_database.execute("CREATE TABLE t (a int, b int)")
    log = log_of(each_mysql_database)
    each_mysql_database.execute(
        "INSERT INTO t VALUES (1, 2)",
        "ALTER TABLE t ADD c int DEFAULT 3 FIRST, DROP b",
        "UPDATE t SET a = 5",
        "DELETE FROM t",
    )
    found = log.drain()
    assert [f.operation.value for f in _events(found)] == ["ALTER_TABLE"]
    assert _images(found)[1:] == [{"c": 3, "a": 5}, None]
    assert _images(found, BEFORE)[1:] == [{"c": 3, "a": 1}, {"c": 3, "a": 5}]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD c int DEFAULT (1 + 1)",
        "ALTER TABLE t ADD c datetime NOT NULL DEFAULT CURRENT_TIMESTAMP",
        "ALTER TABLE t ADD c int AS (a + 1) STORED",
        "ALTER TABLE t ADD c int AS (a + 1) VIRTUAL",
        "ALTER TABLE t ADD c int, CONVERT TO CHARACTER SET latin1",
        "ALTER TABLE t ADD c serial",
        "ALTER TABLE t DROP PRIMARY KEY, ADD c int PRIMARY KEY AUTO_INCREMENT",
        "ALTER TABLE t ADD c int, ENGINE = InnoDB",
        "ALTER TABLE t ADD c timestamp NOT NULL DEFAULT '2024-01-01 00:00:00'",
        "ALTER TABLE t MODIFY a int AUTO_INCREMENT, ADD INDEX (a)",
    ],
)
def test_values_that_only_the_server_knows_are_left_to_a_snapshot(
    each_mysql_database: MysqlDatabase, log_of: LogOf, statement: str
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 2)")
    log = log_of(each_mysql_database)
    each_mysql_database.execute(statement)
    (event,) = log.drain()
    assert event.schema is not None
    assert _plain(event.schema) == log.catalogue()
    assert event.fill is None


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD c text(100)",
        "ALTER TABLE t CONVERT TO CHARACTER SET DEFAULT",
    ],
)
def test_what_is_not_understood_has_no_shape(each_mysql_database: MysqlDatabase, log_of: LogOf, statement: str) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    log = log_of(each_mysql_database)
    each_mysql_database.execute(statement)
    (event,) = log.drain()
    assert (event.operation.value, event.schema, event.before, event.fill) == ("ALTER_TABLE", None, None, None)
    # For the message with which the table stops: without values.
    assert (event.shown or "").replace(" ", "") == statement.replace(" ", "").replace("100", "?")


def test_a_known_shape_that_is_not_that_of_the_statement_is_not_altered(
    each_mysql_database: MysqlDatabase, log_of: LogOf
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    log = log_of(each_mysql_database)
    begin = log.offset
    each_mysql_database.execute("ALTER TABLE t ADD b int")
    log.reader.close()
    # The catalogue has it already.
    log.open(log.catalogue(), begin)
    (event,) = log.drain()
    assert event.schema is None
    each_mysql_database.execute("ALTER TABLE t ADD c int")
    (event,) = log.drain()
    assert event.schema is None, "nothing has shown that the known shape is that of the table"


def test_a_shape_that_the_log_shows_again_can_be_altered_again(
    each_mysql_database: MysqlDatabase, log_of: LogOf
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    log = log_of(each_mysql_database)
    each_mysql_database.execute(
        "ALTER TABLE t ADD b text(100)",
        "ALTER TABLE t ADD c int",
        "ALTER TABLE t DROP b, DROP c",
        "INSERT INTO t VALUES (1, 2)",
        "ALTER TABLE t ADD d int",
    )
    events = _events(log.drain())
    assert [event.schema is not None for event in events] == [False, False, False, True]
    last = events[-1].schema
    assert last is not None
    assert _plain(last) == log.catalogue()


def test_a_change_that_is_not_in_the_log_makes_the_next_one_unclear(
    each_mysql_database: MysqlDatabase, log_of: LogOf
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    log = log_of(each_mysql_database)
    with closing(each_mysql_database.connect()) as session, session.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("ALTER TABLE t ADD b int")
    each_mysql_database.execute("INSERT INTO t VALUES (1, 2, 3)", "ALTER TABLE t ADD c int")
    (event,) = _events(log.drain())
    assert event.schema is None


def test_text_of_a_table_whose_character_set_is_binary_is_contradicted_by_the_log(
    each_mysql_database: MysqlDatabase, log_of: LogOf
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY) CHARACTER SET binary")
    log = log_of(each_mysql_database)
    each_mysql_database.execute("ALTER TABLE t ADD b varchar(5)", "INSERT INTO t VALUES (1, 'x')")
    event, (schema, _) = log.drain()
    assert (str(event.schema.column("b").type), str(schema.column("b").type)) == ("string", "binary")


def test_an_alter_in_two_phases_is_not_applied(each_mysql_database: MysqlDatabase, log_of: LogOf) -> None:
    if each_mysql_database.server.flavor != "mariadb" or not each_mysql_database.execute(
        "SHOW VARIABLES LIKE 'binlog_alter_two_phase'"
    ):
        pytest.skip("MariaDB's, from 10.8 on")
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log = log_of(each_mysql_database)
    with closing(each_mysql_database.connect()) as session, session.cursor() as cursor:
        cursor.execute("SET SESSION binlog_alter_two_phase = 1")
        cursor.execute("ALTER TABLE t ADD a int")
    assert [(event.operation.value, event.schema) for event in log.drain()] == [("ALTER_TABLE", None)] * 2


def test_rows_that_are_written_while_columns_come_and_go_fit_their_shapes(
    each_mysql_database: MysqlDatabase, log_of: LogOf
) -> None:
    each_mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    log = log_of(each_mysql_database)
    for number in range(12):
        each_mysql_database.execute(
            f"INSERT INTO t (id) VALUES ({number})",
            f"ALTER TABLE t ADD c{number} int DEFAULT {number} {'FIRST' if number % 2 else 'AFTER a'}",
            f"ALTER TABLE t DROP c{number - 3}" if number > 2 else "UPDATE t SET a = 1",
        )
    found = log.drain()
    shape: TableSchema | None = None
    for item in found:
        if isinstance(item, DDLEvent):
            assert item.before is not None
            assert shape is None or _plain(item.before) == _plain(shape)
            assert item.fill is not None
            shape = item.schema
        elif shape is not None:
            assert item[0] == shape
    assert shape is not None
    assert _plain(shape) == log.catalogue()
    assert len({c.id for e in _events(found) if e.schema for c in e.schema.columns}) == 14
    assert {row[OPERATION] for f in found if isinstance(f, tuple) for row in f[1]} == {"INSERT", "UPDATE"}
