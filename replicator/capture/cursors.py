"""Key values as the texts by which a source finds their rows again."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from replicator.plugins.source import Cursor


def cursors(columns: Sequence[pa.Array]) -> list[Cursor]:
    r"""The cursor of each row whose key columns are given in key order; rows with a null part are left out.

    Needed only for rows that came incomplete by the log and must be read once more, so it may work row by row. Binary
    parts are spelled `\x` and hex digits; other types as Arrow writes their canonical value, which sources accept as
    input.
    """
    parts = [_texts(column) for column in columns]
    return [tuple(row) for row in zip(*parts, strict=True) if None not in row]


def _texts(column: pa.Array) -> list[str | None]:
    if pa.types.is_binary(column.type):
        return [None if value is None else "\\x" + value.hex() for value in column.to_pylist()]
    texts: list[str | None] = pc.cast(column, pa.string()).to_pylist()
    return texts
