"""Reads of tables over a database connection: they give way to waiting locks, and chunks stay small."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from replicator.model.errors import ImpossibleKeyError, ReplicatorError, SchemaConflictError, SourceUnavailableError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.session import ConnectionT, Session
from replicator.plugins.source import ChunkRequest

TableT = TypeVar("TableT")
PlanT = TypeVar("PlanT")


@dataclass(slots=True, kw_only=True)
class TableReads(ABC, Generic[ConnectionT, TableT, PlanT]):
    """Base for reads of tables over one connection; used from one thread.

    A read gives way to another session that waits for its lock. A table's entry in the catalogue is kept until a read of it fails.

    Attributes:
        session: The reading connection.
        watch_session: Another connection, which looks for waiting locks.
        watch_every_s: Interval at which it looks for them during a read. A shorter read costs no query.
    """

    session: Session[ConnectionT]
    watch_session: Session[ConnectionT]
    watch_every_s: float
    _tables: dict[TableId, TableT] = field(default_factory=dict)

    @abstractmethod
    def find(self, connection: ConnectionT, table: TableId) -> TableT | None:
        """Return the catalogue's entry of a table; None if it does not exist. Raises TableError if it cannot be read."""

    @abstractmethod
    def plan(self, table: TableT, schema: TableSchema) -> PlanT:
        """Plan how to read the table with the columns of `schema`. Raises SchemaConflictError if it has others (`verify_shape`)."""

    @abstractmethod
    def number(self, connection: ConnectionT) -> int:
        """Return the server's number of a connection."""

    @abstractmethod
    def find_waiting(self, connection: ConnectionT, reader: int, table: TableId) -> int | None:
        """Return the number of a session that waits for a lock of the connection `reader`, which reads `table`; None if there is none."""

    @abstractmethod
    def end(self, connection: ConnectionT, reader: int, *, is_statement: bool) -> None:
        """End the statement of the connection `reader`, or that connection."""

    @contextmanager
    def reading(self, schema: TableSchema, doing: str) -> Iterator[tuple[ConnectionT, TableT, PlanT]]:
        """Yield the connection for one read, with the table's entry and plan.

        Raises:
            SourceUnavailableError: `gave_way`.
        """
        watch: _LockWatch | None = None
        try:
            with self.session.use(doing, table=schema.table) as connection:
                table, plan = self._planned(connection, schema)
                watch = _LockWatch(self, self.number(connection), schema.table)
                with watch.running():
                    yield connection, table, plan
        except ReplicatorError as error:
            self._tables.pop(schema.table, None)
            if isinstance(error, SourceUnavailableError) and watch is not None and watch.waiting is not None:
                raise SourceUnavailableError(
                    f"Session {watch.waiting} waited for a lock that the read held, so the read stopped.",
                    code="gave_way",
                    table=str(schema.table),
                ) from error
            raise
        if watch.error is not None:
            raise watch.error

    def forget(self, table: TableId) -> None:
        """Read the catalogue again at the next read."""
        self._tables.pop(table, None)

    def _planned(self, connection: ConnectionT, schema: TableSchema) -> tuple[TableT, PlanT]:
        known = self._tables.get(schema.table)
        if known is not None:
            # A conflict may be with what is remembered: the table was changed, or replaced by another one.
            with suppress(SchemaConflictError):
                return known, self.plan(known, schema)
        found = self.find(connection, schema.table)
        if found is None:
            raise SchemaConflictError("the table no longer exists.", code="table_not_found", table=str(schema.table))
        plan = self.plan(found, schema)
        self._tables[schema.table] = found
        return found, plan


