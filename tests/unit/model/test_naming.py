"""Names become path parts that nothing can misread, and those that would clash are refused."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replicator.model.naming import check_columns, check_names, path_part
from replicator.model.schema import Column, TableId, TableSchema


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("orders_2-A", "orders_2-A"),
        ("order items", "order_x20_items"),
        ("..", "_x2E2E_"),
        ("a/b", "a_x2F_b"),
        ("a=b", "a_x3D_b"),
        ("café", "caf_xC3A9_"),
        ("日本", "_xE697A5E69CAC_"),
        ("%41", "_x25_41"),
        ("tax_xml", "tax_xml"),
        ("a_x20_b", "a_x5F_x20_b"),
        ("a_X20 b", "a_x5F_X20_x20_b"),
        ("a_x20c_b_x2_", "a_x20c_b_x2_"),
        ("_delta_log", "_x5F_delta_log"),
    ],
)
def test_path_part(name: str, part: str) -> None:
    assert path_part(name) == part


def undone(part: str) -> str:
    """The name that a part of a path was made of."""
    pieces = re.split(r"_x((?:[0-9A-F]{2})+)_", part)
    return b"".join(
        bytes.fromhex(piece) if position % 2 else piece.encode() for position, piece in enumerate(pieces)
    ).decode("utf-8", "surrogatepass")


def without_case(part: str) -> str:
    """The part as it was written, apart from the case of letters that stand for themselves."""
    return re.sub(r"_x((?:[0-9a-f]{2})+)_", lambda match: f"_x{match[1].upper()}_", part.lower())


@given(st.text() | st.text(alphabet="_xX20aAgé .-", max_size=12))
@example("_x4é")
@example("éx20_")
@example("é_x20_")
@example("_x20_x20_")
@example("_XC3a9_")
def test_a_part_of_a_path_is_plain_and_can_be_undone_also_where_case_is_lost(name: str) -> None:
    part = path_part(name)
    assert re.fullmatch(r"[A-Za-z0-9_-]*", part)
    assert undone(part) == name
    assert undone(without_case(part)) == "".join(one.lower() if one.isascii() else one for one in name)


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
