"""The log: what the feed brings, cut into pulls and decoded into Arrow.

A pull is handled in steps, all rows at once: join the messages, read their kinds, decide where the pull ends (a
limit, a DDL event, a mark), then transactions and ordinals as arrays, then each table's rows. Only Relation, Truncate
and Message messages are looked at one by one; they are rare.

Nothing that must survive is kept here. After a lost connection a new reader starts behind the last durable offset,
and the server sends the transaction that was cut again whole.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
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
from replicator.model.events import DDLEvent, DDLOperation, change_schema
from replicator.model.isolation import table_error
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import TRANSACTION_SCHEMA, LogBatch, LogReader, PullLimits, TableChanges
from replicator_source_postgresql import pgoutput as p
from replicator_source_postgresql.feed import KEEPALIVE_SIZE, Feed
from replicator_source_postgresql.lsn import lsn_from_text, lsn_to_text, widen_xid
from replicator_source_postgresql.marks import LsnMarks, mark_prefix
from replicator_source_postgresql.types import TypeInfo, Unrepresentable
from replicator_source_postgresql.values import Bools, Longs
from replicator_source_postgresql.wire import Block, Bytes, Frames, MalformedError

__all__ = ["LsnMarks", "PgLogReader", "mark_prefix"]

log = logging.getLogger(__name__)

# A CopyData of the log: 'w', the position twice, the server's clock; then pgoutput's message.
_HEADER: Final = 25
_DATA: Final = ord("w")
_KEEPALIVE: Final = ord("k")
_BEGIN_SIZE: Final = _HEADER + 21
_COMMIT_SIZE: Final = _HEADER + 26
_EPOCH_2000_US: Final = 946_684_800_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Arrow's offsets are 32 bits wide, a message has less than 1 GiB, and the last one of a pull may go over the bound.
_BYTES_MAX: Final = 1 << 30
_ASK_END_EVERY_S: Final = 1.0
# A transaction of one row takes three messages.
_MESSAGES_PER_ROW: Final = 3


def _kinds(*kinds: int) -> Bools:
    table = np.zeros(256, bool)
    table[list(kinds)] = True
    return table


_IS_ROW: Final = _kinds(p.INSERT, p.UPDATE, p.DELETE)
_IS_RARE: Final = _kinds(p.RELATION, p.TRUNCATE, p.MESSAGE)
_IS_KNOWN: Final = _IS_ROW | _IS_RARE | _kinds(p.BEGIN, p.COMMIT, p.ORIGIN, p.TYPE)


@dataclass(slots=True)
class _Transaction:
    """The transaction inside which the stream is. `has_events`: rows or DDL events of it were delivered."""

    id: int
    commit_lsn: int
    committed_us: int
    has_events: bool = False


@dataclass(frozen=True)
class _Part:
    """The messages of one pull as arrays; `kinds` is 0 for keepalives."""

    frames: Frames
    kinds: Bytes

    @property
    def count(self) -> int:
        return len(self.kinds)

    def first(self, count: int) -> _Part:
        """Only the first messages."""
        return _Part(self.frames.first(count), self.kinds[:count])

    def content(self, index: int) -> bytes:
        """One message behind its kind byte."""
        return self.frames.data[int(self.frames.starts[index]) + _HEADER + 1 : int(self.frames.ends[index])]


@dataclass(slots=True)
class _Events:
    """What the rare messages of a pull amount to, and where they end it."""

    stop: int
    ddl: list[DDLEvent] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    errors: dict[TableId, TableError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Transactions:
    """The transactions of a pull: the open one first, if there is one, then those that begin here.

    `of_message`: which one each message belongs to (meaningless outside transactions). `ended`: how many of them end here.
    """

    ids: Longs
    commit_lsns: Longs
    committed_us: Longs
    of_message: Longs
    ended: int
    end_lsns: Longs


class PgLogReader(LogReader):
    """See `open`. Threads: as `LogReader`."""

    def __init__(
        self,
        feed: Feed,
        *,
        schemas: Mapping[TableId, TableSchema],
        resolve_types: Callable[[Collection[int]], Mapping[int, TypeInfo]],
        start_lsn: int,
        xid_near: int,
        marks: str,
        lsn_marks: LsnMarks,
        offset_fields: Mapping[str, Any],
        objects: Mapping[TableId, int] = MappingProxyType({}),
        unrepresentable: Unrepresentable = "fail",
        log_end: Callable[[], tuple[int, datetime]] | None = None,
        has_early_keepalives: bool = False,
        idle_move_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read from an open feed; `open` explains the arguments."""
        self._feed = feed
        self._followed = dict(schemas)
        self._objects = objects
        self._log_end = log_end
        self._has_early_keepalives = has_early_keepalives
        # A moment, and where the log ended then: once the stream is there, everything before that moment was delivered.
        self._awaited: tuple[int, datetime] | None = None
        self._ask_end_at = clock()
        # When a time was last told, or asked for in vain.
        self._timed_at = clock()
        self._resolve_types = resolve_types
        self._marks = marks
        self._lsn_marks = lsn_marks
        self._offset_fields = dict(offset_fields)
        self._unrepresentable: Unrepresentable = unrepresentable
        self._idle_move_s = idle_move_s
        self._clock = clock
        self._queue: list[Block] = []
        self._infos: dict[int, TypeInfo] = {}
        # Relation id → shape; None for tables that are not followed.
        self._shapes: dict[int, p.Shape | None] = {}
        self._open: _Transaction | None = None
        # The table whose description was the last message: the row that made it necessary did not come yet.
        self._announced: TableId | None = None
        # Marks of the open transaction; they count when it commits.
        self._open_marks: list[str] = []
        self._xid_near = xid_near
        # The last position that was offered as an offset, and a position up to which nothing is missing.
        self._offered_lsn = start_lsn
        self._offered_at = clock()
        self._idle_lsn = start_lsn
        self._idle_time: datetime | None = None
        self._nulled: Counter[tuple[TableId, str]] = Counter()

    @classmethod
    def open(
        cls,
        conninfo: Mapping[str, Any],
        *,
        slot: str,
        publication: str,
        start_lsn: int,
        schemas: Mapping[TableId, TableSchema],
        resolve_types: Callable[[Collection[int]], Mapping[int, TypeInfo]],
        xid_near: int,
        marks: str,
        lsn_marks: LsnMarks,
        offset_fields: Mapping[str, Any],
        objects: Mapping[TableId, int] = MappingProxyType({}),
        unrepresentable: Unrepresentable = "fail",
        log_end: Callable[[], tuple[int, datetime]] | None = None,
        has_early_keepalives: bool = False,
        idle_move_s: float = 10.0,
        is_raw: bool = False,
    ) -> PgLogReader:
        """Connect and start streaming behind `start_lsn`.

        Args:
            conninfo: libpq parameters (host, user, sslmode, …) without `replication` and `options`; `SESSION_OPTIONS` are added here.
            slot: An existing logical slot made with pgoutput.
            publication: Its name, unquoted.
            start_lsn: End of the last commit that is durable here (`lsn_from_text(offset.value["lsn"])`). Commits up
                to it are not sent again.
                Whether the slot still joins there (`confirmed_flush_lsn`, timeline, system) is the caller's to compare beforehand.
            schemas: The tables to follow, in their last known shapes. Rows of other tables are skipped.
            resolve_types: Answers catalogue questions about types, on another connection; called when a Relation
                message names types not seen before. See `types.TYPES_QUERY`.
            xid_near: A recent 64-bit transaction id: `pg_snapshot_xmax(pg_current_snapshot())` as a number.
            marks: `mark_prefix(context.uuid)`.
            lsn_marks: The source's `LsnMarks`; used on servers before 14 only.
            offset_fields: Added to every offset next to `lsn` (timeline, system id, …).
            log_end: Where the server's log ends now, and the server's clock just before; asked when keepalives do not tell how far an idle
                log is complete, once a second at most. None where the server cannot say (a standby).
            has_early_keepalives: The server sends keepalives in the middle of a backlog. Otherwise one that wants no answer means that
                the whole log was sent.
            objects: The oids under which tables are replicated; checked again with each Relation message.
            unrepresentable: What to do with values that the canonical type cannot hold. Those in key columns always fail the table.
            is_raw: The database has no encoding: texts come as they are.
            idle_move_s: An idle database's offset moves at most once in so many seconds (and when the server asks for
                an answer, as it does when it shuts down).

        Offsets are `{"lsn": "16/B374D848", **offset_fields}`, lsn being the end of a commit or, when idle, a position
        up to which nothing is missing.
        Transaction ids are full 64-bit ids in decimal (`widen_xid`), as in `pg_current_snapshot()`.

        Raises:
            SourceUnavailableError: Not reachable, or the slot is in use (`slot_active`).
            AccessDeniedError: As named.
            LogGapError: The slot does not exist, or was invalidated.
            OffsetExpiredError: The log at `start_lsn` has been removed.
        """
        feed = Feed.open(conninfo, slot=slot, publication=publication, start_lsn=start_lsn, is_raw=is_raw)
        return cls(
            feed, schemas=schemas, resolve_types=resolve_types, start_lsn=start_lsn, xid_near=xid_near, marks=marks, lsn_marks=lsn_marks,
            offset_fields=offset_fields, objects=objects, log_end=log_end, has_early_keepalives=has_early_keepalives,
            unrepresentable=unrepresentable, idle_move_s=idle_move_s,
        )  # fmt: skip

    def pull(self, limits: PullLimits) -> LogBatch:
        """As `LogReader.pull`.

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
        frames, rest = _upto(self._queue, count_max, bytes_max)
        try:
            batch, handled = self._decode(frames, limits.rows)
        except MalformedError as error:
            self._corrupt(str(error), error)
        left = frames.after(handled)
        self._queue = [left, *rest] if len(left.sizes) else rest
        return self._finish(batch)

    def acknowledge(self, offset: Offset) -> None:
        """As `LogReader.acknowledge`; SourceUnavailableError if the connection is lost."""
        self._feed.confirm(lsn_from_text(offset.value["lsn"]))

    def keep_alive(self) -> None:
        """As `LogReader.keep_alive`; SourceUnavailableError if the connection is lost."""
        self._feed.confirm()

    def close(self) -> None:
        """As `LogReader.close`."""
        self._feed.close()

    # ---- one pull ----

    def _decode(self, frames: Frames, rows_max: int) -> tuple[LogBatch, int]:
        """Decode the messages up to where the pull ends; return how many that were."""
        part = _read_kinds(frames)
        events = self._read_rare(part, _limit(part, rows_max))
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
            offset=self._offset(int(transactions.end_lsns[last])) if transactions.ended else None,
            source_time=_moment(int(transactions.committed_us[last])) if transactions.ended else None,
            table_errors=events.errors,
        )
        self._see_keepalives(part)
        if part.count:
            is_announced = part.kinds[-1] == p.RELATION
            self._announced = p.Relation.read(part.content(part.count - 1)).table if is_announced else None
        return batch, part.count

    def _read_transactions(self, part: _Part) -> _Transactions:
        """Read Begin and Commit messages, and check that rows stand between them."""
        frames, kinds = part.frames, part.kinds
        begins, commits = np.flatnonzero(kinds == p.BEGIN), np.flatnonzero(kinds == p.COMMIT)
        sizes = frames.ends - frames.starts
        if (sizes[begins] != _BEGIN_SIZE).any() or (sizes[commits] != _COMMIT_SIZE).any():
            raise MalformedError("a Begin or Commit message has a wrong length")
        opened = self._open
        carried = 1 if opened is not None else 0
        _check_nesting(kinds, carried)
        begin, commit = frames.starts[begins] + _HEADER + 1, frames.starts[commits] + _HEADER + 1
        xids = frames.int32(begin + 16) & 0xFFFFFFFF
        ids = np.array([widen_xid(xid, self._xid_near) for xid in xids[:1].tolist()], np.int64)
        if len(ids):
            # The others follow at once: within a pull all lie close to the first.
            ids = ids + (xids - xids[0] + (1 << 31)) % (1 << 32) - (1 << 31)
            self._xid_near = int(ids[-1])
        commit_lsns = frames.int64(begin)
        committed = frames.int64(begin + 8) + _EPOCH_2000_US
        if opened is not None:
            ids = np.concatenate([[opened.id], ids])
            commit_lsns = np.concatenate([[opened.commit_lsn], commit_lsns])
            committed = np.concatenate([[opened.committed_us], committed])
        if (frames.int64(commit + 1) != commit_lsns[: len(commits)]).any():
            raise MalformedError("a Commit message does not belong to its Begin message")
        of_message = np.cumsum(kinds == p.BEGIN) + (carried - 1)
        return _Transactions(ids, commit_lsns, committed, of_message, len(commits), frames.int64(commit + 9))

    def _decode_rows(
        self, part: _Part, transactions: _Transactions, errors: dict[TableId, TableError]
    ) -> tuple[list[TableChanges], npt.NDArray[np.int64], int]:
        """Decode the replicated tables' rows; return them, the number of ordinals before each message, and how many ordinals there are."""
        rows = np.flatnonzero(_IS_ROW[part.kinds])
        if (part.frames.ends[rows] - part.frames.starts[rows] < _HEADER + 6).any():
            raise MalformedError("a row message is too short")
        shapes, shape_of_row = self._shapes_of(part, rows)
        used = np.zeros(part.count + 1, np.int64)
        followed = shape_of_row >= 0
        used[rows[followed] + 1] = 1
        before = np.cumsum(used)
        changes = []
        for number, shape in enumerate(shapes):
            mine = rows if len(shapes) == 1 and followed.all() else rows[shape_of_row == number]
            try:
                changes.append(self._changes(part, transactions, mine, before[mine], shape))
            except MalformedError:
                raise
            except Exception as error:
                ours = table_error(error, shape.schema.table, "decoding its changes")
                if ours is None:
                    raise
                errors[shape.schema.table] = ours
                self._drop(shape.schema.table)
        return changes, before, int(before[-1])

    def _shapes_of(self, part: _Part, rows: npt.NDArray[np.int64]) -> tuple[list[p.Shape], Longs]:
        """The shapes that occur, and for each row the number of its own; -1 where its table is not followed."""
        if not len(rows):
            return [], np.zeros(0, np.int64)
        relations = part.frames.int32(part.frames.starts[rows] + _HEADER + 1) & 0xFFFFFFFF
        if (relations == relations[0]).all():
            ids, inverse = relations[:1], np.zeros(len(rows), np.int64)
        else:
            ids, inverse = np.unique(relations, return_inverse=True)
        shapes: list[p.Shape] = []
        numbers = np.full(len(ids), -1, np.int64)
        for index, relation_id in enumerate(ids.tolist()):
            if relation_id not in self._shapes:
                raise MalformedError(f"a row of relation {relation_id} came before the relation was described")
            shape = self._shapes[relation_id]
            if shape is not None:
                numbers[index] = len(shapes)
                shapes.append(shape)
        return shapes, numbers[inverse]

    def _changes(
        self, part: _Part, transactions: _Transactions, rows: npt.NDArray[np.int64], ordinals: Longs, shape: p.Shape
    ) -> TableChanges:
        schema = shape.schema
        places, limits = part.frames.starts[rows] + _HEADER + 5, part.frames.ends[rows]
        decoded = p.decode_rows(
            part.frames,
            part.kinds[rows],
            places,
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

    def _end_transactions(self, part: _Part, transactions: _Transactions, before: Longs, count: int) -> pa.RecordBatch:
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

    def _read_rare(self, part: _Part, stop: int) -> _Events:
        """Handle Relation, Truncate and Message messages up to `stop`, or up to the first that ends the pull."""
        events = _Events(self._stop_at_lsn_mark(part, stop))
        commits = np.flatnonzero(part.kinds == p.COMMIT)
        marks_end = commits[0] if self._open_marks and len(commits) else None
        if marks_end is not None:
            events.stop = min(events.stop, int(marks_end) + 1)
        for index in np.flatnonzero(_IS_RARE[part.kinds]).tolist():
            if index >= events.stop:
                break
            match int(part.kinds[index]):
                case p.RELATION:
                    self._read_relation(p.Relation.read(part.content(index)), index, events)
                case p.TRUNCATE:
                    self._read_truncate(part.content(index), index, events)
                case _:
                    message = p.Message.read(part.content(index))
                    if message.prefix != self._marks:
                        continue
                    mark = message.content.decode("utf-8", errors="replace")
                    if message.is_transactional:
                        self._open_marks.append(mark)
                        behind = commits[commits > index]
                        marks_end = behind[0] if len(behind) else None
                        if marks_end is not None:
                            events.stop = min(events.stop, int(marks_end) + 1)
                    else:
                        events.marks.append(mark)
                        events.stop = index + 1
        if marks_end is not None and marks_end < events.stop:
            events.marks = [*self._open_marks, *events.marks]
            self._open_marks = []
        return events

    def _stop_at_lsn_mark(self, part: _Part, stop: int) -> int:
        awaited = self._lsn_marks.lowest()
        if awaited is None:
            return stop
        commits = np.flatnonzero(part.kinds[:stop] == p.COMMIT)
        reached = commits[part.frames.int64(part.frames.starts[commits] + _HEADER + 10) >= awaited]
        return int(reached[0]) + 1 if len(reached) else stop

    def _try_shape(self, relation: p.Relation, known: TableSchema) -> tuple[p.Shape | None, TableError | None]:
        """The shape, or why its table fails."""
        try:
            return self._shape(relation, known), None
        except Exception as error:
            ours = table_error(error, relation.table, "reading its columns")
            if ours is None:
                raise
            return None, ours

    def _read_relation(self, relation: p.Relation, index: int, events: _Events) -> None:
        """Take over what the following rows look like; a change ends the pull, before this message if rows of the old shape may precede."""
        old = self._shapes.get(relation.id)
        known = self._followed.get(relation.table)
        shape, error = (None, None) if known is None else self._try_shape(relation, known)
        is_new = relation.id not in self._shapes and not self._has_relation(relation.table)
        is_same = relation.id in self._shapes and error is None and shape == old
        if not is_new and not is_same and index > 0:
            events.stop = index
            return
        if error is not None:
            events.errors[relation.table] = error
            self._drop(relation.table)
        name = old.schema.table if old is not None else self._name_of(relation.id)
        if name is not None and name != relation.table:
            events.ddl.append(DDLEvent(operation=DDLOperation.RENAME_TABLE, table=name, new_table=relation.table))
        if known is not None and self._objects.get(relation.table, relation.id) != relation.id:
            events.ddl.append(DDLEvent(operation=DDLOperation.CREATE_TABLE, table=relation.table, schema=known))
        for relation_id, other in list(self._shapes.items()):
            if shape is not None and other is not None and other.schema.table == relation.table:
                del self._shapes[relation_id]
        self._shapes[relation.id] = shape
        if shape is not None and shape.schema is not known:
            self._followed[relation.table] = shape.schema
            events.ddl.append(DDLEvent(operation=DDLOperation.ALTER_TABLE, table=relation.table, schema=shape.schema))
        if events.ddl:
            events.stop = index + 1

    def _shape(self, relation: p.Relation, known: TableSchema) -> p.Shape:
        missing = p.type_oids(relation) - self._infos.keys()
        if missing:
            self._infos.update(self._resolve_types(missing))
        return p.shape_of(relation, known, self._infos)

    def _name_of(self, relation_id: int) -> TableId | None:
        """Of a relation that this session has not seen yet: as what it is followed."""
        return next((table for table, oid in self._objects.items() if oid == relation_id), None)

    def _has_relation(self, table: TableId) -> bool:
        return any(shape is not None and shape.schema.table == table for shape in self._shapes.values())

    def _read_truncate(self, content: bytes, index: int, events: _Events) -> None:
        for relation_id in p.read_truncate(content):
            if relation_id not in self._shapes:
                raise MalformedError(f"a truncation of relation {relation_id} came before the relation was described")
            shape = self._shapes[relation_id]
            if shape is not None:
                events.ddl.append(
                    DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=shape.schema.table, schema=shape.schema)
                )
                events.stop = index + 1

    def _stamped(self, event: DDLEvent) -> DDLEvent:
        """Add the transaction, which is the open one: a DDL event ends the pull."""
        opened = self._open
        if opened is None:
            raise MalformedError("a schema change came outside a transaction")
        return replace(event, transaction_id=str(opened.id), source_timestamp=_moment(opened.committed_us))

    def _see_keepalives(self, part: _Part) -> None:
        """At the end of what is delivered: record up to where an idle log is complete."""
        keepalives = np.flatnonzero(part.kinds == 0)
        if self._open is not None or not len(keepalives):
            return
        if (np.flatnonzero(part.kinds == p.COMMIT) > keepalives[-1]).any():
            return
        place = int(part.frames.starts[keepalives[-1]])
        end, moment = (int(number) for number in part.frames.int64(np.array([place + 1, place + 9])))
        self._idle_lsn = max(self._idle_lsn, end)
        if self._has_early_keepalives:
            if self._log_end is not None:
                self._compare_end(end, self._log_end)
        # The server sends one unasked when it has read its whole log; one that wants an answer may come in the middle of a backlog.
        elif not part.frames.data[place + KEEPALIVE_SIZE - 1]:
            self._idle_time = _moment(moment + _EPOCH_2000_US)

    def _compare_end(self, reached: int, log_end: Callable[[], tuple[int, datetime]]) -> None:
        """Tell by where the log ended a moment ago whether the stream has all that was committed by then."""
        if self._awaited is None and self._clock() >= self._ask_end_at:
            self._awaited, self._ask_end_at = log_end(), self._clock() + _ASK_END_EVERY_S
        if self._awaited is not None and reached >= self._awaited[0]:
            self._idle_time, self._awaited = self._awaited[1], None

    def _ask_idle(self, log_end: Callable[[], tuple[int, datetime]]) -> None:
        """Ask once in a while where the log ends: a server whose whole log is confirmed sends no more keepalives that tell the time."""
        if self._idle_time is not None or self._clock() - self._timed_at < self._idle_move_s:
            return
        self._timed_at = self._clock()
        end, moment = log_end()
        if end <= max(self._idle_lsn, self._offered_lsn):
            self._idle_time = moment

    @property
    def _open_id(self) -> str | None:
        return str(self._open.id) if self._open is not None else None

    def _finish(self, batch: LogBatch) -> LogBatch:
        """Add what does not come from changes: the position and time of an idle log, marks that are positions."""
        if self._open is not None:
            return batch
        reached = self._lsn_marks.reached(max(self._idle_lsn, self._offered_lsn))
        if reached:
            batch = replace(batch, marks=[*batch.marks, *reached])
        if not batch.events and not self._queue and self._log_end is not None:
            self._ask_idle(self._log_end)
        if self._idle_time is not None:
            batch = replace(batch, source_time=self._idle_time)
            self._idle_time = None
        if batch.source_time is not None:
            self._timed_at = self._clock()
        is_due = self._clock() - self._offered_at >= self._idle_move_s or self._feed.is_answer_wanted
        if batch.offset is None and self._idle_lsn > self._offered_lsn and is_due:
            self._feed.is_answer_wanted = False
            batch = replace(batch, offset=self._offset(self._idle_lsn))
        return batch

    def _offset(self, lsn: int) -> Offset:
        self._offered_lsn = lsn
        self._offered_at = self._clock()
        return Offset.of({"lsn": lsn_to_text(lsn), **self._offset_fields})

    def _drop(self, table: TableId) -> None:
        """Follow a table no longer; its rows are skipped from here on."""
        self._followed.pop(table, None)
        for relation_id, shape in self._shapes.items():
            if shape is not None and shape.schema.table == table:
                self._shapes[relation_id] = None

    def _note_nulled(self, table: TableId, column: str, count: int) -> None:
        if not self._nulled[table, column]:
            log.warning(
                "Column %s of %s: values that its type cannot hold become NULL (unrepresentable: null).", column, table
            )
        self._nulled[table, column] += count

    def _located(self, error: ReplicatorError) -> ReplicatorError:
        """Name the transaction, and the table if it is known, at which the server ended the log."""
        is_about_data = isinstance(error, FatalError) and not isinstance(error, LogGapError | OffsetExpiredError)
        if self._open is None or not is_about_data:
            return error
        of = f", a row of {self._announced}" if self._announced is not None else ""
        return type(error)(
            f"{error.message} (in transaction {self._open.id}{of})", code=error.code, action=error.action
        )

    def _corrupt(self, message: str, error: Exception) -> NoReturn:
        raise CorruptStreamError(
            f"the log after {lsn_to_text(self._offered_lsn)}: {message}.",
            code="corrupt_stream",
            action="Start again. If it fails again at the same position, report it and run `replicator snapshot NAME --restart`.",
        ) from error


