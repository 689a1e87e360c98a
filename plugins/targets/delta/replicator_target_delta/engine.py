"""Choice of the engine for a batch: the direct writer (`lane`), which commits it itself, or Spark's MERGE (`target.engine`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from replicator.model.schema import TableId, TableSchema
from replicator.plugins import get_logger
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.target import Batch, EngineReport, TargetTable
from replicator_target_delta.config import DeltaLakeConfig, MaintenanceConfig
from replicator_target_delta.log.store import LogStore, create
from replicator_target_delta.log.table import LostFilesError
from replicator_target_delta.shape.tables import NewTable
from replicator_target_delta.storage import Storage
from replicator_target_delta.upkeep.due import Condition, UpkeepKind, condition_of_files, takes_turn

if TYPE_CHECKING:
    from replicator.plugins.kit.lake.index import IndexCache
    from replicator_target_delta.lane.bulk import Bulk
    from replicator_target_delta.lane.lane import Applied, Lane
    from replicator_target_delta.lane.rewrite import Rewritten

DIRECT: Final = EngineReport(rung="L1")
CHECKPOINT_INTERVAL: Final = 100
"""Direct commits between two checkpoints; Delta makes one for every ten of its own."""

BYTES_PER_S: Final = 32 << 20
"""Bytes per second that the commits of a table write at most on average, unless it lags."""

SPARK_WANTED: Final = "target.engine is spark"

_log = get_logger("target.delta")


def merged_by_spark(reason: str) -> EngineReport:
    """The engine of a batch that the direct writer does not apply."""
    return EngineReport(rung="L0", reason=None if reason == SPARK_WANTED else reason)


def found_by_spark(reason: str) -> EngineReport:
    """The engine of a batch whose rows Spark finds and writes, and the direct writer commits."""
    return EngineReport(rung="L2", reason=reason)


class Pace:
    """Pace of a table's direct commits: one begins `max_wait_s` after the last began, or later if that wrote much; thread-safe.

    Each commit leaves a version and small files that somebody must join.
    """

    def __init__(self, max_wait_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_wait_s, self._clock = max_wait_s, clock
        self._due: dict[TableId, float] = {}

    def now(self) -> float:
        """The time, as `committed` takes it."""
        return self._clock()

    def committed(self, table: TableId, began: float, written: int) -> None:
        """Record a commit that began at that time and wrote `written` bytes."""
        self._due[table] = began + max(self._max_wait_s, written / BYTES_PER_S if self._max_wait_s else 0.0)

    def rest_s(self, table: TableId) -> float:
        """Seconds until the table's next commit may begin."""
        return max(0.0, self._due.get(table, 0.0) - self._clock())


class SparkCommits:
    """Writes versions of a table under Delta's lock in Spark's JVM, as Spark does (`lane.commits.Commits`).

    Args:
        session: A SparkSession.
        path: The table's path.
    """

    def __init__(self, session: Any, path: str) -> None:
        self._store = LogStore(session, path)

    def put(self, version: int, lines: Sequence[str]) -> bool:
        """See `Commits.put`."""
        return self._store.put(version, lines)

    def checkpoint(self) -> None:
        """See `LogStore.checkpoint`."""
        self._store.checkpoint()


