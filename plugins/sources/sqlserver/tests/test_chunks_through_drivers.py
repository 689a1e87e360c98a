"""The statements of chunks through both drivers: keys of many types, in the server's own order, each row once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyodbc
import pytest

from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.cursors import cursors
from replicator.plugins.source import ChunkRequest, Cursor
from replicator_source_sqlserver.names import quoted
from replicator_source_sqlserver.snapshot.chunk_statements import ReadPlan, chunk_query
from replicator_source_sqlserver.types import DeclaredType, spec_of

LIMIT = 3
TEXTS = ["N''", "N'a'", "N'B'", "N'c'", "N'é'", "N'z'", "N'Ż'", "N'ł'"]
GUIDS = [
    "'00000000-0000-0000-0000-0000000000FF'",
    "'FF000000-0000-0000-0000-000000000001'",
    "'00FF0000-0000-0000-0000-000000000001'",
    "'00000000-0000-0000-FF00-000000000001'",
    "'6F9619FF-8B86-D011-B42D-00C04FC964FF'",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a key: its declaration, what the catalogue says of it, and values."""

    sql: str
    declared: DeclaredType
    values: Sequence[str]


def text(name: str, length: int, collation: str) -> Part:
    """A text in a collation; only letters of the code page."""
    is_wide = name.startswith("n")
    values = TEXTS if is_wide or collation in {"Polish_CI_AS", "Latin1_General_100_BIN2_UTF8"} else TEXTS[:6]
    size = 2 * length if is_wide else length
    declared = DeclaredType(name=name, max_length=size, collation=collation)
    return Part(sql=f"{name}({length}) COLLATE {collation}", declared=declared, values=values)


PARTS: dict[str, Part] = {
    "int": Part(sql="int", declared=DeclaredType(name="int"), values=["-7", "0", "1", "2", "10", "2147483647"]),
    "bigint": Part(sql="bigint", declared=DeclaredType(name="bigint"), values=["-9223372036854775808", "0", "9"]),
    "tinyint": Part(sql="tinyint", declared=DeclaredType(name="tinyint"), values=["0", "2", "10", "255"]),
    "bit": Part(sql="bit", declared=DeclaredType(name="bit"), values=["0", "1"]),
    "decimal": Part(
        sql="decimal(12,2)",
        declared=DeclaredType(name="decimal", precision=12, scale=2),
        values=["-10.50", "-9.75", "0", "2.25", "1000000000.01"],
    ),
    "money": Part(sql="money", declared=DeclaredType(name="money"), values=["-922337203685477.5808", "0.0001", "9"]),
    "binary": Part(
        sql="binary(4)",
        declared=DeclaredType(name="binary", max_length=4),
        values=["0x00", "0x01", "0x00ff", "0xffffffff"],
    ),
    "varbinary": Part(
        sql="varbinary(8)", declared=DeclaredType(name="varbinary", max_length=8), values=["0x00", "0x0000", "0xff"]
    ),
    "uniqueidentifier": Part(
        sql="uniqueidentifier", declared=DeclaredType(name="uniqueidentifier", max_length=16), values=GUIDS
    ),
    "date": Part(sql="date", declared=DeclaredType(name="date"), values=["'0001-01-01'", "'2026-02-28'", "'9999-12-31'"]),
    "time(3)": Part(
        sql="time(3)", declared=DeclaredType(name="time", scale=3), values=["'00:00:00'", "'12:00:00.001'", "'23:59:59.999'"]
    ),
    "datetime": Part(
        sql="datetime",
        declared=DeclaredType(name="datetime"),
        values=["'2026-01-01T00:00:00.003'", "'2026-01-01T00:00:00.007'", "'2026-01-01T00:00:00.010'", "'1753-01-01'"],
    ),
    "smalldatetime": Part(
        sql="smalldatetime", declared=DeclaredType(name="smalldatetime"), values=["'2026-01-01T00:01:00'", "'1900-01-01'"]
    ),
    "datetime2(6)": Part(
        sql="datetime2(6)",
        declared=DeclaredType(name="datetime2", scale=6),
        values=["'0001-01-01'", "'2026-01-01T00:00:00.000001'", "'9999-12-31T23:59:59.999999'"],
    ),
    "datetimeoffset(3)": Part(
        sql="datetimeoffset(3)",
        declared=DeclaredType(name="datetimeoffset", scale=3),
        values=["'2026-01-01T05:00:00.123+05:00'", "'2026-01-01T00:00:00.124Z'", "'2025-12-31T23:00:00-02:00'"],
    ),
    "hierarchyid": Part(
        sql="hierarchyid",
        declared=DeclaredType(name="hierarchyid", max_length=892),
        values=["'/'", "'/1/'", "'/1/10/'", "'/1/2/'", "'/1.1/'", "'/2/'", "'/-1/'", "'/10/'"],
    ),
    "sysname": Part(sql="sysname", declared=DeclaredType(name="nvarchar", max_length=256), values=TEXTS),
    "nvarchar CI": text("nvarchar", 10, "SQL_Latin1_General_CP1_CI_AS"),
    "nvarchar BIN2": text("nvarchar", 10, "Latin1_General_BIN2"),
    "nchar CI": text("nchar", 4, "Latin1_General_CI_AS"),
    "varchar CI": text("varchar", 10, "SQL_Latin1_General_CP1_CI_AS"),
    "varchar CS": text("varchar", 10, "Latin1_General_CS_AS"),
    "varchar Polish": text("varchar", 10, "Polish_CI_AS"),
    "varchar UTF-8": text("varchar", 10, "Latin1_General_100_BIN2_UTF8"),
    "char CI": text("char", 4, "Latin1_General_CI_AS"),
}  # fmt: skip
KEYS = [
    *((name,) for name in PARTS),
    ("varchar Polish", "uniqueidentifier"),
    ("datetimeoffset(3)", "nvarchar CI", "tinyint"),
    ("hierarchyid", "sysname", "hierarchyid"),
]


