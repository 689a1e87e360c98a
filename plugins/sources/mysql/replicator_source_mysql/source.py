"""MySQL and MariaDB as a `DeltaSource`: catalogue, the log, and reads of tables. Nothing is made on the server.

MySQL with GTIDs, and MariaDB, are only read. Without GTIDs watermarks are written into a table that the user made, and
leave nothing there. Positions, marks and what reads see are the matter of the log's coordinate system (`coordinates`).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar

from pydantic import BaseModel
from typing_extensions import override

from replicator.model.deletion import Deletion
from replicator.model.errors import ConfigError, FatalError, Problem
from replicator.model.events import DDLEvent
from replicator.model.identity import TableIdentity
from replicator.model.offset import Offset
from replicator.model.rules import Section
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
    SupportsRehearsal,
    TableDescription,
    TableSummary,
    Visibility,
    WholeRead,
)
from replicator.plugins.verification import SourceState, SupportsSourceVerification
from replicator_source_mysql import rules
from replicator_source_mysql.assessment import server as assessment
from replicator_source_mysql.assessment import statistics as planning
from replicator_source_mysql.assessment import tables as table_assessment
from replicator_source_mysql.catalogue import discovery
from replicator_source_mysql.catalogue.tables import CatalogTable
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.connecting.connection import Connection, SameServer, Session, rows_of, verify_host
from replicator_source_mysql.coordinates import CoordinateSystems, SourceVisibility, Unseen
from replicator_source_mysql.coordinates.xids import prepared_xids_if_allowed
from replicator_source_mysql.log.dump import Dump
from replicator_source_mysql.log.groups import Undoing, UndoneGroups
from replicator_source_mysql.log.reader import BinlogReader
from replicator_source_mysql.positions.marks import AwaitedMarks, LogEnd
from replicator_source_mysql.positions.position import Position
from replicator_source_mysql.reach.cascades import Cascades, Edge, read_edges
from replicator_source_mysql.reach.definitions import KnownDefinitions
from replicator_source_mysql.rehearsal import rehearse
from replicator_source_mysql.server import ServerFacts, folded_name, read_facts
from replicator_source_mysql.snapshot import TableReader


class MysqlSource(DeltaSource[MysqlConfig], SupportsRehearsal, SupportsSourceVerification, SupportsPlanning):
    """The databases of one server: MySQL 8.0 or later, or MariaDB 10.5 or later.

    Connections: one each for control, chunks, the watch for waiting locks, the log, and the end of the log; all are
    opened when first needed. Each state that is verified has another one.
    """

    type_name: ClassVar[str] = "mysql"
    config_model: ClassVar[type[BaseModel]] = MysqlConfig
    rules: ClassVar[Section | None] = rules.SECTION
    rewrites_untold: ClassVar[bool] = True

    def __init__(self, config: MysqlConfig, context: SourceContext) -> None:
        """Describe the source; nothing is connected yet."""
        super().__init__(config, context)
        self._same = SameServer()
        self._control = Session(config, self._same)
        self._watch = Session(config, self._same)
        self._ends = Session(config, self._same)
        reading = Session(config, self._same, is_bounded=False, is_reading=True)
        self._sessions = (self._control, self._watch, self._ends, reading)
        self._verifying: set[Session] = set()
        self._board = AwaitedMarks()
        # Marks of two objects are never the same.
        self._mark_prefix = secrets.token_hex(8)
        self._systems = CoordinateSystems(config.watermark)
        self._open_reader: BinlogReader | None = None
        self._undone: UndoneGroups = {}
        self._reader = TableReader(
            session=reading,
            watch_session=self._watch,
            unrepresentable=config.unrepresentable,
            bounds=ChunkBounds(config.chunk_bytes_max),
            watch_every_s=config.yield_after.total_seconds(),
            statement_s=config.statement_timeout.total_seconds(),
            coordinates=self._systems.of_log,
        )

    @override
    def identity(self) -> Mapping[str, str]:
        """Facts that stay when another server of the same lineage takes over; GTIDs prove the lineage at every start."""
        facts = self._facts()
        return {"flavor": facts.flavor.name, "lower_case_table_names": str(facts.lower_case_table_names)}

    @override
    def list_tables(self) -> Sequence[TableSummary]:
        with self._control.use("reading the catalogue") as connection:
            return discovery.list_tables(connection, watermark=self.config.watermark)

    @override
    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, TableDescription]:
        found = self._read_tables(tables)
        missing = [table for table in tables if table not in found]
        with self._control.use("looking for tables that are not shown") as connection:
            hidden = discovery.hidden_tables(connection, missing)
        if hidden:
            # It is no dropped one.
            raise table_assessment.hidden_error(hidden[0])
        return {table: found[table].description for table in tables if table in found}

    @override
    def check(self, tables: Sequence[TableId]) -> Sequence[Problem]:
        if self._open_reader is not None:
            verify_host(self.config, self._same)
        facts = self._facts()
        problems = assessment.assess_server(facts, self.config)
        if facts.is_too_old:
            return problems
        with self._control.use("reading the catalogue") as connection:
            found = discovery.read_tables(
                connection, tables, may_see_storage=assessment.has_privilege(facts, "PROCESS")
            )
            account = assessment.account_of(facts, self.config)
            hidden = []
            if assessment.has_privilege(facts, "PROCESS"):
                hidden = discovery.hidden_tables(connection, [table for table in tables if table not in found])
            problems += self._systems.of_server(facts).assess(connection, account)
            if self._open_reader is None:
                problems += assessment.prepared_before_start(prepared_xids_if_allowed(connection))
        for table in tables:
            problems += (
                table_assessment.assess_table(found[table], facts, self.config)
                if table in found
                else [
                    table_assessment.hidden_table(table, account)
                    if table in hidden
                    else table_assessment.missing_table(table)
                ]
            )
        return problems

    @override
    def prepare(self, tables: Sequence[TableId], *, is_first: bool) -> Offset:
        """See `SourceLog.prepare`. Nothing is made: any account with the privilege can read the whole log.

        Without GTIDs a watermark is written for a new position, to see that it can be.
        """
        with self._control.use("reading the server's position") as connection:
            facts = read_facts(connection)
            position = self._systems.current_position(connection, facts) if is_first or not facts.is_between else None
            if is_first:
                self._systems.of_server(facts).prepare(connection)
            if is_first and self.config.start_at is not None:
                position = self._start_at(connection, facts, self.config.start_at.strip())
        return position.offset if position is not None else Offset.of({})

    def _start_at(self, connection: Connection, facts: ServerFacts, text: str) -> Position:
        coordinates = self._systems.of_server(facts)
        try:
            return coordinates.start_at(connection, facts, text)
        except ValueError as error:
            raise ConfigError(
                f"source.start_at is not a {coordinates.names} of {facts.name}: {error}.", code="invalid_start"
            ) from error
        except FatalError as error:
            raise ConfigError(
                f"source.start_at is not a log position of {facts.name}: {error.message}", code="invalid_start"
            ) from error

    @override
    def status(self, since: Visibility | None = None) -> LogStatus:
        """See `SourceLog.status`. The server keeps its log by its own rules, not for us.

        Only XA transactions that were prepared since our position in the log are known.
        """
        with self._watch.use("reading the server's settings") as connection:
            facts = read_facts(connection)
            ((moment,),) = rows_of(connection, "SELECT UTC_TIMESTAMP(6)")
        assert isinstance(moment, datetime)
        reader = self._open_reader
        return LogStatus(
            now=moment.replace(tzinfo=UTC),
            retention=LogRetention(
                keeps_log=assessment.retention(facts), oldest_open=reader.oldest_open if reader is not None else None
            ),
            waiting_for=since.waiting_for(self._watch) if isinstance(since, SourceVisibility) else (),
            heartbeat=self.config.heartbeat,
        )

    @override
    def remove(self) -> Deletion:
        """See `SourceLog.remove`: nothing was made."""
        return Deletion()

    @override
    def leftovers(self) -> Sequence[str]:
        return ("-- Nothing was created on the server.",)

    @override
    def accept(self, identities: Mapping[TableId, TableIdentity]) -> None:
        if self._open_reader is not None:
            for table in identities:
                self._open_reader.accept(table)

    @override
    def open_log(self, after: Offset, schemas: Mapping[TableId, TableSchema]) -> LogReader:
        position = Position.of(after)
        with self._ends.use("comparing the log with our position") as connection:
            facts = read_facts(connection)
            coordinates = self._systems.open(connection, facts, position)
        cascades = self._cascades(facts, schemas)
        dump = Dump.open(self.config, self._same, flavor=facts.flavor, coordinates=coordinates, behind=position.begin)
        reader = BinlogReader(
            dump,
            progress=coordinates.progress(position, facts.server),
            flavor=facts.flavor,
            schemas=schemas,
            board=self._board,
            probe=self._log_end,
            on_delivered=coordinates.delivered,
            is_lower_case=facts.lower_case_table_names != 0,
            unrepresentable=self.config.unrepresentable,
            size_max=self.config.transaction_bytes_max,
            undoing=Undoing(groups=self._undone, fold=self._folded),
            cascades=cascades,
            definitions=KnownDefinitions(use=self._ends.use),
        )
        self._open_reader = reader
        return reader

    def rehearse(self, statement: str) -> Sequence[DDLEvent]:
        """The events that the log would bring if a statement were executed now (`rehearsal`). Nothing is executed."""
        with self._control.use("reading the catalogue") as connection:
            return rehearse(connection, read_facts(connection), statement)

    @override
    def mark(self) -> str:
        with self._control.use("reading the end of the log") as connection:
            end = self._systems.of_log(connection).end_of_log(connection)
        return self._board.add(end, self._mark_prefix)

    @override
    def visibility(self) -> Visibility:
        with self._control.use("reading what is visible") as connection:
            return self._systems.of_log(connection).visibility(connection)

    @override
    def read_chunk(self, request: ChunkRequest) -> Chunk:
        return self._reader.read_chunk(request)

    @override
    def read_whole(self, schema: TableSchema) -> AbstractContextManager[WholeRead]:
        return self._reader.read_whole(schema)

    @override
    @contextmanager
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> Iterator[SourceState]:
        # A snapshot takes a connection of its own.
        session = Session(self.config, self._same, is_bounded=False, is_reading=True)
        self._verifying.add(session)
        try:
            with replace(self._reader, session=session, _tables={}).open_state(schema, columns) as state:
                yield state
        finally:
            self._verifying.discard(session)
            session.close()

    @override
    def statistics(self, tables: Sequence[TableId]) -> SourceStatistics:
        with self._control.use("reading the server's statistics") as connection:
            return planning.read_statistics(connection, read_facts(connection), tables)

    @override
    def sample(self, schema: TableSchema, rows: int) -> RowSample:
        return replace(self._reader, coordinates=lambda _: Unseen(), _tables={}).sample(schema, rows)

    @override
    def close(self) -> None:
        for session in (*self._sessions, *self._verifying):
            session.close()

    # -- steps -----------------------------------------------------------------------------------------------------------

    def _facts(self) -> ServerFacts:
        with self._control.use("reading the server's settings") as connection:
            return read_facts(connection)

    def _read_tables(self, tables: Collection[TableId]) -> dict[TableId, CatalogTable]:
        with self._control.use("reading the catalogue") as connection:
            return discovery.read_tables(connection, tables)

    def _cascades(self, facts: ServerFacts, schemas: Mapping[TableId, TableSchema]) -> Cascades | None:
        """The watcher of cascades, if one is wanted: foreign keys are read before the log is."""
        if self.config.foreign_keys != "resnapshot" or facts.logs_cascades:
            return None
        cascades = Cascades(
            flavor=facts.flavor,
            replicated=frozenset(schemas),
            read=self._read_edges,
            size_max=self.config.transaction_bytes_max,
        )
        cascades.look()
        return cascades

    def _read_edges(self) -> Sequence[Edge]:
        with self._ends.use("reading foreign keys") as connection:
            return read_edges(connection)

    def _log_end(self) -> LogEnd:
        with self._ends.use("reading the end of the log") as connection:
            return self._systems.of_log(connection).end_of_log(connection)

    def _folded(self, name: str) -> str:
        with self._ends.use("comparing names of savepoints") as connection:
            return folded_name(connection, name)
