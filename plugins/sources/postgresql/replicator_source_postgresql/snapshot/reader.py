"""Read tables: chunks in key order and whole tables, each in one statement that also says what it saw.

A read takes no lock but that of a SELECT, waits for one no longer than a setting says, and ends when another session
waits for the lock that it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from replicator.model.errors import (
    CorruptStreamError,
    ImpossibleKeyError,
    SchemaConflictError,
    TableError,
    UnsupportedTypeError,
)
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.reads import ChunkBounds, TableReads, impossible_key, joined, verify_shape
from replicator.plugins.planning import RowSample
from replicator.plugins.source import Chunk, ChunkRequest, Cursor, Seen, Visibility, WholeRead
from replicator_source_postgresql.catalogue.discovery import Connection, read_tables
from replicator_source_postgresql.catalogue.queries import fingerprint_query
from replicator_source_postgresql.catalogue.raw_texts import is_raw
from replicator_source_postgresql.catalogue.tables import CatalogTable
from replicator_source_postgresql.connecting.connection import Session
from replicator_source_postgresql.connecting.errors import not_utf8
from replicator_source_postgresql.snapshot.chunk_statements import (
    BEGIN_READ,
    ReadPlan,
    chunk_script,
    keys_query,
    lock_statement,
    whole_script,
)
from replicator_source_postgresql.snapshot.copy_out import CopyScript, Row, column_values, copy_columns
from replicator_source_postgresql.types import PgType
from replicator_source_postgresql.wire import NULL, TEXT, Frames, MalformedError, Slices

# Rows are decoded in blocks while the server reads on; small enough for its socket buffer not to run full meanwhile,
# large enough that numpy's calls cost nothing.
_BLOCK_ROWS: Final = 16_384
_BLOCK_BYTES: Final = 4 << 20
_WHOLE_ROWS: Final = 50_000
_WHOLE_BYTES: Final = 16 << 20

# A chunk is read in the index's order even where sorting the whole table looks cheaper: its cost must not depend on the table's size.
CHUNK_SETTINGS: Final[Mapping[str, str]] = {
    "row_security": "off",
    "max_parallel_workers_per_gather": "0",
    "enable_sort": "off",
    "jit": "off",
    "idle_in_transaction_session_timeout": "0",
}


@dataclass(frozen=True, slots=True)
class PgVisibility(Visibility):
    """A `pg_current_snapshot()`: transactions below `xmax` that are not in `in_progress` were seen.

    `next_id`: the first id that was not assigned yet. Not `xmax`, which is only the first that had not *ended*:
    running transactions may have higher ones.
    """

    xmin: int
    xmax: int
    in_progress: tuple[int, ...] = ()
    next_id: int | None = None

    @classmethod
    def of(cls, text: str) -> Self:
        """Read `xmin:xmax:xip,…`, all 64-bit ids."""
        xmin, xmax, listed = text.split(":")
        return cls(int(xmin), int(xmax), tuple(sorted(int(xid) for xid in listed.split(",") if xid)))

    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        """See `Visibility`. Never UNKNOWN: a snapshot decides about every id."""
        ids = np.asarray(pc.cast(transaction_ids, pa.uint64()))
        is_seen = (ids < self.xmax) & ~np.isin(ids, np.array(self.in_progress, np.uint64))
        return pa.array(np.where(is_seen, np.int8(Seen.SEEN), np.int8(Seen.UNSEEN)), pa.int8())

    def sees(self, transaction: int) -> bool:
        """Return whether this transaction was seen."""
        return transaction < self.xmax and transaction not in self.in_progress

    def is_beyond(self, earlier: Visibility) -> bool:
        """See `Visibility`. A transaction that has written has an id, and is in progress also while its commit waits for a standby."""
        assert isinstance(earlier, PgVisibility)
        assert earlier.next_id is not None, "a visibility that `SourceLog.visibility` gave"
        return self.xmin >= earlier.next_id


_WAITING_QUERY: Final = """
SELECT l.pid FROM pg_locks l WHERE NOT l.granted AND l.pid <> %(pid)s AND %(pid)s = ANY (pg_blocking_pids(l.pid))
ORDER BY l.pid LIMIT 1
"""


@dataclass(slots=True, kw_only=True)
class PublishedReads(TableReads[Connection, CatalogTable, ReadPlan]):
    """A base for reads of replicated tables over one connection.

    Statements name a table, and its owner can exchange it for a view at any moment, whose functions would run as our role. The server
    refuses that where it can (`Session.refuses_views`). Elsewhere the name is locked and compared before it is read.

    Attributes:
        publication: The publication through which the tables are replicated: its row filter applies to reads too.
    """

    session: Session
    publication: str
    unrepresentable: Literal["fail", "null"]

    def is_same(self, table: CatalogTable) -> bool:
        """Return whether nothing about the table changed since the read was planned. Asked over another connection."""
        with self.watch_session.use("reading the catalogue", table=table.table) as connection:
            row = connection.execute(fingerprint_query(table.table, self.publication).encode()).fetchone()
        if row is None:
            raise no_table(table.table)
        return bool(row[0] == table.fingerprint)

    def secure(self, connection: Connection, table: CatalogTable, plan: ReadPlan) -> None:
        """Make sure, in a transaction, that its statements read this table and no view.

        Raises:
            SchemaConflictError: Another object has the name, or the table was altered.
        """
        connection.execute(lock_statement(plan).encode())
        if not self.is_same(table):
            raise SchemaConflictError(
                "it was altered, or another object has its name.", code="table_changed", table=str(table.table)
            )

    @override
    def find(self, connection: Connection, table: TableId) -> CatalogTable | None:
        return read_tables(connection, [table], self.publication).get(table)

    @override
    def plan(self, table: CatalogTable, schema: TableSchema) -> ReadPlan:
        return read_plan(table, schema, self.publication)

    @override
    def number(self, connection: Connection) -> int:
        return connection.info.backend_pid

    @override
    def find_waiting(self, connection: Connection, reader: int, table: TableId) -> int | None:
        row = connection.execute(_WAITING_QUERY, {"pid": reader}).fetchone()
        return None if row is None else int(row[0])

    @override
    def end(self, connection: Connection, reader: int, *, is_statement: bool) -> None:
        how = b"SELECT pg_cancel_backend(%s)" if is_statement else b"SELECT pg_terminate_backend(%s)"
        connection.execute(how, (reader,))


@dataclass(slots=True, kw_only=True)
class TableReader(PublishedReads):
    """Reads chunks and whole tables over one connection, which has `CHUNK_SETTINGS`.

    Attributes:
        bounds: The bounds of chunks; a block of rows may exceed them.
    """

    bounds: ChunkBounds

    def read_chunk(self, request: ChunkRequest) -> Chunk:
        """See `SourceChunks.read_chunk`. Rows beyond the chunk's bound are read and discarded."""
        try:
            return self._read_chunk(request)
        except ImpossibleKeyError:
            raise
        except TableError as error:
            if request.keys and self._has_impossible(request.schema, request.keys):
                raise impossible_key(request.schema.table) from error
            raise

    def _has_impossible(self, schema: TableSchema, keys: Sequence[Cursor]) -> bool:
        """Return whether the server refuses one of the keys, whatever rows there are.

        Some types call that a syntax error of the statement (tsvector, ltree), or an internal one (hstore). With NULL instead of the keys
        there is no such error, unless the types themselves are no more.
        """
        with self.reading(schema, "looking at keys") as (connection, _, plan):
            try:
                connection.execute(keys_query(plan, keys).encode())
            except (psycopg.DataError, psycopg.IntegrityError):
                return True
            except (psycopg.ProgrammingError, psycopg.InternalError):
                connection.execute(keys_query(plan, [(None,) * len(plan.key)]).encode())
                return True
        return False

    def _read_chunk(self, request: ChunkRequest) -> Chunk:
        asked = self.bounds.bounded(request)
        with self._statement(request.schema, "reading a chunk", lambda plan: chunk_script(plan, asked)) as run:
            block_bytes = min(_BLOCK_BYTES, self.bounds.bytes_max)
            batches, is_cut = self.bounds.take(request, run.batches(_BLOCK_ROWS, block_bytes))
            run.skip(_BLOCK_ROWS, block_bytes)
            identity = run.identity()
            rows = joined(batches, request.schema)
            cursor = _cursor(rows, run.plan) if rows.num_rows else None
            if identity is None:
                self.forget(request.schema.table)
            return Chunk(rows=rows, cursor=cursor, visibility=run.visibility, identity=identity, is_cut=is_cut)

    @contextmanager
    def read_whole(self, schema: TableSchema) -> Iterator[WholeRead]:
        """See `SourceChunks.read_whole`."""
        # Read rarely and whole: what an earlier read remembers of the table may be older than a change of it.
        self.forget(schema.table)
        with self._statement(schema, "reading a table", whole_script) as run:
            yield WholeRead(
                visibility=run.visibility, batches=run.batches(_WHOLE_ROWS, _WHOLE_BYTES), identity=run.identity
            )

    def sample(self, schema: TableSchema, rows: int) -> RowSample:
        """See `SupportsPlanning.sample`. Of a table without a key the rest is left unread, and its connection is closed."""
        if schema.key:
            chunk = self.read_chunk(ChunkRequest(schema=schema, limit=rows))
            return RowSample(rows=chunk.rows, is_whole=chunk.rows.num_rows < rows and not chunk.is_cut)
        with self.read_whole(schema) as whole:
            found = next(iter(whole.batches), None)
            taken = joined([] if found is None else [found.slice(0, rows)], schema)
            is_whole = taken.num_rows < rows and next(iter(whole.batches), None) is None
        return RowSample(rows=taken, is_whole=is_whole)

    @contextmanager
    def _statement(self, schema: TableSchema, doing: str, script: Callable[[ReadPlan], str]) -> Iterator[_Run]:
        """Start the statement and yield it; whatever ends it early leaves nothing on the server."""
        with self.reading(schema, doing) as (connection, table, plan):
            ours = replace(plan, is_raw=is_raw(connection))
            run = _Run(connection, ours, table, schema, self.unrepresentable)
            begin = f"{BEGIN_READ}; "
            if not self.session.refuses_views:
                connection.execute(begin.encode())
                self.secure(connection, table, ours)
                begin = ""
            run.start(begin + script(ours))
            yield run


