"""MySQL with GTIDs: a set of GTIDs says what is executed, on any server of the lineage.

Visibility of a read: of the GTIDs executed before it began it saw all, of those that were neither executed nor being committed
once it had begun it saw none, and the rest is unknown. (A commit becomes visible before its GTID counts as
executed; in between it stands in `gtid_owned`.) No write is needed, and the order of commits does not matter. A
transaction's id is its GTID.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

from pymysql.constants import COMMAND
from typing_extensions import override

from replicator.model.errors import ConfigError, OffsetExpiredError
from replicator.model.schema import TableId
from replicator.plugins.source import Seen, Visibility
from replicator_source_mysql.connecting.connection import Connection, Session, rows_of
from replicator_source_mysql.connecting.errors import RESTART_ACTION, gtids_are_off
from replicator_source_mysql.coordinates.base import Coordinates, DumpRequest, ReadView, SnapshotView, SourceVisibility
from replicator_source_mysql.coordinates.lineage import (
    event_at,
    has_file,
    missing_transactions,
    other_history,
    shortened,
)
from replicator_source_mysql.coordinates.progress import GtidProgress
from replicator_source_mysql.events import Begin, Event, EventKind, mysql_begin, tagged_begin
from replicator_source_mysql.positions.file_position import FIRST_BYTE
from replicator_source_mysql.positions.gtid_sets import GtidSet
from replicator_source_mysql.positions.position import Executed, Position
from replicator_source_mysql.server import ServerFacts

SNAPSHOT: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
"""Opens MySQL's consistent snapshot, and commits what was open."""

_EXECUTED: Final = "SELECT @@GLOBAL.gtid_owned, @@GLOBAL.gtid_executed"
_GTID_NEXT: Final = re.compile(r"GTID_NEXT\s*=\s*'([^']+)'")
# What may stand between transactions.
_BETWEEN: Final = frozenset({"Rotate", "Stop", "Anonymous_Gtid", "View_change"})
_THROUGH_GTID: Final = 4
# How often a moment without a commit is looked for; beyond it what was committed then is unknown.
_SNAPSHOT_TRIES: Final = 100


class GtidCoordinates(Coordinates):
    """See the module."""

    names = "GTID set"

    def __init__(self) -> None:
        # What the log has delivered.
        self._delivered = GtidSet()

    @override
    def current_position(self, connection: Connection, facts: ServerFacts) -> Position:
        # GTIDs count as executed once their transactions are visible; what is still being committed comes. No file and byte:
        # the end of the log lies after transactions that are being committed.
        if facts.gtid_mode != "ON":
            raise ConfigError(
                f"The server's gtid_mode is {facts.gtid_mode}: its log has transactions with and without GTIDs.",
                code="gtid_mode_between",
                action="Finish the change: SET GLOBAL gtid_mode = …, step by step, to ON (or to OFF: then"
                " source.watermark_table is needed).",
            )
        ((executed,),) = rows_of(connection, "SELECT @@GLOBAL.gtid_executed")
        return Position(executed=GtidSet.of(executed), server=facts.server)

    @override
    def start_at(self, connection: Connection, facts: ServerFacts, text: str) -> Position:
        return Position(executed=GtidSet.of(text), server=facts.server)

    @override
    def verify_joins(self, connection: Connection, facts: ServerFacts, position: Position) -> None:
        if facts.gtid_mode != "ON":
            raise gtids_are_off(f"The server's gtid_mode is {facts.gtid_mode}, but the log was read with GTIDs.")
        ((executed_text, purged_text),) = rows_of(connection, "SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged")
        executed, purged = GtidSet.of(executed_text), GtidSet.of(purged_text)
        ours = cast("GtidSet", position.executed)
        if missing := ours.without(executed):
            raise missing_transactions(facts, position, str(missing))
        if lost := purged.without(cast("GtidSet", position.begin)):
            raise OffsetExpiredError(
                f"The server has purged transactions that were not read: {shortened(str(lost))}.",
                code="log_removed",
                action=RESTART_ACTION,
            )
        if facts.server == position.server and has_file(connection, position):
            _verify_next(connection, position, ours)

    @override
    def opened(self, facts: ServerFacts, position: Position) -> None:
        self._delivered = cast("GtidSet", position.executed)

    @override
    def request(self, behind: Executed, server_id: int) -> DumpRequest:
        data = cast("GtidSet", behind).encoded()
        body = struct.pack("<HIIQI", _THROUGH_GTID, server_id, 0, FIRST_BYTE, len(data)) + data
        return DumpRequest(command=COMMAND.COM_BINLOG_DUMP_GTID, body=body)

    @override
    def progress(self, start: Position, server: str) -> GtidSetProgress:
        return GtidSetProgress(start, server)

    @override
    def delivered(self, executed: Executed) -> None:
        self._delivered = cast("GtidSet", executed)

    @override
    def visibility(self, connection: Connection) -> GtidVisibility:
        before, after = executed_or_committing(connection)
        return self._visibility(before, after)

    @override
    def read_view(
        self, connection: Connection, watch: Session, table: TableId, *, is_whole: bool, is_exact: bool = True
    ) -> ReadView:
        return _SnapshotView(self, connection) if is_whole else _StatementView(self, connection, watch)

    def _visibility(self, before: GtidSet, after: GtidSet) -> GtidVisibility:
        return GtidVisibility(before=before, after=after, delivered=self._delivered)


