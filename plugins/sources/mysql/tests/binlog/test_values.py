"""Every type's boundary and random values on real servers: the value out of the log is what SELECT gives, and what a chunk holds."""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pymysql
import pytest

if TYPE_CHECKING:
    from plugins.sources.mysql.tests.binlog.conftest import Binlog

CONTEXT = Context(prec=100)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'" if value else "''"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return str(value)


class Raw(str):
    """An SQL expression."""

    __slots__ = ()


def _sql(value: Any) -> str:
    return str(value) if isinstance(value, Raw) else _literal(value)


def _exact(text: str) -> str:
    return text


def _float32(text: str) -> float:
    return struct.unpack("<f", struct.pack("<f", float(text)))[0]


def _date(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None


def _datetime(text: str) -> dt.datetime | None:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return None


def _timestamp(text: str) -> dt.datetime | None:
    moment = _datetime(text)
    return moment and moment.replace(tzinfo=dt.UTC)


def assert_log_equals_select(
    binlog: Binlog,
    column_type: str,
    values: list[Any],
    canonical: Callable[[str], Any],
    select: str = "v",
    **options: Any,
) -> int:
    """Insert the values, read them from the log and by SELECT; returns how many the server took."""
    binlog.execute(f"CREATE TABLE t (id INT PRIMARY KEY, v {column_type} NULL)")
    binlog.execute("SET sql_mode = ''")
    binlog.forget()
    taken = _insert(binlog, [*values, None])
    rows = [(int(number), _text(value)) for number, value in binlog.execute(f"SELECT id, {select} FROM t ORDER BY id")]
    decoded = binlog.decode("t", **options)
    found = dict(zip(decoded.row.field("id").to_pylist(), decoded.row.field("v").to_pylist(), strict=True))
    wanted = {number: None if text is None else canonical(text) for number, text in rows}
    for number, value in wanted.items():
        assert _same(found[number], value), (column_type, number, found[number], value)
    assert found.keys() == wanted.keys()
    _assert_same_bits(decoded.row.field("v"), binlog.chunk("t", "v", **options), column_type)
    binlog.execute("DROP TABLE t")
    return taken


def _assert_same_bits(log: pa.Array, chunk: pa.Array, column_type: str) -> None:
    """The chunk's values are those of the log; arrays of floats are equal to Arrow although signs of zeros differ."""
    if pa.types.is_floating(log.type):
        bits = pa.int32() if log.type == pa.float32() else pa.int64()
        log, chunk = log.view(bits), chunk.view(bits)
    assert log.equals(chunk), (column_type, log.to_pylist(), chunk.to_pylist())


def _insert(binlog: Binlog, values: list[Any]) -> int:
    """Insert all at once, or one by one if the server refuses some: those are no values of the type."""
    rows = [f"({number}, {_sql(value)})" for number, value in enumerate(values)]
    try:
        binlog.execute(f"INSERT INTO t VALUES {','.join(rows)}")
    except pymysql.Error:
        taken = 0
    else:
        return len(rows)
    for row in rows:
        try:
            binlog.execute(f"INSERT INTO t VALUES {row}")
            taken += 1
        except pymysql.Error as error:
            if error.args[0] in {1064, 1054}:
                raise
    return taken


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return struct.pack("<d", first) == struct.pack("<d", second) or (math.isnan(first) and math.isnan(second))
    return type(first) is type(second) and first == second


INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("sign", ["", " UNSIGNED", " ZEROFILL"])
def test_integers(each_binlog: Binlog, name: str, sign: str) -> None:
    bits, rng = INTEGERS[name], random.Random(name + sign)
    low, high = (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    values = [low, high, 0, 1, low + 1, high - 1, *(rng.randint(low, high) for _ in range(50))]
    make = Decimal if sign and name == "BIGINT" else int
    assert assert_log_equals_select(each_binlog, name + sign, values, lambda text: make(int(text))) == len(values) + 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", [
    (1, 0), (1, 1), (5, 2), (9, 0), (9, 9), (10, 0), (10, 9), (12, 2), (18, 9), (19, 0), (19, 10), (20, 10),
    (30, 30), (37, 18), (38, 0), (38, 10),
    (38, 30), (39, 1), (45, 0), (57, 28), (64, 30), (65, 0), (65, 30),
])  # fmt: skip
def test_decimals(each_binlog: Binlog, shape: tuple[int, int]) -> None:
    precision, scale = shape
    rng = random.Random(str(shape))
    top = 10**precision - 1
    numbers = [0, 1, -1, top, -top, *(rng.randint(-top, top) for _ in range(40))]
    numbers += [rng.randint(-(10 ** rng.randint(0, precision)), 10 ** rng.randint(0, precision) - 1) for _ in range(40)]
    values = [Raw(f"{Decimal(n).scaleb(-scale, CONTEXT):f}") for n in numbers]
    assert assert_log_equals_select(each_binlog, f"DECIMAL({precision},{scale})", values, Decimal) == len(values) + 1


