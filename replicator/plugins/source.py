"""Interface of a source plugin. The host owns the loop, time, retries and state; a source answers bounded questions.

A source never retries by itself, never calls the host back and keeps nothing that must survive. Its errors are those
of `replicator.model.errors`: `TransientError` for errors that may pass by themselves, `TableError` for one table, `FatalError`
for errors that an operator must fix, `ConfigError` for those that a wrong setting causes.

A source has three parts: its catalogue, its log and its chunks. The host uses each of them on its own.

Threads: one `DeltaSource` object may be used from three threads at once: the log's (`open_log` and the reader it returns), the chunk
reader's (`SourceChunks`), and the control thread's (everything else). Each uses a connection of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from typing import ClassVar, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from replicator.model.deletion import Deletion
from replicator.model.errors import Problem, TableError
from replicator.model.events import DDLEvent
from replicator.model.guarantee import Guarantee
from replicator.model.identity import TableIdentity
from replicator.model.offset import Offset
from replicator.model.rules import Section
from replicator.model.schema import TableId, TableSchema

ConfigT = TypeVar("ConfigT", bound=BaseModel)

Cursor = tuple[str, ...]
"""A key as the texts of its parts in key order, in the form that the source writes and reads back exactly; JSON-safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """The host's description of the replicator that a source serves.

    `uuid` is drawn once when the replicator is first stored; `epoch` is the lease's; both are empty or 0 during `validate`.
    """

    replicator: str
    uuid: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary:
    """A table that the source could offer. `left_out`: why it is not replicated, unless it can be (a view, a leaf partition, …)."""

    table: TableId
    left_out: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """The source's catalogue entry of a table now.

    Attributes:
        schema: Its schema, with the replicable columns and the key by which changes are identified.
        identity: Facts that change when the table becomes another object, gets other storage, or is published in another way; the host
            compares them.
        estimated_rows: Number of rows from statistics; None if unknown.
        storage_by: Id (as `_transaction_id`) of the transaction that gave the table the storage named in its identity, if a
            TRUNCATE is all that can have made it there. None: unknown, rows may have been rewritten in other ways, too, or
            `TableIdentity.altered` tells.
        fill: See `DDLEvent.fill`, for every column of which the catalogue knows the value of older rows. None: it knows that
            of no column, and a column that the log did not bring needs a new snapshot.
    """

    schema: TableSchema
    identity: TableIdentity
    estimated_rows: int | None = None
    storage_by: str | None = None
    fill: pa.RecordBatch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullLimits:
    """Bounds of one pull. A pull returns when any is reached, and at a mark, and after a DDL event.

    `wait_s`: seconds to wait for the first change when there is none. `rows` and `bytes` are checked per message, so the
    last row may go over.
    """

    rows: int
    bytes: int
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """Changes of one table version in one pull.

    `rows` has the layout of `change_schema(schema)`; `_sequence_num` holds ordinals. `is_net`: the last state of each row only
    (`Guarantee.NET_CHANGES`). A DELETE may then be of a row that was inserted and deleted, which the target never had.
    """

    schema: TableSchema
    rows: pa.RecordBatch
    is_net: bool = False


