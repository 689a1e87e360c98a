"""Folds a batch to one change per key, in Arrow columns, as `replicator/spark/reduce.py` does in DataFrames.

A change touches a key: it writes a row there, or takes the row away. An UPDATE that changes the key takes the row from
the old key and then writes it at the new one. The last touch of a key tells its state after the batch, the first
the expected state before it.

Rows that lack columns are put together change by change (`replay`). Values that the batch does not have are in the
target, and `Folded.lacking` lists them. Columns that only the target has (`TableSchema.kept`) are NULL in all rows, and
`Folded.kept` lists them: they stay with the key, whatever happens to the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

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
    change_schema,
)
from replicator.model.schema import TableSchema
from replicator.plugins.kit.lake.keys import KeyForm, distinct
from replicator.plugins.kit.lake.layout import Layout
from replicator.plugins.kit.lake.needed import EngineNeededError, TooLargeError
from replicator.plugins.kit.lake.replay import NONE, Replayed, Touches, picked, replay, sent_columns, whole
from replicator.plugins.kit.opening import open_seekable
from replicator.plugins.target import Batch, BatchFile, TableOptions

BYTES_MAX: Final = 256 << 20
"""Bytes of changes, and of the target's rows, that are in memory at once."""
_COLUMNS: Final = (SEQUENCE_NUM, OPERATION, IS_SNAPSHOT, SOURCE_TIMESTAMP, ABSENT, BEFORE, ROW)

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A batch with a key, folded.

    Attributes:
        keys: Every key that the batch touches, once (`KeyForm.keys`).
        key_columns: The same keys as the values of their columns, in key order; empty unless requested.
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

    @property
    def is_complete(self) -> bool:
        """Return whether the rows can be written without reading the target's."""
        return not self.lacking and not self.kept and not bool(self.only_marks.any())


def key_form(schema: TableSchema, layout: Layout) -> KeyForm:
    """Return the form of a table's keys, as its data files have them.

    Raises:
        EngineNeededError: The table has no key, or one that cannot be distinguished by its bytes.
    """
    if not schema.key:
        raise EngineNeededError("the table has no key")
    return KeyForm([layout.type_of(schema.column(name).type) for name in schema.key])


def read_changes(batch: Batch) -> pa.Table:
    """Return the batch's changes above `skip_to`, in the order of their numbers.

    Raises:
        TooLargeError: They do not fit into memory.
        EngineNeededError: They are not readable: the engine then reports the error.
    """
    layout = change_schema(batch.schema)
    wanted = pa.schema([layout.field(name) for name in _COLUMNS])
    tables, size = [], 0
    try:
        for file in batch.files:
            with _opened(file) as parquet:
                size += _size(parquet.metadata)
                if size > BYTES_MAX:
                    raise TooLargeError
                tables.append(parquet.read(columns=list(_COLUMNS)).select(_COLUMNS).cast(wanted))
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise EngineNeededError("the journal's files cannot be read") from error
    changes = pa.concat_tables([wanted.empty_table(), *tables])
    tables.clear()  # so that they are in memory twice at most
    if changes.nbytes > BYTES_MAX:
        raise TooLargeError
    if any(file.first <= batch.skip_to for file in batch.files):
        changes = changes.filter(pc.field(SEQUENCE_NUM) > batch.skip_to)
    columns = dict(zip(changes.column_names, changes.columns, strict=True))
    del changes
    changes = pa.table({name: _combined(columns.pop(name)) for name in _COLUMNS}, schema=wanted)
    numbers = changes.column(SEQUENCE_NUM).to_numpy()
    if bool((numbers[1:] <= numbers[:-1]).any()):
        changes = changes.take(pa.array(np.argsort(numbers, kind="stable")))
        if len(np.unique(numbers)) < len(numbers):
            raise EngineNeededError("two changes have one number")
    return changes