def test_decimals_of_mariadbs_larger_scale(mariadb_binlog: Binlog) -> None:
    values = [Raw("0." + "9" * 38), Raw("-0." + "0" * 37 + "1"), 0]
    assert_log_equals_select(mariadb_binlog, "DECIMAL(38,38)", values, Decimal)


REALS = [
    0, Raw("-0e0"), 1, -1, Raw("1.1"), Raw("0.1"), 16777217, Raw("3.4028234e38"), Raw("-3.4028234e38"), Raw("1.17549435e-38"), Raw("1e-45"),
    Raw("1e-44"), Raw("123456.789"),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("column_type", ["FLOAT", "FLOAT(7,3)", "FLOAT UNSIGNED"])
def test_floats(each_binlog: Binlog, column_type: str) -> None:
    rng = random.Random(column_type)
    values = [*REALS, *(Raw(repr(_float32(str(rng.uniform(0, 10 ** rng.randint(-30, 30)))))) for _ in range(100))]
    # Times one, not plus zero: that would make a zero of a negative zero. A plain SELECT has six digits.
    assert_log_equals_select(each_binlog, column_type, values, _float32, "v * 1e0")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("column_type", ["DOUBLE", "DOUBLE(15,4)", "DOUBLE UNSIGNED"])
def test_doubles(each_binlog: Binlog, column_type: str) -> None:
    rng = random.Random(column_type)
    values = [
        *REALS,
        Raw("1.7976931348623157e308"),
        Raw("2.2250738585072014e-308"),
        Raw("4.9e-324"),
        Raw("9007199254740993"),
    ]
    values += [Raw(repr(rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300))) for _ in range(100)]
    assert_log_equals_select(each_binlog, column_type, values, float, "v * 1e0")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bits", [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 48, 63, 64])
def test_bits(each_binlog: Binlog, bits: int) -> None:
    rng = random.Random(bits)
    values = [0, 1, 2**bits - 1, *(rng.getrandbits(bits) for _ in range(20))]
    make: Callable[[int], Any] = bool if bits == 1 else Decimal if bits == 64 else int
    assert_log_equals_select(each_binlog, f"BIT({bits})", values, lambda text: make(int(text)), "v + 0")


def test_years(each_binlog: Binlog) -> None:
    assert_log_equals_select(each_binlog, "YEAR", [0, 1901, 1970, 2000, 2024, 2155], int)


DATES = [
    "1000-01-01", "9999-12-31", "1970-01-01", "1969-12-31", "2024-02-29", "1900-02-28", "1900-03-01", "2000-02-29",
    "2000-12-31", "0001-01-01",
    "0000-00-00", "2024-00-00", "2024-02-00", "0000-01-00",
]  # fmt: skip
TIMES = ["00:00:00", "23:59:59.999999", "12:34:56.5", "00:00:00.000001", "01:02:03.04"]


def _days(rng: random.Random, count: int) -> list[str]:
    return [str(dt.date(1, 1, 1) + dt.timedelta(rng.randrange(3_652_059))) for _ in range(count)]


def test_dates(each_binlog: Binlog) -> None:
    values = [*DATES, *_days(random.Random(1), 300)]
    assert_log_equals_select(each_binlog, "DATE", values, _date, unrepresentable="null")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("digits", range(7))
def test_datetimes(each_binlog: Binlog, digits: int) -> None:
    rng = random.Random(digits)
    values = [f"{day} {time}" for day in DATES for time in TIMES]
    values += [
        f"{day} {rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}.{rng.randrange(10**6):06}"
        for day in _days(rng, 100)
    ]
    assert_log_equals_select(each_binlog, f"DATETIME({digits})", values, _datetime, unrepresentable="null")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("digits", range(7))
