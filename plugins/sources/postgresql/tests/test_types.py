# ruff: noqa: DTZ001 timestamps without a zone are what is tested here
"""A value is the same whether it comes by the log or by a chunk, and both are what the server shows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from replicator.model.errors import UnsupportedTypeError
from replicator.plugins.kit.calendar import civil_from_days, days_from_civil
from replicator_source_postgresql import values as v
from replicator_source_postgresql.connecting.connection import SameServer
from replicator_source_postgresql.log.feed import Feed
from replicator_source_postgresql.log.pgoutput import INSERT
from replicator_source_postgresql.snapshot.copy_out import CopyScript, copy_columns
from replicator_source_postgresql.types import (
    SESSION_OPTIONS,
    TYPES_QUERY,
    PgType,
    Unrepresentable,
    column_type,
    numeric_shape,
    type_infos,
)
from replicator_source_postgresql.wire import Frames, read_tuples
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.present import present

US = timedelta(microseconds=1)
TYPES = """
CREATE EXTENSION IF NOT EXISTS citext;
CREATE EXTENSION IF NOT EXISTS hstore;
CREATE EXTENSION IF NOT EXISTS ltree;
CREATE TYPE mood AS ENUM ('sad', 'so so', 'Glück');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN posint AS int CHECK (value > 0);
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN posints AS int[];
CREATE DOMAIN moods AS mood;
CREATE DOMAIN posposint AS posint CHECK (value < 1000000);
"""

# SQL type → its canonical type and literals with what they mean; None as meaning: only compare log with chunk and
# with the server's own text.
NUMBERS: Mapping[str, tuple[pa.DataType, Mapping[str, Any]]] = {
    "bool": (pa.bool_(), {"true": True, "false": False}),
    "int2": (pa.int16(), {"-32768": -32768, "32767": 32767, "0": 0}),
    "int4": (pa.int32(), {"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    "int8": (pa.int64(), {"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1}),
    "oid": (pa.int64(), {"0": 0, "4294967295": 2**32 - 1}),
    "float4": (
        pa.float32(),
        {
            "0.1": None,
            "-0": -0.0,
            "Infinity": float("inf"),
            "-Infinity": float("-inf"),
            "1e-45": None,
            "3.4028235e38": None,
        },
    ),
    "float8": (
        pa.float64(),
        {
            "0.1": 0.1,
            "1e308": 1e308,
            "5e-324": 5e-324,
            "Infinity": float("inf"),
            "0.30000000000000004": 0.30000000000000004,
        },
    ),
    "numeric(12,2)": (
        pa.decimal128(12, 2),
        {"0": Decimal("0.00"), "-9999999999.99": Decimal("-9999999999.99"), "0.01": Decimal("0.01")},
    ),
    "numeric(38,0)": (pa.decimal128(38, 0), {"9" * 38: Decimal("9" * 38), "-" + "9" * 38: Decimal("-" + "9" * 38)}),
    "numeric(38,38)": (pa.decimal128(38, 38), {"0." + "9" * 38: Decimal("0." + "9" * 38)}),
    "numeric(39,5)": (pa.decimal256(39, 5), {"-" + "9" * 34 + ".99999": Decimal("-" + "9" * 34 + ".99999")}),
    "numeric(76,1)": (pa.decimal256(76, 1), {"9" * 75 + ".9": Decimal("9" * 75 + ".9")}),
    "numeric(77,1)": (pa.string(), {"9" * 76 + ".9": "9" * 76 + ".9"}),
    "numeric": (
        pa.string(),
        {"1.50": "1.50", "NaN": "NaN", "-Infinity": "-Infinity", "1e-20": "0.00000000000000000001"},
    ),
    "posint": (pa.int32(), {"7": 7}),
    "posposint": (pa.int32(), {"8": 8}),
    "price": (pa.decimal128(10, 2), {"9.5": Decimal("9.50")}),
}
TIMES: Mapping[str, tuple[pa.DataType, Mapping[str, Any]]] = {
    "date": (
        pa.date32(),
        {
            "1970-01-01": date(1970, 1, 1),
            "9999-12-31": date(9999, 12, 31),
            "0044-03-15 BC": None,
            "4713-01-01 BC": None,
            "20240-02-29": None,
            "5874897-12-31": None,
        },
    ),
    "time": (
        pa.time64("us"),
        {"00:00": time(), "23:59:59.999999": time(23, 59, 59, 999999), "12:00:00.5": time(12, 0, 0, 500000)},
    ),
    "time(0)": (pa.time64("us"), {"12:00:01": time(12, 0, 1)}),
    "timestamp": (
        pa.timestamp("us"),
        {
            "2024-02-29 12:34:56.000001": datetime(2024, 2, 29, 12, 34, 56, 1),
            "0001-01-01": datetime(1, 1, 1),
            "0001-12-31 23:59:59.999999 BC": None,
            "4713-01-01 BC": None,
            "12345-06-07 08:09:10.11": None,
            "294246-12-31 23:59:59.999999": None,
            "1969-12-31 23:59:59.9": datetime(1969, 12, 31, 23, 59, 59, 900000),
        },
    ),
    "timestamp(3)": (pa.timestamp("us"), {"2024-01-01 00:00:00.1239": datetime(2024, 1, 1, 0, 0, 0, 124000)}),
    "timestamptz": (
        pa.timestamp("us", tz="UTC"),
        {
            "2024-06-30 12:00:00.25-07": datetime(2024, 6, 30, 19, 0, 0, 250000, UTC),
            "0044-03-15 BC": None,
            "99999-01-01": None,
            "2024-01-01": None,
        },
    ),
    "timetz": (pa.string(), {"24:00:00+05": "24:00:00+05", "01:02:03.4-01:30": "01:02:03.4-01:30"}),
    "interval": (pa.string(), {"1 year -2 days 03:04:05.6": "P1Y-2DT3H4M5.6S", "0": "PT0S"}),
}
TEXTS: Mapping[str, tuple[pa.DataType, Mapping[str, Any]]] = {
    "text": (pa.string(), {"": "", "Grüße \t\n'\"\\ 😀": "Grüße \t\n'\"\\ 😀", "x" * 100_000: "x" * 100_000}),
    "varchar(5)": (pa.string(), {"ab  ": "ab  "}),
    "char(5)": (pa.string(), {"ab": "ab   ", "": "     "}),
    "name": (pa.string(), {"some name": "some name"}),
    '"char"': (pa.string(), {"x": "x", "": ""}),
    "bytea": (pa.binary(), {r"\x": b"", r"\x00ff5c": b"\x00\xff\\", r"\x" + "0a" * 5000: b"\n" * 5000}),
    "uuid": (pa.string(), {"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}),
    "json": (pa.string(), {'{"b":1,  "a":[1, null]}': '{"b":1,  "a":[1, null]}', "null": "null"}),
    "jsonb": (pa.string(), {'{"b":1,"a":[1.10,null]}': '{"a": [1.10, null], "b": 1}', "null": "null"}),
    "xml": (pa.string(), {"<a>b</a>": "<a>b</a>"}),
    "bit(3)": (pa.string(), {"101": "101"}),
    "varbit": (pa.string(), {"": "", "0101010": "0101010"}),
    "inet": (pa.string(), {"10.0.0.1": "10.0.0.1", "10.0.0.1/8": "10.0.0.1/8", "::1": "::1"}),
    "cidr": (pa.string(), {"10.0.0.0/8": "10.0.0.0/8"}),
    "macaddr": (pa.string(), {"08:00:2b:01:02:03": "08:00:2b:01:02:03"}),
    "macaddr8": (pa.string(), {"08:00:2b:01:02:03:04:05": "08:00:2b:01:02:03:04:05"}),
    "money": (pa.string(), {"-1234.5": "-$1,234.50"}),
    "tsvector": (pa.string(), {"'a':1 'b':2": "'a':1 'b':2"}),
    "tsquery": (pa.string(), {"a & b": "'a' & 'b'"}),
    "int4range": (pa.string(), {"[1,5]": "[1,6)", "empty": "empty"}),
    "tstzrange": (pa.string(), {"[2024-01-01 00:00+00,)": '["2024-01-01 00:00:00+00",)'}),
    "point": (pa.string(), {"(1,2.5)": "(1,2.5)"}),
    "box": (pa.string(), {"(1,1),(0,0)": "(1,1),(0,0)"}),
    "polygon": (pa.string(), {"((0,0),(1,1),(1,0))": "((0,0),(1,1),(1,0))"}),
    "pg_lsn": (pa.string(), {"16/B374D848": "16/B374D848"}),
    "int2vector": (pa.string(), {"1 2 3": "1 2 3"}),
    "mood": (pa.string(), {"so so": "so so", "Glück": "Glück"}),
    "moods": (pa.string(), {"sad": "sad"}),
    "pair": (pa.string(), {'(1,"x y")': '(1,"x y")', "(,)": "(,)"}),
    "citext": (pa.string(), {"AbC": "AbC"}),
    "hstore": (pa.string(), {'"a"=>"1"': '"a"=>"1"'}),
    "ltree": (pa.string(), {"Top.Science": "Top.Science"}),
    "refcursor": (pa.string(), {"c1": "c1"}),
}
ARRAYS: Mapping[str, tuple[pa.DataType, Mapping[str, Any]]] = {
    "int4[]": (pa.list_(pa.int32()), {"{}": [], "{1,NULL,-3}": [1, None, -3], "{7}": [7], "{NULL}": [None]}),
    "text[]": (
        pa.list_(pa.string()),
        {
            '{a,"b c","",NULL,"NULL","q\\"\\\\{,}",null}': ["a", "b c", "", None, "NULL", 'q"\\{,}', None],
            "{}": [],
            '{"ü\n"}': ["ü\n"],
            "{plain,words}": ["plain", "words"],
        },
    ),
    "bool[]": (pa.list_(pa.bool_()), {"{t,f,NULL}": [True, False, None]}),
    "bytea[]": (pa.list_(pa.binary()), {r'{"\\x00","\\x"}': [b"\0", b""]}),
    "numeric(10,2)[]": (pa.list_(pa.decimal128(10, 2)), {"{1,2.5}": [Decimal("1.00"), Decimal("2.50")]}),
    "timestamptz[]": (
        pa.list_(pa.timestamp("us", tz="UTC")),
        {'{"2024-01-01 00:00:00+00",NULL}': [datetime(2024, 1, 1, tzinfo=UTC), None]},
    ),
    "date[]": (pa.list_(pa.date32()), {"{2024-01-01}": [date(2024, 1, 1)]}),
    "box[]": (pa.list_(pa.string()), {"{(1,1),(0,0);(2,2),(0,0)}": ["(1,1),(0,0)", "(2,2),(0,0)"]}),
    "mood[]": (pa.list_(pa.string()), {'{sad,"so so"}': ["sad", "so so"]}),
    "posint[]": (pa.list_(pa.int32()), {"{1,2}": [1, 2]}),
    "posints": (pa.list_(pa.int32()), {"{3,4}": [3, 4]}),
    "uuid[]": (
        pa.list_(pa.string()),
        {"{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]},
    ),
    "jsonb[]": (pa.list_(pa.string()), {'{"{\\"a\\": 1}"}': ['{"a": 1}']}),
}
ALL = {**NUMBERS, **TIMES, **TEXTS, **ARRAYS}
# What the canonical type cannot hold.
UNHELD: Mapping[str, Sequence[str]] = {
    "numeric(12,2)": ("NaN",),
    "date": ("infinity", "-infinity"),
    "timestamp": ("infinity", "-infinity", "294276-12-31 23:59:59.999999"),
    "timestamptz": ("infinity", "-infinity"),
    "time": ("24:00:00",),
    "int4[]": ("{{1,2},{3,4}}", "[0:1]={1,2}"),
    "text[]": ('{{"a b","c"}}', '[2:2]={"x y"}'),
    "date[]": ("{infinity}",),
}


class Table:
    """A table with one column, and the two ways to read it."""

    def __init__(self, database: ScratchDatabase) -> None:
        self.connection = database.connect(options=SESSION_OPTIONS)
        self._database = database
        self._count = 0

    def values(
        self, sql_type: str, literals: Sequence[str | None]
    ) -> tuple[PgType, pa.Array, pa.Array, list[str | None]]:
        """Insert literals; return the mapping, the bytes that log and chunk bring, and the output function's texts."""
        self._count += 1
        name = f"t{self._count}"
        run = self.connection.execute
        run(f"CREATE TABLE public.{name} (n serial PRIMARY KEY, v {_qualified(sql_type)})")
        run(f"CREATE PUBLICATION {name} FOR TABLE public.{name}")
        slot = f"{self._database.name}_{name}"[:63]
        run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        try:
            with self.connection.cursor() as cursor:
                cursor.executemany(
                    sql.SQL("INSERT INTO public.{} (v) VALUES (%s::text::{})").format(
                        sql.Identifier(name), sql.SQL(_qualified(sql_type))
                    ),
                    [(x,) for x in literals],
                )
            mapping = self._mapping(name)
            chunk = self._chunk(f"SELECT {mapping.select('v')} FROM public.{name} ORDER BY n")
            logged = self._logged(slot, name, len(literals))
            texts = [
                row[0]
                for row in run(
                    f"SELECT CASE WHEN v IS DISTINCT FROM NULL THEN format('%%s', v) END FROM public.{name} ORDER BY n",
                    (),
                ).fetchall()
            ]
        finally:
            with self._database.connect(replication="database") as replication:
                replication.execute(f'DROP_REPLICATION_SLOT "{slot}" WAIT')
        return mapping, logged, chunk, texts

    def _mapping(self, name: str) -> PgType:
        ((oid, typmod),) = self.connection.execute(
            "SELECT atttypid::int8, atttypmod FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'v'",
            (f"public.{name}",),
        ).fetchall()
        mapping = column_type(oid, typmod, type_infos(self.connection.execute(TYPES_QUERY, ([oid],)).fetchall())[oid])
        assert mapping is not None
        return mapping

    def _chunk(self, select: str) -> pa.Array:
        with psycopg.connect(self.connection.info.dsn, autocommit=True, options=SESSION_OPTIONS) as connection:
            script = CopyScript(connection)
            script.start(f"COPY ({select}) TO STDOUT (FORMAT binary)")
            parts = []
            while (frames := script.read(1000, 1 << 20)) is not None:
                (slices,) = copy_columns(frames, 1)
                parts.append(slices.array(frames))
            script.finish()
            return pa.concat_arrays(parts)

    def _logged(self, slot: str, publication: str, count: int) -> pa.Array:
        info = psycopg.conninfo.conninfo_to_dict(self.connection.info.dsn)
        info.pop("options", None)
        feed = Feed.open(info, SameServer(), slot=slot, publication=publication, start_lsn=0, is_raw=False)
        try:
            parts: list[pa.Array] = []
            while sum(map(len, parts)) < count:
                frames = Frames.join(feed.receive(count_max=10_000, bytes_max=1 << 30, wait_s=5))
                rows = (frames.ends - frames.starts > 26) & (
                    frames.bytes[frames.starts + 25 * (frames.ends - frames.starts > 26)] == INSERT
                )
                columns, _ = read_tuples(frames, frames.starts[rows] + 31, frames.ends[rows], 2)
                parts.append(columns[1].array(frames))
            return pa.concat_arrays(parts)
        finally:
            feed.close()


