"""The replicators that are stored, by name."""

from __future__ import annotations

from replicator.model.errors import ConfigError
from replicator.state.records import ReplicatorRecord
from replicator.state.store import StateStore


def find(store: StateStore, name: str) -> ReplicatorRecord:
    """The stored replicator of that name; ConfigError (exit 2) if there is none."""
    record = store.replicator(name)
    if record is None:
        known = ", ".join(r.name for r in store.replicators()) or "none yet"
        raise ConfigError(
            f"There is no replicator called {name!r}.", code="unknown_replicator", action=f"Known here: {known}."
        )
    return record