class GtidSetProgress(GtidProgress[GtidSet]):
    """Progress by MySQL's GTIDs."""

    @override
    def begin(self, event: Event) -> Begin:
        if event.kind == EventKind.GTID:
            return mysql_begin(event.body)
        if event.kind == EventKind.GTID_TAGGED:
            return tagged_begin(event.body)
        raise gtids_are_off("The log has a transaction without a GTID.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GtidVisibility(SourceVisibility):
    """See the module.

    Attributes:
        before: Executed before the read.
        after: Executed, or being committed, once it had begun.
        delivered: GTIDs that the log had delivered then; for `is_beyond` only.
    """

    before: GtidSet
    after: GtidSet
    delivered: GtidSet

    @override
    def _judge(self, text: str) -> Seen:
        if text in self.before:
            return Seen.SEEN
        return Seen.UNKNOWN if text in self.after else Seen.UNSEEN

    @override
    def is_beyond(self, earlier: Visibility) -> bool:
        # A transaction that has not reached the log by then is in the log later.
        assert isinstance(earlier, GtidVisibility)
        return not self._unfinished(earlier)

    @override
    def waiting_for(self, watch: Session) -> Sequence[str]:
        with watch.use("looking for older transactions") as connection:
            before, after = executed_or_committing(connection)
            now = GtidVisibility(before=before, after=after, delivered=GtidSet())
            return _owners(connection, now._unfinished(self))

    def _unfinished(self, earlier: GtidVisibility) -> GtidSet:
        """GTIDs of the earlier view that are owned and not executed yet. One that is neither any more was rolled back."""
        of_then = earlier.after.union(earlier.delivered)
        return of_then.intersection(self.after).without(self.before)


class _StatementView(ReadView):
    """View of one statement between two reads of the executed GTIDs: what came in between is unknown, and left to the log."""

    def __init__(self, coordinates: GtidCoordinates, connection: Connection, watch: Session) -> None:
        self._coordinates = coordinates
        self._connection = connection
        self._watch = watch
        self._before = GtidSet()

    @override
    def begin(self) -> None:
        self._before, _ = executed_or_committing(self._connection)

    @override
    def visibility(self) -> Visibility:
        with self._watch.use("reading the executed GTIDs") as connection:
            _, after = executed_or_committing(connection)
        return self._coordinates._visibility(self._before, after)  # noqa: SLF001 - of this module


class _SnapshotView(SnapshotView):
    """A consistent snapshot, opened at a moment at which nothing is being committed, if there is one."""

    def __init__(self, coordinates: GtidCoordinates, connection: Connection) -> None:
        super().__init__(connection)
        self._coordinates = coordinates

    @override
    def begin(self) -> None:
        before = after = GtidSet()
        for _ in range(_SNAPSHOT_TRIES):
            before, _ = executed_or_committing(self._connection)
            with self._connection.cursor() as cursor:
                # Ends the one before.
                cursor.execute(SNAPSHOT)
            _, after = executed_or_committing(self._connection)
            if after == before:
                break
        self._visibility = self._coordinates._visibility(before, after)  # noqa: SLF001 - of this module


def _verify_next(connection: Connection, position: Position, ours: GtidSet) -> None:
    """Verify that a transaction that was not read begins at our position: after a RESET the same GTIDs come again, elsewhere."""
    event = event_at(connection, position.file, position.pos)
    if event is None or event.kind in _BETWEEN:
        return
    found = _GTID_NEXT.search(event.info)
    if found is None or found[1].lower() in ours:
        raise other_history(f"byte {position.pos} of {position.file} is not where what was read ended")


def executed_or_committing(connection: Connection) -> tuple[GtidSet, GtidSet]:
    """The GTIDs that are executed, and those that are executed or being committed."""
    ((owned, executed),) = rows_of(connection, _EXECUTED)
    done = GtidSet.of(executed)
    return done, done.union(owned_gtids(owned))


def owned_gtids(text: str) -> GtidSet:
    """Read `gtid_owned`: GTIDs that are being committed, each with the threads after a hash sign."""
    found = GtidSet()
    for gtid, _ in _owned(text):
        found = found.with_gtid(gtid)
    return found


def _owned(text: str) -> Iterator[tuple[str, str]]:
    """Each GTID with the threads that own it."""
    for part in filter(None, (p.strip() for p in text.replace("\n", "").split(","))):
        uuid, *rest = part.lower().split(":")
        source = uuid
        for piece in rest:
            number, hash_sign, thread = piece.partition("#")
            if hash_sign or number.isdigit():
                yield f"{source}:{int(number)}", thread
            else:
                source = f"{uuid}:{piece}"


def _owners(connection: Connection, gtids: GtidSet) -> list[str]:
    """Sessions that own these GTIDs, for people."""
    if not gtids:
        return []
    ((owned,),) = rows_of(connection, "SELECT @@GLOBAL.gtid_owned")
    return [
        f"the transaction {gtid} of the session {thread}, which owns its GTID and has not committed it"
        for gtid, thread in _owned(owned)
        if gtid in gtids
    ]