def _qualified(sql_type: str) -> str:
    name = sql_type.removesuffix("[]")
    ours = {"mood", "pair", "posint", "price", "posints", "moods", "posposint", "citext", "hstore", "ltree"}
    return f"public.{sql_type}" if name in ours else sql_type


def decode_log(mapping: PgType, values: pa.Array, unrepresentable: Unrepresentable = "fail") -> pa.Array:
    """Values as pgoutput sends them."""
    decoded, unheld = mapping.from_text(values)
    if unheld and unrepresentable == "fail":
        raise mapping.unheld_error(unheld, len(values))
    return decoded


@pytest.fixture
def table(database: ScratchDatabase) -> Iterator[Table]:
    database.execute(*filter(None, map(str.strip, TYPES.split(";"))))
    table = Table(database)
    yield table
    table.connection.close()


def test_every_type_is_the_same_by_log_and_by_chunk(table: Table) -> None:
    wrong: list[tuple[Any, ...]] = []
    for sql_type, (arrow, examples) in ALL.items():
        literals = [None, *examples, None]
        mapping, logged, chunk, _ = table.values(sql_type, literals)
        by_log, by_chunk = decode_log(mapping, logged), mapping.decode_chunk(chunk, "fail")
        by_log.validate(full=True)
        by_chunk.validate(full=True)
        if mapping.arrow != arrow or by_log.type != arrow or by_chunk.type != arrow:
            wrong.append((sql_type, "type", mapping.arrow, by_log.type, by_chunk.type))
        if not by_log.equals(by_chunk):
            wrong.append((sql_type, "log and chunk", by_log, by_chunk))
        for index, (literal, meaning) in enumerate(examples.items(), start=1):
            if meaning is not None and by_log[index].as_py() != meaning:
                wrong.append((sql_type, literal[:50], by_log[index].as_py()))
        if by_log.null_count != 2:
            wrong.append((sql_type, "nulls", by_log))
    assert wrong == []


