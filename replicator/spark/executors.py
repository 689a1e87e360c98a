"""Watches that a cluster gives executors to waiting work: Spark itself waits for them without end."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from replicator.model.errors import TargetUnavailableError
from replicator.observability import get_logger

_LOOK_EVERY_S: Final = 2.0
_WARN_AFTER_S: Final = 15.0
_STOP_S: Final = 10.0
_log = get_logger(__name__)
_reasons: dict[int, TargetUnavailableError] = {}


def end_reason() -> TargetUnavailableError | None:
    """Return the reason for which the watch has ended this process's newest JVM; None if it has not."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - the gateway is PySpark's own
    return None if process is None else _reasons.get(process.pid)


class Starvation:
    """Decides when work has waited long enough without an executor. Pure.

    A master that was restarted does not know this application any more, and its workers end the executors; the
    driver would wait for new ones without end. Only a new application gets some.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since: float | None = None

    def look(self, *, executors: int, jobs: int, now: float) -> float:
        """Note the executors and jobs; return the seconds that work has waited without an executor."""
        if executors or not jobs:
            self._since = None
        elif self._since is None:
            self._since = now
        return 0.0 if self._since is None else now - self._since

    def is_over(self, waited_s: float) -> bool:
        """Return whether to give up."""
        return waited_s >= self._timeout_s


class ExecutorWatch:
    """Thread that ends the JVM when work has waited too long without an executor: its calls then fail with `spark_no_executors`."""

    def __init__(
        self,
        context: Any,
        process: subprocess.Popen[bytes],
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context, self._process = context, process
        self._timeout_s, self._clock = timeout_s, clock
        self._master: str = context.master
        _reasons.pop(process.pid, None)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-executors", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        # A JVM that does not answer must not keep the process from ending.
        self._thread.join(timeout=_STOP_S)

    def _run(self) -> None:
        from py4j.protocol import Py4JError

        starvation, has_warned = Starvation(timeout_s=self._timeout_s), False
        while not self._stopped.wait(_LOOK_EVERY_S):
            try:
                java = self._context._jsc.sc()  # noqa: SLF001 - PySpark's tracker does not count executors
                # The driver is one of them.
                executors = java.getExecutorMemoryStatus().size() - 1
                jobs = len(self._context.statusTracker().getActiveJobsIds())
            except (Py4JError, OSError, AttributeError, TypeError):
                return  # the JVM has ended, which its user notices
            waited_s = starvation.look(executors=executors, jobs=jobs, now=self._clock())
            if waited_s >= _WARN_AFTER_S and not has_warned:
                _log.warning("spark_has_no_executors", master=self._master, waiting_s=round(waited_s))
            has_warned = waited_s >= _WARN_AFTER_S
            if starvation.is_over(waited_s):
                self._end(waited_s)
                return

    def _end(self, waited_s: float) -> None:
        _reasons[self._process.pid] = TargetUnavailableError(
            f"The Spark cluster {self._master} gave no executor for {waited_s:.0f} s.",
            code="spark_no_executors",
            action="Check that workers run with enough free cores and memory (spark.executor.cores, spark.executor.memory), and that "
            "they can connect to the driver. It is retried automatically.",
        )
        self._process.kill()
