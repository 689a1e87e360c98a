"""Upkeep of a table: the decision what is due, from its log in pure code; the lock against merges; the statements."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from replicator_target_delta.config import MaintenanceConfig
from replicator_target_delta.log.table import read_log
from replicator_target_delta.shape.tables import path_of
from replicator_target_delta.storage import Storage
from replicator_target_delta.upkeep.compaction import join_small_files
from replicator_target_delta.upkeep.purge import purge

if TYPE_CHECKING:
    from replicator_target_delta.lane.log import LiveFile

VACUUM_LEDGER: Final = "replicator/vacuum"
"""Ledger name under which the table's log has the time of its last VACUUM, in seconds since 1970."""

# After so many times that a merge has cut upkeep short, the merge waits once: without upkeep merges become slower and
# slower.
PATIENCE: Final = 3
_CANCEL_EVERY_S: Final = 1.0
# No merge takes longer: its files are spared by a VACUUM whose retention is not shorter.
LONGEST_MERGE: Final = timedelta(days=1)
_SUMMED: Final = ("size", "small", "numbered", "hidden")


class UpkeepKind(StrEnum):
    """Kinds of upkeep, the most urgent first.

    `COMPACT` is Delta's `OPTIMIZE`. Of a table without clustering it joins the files; a clustered one it clusters again, mostly
    as a whole. `JOIN` is for clustered tables, and touches no file but the small ones.
    """

    PURGE = "purge"
    COMPACT = "compact"
    JOIN = "join"
    VACUUM = "vacuum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The state of a table's files; `cube_bytes` are those of its largest ZCube, which were clustered together."""

    files: int
    small_files: int
    bytes: int
    cube_bytes: int
    rows: int
    vectors: int
    deleted_rows: int
    last_vacuum: datetime


def last_vacuum(storage: Storage, path: str, now: datetime) -> datetime:
    """Time of the table's last VACUUM, as its log says; that of its creation, if there was none."""
    log = read_log(storage, path)
    if log is None:
        return now
    seconds = log.transactions.get(VACUUM_LEDGER)
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None else log.created


def due(condition: Condition, config: MaintenanceConfig, now: datetime) -> UpkeepKind | None:
    """Decide what is due, if anything.

    A clustered table is clustered again when more than half of it is outside of its largest ZCube. So the whole of it is
    rewritten once for each doubling, not once for every few merges.
    """
    if not config.enabled:
        return None
    if condition.deleted_rows > config.deleted_rows_share_max * max(condition.rows, 1):
        return UpkeepKind.PURGE
    if condition.small_files > config.small_files_max:
        return (
            UpkeepKind.JOIN
            if condition.cube_bytes and 2 * condition.cube_bytes >= condition.bytes
            else UpkeepKind.COMPACT
        )
    if now - condition.last_vacuum >= config.vacuum_every:
        return UpkeepKind.VACUUM
    return None


def carry_out(session: Any, upkeep: UpkeepKind, path: str, config: MaintenanceConfig) -> bool:
    """Carry out upkeep, by one commit at most; False if there was nothing to do."""
    match upkeep:
        case UpkeepKind.PURGE:
            return purge(session, path) > 0
        case UpkeepKind.COMPACT:
            metrics = session.sql(f"OPTIMIZE {path_of(path)}").collect()[0]["metrics"]
            # Delta leaves large ZCubes alone, whatever their files are.
            return bool(metrics["numFilesRemoved"]) or join_small_files(session, path, config.small_file_size) > 0
        case UpkeepKind.JOIN:
            return join_small_files(session, path, config.small_file_size) > 0
        case UpkeepKind.VACUUM:
            # The setting asks the administrator, who has set the retention.
            session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
            session.sql(vacuum_statement(path, config.vacuum_retention)).collect()
            return True


def vacuum_statement(path: str, retention: timedelta) -> str:
    """The statement of a full VACUUM: files that killed merges have left are in no log."""
    hours = retention / timedelta(hours=1)
    return f"VACUUM {path_of(path)} RETAIN {hours:g} HOURS"


def takes_turn(upkeep: UpkeepKind, retention: timedelta) -> bool:
    """Return whether it must not run during a merge.

    VACUUM commits nothing that a merge could conflict with, but with a short retention it would remove files that the
    merge has written and not committed yet.
    """
    return upkeep is not UpkeepKind.VACUUM or retention < LONGEST_MERGE


