"""Changes by change data capture: `source.capture: cdc`."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pyodbc
from typing_extensions import override

from replicator.model.deletion import Deletion
from replicator.model.errors import OffsetExpiredError, Problem, SourceUnavailableError
from replicator.model.guarantee import Guarantee
from replicator.model.identity import TableIdentity
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.reads import ChunkBounds
from replicator.plugins.source import LogReader, LogRetention, LogStatus, SourceContext, Visibility
from replicator_source_sqlserver.assessment import server as assessment
from replicator_source_sqlserver.assessment import tables as table_assessment
from replicator_source_sqlserver.capture import Capture, Sessions
from replicator_source_sqlserver.catalogue import discovery
from replicator_source_sqlserver.catalogue.server import read_account, read_facts, read_retention
from replicator_source_sqlserver.catalogue.tables import CaptureInstance, CatalogTable
from replicator_source_sqlserver.cdc import queries
from replicator_source_sqlserver.cdc.instances import readings
from replicator_source_sqlserver.cdc.job import HEARTBEAT_S, CaptureHealth, behind, polling_s
from replicator_source_sqlserver.cdc.log import ChangeReader
from replicator_source_sqlserver.cdc.managing import ManagedInstances
from replicator_source_sqlserver.cdc.marks import AwaitedMarks, read_token, server_moment, write_token
from replicator_source_sqlserver.cdc.position import Position
from replicator_source_sqlserver.cdc.settling import Settling
from replicator_source_sqlserver.cdc.tables import CapturedTables
from replicator_source_sqlserver.cdc.visibility import UNSETTLED_S, LsnVisibility, NotedHeads, read_visibility
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Connection, Session
from replicator_source_sqlserver.connecting.errors import is_blocked, is_unknowable
from replicator_source_sqlserver.denials import hidden, read_captured, verify_some_readable
from replicator_source_sqlserver.history import HistoryReader, KnownHistory
from replicator_source_sqlserver.log_end import LogEndShown, log_end
from replicator_source_sqlserver.lsn import lsn_to_text
from replicator_source_sqlserver.snapshot.reader import TableReader
from replicator_source_sqlserver.snapshot.whole_reads import WholeReads

_VERSIONS = "SELECT is_read_committed_snapshot_on FROM sys.databases WHERE name = DB_NAME()"


class ChangeDataCapture(Capture):
    """See `Capture`. The log is what the capture job has written into change tables."""

    def __init__(self, config: SqlServerConfig, context: SourceContext, sessions: Sessions) -> None:
        super().__init__(config, context, sessions)
        # Marks of two objects are never the same.
        self._prefix = secrets.token_hex(8)
        self._board = AwaitedMarks(self._prefix)
        self._heads = NotedHeads()
        self._beats = itertools.count()
        self._managed = ManagedInstances(context.uuid, bars_switch=config.partition_switch == "refuse")
        self._captured: CapturedTables | None = None
        self._health: CaptureHealth | None = None
        self._log_end_shown = LogEndShown()
        self._reader = TableReader(
            session=sessions.reading,
            watch_session=sessions.watch,
            bounds=ChunkBounds(config.chunk_bytes_max),
            watch_every_s=config.yield_after.total_seconds(),
            catalogue=self.read_tables,
            visibility=self._visibility,
            whole=WholeReads(settle_s=UNSETTLED_S, nudge=self._beat if config.mark_table_id is not None else None),
            is_locking=config.chunk_isolation == "locking",
        )

    @property
    @override
    def tables(self) -> TableReader:
        return self._reader

    @override
    def begin_state(self, connection: Connection, table: CatalogTable, columns: Collection[str]) -> LsnVisibility:
        settling = Settling(
            heads=self._heads, is_locking=self.config.chunk_isolation == "locking", settle_s=UNSETTLED_S
        )
        return settling.begin(connection, table, columns)

    @override
    def read_tables(self, connection: Connection, tables: Collection[TableId]) -> dict[TableId, CatalogTable]:
        """See `Capture.read_tables`.

        Raises:
            TableError: A table that we have captured is hidden from the account.
            SourceUnavailableError: All of several captured tables are hidden.
        """
        found = discovery.read_tables(connection, tables)
        if missing := {self.numbers[table]: table for table in tables if table not in found and table in self.numbers}:
            renamed = discovery.read_names(connection, missing)
            numbers = read_captured(connection) & (missing.keys() - renamed.keys())
            user = read_account(connection).user
            errors = {missing[number]: hidden(missing[number], user) for number in sorted(numbers)}
            verify_some_readable(errors, tables)
            for error in errors.values():
                raise error
        return found

    @override
    def identity(self) -> Mapping[str, str]:
        return {}

    @override
    def assess(self, connection: Connection, tables: Sequence[TableId]) -> Sequence[Problem]:
        found = discovery.read_tables(connection, tables)
        facts = read_facts(connection, self.config, list(found.values()))
        problems = assessment.assess_server(facts, self.config)
        if any(problem.code in assessment.BARS_ALL for problem in problems):
            return problems
        for table in tables:
            problems += (
                table_assessment.assess_table(found[table], facts, self.config)
                if table in found
                else [table_assessment.missing_table(table)]
            )
        return problems

    @override
    def prepare(self, tables: Sequence[TableId], *, is_first: bool) -> Offset:
        """See `SourceLog.prepare`. The log begins so far back that no read can miss anything before it."""
        if self.config.manage_capture:
            mark_table = [] if self.config.mark_table_id is None else [self.config.mark_table_id]
            with self.sessions.control.use("enabling change data capture of tables") as connection:
                self._managed.capture(connection, discovery.read_tables(connection, [*tables, *mark_table]).values())
        with self.sessions.control.use("reading where the log ends") as connection:
            seen = (
                queries.settled(connection, UNSETTLED_S) if self._has_versions(connection) else queries.head(connection)
            )
            begin = seen or queries.beginning(connection)
            history = KnownHistory()
            history.verify(connection)
            position = queries.position_at(connection, begin) if begin is not None else None
        if position is None:
            raise SourceUnavailableError(
                "No capture instance has begun: the capture job has not run since it was made.",
                code="capture_not_begun",
                action="See that SQL Server Agent runs, and the capture job: EXEC sys.sp_cdc_start_job @job_type = N'capture'; (where the"
                " database has a publication, the Log Reader Agent captures).",
            )
        return history.noted(position.offset)

    @override
    def status(self, since: Visibility | None = None) -> LogStatus:
        """See `SourceLog.status`. The server keeps changes by its own rules, not for us."""
        with self.sessions.watch.use("reading the server's clock") as connection:
            moment = connection.rows("SELECT SYSUTCDATETIME()")[0][0]
            has_mark = self.config.mark_table_id is not None or self._log_end_shown.on(connection)
            is_proven = has_mark and not self._has_versions(connection)
            retention = read_retention(connection)
            is_waiting = isinstance(since, LsnVisibility) and not self._visibility(connection).is_beyond(since)
        assert isinstance(moment, datetime)
        # Before the log is open, too: an attempt after one that the capture job has ended says why from its beginning.
        if self._health is None:
            waiting = behind(self._stands_s(self.sessions.watch), has_mark_table=self.config.mark_table_id is not None)
        else:
            waiting = self._health.reasons
        if is_waiting and isinstance(since, LsnVisibility):
            waiting.append(f"commits up to {lsn_to_text(since.captured)}, for a minute")
        return LogStatus(
            now=moment.replace(tzinfo=UTC),
            waiting_for=tuple(waiting),
            guarantee=Guarantee.FULL if is_proven else Guarantee.BOUNDED_WAIT,
            retention=LogRetention(keeps_log=retention),
            heartbeat=timedelta(seconds=HEARTBEAT_S) if self.config.mark_table_id is not None else None,
        )

    @override
    def remove(self) -> Deletion:
        """See `SourceLog.remove`: instances that were made are dropped, with what they have captured."""
        if not self.config.manage_capture:
            return Deletion()
        with self.sessions.control.use("disabling capture instances") as connection:
            removed = self._managed.drop(connection)
        return Deletion(removed=tuple(f"the capture instance {name}" for name in removed))

    @override
    def leftovers(self) -> Sequence[str]:
        if not self.config.manage_capture:
            return ("-- Nothing was created on the server.",)
        statement = "EXEC sys.sp_cdc_disable_table @source_schema = …, @source_name = …, @capture_instance = …;"
        return (f"-- For each instance whose name begins with {self._managed.prefix}: {statement}",)

    @override
    def accept(self, identities: Mapping[TableId, TableIdentity]) -> None:
        super().accept(identities)
        if self._captured is not None:
            self._captured.accept(self.accepted(identities))

    @override
    def open_log(self, after: Offset, schemas: Mapping[TableId, TableSchema]) -> LogReader:
        position, history = Position.of(after), KnownHistory.of(after)
        with self.sessions.log.use("comparing the log with our position") as connection:
            history.verify(connection)
            head = queries.head(connection)
            if head is not None and head < position.lsn:
                raise OffsetExpiredError(
                    f"Change data capture ends before {lsn_to_text(position.lsn)}, where we are: it was disabled, or the database "
                    "restored.",
                    code="offset_expired",
                    action="Run `replicator snapshot NAME --changed-only` or `--restart`.",
                )
            found = discovery.read_tables(connection, [t for t in schemas if t not in self.numbers])
            zone = queries.zone(connection)
        self.numbers |= {table: description.object_id for table, description in found.items()}
        numbers = {t: self.numbers[t] for t in schemas if t in self.numbers}
        self._captured = CapturedTables(
            schemas, numbers, renew=self._managed.renew if self.config.manage_capture else None
        )
        stands_s = self._stands_s(self.sessions.log)
        with self.sessions.log.use("looking at the capture job") as connection:
            self._health = CaptureHealth(
                self._beat if self.config.mark_table_id is not None else None,
                returned=self._returned,
                head=head,
                stands_s=stands_s,
                polling_s=polling_s(connection),
            )
            self._health.verify_moving(connection)
        reader = ChangeReader(
            self.sessions.following(history.verify),
            position=position,
            tables=self._captured,
            board=self._board,
            mark_table=self._mark_instances,
            health=self._health,
            zone=zone,
            heads=self._heads,
        )
        return HistoryReader(reader, history)

    @override
    def mark(self) -> str:
        mark_table = self.config.mark_table_id
        if mark_table is None:
            with self.sessions.control.use("reading where the server's log ends") as connection:
                end = log_end(connection)
                return self._board.add(lsn=end) if end else self._board.add(moment=server_moment(connection))
        token = self._board.add()
        try:
            with self.sessions.control.use("writing into the mark table", table=mark_table) as connection:
                write_token(connection, mark_table, token)
        except BaseException:
            # Whatever ended the write, an interrupt too, the log's reader must not wait for a token that was not written.
            self._board.discard(token)
            raise
        return token

    @override
    def visibility(self) -> Visibility:
        with self.sessions.control.use("reading what is visible") as connection:
            return self._visibility(connection)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _has_versions(self, connection: Connection) -> bool:
        return self.config.chunk_isolation == "default" and bool(connection.rows(_VERSIONS)[0][0])

    def _visibility(self, connection: Connection) -> LsnVisibility:
        return read_visibility(connection, self._heads, has_versions=self._has_versions(connection))

    def _mark_instances(self, connection: Connection) -> Sequence[CaptureInstance]:
        mark_table = self.config.mark_table_id
        if mark_table is None:
            return ()
        found = discovery.read_tables(connection, [mark_table])
        # It may have been made again, or its instances disabled, since the replicator started.
        if self.config.manage_capture and any(not table.instances for table in found.values()):
            self._managed.capture(connection, found.values())
            found = discovery.read_tables(connection, [mark_table])
        return found[mark_table].instances if mark_table in found else ()

    def _stands_s(self, session: Session) -> float:
        """Return the seconds for which nothing was captured although our last write waits for it; without a mark table, for which at all.

        0 if the write does not wait, or if that is unknown.
        """
        mark_table = self.config.mark_table_id
        with session.use("looking how long nothing was captured", table=mark_table) as connection:
            try:
                age = max(queries.age(connection) or 0.0, 0.0)
                if age == 0.0 or mark_table is None:
                    return age
                captured = queries.newest_token(connection, self._mark_instances(connection))
                written = read_token(connection, mark_table)
            except pyodbc.Error as error:
                if not (is_unknowable(error) or is_blocked(error)):
                    raise
                return 0.0
        return 0.0 if captured in {None, written} else age

    def _returned(self, connection: Connection, after: bytes, upto: bytes) -> int | None:
        """See `job.Returned`."""
        instances = self._mark_instances(connection)
        try:
            found = [queries.tokens(connection, reading) for reading in readings(instances, after, upto)]
        except pyodbc.Error as error:
            if not is_unknowable(error):
                raise
            return None
        if not instances:
            return None
        start = self._beat_token("")
        beats = [int(token.removeprefix(start)) for tokens in found for _, token in tokens if token.startswith(start)]
        return max(beats, default=-1)

    def _beat_token(self, number: int | str) -> str:
        return f"{self._prefix}:beat:{number}"

    def _beat(self) -> int:
        mark_table = self.config.mark_table_id
        assert mark_table is not None
        with self.sessions.log.use("writing into the mark table", table=mark_table) as connection:
            # The same text again would change nothing, and nothing would be captured.
            number = next(self._beats)
            write_token(connection, mark_table, self._beat_token(number))
        return number
