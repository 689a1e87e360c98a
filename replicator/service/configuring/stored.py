"""Stored replicators, by name."""

from __future__ import annotations

from replicator.model.errors import ConfigError
from replicator.state.records import Desired, ReplicatorRecord
from replicator.state.store import StateStore


def find(store: StateStore, name: str) -> ReplicatorRecord:
    """Return the stored replicator of that name; ConfigError (exit 2) if there is none."""
    record = store.replicator(name)
    if record is None:
        known = ", ".join(r.name for r in store.replicators()) or "none yet"
        raise ConfigError(
            f"There is no replicator called {name!r}.", code="unknown_replicator", action=f"Known here: {known}."
        )
    return record


def find_kept(store: StateStore, name: str) -> ReplicatorRecord:
    """Return the same as `find`; ConfigError (`being_deleted`) also if it is being deleted, or a deletion has not finished."""
    record = find(store, name)
    if record.desired is Desired.DELETED:
        raise being_deleted(name)
    return record


def being_deleted(name: str) -> ConfigError:
    """Return the error about a replicator that is being deleted."""
    return ConfigError(
        f"{name} is being deleted.", code="being_deleted", action=f"Wait, or run: replicator delete {name} --yes"
    )