def plan_of(parts: Sequence[Part]) -> ReadPlan:
    """The key's columns, and nothing else."""
    specs = {f"k]{number}": spec for number, part in enumerate(parts) if (spec := spec_of(part.declared)) is not None}
    columns = tuple(Column(name=name, type=spec.arrow, source_type=str(spec.declared)) for name, spec in specs.items())
    table = TableId("dbo", "keyed")
    return ReadPlan(schema=TableSchema(table=table, columns=columns, key=tuple(specs)), specs=specs)


def read(connection: pyodbc.Connection, plan: ReadPlan, request: ChunkRequest) -> list[Cursor]:
    """The keys of a chunk, spelled as the next one takes them."""
    query, parameters = chunk_query(plan, request)
    rows = connection.execute(query, *parameters).fetchall()
    columns = [
        pa.array([row[position] for row in rows], plan.schema.column(name).type)
        for position, name in enumerate(plan.schema.key)
    ]
    return cursors(columns)


def chunks(connection: pyodbc.Connection, plan: ReadPlan, upto: Cursor | None = None) -> list[Cursor]:
    """Every row, chunk after chunk."""
    found: list[Cursor] = []
    after: Cursor | None = None
    while True:
        chunk = read(connection, plan, ChunkRequest(schema=plan.schema, limit=LIMIT, after=after, upto=upto))
        found += chunk
        if len(chunk) < LIMIT:
            return found
        after = chunk[-1]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("key", KEYS, ids=", ".join)
@pytest.mark.condition("D10", "D11", "D12")
def test_each_row_is_read_once_in_the_servers_order(connection: pyodbc.Connection, key: tuple[str, ...]) -> None:
    parts = [PARTS[name] for name in key]
    plan = plan_of(parts)
    # Of more than one part a few values each: what is new is the step from one value of a part to the next.
    rows = list(itertools.product(*(part.values if len(parts) == 1 else part.values[:3] for part in parts)))
    names = [quoted(name) for name in plan.schema.key]
    defined = ", ".join(f"{name} {part.sql} NOT NULL" for name, part in zip(names, parts, strict=True))
    connection.execute("DROP TABLE IF EXISTS dbo.keyed")
    connection.execute(f"CREATE TABLE dbo.keyed ({defined}, PRIMARY KEY ({', '.join(names)}))")
    written = ", ".join(f"({', '.join(row)})" for row in rows)
    connection.execute(f"INSERT INTO dbo.keyed VALUES {written}")
    whole = read(connection, plan, ChunkRequest(schema=plan.schema, limit=len(rows) + 1))
    assert len(set(whole)) == len(rows)
    assert chunks(connection, plan) == whole
    middle = len(whole) // 2
    assert chunks(connection, plan, upto=whole[middle]) == whole[: middle + 1]
    wanted = whole[::2]
    assert read(connection, plan, ChunkRequest(schema=plan.schema, limit=len(rows), keys=wanted)) == wanted
