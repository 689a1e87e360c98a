"""A new incarnation of a table that readers still see an older one of: built where they do not look, and swapped in by one commit.

As long as the table's log is that of an older incarnation of ours, the newer one is a Delta table of its own, the table's **building**, at
`<path>/_replicator/building/<uuid>/<namespace>/<name>/<incarnation>`, with its own ledger.

1. **Claim**: the epoch is recorded in the table's log, then in the building's. Buildings of other incarnations are removed.
2. **Build**: every change goes to the building; the table stays as it is.
3. **Share** the building's files with the table's folder (`swapping`), under the same names: no file of the table has one of them.
4. **Swap**, by one commit of the table: columns, properties and clustering of the building, all old files removed, the shared ones
   added, and the ledger. Delta's transaction refuses it if anybody else has changed the table since it was looked at.
5. **Remove** the building.

A crash before 4 leaves the old table, and perhaps files that no version names: they are shared again, or VACUUM removes them. One behind 4
leaves a building that the next claim removes. An older epoch is refused by the claim in the table's log before it swaps.
`docs/adr/0030-a-new-incarnation-is-built-out-of-sight.md` has the reasons.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Lock

from replicator.model.schema import TableId
from replicator.plugins.target import EMPTY_LEDGER, Ledger, TargetTable
from replicator_target_delta.ledger import EPOCH_MAX, Entry, Look, adopted, entries_of
from replicator_target_delta.storage import Storage
from replicator_target_delta.tablelog import DROPPED, INCARNATION, STATE, UUID, TableLog, read_log


def is_older(table: TargetTable, log: Look) -> bool:
    """Whether readers see an older incarnation of the table: this one is then built elsewhere.

    Not so if this one was there already: a log that was set back to an older incarnation is not built upon.
    """
    properties, own = log.properties, Entry.of(log.transactions.get(table.ledger_name))
    number = properties.get(INCARNATION, "")
    is_ours = properties.get(UUID) == table.uuid and properties.get(STATE) != DROPPED
    return (
        is_ours and number.isdigit() and int(number) < table.incarnation and (own is None or own.last == EMPTY_LEDGER)
    )


def newest(storage: Storage, table: TargetTable) -> Ledger | None:
    """The ledger of the newest incarnation, wherever that stands (`DeltaTarget.read_ledger`).

    Raises:
        TableError: Another replicator has taken the table over.
    """
    log = read_log(storage, storage.table_path(table.table))
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


def path_of(storage: Storage, table: TargetTable, log: TableLog | None) -> str:
    """Where the incarnation stands, by what the log at the table's path says."""
    if log is not None and is_older(table, log):
        return storage.building_path(table.uuid, table.table, table.incarnation)
    return storage.table_path(table.table)


class Buildings:
    """The tables whose new incarnation this process builds, and what is removed of others."""

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
