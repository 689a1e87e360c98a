"""What the two ways to capture changes have in common: one class for each value of `source.capture`."""

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
"""Of a table: comparisons ask for descriptions, too, and answers are judged later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The connections of one source object, by what they are for; all are opened when first needed, and reach one database.

    Attributes:
        control: Catalogue, marks.
        watch: Waiting locks, and the status.
        log: What the log's thread asks before its reader is open, and writes into the mark table.
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
        """Describe them; nothing is connected yet."""
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
        """Another one, for a reader of the log, which closes it. `verify`: what else must hold of its connections."""

        def both(connection: Connection) -> None:
            self.same.verify(connection)
            verify(connection)

        return Session(self.connector, verify=both)

    @contextmanager
    def verifying(self) -> Iterator[Session]:
        """Another one, for one state that is verified."""
        session = Session(self.connector, is_bounded=False, verify=self.same.verify)
        self._verifying.add(session)
        try:
            yield session
        finally:
            self._verifying.discard(session)
            session.close()

    def close(self) -> None:
        """Close all of them."""
        for session in (self.control, self.watch, self.log, self.reading, *self._verifying):
            session.close()
        self.connector.close()


class Capture(SourceLog):
    """The log of a source, and what of catalogue, findings and reads of tables depends on how changes are captured.

    Attributes:
        numbers: `object_id` of tables under the names that they had when they were accepted.
    """

    def __init__(self, config: SqlServerConfig, context: SourceContext, sessions: Sessions) -> None:
        self.config, self.context, self.sessions = config, context, sessions
        self.numbers: dict[TableId, int] = {}
        self._described: dict[TableId, Sequence[TableDescription]] = {}

    def remember(self, found: Mapping[TableId, TableDescription]) -> None:
        """Remember what the host is told of tables: one of the last descriptions is what it accepts."""
        for table, description in found.items():
            self._described[table] = (*self._described.get(table, ())[1 - _DESCRIPTIONS_KEPT :], description)

    def accepted(self, identities: Mapping[TableId, TableIdentity]) -> Mapping[TableId, Accepted]:
        """Tables with the shapes in which the host was told of them under these identities."""
        return {table: Accepted(identity, self._shape(table, identity)) for table, identity in identities.items()}

    def _shape(self, table: TableId, identity: TableIdentity) -> TableSchema | None:
        """A column may come without another identity, so the very object that the host was given counts first."""
        told = [one for one in self._described.get(table, ()) if one.identity == identity]
        given = [one for one in told if one.identity is identity]
        return next((one.schema for one in reversed(given or told)), None)

    @property
    @abstractmethod
    def tables(self) -> TableReader:
        """Reads tables so that what was seen can be told by this log."""

    @contextmanager
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> Iterator[SourceState]:
        """See `SupportsSourceVerification.open_state`."""
        with self.sessions.verifying() as session:
            reader = replace(self.tables, session=session, _tables={})
            with verification.open_state(reader, self.begin_state, schema, columns) as state:
                yield state

    @abstractmethod
    def begin_state(self, connection: Connection, table: CatalogTable, columns: Collection[str]) -> Visibility:
        """Make the snapshot in which columns of a table are verified, and say what it sees. See `verification.Begin`."""

    @abstractmethod
    def read_tables(self, connection: Connection, tables: Collection[TableId]) -> dict[TableId, CatalogTable]:
        """What the catalogue says of those of the tables that exist, with what captures their changes."""

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """What of the source's identity only this way to capture has."""

    @abstractmethod
    def assess(self, connection: Connection, tables: Sequence[TableId]) -> Sequence[Problem]:
        """Every problem that prevents these tables from being replicated."""

    @override
    def accept(self, identities: Mapping[TableId, TableIdentity]) -> None:
        self.numbers |= {t: int(i.object) for t, i in identities.items() if i.object is not None}
