"""The log: what the feed brings, cut into pulls and decoded into Arrow.

A pull is handled in steps, all rows at once: join the messages, read their kinds, decide where the pull ends (a
limit, a DDL event, a mark), then transactions and ordinals as arrays, then each table's rows. Only Relation, Truncate
and Message messages are looked at one by one; they are rare.

Nothing that must survive is kept here. After a lost connection a new reader starts after the last durable offset,
and the server sends the transaction that was cut again whole.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.model.errors import (
    CorruptStreamError,
    FatalError,
    LogGapError,
    OffsetExpiredError,
    ReplicatorError,
    TableError,
)
from replicator.model.events import DDLEvent, change_schema
from replicator.model.identity import TableIdentity
from replicator.model.isolation import table_error
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins import get_logger
from replicator.plugins.kit.arrow import Longs
from replicator.plugins.source import TRANSACTION_SCHEMA, LogBatch, LogReader, PullLimits, TableChanges
from replicator_source_postgresql.log import pgoutput as p
from replicator_source_postgresql.log.feed import Feed
from replicator_source_postgresql.log.idle import IdleLog, LogEnd
from replicator_source_postgresql.log.lookups import Lookups
from replicator_source_postgresql.log.messages import EPOCH_2000_US, HEADER, IS_RARE, IS_ROW, Part, moment, up_to
from replicator_source_postgresql.log.relations import RareEvents, Relations
from replicator_source_postgresql.lsn import lsn_from_text, lsn_to_text, widen_xid
from replicator_source_postgresql.marks import LsnMarks, mark_prefix
from replicator_source_postgresql.replication.ddl_trigger import DDL_PREFIX
from replicator_source_postgresql.types import Unrepresentable
from replicator_source_postgresql.wire import Block, Bytes, Frames, MalformedError

__all__ = ["LsnMarks", "PgLogReader", "mark_prefix"]

_log = get_logger(__name__)

_BEGIN_SIZE: Final = HEADER + 21
_COMMIT_SIZE: Final = HEADER + 26
# Arrow's offsets are 32 bits wide, a message has less than 1 GiB, and the last one of a pull may go over the bound.
_BYTES_MAX: Final = 1 << 30
# A transaction of one row takes three messages.
_MESSAGES_PER_ROW: Final = 3


@dataclass(slots=True)
class _Transaction:
    """The transaction that the stream is in. `has_events`: rows or DDL events of it were delivered."""

    id: int
    commit_lsn: int
    committed_us: int
    has_events: bool = False


@dataclass(frozen=True, slots=True)
class _Transactions:
    """The transactions of a pull: the open one first, if there is one, then those that begin here.

    `of_message`: the index of each message's transaction (meaningless outside transactions). `ended`: how many of them end here.
    """

    ids: Longs
    commit_lsns: Longs
    committed_us: Longs
    of_message: Longs
    ended: int
    end_lsns: Longs


class _Offers:
    """The positions that were offered to the host as offsets. `lsn`: the last one."""

    def __init__(self, lsn: int, fields: Mapping[str, Any], move_s: float, clock: Callable[[], float]) -> None:
        self.lsn = lsn
        self._fields, self._move_s, self._clock = dict(fields), move_s, clock
        self._at = clock()

    @property
    def is_due(self) -> bool:
        """Return whether an idle database's offset may move again."""
        return self._clock() - self._at >= self._move_s

    def offer(self, lsn: int) -> Offset:
        """Return the offset of a position."""
        self.lsn, self._at = lsn, self._clock()
        return Offset.of({"lsn": lsn_to_text(lsn), **self._fields})


@dataclass(slots=True)
class _Marks:
    """Marks in the log: messages of our prefix, and commits at or after awaited positions.

    Attributes:
        prefix: See `mark_prefix`.
        by_lsn: The source's; used on servers before 14 only.
        open: Marks of the open transaction; they count when it commits.
    """

    prefix: str
    by_lsn: LsnMarks
    open: list[str] = field(default_factory=list)

    def take_open(self) -> list[str]:
        """Return the marks of the transaction that commits."""
        taken, self.open = self.open, []
        return taken

    def stop_at(self, part: Part, stop: int) -> int:
        """Return the end of a pull: after the first commit that an awaited position is reached with."""
        awaited = self.by_lsn.lowest()
        if awaited is None:
            return stop
        commits = np.flatnonzero(part.kinds[:stop] == p.COMMIT)
        reached = commits[part.frames.int64(part.frames.starts[commits] + HEADER + 10) >= awaited]
        return int(reached[0]) + 1 if len(reached) else stop


