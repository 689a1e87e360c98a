"""Starts Spark once per process, tuned for its master, with its noise in a file, and notices when its JVM has died."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from replicator.config import SparkConfig
from replicator.model.errors import ConfigError, ReplicatorError, TargetCrashedError, TargetUnavailableError
from replicator.observability import get_logger
from replicator.plugins.target import SparkNeeds
from replicator.spark.executors import ExecutorWatch, end_reason
from replicator.spark.gateway import connect, launch
from replicator.spark.master import is_cluster, java_problem, local_threads, reach_problem, setting_problem
from replicator.spark.scratch import ScratchFolder

_log = get_logger(__name__)
_LOG_TAIL_LINES: Final = 30
_DYING_S: Final = 2.0
_ENDED: Final = ("SparkContext was shut down", "stopped SparkContext", "Master removed our application")
_SCRATCH_LEAST: Final = 4 << 20
"""Bytes of free space for temporary files below which Spark does not start, whatever reason it gives."""

# Statements carry names of the source: ${env:…} in one of them would be replaced by what this process keeps there.
_FORCED: Final = {"spark.sql.variable.substitute": "false"}
_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # The journal's files come from pyarrow and follow the proleptic Gregorian calendar throughout.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # INT96, the default, counts nanoseconds: readers that do the same take years before 1678 and after 2262 for others.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    # A merge needs dozens of generated classes; Spark keeps 100 and would compile those of a few tables again and again,
    # which is half of a small merge's processor time.
    "spark.sql.codegen.cache.maxEntries": "5000",
    # Tables are merged from several threads: each gets its share instead of waiting for the one before.
    "spark.scheduler.mode": "FAIR",
    # Spark's memory of past jobs is not used, and a driver that runs for months would keep it.
    "spark.sql.ui.retainedExecutions": "1",
    "spark.ui.retainedJobs": "1",
    "spark.ui.retainedStages": "1",
    "spark.ui.retainedTasks": "1",
}
# For a master inside this process a small job is planning and scheduling, not data (docs/targets/delta.md has the figures).
_LOCAL_ONLY: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Without it the driver deserialises Java objects of any process that connects to its ports. Spark makes the secret itself.
    "spark.authenticate": "true",
    # A batch that needs too much memory fails alone; by default its task would end the JVM, and with it the work of all tables.
    "spark.executor.killOnFatalError.depth": "0",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "true",
}
# On a cluster Spark's own defaults hold (adaptive execution sizes shuffles; the driver's host is this one's address),
# but where they start many tasks for a little metadata.
_CLUSTER_ONLY: Final = {
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
}


def session_confs(config: SparkConfig, needs: SparkNeeds, *, cores: int, scratch: str) -> dict[str, str]:
    """Return every setting Spark is started with.

    Args:
        config: The user's configuration; `config.settings` wins over everything here except `spark.sql.variable.substitute`.
        needs: The target's requirements.
        cores: Cores of this machine, for `local[*]`.
        scratch: A folder for Spark's temporary files.
    """
    confs = {
        **_ALWAYS,
        **needs.settings,
        "spark.master": config.master,
        "spark.app.name": "replicator",
        "spark.driver.memory": "2g",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        # The driver's own; executors of a cluster have folders of their own.
        "spark.local.dir": f"{scratch}/local",
    }
    if threads := local_threads(config.master, cores):
        confs |= {**_LOCAL_ONLY, **needs.local_settings}
        confs |= {
            "spark.sql.shuffle.partitions": str(threads),
            "spark.default.parallelism": str(threads),
            # VACUUM lists files in as many tasks as this says: 10,000 of them took two minutes for a table of one file.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(threads),
            # Throughput counts here, not pauses, and on few cores the concurrent collector takes them from the work.
            "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        }
    else:
        confs |= {**_CLUSTER_ONLY, **needs.cluster_settings}
    if config.jars:
        confs["spark.jars"] = ",".join(config.jars)
    if packages := wanted_packages(config, needs):
        confs["spark.jars.packages"] = ",".join(packages)
    return confs | dict(config.settings) | _FORCED


def wanted_packages(config: SparkConfig, needs: SparkNeeds) -> Sequence[str]:
    """Return the Maven coordinates that Spark has to resolve."""
    is_provided = needs.provided_by is not None and any(needs.provided_by in jar for jar in config.jars)
    return tuple(dict.fromkeys((*(() if is_provided else needs.packages), *config.packages)))


class SparkHost:
    """The process's one Spark. `session` starts it when first asked and again after its JVM has died; threads may share it.

    The JVM reads its standard input, a pipe from this process, and ends at end-of-file: `kill -9` of this process
    leaves no JVM.

    Args:
        config: The `spark:` block.
        needs: The target's requirements.
        cores: Cores of this machine.
        log_file: The output of Spark, Ivy and log4j; None: a file that is deleted at the end.
        scratch: Folder for Spark's temporary files; None: one in the system's folder for temporary files.
    """

    def __init__(
        self,
        config: SparkConfig,
        needs: SparkNeeds,
        *,
        cores: int,
        log_file: Path | None = None,
        scratch: Path | None = None,
    ) -> None:
        self._config = config
        self._needs = needs
        self._cores = cores
        self._log_file = log_file
        self._scratch_parent = scratch
        self._lock = threading.Lock()
        self._scratch: ScratchFolder | None = None
        self._log: IO[bytes] | None = None
        self._process: Any = None
        self._session: Any = None
        self._watch: ExecutorWatch | None = None

    def session(self) -> Any:
        """Return the SparkSession.

        Raises:
            ConfigError: `spark_not_started`: packages cannot be resolved, Java is missing, a setting is refused.
        """
        with self._lock:
            if self._session is not None and self._process.poll() is not None:
                self._forget()
            if self._session is None:
                self._start()
            return self._session

    def stop(self) -> None:
        """End Spark and its JVM. May be called twice."""
        with self._lock:
            if self._session is not None and self._process.poll() is None:
                from py4j.protocol import Py4JError

                # The JVM may die while it stops, which has the same result.
                with contextlib.suppress(Py4JError, OSError):
                    self._session.stop()
            self._forget()

    def _start(self) -> None:
        from py4j.protocol import Py4JError
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        _quiet_py4j()
        for problem in (setting_problem(self._config.master), java_problem()):
            if problem is not None:
                raise ConfigError(problem.message, code=problem.code, action=problem.action)
        if (away := reach_problem(self._config.master)) is not None:
            raise TargetUnavailableError(away.message, code=away.code, action=away.action)
        parent = self._scratch_parent or Path(tempfile.gettempdir()) / f"replicator-{os.getuid()}"
        try:
            self._scratch = ScratchFolder(parent)
            scratch = self._scratch.path
            path = self._log_file or scratch / "spark.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._log = path.open("ab")
        except OSError as error:
            self._forget()
            raise _no_scratch(parent, error.strerror or type(error).__name__) from error
        position, began = self._log.tell(), time.monotonic()
        _log.info("spark_starting", master=self._config.master)
        settings = session_confs(self._config, self._needs, cores=self._cores, scratch=str(scratch))
        conf = SparkConf(loadDefaults=False)
        for name, value in settings.items():
            conf.set(name, value)
        try:
            self._process = launch(settings, folder=scratch, log=self._log)
            gateway = connect(self._process, scratch)
            _log.info("spark_jvm_started", duration_ms=round((time.monotonic() - began) * 1000))
            context = SparkContext(conf=conf, gateway=gateway)
            context.setLogLevel("ERROR")
            self._session = SparkSession(context)
            _log.info("spark_started", duration_ms=round((time.monotonic() - began) * 1000))
            if is_cluster(self._config.master):
                self._watch = ExecutorWatch(
                    context, self._process, timeout_s=self._config.executors_timeout.total_seconds()
                )
        except (PySparkException, Py4JError, OSError, ValueError) as error:
            raise self._start_error(path, position) from error

    def _start_error(self, path: Path, position: int) -> ReplicatorError:
        text = path.read_bytes()[position:].decode(errors="replace")
        assert self._scratch is not None, "it is made first"
        folder = self._scratch.path.parent
        is_full = shutil.disk_usage(folder).free < _SCRATCH_LEAST
        self._forget()
        return (
            _no_scratch(folder, "No space left on device") if is_full else start_error(text, self._config, self._needs)
        )

    def _forget(self) -> None:
        """Drop all state of the JVM, so that the next `session` starts from nothing."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if self._process is not None:
            if self._process.stdin is not None:
                # A JVM that is dead already has closed its end.
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()
            if self._process.poll() is None:
                self._process.terminate()
            self._process.wait()
            _leave_gateway()
        self._process = None
        self._session = None
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None


