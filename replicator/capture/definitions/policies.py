"""Decides by policy what an altered table becomes in the target. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

import pyarrow as pa

from replicator.capture.definitions.catalogue import same_columns, stopped_by_policy
from replicator.capture.definitions.ignoring import ignored_after, type_kind
from replicator.capture.settings import Widens, never_widens
from replicator.config.model import DDLConfig
from replicator.model.alteration import Alteration, Change, alteration, widens
from replicator.model.errors import SchemaConflictError
from replicator.model.events import RESERVED_COLUMNS, DDLEvent, DDLOperation
from replicator.model.naming import check_columns, folded, refuse_columns
from replicator.model.schema import Column, TableId, TableSchema
from replicator.projection.columns import NO_PROJECTION, Ignored, ProjectedColumn, Projection
from replicator.projection.rows import filled
from replicator.projection.rules import NO_RULES, ColumnRules
from replicator.state.records import Decision

_RECORDED: Final = (Change.CHANGE_NULLABILITY, Change.CHANGE_DEFAULT)
"""Kinds of change of which nothing is seen in a target."""
_OTHER_SETTINGS: Final = "The settings of its columns are others."
_DEFAULT: Final = re.compile(r"\bdefault\b", re.IGNORECASE)


class Effect(StrEnum):
    """The meaning of an ALTER_TABLE of the log for a table."""

    COLUMNS = "columns"
    """It has other columns from here on, or another key."""
    ROWS = "rows"
    """It has the columns that it had, but its rows may have other values in them, or be others."""
    OTHER = "other"
    """Nothing, or nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """An alteration, and what becomes of it in the target.

    Attributes:
        before: The table as the target has it, every column with a number.
        schema: The table as the target is to have it, with the same numbers. If it is rebuilt or stops: as the source has it.
        tracked: The same, as the source has it.
        projection: What lies between the two.
        fill: What rows that are there already get in new columns, by name (`DDLEvent.fill`).
        decision: What happens. SNAPSHOT: the target follows, and only a new snapshot tells what these rows have.
        changes: The kinds of change that it consists of.
        reason: Why, where the policies alone do not say it.
        error: Why the table stops, if it does.
        has_other_key_type: A column of the key has another type: what was read by the key so far is of no use.
    """

    before: TableSchema
    schema: TableSchema
    tracked: TableSchema
    projection: Projection
    fill: pa.RecordBatch | None
    decision: Decision
    changes: tuple[Change, ...]
    reason: str | None = None
    error: SchemaConflictError | None = None
    has_other_key_type: bool = False

    @property
    def needs_snapshot(self) -> bool:
        """Return whether only a new snapshot tells what the rows have."""
        return self.fill is None

    def event(self, told: DDLEvent | None) -> DDLEvent:
        """Return the event for the journal. `told`: what the log said, if it did."""
        told = told or DDLEvent(operation=DDLOperation.ALTER_TABLE, table=self.schema.table)
        return replace(told, before=self.before, schema=self.schema, fill=self.fill)


def effect_of(known: TableSchema, event: DDLEvent) -> Effect:
    """Return the meaning of an ALTER_TABLE for a table of this shape."""
    if event.before is not None and same_columns(known, event.before):
        # With the numbers that tell columns apart: those that are tracked may have none yet.
        known = event.before
    if event.schema is None:
        return Effect.OTHER
    if not same_columns(known, event.schema) or known.key != event.schema.key:
        return Effect.COLUMNS
    has_lost_ids = _all_have_ids(known.columns) and not _all_have_ids(event.schema.columns)
    if event.before is not None and _other_nullability(event.before, event.schema):
        return Effect.COLUMNS
    is_told = event.before is not None or has_lost_ids
    return Effect.ROWS if is_told and event.fill is None else Effect.OTHER


def sets_default(event: DDLEvent) -> bool:
    """Return whether a statement that leaves the columns as they were may change what one has where a row does not say."""
    return event.statement is not None and _DEFAULT.search(event.statement) is not None


def stopped_at_default(table: TableId, policies: DDLConfig) -> SchemaConflictError | None:
    """Why a table stops at a statement that sets a default, if it does."""
    if policies.change_default != "stop":
        return None
    return stopped_by_policy(
        table, "The source changed the default of a column. The policy ddl.change_default is `stop`."
    )


