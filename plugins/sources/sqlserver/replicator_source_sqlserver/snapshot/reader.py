"""Read tables: chunks in key order, and whole tables without a key.

A chunk is one SELECT under READ COMMITTED, which takes the locks that any SELECT of the database takes, or with `chunk_isolation:
locking` shared locks on the rows. What it has surely seen is asked before it: a transaction that was captured by then was committed.
Asked afterwards, the answer would name transactions that were committed on rows that the statement had passed already.
`whole_reads` tells what a read of a whole table sees.

All comparison of keys is the server's. Two texts that differ here and are one key there (case, trailing spaces) are one position: the next
chunk begins after both, and there is no second row that could be skipped.

A session that waits for the lock that ALTER TABLE and the like need ends the read: the statement is cancelled from our side, which needs
no right. To see such a session the account needs VIEW SERVER STATE, or what has replaced it; without it nothing is seen,
and the session waits until the read ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyodbc
from typing_extensions import override

from replicator.model.errors import CurableError, SchemaConflictError, TableError
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.cursors import cursors
from replicator.plugins.kit.reads import ChunkBounds, TableReads, impossible_key, joined, verify_shape
from replicator.plugins.planning import RowSample
from replicator.plugins.source import Chunk, ChunkRequest, Cursor, Seen, Visibility, WholeRead
from replicator_source_sqlserver.catalogue.discovery import read_tables
from replicator_source_sqlserver.catalogue.tables import CatalogTable
from replicator_source_sqlserver.connecting.connection import Connection, Row
from replicator_source_sqlserver.connecting.errors import DENIED, NO_SUCH_VALUE, number_of
from replicator_source_sqlserver.rows import columns_of, decoded
from replicator_source_sqlserver.snapshot.blocks import first_rows, next_rows
from replicator_source_sqlserver.snapshot.chunk_statements import (
    KEYS_MAX,
    ReadPlan,
    chunk_query,
    some_query,
    whole_query,
)
from replicator_source_sqlserver.snapshot.whole_reads import WholeReads

_LOCKING: Final = "WITH (READCOMMITTEDLOCK)"
_BLOCK_BYTES: Final = 32 << 20
_BLOCK_ROWS: Final = 10_000
"""The driver fetches row by row: larger blocks save nothing."""

Catalogue = Callable[[Connection, Collection[TableId]], Mapping[TableId, CatalogTable]]
"""Reads from the catalogue those of the tables that exist."""

_WAITING: Final = """
SELECT TOP (1) r.session_id FROM sys.dm_exec_requests r
WHERE r.wait_type = N'LCK_M_SCH_M' AND r.session_id <> {reader}
  AND (r.blocking_session_id = {reader} OR (r.database_id = DB_ID() AND r.wait_resource LIKE N'OBJECT: %:{object_id}:%'))
