"""Changes of the source's tables as the target takes them: columns left out, values masked, names changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from itertools import starmap
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from replicator.config import Mask
from replicator.model.errors import SchemaConflictError
from replicator.model.events import ABSENT, BEFORE, ROW, change_schema, no_fill
from replicator.model.rules import columns
from replicator.model.schema import Column, TableId, TableSchema, type_to_text
from replicator.projection.columns import Projection
from replicator.projection.masking import MaskDoesNotFitError, masked
from replicator.projection.rules import NO_RULES, ColumnRules

_PLAIN: Final = {BEFORE, ROW, ABSENT}
Pair = tuple[Column, Column]


def project(
    rows: pa.RecordBatch, schema: TableSchema, projection: Projection, rules: ColumnRules = NO_RULES
) -> pa.RecordBatch:
    """Return changes of the shape `schema` as changes of the target's.

    Args:
        rows: In the layout of `change_schema(schema)`.
        schema: The table in the source.
        projection: What lies between the two.
        rules: Have the keys of its masks.

    Raises:
        SchemaConflictError: `value_does_not_fit`: a value is not the same in the type that the target keeps, or a masked value has no room
            in it.
    """
    both = projection.pairs(schema)
    masks = masks_of(schema.table, projection, rules)
    layout = change_schema(projection.in_target(schema))
    in_before = [(old, new) for old, new in both if not schema.key or old.name in schema.key]
    if schema.key:
        in_before.sort(key=lambda pair: schema.key.index(pair[0].name))
    fields = {schema.fields[old.name]: layout.field(ROW).type.field(i).name for i, (old, _) in enumerate(both)}
    columns = [
        _absent(rows.column(name), fields)
        if name == ABSENT
        else _struct(rows.column(name), schema, in_before if name == BEFORE else both, layout.field(name).type, masks)
        if name in _PLAIN
        else rows.column(name)
        for name in layout.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=layout)


def masks_of(table: TableId, projection: Projection, rules: ColumnRules) -> Mapping[str, Mask]:
    """Return the functions of masked columns, by their names in the source.

    Raises:
        SchemaConflictError: `mask_key_changed`: the settings have another function, or another key, than the table goes by.
    """
    masks: dict[str, Mask] = {}
    for entry in projection.columns:
        if entry.mask is None:
            continue
        mask = rules.mask_of(entry.column)
        if mask is None or (str(mask), mask.fingerprint) != (entry.mask, entry.key):
            raise columns.MASK_CHANGED.error(
                SchemaConflictError, table=str(table), column=entry.column, mask=entry.mask
            )
        masks[entry.column] = mask
    return masks


def projected_rows(
    rows: pa.RecordBatch, schema: TableSchema, projection: Projection, rules: ColumnRules = NO_RULES
) -> pa.RecordBatch:
    """Return rows of a source's table as rows of the target's, under its names.

    Args:
        rows: Columns are the fields of `schema.row_type`.
        schema: The table in the source.
        projection: What lies between the two.
        rules: Have the keys of its masks.

    Raises:
        SchemaConflictError: As `project`.
    """
    masks = masks_of(schema.table, projection, rules)
    both = projection.pairs(schema)
    arrays = [
        _projected(rows.column(schema.fields[old.name]), old, new, masks.get(old.name), schema.table)
        for old, new in both
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[new.name for _, new in both])


def filled(
    fill: pa.RecordBatch, schema: TableSchema, projection: Projection, rules: ColumnRules = NO_RULES
) -> pa.RecordBatch:
    """Return the values that older rows get in new columns (`DDLEvent.fill`) as the target's rows get them.

    Args:
        fill: One row, by names of the source's columns.
        schema: The table in the source, with these columns.
        projection: What lies between source and target.
        rules: Have the keys of its masks.
    """
    if not projection:
        return fill
    masks = masks_of(schema.table, projection, rules)
    arrays: dict[str, pa.Array] = {}
    for column, held in projection.pairs(schema):
        if column.name in fill.schema.names:
            values = fill.column(column.name)
            arrays[held.name] = _projected(values, column, held, masks.get(column.name), schema.table)
    return pa.RecordBatch.from_pydict(arrays) if arrays else no_fill()


def _struct(
    array: pa.StructArray, schema: TableSchema, pairs: Sequence[Pair], type_: pa.StructType, masks: Mapping[str, Mask]
) -> pa.StructArray:
    def child(old: Column, new: Column) -> pa.Array:
        values = pc.struct_field(array, schema.fields[old.name])
        return _projected(values, old, new, masks.get(old.name), schema.table)

    return pa.StructArray.from_arrays(list(starmap(child, pairs)), fields=list(type_), mask=pc.is_null(array))


def _projected(values: pa.Array, column: Column, held: Column, mask: Mask | None, table: TableId) -> pa.Array:
    """Return a column's values as the target has them."""
    if mask is None:
        return _fitting(values, held, table)
    try:
        found = masked(values, mask)
    except (ValueError, ArithmeticError, pa.ArrowException) as error:
        # The message of any other error, and its traceback, may quote the value.
        reason = error if isinstance(error, MaskDoesNotFitError) else "does not take it"
        raise columns.VALUE_CANNOT_BE_MASKED.error(
            SchemaConflictError, table=str(table), column=column.name, mask=mask, reason=reason
        ) from None
    return _fitting(found, held, table)


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
