"""Shapes and rows as the target takes them where policies ignore changes of a table's columns. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from itertools import starmap
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from replicator.config.model import DDLConfig
from replicator.model.alteration import Alteration, Change, widens
from replicator.model.errors import SchemaConflictError
from replicator.model.events import ABSENT, BEFORE, ROW, change_schema
from replicator.model.schema import Column, TableId, TableSchema, type_to_text
from replicator.state.ignored import Ignored, pairs, still_ignored
from replicator.state.records import IgnoredColumn

_PLAIN: Final = {BEFORE, ROW, ABSENT}


def ignored_after(
    ignored: Ignored, change: Alteration, policies: DDLConfig, schema: TableSchema
) -> tuple[IgnoredColumn, ...]:
    """Return the changes that are ignored after an alteration that does not stop the table.

    Args:
        ignored: What is ignored before it.
        change: As the source has it.
        policies: Of the table.
        schema: Of the table in the source after it. Columns of the key are as the source has them.
    """
    dropped = {column.name for column in change.dropped}
    names = {old.name: new.name for old, new in change.renamed}
    found = {
        name: replace(entry, column=name, name=_renamed(entry, name, policies))
        for entry in ignored
        if entry.column not in dropped
        for name in (names.get(entry.column, entry.column),)
    }
    if policies.rename_column == "ignore":
        for old, new in change.renamed:
            if new.name not in found:
                found[new.name] = _entry(new, old)
    for old, new in change.retyped:
        entry = found.get(new.name)
        if getattr(policies, type_kind(old, new, is_key=new.name in schema.key).value) == "ignore":
            found.setdefault(new.name, _entry(new, replace(old, name=new.name)))
        elif entry is not None and entry.name is not None:
            found[new.name] = _entry(new, replace(new, name=entry.name))
    if policies.add_column == "ignore":
        found |= {column.name: IgnoredColumn(column=column.name) for column in change.added}
    return still_ignored((entry for name, entry in found.items() if name not in schema.key), schema)


def type_kind(old: Column, new: Column, *, is_key: bool) -> Change:
    """Return the kind of a column's other type."""
    # Rows are not found by numbers that are not exact.
    is_inexact = is_key and pa.types.is_floating(new.type)
    return Change.WIDEN_TYPE if widens(old.type, new.type) and not is_inexact else Change.CHANGE_TYPE


def project(rows: pa.RecordBatch, schema: TableSchema, ignored: Ignored) -> pa.RecordBatch:
    """Changes of the shape `schema` as changes of the target's.

    Raises:
        SchemaConflictError: `value_does_not_fit`: a value is not the same in the type that the target keeps.
    """
    both = pairs(schema, ignored)
    layout = change_schema(replace(schema, columns=tuple(column for _, column in both)))
    in_before = [(old, new) for old, new in both if not schema.key or old.name in schema.key]
    if schema.key:
        in_before.sort(key=lambda pair: schema.key.index(pair[0].name))
    fields = {schema.fields[old.name]: layout.field(ROW).type.field(i).name for i, (old, _) in enumerate(both)}
    columns = [
        _absent(rows.column(name), fields)
        if name == ABSENT
        else _struct(rows.column(name), schema, in_before if name == BEFORE else both, layout.field(name).type)
        if name in _PLAIN
        else rows.column(name)
        for name in layout.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=layout)


def _renamed(entry: IgnoredColumn, name: str, policies: DDLConfig) -> str | None:
    if entry.name is None or entry.column == name or policies.rename_column == "ignore":
        return entry.name
    return name


def _entry(column: Column, held: Column) -> IgnoredColumn:
    return IgnoredColumn(column=column.name, name=held.name, type=type_to_text(held.type), source_type=held.source_type)


def _struct(
    array: pa.StructArray, schema: TableSchema, pairs: Sequence[tuple[Column, Column]], type_: pa.StructType
) -> pa.StructArray:
    def child(old: Column, new: Column) -> pa.Array:
        return _fitting(pc.struct_field(array, schema.fields[old.name]), new, schema.table)

    return pa.StructArray.from_arrays(list(starmap(child, pairs)), fields=list(type_), mask=pc.is_null(array))


def _fitting(values: pa.Array, column: Column, table: TableId) -> pa.Array:
    """Values in the type that the target keeps, if each of them is the same there."""
    if values.type == column.type:
        return values
    if values.null_count == len(values):
        return pa.nulls(len(values), column.type)
    if len({_sort(values.type), _sort(column.type)} - {_Sort.TEXT}) > 1:
        raise _does_not_fit(column, table)
    try:
        cast = pc.cast(values, column.type)
        back = pc.cast(cast, values.type)
        same = pc.fill_null(pc.equal(back, values), fill_value=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        # Lists are among what cannot be compared.
        raise _does_not_fit(column, table) from error
    if pa.types.is_floating(values.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(back), pc.is_nan(values)), fill_value=False))
    if cast.null_count != values.null_count or not pc.all(same).as_py():
        raise _does_not_fit(column, table)
    return cast


class _Sort(Enum):
    """Return the sort of a type's values. Arrow casts between sorts by the numbers that it stores, which are not the same values."""

    TEXT = auto()
    NUMBER = auto()
    TIME = auto()
    INSTANT = auto()


def _sort(kind: pa.DataType) -> _Sort:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _Sort.TEXT
    if pa.types.is_timestamp(kind) and kind.tz:
        return _Sort.INSTANT
    return _Sort.TIME if pa.types.is_temporal(kind) else _Sort.NUMBER


def _does_not_fit(column: Column, table: TableId) -> SchemaConflictError:
    return SchemaConflictError(
        f"A value of column {column.name} does not fit the type {type_to_text(column.type)}. The target keeps that type,"
        " because a policy ignores its change.",
        code="value_does_not_fit",
        table=str(table),
        action="Run `replicator ddl accept NAME TABLE`: the target table is rebuilt with the source's types.",
    )


def _absent(names: pa.ListArray, fields: Mapping[str, str]) -> pa.ListArray:
    """The names of fields whose value is absent, as the target's shape has them."""
    if names.null_count == len(names) or not pc.any(pc.greater(pc.list_value_length(names), 0)).as_py():
        return names
    found = [None if row is None else [fields[name] for name in row if name in fields] for row in names.to_pylist()]
    return pa.array(found, names.type)