def _read_kinds(frames: Frames) -> _Part:
    """Read every message's kind; keepalives get 0."""
    envelopes = frames.bytes[frames.starts]
    is_data, is_keepalive = envelopes == _DATA, envelopes == _KEEPALIVE
    sizes = frames.ends - frames.starts
    if not (is_data & (sizes > _HEADER) | is_keepalive & (sizes == KEEPALIVE_SIZE)).all():
        raise MalformedError("a message of the stream is neither data nor a keepalive")
    kinds = np.where(is_data, frames.bytes[frames.starts + np.where(is_data, _HEADER, 0)], np.uint8(0))
    if not (_IS_KNOWN[kinds] | is_keepalive).all():
        raise MalformedError("a message is of an unknown kind")
    return _Part(frames, kinds)


def _limit(part: _Part, rows_max: int) -> int:
    """How many messages make up `rows_max` rows, with the Commit that follows."""
    rows = np.flatnonzero(_IS_ROW[part.kinds])
    if len(rows) <= rows_max:
        return part.count
    stop = int(rows[rows_max - 1]) + 1
    return stop + 1 if part.kinds[stop] == p.COMMIT else stop


def _upto(queue: list[Block], count_max: int, bytes_max: int) -> tuple[Frames, list[Block]]:
    """Join the first messages within the bounds, the last of which may go over that of bytes; return the others as they are."""
    count = size = taken = 0
    for block in queue:
        if count >= count_max or size >= bytes_max:
            break
        taken += 1
        count += len(block.sizes)
        size += len(block.data)
    frames = Frames.join(queue[:taken])
    within = min(count_max, int(np.searchsorted(frames.ends, bytes_max)) + 1)
    if within >= count:
        return frames, queue[taken:]
    return frames.first(within), [frames.after(within), *queue[taken:]]


def _check_nesting(kinds: Bytes, carried: int) -> None:
    borders = kinds[(kinds == p.BEGIN) | (kinds == p.COMMIT)]
    expected = np.where((np.arange(len(borders)) + carried) % 2 == 0, np.uint8(p.BEGIN), np.uint8(p.COMMIT))
    if (borders != expected).any():
        raise MalformedError("Begin and Commit messages do not alternate")
    depth = carried + np.cumsum(kinds == p.BEGIN) - np.cumsum(kinds == p.COMMIT)
    if (depth[_IS_ROW[kinds]] != 1).any():
        raise MalformedError("a row came outside a transaction")


def _moment(us: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError as error:
        raise MalformedError("a time is outside the calendar") from error
