"""Balances the changes of a table without a key: equal rows are a stack, of which the newest is taken away first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.events import ABSENT, BEFORE, OPERATION, ROW, SEQUENCE_NUM, DMLOperation
from replicator.model.schema import TableSchema
from replicator.plugins.kit.folding.fold import array_of, mask_of, rows_of
from replicator.plugins.kit.folding.keys import distinct, fixed
from replicator.plugins.kit.folding.layout import Layout
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.target import TableOptions

Int64s = npt.NDArray[np.int64]

_LENGTH: Final = ">u4"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetRows:
    """Net changes of a table without a key, of rows that no other part of the batch has (`arrow.net_rows`).

    Attributes:
        added: Rows to add, with the table's columns and those that are ours.
        removed: Rows to remove, each once, with the columns of the source: NULL equals NULL, NaN equals NaN, and -0.0 is not 0.0.
        times: By row of `removed`: how many rows equal to it go, those with the highest numbers. Fewer may be there.
    """

    added: pa.Table
    removed: pa.Table
    times: Int64s

    def numbered_rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of each removed row, and its `times`; for a target that takes rows one by one."""
        return zip(*(column.to_pylist() for column in self.removed.columns), self.times.tolist(), strict=True)


def with_whole_rows(changes: pa.Table, schema: TableSchema) -> pa.Table:
    """Return changes whose rows have all columns: what was not sent is as it was before.

    Raises:
        EngineNeededError: A row that is removed lacks columns.
    """
    before, row, absent = (array_of(changes, name) for name in (BEFORE, ROW, ABSENT))
    fields = {field.name: i for i, field in enumerate(before.type)}
    lacking = [name for name in schema.fields.values() if name not in fields]
    if lacking:
        raise EngineNeededError(f"a removed row lacks the columns {', '.join(lacking)}")
    if absent.null_count == len(absent):
        return changes
    names, olds, news = pc.list_flatten(absent), before.flatten(), row.flatten()
    owner = pc.list_parent_indices(absent).to_numpy(zero_copy_only=False)
    values = []
    for field, new in zip(row.type, news, strict=True):
        is_absent = np.zeros(len(changes), bool)
        is_absent[owner[mask_of(pc.equal(names, field.name))]] = True
        values.append(pc.if_else(pa.array(is_absent), olds[fields[field.name]], new) if is_absent.any() else new)
    rows = pa.StructArray.from_arrays(values, fields=list(row.type), mask=row.is_null())
    changes = changes.set_column(changes.column_names.index(ROW), ROW, rows)
    return changes.set_column(changes.column_names.index(ABSENT), ABSENT, pa.nulls(len(changes), absent.type))


def balance(changes: pa.Table, schema: TableSchema, options: TableOptions, layout: Layout) -> NetRows:
    """Balance additions and removals of each distinct row.

    Of the changes with one value, in their order, each removal takes back the latest addition of the batch that is left; those that find
    none remove rows of the table. So with the running sum of additions (+1) and removals (-1), its minimum is what the table loses, and an
    addition stays if the sum never falls below what it was with it.

    Args:
        changes: Changes as `journal.in_order` returns them, with whole rows (`with_whole_rows`).
        schema: Their schema.
        options: Options of the table.
        layout: Types in which the target stores values.
    """
    operation = array_of(changes, OPERATION)
    is_insert, is_delete = (
        mask_of(pc.equal(operation, kind.value)) for kind in (DMLOperation.INSERT, DMLOperation.DELETE)
    )
    added, removed = np.flatnonzero(~is_delete), np.flatnonzero(~is_insert)
    change, step = np.concatenate([added, removed]), np.repeat([1, -1], [len(added), len(removed)])
    _, row = distinct(pa.concat_arrays([identities(changes, ROW, added), identities(changes, BEFORE, removed)]))
    numbers = changes.column(SEQUENCE_NUM).to_numpy()[change]
    # An UPDATE takes its old row away before it adds the new one.
    order = np.lexsort((step, numbers, row))
    change, step, row = change[order], step[order], row[order]
    first = np.flatnonzero(np.r_[True, row[1:] != row[:-1]]) if len(row) else np.zeros(0, np.int64)
    height = np.cumsum(step)
    group = np.repeat(np.arange(len(first)), np.diff(np.r_[first, len(row)]))
    height -= (height[first] - step[first])[group]
    lost = np.maximum(0, -np.minimum.reduceat(height, first)) if len(first) else first
    # From the end, where groups lie so far apart that the minimum of one is no minimum of the one before it.
    apart = height + group * (2 * len(row) + 1)
    least = np.minimum.accumulate(apart[::-1])[::-1]
    stays = np.sort(change[(step == 1) & (least >= apart)])
    sample = _first_removals(change, step, group, len(first))[lost > 0]
    return NetRows(
        added=rows_of(changes, schema, options, layout, pa.array(stays)),
        removed=_stored(changes, schema, layout, sample),
        times=lost[lost > 0],
    )


