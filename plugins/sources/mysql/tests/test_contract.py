"""MySQL and MariaDB keep the contract of sources."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self

import pytest

from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.plugins.source import SourceContext
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.connecting.connection import quoted, quoted_table
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testing.source_contract import SourceContract
from replicator_testing.source_harness import Row, SourceHarness, TableKind, WriterTransaction

COLUMNS = ("id", "name", "amount", "note")
KEYS = {TableKind.KEYED: ("id",), TableKind.COMPOSITE: ("name", "id"), TableKind.KEYLESS: COLUMNS}


class MysqlTransaction(WriterTransaction):
    def __init__(self, connection: Any, kinds: dict[TableId, TableKind]) -> None:
        self._connection = connection
        self._kinds = kinds

    def insert(self, table: TableId, row: Row) -> None:
        names = ", ".join(map(quoted, row))
        placeholders = ", ".join(["%s"] * len(row))
        self._execute(f"INSERT INTO {quoted_table(table)} ({names}) VALUES ({placeholders})", *row.values())

    def update(self, table: TableId, where: Row, changes: Row) -> None:
        sets = ", ".join(f"{quoted(name)} = %s" for name in changes)
        condition, values = self._condition(table, where)
        self._execute(f"UPDATE {quoted_table(table)} SET {sets} WHERE {condition} LIMIT 1", *changes.values(), *values)

    def delete(self, table: TableId, where: Row) -> None:
        condition, values = self._condition(table, where)
        self._execute(f"DELETE FROM {quoted_table(table)} WHERE {condition} LIMIT 1", *values)

    def truncate(self, *tables: TableId) -> None:
        for table in tables:
            self._execute(f"TRUNCATE {quoted_table(table)}")

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.rollback()
        self._connection.close()

    def _condition(self, table: TableId, where: Row) -> tuple[str, list[Any]]:
        names = KEYS[self._kinds[table]]
        return " AND ".join(f"{quoted(name)} <=> %s" for name in names), [where[name] for name in names]

    def _execute(self, query: str, *values: Any) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(query, values)


class MysqlHarness(SourceHarness):
    def __init__(self, database: MysqlDatabase) -> None:
        self._database = database
        self._stack = contextlib.ExitStack()
        self._kinds: dict[TableId, TableKind] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def source(self) -> MysqlSource:
        server = self._database.server
        config = MysqlConfig(host=server.host, port=server.port, user=server.user, password=Secret(server.password))
        source = MysqlSource(config, SourceContext(replicator="shop", uuid="u1", epoch=1))
        self._stack.callback(source.close)
        return source

    def create_table(self, kind: TableKind) -> TableId:
        table = TableId(self._database.name, f"t{len(self._kinds)}")
        key = "" if kind is TableKind.KEYLESS else f", PRIMARY KEY ({', '.join(KEYS[kind])})"
        # Names differ by case and by spaces behind them: two keys to us, so two to the server.
        server = self._database.server
        mysqls = "utf8mb4_0900_as_cs" if server.lacks((8, 0, 17)) else "utf8mb4_0900_bin"
        collation = "utf8mb4_nopad_bin" if server.flavor == "mariadb" else mysqls
        self._database.execute(
            f"CREATE TABLE {quoted_table(table)} (id bigint, name varchar(100) COLLATE {collation},"
            f" amount decimal(12,2), note longtext{key})"
        )
        self._kinds[table] = kind
        return table

    def drop_table(self, table: TableId) -> None:
        self._database.execute(f"DROP TABLE {quoted_table(table)}")

    def begin(self) -> MysqlTransaction:
        connection = self._database.connect(autocommit=False)

        @self._stack.callback
        def _() -> None:
            if connection.open:
                connection.close()

        return MysqlTransaction(connection, self._kinds)


@pytest.mark.sampled(4)
class TestMysqlSource(SourceContract):
    @pytest.fixture
    def harness(self, each_mysql_database: MysqlDatabase) -> Iterator[SourceHarness]:
        with MysqlHarness(each_mysql_database) as harness:
            yield harness


# What is special without GTIDs has tests in test_without_gtids.py.
@pytest.mark.matrix
class TestMysqlSourceWithoutGtids(SourceContract):
    @pytest.fixture
    def harness(self, mysql_without_gtids: MysqlServer) -> Iterator[SourceHarness]:
        with mysql_without_gtids.database() as database, MysqlHarness(database) as harness:
            yield harness
