"""The codec of values: what is encoded for a column is read back as a parameter of the same type, which has the same form."""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator_testbed.sqlserver import sqltypes
from replicator_testbed.sqlserver.sqltypes import MAX, SqlType, TypeName, of
from replicator_testbed.sqlserver.tds import temporal
from replicator_testbed.sqlserver.tds.packets import ProtocolError, Reader
from replicator_testbed.sqlserver.tds.temporal import TICKS_PER_DAY, Moment
from replicator_testbed.sqlserver.tds.values import encoder, plp, read_parameter, type_info

pytestmark = pytest.mark.matrix

DAYS_MAX = (dt.date(9999, 12, 31) - dt.date(1, 1, 1)).days
WIDE = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
NARROW = st.text(st.sampled_from("abcXYZ éß€0 "), max_size=50)


def there_and_back(kind: SqlType, value: Any) -> Any:
    reader = Reader(type_info(kind) + encoder(kind)(value))
    decoded = read_parameter(reader)
    assert reader.is_at_end
    return decoded


def moments(scale: int, *, offset: bool = False, dates: bool = True, times: bool = True) -> st.SearchStrategy[Moment]:
    step = 10 ** (7 - scale)
    return st.builds(
        Moment,
        st.integers(0, DAYS_MAX) if dates else st.just(0),
        st.integers(0, TICKS_PER_DAY // step - 1).map(lambda n: n * step) if times else st.just(0),
        st.integers(-14 * 60, 14 * 60) if offset else st.just(0),
    )


def values_of() -> st.SearchStrategy[tuple[SqlType, Any]]:
    scales = st.integers(0, 7)
    decimals = st.integers(1, 38).flatmap(
        lambda precision: st.integers(0, precision).flatmap(
            lambda scale: st.tuples(
                st.sampled_from([TypeName.DECIMAL, TypeName.NUMERIC]).map(
                    lambda name: of(name, precision=precision, scale=scale)
                ),
                st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda n: Decimal(n).scaleb(-scale)),
            )
        )
    )
    return st.one_of(
        st.tuples(st.just(of(TypeName.BIGINT)), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(st.just(of(TypeName.INT)), st.integers(-(2**31), 2**31 - 1)),
        st.tuples(st.just(of(TypeName.SMALLINT)), st.integers(-(2**15), 2**15 - 1)),
        st.tuples(st.just(of(TypeName.TINYINT)), st.integers(0, 255)),
        st.tuples(st.just(of(TypeName.BIT)), st.booleans()),
        st.tuples(st.just(of(TypeName.FLOAT)), st.floats(allow_nan=False, allow_infinity=False)),
        st.tuples(st.just(of(TypeName.REAL)), st.floats(allow_nan=False, allow_infinity=False, width=32)),
        st.tuples(st.just(of(TypeName.MONEY)), st.integers(-(2**63), 2**63 - 1).map(lambda n: Decimal(n).scaleb(-4))),
        st.tuples(
            st.just(of(TypeName.SMALLMONEY)), st.integers(-(2**31), 2**31 - 1).map(lambda n: Decimal(n).scaleb(-4))
        ),
        decimals,
        st.tuples(st.just(of(TypeName.NVARCHAR, 100)), WIDE),
        st.tuples(st.just(of(TypeName.NVARCHAR, MAX)), WIDE),
        st.tuples(st.just(of(TypeName.XML)), WIDE),
        st.tuples(st.just(of(TypeName.VARCHAR, 100)), NARROW),
        st.tuples(st.just(of(TypeName.VARCHAR, MAX)), NARROW),
        st.tuples(st.just(of(TypeName.VARBINARY, 100)), st.binary(max_size=100)),
        st.tuples(st.just(of(TypeName.VARBINARY, MAX)), st.binary(max_size=10_000)),
        st.tuples(st.just(of(TypeName.BINARY, 10)), st.binary(min_size=10, max_size=10)),
        st.tuples(st.just(of(TypeName.TIMESTAMP)), st.binary(min_size=8, max_size=8)),
        st.tuples(st.just(of(TypeName.UNIQUEIDENTIFIER)), st.uuids()),
        st.tuples(st.just(of(TypeName.DATE)), moments(7, times=False)),
        scales.flatmap(lambda n: st.tuples(st.just(of(TypeName.TIME, scale=n)), moments(n, dates=False))),
        scales.flatmap(lambda n: st.tuples(st.just(of(TypeName.DATETIME2, scale=n)), moments(n))),
        scales.flatmap(lambda n: st.tuples(st.just(of(TypeName.DATETIMEOFFSET, scale=n)), moments(n, offset=True))),
    )


@given(values_of())
def test_a_value_comes_back_as_it_was(typed: tuple[SqlType, Any]) -> None:
    kind, value = typed
    assert there_and_back(kind, value) == value
    assert there_and_back(kind, None) is None


@given(st.dates(dt.date(1753, 1, 1)), st.integers(0, 86_400 * 300 - 1))
def test_datetime_keeps_its_three_hundredths_of_a_second(date: dt.date, units: int) -> None:
    # [RUN: days since 1900 and 1/300 s]
    sent = encoder(of(TypeName.DATETIME))(Moment(Moment.of(date).days, units * 10_000_000 // 300))
    assert sent[0] == 8
    assert struct.unpack("<iI", sent[1:]) == ((date - dt.date(1900, 1, 1)).days, units)


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("23:59:59.998", "23:59:59.996666"),
        ("23:59:59.999", "00:00:00"),
        ("01:01:01.001", "01:01:01"),
        ("01:01:01.006", "01:01:01.006666"),
    ],
)
def test_datetime_is_rounded_to_its_units(written: str, stored: str) -> None:
    # [DOC: datetime, rounding of datetime fractional second precision: .998 is .997, .999 is the next day, .001 is .000]
    moment = Moment.of(dt.datetime.fromisoformat(f"1998-01-01T{written}"))
    read = temporal.decode_datetime(temporal.encode_datetime(moment))
    assert read.time == dt.time.fromisoformat(stored)
    assert (read.days - moment.days) == (stored == "00:00:00")


@pytest.mark.parametrize("scale", range(8))
def test_a_time_takes_as_many_bytes_as_its_scale_says(scale: int) -> None:
    # [DOC: MS-TDS 2.2.5.5.1.8]
    assert len(encoder(of(TypeName.TIME, scale=scale))(Moment(0, 0))) == 1 + (3, 3, 3, 4, 4, 5, 5, 5)[scale]


def test_the_last_tenth_of_a_microsecond_is_sent() -> None:
    # [RUN: the drivers lose it, the server sends it]
    last = Moment(DAYS_MAX, TICKS_PER_DAY - 1)
    assert there_and_back(of(TypeName.DATETIME2, scale=7), last) == last


def test_an_offset_keeps_the_instant_in_utc() -> None:
    aware = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.timezone(dt.timedelta(hours=5, minutes=30)))
    moment = Moment.of(aware)
    assert (moment.datetime, moment.offset) == (dt.datetime(2026, 1, 1, 21, 34, 5, 678901), 330)
    assert moment.offset_text() == "2026-01-02 03:04:05.6789010 +05:30"


