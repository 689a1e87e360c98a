"""Reads Delta tables with delta-rs: neither Spark nor the code of the replication path has a part in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa


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