def condition_of(session: Any, path: str, config: MaintenanceConfig, last_vacuum: datetime) -> Condition:
    """Read the state of a table's files from its log: one small job, no data."""
    from pyspark.sql import DataFrame
    from pyspark.sql.functions import expr

    jvm = session._jvm  # noqa: SLF001 - the list of files has no public form
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)  # noqa: SLF001
    none = jvm.scala.Option.empty()
    files = DataFrame(log.update(False, none, none).allFiles().toDF(), session)
    cubes = files.selectExpr(
        "tags['ZCUBE_ID'] AS cube",
        "size",
        f"int(size < {config.small_file_size}) AS small",
        "get_json_object(stats, '$.numRecords')::bigint AS numbered",
        "deletionVector.cardinality AS hidden",
    ).groupBy("cube")
    by_cube = cubes.agg(
        *map(expr, ("count(*) AS files", "count(hidden) AS vectors", *(f"sum({n}) AS {n}" for n in _SUMMED)))
    )
    row = by_cube.selectExpr(
        "max(size) FILTER (WHERE cube IS NOT NULL) AS cube_bytes",
        *(f"sum({n}) AS {n}" for n in ("files", "vectors", *_SUMMED)),
    ).collect()[0]
    return Condition(
        files=row["files"] or 0,
        small_files=row["small"] or 0,
        bytes=row["size"] or 0,
        cube_bytes=row["cube_bytes"] or 0,
        rows=row["numbered"] or 0,
        vectors=row["vectors"] or 0,
        deleted_rows=row["hidden"] or 0,
        last_vacuum=last_vacuum,
    )


def condition_of_files(files: Collection[LiveFile], config: MaintenanceConfig, last_vacuum: datetime) -> Condition:
    """The state of files that are known, without Spark."""
    cubes: dict[str, int] = {}
    for file in files:
        cube = (file.tags or {}).get("ZCUBE_ID")
        if cube is not None:
            cubes[cube] = cubes.get(cube, 0) + file.size
    cardinalities = [file.vector.cardinality for file in files if file.vector is not None]
    return Condition(
        files=len(files),
        small_files=sum(file.size < config.small_file_size for file in files),
        bytes=sum(file.size for file in files),
        cube_bytes=max(cubes.values(), default=0),
        rows=sum(file.rows for file in files),
        vectors=len(cardinalities),
        deleted_rows=sum(cardinalities),
        last_vacuum=last_vacuum,
    )


class Turns:
    """Mutual exclusion of merges and upkeep of one table; upkeep yields.

    Upkeep is cut short when a merge comes, unless that has happened `PATIENCE` times in a row.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guard = threading.Lock()
        self._session: Any = None
        self._tag = ""
        self._times_cut = 0
        self._is_cut = False

    @property
    def is_cut(self) -> bool:
        """Return whether a merge has cancelled the upkeep that holds the table."""
        with self._guard:
            return self._is_cut

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the table for a merge."""
        if not self._lock.acquire(blocking=False):
            cuts_short = self._cut_short()
            # Spark cancels what runs at this moment, not what the same work starts next: so it is told again.
            while cuts_short and not self._lock.acquire(timeout=_CANCEL_EVERY_S):
                self._cancel()
            if not cuts_short:
                self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def upkeep(self, session: Any, tag: str) -> Iterator[bool]:
        """Hold the table for upkeep; False if a merge holds it. Jobs inside have `tag`."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            with self._guard:
                self._session, self._tag, self._is_cut = session, tag, False
            session.sparkContext.addJobTag(tag)
            try:
                yield True
            finally:
                session.sparkContext.removeJobTag(tag)
                with self._guard:
                    self._session = None
        finally:
            self._lock.release()

    def done(self) -> None:
        """Record that upkeep came to its end."""
        with self._guard:
            self._times_cut = 0

    def _cut_short(self) -> bool:
        """Cancel upkeep's jobs, unless it does not hold the table or was cut short too often in a row; return whether it did."""
        with self._guard:
            if self._session is None or self._times_cut >= PATIENCE:
                return False
            self._times_cut += 1
            self._is_cut = True
        self._cancel()
        return True

    def _cancel(self) -> None:
        with self._guard:
            if self._session is not None:
                self._session.sparkContext.cancelJobsWithTag(self._tag)


def report(upkeep: UpkeepKind, condition: Condition, outcome: str) -> Mapping[str, Any]:
    """The report of `maintain`."""
    return {
        "upkeep": upkeep.value,
        "outcome": outcome,
        "files": condition.files,
        "small_files": condition.small_files,
        "deletion_vectors": condition.vectors,
        "deleted_rows": condition.deleted_rows,
    }
