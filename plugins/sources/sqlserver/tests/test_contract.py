"""SQL Server keeps the contract of sources, as far as the model is like one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import pyodbc
import pytest

from replicator.config import Secret
from replicator.model.errors import SourceUnavailableError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import SourceContext, WholeRead
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.names import quoted, quoted_table
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Driver, connect, library
from replicator_testbed.sqlserver.foreign import server_under_test
from replicator_testbed.sqlserver.model import SqlServerModel
from replicator_testing.source_contract import SourceContract
from replicator_testing.source_harness import Row, Setting, SourceHarness, TableKind, WriterTransaction, row
from replicator_testing.waiting import wait_until

COLUMNS = ("id", "name", "amount", "note")
KEYS = {TableKind.KEYED: ("id",), TableKind.COMPOSITE: ("name", "id"), TableKind.KEYLESS: COLUMNS}
MARKS = TableId("dbo", "replicator_marks")


class SqlServerTransaction(WriterTransaction):
    def __init__(self, connection: pyodbc.Connection, kinds: dict[TableId, TableKind]) -> None:
        self._connection = connection
        self._kinds = kinds

    def insert(self, table: TableId, row: Row) -> None:
        names = ", ".join(map(quoted, row))
        self._execute(
            f"INSERT INTO {quoted_table(table)} ({names}) VALUES ({', '.join('?' * len(row))})", *row.values()
        )

    def update(self, table: TableId, where: Row, changes: Row) -> None:
        sets = ", ".join(f"{quoted(name)} = ?" for name in changes)
        condition, values = self._condition(table, where)
        self._execute(f"UPDATE TOP (1) {quoted_table(table)} SET {sets} WHERE {condition}", *changes.values(), *values)

    def delete(self, table: TableId, where: Row) -> None:
        condition, values = self._condition(table, where)
        self._execute(f"DELETE TOP (1) FROM {quoted_table(table)} WHERE {condition}", *values)

    def truncate(self, *tables: TableId) -> None:
        for table in tables:
            self._execute(f"DELETE FROM {quoted_table(table)}")

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.rollback()
        self._connection.close()

    def _condition(self, table: TableId, where: Row) -> tuple[str, list[Any]]:
        names = KEYS[self._kinds[table]]
        conditions = [f"{quoted(name)} {'IS NULL' if where[name] is None else '= ?'}" for name in names]
        return " AND ".join(conditions), [where[name] for name in names if where[name] is not None]

    def _execute(self, query: str, *values: Any) -> None:
        self._connection.execute(query, *values)


class Patient(SqlServerSource):
    """Waits for a moment in which nobody has just written to a table without a key, as the host does by trying again."""

    @contextlib.contextmanager
    def read_whole(self, schema: TableSchema) -> Iterator[WholeRead]:
        with contextlib.ExitStack() as stack:

            def begun() -> WholeRead | None:
                try:
                    return stack.enter_context(super(Patient, self).read_whole(schema))
                except SourceUnavailableError as error:
                    if error.code != "no_quiet_moment":
                        raise
                    return None

            yield wait_until(begun, "a moment without changes")


class SqlServerHarness(SourceHarness):
    def __init__(self, model: SqlServerModel, **settings: Any) -> None:
        self._model, self._settings = model, settings
        self._stack = contextlib.ExitStack()
        self._kinds: dict[TableId, TableKind] = {}

    def __enter__(self) -> Self:
        self.sql = connect(Driver.FREETDS, self._model.address)
        self._stack.callback(self.sql.close)
        self._set_up()
        return self

    def _set_up(self) -> None:
        self.sql.execute("EXEC sys.sp_configure N'max text repl size', -1")
        self.sql.execute("RECONFIGURE")
        self.sql.execute("EXEC sys.sp_cdc_enable_db")
        self.sql.execute("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
        self.sql.execute(f"CREATE TABLE {quoted_table(MARKS)} (id int NOT NULL PRIMARY KEY, token varchar(64) NULL)")
        self._enable(MARKS, None)
        self._model.capture.start()
        self._stack.callback(self._model.capture.stop)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def source(self) -> Patient:
        address = self._model.address
        usual: dict[str, Any] = {
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "password": Secret(address.password),
            "database": address.database,
            "driver": str(library(Driver.FREETDS)),
            "tls": "disable",
            "mark_table": str(MARKS),
        }
        config = SqlServerConfig(**{**usual, **self._settings})
        source = Patient(config, SourceContext(replicator="shop", uuid="u1", epoch=1))
        self._stack.callback(source.close)
        return source

    def create_table(self, kind: TableKind) -> TableId:
        table = TableId("dbo", f"t{len(self._kinds)}")
        nulls = {TableKind.KEYED: ("id",), TableKind.COMPOSITE: ("name", "id"), TableKind.KEYLESS: ()}[kind]
        # A table without a key may have no large values: the log leaves those out of updates.
        note = "nvarchar(4000)" if kind is TableKind.KEYLESS else "nvarchar(max)"
        types = {
            "id": "bigint",
            "name": "nvarchar(100) COLLATE Latin1_General_BIN2",
            "amount": "decimal(12,2)",
            "note": note,
        }
        columns = [f"{n} {kind_} {'NOT NULL' if n in nulls else 'NULL'}" for n, kind_ in types.items()]
        key = f", PRIMARY KEY ({', '.join(nulls)})" if nulls else ""
        self.sql.execute(f"CREATE TABLE {quoted_table(table)} ({', '.join(columns)}{key})")
        self._enable(table, kind)
        self._kinds[table] = kind
        return table

    def drop_table(self, table: TableId) -> None:
        self.sql.execute(f"DROP TABLE {quoted_table(table)}")

    def begin(self) -> SqlServerTransaction:
        connection = connect(Driver.FREETDS, self._model.address)
        connection.autocommit = False
        self._stack.callback(lambda: None if connection.closed else connection.close())
        return SqlServerTransaction(connection, self._kinds)

    def _enable(self, table: TableId, kind: TableKind | None) -> None:
        self.sql.execute(
            f"EXEC sys.sp_cdc_enable_table @source_schema = N'{table.namespace}', @source_name = N'{table.name}',"
            " @role_name = NULL, @supports_net_changes = 0"
        )


@pytest.mark.matrix_for(
    "test_keep_alive_may_be_called_while_the_log_is_read",
    "test_chunks_joined_are_the_whole_table[1]",
    "test_chunks_joined_are_the_whole_table[2]",
)
@pytest.mark.sampled(2)
class TestSqlServerSource(SourceContract):
    has_truncate: ClassVar[bool] = False
    log_lags: ClassVar[bool] = True

    @pytest.fixture
    def harness(self, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceHarness]:
        monkeypatch.setattr("replicator_source_sqlserver.cdc.visibility.UNSETTLED_S", 0.5)
        monkeypatch.setattr("replicator_source_sqlserver.cdc.capture.UNSETTLED_S", 0.5)
        with server_under_test(postgres) as model, SqlServerHarness(model) as harness:
            yield harness


@pytest.mark.matrix
class TestSqlServerSourceWithLocks(SourceContract):
    has_truncate: ClassVar[bool] = False
    log_lags: ClassVar[bool] = True

    @pytest.fixture
    def harness(self, postgres: PostgresServer) -> Iterator[SourceHarness]:
        with (
            server_under_test(postgres) as model,
            SqlServerHarness(model, chunk_isolation="locking", lock_timeout="1s") as harness,
        ):
            yield harness

    def test_a_table_without_a_key_is_read_whole(self, keyless: Setting) -> None:
        """The lock on the table waits for who writes to it, as long as `lock_timeout`; then the host tries again."""
        keyless.insert(row(1), row(1))
        waiting = keyless.harness.begin()
        waiting.insert(keyless.table, row(3))
        with pytest.raises(SourceUnavailableError) as raised, keyless.source.read_whole(keyless.schema):
            pass
        assert raised.value.code == "lock_timeout"
        waiting.commit()
        with keyless.source.read_whole(keyless.schema) as whole:
            read = [r["id"] for batch in whole.batches for r in batch.to_pylist()]
            whole.identity()
        assert sorted(read) == [1, 1, 3]
