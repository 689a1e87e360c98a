"""Advice of the target about a table: asked for often, from threads that all tables share; wrong advice does no harm.

So an error of one table's advice ends nothing and fails nothing: the log tells of it once, and the table is treated as if there were no
advice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from replicator.model.processes.reports import EngineReport
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.target import DeltaTarget

T = TypeVar("T")
_log = get_logger(__name__)


class Advice:
    """A target's `rest_s`, `rows_max` and `engine`. Thread-safe."""

    def __init__(self, target: DeltaTarget[Any]) -> None:
        self._target = target
        self._told: set[tuple[TableId, str]] = set()

    def rest_s(self, table: TableId, *, is_behind: bool) -> float:
        """Return the seconds for which the table is better left alone; 0.0 where the target cannot say: it will say so at the batch."""
        return self._asked("rest_s", table, lambda: self._target.rest_s(table, is_behind=is_behind), 0.0)

    def rows_max(self, table: TableId) -> int | None:
        """Return the most changes that the next batch should have; None: as configured."""
        return self._asked("rows_max", table, lambda: self._target.rows_max(table), None)

    def engine(self, table: TableId) -> EngineReport | None:
        """Return the engine that applied the last batch; None if unknown."""
        return self._asked("engine", table, lambda: self._target.engine(table), None)

    def _asked(self, what: str, table: TableId, ask: Callable[[], T], otherwise: T) -> T:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - advice about one table
            if (table, what) not in self._told:
                self._told.add((table, what))
                _log.warning("advice_failed", table=str(table), method=what, exc_info=error)
            return otherwise
