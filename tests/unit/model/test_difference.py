"""The difference between two versions of a table, as people read it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from replicator.model.difference import difference
from replicator.model.schema import Column, TableId, TableSchema


def column(id_: int, name: str, source_type: str = "text", type_: pa.DataType | None = None) -> Column:
    return Column(name=name, type=pa.string() if type_ is None else type_, source_type=source_type, id=id_)


ID, A, B = replace(column(1, "id", "bigint", pa.int64()), nullable=False), column(2, "a"), column(3, "b")
N = column(4, "n", "int", pa.int32())
SHAPE = TableSchema(table=TableId("public", "t"), columns=(ID, A, B, N), key=("id",))


def after(*columns: Column, key: tuple[str, ...] = ("id",), kept: tuple[Column, ...] = ()) -> TableSchema:
    return replace(SHAPE, columns=columns, key=key, kept=kept)


def test_one_line_per_fact() -> None:
    bigger = replace(N, type=pa.int64(), source_type="bigint")
    email = column(5, "email", "varchar(20)")
    found = after(ID, replace(A, name="c"), bigger, email, kept=(B,))
    assert difference(SHAPE, found) == [
        "+ email varchar(20)",
        "- b",
        "a → c",
        "n int → bigint",
        "kept in the target: b",
    ]


def test_a_column_may_get_name_type_and_nullability_at_once() -> None:
    found = after(ID, A, B, replace(N, name="m", type=pa.int16(), source_type="smallint", nullable=False))
    assert difference(SHAPE, found) == ["n int → m smallint NOT NULL"]


def test_names_that_are_swapped_are_told_by_numbers() -> None:
    assert difference(SHAPE, after(ID, replace(A, name="b"), replace(B, name="a"), N)) == ["a → b", "b → a"]


def test_order_and_key_are_told() -> None:
    assert difference(SHAPE, after(ID, B, A, N, key=())) == ["order: id, b, a, n", "key: (id) → none"]


def test_a_length_is_told() -> None:
    found = after(ID, replace(A, source_type="varchar(9)"), B, N)
    assert difference(SHAPE, found) == ["a text → varchar(9)"]


def test_what_is_not_known_is_not_told() -> None:
    assert (difference(SHAPE, None), difference(None, None), difference(SHAPE, SHAPE)) == ([], [], [])
    assert difference(after(ID, A, B, N, kept=(column(-1, "old"),)), SHAPE) == []
    assert difference(None, after(ID, A)) == ["columns: id bigint NOT NULL, a text"]
