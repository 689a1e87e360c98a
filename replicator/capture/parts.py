"""Parts of a capture, over the logs that it opens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from replicator.capture.checks import Checks
from replicator.capture.cures import Cures
from replicator.capture.definitions.names import NamedSource, SourceNames
from replicator.capture.failures import Failures
from replicator.capture.settings import CaptureSettings
from replicator.capture.target_checks import TargetChecks
from replicator.capture.window import Window
from replicator.journal.retention import Retention
from replicator.journal.writer import JournalWriter
from replicator.model.crash import crash_point
from replicator.model.schema import TableId
from replicator.state.records import Lease
from replicator.state.store import StateStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of a capture. `control` is the control thread: all calls of the source but those of its log and its chunks."""

    source: NamedSource
    names: SourceNames
    store: StateStore
    lease: Lease
    writer: JournalWriter
    retention: Retention
    selected: tuple[TableId, ...]
    settings: CaptureSettings
    clock: Callable[[], float]
    now: Callable[[], datetime]
    control: ThreadPoolExecutor
    select: Callable[[], Sequence[TableId]] | None
    make_window: Callable[[Sequence[str]], Window]
    failures: Failures
    checks: Checks
    target_checks: TargetChecks
    cures: Cures

    def write_mark(self) -> Future[str]:
        """Have a mark written in the control thread."""
        return self.control.submit(self._mark)

    def _mark(self) -> str:
        mark = self.source.mark()
        crash_point("capture.mark_written")
        return mark
