"""Finds the tables that a statement in the log may have changed, by what the server has: views, routines, triggers, cascades. Pure.

Nothing is parsed. A statement can reach an object only if the object's name stands in its text, or in the text of a view,
routine or trigger that it reaches; rows of a table are also changed by the triggers of tables that are reached, and by the
foreign keys that act on them. So every object whose name stands there *anywhere*, in a comment or a string too, counts as
reached: that is too many now and then, and never too few. Where that does not hold, nothing is told: dynamic SQL, texts
that the account may not see, engines that write into other tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final

from replicator.model.schema import TableId

CHANGING: Final = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "SELECT", "DO", "WITH", "CALL"})
"""First words of statements whose tables can be told. Others may name tables in other ways, or make them."""

_ENGINES: Final = frozenset({"innodb", "myisam", "aria", "memory", "archive", "csv", "blackhole", "rocksdb"})
"""Engines whose tables have their own rows only; MERGE, FEDERATED, CONNECT and SPIDER write into other tables."""
_TABLE_KINDS: Final = frozenset({"BASE TABLE", "SYSTEM VERSIONED"})
_WITHOUT_ROWS: Final = frozenset({"SEQUENCE"})
_VIEW: Final = "VIEW"
_DYNAMIC: Final = frozenset({"prepare", "execute"})

_RUN: Final = re.compile(r"[0-9A-Za-z$_\x80-\U0010ffff]+")
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
_VERSION: Final = re.compile(r"\d{5,6}(?=.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A view, a routine or a trigger: the database in which its text is read, its name, and its text; None: it is not shown to us."""

    database: str
    name: str
    text: str | None


@dataclass(frozen=True, kw_only=True)
class Definitions:
    """Definitions of a server.

    Attributes:
        tables: Kind and engine of every table, and the kind of every view.
        views: Their queries.
        routines: Functions, procedures and packages.
        triggers: Triggers, by their tables.
        children: Tables that foreign keys may change, by the parent.
    """

    tables: Mapping[TableId, tuple[str, str]]
    views: Mapping[TableId, Definition]
    routines: Sequence[Definition] = ()
    triggers: Mapping[TableId, Sequence[Definition]] = field(default_factory=dict)
    children: Mapping[TableId, Collection[TableId]] = field(default_factory=dict)

    def reached(self, text: str, database: str) -> frozenset[TableId] | None:
        """The tables whose rows a statement may have changed; None if that cannot be told.

        Args:
            text: The statement, whose first word is one of `CHANGING`.
            database: The database of names without one.
        """
        try:
            return frozenset(_Walk(self).tables_of(text, database)) or None
        except _UntoldError:
            return None

    @cached_property
    def by_name(self) -> Mapping[str, Sequence[TableId]]:
        """Tables and views by the word that stands for their names in a text; those by "" may stand anywhere."""
        found: dict[str, list[TableId]] = {}
        for table in self.tables:
            first = next(iter(_parts(table.name)), "")
            found.setdefault(first if first.isascii() else "", []).append(table)
        return found


class _UntoldError(Exception):
    """It cannot be told."""


class _Walk:
    """One traversal of the definitions, from a statement's text to the tables that it reaches."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._tables: set[TableId] = set()
        self._passed: set[int] = set()
        self._texts: list[tuple[Words, str]] = []

    def tables_of(self, text: str, database: str) -> Iterable[TableId]:
        self._texts.append((Words(text), database))
        while self._texts:
            words, near = self._texts.pop()
            for routine in self._definitions.routines:
                # By its name alone: where a routine without a database is looked for is a matter of versions.
                if words.has(routine.name):
                    self._read(routine)
            for table in self._named(words):
                if table.namespace.lower() == near.lower() or words.has(table.namespace):
                    self._reach(table)
        return self._tables

    def _named(self, words: Words) -> Iterable[TableId]:
        if words.is_vague:
            return [table for table in self._definitions.tables if words.has(table.name)]
        by_name = self._definitions.by_name
        return [t for word in (*words.plain, "") for t in by_name.get(word, ()) if words.has(t.name)]

    def _reach(self, table: TableId) -> None:
        if table in self._tables:
            return
        kind, engine = self._definitions.tables.get(table, ("", ""))
        if kind in _WITHOUT_ROWS:
            return
        if kind == _VIEW:
            view = self._definitions.views.get(table)
            self._read(view if view is not None else Definition(database=table.namespace, name=table.name, text=None))
            return
        if kind not in _TABLE_KINDS or engine.lower() not in _ENGINES:
            raise _UntoldError
        self._tables.add(table)
        for trigger in self._definitions.triggers.get(table, ()):
            self._read(trigger)
        for child in self._definitions.children.get(table, ()):
            self._reach(child)

    def _read(self, definition: Definition) -> None:
        if id(definition) in self._passed:
            return
        self._passed.add(id(definition))
        if not definition.text:
            raise _UntoldError
        words = Words(definition.text)
        if not words.plain.isdisjoint(_DYNAMIC):
            raise _UntoldError
        self._texts.append((words, definition.database))


class Words:
    """The words of a text, of which each may be a name, however it is quoted.

    Attributes:
        plain: Words in ASCII, in small letters.
        is_vague: There are others, whose letters may stand for any.
    """

    def __init__(self, text: str) -> None:
        runs = {run.lower() if run.isascii() else run for run in _RUN.findall(text)}
        # Digits of a version may stand before the first word of a comment that is executed: `/*!50000t`.
        runs |= {run[size:] for run in runs if _VERSION.match(run) for size in (5, 6)}
        self.plain = frozenset(run for run in runs if run.isascii())
        self._odd = [run.lower() for run in runs if not run.isascii()]
        self.is_vague = bool(self._odd)

    def has(self, name: str) -> bool:
        """Return whether this may be a name in the text. One without a letter or digit of ASCII always may."""
        return all(self._has_part(part) for part in _parts(name))

    def _has_part(self, part: str) -> bool:
        if part in self.plain:
            return True
        others = self._odd if part.isascii() else [*self._odd, *self.plain]
        return any(_may_be_same(part, other) for other in others)


def _may_be_same(one: str, other: str) -> bool:
    """Return whether two words may be one name: to the server é may be e, and a byte that is no text in its character set anything."""
    if one.isascii():
        one, other = other, one
    first, last = _ascii_ends(one)
    if other.isascii():
        return other.startswith(first) and other.endswith(last)
    begin, end = _ascii_ends(other)
    return (first.startswith(begin) or begin.startswith(first)) and (last.endswith(end) or end.endswith(last))


def _ascii_ends(word: str) -> tuple[str, str]:
    """Return the text before the first, and after the last letter that is not ASCII."""
    parts = _NOT_ASCII.split(word)
    return parts[0], parts[-1]


@lru_cache(1 << 16)
def _parts(name: str) -> tuple[str, ...]:
    """The words of a name, which all stand in a text that has it."""
    return tuple(part.lower() for part in _RUN.findall(name))
