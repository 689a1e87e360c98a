"""`ddl accept`: lets a table that stopped at a change of its definition continue."""

from __future__ import annotations

from replicator.model.errors import ConfigError
from replicator.model.schema import TableId
from replicator.service.configuring.stored import find_kept
from replicator.service.lifecycle import replicated_tables
from replicator.state import table_life
from replicator.state.records import Desired, RequestKind
from replicator.state.store import StateStore


def accept(store: StateStore, name: str, table: str) -> TableId:
    """Ask for the target to follow the change at which a table stopped.

    Durable: a running worker takes it up, or the next one that starts. Asking twice has the same effect as asking once.

    Raises:
        ConfigError: No such replicator or table; `nothing_to_accept`: the table does not wait for that.
    """
    record = find_kept(store, name)
    known = replicated_tables(store, name, [table])[0]
    tracked = next(found for found in store.tables(name) if found.table == known)
    if not table_life.waits_for_acceptance(tracked):
        raise ConfigError(
            f"{table} has not stopped at a change of its definition.",
            code="nothing_to_accept",
            action=f"To see the state of each table: replicator status {name}",
        )
    store.requests.add(name, RequestKind.ACCEPT, {"tables": [str(known)]})
    if record.desired is Desired.RUNNING:
        store.set_error(name, None)
    return known
