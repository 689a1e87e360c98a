"""Divides a batch that does not fit into memory by the hashes of its keys, on disk.

A change of the key of a whole row is divided into its two halves, a removal and a write, which fall where their keys fall. A row that
lacks columns takes them along from its old key, so both keys fall into one bucket: all keys that such changes link do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.events import ABSENT, BEFORE, OPERATION, ROW, SEQUENCE_NUM, DMLOperation
from replicator.plugins.kit.folding import needed
from replicator.plugins.kit.folding.fold import array_of, lacks_columns, mask_of
from replicator.plugins.kit.folding.needed import EngineNeededError

_BUCKETS_MAX: Final = 128
_BUCKETS_PER_MEMORY: Final = 4
"""Buckets for as much as may be in memory: they are not of one size, and what is folded stands there more than once."""
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")

UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Identities = Callable[[pa.Table, str, Int64s], UInt64s]
"""Returns the hashes of what tells rows apart: of a column of the changes (`row`, `before`), at some of its indexes."""


class Buckets:
    """Changes on disk, by bucket. The files have no name, so none is left by a process that dies. To be closed.

    Args:
        size: Bytes of all changes, in memory.
        identities: Tells keys apart, or rows where there is no key.
        groups: Identities that belong into one bucket.
    """

    def __init__(self, size: int, identities: Identities, groups: Groups) -> None:
        self._identities, self._groups = identities, groups
        self._count = min(_BUCKETS_MAX, max(2, -(-size * _BUCKETS_PER_MEMORY // needed.BYTES_MAX)))
        self._stack = ExitStack()
        self._files = [self._file() for _ in range(self._count)]
        self._writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self._waiting, self._bytes = list[pa.Table](), 0

    def write(self, changes: pa.Table) -> None:
        """Add changes."""
        self._waiting.append(changes)
        self._bytes += changes.nbytes
        if self._bytes * _BUCKETS_PER_MEMORY > needed.BYTES_MAX:
            self._flush()

    def read(self) -> Iterator[list[pa.Table]]:
        """Yield the changes in pieces that fit into memory, bucket by bucket.

        A bucket that does not fit (a row that changed again and again, linked keys) is cut: earlier changes come first.

        Raises:
            EngineNeededError: The changes of a bucket that is to be cut are not in the order of their numbers.
        """
        self._flush()
        for writer in self._writers.values():
            writer.close()
        for number in sorted(self._writers):
            pieces, size, last = list[pa.Table](), 0, -1
            for piece in self._pieces(number):
                if size and size + piece.nbytes > needed.BYTES_MAX:
                    last = _last(pieces, last)
                    yield pieces
                    pieces, size = [], 0
                if last >= 0 and pc.min(piece.column(SEQUENCE_NUM)).as_py() <= last:
                    raise EngineNeededError("changes are out of order")
                pieces.append(piece)
                size += piece.nbytes
            yield pieces

    def close(self) -> None:
        """Remove everything."""
        self._stack.close()

    def _file(self) -> IO[bytes]:
        return self._stack.enter_context(tempfile.TemporaryFile())

    def _pieces(self, number: int) -> Iterator[pa.Table]:
        file = self._files[number]
        file.seek(0)
        with pa.ipc.open_stream(pa.PythonFile(file, mode="r")) as stream:
            for piece in stream:
                yield pa.Table.from_batches([piece])

    def _flush(self) -> None:
        if not self._waiting:
            return
        changes = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._bytes = [], 0
        changes, bucket = self._divided(changes)
        order = np.lexsort((changes.column(SEQUENCE_NUM).to_numpy(), bucket))
        starts = np.searchsorted(bucket[order], np.arange(self._count + 1))
        for number in np.flatnonzero(np.diff(starts)).tolist():
            part = changes.take(pa.array(order[starts[number] : starts[number + 1]])).combine_chunks()
            if number not in self._writers:
                sink = pa.PythonFile(self._files[number], mode="w")
                self._writers[number] = pa.ipc.new_stream(sink, changes.schema, options=_OPTIONS)
            self._writers[number].write_table(part)

    def _divided(self, changes: pa.Table) -> tuple[pa.Table, Int64s]:
        """Return the changes, those that concern two buckets in halves, and the bucket of each."""
        is_delete = mask_of(pc.equal(array_of(changes, OPERATION), DMLOperation.DELETE.value))
        is_update = mask_of(pc.equal(array_of(changes, OPERATION), DMLOperation.UPDATE.value))
        has_before = ~mask_of(array_of(changes, BEFORE).is_null())
        home = np.zeros(len(is_delete), np.int64)
        home[~is_delete] = self._bucket(changes, ROW, np.flatnonzero(~is_delete))
        home[is_delete] = self._bucket(changes, BEFORE, np.flatnonzero(is_delete))
        both = np.flatnonzero(is_update & has_before)
        left = self._bucket(changes, BEFORE, both)
        both, left = both[left != home[both]], left[left != home[both]]
        if not len(both):
            return changes, home
        halves = changes.take(pa.array(both))
        removals = _with(halves, {OPERATION: DMLOperation.DELETE.value, ROW: None, ABSENT: None})
        writes = _with(halves, {OPERATION: DMLOperation.INSERT.value, BEFORE: None})
        stays = np.ones(len(home), bool)
        stays[both] = False
        divided = pa.concat_tables([changes.filter(pa.array(stays)), removals, writes]).combine_chunks()
        return divided, np.concatenate([home[stays], left, home[both]])

    def _bucket(self, changes: pa.Table, column: str, at: Int64s) -> Int64s:
        buckets: Int64s = (self._groups.of(self._identities(changes, column, at)) % np.uint64(self._count)).astype(
            np.int64
        )
        return buckets


class Groups:
    """Identities that changes of partial rows link, directly or by others.

    Args:
        pairs: Old and new identity of such changes.
    """

    def __init__(self, pairs: Sequence[tuple[UInt64s, UInt64s]] = ()) -> None:
        empty = np.zeros(0, np.uint64)
        old, new = (np.concatenate([empty, *(pair[side] for pair in pairs)]) for side in (0, 1))
        self._members, at = np.unique(np.concatenate([old, new]), return_inverse=True)
        self._leader = _leaders(len(self._members), at[: len(old)], at[len(old) :])

    def of(self, identities: UInt64s) -> UInt64s:
        """Return the identity of the group's leader; of what is in no group, itself."""
        if not len(self._members):
            return identities
        at = np.minimum(np.searchsorted(self._members, identities), len(self._members) - 1)
        found: UInt64s = np.where(self._members[at] == identities, self._members[self._leader[at]], identities)
        return found


