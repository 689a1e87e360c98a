"""The executor of the fold on one machine, in Arrow: bounded in memory, whatever the batch's size.

A batch that fits into memory (`needed.BYTES_MAX`) is folded there as a whole. A larger one is divided by the hashes of its keys into
buckets on disk (`spilling`), which are folded one after another: no key is in two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.model.events import ABSENT, BEFORE, OPERATION, ROW, SEQUENCE_NUM
from replicator.model.schema import TableSchema
from replicator.plugins.kit.folding import needed
from replicator.plugins.kit.folding.fold import NetChanges, appended, fold, key_form, keys_at
from replicator.plugins.kit.folding.journal import in_order, read_pieces
from replicator.plugins.kit.folding.keys import KeyForm, hashes
from replicator.plugins.kit.folding.layout import Layout
from replicator.plugins.kit.folding.multiset import NetRows, balance, identities, with_whole_rows
from replicator.plugins.kit.folding.needed import TooLargeError
from replicator.plugins.kit.folding.spilling import Buckets, Groups, Identities, links
from replicator.plugins.target import Batch, TableOptions

UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]


def net_changes(
    batch: Batch, options: TableOptions, layout: Layout, *, spills: bool = True, with_key_columns: bool = False
) -> Iterator[NetChanges]:
    """Fold a batch of a table with a key: yield its net changes, once per key.

    Args:
        batch: The batch.
        options: Options of the table.
        layout: Types in which the target stores values.
        spills: What does not fit into memory is kept in nameless files in the folder for temporary ones (`TMPDIR`). False: such a batch
            is refused, and any other is one part.
        with_key_columns: True to fill `NetChanges.key_columns`, for a target that looks keys up by the values of their columns.

    Yields:
        Parts, to be applied one after another in one transaction. No key is in two of them, unless all changes of a key, or of keys that
        it is linked with, do not fit into memory: then earlier changes come first, and counts are per part.

    Raises:
        TooLargeError: The batch does not fit into memory, and nothing may be kept on disk.
        EngineNeededError: The batch cannot be folded: see `fold`, `key_form` and `read_pieces`.

    Replay: same rows in, same rows out.
    """
    schema = batch.schema
    form = key_form(schema, layout)

    def groups() -> Groups:
        if not (batch.has_absent and batch.has_key_changes):
            return Groups()
        keys = [f"{struct}.{field}" for struct in (BEFORE, ROW) for field in schema.key_fields]
        return Groups(
            [
                links(piece.combine_chunks(), find)
                for piece in read_pieces(batch, [OPERATION, ABSENT, SEQUENCE_NUM, *keys])
            ]
        )

    find = partial(_hashes, schema, layout, form)
    for pieces in _parts(batch, find, groups, spills):
        changes = in_order(schema, pieces)
        if batch.is_append:
            yield appended(changes, schema, options, layout)
        else:
            yield fold(
                changes,
                schema,
                options,
                layout,
                has_key_changes=batch.has_key_changes,
                with_key_columns=with_key_columns,
            )


def net_rows(batch: Batch, options: TableOptions, layout: Layout, *, spills: bool = True) -> Iterator[NetRows]:
    """Fold a batch of a table without a key: yield the rows that it adds and removes. Otherwise as `net_changes`."""
    schema = batch.schema

    def find(changes: pa.Table, column: str, at: Int64s) -> UInt64s:
        return hashes(identities(changes, column, at))

    for pieces in _parts(batch, find, Groups, spills, partial(with_whole_rows, schema=schema)):
        yield balance(with_whole_rows(in_order(schema, pieces), schema), schema, options, layout)


def _parts(
    batch: Batch,
    find: Identities,
    groups: Callable[[], Groups],
    spills: bool,
    prepared: Callable[[pa.Table], pa.Table] = lambda changes: changes,
) -> Iterator[list[pa.Table]]:
    """Yield the batch's changes in pieces that are to be folded at once: all of them, if they fit into memory."""
    pieces, source, size = (
        list[pa.Table](),
        read_pieces(batch, bytes_max=None if spills else needed.BYTES_MAX),
        0,
    )
    for piece in source:
        pieces.append(piece)
        size += piece.nbytes
        if size > needed.BYTES_MAX:
            break
    else:
        yield pieces
        return
    if not spills:
        raise TooLargeError
    rows = sum(piece.num_rows for piece in pieces)
    if batch.is_append:
        yield pieces
        yield from ([piece] for piece in source)
        return
    with closing(Buckets(size * batch.rows // max(1, rows), find, groups())) as buckets:
        while pieces:
            buckets.write(prepared(pieces.pop(0).combine_chunks()))
        for piece in source:
            buckets.write(prepared(piece.combine_chunks()))
        yield from buckets.read()


def _hashes(schema: TableSchema, layout: Layout, form: KeyForm, changes: pa.Table, column: str, at: Int64s) -> UInt64s:
    """Return the hashes of the keys of some changes' rows, or of their old keys."""
    return hashes(form.keys(keys_at(changes, column, at, schema, layout)))
