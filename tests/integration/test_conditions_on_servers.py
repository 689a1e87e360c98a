"""Conditions give the answers of real servers, where a text is compared by its code points; what differs is listed here, and documented."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from replicator.model.schema import Column, TableId, TableSchema
from replicator.projection.condition import parse
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.postgresql.servers import ScratchDatabase

TYPES = {
    "id": pa.int32(),
    "n": pa.int16(),
    "big": pa.int64(),
    "d": pa.decimal128(5, 2),
    "x": pa.float64(),
    "r": pa.float32(),
    "t": pa.string(),
    "day": pa.date32(),
    "at": pa.timestamp("us"),
    "flag": pa.bool_(),
    "b": pa.binary(),
}
SCHEMA = TableSchema(
    table=TableId("shop", "t"),
    columns=tuple(Column(name=name, type=type_, source_type="t") for name, type_ in TYPES.items()),
)
LAST = 2**63 - 1
ROWS: Sequence[tuple[Any, ...]] = [
    (1, 1, LAST, Decimal("1.00"), 0.1, 0.1, "a", date(2024, 2, 29), datetime(2024, 2, 29), True, b""),
    (2, -1, -(2**63), Decimal("-999.99"), -0.0, 0.5, "A", date(1970, 1, 1), datetime(2024, 2, 29, 12, 0, 0, 500000), False, b"\x00"),
    (3, 2, 1 << 53, Decimal("1.01"), 1e300, -1.0, "a%", date(9999, 12, 31), datetime(1969, 12, 31, 23, 59, 59), None, b"\xff\x00"),
    (4, 3, (1 << 53) + 1, Decimal("0.00"), 1.0, 1.5, "😀", date(1969, 12, 31), datetime(1970, 1, 1), True, b"a"),
    (5, None, 0, None, None, None, "￿", None, None, False, None),
    (6, 0, None, Decimal("9.99"), 2.5, None, None, date(2024, 2, 29), None, None, b"A"),
    (7, 127, 7, Decimal("999.99"), -1e-300, 16777216.0, "a\nb", date(2000, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), True, b""),
    (8, -128, 8, Decimal("0.01"), 1e15, 0.0, "it's", date(2000, 1, 2), datetime(2000, 1, 1), False, b"\x7f"),
    (9, 5, 9, Decimal("0.10"), 0.30000000000000004, 0.25, "é", date(2000, 1, 3), datetime(2000, 1, 2), True, b"\x80"),
    (10, 6, 10, Decimal("5.00"), 3.0, 3.0, "", date(2000, 1, 4), datetime(2000, 1, 3), True, b"zz"),
]  # fmt: skip
CONDITIONS = [
    "n = 1", "n <> 1", "n < 2.5", "n >= 2.5", "n = 2.5", "n <> 2.5", "n < 1e3", "n > -1e3", "n = 40000", "n <> 40000", "n < -40000.5",
    "big = 9223372036854775807", "big < 9223372036854775807", "big = 9007199254740993", "big > 9007199254740992", "big >= n",
    "d = 1", "d = 1.000", "d = 1.005", "d < 1.005", "d >= 1.005", "d < 1000", "d > -1000", "d = n", "d < big", "d <> 0.00",
    "x = 0.1", "x = 0.3", "x = 0", "x <> 0", "x < 0", "x > 1e15", "x >= 1e15", "x = 1", "x > n", "r = 0.1", "r = 0.5", "r = x", "r > 0.2",
    "t = 'a'", "t <> 'a'", "t < 'a'", "t > 'z'", "t > '￿'", "t = 'é'", "t = ''", "t = 'it''s'", "t BETWEEN 'A' AND 'a'",
    "t LIKE 'a'", "t LIKE 'a%'", "t LIKE '_'", "t LIKE 'a_b'", "t LIKE '%'", "t LIKE 'a!%' ESCAPE '!'", "t NOT LIKE '%!!%' ESCAPE '!'",
    "t NOT LIKE 'a%'", "t LIKE '%''%'", "t IN ('a', 'A', NULL)", "t NOT IN ('a', NULL)", "t NOT IN ('a', 'é')",
    "day = '2024-02-29'", "day < '1970-01-01'", "day BETWEEN '2000-01-01' AND '2000-01-03'", "day > '9999-12-30'",
    "at = '2024-02-29'", "at >= '2024-02-29 12:00:00.5'", "at < '1970-01-01 00:00'", "at = '9999-12-31 23:59:59.999999'",
    "at BETWEEN '2000-01-01' AND '2000-01-02 00:00:00'", "'2000-01-02' BETWEEN at AND at", "at <= at",
    "flag", "NOT flag", "flag = TRUE", "flag <> FALSE", "flag IS NULL", "NOT NOT flag", "flag AND n > 0",
    "flag OR n IS NULL", "flag IN (TRUE, NULL)",
    "n = NULL", "n <> NULL", "NOT n = NULL", "n BETWEEN NULL AND 1", "n NOT BETWEEN NULL AND 1",
    "n NOT BETWEEN -1 AND 3", "n BETWEEN 3 AND 1",
    "n IN (1, 2.0, 2.5)", "n NOT IN (1, 2.5, NULL)", "big IN (9223372036854775807, 9007199254740993)", "x IN (0, 0.1)", "d IN (1.0, 1.005)",
    "NOT n = 1 AND d > 0 OR x > 1", "NOT (n = 1 OR d > 0) AND NOT x IS NULL",
    "n = 1 OR d = 1 AND x = 7", "NOT n IN (1, 2) AND n NOT IN (3)",
    "n IS NULL OR NOT t LIKE '%a%'", "1 < n", "2.5 > n AND 'b' > t",
]  # fmt: skip
BYTES = ["b = X''", "b > X'7f'", "b < X'80'", "b IN (X'00', X'ff00')", "b BETWEEN X'41' AND X'61'", "b <> X'00'"]


def ours(text: str, rows: Sequence[tuple[Any, ...]] = ROWS) -> list[bool | None]:
    arrays = [pa.array(values, type_) for values, type_ in zip(zip(*rows, strict=True), TYPES.values(), strict=True)]
    answers: list[bool | None] = parse(text).bind(SCHEMA).evaluate(pa.record_batch(arrays, list(TYPES))).to_pylist()
    return answers


def statement(conditions: Sequence[str]) -> str:
    return f"SELECT {', '.join(f'({parse(text)})' for text in conditions)} FROM t ORDER BY id"


def differing(found: Sequence[tuple[Any, ...]], conditions: Sequence[str]) -> dict[str, object]:
    """What the server answered, as truth values, where we do not answer the same."""
    theirs = [
        [None if value is None else value not in {0, b"\0"} for value in column] for column in zip(*found, strict=True)
    ]
    return {text: answers for text, answers in zip(conditions, theirs, strict=True) if answers != ours(text)}


def test_postgresql_answers_the_same(database: ScratchDatabase) -> None:
    database.execute(
        'CREATE TABLE t (id int, n int2, big int8, d numeric(5,2), x float8, r float4, t text COLLATE "C", day date, at timestamp(6),'
        " flag boolean, b bytea)"
    )
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO t VALUES ({', '.join(['%s'] * len(TYPES))})", ROWS)
    assert differing(database.execute(statement(CONDITIONS)), CONDITIONS) == {}

    # Bytes are written as '\\x…' there, and X'…' is a string of bits.
    written = [text.replace("X'", r"'\x") for text in BYTES]
    found = database.execute(f"SELECT {', '.join(f'({text})' for text in written)} FROM t ORDER BY id")
    assert differing(found, BYTES) == {}

    # NaN equals itself and is the greatest number; a char(n) has its padding here, and no padding counts there.
    numbers = [(1, 2.0), (2, float("nan")), (3, float("inf")), (4, None)]
    rows = [(id_, None, None, None, x, x, None, None, None, None, None) for id_, x in numbers]
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM t")
        cursor.executemany("INSERT INTO t (id, x, r) VALUES (%s, %s, %s)", [(id_, x, x) for id_, x in numbers])
    tests = [f"x {sign} {other}" for sign in ("=", "<>", "<", "<=", ">", ">=") for other in ("3", "x", "r")]
    theirs = zip(*database.execute(statement([*tests, "x IN (2, 3)"])), strict=True)
    assert [list(answers) for answers in theirs] == [ours(text, rows) for text in [*tests, "x IN (2, 3)"]]
    assert database.execute("SELECT 'ab'::char(4) = 'ab', textin(bpcharout('ab'::char(4)))") == [(True, "ab  ")]


PADDED = {"t < 'a'", "t BETWEEN 'A' AND 'a'"}
"""A collation that pads compares `a` with a newline as `a` with a space, which is greater."""


def test_mysql_answers_the_same(mysql_database: MysqlDatabase) -> None:
    (version,) = mysql_database.execute("SELECT version()")[0]
    unpadded = "utf8mb4_nopad_bin" if "MariaDB" in version else "utf8mb4_0900_bin"
    mysql_database.execute(
        f"CREATE TABLE t (id int, n smallint, big bigint, d decimal(5,2), x double, r float, t varchar(20) COLLATE {unpadded}, day date,"
        " at datetime(6), flag bit(1), b varbinary(9)) CHARACTER SET utf8mb4"
    )
    with mysql_database.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO t VALUES ({', '.join(['%s'] * len(TYPES))})", ROWS)
        connection.commit()
        cursor.execute("SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'")
        cursor.execute(statement([*CONDITIONS, *BYTES]))
        assert differing(list(cursor.fetchall()), [*CONDITIONS, *BYTES]) == {}

        cursor.execute("ALTER TABLE t MODIFY t varchar(20) COLLATE utf8mb4_bin")
        cursor.execute(statement(CONDITIONS))
        assert set(differing(list(cursor.fetchall()), CONDITIONS)) == PADDED
        cursor.execute("SELECT t = 'a ', t LIKE 'a ' FROM t WHERE id = 1")
        assert list(cursor.fetchall()) == [(1, 0)]
        assert [ours("t = 'a '")[0], ours("t LIKE 'a '")[0]] == [False, False]
