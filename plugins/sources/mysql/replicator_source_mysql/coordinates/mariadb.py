"""MariaDB: one GTID for each domain says what is executed; what a read saw, its consistent snapshot's position in the log.

A consistent snapshot names the exact position up to which it saw everything. A transaction's id therefore has its position
after its GTID: `0-1-55@3:1234`, number of the file and byte. On a server that took over, whose files are others, ids are
compared by their GTIDs.

XA COMMIT is the exception: MariaDB writes it to the log first and commits in the engine some time later, so that a
snapshot may lie after it and not see its rows (19 of 1,000 snapshots under four writers). Until the engine has done
so XA RECOVER lists the transaction. Its id therefore ends with its XA name, `0-1-55@3:1234;X'61',X'',1`, and it is
seen if it stood in the log before XA RECOVER was asked, before the snapshot, and is not listed; else, up to the
snapshot's position, it is unknown.

An XA COMMIT that stood in the log before our first position is not delivered, so the first snapshot must have its rows:
it waits until the statements XA COMMIT that ran then have ended (`is_beyond`). A transaction that is merely prepared is not waited for.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pymysql.constants import COMMAND
from typing_extensions import override

from replicator.model.schema import TableId
from replicator.plugins.source import Seen, Visibility
from replicator_source_mysql.connecting.connection import Connection, Session, literal, rows_of
from replicator_source_mysql.connecting.errors import gtids_are_off
from replicator_source_mysql.coordinates.base import Coordinates, DumpRequest, ReadView, SourceVisibility
from replicator_source_mysql.coordinates.lineage import has_file, missing_transactions, other_history
from replicator_source_mysql.coordinates.progress import GtidProgress
from replicator_source_mysql.coordinates.xids import prepared_xids
from replicator_source_mysql.events import Begin, Event, EventKind, mariadb_begin
from replicator_source_mysql.positions.file_position import FIRST_BYTE, LogPosition, file_number
from replicator_source_mysql.positions.gtid_sets import GtidPosition
from replicator_source_mysql.positions.marks import LogEnd, log_end
from replicator_source_mysql.positions.position import Executed, Position
from replicator_source_mysql.server import ServerFacts

_XA_COMMITS: Final = """
SELECT query_id, id FROM information_schema.processlist
WHERE id <> CONNECTION_ID() AND info REGEXP '(?s)(^|[^[:alnum:]_])XA[^[:alnum:]_].*COMMIT'
"""
"""Query of the sessions that execute XA COMMIT, also to replicate one. Without PROCESS the server shows only our own sessions."""


class MariadbCoordinates(Coordinates):
    """See the module."""

    names = "GTID set"

    def __init__(self) -> None:
        # Transaction ids with positions in another server's files have to be judged.
        self._is_by_gtid = False

    @override
    def current_position(self, connection: Connection, facts: ServerFacts) -> Position:
        # What lies before the end of the log and is not visible yet is waited for (`is_beyond`).
        end = log_end(connection)
        pos = end.position[1]
        executed = _gtids_at(connection, end.file, pos) or GtidPosition()
        return Position(executed=executed, server=facts.server, file=end.file, pos=pos)

    @override
    def start_at(self, connection: Connection, facts: ServerFacts, text: str) -> Position:
        return Position(executed=GtidPosition.of(text), server=facts.server)

    @override
    def verify_joins(self, connection: Connection, facts: ServerFacts, position: Position) -> None:
        if not _last_gtids(connection).covers(position.executed):
            raise missing_transactions(facts, position, str(position.executed))
        if facts.server != position.server or not has_file(connection, position):
            return
        # The position in the file must still have our GTIDs: after RESET MASTER the same names of files come again.
        if _gtids_at(connection, position.file, position.pos) != position.executed:
            raise other_history(f"byte {position.pos} of {position.file} is not where {position.executed} ended")

    @override
    def opened(self, facts: ServerFacts, position: Position) -> None:
        self._is_by_gtid = self._is_by_gtid or position.server != facts.server

    @override
    def request(self, behind: Executed, server_id: int) -> DumpRequest:
        return DumpRequest(
            statement=f"SET @slave_connect_state = {literal(str(behind))}",
            command=COMMAND.COM_BINLOG_DUMP,
            body=struct.pack("<IHI", FIRST_BYTE, 0, server_id),
        )

    @override
    def progress(self, start: Position, server: str) -> MariadbProgress:
        return MariadbProgress(start, server)

    @override
    def end_of_log(self, connection: Connection) -> LogEnd:
        end = log_end(connection)
        # Read after the position, it may only be further; a reader that has got exactly so far has passed the position.
        return replace(end, executed=_last_gtids(connection))

    @override
    def visibility(self, connection: Connection) -> MariadbVisibility:
        # The order matters: what does not run any more is in the snapshot; what is in the log by its end ran, or had ended.
        running = frozenset(_xa_commits(connection))
        visibility = self._begin_snapshot(connection)
        connection.rollback()
        return replace(visibility, running=running, begun=frozenset(_xa_commits(connection)))

    @override
    def read_view(
        self, connection: Connection, watch: Session, table: TableId, *, is_whole: bool, is_exact: bool = True
    ) -> ReadView:
        return _SnapshotView(self, connection)

    def _begin_snapshot(self, connection: Connection) -> MariadbVisibility:
        """Open the consistent snapshot and learn its position in the log.

        The order matters: the end of the log, what is prepared, the snapshot, the end of the log again (see the module).
        """
        settled_file, settled_pos = _end_of_log(connection)
        prepared = prepared_xids(connection)
        with connection.cursor() as cursor:
            # The level at which MariaDB heeds the rest; it holds for the next transaction.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        status: dict[str, str] = dict(rows_of(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
        file, pos = status.get("Binlog_snapshot_file", ""), int(status.get("Binlog_snapshot_position", 0))
        end_file, end_pos = _end_of_log(connection)
        visibility = MariadbVisibility(
            position=(file_number(file), pos),
            end=(file_number(end_file), end_pos),
            settled=(file_number(settled_file), settled_pos),
            prepared=prepared,
        )
        if not self._is_by_gtid:
            return visibility
        return replace(
            visibility,
            gtids=_gtids_at(connection, file, pos) or GtidPosition(),
            settled_gtids=_gtids_at(connection, settled_file, settled_pos) or GtidPosition(),
        )


class MariadbProgress(GtidProgress[GtidPosition]):
    """Progress by MariaDB's GTIDs."""

    @override
    def begin(self, event: Event) -> Begin:
        if event.kind == EventKind.MARIADB_GTID:
            return mariadb_begin(event.body, event.server_id)
        raise gtids_are_off("The log has a transaction without a GTID.")

    @override
    def transaction_id(self, begin: Begin) -> str:
        return mariadb_id(begin.gtid, self.cursor.position)

    @override
    def decision_id(self, id_: str, xid: str) -> str:
        return xa_commit_id(id_, xid)


