"""PostgreSQL keeps the contract of sources, on both servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self

import psycopg
import pytest
from psycopg import sql

from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testing.source_contract import SourceContract
from replicator_testing.source_harness import Row, SourceHarness, TableKind, WriterTransaction

COLUMNS = ("id", "name", "amount", "note")
KEYS = {TableKind.KEYED: ("id",), TableKind.COMPOSITE: ("name", "id"), TableKind.KEYLESS: COLUMNS}


class PostgresqlTransaction(WriterTransaction):
    def __init__(self, connection: psycopg.Connection[Any], kinds: dict[TableId, TableKind]) -> None:
        self._connection = connection
        self._kinds = kinds

    def insert(self, table: TableId, row: Row) -> None:
        names = sql.SQL(", ").join(map(sql.Identifier, row))
        values = sql.SQL(", ").join(sql.Placeholder() * len(row))
        self._execute(sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(_quoted(table), names, values), *row.values())

    def update(self, table: TableId, where: Row, changes: Row) -> None:
        sets = sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in changes)
        row = self._row(table, where)
        self._execute(sql.SQL("UPDATE {} SET {} WHERE ctid = %s").format(_quoted(table), sets), *changes.values(), row)

    def delete(self, table: TableId, where: Row) -> None:
        self._execute(sql.SQL("DELETE FROM {} WHERE ctid = %s").format(_quoted(table)), self._row(table, where))

    def truncate(self, *tables: TableId) -> None:
        self._execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(map(_quoted, tables))))

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.rollback()
        self._connection.close()

    def _row(self, table: TableId, where: Row) -> Any:
        names = KEYS[self._kinds[table]]
        condition = sql.SQL(" AND ").join(
            sql.SQL("{} IS NOT DISTINCT FROM %s").format(sql.Identifier(name)) for name in names
        )
        query = sql.SQL("SELECT ctid::text FROM {} WHERE {} LIMIT 1").format(_quoted(table), condition)
        (row,) = self._execute(query, *(where[name] for name in names)).fetchone() or (None,)
        return row

    def _execute(self, query: sql.Composed, *values: Any) -> psycopg.Cursor[Any]:
        return self._connection.execute(query, values)


class PostgresqlHarness(SourceHarness):
    def __init__(self, database: ScratchDatabase) -> None:
        self._database = database
        self._stack = contextlib.ExitStack()
        self._kinds: dict[TableId, TableKind] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def source(self) -> PostgresqlSource:
        server = self._database.server
        config = PostgresqlConfig(host=server.host, port=server.port, user=server.user, database=self._database.name)
        source = PostgresqlSource(config, SourceContext(replicator=self._database.name, uuid="u1", epoch=1))
        self._stack.callback(source.close)
        return source

    def create_table(self, kind: TableKind) -> TableId:
        table = TableId("public", f"t{len(self._kinds)}")
        key = "" if kind is TableKind.KEYLESS else f", PRIMARY KEY ({', '.join(KEYS[kind])})"
        self._database.execute(f"CREATE TABLE {table} (id bigint, name text, amount decimal(12,2), note text{key})")
        if kind is TableKind.KEYLESS:
            self._database.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        self._kinds[table] = kind
        return table

    def drop_table(self, table: TableId) -> None:
        self._database.execute(f"DROP TABLE {table}")

    def begin(self) -> PostgresqlTransaction:
        connection = self._stack.enter_context(contextlib.closing(self._database.connect(autocommit=False)))
        # The id is drawn here, so that transactions are numbered in the order in which they began.
        connection.execute("SELECT pg_current_xact_id()")
        return PostgresqlTransaction(connection, self._kinds)


def _quoted(table: TableId) -> sql.Identifier:
    return sql.Identifier(table.namespace, table.name)


@pytest.mark.sampled(4)
class TestPostgresqlSource(SourceContract):
    @pytest.fixture
    def harness(self, each_database: ScratchDatabase) -> Iterator[SourceHarness]:
        with PostgresqlHarness(each_database) as harness:
            yield harness