def test_keys_read_back_as_the_same_value(table: Table) -> None:
    wrong = []
    for sql_type, (_, examples) in ALL.items():
        literals = list(examples)
        mapping, logged, _, texts = table.values(sql_type, literals)
        if not mapping.can_be_key:
            assert sql_type in {"float4", "float8"} or sql_type in ARRAYS
            continue
        keys = mapping.key_text(decode_log(mapping, logged))
        for key, text in zip(keys, texts, strict=True):
            query = sql.SQL("SELECT format('%%s', %s::text::{})").format(sql.SQL(_qualified(sql_type)))
            back = table.connection.execute(query, (key,)).fetchone()
            if back != (text,):
                wrong.append((sql_type, key, text, back))
    assert wrong == []


@pytest.mark.parametrize("sql_type", UNHELD)
def test_what_a_type_cannot_hold_fails_or_becomes_null(table: Table, sql_type: str) -> None:
    fine = next(iter(ALL[sql_type][1]))
    for literal in UNHELD[sql_type]:
        mapping, logged, chunk, _ = table.values(sql_type, [fine, literal, None, fine])
        for decode, wire in ((partial(decode_log, mapping), logged), (mapping.decode_chunk, chunk)):
            with pytest.raises(UnsupportedTypeError, match="1 of 4 values") as caught:
                decode(wire, "fail")
            assert caught.value.code == "unrepresentable_value"
            assert literal not in str(caught.value)
            decoded = decode(wire, "null").to_pylist()
            assert decoded[1] in (None, [None])
            assert decoded[2] is None
            assert decoded[0] == decoded[3] is not None


