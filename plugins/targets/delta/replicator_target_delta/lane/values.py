"""Values as the table's data files hold them: `types.py`, in Arrow's types instead of Delta's."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replicator.plugins.kit.duckdb.canonical import stored_type
from replicator.plugins.kit.folding.layout import Layout
from replicator_target_delta.journal_files import as_text

_DAY_US: Final = 24 * 60 * 60 * 1_000_000


def as_stored(array: pa.Array) -> pa.Array:
    """Values of a canonical type as they are stored."""
    wanted = stored_type(array.type)
    if array.type == wanted:
        return array
    if pa.types.is_list(array.type):
        if array.offset:
            array = array.take(pa.array(np.arange(len(array))))
        values = as_stored(array.values)
        return pa.ListArray.from_arrays(array.offsets, values, mask=array.is_null() if array.null_count else None)
    if pa.types.is_time64(array.type):
        # The end of the day is its beginning, as Spark spells it.
        number = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False) % _DAY_US
        return pa.array(number, mask=_nulls(array)).cast(pa.time64("us")).cast(pa.string())
    return as_text(array) if wanted == pa.string() else array.cast(wanted)


def _nulls(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), bool)


LAYOUT: Final = Layout(type_of=stored_type, stored=as_stored)