def test_timestamps(each_binlog: Binlog, digits: int) -> None:
    rng = random.Random(digits)
    values = [
        "0000-00-00 00:00:00",
        "1970-01-01 00:00:01",
        "2038-01-19 03:14:07",
        "2024-03-10 02:30:00",
        "2024-02-29 23:59:59.999999",
    ]
    for _ in range(100):
        moment = dt.datetime(1970, 1, 2, tzinfo=dt.UTC) + dt.timedelta(
            seconds=rng.randrange(2**31 - 200_000), microseconds=rng.randrange(10**6)
        )
        values.append(str(moment.replace(tzinfo=None)))
    assert_log_equals_select(each_binlog, f"TIMESTAMP({digits})", values, _timestamp, unrepresentable="null")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("digits", range(7))
def test_times(each_binlog: Binlog, digits: int) -> None:
    rng = random.Random(digits)
    values = [
        sign + text
        for sign in ("", "-")
        for text in [*TIMES, "838:59:59", "100:00:00", "99:59:59.999999", "00:59:59.5", "01:00:00.25", "00:00:01"]
    ]
    for _ in range(100):
        hours, minutes, seconds = rng.randrange(838), rng.randrange(60), rng.randrange(60)
        values += [f"{rng.choice(['', '-'])}{hours:02}:{minutes:02}:{seconds:02}.{rng.randrange(10**6):06}"]
    assert_log_equals_select(each_binlog, f"TIME({digits})", values, _exact)


TEXTS = [
    "",
    "a",
    " ",
    "a ",
    " a",
    "tab\tline\n",
    "quote'\"\\",
    "é",
    "ß",
    "日本語",
    "😀",
    "\0",
    "a\0b",
    "x" * 200,
    "é" * 60,
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "column_type",
    ["CHAR(200)", "CHAR(60)", "VARCHAR(200)", "VARCHAR(5000)", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"],
)
def test_texts(each_binlog: Binlog, column_type: str) -> None:
    values = [*TEXTS, "y" * 255, "z" * 256, "w" * 70_000]
    assert_log_equals_select(each_binlog, column_type, values, _exact)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "column_type",
    [
        "BINARY(1)",
        "BINARY(6)",
        "BINARY(255)",
        "VARBINARY(200)",
        "VARBINARY(3000)",
        "TINYBLOB",
        "BLOB",
        "MEDIUMBLOB",
        "LONGBLOB",
    ],
)
def test_bytes(each_binlog: Binlog, column_type: str) -> None:
    rng = random.Random(column_type)
    values = [
        b"",
        b"\0",
        b"a",
        b"a\0\0\0\0\0",
        b"\0\0\0\0\0\0",
        b"\0a",
        b"  ",
        b"a ",
        bytes(range(256)),
        *(rng.randbytes(rng.randrange(300)) for _ in range(30)),
    ]
    assert_log_equals_select(each_binlog, column_type, values, bytes.fromhex, "HEX(v)")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("count", [1, 2, 255, 256, 1000])
