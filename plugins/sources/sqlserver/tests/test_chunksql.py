"""The statements of chunks give every row once, in order. DuckDB evaluates them, translated by sqlglot: a SQL Server is not to be had."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.cursors import cursors
from replicator.plugins.source import ChunkRequest, Cursor
from replicator_source_sqlserver.snapshot.chunk_statements import ReadPlan, chunk_query
from replicator_source_sqlserver.tracking.changes import LastTracked, TrackedChanges
from replicator_source_sqlserver.types import DeclaredType, spec_of

NAMES = ("a", "b", "c")
Key = tuple[int, str, int]


def plan(width: int) -> ReadPlan:
    types = [DeclaredType(name="int"), DeclaredType(name="nvarchar", max_length=20), DeclaredType(name="bigint")]
    specs = {name: spec_of(type_) for name, type_ in zip(NAMES, types, strict=True)}
    columns = tuple(
        Column(name=n, type=s.arrow, source_type=str(s.declared)) for n, s in specs.items() if s is not None
    )
    schema = TableSchema(table=TableId("dbo", "t"), columns=columns, key=NAMES[:width])
    return ReadPlan(schema=schema, specs={n: s for n, s in specs.items() if s is not None})


@cache
def translated(query: str) -> str:
    (found,) = sqlglot.transpile(query, read="tsql", write="duckdb")
    return found


def run(connection: duckdb.DuckDBPyConnection, read: ReadPlan, request: ChunkRequest) -> list[tuple[Any, ...]]:
    query, parameters = chunk_query(read, request)
    return connection.execute(translated(query), list(parameters)).fetchall()


def cursor_of(read: ReadPlan, row: Sequence[Any]) -> Cursor:
    columns = [pa.array([row[NAMES.index(name)]], read.schema.column(name).type) for name in read.schema.key]
    return cursors(columns)[0]


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA dbo")
        yield connection


keys = st.lists(
    st.tuples(st.integers(-2, 2), st.sampled_from(["", "a", "A", "b'", "é"]), st.integers(0, 3)), max_size=30
)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_range_of_keys_begins_behind_one_key_and_ends_with_another(
    database: duckdb.DuckDBPyConnection, width: int
) -> None:
    rows = list(itertools.product((1, 2, 3), ("a", "b"), (5, 6)))
    rows = sorted({row[:width]: row for row in rows}.values())
    database.execute("CREATE OR REPLACE TABLE dbo.t (a int, b varchar, c bigint)")
    database.executemany("INSERT INTO dbo.t VALUES (?, ?, ?)", rows)
    read = plan(width)
    for first, last in itertools.combinations(range(len(rows)), 2):
        after, upto = (cursor_of(read, rows[at]) for at in (first, last))
        request = ChunkRequest(schema=read.schema, limit=99, after=after, upto=upto)
        assert run(database, read, request) == rows[first + 1 : last + 1]


@pytest.mark.matrix
@settings(max_examples=60, deadline=None)
@given(rows=keys, width=st.integers(1, 3), limit=st.integers(1, 4), data=st.data())
def test_chunks_are_the_rows_in_order(
    database: duckdb.DuckDBPyConnection, rows: list[Key], width: int, limit: int, data: st.DataObject
) -> None:
    rows = sorted({row[:width]: row for row in rows}.values(), key=lambda row: row[:width])
    database.execute("CREATE OR REPLACE TABLE dbo.t (a int, b varchar, c bigint)")
    if rows:
        database.executemany("INSERT INTO dbo.t VALUES (?, ?, ?)", rows)
    read = plan(width)
    upto = data.draw(st.none() | st.sampled_from(rows)) if rows else None
    bound = None if upto is None else cursor_of(read, upto)
    found: list[tuple[Any, ...]] = []
    after: Cursor | None = None
    while True:
        chunk = run(database, read, ChunkRequest(schema=read.schema, limit=limit, after=after, upto=bound))
        assert len(chunk) <= limit
        found += chunk
        if len(chunk) < limit:
            break
        after = cursor_of(read, chunk[-1])
    assert found == [row for row in rows if upto is None or row[:width] <= upto[:width]]


@settings(max_examples=30, deadline=None)
@given(rows=keys, width=st.integers(1, 3), data=st.data())
def test_rows_are_found_by_their_keys(
    database: duckdb.DuckDBPyConnection, rows: list[Key], width: int, data: st.DataObject
) -> None:
    rows = sorted({row[:width]: row for row in rows}.values(), key=lambda row: row[:width])
    database.execute("CREATE OR REPLACE TABLE dbo.t (a int, b varchar, c bigint)")
    if rows:
        database.executemany("INSERT INTO dbo.t VALUES (?, ?, ?)", rows)
    read = plan(width)
    wanted = [row for row in rows if data.draw(st.booleans())] + [(9, "none", 9)]
    request = ChunkRequest(schema=read.schema, limit=10, keys=[cursor_of(read, row) for row in wanted])
    assert run(database, read, request) == wanted[:-1]


def test_no_keys_are_no_rows(database: duckdb.DuckDBPyConnection) -> None:
    database.execute("CREATE OR REPLACE TABLE dbo.t AS SELECT 1 AS a, 'x' AS b, 1::bigint AS c")
    read = plan(1)
    assert run(database, read, ChunkRequest(schema=read.schema, limit=10, keys=[])) == []


def test_tracked_changes_are_continued_by_a_bigint() -> None:
    """A number above 2,147,483,647 is a decimal; CHANGETABLE takes a number, and no expression."""
    changes = TrackedChanges(plan(1), TableId("dbo", "t"))
    query, parameters = changes.part(5, LastTracked(version=3_000_000_000, key=("1",)), 10)
    assert "CHANGETABLE(CHANGES [dbo].[t], 2999999999) AS c" in query
    assert (
        "c.SYS_CHANGE_VERSION > CAST(3000000000 AS bigint) OR (c.SYS_CHANGE_VERSION = CAST(3000000000 AS bigint) AND"
        in query
    )
    assert parameters == ["1"]


def test_a_chunk_behind_a_key_begins_at_two_points_of_the_index() -> None:
    query, parameters = chunk_query(plan(2), ChunkRequest(schema=plan(2).schema, limit=5, after=("1", "x")))
    assert query.count("UNION ALL") == 1
    assert "t.[a] = CAST(? AS int) AND t.[b] > CAST(? AS nvarchar(10))" in query
    assert "t.[a] > CAST(? AS int)" in query
    assert parameters == ["1", "x", "1"]