def _leave_gateway() -> None:
    """Have PySpark forget its JVM, for which it offers no way."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is not None:
        gateway.shutdown()
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
    SparkSession._activeSession = None  # noqa: SLF001


def _no_scratch(folder: Path, fact: str) -> ReplicatorError:
    """Return the error of a start without space: Spark's own reason is not available, as its log is most often on the same volume."""
    return TargetUnavailableError(
        f"Spark cannot start without temporary files in {folder}: {fact}.",
        code="spark_scratch_unusable",
        action="Free some space on the volume of that folder, or make it writable.",
    )


def local_folder() -> str | None:
    """Return the folder of temporary files of this process's Spark; None if it has none, or its executors have folders of their own."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 - `getOrCreate` would start one
    if context is None or is_cluster(context.master or ""):
        return None
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, OSError):  # it may just have ended
        return context.getConf().get("spark.local.dir")
    return None


def start_error(output: str, config: SparkConfig, needs: SparkNeeds) -> ReplicatorError:
    """Turn the output of Spark before it gave up into one message with the next step."""
    tail = "\n".join(output.splitlines()[-_LOG_TAIL_LINES:])
    if "All masters are unresponsive" in output:
        return TargetUnavailableError(
            f"The Spark master {config.master} did not accept this application within a minute.",
            code="spark_master_unreachable",
            action="Check that the port is the master's own (not its web page's), that the cluster runs Spark 4.2 with Scala 2.13, "
            "and that the master can connect to this host (spark.settings: spark.driver.host, spark.driver.port).",
        )
    if "unresolved dependency" in output or "UNRESOLVED DEPENDENCIES" in output:
        return ConfigError(
            f"Spark could not resolve {', '.join(wanted_packages(config, needs))} from its Maven repositories. Its output ends:\n{tail}",
            code="spark_packages_unresolved",
            action="Behind a mirror, set spark.settings.spark.jars.repositories or spark.jars.ivySettings; without a network list "
            "every jar, including dependencies, as a local file in spark.jars.",
        )
    action = "Check the spark block: master, memory and settings; Spark 4.2 needs Java 17 or later."
    if nameless := re.search(r"UnknownHostException: ([^\s:]+)", output):
        action = (
            f"The name {nameless[1]} has no address. If it is this host's own name, add it to /etc/hosts, or set the variable"
            " SPARK_LOCAL_IP to an address of this host; otherwise check the names in the spark block."
        )
    return ConfigError(
        f"Spark with master {config.master} did not start. Its output ends:\n{tail}",
        code="spark_not_started",
        action=action,
    )


def spark_error(error: BaseException) -> ReplicatorError | None:
    """Return the error that says that the JVM has died; None if `error` means something else."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    # Whatever py4j makes of a dead JVM ("… does not exist in the JVM", a package instead of a class): it is dead.
    broken = isinstance(error, Py4JError | ConnectionError | EOFError)
    lost = _jvm_has_ended(grace_s=_DYING_S if broken else 0)
    lost = lost or isinstance(error, Py4JNetworkError | ConnectionError | EOFError)
    # py4j reports a connection that broke in the middle of an answer as an error of the call, without a Java exception.
    if not lost and type(error) is Py4JError:
        text = str(error)
        lost = "An error occurred while calling" in text and "Trace" not in text
    # A JVM of ours that stops its context while a job runs is on its way out.
    if not lost and not any(words in str(error) for words in _ENDED):
        return None
    if reason := end_reason():
        return reason
    if not lost:
        return TargetCrashedError(
            "Spark ended this application.",
            code="spark_lost",
            action="It restarts automatically. If it ends again, read the logs of the driver, the master and the executors (work folders "
            "of the workers). A master ends an application when its executors end ten times right after their start. Often they cannot "
            "connect to the driver.",
        )
    return TargetCrashedError(
        "Spark's JVM has died.",
        code="spark_lost",
        action="It restarts automatically. If it dies again, give it more memory.",
    )


def _jvm_has_ended(*, grace_s: float) -> bool:
    """Return whether this process's JVM is dead, or dies within `grace_s`: its connections break before it can be waited for."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - the gateway is PySpark's own
    if process is None:
        return False
    # Still alive after that is an answer, too.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)
    return process.poll() is not None


def _quiet_py4j() -> None:
    """Keep py4j and PySpark from logging, with tracebacks and values of rows, the errors that they raise as well."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    root = logging.getLogger()
    if _is_not_py4js not in root.filters:
        root.addFilter(_is_not_py4js)


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return record.module not in ("java_gateway", "clientserver")
