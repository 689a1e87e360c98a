"""Folds changes to one per key, in Arrow columns, as `replicator/spark/reduce.py` does in DataFrames.

A change touches a key: it writes a row there, or takes the row away. An UPDATE that changes the key takes the row from
the old key and then writes it at the new one. The last touch of a key tells its state after the batch, the first
the expected state before it.

Rows that lack columns are put together change by change (`replay`). Values that the batch does not have are in the
target, and `NetChanges.lacking` lists them. Columns that only the target has (`TableSchema.kept`) are NULL in all rows, and
`NetChanges.kept` lists them: they stay with the key, whatever happens to the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.events import (
    ABSENT,
    BEFORE,
    IS_DELETED,
    IS_SNAPSHOT,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    SOURCE_TIMESTAMP,
    DMLOperation,
)
from replicator.model.schema import TableSchema
from replicator.plugins.kit.folding.keys import KeyForm, distinct
from replicator.plugins.kit.folding.layout import Layout
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.kit.folding.replay import NONE, Replayed, Touches, picked, replay, sent_columns, whole
from replicator.plugins.target import TableOptions

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetChanges:
    """Net changes of a batch at keys that no other part of the batch has (`arrow.net_changes`).

    Attributes:
        keys: Every key that the batch touches, once (`KeyForm.keys`).
        key_columns: The same keys as the values of their columns, in key order; empty unless requested.
        is_append: True if the rows are new, so that no row is to be looked up. There are no `keys` then.
        is_removed: By key: True if it has no row after the batch.
        expects: By key: True if it must have a row before the batch.
        is_written: By key: True if the batch writes a row. A table that keeps deleted rows gets one at every key.
        rows: The written rows, in the order of `keys`, with the table's columns.
        lacking: By column of which rows lack values: True for those rows.
        origin: By row: index in `keys` of the target's row from which the values are to be taken; -1: none.
        only_marks: By row: True if it is the target's own, to be marked as deleted; where the target has none, none is written.
        kept: Columns that rows do not have: their values in the target's row at the same key stay, marked as deleted or not.
    """

    keys: pa.Array
    is_removed: Bools
    expects: Bools
    is_written: Bools
    rows: pa.Table
    lacking: Mapping[str, Bools] = field(default_factory=dict)
    origin: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    only_marks: Bools = field(default_factory=lambda: np.zeros(0, bool))
    kept: Sequence[str] = ()
    key_columns: Sequence[pa.Array] = ()
    is_append: bool = False

    @property
    def is_complete(self) -> bool:
        """Return whether the rows can be written without reading the target's."""
        return not self.lacking and not self.kept and not bool(self.only_marks.any())

    def numbered_keys(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of each key, and its index; for a target that takes rows one by one. Needs `key_columns`."""
        return zip(*(column.to_pylist() for column in self.key_columns), range(len(self.keys)), strict=True)

    @property
    def row_keys(self) -> pa.Array:
        """Return the keys of `rows`; none for an append."""
        return self.keys if self.is_append else self.keys.filter(pa.array(self.is_written))


def appended(changes: pa.Table, schema: TableSchema, options: TableOptions, layout: Layout) -> NetChanges:
    """Return the changes of a batch that may be appended (`Batch.is_append`)."""
    rows, nothing = rows_of(changes, schema, options, layout), np.zeros(0, bool)
    return NetChanges(
        keys=pa.array([], pa.int64()),
        is_removed=nothing,
        expects=nothing,
        is_written=nothing,
        rows=rows,
        only_marks=nothing,
        is_append=True,
    )


def key_form(schema: TableSchema, layout: Layout) -> KeyForm:
    """Return the form of a table's keys, as its data files have them.

    Raises:
        EngineNeededError: The table has no key, or one that cannot be distinguished by its bytes.
    """
    if not schema.key:
        raise EngineNeededError("the table has no key")
    return KeyForm([layout.type_of(schema.column(name).type) for name in schema.key])


def fold(
    changes: pa.Table,
    schema: TableSchema,
    options: TableOptions,
    layout: Layout,
    *,
    has_key_changes: bool,
    with_key_columns: bool = False,
) -> NetChanges:
    """Fold changes to one per key.

    Args:
        changes: Changes as `journal.in_order` returns them.
        schema: Their schema.
        options: Options of the table.
        layout: Types of its data files.
        has_key_changes: Some UPDATE may change its key.
        with_key_columns: True to fill `NetChanges.key_columns`, for a target that looks keys up by the values of their columns.

    Raises:
        EngineNeededError: A key has a null, or a change is not one that a source makes.
    """
    form = key_form(schema, layout)
    operation = array_of(changes, OPERATION)
    is_delete = mask_of(pc.equal(operation, DMLOperation.DELETE.value))
    is_update = mask_of(pc.equal(operation, DMLOperation.UPDATE.value))
    is_logged = ~mask_of(pc.fill_null(array_of(changes, IS_SNAPSHOT), False))
    _check_rows(changes, is_delete)
    numbers: Int64s = changes.column(SEQUENCE_NUM).to_numpy() * 2
    written, deleted = np.nonzero(~is_delete)[0], np.nonzero(is_delete)[0]
    arrived = keys_at(changes, ROW, written, schema, layout)
    left = _key_of(changes, BEFORE, deleted, schema, layout)
    keys = pa.concat_arrays([form.keys(arrived), form.keys(left)])
    moved = np.zeros(len(written), bool)
    if has_key_changes:
        at = np.nonzero(is_update[written] & ~mask_of(array_of(changes, BEFORE).is_null())[written])[0]
        old = _key_of(changes, BEFORE, written[at], schema, layout)
        moved[at] = ~mask_of(pc.equal(form.keys(old), keys.take(pa.array(at))))
        old = _key_of(changes, BEFORE, written[moved], schema, layout)
        left = [pa.concat_arrays(pair) for pair in zip(left, old, strict=True)]
        keys = pa.concat_arrays([keys, form.keys(old)])
        deleted = np.concatenate([deleted, written[moved]])
    change = np.concatenate([written, deleted])
    is_write = np.arange(len(change)) < len(written)
    expects = np.concatenate([(is_update & is_logged)[written] & ~moved, is_logged[deleted]])
    order = np.argsort(numbers[change] + is_write, kind="stable")
    touched, number = distinct(keys)
    code = number[order]
    _, first = np.unique(code, return_index=True)
    _, last = np.unique(code[::-1], return_index=True)
    last = order[len(code) - 1 - last]
    is_removed, is_soft = ~is_write[last], options.deletes == "soft"
    expects = expects[order[first]]
    touch = pa.array(order[first])
    folded = NetChanges(
        keys=touched,
        key_columns=[pa.concat_arrays(p).take(touch) for p in zip(arrived, left, strict=True)]
        if with_key_columns
        else (),
        is_removed=is_removed,
        expects=expects,
        is_written=np.ones(len(last), bool) if is_soft else ~is_removed,
        rows=pa.table({}),
        kept=[column.name for column in schema.kept],
    )
    final = change[last[folded.is_written]]
    is_partial = lacks_columns(changes) & (is_update | ~is_logged)
    if not is_soft and not bool(is_partial.any()):
        rows = rows_of(changes, schema, options, layout, pa.array(final))
        return replace(folded, rows=rows, only_marks=np.zeros(len(final), bool))
    taken, written_at = (np.full(len(is_delete), NONE, np.int64) for _ in range(2))
    written_at[written], taken[deleted] = number[: len(written)], number[len(written) :]
    latest = np.full(len(last), NONE, np.int64)
    latest[written_at[written]] = written  # of one key the last counts
    if bool(is_partial.any()):
        touches = Touches(taken=taken, written=written_at, is_whole=~is_partial, sent=_sent(changes, schema))
        replayed = replay(touches, np.nonzero(folded.is_written)[0])
    else:
        replayed = whole(latest, len(schema.columns))
    return _put_together(
        folded, changes, schema, options, layout, final, replayed, only_marks=is_removed & (latest == NONE)
    )


def _sent(changes: pa.Table, schema: TableSchema) -> Bools:
    """Return, by change and column, whether the change has the column's value."""
    try:
        return sent_columns(array_of(changes, ABSENT), {schema.fields[c.name]: i for i, c in enumerate(schema.columns)})
    except KeyError as error:
        raise EngineNeededError("a change names a column that the table does not have") from error


def _put_together(
    folded: NetChanges,
    changes: pa.Table,
    schema: TableSchema,
    options: TableOptions,
    layout: Layout,
    final: Int64s,
    replayed: Replayed,
    only_marks: Bools,
) -> NetChanges:
    """Return the folded batch with rows that have every value of the batch.

    Args:
        folded: Without its rows.
        changes: The batch.
        schema: Its schema.
        options: Options of the table.
        layout: Types of its data files.
        final: By row: the last change at its key.
        replayed: By row: the origin of its values.
        only_marks: By key, as in `NetChanges.only_marks`.
    """
    lacks = replayed.lacking()
    is_removed = folded.is_removed[folded.is_written]
    columns, lacking = dict[str, pa.Array](), dict[str, Bools]()
    values = array_of(changes, ROW).flatten()
    news, olds = (_key_of(changes, struct, final, schema, layout) for struct in (ROW, BEFORE))
    for i, column in enumerate(schema.columns):
        if column.name in schema.key:
            # A write has it, in its row or as its old key; a removal has the old key.
            new, old = (part[schema.key.index(column.name)] for part in (news, olds))
            columns[column.name] = pc.if_else(pa.array(is_removed), old, pc.coalesce(new, old))
        else:
            columns[column.name] = layout.stored(picked(values[i], replayed.change[:, i]))
            if bool(lacks[:, i].any()):
                lacking[column.name] = lacks[:, i]
    marks = _marks_of(changes.take(pa.array(final)), options, is_removed)
    return replace(
        folded,
        rows=pa.table({**columns, **_kept_of(schema, layout, len(final)), **marks}),
        lacking=lacking,
        origin=replayed.origin,
        only_marks=only_marks[folded.is_written],
    )


def rows_of(
    changes: pa.Table, schema: TableSchema, options: TableOptions, layout: Layout, at: pa.Array | None = None
) -> pa.Table:
    """Return the rows that changes write, with the table's columns and those that are ours; NULL in kept columns.

    Args:
        changes: Changes as `journal.in_order` returns them.
        schema: Their schema.
        options: Options of the table.
        layout: Types of its data files.
        at: Indexes of the changes; None: all.

    Raises:
        EngineNeededError: As `Layout.type_of`.
    """
    fields = array_of(changes, ROW).flatten()
    marked = changes.select([SEQUENCE_NUM, SOURCE_TIMESTAMP])
    if at is not None:
        # A column after the other, and only those that are written: the changes are in memory, too.
        fields, marked = [field.take(at) for field in fields], marked.take(at)
    columns = {column.name: layout.stored(field) for column, field in zip(schema.columns, fields, strict=True)}
    kept, marks = _kept_of(schema, layout, marked.num_rows), _marks_of(marked, options, np.zeros(marked.num_rows, bool))
    return pa.table({**columns, **kept, **marks})


def _kept_of(schema: TableSchema, layout: Layout, rows: int) -> dict[str, pa.Array]:
    return {column.name: pa.nulls(rows, layout.type_of(column.type)) for column in schema.kept}


def _marks_of(changes: pa.Table, options: TableOptions, is_removed: Bools) -> dict[str, pa.Array]:
    """Return the columns that are ours, of rows of which these changes were the last."""
    marks = {SEQUENCE_NUM: array_of(changes, SEQUENCE_NUM)}
    if options.deletes == "soft":
        marks[IS_DELETED] = pa.array(is_removed)
    if options.source_timestamp:
        marks[SOURCE_TIMESTAMP] = array_of(changes, SOURCE_TIMESTAMP)
    return marks


def lacks_columns(changes: pa.Table) -> Bools:
    """Return, by change, whether its row lacks columns."""
    return mask_of(pc.fill_null(pc.greater(pc.list_value_length(array_of(changes, ABSENT)), 0), False))


def keys_at(changes: pa.Table, struct: str, at: Int64s, schema: TableSchema, layout: Layout) -> Sequence[pa.Array]:
    """Return the key columns of some changes' rows (`row`), or of their old keys (`before`).

    An unchanged key column may be absent: the old key then has it.
    """
    found = _key_of(changes, struct, at, schema, layout)
    if struct == BEFORE:
        return found
    return [pc.coalesce(new, old) for new, old in zip(found, _key_of(changes, BEFORE, at, schema, layout), strict=True)]


def _check_rows(changes: pa.Table, is_delete: Bools) -> None:
    """Leave a change without a row to the engine, which may take it for a row of nulls."""
    has_row, has_before = (~mask_of(array_of(changes, name).is_null()) for name in (ROW, BEFORE))
    if bool((is_delete & ~has_before).any()) or bool((~is_delete & ~has_row).any()):
        raise EngineNeededError("a change has no row")


def _key_of(changes: pa.Table, struct: str, at: Int64s, schema: TableSchema, layout: Layout) -> Sequence[pa.Array]:
    """Return the key columns of some changes, from one of the two structs, as the table stores them."""
    column = array_of(changes, struct)
    fields = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
    return [layout.stored(fields[schema.fields[name]].take(pa.array(at))) for name in schema.key]


def array_of(changes: pa.Table, name: str) -> pa.Array:
    """Return a column in one chunk."""
    column = changes.column(name)
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def mask_of(array: Any) -> Bools:
    """Return truth values; null is false."""
    result: Bools = array.to_numpy(zero_copy_only=False).astype(bool)
    return result
