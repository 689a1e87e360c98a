"""Random conditions give the answers of an oracle in plain Python, and of DuckDB, which reads the normal form."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.projection.condition import parse
from tests.unit.projection.condition.loads import Load, loads


def _rows(load: Load) -> pa.StructArray:
    fields = load.schema.fields
    arrays = [pa.array([row[c.name] for row in load.rows], c.type) for c in load.schema.columns]
    return pa.StructArray.from_arrays(arrays, names=list(fields.values()))


@given(loads(), st.data())
@settings(max_examples=150)
def test_a_condition_answers_as_the_oracle_does(load: Load, data: st.DataObject) -> None:
    condition = parse(load.condition.text)
    assert parse(str(condition)) == condition
    bound = condition.bind(load.schema)
    expected = [load.condition.answer(row) for row in load.rows]
    rows = _rows(load)
    assert bound.evaluate(rows).to_pylist() == expected

    # A slice, in a batch, and with rows that are NULL as a whole.
    start = data.draw(st.integers(0, len(rows)))
    assert bound.evaluate(pa.RecordBatch.from_struct_array(rows)[start:]).to_pylist() == expected[start:]
    absent = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    sparse = pa.StructArray.from_arrays(rows.flatten(), fields=list(rows.type), mask=pa.array(absent, pa.bool_()))
    answers = [None if is_absent else answer for is_absent, answer in zip(absent, expected, strict=True)]
    assert bound.evaluate(sparse[start:]).to_pylist() == answers[start:]


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


@given(loads(portable=True))
@settings(max_examples=30)
def test_duckdb_answers_the_same(connection: duckdb.DuckDBPyConnection, load: Load) -> None:
    rows = pa.Table.from_arrays(_rows(load).flatten(), names=[c.name for c in load.schema.columns])
    connection.register("rows", rows)
    condition = parse(load.condition.text)
    answers = condition.bind(load.schema).evaluate(_rows(load)).to_pylist()
    for text in (load.condition.text, str(condition)):
        assert [answer for (answer,) in connection.execute(f"SELECT ({text}) FROM rows").fetchall()] == answers
