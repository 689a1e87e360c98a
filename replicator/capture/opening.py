"""Finds the tables that are tracked, before the log is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from replicator.capture.asking import Descriptions, Refusals, describe
from replicator.capture.checks import Checks
from replicator.capture.definitions.renaming import TAKEN, Fate, fate_of
from replicator.capture.parts import Parts
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.model.alteration import Change
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.isolation import of_table
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import SourceLog
from replicator.state import table_life
from replicator.state.records import CHANGED_ONLY, Decision, Request, Stage, TableRecord

_AT_START: Final = "The catalogue showed it when the replicator started."


def bring_in_line(
    tables: TrackedTables, selected: Sequence[TableId], *, is_new_position: bool, restarts: Sequence[Request] = ()
) -> None:
    """Records of added tables, and of those that are no longer selected.

    At a new position in the log every table gets a new snapshot; where only what changed was asked for, those that the target has are
    compared instead.

    Args:
        tables: As they were sealed.
        selected: The tables that are to be tracked.
        is_new_position: The log is not read from the last sealed position on.
        restarts: The requests for that; none: a process that ended has begun with it, and recorded what was asked for.
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
            if restarts:
                record = _asked_for(record, restarts)
            is_stopped = table_life.waits_for_acceptance(record)
            tables.put(table_life.suspended(table_life.change_accepted(record) if is_stopped else record))
    for table in selected:
        if tables.get(table) is None:
            tables.put(table_life.added(table))


def _asked_for(record: TableRecord, restarts: Sequence[Request]) -> TableRecord:
    """The table, as it is asked for: as a whole if one of the requests says so, or if the target never had it as a whole."""
    is_in_target = table_life.is_complete(record) or record.is_changed_only
    if is_in_target and all(request.payload.get(CHANGED_ONLY) for request in restarts):
        return table_life.compared_next(record)
    return table_life.read_next(record)


def named_in_source(
    parts: Parts, tables: TrackedTables, wanted: Sequence[TableId], *, is_new_position: bool
) -> tuple[TableId, ...]:
    """Find tracked tables that have another name in the source than they had, before the log is asked.

    Runs in the control thread, while the loop waits. What the log has behind its last sealed position may tell of more names.

    Args:
        parts: What the capture works with.
        tables: As they were sealed.
        wanted: The tables of the source that the configuration selects.
        is_new_position: The log is not read from the last sealed position on.

    Returns:
        The names of the tables that are to be tracked. Those that the source does not have are among them, if the configuration selects
        their names: what became of them the log tells, or the comparison with the catalogue.
    """
    names, settings = parts.names, parts.settings
    known = [f for f in tables.all(*table_life.REPLICATED) if settings.selects(f.table)]
    unnamed = [f for f in known if names.source(f.table) != f.table or is_back(parts, f)]
    if parts.select is not None and not is_new_position:
        # The log may tell that they got their names back. If it does not, the names are asked for once it has caught up.
        unnamed = [f for f in unnamed if is_back(parts, f) or not _has_target(f)]
    taken = parts.source.existing([f.table for f in unnamed if f.table in wanted])
    for tracked in unnamed:
        if tracked.table in taken:
            # Another table has its name.
            is_wanted = not table_life.has_failed(tracked.record) or is_back(parts, tracked)
            _rename(parts, tables, tracked, tracked.table)
            if is_wanted:
                event = DDLEvent(operation=DDLOperation.CREATE_TABLE, table=tracked.table)
                tables.note(tracked, event, Decision.SNAPSHOT, changes=[Change.RENAME_TABLE], reason=TAKEN)
                tables.put(table_life.suspended(tracked.record))
    lost = [f for f in known if names.source(f.table) not in wanted and _has_target(f)]
    for tracked in lost:
        if tracked.record.identity is not None:
            with of_table(tracked.table, "passing its identity to the source"):
                parts.source.accept({tracked.table: tracked.record.identity})
    located = parts.source.locate([f.table for f in lost]) if lost else {}
    for tracked in lost:
        new = located.get(tracked.table)
        if new is not None and fate_of(tracked.record, new, tables, settings) is Fate.CONTINUES:
            if names.source(tracked.table) != new:
                event = DDLEvent(operation=DDLOperation.RENAME_TABLE, table=tracked.table, new_table=new)
                tables.note(tracked, event, Decision.RECORD, changes=[Change.RENAME_TABLE], reason=_AT_START)
            _rename(parts, tables, tracked, new)
    there = describe(parts.source, [f.table for f in lost]).found
    kept = [f.table for f in lost if f.table not in there]
    return tuple(dict.fromkeys([*(t for t in map(names.tracked, wanted) if t is not None), *kept]))


def is_back(parts: Parts, tracked: TrackedTable) -> bool:
    """Return whether a table that had gone is taken up again once its name exists."""
    return parts.select is not None and table_life.is_dropped(tracked.record)


def _rename(parts: Parts, tables: TrackedTables, tracked: TrackedTable, source: TableId) -> None:
    if parts.names.source(tracked.table) != source:
        tables.put(table_life.renamed(tracked.record, source))
        parts.names.put(tracked.table, source)


def _has_target(tracked: TrackedTable) -> bool:
    """Return whether its name is looked for. What failed by a privilege may only be hidden."""
    record = tracked.record
    is_curable = record.error is not None and record.error.is_curable
    return table_life.has_begun(record) and (
        not table_life.has_failed(record) or table_life.is_dropped(record) or is_curable
    )


def check(checks: Checks, tables: TrackedTables, found: Descriptions) -> Refusals:
    """Return the tables that the checks of a start refuse, and why. A table whose finding is resolved waits for a snapshot again.

    Runs in the control thread, while the loop waits.
    """
    captured = {tracked.table for tracked in tables.all(*table_life.CAPTURED)}
    checked, refused = checks.at_open({table: description.schema for table, description in found.items()}, captured)
    if checks.findings:
        # A check of a server that is not in order may not come to its tables.
        return refused
    for tracked in tables.all(Stage.FAILED):
        error = tracked.record.error
        if error is not None and error.is_finding and tracked.table in checked and tracked.table not in refused:
            tables.resume(tracked)
    return refused


def tracked_schemas(source: SourceLog, tables: TrackedTables, found: Descriptions) -> Mapping[TableId, TableSchema]:
    """The shapes of the tables that the log is to decode; the source is told under which identities they are tracked."""
    # What has failed is not decoded: if that was the reason, it would be so again.
    wanted = {f.table for f in tables.all() if not table_life.has_failed(f.record)}
    schemas = {t: d.schema for t, d in found.items() if t in wanted}
    schemas |= {f.table: f.schema for f in tables.all() if f.table in schemas and f.is_captured}
    # The log may still have changes of those that are missing from the catalogue, and tell what became of them.
    unfinished = [f for f in tables.all(*table_life.CAPTURED, Stage.PENDING) if table_life.has_begun(f.record)]
    schemas |= {f.table: f.schema for f in unfinished if f.table not in schemas}
    # What the target keeps is nothing to the source, and must not come back with a shape that it derives.
    schemas = {table: replace(schema, kept=()) for table, schema in schemas.items()}
    for tracked in tables.all(*table_life.CAPTURED):
        if tracked.record.identity:
            with of_table(tracked.table, "passing its identity to the source"):
                source.accept({tracked.table: tracked.record.identity})
    return schemas
