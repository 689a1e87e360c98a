"""`plan FILE --ddl`: effect of a statement on the target. Reads the source's catalogue, and executes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from replicator.capture.asking import describe
from replicator.capture.definitions.catalogue import same_columns
from replicator.config import LoadedConfig, ReplicatorConfig
from replicator.model.alteration import Change
from replicator.model.errors import ConfigError, SchemaConflictError, TableError, with_names
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.registry import Registry
from replicator.plugins.source import SupportsRehearsal, TableDescription
from replicator.projection.columns import NO_PROJECTION, Projection
from replicator.projection.rules import ColumnRules, rules_for
from replicator.runtime import assembly
from replicator.service.history.document import ShapeDocument
from replicator.service.plan.ddl_document import (
    PLAN_VERSION,
    AppliedPolicy,
    PlanDocument,
    PlannedErrorDocument,
    PlannedTableDocument,
)
from replicator.service.plan.rehearsal import Rehearsed, Widens, rehearse, rehearse_new
from replicator.state import table_life
from replicator.state.records import TableRecord

_DEFAULT: Final = "default"
_ABOUT_TABLES: Final = frozenset(DDLOperation) - {DDLOperation.CREATE_DATABASE, DDLOperation.DROP_DATABASE}
_BRINGS_A_NAME: Final = (DDLOperation.CREATE_TABLE, DDLOperation.RENAME_TABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTable:
    """Effect of a statement on a table.

    Attributes:
        event: Event that the log would have.
        before: The table's shape now, with the columns that the target keeps; None if it is unknown, or has none yet.
        rehearsed: Its effect; None: the table is not replicated.
        policies: Policies that decide about it.
        estimated_rows: Rows by the source's statistics; None if unknown.
        note: Further remark.
    """

    event: DDLEvent
    before: TableSchema | None = None
    rehearsed: Rehearsed | None = None
    policies: Sequence[AppliedPolicy] = ()
    estimated_rows: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementPlan:
    """Effect of a statement; empty: it would concern no table."""

    name: str
    statement: str
    tables: Sequence[PlannedTable]

    @property
    def is_replicated(self) -> bool:
        """Return whether it concerns a replicated table."""
        return any(table.rehearsed is not None for table in self.tables)


def plan_statement(
    loaded: LoadedConfig, registry: Registry, statement: str, *, uuid: str = "", stored: Sequence[TableRecord] = ()
) -> StatementPlan:
    """Compute the effect of a statement on the target.

    Args:
        loaded: The configuration.
        registry: The plugins.
        statement: Statement as a person would type it.
        uuid: Uuid of the stored replicator, if there is one.
        stored: Its tables, as capture knows them: they have the columns that the target keeps.

    Raises:
        ConfigError: `rehearsal_not_supported`: the source cannot tell; `ddl_not_understood`.
    """
    asked = _ask(loaded, registry, statement, uuid)
    records = {record.table: record for record in stored}
    shapes: dict[TableId, _Shape] = {}
    tables = []
    for event in asked.events:
        shape = shapes.get(event.table) or _known(
            event,
            asked.found.get(event.table),
            records.get(event.table),
            rules_for(event.table, loaded.config.tables.settings),
        )
        planned = _planned(loaded.config, asked, event, shape, records.get(event.table))
        if planned.rehearsed is not None and planned.rehearsed.tracked is not None:
            shapes[event.table] = _Shape(schema=planned.rehearsed.tracked, projection=planned.rehearsed.projection)
        tables.append(planned)
    return StatementPlan(name=loaded.config.name, statement=statement, tables=tables)


def document(plan: StatementPlan) -> PlanDocument:
    """Return the document that `plan --ddl --json` prints."""
    return PlanDocument(
        version=PLAN_VERSION,
        name=plan.name,
        statement=plan.statement,
        tables=tuple(_table(plan.name, table) for table in plan.tables),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Answers of source and target.

    Attributes:
        events: Events about tables that the log would have.
        selected: Existing tables that the configuration names.
        found: Descriptions of the tables concerned, from the catalogue.
        widens: As `DeltaTarget.widens`.
        may_be_rewritten: As `SupportsRehearsal.rewrites_untold`.
    """

    events: Sequence[DDLEvent]
    selected: Sequence[TableId]
    found: Mapping[TableId, TableDescription]
    widens: Widens
    may_be_rewritten: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """A table as capture tracks it. `projection`: what lies between it and the target's."""

    schema: TableSchema
    projection: Projection = NO_PROJECTION


def _ask(loaded: LoadedConfig, registry: Registry, statement: str, uuid: str) -> _Asked:
    source = assembly.make_source(loaded, registry)
    try:
        if not isinstance(source, SupportsRehearsal):
            raise ConfigError(
                f"A source of the type {loaded.source_type} cannot say what a statement would bring.",
                code="rehearsal_not_supported",
                action="docs/schema-changes.md says what becomes of each change.",
            )
        events = [event for event in _rehearsed(source, statement) if event.operation in _ABOUT_TABLES]
        selected = assembly.select_tables(source, loaded).tables
        concerned = dict.fromkeys(event.table for event in events if event.table in selected)
        found = describe(source, list(concerned)).found
    finally:
        source.close()
    target = assembly.make_target(loaded, registry, uuid=uuid)
    target.close()
    return _Asked(
        events=events,
        selected=selected,
        found=found,
        widens=target.widens,
        may_be_rewritten=source.rewrites_untold,
    )