class DirectTable:
    """A table's direct writer, and its upkeep in the background. Used from one thread, except for the background work.

    A failure there ends nothing: `check` raises it, for the host to count and show, and until then nothing else is begun.

    Args:
        lane: The direct writer.
        commits: Makes checkpoints.
        background: Executor of the work.
        vacuums: Executor of VACUUM, which takes minutes.
        config: Conditions under which files are rewritten.
    """

    def __init__(
        self, lane: Lane, commits: SparkCommits, background: Executor, vacuums: Executor, config: MaintenanceConfig
    ) -> None:
        self._lane, self._commits, self._config = lane, commits, config
        self._background, self._vacuums = background, vacuums
        self._vacuum: Future[object] | None = None
        self._rewriting: Future[Rewritten] | None = None
        self._checkpoint: Future[None] | None = None
        # Of so many intervals the versions are there; the one that ends an interval may be anybody's.
        self._reached: int | None = None
        self._failure: Exception | None = None
        self._planned: frozenset[str] = frozenset()
        self._given_up: frozenset[str] = frozenset()

    def apply(self, table: TargetTable, batch: Batch, last: int) -> tuple[Mapping[str, Any] | None, int]:
        """See `Lane.apply`; return its counts, for logs and status, and the bytes that it wrote. Ends and begins upkeep that is due."""
        self.finish(table)
        applied = self._lane.apply(table, batch, last)
        if applied is None:
            return None, 0
        self._begin(table, batch.schema, applied.version)
        return _details(applied, batch, "direct"), applied.bytes

    def apply_bulk(
        self, table: TargetTable, batch: Batch, bulk: Bulk, last: int
    ) -> tuple[Mapping[str, Any] | None, int]:
        """Apply a batch that is folded somewhere else; otherwise as `apply`."""
        from replicator_target_delta.lane.bulk import apply_bulk

        self.finish(table)
        applied = apply_bulk(self._lane, table, batch, bulk, last)
        if applied is None:
            return None, 0
        self._begin(table, batch.schema, applied.version)
        return _details(applied, batch, "bulk"), applied.bytes

    def clear(self, table: TargetTable, sequence_num: int, below: int | None, last: int) -> bool:
        """See `Lane.clear`; False: it was recorded already."""
        self.finish(table)
        return self._lane.clear(table, sequence_num, below, last) is not None

    def finish(self, table: TargetTable) -> bool:
        """Commit the rewritten files, if they are done; return whether anything was committed.

        Raises:
            LostFilesError: Files to rewrite are missing.
        """
        self._check_losses()
        future = self._rewriting
        if future is None or not future.done():
            return False
        self._rewriting = None
        try:
            return self._lane.commit_rewrite(table, future.result())
        except EngineNeededError as refused:
            self._given_up = self._planned
            self._give_up(table, refused)
            self._check_losses()
        except Exception as error:  # noqa: BLE001 - raised by `check`
            self._failure = error
        return False

    def condition(self, last_vacuum: datetime) -> Condition:
        """The state of the table's files.

        Raises:
            EngineNeededError: The log is not understood.
        """
        return condition_of_files(self._lane.files(), self._config, last_vacuum)

    def check(self) -> None:
        """Raise the error of background work since the last call, if any."""
        failure, self._failure = self._failure, None
        if failure is None and self._vacuum is not None and self._vacuum.done():
            vacuum, self._vacuum = self._vacuum, None
            vacuum.result()
        if failure is not None:
            raise failure

    def vacuum(self, work: Callable[..., object], *arguments: object) -> bool:
        """Begin a VACUUM in the background; False if one has not come to its end."""
        if self._vacuum is not None:
            return False
        self._vacuum = self._vacuums.submit(work, *arguments)
        return True

    def make_way(self, upkeep: UpkeepKind, retention: timedelta) -> bool:
        """Return whether Spark's upkeep may begin: only one of the two rewrites files; a rewrite that a VACUUM would remove is given up."""
        if upkeep is not UpkeepKind.VACUUM:
            return self._rewriting is None
        if takes_turn(upkeep, retention):
            self.drop_rewrite()
        return True

    def drop_rewrite(self) -> None:
        """Give up the rewrite that is in progress."""
        future, self._rewriting = self._rewriting, None
        if future is not None and not future.cancel():
            future.add_done_callback(self._discard)

    def _discard(self, future: Future[Rewritten]) -> None:
        if future.exception() is None:
            self._lane.remove(future.result().add)

    def _give_up(self, table: TargetTable, refused: EngineNeededError) -> None:
        """Leave files as they are, unless they cannot be read at all."""
        _log.info("rewrite_given_up", table=str(table.table), reason=str(refused))
        try:
            self._lane.check_files()
        except LostFilesError as error:
            self._failure = error

    def _check_losses(self) -> None:
        if isinstance(self._failure, LostFilesError):
            self.check()

    def check_files(self) -> None:
        """See `Lane.check_files`."""
        self._lane.check_files()

    def _begin(self, table: TargetTable, schema: TableSchema, version: int) -> None:
        reached = version // CHECKPOINT_INTERVAL
        if (
            self._reached is not None
            and reached > self._reached
            and (self._checkpoint is None or self._checkpoint.done())
        ):
            self._checkpoint = self._background.submit(self._commits.checkpoint)
        self._reached = reached
        if self._rewriting is not None or self._failure is not None or not self._config.enabled:
            return
        try:
            plan = self._lane.plan_rewrite(
                table,
                schema,
                small_file_size=self._config.small_file_size,
                deleted_share_max=self._config.deleted_rows_share_max,
            )
        except EngineNeededError as refused:
            self._give_up(table, refused)
            return
        planned = frozenset(file.path for file in plan.files) if plan is not None else frozenset()
        # They would be refused after every batch: Spark rewrites them when its time comes.
        is_refused = bool(self._given_up) and self._given_up <= planned
        if plan is not None and not is_refused:
            self._planned = planned
            self._rewriting = self._background.submit(self._lane.rewrite, plan)


