"""The common part of the two ways to capture changes: one class for each value of `source.capture`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Self

from typing_extensions import override

from replicator.model.errors import Problem
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import SourceContext, SourceLog, TableDescription, Visibility
from replicator.plugins.verification import SourceState
from replicator_source_sqlserver.catalogue.tables import Accepted, CatalogTable
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Connection, Connector, Session
from replicator_source_sqlserver.history import SameDatabase
from replicator_source_sqlserver.snapshot.reader import TableReader
from replicator_source_sqlserver.verification import verifier as verification

_DESCRIPTIONS_KEPT: Final = 4
"""Upper bound of descriptions kept per table: comparisons ask for descriptions, too, and answers are judged later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The connections of one source object, by their purpose; all are opened when first needed, and reach one database.

    Attributes:
        control: Catalogue, marks.
        watch: Waiting locks, and the status.
        log: Queries of the log's thread before its reader is open, and writes into the mark table.
        reading: Reads of tables, which may take any time.
    """

    connector: Connector
    same: SameDatabase
    control: Session
    watch: Session
    log: Session
    reading: Session
    _verifying: set[Session] = field(default_factory=set)

    @classmethod
    def of(cls, config: SqlServerConfig) -> Self:
        """Describe the connections; nothing is connected yet."""
        connector, same = Connector(config), SameDatabase()
        return cls(
            connector=connector,
            same=same,
            control=Session(connector, verify=same.verify),
            watch=Session(connector, verify=same.verify),
            log=Session(connector, verify=same.verify),
            reading=Session(connector, is_bounded=False, verify=same.verify),
        )

    def following(self, verify: Callable[[Connection], None]) -> Session:
        """Make another session, for a reader of the log, which closes it. `verify`: checks each of its connections."""

        def both(connection: Connection) -> None:
            self.same.verify(connection)
            verify(connection)

        return Session(self.connector, verify=both)

    @contextmanager
    def verifying(self) -> Iterator[Session]:
        """Open another session, for one state that is verified."""
        session = Session(self.connector, is_bounded=False, verify=self.same.verify)
        self._verifying.add(session)
        try:
            yield session
        finally:
            self._verifying.discard(session)
            session.close()

    def close(self) -> None:
        """Close all sessions."""
        for session in (self.control, self.watch, self.log, self.reading, *self._verifying):
            session.close()
        self.connector.close()


class Capture(SourceLog):
    """The log of a source, and the parts of catalogue, findings and reads of tables that depend on how changes are captured.

    Attributes:
        numbers: `object_id` of tables, by the names that they had when they were accepted.
    """

    def __init__(self, config: SqlServerConfig, context: SourceContext, sessions: Sessions) -> None:
        self.config, self.context, self.sessions = config, context, sessions
        self.numbers: dict[TableId, int] = {}
        self._described: dict[TableId, Sequence[TableDescription]] = {}

    def remember(self, found: Mapping[TableId, TableDescription]) -> None:
        """Remember descriptions that the host is given of tables: one of the last is the one that it accepts."""
        for table, description in found.items():
            self._described[table] = (*self._described.get(table, ())[1 - _DESCRIPTIONS_KEPT :], description)

    def accepted(self, identities: Mapping[TableId, TableIdentity]) -> Mapping[TableId, Accepted]:
        """Return tables with the shapes in which they were described to the host under these identities."""
        return {table: Accepted(identity, self._shape(table, identity)) for table, identity in identities.items()}

    def _shape(self, table: TableId, identity: TableIdentity) -> TableSchema | None:
        """Find the shape of an identity. A column may come without another identity, so the object that the host was given counts first."""
        told = [one for one in self._described.get(table, ()) if one.identity == identity]
        given = [one for one in told if one.identity is identity]
        return next((one.schema for one in reversed(given or told)), None)

    @property
    @abstractmethod
    def tables(self) -> TableReader:
        """The reader of tables, whose reads this log can compare with its transactions."""

    @contextmanager
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> Iterator[SourceState]:
        """See `SupportsSourceVerification.open_state`."""
        with self.sessions.verifying() as session:
            reader = replace(self.tables, session=session, _tables={})
            with verification.open_state(reader, self.begin_state, schema, columns) as state:
                yield state

    @abstractmethod
    def begin_state(self, connection: Connection, table: CatalogTable, columns: Collection[str]) -> Visibility:
        """Make the snapshot in which columns of a table are verified, and return what it sees. See `verification.Begin`."""

    @abstractmethod
    def read_tables(self, connection: Connection, tables: Collection[TableId]) -> dict[TableId, CatalogTable]:
        """Read from the catalogue those of the tables that exist, with the instances or the tracking that capture their changes."""

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """The part of the source's identity that is specific to this way to capture."""

    @abstractmethod
    def assess(self, connection: Connection, tables: Sequence[TableId]) -> Sequence[Problem]:
        """Find every problem that prevents these tables from being replicated."""

    @override
    def accept(self, identities: Mapping[TableId, TableIdentity]) -> None:
        self.numbers |= {t: int(i.object) for t, i in identities.items() if i.object is not None}
