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

from replicator.plugins.target import EMPTY_LEDGER, TargetTable
from replicator_target_delta.ledger import Entry, Look
from replicator_target_delta.storage import Storage
from replicator_target_delta.tablelog import DROPPED, INCARNATION, STATE, UUID, TableLog


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


def path_of(storage: Storage, table: TargetTable, log: TableLog | None) -> str:
    """Where the incarnation stands, by what the log at the table's path says."""
    if log is not None and is_older(table, log):
        return storage.building_path(table.uuid, table.table, table.incarnation)
    return storage.table_path(table.table)


def sweep(storage: Storage, table: TargetTable, *, but: int | None = None) -> None:
    """Remove buildings of the table, except that of the incarnation `but`."""
    folder = storage.buildings(table.uuid, table.table)
    names = storage.names(folder)
    for name in names:
        if name != str(but):
            storage.remove(f"{folder}/{name}")
    if names and str(but) not in names:
        storage.remove_empty(folder)
