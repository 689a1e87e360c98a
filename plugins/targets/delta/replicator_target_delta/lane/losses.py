"""Checks that the files that the newest version of a table needs are there and whole, by one listing.

The direct writer has keys and deletion vectors in memory, and may continue for long where a reader finds nothing.

Where a checkpoint was removed that the log can do without, the file `_last_checkpoint` still names it, and some readers (delta-rs, DuckDB)
refuse the table. The file is only a hint, so it is removed. Should another writer write a better one at this moment, and that one be
removed, readers list the log until the next checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol
from urllib.parse import unquote

from replicator.model.schema import TableId
from replicator.plugins import get_logger
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.target import TargetTable
from replicator_target_delta.lane.log import DeltaLakeLogReader, LogState
from replicator_target_delta.lane.vectors import end_of, name_of
from replicator_target_delta.log.files import LogFiles
from replicator_target_delta.log.table import UUID, LostFilesError, read_log
from replicator_target_delta.storage import Storage

LOOK_EVERY_S: Final = 9 * 60.0
"""Seconds between two listings of a table for an audit: a little less than the interval at which an idle table is audited."""
_log = get_logger("target.delta")


class FileChecks:
    """Checks now and then, for audits, that all files that readers of a table need are there.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._checked: dict[TableId, float] = {}

    def check(self, storage: Storage, path: str, table: TargetTable, direct: SupportsCheck | None) -> None:
        """Check log and files of the table at `path`, if that is due, and its hint. `direct`: an object that knows its files already.

        Raises:
            DamagedLogError, LostFilesError: Readers do not find files that they need.
        """
        now = self._clock()
        if now - self._checked.get(table.table, self._began) < LOOK_EVERY_S:
            return
        self._checked[table.table] = now
        log = read_log(storage, path)
        if log is not None and log.properties.get(UUID) == table.uuid:
            _mend_hint(storage, path, table)
        if direct is None:
            check_files(storage, path)
        else:
            direct.check_files()


def _mend_hint(storage: Storage, path: str, table: TargetTable) -> None:
    """Remove the hint at a checkpoint, if neither that one nor a newer one is there."""
    files = LogFiles(storage, path)
    version = files.hint()
    # Listed after the hint was read: a checkpoint is written before the hint at it.
    if version is not None and max(files.listing().checkpoints, default=-1) < version:
        storage.remove(files.hint_path)
        _log.warning("checkpoint_hint_removed", table=str(table.table), version=version)


class SupportsCheck(Protocol):
    """Knows a table's files."""

    def check_files(self) -> None:
        """See the function `check_files`."""


def check_files(storage: Storage, path: str, refresh: Callable[[], LogState] | None = None) -> None:
    """Check the files of the table at `path`; nothing, if its log is not understood without Spark.

    Args:
        storage: File system of the target.
        path: The table's path.
        refresh: Reads the new commits of its log; None: all of it is read.

    Raises:
        LostFilesError: Some are not there, or are shorter than the log says.
    """
    refresh = refresh or DeltaLakeLogReader(storage, path).refresh
    try:
        needed = _needed(refresh())
        there = storage.sizes(path)
        lost = {name for name, size in needed.items() if there.get(name, -1) < size}
        if lost:
            # Somebody may have rewritten and removed files since: what the table still needs now, it needed all the time.
            lost &= _needed(refresh()).keys()
    except EngineNeededError:
        return
    if lost:
        first = min(lost)
        what = f"is cut off after {there[first]} bytes" if first in there else "is missing"
        more = f", and {len(lost) - 1} more are missing or cut off" if len(lost) > 1 else ""
        raise LostFilesError(f"A file that the target table needs {what}: {first}{more}.")


def _needed(state: LogState) -> Mapping[str, int]:
    """The least size of each file that a version needs, by its path below the table's."""
    if state.unknown is not None:
        raise EngineNeededError(state.unknown)
    needed = {unquote(file.path): file.size for file in state.files.values()}
    for file in state.files.values():
        if file.vector is not None and file.vector.storage == "u":
            name = name_of(file.vector)
            needed[name] = max(needed.get(name, 0), end_of(file.vector))
    return needed
