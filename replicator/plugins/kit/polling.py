"""Base for sources that poll a table of changes, which triggers of the database write.

A change has a number, and a read sees all changes up to some number: this is so where the numbers are assigned in the order of the
commits, as in a database with one writer at a time. Such a table does not tell which changes one transaction made. So the changes of a poll
are delivered as one transaction, which ends where a chunk was read (`Boundaries`): a chunk saw all of it or nothing.
"""

from __future__ import annotations

import shlex
import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa

from replicator.model.deletion import Deletion
from replicator.model.errors import OffsetExpiredError, Problem, TableError, UnsupportedTypeError
from replicator.model.events import (
    BEFORE,
    IS_SNAPSHOT,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    SOURCE_TIMESTAMP,
    TRANSACTION_ID,
    change_schema,
)
from replicator.model.identity import TableIdentity
from replicator.model.isolation import of_table
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.relational import RelationalConfig
from replicator.plugins.source import (
    TRANSACTION_SCHEMA,
    Chunk,
    ChunkRequest,
    ConfigT,
    Cursor,
    DeltaSource,
    LogBatch,
    LogReader,
    LogStatus,
    PullLimits,
    Seen,
    SourceContext,
    TableChanges,
    TableDescription,
    Visibility,
    WholeRead,
)

_POLL_S = 0.1
_BATCH_ROWS = 10_000


class Connection(Protocol):
    """The part of a connection that the base uses."""

    def close(self) -> None:
        """Close it."""


