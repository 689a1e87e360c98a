"""Tables that failed: whether something in the source is the reason, and whether that is in order again.

A failure that the log, a chunk or a preparation meets first may be one that the source's check knows, with a better reason and its
remedy. So the check is asked once about each table that has failed, and what it finds replaces the reason.

Such a failure (`CurableError`) is one that the source's check finds for as long as it is there. So the source is asked now and then about
these tables, all in one question. The table gets a new snapshot once nothing speaks against it. What it fails by next is another
failure, and how often it continues by itself is bounded (`table_life.resumes_itself`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from replicator.capture.asking import Refusals, ask, may_be_of_one
from replicator.capture.checks import of_tables
from replicator.model.errors import Problem, Severity
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.source import SourceCatalogue
from replicator.state.records import ErrorRecord

_log = get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Cures:
    """Asks about the failed tables of one capture, over the logs that it opens. The loop calls `watch`, which asks in the control thread.

    Attributes:
        every_s: How often to ask.
    """

    source: SourceCatalogue
    clock: Callable[[], float]
    every_s: float
    _asked: Mapping[TableId, ErrorRecord] = field(default_factory=dict)
    _running: Future[Collection[TableId]] | None = None
    _due: float | None = None
    _explained: Mapping[TableId, ErrorRecord] = field(default_factory=dict)
    _explaining: tuple[Mapping[TableId, ErrorRecord], Future[Refusals]] | None = None

    def explain(
        self,
        failed: Mapping[TableId, ErrorRecord],
        submit: Callable[..., Future[Refusals]],
        fail: Callable[[Refusals], None],
    ) -> None:
        """In the loop: ask once about each failure whether the check finds its reason, and act on the answer to the last question.

        Args:
            failed: Tables, and why they failed.
            submit: Runs a call in the control thread.
            fail: Called with those about which the check finds something.
        """
        if self._explaining is not None:
            asked, running = self._explaining
            if not running.done():
                return
            self._explaining = None
            self._explained = asked
            if found := {t: error for t, error in running.result().items() if failed.get(t) == asked[t]}:
                fail(found)
        elif any(self._explained.get(table) != error for table, error in failed.items()):
            self._explaining = failed, submit(self._found, list(failed))

    def watch(
        self,
        failed: Mapping[TableId, ErrorRecord],
        submit: Callable[..., Future[Collection[TableId]]],
        resume: Callable[[Collection[TableId]], None],
    ) -> None:
        """In the loop: ask when it is due, and act on the answer to the last question.

        Args:
            failed: The tables that continue by themselves once they are fixed, and why they failed.
            submit: Runs a call in the control thread.
            resume: Called with those that are fixed.
        """
        now = self.clock()
        if self._running is not None:
            if self._running.done():
                running, self._running = self._running, None
                self._due = now + self.every_s
                # An answer says nothing of a failure that came later.
                if fixed := [table for table in running.result() if failed.get(table) == self._asked[table]]:
                    resume(fixed)
        elif not failed:
            self._due = None
        elif self._due is None:
            self._due = now + self.every_s
        elif now >= self._due:
            self._asked = failed
            self._running = submit(self._fixed, list(failed))

    def forget(self) -> None:
        """The log is opened again: an answer to an earlier question is dropped."""
        self._running = None
        self._explaining = None

    def _found(self, tables: Sequence[TableId]) -> Refusals:
        """In the control thread: what the check finds against tables."""
        return of_tables(self._checked(tables)[0], tables, is_curable=True)

    def _fixed(self, tables: Sequence[TableId]) -> Collection[TableId]:
        """In the control thread: those of the tables that exist and that no check speaks against."""
        problems, unchecked = self._checked(tables)
        names = {str(table) for table in tables}
        against = {problem.table for problem in problems if problem.severity is Severity.BLOCKING}
        if against - names:
            # A check of a server that is not in order may not come to its tables.
            return ()
        return [table for table in tables if table not in unchecked and str(table) not in against]

    def _checked(self, tables: Sequence[TableId]) -> tuple[Sequence[Problem], Collection[TableId]]:
        """Return the findings of the check, and the tables about which it cannot tell."""
        try:
            answers, refused = ask(self.source.check, tables, "checking whether it may continue")
        except Exception as error:
            if not may_be_of_one(error):
                raise
            _log.warning("cure_not_checked", exc_info=error)
            return (), tables
        return [problem for answer in answers for problem in answer], refused
