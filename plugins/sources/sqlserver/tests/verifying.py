"""Types with values that have odd canonical forms, and tables of them, for the tests of verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from replicator.config import Secret
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import ChunkRequest, SourceContext
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.sqlserver.databases import SqlServerDatabase, enable
from replicator_testbed.sqlserver_tables import FLOATS, NUMBERS, OTHER_CODE_PAGES, TEXTS, TIMES

__all__ = [
    "FLOATS",
    "KEYS",
    "NUMBERS",
    "OTHER_CODE_PAGES",
    "OTHER_KEYS",
    "TEXTS",
    "TIMES",
    "make",
    "rows_of",
    "schema_of",
    "source_of",
]

KEYS: Final[Mapping[str, Sequence[str]]] = {
    "bit": ["0", "1"],
    "tinyint": ["0", "255", "9", "10"],
    "bigint": ["-9223372036854775808", "9223372036854775807", "0", "9", "10", "-9", "-10"],
    "decimal(20,5)": ["-1.5", "0", "7.00001", "10", "9.5", "-10"],
    "money": ["-1.5", "0", "922337203685477.5807"],
    "date": ["'0001-01-01'", "'9999-12-31'", "'1969-12-31'", "'2024-02-29'"],
    "datetime": ["'1753-01-01T00:00:00.003'", "'1998-01-02T03:04:05.678'", "'1998-01-02T03:04:05.680'", "'9999-12-31T23:59:59.997'"],
    "smalldatetime": ["'1900-01-01T00:00:00'", "'2079-06-06T23:59:00'"],
    "datetime2(6)": ["'0001-01-01T00:00:00'", "'2000-01-01T00:00:00.000001'", "'2000-01-01T00:00:00.000002'", "'1969-12-31T23:59:59.9'"],
    "datetimeoffset(3)": ["'2026-01-02T03:04:05.678+05:30'", "'2026-01-02T03:04:05.678+05:00'", "'1969-12-31T23:00:00-01:00'"],
    "binary(3)": ["0x000000", "0x610000", "0x616263", "0xff0000"],
}  # fmt: skip
"""Those that have ranges."""
OTHER_KEYS: Final[Mapping[str, Sequence[str]]] = {
    "time(3)": ["'00:00:00'", "'23:59:59.999'"],
    "varbinary(20)": ["CONVERT(varbinary(20), '0x', 1)", "0x0001", "0xff27", "0x01"],
    "char(5)": ["'a'", "'B'", "'c d'"],
    "varchar(20) COLLATE Latin1_General_CI_AS": ["N'a'", "N'B'", "N'é'", "'c''d'", "'e,f'", "''", "'x '"],
    "varchar(20) COLLATE Latin1_General_100_BIN2_UTF8": ["N'a'", "N'B'", "N'é🐢'"],
    "nvarchar(450) COLLATE Latin1_General_BIN2": ["N'a'", "N'A'", "N'🐢'", "REPLICATE(N'ż', 400)"],
    "uniqueidentifier": [
        "'00000000-0000-0000-0000-000000000001'", "'6F9619FF-8B86-D011-B42D-00C04FC964FF'", "'ffffffff-0000-0000-0000-000000000000'",
    ],
}  # fmt: skip


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
