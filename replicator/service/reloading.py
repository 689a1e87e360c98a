"""`reload`: a running replicator takes a changed configuration."""

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
from replicator.service.assess import Assessment
from replicator.service.stored import find
from replicator.state import table_life
from replicator.state.records import ReplicatorRecord, Role, TableRecord
from replicator.state.store import StateStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """What a changed configuration changes.

    `sections` of the file differ. `roles` are the processes that a worker starts again for them; it keeps running itself. `recreated` are
    tables that have a setting by now that only a new target table can have.
    """

    record: ReplicatorRecord
    assessment: Assessment
    sections: tuple[str, ...]
    roles: frozenset[Role]
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
    tables = [table for table in store.tables(before.name) if table_life.is_replicated(table)]
    recreated = _recreated(registry, before, loaded, tables)
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
        roles=concerned(sections),
        added=tuple(sorted(selected - named)),
        removed=tuple(sorted(known - kept)),
        recreated=tuple(table for table in recreated if table in kept),
        has_worker=store.lease(record.name) is not None,
    )


def _recreated(
    registry: Registry, before: ReplicatorRecord, now: LoadedConfig, tables: Sequence[TableRecord]
) -> Sequence[TableId]:
    """Tables whose target table was made with other settings. None is known where the stored configuration cannot be read here."""
    try:
        old = assembly.load(before, registry).config.tables
    except ReplicatorError:
        return ()
    pairs = {table.table: [c.options_for(table.table) for c in (old, now.config.tables)] for table in tables}
    return [
        table
        for table, (was, is_now) in pairs.items()
        if (was.deletes, was.source_timestamp) != (is_now.deletes, is_now.source_timestamp)
    ]