def decide(
    known: TableSchema,
    found: TableSchema,
    policies: DDLConfig,
    *,
    before: TableSchema | None,
    fill: pa.RecordBatch | None,
    projection: Projection = NO_PROJECTION,
    rules: ColumnRules = NO_RULES,
    can_widen: Widens = never_widens,
    is_accepted: bool = False,
    other_defaults: Sequence[str] = (),
) -> Altered:
    """Decide what becomes of a table whose source says that it has other columns, or another key.

    The strictest kind of change decides about all: one that stops, then one for which the table is rebuilt. Nothing is applied in part.

    Args:
        known: As it is tracked.
        found: As the source says that it is now.
        policies: Of the table.
        before: What `found` is to be compared with, if the source says so (`DDLEvent.before`).
        fill: As `DDLEvent.fill`.
        projection: What the target has in another way than `known`.
        rules: Settings of the table's columns, perhaps others than those of `projection`.
        can_widen: What the target can do.
        is_accepted: What policies would stop, an operator has accepted.
        other_defaults: What the source did to defaults, in words.
    """
    # A source may have derived it from the shape for which the log was opened.
    found = replace(found, kept=())
    policies = _accepting(policies) if is_accepted else policies
    is_in_step = before is None or same_columns(bare(known), bare(before))
    if not is_in_step:
        # The source went by another shape: its numbers, and what it says of values, are not about this one.
        known, before, fill = bare(known), None, None
    old, new = _numbered(known, found, before)
    change = alteration(old, new)
    if before is None and (
        change.retyped or (change.added and _all_have_ids(found.columns) and not _all_have_ids(known.columns))
    ):
        # What the catalogue shows: a column may have got another type with other values. And compared by names, one that
        # seems new may have been renamed.
        fill = None
    try:
        after = _projection_after(
            projection, change, old, new, policies, rules, by_name=_is_by_name(known, found, before)
        )
    except SchemaConflictError as refused:
        return _refused(known, found, refused)
    # Policies are about columns that leave the source.
    hidden = {c.id for c in old.columns if c.name in projection.left_out} | {
        c.id for c in new.columns if c.name in after.left_out
    }
    seen = alteration(_without(old, hidden), _without(new, hidden)) if hidden else change
    kinds = _kinds(_without(before or old, hidden), _without(new, hidden), seen, other_defaults)
    held, wanted = projection.in_target(old), after.in_target(new)
    in_target = alteration(held, wanted)
    # What the source has dropped is left out of the target, too.
    kept, left_out = _split(_kept_after(old, change, in_target, policies), rules)
    other_settings = [
        *_other_settings(projection, after, old, new),
        *(_OtherSetting(column.name, has_other_values=False) for column in left_out),
    ]
    rebuilds = Change.CHANGE_KEY in kinds or not all(
        widens(a.type, b.type) and can_widen(a.type, b.type) and not _is_inexact_key(b, found)
        for a, b in in_target.retyped
    )
    error = _stop(known, kinds, policies)
    if rebuilds and not is_accepted and error is None and not other_settings:
        error = _unforeseen_rebuild(known, change, kinds, kept, policies)
    decided = Altered(
        before=held,
        schema=found,
        tracked=found,
        projection=NO_PROJECTION,
        fill=None,
        decision=Decision.STOP if error else Decision.REBUILD,
        changes=tuple(kinds),
        reason=_OTHER_SETTINGS if other_settings else None,
        error=error,
    )
    if error or rebuilds:
        return decided
    tracked = replace(new, kept=_named(kept, wanted.columns))
    schema = after.in_target(tracked)
    try:
        refuse_columns(found, check_columns(found))
    except SchemaConflictError as refused:
        return replace(decided, decision=Decision.STOP, error=refused)
    try:
        refuse_columns(found, check_columns(Projection(columns=after.columns).in_target(replace(tracked, kept=()))))
    except SchemaConflictError as refused:
        # A name that the settings give to a column is that of another one now.
        return replace(decided, decision=Decision.STOP, error=refused)
    if check_columns(schema):
        # A name that the target keeps is that of another column now.
        if is_accepted:
            return decided
        return replace(decided, decision=Decision.STOP, error=_name_taken(found, kinds, after.ignored))
    fill = None if any(one.has_other_values for one in other_settings) else fill
    decision = _decision(kinds, policies, needs_snapshot=fill is None)
    return replace(
        decided,
        schema=schema,
        tracked=tracked,
        projection=after,
        fill=None if fill is None else _fill_of(in_target.added, filled(fill, new, after, rules)),
        decision=Decision.APPLY if other_settings and decision is Decision.RECORD else decision,
        has_other_key_type=any(column.name in found.key for _, column in change.retyped),
    )