class Lanes:
    """The direct writers of a process, which share the memory for their indexes and two threads for their upkeep; thread-safe.

    Args:
        config: The target's settings.
    """

    def __init__(self, config: DeltaLakeConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._indexes: IndexCache | None = None
        self._background: ThreadPoolExecutor | None = None
        self._vacuums: ThreadPoolExecutor | None = None
        self._checked: dict[str, str | None] = {}

    def create(self, session: Any, storage: Storage, path: str, new: NewTable, ledgers: Mapping[str, int]) -> bool:
        """Create a table where there is none; False: another writer was first.

        Raises:
            EngineNeededError: Spark must do it.
        """
        self._check(session, storage)
        from replicator_target_delta.lane.creation import first_version

        actions = first_version(new, ledgers, int(time.time() * 1000))
        return create(LogStore(session, path), storage, path, actions, "Manual Update")

    def open(self, session: Any, storage: Storage, path: str) -> DirectTable:
        """Open the table at `path`.

        Raises:
            EngineNeededError: Spark must merge all batches.
        """
        self._check(session, storage)
        # What they need is loaded only where it is used.
        from replicator.plugins.kit.lake.index import IndexCache
        from replicator_target_delta.lane.lane import Lane

        with self._lock:
            if self._indexes is None:
                self._indexes = IndexCache(self._config.index_memory)
            if self._background is None or self._vacuums is None:
                self._background = ThreadPoolExecutor(1, thread_name_prefix="delta-upkeep")
                self._vacuums = ThreadPoolExecutor(1, thread_name_prefix="delta-vacuum")
            indexes, background, vacuums = self._indexes, self._background, self._vacuums
        commits = SparkCommits(session, path)
        lane = Lane(storage, path, commits, indexes)
        return DirectTable(lane, commits, background, vacuums, self._config.maintenance)

    def _check(self, session: Any, storage: Storage) -> None:
        if self._config.engine == "spark":
            raise EngineNeededError(SPARK_WANTED)
        with self._lock:
            application = session.sparkContext.applicationId
            if application not in self._checked:
                self._checked[application] = _why_apart(session, storage)
            if why := self._checked[application]:
                raise EngineNeededError(why)

    def close(self) -> None:
        """Begin no further work; work in progress comes to its end."""
        with self._lock:
            executors, self._background, self._vacuums = (self._background, self._vacuums), None, None
        for executor in executors:
            if executor is not None:
                executor.shutdown(wait=False, cancel_futures=True)


def _details(applied: Applied, batch: Batch, way: str) -> Mapping[str, Any]:
    if applied.is_append:
        return {"way": "append", "rows": batch.rows}
    counts = applied.counts
    return {"way": way, "matched": counts.matched, "inserted": counts.inserted, "deleted": counts.deleted}


def _why_apart(session: Any, storage: Storage) -> str | None:
    """The reason for which Spark cannot read the files that this process writes; None if it can.

    Raises:
        Exception: The storage's or py4j's, where it cannot be told.
    """
    from py4j.protocol import Py4JJavaError

    path, text = storage.own_path("probes", uuid4().hex), uuid4().hex
    try:
        with storage.open_output(path) as file:
            file.write(text.encode())
        jvm = session._jvm  # noqa: SLF001 - Hadoop's file systems have no public form in Python
        name = jvm.org.apache.hadoop.fs.Path(path)
        conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        try:
            stream = name.getFileSystem(conf).open(name)
            try:
                found = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            finally:
                stream.close()
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() != "FileNotFoundException":
                raise  # it may pass: then the answer is another one
            return "Spark does not see the files that this process writes"
        return None if found == text else "Spark sees other files at target.path than this process"
    finally:
        storage.remove(path)