def test_random_values_are_the_same_by_log_and_by_chunk(table: Table) -> None:
    rng = random.Random(7)
    generators: dict[str, Callable[[], str]] = {
        "float8": lambda: repr(rng.uniform(-1, 1) * 10 ** rng.randint(-300, 300)),
        "float4": lambda: f"{rng.uniform(-1, 1) * 10 ** rng.randint(-30, 30):.9g}",
        "numeric(30,10)": lambda: f"{rng.randint(-(10**19), 10**19)}.{rng.randint(0, 10**10 - 1):010d}",
        "timestamp": lambda: str(datetime(1, 1, 1) + rng.randrange(315_000_000_000_000_000) * US),
        "timestamptz": lambda: str(datetime(1, 1, 2, tzinfo=UTC) + rng.randrange(315_000_000_000_000_000) * US),
        "date": lambda: (
            f"{rng.randint(1, 4700):04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}{rng.choice(['', ' BC'])}"
        ),
        "time": lambda: str((datetime(1, 1, 1) + rng.randrange(86_400_000_000) * US).time()),
        "bytea": lambda: r"\x" + rng.randbytes(rng.randint(0, 40)).hex(),
        "int8[]": lambda: (
            "{" + ",".join(rng.choice(["NULL", str(rng.randint(-9, 9))]) for _ in range(rng.randint(0, 4))) + "}"
        ),
        "text": lambda: "".join(rng.choice("abc ü😀\n") for _ in range(rng.randint(0, 20))),
    }
    for sql_type, generate in generators.items():
        literals = [None if rng.random() < 0.1 else generate() for _ in range(300)]
        mapping, logged, chunk, _ = table.values(sql_type, literals)
        assert decode_log(mapping, logged).equals(mapping.decode_chunk(chunk, "fail")), sql_type