ConnectionT = TypeVar("ConnectionT", bound=Connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedChange:
    """A row of the table of changes.

    Attributes:
        number: Its position among all changes, from 1.
        at: Time when it was written.
        table: The table changed; None for a mark.
        operation: INSERT, UPDATE or DELETE.
        before: The old row as a text that `PollingSource.row_of` reads; None for an INSERT.
        after: The new row; None for a DELETE. Of a mark its text.
    """

    number: int
    at: datetime
    table: TableId | None
    operation: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class NumberVisibility(Visibility):
    """A read that saw every change up to a number. A transaction is called by the number of its first change."""

    last: int

    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        """Return for each transaction whether it began at or below the number."""
        seen = [Seen.SEEN if int(i) <= self.last else Seen.UNSEEN for i in transaction_ids.to_pylist()]
        return pa.array([int(s) for s in seen], pa.int8())


class Boundaries:
    """The numbers at which reads began. Thread-safe: no read begins while the end of a transaction is chosen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: set[int] = set()

    def begin_read(self, source: PollingSource[Any, ConnectionT], connection: ConnectionT) -> NumberVisibility:
        """Begin a read transaction, and return its visibility."""
        with self._lock:
            source.begin(connection)
            last = source.last_change(connection)
            self._numbers.add(last)
        return NumberVisibility(last)

    def end_behind(self, source: PollingSource[Any, ConnectionT], connection: ConnectionT, position: int) -> int:
        """Return the last change of the transaction after a position, unless a mark comes before it."""
        with self._lock:
            return min([source.last_change(connection), *(n for n in self._numbers if n > position)])

    def forget(self, position: int | None = None) -> None:
        """Drop the numbers up to a position; None: all of them."""
        with self._lock:
            self._numbers = {n for n in self._numbers if position is not None and n > position}


class PollingSource(DeltaSource[ConfigT], Generic[ConfigT, ConnectionT]):
    """Source with a table of changes. A subclass has the statements."""

    chunk_bytes_max: ClassVar[int] = RelationalConfig.model_fields["chunk_bytes_max"].default
    """Largest chunk, in characters of its rows' texts. A chunk of wide rows has fewer rows than were asked for."""

    def __init__(self, config: ConfigT, context: SourceContext) -> None:
        super().__init__(config, context)
        self.boundaries = Boundaries()

    # -- what a source implements -------------------------------------------------------------------------------------

    @abstractmethod
    def connect(self) -> ConnectionT:
        """Open a new connection, in autocommit mode."""

    @abstractmethod
    def translated(self) -> AbstractContextManager[None]:
        """Return a context that translates errors of the driver."""

    @abstractmethod
    def begin(self, connection: ConnectionT) -> None:
        """Begin a transaction in which all reads see the same state."""

    @abstractmethod
    def describe_table(self, connection: ConnectionT, table: TableId) -> TableDescription | None:
        """Return a table's description, with an identity that another set of triggers changes; None if the table does not exist.

        Raises:
            TableError: The table cannot be replicated.
        """

    @abstractmethod
    def check_database(self, connection: ConnectionT) -> Sequence[Problem]:
        """Return problems of the database as a whole."""

    @abstractmethod
    def begin_logging(self, connection: ConnectionT, schemas: Sequence[TableSchema], *, is_first: bool) -> None:
        """Create the table of changes and the triggers of these tables, as far as they are missing; drop those of other tables.

        In one transaction. With `is_first` existing ones are dropped first.
        """

    @abstractmethod
    def end_logging(self, connection: ConnectionT) -> None:
        """Drop table and triggers, if they are there."""

    @abstractmethod
    def is_logged(self, connection: ConnectionT, schema: TableSchema) -> bool:
        """Return whether triggers write all columns of the table."""

    @abstractmethod
    def last_change(self, connection: ConnectionT) -> int:
        """Return the number of the last change; 0 if there is none."""

    @abstractmethod
    def changes(self, connection: ConnectionT, after: int, upto: int) -> Iterator[LoggedChange]:
        """Yield the changes after `after`, up to and including `upto`, by number."""

    @abstractmethod
    def write_mark(self, connection: ConnectionT, text: str) -> None:
        """Write a mark into the table of changes."""

    @abstractmethod
    def delete_changes(self, connection: ConnectionT, before: int) -> None:
        """Delete changes with lower numbers."""

    @abstractmethod
    def select(self, connection: ConnectionT, schema: TableSchema, request: ChunkRequest | None) -> Iterator[str]:
        """Yield the rows of a chunk in key order; None: all rows of the table. As texts that `row_of` reads."""

    @abstractmethod
    def row_of(self, schema: TableSchema, text: str) -> Mapping[str, Any]:
        """Return a row by field name. Any error fails the table, also one when a value does not become Arrow."""

    @abstractmethod
    def cursor_of(self, schema: TableSchema, text: str) -> Cursor:
        """Return the key of a row."""

    # -- what a source uses ------------------------------------------------------------------------------------------

    def is_unchanged(self, connection: ConnectionT, schema: TableSchema) -> bool:
        """Return whether the table still has these columns, and all of them are logged."""
        try:
            found = self.describe_table(connection, schema.table)
        except TableError:
            return False
        return found is not None and found.schema.columns == schema.columns and self.is_logged(connection, schema)

    @contextmanager
    def asking(self) -> Iterator[ConnectionT]:
        """Open a connection for a few statements."""
        with self.translated(), closing(self.connect()) as connection:
            yield connection

    # -- what the host asks for ---------------------------------------------------------------------------------------

    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, TableDescription]:
        """Describe each table in turn."""
        with self.asking() as connection:
            found = {table: self.describe_table(connection, table) for table in tables}
        return {table: description for table, description in found.items() if description is not None}

    def check(self, tables: Sequence[TableId]) -> Sequence[Problem]:
        """Check the database, and each table in turn."""
        with self.asking() as connection:
            problems = list(self.check_database(connection))
            for table in tables:
                try:
                    if self.describe_table(connection, table) is None:
                        problems.append(Problem.of(_missing(table)))
                except TableError as error:
                    problems.append(Problem.of(error))
        return problems

    def prepare(self, tables: Sequence[TableId], *, is_first: bool) -> Offset:
        """Create the log, and write a mark: it begins there."""
        found = self.describe(tables)
        with self.asking() as connection:
            if is_first:
                self.boundaries.forget()
            self.begin_logging(connection, [description.schema for description in found.values()], is_first=is_first)
            self.write_mark(connection, "")
            return _offset(self.last_change(connection))

    def remove(self) -> Deletion:
        """Drop what `prepare` created."""
        with self.asking() as connection:
            self.end_logging(connection)
        return Deletion(removed=("the objects that recorded changes",))

    def status(self, since: Visibility | None = None) -> LogStatus:  # noqa: ARG002 - nothing is waited for
        """Return the status. The clock is this machine's; a subclass may use another one."""
        return LogStatus(now=datetime.now(UTC))

    def open_log(self, after: Offset, schemas: Mapping[TableId, TableSchema]) -> LogReader:
        """Open the log, if the change at the offset exists: it is kept until a later one is acknowledged."""
        position = after.value["number"]
        with self.asking() as connection:
            if not list(self.changes(connection, position - 1, position)):
                raise OffsetExpiredError(f"Change {position} is no longer in the table.", code="offset_expired")
        return _PolledLog(self, position, schemas)

    def mark(self) -> str:
        """Write a row among the changes."""
        text = uuid4().hex
        with self.asking() as connection:
            self.write_mark(connection, text)
        return text

    def visibility(self) -> Visibility:
        """Return the visibility of a read that reads nothing."""
        with self.asking() as connection:
            return self.boundaries.begin_read(self, connection)

    def read_chunk(self, request: ChunkRequest) -> Chunk:
        """Read rows, visibility and identity of one moment."""
        schema = request.schema
        with self._reading(schema) as (connection, visibility, identity):
            texts, is_cut = self._within_bounds(self.select(connection, schema, request))
        if is_cut and request.keys is not None:
            texts = []  # the host asks for fewer keys
        return Chunk(
            rows=self._batch(schema, texts),
            cursor=self.cursor_of(schema, texts[-1]) if texts else None,
            visibility=visibility,
            identity=identity,
            is_cut=is_cut,
        )

    @contextmanager
    def read_whole(self, schema: TableSchema) -> Iterator[WholeRead]:
        """See `read_chunk`; in batches."""
        with self._reading(schema) as (connection, visibility, identity):
            texts = self.select(connection, schema, None)
            batches = (self._batch(schema, part) for part in iter(lambda: list(islice(texts, _BATCH_ROWS)), []))
            yield WholeRead(visibility=visibility, batches=batches, identity=lambda: identity)

    def close(self) -> None:
        """Do nothing: only the log is kept open, and the host closes it."""

    # -- inside -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self, schema: TableSchema) -> Iterator[tuple[ConnectionT, NumberVisibility, TableIdentity]]:
        with self.asking() as connection:
            visibility = self.boundaries.begin_read(self, connection)
            found = self.describe_table(connection, schema.table)
            if found is None:
                raise _missing(schema.table)
            if found.schema.columns != schema.columns:
                raise _changed(schema.table, self.context.replicator)
            yield connection, visibility, found.identity

    def _within_bounds(self, texts: Iterable[str]) -> tuple[list[str], bool]:
        """Return the first rows, at least one, and whether there are more."""
        size = 0
        rows: list[str] = []
        for text in texts:
            size += len(text)
            if rows and size > self.chunk_bytes_max:
                return rows, True
            rows.append(text)
        return rows, False

    def _batch(self, schema: TableSchema, texts: Iterable[str]) -> pa.RecordBatch:
        with _decoding(schema.table):
            rows = [self.row_of(schema, text) for text in texts]
            return pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(schema.row_type)))


