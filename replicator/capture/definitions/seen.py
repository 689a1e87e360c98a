"""Alterations that the log has delivered, compared with answers of the catalogue, which may not know of them.

A transaction may stand in the log before reads of the source see what it did, the catalogue's own reads included. An answer that does not
know of an alteration which the log has brought is older than what is tracked.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from replicator.model.schema import TableId
from replicator.plugins.source import Seen, Visibility


class Alterations:
    """The last alteration of each table that this log delivered.

    Args:
        ring: As it was sealed (`Window.ring_texts`): transactions that were delivered before the log was opened, and perhaps not seen by
            reads then. What they did is not known.
    """

    def __init__(self, ring: Iterable[str]) -> None:
        self._ring = frozenset(entry.rpartition("@")[0] for entry in ring)
        self._last: dict[TableId, str] = {}

    def delivered(self, table: TableId, transaction: str | None) -> None:
        """The log brought an alteration. Its transaction saw those before it, so the last one stands for all."""
        if transaction is not None:
            self._last[table] = transaction

    def hides(self, table: TableId, seen: Visibility | None) -> bool:
        """Return whether a read that saw at least this may not know of an alteration of the table that the log has brought."""
        ids = {*self._ring, *([self._last[table]] if table in self._last else [])}
        if not ids:
            return False
        if seen is None:
            return True
        return int(Seen.UNSEEN) in seen.classify(pa.array(sorted(ids), pa.string())).to_pylist()