def test_text_arrays_survive_every_quoting(table: Table) -> None:
    rng = random.Random(11)
    alphabet = ["a", ",", '"', "\\", "{", "}", " ", "NULL", "null", "", "ü", "\n", ";", "[", "=", "1"]
    arrays = [
        [
            None if rng.random() < 0.1 else "".join(rng.choices(alphabet, k=rng.randint(0, 4)))
            for _ in range(rng.randint(0, 5))
        ]
        for _ in range(500)
    ]
    literals = [
        present(table.connection.execute("SELECT (%s::text[])::text", (value,)).fetchone())[0] for value in arrays
    ]
    mapping, logged, chunk, _ = table.values("text[]", literals)
    assert decode_log(mapping, logged).to_pylist() == arrays
    assert mapping.decode_chunk(chunk, "fail").to_pylist() == arrays


def test_numeric_modifiers_are_unpacked() -> None:
    assert numeric_shape((12 << 16 | 2) + 4) == (12, 2)
    assert numeric_shape((3 << 16 | (-2 & 0x7FF)) + 4) == (3, -2)
    assert numeric_shape((1000 << 16 | 1000) + 4) == (1000, 1000)


def test_numeric_with_unusual_scales_keeps_its_digits(table: Table) -> None:
    mapping, logged, _, _ = table.values("numeric(3,-2)", ["99900", "-100"])
    assert mapping.arrow == pa.decimal128(5, 0)
    assert decode_log(mapping, logged).to_pylist() == [Decimal(99900), Decimal(-100)]
    mapping, logged, _, _ = table.values("numeric(3,5)", ["0.00999"])
    assert mapping.arrow == pa.decimal128(5, 5)
    assert decode_log(mapping, logged).to_pylist() == [Decimal("0.00999")]


