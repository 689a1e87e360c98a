"""Checks that this host can run a replicator, before it takes it from hosts that can."""

from __future__ import annotations

from replicator.journal.location import check_location, check_present
from replicator.model.errors import ConfigError, ReplicatorError
from replicator.plugins.registry import Registry
from replicator.runtime import assembly
from replicator.runtime.home import Home
from replicator.state.database.address import is_server, parse_state_url
from replicator.state.records import Desired, ReplicatorRecord
from replicator.state.store import StateStore


def refusal(store: StateStore, home: Home, registry: Registry, record: ReplicatorRecord) -> ReplicatorError | None:
    """Return the reason why this host cannot run a replicator; None if nothing is known against it.

    Checks what may differ between hosts: secrets in the environment, installed plugins, and the presence of the journal's folder. A
    state store in the home has no other hosts: what is wrong then becomes the replicator's own error, as soon as it starts.
    """
    if record.desired is Desired.DELETED or not is_server(parse_state_url(home.state_url)):
        return None
    try:
        loaded = assembly.load(record, registry)
        if problem := check_location(home.state_url, record.journal_uri):
            return ConfigError(problem.message, code=problem.code, action=problem.action)
        if loaded.config.journal.uri is None:
            home.check_journal(record.name, record.journal_uri)
        check_present(store, record.name, record.journal_uri)
    except ReplicatorError as error:
        return error
    return None