"""


@dataclass(slots=True, kw_only=True)
class TableReader(TableReads[Connection, CatalogTable, ReadPlan]):
    """Reads chunks and whole tables over one connection.

    Attributes:
        bounds: The bounds of chunks; a block of rows may exceed them.
        visibility: Returns what a read that begins now on this connection sees.
        whole: Begins reads of whole tables; None where a table without a key cannot be read.
        is_locking: `chunk_isolation: locking`.
        catalogue: Reads tables from the catalogue.
        transaction: Opens the transaction in which a chunk is read; nothing of it is left after it.
    """

    bounds: ChunkBounds
    visibility: Callable[[Connection], Visibility]
    whole: WholeReads | None
    is_locking: bool = False
    catalogue: Catalogue = read_tables
    transaction: Callable[[Connection], AbstractContextManager[None]] = field(default=lambda _: nullcontext())

    def read_chunk(self, request: ChunkRequest) -> Chunk:
        """See `SourceChunks.read_chunk`."""
        if len(request.keys or ()) > KEYS_MAX:
            # The host asks for half of them. Several statements would not give the rows in the server's order.
            nothing = joined([], request.schema)
            return Chunk(rows=nothing, cursor=None, visibility=_Unread(), identity=None, is_cut=True)
        try:
            return self._read_chunk(request)
        except TableError as error:
            if request.keys and error.__cause__ is not None and number_of(error.__cause__) in NO_SUCH_VALUE:
                raise impossible_key(request.schema.table) from error
            raise

    def _read_chunk(self, request: ChunkRequest) -> Chunk:
        table = request.schema.table
        with self._read(request.schema, "reading a chunk") as run:
            with self.transaction(run.connection):
                # Before the SELECT, and never after it: see above.
                visibility = self.visibility(run.connection)
                query, parameters = chunk_query(run.plan, self.bounds.bounded(request))
                batches, is_cut = self.bounds.take(request, run.batches(query, parameters))
                run.close()
            identity = run.identity()
        rows = joined(batches, request.schema)
        cursor = _last_cursor(rows, request.schema)
        if cursor is not None and cursor == request.after:
            raise TableError(
                "a chunk ended at the key where it began: the server finds its last key below the value that it gave for it.",
                code="cursor_stuck",
                table=str(table),
                action="Correct the values of the key that are not valid in its code page; then run `replicator snapshot NAME TABLE`.",
            )
        return Chunk(rows=rows, cursor=cursor, visibility=visibility, identity=identity, is_cut=is_cut)

    @contextmanager
    def read_whole(self, schema: TableSchema) -> Iterator[WholeRead]:
        """See `SourceChunks.read_whole`."""
        if self.whole is None:
            raise CurableError(
                "it has no primary key that identifies its rows, and change tracking tells changed rows by it.",
                code="key_needed",
                table=str(schema.table),
                action="Give the table a primary key, exclude it, or set `source.capture: cdc`.",
            )
        # Read rarely and whole: what an earlier read remembers of the table may be older than a change of it.
        self.forget(schema.table)
        with self._read(schema, "reading a table") as run:
            low = self.visibility(run.connection)
            with self.whole.begun(
                run.connection, self.watch_session, run.table, low, is_locking=self.is_locking
            ) as begun:
                # The snapshot needs no locks.
                query = whole_query(replace(run.plan, hint=""))

                def identity() -> TableIdentity | None:
                    begun.end()
                    return run.identity()

                yield WholeRead(visibility=begun.visibility, batches=run.batches(query, ()), identity=identity)
                if not begun.has_ended:
                    # Cut short: neither the transaction nor its isolation may stay open.
                    self.session.release()

    def sample(self, schema: TableSchema, rows: int) -> RowSample:
        """See `SupportsPlanning.sample`. What the statement saw is not asked: nothing is replicated of it."""
        with self._read(schema, "reading a sample") as run:
            request = self.bounds.bounded(ChunkRequest(schema=schema, limit=rows))
            query, parameters = (
                chunk_query(run.plan, request) if schema.key else (some_query(run.plan, request.limit), ())
            )
            batches, is_cut = self.bounds.take(request, run.batches(query, parameters))
            run.identity()
        found = joined(batches, schema)
        return RowSample(rows=found, is_whole=found.num_rows < rows and not is_cut)

    @contextmanager
    def _read(self, schema: TableSchema, doing: str) -> Iterator[_Run]:
        with self.reading(schema, doing) as (connection, table, plan):
            run = _Run(
                connection,
                table,
                plan,
                block_bytes=min(_BLOCK_BYTES, self.bounds.bytes_max),
                catalogue=self.catalogue,
            )
            try:
                yield run
            finally:
                run.close()
        if run.has_changed:
            self.forget(schema.table)

    @override
    def find(self, connection: Connection, table: TableId) -> CatalogTable | None:
        return self.catalogue(connection, [table]).get(table)

    @override
    def plan(self, table: CatalogTable, schema: TableSchema) -> ReadPlan:
        return read_plan(table, schema, hint=_LOCKING if self.is_locking else "")

    @override
    def number(self, connection: Connection) -> int:
        return connection.number()

    @override
    def find_waiting(self, connection: Connection, reader: int, table: TableId) -> int | None:
        known = self._tables.get(table)
        try:
            rows = connection.rows(_WAITING.format(reader=reader, object_id=known.object_id if known else 0))
        except pyodbc.Error as error:
            if number_of(error) in DENIED:
                # Azure refuses where other servers show an account its own sessions only.
                return None
            raise
        return int(rows[0][0]) if rows else None

    @override
    def end(self, connection: Connection, reader: int, *, is_statement: bool) -> None:
        """End the statement of a reader, both times by cancelling: a statement that was not reached the first time is the second time."""
        reading = self.session.connection
        if reading is not None:
            reading.cancel()


@dataclass(frozen=True, slots=True)
class _Unread(Visibility):
    """The visibility of a chunk of which nothing was read."""

    @override
    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        return pa.array([int(Seen.UNKNOWN)] * len(transaction_ids), pa.int8())


class _Run:
    """One read that runs: its rows, and whether the table stayed the same."""

    def __init__(
        self,
        connection: Connection,
        table: CatalogTable,
        plan: ReadPlan,
        *,
        block_bytes: int,
        catalogue: Catalogue = read_tables,
    ) -> None:
        self.connection = connection
        self._catalogue = catalogue
        self.table = table
        self.plan = plan
        self.has_changed = False
        self._block_bytes = block_bytes
        self._blocks: Generator[list[Row], None, None] | None = None
        self._error: TableError | None = None

    def batches(self, query: str, parameters: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Decode the rows, block by block.

        Ends early where they cannot be decoded: `identity` tells whether the table changed, or raises the error.
        """
        specs, columns = self.plan.specs, self.plan.schema.columns
        rows_max = first_rows(specs[column.name] for column in columns)
        self._blocks = self.connection.blocks(query, parameters, lambda: rows_max)
        for rows in self._blocks:
            try:
                batch = self._decoded(rows)
            except TableError as error:
                self._error = error
                break
            fit = next_rows(rows_max, rows=len(rows), size=batch.nbytes, left=self._block_bytes)
            rows_max = min(fit, _BLOCK_ROWS)
            yield batch
        self.close()

    def close(self) -> None:
        """End the statement; the rest of its rows is not read."""
        if self._blocks is not None:
            self._blocks.close()

    def identity(self) -> TableIdentity | None:
        """The table's identity if nothing about it changed from the plan to the end of the read.

        Raises:
            TableError: It is the same table, and its rows cannot be decoded.
        """
        self.close()
        known, after = self.table, self._catalogue(self.connection, [self.table.table]).get(self.table.table)
        is_same = (
            after is not None
            and after.identity == known.identity
            and after.columns == known.columns
            and after.primary_key == known.primary_key
        )
        if is_same and self._error is not None:
            raise self._error
        self.has_changed = not is_same
        return known.identity if is_same else None

    def _decoded(self, rows: Sequence[Row]) -> pa.RecordBatch:
        schema = self.plan.schema
        try:
            arrays = [
                decoded(given, self.plan.specs[column.name], name=column.name)
                for given, column in zip(columns_of(rows), schema.columns, strict=True)
            ]
        except TableError as error:
            kind = type(error)
            raise kind(error.message, code=error.code, table=str(schema.table), action=error.action) from error
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(schema.row_type)))


def read_plan(table: CatalogTable, schema: TableSchema, *, hint: str = "") -> ReadPlan:
    """Plan the read of a table so that the rows have the shape that the host knows.

    Raises:
        SchemaConflictError: A column of `schema` no longer exists or has another type, another column has its name, or the key changed.
    """
    columns = {column.name: column for column in table.columns if column.name in table.specs}
    verify_shape(schema, {n: (table.specs[n].arrow, str(c.declared)) for n, c in columns.items()}, table.key)
    for column in schema.columns:
        if column.id is not None and column.id != columns[column.name].id:
            raise SchemaConflictError(
                f"the column {column.name} is another one now.", code="column_gone", table=str(table.table)
            )
    return ReadPlan(schema=schema, specs=table.specs, hint=hint)


def _last_cursor(rows: pa.RecordBatch, schema: TableSchema) -> Cursor | None:
    if not rows.num_rows:
        return None
    last = rows.slice(rows.num_rows - 1)
    (cursor,) = cursors([last.column(name) for name in schema.key_fields])
    return cursor
