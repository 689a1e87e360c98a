"""Tables that a PostgreSQL source replicates, followed through its log without a capture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from replicator.model.alteration import steps
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import ChunkRequest, LogBatch, LogReader, PullLimits
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testing.waiting import wait_until

T: Final = TableId("public", "t")
MANY: Final = PullLimits(rows=1000, bytes=1 << 24, wait_s=1.0)
PULLS_MAX: Final = 500

Row = Mapping[str, Any]


class Stream:
    """Tables that are replicated: what the log says of them, and rows that are kept in line with it."""

    def __init__(self, database: ScratchDatabase, source: PostgresqlSource, *tables: TableId) -> None:
        self.database = database
        self.source = source
        self.tables = tables or (T,)
        self.events: list[DDLEvent] = []
        self.schemas: dict[TableId, TableSchema] = {}
        self.rows: dict[TableId, list[Row]] = {}
        self.unknown: set[TableId] = set()
        self.described = dict(source.describe(self.tables))
        self.offset = source.prepare(self.tables, is_first=True)
        self._reader: LogReader | None = None
        self.accept()

    def accept(self) -> None:
        """Begin again with what the tables are and have now, and nothing of the log in between."""
        self.described = dict(self.source.describe(self.tables))
        self.source.accept({table: found.identity for table, found in self.described.items()})
        self.schemas = {table: found.schema for table, found in self.described.items()}
        self.rows = {table: self.present(table) for table in self.tables}
        self.unknown.clear()

    def run(self, *statements: str) -> None:
        """In one transaction."""
        with self.database.connect() as connection, connection.transaction():
            for statement in statements:
                connection.execute(statement.encode())

    def pull(self) -> list[LogBatch]:
        """Take in everything up to now; the batches with something in them."""
        if self._reader is None:
            self._reader = self._opened()
        mark, batches = self.source.mark(), list[LogBatch]()
        for _ in range(PULLS_MAX):
            batch = self._reader.pull(MANY)
            assert batch.table_errors == {}
            if batch.events:
                batches.append(batch)
            self.offset = batch.offset or self.offset
            self._take(batch)
            if mark in batch.marks:
                return batches
        pytest.fail("the mark did not come")

    def altered(self, *statements: str) -> list[DDLEvent]:
        """Run the statements, each in its transaction; the events."""
        if statements:
            self.database.execute(*statements)
        count = len(self.events)
        self.pull()
        return self.events[count:]

    def reopen(self) -> None:
        """Continue as after a restart."""
        self.close()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.acknowledge(self.offset)
            self._reader.close()
            self._reader = None

    def present(self, table: TableId) -> list[Row]:
        """The rows as they are in the table now."""
        schema = self.source.describe([table])[table].schema
        if schema.key:
            request = ChunkRequest(schema=schema, limit=10_000)
            # The table may be remembered as it was: the first read then finds that it is not so any more.
            chunk = self.source.read_chunk(request)
            chunk = chunk if chunk.identity is not None else self.source.read_chunk(request)
            assert chunk.identity is not None
            rows: list[Row] = chunk.rows.to_pylist()
            return rows
        with self.source.read_whole(schema) as read:
            return [row for batch in read.batches for row in batch.to_pylist()]

    def assert_same(self) -> None:
        """The rows are those of the tables."""
        for table in self.tables:
            schema, found = self.schemas[table], self.source.describe([table])[table].schema
            assert [(c.name, c.type, c.id) for c in schema.columns] == [(c.name, c.type, c.id) for c in found.columns]
            assert sorted(map(repr, self.rows[table])) == sorted(map(repr, self.present(table)))

    def _opened(self) -> LogReader:
        def attempt() -> LogReader | None:
            try:
                return self.source.open_log(self.offset, self.schemas)
            except Exception as error:
                if getattr(error, "code", None) != "slot_active":
                    raise
                return None

        opened: list[LogReader] = []

        def is_open() -> bool:
            reader = attempt()
            if reader is not None:
                opened.append(reader)
            return reader is not None

        wait_until(is_open, "the slot is free")
        return opened[0]

    def _take(self, batch: LogBatch) -> None:
        for changes in batch.changes:
            table = changes.schema.table
            if table in self.unknown:
                # Of a table that needs a new snapshot nothing is written until that begins.
                continue
            assert [(c.name, c.type) for c in changes.schema.columns] == [
                (c.name, c.type) for c in self.schemas[table].columns
            ]
            for change in changes.rows.to_pylist():
                self._change(table, self.schemas[table], change)
        for event in batch.ddl:
            self.events.append(event)
            assert event.operation is DDLOperation.ALTER_TABLE
            assert event.before is not None
            assert event.schema is not None
            assert event.before == self.schemas[event.table]
            self.schemas[event.table] = event.schema
            if event.fill is None:
                self.unknown.add(event.table)
            if event.fill is None or event.table in self.unknown:
                continue
            origin = steps(event.before, event.schema).origin
            old, new = event.before.fields, event.schema.fields
            (fill,) = event.fill.to_pylist()
            self.rows[event.table] = [
                {
                    new[name]: fill.get(name) if came_from is None else row[old[came_from]]
                    for name, came_from in origin.items()
                    if name in new
                }
                for row in self.rows[event.table]
            ]

    def _change(self, table: TableId, schema: TableSchema, change: Mapping[str, Any]) -> None:
        rows = self.rows[table]
        fields = schema.key_fields or tuple(schema.fields.values())
        before = change["before"] or change["row"]
        held: Row = {}
        if change["_operation"] != "INSERT":
            (index, *_) = [i for i, row in enumerate(rows) if all(row[f] == before[f] for f in fields)]
            held = rows.pop(index)
        if change["_operation"] != "DELETE":
            absent = set(change["_absent"] or ())
            rows.append({f: held.get(f) if f in absent else v for f, v in change["row"].items()})
