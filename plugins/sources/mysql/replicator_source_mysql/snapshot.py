"""Reads of tables: chunks in key order, and whole tables without a key.

A read's coordinate system says what it sees, and what it holds open on the server (`coordinates`, `ReadView`): a consistent
snapshot, or one statement of which some transactions are unknown and left to the log. In a table without a key nothing can be
left to the log row by row, so it is read in a snapshot everywhere. Every read gives way to a session that waits for the table's
metadata lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from typing_extensions import override

from replicator.model.errors import ReplicatorError, TableError, UnsupportedTypeError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.reads import FoundColumn, verify_shape
from replicator.plugins.kit.table_reads import ReadKind, SnapshotRead, SnapshotReads, SnapshotRun
from replicator.plugins.source import ChunkRequest, Cursor, Visibility
from replicator.plugins.verification import SourceState
from replicator_source_mysql.binlog.types import Unrepresentable
from replicator_source_mysql.catalogue.discovery import read_tables
from replicator_source_mysql.catalogue.tables import CatalogTable, system_versioned, virtual_column
from replicator_source_mysql.connecting.connection import Connection, Session, flavor_of, rows_of
from replicator_source_mysql.connecting.errors import PACKET_TOO_LARGE, number_of
from replicator_source_mysql.coordinates import ReadView, ReadViews
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


@dataclass(kw_only=True)
class TableReader(SnapshotReads[Connection, CatalogTable, ReadPlan]):
    """Reads chunks and whole tables over one connection. The end of the log is read on the other one.

    Attributes:
        coordinates: Says what reads see. The reader of samples has `UNSEEN` ones: nothing is written to tell what a statement saw.
        statement_s: Seconds that the reading of a chunk may take.
    """

    watch_session: Session
    unrepresentable: Unrepresentable
    statement_s: float
    coordinates: Callable[[Connection], ReadViews]
    _query_bytes: int | None = None

    @override
    @contextmanager
    def run(self, read: SnapshotRead[Connection, CatalogTable, ReadPlan]) -> Iterator[_Run]:
        is_whole = read.kind is ReadKind.WHOLE
        view = self._view(read.connection, read.table, is_whole=is_whole)
        view.begin()
        run = _Run(read, view, self._query(read), self.unrepresentable)
        run.block = (_WHOLE_ROWS, _BLOCK_BYTES) if is_whole else (_BLOCK_ROWS, min(_BLOCK_BYTES, self.bounds.bytes_max))
        self._query_bytes = len(run.query.encode())
        yield run
        view.end()

    def _query(self, read: SnapshotRead[Connection, CatalogTable, ReadPlan]) -> str:
        request, plan = read.request, read.plan
        if read.kind is ReadKind.WHOLE:
            return whole_query(plan)
        query = chunk_query(plan, request) if request.schema.key else f"{whole_query(plan)} LIMIT {request.limit}"
        return flavor_of(read.connection).bounded(query, self.statement_s)

    @override
    def is_impossible(self, request: ChunkRequest, error: TableError) -> bool:
        return error.__cause__ is not None and number_of(error.__cause__) == _NO_SUCH_VALUE

    @contextmanager
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> Iterator[SourceState]:
        """See `SupportsSourceVerification.open_state`. The connection is the state's until it is let go of."""
        with self.reading(schema, "reading a state") as (connection, table, plan):
            view = self._view(connection, table, is_whole=True, is_exact=not schema.key)
            view.begin()
            queries = StateQueries.of(table, plan, columns, fails=self.unrepresentable == "fail")
            yield MysqlState(connection, self.watch_session, view, queries)
            view.end()

    def _view(self, connection: Connection, table: CatalogTable, *, is_whole: bool, is_exact: bool = True) -> ReadView:
        views = self.coordinates(connection)
        return views.read_view(connection, self.watch_session, table.table, is_whole=is_whole, is_exact=is_exact)

    @override
    @contextmanager
    def reading(self, schema: TableSchema, doing: str) -> Iterator[tuple[Connection, CatalogTable, ReadPlan]]:
        self._query_bytes = None
        try:
            with SnapshotReads.reading(self, schema, doing) as opened:
                yield opened
        except TableError as error:
            if error.code == PACKET_TOO_LARGE and (sizes := self._sizes()) is not None:
                raise type(error)(
                    f"{error.message} {sizes}", code=error.code, table=error.table, action=error.action
                ) from error
            raise

    def _sizes(self) -> str | None:
        """Describe the known sizes when something was larger than a packet; the server does not tell the value's."""
        try:
            with self.watch_session.use("asking for max_allowed_packet") as connection:
                ((limit,),) = rows_of(connection, "SELECT @@SESSION.max_allowed_packet", [])
        except ReplicatorError:
            return None  # the first error is the one to tell
        sent = f", and the statement has {self._query_bytes}" if self._query_bytes is not None else ""
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


class _Run(SnapshotRun[Rows]):
    """One read that runs: its view, its rows, and the check that the table stayed the same."""

    def __init__(
        self,
        read: SnapshotRead[Connection, CatalogTable, ReadPlan],
        view: ReadView,
        query: str,
        unrepresentable: Unrepresentable,
    ) -> None:
        super().__init__(read.request.schema, read.table.identity)
        self.query = query
        self.block = (_BLOCK_ROWS, _BLOCK_BYTES)
        self._view = view
        self._cursors: list[Cursor | None] = []
        self._connection = read.connection
        self._table = read.table
        self._plan = read.plan
        self._unrepresentable = unrepresentable

    @override
    def blocks(self) -> Iterator[Rows]:
        rows_max, bytes_max = self.block
        return text_rows(self._connection, self.query, rows_max=rows_max, bytes_max=bytes_max, silence_s=_SILENCE_S)

    @override
    def visibility(self) -> Visibility:
        return self._view.visibility()

    @override
    def cursor(self, taken: Sequence[pa.RecordBatch]) -> Cursor | None:
        return self._cursors[len(taken) - 1]

    @override
    def is_same(self) -> bool:
        self._view.release()
        after = read_tables(self._connection, [self._table.table]).get(self._table.table)
        return (
            after is not None
            and after.identity == self._table.identity
            and after.columns == self._table.columns
            and after.key == self._table.key
        )

    @override
    def decode(self, block: Rows) -> Sequence[pa.Array]:
        schema, rows = self.schema, block
        name = ""
        try:
            arrays = []
            for name, spec in self._plan.columns:
                policy: Unrepresentable = "fail" if name in schema.key else self._unrepresentable
                arrays.append(decoded(rows.next_column(), spec, name=name, unrepresentable=policy))
            cursor = tuple(rows.last_text(rows.next_values()) for _ in schema.key) or None
            for name, spec in self._plan.key:
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
        self._cursors.append(cursor)
        return arrays


def read_plan(table: CatalogTable, schema: TableSchema) -> ReadPlan:
    """Plan the read of a table so that the rows have the shape that the host knows.

    Raises:
        SchemaConflictError: A column of `schema` no longer exists or has another type, or the key changed.
    """
    columns = {c.name: FoundColumn(c.spec.arrow if c.spec else None, c.column_type) for c in table.replicable}
    verify_shape(schema, columns, table.key)
    return ReadPlan(
        schema=schema, specs=table.specs, index=table.key_index.name if table.key_index is not None else None
    )