class _OtherSetting(NamedTuple):
    """A column whose settings are others than before. `has_other_values`: they change what rows have that are there already."""

    column: str
    has_other_values: bool


def _other_settings(
    before: Projection, after: Projection, old: TableSchema, new: TableSchema
) -> Sequence[_OtherSetting]:
    """Return the columns that the table keeps, and whose settings are others than before."""
    names = {column.id: column.name for column in old.columns}
    found: list[_OtherSetting] = []
    for column in new.columns:
        if column.id not in names:
            continue
        was = before.of(names[column.id]) or ProjectedColumn(column=column.name)
        now = after.of(column.name) or ProjectedColumn(column=column.name)
        if replace(was, column=now.column, is_new=now.is_new) == now:
            continue
        has_other_values = not now.is_left_out and (was.is_left_out or (was.mask, was.key) != (now.mask, now.key))
        found.append(_OtherSetting(column.name, has_other_values))
    return found


def _kept_after(old: TableSchema, change: Alteration, in_target: Alteration, policies: DDLConfig) -> Sequence[Column]:
    """Return the columns that the target keeps although the source does not have them."""
    if policies.drop_column not in ("keep", "ignore"):
        return old.kept
    dropped = {column.id for column in change.dropped}
    return [*old.kept, *(replace(column, nullable=True) for column in in_target.dropped if column.id in dropped)]


def _split(kept: Sequence[Column], rules: ColumnRules) -> tuple[Sequence[Column], Sequence[Column]]:
    """Return the kept columns that stay in the target, and those that the settings leave out."""
    left_out = [column for column in kept if rules.leaves_out(column.name)]
    return [column for column in kept if column not in left_out], left_out


def _projection_after(
    before: Projection,
    change: Alteration,
    old: TableSchema,
    new: TableSchema,
    policies: DDLConfig,
    rules: ColumnRules,
    *,
    by_name: bool,
) -> Projection:
    """Return what lies between source and target after an alteration.

    Raises:
        SchemaConflictError: A column would lose its protection by a rename, or cannot be projected.
    """
    _refuse_unprotected(old, change, rules, by_name=by_name)
    return Projection(
        ignored=ignored_after(before.ignored, change, policies, new),
        columns=rules.project(new, before=before.columns, known=old),
    )


def _refuse_unprotected(known: TableSchema, change: Alteration, rules: ColumnRules, *, by_name: bool) -> None:
    """Stop a table of which a column would be treated otherwise than before, because it has another name."""
    if not rules:
        return
    for old, new in change.renamed:
        others = (column.name for column in known.columns if column.name != old.name)
        rules.refuse_rename(known.table, old.name, new.name, others)
    if by_name:
        added = [column.name for column in change.added]
        for column in change.dropped:
            rules.refuse_replacement(known.table, column.name, added)


def _refused(known: TableSchema, found: TableSchema, error: SchemaConflictError) -> Altered:
    return Altered(
        before=known,
        schema=found,
        tracked=found,
        projection=NO_PROJECTION,
        fill=None,
        decision=Decision.STOP,
        changes=(),
        error=error,
    )


def project_whole(
    known: TableSchema | None, found: TableSchema, before: Sequence[ProjectedColumn], rules: ColumnRules
) -> tuple[ProjectedColumn, ...]:
    """Return what settings make of the columns of a table that is read as a whole.

    Args:
        known: The table as it was tracked; None: it is new.
        found: As the source has it now.
        before: What settings made of its columns.
        rules: The settings.

    Raises:
        SchemaConflictError: It cannot be projected so, or a column would lose its protection by a rename.
    """
    if known is not None:
        old, new = _numbered(bare(known) if not _all_have_ids(known.columns) else known, found, None)
        _refuse_unprotected(old, alteration(old, new), rules, by_name=_is_by_name(known, found, None))
    columns = rules.project(found, before=before, known=known)
    refuse_columns(found, check_columns(Projection(columns=columns).in_target(found)))
    return columns


