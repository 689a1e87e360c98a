"""Which transactions a read saw, by the positions of their commits.

What the capture job has written was committed. A read that began later, and that takes shared locks as READ COMMITTED does by default, has
waited for every row that such a transaction held, so it saw it. With row versions (READ_COMMITTED_SNAPSHOT, the default of Azure) a
transaction becomes visible a moment after its commit is in the log. How long that moment is nobody says, so what was committed in the last
minute is unknown then: a read leaves to the log what such transactions touched. So is, always, what was committed later than the last
position that was captured when the read began.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from replicator.plugins.source import Seen, Visibility
from replicator_source_sqlserver import capturelog
from replicator_source_sqlserver.connection import Connection
from replicator_source_sqlserver.lsn import ZERO, lsn_to_text

UNSETTLED_S: Final = 60.0
"""How long a transaction is unknown where rows have versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LsnVisibility(Visibility):
    """A read that saw every transaction up to `settled`.

    `captured`: the last position that had been captured when the read began; `settled` is at most that.
    """

    settled: bytes
    captured: bytes

    @override
    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        """By the text of a position, whose order is that of its bytes."""
        is_seen = pc.less_equal(transaction_ids, pa.scalar(lsn_to_text(self.settled)))
        return pc.if_else(is_seen, pa.scalar(int(Seen.SEEN), pa.int8()), pa.scalar(int(Seen.UNKNOWN), pa.int8()))

    @override
    def is_beyond(self, earlier: Visibility) -> bool:
        """A table is captured from a statement on that waits for all that write it; those that had ended by then must be visible."""
        assert isinstance(earlier, LsnVisibility)
        return self.settled >= earlier.captured


def read_visibility(connection: Connection, *, has_versions: bool) -> LsnVisibility:
    """What a read that begins now sees. Ask before the read: afterwards the position may be behind what the read did not see.

    Args:
        connection: Any.
        has_versions: Whether reads take versions of rows, and no locks.
    """
    captured = capturelog.head(connection) or ZERO
    if not has_versions:
        return LsnVisibility(settled=captured, captured=captured)
    settled = capturelog.settled(connection, UNSETTLED_S)
    return LsnVisibility(settled=ZERO if settled is None else min(settled.lsn, captured), captured=captured)
