"""Problems at the target's path and at a table's path, found without Spark; leaves no files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

import pyarrow.fs as pafs

from replicator.model.errors import Problem, TableError
from replicator.model.naming import path_part
from replicator.model.schema import TableId
from replicator.plugins.kit.ledger import not_ours
from replicator_target_delta import rules
from replicator_target_delta.log.table import UUID, DamagedLogError, TableLog, read_log, readable_below
from replicator_target_delta.storage import BUILDINGS, Storage

_FOLDER_NAME_MAX: Final = 255
_PROBE: Final = "_replicator_probe"


def path_problems(open_storage: Callable[[], Storage], root: str) -> Sequence[Problem]:
    """Check that a file can be written below `root`, which is made for it and removed again where it is not there."""
    missing = root
    try:
        storage = open_storage()
        above = missing
        # The highest folder that does not exist yet is what has to be removed afterwards.
        while _kind(storage, above) is pafs.FileType.NotFound and "/" in above.rstrip("/"):
            missing, above = above, above.rpartition("/")[0] or "/"
        if _kind(storage, above) is pafs.FileType.File:
            raise NotADirectoryError(20, "Not a directory", above)
        made = above != root
        probe = f"{root}/{_PROBE}-{uuid4().hex}"
        try:
            storage.write_json(probe, {})
        finally:
            storage.remove(probe)
            if made:
                _remove_empty(root, missing)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        return [rules.TARGET_NOT_WRITABLE.finding(root=root, reason=reason)]
    return []


def existing_problems(storage: Storage, table: TableId, uuid: str, adopt: str) -> Sequence[Problem]:
    """Problems with data at the table's path that is not the table of this replicator and may not be adopted."""
    path = storage.table_path(table)
    kind = storage.kind(path)
    if kind is pafs.FileType.File:
        return [rules.PATH_IS_A_FILE.finding(table=str(table), path=path)]
    try:
        log = read_log(storage, path)  # nothing is nobody's
    except DamagedLogError as error:
        # What applies it says so: only then it can be recreated.
        is_ours = error.version is not None and _owner(readable_below(storage, path, error)[0]) == uuid
        return [] if is_ours else [rules.LOG_OF_OTHERS_UNREADABLE.finding(table=str(table), fact=error)]
    except OSError as error:
        return [rules.LOG_NOT_READ.finding(table=str(table), path=path, fact=error)]
    if log is None:
        # What is left of a first version that was never put is nobody's.
        if set(storage.names(path)) <= {"_delta_log"}:
            return []
        return [Problem.of(occupied(path, table))]
    owner = _owner(log)
    if adopt == "replace" or (owner is not None and owner == uuid):
        return []
    return [Problem.of(not_ours(table, owner, "target.path"))]


def _owner(log: TableLog | None) -> str | None:
    return None if log is None else log.properties.get(UUID)


def occupied(path: str, table: TableId) -> TableError:
    """The error for a folder at the table's path that is no Delta table."""
    return rules.TARGET_OCCUPIED.error(TableError, table=str(table), path=path)


def folder_problems(root: str, table: TableId) -> Sequence[Problem]:
    """Problems with the names of the table's folders: too long (not in object stores), or one of Replicator's own."""
    parts = [path_part(part) for part in (table.namespace, table.name)]
    if "/".join(parts) == BUILDINGS:
        return [rules.PATH_OF_BUILDINGS.finding(table=str(table), path=f"{root}/{BUILDINGS}")]
    longest = max(map(len, parts))
    if "://" in root or longest <= _FOLDER_NAME_MAX:
        return []
    return [rules.FOLDER_NAME_TOO_LONG.finding(table=str(table), longest=longest, most=_FOLDER_NAME_MAX)]


def _remove_empty(folder: str, to: str) -> None:
    """Remove folders that were made for the probe, from the lowest. Apply may have put a table there meanwhile: then they stay."""
    while Storage(folder).remove_empty(folder) and folder != to:
        folder = folder.rpartition("/")[0]


def _kind(storage: Storage, path: str) -> pafs.FileType:
    """The type of a path at or above the storage's root."""
    return storage.kind(path) if path == storage.root else Storage(path).kind(path)
