"""Snapshots that are to begin: the source is asked for each what `starting.py` says, until it is due."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from replicator.capture.asking import Answer
from replicator.capture.checks import Checks, prepare_and_describe
from replicator.capture.definitions.catalogue import CatalogChange
from replicator.capture.definitions.comparison import Comparison
from replicator.capture.marks import MarkBoard
from replicator.capture.snapshots.starting import (
    Delivered,
    Described,
    Inquiry,
    Looked,
    LookedFirst,
    Question,
    Reads,
    Starting,
    StartingMark,
    Step,
    advance,
    question,
)
from replicator.capture.tables import TrackedTables
from replicator.capture.window import Window
from replicator.model.errors import TableError
from replicator.model.schema import TableId
from replicator.plugins.source import DeltaSource, TableDescription, Visibility


@dataclass(slots=True, kw_only=True)
class Beginnings:
    """Called by the loop's thread alone. Nothing here is durable: a crash asks again.

    Attributes:
        source: Is prepared for tables, and asked.
        submit: Runs a call in the control thread.
        configured: The tables that the configuration selects.
        checks: What a table must pass before its snapshot.
        marks: Those on their way through the log.
        window: Knows from which number on reads see transactions.
        tables: All of them.
        comparison: Knows whether a table is as it was accepted.
    """

    source: DeltaSource[Any]
    submit: Callable[..., Future[Any]]
    configured: Sequence[TableId]
    checks: Checks
    marks: MarkBoard[Any]
    window: Window
    tables: TrackedTables
    comparison: Comparison
    _starting: dict[int, Starting] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=itertools.count)
    _inquiries: tuple[Inquiry, ...] = ()

    def start(self, tables: Sequence[TableId], *, found: Answer | None = None, requests: Sequence[int] = ()) -> None:
        """Begin snapshots of these tables at a coming position in the log.

        Args:
            tables: That need a snapshot.
            found: What the catalogue says, if it was asked after the tables were last prepared; else they are prepared
                again and it is asked.
            requests: What is done once they have begun.
        """
        starting = Starting(id=next(self._ids), tables=tuple(tables), requests=tuple(requests))
        if found is not None:
            told = Described(tables=starting.tables, found=found.found, asked=found.seen, moved=found.moved)
            starting = advance(starting, told)
        self._put(starting)

    def poll(self) -> Mapping[TableId, TableError]:
        """Take in the answers of the control thread, looking once at each, as it may come at any time.

        Returns:
            Tables that are refused, and why. If another answer raises, the next call raises it, so that these are not lost.

        Raises:
            Exception: Whatever the control thread raised.
        """
        due = [inquiry for inquiry in self._inquiries if inquiry.future.done()]
        failed = [inquiry for inquiry in due if inquiry.future.exception() is not None]
        answered = [inquiry for inquiry in due if inquiry not in failed]
        self._inquiries = tuple(inquiry for inquiry in self._inquiries if inquiry not in answered)
        refused: dict[TableId, TableError] = {}
        for inquiry in answered:
            answer = inquiry.future.result()
            for id_ in inquiry.ids:
                if id_ in self._starting:
                    refused |= self._take_answer(self._starting[id_], answer)
        if failed and not refused:
            self._inquiries = tuple(inquiry for inquiry in self._inquiries if inquiry is not failed[0])
            failed[0].future.result()
        return refused

    def take_mark(self, mark: StartingMark, next_number: int) -> None:
        """Take in that the log delivered a mark, and no transaction is open."""
        self._starting[mark.id] = advance(self._starting[mark.id], Delivered(next_number=next_number))

    def take_due(self) -> Sequence[Starting]:
        """Return those for which reads see enough, and that wait for no transaction; ask again for the others."""
        due: list[Starting] = []
        for settling in [one for one in self._starting.values() if one.step is Step.SETTLING]:
            starting = advance(settling, Reads(see_below=self.window.start_number(settling.floor)))
            if starting.step is Step.SETTLING:
                self._starting[starting.id] = starting
            else:
                del self._starting[starting.id]
                due.append(starting)
        return due

    def look_again(self) -> None:
        """Ask once for all that wait for transactions."""
        asked = {id_ for inquiry in self._inquiries for id_ in inquiry.ids}
        settling = [s for s in self._starting.values() if s.step is Step.SETTLING and s.id not in asked]
        ids = tuple(s.id for s in settling if question(s) is Question.VISIBILITY)
        if ids:
            self._ask(ids, self.source.visibility)

    def outdate(self, table: TableId) -> None:
        """Take in that something is known of the table by now that answers of the catalogue do not know."""
        for id_, starting in self._starting.items():
            if table in starting.tables:
                self._starting[id_] = replace(starting, outdated=starting.outdated | {table})

    @property
    def is_settling(self) -> bool:
        """Return whether snapshots wait for transactions to become visible: the ring wants pruning."""
        return any(starting.step is Step.SETTLING for starting in self._starting.values())

    @property
    def since(self) -> Visibility | None:
        """The next snapshot waits for the transactions that had begun by then; None if none waits."""
        return next((s.waits_for for s in self._starting.values() if s.waits_for is not None), None)

    def step_of(self, table: TableId) -> Step | None:
        """Return the step of the table's next snapshot; None if none is to begin."""
        return next((s.step for s in self._starting.values() if table in s.tables), None)

    def _put(self, starting: Starting) -> None:
        """Keep it, and ask what it waits for."""
        self._starting[starting.id] = starting
        match question(starting):
            case Question.CATALOGUE:
                asked = (self.source, self.configured, self.tables.captured(), starting.tables, self.checks)
                self._ask((starting.id,), prepare_and_describe, *asked)
            case Question.VISIBILITY:
                self._ask((starting.id,), self.source.visibility)
            case Question.MARK:
                self.marks.expect(self.submit(self.source.mark), StartingMark(starting.id))
            case Question.NOTHING:
                pass

    def _take_answer(self, starting: Starting, answer: Any) -> Mapping[TableId, TableError]:
        match starting.step:
            case Step.PREPARING:
                fit = tuple(t for t in starting.tables if t not in answer.refused)
                told = Described(tables=fit, found=answer.found, asked=answer.seen, moved=answer.moved)
                self._put(advance(starting, told))
                refused: Mapping[TableId, TableError] = answer.refused
                return refused
            case Step.LOOKING:
                may_lack = not all(self._is_tracked_as(t, starting.found.get(t)) for t in starting.tables)
                self._put(advance(starting, LookedFirst(since=answer, may_lack=may_lack)))
            case _:
                self._starting[starting.id] = advance(starting, Looked(seen=answer))
        return {}

    def _ask(self, ids: tuple[int, ...], call: Callable[..., Any], *arguments: Any) -> None:
        self._inquiries = (*self._inquiries, Inquiry(self.submit(call, *arguments), ids))

    def _is_tracked_as(self, table: TableId, found: TableDescription | None) -> bool:
        """Return whether the log has left out nothing of the table as it is now."""
        tracked = self.tables.get(table)
        is_captured = tracked is not None and tracked.is_captured
        return is_captured and self.comparison.change_of(table, found) in (CatalogChange.NONE, CatalogChange.EXPLAINED)
