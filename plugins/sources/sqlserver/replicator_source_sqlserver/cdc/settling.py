"""Find what a SNAPSHOT transaction that begins now surely sees of one table, without a wait where possible.

A commit may be in the log, and captured, a moment before transactions that begin see it: its session still has its locks then. So a shared
lock on a row tells: a session that is given it after a commit was captured that changed this row knows that the commit has ended, and a
snapshot that begins later sees it. Of each row that was changed within the last minute, by the change table, such a lock is taken for a
moment, as any SELECT of READ COMMITTED takes it. What was captured longer ago than that counts as seen (`visibility`).

A capture instance is made under a lock that no session has that writes to the table: what was changed before it was made has ended.

Without a key, and until the capture job has met the instance, the whole table is locked for a moment (`chunk_isolation: locking`), or the
minute is waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from replicator_source_sqlserver.catalogue.tables import CatalogTable
from replicator_source_sqlserver.cdc import queries
from replicator_source_sqlserver.cdc.change_table import change_table
from replicator_source_sqlserver.cdc.visibility import LsnVisibility, NotedHeads, known_head
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.lsn import ZERO
from replicator_source_sqlserver.names import quoted, quoted_table
from replicator_source_sqlserver.snapshot.whole_reads import TOUCH, WHOLE_TABLE
from replicator_source_sqlserver.types import ColumnSpec

_BLOCK_ROWS: Final = 1_000
_VARIABLE: Final = frozenset({"varchar", "nvarchar", "varbinary"})
_BETWEEN: Final = "c.[__$start_lsn] > ? AND c.[__$start_lsn] <= ?"
_CHANGED: Final = "SELECT TOP (1) 1 AS found FROM {changes} AS c WHERE {between}"
# From the keys that were changed to their rows, one by one; the other way round the whole table would be read. An index that has all that
# is selected would be read, and locked, instead of the row itself, which alone is locked by a change of a column that the index lacks.
_LOCKED: Final = """
SELECT {selected} FROM (SELECT DISTINCT {keys} FROM {changes} AS c WHERE {between}) AS k
JOIN {table} AS t WITH (READCOMMITTEDLOCK) ON {same}
OPTION (LOOP JOIN, FORCE ORDER)
"""


@dataclass(slots=True, kw_only=True)
class Settling:
    """Determines what a snapshot sees.

    Attributes:
        heads: Positions of the capture job, by our own clock.
        is_locking: True if the table may be locked for a moment.
        settle_s: Seconds after its commit from which on a transaction is surely visible.
        poll_s: Seconds between two looks.
    """

    heads: NotedHeads
    is_locking: bool
    settle_s: float
    poll_s: float = 0.5
    _pause: threading.Event = field(default_factory=threading.Event)

    def begin(self, connection: Connection, table: CatalogTable, columns: Collection[str]) -> LsnVisibility:
        """Begin a SNAPSHOT transaction that is to read columns of a table; its first read makes the snapshot."""
        visibility = self.visibility(connection, table, columns)
        connection.begin_snapshot()
        connection.rows(TOUCH.format(table=quoted_table(table.table), hint=""))
        return visibility

    def visibility(self, connection: Connection, table: CatalogTable, columns: Collection[str]) -> LsnVisibility:
        """Return what a snapshot of this table sees that begins when this has returned: all that was captured when it was called.

        Args:
            connection: A connection without a transaction.
            table: The table. Transactions that touched only others count as seen, too: nothing of them is in the snapshot of this one.
            columns: The columns that are to be read. Transactions that changed only others count as seen, too.
        """
        captured = known_head(connection, self.heads)
        known = self._settled(connection)
        if known < captured and not self._is_proven(connection, table, columns, known, captured):
            while self._settled(connection) < captured:
                self._pause.wait(self.poll_s)
        return LsnVisibility(settled=captured, captured=captured)

    def _settled(self, connection: Connection) -> bytes:
        return self.heads.settled() or queries.settled(connection, self.settle_s) or ZERO

    def _is_proven(
        self, connection: Connection, table: CatalogTable, columns: Collection[str], known: bytes, captured: bytes
    ) -> bool:
        """Take locks of the rows that were changed in between; return whether that was possible."""
        found = [instance for instance in table.instances if instance.start_lsn is not None]
        if not found:
            return self._lock_table(connection, table)
        changes = change_table(found[-1].name)
        if not connection.rows(_CHANGED.format(changes=changes, between=_BETWEEN), [known, captured]):
            return True
        if not table.key:
            return self._lock_table(connection, table)
        for _ in connection.blocks(locking_query(table, changes, columns), [known, captured], _BLOCK_ROWS):
            pass
        return True

    def _lock_table(self, connection: Connection, table: CatalogTable) -> bool:
        """Wait for all sessions that write to the table; the lock is released at once. Return whether that was possible."""
        if self.is_locking:
            connection.execute("BEGIN TRANSACTION")
            connection.rows(TOUCH.format(table=quoted_table(table.table), hint=WHOLE_TABLE))
            connection.execute("ROLLBACK TRANSACTION")
        return self.is_locking


def locking_query(table: CatalogTable, changes: str, columns: Collection[str]) -> str:
    """Return a query that takes a shared lock of each row that a change table has after one position and up to another, for a moment.

    Args:
        table: A table with a key.
        changes: Its change table, as in a FROM.
        columns: The columns of the table that are to be read.
    """
    keys = [quoted(name) for name in table.key]
    declared = {column.name: column.declared for column in table.columns}
    read = [_read(name, table.specs[name]) for name in declared if name in columns and name not in table.key]
    return _LOCKED.format(
        selected=", ".join(f"{one} AS c{number}" for number, one in enumerate(["1", *read])),
        # The change table may have the database's collation: two collations of columns are not compared (468).
        keys=", ".join(
            f"c.{key}{f' COLLATE {collation}' if (collation := declared[name].collation) else ''} AS {key}"
            for name, key in zip(table.key, keys, strict=True)
        ),
        changes=changes,
        between=_BETWEEN,
        table=quoted_table(table.table),
        same=" AND ".join(f"t.{key} = k.{key}" for key in keys),
    )


def _read(name: str, spec: ColumnSpec) -> str:
    """Return a short expression that makes the server read a column in its row."""
    column = f"t.{quoted(name)}"
    if spec.is_lob or spec.declared.name in _VARIABLE:
        return f"DATALENGTH({column})"
    return spec.selected.format(column)
