"""Lets readers see a table's new incarnation instead of the old one (`building`, steps 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import unquote

from replicator.model.crash import crash_point
from replicator.plugins.kit.lake.needed import EngineNeededError
from replicator_target_delta import history
from replicator_target_delta.building import is_older
from replicator_target_delta.held import HeldTable
from replicator_target_delta.lane import vectors
from replicator_target_delta.lane.log import DeltaLakeLogReader, LiveFile
from replicator_target_delta.ledger import Look, Transaction, claim_lost
from replicator_target_delta.storage import Storage

_FILES_AT_ONCE: Final = 16


def swap(
    held: HeldTable, storage: Storage, path: str, ledgers: Callable[[Look], Mapping[str, int]]
) -> Mapping[str, str]:
    """Make the table at `path` what its building is; its properties afterwards.

    Args:
        held: The building.
        storage: Where both are.
        path: The table's path.
        ledgers: What is to be recorded in a version of the table; it refuses one that may not be followed.

    Raises:
        EngineNeededError: The building has something that is not understood.
        Exception: What `ledgers` raises; Delta's, if others have changed the table meanwhile.
    """
    state = DeltaLakeLogReader(storage, held.path).refresh()
    if state.unknown is not None:
        raise EngineNeededError(state.unknown)
    files = list(state.files.values())
    _share(files, storage, held.path, path)
    crash_point("target.files_shared")
    transaction = Transaction(held.session, path)
    if not transaction.exists or not is_older(held.table, transaction):
        raise claim_lost(held.table)
    adds = [{"add": {**file.add, "dataChange": True}} for file in files]
    note = history.swap_note(held.table.incarnation)
    transaction.replace(held.path, held.session, ledgers(transaction), adds, note=note)
    crash_point("target.swapped")
    return Transaction(held.session, path).properties


def _share(files: Sequence[LiveFile], storage: Storage, source: str, to: str) -> None:
    """Give data files and deletion vectors a name in another folder, too."""
    names = {unquote(file.path) for file in files}
    names |= {vectors.name_of(file.vector) for file in files if file.vector is not None and file.vector.storage != "i"}
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="delta-share") as executor:
        for _ in executor.map(lambda name: storage.share(f"{source}/{name}", f"{to}/{name}"), sorted(names)):
            pass
