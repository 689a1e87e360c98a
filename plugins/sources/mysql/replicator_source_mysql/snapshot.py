"""Reads of tables: chunks in key order, and whole tables without a key.

A read's coordinate system says what it sees, and what it holds open on the server (`coordinates`, `ReadView`): a consistent
snapshot, or one statement of which some transactions are unknown and left to the log. In a table without a key nothing can be
left to the log row by row, so it is read in a snapshot everywhere. Every read gives way to a session that waits for the table's
metadata lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from typing_extensions import override

from replicator.model.errors import ReplicatorError, TableError, UnsupportedTypeError
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.reads import ChunkBounds, TableReads, impossible_key, joined, verify_shape
from replicator.plugins.planning import RowSample
from replicator.plugins.source import Chunk, ChunkRequest, Cursor, WholeRead
from replicator.plugins.verification import SourceState
from replicator_source_mysql.binlog.types import Unrepresentable
from replicator_source_mysql.catalogue.discovery import read_tables
from replicator_source_mysql.catalogue.tables import CatalogTable, system_versioned, virtual_column
from replicator_source_mysql.connecting.connection import Connection, Session, flavor_of, rows_of
from replicator_source_mysql.connecting.errors import PACKET_TOO_LARGE, number_of
from replicator_source_mysql.coordinates import ReadViews
from replicator_source_mysql.rows.chunk_statements import ReadPlan, chunk_query, whole_query
from replicator_source_mysql.rows.text_rows import Rows, text_rows
from replicator_source_mysql.rows.values import decoded, key_proof, verify_told_apart
from replicator_source_mysql.verification.states import MysqlState, StateQueries

_BLOCK_ROWS: Final = 50_000
_BLOCK_BYTES: Final = 32 << 20
_WHOLE_ROWS: Final = 10_000
_NO_SUCH_VALUE: Final = 1525
"""Number of the error "Incorrect DATE value" (TIME, …), outside of any column."""
_SILENCE_S: Final = 3600.0

_WAITING_QUERY: Final = """
SELECT id FROM information_schema.processlist
WHERE state LIKE 'Waiting for table metadata lock%%' AND id <> %s AND INSTR(info, %s) > 0 LIMIT 1
"""


@dataclass(slots=True, kw_only=True)
class TableReader(TableReads[Connection, CatalogTable, ReadPlan]):
    """Reads chunks and whole tables over one connection. The end of the log is read on the other one.

    Attributes:
        bounds: Bounds of chunks; a block of rows may exceed them.
        coordinates: Says what reads see.
        statement_s: Seconds that the reading of a chunk may take.
    """

    watch_session: Session
    unrepresentable: Unrepresentable
    bounds: ChunkBounds
    statement_s: float
    coordinates: Callable[[Connection], ReadViews]

    def read_chunk(self, request: ChunkRequest) -> Chunk:
        """See `SourceChunks.read_chunk`. Rows of a chunk beyond its bound are read and thrown away."""
        try:
            return self._read_chunk(request)
        except TableError as error:
            if request.keys and error.__cause__ is not None and number_of(error.__cause__) == _NO_SUCH_VALUE:
                raise impossible_key(request.schema.table) from error
            raise

    def _read_chunk(self, request: ChunkRequest) -> Chunk:
        table = request.schema.table
        with self._read(request.schema, "reading a chunk") as run:
            query = run.bounded(chunk_query(run.plan, self.bounds.bounded(request)))
            block_bytes = min(_BLOCK_BYTES, self.bounds.bytes_max)
            batches, is_cut = self.bounds.take(request, run.batches(query, _BLOCK_ROWS, block_bytes))
            cursor = run.cursors[len(batches) - 1] if batches else None
            run.skip()
            visibility = run.view.visibility()
            identity = run.identity()
        if identity is None:
            self.forget(table)
        if cursor is not None and cursor == request.after:
            raise TableError(
                "A chunk ended at the key where it began: several key values are the same text in UTF-8. Their bytes are not defined "
                "in the key's character set.",
                code="cursor_stuck",
                table=str(table),
                action="Correct these values, or convert the key to utf8mb4; then run `replicator snapshot NAME TABLE`.",
            )
        rows = joined(batches, request.schema)
        return Chunk(rows=rows, cursor=cursor, visibility=visibility, identity=identity, is_cut=is_cut)

    @contextmanager
    def read_whole(self, schema: TableSchema) -> Iterator[WholeRead]:
        """See `SourceChunks.read_whole`."""
        # Read rarely and whole: what an earlier read remembers of the table may be older than a change of it.
        self.forget(schema.table)
        with self._read(schema, "reading a table", is_whole=True) as run:
            batches = run.batches(whole_query(run.plan), _WHOLE_ROWS, _BLOCK_BYTES)
            # The statement has its view of the table once its first row is here.
            first = list(itertools.islice(batches, 1))
            visibility = run.view.visibility()
            yield WholeRead(visibility=visibility, batches=itertools.chain(first, batches), identity=run.identity)

    def sample(self, schema: TableSchema, rows: int) -> RowSample:
        """See `SupportsPlanning.sample`. The reader has `UNSEEN` coordinates: nothing is written to tell what a statement saw."""
        with self._read(schema, "reading a sample") as run:
            request = ChunkRequest(schema=schema, limit=rows)
            query = chunk_query(run.plan, request) if schema.key else f"{whole_query(run.plan)} LIMIT {rows}"
            block_bytes = min(_BLOCK_BYTES, self.bounds.bytes_max)
            batches, is_cut = self.bounds.take(request, run.batches(run.bounded(query), _BLOCK_ROWS, block_bytes))
            run.skip()
            run.identity()
        found = joined(batches, schema)
        return RowSample(rows=found, is_whole=found.num_rows < rows and not is_cut)

    @contextmanager
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> Iterator[SourceState]:
        """See `SupportsSourceVerification.open_state`. The connection is the state's until it is let go of."""
        with self._read(schema, "reading a state", is_whole=True, is_exact=not schema.key) as run:
            yield run.state(columns)

    @contextmanager
    def _read(
        self, schema: TableSchema, doing: str, *, is_whole: bool = False, is_exact: bool = True
    ) -> Iterator[_Run]:
        """Give a run, of which nothing stays on the server, even if it ends early."""
        run: _Run | None = None
        try:
            with self.reading(schema, doing) as (connection, table, plan):
                run = _Run(self, connection, table, plan, is_whole=is_whole, is_exact=is_exact)
                run.view.begin()
                yield run
                run.view.end()
        except TableError as error:
            if error.code == PACKET_TOO_LARGE and (sizes := self._sizes(run)) is not None:
                raise type(error)(
                    f"{error.message} {sizes}", code=error.code, table=error.table, action=error.action
                ) from error
            raise

    def _sizes(self, run: _Run | None) -> str | None:
        """Describe the known sizes when something was larger than a packet; the server does not tell the value's."""
        try:
            with self.watch_session.use("asking for max_allowed_packet") as connection:
                ((limit,),) = rows_of(connection, "SELECT @@SESSION.max_allowed_packet", [])
        except ReplicatorError:
            return None  # the first error is the one to tell
        sent = f", and the statement has {run.query_bytes}" if run is not None else ""
        return f"max_allowed_packet is {limit} bytes{sent}."

    @override
    def find(self, connection: Connection, table: TableId) -> CatalogTable | None:
        found = read_tables(connection, [table]).get(table)
        if found is not None and found.is_system_versioned:
            raise system_versioned(table)
        if found is not None and (changing := found.session_dependent(flavor_of(connection))):
            raise virtual_column(table, changing[0])
        return found

    @override
    def plan(self, table: CatalogTable, schema: TableSchema) -> ReadPlan:
        return read_plan(table, schema)

    @override
    def number(self, connection: Connection) -> int:
        return int(connection.thread_id())

    @override
    def find_waiting(self, connection: Connection, reader: int, table: TableId) -> int | None:
        rows = rows_of(connection, _WAITING_QUERY, [reader, table.name])
        return int(rows[0][0]) if rows else None

    @override
    def end(self, connection: Connection, reader: int, *, is_statement: bool) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"KILL {'QUERY' if is_statement else 'CONNECTION'} {reader}")


