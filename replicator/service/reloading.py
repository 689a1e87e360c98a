"""`reload`: gives a running replicator a changed configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replicator.config import LoadedConfig
from replicator.model.errors import ReplicatorError
from replicator.model.schema import TableId
from replicator.plugins.registry import Registry
from replicator.runtime import assembly
from replicator.runtime.home import Home
from replicator.runtime.reloading import changed_sections, concerned
from replicator.service import lifecycle
from replicator.service.configuring.assess import Assessment
from replicator.service.configuring.stored import find
from replicator.state import table_life
from replicator.state.records import Desired, ReplicatorRecord, Role, TableRecord
from replicator.state.store import StateStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """Effects of a changed configuration.

    `sections` of the file differ. `roles` are the processes that a worker starts again for them now; it keeps running itself. Scheduled
    verification of tables may begin or end with it (`was_scheduled`, `is_scheduled`). `recreated` are tables with a changed setting that
    only a new target table can have.
    """

    record: ReplicatorRecord
    assessment: Assessment
    sections: tuple[str, ...]
    roles: frozenset[Role]
    was_scheduled: bool
    is_scheduled: bool
    added: tuple[TableId, ...]
    removed: tuple[TableId, ...]
    recreated: tuple[TableId, ...]
    has_worker: bool


def reload(store: StateStore, home: Home, registry: Registry, loaded: LoadedConfig) -> Reloaded:
    """Store a changed configuration of a stored replicator. Its worker takes it within a second, or the next one at its start.

    Raises:
        ConfigError: `unknown_replicator`; as `lifecycle.put`, and then nothing is stored.
    """
    before = find(store, loaded.config.name)
    old = _read(registry, before) or loaded
    tables = [table for table in store.tables(before.name) if table_life.is_replicated(table)]
    recreated = _recreated(old, loaded, tables)
    was_scheduled, is_scheduled = (one.config.verify.every is not None for one in (old, loaded))
    record, assessment = lifecycle.put(store, home, registry, loaded)
    sections = changed_sections(before.config, record.config)
    known, selected = {table.table for table in tables}, set(assessment.selected)
    # A table that was renamed in the source, or dropped there, is still the one that the configuration selects by its first name.
    named = known | {table.source_table for table in tables if table.source_table is not None}
    kept = set(loaded.config.tables.select(known).tables)
    return Reloaded(
        record=record,
        assessment=assessment,
        sections=sections,
        roles=concerned(sections) & _running(store, record, verifies=was_scheduled and is_scheduled),
        was_scheduled=was_scheduled,
        is_scheduled=is_scheduled,
        added=tuple(sorted(selected - named)),
        removed=tuple(sorted(known - kept)),
        recreated=tuple(table for table in recreated if table in kept),
        has_worker=store.leases.current(record.name) is not None,
    )


def _read(registry: Registry, record: ReplicatorRecord) -> LoadedConfig | None:
    """Return the stored configuration; None if it cannot be read here."""
    try:
        return assembly.load(record, registry)
    except ReplicatorError:
        return None


def _running(store: StateStore, record: ReplicatorRecord, *, verifies: bool) -> frozenset[Role]:
    """Return the processes that a worker has for a replicator now, by its desired state."""
    if record.desired is not Desired.RUNNING or store.leases.current(record.name) is None:
        return frozenset()
    if record.apply_paused:
        return frozenset({Role.CAPTURE})
    return frozenset({Role.CAPTURE, Role.APPLY, *([Role.VERIFY] if verifies else [])})


def _recreated(old: LoadedConfig, now: LoadedConfig, tables: Sequence[TableRecord]) -> Sequence[TableId]:
    """Return tables whose target table was created with other settings."""
    pairs = {table.table: [c.config.tables.options_for(table.table) for c in (old, now)] for table in tables}
    return [
        table
        for table, (was, is_now) in pairs.items()
        if (was.deletes, was.source_timestamp) != (is_now.deletes, is_now.source_timestamp)
    ]
