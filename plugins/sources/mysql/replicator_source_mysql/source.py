"""MySQL and MariaDB as a `DeltaSource`: catalogue, the log, and reads of tables. Nothing is made on the server.

MySQL with GTIDs, and MariaDB, are only read. Without GTIDs watermarks are written into a table that the user made, and
leave nothing there. Which of the two it is, the place in the log decides once it is opened; GTIDs that are switched on
later count from the next new place on.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import ClassVar

from pydantic import BaseModel
from typing_extensions import override

from replicator.model.errors import ConfigError, FatalError, Problem
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import (
    Chunk,
    ChunkRequest,
    DeltaSource,
    LogReader,
    SourceContext,
    Standing,
    TableDescription,
    TableSummary,
    Visibility,
    WholeRead,
)
from replicator_source_mysql import assessment, discovery, lineage, table_assessment, watermark
from replicator_source_mysql.cascades import Cascades, Edge, read_edges
from replicator_source_mysql.catalogue import CatalogTable
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.connection import Connection, SameServer, Session, is_mariadb, rows_of
from replicator_source_mysql.dump import Dump
from replicator_source_mysql.filepos import FilePosition
from replicator_source_mysql.groups import Undoing, UndoneGroups
from replicator_source_mysql.gtid import GtidSet
from replicator_source_mysql.log import BinlogReader
from replicator_source_mysql.marks import LogEnd, MarkBoard, log_end
from replicator_source_mysql.position import Executed, Position, executed_of
from replicator_source_mysql.server import ServerFacts, folded_name, read_facts
from replicator_source_mysql.snapshot import TableReader, begin_snapshot
from replicator_source_mysql.visibility import FileVisibility, MysqlVisibility, executed_or_committing, owners


class MysqlSource(DeltaSource[MysqlConfig]):
    """The databases of one server: MySQL 8.0 or later, or MariaDB 10.5 or later.

    Connections: one each for control, chunks, the watch for waiting locks, the log, and the end of the log; all are
    opened when first needed.
    """

    type_name: ClassVar[str] = "mysql"
    config_model: ClassVar[type[BaseModel]] = MysqlConfig

    def __init__(self, config: MysqlConfig, context: SourceContext) -> None:
        """Describe the source; nothing is connected yet."""
        super().__init__(config, context)
        self._same = SameServer()
        self._control = Session(config, self._same)
        self._watch = Session(config, self._same)
        self._ends = Session(config, self._same)
        reading = Session(config, self._same, is_bounded=False, is_reading=True)
        self._sessions = (self._control, self._watch, self._ends, reading)
        self._board = MarkBoard()
        # Marks of two objects are never the same.
        self._mark_prefix = secrets.token_hex(8)
        self._delivered: Executed | None = None
        self._open_reader: BinlogReader | None = None
        self._undone: UndoneGroups = {}
        self._is_by_gtid = False
        # Unknown until the log is opened: then the server's setting decides.
        self._is_by_file: bool | None = None
        self._reader = TableReader(
            session=reading,
            watch_session=self._watch,
            unrepresentable=config.unrepresentable,
            chunk_bytes_max=config.chunk_bytes_max,
            watch_every_s=config.yield_after.total_seconds(),
            statement_s=config.statement_timeout.total_seconds(),
            delivered=self._delivered_gtids,
            is_by_gtid=lambda: self._is_by_gtid,
            watermark=self._watermark,
        )

    @override
    def identity(self) -> Mapping[str, str]:
        """What stays when another server of the same lineage takes over; whether it is one, GTIDs tell at every start."""
        facts = self._facts()
        return {"flavor": facts.flavor, "lower_case_table_names": str(facts.lower_case_table_names)}

    @override
    def list_tables(self) -> Sequence[TableSummary]:
        with self._control.use("reading the catalogue") as connection:
            return discovery.list_tables(connection, watermark=self.config.watermark)

    @override
    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, TableDescription]:
        found = self._read_tables(tables)
        return {table: found[table].description for table in tables if table in found}

    @override
    def check(self, tables: Sequence[TableId]) -> Sequence[Problem]:
        facts = self._facts()
        problems = assessment.assess_server(facts, self.config)
        if facts.is_too_old:
            return problems
        with self._control.use("reading the catalogue") as connection:
            found = discovery.read_tables(
                connection, tables, may_see_storage=assessment.has_privilege(facts, "PROCESS")
            )
            if facts.is_by_file:
                account = assessment.account_of(facts, self.config)
                problems += watermark.assess(connection, self.config.watermark, account)
        for table in tables:
            problems += (
                table_assessment.assess_table(found[table], facts, self.config)
                if table in found
                else [table_assessment.missing_table(table)]
            )
        return problems

    @override
    def prepare(self, tables: Sequence[TableId], *, is_first: bool) -> Offset:
        """See `DeltaSource.prepare`. Nothing is made: the whole log is there for everybody who may read it.

        Without GTIDs a watermark is written at a new place, to see that it can be.
        """
        with self._control.use("reading the server's position") as connection:
            facts = read_facts(connection)
            position = lineage.current_position(connection, facts) if is_first or not facts.is_between else None
            if is_first and facts.is_by_file:
                watermark.verify_round_trip(connection, self.config.watermark)
            if is_first and self.config.start_at is not None:
                position = self._start_at(connection, facts, self.config.start_at.strip())
        return position.offset if position is not None else Offset.of({})

    def _start_at(self, connection: Connection, facts: ServerFacts, text: str) -> Position:
        try:
            if not facts.is_by_file:
                return Position(flavor=facts.flavor, executed=executed_of(facts.flavor, text), server=facts.server)
            at = FilePosition.of(text)
            lineage.verify_place(connection, at)
        except ValueError as error:
            kind = "log position" if facts.is_by_file else "GTID set"
            raise ConfigError(
                f"source.start_at is not a {kind} of {facts.name}: {error}.", code="invalid_start"
            ) from error
        except FatalError as error:
            raise ConfigError(
                f"source.start_at is not a log position of {facts.name}: {error.message}", code="invalid_start"
            ) from error
        return Position.at_file(at, facts.server)

    @override
    def waiting_for(self, since: Visibility | None = None) -> Sequence[str]:
        if not isinstance(since, MysqlVisibility):
            return ()
        with self._watch.use("looking for older transactions") as connection:
            before, after = executed_or_committing(connection)
            now = MysqlVisibility(before=before, after=after, delivered=GtidSet())
            return owners(connection, now.unfinished(since))

    @override
    def standing(self) -> Standing:
        """See `DeltaSource.standing`. Only XA transactions that were prepared since our place in the log are known."""
        reader = self._open_reader
        return Standing(
            keeps_log=assessment.retention(self._facts()),
            oldest_open=reader.oldest_open if reader is not None else None,
        )

    @override
    def remove(self) -> None:
        """See `DeltaSource.remove`: nothing was made."""

    @override
    def leftovers(self) -> Sequence[str]:
        return ("-- Nothing was created on the server.",)

    @override
    def open_log(self, after: Offset, schemas: Mapping[TableId, TableSchema]) -> LogReader:
        position = Position.of(after)
        with self._ends.use("comparing the log with our position") as connection:
            facts = read_facts(connection)
            lineage.verify_joins(connection, facts, position)
        self._is_by_gtid = self._is_by_gtid or (position.server != facts.server)
        self._is_by_file = position.is_by_file
        self._delivered = position.executed
        cascades = self._cascades(facts, schemas)
        dump = Dump.open(self.config, self._same, flavor=facts.flavor, behind=position.begin)
        reader = BinlogReader(
            dump,
            start=position,
            flavor=facts.flavor,
            server=facts.server,
            schemas=schemas,
            board=self._board,
            probe=self._log_end,
            on_delivered=self._note_delivered,
            is_lower_case=facts.lower_case_table_names != 0,
            unrepresentable=self.config.unrepresentable,
            size_max=self.config.transaction_bytes_max,
            undoing=Undoing(groups=self._undone, fold=self._folded),
            cascades=cascades,
        )
        self._open_reader = reader
        return reader

    @override
    def mark(self) -> str:
        with self._control.use("reading the end of the log") as connection:
            end = log_end(connection, is_mariadb=is_mariadb(connection))
        return self._board.add(end, self._mark_prefix)

    @override
    def visibility(self) -> Visibility:
        with self._control.use("reading what is visible") as connection:
            if is_mariadb(connection):
                visibility = begin_snapshot(connection, is_by_gtid=self._is_by_gtid)
                connection.rollback()
                return visibility
            table = self._watermark(connection)
            if table is not None:
                begin = watermark.write_watermark(connection, table)
                return FileVisibility(before=begin.place, after=watermark.ordered_end_of_log(connection).place)
            before, after = executed_or_committing(connection)
        return MysqlVisibility(before=before, after=after, delivered=self._delivered_gtids())

    @override
    def read_chunk(self, request: ChunkRequest) -> Chunk:
        return self._reader.read_chunk(request)

    @override
    def read_whole(self, schema: TableSchema) -> AbstractContextManager[WholeRead]:
        return self._reader.read_whole(schema)

    @override
    def retained_bytes(self) -> int | None:
        """See `DeltaSource.retained_bytes`: the server keeps its log by its own rules, not for us."""
        return None

    @override
    def now(self) -> datetime:
        ((moment,),) = self._control.rows("reading the clock", "SELECT UTC_TIMESTAMP(6)")
        assert isinstance(moment, datetime)
        return moment.replace(tzinfo=UTC)

    @override
    def close(self) -> None:
        for session in self._sessions:
            session.close()

    # -- steps -----------------------------------------------------------------------------------------------------------

    def _facts(self) -> ServerFacts:
        with self._control.use("reading the server's settings") as connection:
            return read_facts(connection)

    def _watermark(self, connection: Connection) -> TableId | None:
        """Where watermarks are written, if reads need them."""
        is_by_file = self._is_by_file
        if is_by_file is None:
            is_by_file = not is_mariadb(connection) and rows_of(connection, "SELECT @@GLOBAL.gtid_mode") == [("OFF",)]
        return self.config.watermark if is_by_file else None

    def _read_tables(self, tables: Collection[TableId]) -> dict[TableId, CatalogTable]:
        with self._control.use("reading the catalogue") as connection:
            return discovery.read_tables(connection, tables)

    def _cascades(self, facts: ServerFacts, schemas: Mapping[TableId, TableSchema]) -> Cascades | None:
        """What watches for cascades, if any is wanted: foreign keys are read before the log is."""
        if self.config.foreign_keys != "resnapshot" or facts.logs_cascades:
            return None
        cascades = Cascades(
            flavor=facts.flavor,
            followed=frozenset(schemas),
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
            return log_end(connection, is_mariadb=is_mariadb(connection))

    def _folded(self, name: str) -> str:
        with self._ends.use("comparing names of savepoints") as connection:
            return folded_name(connection, name)

    def _note_delivered(self, executed: Executed) -> None:
        self._delivered = executed

    def _delivered_gtids(self) -> GtidSet:
        return self._delivered if isinstance(self._delivered, GtidSet) else GtidSet()
