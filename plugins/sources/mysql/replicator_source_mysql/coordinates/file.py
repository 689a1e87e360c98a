"""MySQL without GTIDs: file and byte of one very server say what is executed (ADR 9).

Transactions before a watermark of ours in the log (see `watermark`) are visible once that has committed; those after the
end of the log as it was once the read had begun were not seen; those in between are unknown. A transaction's id is the file and
the byte after its first event: `binlog.000003:1234`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from pymysql.constants import COMMAND
from typing_extensions import override

from replicator.model.errors import FatalError, LogGapError, OffsetExpiredError, Problem, TableError
from replicator.model.schema import TableId
from replicator.plugins.source import Seen, Visibility
from replicator_source_mysql.connecting.connection import Connection, Session
from replicator_source_mysql.connecting.errors import RESTART_ACTION
from replicator_source_mysql.coordinates.base import Coordinates, DumpRequest, ReadView, SnapshotView, SourceVisibility
from replicator_source_mysql.coordinates.cursor import ReadPosition
from replicator_source_mysql.coordinates.gtid import SNAPSHOT
from replicator_source_mysql.coordinates.lineage import event_at, file_sizes, other_history
from replicator_source_mysql.coordinates.progress import Progress
from replicator_source_mysql.coordinates.watermark import (
    assess,
    end_of_log,
    ordered_end_of_log,
    seen_but_for_others,
    verify_round_trip,
    write_watermark,
)
from replicator_source_mysql.events import FLAG_ARTIFICIAL, Begin, Event, EventKind, mysql_begin, tagged_begin
from replicator_source_mysql.positions.file_position import (
    FIRST_BYTE,
    FilePosition,
    LogPosition,
    file_number,
    fingerprint,
)
from replicator_source_mysql.positions.position import Executed, Position
from replicator_source_mysql.server import ServerFacts

# What may stand where a transaction ended: what may stand between two, and the beginnings of the next one and of a file.
_BOUNDARY: Final = frozenset(
    {"Rotate", "Stop", "Anonymous_Gtid", "View_change", "Gtid", "Gtid_tagged", "Format_desc", "Previous_gtids"}
)
# What names no position of its own, or is no event of the file.
_UNPLACED: Final = frozenset({EventKind.ROTATE, EventKind.HEARTBEAT, EventKind.HEARTBEAT_V2})
# How often a moment without a commit of a change of the table is looked for; each try is a small transaction.
_SNAPSHOT_TRIES: Final = 500
_PACKET: Final = "max_allowed_packet"


class FileCoordinates(Coordinates):
    """See the module.

    Args:
        watermark: The table that watermarks are written into, `source.watermark_table`.
    """

    names = "log position"

    def __init__(self, watermark: TableId) -> None:
        self._watermark = watermark

    @override
    def current_position(self, connection: Connection, facts: ServerFacts) -> Position:
        # What lies before the end of the log and is not visible yet is waited for (`is_beyond`).
        return Position.at_file(end_of_log(connection), facts.server)

    @override
    def start_at(self, connection: Connection, facts: ServerFacts, text: str) -> Position:
        at = FilePosition.of(text)
        verify_boundary(connection, at)
        return Position.at_file(at, facts.server)

    @override
    def assess(self, connection: Connection, account: str) -> Sequence[Problem]:
        return assess(connection, self._watermark, account)

    @override
    def prepare(self, connection: Connection) -> None:
        verify_round_trip(connection, self._watermark)

    @override
    def verify_joins(self, connection: Connection, facts: ServerFacts, position: Position) -> None:
        # The event that was read last is compared when the log is opened there (`FileProgress.take_event`).
        if facts.server != position.server:
            raise LogGapError(
                f"The server is {facts.server}, but the log was read from {position.server}: without GTIDs a log position is valid"
                " on one server only.",
                code="other_server",
                action=f"Name the server that was read; or: {RESTART_ACTION}",
            )
        start = cast("FilePosition", position.begin)
        if start.crc is None:
            verify_boundary(connection, start)
        else:
            _verify_size(connection, start)
        _verify_size(connection, cast("FilePosition", position.executed))

    @override
    def request(self, behind: Executed, server_id: int) -> DumpRequest:
        # The event that proves the history comes first, if there is one.
        at = cast("FilePosition", behind)
        assert at.can_be_asked_for
        body = struct.pack("<IHI", at.begin, 0, server_id) + at.file.encode()
        return DumpRequest(command=COMMAND.COM_BINLOG_DUMP, body=body)

    @override
    def progress(self, start: Position, server: str) -> FileProgress:
        return FileProgress(start, server)

    @override
    def visibility(self, connection: Connection) -> FileVisibility:
        begin = write_watermark(connection, self._watermark)
        return FileVisibility(before=begin.position, after=ordered_end_of_log(connection).position)

    @override
    def read_view(
        self, connection: Connection, watch: Session, table: TableId, *, is_whole: bool, is_exact: bool = True
    ) -> ReadView:
        if is_whole:
            return _SnapshotView(connection, self._watermark, table, is_exact=is_exact)
        return _StatementView(connection, watch, self._watermark)


class FileProgress(Progress):
    """Progress by files and bytes, and the proof that they still are the files that were read."""

    def __init__(self, start: Position, server: str) -> None:
        begin = cast("FilePosition", start.begin)
        super().__init__(start, server, ReadPosition(begin.file, begin.begin))
        self._executed = begin
        # The event that must come first, until it came.
        self._proof = begin if begin.crc is not None else None
        # The last position that can be asked for.
        self._low = begin
        self._last_event = (0, b"")
        self._skipping = cast("FilePosition", start.executed) if start.restart is not None else None

    @property
    @override
    def executed(self) -> FilePosition:
        return self._executed

    @property
    @override
    def before_prepared(self) -> FilePosition:
        return self._executed if self._executed.can_be_asked_for else self._low

    # ---- transactions ----

    @override
    def begin(self, event: Event) -> Begin:
        # GTIDs may be switched on and off as one likes: they are not looked at.
        begin = tagged_begin(event.body) if event.kind == EventKind.GTID_TAGGED else mysql_begin(event.body)
        return replace(begin, gtid=f"{self.cursor.file}:{self.cursor.pos}")

    @override
    def is_skipped(self, begin: Begin) -> bool:
        if self._skipping is None or self.prepared.is_pending(begin.gtid):
            return False
        return self.cursor.position <= self._skipping.position

    @override
    def commit(self, begin: Begin) -> None:
        self.cursor.end_transaction()
        event, raw = self._last_event
        here = FilePosition(self.cursor.file, self.cursor.pos, event, fingerprint(raw))
        self._low = here if here.can_be_asked_for else self._low
        self._advance(here)

    def _advance(self, here: FilePosition) -> None:
        self._executed = here
        if self._skipping is not None and here.covers(self._skipping):
            self._skipping = None

    @override
    def _position(self) -> Position:
        if self._skipping is not None:
            # The same server, and so the same order: nothing new comes before all of it has been read again.
            return self._last
        oldest = self.prepared.oldest
        restart = None if self._executed.can_be_asked_for else self._low
        return Position(
            executed=self._executed,
            server=self._server,
            file=self.cursor.boundary[0],
            pos=self.cursor.boundary[1],
            prepared=self.prepared.gtids,
            restart=oldest.before if oldest is not None else restart,
        )

    # ---- files ----

    @override
    def take_event(self, raw: bytes, kind: int, size: int, end: int, flags: int, *, in_transaction: bool) -> bool:
        """Remember the event, and compare it if it is the one that was read last: that one is left out.

        Raises:
            LogGapError: `other_history`: another event stands there.
        """
        if kind in _UNPLACED or flags & FLAG_ARTIFICIAL or (not end and not in_transaction):
            return False
        self._last_event = (self.cursor.pos - size, raw)
        proof, self._proof = self._proof, None
        if proof is None:
            return False
        if self._last_event[0] != proof.begin or fingerprint(raw) != proof.crc:
            raise other_history(
                f"another event than the one that was read begins at byte {proof.begin} of {proof.file}"
            )
        return proof.begin < proof.pos

    @override
    def refuse_begin(self, error: FatalError) -> None:
        # Asked to begin within an event, the server takes what it finds there for the size of one.
        if (proof := self._proof) is not None and error.code == _PACKET:
            raise other_history(f"no event begins at byte {proof.begin} of {proof.file}") from error

    @override
    def begin_file(self) -> None:
        """Record that all before the file's first event is read, and may be purged."""
        event, raw = self._last_event
        if event != FIRST_BYTE:
            return
        self._low = FilePosition(self.cursor.file, FIRST_BYTE, FIRST_BYTE, fingerprint(raw))
        self.cursor.boundary = (self.cursor.file, FIRST_BYTE)
        self._advance(self._low)

    @override
    def enter(self, file: str, pos: int) -> bool:
        if file != self.cursor.file:
            self._refuse_unproved()
        return super().enter(file, pos)

    @override
    def heartbeat(self, file: str, pos: int | None) -> None:
        self._refuse_unproved()
        super().heartbeat(file, pos)

    def _refuse_unproved(self) -> None:
        if self._proof is not None:
            raise other_history(f"{self._proof.file} ends before what was read of it")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVisibility(SourceVisibility):
    """See the module. Ids are of the server that was read: without GTIDs no other takes over.

    Attributes:
        before: Everything up to here was seen.
        after: Nothing after this position was seen.
    """

    before: LogPosition
    after: LogPosition

    @override
    def is_beyond(self, earlier: Visibility) -> bool:
        # A transaction that has not reached the log by then is in the log later.
        assert isinstance(earlier, FileVisibility)
        return self.before >= earlier.after

    @override
    def _judge(self, text: str) -> Seen:
        file, _, pos = text.rpartition(":")
        position = file_number(file), int(pos)
        if position <= self.before:
            return Seen.SEEN
        return Seen.UNKNOWN if position <= self.after else Seen.UNSEEN


