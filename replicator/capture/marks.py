"""Marks on their way through the log, and what waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_REMEMBERED: Final = 10_000
"""Delivered marks whose writer has not learned their text yet; there are never more than a few."""


@dataclass(slots=True)
class MarkBoard(Generic[T]):
    """Joins marks with the records that wait for them: each by the text of its own mark, whatever the order.

    A mark may be delivered before its writer has returned its text, so delivered marks are remembered.
    """

    _awaited: list[tuple[Future[str], T]] = field(default_factory=list)
    _delivered: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def expect(self, written: Future[str], waiting: T) -> None:
        """Give `waiting` out at the first position between transactions after the mark."""
        self._awaited.append((written, waiting))

    def drop(self, waiting: Collection[T]) -> None:
        """These wait no longer."""
        dropped = {id(one) for one in waiting}
        self._awaited = [(written, one) for written, one in self._awaited if id(one) not in dropped]

    def deliver(self, marks: Iterable[str]) -> None:
        """The log delivered these."""
        self._delivered.extend(marks)

    def take_due(self) -> Sequence[T]:
        """Return the records that waited for delivered marks, in the order in which it was expected.

        Raises what writing a mark raised.
        """
        due, left = [], []
        for written, waiting in self._awaited:
            if written.done() and written.result() in self._delivered:
                self._delivered.remove(written.result())
                due.append(waiting)
            else:
                left.append((written, waiting))
        self._awaited = left
        return due

    def __len__(self) -> int:
        return len(self._awaited)
