"""MySQL's binary JSON: the text that SELECT gives, for documents of every kind and size."""

from __future__ import annotations

import json
import random
import struct
from typing import TYPE_CHECKING, Any

import pytest

from replicator_source_mysql.binlog.jsonbinary import double_text, json_text

if TYPE_CHECKING:
    from plugins.sources.mysql.tests.binlog.conftest import Binlog

SCALARS = [
    "null", "true", "false", "0", "1", "-1", "32767", "32768", "-32768", "-32769", "65535", "65536", "2147483647",
    "2147483648", "-2147483648",
    "-2147483649", "4294967295", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551615",
    "-9223372036854775808",
    "18446744073709551616", "0.0", "-0.0", "1.0", "1.5", "-1.1", "1e0", "1e10", "1e14", "1e15", "1e16", "1e17",
    "123456789012345.6",
    "1234567890123456.7", "12345678901234567", "0.1", "0.01", "0.001", "0.0001", "0.00001", "0.000001", "1.23e-5",
    "1.23e-10", "1e100",
    "1.7976931348623157e308", "2.2250738585072014e-308", "5e-324", "1e20", "1e21", "1e22", "3.0", "100.0",
    "123e-20", '""', '"a"',
    '"quote\\" back\\\\ slash/ \\b\\f\\n\\r\\t \\u0000 \\u001f \\u007f"', '"é ß 日本語 😀"', "[]", "{}", "[[]]", '{"": ""}', "[null]",
]  # fmt: skip