TRANSACTION_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("end_ordinal", pa.int64(), nullable=False),
        pa.field("committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
"""One row per transaction that *ends* in a pull, in commit order; `end_ordinal` is the ordinal after its last event (half-open)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBatch:
    """Result of one pull.

    Every DML row and DDL event of the pull has an ordinal; they run from 0 to `events - 1` in the order of the log, over all tables.
    A DDL event ends a pull: it has the last ordinal. Rows of a transaction follow each other: transactions are never interleaved.

    Attributes:
        changes: Changes, at most one entry per table; ordinals ascend in each.
        ddl: DDL events at this position, after all `changes`. Several only when one log entry concerns several tables.
        events: Number of ordinals used.
        transactions: `TRANSACTION_SCHEMA`: the transactions that ended here, those without captured rows may be left out.
        open_transaction: Id of the transaction inside which the pull stopped; None at a boundary. Its rows are in `changes` already.
            After a pull without changes an earlier open transaction stays open: capture must not seal what it has of it.
        marks: Marks delivered in this pull, in order. Everything before a mark is in this or an earlier pull.
        offset: Position to resume from after everything in this pull that has committed; None if nothing moved. Never inside a transaction.
        source_time: Time on the source's clock before which everything committed has been delivered; None if unknown.
        table_errors: Tables whose changes could not be decoded; their rows are not in `changes` from there on.
        unlogged: Tables whose rows a transaction may have changed without a trace in the log: they get a new snapshot, in place. Each with
            the ordinal of the last such change. `unlogged_errors`: errors of some instead if `snapshot.unexplained_change` is `stop`.
        is_rolled_back: The open transaction was rolled back, wholly or in part, after rows of it had been delivered. The batch has nothing
            else, and the reader is unusable: the host drops its unsealed part, and lets `open_log` of this source object deliver
            the changes that were really committed after the last durable offset.
        announced_by: The last transaction that announces that tables were altered. Capture compares the catalogue soon, until
            that shows what the transaction did, and does not use the announcement for anything else.
    """

    open_transaction: str | None
    changes: Sequence[TableChanges] = ()
    ddl: Sequence[DDLEvent] = ()
    events: int = 0
    transactions: pa.RecordBatch = field(
        default_factory=lambda: pa.RecordBatch.from_pylist([], schema=TRANSACTION_SCHEMA)
    )
    marks: Sequence[str] = ()
    offset: Offset | None = None
    source_time: datetime | None = None
    table_errors: Mapping[TableId, TableError] = field(default_factory=dict)
    unlogged: Mapping[TableId, int] = field(default_factory=dict)
    unlogged_errors: Mapping[TableId, TableError] = field(default_factory=dict)
    is_rolled_back: bool = False
    announced_by: str | None = None

    @property
    def has_open_rows(self) -> bool:
        """Return whether the batch has rows after the last transaction that ends in it."""
        ends = self.transactions.column("end_ordinal")
        return self.events - len(self.ddl) > (ends[-1].as_py() if len(ends) else 0)

    def closes(self, transaction: str) -> bool:
        """Return whether the batch ends a transaction that the batch before it left open, or passes its end."""
        return (
            self.is_rolled_back
            or self.offset is not None
            or pc.is_in(pa.scalar(transaction), self.transactions.column("id")).as_py()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction of the source after whose beginning the log must be read again. `name`: in the source's own format."""

    name: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRetention:
    """Retention of the source's log after our position.

    Attributes:
        keeps_log: Time for which the source keeps its log, counted from when it was written, even if a reader still needs it; None if it
            keeps it for us, or it is unknown.
        oldest_open: The oldest transaction whose changes are held back until it is decided; None if there is none.
        bytes_left: Bytes that may still be written into the log before the source discards our position; None if it has no such
            limit, or it is unknown.
        bytes_max: Limit of these bytes, if nothing after our position is kept.
        bytes_written: Bytes that were ever written into the log, so that the host can compute its growth; None if unknown.
    """

    keeps_log: timedelta | None = None
    oldest_open: OpenTransaction | None = None
    bytes_left: int | None = None
    bytes_max: int | None = None
    bytes_written: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """Status of a source, for `replicator status`.

    Attributes:
        now: Time of the source's clock (aware, UTC).
        retained_bytes: Bytes of log that the source keeps for us; None if unknown, or if it keeps none for us.
        retention: Retention of the log.
        waiting_for: Things that `prepare`, a snapshot or the log waits for: one line each, with an identifier (a pid of a transaction).
        heartbeat: Interval at which the open log delivers a newer `source_time` while the source is idle; None if it does not.
        guarantee: Its guarantee, as it is set up.
    """

    now: datetime
    retained_bytes: int | None = None
    retention: LogRetention = field(default_factory=LogRetention)
    waiting_for: Sequence[str] = ()
    heartbeat: timedelta | None = None
    guarantee: Guarantee = Guarantee.FULL


class Seen(IntEnum):
    """State of a transaction for a read."""

    SEEN = 0
    UNSEEN = 1
    UNKNOWN = 2


class Visibility(ABC):
    """Set of transactions that a read of the source saw. Immutable."""

    @abstractmethod
    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        """Return for each transaction whether the read saw it.

        Args:
            transaction_ids: Ids as in `TRANSACTION_SCHEMA` and `_transaction_id`; no nulls.

        Returns:
            `Seen` values, one per id. Monotone: a transaction that one read saw, every read that began later sees.
        """

    def is_beyond(self, earlier: Visibility) -> bool:  # noqa: ARG002 - for sources that have something to wait for
        """Return whether every transaction that had begun when `earlier` was taken has ended for this read: is seen, or never commits.

        A snapshot that begins where the log may have left changes of its table out (it was not published yet, or not
        replicated) waits for this: changes that are not in the log must be in the snapshot. A source whose log never leaves anything
        out has nothing to wait for.
        """
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRequest:
    """One chunk to read.

    Attributes:
        schema: The table version that the host knows; the chunk's columns are exactly these.
        limit: Maximum number of rows.
        after: Read keys greater than this; None from the beginning.
        upto: Read keys up to and including this; None to the end.
        keys: Read exactly the rows of these keys instead of a range, as `kit.cursors.cursors` spells them. Rows whose key differs in what
            the source does not tell apart (case, say) may be among them.
    """

    schema: TableSchema
    limit: int
    after: Cursor | None = None
    upto: Cursor | None = None
    keys: Sequence[Cursor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Result of one statement.

    Attributes:
        rows: Columns are the fields of `schema.row_type`, in order; rows in key order.
        cursor: Key of the last row; None if there are no rows.
        visibility: Taken in the very statement that read the rows.
        identity: `TableDescription.identity` after the read if it was the same before it; None if the table changed meanwhile (read again).
        is_cut: There are fewer rows than `limit` because the source ended the chunk where it grew too large; more may follow after
            `cursor`. With `keys`: there are no rows, and the host asks for fewer keys; never with one key.
    """

    rows: pa.RecordBatch
    cursor: Cursor | None
    visibility: Visibility
    identity: TableIdentity | None
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRead:
    """A table without a key, read in one statement.

    `visibility` is known before the first batch. `batches` has the columns of `schema.row_type` and must be consumed
    inside the context. `identity()` is called after the last batch: see `Chunk.identity`.
    """

    visibility: Visibility
    batches: Iterator[pa.RecordBatch]
    identity: Callable[[], TableIdentity | None]


class LogReader(ABC):
    """An open log. Used from one thread, except `keep_alive`."""

    @abstractmethod
    def pull(self, limits: PullLimits) -> LogBatch:
        """Return the next changes in log order, waiting at most `limits.wait_s` for the first.

        Returns an empty batch (perhaps with `offset` or `source_time` moved) when nothing came.

        Raises:
            TransientError: The connection was lost; the reader is unusable, and a new one starts after the last durable offset.
            LogGapError, OffsetExpiredError, CorruptStreamError: As named.
        """

    @abstractmethod
    def acknowledge(self, offset: Offset) -> None:
        """Tell the source that everything up to `offset` is durable here.

        Called from the log's thread, after the commit of the journal's index.

        Replay: acknowledging an older or the same offset again does nothing.
        """

    @abstractmethod
    def keep_alive(self) -> None:
        """Keep the server from dropping the connection. Thread-safe; called at least every 10 s whenever the host is not inside `pull`."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. May be called twice."""


class SourceCatalogue(ABC):
    """The source and its tables. Used from the control thread."""

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """Return the parts that identify the source permanently: system id, database, log resources (slot, publication).

        Stored, and compared at every start.
        """

    @abstractmethod
    def list_tables(self) -> Sequence[TableSummary]:
        """Return every user table, and the reason for those left out. Ordered by name."""

    @abstractmethod
    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, TableDescription]:
        """Return schema and identity of the tables as they are now; a table that does not exist is missing from the answer."""

    def locate(self, tables: Sequence[TableId]) -> Mapping[TableId, TableId]:  # noqa: ARG002 - optional
        """Return the present names of tables that had these names when they were last accepted (`SourceLog.accept`).

        Only tables that have another name are in the answer. A source whose log has every renaming returns none.
        """
        return {}

    @abstractmethod
    def check(self, tables: Sequence[TableId]) -> Sequence[Problem]:
        """Return every problem that prevents these tables from being replicated, all at once; changes nothing.

        Server settings, privileges, log resources, and per table: identity, types, row security, … . `location` is the
        table or the setting, `action` the SQL that fixes it. Called at starts, once a minute, and every 15 seconds about tables
        that failed with a `CurableError`, until nothing blocking is found. Raises TransientError or ConfigError if the server fails.
        """


class SourceLog(ABC):
    """The source's log of changes. `open_log` and its reader are used from the log's thread, the rest from the control thread."""

    @abstractmethod
    def prepare(self, tables: Sequence[TableId], *, is_first: bool) -> Offset:
        """Make the objects that are needed in the source so that changes of `tables` appear in the log from now on.

        Returns the offset from which the log can be read. Called after the host has recorded its intent, at every
        start and whenever tables are added or removed. With `is_first` no segment was ever sealed: objects of an earlier,
        unfinished call are dropped and made again. Without it, only the set of tables is brought in line; the
        returned offset is then meaningless to the host. Tables that were already replicated and still are lose nothing.
        Replay: same result.
        """

    @abstractmethod
    def status(self, since: Visibility | None = None) -> LogStatus:
        """Return the state of the source and its log. Thread-safe: also called while `prepare` runs in another thread.

        Args:
            since: A snapshot waits until every transaction that had begun by then has ended (`Visibility.is_beyond`): `waiting_for`
                names those that have not. None: it names those that a running `prepare` waits for.
        """

    @abstractmethod
    def remove(self) -> Deletion:
        """Remove from the source what `prepare` made; return what was removed and what stays, like a given slot. Replay: does nothing."""

    @abstractmethod
    def leftovers(self) -> Sequence[str]:
        """Return statements that remove the same by hand; for `delete --force` when the source cannot be reached. No I/O."""

    def accept(self, identities: Mapping[TableId, TableIdentity]) -> None:  # noqa: B027 - optional
        """Learn the identities (`TableDescription.identity`) under which these tables are replicated from here on.

        Called before `open_log`, and when a snapshot of a table begins. A source whose log names tables by name alone can
        tell by them that another object has the name. No I/O.
        """

    @abstractmethod
    def open_log(self, after: Offset, schemas: Mapping[TableId, TableSchema]) -> LogReader:
        """Open the log after `after` for these tables, whose last known schemas are given.

        Raises:
            LogGapError: The log does not join at `after` (acknowledged beyond it, another timeline or server).
            OffsetExpiredError: The log at `after` was removed.
            TransientError: Not now (someone else still holds the log).
        """

    @abstractmethod
    def mark(self) -> str:
        """Write a unique mark into the log and return it.

        When a pull delivers it, everything that was visible to any read finished before this call has been delivered.
        """

    @abstractmethod
    def visibility(self) -> Visibility:
        """Return the visibility of a read that begins now."""


class SourceChunks(ABC):
    """Reads of the source's tables, for snapshots. Used from the chunk reader's thread."""

    @abstractmethod
    def read_chunk(self, request: ChunkRequest) -> Chunk:
        """Read rows in key order in one statement, which holds no lock beyond its own and gives way to waiting DDL.

        Raises:
            TableError: The table cannot be read.
            ImpossibleKeyError: One of `keys` is no value of its type.
            SchemaConflictError: It no longer exists, or no longer has the columns of `request.schema`: not those numbers under those names
                (`Column.id`). The host reads the catalogue, and then reads the table again with its new schema.
            TransientError: Read again later (lock or statement time-out, lost connection).
        """

    @abstractmethod
    def read_whole(self, schema: TableSchema) -> AbstractContextManager[WholeRead]:
        """Read a table without a key in one statement, streaming. Errors as `read_chunk`."""


class DeltaSource(SourceCatalogue, SourceLog, SourceChunks, Generic[ConfigT]):
    """Base of source plugins: a relational database with a log of changes. Its parts may be classes of their own."""

    type_name: ClassVar[str]
    """The `type:` in the YAML."""
    config_model: ClassVar[type[BaseModel]]
    """Model of the `source:` block without `type`; frozen, extra forbidden, every field described."""
    rules: ClassVar[Section | None] = None
    """The codes of its own errors and findings: a section of `docs/errors.md`."""

    def __init__(self, config: ConfigT, context: SourceContext) -> None:
        self.config = config
        self.context = context

    @abstractmethod
    def close(self) -> None:
        """Close all connections. May be called twice."""


class SupportsRehearsal(ABC):
    """A source that can tell beforehand what a statement would bring: `replicator plan FILE --ddl "ALTER TABLE …"`.

    Attributes:
        rewrites_untold: An ALTER TABLE may give a table other storage, and only the server knows for which statements: the comparison with
            the catalogue finds it afterwards, and the table is read again.
    """

    rewrites_untold: ClassVar[bool] = False

    @abstractmethod
    def rehearse(self, statement: str) -> Sequence[DDLEvent]:
        """Return the events that the log would bring if `statement` were executed now, in their order.

        Called from the control thread, of a source whose log is not open and for which nothing was prepared. Reads the catalogue, and
        executes nothing: afterwards the source is as it was. A second call returns the same.

        Args:
            statement: As a person would type it, with or without a semicolon after it; names without a schema or database are looked up as
                the source's session would.

        Returns:
            Of an ALTER_TABLE both schemas (`before` is the catalogue's, `schema` the one afterwards, with the same numbers for columns that
            are the same), and `fill` as the log would have it: None where the rows would have to be read again. Events of tables that
            are not replicated are among them. Empty if the log would bring none.

        Raises:
            ConfigError: `ddl_not_understood`: it is no statement that defines tables, or cannot be parsed; the message has its text. Or the
                source cannot be asked.
            TableError: `ddl_not_understood`: it concerns a table in a way that is not understood, and would fail this table.
        """