@pytest.mark.parametrize("days", [-2_451_545, -719_529, -719_528, -1, 0, 11_016, 2_145_031_948])
def test_days_and_dates_are_inverse(days: int) -> None:
    assert days_from_civil(*civil_from_days(days)) == days


def test_days_agree_with_pythons_calendar() -> None:
    for days in range(-719_162, 2_932_896, 997):
        day = date(1970, 1, 1) + timedelta(days)
        assert civil_from_days(days) == (day.year, day.month, day.day)


@pytest.mark.parametrize("kind", ["2024-02-30", "x", "2024-01-01x", ""])
def test_bytes_that_are_no_date_are_refused(kind: str) -> None:
    with pytest.raises(ValueError):
        v.date(pa.array([kind.encode()], pa.binary()))


@pytest.mark.parametrize(
    ("decode", "wire"),
    [
        (v.boolean, b"x"),
        (v.boolean, b"tt"),
        (v.boolean_binary, b"\x02"),
        (v.hex_bytes, b"\\x0"),
        (v.hex_bytes, b"\\y00"),
        (v.hex_bytes, b"\\xgg"),
        (v.hex_bytes, b""),
        (v.parsed(pa.int32()), b"1x"),
        (v.decimal(pa.decimal128(5, 2)), b"NaN1"),
        (v.integer_binary(">i4", pa.int32()), b"123"),
        (v.time, b"25:00:00"),
        (v.time_binary, (2**62).to_bytes(8, "big")),
        (v.timestamp(pa.timestamp("us")), b"2024"),
        (v.array(pa.int32(), v.parsed(pa.int32()), ","), b"1,2"),
        (v.array(pa.string(), v.text, ","), b'{"a"x}'),
        (v.array(pa.string(), v.text, ","), b'{"a}'),
    ],
)
def test_bytes_that_are_no_value_are_refused(decode: v.Decoder, wire: bytes) -> None:
    with pytest.raises(ValueError):
        decode(pa.array([wire], pa.binary()))


def test_no_number_is_no_number(table: Table) -> None:
    for sql_type in ("float4", "float8"):
        mapping, logged, chunk, _ = table.values(sql_type, ["NaN", "1"])
        for decoded in (decode_log(mapping, logged), mapping.decode_chunk(chunk, "fail")):
            assert math.isnan(decoded[0].as_py())


def test_text_that_is_not_utf8_cannot_be_held() -> None:
    decoded, unheld = v.text(pa.array([b"fine", None, b"\xff"], pa.binary()))
    assert decoded.to_pylist() == ["fine", None, None]
    assert unheld == 1
