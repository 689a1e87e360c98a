"""Questions of the log to the catalogue about tables that its messages describe, on a connection of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from replicator.model.errors import SourceUnavailableError
from replicator.model.schema import TableId
from replicator_source_postgresql.catalogue import discovery
from replicator_source_postgresql.catalogue.discovery import Connection
from replicator_source_postgresql.catalogue.tables import CatalogTable
from replicator_source_postgresql.connecting.connection import Session
from replicator_source_postgresql.snapshot.reader import PgVisibility
from replicator_source_postgresql.types import TypeInfo

_LOOKS_MAX: Final = 200
_LOOK_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class LiveColumns:
    """Names of the columns that live and are not generated, by the table's oid and the column's number. Missing tables do not exist.

    `primary`: the numbers of the columns of the primary key, by table's oid.
    """

    visibility: PgVisibility
    names: Mapping[int, Mapping[int, str]]
    primary: Mapping[int, Collection[int]]


@dataclass(frozen=True, slots=True)
class Described:
    """A relation that a message described: an answer shows it as it is at the end of the message's transaction, or later."""

    relation: int
    transaction: int


class Lookups(Protocol):
    """Questions to the catalogue."""

    def types(self, oids: Collection[int]) -> Mapping[int, TypeInfo]:
        """Read types, and all that they are made of."""

    def live_columns(self, oids: Collection[int], since: Described) -> LiveColumns:
        """Read the columns of these tables."""

    def table(self, table: TableId, since: Described) -> CatalogTable | None:
        """Read everything about one table; None if it does not exist."""


class LogCatalogue:
    """`Lookups` of a server. Used from the log's thread."""

    def __init__(self, session: Session, publication: str) -> None:
        """Describe the connection; nothing is connected yet."""
        self._session = session
        self._publication = publication
        self._filters: dict[str, str] = {}

    def types(self, oids: Collection[int]) -> Mapping[int, TypeInfo]:
        """See `Lookups`."""
        with self._session.use("reading types") as connection:
            return discovery.resolve_types(connection, oids)

    def live_columns(self, oids: Collection[int], since: Described) -> LiveColumns:
        """See `Lookups`."""
        with self._session.use("reading columns") as connection:
            _await_visible(connection, since)
            snapshot, names, primary = discovery.read_live_columns(connection, oids)
            return LiveColumns(PgVisibility.of(snapshot), names, primary)

    def table(self, table: TableId, since: Described) -> CatalogTable | None:
        """See `Lookups`."""
        with self._session.use("reading the catalogue", table=table) as connection:
            _await_visible(connection, since)
            return discovery.read_tables(connection, [table], self._publication, self._filters).get(table)


# Who alters columns holds this lock until everybody sees the columns as they are then.
_UNSEEN_QUERY: Final = """
SELECT NOT pg_visible_in_snapshot(%(transaction)s::text::xid8, pg_current_snapshot()) AND EXISTS (
  SELECT FROM pg_locks l JOIN pg_locks x ON x.virtualtransaction = l.virtualtransaction
    AND x.locktype = 'transactionid' AND x.granted AND x.transactionid = %(xid)s::text::xid
  WHERE l.locktype = 'relation' AND l.relation = %(relation)s AND l.mode = 'AccessExclusiveLock' AND l.granted
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
"""


def _await_visible(connection: Connection, since: Described) -> None:
    """Wait while changes of a table that are in the log are not visible yet: for a moment, or for a synchronous standby.

    Raises:
        SourceUnavailableError: The changes were not visible in time.
    """
    parameters = {
        "transaction": str(since.transaction),
        "xid": str(since.transaction & 0xFFFFFFFF),
        "relation": since.relation,
    }
    for _ in range(_LOOKS_MAX):
        row = connection.execute(_UNSEEN_QUERY, parameters).fetchone()
        assert row is not None
        if not row[0]:
            return
        connection.execute("SELECT pg_sleep(%s)", (_LOOK_EVERY_S,))
    raise SourceUnavailableError(
        f"Transaction {since.transaction} has altered a table, and nobody sees that yet.",
        code="commit_not_visible",
        action="Check whether the server's synchronous standbys answer.",
    )
