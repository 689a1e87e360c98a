"""How long the demo waits: as long as something moves, however slow the machine is. And what it says when it gives up."""

from __future__ import annotations

import time
from collections.abc import Callable

from replicator.cli import show
from replicator.model.documents.status import ReplicatorStatus, TableState

STILL_S = 300.0
"""So long nothing may move. Spark's start, and the first batches, take a machine that has much else to do minutes each."""
_LOOK_S = 0.2


def wait_while_it_moves(
    look: Callable[[], ReplicatorStatus | None],
    is_there: Callable[[ReplicatorStatus], bool],
    *,
    counted: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], object] = time.sleep,
) -> bool:
    """Wait for a status; False once nothing has moved for `STILL_S`.

    Args:
        look: Returns the status; None while there is none.
        is_there: Whether a status is the one that is waited for.
        counted: What else counts as progress when it changes.
        clock: In seconds.
        rest: Sleeps for so many seconds.
    """
    before, moved_at = None, clock()
    while clock() - moved_at < STILL_S:
        found = look()
        if found is not None and is_there(found):
            return True
        if (now := (positions(found), counted())) != before:
            before, moved_at = now, clock()
        rest(_LOOK_S)
    return False


def positions(found: ReplicatorStatus | None) -> object:
    """What differs when a table gets on. The log's position is not among it: it moves with the source, whatever the target does."""
    if found is None:
        return None
    return [
        (t.table, t.state, t.incarnation, t.next_snapshot, t.snapshot and t.snapshot.rows, t.last_applied)
        for t in found.tables
    ]


def reasons(found: ReplicatorStatus | None) -> str:
    """What the status says of a replicator that does not get on."""
    if found is None:
        return "No replicator is stored yet."
    lines = [f"The replicator is {found.state}."]
    lines += [
        f"{t.table}: {t.state}, {t.changes_applied:,} changes applied"
        for t in found.tables
        if t.state is not TableState.STREAMING
    ]
    return "\n".join([*lines, *(line.plain for line in show.remarks(found))])
