"""Rollbacks within the log: ROLLBACK TO SAVEPOINT inside a transaction, and ROLLBACK at its end. Pure.

A server usually cuts what was rolled back out of its log. Where it cannot undo a transaction wholly (MariaDB: it made or
dropped a temporary table, or wrote to a table without transactions; MySQL: in STATEMENT or MIXED format) it logs all of
it. Rows of tables without transactions never stand in such a group: in ROW format they are logged at once, in groups of
their own.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_left
from typing import Final

_SAVEPOINTS_MAX: Final = 100_000
_RANGES_MAX: Final = 1_000_000
_NAME: Final = re.compile(r"`(?P<back>(?:[^`]|``)*)`|\"(?P<double>(?:[^\"]|\"\")*)\"|(?P<plain>[^\s`\"]+)")
_SET: Final = re.compile(r"SAVEPOINT\s+", re.IGNORECASE)
_RELEASE: Final = re.compile(r"RELEASE\s+SAVEPOINT\s+", re.IGNORECASE)
_TO: Final = re.compile(r"ROLLBACK\s+(?:WORK\s+)?TO\s+(?:SAVEPOINT\s+(?=\S))?", re.IGNORECASE)

END: Final = sys.maxsize
"""An offset after every other."""


def set_name(text: str) -> str | None:
    """The name in `SAVEPOINT name`; None: it is another statement."""
    return _name_behind(_SET, text)


def released_name(text: str) -> str | None:
    """The name in `RELEASE SAVEPOINT name`; None: it is another statement."""
    return _name_behind(_RELEASE, text)


def target_name(text: str) -> str | None:
    """The name in `ROLLBACK TO name`; None: it is another statement."""
    return _name_behind(_TO, text)


def _name_behind(verb: re.Pattern[str], text: str) -> str | None:
    begin = verb.match(text)
    if begin is None:
        return None
    rest = text[begin.end() :].strip()
    match = _NAME.fullmatch(rest)
    if match is None:
        return rest  # spelled in a way that is not known: a name that only the same spelling finds
    back, double, plain = match.group("back", "double", "plain")
    if back is not None:
        return back.replace("``", "`")
    return double.replace('""', '"') if double is not None else plain


class Undone:
    """Parts of one group that were rolled back: pairs of offsets in it, ascending, without overlap."""

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        self._begins, self._ends = array("q"), array("q")

    def add(self, begin: int, end: int) -> None:
        """Remember that everything from `begin` to `end` was rolled back. Bounded: parts beyond the bound are not remembered."""
        while self._begins and self._begins[-1] >= begin:
            self._begins.pop()
            self._ends.pop()
        if len(self._begins) < _RANGES_MAX:
            self._begins.append(begin)
            self._ends.append(end)

    def has(self, offset: int) -> bool:
        """Return whether the event that ends at this offset was rolled back."""
        index = bisect_left(self._ends, offset)
        return index < len(self._begins) and self._begins[index] < offset

    def __len__(self) -> int:
        return len(self._begins)


class Savepoints:
    """The savepoints of one group that are live, in the order in which they were set.

    As on the server, a name that is set again moves to the end; rolling back to one, or releasing it, ends those after it.
    Names are folded already. Bounded: beyond the bound the oldest is forgotten, and then not found.

    Attributes:
        undone: Parts of the group that were rolled back to them so far.
    """

    __slots__ = ("_live", "undone")

    def __init__(self) -> None:
        self._live: dict[str, tuple[int, int]] = {}
        self.undone = Undone()

    def set(self, name: str, slot: int, offset: int) -> None:
        """Set one after `slot` rows events of the group, at this offset."""
        self._live.pop(name, None)
        if len(self._live) >= _SAVEPOINTS_MAX:
            del self._live[next(iter(self._live))]
        self._live[name] = slot, offset

    def release(self, name: str) -> None:
        """Release one, with all that were set after it."""
        if self.roll_back_to(name, None) is not None:
            del self._live[name]
        else:
            self._live.clear()  # it was forgotten, and is older than all

    def forget_rows(self) -> None:
        """Forget the rows so far: a rollback to any of these drops all that come from here on."""
        self._live = {name: (0, offset) for name, (_, offset) in self._live.items()}

    def roll_back_to(self, name: str, offset: int | None) -> int | None:
        """Roll back to one at this offset in the group; return its slot, None if it is not known."""
        found = self._live.get(name)
        if found is None:
            return None
        while next(reversed(self._live)) != name:
            self._live.popitem()
        if offset is not None:
            self.undone.add(found[1], offset)
        return found[0]
