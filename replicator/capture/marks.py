"""Marks on their way through the log, and what is done when they arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

_REMEMBERED: Final = 10_000
"""Delivered marks whose writer has not learned their text yet; there are never more than a few."""


@dataclass(slots=True)
class _Awaited:
    written: Future[str]
    action: Callable[[], None]
    is_cancelled: Callable[[], bool]


class MarkBoard:
    """Joins marks with actions.

    A mark may be delivered before its writer has returned its text, so delivered marks are remembered.
    """

    def __init__(self) -> None:
        self._awaited: list[_Awaited] = []
        self._delivered: deque[str] = deque(maxlen=_REMEMBERED)

    def expect(
        self, written: Future[str], action: Callable[[], None], is_cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Run `action` at the first place between transactions behind the mark, unless it is cancelled by then."""
        self._awaited.append(_Awaited(written, action, is_cancelled))

    def deliver(self, marks: Iterable[str]) -> None:
        """The log delivered these."""
        self._delivered.extend(marks)

    def due(self) -> list[Callable[[], None]]:
        """Actions whose marks were delivered, in the order in which they were expected.

        Raises what writing a mark raised.
        """
        due, left = [], []
        for awaited in self._awaited:
            if awaited.is_cancelled():
                continue
            if awaited.written.done() and awaited.written.result() in self._delivered:
                self._delivered.remove(awaited.written.result())
                due.append(awaited.action)
            else:
                left.append(awaited)
        self._awaited = left
        return due

    def __len__(self) -> int:
        return len(self._awaited)
