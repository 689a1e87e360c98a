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
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyodbc
from typing_extensions import override

from replicator.model.errors import CurableError, TableError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.cursors import cursors
from replicator.plugins.kit.reads import FoundColumn, joined, verify_shape
from replicator.plugins.kit.table_reads import ReadKind, SnapshotRead, SnapshotReads, SnapshotRun
from replicator.plugins.source import Chunk, ChunkRequest, Cursor, Seen, Visibility
from replicator_source_sqlserver.catalogue.discovery import read_tables
from replicator_source_sqlserver.catalogue.tables import CatalogTable
from replicator_source_sqlserver.connecting.connection import Connection, Row
from replicator_source_sqlserver.connecting.errors import DENIED, NO_SUCH_VALUE, number_of
from replicator_source_sqlserver.rows import columns_of, decoded
from replicator_source_sqlserver.snapshot.blocks import first_rows, next_rows
from replicator_source_sqlserver.snapshot.chunk_statements import (
    KEYS_MAX,
    Query,
    ReadPlan,
    chunk_query,
    some_query,
    whole_query,
)
from replicator_source_sqlserver.snapshot.whole_reads import Begun, WholeReads

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


@dataclass(kw_only=True)
class TableReader(SnapshotReads[Connection, CatalogTable, ReadPlan]):
    """Reads chunks and whole tables over one connection.

    Attributes:
        visibility: Returns what a read that begins now on this connection sees.
        whole: Begins reads of whole tables; None where a table without a key cannot be read.
        is_locking: `chunk_isolation: locking`.
        catalogue: Reads tables from the catalogue.
        transaction: Opens the transaction in which a chunk is read; nothing of it is left after it.
    """

    visibility: Callable[[Connection], Visibility]
    whole: WholeReads | None
    is_locking: bool = False
    catalogue: Catalogue = read_tables
    transaction: Callable[[Connection], AbstractContextManager[None]] = field(default=lambda _: nullcontext())

    @override
    def read_chunk(self, request: ChunkRequest) -> Chunk:
        if len(request.keys or ()) > KEYS_MAX:
            # The host asks for half of them. Several statements would not give the rows in the server's order.
            nothing = joined([], request.schema)
            return Chunk(rows=nothing, cursor=None, visibility=_Unread(), identity=None, is_cut=True)
        return super().read_chunk(request)

    @override
    def is_impossible(self, request: ChunkRequest, error: TableError) -> bool:
        return error.__cause__ is not None and number_of(error.__cause__) in NO_SUCH_VALUE

    @override
    @contextmanager
    def run(self, read: SnapshotRead[Connection, CatalogTable, ReadPlan]) -> Iterator[_Run]:
        run = _Run(read, block_bytes=min(_BLOCK_BYTES, self.bounds.bytes_max), catalogue=self.catalogue)
        try:
            with run.open:
                match read.kind:
                    case ReadKind.CHUNK:
                        run.open.enter_context(self.transaction(read.connection))
                        # Before the SELECT, and never after it: see above.
                        run.seen = self.visibility(read.connection)
                    case ReadKind.WHOLE:
                        run.begun = run.open.enter_context(self._begun(read))
                        run.seen = run.begun.visibility
                    case ReadKind.SAMPLE:
                        pass
                yield run
        finally:
            run.close()

    @contextmanager
    def _begun(self, read: SnapshotRead[Connection, CatalogTable, ReadPlan]) -> Iterator[Begun]:
        if self.whole is None:
            raise CurableError(
                "it has no primary key that identifies its rows, and change tracking tells changed rows by it.",
                code="key_needed",
                table=str(read.request.schema.table),
                action="Give the table a primary key, exclude it, or set `source.capture: cdc`.",
            )
        low = self.visibility(read.connection)
        with self.whole.begun(
            read.connection, self.watch_session, read.table, low, is_locking=self.is_locking
        ) as begun:
            yield begun
            if not begun.has_ended:
                # Cut short: neither the transaction nor its isolation may stay open.
                self.session.release()

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


class _Run(SnapshotRun[list[Row]]):
    """One read that runs: its rows, and whether the table stayed the same.

    Attributes:
        open: The transaction in which a chunk is read, or the snapshot of a whole table.
        seen: What the read sees; None if it was not asked.
        begun: That snapshot.
    """

    def __init__(
        self,
        read: SnapshotRead[Connection, CatalogTable, ReadPlan],
        *,
        block_bytes: int,
        catalogue: Catalogue = read_tables,
    ) -> None:
        super().__init__(read.request.schema, read.table.identity)
        self.open = ExitStack()
        self.seen: Visibility | None = None
        self.begun: Begun | None = None
        self._read = read
        self._catalogue = catalogue
        self._block_bytes = block_bytes
        self._rows_max = first_rows(read.plan.specs[column.name] for column in self.schema.columns)
        self._statement: Generator[list[Row], None, None] | None = None

    @override
    def blocks(self) -> Iterator[list[Row]]:
        query, parameters = self._query()
        self._statement = self._read.connection.blocks(query, parameters, lambda: self._rows_max)
        return self._statement

    def _query(self) -> Query:
        plan, request = self._read.plan, self._read.request
        if self._read.kind is ReadKind.WHOLE:
            # The snapshot needs no locks.
            return whole_query(replace(plan, hint="")), ()
        return chunk_query(plan, request) if request.schema.key else (some_query(plan, request.limit), ())

    @override
    def decode(self, block: list[Row]) -> Sequence[pa.Array]:
        try:
            arrays = [
                decoded(given, self._read.plan.specs[column.name], name=column.name)
                for given, column in zip(columns_of(block), self.schema.columns, strict=True)
            ]
        except TableError as error:
            kind, table = type(error), str(self.schema.table)
            raise kind(error.message, code=error.code, table=table, action=error.action) from error
        size = sum(array.nbytes for array in arrays)
        fit = next_rows(self._rows_max, rows=len(block), size=size, left=self._block_bytes)
        self._rows_max = min(fit, _BLOCK_ROWS)
        return arrays

    @override
    def cursor(self, taken: Sequence[pa.RecordBatch]) -> Cursor | None:
        last = taken[-1].slice(taken[-1].num_rows - 1)
        (cursor,) = cursors([last.column(name) for name in self.schema.key_fields])
        return cursor

    @override
    def visibility(self) -> Visibility:
        assert self.seen is not None, "nothing is replicated of a sample"
        return self.seen

    @override
    def end(self) -> None:
        """End the statement, and the transaction of a chunk; the rest of the rows is not read."""
        self.close()
        if self._read.kind is ReadKind.CHUNK:
            self.open.close()
        self.has_ended = True

    def close(self) -> None:
        """End the statement."""
        if self._statement is not None:
            self._statement.close()

    @override
    def is_same(self) -> bool:
        if self.begun is not None:
            self.begun.end()
        known = self._read.table
        after = self._catalogue(self._read.connection, [known.table]).get(known.table)
        return (
            after is not None
            and after.identity == known.identity
            and after.columns == known.columns
            and after.primary_key == known.primary_key
        )


def read_plan(table: CatalogTable, schema: TableSchema, *, hint: str = "") -> ReadPlan:
    """Plan the read of a table so that the rows have the shape that the host knows.

    Raises:
        SchemaConflictError: A column of `schema` no longer exists or has another type, another column has its name, or the key changed.
    """
    specs = table.specs
    columns = {
        c.name: FoundColumn(specs[c.name].arrow, str(c.declared), c.id) for c in table.columns if c.name in specs
    }
    verify_shape(schema, columns, table.key)
    return ReadPlan(schema=schema, specs=table.specs, hint=hint)