class _LockWatch:
    """Watches, while a read runs, whether another session waits for its lock, and then ends the read.

    The first time its statement is ended. If it still runs an interval later, because its client does not take its rows and so the server
    does not look, its connection is ended.
    """

    def __init__(self, reads: TableReads[Any, Any, Any], reader: int, table: TableId) -> None:
        self.waiting: int | None = None
        self.error: ReplicatorError | None = None
        self._reads = reads
        self._reader = reader
        self._table = table
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch, name="replicator-lock-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _watch(self) -> None:
        try:
            while not self._stop.wait(self._reads.watch_every_s):
                with self._reads.watch_session.use("watching for waiting locks") as connection:
                    waiting = self._reads.find_waiting(connection, self._reader, self._table)
                    if waiting is not None and not self._stop.is_set():
                        is_statement, self.waiting = self.waiting is None, waiting
                        self._reads.end(connection, self._reader, is_statement=is_statement)
        except ReplicatorError as error:
            # Unwatched, the read might block another session: it fails, in the thread that reads.
            self.error = error


@dataclass(slots=True)
class ChunkBounds:
    """Ends chunks where they grow larger than `bytes_max`, and lets later chunks of the table ask for fewer rows."""

    bytes_max: int
    _rows: dict[TableId, int] = field(default_factory=dict)
    """Number of rows of a table that fit, where a chunk was too large once."""

    def bounded(self, request: ChunkRequest) -> ChunkRequest:
        """Return the request, with a limit of as many rows as fit."""
        if request.keys is not None:
            return request
        return replace(request, limit=min(request.limit, self._rows.get(request.schema.table, request.limit)))

    def take(self, request: ChunkRequest, batches: Iterator[pa.RecordBatch]) -> tuple[Sequence[pa.RecordBatch], bool]:
        """Take as many of the batches as fit, at least one.

        Returns:
            The batches, and whether the chunk is cut there (`Chunk.is_cut`). The rest of `batches` is left to be skipped.
        """
        asked, size = self.bounded(request).limit, 0
        taken: list[pa.RecordBatch] = []
        for batch in batches:
            size += batch.nbytes
            if size > self.bytes_max and taken:
                if request.keys is not None:
                    return [], True
                self._rows[request.schema.table] = sum(b.num_rows for b in taken)
                return taken, True
            taken.append(batch)
        # Fewer rows than the host wants, and as many as were asked for: more may follow.
        return taken, asked < request.limit and sum(b.num_rows for b in taken) >= asked


class FoundColumn(NamedTuple):
    """A replicable column as it is now. `type`: None if not known; `declared`: the source's name of the type."""

    type: pa.DataType | None
    declared: str
    id: int | None = None


def verify_shape(schema: TableSchema, columns: Mapping[str, FoundColumn], key: Sequence[str]) -> None:
    """Compare a table's replicable columns and key, as they are now, with the schema that the host knows.

    Raises:
        SchemaConflictError: A column of `schema` no longer exists or has another type, another column has its name, or the key changed.
    """
    table = str(schema.table)
    for column in schema.columns:
        if column.name not in columns:
            raise SchemaConflictError(f"the column {column.name} no longer exists.", code="column_gone", table=table)
        found = columns[column.name]
        if found.type != column.type:
            raise SchemaConflictError(
                f"the column {column.name} is {found.declared} now; {column.source_type} was expected.",
                code="column_type_changed",
                table=table,
            )
    if tuple(key) != tuple(schema.key):
        raise SchemaConflictError(
            f"the key is now ({', '.join(key)}); ({', '.join(schema.key)}) was expected.",
            code="key_changed",
            table=table,
        )
    for column in schema.columns:
        # Where the source has no numbers, those of the host tell columns apart.
        id_ = columns[column.name].id
        if None not in (column.id, id_) and column.id != id_:
            raise SchemaConflictError(f"the column {column.name} is another one now.", code="column_gone", table=table)


def impossible_key(table: TableId) -> ImpossibleKeyError:
    """Return the error of a key that no row can have."""
    return ImpossibleKeyError("A key is no value of its type.", code="impossible_key", table=str(table))


def joined(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> pa.RecordBatch:
    """Join batches to one batch of a table's rows."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema=pa.schema(list(schema.row_type))).combine_chunks()
    batch: Any = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=table.schema)
    return batch
