"""Effect of a change of a table's definition on the target, as capture decides it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from replicator.capture.definitions.catalogue import (
    dropped_by_policy,
    missing,
    renamed,
    renamed_by_policy,
    truncated_by_policy,
)
from replicator.capture.definitions.policies import Altered, Effect, decide, effect_of, sets_default, stopped_at_default
from replicator.capture.definitions.renaming import why_lost
from replicator.config import DDLConfig
from replicator.model.alteration import Change, steps
from replicator.model.errors import TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import TableId, TableSchema, type_to_text
from replicator.projection.columns import NO_PROJECTION, Projection
from replicator.projection.rules import NO_RULES, ColumnRules
from replicator.state.records import Decision

Widens = Callable[[pa.DataType, pa.DataType], bool]

_VALUE_SHOWN: Final = 60
_SNAPSHOT: Final = "a new snapshot of the table, in place: readers see the table all the time"
_REBUILD: Final = "the table is rebuilt from a new snapshot, and replaces the old one once it is complete"
_NOTHING: Final = "nothing changes"
_MAY_BE_READ_AGAIN: Final = (
    "if the server gives the table other storage for it, a new snapshot of the table follows within a minute, in place"
)
_NOT_REPLICATED: Final = "the table is not replicated any more, and `status` says so"
_STAYS: Final = "the target table stays as it is"
_STOP: Final = "the table stops at this statement; the others continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """Effect on a table.

    Attributes:
        changes: The kinds of change.
        decision: Decision that capture would make.
        effects: Effects on the target, one sentence each.
        before: The table's shape now, as the target has it, with the same numbers for columns that are the same.
        after: The table's shape afterwards, as the target has it.
        tracked: The same as the source has it.
        projection: What lies between source and target from then on.
        error: Error with which the table would fail.
        is_read_again: All its rows are read from the source again.
        is_rewritten: The target writes all its rows again.
    """

    changes: tuple[Change, ...]
    decision: Decision
    effects: tuple[str, ...]
    before: TableSchema | None = None
    after: TableSchema | None = None
    tracked: TableSchema | None = None
    projection: Projection = NO_PROJECTION
    error: TableError | None = None
    is_read_again: bool = False
    is_rewritten: bool = False


def rehearse(
    known: TableSchema,
    event: DDLEvent,
    policies: DDLConfig,
    *,
    projection: Projection = NO_PROJECTION,
    rules: ColumnRules = NO_RULES,
    widens: Widens,
    selects: Callable[[TableId], bool],
    follows_name: bool = False,
    may_be_rewritten: bool = False,
) -> Rehearsed:
    """Compute the effect on a replicated table.

    Args:
        known: Its shape.
        event: Event that the log would have. An ALTER_TABLE has the shape afterwards.
        policies: Policies of the table.
        projection: What the target has in another way than `known`.
        rules: Settings of the table's columns.
        widens: As `DeltaTarget.widens`.
        selects: Returns whether the configuration names a table.
        follows_name: The table's setting rename_starts_new_table.
        may_be_rewritten: Only the server knows whether it gives the table other storage: see `SupportsRehearsal`.
    """
    match event.operation:
        case DDLOperation.ALTER_TABLE:
            altered = _altered(known, event, policies, projection, rules, widens)
            is_told = altered.is_read_again or altered.decision is Decision.STOP
            more = () if is_told or not may_be_rewritten else (_MAY_BE_READ_AGAIN,)
            return replace(altered, effects=(*altered.effects, *more))
        case DDLOperation.TRUNCATE_TABLE:
            return _truncated(known, policies)
        case DDLOperation.DROP_TABLE:
            return _dropped(known.table, policies)
        case DDLOperation.RENAME_TABLE:
            return _renamed(known.table, event.new_table, policies, selects, follows_name=follows_name)
        case _:
            return Rehearsed(
                changes=(Change.CREATE_TABLE,),
                decision=Decision.SNAPSHOT,
                effects=("another table has the name from here on", _SNAPSHOT),
                is_read_again=True,
                is_rewritten=True,
            )


def rehearse_new(policies: DDLConfig) -> Rehearsed:
    """Return the effect on a table that is new, or has a name that the configuration selects from here on."""
    if policies.create_table == "ignore":
        return Rehearsed(
            changes=(Change.CREATE_TABLE,),
            decision=Decision.IGNORE,
            effects=("the table is replicated from the next start on",),
        )
    return Rehearsed(
        changes=(Change.CREATE_TABLE,),
        decision=Decision.APPLY,
        effects=("the table is replicated within a minute, with a snapshot into a new table",),
        is_read_again=True,
    )


def _altered(
    known: TableSchema,
    event: DDLEvent,
    policies: DDLConfig,
    projection: Projection,
    rules: ColumnRules,
    widens: Widens,
) -> Rehearsed:
    assert event.schema is not None, "as was checked"
    decided = _decided(known, event, policies, projection, rules, widens)
    again = decided.decision in (Decision.SNAPSHOT, Decision.REBUILD)
    altered = decided.altered
    is_kept = decided.decision not in (Decision.STOP, Decision.REBUILD)
    found = replace(event.schema, kept=known.kept) if is_kept else event.schema
    match decided.decision:
        case Decision.STOP:
            effects: Sequence[str] = [_STOP]
        case Decision.REBUILD:
            effects = [_REBUILD]
        case Decision.RECORD:
            effects = [_NOTHING]
        case Decision.SNAPSHOT:
            effects = [*(_effects(altered) if altered else ["the columns stay as they are"]), _SNAPSHOT]
        case _:
            assert altered is not None, "what is followed was altered"
            effects = list(_effects(altered)) or [_NOTHING]
    return Rehearsed(
        changes=decided.changes,
        decision=decided.decision,
        effects=tuple(effects),
        before=altered.before if altered else event.before or known,
        after=altered.schema if altered else found,
        tracked=altered.tracked if altered else found,
        projection=altered.projection if altered else projection if is_kept else NO_PROJECTION,
        error=decided.error,
        is_read_again=again,
        is_rewritten=again
        or (altered is not None and any(value is not None for value in _filled(altered.fill).values())),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """Capture's decision about an ALTER_TABLE. `altered`: only if the target follows by an ALTER."""

    decision: Decision
    changes: tuple[Change, ...]
    altered: Altered | None = None
    error: TableError | None = None


