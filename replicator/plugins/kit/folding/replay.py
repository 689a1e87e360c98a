"""Puts rows that lack columns together change by change, as `reduce_partial_rows` does in DataFrames. Pure.

A write that carries the whole row starts again. A partial one adds to what the batch has so far at its key (one that
changes the key: at its old key); if a row was taken away there before, to nothing; and if the batch did not touch the
key before, to the target's row there, which is the row's **origin**. It moves with the row from key to key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

NONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Touches:
    """Effect of each change of a batch on keys, in the order of the changes. Keys are numbers.

    Attributes:
        taken: The key from which it takes the row; `NONE`: from none.
        written: The key at which it writes a row; `NONE`: at none.
        is_whole: True if the row that it writes is whole.
        sent: Columns that it sent: a row per change, a column per column.
    """

    taken: Int64s
    written: Int64s
    is_whole: Bools
    sent: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Origin of the values of rows.

    Attributes:
        change: By row and column: the change that sent the value; `NONE`: none did.
        origin: By row: the key whose row in the target has the values that no change sent; `NONE`: they are NULL.
    """

    change: Int64s
    origin: Int64s

    def lacking(self) -> Bools:
        """Return, by row and column, whether the value is in the target."""
        lacks: Bools = (self.change == NONE) & (self.origin != NONE)[:, None]
        return lacks


def replay(touches: Touches, keys: Int64s) -> Replayed:
    """Follow every row to the end of the batch, or to its removal.

    Args:
        touches: The batch.
        keys: Keys of the wanted rows: after the batch, or the last row that was taken away there.
    """
    columns = touches.sent.shape[1]
    # Per key that was touched: None, or the changes that its columns come from, with the origin.
    rows: dict[int, tuple[Int64s, int] | None] = {}
    graves: dict[int, tuple[Int64s, int]] = {}
    moments = zip(touches.taken.tolist(), touches.written.tolist(), touches.is_whole.tolist(), strict=True)
    for number, (taken, written, is_whole) in enumerate(moments):
        key = taken if taken != NONE else written
        row: tuple[Int64s, int] | None = None
        if written != NONE:
            changes = np.full(columns, number if is_whole else NONE, np.int64)
            origin = NONE
            if not is_whole:
                before = rows.get(key, (changes, key))
                if before is not None:
                    changes, origin = before[0].copy(), before[1]
                changes[touches.sent[number]] = number
            row = (changes, origin)
        if taken != NONE:
            last = rows.get(taken, (np.full(columns, NONE, np.int64), taken))
            if last is not None:
                graves[taken] = last
            rows[taken] = None
        if written != NONE:
            rows[written] = row
    found = [rows[key] or graves[key] for key in keys.tolist()]
    return Replayed(
        change=np.array([row[0] for row in found], np.int64).reshape(len(found), columns),
        origin=np.array([row[1] for row in found], np.int64),
    )


def whole(latest: Int64s, columns: int) -> Replayed:
    """Return the result where every row is whole: the last written at each key; `NONE`: the target's own."""
    own = np.where(latest == NONE, np.arange(len(latest)), NONE)
    return Replayed(change=np.broadcast_to(latest[:, None], (len(latest), columns)), origin=own)


def sent_columns(absent: pa.Array, fields: Mapping[str, int]) -> Bools:
    """Return the columns that each change sent, from its list of absent ones.

    Raises:
        KeyError: A change names a column that the table does not have.
    """
    sent = np.ones((len(absent), len(fields)), bool)
    at = pc.list_parent_indices(absent).to_numpy(zero_copy_only=False)
    names = pc.list_flatten(absent).to_pylist()
    sent[at, [fields[name] for name in names]] = False
    return sent


def picked(values: pa.Array, at: Int64s) -> pa.Array:
    """Return values by their numbers; null for `NONE`."""
    return values.take(pa.array(at, mask=at == NONE))


def completed(values: pa.Array, old: pa.Array, lacks: Bools) -> pa.Array:
    """Return `values`, and where they lack, the value of `old` at the same index."""
    count = len(values)
    both = pa.concat_arrays([values, old])
    return both.take(pa.array(np.arange(count) + lacks * count))
