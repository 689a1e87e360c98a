"""Changes by change tracking: `source.capture: change_tracking`."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, timedelta

from typing_extensions import override

from replicator.model.deletion import Deletion
from replicator.model.errors import Problem
from replicator.model.guarantee import Guarantee
from replicator.model.identity import TableIdentity
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.reads import ChunkBounds
from replicator.plugins.source import LogReader, LogRetention, LogStatus, SourceContext, Visibility
from replicator_source_sqlserver.capture import Capture, Sessions
from replicator_source_sqlserver.catalogue.server import read_facts
from replicator_source_sqlserver.catalogue.tables import CatalogTable, TrackedSince, tracked_since
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.history import HistoryReader, KnownHistory
from replicator_source_sqlserver.names import quoted_table
from replicator_source_sqlserver.snapshot.reader import TableReader
from replicator_source_sqlserver.snapshot.whole_reads import TOUCH
from replicator_source_sqlserver.tracking import assessment as tracking_assessment
from replicator_source_sqlserver.tracking import queries as tracking
from replicator_source_sqlserver.tracking.log import HEARTBEAT_S, TrackingReader
from replicator_source_sqlserver.tracking.tables import TrackedTables, name_of
from replicator_source_sqlserver.tracking.versions import (
    StateVisibility,
    VersionMarks,
    VersionPosition,
    VersionVisibility,
)


class ChangeTracking(Capture):
    """See `Capture`. The log is made of rounds, each of which reads the last state of every row that changed since the one before."""

    def __init__(self, config: SqlServerConfig, context: SourceContext, sessions: Sessions) -> None:
        super().__init__(config, context, sessions)
        # Marks of two objects are never the same.
        self._marks = VersionMarks(secrets.token_hex(8))
        self._since: dict[TableId, TrackedSince | None] = {}
        self._tracked: TrackedTables | None = None
        self._reader = TableReader(
            session=sessions.reading,
            watch_session=sessions.watch,
            bounds=ChunkBounds(config.chunk_bytes_max),
            watch_every_s=config.yield_after.total_seconds(),
            visibility=_visibility,
            whole=None,
            catalogue=self.read_tables,
            transaction=tracking.snapshot,
        )

    @property
    @override
    def tables(self) -> TableReader:
        return self._reader

    @override
    def begin_state(self, connection: Connection, table: CatalogTable, columns: Collection[str]) -> StateVisibility:
        connection.begin_snapshot()
        # The version first: if it did not begin the snapshot, it would be too low, and more rows would be compared again.
        version = tracking.head(connection)
        connection.rows(TOUCH.format(table=quoted_table(table.table), hint=""))
        return StateVisibility(version)

    @override
    def read_tables(self, connection: Connection, tables: Collection[TableId]) -> dict[TableId, CatalogTable]:
        return tracking.read_tables(connection, tables)

    @override
    def identity(self) -> Mapping[str, str]:
        """The part of the identity by which offsets of the two ways to capture differ."""
        return {"capture": "change_tracking"}

    @override
    def assess(self, connection: Connection, tables: Sequence[TableId]) -> Sequence[Problem]:
        found = tracking.read_tables(connection, tables)
        facts = read_facts(connection, self.config, list(found.values()))
        settings = tracking.read_settings(connection)
        return tracking_assessment.assess(facts, settings, found, tables, self.config)

    # -- the log -------------------------------------------------------------------------------------------------------

    @override
    def prepare(self, tables: Sequence[TableId], *, is_first: bool) -> Offset:
        """See `SourceLog.prepare`. Every read that begins later sees at least this version."""
        with self.sessions.control.use("reading the version of change tracking") as connection:
            if self.config.manage_capture:
                for table in tracking.read_tables(connection, tables).values():
                    if table.key and table.tracking is not None and table.tracking.since is None:
                        _enable(connection, table)
            history = KnownHistory()
            history.verify(connection)
            return history.noted(VersionPosition(tracking.head(connection)).offset)

    @override
    def status(self, since: Visibility | None = None) -> LogStatus:
        """See `SourceLog.status`. The server keeps changes by its own rules, not for us."""
        with self.sessions.watch.use("reading the server's clock") as connection:
            moment = tracking.clock(connection)
            settings = tracking.read_settings(connection)
        return LogStatus(
            now=moment.astimezone(UTC),
            guarantee=Guarantee.NET_CHANGES,
            retention=LogRetention(keeps_log=None if settings is None else settings.kept),
            heartbeat=timedelta(seconds=HEARTBEAT_S),
        )

    @override
    def remove(self) -> Deletion:
        """See `SourceLog.remove`. Nobody can tell who else reads what is tracked, so tracking stays."""
        if not self.config.manage_capture:
            return Deletion()
        return Deletion(kept=("change tracking of the tables",))

    @override
    def leftovers(self) -> Sequence[str]:
        if not self.config.manage_capture:
            return ("-- Nothing was created on the server.",)
        return ("-- If nobody else reads its changes, of each table: ALTER TABLE … DISABLE CHANGE_TRACKING;",)

    @override
    def accept(self, identities: Mapping[TableId, TableIdentity]) -> None:
        super().accept(identities)
        self._since |= {table: tracked_since(identity) for table, identity in identities.items()}
        if self._tracked is not None:
            self._tracked.accept(self.accepted(identities))

    @override
    def open_log(self, after: Offset, schemas: Mapping[TableId, TableSchema]) -> LogReader:
        position, history = VersionPosition.of(after), KnownHistory.of(after)
        with self.sessions.log.use("comparing the log with our position") as connection:
            history.verify(connection)
            found = tracking.read_tables(connection, [t for t in schemas if t not in self.numbers])
        self.numbers |= {table: description.object_id for table, description in found.items()}
        self._tracked = TrackedTables(
            schemas,
            {t: self.numbers[t] for t in schemas if t in self.numbers},
            {t: self._since[t] for t in schemas if t in self._since},
            enable=_enable if self.config.manage_capture else None,
        )
        session = self.sessions.following(history.verify)
        reader = TrackingReader(session, position=position, tables=self._tracked, marks=self._marks)
        return HistoryReader(reader, history)

    @override
    def mark(self) -> str:
        """See `SourceLog.mark`. Nothing is written: the version says what a read can have seen."""
        with self.sessions.control.use("reading the version of change tracking") as connection:
            return self._marks.add(tracking.head(connection))

    @override
    def visibility(self) -> Visibility:
        with self.sessions.control.use("reading what is visible") as connection:
            return _visibility(connection)


def _visibility(connection: Connection) -> VersionVisibility:
    return VersionVisibility(tracking.head(connection))


def _enable(connection: Connection, table: CatalogTable) -> None:
    connection.execute(f"ALTER TABLE {quoted_table(name_of(table))} ENABLE CHANGE_TRACKING")
