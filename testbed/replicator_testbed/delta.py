"""Reads Delta tables with delta-rs: neither Spark nor the code of the replication path has a part in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator_testbed.postgresql_rows import plain_array, plain_value


def read_delta(path: Path, columns: Sequence[str]) -> pa.Table:
    """The newest version of a table; instants are in UTC. delta-rs 1.6 finds no folder with a percent sign in its name.

    Args:
        path: The table's folder.
        columns: Which, and in which order.
    """
    from deltalake import DeltaTable, QueryBuilder

    names = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
    query = QueryBuilder().register("copy", DeltaTable(path)).execute(f"SELECT {names} FROM copy")
    return pa.table(query.read_all())


def rows_of(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Rows as Python values."""
    for batch in table.to_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def plain_rows(path: Path, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """The rows of `read_delta`, their values as `plain_value` spells them."""
    spelled = []
    for column in read_delta(path, columns).columns:
        kind = _without_views(column.type)
        array = pa.concat_arrays(column.chunks).cast(kind) if column.num_chunks else pa.array([], kind)
        spelled.append([plain_value(value, kind) for value in plain_array(array).to_pylist()])
    return Counter(zip(*spelled, strict=True))


def _without_views(kind: pa.DataType) -> pa.DataType:
    """The type of the same values without Arrow's views, which few of its functions take."""
    if pa.types.is_list(kind):
        return pa.list_(_without_views(kind.value_type))
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)
