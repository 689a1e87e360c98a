"""Refuses while running what the target refuses at the start, of tables that are replicated already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from replicator.capture.asking import Refusals, ask, blocking, refusal
from replicator.model.errors import Problem
from replicator.model.schema import TableId, TableSchema
from replicator.observability import get_logger

Assess = Callable[[Sequence[TableSchema]], Sequence[Problem]]
_log = get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class TargetChecks:
    """Asks the target about the tracked tables now and then, in a thread of its own: about many tables a warehouse may take minutes.

    A finding fails its table once a second look has confirmed it: apply writes meanwhile, and a target that is away for a moment may
    look like one that holds something else. What cannot be asked now is asked again later.

    Attributes:
        assess: What host and target find against tables of these shapes.
        every_s: How often to ask about all tables.
        again_s: How long after a finding to look again.
    """

    assess: Assess
    clock: Callable[[], float]
    every_s: float
    again_s: float
    _suspected: dict[TableId, str] = field(default_factory=dict)
    _running: Future[Mapping[TableId, Problem]] | None = None
    _due: float | None = None
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="target-check")
    )

    def watch(self, captured: Callable[[], Mapping[TableId, TableSchema]], refuse: Callable[[Refusals], None]) -> None:
        """In the loop: begin the next check when it is due, and act on the answer of the one that runs.

        Args:
            captured: Gives the shapes of the tables that are captured.
            refuse: Called with those that are refused.
        """
        now = self.clock()
        if self._due is None:
            self._due = now + self.every_s  # the start has asked
        if self._running is not None:
            if self._running.done():
                running, self._running = self._running, None
                self._take(running.result(), captured(), refuse)
                self._due = now + (self.again_s if self._suspected else self.every_s)
        elif now >= self._due and (shapes := captured()):
            asked = {table: shapes[table] for table in self._suspected or shapes if table in shapes}
            self._running = self._thread.submit(self._find, asked)

    def close(self) -> None:
        """Ask nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _take(
        self,
        found: Mapping[TableId, Problem],
        shapes: Mapping[TableId, TableSchema],
        refuse: Callable[[Refusals], None],
    ) -> None:
        before = self._suspected
        self._suspected = {table: problem.code for table, problem in found.items() if problem.code != before.get(table)}
        confirmed = {table: problem for table, problem in found.items() if table not in self._suspected}
        if confirmed:
            refuse({table: refusal(table, problem) for table, problem in confirmed.items() if table in shapes})

    def _find(self, shapes: Mapping[TableId, TableSchema]) -> Mapping[TableId, Problem]:
        """The first blocking finding about each table. One about which nothing can be said has none: apply will meet the cause."""
        try:
            answers, unknown = ask(
                lambda tables: self.assess([shapes[t] for t in tables]), list(shapes), "checking its target"
            )
        except Exception as error:  # noqa: BLE001 - nothing of it ends the capture
            _log.warning("target_not_checked", exc_info=error)
            return {}
        for table, reason in unknown.items():
            _log.warning("target_not_checked", table=str(table), code=reason.code, reason=reason.message)
        return blocking([problem for answer in answers for problem in answer], shapes)
