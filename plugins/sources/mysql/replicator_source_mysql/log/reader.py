"""The log's reader: takes events, returns pulls of Arrow columns.

Events are looked at one by one, rows are not: the bodies of rows events wait, table version by table version, until the
pull ends, and are then decoded all at once. The number of rows of an event is known only then, so ordinals are counted in
*slots*, one per event, and become numbers of rows after the decoding.

Nothing that must survive is kept here. After a lost connection a new reader starts after the last durable offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from replicator.model.errors import FatalError, LogGapError, SourceUnavailableError
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import LogBatch, LogReader, OpenTransaction, PullLimits
from replicator_source_mysql.binlog import uncompressed_body
from replicator_source_mysql.binlog.events import (
    MARIADB_COMPRESSED,
    MARIADB_QUERY_COMPRESSED,
    PARTIAL_UPDATE,
    TRANSACTION_PAYLOAD,
    RowsEvent,
    corrupt,
)
from replicator_source_mysql.binlog.types import Unrepresentable
from replicator_source_mysql.connecting.errors import PACKET_TOO_LARGE, RESTART_ACTION, event_too_large
from replicator_source_mysql.coordinates import Progress
from replicator_source_mysql.events import (
    FLAG_IGNORABLE,
    IGNORED,
    Event,
    EventKind,
    Query,
    heartbeat_v2,
    query,
    rotate,
    xa_prepare,
)
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.log.dump import Dump
from replicator_source_mysql.log.groups import Group, Undoing
from replicator_source_mysql.log.pulls import Pull
from replicator_source_mysql.log.statements import Statements
from replicator_source_mysql.log.stream import EventStream
from replicator_source_mysql.log.table_rows import TableRows
from replicator_source_mysql.log.xa import XaTransactions
from replicator_source_mysql.positions.marks import AwaitedMarks, LogEnd
from replicator_source_mysql.positions.position import Executed
from replicator_source_mysql.reach.cascades import Cascades
from replicator_source_mysql.reach.definitions import KnownDefinitions

_ROWS: Final = frozenset(RowsEvent) | {PARTIAL_UPDATE} | set(MARIADB_COMPRESSED)
_BEGINS: Final = frozenset({EventKind.GTID, EventKind.GTID_TAGGED, EventKind.MARIADB_GTID, EventKind.ANONYMOUS_GTID})
_QUERIES: Final = frozenset({EventKind.QUERY, EventKind.EXECUTE_LOAD_QUERY, MARIADB_QUERY_COMPRESSED})
# A server's largest max_allowed_packet.
_STATEMENT_MAX: Final = 1 << 30
_PROBE_EVERY_S: Final = 1.0
# While data flows, so long for more of it, and so long in all: rows of many small transactions share the cost of a pull.
_GATHER_S: Final = 0.004
_GATHER_TOTAL_S: Final = 0.05


class BinlogReader(LogReader):
    """See `LogReader`.

    Args:
        dump: Dump that was opened at the beginning of `progress`.
        progress: Progress in the log's coordinate system, from the position at which reading begins.
        flavor: The server's flavor.
        schemas: The replicated tables, in their last known shapes.
        board: The source's marks.
        probe: Asks for the end of the log, on another connection.
        on_delivered: Called at the end of each pull with all that is executed.
        is_lower_case: The server stores names in lower case.
        size_max: Bytes that a compressed event, or all prepared transactions, may have.
        cascades: Tells which tables foreign keys may have changed; None where the server logs what they do, or it is not asked for.
        undoing: Takes back what transactions roll back.
        definitions: Tells what a statement met on the server; None: nothing does.
    """

    def __init__(
        self,
        dump: Dump,
        *,
        progress: Progress,
        flavor: Flavor,
        schemas: Mapping[TableId, TableSchema],
        board: AwaitedMarks,
        probe: Callable[[], LogEnd],
        on_delivered: Callable[[Executed], None],
        is_lower_case: bool,
        unrepresentable: Unrepresentable,
        size_max: int,
        undoing: Undoing,
        cascades: Cascades | None = None,
        definitions: KnownDefinitions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._flavor = flavor
        self._board = board
        self._probe = probe
        self._on_delivered = on_delivered
        self._size_max = size_max
        self._undoing = undoing
        self._clock = clock
        self._progress = progress
        self._stream = EventStream(dump, progress, size_max=size_max)
        self._rows = TableRows(
            flavor=flavor, schemas=schemas, unrepresentable=unrepresentable, cascades=cascades, size_max=size_max
        )
        self._xa = XaTransactions(progress=progress, rows=self._rows, size_max=size_max)
        self._statements = Statements(
            flavor=flavor,
            is_lower_case=is_lower_case,
            rows=self._rows,
            xa=self._xa,
            undoing=undoing,
            cascades=cascades,
            definitions=definitions,
            cursor=progress.cursor,
        )
        self._group: Group | None = None
        self._end: LogEnd | None = None
        self._probed_at: float | None = None
        self._source_time: datetime | None = None
        self._pull = Pull()

    # ---- the interface ----

    def pull(self, limits: PullLimits) -> LogBatch:
        """See `LogReader.pull`."""
        self._look_at_end()
        group = self._group
        self._pull = pull = Pull(group.transaction if group is not None else None)
        if not self._take_marks():
            self._gather(pull, limits)
        opened = self._group.transaction if self._group is not None else None
        batch = pull.finish(self._rows.drop, open_transaction=opened.id if opened is not None else None)
        offset = self._offset()
        if self._group is not None:
            self._group.hand_out(pull)
            return replace(batch, offset=offset)
        if self._end is not None and self._progress.is_reached(self._end):
            self._source_time = self._end.moment
            self._end = None
        return replace(batch, offset=offset, source_time=self._source_time)

    def acknowledge(self, offset: Offset) -> None:  # noqa: ARG002 - everything that was delivered is durable then
        """See `LogReader.acknowledge`. Nothing is sent: the server keeps its log by its own rules."""
        self._undoing.acknowledge()

    def accept(self, table: TableId) -> None:
        """Apply statements to the table again: the catalogue shows the shape in which it is replicated."""
        self._rows.accept(table)

    def keep_alive(self) -> None:
        """See `LogReader.keep_alive`. The server waits, as long as its `net_write_timeout`, which this dump has at an hour."""

    @property
    def oldest_open(self) -> OpenTransaction | None:
        """The XA transaction that has been prepared for longest, of those prepared since the start."""
        return self._progress.prepared.oldest_open

    def close(self) -> None:
        """See `LogReader.close`."""
        self._stream.close()

    # ---- one pull ----

    def _gather(self, pull: Pull, limits: PullLimits) -> None:
        wait_s = limits.wait_s
        until: float | None = None
        while not pull.is_full(limits):
            if self._group is not None:
                self._rows.take_queued(self._stream, self._group, pull, limits)
            if pull.is_full(limits):
                return
            event = self._stream.next(in_transaction=self._group is not None)
            if event is not None:
                if not self._handle(event, pull):
                    self._stream.put_back(event)
                    return
                if pull.has_ended or (self._group is None and not self._board.is_empty and self._take_marks()):
                    return
                continue
            if until is not None and self._clock() >= until:
                return
            if not self._receive(wait_s):
                return
            until = until if until is not None else self._clock() + _GATHER_TOTAL_S
            wait_s = _GATHER_S

    def _receive(self, wait_s: float) -> bool:
        try:
            return self._stream.receive(wait_s)
        except FatalError as error:
            if error.code != PACKET_TOO_LARGE or self._group is None:
                raise
            raise event_too_large(error, self._group.id, self._rows.announced) from error

    def _take_marks(self) -> bool:
        """Take the marks that are reached here, if this is a boundary; False if there are none."""
        if self._group is not None or self._board.is_empty:
            return False
        self._pull.marks += self._board.reached(self._progress.cursor.position, self._progress.executed)
        return bool(self._pull.marks)

    def _offset(self) -> Offset | None:
        """The position of the last transaction that was committed, if it is a new one."""
        position = self._progress.take_new_position()
        if position is None:
            return None
        self._on_delivered(self._progress.executed)
        return position.offset

    def _look_at_end(self) -> None:
        """Ask now and then for the end of the log, so that an idle source's time advances."""
        now = self._clock()
        if self._probed_at is not None and now - self._probed_at < _PROBE_EVERY_S:
            return
        self._probed_at = now
        end = self._probe()
        self._progress.cursor.refuse_shrunk(end)
        if self._end is None:
            self._end = end

    # ---- events ----

    def _handle(self, event: Event, pull: Pull) -> bool:
        """Take one event; False if it must come again in the next pull."""
        kind = event.kind
        if kind in _ROWS:
            self._take_rows(event, pull)
        elif kind == EventKind.TABLE_MAP:
            return self._rows.table_map(event, self._open_group("TABLE_MAP"), pull)
        elif kind in _BEGINS:
            self._begin(event)
        elif kind == EventKind.XID:
            self._commit(pull)
        elif kind in _QUERIES:
            self._query(event, pull)
        elif kind == TRANSACTION_PAYLOAD:
            self._stream.open_payload(event.body)
        elif kind == EventKind.XA_PREPARE:
            self._xa_prepare(event, pull)
        elif kind == EventKind.FORMAT_DESCRIPTION:
            self._begin_file()
        elif kind not in IGNORED:
            self._handle_rare(event)
        return True

    def _handle_rare(self, event: Event) -> None:
        """Take an event that is no part of a transaction."""
        if event.kind == EventKind.ROTATE:
            self._rotate(event)
        elif event.kind == EventKind.HEARTBEAT:
            self._progress.heartbeat(bytes(event.body).decode(errors="replace"), None)
        elif event.kind == EventKind.HEARTBEAT_V2:
            self._progress.heartbeat(*heartbeat_v2(event.body))
        elif event.kind == EventKind.INCIDENT:
            raise LogGapError(
                "The server says that changes are missing from its log (an INCIDENT event).",
                code="log_incident",
                action=RESTART_ACTION,
            )
        elif not event.flags & FLAG_IGNORABLE:
            raise FatalError(
                f"The log has an event of type {event.kind}, which is unknown.",
                code="unknown_event",
                action="Report the server's version. If a new feature writes such events, switch it off.",
            )

    def _take_rows(self, event: Event, pull: Pull) -> None:
        group = self._open_group("rows")
        self._rows.rows(event, group, self._stream.offset, pull)
        if group.is_xa:
            self._xa.limit(group)

    def _query(self, event: Event, pull: Pull) -> None:
        statement, group = self._read_query(event), self._open_group("QUERY")
        if self._statements.take(statement, group, self._stream.offset, pull):
            self._commit(pull)

    def _read_query(self, event: Event) -> Query:
        if event.kind == MARIADB_QUERY_COMPRESSED:
            # As one that is not compressed, whose size only the server bounds.
            _, body = uncompressed_body(event.kind, event.body, size_max=max(self._size_max, _STATEMENT_MAX))
            return query(memoryview(body), flavor=self._flavor, flags=event.flags)
        is_load = event.kind == EventKind.EXECUTE_LOAD_QUERY
        return query(event.body, flavor=self._flavor, flags=event.flags, is_load=is_load)

    def _rotate(self, event: Event) -> None:
        if self._progress.enter(*rotate(event.body)):
            self._rows.forget_numbers()
            if self._group is not None:
                self._lose_group()

    def _begin_file(self) -> None:
        if self._group is None:
            self._progress.begin_file()

    def _lose_group(self) -> None:
        """Drop the group, inside which a file ended: the server went down while it wrote it, and it never committed."""
        group = self._group
        assert group is not None
        if group.transaction is not None:
            raise SourceUnavailableError(
                f"The log ended inside the transaction {group.id}, which never committed; what was read of it is dropped.",
                code="transaction_cut",
            )
        self._group = None

    # ---- groups ----

    def _begin(self, event: Event) -> None:
        if self._group is not None:
            raise corrupt("A transaction in the log begins inside another one.")
        self._rows.forget_numbers()
        begin = self._progress.begin(event)
        self._group = Group(
            begin=begin,
            id=self._progress.transaction_id(begin),
            timestamp=event.timestamp,
            server_id=event.server_id,
            started=self._stream.offset,
            first_slot=self._pull.slots,
            is_open=begin.is_standalone is False,
            is_skipped=self._progress.is_skipped(begin),
            is_xa=begin.is_prepared_xa,
        )
        self._undoing.begin(self._group)

    def _open_group(self, what: str) -> Group:
        if self._group is None:
            raise corrupt(f"A {what} event in the log is outside a transaction.")
        return self._group

    def _commit(self, pull: Pull) -> None:
        """Commit the group: it counts as executed."""
        group = self._open_group("commit")
        if not self._undoing.end(group, pull):
            return
        self._group = None
        self._progress.commit(group.begin)
        if group.transaction is not None:
            pull.end(group.transaction)

    def _xa_prepare(self, event: Event, pull: Pull) -> None:
        is_one_phase, xid = xa_prepare(event.body)
        group = self._open_group("XA_PREPARE")
        self._xa.prepare(xid, group, pull, is_one_phase=is_one_phase)
        self._commit(pull)
