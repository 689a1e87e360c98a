"""Names and comments that break what is careless with text: through every statement of the sources, and back unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed import hostile
from replicator_testbed.journals.captured import Captured
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.postgresql.servers import ScratchDatabase

# PostgreSQL's own columns.
POSTGRES = hostile.names(bytes_max=63, unfit={"ctid", "xmin", "tableoid"})
MYSQL = hostile.names(bytes_max=192, chars_max=64, is_bmp=True)
COMMENTS = [c.replace("\x00", "")[:1024] for c in hostile.COMMENTS]
# A comment of MySQL has three bytes for a character.
PLAIN_COMMENTS = [c for c in COMMENTS if max(c) <= "\uffff"]
NAMESPACE = 'it\'s "a" `b` %s {} ${env:PATH} \U0001f600.'
# No name of MySQL has a character beyond U+FFFF.
DATABASE = 'it\'s "a" `b` %s {} ${env:PATH} \\ 字.'
PUBLICATION = 'p\'s "%s" %% {0} {} $1 \\ \U0001f600'
KEYS = 12


def ansi(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def backticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def checked(captured: Captured, table: TableId, names: Sequence[str], comments: Sequence[str]) -> None:
    """Table, columns and comments stand in the journal as they stand in the source."""
    (made,) = [
        e for e in captured.events(table) if isinstance(e, DDLEvent) and e.operation is DDLOperation.CREATE_TABLE
    ]
    assert made.schema is not None
    assert made.schema.table == table
    assert [c.name for c in made.schema.columns] == list(names)
    assert [c.comment for c in made.schema.columns] == list(comments)
    assert made.schema.comment == comments[-1]


class Postgres:
    """Hostile tables in a hostile schema of PostgreSQL."""

    def __init__(self, database: ScratchDatabase) -> None:
        self.database = database
        self.namespace = NAMESPACE
        database.execute(f"CREATE SCHEMA {ansi(self.namespace)}")

    def make(self, name: str, columns: Sequence[str], comments: Sequence[str]) -> None:
        table = f"{ansi(self.namespace)}.{ansi(name)}"
        first, second, *others = [ansi(c) for c in columns]
        rest = "".join(f", {c} text" for c in others)
        self.run(f"CREATE TABLE {table} ({first} int, {second} text{rest}, PRIMARY KEY ({first}, {second}))")
        for column, comment in zip(columns, comments, strict=True):
            self.run(f"COMMENT ON COLUMN {table}.{ansi(column)} IS {literal(comment)}")
        self.run(f"COMMENT ON TABLE {table} IS {literal(comments[-1])}")

    def run(self, *statements: str) -> None:
        with self.database.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def insert(self, name: str, columns: Sequence[str], keys: Sequence[int]) -> None:
        rows = [(k, *(f"{k} {index}" for index in range(1, len(columns)))) for k in keys]
        values = ", ".join(
            "(" + ", ".join(literal(str(v)) if i else str(v) for i, v in enumerate(r)) + ")" for r in rows
        )
        self.run(f"INSERT INTO {ansi(self.namespace)}.{ansi(name)} VALUES {values}")

    def change(self, name: str, columns: Sequence[str]) -> None:
        table = f"{ansi(self.namespace)}.{ansi(name)}"
        key, last = ansi(columns[0]), ansi(columns[-1])
        self.run(
            f"UPDATE {table} SET {last} = 'changed' WHERE {key} = 1",
            f"UPDATE {table} SET {key} = {key} + 100 WHERE {key} = 2",
            f"DELETE FROM {table} WHERE {key} = 3",
        )

    def rows(self, name: str) -> Counter[tuple[Any, ...]]:
        return Counter(self.database.execute(f"SELECT * FROM {ansi(self.namespace)}.{ansi(name)}"))


class Mysql:
    """Hostile tables of MariaDB and MySQL."""

    def __init__(self, database: MysqlDatabase) -> None:
        self.database = database
        self.namespace = database.name

    def make(self, name: str, columns: Sequence[str], comments: Sequence[str]) -> None:
        def column(name: str, type_: str, comment: str) -> str:
            return f"{backticked(name)} {type_} COMMENT {self.text(comment)}"

        types = ["int", "varchar(40)", *["text"] * (len(columns) - 2)]
        parts = [column(*c) for c in zip(columns, types, comments, strict=True)]
        key = ", ".join(backticked(c) for c in columns[:2])
        self.database.execute(
            f"CREATE TABLE {backticked(name)} ({', '.join(parts)}, PRIMARY KEY ({key}))"
            f" COMMENT {self.text(comments[-1])} DEFAULT CHARSET utf8mb4 COLLATE utf8mb4_bin"
        )

    @staticmethod
    def text(value: str) -> str:
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"

    def insert(self, name: str, columns: Sequence[str], keys: Sequence[int]) -> None:
        rows = [(k, *(f"{k} {index}" for index in range(1, len(columns)))) for k in keys]
        values = ", ".join(
            "(" + ", ".join(self.text(str(v)) if i else str(v) for i, v in enumerate(r)) + ")" for r in rows
        )
        self.database.execute(f"INSERT INTO {backticked(name)} VALUES {values}")

    def change(self, name: str, columns: Sequence[str]) -> None:
        table, key, last = backticked(name), backticked(columns[0]), backticked(columns[-1])
        self.database.execute(
            f"UPDATE {table} SET {last} = 'changed' WHERE {key} = 1",
            f"UPDATE {table} SET {key} = {key} + 100 WHERE {key} = 2",
            f"DELETE FROM {table} WHERE {key} = 3",
        )

    def rows(self, name: str) -> Counter[tuple[Any, ...]]:
        return Counter(self.database.execute(f"SELECT * FROM {backticked(name)}"))


def run(
    source: Postgres | Mysql,
    make: Callable[[Sequence[TableId]], Captured],
    names: Sequence[str],
    comments: Sequence[str],
) -> None:
    """Tables of every name, and one with a column of every name: a snapshot in chunks, changes, the same rows."""
    wide = "wide 1"
    # MySQL makes a file of each, with five letters for one that is not plain.
    shapes: dict[str, tuple[str, ...]] = {
        name: ("id", "key 2", name) for name in names if len(name) <= 40 or name.isascii()
    }
    shapes[wide] = tuple(names)
    told = {
        name: [comments[(index + n) % len(comments)] for n in range(len(shapes[name]))]
        for index, name in enumerate(shapes)
    }
    for name, columns in shapes.items():
        source.make(name, columns, told[name])
        source.insert(name, columns, range(KEYS))
    captured = make([TableId(source.namespace, name) for name in shapes])
    with captured.running() as running:
        captured.wait_for_streaming(running)
        for name, columns in shapes.items():
            source.change(name, columns)
            source.insert(name, columns, [KEYS])
        captured.catch_up(running)
        captured.snapshot(running, TableId(source.namespace, wide))
    for name, columns in shapes.items():
        table = TableId(source.namespace, name)
        checked(captured, table, columns, told[name])
        assert captured.rows(table) == source.rows(name), name


@pytest.fixture
def postgres_of(tmp_path: Path, database: ScratchDatabase) -> Iterator[Callable[[Sequence[TableId]], Captured]]:
    """Makes a capture of tables of the database, through a publication of a hostile name."""
    made: list[Captured] = []

    def of(tables: Sequence[TableId]) -> Captured:
        server = database.server

        def source(context: SourceContext) -> PostgresqlSource:
            config = PostgresqlConfig(
                host=server.host, port=server.port, user=server.user, database=database.name, publication=PUBLICATION
            )
            return PostgresqlSource(config, context)

        listed = ", ".join(f"{ansi(t.namespace)}.{ansi(t.name)}" for t in tables)
        with database.connect() as connection:
            connection.execute(f"CREATE PUBLICATION {ansi(PUBLICATION)} FOR TABLE {listed}".encode())
        made.append(Captured(folder=tmp_path, name=database.name, make_source=source, tables=list(tables)))
        return made[-1]

    yield of
    for captured in made:
        captured.close()


@pytest.fixture
def hostile_database(mysql_database: MysqlDatabase) -> Iterator[MysqlDatabase]:
    """A database of a hostile name, on each of the servers."""
    server = mysql_database.server
    server.execute(f"CREATE DATABASE {backticked(DATABASE)}")
    try:
        yield replace(mysql_database, name=DATABASE)
    finally:
        server.execute(f"DROP DATABASE {backticked(DATABASE)}")


SOME = [
    "%s",
    "a`b",
    '"',
    "\\",
    "${env:REPLICATOR_TEST_CANARY}",
    "a😀b",
    "a\nb",
    "_wanted",
    "select",
    "{name}",
    "a.b",
    "%41",
]


@pytest.mark.matrix
def test_postgresql_tells_hostile_names_as_they_are(
    database: ScratchDatabase, postgres_of: Callable[[Sequence[TableId]], Captured]
) -> None:
    run(Postgres(database), postgres_of, SOME, COMMENTS)


def test_mysql_tells_hostile_names_as_they_are(
    hostile_database: MysqlDatabase, make_mysql: Callable[..., Captured]
) -> None:
    names = [n for n in SOME if max(n) <= "\uffff"]
    run(Mysql(hostile_database), lambda t: make_mysql(hostile_database, *[x.name for x in t]), names, PLAIN_COMMENTS)


@pytest.mark.matrix
def test_postgresql_tells_every_hostile_name_as_it_is(
    database: ScratchDatabase, postgres_of: Callable[[Sequence[TableId]], Captured]
) -> None:
    run(Postgres(database), postgres_of, POSTGRES, COMMENTS)


@pytest.mark.matrix
def test_mysql_tells_every_hostile_name_as_it_is(
    hostile_database: MysqlDatabase, make_mysql: Callable[..., Captured]
) -> None:
    run(Mysql(hostile_database), lambda t: make_mysql(hostile_database, *[x.name for x in t]), MYSQL, PLAIN_COMMENTS)