def _rehearsed(source: SupportsRehearsal, statement: str) -> Sequence[DDLEvent]:
    try:
        events = source.rehearse(statement)
    except TableError as error:
        raise ConfigError(
            error.message,
            code=error.code,
            table=error.table,
            action=error.action or "If it is executed, the table fails: `ddl.unknown` is `stop`.",
        ) from error
    for event in events:
        if event.operation is DDLOperation.ALTER_TABLE and event.schema is None:
            raise ConfigError(
                f"The source does not say which columns the table would have: {statement}",
                code="ddl_not_understood",
                table=str(event.table),
            )
    return events


def _known(event: DDLEvent, found: TableDescription | None, record: TableRecord | None, rules: ColumnRules) -> _Shape:
    """Return the table's shape now: capture's if the source agrees with it, since only capture knows the columns that the target keeps."""
    shape = found.schema if found is not None else event.before
    if record is not None and record.schema is not None and (shape is None or same_columns(record.schema, shape)):
        return _Shape(schema=record.schema, projection=record.projection)
    schema = shape or TableSchema(table=event.table, columns=())
    try:
        return _Shape(schema=schema, projection=Projection(columns=rules.project(schema)))
    except SchemaConflictError as error:
        raise ConfigError(error.message, code=error.code, table=error.table, action=error.action) from error


def _planned(
    config: ReplicatorConfig, asked: _Asked, event: DDLEvent, shape: _Shape, record: TableRecord | None
) -> PlannedTable:
    def selects(table: TableId) -> bool:
        return bool(config.tables.select([table]).tables)

    name = event.table
    if name in asked.selected:
        rehearsed = rehearse(
            shape.schema,
            event,
            config.ddl_for(name),
            projection=shape.projection,
            rules=rules_for(name, config.tables.settings),
            widens=asked.widens,
            selects=selects,
            follows_name=config.tables.options_for(name).rename_starts_new_table,
            may_be_rewritten=asked.may_be_rewritten,
        )
    elif event.operation in _BRINGS_A_NAME and selects(event.new_table or name):
        name = event.new_table or name
        rehearsed = rehearse_new(config.ddl_for(name))
    else:
        return PlannedTable(event=event, before=event.before)
    description = asked.found.get(event.table)
    return PlannedTable(
        event=event,
        before=rehearsed.before or (shape.schema if shape.schema.columns else None),
        rehearsed=rehearsed,
        policies=[_policy(config, name, change) for change in rehearsed.changes],
        estimated_rows=description.estimated_rows if description else None,
        note=_state(record),
    )


def _policy(config: ReplicatorConfig, table: TableId, change: Change) -> AppliedPolicy:
    """Return the policy for a kind of change, and the setting that it comes from: the last pattern that sets it wins."""
    matching = [
        pattern
        for pattern, block in config.tables.settings.items()
        if pattern.matches(table) and change.value in block.ddl.model_fields_set
    ]
    if matching:
        set_by = f"tables.settings.{matching[-1].text}.ddl.{change.value}"
    else:
        set_by = f"ddl.{change.value}" if change.value in config.ddl.model_fields_set else _DEFAULT
    return AppliedPolicy(change=change, policy=getattr(config.ddl_for(table), change.value), set_by=set_by)


def _state(record: TableRecord | None) -> str | None:
    """Return a remark on a table whose changes are not captured now."""
    if record is None or not table_life.has_failed(record):
        return None
    cause = f" ({record.error.code})" if record.error else ""
    return f"the table has failed{cause}: it follows no change until it continues"


def _table(name: str, table: PlannedTable) -> PlannedTableDocument:
    rehearsed = table.rehearsed
    error = rehearsed.error if rehearsed else None
    return PlannedTableDocument(
        table=str(table.event.table),
        new_table=None if table.event.new_table is None else str(table.event.new_table),
        operation=table.event.operation,
        is_replicated=rehearsed is not None,
        policies=tuple(table.policies),
        decision=rehearsed.decision if rehearsed else None,
        effects=rehearsed.effects if rehearsed else (),
        error=None
        if error is None
        else PlannedErrorDocument(
            code=error.code,
            message=error.message,
            action=error.action and with_names(error.action, name, str(table.event.table)),
        ),
        before=ShapeDocument.of(table.before),
        after=ShapeDocument.of(rehearsed.after if rehearsed else table.event.schema),
        is_read_again=rehearsed is not None and rehearsed.is_read_again,
        is_rewritten=rehearsed is not None and rehearsed.is_rewritten,
        estimated_rows=table.estimated_rows,
        note=table.note,
    )
