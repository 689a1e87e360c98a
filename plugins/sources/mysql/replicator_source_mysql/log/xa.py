"""XA transactions: the changes of one that is prepared and not decided are held back until XA COMMIT."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from replicator.plugins import get_logger
from replicator_source_mysql.binlog.events import corrupt
from replicator_source_mysql.coordinates import Progress
from replicator_source_mysql.coordinates.prepared import PreparedTransaction
from replicator_source_mysql.log.groups import Group
from replicator_source_mysql.log.pulls import Pull
from replicator_source_mysql.log.table_rows import TableRows

_log = get_logger(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class XaTransactions:
    """Takes the events and statements of one open log that are about XA transactions.

    Args:
        progress: Has the transactions that are prepared and not decided, and names those that are decided.
        rows: Takes the changes of those that are committed.
        size_max: Bytes that all prepared ones may have.
    """

    def __init__(self, *, progress: Progress, rows: TableRows, size_max: int) -> None:
        self._progress = progress
        self._rows = rows
        self._size_max = size_max

    def limit(self, group: Group) -> None:
        """Bound the rows that are held: beyond the bound a commit costs its tables a new snapshot."""
        total = group.held_bytes + self._progress.prepared.held_bytes
        if total <= self._size_max:
            return
        tables = {version.schema.table for version, *_ in group.held}
        _log.warning(
            "xa_transaction_too_large",
            transaction=group.id,
            bytes=total,
            limit=self._size_max,
            setting="source.transaction_bytes_max",
            tables=", ".join(sorted(map(str, tables))),
            then="a new snapshot if it is committed",
        )
        group.unlogged |= tables
        group.held.clear()
        group.held_bytes = 0
        if group.savepoints is not None:
            group.savepoints.forget_rows()

    def prepare(self, xid: str, group: Group, pull: Pull, *, is_one_phase: bool) -> None:
        """Take XA PREPARE at the end of a group; with `is_one_phase`, MySQL's XA COMMIT … ONE PHASE."""
        # Also one without rows of ours: its COMMIT must find it, and a table that is added meanwhile may have rows in it.
        if not is_one_phase and not group.is_skipped:
            since = _EPOCH + timedelta(seconds=group.timestamp)
            before = self._progress.before_prepared
            prepared = PreparedTransaction(
                group.begin.gtid, before, group.held, group.held_bytes, group.unlogged, since
            )
            self._progress.prepared.add(xid, prepared)
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
        """Take XA COMMIT or XA ROLLBACK, which is a group of its own."""
        prepared = self._progress.prepared.take(xid)
        # By this id reads tell whether they saw what was committed, also where it is not known what that was.
        group.id = self._progress.decision_id(group.id, xid)
        if not is_commit or group.is_skipped:
            return
        if prepared is not None:
            self._rows.release(group, prepared.held, prepared.unlogged, pull)
            return
        tables = frozenset(self._rows.tables)
        _log.warning(
            "unknown_xa_transaction",
            transaction=group.begin.gtid,
            xid=xid,
            tables=len(tables),
            then="new snapshots of all tables",
        )
        self._rows.release(group, [], tables, pull)


def xid_of(text: str) -> str:
    """The name in a statement of the server's own: `X'…',X'…',1`."""
    return ",".join(part.strip() for part in text.strip().split(",")).replace("x'", "X'")
