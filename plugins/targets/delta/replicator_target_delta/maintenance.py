"""Upkeep of a table: what is due is decided from its log in pure code; whose turn it is; what does it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from replicator_target_delta.config import MaintenanceConfig
from replicator_target_delta.ddl import path_of
from replicator_target_delta.purge import purge

VACUUM_LEDGER: Final = "replicator/vacuum"
"""Ledger name under which the table's log says when it was last vacuumed, in seconds since 1970."""

# After so many times that a merge has cut upkeep short, the merge waits once: without upkeep merges become slower and
# slower.
PATIENCE: Final = 3
_CANCEL_EVERY_S: Final = 1.0
# No merge takes longer: its files are spared by a VACUUM whose retention is not shorter.
LONGEST_MERGE: Final = timedelta(days=1)


class Upkeep(StrEnum):
    """What can be done, the most urgent first."""

    PURGE = "purge"
    COMPACT = "compact"
    VACUUM = "vacuum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The state of a table's files."""

    files: int
    small_files: int
    rows: int
    vectors: int
    deleted_rows: int
    last_vacuum: datetime


def due(
    condition: Condition, config: MaintenanceConfig, now: datetime, *, futile: Condition | None = None
) -> Upkeep | None:
    """Decide what is due, if anything.

    Args:
        condition: The table's files now.
        config: The thresholds.
        now: For VACUUM.
        futile: The table's files when a COMPACT last found nothing to do, because Delta holds them for well clustered.
    """
    if not config.enabled:
        return None
    if condition.deleted_rows > config.deleted_rows_share_max * max(condition.rows, 1):
        return Upkeep.PURGE
    is_futile = futile is not None and (futile.files, futile.small_files) == (condition.files, condition.small_files)
    if condition.small_files > config.small_files_max and not is_futile:
        return Upkeep.COMPACT
    if now - condition.last_vacuum >= config.vacuum_every:
        return Upkeep.VACUUM
    return None


def carry_out(session: Any, upkeep: Upkeep, path: str, retention: timedelta) -> bool:
    """Do it, by one commit at most; False if there was nothing to do."""
    match upkeep:
        case Upkeep.PURGE:
            return purge(session, path) > 0
        case Upkeep.COMPACT:
            metrics = session.sql(f"OPTIMIZE {path_of(path)}").collect()[0]["metrics"]
            return bool(metrics["numFilesRemoved"])
        case Upkeep.VACUUM:
            # The setting asks the administrator, who has set the retention.
            session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
            session.sql(vacuum_statement(path, retention)).collect()
            return True


def vacuum_statement(path: str, retention: timedelta) -> str:
    """A full VACUUM: files that killed merges left behind are in no log."""
    hours = retention / timedelta(hours=1)
    return f"VACUUM {path_of(path)} RETAIN {hours:g} HOURS"


def takes_turn(upkeep: Upkeep, retention: timedelta) -> bool:
    """Whether it must not run during a merge.

    VACUUM commits nothing that a merge could conflict with, but with a short retention it would remove files that the
    merge has written and not committed yet.
    """
    return upkeep is not Upkeep.VACUUM or retention < LONGEST_MERGE


def condition_of(session: Any, path: str, config: MaintenanceConfig, last_vacuum: datetime) -> Condition:
    """Read the state of a table's files from its log: one small job, no data."""
    from pyspark.sql import DataFrame

    jvm = session._jvm  # noqa: SLF001 - the list of files has no public form
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)  # noqa: SLF001
    none = jvm.scala.Option.empty()
    files = DataFrame(log.update(False, none, none).allFiles().toDF(), session)
    row = files.selectExpr(
        "count(*) AS files",
        f"count_if(size < {config.small_file_size}) AS small_files",
        "coalesce(sum(get_json_object(stats, '$.numRecords')::bigint), 0) AS numbered",
        "count(deletionVector) AS vectors",
        "coalesce(sum(deletionVector.cardinality), 0) AS deleted_rows",
    ).collect()[0]
    return Condition(
        files=row["files"],
        small_files=row["small_files"],
        rows=row["numbered"],
        vectors=row["vectors"],
        deleted_rows=row["deleted_rows"],
        last_vacuum=last_vacuum,
    )


class Turns:
    """Merges and upkeep of one table take turns, and upkeep gives way.

    It is cut short when a merge comes, unless that has happened `PATIENCE` times in a row.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guard = threading.Lock()
        self._session: Any = None
        self._tag = ""
        self._cut_short = 0
        self._is_cut = False

    @property
    def is_cut(self) -> bool:
        """Whether a merge has cancelled the upkeep that has the turn."""
        with self._guard:
            return self._is_cut

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A merge's turn."""
        if not self._lock.acquire(blocking=False):
            cuts_short = self._may_cut_short()
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
        """Upkeep's turn; False if a merge has it. Jobs inside have `tag`."""
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
        """Upkeep came to its end."""
        with self._guard:
            self._cut_short = 0

    def _may_cut_short(self) -> bool:
        """Cancel upkeep's jobs if upkeep has the turn, and has not been cut short too often in a row."""
        with self._guard:
            if self._session is None or self._cut_short >= PATIENCE:
                return False
            self._cut_short += 1
            self._is_cut = True
        self._cancel()
        return True

    def _cancel(self) -> None:
        with self._guard:
            if self._session is not None:
                self._session.sparkContext.cancelJobsWithTag(self._tag)


def report(upkeep: Upkeep, condition: Condition, outcome: str) -> Mapping[str, Any]:
    """What `maintain` says it did."""
    return {
        "upkeep": upkeep.value,
        "outcome": outcome,
        "files": condition.files,
        "small_files": condition.small_files,
        "deletion_vectors": condition.vectors,
        "deleted_rows": condition.deleted_rows,
    }