class _Run:
    """One read that runs: its view, its rows, and the check that the table stayed the same."""

    def __init__(
        self,
        reader: TableReader,
        connection: Connection,
        table: CatalogTable,
        plan: ReadPlan,
        *,
        is_whole: bool,
        is_exact: bool,
    ) -> None:
        self.plan = plan
        self.has_ended = False
        self.query_bytes = 0
        self.cursors: list[Cursor | None] = []
        self._blocks: Iterator[Rows] = iter(())
        self._error: TableError | None = None
        self._reader = reader
        self._connection = connection
        self._table = table
        self.view = reader.coordinates(connection).read_view(
            connection, reader.watch_session, table.table, is_whole=is_whole, is_exact=is_exact
        )

    def state(self, columns: Collection[str]) -> MysqlState:
        """A state that answers from the snapshot that has begun."""
        fails = self._reader.unrepresentable == "fail"
        queries = StateQueries.of(self._table, self.plan, columns, fails=fails)
        return MysqlState(self._connection, self._reader.watch_session, self.view, queries)

    def bounded(self, query: str) -> str:
        """The statement with a bound on its time."""
        return flavor_of(self._connection).bounded(query, self._reader.statement_s)

    def batches(self, query: str, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
        """Decode the rows, block by block; `cursors` has the key of each block's last row.

        Ends early where they cannot be decoded: `identity` tells whether the table changed, or raises the error.
        """
        self.query_bytes = len(query.encode())
        self._blocks = text_rows(self._connection, query, rows_max=rows_max, bytes_max=bytes_max, silence_s=_SILENCE_S)
        for rows in self._blocks:
            try:
                batch, cursor = self._decode(rows)
            except TableError as error:
                self._error = error
                self.skip()
                return
            self.cursors.append(cursor)
            yield batch
        self.has_ended = True

    def skip(self) -> None:
        """Read the rest of the rows and throw it away."""
        for _ in self._blocks:
            pass
        self.has_ended = True

    def identity(self) -> TableIdentity | None:
        """The table's identity if nothing about it changed from the plan to the end of the read.

        Raises:
            TableError: It is the same table, and its rows cannot be decoded.
        """
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
        if is_same and self._error is not None:
            raise self._error
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
                f"Column {name}: the server's rows do not match their types ({type(error).__name__}).",
                code="corrupt_rows",
                table=str(schema.table),
                action="Run `replicator snapshot NAME TABLE`; if it fails again, exclude the table and report its CREATE TABLE.",
            ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(schema.row_type))), cursor


def read_plan(table: CatalogTable, schema: TableSchema) -> ReadPlan:
    """Plan the read of a table so that the rows have the shape that the host knows.

    Raises:
        SchemaConflictError: A column of `schema` no longer exists or has another type, or the key changed.
    """
    columns = {c.name: (c.spec.arrow if c.spec else None, c.column_type) for c in table.replicable}
    verify_shape(schema, columns, table.key)
    return ReadPlan(
        schema=schema, specs=table.specs, index=table.key_index.name if table.key_index is not None else None
    )
