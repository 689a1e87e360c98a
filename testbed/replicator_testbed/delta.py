"""Reads Delta tables with delta-rs or DuckDB: neither Spark nor the code of the replication path has a part in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from replicator_testbed.postgresql.rows import plain_array, plain_value

if TYPE_CHECKING:
    from deltalake import DeltaTable


def read_delta(path: Path, columns: Sequence[str]) -> pa.Table:
    """The newest version of a table; instants are in UTC.

    delta-rs reads it, except for a table with a widened column, which it refuses: DuckDB reads that.

    Args:
        path: The table's folder.
        columns: Which, and in which order.
    """
    from deltalake import DeltaTable

    table = DeltaTable(path)
    if "typeWidening" in (table.protocol().reader_features or ()):
        return read_by_duckdb(path, columns)
    return _by_delta_rs(table, columns)


def _by_delta_rs(table: DeltaTable, columns: Sequence[str]) -> pa.Table:
    from deltalake import QueryBuilder

    query = QueryBuilder().register("copy", table).execute(f"SELECT {_listed(columns)} FROM copy")
    return pa.table(query.read_all())


def read_by_duckdb(path: Path, columns: Sequence[str]) -> pa.Table:
    """As `read_delta`, by DuckDB's extension `delta`, which comes as a package."""
    import duckdb
    from duckdb_extensions import import_extension

    with duckdb.connect() as connection:
        import_extension("delta", con=connection)
        connection.execute("LOAD delta")
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(f"SELECT {_listed(columns)} FROM delta_scan($1)", [str(path)]).to_arrow_table()


def _listed(columns: Sequence[str]) -> str:
    return ", ".join('"' + name.replace('"', '""') + '"' for name in columns)


def rows_of(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Rows as Python values."""
    for batch in table.to_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def plain_rows(path: Path, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """The rows of `read_delta`, their values as `plain_value` spells them."""
    return plain_rows_of(read_delta(path, columns))


def plain_rows_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """Rows whose values are spelled as `plain_value` does."""
    spelled = []
    for column in table.columns:
        kind = without_views(column.type)
        array = pa.concat_arrays(column.chunks).cast(kind) if column.num_chunks else pa.array([], kind)
        spelled.append([plain_value(value, kind) for value in plain_array(array).to_pylist()])
    return Counter(zip(*spelled, strict=True))


def without_views(kind: pa.DataType) -> pa.DataType:
    """The type of the same values without Arrow's views, which few of its functions take."""
    if pa.types.is_list(kind):
        return pa.list_(without_views(kind.value_type))
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def slip_in_a_row(table: Path, *, id_: int) -> None:
    """Commit a copy of a row to a Delta table, as somebody could, under an id that the source does not have."""
    logs = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    [file, *_] = [action["add"]["path"] for action in actions if "add" in action]
    rows = pq.read_table(table / file).slice(0, 1)
    [schema] = [json.loads(action["metaData"]["schemaString"]) for action in actions[:5] if "metaData" in action]
    [column_id] = [field["metadata"] for field in schema["fields"] if field["name"] == "id"]
    column = rows.schema.get_field_index(column_id.get("delta.columnMapping.physicalName", "id"))
    rows = rows.set_column(column, rows.schema.field(column), pa.array([id_], rows.schema.field(column).type))
    added = table / "slipped-in.parquet"
    pq.write_table(rows, added)
    add = {
        "path": added.name, "partitionValues": {}, "size": added.stat().st_size, "modificationTime": 0, "dataChange": True,
        "stats": json.dumps({"numRecords": 1}),
    }  # fmt: skip
    commit = [{"commitInfo": {"operation": "WRITE"}}, {"add": add}]
    number = int(logs[-1].stem) + 1
    (table / "_delta_log" / f"{number:020}.json").write_text("".join(json.dumps(action) + "\n" for action in commit))
