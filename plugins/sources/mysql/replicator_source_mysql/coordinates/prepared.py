"""XA transactions that are prepared and not decided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from replicator.model.schema import TableId
from replicator.plugins.source import OpenTransaction
from replicator_source_mysql.positions.position import Executed
from replicator_source_mysql.versions import HeldRows


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction.

    Attributes:
        gtid: GTID of its PREPARE.
        before: Position at which reading begins so that the PREPARE comes again.
        held: Its rows events.
        held_bytes: Their size.
        unlogged: Tables that it may have changed without a trace.
        since: Time at which it was prepared.
    """

    gtid: str
    before: Executed
    held: HeldRows
    held_bytes: int
    unlogged: frozenset[TableId]
    since: datetime


class PreparedTransactions:
    """Prepared transactions that the reader has met, in the order of their PREPARE.

    Args:
        pending: GTIDs of those that were prepared at the durable position: each is read again, and not skipped.
    """

    def __init__(self, pending: Iterable[str]) -> None:
        self._pending = set(pending)
        self._by_xid: dict[str, PreparedTransaction] = {}

    def add(self, xid: str, prepared: PreparedTransaction) -> None:
        """Add one that is prepared."""
        self._by_xid[xid] = prepared

    def take(self, xid: str) -> PreparedTransaction | None:
        """Remove and return one that is decided; None: its PREPARE was not met."""
        prepared = self._by_xid.pop(xid, None)
        if prepared is not None:
            self._pending.discard(prepared.gtid)
        return prepared

    def is_pending(self, gtid: str) -> bool:
        """Return whether it was prepared at the durable position and is undecided."""
        return gtid in self._pending

    @property
    def gtids(self) -> tuple[str, ...]:
        """GTIDs of those that were met, sorted."""
        return tuple(sorted(p.gtid for p in self._by_xid.values()))

    @property
    def gtids_with_pending(self) -> tuple[str, ...]:
        """GTIDs of those that were met, and of those that have still to be met."""
        return tuple(sorted(self._pending.union(p.gtid for p in self._by_xid.values())))

    @property
    def oldest(self) -> PreparedTransaction | None:
        """The one that was prepared first."""
        return next(iter(self._by_xid.values()), None)

    @property
    def oldest_open(self) -> OpenTransaction | None:
        """The one that was prepared first, for the status."""
        xid, oldest = next(iter(self._by_xid.items()), (None, None))
        return OpenTransaction(name=f"XA {xid} ({oldest.gtid})", since=oldest.since) if oldest is not None else None

    @property
    def held_bytes(self) -> int:
        """Size of all that is held back."""
        return sum(p.held_bytes for p in self._by_xid.values())