def links(changes: pa.Table, identities: Identities) -> tuple[UInt64s, UInt64s]:
    """Return the old and the new identity of changes that take values along from the old one."""
    is_update = mask_of(pc.equal(array_of(changes, OPERATION), DMLOperation.UPDATE.value))
    has_before = ~mask_of(array_of(changes, BEFORE).is_null())
    at = np.flatnonzero(is_update & has_before & lacks_columns(changes))
    old, new = identities(changes, BEFORE, at), identities(changes, ROW, at)
    return old[old != new], new[old != new]


def _leaders(count: int, one: Int64s, other: Int64s) -> Int64s:
    """Return the smallest member of the group of each member."""
    leader = np.arange(count)
    while True:
        low = np.minimum(leader[one], leader[other])
        before = leader.copy()
        # A group's leader follows the leader of the group that it is linked with.
        np.minimum.at(leader, before[one], low)
        np.minimum.at(leader, before[other], low)
        leader = leader[leader]
        if bool((leader == before).all()):
            return leader


def _last(pieces: list[pa.Table], last: int) -> int:
    return max(last, *(int(pc.max(piece.column(SEQUENCE_NUM)).as_py()) for piece in pieces))


def _with(changes: pa.Table, values: dict[str, Any]) -> pa.Table:
    """Return changes with one value in all of a column."""
    for name, value in values.items():
        at, type_ = changes.column_names.index(name), changes.schema.field(name)
        column = (
            pa.nulls(len(changes), type_.type)
            if value is None
            else pa.repeat(pa.scalar(value, type_.type), len(changes))
        )
        changes = changes.set_column(at, type_, column)
    return changes
