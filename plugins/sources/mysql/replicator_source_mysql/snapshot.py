"""Reads of tables: chunks in key order, and whole tables without a key.

What a read sees, and what it holds open on the server, its coordinate system says (`coordinates`, `ReadView`): a consistent
snapshot, or one statement of which some transactions are unknown and left to the log. In a table without a key nothing can be
left to the log row by row, so it is read in a snapshot everywhere. Every read gives way to a session that waits for the table's
metadata lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from replicator.model.errors import (
    ReplicatorError,
    SchemaConflictError,
    SourceUnavailableError,
    TableError,
    UnsupportedTypeError,
)
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import Chunk, ChunkRequest, Cursor, WholeRead
from replicator_source_mysql.binlog.types import Unrepresentable
from replicator_source_mysql.catalogue import CatalogTable, system_versioned, virtual_column
from replicator_source_mysql.chunksql import ReadPlan, chunk_query, whole_query
from replicator_source_mysql.connection import Connection, Session, flavor_of, rows_of
from replicator_source_mysql.coordinates import Coordinates
from replicator_source_mysql.discovery import read_tables
from replicator_source_mysql.textrows import Rows, text_rows
from replicator_source_mysql.values import decoded, key_proof, verify_told_apart

_BLOCK_ROWS: Final = 50_000
_BLOCK_BYTES: Final = 32 << 20
_WHOLE_ROWS: Final = 10_000
_SILENCE_S: Final = 3600.0

_WAITING_QUERY: Final = """
SELECT id FROM information_schema.processlist
WHERE state LIKE 'Waiting for table metadata lock%%' AND id <> %s AND INSTR(info, %s) > 0 LIMIT 1
"""


class LockWatch:
    """Watches, while a read runs, whether somebody waits for its table's metadata lock, and then ends the read.

    A read that takes less than one interval costs no query. The first time the statement is killed; if it is still there
    an interval later, because its client does not take its rows and so the server does not look, its connection is.
    """

    def __init__(self, session: Session, thread_id: int, table: TableId, every_s: float) -> None:
        self._session = session
        self._thread_id = thread_id
        self._table = table
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="replicator-lock-watch", daemon=True)
        self.waiting_id: int | None = None
        self.error: ReplicatorError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                with self._session.use("watching for waiting locks") as connection:
                    self._look(connection)
        except ReplicatorError as error:
            # Unwatched, the read might block somebody: it fails, in the thread that reads.
            self.error = error

    def _look(self, connection: Connection) -> None:
        rows = rows_of(connection, _WAITING_QUERY, [self._thread_id, self._table.name])
        if not rows or self._stop.is_set():
            return
        what = "QUERY" if self.waiting_id is None else "CONNECTION"
        self.waiting_id = rows[0][0]
        with connection.cursor() as cursor:
            cursor.execute(f"KILL {what} {self._thread_id}")


@dataclass(slots=True, kw_only=True)
class TableReader:
    """Reads chunks and whole tables over one connection; used from one thread.

    Attributes:
        session: The reading connection.
        watch_session: Another one, on which waiting locks and the end of the log are looked at.
        coordinates: Says what reads see.
        watch_every_s: How often a running read looks for waiting locks.
        statement_s: How long the reading of a chunk may take.
    """

    session: Session
    watch_session: Session
    unrepresentable: Unrepresentable
    chunk_bytes_max: int
    watch_every_s: float
    statement_s: float
    coordinates: Callable[[Connection], Coordinates]
    _tables: dict[TableId, CatalogTable] = field(default_factory=dict)

    def read_chunk(self, request: ChunkRequest) -> Chunk:
        """See `DeltaSource.read_chunk`."""
        table = request.schema.table
        with self._read(request.schema, "reading a chunk") as run:
            blocks = list(
                run.blocks(
                    run.bounded(chunk_query(run.plan, request)), rows_max=_BLOCK_ROWS, total_max=self.chunk_bytes_max
                )
            )
            batches = [batch for batch, _ in blocks]
            cursor = blocks[-1][1] if blocks else None
            visibility = run.view.visibility()
            identity = run.identity()
        if identity is None:
            self._tables.pop(table, None)
        if cursor is not None and cursor == request.after:
            raise TableError(
                "a chunk ends with the key after which it began: several values of its key are the same text in UTF-8, as bytes "
                "are that the key's character set does not define.",
                code="cursor_stuck",
                table=str(table),
                action="Correct these values, or convert the key to utf8mb4; then run `replicator snapshot NAME TABLE`.",
            )
        return Chunk(rows=_joined(batches, request.schema), cursor=cursor, visibility=visibility, identity=identity)

    @contextmanager
    def read_whole(self, schema: TableSchema) -> Iterator[WholeRead]:
        """See `DeltaSource.read_whole`."""
        with self._read(schema, "reading a table", is_whole=True) as run:
            blocks = run.blocks(whole_query(run.plan), rows_max=_WHOLE_ROWS, total_max=None)
            # The statement has its view of the table once its first row is here.
            first = [batch for batch, _ in (block for block in (next(blocks, None),) if block is not None)]
            visibility = run.view.visibility()

            def batches() -> Iterator[pa.RecordBatch]:
                yield from first
                for batch, _ in blocks:
                    yield batch
                run.has_ended = True

            yield WholeRead(visibility=visibility, batches=batches(), identity=run.identity)

    @contextmanager
    def _read(self, schema: TableSchema, doing: str, *, is_whole: bool = False) -> Iterator[_Run]:
        """Give a run; whatever ends it early leaves nothing behind on the server."""
        watch: LockWatch | None = None
        try:
            with self.session.use(doing, table=schema.table) as connection:
                table, plan = self._plan(connection, schema)
                thread_id = connection.thread_id()
                with LockWatch(self.watch_session, thread_id, schema.table, self.watch_every_s) as watch:
                    run = _Run(self, connection, table, plan, is_whole=is_whole)
                    run.view.begin()
                    yield run
                    run.view.end()
        except ReplicatorError as error:
            self._tables.pop(schema.table, None)
            if isinstance(error, SourceUnavailableError) and watch is not None and watch.waiting_id is not None:
                raise SourceUnavailableError(
                    f"the read gave way to the session {watch.waiting_id}, which waited for its table's metadata lock.",
                    code="gave_way",
                    table=str(schema.table),
                ) from error
            raise
        if watch is not None and watch.error is not None:
            raise watch.error

    def _plan(self, connection: Connection, schema: TableSchema) -> tuple[CatalogTable, ReadPlan]:
        if schema.table in self._tables:
            try:
                return self._tables[schema.table], read_plan(self._tables[schema.table], schema)
            except SchemaConflictError:
                # What is remembered is of the table before it was changed, or of the one before it.
                del self._tables[schema.table]
        found = read_tables(connection, [schema.table]).get(schema.table)
        if found is None:
            raise TableError("the table no longer exists.", code="table_not_found", table=str(schema.table))
        if found.is_system_versioned:
            raise system_versioned(schema.table)
        if changing := found.session_dependent(flavor_of(connection)):
            raise virtual_column(schema.table, changing[0])
        plan = read_plan(found, schema)
        self._tables[schema.table] = found
        return found, plan


class _Run:
    """One read that runs: what it sees, its rows, and whether the table stayed the same."""

    def __init__(
        self, reader: TableReader, connection: Connection, table: CatalogTable, plan: ReadPlan, *, is_whole: bool
    ) -> None:
        self.plan = plan
        self.has_ended = False
        self._reader = reader
        self._connection = connection
        self._table = table
        self.view = reader.coordinates(connection).read_view(
            connection, reader.watch_session, table.table, is_whole=is_whole
        )

    def bounded(self, query: str) -> str:
        """The statement with a bound on its time."""
        return flavor_of(self._connection).bounded(query, self._reader.statement_s)

    def blocks(
        self, query: str, *, rows_max: int, total_max: int | None
    ) -> Iterator[tuple[pa.RecordBatch, Cursor | None]]:
        """Decode the rows, block by block, each with the key of its last row."""
        total = 0
        for rows in text_rows(self._connection, query, rows_max=rows_max, bytes_max=_BLOCK_BYTES, silence_s=_SILENCE_S):
            total += rows.size
            if total_max is not None and total > total_max:
                raise TableError(
                    f"a chunk has more than {total_max} bytes (source.chunk_bytes_max).",
                    code="chunk_too_large",
                    table=str(self._table.table),
                    action="Lower snapshot.chunk_rows.",
                )
            yield self._decode(rows)
        self.has_ended = True

    def identity(self) -> TableIdentity | None:
        """The table's identity if nothing about it changed from the plan to the end of the read."""
        if not self.has_ended:
            raise AssertionError("identity() before the last batch")
        self.view.release()
        after = read_tables(self._connection, [self._table.table]).get(self._table.table)
        is_same = (
            after is not None
            and after.identity == self._table.identity
            and after.columns == self._table.columns
            and after.key == self._table.key
        )
        return self._table.identity if is_same else None

    def _decode(self, rows: Rows) -> tuple[pa.RecordBatch, Cursor | None]:
        schema = self.plan.schema
        name = ""
        try:
            arrays = []
            for name, spec in self.plan.columns:
                policy: Unrepresentable = "fail" if name in schema.key else self._reader.unrepresentable
                arrays.append(decoded(rows.next_column(), spec, name=name, unrepresentable=policy))
            cursor = tuple(rows.last_text(rows.next_values()) for _ in schema.key) or None
            for name, spec in self.plan.key:
                if key_proof(name, spec) is not None:
                    verify_told_apart(rows.next_column(), spec, name=name)
        except UnsupportedTypeError as error:
            raise UnsupportedTypeError(
                error.message, code=error.code, table=str(schema.table), action=error.action
            ) from error
        except Exception as error:
            # Whatever it is, it is about this table's values. Arrow's own text may hold one.
            raise TableError(
                f"column {name}: the server's rows do not match their types ({type(error).__name__}).",
                code="corrupt_rows",
                table=str(schema.table),
                action="Run `replicator snapshot NAME TABLE`; if it fails again, exclude the table and report its CREATE TABLE.",
            ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(schema.row_type))), cursor


def read_plan(table: CatalogTable, schema: TableSchema) -> ReadPlan:
    """What to read of a table so that the rows have the shape that the host follows.

    Raises:
        SchemaConflictError: A column of `schema` is gone or has another type, or the key is another.
    """
    columns = {c.name: c for c in table.replicable}
    for column in schema.columns:
        found = columns.get(column.name)
        if found is None:
            raise SchemaConflictError(
                f"the column {column.name} no longer exists.", code="column_gone", table=str(schema.table)
            )
        if found.spec is None or found.spec.arrow != column.type:
            raise SchemaConflictError(
                f"the column {column.name} is {found.column_type} now; {column.source_type} was expected.",
                code="column_type_changed",
                table=str(schema.table),
            )
    if table.key != schema.key:
        raise SchemaConflictError(
            f"the key is now ({', '.join(table.key)}); ({', '.join(schema.key)}) was expected.",
            code="key_changed",
            table=str(schema.table),
        )
    return ReadPlan(schema=schema, specs=table.specs)


def _joined(batches: list[pa.RecordBatch], schema: TableSchema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema=pa.schema(list(schema.row_type))).combine_chunks()
    if not table.num_rows:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    return table.to_batches()[0]
