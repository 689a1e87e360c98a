"""Values of Python into Arrow: what fits is exact, and what does not fit is named by its column, never by its value."""

from __future__ import annotations

import datetime as dt
import traceback
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.errors import TableError, UnsupportedTypeError
from replicator_source_sqlserver.rows import columns_of, decoded
from replicator_source_sqlserver.types import ColumnSpec, DeclaredType, spec_of

TYPES = [
    "bigint", "binary", "bit", "char", "date", "datetime", "datetime2", "datetimeoffset", "decimal", "float", "geography", "hierarchyid",
    "image", "int", "json", "money", "nchar", "ntext", "numeric", "nvarchar", "real", "smalldatetime", "smallint", "smallmoney", "text",
    "time", "timestamp", "tinyint", "uniqueidentifier", "varbinary", "varchar", "xml",
]  # fmt: skip


def spec(name: str, precision: int = 10, scale: int = 2) -> ColumnSpec:
    found = spec_of(
        DeclaredType(name=name, max_length=20, precision=precision, scale=scale, collation="Latin1_General_CI_AS")
    )
    assert found is not None
    return found


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("values", [(), (None,), [None, None]])
def test_nothing_and_null_have_the_canonical_type_too(name: str, values: list[None]) -> None:
    array = decoded(values, spec(name), name="v")
    assert array.type == spec(name).arrow
    assert array.to_pylist() == list(values)


def test_columns_are_the_values_of_each() -> None:
    assert columns_of([(1, "a"), (2, None)]) == [[1, 2], ["a", None]]
    assert columns_of([]) == []


@pytest.mark.parametrize(
    ("kind", "value", "secret"),
    [
        (spec("tinyint"), 2**40, "1099511627776"),
        (spec("int"), 2**70, "1180591620717411303424"),
        (spec("decimal", 5, 2), Decimal("1234.56"), "1234"),
        (spec("decimal", 10, 2), Decimal("1.987"), "987"),
        (spec("money"), Decimal("0.00007"), "0.0000"),
        (spec("real"), 0.1, "0.1"),
        (spec("real"), 1e300, "1e"),
        (spec("nvarchar"), "secret\ud800", "secret"),
    ],
)
def test_what_does_not_fit_is_refused(kind: ColumnSpec, value: object, secret: str) -> None:
    with pytest.raises(UnsupportedTypeError) as caught:
        decoded([None, value], kind, name="price")
    assert caught.value.code == "unrepresentable_value"
    assert "column price" in caught.value.message
    assert secret not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (spec("int"), 77.5),
        (spec("int"), Decimal(77)),
        (spec("int"), True),
        (spec("bit"), 1),
        (spec("date"), dt.datetime(2077, 1, 1, 5)),
        (spec("datetime2"), dt.date(2077, 1, 1)),
        (spec("datetime2"), 77),
        (spec("nvarchar"), b"77"),
        (spec("varbinary"), "77"),
        (spec("decimal"), 77.0),
        (spec("float"), 77),
    ],
)
def test_what_arrow_would_convert_without_a_word_is_refused(kind: ColumnSpec, value: object) -> None:
    """As when a column was given another type between the look at the catalogue and the read."""
    with pytest.raises(TableError) as caught:
        decoded([None, value], kind, name="price")
    assert caught.value.code == "corrupt_rows"
    assert "column price" in caught.value.message
    assert type(value).__name__ in caught.value.message
    assert "77" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (spec("real"), 0.5),
        (spec("real"), 3.4028234663852886e38),
        (spec("decimal", 38, 0), Decimal("-" + "9" * 38)),
        (spec("decimal", 38, 38), Decimal("0." + "9" * 38)),
        (spec("money"), Decimal("-922337203685477.5808")),
        (spec("datetimeoffset"), dt.datetime.max),
        (spec("datetime2"), dt.datetime.min),
        (spec("date"), dt.date.max),
        (spec("time"), dt.time.max),
    ],
)
def test_what_fits_is_exact(kind: ColumnSpec, value: Any) -> None:
    (read,) = decoded([value], kind, name="v").to_pylist()
    assert (read.replace(tzinfo=None) if isinstance(read, dt.datetime) else read) == value


def test_values_that_are_too_large_together_fail_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow cuts what has more than 2 GiB into pieces; here it does so with everything."""
    make = pa.array
    monkeypatch.setattr(pa, "array", lambda values, kind: pa.chunked_array([make(values, kind)]))
    with pytest.raises(UnsupportedTypeError) as caught:
        decoded(["a"], spec("nvarchar"), name="v")
    assert caught.value.code == "unrepresentable_value"
