"""What the model's SQL computes of a table equals what the canonical form says of the rows that a snapshot has.

Whether a SQL Server writes the same forms only the conformance script can tell (`verification`). No real one was ever used.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing

import pyarrow as pa
import pytest

from plugins.sources.sqlserver.tests.verifying import (
    FLOATS,
    KEYS,
    NUMBERS,
    OTHER_CODE_PAGES,
    OTHER_KEYS,
    OWN,
    TEXTS,
    TIMES,
    WITH_A_KEY_ONLY,
    make,
    rows_of,
    schema_of,
)
from replicator.model.schema import TableSchema
from replicator.plugins.kit.canonical import digest_of, key_texts, row_texts
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.sqlserver.databases import SqlServerDatabase, enable
from replicator_testing.table_states import assert_rows, assert_state


def assert_proved(source: SqlServerSource, schema: TableSchema) -> None:
    """Everything that a state says is what the decoded rows say, column by column."""
    rows = rows_of(source, schema)
    assert rows.num_rows
    names = [column.name for column in schema.columns]
    with source.open_state(schema, names) as state:
        ids = [
            digest_of(text) for text in (key_texts(rows.select(list(schema.key))) if schema.key else row_texts(rows))
        ]
        texts = state.texts(ids)
        assert set(texts) == set(ids), "ids differ"
        assert different(texts, ids, {n: forms(rows, schema, n) for n in names}) == []
        assert_state(state, rows, schema)
        assert state.identity() is not None


def forms(rows: pa.RecordBatch, schema: TableSchema, name: str) -> Sequence[str]:
    """The canonical form of each value of a column, as Python makes it."""
    one = rows.select([name])
    return [text[:-1] for text in (key_texts(one) if name in schema.key else row_texts(one))]


def different(
    texts: Mapping[str, Mapping[str, str | None]], ids: Sequence[str], wanted: Mapping[str, Sequence[str]]
) -> list[tuple[str, str, str | None]]:
    """Column, what it should be, what it is."""
    return [
        (name, form[:80], (texts[id_][name] or "")[:80])
        for name, column in wanted.items()
        for id_, form in zip(ids, column, strict=True)
        if form != (texts[id_][name] or "")
    ]


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("key", "floats"),
    [
        ("PRIMARY KEY", {}),
        ("", FLOATS),
        pytest.param("PRIMARY KEY", FLOATS, marks=pytest.mark.matrix),
        pytest.param("", {}, marks=pytest.mark.matrix),
    ],
)
def test_every_type_has_its_canonical_form(
    database: SqlServerDatabase, source: SqlServerSource, key: str, floats: Mapping[str, Sequence[str]]
) -> None:
    types = {**NUMBERS, **TIMES, **floats, **TEXTS, **OWN, **OTHER_CODE_PAGES}
    if not key:
        # A table without a key may have no large values and no bits.
        types = {name: v for name, v in types.items() if not name.endswith(WITH_A_KEY_ONLY)}
    make(database, types, key=key)
    assert_proved(source, schema_of(source))


@pytest.mark.matrix
def test_keys_of_every_type_have_their_canonical_form(database: SqlServerDatabase, source: SqlServerSource) -> None:
    types = {**KEYS, **OTHER_KEYS}
    for number, (type_, values) in enumerate(types.items()):
        database.execute(
            f"CREATE TABLE dbo.t{number} (v int NULL, a {type_} NOT NULL, PRIMARY KEY (a))",
            enable(f"t{number}"),
            *(f"INSERT INTO dbo.t{number} VALUES ({n}, {value})" for n, value in enumerate(values)),
        )
    for number, type_ in enumerate(types):
        schema = schema_of(source, f"t{number}")
        assert schema.key == ("a",), type_
        rows = rows_of(source, schema)
        with source.open_state(schema, ["v", "a"]) as state:
            assert_rows(state, rows, schema)
            assert list(state.range_key) == (["a"] if type_ in KEYS else []), type_


@pytest.mark.matrix
def test_random_floats_have_the_shortest_digits(database: SqlServerDatabase, source: SqlServerSource) -> None:
    chance = random.Random(17)
    database.execute("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, d float NULL, f real NULL)", enable("t"))
    with closing(database.connect()) as connection:
        rows = [(n, _finite(chance, "<d"), _finite(chance, "<f")) for n in range(500)]
        connection.cursor().executemany("INSERT INTO dbo.t VALUES (?, ?, ?)", rows)
    schema = schema_of(source)
    with source.open_state(schema, ["id", "d", "f"]) as state:
        assert_rows(state, rows_of(source, schema), schema)


def _finite(chance: random.Random, form: str) -> float:
    (value,) = struct.unpack(form, chance.randbytes(struct.calcsize(form)))
    return float(value) if math.isfinite(value) else 0.5