class _Run:
    """One statement that runs: its snapshot, its rows, and whether the table stayed the same."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        plan: ReadPlan,
        table: CatalogTable,
        schema: TableSchema,
        unrepresentable: Literal["fail", "null"],
    ) -> None:
        self.plan = plan
        self.visibility = PgVisibility(0, 0)
        self._script = CopyScript(connection)
        self._table = table
        self._schema = schema
        self._unrepresentable = unrepresentable
        self._is_same = False
        self._has_ended = False
        self._waiting: Frames | None = None

    def start(self, script: str) -> None:
        """Send the script, and read as far as the first row, which holds the snapshot."""
        self._is_same = self._fingerprint(self._script.start(script)[-1]) == self._table.fingerprint
        frames = self._read(1, 1)
        if frames is None:
            raise _corrupt(self._table.table, "the row with the snapshot is missing")
        first = self._columns(frames.first(1))[0]
        if not first.is_kind(TEXT).all():
            raise _corrupt(self._table.table, "the first row is not the one with the snapshot")
        self.visibility = PgVisibility.of(frames.data[int(first.starts[0]) : int(first.ends[0])].decode())
        self._waiting = Frames(frames.data, frames.starts[1:], frames.ends[1:])

    def batches(self, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
        """Decode the rows, block by block; none if the table is no longer the one that the read was planned for."""
        while (frames := self._next(rows_max, bytes_max)) is not None:
            # Bytes of columns that have changed since cannot be decoded by what was known; the read is told to be of no use anyway.
            if self._is_same:
                yield self._decode(frames)

    def skip(self, rows_max: int, bytes_max: int) -> None:
        """Read the rest of the rows and discard it."""
        while not self._has_ended:
            self._next(rows_max, bytes_max)

    def identity(self) -> TableIdentity | None:
        """Return the table's identity if nothing about it changed from the plan to the end of the read, else None."""
        if not self._has_ended:
            raise AssertionError("identity() before the last batch")
        after = self._fingerprint(self._script.finish()[0])
        return self._table.identity if self._is_same and after == self._table.fingerprint else None

    def _next(self, rows_max: int, bytes_max: int) -> Frames | None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and len(waiting.starts):
            return waiting
        frames = self._read(rows_max, bytes_max)
        self._has_ended = frames is None
        return frames

    def _decode(self, frames: Frames) -> pa.RecordBatch:
        columns = self._columns(frames)
        if not columns[0].is_kind(NULL).all():
            raise _corrupt(self._table.table, "a second row has a snapshot")
        key = set(self._schema.key)
        arrays = [
            self._values(mapping, column.name, slices, frames, is_key=column.name in key)
            for column, mapping, slices in zip(self.plan.columns, self.plan.mappings, columns[1:], strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(self._schema.row_type)))

    def _values(self, mapping: PgType, name: str, slices: Slices, frames: Frames, *, is_key: bool) -> pa.Array:
        try:
            return mapping.decode_chunk(column_values(frames, slices), "fail" if is_key else self._unrepresentable)
        except UnsupportedTypeError as error:
            raise mapping.unheld_in(error, self._table.table, name) from error
        except ValueError:
            # Its text may hold a value.
            raise _corrupt(
                self._table.table, f"a value of column {name} is not a valid {mapping.source_type}"
            ) from None

    def _read(self, rows_max: int, bytes_max: int) -> Frames | None:
        try:
            return self._script.read(rows_max, bytes_max)
        except MalformedError as error:
            raise _corrupt(self._table.table, str(error)) from error

    def _columns(self, frames: Frames) -> list[Slices]:
        try:
            return copy_columns(frames, 1 + len(self.plan.columns))
        except MalformedError as error:
            raise _corrupt(self._table.table, str(error)) from error

    def _fingerprint(self, rows: Sequence[Row]) -> str:
        if not rows or rows[0][0] is None:
            raise no_table(self._table.table)
        return rows[0][0].decode()


