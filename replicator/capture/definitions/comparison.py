"""Comparisons of captured tables with the source's catalogue: asked, and judged once the log has caught up with the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from replicator.capture.asking import Answer, Descriptions, Refusals, look
from replicator.capture.definitions.catalogue import CatalogChange, judge
from replicator.capture.definitions.seen import Alterations
from replicator.capture.marks import MarkBoard
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.model.isolation import of_table
from replicator.model.schema import TableId
from replicator.plugins.source import DeltaSource, TableDescription, Visibility

_MAY_BE_OLDER: Final = (CatalogChange.COLUMNS, CatalogChange.KEY, CatalogChange.DROPPED)


@dataclass(frozen=True, slots=True)
class ComparisonMark:
    """The mark of the comparison with the catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A comparison that is not judged yet.

    `truncates`: TRUNCATEs delivered when the catalogue was asked; `seen`, `moved`: as `Answer`; `outdated`: as `Starting`.
    """

    tables: tuple[TableId, ...]
    truncates: Mapping[TableId, int] = field(default_factory=dict)
    found: Descriptions = field(default_factory=dict)
    seen: Visibility | None = None
    moved: Mapping[TableId, TableId] = field(default_factory=dict)
    outdated: frozenset[TableId] = frozenset()


class Different(NamedTuple):
    """A table that is not as it was accepted; `found` is None if it does not exist, and `moved` then the name under which it does."""

    tracked: TrackedTable
    change: CatalogChange
    found: TableDescription | None
    moved: TableId | None


@dataclass(slots=True, kw_only=True)
class Comparison:
    """One comparison at a time. Called by the loop's thread alone.

    Attributes:
        submit: Runs a call in the control thread.
        alterations: What the log brought.
    """

    source: DeltaSource[Any]
    submit: Callable[..., Future[Any]]
    marks: MarkBoard[Any]
    tables: TrackedTables
    alterations: Alterations
    _asked: _Asked | None = None
    _answer: Future[Answer] | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether none is under way."""
        return self._asked is None

    def ask(self, tables: Sequence[TableId]) -> None:
        """Ask the catalogue for these tables."""
        known = {table: self.tables.get(table) for table in tables}
        truncates = {table: tracked.truncates for table, tracked in known.items() if tracked is not None}
        self._asked = _Asked(tables=tuple(tables), truncates=truncates)
        self._answer = self.submit(look, self.source, tables)

    def poll(self) -> Refusals:
        """Take in an answer of the control thread; return the tables of which it says nothing, and why."""
        if self._asked is None or self._answer is None or not self._answer.done():
            return {}
        answer, self._answer = self._answer.result(), None
        tables = tuple(t for t in self._asked.tables if t not in answer.refused)
        self._judge_later(replace(self._asked, tables=tables, found=answer.found, seen=answer.seen, moved=answer.moved))
        return answer.refused

    def take_answer(self, tables: Sequence[TableId], answer: Answer) -> None:
        """Compare with an answer that is there already."""
        self._judge_later(_Asked(tables=tuple(tables), found=answer.found, seen=answer.seen, moved=answer.moved))

    def outdate(self, table: TableId) -> None:
        """The answer that is to come may not know what is known of the table by now."""
        if self._asked is not None:
            self._asked = replace(self._asked, outdated=self._asked.outdated | {table})

    def take_mark(self) -> Sequence[Different]:
        """The log has caught up: the tables that differ."""
        asked, self._asked = self._asked, None
        assert asked is not None, "its mark was written"
        return self._different(asked)

    def change_of(self, table: TableId, found: TableDescription | None, truncates: int = 0) -> CatalogChange:
        """Return the change of a captured table, of which the catalogue said `found` when so many TRUNCATEs had been delivered."""
        tracked = self.tables.get(table)
        if tracked is None or not tracked.is_captured:
            return CatalogChange.NONE
        with of_table(table, "comparing it with the catalogue"):
            since = tracked.truncates - truncates
            return judge(tracked.schema, tracked.record.identity, found, truncates_since=since)

    def _judge_later(self, asked: _Asked) -> None:
        tables = tuple(different.tracked.table for different in self._different(asked))
        self._asked = replace(asked, tables=tables) if tables else None
        if tables:
            self.marks.expect(self.submit(self.source.mark), ComparisonMark())

    def _different(self, asked: _Asked) -> Sequence[Different]:
        different: list[Different] = []
        for table in asked.tables:
            tracked, found = self.tables.get(table), asked.found.get(table)
            change = self.change_of(table, found, asked.truncates.get(table, 0))
            if table in asked.outdated or (change in _MAY_BE_OLDER and self.alterations.hides(table, asked.seen)):
                # The answer is older than what the log brought.
                change = CatalogChange.ASK_AGAIN
            if tracked is not None and change is CatalogChange.NONE and found is not None and tracked.record.is_altered:
                change = CatalogChange.EXPLAINED
            if tracked is not None and change is not CatalogChange.NONE:
                different.append(Different(tracked, change, found, asked.moved.get(table)))
        return different
