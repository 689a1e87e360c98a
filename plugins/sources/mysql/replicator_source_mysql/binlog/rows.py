"""Row images of one table version to Arrow columns, all rows of a pull at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.model.schema import TableSchema
from replicator_source_mysql.binlog.tablemap import TableMap
from replicator_source_mysql.binlog.types import ColumnSpec, Unrepresentable


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """The columns of `change_schema` that rows events fill, one row per change (an UPDATE's two images are one).

    `event` (int64) says from which of the events given to `decode` each row came, ascending; `operation`, `before` and `row` are as in
    `replicator.model.events.change_schema`. Nothing is ever absent: images that lack columns are refused.
    """

    event: npt.NDArray[np.int64]
    operation: pa.Array
    before: pa.Array
    row: pa.Array


class RowDecoder:
    """Decodes rows events of one table version. Build one per `TableMap` (by identity) and schema version, and keep it.

    Args:
        table_map: The version.
        schema: What the rows become.
        specs: One per column of `schema`: how its values are read.
        positions: One per column of `schema`: its position in `table_map`. Columns of the map that are not named are skipped.
        unrepresentable: What becomes of zero and partial dates outside the key; in key columns they always fail.
        on_nulled: Told the column and the number of its values that became NULL for that.

    Raises:
        UnsupportedTypeError: A column, skipped ones included, has a type whose length cannot be known.
    """

    def __init__(
        self,
        table_map: TableMap,
        schema: TableSchema,
        specs: Sequence[ColumnSpec],
        positions: Sequence[int],
        *,
        unrepresentable: Unrepresentable = "fail",
        on_nulled: Callable[[str, int], None],
    ) -> None:
        raise NotImplementedError

    def decode(self, events: Sequence[tuple[int, bytes | memoryview]]) -> DecodedRows:
        """Decode rows events, in order.

        Args:
            events: (type code, body) of each; V1 and V2 alike. Compressed events are uncompressed by the caller
                (`uncompressed_body`), those inside a TRANSACTION_PAYLOAD come from `transaction_payload`.

        Raises:
            CorruptStreamError: `corrupt_binlog_event`: the bytes are no rows of this table.
            TableError: `row_image_not_full` (an image lacks columns), `unsupported_row_event` (PARTIAL_JSON),
                `unrepresentable_value`.
        """
        raise NotImplementedError
