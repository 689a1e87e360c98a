"""The history of tables' definitions: the latest changes of each replicator, as capture noted them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, delete, func, insert, select

from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.state.codec import read_history, write_history
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


def list_entries(connection: Connection, name: str, table: TableId | None, limit: int) -> Sequence[HistoryEntry]:
    """Return the newest entries, of one table or of all, in the order in which they were recorded."""
    query = select(HISTORY).where(HISTORY.c.replicator == name)
    if table is not None:
        query = query.where(HISTORY.c.table_name == str(table))
    rows = connection.execute(query.order_by(HISTORY.c.id.desc()).limit(limit)).all()
    return [read_history(row) for row in reversed(rows)]