@dataclass(frozen=True, slots=True, kw_only=True)
class MariadbVisibility(SourceVisibility):
    """See the module.

    Attributes:
        position: Everything up to here was seen, nothing after it.
        end: The end of the log then; for `is_beyond` only.
        settled: The end of the log before the snapshot: `prepared` tells which XA COMMIT up to here was seen.
        prepared: XA transactions that were prepared, or not yet committed by the engine, after `settled` and before the snapshot.
        gtids: `position` by GTIDs; set where ids of another server's files have to be judged.
        settled_gtids: `settled` by GTIDs.
        running: Statements XA COMMIT that ran before the snapshot, by number; this and the next for `is_beyond` only.
        begun: Statements XA COMMIT that ran after `end`.
    """

    position: LogPosition
    end: LogPosition
    settled: LogPosition
    prepared: frozenset[str] = frozenset()
    gtids: GtidPosition | None = None
    settled_gtids: GtidPosition | None = None
    running: frozenset[int] = frozenset()
    begun: frozenset[int] = frozenset()

    @override
    def is_beyond(self, earlier: Visibility) -> bool:
        assert isinstance(earlier, MariadbVisibility)
        return min(self.position, self.settled) >= earlier.end and not earlier.begun & self.running

    @override
    def waiting_for(self, watch: Session) -> Sequence[str]:
        if not self.begun:
            return ()
        with watch.use("looking for statements XA COMMIT") as connection:
            sessions = _xa_commits(connection)
        return [f"the statement XA COMMIT of the session {sessions[number]}" for number in self.begun & sessions.keys()]

    @override
    def _judge(self, text: str) -> Seen:
        plain, _, xid = text.partition(";")
        if not self._is_within(plain, self.position, self.gtids):
            return Seen.UNSEEN
        if not xid or (xid not in self.prepared and self._is_within(plain, self.settled, self.settled_gtids)):
            return Seen.SEEN
        return Seen.UNKNOWN

    @staticmethod
    def _is_within(text: str, position: LogPosition, gtids: GtidPosition | None) -> bool:
        gtid, _, where = text.partition("@")
        if gtids is not None:
            return gtid in gtids
        file, _, pos = where.partition(":")
        return (int(file), int(pos)) <= position


class _SnapshotView(ReadView):
    """View of one transaction with a consistent snapshot, which lives as long as the read."""

    def __init__(self, coordinates: MariadbCoordinates, connection: Connection) -> None:
        self._coordinates = coordinates
        self._connection = connection
        self._visibility: MariadbVisibility | None = None

    @override
    def begin(self) -> None:
        self._visibility = self._coordinates._begin_snapshot(self._connection)  # noqa: SLF001 - of this module

    @override
    def visibility(self) -> Visibility:
        assert self._visibility is not None, "begin() comes first"
        return self._visibility

    @override
    def end(self) -> None:
        self._connection.commit()


def mariadb_id(gtid: str, position: LogPosition) -> str:
    """A transaction's id: its GTID, and the byte at which its first event ended."""
    return f"{gtid}@{position[0]}:{position[1]}"


def xa_commit_id(id_: str, xid: str) -> str:
    """The id of a group that commits a prepared XA transaction, out of the group's own and the XA name (`xid_text`)."""
    return f"{id_};{xid}"


def _gtids_at(connection: Connection, file: str, pos: int) -> GtidPosition | None:
    """A position in the log as GTIDs; None if the server knows none for it."""
    ((text,),) = rows_of(connection, "SELECT BINLOG_GTID_POS(%s, %s)", [file, pos])
    return GtidPosition.of(text) if text is not None else None


def _last_gtids(connection: Connection) -> GtidPosition:
    ((text,),) = rows_of(connection, "SELECT @@GLOBAL.gtid_binlog_pos")
    return GtidPosition.of(text)


def _xa_commits(connection: Connection) -> Mapping[int, int]:
    """Sessions that execute XA COMMIT now, by the number of the statement, which no other has while the server runs."""
    return {int(number): int(session) for number, session in rows_of(connection, _XA_COMMITS)}


def _end_of_log(connection: Connection) -> tuple[str, int]:
    ((file, pos, *_),) = rows_of(connection, "SHOW MASTER STATUS")
    return file, int(pos)
