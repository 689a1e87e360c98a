"""What is tracked, before the log is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicator.capture.asking import Descriptions, Refusals
from replicator.capture.catalogue import has_learned_ids, same_shape, with_ids
from replicator.capture.checks import Checks
from replicator.capture.tables import TrackedTables
from replicator.model.isolation import of_table
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import SourceLog, TableDescription
from replicator.state import table_life
from replicator.state.records import Stage


def bring_in_line(tables: TrackedTables, selected: Sequence[TableId], *, is_new_position: bool) -> None:
    """Records of added tables, and of those that are no longer selected.

    At a new position in the log every table gets a new snapshot.
    """
    for tracked in tables.all():
        record = tracked.record
        if record.table not in selected:
            if table_life.is_replicated(record):
                tables.put(table_life.removed(record))
        elif not table_life.is_replicated(record):
            tables.put(table_life.returned(record))
        elif is_new_position:
            # Somebody asked for all tables as they are now.
            is_stopped = table_life.waits_for_acceptance(record)
            tables.put(table_life.suspended(table_life.change_accepted(record) if is_stopped else record))
    for table in selected:
        if tables.get(table) is None:
            tables.put(table_life.added(table))


def check(checks: Checks, tables: TrackedTables, found: Descriptions) -> Refusals:
    """What the checks of a start refuse. A table whose finding is resolved waits for a snapshot again.

    Runs in the control thread, while the loop waits.
    """
    captured = {tracked.table for tracked in tables.all(*table_life.CAPTURED)}
    checked, refused = checks.at_open({table: description.schema for table, description in found.items()}, captured)
    for tracked in tables.all(Stage.FAILED):
        error = tracked.record.error
        if error is not None and error.is_finding and tracked.table in checked and tracked.table not in refused:
            tables.put(table_life.suspended(tracked.record))
    return refused


def tracked_schemas(source: SourceLog, tables: TrackedTables, found: Descriptions) -> Mapping[TableId, TableSchema]:
    """The shapes of the tables that the log is to decode; the source is told under which identities they are tracked."""
    _learn_ids(tables, found)
    # What has failed is not decoded: if that was the reason, it would be so again.
    wanted = {f.table for f in tables.all() if not table_life.has_failed(f.record)}
    schemas = {t: d.schema for t, d in found.items() if t in wanted}
    schemas |= {f.table: f.schema for f in tables.all() if f.table in schemas and f.is_captured}
    for tracked in tables.all(*table_life.CAPTURED):
        if tracked.record.identity:
            with of_table(tracked.table, "passing its identity to the source"):
                source.accept({tracked.table: tracked.record.identity})
    return schemas


def _learn_ids(tables: TrackedTables, found: Mapping[TableId, TableDescription]) -> None:
    """Number the columns of tables that an older version stored, where the catalogue proves that they are those of their names."""
    for tracked in tables.all(*table_life.CAPTURED):
        record, now = tracked.record, found.get(tracked.table)
        if now is None or record.identity is None or has_learned_ids(tracked.schema, now.schema):
            continue
        is_known = not record.identity.columns or record.identity.columns.keys() == now.identity.columns.keys()
        if is_known and same_shape(tracked.schema, now.schema) and not record.identity.is_redefined_in(now.identity):
            tables.put(table_life.numbered(record, with_ids(tracked.schema, now.schema)))
