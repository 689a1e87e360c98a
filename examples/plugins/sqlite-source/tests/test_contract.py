"""What every source must do, on a file."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from replicator.model.errors import OffsetExpiredError, TableError
from replicator.model.isolation import TableFailedError
from replicator.model.schema import TableId
from replicator.plugins import PullLimits, Seen, SourceContext
from replicator_source_sqlite.source import SqliteConfig, SqliteSource
from replicator_source_sqlite.values import quoted
from replicator_testing.defaults import chunk_request
from replicator_testing.source_contract import SourceContract
from replicator_testing.source_harness import Row, Setting, SourceHarness, TableKind, WriterTransaction, row

LIMITS = PullLimits(rows=100, bytes=1 << 20, wait_s=0.1)
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
            self._delete_all(table)

    def _delete_all(self, table: TableId) -> None:
        self._statements.append(lambda c: c.execute(f"DELETE FROM {quoted(table.name)}"))

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
    def harness(self, tmp_path: Path) -> Harness:
        return Harness(tmp_path / "shop.db")

    def test_a_chunk_saw_all_of_a_transaction_or_nothing(self, keyed: Setting) -> None:
        """What a poll finds is one transaction, and a chunk was read in the midst of it."""
        keyed.insert(row(1))
        chunk = keyed.source.read_chunk(chunk_request(keyed.schema))
        keyed.insert(row(2))
        delivered = keyed.drain()
        assert [change.row and change.row["id"] for change in delivered.changes] == [1, 2]
        assert len(delivered.transactions) == 2
        seen = chunk.visibility.classify(pa.array(delivered.transactions))
        assert seen.to_pylist() == [Seen.SEEN, Seen.UNSEEN]

    @pytest.mark.parametrize("change", ["ALTER TABLE {} ADD COLUMN more text", "DROP TABLE {}"])
    def test_a_table_that_is_changed_fails_once_and_alone(self, pair: Setting, harness: Harness, change: str) -> None:
        one, two = pair.schemas
        harness.execute(change.format(quoted(one.name)))
        batch = pair.reader.pull(LIMITS)
        assert {table: error.code for table, error in batch.table_errors.items()} == {one: "schema_changed"}
        with pair.transaction() as t:
            t.insert(two, row(1))
        delivered = pair.drain()
        assert [c.table for c in delivered.changes] == [two]
        with pytest.raises(TableError):
            pair.source.read_chunk(chunk_request(pair.schemas[one]))

    def test_a_value_of_another_type_fails_its_table(self, keyed: Setting, harness: Harness) -> None:
        harness.execute(f"INSERT INTO {quoted(keyed.table.name)} (id, amount) VALUES (1, 'much')")
        with pytest.raises(TableFailedError) as failed:
            keyed.reader.pull(LIMITS)
        assert (failed.value.table, failed.value.error.code) == (keyed.table, "unrepresentable_value")
        with pytest.raises(TableError):
            keyed.source.read_chunk(chunk_request(keyed.schema))

    def test_text_with_any_character_is_kept(self, keyed: Setting) -> None:
        keyed.insert(row(1, "a\x00b,c:d"))
        assert [c.row and c.row["name"] for c in keyed.drain().changes] == ["a\x00b,c:d"]
        assert keyed.pages(10) == [row(1, "a\x00b,c:d")]

    def test_an_offset_behind_which_changes_were_deleted_is_refused(self, keyed: Setting) -> None:
        keyed.insert(row(1))
        keyed.reader.acknowledge(keyed.drain().offsets[-1][0])
        with pytest.raises(OffsetExpiredError):
            keyed.source.open_log(keyed.start, keyed.schemas)

    def test_a_file_that_is_not_in_wal_mode_is_refused(self, harness: Harness) -> None:
        table = harness.create_table(TableKind.KEYED)
        harness.execute("PRAGMA journal_mode = DELETE")
        assert [problem.code for problem in harness.source().check([table])] == ["wal_off"]

    def test_a_chunk_of_wide_rows_is_cut(self, keyed: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
        keyed.insert(*[row(n, note="x" * 100) for n in range(10)])
        whole = keyed.source.read_chunk(chunk_request(keyed.schema))
        monkeypatch.setattr(SqliteSource, "chunk_bytes_max", 1000)
        chunk = keyed.source.read_chunk(chunk_request(keyed.schema))
        assert 1 <= chunk.rows.num_rows < 10
        assert chunk.is_cut
        assert keyed.pages(100) == whole.rows.to_pylist()
        keys = [(f"integer:{n}",) for n in range(10)]
        chunk = keyed.source.read_chunk(chunk_request(keyed.schema, keys=keys))
        assert (chunk.rows.num_rows, chunk.is_cut) == (0, True)
