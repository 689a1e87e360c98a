"""Tables whose columns are called like what the statements select: chunks, keys, changes and states have the right rows in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pytest

from plugins.sources.sqlserver.tests.verifying import schema_of
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.cursors import cursors
from replicator.plugins.source import ChunkRequest, Cursor
from replicator_source_sqlserver.catalogue.discovery import read_tables
from replicator_source_sqlserver.connecting.connection import Connection, Session
from replicator_source_sqlserver.snapshot.reader import read_plan
from replicator_source_sqlserver.source import SqlServerSource
from replicator_source_sqlserver.tracking.changes import LastTracked, TrackedChanges
from replicator_testbed.sqlserver.databases import SqlServerDatabase, enable
from replicator_testbed.sqlserver.drivers import Driver
from replicator_testbed.sqlserver.model import SqlServerModel
from replicator_testing.table_states import assert_ranges, assert_state

ROWS: Final = 7
SHAPES: Final = {
    "one column": (["c2"], ["c2", "c1", "k1", "k2"]),
    "parts of the key": (["k2", "k1"], ["k1", "k2", "c1", "c2"]),
    "two columns": (["c3", "c1"], ["c2", "c4", "c1", "c3", "k1", "k2"]),
    "of changes": (["h", "v"], ["v", "c", "t", "h", "k1", "c1"]),
    "of states": (["s", "i"], ["h", "i", "p1", "p2", "t1", "t2", "s", "q0", "u", "g"]),
    "of derived tables": (["u", "p"], ["t", "p", "p0", "p1", "u", "k", "k1"]),
    "found": (["found"], ["k", "r", "found", "c1"]),
}
"""By what they are called like: the key's columns, and all."""


def statements(key: Sequence[str], names: Sequence[str]) -> list[str]:
    """A table, and rows whose other columns have the opposite order."""
    columns = ", ".join(f"{name} int NOT NULL" for name in names)
    rows = [
        f"INSERT INTO dbo.t ({', '.join(row)}) VALUES ({', '.join(map(str, row.values()))})"
        for row in wanted(key, names)
    ]
    return [f"CREATE TABLE dbo.t ({columns}, PRIMARY KEY ({', '.join(key)}))", *rows]


def wanted(key: Sequence[str], names: Sequence[str]) -> list[dict[str, int]]:
    """The rows in the order of the key: of two columns the second has few values."""
    keys = [(n,) if len(key) == 1 else (n // 2, n % 2) for n in range(ROWS)]
    return [
        {name: dict(zip(key, values, strict=True)).get(name, 100 - n) for name in names}
        for n, values in enumerate(keys)
    ]


def parts(source: SqlServerSource, schema: TableSchema, limit: int) -> list[dict[str, int]]:
    found: list[dict[str, int]] = []
    after: Cursor | None = None
    while True:
        chunk = source.read_chunk(ChunkRequest(schema=schema, limit=limit, after=after))
        found += chunk.rows.to_pylist()
        if chunk.rows.num_rows < limit:
            return found
        after = chunk.cursor


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> tuple[list[str], list[str]]:
    return SHAPES[request.param]


@pytest.mark.matrix
@pytest.mark.sampled(1)
def test_chunks_and_keys(
    database: SqlServerDatabase, source: SqlServerSource, shape: tuple[list[str], list[str]]
) -> None:
    key, names = shape
    database.execute(*statements(key, names), enable("t"))
    schema, rows = schema_of(source), wanted(key, names)
    assert parts(source, schema, 2) == rows
    assert parts(source, schema, ROWS + 1) == rows
    columns = [pa.array([row[name] for row in rows], pa.int32()) for name in key]
    some = cursors(columns)[::-2]
    chunk = source.read_chunk(ChunkRequest(schema=schema, limit=ROWS, keys=some))
    assert chunk.rows.to_pylist() == rows[::2]


@pytest.mark.matrix
@pytest.mark.sampled(1)
def test_states(database: SqlServerDatabase, source: SqlServerSource, shape: tuple[list[str], list[str]]) -> None:
    key, names = shape
    database.execute(*statements(key, names), enable("t"))
    schema = schema_of(source)
    rows = pa.RecordBatch.from_pylist(wanted(key, names), schema=pa.schema(list(schema.row_type)))
    with source.open_state(schema, names) as state:
        assert_state(state, rows, schema)
        assert_ranges(state, rows, schema, columns=len(key))


@pytest.mark.matrix
@pytest.mark.sampled(1)
def test_tracked_changes(
    model: SqlServerModel, open_session: Callable[..., Session], shape: tuple[list[str], list[str]]
) -> None:
    key, names = shape
    table = TableId("dbo", "t")
    with open_session(model, Driver.FREETDS).use("reading changes") as connection:
        for statement in [
            "DROP TABLE IF EXISTS dbo.t",
            "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 7 DAYS)",
            *statements(key, names)[:1],
            "ALTER TABLE dbo.t ENABLE CHANGE_TRACKING",
            "; ".join(["BEGIN TRANSACTION", *reversed(statements(key, names)[1:]), "COMMIT TRANSACTION"]),
        ]:
            connection.execute(statement)
        try:
            assert _tracked(connection, table) == wanted(key, names)
        finally:
            connection.execute("DROP TABLE dbo.t")
            connection.execute("ALTER DATABASE CURRENT SET CHANGE_TRACKING = OFF")


def _tracked(connection: Connection, table: TableId) -> list[object]:
    catalogued = read_tables(connection, [table])[table]
    reads = TrackedChanges(plan=read_plan(catalogued, catalogued.schema), name=table)
    found: list[object] = []
    last: LastTracked | None = None
    while rows := connection.rows(*reads.part(0, last, 2)):
        changes = reads.decode(rows, upto=1_000_000)
        found += changes.row.to_pylist()
        last = changes.last
    return found
