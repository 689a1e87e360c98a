"""Failures and interruptions that a test requests from the in-memory source and target."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable

from replicator.model.schema import TableId

Action = BaseException | Callable[[], object] | None


class Faults:
    """A script of actions at named operations. Thread-safe.

    An operation is reached twice, as `name` before it does anything and as `name.after` when its effect is durable
    but its answer has not been given. `tables` are those that it is about.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._failing: dict[tuple[str, TableId], Callable[[], BaseException]] = {}
        self._scripts: dict[str, deque[Action]] = {}
        self._lock = threading.Lock()

    def script(self, operation: str, *actions: Action) -> None:
        """Queue the next actions: raise an exception, call something (to act in the midst of an operation), or, for None, nothing."""
        with self._lock:
            self._scripts.setdefault(operation, deque()).extend(actions)

    def fail(self, operation: str, table: TableId, error: Callable[[], BaseException]) -> None:
        """Let the operation fail whenever it concerns this table, alone or with others, until `heal`."""
        with self._lock:
            self._failing[operation, table] = error

    def heal(self) -> None:
        """End the failures of `fail`."""
        with self._lock:
            self._failing.clear()

    def hit(self, operation: str, *tables: TableId) -> None:
        """Note that an operation is reached, and run the script's action."""
        with self._lock:
            self.counts[operation] += 1
            failing = [self._failing[operation, table] for table in tables if (operation, table) in self._failing]
        for make in failing:
            error = make()
            raise error
        with self._lock:
            queue = self._scripts.get(operation)
            action = queue.popleft() if queue else None
        if isinstance(action, BaseException):
            raise action
        if action is not None:
            action()
