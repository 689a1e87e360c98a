"""PostgreSQL as a `DeltaSource`: catalogue, publication and slot, the log, and reads of tables."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

from psycopg import sql
from pydantic import BaseModel
from typing_extensions import override

from replicator.model.crash import crash_point
from replicator.model.deletion import Deletion
from replicator.model.errors import ConfigError, Problem, ReplicatorError
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
    LogStatus,
    SourceContext,
    SupportsRehearsal,
    TableDescription,
    TableSummary,
    Visibility,
    WholeRead,
)
from replicator.plugins.verification import SourceState, SupportsSourceVerification
from replicator_source_postgresql import rules, table_assessment
from replicator_source_postgresql.assessment import server as assessment
from replicator_source_postgresql.catalogue import discovery
from replicator_source_postgresql.catalogue import statistics as planning
from replicator_source_postgresql.catalogue.raw_texts import is_raw
from replicator_source_postgresql.catalogue.tables import CatalogTable
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.connecting.errors import CONNECTION_POOLER
from replicator_source_postgresql.connecting.sessions import Sessions
from replicator_source_postgresql.log.feed import Feed
from replicator_source_postgresql.log.lookups import LogCatalogue
from replicator_source_postgresql.log.reader import LsnMarks, PgLogReader, mark_prefix
from replicator_source_postgresql.lsn import lsn_from_text
from replicator_source_postgresql.position import Position
from replicator_source_postgresql.rehearsal import rehearse as rehearsal
from replicator_source_postgresql.replication import continuity, fencing, publication, slot
from replicator_source_postgresql.snapshot.reader import CHUNK_SETTINGS, PgVisibility, TableReader
from replicator_source_postgresql.verification.states import STATE_SETTINGS, StateReader

VERSION_WITH_MESSAGES = 140000
VERSION_EARLY_KEEPALIVES = 150000
_IDLE_MOVE_S: Final = 10.0
_PREPARATIONS_MAX: Final = 20
"""Upper bound of the attempts to bring the publication in line with a catalogue that changes meanwhile."""


class PostgresqlSource(DeltaSource[PostgresqlConfig], SupportsRehearsal, SupportsSourceVerification, SupportsPlanning):
    """One database of a PostgreSQL server, 13 or later.

    Connections: one each for control, chunks, states, marks, the watch for waiting locks, the log and the types that its messages
    name; all are opened when first needed, and lead to one running server. One more, for a moment, with each `check`.
    """

    type_name: ClassVar[str] = "postgresql"
    config_model: ClassVar[type[BaseModel]] = PostgresqlConfig
    rules: ClassVar[Section | None] = rules.SECTION

    def __init__(self, config: PostgresqlConfig, context: SourceContext) -> None:
        """Describe the source; nothing is connected yet."""
        super().__init__(config, context)
        made = slot.resource_name(context.replicator)
        self._slot_name = config.slot or made
        self._publication_name = config.publication or made
        self._lsn_marks = LsnMarks()
        self._objects: dict[TableId, int] = {}
        self._accepted: dict[TableId, TableIdentity] = {}
        self._filters: dict[str, str] = {}
        self._has_read_log = False
        """True once the log was read: the server grants replication connections, and asking each minute would use one of the few."""
        self._sessions = Sessions(
            self._parameters(),
            server=config.server,
            lock_timeout=config.lock_timeout,
            statement_timeout=config.statement_timeout,
            chunk_settings=CHUNK_SETTINGS,
            state_settings=STATE_SETTINGS,
        )
        self._reader = TableReader(
            session=self._sessions.reading,
            watch_session=self._sessions.watch,
            publication=self._publication_name,
            unrepresentable=config.unrepresentable,
            bounds=ChunkBounds(config.chunk_bytes_max),
            watch_every_s=config.yield_after.total_seconds(),
        )
        self._states = StateReader(
            session=self._sessions.verifying,
            watch_session=self._sessions.watch,
            publication=self._publication_name,
            unrepresentable=config.unrepresentable,
            watch_every_s=config.yield_after.total_seconds(),
        )

    @override
    def identity(self) -> Mapping[str, str]:
        with self._sessions.control.use("reading the system identifier") as connection:
            row = connection.execute("SELECT system_identifier::text FROM pg_control_system()").fetchone()
        assert row is not None
        return {
            "system": row[0],
            "database": self.config.database,
            "slot": self._slot_name,
            "publication": self._publication_name,
        }

    @override
    def list_tables(self) -> Sequence[TableSummary]:
        with self._sessions.control.use("reading the catalogue") as connection:
            return discovery.list_tables(connection)

    @override
    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, TableDescription]:
        found = self._read_tables(tables)
        return {table: found[table].description for table in tables if table in found}

    @override
    def locate(self, tables: Sequence[TableId]) -> Mapping[TableId, TableId]:
        objects = {table: self._objects[table] for table in tables if table in self._objects}
        if not objects:
            return {}
        with self._sessions.control.use("reading the names of tables") as connection:
            return discovery.read_names(connection, objects)

    @override
    def check(self, tables: Sequence[TableId]) -> Sequence[Problem]:
        if self._has_read_log:
            self._sessions.verify_host()
        with self._sessions.control.use("reading the server's settings") as connection:
            facts = assessment.read_server(connection)
            if facts.version < assessment.OLDEST_VERSION:
                return [assessment.too_old(facts)]
            resources = assessment.Resources(
                replicator=self.context.replicator,
                uuid=self.context.uuid,
                slot_name=self._slot_name,
                publication_name=self._publication_name,
                is_slot_given=self.config.slot is not None,
                is_publication_given=self.config.publication is not None,
                slot=slot.read_slot(connection, self._slot_name),
                publication=discovery.read_publication(connection, self._publication_name),
            )
        if facts.may_replicate and not self._has_read_log:
            facts = replace(facts, replication_error=self._try_replication())
        found = self._read_tables(tables)
        there = [found[table] for table in tables if table in found]
        problems = assessment.assess_server(facts, resources)
        for table in tables:
            problems += (
                table_assessment.assess_table(found[table], facts.role)
                if table in found
                else [table_assessment.missing_table(table)]
            )
        # After the tables: what cannot be attributed to rows cannot be published.
        return [*problems, *assessment.assess_resources(facts, resources, there)]

    @override
    def prepare(self, tables: Sequence[TableId], *, is_first: bool) -> Offset:
        """See `SourceLog.prepare`.

        Steps: publication in line with the tables (one transaction) → an older slot of ours dropped (`is_first` only) → slot
        made. A crash after any of them is repaired by the next call with `is_first`.
        """
        self._prepare_publication(tables)
        crash_point("source.publication_made")
        lsn = self._prepare_slot(is_first=is_first)
        crash_point("source.slot_made")
        with self._sessions.replication.use("identifying the server") as replication:
            system = continuity.identify_system(replication)
        self._sessions.replication.release()
        return Position(lsn=lsn, timeline=system.timeline, system=system.identifier).offset

    @override
    def status(self, since: Visibility | None = None) -> LogStatus:
        preparing = self._sessions.replication.backend_pid
        waiting_for: Sequence[str] = ()
        with self._sessions.watch.use("reading the state of the log") as connection:
            kept = slot.read_kept_log(connection, self._slot_name)
            if isinstance(since, PgVisibility):
                waiting_for = slot.unfinished(connection, since.next_id or since.xmax)
            elif preparing is not None:
                waiting_for = slot.blockers(connection, preparing)
        return LogStatus(
            now=kept.now,
            retained_bytes=kept.retained,
            retention=kept.retention,
            waiting_for=waiting_for,
            heartbeat=timedelta(seconds=_IDLE_MOVE_S),
        )

    @override
    def remove(self) -> Deletion:
        """See `SourceLog.remove`. The slot is dropped first: the publication's comment names the owner of both."""
        of_slot, of_publication = f"replication slot {self._slot_name}", f"publication {self._publication_name}"
        with self._sessions.control.use("reading the catalogue") as connection:
            found = discovery.read_publication(connection, self._publication_name)
            state = slot.read_slot(connection, self._slot_name)
        if (
            self.config.publication is None
            and found is not None
            and publication.belongs_to_another(found, self.context.uuid)
        ):
            return Deletion(kept=(f"{of_publication}, which belongs to another replicator",))
        removed, kept = list[str](), list[str]()
        if self.config.slot is not None:
            kept.append(f"{of_slot}, which source.slot names")
        elif state is not None and state.unusable_in(self.config.database) is None:
            self._drop_slot(state)
            removed.append(of_slot)
        if self.config.publication is not None:
            kept.append(f"{of_publication}, which source.publication names")
        elif found is not None:
            with self._sessions.control.use("dropping the publication") as connection:
                publication.drop_publication(connection, self._publication_name)
            removed.append(of_publication)
        return Deletion(removed=tuple(removed), kept=tuple(kept))

    @override
    def leftovers(self) -> Sequence[str]:
        statements = []
        if self.config.slot is None:
            statements.append(f"SELECT pg_drop_replication_slot({sql.Literal(self._slot_name).as_string(None)});")
        if self.config.publication is None:
            statements.append(f"DROP PUBLICATION IF EXISTS {sql.Identifier(self._publication_name).as_string(None)};")
        return statements

    @override
    def accept(self, identities: Mapping[TableId, TableIdentity]) -> None:
        self._accepted |= identities
        objects = {table: int(identity.object) for table, identity in identities.items() if identity.object}
        for table in [t for t, oid in self._objects.items() if oid in objects.values() and t not in objects]:
            # It has another name now.
            del self._objects[table]
            self._accepted.pop(table, None)
        self._objects |= objects

    @override
    def open_log(self, after: Offset, schemas: Mapping[TableId, TableSchema]) -> LogReader:
        position = Position.of(after)
        with self._sessions.replication.use("identifying the server") as replication:
            system = continuity.identify_system(replication)
            history = (
                continuity.read_timeline_history(replication, system.timeline)
                if system.timeline != position.timeline
                else {}
            )
        self._sessions.replication.release()
        with self._sessions.control.use("reading the replication slot") as connection:
            state = slot.read_slot(connection, self._slot_name)
            if state is not None and state.active_pid is not None:
                fencing.end_fenced_reader(connection, state.active_pid, self.context)
                state = slot.read_slot(connection, self._slot_name)
            has_no_encoding = is_raw(connection)
            row = connection.execute(
                "SELECT pg_snapshot_xmax(pg_current_snapshot())::text,"
                " CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn()::text END,"
                " current_setting('synchronous_standby_names') <> ''"
            ).fetchone()
            assert row is not None
            # With synchronous standbys a keepalive comes for each transaction that has nothing for us, also in a backlog.
            has_early_keepalives = row[2] and connection.info.server_version >= VERSION_EARLY_KEEPALIVES
        log_end = None if row[1] is None else lsn_from_text(row[1])
        continuity.verify_joins(
            state, self._slot_name, self.config.database, position, system, history, log_end, self.context.replicator
        )
        with ExitStack() as unless_returned:
            feed = Feed.open(
                {**self._parameters(), "application_name": fencing.reader_name(self.context)},
                self._sessions.same,
                slot=self._slot_name,
                publication=self._publication_name,
                start_lsn=position.lsn,
                is_raw=has_no_encoding,
            )
            unless_returned.callback(feed.close)
            reader = PgLogReader(
                feed,
                schemas=schemas,
                start_lsn=position.lsn,
                lookups=LogCatalogue(self._sessions.log_catalogue, self._publication_name),
                xid_near=int(row[0]),
                marks=mark_prefix(self.context.uuid),
                lsn_marks=self._lsn_marks,
                offset_fields=Position(lsn=0, timeline=system.timeline, system=system.identifier).fields,
                objects=self._objects,
                accepted=self._accepted,
                log_end=self._log_end if row[1] is not None else None,
                has_early_keepalives=has_early_keepalives,
                unrepresentable=self.config.unrepresentable,
                idle_move_s=_IDLE_MOVE_S,
            )
            # No other session can advance it any more; one may have recreated it since it was read.
            with self._sessions.control.use("reading the replication slot") as connection:
                state = slot.read_slot(connection, self._slot_name)
            continuity.verify_not_moved(state, self._slot_name, position, self.context.replicator)
            unless_returned.pop_all()
            self._has_read_log = True
            return reader

    @override
    def mark(self) -> str:
        with self._sessions.marking.use("writing a mark") as connection:
            text = secrets.token_hex(16)
            row = connection.execute(
                "SELECT pg_logical_emit_message(true, %s, %s)::text", (mark_prefix(self.context.uuid), text)
            ).fetchone()
            assert row is not None
            if connection.info.server_version < VERSION_WITH_MESSAGES:
                return self._lsn_marks.expect(lsn_from_text(row[0]))
            return text

    @override
    def visibility(self) -> Visibility:
        with self._sessions.control.use("reading the current snapshot") as connection:
            # `age` counts back from the id that comes next.
            row = connection.execute(
                "SELECT pg_current_snapshot()::text, age(pg_snapshot_xmin(pg_current_snapshot())::xid)"
            ).fetchone()
        assert row is not None
        visibility = PgVisibility.of(row[0])
        return replace(visibility, next_id=visibility.xmin + row[1])

    @override
    def read_chunk(self, request: ChunkRequest) -> Chunk:
        return self._reader.read_chunk(request)

    @override
    def read_whole(self, schema: TableSchema) -> AbstractContextManager[WholeRead]:
        return self._reader.read_whole(schema)

    @override
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> AbstractContextManager[SourceState]:
        return self._states.open_state(schema, columns)

    def rehearse(self, statement: str) -> Sequence[DDLEvent]:
        """See `SupportsRehearsal`."""
        with self._sessions.control.use("rehearsing a statement") as connection:
            return rehearsal.rehearse(connection, self._publication_name, statement)

    @override
    def statistics(self, tables: Sequence[TableId]) -> SourceStatistics:
        with self._sessions.control.use("reading the server's statistics") as connection:
            return planning.read_statistics(connection, tables)

    @override
    def sample(self, schema: TableSchema, rows: int) -> RowSample:
        return self._reader.sample(schema, rows)

    @override
    def close(self) -> None:
        self._sessions.close()

    # -- steps -----------------------------------------------------------------------------------------------------------

    def _prepare_publication(self, tables: Sequence[TableId]) -> None:
        """Bring the publication in line with those of the tables that exist, also if some come, go or are altered meanwhile."""
        for _ in range(_PREPARATIONS_MAX - 1):
            try:
                return self._try_publication(self._existing(tables))
            except ReplicatorError as error:
                if not isinstance(error.__cause__, publication.IN_MOTION):
                    raise
        return self._try_publication(self._existing(tables))

    def _existing(self, tables: Sequence[TableId]) -> Sequence[CatalogTable]:
        found = self._read_tables(tables)
        return [found[table] for table in tables if table in found]

    def _try_publication(self, tables: Sequence[CatalogTable]) -> None:
        with self._sessions.control.use("preparing the publication") as connection:
            if self.config.publication is not None:
                publication.verify_publication(
                    discovery.read_publication(connection, self._publication_name), self._publication_name, tables
                )
            else:
                publication.align_publication(
                    connection,
                    self._publication_name,
                    tables,
                    replicator=self.context.replicator,
                    uuid=self.context.uuid,
                )

    def _prepare_slot(self, *, is_first: bool) -> int:
        """Prepare the slot, and return the position at which the log begins."""
        with self._sessions.control.use("reading the replication slot") as connection:
            state = slot.read_slot(connection, self._slot_name)
        if self.config.slot is not None and is_first:
            return slot.verify_usable(state, self._slot_name, self.config.database).confirmed_flush or 0
        if not is_first:
            return (state.confirmed_flush if state is not None else None) or 0
        if state is not None:
            if fault := state.unusable_in(self.config.database):
                raise ConfigError(
                    f"A replication slot {self._slot_name} exists already and {fault}.",
                    code="slot_name_taken",
                    action="Rename the replicator, or drop that slot.",
                )
            self._drop_slot(state)
        with self._sessions.replication.use("creating the replication slot") as replication:
            return slot.create_slot(replication, self._slot_name)

    def _drop_slot(self, state: slot.SlotState) -> None:
        with self._sessions.replication.use("dropping the replication slot") as replication:
            slot.drop_slot(replication, state, wait_s=self.config.lock_timeout.total_seconds())
        self._sessions.replication.release()

    def _try_replication(self) -> str | None:
        """Return the server's reason to refuse a replication connection; None if it grants one."""
        try:
            with self._sessions.replication.use("connecting for replication") as replication:
                continuity.identify_system(replication)
        except ReplicatorError as error:
            if error.code == CONNECTION_POOLER:
                raise
            return error.message
        self._sessions.replication.release()
        return None

    def _read_tables(self, tables: Collection[TableId]) -> dict[TableId, CatalogTable]:
        with self._sessions.control.use("reading the catalogue") as connection:
            return discovery.read_tables(connection, tables, self._publication_name, self._filters)

    def _log_end(self) -> tuple[int, datetime]:
        with self._sessions.log_catalogue.use("reading where the log ends") as connection:
            row = connection.execute("SELECT clock_timestamp(), pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return lsn_from_text(row[1]), row[0].astimezone(UTC)

    def _parameters(self) -> dict[str, str]:
        return {**self.config.libpq_parameters(), "application_name": fencing.application_name(self.context)}