class _PolledLog(LogReader):
    """Reads the table of changes, one transaction after the other; a large one in parts."""

    def __init__(self, source: PollingSource[Any, Any], position: int, schemas: Mapping[TableId, TableSchema]) -> None:
        self._source = source
        self._schemas = schemas
        self._connection = source.connect()
        self._position = self._end = position
        self._transaction = ""
        self._has_rows = False

    def pull(self, limits: PullLimits) -> LogBatch:
        """Poll until there are changes, or the time is over."""
        deadline = time.monotonic() + limits.wait_s
        with self._source.translated():
            errors = self._leave_out_changed()
            while True:
                batch = replace(self._read(limits), table_errors=errors)
                if batch.events or batch.offset or errors or time.monotonic() >= deadline:
                    return batch
                time.sleep(min(_POLL_S, limits.wait_s))

    def acknowledge(self, offset: Offset) -> None:
        """Delete the changes before the offset."""
        self._source.boundaries.forget(offset.value["number"])
        with self._source.translated():
            self._source.delete_changes(self._connection, offset.value["number"])

    def keep_alive(self) -> None:
        """Do nothing: each poll is a query of its own."""

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _read(self, limits: PullLimits) -> LogBatch:
        began, start = datetime.now(UTC), self._position
        if start == self._end:
            self._end = max(start, self._source.boundaries.end_behind(self._source, self._connection, start))
            self._transaction, self._has_rows = str(start + 1), False
        rows: dict[TableId, list[dict[str, Any]]] = {}
        marks, events, size, at = [], 0, 0, began
        for change in self._source.changes(self._connection, start, self._end):
            if events >= limits.rows or size >= limits.bytes:
                break
            self._position, at = change.number, change.at
            size += len(change.before or "") + len(change.after or "")
            if change.table is None:
                marks.append(change.after or "")
                self._end = change.number
                break
            if change.table in self._schemas:
                rows.setdefault(change.table, []).append(self._record(change, events))
                events, self._has_rows = events + 1, True
        is_over, moved = self._position == self._end, self._position > start
        ended = [{"id": self._transaction, "end_ordinal": events, "committed_at": at}]
        return LogBatch(
            changes=[self._table_changes(table, records) for table, records in rows.items()],
            events=events,
            transactions=pa.RecordBatch.from_pylist(
                ended if is_over and moved and self._has_rows else [], schema=TRANSACTION_SCHEMA
            ),
            open_transaction=None if is_over else self._transaction,
            marks=marks,
            offset=_offset(self._position) if is_over and moved else None,
            source_time=at if moved else began,
        )

    def _record(self, change: LoggedChange, ordinal: int) -> dict[str, Any]:
        schema = self._schemas[change.table]  # type: ignore[index]
        with of_table(schema.table, "decoding its changes"), _decoding(schema.table):
            before = None if change.before is None else self._source.row_of(schema, change.before)
            row = None if change.after is None else self._source.row_of(schema, change.after)
        names = schema.key_fields or tuple(schema.fields.values())
        return {
            SEQUENCE_NUM: ordinal,
            OPERATION: change.operation,
            IS_SNAPSHOT: False,
            SOURCE_TIMESTAMP: change.at,
            TRANSACTION_ID: self._transaction,
            BEFORE: None if before is None else {name: before[name] for name in names},
            ROW: row,
        }

    def _table_changes(self, table: TableId, records: list[dict[str, Any]]) -> TableChanges:
        schema = self._schemas[table]
        with of_table(table, "decoding its changes"), _decoding(table):
            return TableChanges(schema=schema, rows=pa.RecordBatch.from_pylist(records, schema=change_schema(schema)))

    def _leave_out_changed(self) -> Mapping[TableId, TableError]:
        """Leave out tables that were dropped, recreated or altered: their changes are not in the log, or not with all columns."""
        found = {table: self._source.is_unchanged(self._connection, schema) for table, schema in self._schemas.items()}
        self._schemas = {table: schema for table, schema in self._schemas.items() if found[table]}
        return {
            table: _changed(table, self._source.context.replicator) for table, is_same in found.items() if not is_same
        }


@contextmanager
def _decoding(table: TableId) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, pa.ArrowException) as error:
        # The error's own text may hold the value.
        raise UnsupportedTypeError(
            f"A value is not of its column's type ({type(error).__name__}).",
            code="unrepresentable_value",
            table=str(table),
            action="Correct the value in the source, or exclude the table (tables.exclude).",
        ) from error


def _offset(number: int) -> Offset:
    return Offset.of({"number": number})


def _missing(table: TableId) -> TableError:
    return TableError(
        "The table does not exist.", code="table_missing", table=str(table), action="Exclude it (tables.exclude)."
    )


def _changed(table: TableId, replicator: str) -> TableError:
    return TableError(
        "The table was dropped, recreated or altered.",
        code="schema_changed",
        table=str(table),
        action=f"Recreate it: replicator snapshot {replicator} {shlex.quote(str(table))} --recreate.",
    )
