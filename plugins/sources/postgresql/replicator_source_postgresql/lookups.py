"""What the log asks the catalogue about tables that its messages describe, on a connection of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from replicator.model.errors import SourceUnavailableError
from replicator.model.schema import TableId
from replicator_source_postgresql import discovery
from replicator_source_postgresql.catalogue import CatalogTable
from replicator_source_postgresql.connection import Session
from replicator_source_postgresql.discovery import Connection
from replicator_source_postgresql.snapshot import PgVisibility
from replicator_source_postgresql.types import TypeInfo

_LOOKS_MAX: Final = 200
_LOOK_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class LiveColumns:
    """By table's oid and column's number: the names of the columns that live, generated ones excepted. Tables that are gone are missing."""

    visibility: PgVisibility
    names: Mapping[int, Mapping[int, str]]


class Lookups(Protocol):
    """Questions to the catalogue. With `transaction`, the answer is younger than that transaction's end."""

    def types(self, oids: Collection[int]) -> Mapping[int, TypeInfo]:
        """What the types are, and all that they are made of."""

    def live_columns(self, oids: Collection[int], transaction: int) -> LiveColumns:
        """The columns of these tables."""

    def table(self, table: TableId, transaction: int) -> CatalogTable | None:
        """Everything about one table."""


class LogCatalogue:
    """`Lookups` of a server. Used from the log's thread."""

    def __init__(self, session: Session, publication: str) -> None:
        """Describe it; nothing is connected yet."""
        self._session = session
        self._publication = publication
        self._filters: dict[str, str] = {}

    def types(self, oids: Collection[int]) -> Mapping[int, TypeInfo]:
        """See `Lookups`."""
        with self._session.use("reading types") as connection:
            return discovery.resolve_types(connection, oids)

    def live_columns(self, oids: Collection[int], transaction: int) -> LiveColumns:
        """See `Lookups`."""
        with self._session.use("reading columns") as connection:
            _await_visible(connection, transaction)
            snapshot, names = discovery.read_live_columns(connection, oids)
            return LiveColumns(PgVisibility.of(snapshot), names)

    def table(self, table: TableId, transaction: int) -> CatalogTable | None:
        """See `Lookups`."""
        with self._session.use("reading the catalogue", table=table) as connection:
            _await_visible(connection, transaction)
            return discovery.read_tables(connection, [table], self._publication, self._filters).get(table)


def _await_visible(connection: Connection, transaction: int) -> None:
    """Wait for a transaction whose end is in the log: for a moment, or while it waits for a synchronous standby, nobody sees its changes.

    Raises:
        SourceUnavailableError: That takes long.
    """
    for _ in range(_LOOKS_MAX):
        row = connection.execute(
            "SELECT pg_visible_in_snapshot(%s::text::xid8, pg_current_snapshot())", (str(transaction),)
        ).fetchone()
        assert row is not None
        if row[0]:
            return
        connection.execute("SELECT pg_sleep(%s)", (_LOOK_EVERY_S,))
    raise SourceUnavailableError(
        f"transaction {transaction} is in the log, and its changes are not visible yet.",
        code="commit_not_visible",
        action="See whether the server's synchronous standbys answer.",
    )
