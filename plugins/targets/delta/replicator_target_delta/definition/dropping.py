"""Removes a table's folder without Spark, and only one that is ours."""

from __future__ import annotations

import json

import pyarrow.fs as pafs

from replicator.plugins.target import TargetTable
from replicator_target_delta.log.table import UUID, DamagedLogError, read_log, readable_below
from replicator_target_delta.storage import DROP_MARK, Storage


def drop_folder(storage: Storage, path: str, table: TargetTable) -> bool:
    """Remove the folder at `path`: first its data, then its log, last the mark that names its owner.

    False: it is another's, or there is none. A crash in between leaves the mark: the next attempt continues.

    Raises:
        DamagedLogError: There is a log that cannot be read, and no attempt before has begun.
    """
    mark = f"{path}/{DROP_MARK}"
    is_marked = _is_marked(storage, mark, table)
    try:
        log = read_log(storage, path)
    except DamagedLogError as error:
        # What an attempt before left of it; or whose it was before a commit that nobody can read.
        log = None if is_marked or error.version is None else readable_below(storage, path, error)[0]
        if log is None and not is_marked:
            raise
    if log is not None:
        if log.properties.get(UUID) != table.uuid:
            return False
        storage.write_json(mark, {"uuid": table.uuid})
    elif not is_marked:
        return False
    for name in sorted(storage.names(path), key=lambda name: (name == DROP_MARK, name == "_delta_log")):
        storage.remove(f"{path}/{name}")
    storage.remove(path)
    return True


def _is_marked(storage: Storage, mark: str, table: TargetTable) -> bool:
    """Return whether an attempt to delete the table had begun; a mark that is not whole does not count."""
    if storage.kind(mark) is pafs.FileType.NotFound:
        return False
    try:
        return bool(json.loads(storage.read(mark)) == {"uuid": table.uuid})
    except ValueError:
        return False
