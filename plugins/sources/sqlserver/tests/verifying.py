"""Types with values that have odd canonical forms, and tables of them, for the tests of verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from replicator.config import Secret
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import ChunkRequest, SourceContext
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.sqlserver.databases import SqlServerDatabase, enable
from replicator_testbed.sqlserver.tables import (
    FLOATS,
    KEYS,
    NUMBERS,
    OTHER_CODE_PAGES,
    OTHER_KEYS,
    OWN,
    TEXTS,
    TIMES,
    WITH_A_KEY_ONLY,
)

__all__ = [
    "FLOATS",
    "KEYS",
    "NUMBERS",
    "OTHER_CODE_PAGES",
    "OTHER_KEYS",
    "OWN",
    "TEXTS",
    "TIMES",
    "WITH_A_KEY_ONLY",
    "make",
    "rows_of",
    "schema_of",
    "source_of",
]


def source_of(database: SqlServerDatabase, **changed: object) -> SqlServerSource:
    """A source of the database, with settings that differ from the usual ones."""
    block = {name: value for name, value in database.source.items() if name != "type"} | changed
    config = SqlServerConfig(**block, password=Secret(database.server.password))
    return SqlServerSource(config, SourceContext(replicator="shop", uuid="u1", epoch=1))


def schema_of(source: SqlServerSource, name: str = "t") -> TableSchema:
    """The shape of a table of `dbo` as the host knows it."""
    table = TableId("dbo", name)
    return source.describe([table])[table].schema


def rows_of(source: SqlServerSource, schema: TableSchema) -> pa.RecordBatch:
    """The rows as the product decodes them, by the source's names."""
    if schema.key:
        rows = pa.Table.from_batches([source.read_chunk(ChunkRequest(schema=schema, limit=1_000_000)).rows])
    else:
        with source.read_whole(schema) as read:
            rows = pa.Table.from_batches(list(read.batches), schema=pa.schema(list(schema.row_type)))
            assert read.identity() is not None
    (batch,) = rows.rename_columns([column.name for column in schema.columns]).combine_chunks().to_batches()
    return batch


def make(
    database: SqlServerDatabase, types: Mapping[str, Sequence[str]], *, key: str = "PRIMARY KEY", name: str = "t"
) -> None:
    """A captured table with a column of each type, and a row for each of its values; and one row of NULLs."""
    columns = ", ".join(f"c{i} {type_} NULL" for i, type_ in enumerate(types))
    database.execute(f"CREATE TABLE dbo.{name} (id int NOT NULL {key}, {columns}, [o'd]]d,] int NULL)", enable(name))
    count = max(map(len, types.values()))
    rows = [f"INSERT INTO dbo.{name} (id) VALUES (-1)"]
    for row in range(count):
        given = {f"c{i}": values[row] for i, values in enumerate(types.values()) if row < len(values)}
        rows.append(f"INSERT INTO dbo.{name} (id, {', '.join(given)}) VALUES ({row}, {', '.join(given.values())})")
    database.execute(*rows)