def no_table(table: TableId) -> SchemaConflictError:
    """The error of a table that no longer exists."""
    return SchemaConflictError("the table no longer exists.", code="table_not_found", table=str(table))


def read_plan(table: CatalogTable, schema: TableSchema, publication: str) -> ReadPlan:
    """Plan the read of a table, replicated through `publication`, so that the rows have the shape that the host knows.

    Raises:
        SchemaConflictError: A column of `schema` no longer exists or has another type, another column has its name, or the key changed.
        TableError: A statement cannot name what it needs (`not_utf8`).
    """
    if table.unreadable:
        raise not_utf8(table.table, table.unreadable)
    columns = {c.name: c for c in table.replicable_columns}
    key = tuple(part.column for part in table.key)
    verify_shape(schema, {n: (c.mapping.arrow if c.mapping else None, c.type_sql) for n, c in columns.items()}, key)
    for column in schema.columns:
        if column.id is not None and column.id != columns[column.name].position:
            raise SchemaConflictError(
                f"the column {column.name} is another one now.", code="column_gone", table=str(table.table)
            )
    return ReadPlan(
        table=table.table,
        publication=publication,
        key=table.key,
        key_columns=tuple(columns[name] for name in key),
        columns=tuple(columns[column.name] for column in schema.columns),
        is_partitioned=table.is_partitioned,
        row_filter=table.published.row_filter if table.published else None,
    )


def _cursor(rows: pa.RecordBatch, plan: ReadPlan) -> Cursor:
    positions = {column.name: position for position, column in enumerate(plan.columns)}
    texts = []
    for column in plan.key_columns:
        assert column.mapping is not None
        last = rows.column(positions[column.name]).slice(rows.num_rows - 1, 1)
        texts.append(column.mapping.key_text(last)[0])
    return tuple(texts)


def _corrupt(table: TableId, message: str) -> CorruptStreamError:
    return CorruptStreamError(f"the server's COPY is malformed: {message}.", code="corrupt_copy", table=str(table))