@dataclass(slots=True)
class _LastTables:
    """Tables of the last messages of the open transaction, for errors of the server.

    Attributes:
        described: The table whose description was the last message: the row that made it necessary did not come yet.
        changed: The table of the last row: the next one may be of another.
    """

    described: TableId | None = None
    changed: TableId | None = None

    @property
    def words(self) -> str:
        """Return what is known of where that was, to follow the transaction's id."""
        if self.described is not None:
            return f", a row of {self.described}"
        return "" if self.changed is None else f", after a change of {self.changed}"


class PgLogReader(LogReader):
    """The log that an open feed delivers. Threads: as `LogReader`.

    Args:
        feed: Opened at `start_lsn`.
        start_lsn: End of the last commit that is durable here (`lsn_from_text(offset.value["lsn"])`). Commits up
            to it are not sent again.
            The caller compares beforehand whether the slot still joins there (`confirmed_flush_lsn`, timeline, system).
        schemas: The tables to decode, in their last known shapes. Rows of other tables are skipped.
        lookups: Answers catalogue questions, on another connection; asked when a Relation message names types not seen before, or may
            have other columns than are known.
        xid_near: A recent 64-bit transaction id: `pg_snapshot_xmax(pg_current_snapshot())` as a number.
        marks: See `mark_prefix`, called with `context.uuid`.
        lsn_marks: The source's `LsnMarks`; used on servers before 14 only.
        offset_fields: Added to every offset next to `lsn` (timeline, system id, …).
        log_end: Returns the end of the server's log, and the server's clock just before; asked when keepalives do not tell how far an idle
            log is complete, once a second at most. None where the server cannot say (a standby).
        has_early_keepalives: True if the server sends keepalives in the middle of a backlog. Otherwise one that wants no answer means that
            the whole log was sent.
        objects: The oids under which tables are replicated; checked again with each Relation message.
        accepted: The identities under which tables are replicated; read again when a table was altered.
        unrepresentable: Treatment of values that the canonical type cannot hold. Those in key columns always fail the table.
        idle_move_s: An idle database's offset moves at most once in so many seconds (and when the server asks for
            an answer, as it does when it shuts down).

    Offsets are `{"lsn": "16/B374D848", **offset_fields}`, lsn being the end of a commit or, when idle, a position
    up to which nothing is missing.
    Transaction ids are full 64-bit ids in decimal (`widen_xid`), as in `pg_current_snapshot()`.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        schemas: Mapping[TableId, TableSchema],
        lookups: Lookups,
        start_lsn: int,
        xid_near: int,
        marks: str,
        lsn_marks: LsnMarks,
        offset_fields: Mapping[str, Any],
        objects: Mapping[TableId, int],
        accepted: Mapping[TableId, TableIdentity],
        unrepresentable: Unrepresentable,
        log_end: LogEnd | None,
        has_early_keepalives: bool,
        idle_move_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._feed = feed
        self._relations = Relations(schemas, objects, accepted, lookups)
        self._idle = IdleLog(
            start_lsn, log_end=log_end, has_early_keepalives=has_early_keepalives, move_s=idle_move_s, clock=clock
        )
        self._marks = _Marks(marks, lsn_marks)
        self._offers = _Offers(start_lsn, offset_fields, idle_move_s, clock)
        self._unrepresentable: Unrepresentable = unrepresentable
        self._queue: list[Block] = []
        self._open: _Transaction | None = None
        self._last = _LastTables()
        self._xid_near = xid_near
        self._nulled: Counter[tuple[TableId, str]] = Counter()

    def pull(self, limits: PullLimits) -> LogBatch:
        """See `LogReader.pull`.

        While changes flow it gathers for 50 ms (250 ms when there are thousands), so that many rows share the cost of a pull.
        """
        bytes_max = min(limits.bytes, _BYTES_MAX)
        count_max = _MESSAGES_PER_ROW * limits.rows
        queued = sum(len(block.sizes) for block in self._queue)
        if queued < count_max:
            # What is already here is delivered without waiting.
            wait_s = 0.0 if queued else limits.wait_s
            try:
                self._queue += self._feed.receive(count_max=count_max - queued, bytes_max=bytes_max, wait_s=wait_s)
            except ReplicatorError as error:
                # What came before is delivered first; the feed reports the error again.
                if not queued:
                    raise self._located(error) from error
        if not self._queue:
            return self._finish(LogBatch(open_transaction=self._open_id))
        frames, rest = up_to(self._queue, count_max, bytes_max)
        try:
            batch, handled = self._decode(frames, limits.rows)
        except MalformedError as error:
            self._corrupt(str(error), error)
        left = frames.after(handled)
        self._queue = [left, *rest] if len(left.sizes) else rest
        return self._finish(batch)

    def acknowledge(self, offset: Offset) -> None:
        """See `LogReader.acknowledge`; SourceUnavailableError if the connection is lost."""
        self._feed.confirm(lsn_from_text(offset.value["lsn"]))

    def keep_alive(self) -> None:
        """See `LogReader.keep_alive`; SourceUnavailableError if the connection is lost."""
        self._feed.confirm()

    def close(self) -> None:
        """See `LogReader.close`."""
        self._feed.close()

    # ---- one pull ----

    def _decode(self, frames: Frames, rows_max: int) -> tuple[LogBatch, int]:
        """Decode the messages up to where the pull ends; return how many that were."""
        part = Part.read(frames)
        events = self._read_rare(part, part.limit(rows_max))
        part = part.first(events.stop)
        transactions = self._read_transactions(part)
        changes, ordinals, count = self._decode_rows(part, transactions, events.errors)
        events_count = count + len(events.ddl)
        ended = self._end_transactions(part, transactions, ordinals, events_count)
        last = transactions.ended - 1
        batch = LogBatch(
            changes=changes,
            ddl=[self._stamped(event) for event in events.ddl],
            events=events_count,
            transactions=ended,
            open_transaction=self._open_id,
            marks=events.marks,
            offset=self._offers.offer(int(transactions.end_lsns[last])) if transactions.ended else None,
            source_time=moment(int(transactions.committed_us[last])) if transactions.ended else None,
            table_errors=events.errors,
            announced_by=events.announced,
        )
        if self._open is None:
            self._idle.see_keepalives(part)
        self._note_tables(part)
        return batch, part.count

    def _note_tables(self, part: Part) -> None:
        """Remember which tables the last messages of the open transaction were about."""
        begins, messages = np.flatnonzero(part.kinds == p.BEGIN), np.flatnonzero(part.kinds)
        if self._open is None or len(begins):
            self._last = _LastTables()
        if self._open is None or not len(messages):
            return
        last, first = int(messages[-1]), int(begins[-1]) if len(begins) else 0
        self._last.described = self._relations.name(part, last) if part.kinds[last] == p.RELATION else None
        rows = np.flatnonzero(IS_ROW[part.kinds[first:]])
        if len(rows):
            self._last.changed = self._relations.name(part, first + int(rows[-1]))

    def _read_transactions(self, part: Part) -> _Transactions:
        """Read Begin and Commit messages, and check that rows stand between them."""
        frames, kinds = part.frames, part.kinds
        begins, commits = np.flatnonzero(kinds == p.BEGIN), np.flatnonzero(kinds == p.COMMIT)
        sizes = frames.ends - frames.starts
        if (sizes[begins] != _BEGIN_SIZE).any() or (sizes[commits] != _COMMIT_SIZE).any():
            raise MalformedError("a Begin or Commit message has a wrong length")
        opened = self._open
        carried = 1 if opened is not None else 0
        _check_nesting(kinds, carried)
        begin, commit = frames.starts[begins] + HEADER + 1, frames.starts[commits] + HEADER + 1
        xids = frames.int32(begin + 16) & 0xFFFFFFFF
        ids = np.array([widen_xid(xid, self._xid_near) for xid in xids[:1].tolist()], np.int64)
        if len(ids):
            # The others follow at once: within a pull all lie close to the first.
            ids = ids + (xids - xids[0] + (1 << 31)) % (1 << 32) - (1 << 31)
            self._xid_near = int(ids[-1])
        commit_lsns = frames.int64(begin)
        committed = frames.int64(begin + 8) + EPOCH_2000_US
        if opened is not None:
            ids = np.concatenate([[opened.id], ids])
            commit_lsns = np.concatenate([[opened.commit_lsn], commit_lsns])
            committed = np.concatenate([[opened.committed_us], committed])
        if (frames.int64(commit + 1) != commit_lsns[: len(commits)]).any():
            raise MalformedError("a Commit message does not belong to its Begin message")
        of_message = np.cumsum(kinds == p.BEGIN) + (carried - 1)
        return _Transactions(ids, commit_lsns, committed, of_message, len(commits), frames.int64(commit + 9))

    def _decode_rows(
        self, part: Part, transactions: _Transactions, errors: dict[TableId, TableError]
    ) -> tuple[list[TableChanges], npt.NDArray[np.int64], int]:
        """Decode the replicated tables' rows; return them, the number of ordinals before each message, and how many ordinals there are."""
        rows = np.flatnonzero(IS_ROW[part.kinds])
        if (part.frames.ends[rows] - part.frames.starts[rows] < HEADER + 6).any():
            raise MalformedError("a row message is too short")
        shapes, shape_of_row = self._relations.shapes_of(part, rows)
        used = np.zeros(part.count + 1, np.int64)
        replicated = shape_of_row >= 0
        used[rows[replicated] + 1] = 1
        before = np.cumsum(used)
        changes = []
        for number, shape in enumerate(shapes):
            mine = rows if len(shapes) == 1 and replicated.all() else rows[shape_of_row == number]
            try:
                changes.append(self._changes(part, transactions, mine, before[mine], shape))
            except MalformedError:
                raise
            except Exception as error:
                ours = table_error(error, shape.schema.table, "decoding its changes")
                if ours is None:
                    raise
                errors[shape.schema.table] = ours
                self._relations.drop(shape.schema.table)
        return changes, before, int(before[-1])

    def _changes(
        self, part: Part, transactions: _Transactions, rows: npt.NDArray[np.int64], ordinals: Longs, shape: p.Shape
    ) -> TableChanges:
        schema = shape.schema
        offsets, limits = part.frames.starts[rows] + HEADER + 5, part.frames.ends[rows]
        decoded = p.decode_rows(
            part.frames,
            part.kinds[rows],
            offsets,
            limits,
            shape,
            self._unrepresentable,
            lambda column, count: self._note_nulled(schema.table, column, count),
        )
        # Most pulls hold few transactions for many rows: their ids are spelled once.
        mine = transactions.of_message[rows]
        first, last = (int(mine[0]), int(mine[-1]) + 1) if len(mine) else (0, 0)
        lookup = pa.array(mine - first)
        columns = [
            pa.array(ordinals),
            decoded.operation,
            pa.repeat(pa.scalar(value=False), len(rows)),
            pa.array(transactions.committed_us[first:last]).view(pa.timestamp("us", tz="UTC")).take(lookup),
            pa.array(transactions.ids[first:last]).cast(pa.string()).take(lookup),
            decoded.absent,
            decoded.before,
            decoded.row,
        ]
        return TableChanges(schema=schema, rows=pa.RecordBatch.from_arrays(columns, schema=change_schema(schema)))

    def _end_transactions(self, part: Part, transactions: _Transactions, before: Longs, count: int) -> pa.RecordBatch:
        """Note the transaction that stays open, and list those that ended, if something of them was delivered."""
        begins, commits = np.flatnonzero(part.kinds == p.BEGIN), np.flatnonzero(part.kinds == p.COMMIT)
        opened = self._open
        starts = before[begins] if opened is None else np.concatenate([[0], before[begins]])
        ends = before[commits]
        has_events = ends > starts[: len(ends)]
        if opened is not None and opened.has_events and len(has_events):
            has_events[0] = True
        if len(transactions.ids) > transactions.ended:
            last = len(transactions.ids) - 1
            carried = opened if opened is not None and last == 0 else None
            self._open = _Transaction(
                id=int(transactions.ids[last]),
                commit_lsn=int(transactions.commit_lsns[last]),
                committed_us=int(transactions.committed_us[last]),
                has_events=count > int(starts[last]) or (carried is not None and carried.has_events),
            )
        else:
            self._open = None
        ended = slice(0, transactions.ended)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(transactions.ids[ended][has_events]).cast(pa.string()),
                pa.array(ends[has_events]),
                pa.array(transactions.committed_us[ended][has_events]).view(pa.timestamp("us", tz="UTC")),
            ],
            schema=TRANSACTION_SCHEMA,
        )

    def _read_rare(self, part: Part, stop: int) -> RareEvents:
        """Handle Relation, Truncate and Message messages up to `stop`, or up to the first that ends the pull."""
        events = RareEvents(self._marks.stop_at(part, stop))
        commits = np.flatnonzero(part.kinds == p.COMMIT)
        marks_end = commits[0] if self._marks.open and len(commits) else None
        if marks_end is not None:
            events.stop = min(events.stop, int(marks_end) + 1)
        for index in np.flatnonzero(IS_RARE[part.kinds]).tolist():
            if index >= events.stop:
                break
            match int(part.kinds[index]):
                case p.RELATION:
                    relation = p.Relation.read(part.content(index))
                    self._relations.take_relation(relation, index, self._transaction_at(part, index), events)
                case p.TRUNCATE:
                    self._relations.take_truncate(part.content(index), index, events)
                case _:
                    message = self._read_message(part, index, events)
                    if message is None:
                        continue
                    mark = message.content.decode("utf-8", errors="replace")
                    if message.is_transactional:
                        self._marks.open.append(mark)
                        behind = commits[commits > index]
                        marks_end = behind[0] if len(behind) else None
                        if marks_end is not None:
                            events.stop = min(events.stop, int(marks_end) + 1)
                    else:
                        events.marks.append(mark)
                        events.stop = index + 1
        if marks_end is not None and marks_end < events.stop:
            events.marks = [*self._marks.take_open(), *events.marks]
        return events

    def _read_message(self, part: Part, index: int, events: RareEvents) -> p.Message | None:
        """Return the message if it is one of our marks, else None. One that announces altered tables is noted."""
        message = p.Message.read(part.content(index))
        if message.prefix == DDL_PREFIX and message.is_transactional:
            events.announced = str(self._transaction_at(part, index))
        return message if message.prefix == self._marks.prefix else None

    def _transaction_at(self, part: Part, index: int) -> int:
        """Return the id of the transaction that a message belongs to."""
        begins = np.flatnonzero(part.kinds[:index] == p.BEGIN)
        if len(begins):
            last = int(begins[-1])
            if part.frames.ends[last] - part.frames.starts[last] != _BEGIN_SIZE:
                raise MalformedError("a Begin message has a wrong length")
            xid = part.frames.int32(part.frames.starts[[last]] + HEADER + 17)[0]
            return widen_xid(int(xid) & 0xFFFFFFFF, self._xid_near)
        if self._open is None:
            raise MalformedError("a table was described outside a transaction")
        return self._open.id

    def _stamped(self, event: DDLEvent) -> DDLEvent:
        """Add the transaction, which is the open one: a DDL event ends the pull."""
        opened = self._open
        if opened is None:
            raise MalformedError("a schema change came outside a transaction")
        return replace(event, transaction_id=str(opened.id), source_timestamp=moment(opened.committed_us))

    @property
    def _open_id(self) -> str | None:
        return str(self._open.id) if self._open is not None else None

    def _finish(self, batch: LogBatch) -> LogBatch:
        """Add the parts that do not come from changes: the position and time of an idle log, marks that are positions."""
        if self._open is not None:
            return batch
        reached = self._marks.by_lsn.reached(max(self._idle.lsn, self._offers.lsn))
        if reached:
            batch = replace(batch, marks=[*batch.marks, *reached])
        if not batch.events and not self._queue:
            self._idle.ask(self._offers.lsn)
        complete_until = self._idle.take_time()
        if complete_until is not None:
            batch = replace(batch, source_time=complete_until)
        if batch.source_time is not None:
            self._idle.note_time()
        is_due = self._offers.is_due or self._feed.is_answer_wanted
        if batch.offset is None and self._idle.lsn > self._offers.lsn and is_due:
            self._feed.is_answer_wanted = False
            batch = replace(batch, offset=self._offers.offer(self._idle.lsn))
        return batch

    def _note_nulled(self, table: TableId, column: str, count: int) -> None:
        if not self._nulled[table, column]:
            _log.warning("values_become_null", table=str(table), column=column, setting="unrepresentable: null")
        self._nulled[table, column] += count

    def _located(self, error: ReplicatorError) -> ReplicatorError:
        """Name the transaction, and the table if something is known of it, at which the server ended the log."""
        is_about_data = isinstance(error, FatalError) and not isinstance(error, LogGapError | OffsetExpiredError)
        if self._open is None or not is_about_data:
            return error
        where = f"in transaction {self._open.id}{self._last.words}"
        return type(error)(f"{error.message} ({where})", code=error.code, action=error.action)

    def _corrupt(self, message: str, error: Exception) -> NoReturn:
        raise CorruptStreamError(
            f"The log after {lsn_to_text(self._offers.lsn)}: {message}.",
            code="corrupt_stream",
            action="Start again. If it fails again at the same position, report it and run `replicator snapshot NAME --restart`.",
        ) from error


def _check_nesting(kinds: Bytes, carried: int) -> None:
    borders = kinds[(kinds == p.BEGIN) | (kinds == p.COMMIT)]
    expected = np.where((np.arange(len(borders)) + carried) % 2 == 0, np.uint8(p.BEGIN), np.uint8(p.COMMIT))
    if (borders != expected).any():
        raise MalformedError("Begin and Commit messages do not alternate")
    depth = carried + np.cumsum(kinds == p.BEGIN) - np.cumsum(kinds == p.COMMIT)
    if (depth[IS_ROW[kinds]] != 1).any():
        raise MalformedError("a row came outside a transaction")