def _is_by_name(known: TableSchema, found: TableSchema, before: TableSchema | None) -> bool:
    """Return whether columns are compared by their names alone, so that a rename looks like one that is dropped and one that is added."""
    has_numbers = _all_have_ids(known.columns) or (before is not None and _all_have_ids(before.columns))
    return not (has_numbers and _all_have_ids(found.columns))


def _fill_of(added: Sequence[Column], fill: pa.RecordBatch) -> pa.RecordBatch:
    names = {column.name for column in added}
    return fill.select([name for name in fill.schema.names if name in names])


def _without(schema: TableSchema, ids: Collection[int | None]) -> TableSchema:
    return replace(
        schema, columns=tuple(column for column in schema.columns if column.id is None or column.id not in ids)
    )


def _kinds(
    before: TableSchema, new: TableSchema, change: Alteration, other_defaults: Sequence[str]
) -> Mapping[Change, Sequence[str]]:
    """The kinds of change that an alteration consists of, and what the source did of each."""
    retyped = [
        (
            type_kind(old, column, is_key=column.name in new.key),
            f"changed the type of {column.name} from {old.source_type} to {column.source_type}",
        )
        for old, column in change.retyped
    ]
    found = {
        Change.ADD_COLUMN: [f"added {column.name}" for column in change.added],
        Change.DROP_COLUMN: [f"dropped {column.name}" for column in change.dropped],
        Change.RENAME_COLUMN: [f"renamed {old.name} to {column.name}" for old, column in change.renamed],
        Change.WIDEN_TYPE: [what for kind, what in retyped if kind is Change.WIDEN_TYPE],
        Change.CHANGE_TYPE: [what for kind, what in retyped if kind is Change.CHANGE_TYPE],
        Change.CHANGE_NULLABILITY: [
            f"{'allowed NULL' if column.nullable else 'forbade NULL'} in {column.name}"
            for column in _other_nullability(before, new)
        ],
        Change.CHANGE_DEFAULT: other_defaults,
        Change.CHANGE_KEY: [f"made {_key(new.key)} the key instead of {_key(before.key)}"]
        if change.has_other_key
        else [],
    }
    return {kind: what for kind, what in found.items() if what}


def _other_nullability(before: TableSchema, after: TableSchema) -> Sequence[Column]:
    """Columns that may be NULL, or no longer, other than before; those of the key never may."""
    known = {column.name if column.id is None else column.id: column for column in before.columns}
    pairs = [(known.get(c.name if c.id is None else c.id), c) for c in after.columns if c.name not in after.key]
    return [column for old, column in pairs if old is not None and old.nullable != column.nullable]


def _key(names: Sequence[str]) -> str:
    return f"({', '.join(names)})" if names else "nothing"


def _stop(known: TableSchema, kinds: Mapping[Change, Sequence[str]], policies: DDLConfig) -> SchemaConflictError | None:
    stopped = [kind for kind in kinds if _is_stopped(kind, policies)]
    if not stopped:
        return None
    reasons = [f"The source {', '.join(kinds[kind])}. The policy ddl.{kind.value} is `stop`." for kind in stopped]
    return stopped_by_policy(known.table, " ".join(reasons))


def _accepting(policies: DDLConfig) -> DDLConfig:
    """Return the policies with those followed that would stop."""
    return policies.model_copy(update={kind.value: "apply" for kind in Change if _is_stopped(kind, policies)})


def _is_stopped(kind: Change, policies: DDLConfig) -> bool:
    return bool(getattr(policies, kind.value) == "stop")


def _unforeseen_rebuild(
    known: TableSchema,
    change: Alteration,
    kinds: Mapping[Change, Sequence[str]],
    kept: Sequence[Column],
    policies: DDLConfig,
) -> SchemaConflictError | None:
    """Why the table stops although no policy says so: nobody asked for what a rebuild would cost."""
    is_asked_for = any(
        kind in kinds and getattr(policies, kind.value) == "apply" for kind in (Change.CHANGE_KEY, Change.CHANGE_TYPE)
    )
    if is_asked_for:
        return None
    what = f"The source {', '.join(itertools.chain(*kinds.values()))}. The target has to rebuild the table for that"
    if kept:
        names = ", ".join(column.name for column in kept)
        return stopped_by_policy(known.table, f"{what}, and would lose columns that it keeps: {names}.")
    is_widened = all(
        type_kind(old, new, is_key=new.name in known.key) is Change.WIDEN_TYPE for old, new in change.retyped
    )
    if not is_widened or policies.widen_type != "apply":
        return stopped_by_policy(known.table, f"{what}, and no policy allows that.")
    return None


