"""Names become path parts that nothing can misread, and those that would clash are refused."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.model.naming import check_columns, check_names, path_part
from replicator.model.schema import Column, TableId, TableSchema


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("orders_2-A", "orders_2-A"),
        ("a b", "a%20b"),
        ("..", "%2E%2E"),
        ("a/b", "a%2Fb"),
        ("Ä", "%C3%84"),
        ("%41", "%2541"),
    ],
)
def test_path_part(name: str, part: str) -> None:
    assert path_part(name) == part


@given(st.text())
def test_path_part_is_plain_and_can_be_undone(name: str) -> None:
    part = path_part(name)
    assert re.fullmatch(r"([A-Za-z0-9_-]|%[0-9A-F]{2})*", part)
    assert unquote_to_bytes(part).decode("utf-8", "surrogatepass") == name


def test_names_equal_after_case_folding_are_refused() -> None:
    tables = [
        TableId("public", "Orders"),
        TableId("public", "orders"),
        TableId("public", "items"),
        TableId("Public", "items2"),
    ]
    (problem,) = check_names(tables)
    assert problem.code == "table_names_clash"
    assert "public.Orders and public.orders" in problem.message


def test_the_same_table_twice_does_not_clash() -> None:
    assert check_names([TableId("a", "b"), TableId("a", "b")]) == ()


def schema(*names: str) -> TableSchema:
    return TableSchema(
        table=TableId("a", "b"), columns=tuple(Column(name=name, type=pa.int64(), source_type="int8") for name in names)
    )


@pytest.mark.parametrize(
    ("names", "codes"),
    [
        (("id", "name"), []),
        (("id", "_sequence_num"), ["column_name_reserved"]),
        (("_Is_Deleted",), ["column_name_reserved"]),
        (("id", "ID"), ["column_names_clash"]),
        (("_source_timestamp", "_SOURCE_TIMESTAMP"), ["column_name_reserved", "column_names_clash"]),
        (("row", "before", "_absent"), []),
    ],
)
def test_columns_that_collide_are_refused(names: tuple[str, ...], codes: list[str]) -> None:
    problems = check_columns(schema(*names))
    assert [problem.code for problem in problems] == codes
    assert all(problem.location == "a.b" for problem in problems)
