"""Chooses the table that the next free thread works on. Pure: time is passed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from replicator.model.schema import TableId


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A table that a thread shall work on.

    Attributes:
        table: The table.
        is_upkeep: The turn is for upkeep: the table has nothing to apply.
        is_suspect: The target's engine crashed at it: no other turn starts before this one ends.
        is_alone: Nothing else was running when it started; otherwise upkeep of other tables was.
    """

    table: TableId
    is_upkeep: bool = False
    is_suspect: bool = False
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class _Waiting:
    since: float
    backlog: int
    crashes: int = 0


class Schedule:
    """Tables that wait for a thread, and tables that have one; a table never has two.

    A free thread always takes work, so nothing waits while the target is idle. When there are more tables than
    threads, waiting lets batches grow: the table with the most to do is first, until another has waited for
    `max_wait_s`; those are taken in the order of their waiting. A table waits from when it has something to apply, also while
    it may not have a turn: a table that has rested for that long does not wait as long again for larger tables. So every table
    has its turn after all that began to wait before it, however much others have to do. Upkeep comes when no table
    waits, and leaves a thread free if there are several. A table at which the target's engine crashed comes after the
    others, until it has waited for as long; then others' batches finish first, and none is begun meanwhile.
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
        """Return the tables that have a thread."""
        return frozenset(self._busy)

    def offer(self, table: TableId, *, now: float, backlog: int, crashes: int = 0) -> None:
        """Note that the table has something to apply.

        `backlog` compares with that of other tables. A second call while it waits changes only that and `crashes`. With `crashes` the table
        needs to be alone.
        """
        self._waiting[table] = _Waiting(self._since(table, now), backlog, crashes)
        self._held.pop(table, None)
        self._rested.pop(table, None)

    def offer_upkeep(self, table: TableId) -> None:
        """Note that the table may have upkeep."""
        self._upkeep[table] = None

    def hold(self, table: TableId, *, now: float, until: float) -> None:
        """Give the table no turn until it is offered again, at `until`; the time counts as waiting."""
        self._held[table] = self._since(table, now)
        self._rested[table] = until
        self._waiting.pop(table, None)
        self._upkeep.pop(table, None)

    def take(self, now: float) -> Turn | None:
        """Return the next turn, for the thread that asks; None if there is none."""
        if any(turn.is_suspect for turn in self._busy.values()):
            return None
        free = {table: waiting for table, waiting in self._waiting.items() if table not in self._busy}
        if free:
            overdue = {t: w for t, w in free.items() if now - w.since >= self._max_wait_s}
            chosen = min(overdue or free, key=lambda t: (*(() if overdue else _order(free[t])), free[t].since, t))
            if not free[chosen].crashes:
                del self._waiting[chosen]
                return self._start(Turn(table=chosen))
            if any(not turn.is_upkeep for turn in self._busy.values()):
                return None
            return self._start(self._suspect(free))
        if sum(turn.is_upkeep for turn in self._busy.values()) < self._upkeep_max:
            for table in self._upkeep:
                if table not in self._busy:
                    del self._upkeep[table]
                    return self._start(Turn(table=table, is_upkeep=True))
        return None

    def _suspect(self, free: Mapping[TableId, _Waiting]) -> Turn:
        """Choose the suspect that is most likely to be innocent: what is applied clears it."""
        suspects = {table: waiting for table, waiting in free.items() if waiting.crashes}
        chosen = min(suspects, key=lambda t: (suspects[t].crashes, suspects[t].since, t))
        del self._waiting[chosen]
        return Turn(table=chosen, is_suspect=True, is_alone=not self._busy)

    def rested(self, now: float) -> Sequence[TableId]:
        """Return the tables that are to be offered again by now; each is named once."""
        tables = [table for table, until in self._rested.items() if until <= now]
        for table in tables:
            del self._rested[table]
        return tables

    def next_s(self, now: float) -> float | None:
        """Return the seconds until `rested` names a table; None if nothing is held."""
        return max(0.0, min(self._rested.values()) - now) if self._rested else None

    def release(self, table: TableId) -> None:
        """Note that the table's thread is done with it."""
        del self._busy[table]

    def _since(self, table: TableId, now: float) -> float:
        waiting = self._waiting.get(table)
        return self._held.get(table, now) if waiting is None else waiting.since

    def _start(self, turn: Turn) -> Turn:
        self._busy[turn.table] = turn
        return turn


def _order(waiting: _Waiting) -> tuple[bool, int]:
    return waiting.crashes > 0, -waiting.backlog
