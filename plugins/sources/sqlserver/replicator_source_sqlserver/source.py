"""SQL Server as a `DeltaSource`: catalogue, the log, and reads of tables.

Nothing is made on the server, unless `manage_capture` allows it, and nothing is written but a row of the signal table.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pyodbc
from pydantic import BaseModel
from typing_extensions import override

from replicator.model.deletion import Deletion
from replicator.model.errors import OffsetExpiredError, Problem, SourceUnavailableError
from replicator.model.guarantee import Guarantee
from replicator.model.identity import TableIdentity
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.reads import ChunkBounds
from replicator.plugins.planning import RowSample, SourceStatistics, SupportsPlanning
from replicator.plugins.source import (
    Chunk,
    ChunkRequest,
    DeltaSource,
    LogReader,
    LogRetention,
    LogStatus,
    SourceContext,
    TableDescription,
    TableSummary,
    Visibility,
    WholeRead,
)
from replicator.plugins.verification import SourceState, SupportsSourceVerification
from replicator_source_sqlserver import assessment, capturelog, discovery, planning, table_assessment
from replicator_source_sqlserver.capturedtables import CapturedTables
from replicator_source_sqlserver.catalogue import CaptureInstance
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connection import Connection, Connector, Session
from replicator_source_sqlserver.health import HEARTBEAT_S, CaptureHealth
from replicator_source_sqlserver.log import ChangeReader
from replicator_source_sqlserver.lsn import lsn_to_text
from replicator_source_sqlserver.managing import ManagedInstances
from replicator_source_sqlserver.marks import AwaitedMarks, server_moment, write_token
from replicator_source_sqlserver.position import Position
from replicator_source_sqlserver.server import read_facts, read_retention
from replicator_source_sqlserver.settling import Settling
from replicator_source_sqlserver.snapshot import TableReader
from replicator_source_sqlserver.verification import open_state
from replicator_source_sqlserver.visibility import UNSETTLED_S, LsnVisibility, read_visibility
from replicator_source_sqlserver.wholereads import WholeReads

_VERSIONS = "SELECT is_read_committed_snapshot_on FROM sys.databases WHERE name = DB_NAME()"


class SqlServerSource(DeltaSource[SqlServerConfig], SupportsSourceVerification, SupportsPlanning):
    """A database of a SQL Server.

    Connections: one each for control, chunks, the watch for waiting locks, the log, and the signal table; all are opened when first needed.
    Each state that is verified has another one.
    """

    type_name: ClassVar[str] = "sqlserver"
    config_model: ClassVar[type[BaseModel]] = SqlServerConfig

    def __init__(self, config: SqlServerConfig, context: SourceContext) -> None:
        """Describe the source; nothing is connected yet."""
        super().__init__(config, context)
        self._connector = Connector(config)
        self._control = Session(self._connector)
        self._watch = Session(self._connector)
        self._signals = Session(self._connector)
        self._reading = Session(self._connector, is_bounded=False)
        self._sessions = (self._control, self._watch, self._signals, self._reading)
        self._verifying: set[Session] = set()
        # Marks of two objects are never the same.
        self._prefix = secrets.token_hex(8)
        self._board = AwaitedMarks(self._prefix)
        self._beats = itertools.count()
        self._managed = ManagedInstances(context.uuid)
        self._numbers: dict[TableId, int] = {}
        self._tables: CapturedTables | None = None
        self._reader = TableReader(
            session=self._reading,
            watch_session=self._watch,
            bounds=ChunkBounds(config.chunk_bytes_max),
            watch_every_s=config.yield_after.total_seconds(),
            visibility=self._visibility,
            whole=WholeReads(settle_s=UNSETTLED_S, nudge=self._beat if config.signal is not None else None),
            is_locking=config.chunk_isolation == "locking",
        )

    # -- the catalogue -------------------------------------------------------------------------------------------------

    @override
    def identity(self) -> Mapping[str, str]:
        """What stays when another server of the same availability group takes over; a restored database has another fork."""
        with self._control.use("reading the database's identity") as connection:
            facts = read_facts(connection, self.config)
        return {"database": facts.database, **facts.lineage}

    @override
    def list_tables(self) -> Sequence[TableSummary]:
        with self._control.use("reading the catalogue") as connection:
            found = discovery.list_tables(connection)
        signal = self.config.signal
        return [replace(summary, left_out="signal table") if summary.table == signal else summary for summary in found]

    @override
    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, TableDescription]:
        with self._control.use("reading the catalogue") as connection:
            found = discovery.read_tables(connection, tables)
        return {table: found[table].description for table in tables if table in found}

    @override
    def locate(self, tables: Sequence[TableId]) -> Mapping[TableId, TableId]:
        numbers = {self._numbers[table]: table for table in tables if table in self._numbers}
        with self._control.use("reading the catalogue") as connection:
            names = discovery.read_names(connection, numbers)
        return {numbers[number]: name for number, name in names.items() if name != numbers[number]}

    @override
    def check(self, tables: Sequence[TableId]) -> Sequence[Problem]:
        problems = assessment.assess_connection(self.config, pyodbc.drivers())
        if problems:
            return problems
        with self._control.use("reading the catalogue") as connection:
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

    # -- the log -------------------------------------------------------------------------------------------------------

    @override
    def prepare(self, tables: Sequence[TableId], *, is_first: bool) -> Offset:
        """See `SourceLog.prepare`. The log begins where no read can miss what lies in front."""
        if self.config.manage_capture:
            with self._control.use("enabling change data capture of tables") as connection:
                self._managed.capture(connection, discovery.read_tables(connection, tables).values())
        with self._control.use("reading where the log ends") as connection:
            settled_s = UNSETTLED_S if self._has_versions(connection) else 0.0
            settled = capturelog.settled(connection, settled_s)
            begin = settled.lsn if settled is not None else capturelog.beginning(connection)
            position = capturelog.position_at(connection, begin) if begin is not None else None
        if position is None:
            raise SourceUnavailableError(
                "no capture instance has begun: the capture job has not run since it was made.",
                code="capture_not_begun",
                action="See that SQL Server Agent runs, and the capture job: EXEC sys.sp_cdc_start_job @job_type = N'capture'.",
            )
        return position.offset

    @override
    def status(self, since: Visibility | None = None) -> LogStatus:
        """See `SourceLog.status`. The server keeps changes by its own rules, not for us."""
        with self._watch.use("reading the server's clock") as connection:
            moment = connection.rows("SELECT SYSUTCDATETIME()")[0][0]
            is_proven = self.config.signal is not None and not self._has_versions(connection)
            retention = read_retention(connection)
        assert isinstance(moment, datetime)
        waiting = (
            (f"commits up to {lsn_to_text(since.captured)}, for a minute",) if isinstance(since, LsnVisibility) else ()
        )
        return LogStatus(
            now=moment.replace(tzinfo=UTC),
            waiting_for=waiting,
            guarantee=Guarantee.FULL if is_proven else Guarantee.BOUNDED_WAIT,
            retention=LogRetention(keeps_log=retention),
            heartbeat=timedelta(seconds=HEARTBEAT_S) if self.config.signal is not None else None,
        )

    @override
    def remove(self) -> Deletion:
        """See `SourceLog.remove`: instances that were made go, with what they have captured."""
        if not self.config.manage_capture:
            return Deletion()
        with self._control.use("disabling capture instances") as connection:
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
        numbers = {t: int(i.object) for t, i in identities.items() if i.object is not None}
        self._numbers |= numbers
        if self._tables is not None:
            self._tables.accept(numbers)

    @override
    def open_log(self, after: Offset, schemas: Mapping[TableId, TableSchema]) -> LogReader:
        position = Position.of(after)
        with self._signals.use("comparing the log with our position") as connection:
            head = capturelog.head(connection)
            if head is not None and head < position.lsn:
                raise OffsetExpiredError(
                    f"Change data capture ends in front of {lsn_to_text(position.lsn)}, where we are: it was disabled, or the database "
                    "restored.",
                    code="offset_expired",
                    action="Run `replicator snapshot NAME --changed-only` or `--restart`.",
                )
            found = discovery.read_tables(connection, [t for t in schemas if t not in self._numbers])
            zone = capturelog.zone(connection)
        self._numbers |= {table: description.object_id for table, description in found.items()}
        numbers = {t: self._numbers[t] for t in schemas if t in self._numbers}
        self._tables = CapturedTables(
            schemas, numbers, renew=self._managed.renew if self.config.manage_capture else None
        )
        return ChangeReader(
            Session(self._connector),
            position=position,
            tables=self._tables,
            board=self._board,
            signal=self._signal_instances,
            health=CaptureHealth(self._beat if self.config.signal is not None else None),
            zone=zone,
        )

    @override
    def mark(self) -> str:
        signal = self.config.signal
        if signal is None:
            with self._control.use("reading the server's clock") as connection:
                return self._board.add(server_moment(connection))
        token = self._board.add()
        try:
            with self._control.use("writing into the signal table", table=signal) as connection:
                write_token(connection, signal, token)
        except BaseException:
            # Whatever ended it, an interrupt too, the log's reader must not wait for a token that nobody wrote.
            self._board.discard(token)
            raise
        return token

    @override
    def visibility(self) -> Visibility:
        with self._control.use("reading what is visible") as connection:
            return self._visibility(connection)

    # -- tables --------------------------------------------------------------------------------------------------------

    @override
    def read_chunk(self, request: ChunkRequest) -> Chunk:
        return self._reader.read_chunk(request)

    @override
    def read_whole(self, schema: TableSchema) -> AbstractContextManager[WholeRead]:
        return self._reader.read_whole(schema)

    @override
    @contextmanager
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> Iterator[SourceState]:
        session = Session(self._connector, is_bounded=False)
        self._verifying.add(session)
        settling = Settling(is_locking=self.config.chunk_isolation == "locking", settle_s=UNSETTLED_S)
        try:
            with open_state(replace(self._reader, session=session, _tables={}), settling, schema, columns) as state:
                yield state
        finally:
            self._verifying.discard(session)
            session.close()

    @override
    def statistics(self, tables: Sequence[TableId]) -> SourceStatistics:
        with self._control.use("reading the server's statistics") as connection:
            return planning.read_statistics(connection, tables)

    @override
    def sample(self, schema: TableSchema, rows: int) -> RowSample:
        return self._reader.sample(schema, rows)

    @override
    def close(self) -> None:
        for session in (*self._sessions, *self._verifying):
            session.close()
        self._connector.close()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _has_versions(self, connection: Connection) -> bool:
        return self.config.chunk_isolation == "default" and bool(connection.rows(_VERSIONS)[0][0])

    def _visibility(self, connection: Connection) -> LsnVisibility:
        return read_visibility(connection, has_versions=self._has_versions(connection))

    def _signal_instances(self, connection: Connection) -> Sequence[CaptureInstance]:
        signal = self.config.signal
        if signal is None:
            return ()
        found = discovery.read_tables(connection, [signal]).get(signal)
        return found.instances if found is not None else ()

    def _beat(self) -> None:
        signal = self.config.signal
        assert signal is not None
        with self._signals.use("writing into the signal table", table=signal) as connection:
            # The same text again would change nothing, and nothing would be captured.
            write_token(connection, signal, f"{self._prefix}:beat:{next(self._beats)}")