def _decided(
    known: TableSchema,
    event: DDLEvent,
    policies: DDLConfig,
    projection: Projection,
    rules: ColumnRules,
    widens: Widens,
) -> _Decided:
    """Decide as capture's tracker does."""
    assert event.schema is not None, "as was checked"
    effect = effect_of(known, event)
    if effect is not Effect.COLUMNS:
        decision = Decision.SNAPSHOT if effect is Effect.ROWS else Decision.RECORD
        if not sets_default(event):
            return _Decided(decision=decision, changes=())
        stop = stopped_at_default(known.table, policies)
        return _Decided(decision=Decision.STOP if stop else decision, changes=(Change.CHANGE_DEFAULT,), error=stop)
    altered = decide(
        known,
        event.schema,
        policies,
        before=event.before,
        fill=event.fill,
        projection=projection,
        rules=rules,
        can_widen=widens,
    )
    return _Decided(
        decision=altered.decision,
        changes=altered.changes,
        altered=None if altered.decision in (Decision.STOP, Decision.REBUILD) else altered,
        error=altered.error,
    )


def _effects(altered: Altered) -> Iterator[str]:
    """Yield the effects of an ALTER of the target's table, one sentence per column."""
    before, after = altered.before, altered.schema
    change, filled = steps(before, after), _filled(altered.fill)
    old = {column.name: column for column in before.held}
    were_kept, are_kept = ({column.name for column in shape.kept} for shape in (before, after))
    for column in after.held:
        origin = change.origin[column.name]
        if origin is None:
            yield f"add column {column.name} ({type_to_text(column.type)}); {_of_old_rows(altered, filled.get(column.name))}"
            continue
        if origin in were_kept and origin != column.name:
            yield f"the kept column {origin} is called {column.name} from then on"
        elif origin != column.name:
            yield f"rename column {origin} to {column.name}"
        if old[origin].type != column.type:
            types = f"{type_to_text(old[origin].type)} to {type_to_text(column.type)}"
            yield f"widen column {column.name} from {types}, in place"
        if column.name in are_kept and origin not in were_kept:
            yield f"keep column {column.name} with its values; rows that come later have NULL there"
    for name in change.dropped:
        yield f"drop column {name}"


def _of_old_rows(altered: Altered, value: object) -> str:
    """Return the value that existing rows get in a new column, in words."""
    if altered.needs_snapshot:
        return "rows that are there get its values by the new snapshot"
    text = "NULL" if value is None else repr(value)
    return f"rows that are there get {text if len(text) <= _VALUE_SHOWN else f'{text[:_VALUE_SHOWN]}…'}"


def _filled(fill: pa.RecordBatch | None) -> dict[str, object]:
    return {} if fill is None or not fill.num_columns else fill.to_pylist()[0]


def _truncated(known: TableSchema, policies: DDLConfig) -> Rehearsed:
    changes = (Change.TRUNCATE_TABLE,)
    match policies.truncate_table:
        case "apply":
            effects: Sequence[str] = ("the target table is emptied",)
            return Rehearsed(changes=changes, decision=Decision.APPLY, effects=tuple(effects), after=known)
        case "ignore":
            return Rehearsed(
                changes=changes, decision=Decision.IGNORE, effects=("the target table keeps its rows",), after=known
            )
        case "stop":
            return Rehearsed(
                changes=changes,
                decision=Decision.STOP,
                effects=(_STOP,),
                after=known,
                error=truncated_by_policy(known.table),
            )


def _dropped(table: TableId, policies: DDLConfig) -> Rehearsed:
    is_dropped = policies.drop_table == "apply"
    what = "the target table is dropped, too" if is_dropped else _STAYS
    decision = Decision.APPLY if is_dropped else Decision.STOP if policies.drop_table == "stop" else Decision.IGNORE
    return Rehearsed(
        changes=(Change.DROP_TABLE,),
        decision=decision,
        effects=(what, _NOT_REPLICATED),
        error=dropped_by_policy(table) if decision is Decision.STOP else missing(table),
    )


def _renamed(
    table: TableId,
    new: TableId | None,
    policies: DDLConfig,
    selects: Callable[[TableId], bool],
    *,
    follows_name: bool,
) -> Rehearsed:
    changes = (Change.RENAME_TABLE,)
    if new is not None and policies.rename_table == "stop":
        return Rehearsed(changes=changes, decision=Decision.STOP, effects=(_STOP,), error=renamed_by_policy(table, new))
    cause = None if new is None else why_lost(policies, selects=selects(new), follows_name=follows_name)
    if new is None or cause is not None:
        reason = "" if new is None or selects(new) else ", because `tables` does not name its new one"
        return Rehearsed(
            changes=changes,
            decision=Decision.IGNORE,
            effects=(f"the table is taken for dropped{reason}", _STAYS, _NOT_REPLICATED),
            error=renamed(table, new, cause),
        )
    return Rehearsed(
        changes=changes, decision=Decision.RECORD, effects=(f"{new} continues into the same target table",)
    )
