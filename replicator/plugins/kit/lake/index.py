"""Index of the keys of a table's data file: sorted keys and their row numbers.

A data file never changes, so its index is a cache of something immutable: it can be dropped at any time, and is never
wrong. The log alone says which of the rows are alive.

Whole-number keys are looked up directly: 8 bytes a row where the file is sorted by its key, as clustering writes
it, 12 otherwise. Other keys are looked up by a hash, and every hit is compared with the key itself, which is kept
next to it: two keys with one hash stay two keys.

Large indexes stand in unnamed files that are mapped into memory, and vanish with the process.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.observability import get_logger
from replicator.plugins.kit.folding.keys import Int64s, KeyForm, hashes
from replicator.plugins.kit.folding.needed import EngineNeededError

KEYS_TOO_LARGE: Final = "the table's keys do not fit into target.index_memory"
_SPILLED_FROM: Final = 1 << 20
_MAPPED_MAX: Final = 128
"""Indexes with mapped parts, further ones stay in memory: each part, of which an index has up to four, keeps a file open."""
_ROWS_PER_READ: Final = 1 << 17
_ROWS_MAX: Final = 1 << 32

_log = get_logger(__name__)

Array = npt.NDArray[Any]


class Hits(NamedTuple):
    """Rows of one data file that have wanted keys: `positions` are those keys' positions among the wanted ones."""

    positions: Int64s
    rows: npt.NDArray[np.uint32]


class Wanted:
    """Keys to look for, each once.

    Args:
        keys: Keys from `KeyForm.keys`.
    """

    def __init__(self, keys: pa.Array) -> None:
        self.keys = keys
        self.is_integer = pa.types.is_int64(keys.type)
        sought = keys.to_numpy(zero_copy_only=False) if self.is_integer else hashes(keys)
        # Sorted, so that neighbours of the index are looked up one after the other.
        self.order: Int64s = np.argsort(sought, kind="stable")
        self.sought: Array = sought[self.order]

    def within(self, lowest: int, highest: int) -> slice:
        """The slice of `sought` between two whole numbers, both included."""
        low, high = np.searchsorted(self.sought, lowest, "left"), np.searchsorted(self.sought, highest, "right")
        return slice(int(low), int(high))


class KeyIndex:
    """The keys of one data file.

    Args:
        keys: Keys of all its rows, in their order.
        types: Types of the key columns.
        spill: Moves an array out of the heap.
    """

    def __init__(self, keys: pa.Array, types: Sequence[pa.DataType], spill: Callable[[Array], Array]) -> None:
        self.types = types
        self._rows: npt.NDArray[np.uint32] | None = None
        self._keys: pa.Array | None = None
        count = len(keys)
        if count >= _ROWS_MAX:
            raise EngineNeededError("a file has more than 2^32 rows")
        if pa.types.is_int64(keys.type):
            values = keys.to_numpy(zero_copy_only=False)
        else:
            values = hashes(keys)
            buffers = [spill(part) for part in _parts(keys)]
            self._keys = pa.LargeBinaryArray.from_buffers(
                pa.large_binary(), count, [None, *(pa.py_buffer(part) for part in buffers)]
            )
        if count > 1 and bool((values[1:] < values[:-1]).any()):
            order = np.argsort(values, kind="stable")
            values, self._rows = values[order], spill(order.astype(np.uint32))
        self._sorted = spill(values)
        self.rows = count
        self.bytes = self._sorted.nbytes + (0 if self._rows is None else self._rows.nbytes)
        self.bytes += 0 if self._keys is None else sum(b.size for b in self._keys.buffers() if b is not None)

    def find(self, wanted: Wanted) -> Hits:
        """Rows, alive or not, that have one of the keys."""
        part = slice(None)
        if wanted.is_integer and self.rows:
            part = wanted.within(int(self._sorted[0]), int(self._sorted[-1]))
        sought = wanted.sought[part]
        left = np.searchsorted(self._sorted, sought, "left")
        # Most keys stand in a file once or not at all.
        there = np.zeros(len(sought), bool)
        inside = left < self.rows
        there[inside] = self._sorted[left[inside]] == sought[inside]
        left = left[there]
        right = np.searchsorted(self._sorted, sought[there], "right")
        counts = right - left
        positions = np.repeat(wanted.order[part][there], counts)
        at = np.repeat(left, counts)
        if len(at) > len(counts):
            first = np.cumsum(counts) - counts
            at = at + (np.arange(len(at)) - np.repeat(first, counts))
        rows = at.astype(np.uint32) if self._rows is None else np.asarray(self._rows[at])
        if self._keys is not None and len(rows):
            same = pc.equal(self._keys.take(pa.array(rows)), wanted.keys.take(pa.array(positions)))
            mask = same.to_numpy(zero_copy_only=False)
            positions, rows = positions[mask], rows[mask]
        return Hits(positions, rows)