def test_enums(each_binlog: Binlog, count: int) -> None:
    labels = ["a", "it''s", "é, x", *(f"label {i}" for i in range(count))][:count]
    declaration = ",".join(f"'{label}'" for label in labels)
    values = [Raw(str(i)) for i in {0, 1, count // 2, count}]
    assert_log_equals_select(each_binlog, f"ENUM({declaration})", values, _exact)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("count", [1, 2, 8, 9, 16, 17, 24, 25, 32, 33, 63, 64])
def test_sets(each_binlog: Binlog, count: int) -> None:
    rng = random.Random(count)
    labels = ["a", "it''s", "é x", *(f"label {i}" for i in range(count))][:count]
    declaration = ",".join(f"'{label}'" for label in labels)
    values = [Raw(str(i)) for i in [0, 1, 2**count - 1, 2 ** (count - 1), *(rng.getrandbits(count) for _ in range(20))]]
    assert_log_equals_select(each_binlog, f"SET({declaration})", values, _exact)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "charset", ["latin1", "latin2", "utf8mb3", "ucs2", "utf16", "cp1251", "swe7", "sjis", "binary"]
)
def test_labels_of_other_character_sets(each_binlog: Binlog, charset: str) -> None:
    declaration = f"ENUM('a','zä','x y') CHARACTER SET {charset}"
    assert_log_equals_select(each_binlog, declaration, [Raw("1"), Raw("2"), Raw("3"), Raw("0")], _exact)
    assert_log_equals_select(each_binlog, declaration.replace("ENUM", "SET"), [Raw(str(i)) for i in range(8)], _exact)


GEOMETRIES = {
    "POINT": ["POINT(1 2)", "POINT(-1.5 1e300)"],
    "LINESTRING": ["LINESTRING(0 0,1 1,2 0)"],
    "POLYGON": ["POLYGON((0 0,4 0,4 4,0 4,0 0),(1 1,2 1,2 2,1 2,1 1))"],
    "MULTIPOINT": ["MULTIPOINT(0 0,1 1)"],
    "GEOMETRYCOLLECTION": ["GEOMETRYCOLLECTION(POINT(1 1),LINESTRING(0 0,1 1))"],
    "GEOMETRY": ["POINT(1 2)", "LINESTRING(0 0,1 1,2 0)"],
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("column_type", GEOMETRIES)
def test_geometries(each_binlog: Binlog, column_type: str) -> None:
    values = [Raw(f"ST_GeomFromText('{text}'{srid})") for text in GEOMETRIES[column_type] for srid in ("", ", 4326")]
    assert_log_equals_select(each_binlog, column_type, values, bytes.fromhex, "HEX(v)")


@pytest.mark.condition("M24")
def test_vectors(mysql_binlog: Binlog) -> None:
    values = [Raw(f"STRING_TO_VECTOR('{text}')") for text in ("[1,2,3]", "[-1.5]", "[0,1e30,-0.1]")]
    assert_log_equals_select(mysql_binlog, "VECTOR(3)", values, bytes.fromhex, "HEX(v)")


def test_uuids(mariadb_binlog: Binlog) -> None:
    if mariadb_binlog.database.server.version < (10, 7):
        pytest.skip("UUID came with MariaDB 10.7")
    rng = random.Random(3)
    digits = [rng.randbytes(16).hex() for _ in range(100)] + [
        "0" * 32,
        "f" * 32,
        "00" * 8 + "01" + "00" * 7,
        "01" + "00" * 15,
    ]
    for version in "12345678":
        digits += [d[:12] + version + d[13:16] + variant + d[17:] for d in digits[:3] for variant in "089ce"]
    values = [f"{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:]}" for d in digits]
    assert_log_equals_select(mariadb_binlog, "UUID", values, _exact)


def test_addresses(mariadb_binlog: Binlog) -> None:
    rng = random.Random(4)
    six = [
        "::",
        "::1",
        "1::",
        "::ffff:1.2.3.4",
        "::1.2.3.4",
        "::ffff:0:0",
        "2001:db8::1",
        "1:0:0:2:0:0:0:3",
        "1:0:2:0:3:0:4:0",
        "fe80::1:0:0:1",
        "::2:3",
    ]
    six += [":".join(f"{rng.choice([0, 0, rng.getrandbits(16)]):x}" for _ in range(8)) for _ in range(200)]
    assert_log_equals_select(mariadb_binlog, "INET6", six, _exact)
    assert_log_equals_select(
        mariadb_binlog, "INET4", ["0.0.0.0", "255.255.255.255", "1.2.3.4", "127.0.0.1", "10.0.0.0"], _exact
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "column_type",
    [
        "VARCHAR(200) COMPRESSED",
        "VARCHAR(5000) COMPRESSED",
        "TINYTEXT COMPRESSED",
        "TEXT COMPRESSED",
        "LONGTEXT COMPRESSED",
    ],
)
def test_compressed_texts(mariadb_binlog: Binlog, column_type: str) -> None:
    assert_log_equals_select(mariadb_binlog, column_type, [*TEXTS, "long " * 900, "x" * 60_000], _exact)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "column_type", ["VARBINARY(3000) COMPRESSED", "TINYBLOB COMPRESSED", "BLOB COMPRESSED", "MEDIUMBLOB COMPRESSED"]
)
def test_compressed_bytes(mariadb_binlog: Binlog, column_type: str) -> None:
    values = [b"", b"\0", b"a" * 99, b"a" * 100, b"a" * 101, b"abc" * 900, bytes(range(256)) * 3]
    assert_log_equals_select(mariadb_binlog, column_type, values, bytes.fromhex, "HEX(v)")
