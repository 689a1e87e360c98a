"""What reads of tables over a database connection have in common: they give way to waiting locks, and chunks stay small."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from replicator.model.errors import ReplicatorError, SchemaConflictError, SourceUnavailableError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import ChunkRequest

ConnectionT = TypeVar("ConnectionT")
ConnectionT_co = TypeVar("ConnectionT_co", covariant=True)


class Lends(Protocol[ConnectionT_co]):
    """A session: gives its connection under a lock."""

    def use(self, doing: str, *, table: TableId | None = None) -> AbstractContextManager[ConnectionT_co]:
        """Give the connection; `doing` and `table` are for messages."""


class LockWatch(ABC, Generic[ConnectionT]):
    """Watches, while a read runs, whether another session waits for its lock, and then ends the read.

    A read that takes less than one interval costs no query. The first time the statement is ended. If it still runs an interval
    later, because its client does not take its rows and so the server does not look, its connection is.
    """

    def __init__(self, session: Lends[ConnectionT], reader: int, table: TableId, every_s: float) -> None:
        """Describe the watch.

        Args:
            session: Another connection than the read's.
            reader: The server's number of the read's connection.
            table: What is read.
            every_s: How often to look.
        """
        self.reader = reader
        self.table = table
        self._session = session
        self._every_s = every_s
        self._stop = threading.Event()
        self._waiting: int | None = None
        self._error: ReplicatorError | None = None

    @abstractmethod
    def find_waiting(self, connection: ConnectionT) -> int | None:
        """The number of a session that waits for a lock of the read; None if there is none."""

    @abstractmethod
    def end(self, connection: ConnectionT, *, is_statement: bool) -> None:
        """End the read's statement, or its connection."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch while the read runs."""
        thread = threading.Thread(target=self._watch, name="replicator-lock-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def verify(self, error: ReplicatorError | None) -> None:
        """Raise what the watch has to say of a read that has ended, with `error` if it failed.

        Raises:
            SourceUnavailableError: The read gave way.
            ReplicatorError: It was not watched to its end.
        """
        if isinstance(error, SourceUnavailableError) and self._waiting is not None:
            raise SourceUnavailableError(
                f"the read gave way to session {self._waiting}, which waited for its lock.",
                code="gave_way",
                table=str(self.table),
            ) from error
        if error is None and self._error is not None:
            raise self._error

    def _watch(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                with self._session.use("watching for waiting locks") as connection:
                    self._look(connection)
        except ReplicatorError as error:
            # Unwatched, the read might block somebody: it fails, in the thread that reads.
            self._error = error

    def _look(self, connection: ConnectionT) -> None:
        waiting = self.find_waiting(connection)
        if waiting is not None and not self._stop.is_set():
            is_statement, self._waiting = self._waiting is None, waiting
            self.end(connection, is_statement=is_statement)


@dataclass(slots=True)
class ChunkBounds:
    """Ends chunks where they grow larger than `bytes_max`, and has later chunks of the table ask for fewer rows."""

    bytes_max: int
    _rows: dict[TableId, int] = field(default_factory=dict)
    """How many rows of a table fit, where a chunk was too large once."""

    def bounded(self, request: ChunkRequest) -> ChunkRequest:
        """The request, for as many rows as fit."""
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


def verify_shape(
    schema: TableSchema, columns: Mapping[str, tuple[pa.DataType | None, str]], key: Sequence[str]
) -> None:
    """Compare a table as it is now with the shape that the host follows.

    Args:
        schema: What the host follows.
        columns: The replicable columns as they are: Arrow type (None: not known) and the source's name of the type.
        key: The key as it is.

    Raises:
        SchemaConflictError: A column of `schema` no longer exists or has another type, or the key changed.
    """
    table = str(schema.table)
    for column in schema.columns:
        if column.name not in columns:
            raise SchemaConflictError(f"the column {column.name} no longer exists.", code="column_gone", table=table)
        arrow, source_type = columns[column.name]
        if arrow != column.type:
            raise SchemaConflictError(
                f"the column {column.name} is {source_type} now; {column.source_type} was expected.",
                code="column_type_changed",
                table=table,
            )
    if tuple(key) != tuple(schema.key):
        raise SchemaConflictError(
            f"the key is now ({', '.join(key)}); ({', '.join(schema.key)}) was expected.",
            code="key_changed",
            table=table,
        )


def joined(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> pa.RecordBatch:
    """One batch of a table's rows."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema=pa.schema(list(schema.row_type))).combine_chunks()
    batch: Any = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=table.schema)
    return batch
