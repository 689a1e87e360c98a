"""Lets readers see a table's new incarnation instead of the old one (`building`, steps 3 and 4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import unquote

from replicator.model.crash import crash_point
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator_target_delta.definition.building import is_older
from replicator_target_delta.held import HeldTable
from replicator_target_delta.lane import vectors
from replicator_target_delta.ledger import Look, Transaction, claim_lost
from replicator_target_delta.log import history
from replicator_target_delta.scala import Scala
from replicator_target_delta.storage import Storage

_FILES_AT_ONCE: Final = 16
_OF_ITS_LOG: Final = frozenset({"baseRowId", "defaultRowCommitVersion"})
"""Numbers of rows, where a table has them: each table assigns its own."""


def swap(
    held: HeldTable, storage: Storage, path: str, ledgers: Callable[[Look], Mapping[str, int]]
) -> Mapping[str, str]:
    """Make the table at `path` equal to its building; return its properties afterwards.

    Args:
        held: The building.
        storage: File system of both.
        path: The table's path.
        ledgers: Returns the entries to record after a version of the table; it refuses one that may not be followed.

    Raises:
        EngineNeededError: The building has something that is not understood.
        Exception: Errors of `ledgers`; Delta's, if others have changed the table meanwhile.
    """
    files = _files(held)
    _share(files, storage, held.path, path)
    crash_point("target.files_shared")
    transaction = Transaction(held.session, path)
    if not transaction.exists or not is_older(held.table, transaction):
        raise claim_lost(held.table)
    note = history.swap_note(held.table.incarnation)
    transaction.replace(held.path, held.session, ledgers(transaction), [{"add": file} for file in files], note=note)
    crash_point("target.swapped")
    return Transaction(held.session, path).properties


def _files(held: HeldTable) -> Sequence[Mapping[str, Any]]:
    """The `add` actions of the building's newest version, as another table may have them."""
    scala = Scala(held.session)
    log = scala.delta.DeltaLog.forTable(held.session._jsparkSession, held.path)  # noqa: SLF001 - as `ledger.Transaction`
    snapshot = log.update(False, scala.none(), scala.none())
    adds = [json.loads(file.json())["add"] for file in snapshot.allFiles().collectAsList()]
    return [
        {**{name: value for name, value in add.items() if name not in _OF_ITS_LOG}, "dataChange": True} for add in adds
    ]


def _share(files: Sequence[Mapping[str, Any]], storage: Storage, source: str, to: str) -> None:
    """Give data files and deletion vectors a name in another folder, too.

    Raises:
        EngineNeededError: One of them is not in the folder.
    """
    names = {unquote(file["path"]) for file in files}
    found = [vectors.Descriptor.of(file["deletionVector"]) for file in files if file.get("deletionVector")]
    names |= {vectors.name_of(vector) for vector in found if vector.storage != "i"}
    if outside := [name for name in names if ":" in name or name.startswith("/")]:
        raise EngineNeededError(f"its file {outside[0]} stands somewhere else")
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="delta-share") as executor:
        for _ in executor.map(lambda name: storage.share(f"{source}/{name}", f"{to}/{name}"), sorted(names)):
            pass
