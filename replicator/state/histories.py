"""The history of tables' definitions: the latest changes of each replicator, as capture noted them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, delete, func, insert, select

from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.state.codec import read_history, write_history
from replicator.state.database.engine import Database
from replicator.state.records import HistoryEntry
from replicator.state.tables import HISTORY

HISTORY_KEPT: Final = 10_000
"""Entries of a replicator that are kept. Older ones are deleted."""


def add_entries(connection: Connection, name: str, entries: Sequence[HistoryEntry], offset: Offset | None) -> None:
    """Append entries that a commit seals, and delete the oldest. `offset`: the position from which the log is read after the commit.

    Only the holder of the epoch calls it, so that no two transactions assign the same id.
    """
    if not entries:
        return
    mine = HISTORY.c.replicator == name
    newest = connection.scalar(select(func.max(HISTORY.c.id)).where(mine))
    first = 0 if newest is None else newest + 1
    text = offset.text if offset else None
    rows = [
        {"replicator": name, "id": id_, **write_history(entry), "resume_offset": text}
        for id_, entry in enumerate(entries, start=first)
    ]
    connection.execute(insert(HISTORY), rows)
    connection.execute(delete(HISTORY).where(mine & (HISTORY.c.id <= rows[-1]["id"] - HISTORY_KEPT)))


class Histories:
    """Reads the history of tables. `StateStore.seal` writes it. Errors as those of `StateStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def latest(self, name: str, limit: int, *, table: TableId | None = None) -> Sequence[HistoryEntry]:
        """Return the newest changes of tables' definitions, of one table or of all, in the order in which they were recorded."""
        with self._database.read() as connection:
            query = select(HISTORY).where(HISTORY.c.replicator == name)
            if table is not None:
                query = query.where(HISTORY.c.table_name == str(table))
            rows = connection.execute(query.order_by(HISTORY.c.id.desc()).limit(limit)).all()
            return [read_history(row) for row in reversed(rows)]