def identities(changes: pa.Table, column: str, at: Int64s) -> pa.Array:
    """Return bytes that are equal exactly where rows have the same bits, except that one NaN equals another.

    Args:
        changes: Changes.
        column: `row` or `before`.
        at: Indexes of the changes.
    """
    rows = array_of(changes, column).take(pa.array(at))
    if rows.null_count:
        raise EngineNeededError("a change has no row")
    # By name: both structs have the same fields, in orders of their own.
    values = dict(zip([field.name for field in rows.type], rows.flatten(), strict=True))
    return _joined([_bytes_of(values[name]) for name in sorted(values)], len(at))


def _first_removals(change: Int64s, step: Int64s, group: Int64s, count: int) -> Int64s:
    """Return, by group, a change that removes its row; -1: none does."""
    found = np.full(count, -1)
    found[group[step == -1][::-1]] = change[step == -1][::-1]
    return found


def _stored(changes: pa.Table, schema: TableSchema, layout: Layout, at: Int64s) -> pa.Table:
    rows = array_of(changes, BEFORE).take(pa.array(at))
    values = dict(zip([field.name for field in rows.type], rows.flatten(), strict=True))
    return pa.table({name: layout.stored(values[field]) for name, field in schema.fields.items()})


def _bytes_of(values: pa.Array) -> pa.Array:
    """Return the bytes of values, with their lengths, so that those of several columns can be joined. A null has bytes of its own."""
    type_, count = values.type, len(values)
    if pa.types.is_list(type_):
        items = _bytes_of(values.flatten())
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
        content = pc.binary_join(pa.LargeListArray.from_arrays(offsets, items), pa.scalar(b"", pa.large_binary()))
        data = _joined([_numbers(lengths, _LENGTH), content], count)
    elif pa.types.is_string(type_) or pa.types.is_binary(type_):
        content = pc.fill_null(values.cast(pa.large_binary()), b"")
        data = _joined([_numbers(pc.binary_length(content).to_numpy(zero_copy_only=False), _LENGTH), content], count)
    elif pa.types.is_decimal(type_):
        width = type_.byte_width
        buffer = values.buffers()[1]
        data = fixed(np.frombuffer(buffer, np.uint8)[values.offset * width :][: count * width], width)
    elif pa.types.is_floating(type_):
        numbers = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False).copy()
        numbers[np.isnan(numbers)] = np.nan
        data = _numbers(numbers, numbers.dtype.str)
    else:
        numbers = pc.fill_null(_as_integers(values), 0).to_numpy(zero_copy_only=False)
        data = _numbers(numbers, "<i8")
    if not values.null_count:
        return _joined([fixed(np.ones(count, np.uint8), 1), data], count)
    is_valid = mask_of(values.is_valid())
    marks = fixed(is_valid.astype(np.uint8), 1)
    return _joined([marks, pc.if_else(pa.array(is_valid), data, pa.scalar(b"", pa.large_binary()))], count)


def _as_integers(values: pa.Array) -> pa.Array:
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32()).cast(pa.int64())
    return values.cast(pa.int64())


def _joined(parts: Sequence[pa.Array], count: int) -> pa.Array:
    if not count:
        return pa.array([], pa.large_binary())
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _numbers(numbers: npt.NDArray[np.generic], form: str) -> pa.Array:
    data = np.ascontiguousarray(numbers.astype(form))
    return fixed(data.view(np.uint8), data.dtype.itemsize)
