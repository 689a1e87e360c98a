from __future__ import annotations

import pyarrow as pa
import pytest

from replicator.model.schema import type_to_text
from replicator_source_sqlserver.names import literal, quoted
from replicator_source_sqlserver.types import DeclaredType, key_text, spec_of

EVERY = [
    "bigint", "binary", "bit", "char", "date", "datetime", "datetime2", "datetimeoffset", "decimal", "float", "geography", "geometry",
    "hierarchyid", "image", "int", "json", "money", "nchar", "ntext", "numeric", "nvarchar", "real", "smalldatetime", "smallint",
    "smallmoney", "text", "time", "timestamp", "tinyint", "uniqueidentifier", "varbinary", "varchar", "xml",
]  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
def test_every_type_has_a_canonical_one(name: str) -> None:
    spec = spec_of(DeclaredType(name=name, max_length=20, precision=10, scale=2, collation="Latin1_General_CI_AS"))
    assert spec is not None
    type_to_text(spec.arrow)
    assert spec.selected.format("[x]").count("[x]") == 1


@pytest.mark.parametrize("name", ["sql_variant", "vector", "my_clr_type"])
def test_what_has_no_form_is_not_guessed(name: str) -> None:
    assert spec_of(DeclaredType(name=name)) is None


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (DeclaredType(name="nvarchar", max_length=20), "nvarchar(10)"),
        (DeclaredType(name="nvarchar", max_length=-1), "nvarchar(max)"),
        (DeclaredType(name="varchar", max_length=20), "varchar(20)"),
        (DeclaredType(name="binary", max_length=4), "binary(4)"),
        (DeclaredType(name="decimal", max_length=9, precision=12, scale=2), "decimal(12,2)"),
        (DeclaredType(name="datetime2", max_length=8, precision=27, scale=7), "datetime2(7)"),
        (DeclaredType(name="money", max_length=8, precision=19, scale=4), "money"),
    ],
)
def test_types_are_spelled_as_one_declares_them(declared: DeclaredType, text: str) -> None:
    assert str(declared) == text


@pytest.mark.parametrize("name", ["time", "datetime2", "datetimeoffset"])
@pytest.mark.parametrize(("scale", "may_be_key"), [(0, True), (6, True), (7, False)])
def test_what_is_cut_when_it_is_read_is_no_identity(name: str, scale: int, *, may_be_key: bool) -> None:
    spec = spec_of(DeclaredType(name=name, scale=scale))
    assert spec is not None
    assert (spec.key_value is not None) == may_be_key


@pytest.mark.parametrize("name", ["float", "real", "xml", "text", "geometry"])
def test_these_are_no_identities_either(name: str) -> None:
    spec = spec_of(DeclaredType(name=name, max_length=8))
    assert spec is not None
    assert spec.key_value is None


def test_text_of_a_code_page_is_compared_in_its_own_collation() -> None:
    spec = spec_of(DeclaredType(name="varchar", max_length=20, collation="Polish_CI_AS"))
    assert spec is not None
    assert spec.selected == "CAST({} AS nvarchar(20))"
    assert spec.key_value == "CAST(CAST({} AS nvarchar(20)) COLLATE Polish_CI_AS AS varchar(20))"


def test_more_than_nvarchar_holds_is_read_as_max() -> None:
    spec = spec_of(DeclaredType(name="char", max_length=8000, collation="Polish_CI_AS"))
    assert spec is not None
    assert spec.selected == "CAST({} AS nvarchar(max))"
    assert not spec.is_lob


@pytest.mark.parametrize(
    ("declared", "text", "given"),
    [
        (DeclaredType(name="varbinary", max_length=4), "\\x00ff", "0x00ff"),
        (DeclaredType(name="datetimeoffset", scale=3), "2026-01-01 00:00:00.123000Z", "2026-01-01 00:00:00.123000"),
        (DeclaredType(name="int"), "-5", "-5"),
    ],
)
def test_a_key_is_given_back_as_the_server_reads_it(declared: DeclaredType, text: str, given: str) -> None:
    spec = spec_of(declared)
    assert spec is not None
    assert key_text(text, spec) == given


def test_lobs_are_what_the_log_may_leave_out() -> None:
    lobs = [DeclaredType(name=n, max_length=-1, collation="C") for n in ("varchar", "nvarchar", "varbinary")]
    assert all(spec is not None and spec.is_lob and spec.key_value is None for spec in map(spec_of, lobs))


def test_arrow_types_do_not_widen() -> None:
    found = {name: spec_of(DeclaredType(name=name)) for name in ("tinyint", "smallmoney", "money", "bit")}
    assert [spec.arrow for spec in found.values() if spec] == [
        pa.int16(),
        pa.decimal128(10, 4),
        pa.decimal128(19, 4),
        pa.bool_(),
    ]


def test_names_and_texts_end_where_they_should() -> None:
    assert quoted("a]b") == "[a]]b]"
    assert literal("it's") == "N'it''s'"
    assert literal("a\\\nb") == "N'a\\'+N'\nb'"
    with pytest.raises(ValueError, match="NUL"):
        quoted("a\0")