def _name_taken(found: TableSchema, kinds: Mapping[Change, Sequence[str]], ignored: Ignored) -> SchemaConflictError:
    """Why a table stops that would have two columns of one name: policies ignored how one of them was renamed."""
    names = {folded(column.name): column.name for column in found.columns}
    kept = [e for e in ignored if e.name is not None and names.get(folded(e.name), e.column) != e.column]
    what = ", ".join(f"{e.name} for {e.column}" for e in kept)
    reason = f"The source {', '.join(itertools.chain(*kinds.values()))}. A policy ignores renames: the target keeps the name {what}"
    return stopped_by_policy(found.table, f"{reason}, and cannot have a second column of that name.")


def _is_inexact_key(column: Column, found: TableSchema) -> bool:
    return column.name in found.key and pa.types.is_floating(column.type)


def _decision(kinds: Mapping[Change, Sequence[str]], policies: DDLConfig, *, needs_snapshot: bool) -> Decision:
    if needs_snapshot:
        return Decision.SNAPSHOT
    decided = {kind: getattr(policies, kind.value) for kind in kinds if kind not in _RECORDED}
    if not decided:
        return Decision.RECORD
    if decided.get(Change.DROP_COLUMN) == "ignore":
        decided[Change.DROP_COLUMN] = "keep"
    (first, *others) = dict.fromkeys(decided.values())
    return Decision.APPLY if others else Decision(first)


def _numbered(known: TableSchema, found: TableSchema, before: TableSchema | None) -> tuple[TableSchema, TableSchema]:
    """Both shapes with numbers that tell which columns are the same; kept columns have numbers of their own, below zero."""
    old, new = known.columns, found.columns
    if before is not None and _all_have_ids(before.columns):
        # Of the columns, the target knows what is tracked.
        old = tuple(replace(mine, id=theirs.id) for mine, theirs in zip(old, before.columns, strict=True))
    if not (_all_have_ids(old) and _all_have_ids(new)):
        # By name. A source's own numbers stay as they are, since it will compare by them.
        if _all_have_ids(new):
            ids = {column.name: column.id for column in new}
            lower = itertools.count(-len(known.kept) - 1, -1)
            old = tuple(replace(c, id=ids[c.name] if c.name in ids else next(lower)) for c in old)
        else:
            old = old if _all_have_ids(old) else tuple(replace(c, id=id_) for id_, c in enumerate(old, start=1))
            ids = {column.name: column.id for column in old}
            higher = itertools.count(max(column.id or 0 for column in old) + 1)
            new = tuple(replace(c, id=ids[c.name] if c.name in ids else next(higher)) for c in new)
    kept = tuple(replace(column, id=-id_) for id_, column in enumerate(known.kept, start=1))
    return replace(known, columns=old, kept=kept), replace(found, columns=new, kept=kept)


def _named(kept: Sequence[Column], columns: Sequence[Column]) -> tuple[Column, ...]:
    """Kept columns give up their names to columns that the source has."""
    taken = {folded(column.name) for column in columns} | {folded(name) for name in RESERVED_COLUMNS}
    named: list[Column] = []
    for column in kept:
        name = next(name for name in _names_of(column.name) if folded(name) not in taken)
        taken.add(folded(name))
        named.append(replace(column, name=name))
    return tuple(named)


def _names_of(name: str) -> Iterator[str]:
    yield name
    number = 1
    while True:
        yield f"{name}__dropped_{number}"
        number += 1


def _all_have_ids(columns: Sequence[Column]) -> bool:
    return all(column.id is not None for column in columns)


def bare(schema: TableSchema) -> TableSchema:
    """The same shape without numbers: compared by names."""
    return replace(schema, columns=tuple(replace(column, id=None) for column in schema.columns))
