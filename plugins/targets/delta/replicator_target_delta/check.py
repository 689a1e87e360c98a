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
        return [
            Problem(
                code="target_not_writable",
                message=f"{root} cannot be written: {reason}.",
                location="target.path",
                action="Make it accessible and writable for this process, or choose another target.path.",
            )
        ]
    return []


def existing_problems(storage: Storage, table: TableId, uuid: str, adopt: str) -> Sequence[Problem]:
    """Problems with data at the table's path that is not the table of this replicator and may not be adopted."""
    path = storage.table_path(table)
    kind = storage.kind(path)
    if kind is pafs.FileType.File:
        action = "Move it away, or choose another target.path."
        return [_problem("target_occupied", f"{path} is a file.", table, action)]
    try:
        log = read_log(storage, path)  # nothing is nobody's
    except DamagedLogError as error:
        # What applies it says so: only then it can be recreated.
        is_ours = error.version is not None and _owner(readable_below(storage, path, error)[0]) == uuid
        return [] if is_ours else [_problem("target_unreadable", str(error), table, "Move the folder away.")]
    except OSError as error:
        message = f"The Delta log in {path} cannot be read: {error}."
        return [_problem("target_unreadable", message, table, "Move the folder away.")]
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
    return TableError(
        f"{path} contains files but is not a Delta table.",
        code="target_occupied",
        table=str(table),
        action="Move the folder away, or choose another target.path.",
    )


def folder_problems(root: str, table: TableId) -> Sequence[Problem]:
    """Problems with the names of the table's folders: too long (not in object stores), or one of Replicator's own."""
    parts = [path_part(part) for part in (table.namespace, table.name)]
    if "/".join(parts) == BUILDINGS:
        action = "Rename the table in the source, or exclude it (tables.exclude)."
        message = f"{root}/{BUILDINGS} is where Replicator builds new incarnations of tables."
        return [_problem("target_occupied", message, table, action)]
    longest = max(map(len, parts))
    if "://" in root or longest <= _FOLDER_NAME_MAX:
        return []
    message = (
        f"The folder's name would have {longest} bytes, more than {_FOLDER_NAME_MAX}: other characters than ASCII letters and digits "
        "are written as two digits for each of their bytes."
    )
    action = "Rename the table in the source, exclude it (tables.exclude), or write to an object store."
    return [_problem("table_name_too_long", message, table, action)]


def _remove_empty(folder: str, to: str) -> None:
    """Remove folders that were made for the probe, from the lowest. Apply may have put a table there meanwhile: then they stay."""
    while Storage(folder).remove_empty(folder) and folder != to:
        folder = folder.rpartition("/")[0]


def _kind(storage: Storage, path: str) -> pafs.FileType:
    """The type of a path at or above the storage's root."""
    return storage.kind(path) if path == storage.root else Storage(path).kind(path)


def _problem(code: str, message: str, table: TableId, action: str) -> Problem:
    return Problem(code=code, message=message, table=str(table), action=action)