def _combined(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one chunk. Fields of a struct are combined one after another, so that only one is in memory twice."""
    type_, chunks = column.type, [chunk for chunk in column.chunks if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    if not chunks or not pa.types.is_struct(type_):
        return pa.concat_arrays([pa.array([], type_), *chunks])
    is_null = pa.concat_arrays([chunk.is_null() for chunk in chunks])
    parts = [chunk.flatten() for chunk in chunks]
    del column, chunks
    fields = []
    while parts[0]:
        fields.append(pa.concat_arrays([part.pop(0) for part in parts]))
    return pa.StructArray.from_arrays(fields, fields=list(type_), mask=is_null)


@contextmanager
def _opened(file: BatchFile) -> Iterator[pq.ParquetFile]:
    filesystem, path = pafs.FileSystem.from_uri(file.uri)
    with open_seekable(filesystem, path) as source:
        yield pq.ParquetFile(source)


def _size(file: pq.FileMetaData) -> int:
    """Return the bytes of a file's columns, encoded and not compressed."""
    return sum(file.row_group(i).total_byte_size for i in range(file.num_row_groups))


def fold(
    changes: pa.Table,
    schema: TableSchema,
    options: TableOptions,
    layout: Layout,
    *,
    has_key_changes: bool,
    with_key_columns: bool = False,
) -> Folded:
    """Fold changes to one per key.

    Args:
        changes: Changes as `read_changes` returns them.
        schema: Their schema.
        options: Options of the table.
        layout: Types of its data files.
        has_key_changes: Some UPDATE may change its key.
        with_key_columns: True to fill `Folded.key_columns`, for a target that looks keys up by the values of their columns.

    Raises:
        EngineNeededError: A key has a null, or a change is not one that a source makes.
    """
    form = key_form(schema, layout)
    operation = _array(changes, OPERATION)
    is_delete = _mask(pc.equal(operation, DMLOperation.DELETE.value))
    is_update = _mask(pc.equal(operation, DMLOperation.UPDATE.value))
    is_logged = ~_mask(pc.fill_null(_array(changes, IS_SNAPSHOT), False))
    _check_rows(changes, is_delete)
    numbers: Int64s = changes.column(SEQUENCE_NUM).to_numpy() * 2
    written, deleted = np.nonzero(~is_delete)[0], np.nonzero(is_delete)[0]
    # An unchanged key column may be absent: the old key then has it.
    arrived = [pc.coalesce(new, old) for new, old in zip(*_keys_of(changes, written, schema, layout), strict=True)]
    left = _key(changes, BEFORE, deleted, schema, layout)
    keys = pa.concat_arrays([form.keys(arrived), form.keys(left)])
    moved = np.zeros(len(written), bool)
    if has_key_changes:
        at = np.nonzero(is_update[written] & ~_mask(_array(changes, BEFORE).is_null())[written])[0]
        old = _key(changes, BEFORE, written[at], schema, layout)
        moved[at] = ~_mask(pc.equal(form.keys(old), keys.take(pa.array(at))))
        old = _key(changes, BEFORE, written[moved], schema, layout)
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
    folded = Folded(
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
    is_partial = _lacks_columns(changes) & (is_update | ~is_logged)
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
        return sent_columns(_array(changes, ABSENT), {schema.fields[c.name]: i for i, c in enumerate(schema.columns)})
    except KeyError as error:
        raise EngineNeededError("a change names a column that the table does not have") from error


def _put_together(
    folded: Folded,
    changes: pa.Table,
    schema: TableSchema,
    options: TableOptions,
    layout: Layout,
    final: Int64s,
    replayed: Replayed,
    only_marks: Bools,
) -> Folded:
    """Return the folded batch with rows that have every value of the batch.

    Args:
        folded: Without its rows.
        changes: The batch.
        schema: Its schema.
        options: Options of the table.
        layout: Types of its data files.
        final: By row: the last change at its key.
        replayed: By row: the origin of its values.
        only_marks: By key, as in `Folded.only_marks`.
    """
    lacks = replayed.lacking()
    is_removed = folded.is_removed[folded.is_written]
    columns, lacking = dict[str, pa.Array](), dict[str, Bools]()
    values = _array(changes, ROW).flatten()
    news, olds = _keys_of(changes, final, schema, layout)
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
        changes: Changes as `read_changes` returns them.
        schema: Their schema.
        options: Options of the table.
        layout: Types of its data files.
        at: Indexes of the changes; None: all.

    Raises:
        EngineNeededError: As `Layout.type_of`.
    """
    fields = _array(changes, ROW).flatten()
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
    marks = {SEQUENCE_NUM: _array(changes, SEQUENCE_NUM)}
    if options.deletes == "soft":
        marks[IS_DELETED] = pa.array(is_removed)
    if options.source_timestamp:
        marks[SOURCE_TIMESTAMP] = _array(changes, SOURCE_TIMESTAMP)
    return marks


def _lacks_columns(changes: pa.Table) -> Bools:
    return _mask(pc.fill_null(pc.greater(pc.list_value_length(_array(changes, ABSENT)), 0), False))


def _keys_of(changes: pa.Table, at: Int64s, schema: TableSchema, layout: Layout) -> Sequence[Sequence[pa.Array]]:
    """Return the key columns of some changes as their rows have them, and as their old keys have them."""
    return [_key(changes, struct, at, schema, layout) for struct in (ROW, BEFORE)]


def _check_rows(changes: pa.Table, is_delete: Bools) -> None:
    """Leave a change without a row to the engine, which may take it for a row of nulls."""
    has_row, has_before = (~_mask(_array(changes, name).is_null()) for name in (ROW, BEFORE))
    if bool((is_delete & ~has_before).any()) or bool((~is_delete & ~has_row).any()):
        raise EngineNeededError("a change has no row")


def _key(changes: pa.Table, struct: str, at: Int64s, schema: TableSchema, layout: Layout) -> Sequence[pa.Array]:
    """Return the key columns of some changes, from one of the two structs, as the table stores them."""
    column = _array(changes, struct)
    fields = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
    return [layout.stored(fields[schema.fields[name]].take(pa.array(at))) for name in schema.key]


def _array(changes: pa.Table, name: str) -> pa.Array:
    column = changes.column(name)
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _mask(array: Any) -> Bools:
    result: Bools = array.to_numpy(zero_copy_only=False).astype(bool)
    return result
