"""Read tables: chunks in key order and whole tables, each in one statement that also says what it saw.

A read takes no lock but that of a SELECT, waits for one no longer than a setting says, and ends when another session
waits for the lock that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from replicator.model.errors import CorruptStreamError, SchemaConflictError, TableError, UnsupportedTypeError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.reads import FoundColumn, TableReads, verify_shape
from replicator.plugins.kit.table_reads import ReadKind, SnapshotRead, SnapshotReads, SnapshotRun
from replicator.plugins.source import ChunkRequest, Cursor, Seen, Visibility
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


@dataclass(kw_only=True)
class TableReader(PublishedReads, SnapshotReads[Connection, CatalogTable, ReadPlan]):
    """Reads chunks and whole tables over one connection, which has `CHUNK_SETTINGS`."""

    @override
    @contextmanager
    def run(self, read: SnapshotRead[Connection, CatalogTable, ReadPlan]) -> Iterator[_Run]:
        plan, connection = replace(read.plan, is_raw=is_raw(read.connection)), read.connection
        run = _Run(read, plan, self.unrepresentable, block_bytes=min(_BLOCK_BYTES, self.bounds.bytes_max))
        begin = f"{BEGIN_READ}; "
        if not self.session.refuses_views:
            connection.execute(begin.encode())
            self.secure(connection, read.table, plan)
            begin = ""
        run.start(begin + _script(read, plan))
        yield run

    @override
    def is_impossible(self, request: ChunkRequest, error: TableError) -> bool:
        """Return whether the server refuses one of the keys, whatever rows there are.

        Some types call that a syntax error of the statement (tsvector, ltree), or an internal one (hstore). With NULL instead of the keys
        there is no such error, unless the types themselves are no more.
        """
        keys = request.keys or ()
        with self.reading(request.schema, "looking at keys") as (connection, _, plan):
            try:
                connection.execute(keys_query(plan, keys).encode())
            except (psycopg.DataError, psycopg.IntegrityError):
                return True
            except (psycopg.ProgrammingError, psycopg.InternalError):
                connection.execute(keys_query(plan, [(None,) * len(plan.key)]).encode())
                return True
        return False


def _script(read: SnapshotRead[Connection, CatalogTable, ReadPlan], plan: ReadPlan) -> str:
    if read.kind is ReadKind.WHOLE:
        return whole_script(plan)
    return chunk_script(plan, read.request) if plan.key else whole_script(plan, limit=read.request.limit)


class _Run(SnapshotRun[Frames]):
    """One statement that runs: its snapshot, its rows, and whether the table stayed the same."""

    is_locked = True

    def __init__(
        self,
        read: SnapshotRead[Connection, CatalogTable, ReadPlan],
        plan: ReadPlan,
        unrepresentable: Literal["fail", "null"],
        *,
        block_bytes: int,
    ) -> None:
        super().__init__(read.request.schema, read.table.identity)
        is_whole = read.kind is ReadKind.WHOLE
        self._block = (_WHOLE_ROWS, _WHOLE_BYTES) if is_whole else (_BLOCK_ROWS, block_bytes)
        self._plan = plan
        self._visibility = PgVisibility(0, 0)
        self._script = CopyScript(read.connection)
        self._table = read.table
        self._unrepresentable = unrepresentable
        self._was_same = False
        self._waiting: Frames | None = None

    def start(self, script: str) -> None:
        """Send the script, and read as far as the first row, which holds the snapshot."""
        self._was_same = self._fingerprint(self._script.start(script)[-1]) == self._table.fingerprint
        frames = self._read(1, 1)
        if frames is None:
            raise _corrupt(self._table.table, "the row with the snapshot is missing")
        first = self._columns(frames.first(1))[0]
        if not first.is_kind(TEXT).all():
            raise _corrupt(self._table.table, "the first row is not the one with the snapshot")
        self._visibility = PgVisibility.of(frames.data[int(first.starts[0]) : int(first.ends[0])].decode())
        self._waiting = Frames(frames.data, frames.starts[1:], frames.ends[1:])

    @override
    def visibility(self) -> PgVisibility:
        return self._visibility

    @override
    def blocks(self) -> Iterator[Frames]:
        """Yield the rows; none if the table is no longer the one that the read was planned for."""
        while (frames := self._next()) is not None:
            # Bytes of columns that have changed since cannot be decoded by what was known; the read is told to be of no use anyway.
            if self._was_same:
                yield frames

    @override
    def is_same(self) -> bool:
        after = self._fingerprint(self._script.finish()[0])
        return self._was_same and after == self._table.fingerprint

    @override
    def cursor(self, taken: Sequence[pa.RecordBatch]) -> Cursor | None:
        last = taken[-1].slice(taken[-1].num_rows - 1)
        positions = {column.name: position for position, column in enumerate(self._plan.columns)}
        texts = []
        for column in self._plan.key_columns:
            assert column.mapping is not None
            texts.append(column.mapping.key_text(last.column(positions[column.name]))[0])
        return tuple(texts)

    @override
    def decode(self, block: Frames) -> Sequence[pa.Array]:
        columns = self._columns(block)
        if not columns[0].is_kind(NULL).all():
            raise _corrupt(self._table.table, "a second row has a snapshot")
        key = set(self.schema.key)
        return [
            self._values(mapping, column.name, slices, block, is_key=column.name in key)
            for column, mapping, slices in zip(self._plan.columns, self._plan.mappings, columns[1:], strict=True)
        ]

    def _next(self) -> Frames | None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and len(waiting.starts):
            return waiting
        return self._read(*self._block)

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
            return copy_columns(frames, 1 + len(self._plan.columns))
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
    found = {n: FoundColumn(c.mapping.arrow if c.mapping else None, c.type_sql, c.position) for n, c in columns.items()}
    verify_shape(schema, found, key)
    return ReadPlan(
        table=table.table,
        publication=publication,
        key=table.key,
        key_columns=tuple(columns[name] for name in key),
        columns=tuple(columns[column.name] for column in schema.columns),
        is_partitioned=table.is_partitioned,
        row_filter=table.published.row_filter if table.published else None,
    )


def _corrupt(table: TableId, message: str) -> CorruptStreamError:
    return CorruptStreamError(f"the server's COPY is malformed: {message}.", code="corrupt_copy", table=str(table))