class _StatementView(ReadView):
    """View of one statement after a watermark and before a look at the end of the log: whether it saw transactions between is unknown."""

    def __init__(self, connection: Connection, watch: Session, watermark: TableId) -> None:
        self._connection = connection
        self._watch = watch
        self._watermark = watermark
        self._before: LogPosition = (0, 0)

    @override
    def begin(self) -> None:
        self._before = write_watermark(self._connection, self._watermark).position

    @override
    def visibility(self) -> Visibility:
        with self._watch.use("reading the end of the log") as connection:
            end = ordered_end_of_log(connection)
        return FileVisibility(before=self._before, after=end.position)


class _SnapshotView(SnapshotView):
    """A consistent snapshot, opened at a moment at which nothing that touches this table is being committed."""

    def __init__(self, connection: Connection, watermark: TableId, table: TableId, *, is_exact: bool) -> None:
        super().__init__(connection)
        self._is_exact = is_exact
        self._watermark = watermark
        self._table = table

    @override
    def begin(self) -> None:
        """Find such a moment; if the view need not be exact, transactions that were being committed are unknown to it.

        Raises:
            TableError: There was none.
        """
        for _ in range(_SNAPSHOT_TRIES):
            # One statement commits the watermark and opens the snapshot: the moment is as short as can be.
            before = write_watermark(self._connection, self._watermark, commit=SNAPSHOT)
            after = ordered_end_of_log(self._connection)
            seen = seen_but_for_others(
                self._connection, self._table, watermark=self._watermark, before=before, after=after
            )
            if seen is None and not self._is_exact:
                seen = before
            if seen is not None:
                self._visibility = FileVisibility(before=seen.position, after=after.position)
                return
        raise TableError(
            f"it has no key and is written all the time. Each of {_SNAPSHOT_TRIES} reads met a change that was being committed."
            " Without GTIDs it is unknown whether a read sees such a change.",
            code="no_quiet_moment",
            table=str(self._table),
            action="Run `replicator snapshot NAME TABLE` at a quieter time; or give the table a key, or switch GTIDs on.",
        )


def verify_boundary(connection: Connection, at: FilePosition) -> None:
    """Check a position that has not been read up to: a transaction must have ended there.

    Raises:
        OffsetExpiredError: The file was purged.
        LogGapError: The position is none in this server's log, or lies within a transaction.
    """
    _verify_size(connection, at)
    event = event_at(connection, at.file, at.pos)
    if event is not None and event.kind not in _BOUNDARY:
        raise other_history(f"byte {at.pos} of {at.file} is not where a transaction ended")


def _verify_size(connection: Connection, at: FilePosition) -> None:
    sizes = file_sizes(connection)
    if at.file not in sizes:
        first = next(iter(sizes), at.file)
        if file_number(at.file) < file_number(first) and _base(at.file) == _base(first):
            raise OffsetExpiredError(
                f"The server has purged {at.file}, which was not read to its end; its log begins with {first}.",
                code="log_removed",
                action=RESTART_ACTION,
            )
        raise other_history(f"it has no file {at.file}, which was read")
    if at.pos > sizes[at.file]:
        raise other_history(f"{at.file} ends before byte {at.pos}, up to which it was read")


def _base(file: str) -> str:
    return file.rpartition(".")[0]
