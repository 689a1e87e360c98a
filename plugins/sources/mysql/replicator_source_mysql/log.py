"""The log: events in, pulls of Arrow columns out.

Events are looked at one by one, rows are not: the bodies of rows events wait, table version by table version, until the
pull ends, and are then decoded all at once. How many rows an event had is known then, so ordinals are counted in
*slots*, one per event, and put in their places behind the decoding.

Nothing that must survive is kept here. After a lost connection a new reader starts behind the last durable offset.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from replicator.model.errors import FatalError, LogGapError, SourceUnavailableError, TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import LogBatch, LogReader, OpenTransaction, PullLimits
from replicator_source_mysql.binlog import (
    Flavor,
    InnerEvent,
    TableMaps,
    named_table,
    table_id,
    transaction_payload,
    uncompressed_body,
)
from replicator_source_mysql.binlog.events import (
    MARIADB_COMPRESSED,
    MARIADB_QUERY_COMPRESSED,
    PARTIAL_UPDATE,
    TRANSACTION_PAYLOAD,
    RowsEvent,
    corrupt,
)
from replicator_source_mysql.binlog.types import Unrepresentable
from replicator_source_mysql.cascades import Cascades, Parent
from replicator_source_mysql.cursor import Cursor
from replicator_source_mysql.ddl import Effect, TableEffect, effects, opens_group
from replicator_source_mysql.dump import HEADER, HEADER_SIZE, Dump
from replicator_source_mysql.errors import RESTART_ACTION, gtids_are_off
from replicator_source_mysql.events import (
    FLAG_ARTIFICIAL,
    FLAG_IGNORABLE,
    IGNORED,
    Kind,
    Query,
    heartbeat_v2,
    mariadb_begin,
    mysql_begin,
    query,
    rotate,
    tagged_begin,
    xa_prepare,
)
from replicator_source_mysql.filepos import FilePosition
from replicator_source_mysql.groups import Group, Undoing
from replicator_source_mysql.lineage import other_history
from replicator_source_mysql.marks import LogEnd, MarkBoard
from replicator_source_mysql.position import Executed, Position, executed_covers, executed_union
from replicator_source_mysql.pulls import Pull, Transaction, error_of_table
from replicator_source_mysql.sql.reader import shown
from replicator_source_mysql.versions import Version, Versions
from replicator_source_mysql.visibility import file_id, mariadb_id, xa_commit_id
from replicator_source_mysql.xa import HeldRows, Prepared, PreparedTransactions, xid_of

log = logging.getLogger(__name__)

_ROWS: Final = frozenset(RowsEvent) | {PARTIAL_UPDATE} | set(MARIADB_COMPRESSED)
_BEGINS: Final = frozenset({Kind.GTID, Kind.GTID_TAGGED, Kind.MARIADB_GTID, Kind.ANONYMOUS_GTID})
_QUERIES: Final = frozenset({Kind.QUERY, Kind.EXECUTE_LOAD_QUERY, MARIADB_QUERY_COMPRESSED})
_END_OF_STATEMENT: Final = 1
_PLAIN_ROWS: Final = frozenset(int(kind) for kind in RowsEvent)
_TABLE_MAP: Final = int(Kind.TABLE_MAP)
_NUMBER: Final = slice(HEADER_SIZE, HEADER_SIZE + 6)
# Tables that are remembered with their numbers; new numbers come with every statement that changes a table.
_KNOWN_MAX: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PROBE_EVERY_S: Final = 1.0
# While data flows, so long for more of it, and so long in all: rows of many small transactions share the cost of a pull.
_GATHER_S: Final = 0.004
_GATHER_TOTAL_S: Final = 0.05
_DDL: Final = {
    Effect.TRUNCATE: DDLOperation.TRUNCATE_TABLE,
    Effect.DROP: DDLOperation.DROP_TABLE,
    Effect.RENAME: DDLOperation.RENAME_TABLE,
    Effect.ALTER: DDLOperation.ALTER_TABLE,
    Effect.REPLACED: DDLOperation.CREATE_TABLE,
}


@dataclass(slots=True)
class _Event:
    """An event without its framing."""

    timestamp: int
    kind: int
    server_id: int
    flags: int
    body: memoryview


class BinlogReader(LogReader):
    """See `LogReader`.

    Args:
        dump: Opened behind `start.begin`.
        start: Where to begin.
        flavor: Whose log it is.
        server: What offsets name as the server.
        schemas: The tables to follow, in their last known shapes.
        board: The source's marks.
        probe: Asks for the end of the log, on another connection.
        on_delivered: Told what is executed behind each pull.
        is_lower_case: The server stores names in lower case.
        size_max: Bytes that a compressed transaction, or all prepared ones, may have.
        cascades: Tells which tables foreign keys may have changed; None where the server logs what they do, or nobody asks.
        undoing: Takes back what transactions roll back.
    """

    def __init__(
        self,
        dump: Dump,
        *,
        start: Position,
        flavor: Flavor,
        server: str,
        schemas: Mapping[TableId, TableSchema],
        board: MarkBoard,
        probe: Callable[[], LogEnd],
        on_delivered: Callable[[Executed], None],
        is_lower_case: bool,
        unrepresentable: Unrepresentable,
        size_max: int,
        undoing: Undoing,
        cascades: Cascades | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dump = dump
        self._flavor: Flavor = flavor
        self._server = server
        self._versions = Versions(flavor, schemas, unrepresentable=unrepresentable)
        self._board = board
        self._probe = probe
        self._on_delivered = on_delivered
        self._is_lower_case = is_lower_case
        self._size_max = size_max
        self._cascades = cascades
        self._undoing = undoing
        self._clock = clock
        self._table_maps = TableMaps(flavor)
        # Table number → version; None for tables that are not followed. Numbers are the server's, and change.
        self._numbers: dict[int, Version | None] = {}
        # TABLE_MAP events of tables that no foreign key makes a matter of others → number and version.
        self._known: dict[bytes, tuple[int, Version | None]] = {}
        self._parents: dict[int, Parent] = {}
        # What is executed up to here, but for the GTIDs of the transactions since, which are added when somebody asks.
        self._executed_before = start.begin
        self._committed: list[str] = []
        # What is durable here beyond `restart`, but for the prepared transactions, is skipped on the way back.
        self._skipping = start.executed if start.restart is not None else None
        self._prepared = PreparedTransactions(start.prepared)
        # Where reading begins; unknown on another server, and on the way back.
        is_known = start.server == server and start.restart is None
        begin = start.begin
        self._cursor = Cursor(
            start.file if is_known else "",
            start.pos if is_known else 0,
            begin if isinstance(begin, FilePosition) else None,
        )
        self._last_offset = start
        self._queue: deque[bytes] = deque()
        self._inner: Iterator[InnerEvent] | None = None
        self._inner_events = 0
        self._again: _Event | None = None
        self._group: Group | None = None
        self._end: LogEnd | None = None
        self._probed_at: float | None = None
        self._source_time: datetime | None = None
        self._pull = Pull()

    # ---- the interface ----

    def pull(self, limits: PullLimits) -> LogBatch:
        """As `LogReader.pull`."""
        self._look_at_end()
        group = self._group
        self._pull = pull = Pull(group.transaction if group is not None else None)
        if not self._at_mark():
            self._gather(pull, limits)
        batch = pull.finish(self._drop)
        offset = self._offset()
        if self._group is not None:
            self._group.hand_out(pull)
            opened = self._group.transaction
            return replace(batch, offset=offset, open_transaction=opened.id if opened is not None else None)
        if self._end is not None and self._end.is_reached(self._cursor.place, self._executed):
            self._source_time = self._end.moment
            self._end = None
        return replace(batch, offset=offset, source_time=self._source_time)

    def acknowledge(self, offset: Offset) -> None:  # noqa: ARG002 - everything that was handed out is durable then
        """As `LogReader.acknowledge`: the server keeps its log by its own rules, so nothing is said to it."""
        self._undoing.acknowledge()

    def keep_alive(self) -> None:
        """As `LogReader.keep_alive`: the server waits, as long as its `net_write_timeout`, which this dump has at an hour."""

    @property
    def oldest_open(self) -> OpenTransaction | None:
        """The XA transaction that has been prepared for longest, of those prepared since `start`."""
        return self._prepared.oldest_open

    def close(self) -> None:
        """As `LogReader.close`."""
        self._dump.close()

    # ---- one pull ----

    def _gather(self, pull: Pull, limits: PullLimits) -> None:
        wait_s = limits.wait_s
        until: float | None = None
        while not pull.is_full(limits):
            self._take_rows(pull, limits)
            if pull.is_full(limits):
                return
            event = self._next()
            if event is not None:
                if not self._handle(event, pull):
                    self._again = event
                    return
                if pull.has_ended or (self._group is None and not self._board.is_empty and self._at_mark()):
                    return
                continue
            if until is not None and self._clock() >= until:
                return
            received = self._receive(wait_s)
            if received:
                self._queue.extend(received)
                until = until if until is not None else self._clock() + _GATHER_TOTAL_S
                wait_s = _GATHER_S
            else:
                return

    def _receive(self, wait_s: float) -> list[bytes]:
        try:
            return self._dump.events(wait_s)
        except FatalError as error:
            # Asked to begin within an event, the server takes what it finds there for the size of one.
            if (proof := self._cursor.proof) is not None and error.code == "max_allowed_packet":
                raise other_history(f"no event begins at byte {proof.begin} of {proof.file}") from error
            raise

    def _take_rows(self, pull: Pull, limits: PullLimits) -> None:
        """Take what most of a log consists of, events that name a known table and bring rows of it, in as few steps as can be.

        Whatever is not as plain stays where it is, for `_handle`.
        """
        group, queue = self._group, self._queue
        if group is None or not group.is_plain or self._inner is not None or self._again is not None:
            return
        known, numbers, parents, header_at = self._known, self._numbers, self._parents, HEADER.unpack_from
        rows = pull.rows_of(self._transaction(group)) if group.transaction is not None else None
        cursor = self._cursor
        pos = cursor.pos
        is_full = pull.is_full(limits)
        while queue and not is_full:
            raw = queue[0]
            _, kind, _, size, end, flags = header_at(raw)
            if kind == _TABLE_MAP:
                found = known.get(raw[HEADER_SIZE:])
                if found is None or (found[1] is not None and not pull.takes(found[1])):
                    break
                numbers[found[0]] = found[1]
            elif kind in _PLAIN_ROWS:
                number = int.from_bytes(raw[_NUMBER], "little")
                if number not in numbers or number in parents:
                    break
                version = numbers[number]
                if version is not None:
                    if rows is None:
                        rows = pull.rows_of(self._transaction(group))
                    rows(version, kind, raw[HEADER_SIZE:])
                    is_full = pull.is_full(limits)
            else:
                break
            queue.popleft()
            if end > pos and not flags & FLAG_ARTIFICIAL:
                # As `move`, below 4 GiB.
                pos = end
            else:
                cursor.pos = pos
                cursor.move(kind, size, end, flags, in_transaction=True)
                pos = cursor.pos
        cursor.pos = pos

    def _next(self) -> _Event | None:
        """The next event that is here: put back, out of a compressed transaction, or out of the queue."""
        if self._again is not None:
            event, self._again = self._again, None
            return event
        if self._inner is not None:
            inner = next(self._inner, None)
            if inner is not None:
                self._inner_events += 1
                return _Event(inner.timestamp, inner.type_code, inner.server_id, inner.flags, memoryview(inner.body))
            self._inner = None
        cursor, in_transaction = self._cursor, self._group is not None
        while self._queue:
            raw = self._queue.popleft()
            timestamp, kind, server_id, size, end, flags = HEADER.unpack_from(raw)
            body = memoryview(raw)[HEADER_SIZE:]
            cursor.move(kind, size, end, flags, in_transaction=in_transaction)
            if cursor.is_by_file and cursor.was_read(raw, kind, size, end, flags, in_transaction=in_transaction):
                continue
            return _Event(timestamp, kind, server_id, flags, body)
        return None

    def _at_mark(self) -> bool:
        """Take the marks that are reached here, which is a boundary."""
        if self._group is not None or self._board.is_empty:
            return False
        self._pull.marks += self._board.reached(self._cursor.place, self._executed)
        return bool(self._pull.marks)

    @property
    def _executed(self) -> Executed:
        """What is executed up to here."""
        if self._committed:
            assert not isinstance(self._executed_before, FilePosition), "GTIDs are counted where there are some"
            self._executed_before = self._executed_before.with_gtids(self._committed)
            self._committed.clear()
        return self._executed_before

    def _drop(self, table: TableId) -> None:
        """Follow a table no longer."""
        self._versions.drop(table)
        self._known.clear()

    def _offset(self) -> Offset | None:
        """Where the last transaction that was committed ended, if that is news."""
        position = self._position()
        last = self._last_offset
        if (position.executed, position.prepared) == (last.executed, last.prepared):
            return None
        self._last_offset = position
        self._on_delivered(self._executed)
        return position.offset

    def _position(self) -> Position:
        prepared = self._prepared
        if isinstance(self._skipping, FilePosition):
            # The same server, and so the same order: nothing new comes before all of it has been read again.
            return self._last_offset
        if self._skipping is not None:
            # On the way back: what is prepared has not all been read again. A server that took over may have logged new
            # transactions before some that are skipped (MariaDB: of other domains); then no place in its files says what is durable.
            return replace(
                self._last_offset,
                executed=executed_union(self._executed, self._skipping),
                server=self._server,
                file="",
                pos=0,
                prepared=prepared.gtids_with_pending,
            )
        return Position(
            flavor=self._flavor,
            executed=self._executed,
            server=self._server,
            file=self._cursor.boundary[0],
            pos=self._cursor.boundary[1],
            prepared=prepared.gtids,
            restart=oldest.before if (oldest := prepared.oldest) else self._restart(),
        )

    def _restart(self) -> FilePosition | None:
        return self._cursor.restart(self._executed)

    def _look_at_end(self) -> None:
        """Ask now and then for the end of the log, so that an idle source's time goes on."""
        now = self._clock()
        if self._probed_at is not None and now - self._probed_at < _PROBE_EVERY_S:
            return
        self._probed_at = now
        end = self._probe()
        self._cursor.refuse_shrunk(end)
        if self._end is None:
            self._end = end

    # ---- events ----

    def _handle(self, event: _Event, pull: Pull) -> bool:
        """Take one event; False if it must come again in the next pull."""
        kind = event.kind
        if kind in _ROWS:
            self._rows(event, pull)
        elif kind == Kind.TABLE_MAP:
            return self._table_map(event, pull)
        elif kind in _BEGINS:
            self._begin(event)
        elif kind == Kind.XID:
            self._commit(pull)
        elif kind in _QUERIES:
            self._query(self._read_query(event), pull)
        elif kind == TRANSACTION_PAYLOAD:
            self._inner = transaction_payload(event.body, size_max=self._size_max)
            self._inner_events = 0
        elif kind == Kind.XA_PREPARE:
            self._xa_prepare(event, pull)
        elif kind == Kind.FORMAT_DESCRIPTION:
            self._begin_file()
        elif kind not in IGNORED:
            self._handle_rare(event)
        return True

    def _handle_rare(self, event: _Event) -> None:
        """Take an event that is no part of a transaction."""
        if event.kind == Kind.ROTATE:
            self._rotate(event)
        elif event.kind == Kind.HEARTBEAT:
            self._cursor.heartbeat(bytes(event.body).decode(errors="replace"), None)
        elif event.kind == Kind.HEARTBEAT_V2:
            self._cursor.heartbeat(*heartbeat_v2(event.body))
        elif event.kind == Kind.INCIDENT:
            raise LogGapError(
                "the server says that changes are missing from its log (an INCIDENT event).",
                code="log_incident",
                action=RESTART_ACTION,
            )
        elif not event.flags & FLAG_IGNORABLE:
            raise FatalError(
                f"the log has an event of type {event.kind}, which is unknown.",
                code="unknown_event",
                action="Report the server's version. If a new feature writes such events, switch it off.",
            )

    def _read_query(self, event: _Event) -> Query:
        if event.kind == MARIADB_QUERY_COMPRESSED:
            _, body = uncompressed_body(event.kind, event.body, size_max=self._size_max)
            return query(memoryview(body), flavor=self._flavor, flags=event.flags)
        is_load = event.kind == Kind.EXECUTE_LOAD_QUERY
        return query(event.body, flavor=self._flavor, flags=event.flags, is_load=is_load)

    def _rotate(self, event: _Event) -> None:
        if self._cursor.enter(*rotate(event.body)):
            self._forget_numbers()
            if self._group is not None:
                self._lose_group()

    def _begin_file(self) -> None:
        begin = self._cursor.begin_file() if self._group is None else None
        if begin is not None:
            self._advance(begin)

    def _lose_group(self) -> None:
        """A file ended inside a transaction: the server went down while it wrote it, and it never committed."""
        group = self._group
        assert group is not None
        if group.transaction is not None:
            raise SourceUnavailableError(
                f"the log ended inside the transaction {group.id}, which never committed; what was read of it is dropped.",
                code="transaction_cut",
            )
        self._group = None

    # ---- groups ----

    def _begin(self, event: _Event) -> None:
        if self._group is not None:
            raise corrupt("A transaction in the log begins inside another one.")
        self._forget_numbers()
        cursor = self._cursor
        if event.kind == Kind.GTID or (event.kind == Kind.ANONYMOUS_GTID and cursor.is_by_file):
            begin = mysql_begin(event.body)
        elif event.kind == Kind.GTID_TAGGED:
            begin = tagged_begin(event.body)
        elif event.kind == Kind.MARIADB_GTID:
            begin = mariadb_begin(event.body, event.server_id)
        else:
            raise gtids_are_off("the log has a transaction without a GTID.")
        if cursor.is_by_file:
            # GTIDs may be switched on and off as one likes: they are not looked at.
            begin = replace(begin, gtid=file_id(cursor.file, cursor.pos))
        id_ = begin.gtid
        if self._flavor == "mariadb":
            id_ = mariadb_id(begin.gtid, cursor.place)
        self._group = Group(
            begin=begin,
            id=id_,
            timestamp=event.timestamp,
            server_id=event.server_id,
            started=self._place,
            first_slot=self._pull.slots,
            is_open=begin.is_standalone is False,
            is_skipped=self._is_skipped(begin.gtid),
            is_xa=begin.is_prepared_xa,
        )
        self._undoing.begin(self._group)

    @property
    def _place(self) -> int:
        """Grows from event to event of a group; what stands in one compressed event is counted there."""
        return self._cursor.pos + self._inner_events

    def _forget_numbers(self) -> None:
        self._numbers.clear()
        self._parents.clear()

    def _is_skipped(self, gtid: str) -> bool:
        if self._skipping is None or self._prepared.is_pending(gtid):
            return False
        if isinstance(self._skipping, FilePosition):
            return self._cursor.place <= self._skipping.place
        return gtid in self._skipping

    def _open_group(self, what: str) -> Group:
        if self._group is None:
            raise corrupt(f"A {what} event in the log is outside a transaction.")
        return self._group

    def _commit(self, pull: Pull) -> None:
        """The group is committed: it counts as executed."""
        group = self._open_group("commit")
        if not self._undoing.end(group, pull):
            return
        self._group = None
        here = self._cursor.commit()
        if here is not None:
            self._advance(here)
        else:
            self._committed.append(group.begin.gtid)
            self._look_whether_known()
        if group.transaction is not None:
            pull.end(group.transaction)

    def _advance(self, here: FilePosition) -> None:
        self._executed_before = here
        self._look_whether_known()

    def _look_whether_known(self) -> None:
        """What was durable at the start is skipped no longer once all of it has passed."""
        if self._skipping is not None and executed_covers(self._executed, self._skipping):
            self._skipping = None

    def _transaction(self, group: Group) -> Transaction:
        if group.transaction is None:
            us = group.begin.committed_us
            moment = us if us is not None else group.timestamp * 1_000_000
            group.transaction = Transaction(group.id, moment)
        return group.transaction

    # ---- rows ----

    def _table_map(self, event: _Event, pull: Pull) -> bool:
        group = self._open_group("TABLE_MAP")
        if group.is_skipped:
            return True
        number = table_id(event.body)
        version: Version | None = None
        parent: Parent | None = None
        try:
            table_map = self._table_maps.get(event.body)
            if self._versions.take_key(table_map):
                # What rows are known by is another key: they come behind this event.
                self._known.clear()
                self._replaced(group, TableId(table_map.schema, table_map.table), pull)
                return False
            parent = self._cascades.parent(table_map) if self._cascades is not None else None
            version = self._versions.of(table_map)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (it becomes the table's)
            # Without a name it is about the log.
            table = TableId(*named_table(event.body))
            self._fail(table, error, pull)
            if parent is None and self._cascades is not None:
                parent = self._cascades.unread_parent(table)
        if version is not None and not pull.takes(version):
            return False
        self._numbers[number] = version
        if parent is not None:
            self._parents[number] = parent
        elif self._cascades is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[bytes(event.body)] = (number, version)
        return True

    def _replaced(self, group: Group, table: TableId, pull: Pull) -> None:
        transaction = self._transaction(group)
        pull.event(
            transaction,
            DDLEvent(
                operation=DDLOperation.CREATE_TABLE,
                table=table,
                transaction_id=transaction.id,
                source_timestamp=_EPOCH + timedelta(microseconds=transaction.committed_us),
            ),
        )

    def _rows(self, event: _Event, pull: Pull) -> None:
        group = self._open_group("rows")
        if group.is_skipped:
            return
        number = table_id(event.body)
        if number not in self._numbers:
            if int.from_bytes(event.body[6:8], "little") & _END_OF_STATEMENT and len(event.body) <= 10:  # noqa: PLR2004
                return  # an empty one, which only ends a statement
            raise corrupt(
                f"A rows event in the log names the table number {number}, which no TABLE_MAP event announced."
            )
        if group.is_undone(self._place):
            return
        if number in self._parents:
            self._cascade(group, self._parents[number], event, pull)
        version = self._numbers[number]
        if version is None:
            return
        kind, body = event.kind, event.body
        if kind in MARIADB_COMPRESSED:
            try:
                kind, plain = uncompressed_body(kind, body, size_max=self._size_max)
            except FatalError as error:
                self._fail(version.schema.table, error, pull)
                self._numbers[number] = None
                return
            body = memoryview(plain)
        if group.is_xa:
            self._hold(group, version, kind, body)
        else:
            pull.rows(self._transaction(group), version, kind, body)

    def _cascade(self, group: Group, parent: Parent, event: _Event, pull: Pull) -> None:
        """Foreign keys may have changed other tables, of which the log has nothing."""
        assert self._cascades is not None
        tables = self._cascades.of_rows(parent, event.kind, event.body)
        if not tables:
            return
        if group.is_xa:
            group.unlogged |= tables
        else:
            pull.unlogged(self._transaction(group), tables)

    def _fail(self, table: TableId, error: Exception, pull: Pull) -> None:
        """Something about one table cannot be read; nobody minds if it is not followed."""
        if table in self._versions.followed:
            pull.fail(table, error_of_table(table, error))
            self._drop(table)

    def _hold(self, group: Group, version: Version, kind: int, body: memoryview) -> None:
        table = version.schema.table
        if table in group.unlogged:
            return  # it is copied again
        group.held.append((version, kind, bytes(body)))
        group.held_bytes += len(body)
        total = group.held_bytes + self._prepared.held_bytes
        if total > self._size_max:
            tables = {version.schema.table for version, *_ in group.held}
            log.warning(
                "Prepared XA transactions hold %d bytes of changes, more than source.transaction_bytes_max (%d): if %s is"
                " committed, a new snapshot is taken of %s.",
                total,
                self._size_max,
                group.id,
                ", ".join(sorted(map(str, tables))),
            )
            group.unlogged |= tables
            group.held.clear()
            group.held_bytes = 0
            if group.savepoints is not None:
                group.savepoints.forget_rows()

    # ---- XA ----

    def _xa_prepare(self, event: _Event, pull: Pull) -> None:
        is_one_phase, xid = xa_prepare(event.body)
        group = self._open_group("XA_PREPARE")
        # Also one without rows of ours: its COMMIT must find it, and a table that is added meanwhile may have rows in it.
        if not is_one_phase and not group.is_skipped:
            prepared = Prepared(
                group.begin.gtid,
                self._restart() or self._executed,
                group.held,
                group.held_bytes,
                group.unlogged,
                _EPOCH + timedelta(seconds=group.timestamp),
            )
            self._prepared.add(xid, prepared)
            group.held, group.unlogged = [], frozenset()
        self._release(group, group.held, group.unlogged, pull)
        self._commit(pull)

    def _xa_end(self, xid: str, pull: Pull, *, is_commit: bool) -> None:
        """XA COMMIT or XA ROLLBACK: a group of its own."""
        group = self._open_group("XA COMMIT")
        prepared = self._prepared.take(xid)
        if prepared is None and is_commit and not group.is_skipped:
            raise LogGapError(
                "an XA transaction is committed that was prepared before our log position: its changes are unknown.",
                code="prepared_before_start",
                action=RESTART_ACTION,
            )
        if prepared is not None:
            if self._flavor == "mariadb":
                group.id = xa_commit_id(group.id, xid)
            if is_commit and not group.is_skipped:
                self._release(group, prepared.held, prepared.unlogged, pull)
        self._commit(pull)

    def _release(self, group: Group, held: HeldRows, unlogged: frozenset[TableId], pull: Pull) -> None:
        if unlogged:
            pull.unlogged(self._transaction(group), unlogged)
        for version, kind, body in held:
            if pull.takes(version):
                pull.rows(self._transaction(group), version, kind, memoryview(body))
            else:
                self._fail(version.schema.table, _two_shapes(version.schema.table), pull)

    # ---- statements ----

    def _query(self, statement: Query, pull: Pull) -> None:
        group = self._open_group("QUERY")
        text = statement.text.strip()
        head = text[:64].upper()
        if head == "BEGIN":
            group.is_open = True
        elif head == "COMMIT":
            self._commit(pull)
        elif head == "ROLLBACK":
            if not group.is_skipped:
                self._undoing.roll_back(group, pull)
            self._commit(pull)
        elif head.startswith("XA "):
            self._xa(group, text, head, pull)
        elif not (group.is_open and self._undoing.take(group, text, self._place, pull)):
            self._statement(group, statement, pull)

    def _xa(self, group: Group, text: str, head: str, pull: Pull) -> None:
        if head.startswith(("XA START", "XA BEGIN")):
            group.is_xa = True
            group.is_open = True
        elif head.startswith("XA END"):
            pass
        elif head.startswith("XA COMMIT"):
            if text.upper().endswith("ONE PHASE"):
                self._release(group, group.held, group.unlogged, pull)
                self._commit(pull)
            else:
                self._xa_end(xid_of(text[len("XA COMMIT") :]), pull, is_commit=True)
        elif head.startswith("XA ROLLBACK"):
            self._xa_end(xid_of(text[len("XA ROLLBACK") :]), pull, is_commit=False)
        else:
            raise corrupt("An XA statement in the log is of an unknown kind.")

    def _statement(self, group: Group, statement: Query, pull: Pull) -> None:
        if not group.is_skipped:
            followed = self._versions.followed
            for effect in effects(statement, followed, flavor=self._flavor, is_lower_case=self._is_lower_case):
                self._apply(group, effect, statement, pull)
            tables = self._cascades.of_statement(statement.text) if self._cascades is not None else None
            if tables:
                pull.unlogged(self._transaction(group), tables)
        if opens_group(statement, self._flavor):
            group.is_open = True
        if not group.is_open:
            self._commit(pull)

    def _apply(self, group: Group, effect: TableEffect, statement: Query, pull: Pull) -> None:
        operation = _DDL.get(effect.effect)
        if operation is None:
            pull.fail(effect.table, _refusal(effect, shown(statement, self._flavor)))
            self._drop(effect.table)
            return
        if effect.effect is not Effect.TRUNCATE:
            self._versions.expect_any_key(effect.table)
        transaction = self._transaction(group)
        pull.event(
            transaction,
            DDLEvent(
                operation=operation,
                table=effect.table,
                new_table=effect.new_table,
                statement=statement.text,
                transaction_id=transaction.id,
                source_timestamp=_EPOCH + timedelta(microseconds=transaction.committed_us),
            ),
        )


def _two_shapes(table: TableId) -> TableError:
    return TableError(
        "its columns changed between XA PREPARE and XA COMMIT of a transaction with rows of it.",
        code="schema_changed",
        table=str(table),
        action="Run `replicator snapshot NAME TABLE`.",
    )


def _refusal(effect: TableEffect, statement: str) -> TableError:
    if effect.effect is Effect.STATEMENT:
        return TableError(
            f"the log has a statement instead of the rows that it changed; these may be rows of this table: {statement}",
            code="statement_format",
            table=str(effect.table),
            action="SET GLOBAL binlog_format = 'ROW' (and in every session that sets it); then run `replicator snapshot NAME TABLE`.",
        )
    return TableError(
        f"the log has a statement that was not understood and may be about this table: {statement}",
        code="ddl_not_understood",
        table=str(effect.table),
        action="Run `replicator snapshot NAME TABLE`.",
    )
