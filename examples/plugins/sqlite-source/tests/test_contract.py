"""What every source must do, on a file."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest
from replicator_source_sqlite.source import SqliteConfig, SqliteSource
from replicator_source_sqlite.values import quoted

from replicator.model.schema import TableId
from replicator.plugins import SourceContext
from replicator.testing.source_contract import Row, SourceContract, SourceHarness, TableKind, WriterTransaction

KEYS = {TableKind.KEYED: ("id",), TableKind.COMPOSITE: ("name", "id"), TableKind.KEYLESS: ()}


def parameters(row: Row) -> list[Any]:
    return [str(value) if isinstance(value, Decimal) else value for value in row.values()]


class Writer(WriterTransaction):
    """SQLite has one writer at a time: statements run when the transaction commits."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._statements: list[Callable[[sqlite3.Connection], object]] = []

    def insert(self, table: TableId, row: Row) -> None:
        statement = f"INSERT INTO {quoted(table.name)} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
        self._statements.append(lambda c: c.execute(statement, parameters(row)))

    def update(self, table: TableId, where: Row, changes: Row) -> None:
        assignments = ", ".join(f"{name} = ?" for name in changes)
        self._one(f"UPDATE {quoted(table.name)} SET {assignments}", parameters(changes), table, where)

    def delete(self, table: TableId, where: Row) -> None:
        self._one(f"DELETE FROM {quoted(table.name)}", [], table, where)

    def truncate(self, *tables: TableId) -> None:
        for table in tables:
            self._statements.append(lambda c, table=table: c.execute(f"DELETE FROM {quoted(table.name)}"))

    def commit(self) -> None:
        connection = self._harness.connect()
        connection.execute("BEGIN IMMEDIATE")
        for statement in self._statements:
            statement(connection)
        connection.execute("COMMIT")
        connection.close()

    def rollback(self) -> None:
        connection = self._harness.connect()
        connection.execute("BEGIN IMMEDIATE")
        for statement in self._statements:
            statement(connection)
        connection.execute("ROLLBACK")
        connection.close()

    def _one(self, change: str, values: list[Any], table: TableId, where: Row) -> None:
        key = {name: where[name] for name in self._harness.keys[table] or where}
        condition = " AND ".join(f"{name} IS ?" for name in key)
        statement = f"{change} WHERE rowid = (SELECT rowid FROM {quoted(table.name)} WHERE {condition} LIMIT 1)"

        def run(connection: sqlite3.Connection) -> None:
            assert connection.execute(statement, [*values, *parameters(key)]).rowcount == 1

        self._statements.append(run)


class Harness(SourceHarness):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: dict[TableId, tuple[str, ...]] = {}
        self._names = itertools.count(1)
        self.execute("PRAGMA journal_mode = WAL")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None)

    def execute(self, statement: str) -> None:
        connection = self.connect()
        connection.execute(statement)
        connection.close()

    def source(self) -> SqliteSource:
        return SqliteSource(SqliteConfig(path=self.path), SourceContext(replicator="shop"))

    def create_table(self, kind: TableKind) -> TableId:
        table = TableId("main", f"it's table {next(self._names)}")
        self.keys[table] = KEYS[kind]
        required = {name: f"{name}{{}} NOT NULL" for name in KEYS[kind]}
        types: Mapping[str, str] = {"id": "bigint", "name": "text", "amount": "decimal(12,2)", "note": "text"}
        columns = [required.get(name, f"{name}{{}}").format(f" {type_}") for name, type_ in types.items()]
        if KEYS[kind]:
            columns.append(f"PRIMARY KEY ({', '.join(KEYS[kind])})")
        self.execute(f"CREATE TABLE {quoted(table.name)} ({', '.join(columns)})")
        return table

    def drop_table(self, table: TableId) -> None:
        self.execute(f"DROP TABLE {quoted(table.name)}")

    def begin(self) -> WriterTransaction:
        return Writer(self)


class TestSqliteSource(SourceContract):
    has_truncate: ClassVar[bool] = False
    tells_transactions_apart: ClassVar[bool] = False

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        return Harness(tmp_path / "shop.db")
