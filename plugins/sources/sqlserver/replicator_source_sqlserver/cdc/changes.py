"""Pair the rows of a change table to changes, and find the columns that the server left out.

A change table has one row per image: of an UPDATE two, the old one and the new one. Rows of a commit are in the order of the log
only by (`__$start_lsn`, `__$command_id`, `__$seqval`, `__$operation`). A statement that changes the key of a single row is logged as a
deletion and an insertion, two commands, under one `__$seqval`: they are one change. A statement that moves the keys of many rows
is logged as all its deletions and then all its insertions, and nothing tells which belong together: they stay apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.model.events import DMLOperation
from replicator_source_sqlserver.lsn import SIZE

Positions = npt.NDArray[np.int64]

NONE: Final = -1
_LSN: Final = np.dtype((np.bytes_, SIZE))


_OPERATIONS: Final = pa.array([DMLOperation.INSERT, DMLOperation.UPDATE, DMLOperation.DELETE], pa.string())


class Image(IntEnum):
    """`__$operation`."""

    DELETED = 1
    INSERTED = 2
    BEFORE = 3
    AFTER = 4


class UnpairedImageError(ValueError):
    """An old image stands without its new one, or the reverse. `position`: the index of the row, from 0."""

    def __init__(self, position: int) -> None:
        super().__init__(f"row {position} of the change table has half an UPDATE")
        self.position = position


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one table, in the order of the log.

    Attributes:
        operations: INSERT, UPDATE or DELETE.
        before: Position of the row that has the old image; -1 where there is none.
        after: Position of the row that has the new image; -1 where there is none.
    """

    operations: pa.StringArray
    before: Positions
    after: Positions


def paired(
    starts: Sequence[bytes] | npt.NDArray[np.bytes_],
    seqvals: Sequence[bytes] | npt.NDArray[np.bytes_],
    images: Sequence[int],
) -> Changes:
    """Pair rows in the order of the log to changes.

    Args:
        starts: `__$start_lsn`.
        seqvals: `__$seqval`.
        images: `__$operation`.

    Raises:
        UnpairedImageError: The rows are not in that order, or some are missing.
        ValueError: An image is unknown.
    """
    kinds = np.asarray(images, np.int64)
    if not np.isin(kinds, list(Image)).all():
        raise ValueError("an __$operation is none of 1 to 4")
    follows = np.zeros(len(kinds), bool)
    if len(kinds):
        start, seqval = np.asarray(starts, _LSN), np.asarray(seqvals, _LSN)
        follows[:-1] = (start[:-1] == start[1:]) & (seqval[:-1] == seqval[1:])
    old = (kinds == Image.BEFORE) & follows & (_next(kinds) == Image.AFTER)
    unpaired = np.flatnonzero(((kinds == Image.BEFORE) & ~old) | ((kinds == Image.AFTER) & ~_previous(old)))
    if len(unpaired):
        raise UnpairedImageError(int(unpaired[0]))
    moved = (kinds == Image.DELETED) & follows & (_next(kinds) == Image.INSERTED)
    has_new = old | moved
    # A change stands where its first image does.
    first = np.flatnonzero(~_previous(has_new))
    is_update, is_deletion = has_new[first], kinds[first] == Image.DELETED
    is_insertion = ~is_update & ~is_deletion
    return Changes(
        operations=_OPERATIONS.take(pa.array(np.where(is_update, 1, np.where(is_deletion, 2, 0)))),
        before=np.where(is_insertion, NONE, first),
        after=np.where(is_update, first + 1, np.where(is_insertion, first, NONE)),
    )


def absent(masks: Sequence[bytes], images: Sequence[int], ordinals: Mapping[str, int]) -> pa.ListArray:
    """Return the fields that new images do not have, although the table does.

    The server logs no value of a (max) column, or of a text, ntext or image, that an UPDATE did not touch: it is NULL in the change table,
    and its bit in `__$update_mask` is not set.

    Args:
        masks: `__$update_mask` of each row, all of one length: bit 0 of the *last* byte is the column with ordinal 1.
        images: `__$operation` of each row.
        ordinals: Field name → `column_ordinal` in the capture instance, of such columns.

    Returns:
        `list<string>`, one per row; null where nothing is left out.

    Raises:
        ValueError: A mask is too short for an ordinal, or has another length than the others.
    """
    count = len(masks)
    kind = pa.list_(pa.string())
    if not count or not ordinals:
        return pa.nulls(count, kind)
    width = len(masks[0])
    if any(len(mask) != width for mask in masks) or max(ordinals.values()) > 8 * width:
        raise ValueError("an __$update_mask has not one bit for each column")
    bits = np.frombuffer(b"".join(masks), np.uint8).reshape(count, width)
    is_after = np.asarray(images, np.int64) == Image.AFTER
    is_absent = np.column_stack([is_after & ~_is_set(bits, ordinal) for ordinal in ordinals.values()])
    counts = is_absent.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    names = pa.array(list(ordinals), pa.string()).take(pa.array(np.nonzero(is_absent)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), names, mask=pa.array(counts == 0))


def _is_set(bits: npt.NDArray[np.uint8], ordinal: int) -> npt.NDArray[np.bool_]:
    byte, bit = divmod(ordinal - 1, 8)
    return (bits[:, bits.shape[1] - 1 - byte] >> bit & 1).astype(bool)


def _next(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the value after each; 0 after the last."""
    return np.append(values, 0)[1:]


def _previous(values: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the value before each; False before the first."""
    return np.concatenate([[False], values])[:-1]
