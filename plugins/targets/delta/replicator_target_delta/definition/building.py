"""A new incarnation of a table of which readers still see an older one: built at another path, and swapped in by one commit.

As long as the table's log is that of an older incarnation of ours, the newer one is a Delta table of its own, the table's **building**, at
`<path>/_replicator/building/<uuid>/<namespace>/<name>/<incarnation>`, with its own ledger.

1. **Claim**: the epoch is recorded in the table's log, then in the building's. Buildings of other incarnations are removed.
2. **Build**: every change goes to the building; the table stays as it is.
3. **Share** the building's files with the table's folder (`swapping`), under the same names: no file of the table has one of them.
4. **Swap**, by one commit of the table: columns, properties and clustering of the building, all old files removed, the shared ones
   added, and the ledger. Delta's transaction refuses it if another writer has changed the table since it was read.
5. **Remove** the building.

A crash before 4 leaves the old table, and perhaps files that no version names: they are shared again, or VACUUM removes them. One after 4
leaves a building that the next claim removes. An older epoch is refused by the claim in the table's log before it swaps.
`docs/adr/0030-a-new-incarnation-is-built-out-of-sight.md` has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any, Final
from uuid import uuid4

from replicator.model.schema import TableId
from replicator.plugins import get_logger
from replicator.plugins.target import EMPTY_LEDGER, Ledger, TargetTable
from replicator_target_delta.ledger import EPOCH_MAX, Claimed, Entry, Look, adopted, entries_of, record_alone
from replicator_target_delta.log.table import (
    DROPPED,
    INCARNATION,
    STATE,
    UUID,
    DamagedLogError,
    TableLog,
    read_log,
    readable_below,
)
from replicator_target_delta.storage import Storage

_OF_VERSION: Final = re.compile(r"\.?(\d{20})\..*")
_log = get_logger("target.delta")


def is_older(table: TargetTable, log: Look) -> bool:
    """Return whether readers see an older incarnation of the table: this one is then built elsewhere.

    Not so if this one was there already: a log that was set back to an older incarnation is not built upon.
    """
    properties, own = log.properties, Entry.of(log.transactions.get(table.ledger_name))
    number = properties.get(INCARNATION, "")
    is_ours = properties.get(UUID) == table.uuid and properties.get(STATE) != DROPPED
    return (
        is_ours and number.isdigit() and int(number) < table.incarnation and (own is None or own.last == EMPTY_LEDGER)
    )


def newest(storage: Storage, table: TargetTable) -> Ledger | None:
    """The ledger of the newest incarnation, at either path (`DeltaTarget.read_ledger`).

    Raises:
        TableError: Another replicator has taken the table over.
    """
    path = storage.table_path(table.table)
    try:
        log = read_log(storage, path)
    except DamagedLogError as error:
        log, _ = _readable(storage, path, table, error)
    if log is None or log.properties.get(UUID) != table.uuid:
        return None
    entries = entries_of(table, log.transactions)
    if not entries:
        return None
    incarnation, entry = max(entries.items())
    if entry.epoch == EPOCH_MAX:
        raise adopted(table)
    last = entry.last
    of_newest = replace(table, incarnation=incarnation)
    if is_older(of_newest, log) and (built := read_log(storage, path_of(storage, of_newest, log))) is not None:
        own = Entry.of(built.transactions.get(of_newest.ledger_name))
        last = last if own is None else own.last
    return Ledger(incarnation=incarnation, epoch=entry.epoch, last_applied=last)


def claim_log(
    session: Any, storage: Storage, path: str, table: TargetTable, plan: Callable[[Look], Claimed]
) -> tuple[Look, Claimed] | None:
    """Record ledger entries as `record_alone`; for a new incarnation unreadable commits are left out of the table's log."""
    try:
        found = record_alone(session, storage, path, plan)
        if found is not None and is_older(table, found[0]):
            _check_whole(storage, path)
    except DamagedLogError as error:
        _leave_out(storage, path, table, error)
        found = record_alone(session, storage, path, plan)
    return found


def _check_whole(storage: Storage, path: str) -> None:
    """Find unreadable commits before the new incarnation is built, and not when it is swapped in."""
    try:
        read_log(storage, path, is_thorough=True)
    except DamagedLogError as error:
        if error.version is not None:
            raise
        # Spark has read it.


def _readable(storage: Storage, path: str, table: TargetTable, error: DamagedLogError) -> tuple[TableLog, int]:
    """See `readable_below`, for a table that is to be recreated.

    Raises:
        DamagedLogError: It is not, or there is nothing to continue from.
    """
    log, lowest = readable_below(storage, path, error)
    if log is None:
        raise DamagedLogError(str(error))
    if not is_older(table, log):
        raise error
    return log, lowest


def _leave_out(storage: Storage, path: str, table: TargetTable, error: DamagedLogError) -> None:
    """Give a commit that cannot be read, and those that follow it, names that do not belong to a log.

    The table is then what it was before that commit, until the new incarnation is swapped in.
    """
    _, lowest = _readable(storage, path, table, error)
    folder = f"{path}/_delta_log"
    # The newest first: after a crash the log has no gap.
    for name in sorted(storage.names(folder), key=lambda name: name.removeprefix("."), reverse=True):
        # Also the checksums that Hadoop keeps of files: the next file of that name has another one.
        if (match := _OF_VERSION.fullmatch(name)) and int(match[1]) >= lowest:
            storage.rename(f"{folder}/{name}", f"{folder}/unreadable-{name.removeprefix('.')}-{uuid4().hex}")
    _log.warning("log_left_out", table=str(table.table), version=lowest)


def path_of(storage: Storage, table: TargetTable, log: TableLog | None) -> str:
    """Path of the incarnation, according to the log at the table's path."""
    if log is not None and is_older(table, log):
        return storage.building_path(table.uuid, table.table, table.incarnation)
    return storage.table_path(table.table)


class Buildings:
    """Tables whose new incarnation this process builds; removes the buildings of others."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tables: set[TableId] = set()

    def sweep(self, storage: Storage, table: TargetTable, *, but: int | None = None) -> None:
        """Remove buildings of the table, except that of the incarnation `but`, which may be made from here on."""
        with self._lock:
            # Before its folder is made: nobody removes the folders above it meanwhile.
            (self._tables.discard if but is None else self._tables.add)(table.table)
        folder = storage.buildings(table.uuid, table.table)
        for name in storage.names(folder):
            if name != str(but):
                storage.remove(f"{folder}/{name}")
        with self._lock:
            if not self._tables:
                # Other replicators have folders of their own above.
                storage.prune(folder, below=storage.all_buildings)