class IndexCache:
    """The indexes of a process, of all tables. The least recently used is dropped when there are too many.

    Args:
        bytes_max: Limit of all indexes together. One file's may be larger: it is then kept for the look-up alone.
        folder: Folder of large indexes; the system's temporary folder by default.
    """

    def __init__(self, bytes_max: int, folder: Path | None = None) -> None:
        self.bytes_max = bytes_max
        self._folder = folder
        self._lock = threading.Lock()
        self._indexes: OrderedDict[str, KeyIndex] = OrderedDict()
        self._bytes = 0
        self._mapped: set[str] = set()

    @property
    def bytes(self) -> int:
        """Bytes of all indexes that are kept."""
        return self._bytes

    def get(self, path: str, form: KeyForm, make: Callable[[], pa.Array]) -> KeyIndex:
        """The index of a data file.

        Args:
            path: The file's path: no other file ever has it.
            form: Form of the keys. A key column that got a wider type since the index was made has others.
            make: Reads the keys of its rows.
        """
        with self._lock:
            index = self._indexes.get(path)
            if index is not None and index.types == form.types:
                self._indexes.move_to_end(path)
                return index
        return self.put(path, form, make())

    def put(self, path: str, form: KeyForm, keys: pa.Array) -> KeyIndex:
        """Keep the index of a data file whose keys are known."""
        may_map = len(self._mapped) < _MAPPED_MAX
        index = KeyIndex(keys, form.types, self._spill if may_map else np.array)
        with self._lock:
            self._drop(path)
            self._indexes[path] = index
            self._bytes += index.bytes
            if may_map and index.bytes >= _SPILLED_FROM:
                self._mapped.add(path)
            while self._indexes and self._bytes > self.bytes_max:
                self._drop(next(iter(self._indexes)))
        return index

    def forget(self, path: str) -> None:
        """Drop the index of a file that is no longer part of its table."""
        with self._lock:
            self._drop(path)

    def _drop(self, path: str) -> None:
        index = self._indexes.pop(path, None)
        if index is not None:
            self._bytes -= index.bytes
            self._mapped.discard(path)

    def _spill(self, array: Array) -> Array:
        if array.nbytes < _SPILLED_FROM:
            return np.array(array)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                file.write(np.ascontiguousarray(array).data.cast("B"))
                file.flush()
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            # The disk is full, for example. An index is only a help, perhaps for a batch that is committed already.
            _log.warning("index_kept_in_memory", reason=error.strerror or type(error).__name__)
            return np.array(array)
        return np.frombuffer(mapped, array.dtype)


def read_keys(source: Any, columns: Sequence[str], form: KeyForm, rows: int) -> pa.Array:
    """Read the keys of a data file's rows, in their order.

    Args:
        source: The open file.
        columns: Names of the key columns in the file.
        form: Their form.
        rows: Number of its rows according to the log.

    Raises:
        EngineNeededError: It differs from the log, or holds keys in another type.
    """
    try:
        # Spark writes moments as INT96, of nanoseconds: read as such they would overflow.
        file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
        parts = []
        for batch in file.iter_batches(batch_size=_ROWS_PER_READ, columns=list(columns)):
            found = [batch.column(name).cast(type_) for name, type_ in zip(columns, form.types, strict=True)]
            parts.append(form.keys(found))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError) as error:
        raise EngineNeededError("a data file's keys cannot be read") from error
    empty = pa.array([], pa.int64() if form.is_integer else pa.large_binary())
    keys = pa.concat_arrays([empty, *parts])
    if len(keys) != rows:
        raise EngineNeededError(f"a data file has {len(keys)} rows, the log says {rows}")
    return keys


def _parts(keys: pa.Array) -> Sequence[Array]:
    """Offsets and bytes of keys of large binary, from the first."""
    count = len(keys)
    if not count:
        return [np.zeros(1, np.int64), np.zeros(0, np.uint8)]
    _, offsets, data = keys.buffers()
    whole = np.frombuffer(offsets, np.int64)[keys.offset : keys.offset + count + 1]
    used = np.frombuffer(data, np.uint8)[whole[0] : whole[-1]] if whole[-1] else np.zeros(0, np.uint8)
    return [whole - whole[0], used]