def test_a_guid_is_sent_with_its_first_three_groups_turned() -> None:
    value = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    assert encoder(of(TypeName.UNIQUEIDENTIFIER))(value)[1:].hex() == "33221100554477668899aabbccddeeff"


def test_texts_of_fixed_length_are_padded_with_spaces() -> None:
    assert there_and_back(of(TypeName.CHAR, 4), "ab") == "ab  "
    assert there_and_back(of(TypeName.NCHAR, 4), "żó") == "żó  "
    assert there_and_back(of(TypeName.BINARY, 4), b"\1") == b"\1\0\0\0"


def test_what_the_code_page_has_not_is_a_question_mark() -> None:
    # [DOC: collation and Unicode support]
    assert there_and_back(of(TypeName.VARCHAR, 10), "żółw") == "?ó?w"


@pytest.mark.parametrize("name", [TypeName.TEXT, TypeName.NTEXT, TypeName.IMAGE])
def test_an_old_large_value_stands_behind_a_pointer(name: TypeName) -> None:
    value: Any = b"\1\2" if name is TypeName.IMAGE else "ab"
    sent = encoder(of(name))(value)
    size = 4 if name is TypeName.NTEXT else 2
    assert sent[0] == 16
    assert (
        sent[1 + 16 + 8 :]
        == struct.pack("<I", size) + {2: value if isinstance(value, bytes) else b"ab", 4: b"a\0b\0"}[size]
    )
    assert encoder(of(name))(None) == b"\0"


def test_a_max_value_is_cut_into_parts() -> None:
    sent = plp(b"x" * 9000)
    assert struct.unpack_from("<QI", sent) == (9000, 4000)
    assert sent.endswith(bytes(4))


def test_sql_variant_is_refused_clearly() -> None:
    with pytest.raises(ProtocolError, match="no sql_variant"):
        read_parameter(Reader(b"\x62" + bytes(8)))


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader_of_parameters(content: bytes) -> None:
    try:
        read_parameter(Reader(content))
    except (ProtocolError, OverflowError):
        return


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("nvarchar(50)", of(TypeName.NVARCHAR, 50)),
        ("[varchar](MAX)", of(TypeName.VARCHAR, MAX)),
        ("decimal(10, 2)", of(TypeName.DECIMAL, precision=10, scale=2)),
        ("numeric", of(TypeName.NUMERIC, precision=18)),
        ("datetime2", of(TypeName.DATETIME2, scale=7)),
        ("rowversion", of(TypeName.TIMESTAMP)),
        ("float(24)", of(TypeName.REAL)),
        ("[sys].[sysname]", sqltypes.SYSNAME),
        ("char", of(TypeName.CHAR, 1)),
    ],
)
def test_a_type_is_read_as_it_is_written(text: str, kind: SqlType) -> None:
    assert sqltypes.parse(text) == kind


@pytest.mark.parametrize("text", ["vector(3)", "dbo.own", "int; drop", ""])
def test_a_type_that_the_model_has_not_is_refused(text: str) -> None:
    with pytest.raises(sqltypes.UnknownTypeError, match="The model has no type"):
        sqltypes.parse(text)


@pytest.mark.parametrize("text", ["varchar(8001)", "nvarchar(4001)", "binary(16000)"])
def test_a_type_that_is_too_long_is_refused(text: str) -> None:
    # [DOC: char and varchar, nchar and nvarchar, binary and varbinary; K for the number]
    with pytest.raises(sqltypes.TooLongTypeError, match="exceeds the maximum") as refused:
        sqltypes.parse(text)
    assert refused.value.number == 131
