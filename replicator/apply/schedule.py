"""Says whose turn it is. Pure: time is passed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replicator.model.schema import TableId


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A table that a thread shall work on. With `is_upkeep` it has nothing to apply and is looked after."""

    table: TableId
    is_upkeep: bool = False


@dataclass(frozen=True, slots=True)
class _Waiting:
    since: float
    backlog: int


class Schedule:
    """Tables that wait for a thread, and tables that have one; a table never has two.

    A free thread always takes work, so nothing waits while the target is idle. When there are more tables than
    threads, waiting lets batches grow: the table with the most to do goes first, until another has waited for
    `max_wait_s`; those go in the order of their waiting. A table waits from when it has something to apply, also while
    it may not have a turn: what has rested for so long does not wait as long again behind larger tables. So every table
    has its turn after all that began to wait before it, however much others have to do. Upkeep comes when no table
    waits, and leaves a thread free if there are several.
    """

    def __init__(self, *, threads: int, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._upkeep_max = max(1, threads - 1)
        self._waiting: dict[TableId, _Waiting] = {}
        self._held: dict[TableId, float] = {}
        self._rested: dict[TableId, float] = {}
        self._upkeep: dict[TableId, None] = {}
        self._busy: dict[TableId, Turn] = {}

    @property
    def busy(self) -> frozenset[TableId]:
        """Tables that have a thread."""
        return frozenset(self._busy)

    def offer(self, table: TableId, *, now: float, backlog: int) -> None:
        """The table has something to apply.

        `backlog` compares with that of other tables. Again while it waits: only the backlog changes.
        """
        self._waiting[table] = _Waiting(self._since(table, now), backlog)
        self._held.pop(table, None)
        self._rested.pop(table, None)

    def offer_upkeep(self, table: TableId) -> None:
        """The table may be looked after."""
        self._upkeep[table] = None

    def hold(self, table: TableId, *, now: float, until: float) -> None:
        """The table is not to have a turn until it is offered again, at `until`; it waits all the same."""
        self._held[table] = self._since(table, now)
        self._rested[table] = until
        self._waiting.pop(table, None)
        self._upkeep.pop(table, None)

    def take(self, now: float) -> Turn | None:
        """The next turn, for the thread that asks; None if there is none."""
        free = {table: waiting for table, waiting in self._waiting.items() if table not in self._busy}
        if free:
            overdue = {t: w for t, w in free.items() if now - w.since >= self._max_wait_s}
            chosen = min(overdue or free, key=lambda t: (0 if overdue else -free[t].backlog, free[t].since, t))
            del self._waiting[chosen]
            return self._start(Turn(table=chosen))
        if sum(turn.is_upkeep for turn in self._busy.values()) < self._upkeep_max:
            for table in self._upkeep:
                if table not in self._busy:
                    del self._upkeep[table]
                    return self._start(Turn(table=table, is_upkeep=True))
        return None

    def rested(self, now: float) -> Sequence[TableId]:
        """Tables that are to be offered again by now; each is named once."""
        tables = [table for table, until in self._rested.items() if until <= now]
        for table in tables:
            del self._rested[table]
        return tables

    def next_s(self, now: float) -> float | None:
        """Seconds until `rested` names a table; None if nothing is held."""
        return max(0.0, min(self._rested.values()) - now) if self._rested else None

    def release(self, table: TableId) -> None:
        """The table's thread is done with it."""
        del self._busy[table]

    def _since(self, table: TableId, now: float) -> float:
        waiting = self._waiting.get(table)
        return self._held.get(table, now) if waiting is None else waiting.since

    def _start(self, turn: Turn) -> Turn:
        self._busy[turn.table] = turn
        return turn
