"""Refuses while running what is refused at the start.

A blocking finding about a table fails that table: at a start behind the first seal, before a snapshot of it begins, and when the minute's
check finds it; for what the target finds while running see `target_checks.py`. One about the server stops the capture if it says so itself
(`Problem.applies`); otherwise the log tells of it once, and the status as long as it is found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final

from replicator.capture.asking import Answer, Refusals, ask, blocking, describe, look, prepare, refusal
from replicator.capture.target_checks import Assess
from replicator.model.errors import FatalError, Problem, Severity, SourceUnavailableError
from replicator.model.naming import check_names
from replicator.model.schema import TableId, TableSchema
from replicator.observability import get_logger
from replicator.plugins.source import DeltaSource, SourceCatalogue
from replicator.projection.checking import project_tables
from replicator.projection.rules import ColumnRules

_NOT_THERE: Final = frozenset({"table_not_found", "table_missing"})
_log = get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Checks:
    """The checks of one capture, over the logs that it opens. `at_open`, `of_snapshots` and `of_all` run in the control thread.

    Attributes:
        columns: Settings of the columns of tables.
        assess: What host and target find against tables of these shapes, in the target.
        checked: Tables that were checked in this process.
        findings: What the last check found against the server and would refuse a start.
    """

    source: SourceCatalogue
    columns: Callable[[TableId], ColumnRules]
    assess: Assess
    clock: Callable[[], float]
    every_s: float
    checked: set[TableId] = field(default_factory=set)
    findings: tuple[Problem, ...] = ()
    _told: set[Problem] = field(default_factory=set)
    _running: Future[Refusals] | None = None
    _at: float | None = None

    def at_open(
        self, shapes: Mapping[TableId, TableSchema], captured: Collection[TableId]
    ) -> tuple[Collection[TableId], Refusals]:
        """Check the tables that this process has not checked yet: all at its start, later those that have come.

        Of tables whose names clash those are refused that are not `captured`.

        Returns:
            Which were checked, and those that are refused.
        """
        new = {table: schema for table, schema in shapes.items() if table not in self.checked}
        if not new:
            return (), {}
        self.checked.update(new)
        self._at = self.clock()
        of_target = of_tables(self._assessed(list(new.values())), new, is_curable=False)
        clashing = _clashes(shapes, new.keys() - set(captured))
        return new.keys(), {**clashing, **of_target, **self.of_all(list(new), captured)}

    def of_snapshots(self, tables: Sequence[TableId]) -> Refusals:
        """Check tables before their snapshots."""
        answers, refused = ask(self.source.check, tables, "checking it")
        problems = [problem for answer in answers for problem in answer]
        return {**refused, **of_tables(problems, tables, is_curable=True)}

    def of_all(self, tables: Sequence[TableId], captured: Collection[TableId]) -> Refusals:
        """Check tables and server.

        Raises:
            FatalError: The log cannot be trusted any more.
            SourceUnavailableError: We may read none of those that are `captured`.
        """
        answers, refused = ask(self.source.check, tables, "checking it")
        problems = [problem for answer in answers for problem in answer]
        found = of_tables(problems, tables, is_curable=True)
        if found:
            there = describe(self.source, list(found)).found
            found = {table: error for table, error in found.items() if table in there}
        self._judge_server([p for p in problems if p.table not in {str(t) for t in tables}])
        _judge_access(problems, captured)
        return {**refused, **found}

    def watch(
        self,
        tables: Sequence[TableId],
        submit: Callable[..., Future[Refusals]],
        refuse: Callable[[Refusals], None],
    ) -> None:
        """In the loop: begin the next check when it is due, and act on the answer of the one that runs."""
        if self._running is not None:
            if self._running.done():
                running, self._running = self._running, None
                refuse({table: error for table, error in running.result().items() if table in tables})
            return
        now = self.clock()
        if self._at is None:
            self._at = now
        if now - self._at >= self.every_s and tables:
            self._at = now
            self._running = submit(self.of_all, tables, tables)

    def forget(self) -> None:
        """The log is opened again: answers to earlier questions are dropped."""
        self._running = None

    def _assessed(self, shapes: Sequence[TableSchema]) -> Sequence[Problem]:
        projected = project_tables(shapes, self.columns)
        by_table = {schema.table: schema for schema in projected.shapes}
        answers, refused = ask(
            lambda tables: self.assess([by_table[t] for t in tables]), list(by_table), "assessing it"
        )
        problems = [problem for answer in answers for problem in answer]
        unfit = [
            Problem(code=e.code, message=e.message, table=str(table), action=e.action) for table, e in refused.items()
        ]
        return [*projected.problems, *problems, *unfit]

    def _judge_server(self, problems: Sequence[Problem]) -> None:
        self.findings = tuple(p for p in problems if p.severity is Severity.BLOCKING)
        for problem in self.findings:
            if problem.applies == "always":
                raise FatalError(
                    f"{problem.message}.", code=problem.code, action=f"{problem.action or 'Fix it.'} Then start again."
                )
            if problem not in self._told:
                self._told.add(problem)
                _log.warning(
                    "finding",
                    code=problem.code,
                    location=problem.location,
                    reason=problem.message,
                    action=problem.action,
                )


def of_tables(problems: Sequence[Problem], tables: Collection[TableId], *, is_curable: bool) -> Refusals:
    """Return the findings against tables, except that they are not there: the catalogue judges that, and knows policies and new names."""
    found = [problem for problem in problems if problem.code not in _NOT_THERE]
    return {table: refusal(table, problem, is_curable=is_curable) for table, problem in blocking(found, tables).items()}


def _judge_access(problems: Sequence[Problem], captured: Collection[TableId]) -> None:
    """A privilege that all tables lack is one cause, and is often granted again: no table fails for it, or gets a new snapshot after it."""
    names = {str(table) for table in captured}
    found = [p for p in problems if p.severity is Severity.BLOCKING and p.table in names]
    if len(names) > 1 and {p.table for p in found} == names and all(p.is_access for p in found):
        first = found[0]
        raise SourceUnavailableError(
            f"Replicator may no longer read any of the {len(names)} tables. The first is {first.table}: {first.message}.",
            code=first.code,
            action=first.action,
        )


def _clashes(tables: Collection[TableId], new: Collection[TableId]) -> Refusals:
    groups: dict[str, list[TableId]] = defaultdict(list)
    for table in tables:
        groups[str(table).casefold()].append(table)
    problems = {
        table: problem
        for group in groups.values()
        if len(group) > 1
        for problem in check_names(group)
        for table in group
        # Of several new ones the first by name is tracked, if none was before.
        if table in new and (set(group) - set(new) or table != min(group))
    }
    return {table: refusal(table, problem) for table, problem in problems.items()}


def nothing_found(_: Sequence[TableSchema]) -> Sequence[Problem]:
    """No further findings."""
    return ()


def prepare_and_describe(
    source: DeltaSource[Any],
    configured: Sequence[TableId],
    captured: Sequence[TableId],
    tables: Sequence[TableId],
    checks: Checks,
) -> Answer:
    """In the control thread: prepare the source again for what is configured, and ask about those of `tables` that it does not refuse."""
    refused = prepare(source, configured, is_new_position=False, has_begun=True, captured=captured).refused
    answer = look(source, [t for t in tables if t not in refused])
    unfit = checks.of_snapshots(list(answer.found))
    found = {t: d for t, d in answer.found.items() if t not in unfit}
    return replace(answer, found=found, refused={**refused, **answer.refused, **unfit})