def _cast(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"CAST('{escaped}' AS JSON)"


EXPRESSIONS = [
    "CAST(12.50 AS JSON)", "CAST(-0.001 AS JSON)",
    "CAST(CAST('-12345678901234567890.123456789' AS DECIMAL(40,10)) AS JSON)",
    "CAST(CAST(0 AS DECIMAL(65,30)) AS JSON)", "CAST(DATE '2024-02-29' AS JSON)", "CAST(TIME '-10:11:12.5' AS JSON)",
    "CAST(TIME '838:59:59' AS JSON)", "CAST(TIME '-00:00:00.000001' AS JSON)",
    "CAST(TIMESTAMP '2024-02-29 23:59:59.999999' AS JSON)",
    "CAST(CAST('0000-00-00' AS DATE) AS JSON)", "CAST(b'1010' AS JSON)", "CAST(x'00ff10' AS JSON)",
    "JSON_ARRAY(CAST('blob' AS BINARY), NOW(6), CURTIME(3), CURDATE(), 1.5, 1e0)",
    "JSON_OBJECT('y', CAST(2024 AS YEAR), 'b', b'1', 't', TRUE)",
    "CAST(ST_GeomFromText('POINT(1 2)') AS JSON)", "JSON_ARRAY(UNIX_TIMESTAMP('2024-01-01 00:00:00'))",
]  # fmt: skip


def _document(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(10 if depth < 6 else 7)
    match kind:
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2:
            return rng.randint(-(2 ** rng.randrange(1, 64)), 2 ** rng.randrange(1, 65) - 1)
        case 3 | 4:
            return rng.uniform(-1, 1) * 10.0 ** rng.randint(-20, 20)
        case 5 | 6:
            return "".join(rng.choice('aé日"\\\n😀 ') for _ in range(rng.choice([0, 3, 20, 200])))
        case 7:
            return [_document(rng, depth + 1) for _ in range(rng.choice([0, 1, 5, 20]))]
        case _:
            return {
                f"k{rng.randrange(1000)}{'x' * rng.randrange(20)}": _document(rng, depth + 1)
                for _ in range(rng.choice([0, 1, 5, 20]))
            }


def _compare(binlog: Binlog, expressions: list[str]) -> None:
    binlog.execute("CREATE TABLE t (id INT PRIMARY KEY, v JSON)")
    binlog.execute("SET sql_mode = ''")
    binlog.forget()
    for begin in range(0, len(expressions), 50):
        rows = ", ".join(f"({n}, {e})" for n, e in enumerate(expressions[begin : begin + 50], begin))
        binlog.execute(f"INSERT INTO t VALUES {rows}")
    wanted = [text for (text,) in binlog.execute("SELECT v FROM t ORDER BY id")]
    found = binlog.decode("t").row.field("v").to_pylist()
    different = [pair for pair in zip(expressions, found, wanted, strict=True) if pair[1] != pair[2]]
    assert not different, f"{len(different)}: {different[:3]}"


def test_scalars(mysql_binlog: Binlog) -> None:
    _compare(mysql_binlog, [*(_cast(text) for text in SCALARS), "NULL"])


def test_values_of_mysqls_own_types(mysql_binlog: Binlog) -> None:
    _compare(mysql_binlog, EXPRESSIONS)


def test_bytes_of_every_length_have_the_line_breaks_of_the_server(mysql_binlog: Binlog) -> None:
    lengths = [*range(130), 170, 171, 172, 1000, 16_000, 70_000]
    _compare(
        mysql_binlog,
        [f"JSON_OBJECT('b', CAST(REPEAT('y', {length}) AS BINARY), 'c', 1)" for length in lengths]
        + [f"CAST(REPEAT(x'00ff', {length}) AS JSON)" for length in (28, 29, 57, 58)],
    )


def _typed(rng: random.Random) -> str:  # noqa: PLR0911
    """A value of one of MySQL's own types, which JSON keeps as such."""
    number = rng.randint(-(10 ** rng.randrange(1, 30)), 10 ** rng.randrange(1, 30))
    clock = f"{rng.randrange(60):02}:{rng.randrange(60):02}"
    fraction = f".{rng.randrange(10**6):06}" if rng.random() < 0.5 else ""
    day = f"{rng.randrange(10000):04}-{rng.randrange(13):02}-{rng.randrange(32):02}"
    digits = rng.randrange(7)
    scale = rng.randrange(31)
    match rng.randrange(12):
        case 0:
            return f"CAST('{number}.{rng.randrange(10**9)}' AS DECIMAL({scale + 35},{scale}))"
        case 1:
            return f"CAST('{day}' AS DATE)"
        case 2:
            return f"CAST('{rng.choice(['', '-'])}{rng.randrange(839)}:{clock}{fraction}' AS TIME({digits}))"
        case 3:
            return f"CAST('{day} {rng.randrange(24):02}:{clock}{fraction}' AS DATETIME({digits}))"
        case 4:
            return f"x'{rng.randbytes(rng.choice([0, 1, 3, 56, 57, 58, 114, 115, 300])).hex()}'"
        case 5:
            return f"b'{rng.getrandbits(64):b}'"
        case 6:
            return f"CAST({rng.randrange(1901, 2156)} AS YEAR)"
        case 7:
            return rng.choice(["e", "s", "bits", "moment", "bin", "blb", "flt", "yr"])
        case 8:
            return f"{rng.uniform(-1, 1)!r} * 1e{rng.randrange(-300, 300)}"
        case 9:
            return f"CAST({rng.choice([0, 1, 2**63, 2**64 - 1, rng.getrandbits(64)])} AS UNSIGNED)"
        case 10:
            points = ",".join(f"{rng.uniform(-180, 180)} {rng.uniform(-90, 90)}" for _ in range(rng.randrange(2, 9)))
            return f"ST_GeomFromText('LINESTRING({points})')"
        case _:
            return f"'{''.join(rng.choice(_LETTERS) for _ in range(rng.randrange(40)))}'".replace(chr(92), chr(92) * 2)


_LETTERS = [chr(code) for code in range(256) if code != ord("'")] + ["\u2028", "\u2029", "\ufeff", "😀", "\uffff", "日"]


def test_random_values_of_mysqls_own_types(mysql_binlog: Binlog) -> None:
    """In objects, arrays and alone; the value that a column of each type gives to JSON included."""
    rng = random.Random(3)
    mysql_binlog.execute(
        "CREATE TABLE c (e ENUM('a', 'b\"c', 'é'), s SET('x', 'y', 'z'), bits BIT(33), moment TIMESTAMP(6), bin BINARY(70),"
        " blb BLOB, flt FLOAT, yr YEAR)"
    )
    mysql_binlog.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
    mysql_binlog.execute(
        "INSERT INTO c VALUES ('b\"c', 'x,z', b'100000000000000000000000000000001', '2024-02-29 23:59:59.000001', 'bin',"
        " REPEAT('b', 200), 1.1, 2155)"
    )
    expressions = []
    for _ in range(1000):
        values = [_typed(rng) for _ in range(rng.randrange(6))]
        pairs = ", ".join(f"'{rng.choice(['', 'a', 'B', 'é', 'key' * 30])}{i}', {v}" for i, v in enumerate(values))
        inner = rng.choice([f"JSON_ARRAY({', '.join(values)})", f"JSON_OBJECT({pairs})"])
        expressions.append(f"(SELECT {inner} FROM c)")
    _compare(mysql_binlog, expressions)


def test_random_documents(mysql_binlog: Binlog) -> None:
    rng = random.Random(1)
    _compare(mysql_binlog, [_cast(json.dumps(_document(rng, 0), ensure_ascii=False)) for _ in range(300)])


def test_random_doubles(mysql_binlog: Binlog) -> None:
    rng = random.Random(2)
    doubles: list[str] = []
    while len(doubles) < 3000:
        value = (
            struct.unpack("<d", rng.randbytes(8))[0]
            if rng.random() < 0.5
            else rng.uniform(-1, 1) * 10 ** rng.randint(-18, 18)
        )
        if value - value == 0:
            doubles.append(repr(value))
    _compare(mysql_binlog, [_cast(f"[{','.join(doubles[i : i + 100])}]") for i in range(0, 3000, 100)])


def test_large_containers(mysql_binlog: Binlog) -> None:
    many = {f"key {i}": i for i in range(3000)}
    wide = [list(range(30_000)), "x" * 70_000, {"a": "y" * 70_000}]
    deep = "[" * 99 + "]" * 99
    _compare(mysql_binlog, [_cast(json.dumps(many)), _cast(json.dumps(wide)), _cast(deep)])


def test_documents_after_partial_updates(mysql_binlog: Binlog) -> None:
    """Updated in place, a document has gaps and values out of order inside."""
    mysql_binlog.execute("CREATE TABLE t (id INT PRIMARY KEY, v JSON)")
    mysql_binlog.execute("""INSERT INTO t VALUES (1, '{"a": "long text here", "b": [1, 2, {"c": 70000}], "d": 1.5}')""")
    mysql_binlog.forget()
    steps = [
        "JSON_REPLACE(v, '$.a', 'x')",
        "JSON_SET(v, '$.b[2].c', 1)",
        "JSON_REMOVE(v, '$.d')",
        "JSON_REPLACE(v, '$.a', 'longer')",
    ]
    wanted = []
    for step in steps:
        mysql_binlog.execute(f"UPDATE t SET v = {step}")
        wanted += [text for (text,) in mysql_binlog.execute("SELECT v FROM t")]
    assert mysql_binlog.decode("t").row.field("v").to_pylist() == wanted


@pytest.mark.parametrize("raw", [
    b"\x00", b"\x04", b"\x04\x09", b"\x05\x01", b"\x0c\xff\xff\xff\xff\xff", b"\x0c\x05ab", b"\x02\xff\xff\x04\x00", b"\x0d\x00",
    b"\x0f\xf6\x02\x02\x05",
    b"\x02\x01\x00\x07\x00\x02\x00\x00\x01\x02", b"\x0c\x02\xff\xfe", b"\x0b" + struct.pack("<d", float("inf")), b"\x0f\x0a\x01\x00",
])  # fmt: skip
def test_what_is_no_document_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        json_text(raw)


def test_a_document_that_holds_itself_is_refused() -> None:
    # An array of two whose elements are the array.
    raw = b"\x02" + struct.pack("<HH", 2, 10) + (b"\x02" + struct.pack("<H", 0)) * 2
    with pytest.raises(ValueError):
        json_text(raw)


def test_a_document_of_no_bytes_is_null() -> None:
    assert json_text(b"") == "null"


def test_doubles_read_back_exactly() -> None:
    rng = random.Random(5)
    for _ in range(2000):
        (value,) = struct.unpack("<d", rng.randbytes(8))
        if value - value == 0:
            assert float(double_text(value)) == value
