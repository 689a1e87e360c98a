"""The in-memory source does what every source must do; and what is special to it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.errors import LogGapError, OffsetExpiredError, SourceUnavailableError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import DeltaSource, Seen, SourceContext
from replicator_testing.defaults import chunk_request
from replicator_testing.memory import (
    LockedError,
    MemoryDatabase,
    MemorySource,
    MemorySourceConfig,
    MemoryTransaction,
    state_of,
)
from replicator_testing.source_contract import SourceContract
from replicator_testing.source_harness import Row, Setting, SourceHarness, TableKind, WriterTransaction, row

_KEYS = {TableKind.KEYED: ("id",), TableKind.COMPOSITE: ("name", "id"), TableKind.KEYLESS: ()}


class MemoryWriter(WriterTransaction):
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self._transaction: MemoryTransaction = database.begin()

    def insert(self, table: TableId, row: Row) -> None:
        self._transaction.insert(table, row)

    def update(self, table: TableId, where: Row, changes: Row) -> None:
        self._transaction.update(table, where, changes)

    def delete(self, table: TableId, where: Row) -> None:
        self._transaction.delete(table, where)

    def truncate(self, *tables: TableId) -> None:
        self._transaction.truncate(*tables)

    def commit(self) -> None:
        self._transaction.commit()

    def rollback(self) -> None:
        self._transaction.rollback()


class MemoryHarness(SourceHarness):
    def __init__(self, name: str) -> None:
        self.database = MemoryDatabase.open(name)
        self._names = itertools.count(1)

    def source(self) -> DeltaSource[Any]:
        return MemorySource(MemorySourceConfig(database=self.database.name), SourceContext(replicator="r"))

    def create_table(self, kind: TableKind) -> TableId:
        table = TableId("public", f"t{next(self._names)}")
        types: Mapping[str, pa.DataType] = {
            "id": pa.int64(),
            "name": pa.string(),
            "amount": pa.decimal128(12, 2),
            "note": pa.string(),
        }
        columns = tuple(Column(name=n, type=t, source_type=str(t)) for n, t in types.items())
        self.database.create_table(
            TableSchema(table=table, columns=columns, key=_KEYS[kind]), toasted=["note"] if _KEYS[kind] else []
        )
        return table

    def drop_table(self, table: TableId) -> None:
        self.database.drop_table(table)

    def begin(self) -> WriterTransaction:
        return MemoryWriter(self.database)


class TestMemorySource(SourceContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> SourceHarness:
        return MemoryHarness(str(tmp_path))

    def test_a_committed_transaction_can_be_delivered_before_it_is_visible(self, keyed: Setting) -> None:
        database = MemoryDatabase.open(keyed.source.identity()["system"])
        transaction = database.begin()
        transaction.insert(keyed.table, row(1))
        transaction.commit(visible=False)
        (change,) = keyed.drain().changes
        chunk = keyed.source.read_chunk(chunk_request(keyed.schema))
        assert chunk.rows.num_rows == 0
        assert chunk.visibility.classify(pa.array([change.transaction])).to_pylist() == [Seen.UNSEEN]
        assert database.invisible() == [change.transaction]
        with pytest.raises(LockedError):
            database.begin().update(keyed.table, (1,), {"name": "b"})
        database.make_visible(transaction)
        assert keyed.source.read_chunk(chunk_request(keyed.schema)).rows.num_rows == 1
        assert keyed.source.visibility().classify(pa.array([change.transaction])).to_pylist() == [Seen.SEEN]

    def test_states_are_those_that_were_committed(self, keyed: Setting) -> None:
        database = MemoryDatabase.open(keyed.source.identity()["system"])
        keyed.insert(row(1), row(2))
        with keyed.transaction() as t:
            t.update(keyed.table, row(1), {"id": 3})
            t.delete(keyed.table, row(2))
        expected = [[], [row(1), row(2)], [row(3)]]
        assert database.states(keyed.table) == [state_of(keyed.schema, rows) for rows in expected]
        assert database.state(keyed.table) == database.states(keyed.table)[-1]

    def test_a_truncation_that_is_not_visible_yet_locks_readers_out(self, keyed: Setting) -> None:
        database = MemoryDatabase.open(keyed.source.identity()["system"])
        keyed.insert(row(1))
        before = keyed.source.describe([keyed.table])[keyed.table].identity
        transaction = database.begin()
        transaction.truncate(keyed.table)
        transaction.commit(visible=False)
        with pytest.raises(LockedError):
            keyed.source.read_chunk(chunk_request(keyed.schema))
        database.make_visible(transaction)
        chunk = keyed.source.read_chunk(chunk_request(keyed.schema))
        assert chunk.rows.num_rows == 0
        assert chunk.identity != before

    def test_a_position_that_was_acknowledged_or_forgotten_is_refused(self, keyed: Setting) -> None:
        keyed.insert(row(1))
        offset = keyed.drain().offsets[-1][0]
        keyed.reader.acknowledge(offset)
        with pytest.raises(LogGapError):
            keyed.source.open_log(keyed.start, keyed.schemas)
        MemoryDatabase.open(keyed.source.identity()["system"]).mark()
        MemoryDatabase.open(keyed.source.identity()["system"]).forget_log()
        with pytest.raises(OffsetExpiredError):
            keyed.source.open_log(offset, keyed.schemas)

    def test_a_table_that_changes_while_it_is_read_says_so(self, keyed: Setting) -> None:
        assert isinstance(keyed.source, MemorySource)
        keyed.insert(row(1))

        def truncate() -> None:
            with keyed.transaction() as t:
                t.truncate(keyed.table)

        keyed.source.faults.script("read_chunk.after", truncate)
        chunk = keyed.source.read_chunk(chunk_request(keyed.schema))
        assert (chunk.rows.num_rows, chunk.identity) == (1, None)

    def test_scripted_failures_are_raised_once(self, keyed: Setting) -> None:
        assert isinstance(keyed.source, MemorySource)
        keyed.source.faults.script("mark", None, SourceUnavailableError("down", code="source_unavailable"))
        keyed.source.mark()
        with pytest.raises(SourceUnavailableError):
            keyed.source.mark()
        keyed.source.mark()
        assert keyed.source.faults.counts["mark"] == 3
