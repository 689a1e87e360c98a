"""XA transactions: the changes of one that is prepared and not decided are held back until XA COMMIT."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from replicator.model.errors import LogGapError
from replicator.model.schema import TableId
from replicator.plugins.source import OpenTransaction
from replicator_source_mysql.binlog import Flavor
from replicator_source_mysql.binlog.events import corrupt
from replicator_source_mysql.errors import RESTART_ACTION
from replicator_source_mysql.groups import Group, HeldRows
from replicator_source_mysql.position import Executed
from replicator_source_mysql.pulls import Pull
from replicator_source_mysql.tablerows import TableRows
from replicator_source_mysql.visibility import xa_commit_id

log = logging.getLogger(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared transaction.

    Attributes:
        gtid: Of its PREPARE.
        before: Where reading begins so that the PREPARE comes again.
        held: Its rows events.
        held_bytes: Their size.
        unlogged: Tables that it may have changed without a trace.
        since: When it was prepared.
    """

    gtid: str
    before: Executed
    held: HeldRows
    held_bytes: int
    unlogged: frozenset[TableId]
    since: datetime


class PreparedTransactions:
    """Those that the reader has met, in the order of their PREPARE.

    Args:
        pending: GTIDs of those that were prepared at the durable place: each is read again, and not skipped.
    """

    def __init__(self, pending: Iterable[str]) -> None:
        self._pending = set(pending)
        self._by_xid: dict[str, Prepared] = {}

    def add(self, xid: str, prepared: Prepared) -> None:
        """One is prepared."""
        self._by_xid[xid] = prepared

    def take(self, xid: str) -> Prepared | None:
        """One is decided; None: its PREPARE was not met."""
        prepared = self._by_xid.pop(xid, None)
        if prepared is not None:
            self._pending.discard(prepared.gtid)
        return prepared

    def is_pending(self, gtid: str) -> bool:
        """Whether it was prepared at the durable place and is undecided."""
        return gtid in self._pending

    @property
    def gtids(self) -> tuple[str, ...]:
        """Of those that were met, sorted."""
        return tuple(sorted(p.gtid for p in self._by_xid.values()))

    @property
    def gtids_with_pending(self) -> tuple[str, ...]:
        """The same with those that have still to be met."""
        return tuple(sorted(self._pending.union(p.gtid for p in self._by_xid.values())))

    @property
    def oldest(self) -> Prepared | None:
        """The one that was prepared first."""
        return next(iter(self._by_xid.values()), None)

    @property
    def oldest_open(self) -> OpenTransaction | None:
        """The same, for the status."""
        xid, oldest = next(iter(self._by_xid.items()), (None, None))
        return OpenTransaction(name=f"XA {xid} ({oldest.gtid})", since=oldest.since) if oldest is not None else None

    @property
    def held_bytes(self) -> int:
        """Size of all that is held back."""
        return sum(p.held_bytes for p in self._by_xid.values())


class XaTransactions:
    """Takes the events and statements of one open log that are about XA transactions.

    Args:
        flavor: Whose log it is.
        pending: As `PreparedTransactions`.
        rows: Takes the changes of those that are committed.
        size_max: Bytes that all prepared ones may have.

    Attributes:
        prepared: Those that are prepared and not decided.
    """

    def __init__(self, *, flavor: Flavor, pending: Iterable[str], rows: TableRows, size_max: int) -> None:
        self.prepared = PreparedTransactions(pending)
        self._flavor: Flavor = flavor
        self._rows = rows
        self._size_max = size_max

    def limit(self, group: Group) -> None:
        """Bound what is held: beyond the bound a commit costs its tables a new snapshot."""
        total = group.held_bytes + self.prepared.held_bytes
        if total <= self._size_max:
            return
        tables = {version.schema.table for version, *_ in group.held}
        log.warning(
            "Prepared XA transactions hold %d bytes of changes, more than source.transaction_bytes_max (%d): if %s is"
            " committed, a new snapshot is taken of %s.",
            total,
            self._size_max,
            group.id,
            ", ".join(sorted(map(str, tables))),
        )
        group.unlogged |= tables
        group.held.clear()
        group.held_bytes = 0

    def prepare(self, xid: str, group: Group, pull: Pull, *, is_one_phase: bool, before: Executed) -> None:
        """XA PREPARE, or XA COMMIT … ONE PHASE of MySQL, at the end of a group, which is committed then.

        Args:
            xid: The transaction's name.
            group: With its changes.
            pull: Takes the changes of one that is committed.
            is_one_phase: It is committed.
            before: As `Prepared.before`.
        """
        # Also one without rows of ours: its COMMIT must find it, and a table that is added meanwhile may have rows in it.
        if not is_one_phase and not group.is_skipped:
            since = _EPOCH + timedelta(seconds=group.timestamp)
            prepared = Prepared(group.begin.gtid, before, group.held, group.held_bytes, group.unlogged, since)
            self.prepared.add(xid, prepared)
            group.held, group.unlogged = [], frozenset()
        self._rows.release(group, group.held, group.unlogged, pull)

    def take(self, text: str, group: Group, pull: Pull) -> bool:
        """Take an XA statement; return whether it commits the group."""
        head = text[:64].upper()
        if head.startswith(("XA START", "XA BEGIN")):
            group.is_xa = True
            group.is_open = True
            return False
        if head.startswith("XA END"):
            return False
        if head.startswith("XA COMMIT"):
            if text.upper().endswith("ONE PHASE"):
                self._rows.release(group, group.held, group.unlogged, pull)
            else:
                self._decide(xid_of(text[len("XA COMMIT") :]), group, pull, is_commit=True)
            return True
        if head.startswith("XA ROLLBACK"):
            self._decide(xid_of(text[len("XA ROLLBACK") :]), group, pull, is_commit=False)
            return True
        raise corrupt("An XA statement in the log is of an unknown kind.")

    def _decide(self, xid: str, group: Group, pull: Pull, *, is_commit: bool) -> None:
        """XA COMMIT or XA ROLLBACK: a group of its own."""
        prepared = self.prepared.take(xid)
        if prepared is None and is_commit and not group.is_skipped:
            raise LogGapError(
                "an XA transaction is committed that was prepared before our place in the log: its changes cannot be known.",
                code="prepared_before_start",
                action=RESTART_ACTION,
            )
        if prepared is not None:
            if self._flavor == "mariadb":
                group.id = xa_commit_id(group.id, xid)
            if is_commit and not group.is_skipped:
                self._rows.release(group, prepared.held, prepared.unlogged, pull)


def xid_of(text: str) -> str:
    """The name in a statement of the server's own: `X'…',X'…',1`."""
    return ",".join(part.strip() for part in text.strip().split(",")).replace("x'", "X'")
