"""A table's checksums: what the server computes is the canonical form of what a snapshot reads."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from replicator.model.errors import TableError, TransientError, UnsupportedTypeError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.canonical import digest_of, key_texts, row_texts
from replicator.plugins.kit.reads import joined
from replicator.plugins.source import Seen
from replicator.plugins.verification import IDS_MAX, Below, Checksum, Ids, VerifiedState
from replicator_source_postgresql.source import PostgresqlSource
from replicator_source_postgresql.values import key_text
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testing.waiting import wait_until

T = TableId("public", "t")
MakeSource = Callable[..., PostgresqlSource]
EXTENSIONS = ("citext", "hstore", "ltree")
TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'so so', 'Glück')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN couple AS pair",
    "CREATE DOMAIN posint AS int CHECK (value > 0)",
    "CREATE DOMAIN price AS numeric(10,2)",
    "CREATE DOMAIN posints AS int[]",
    "CREATE DOMAIN moods AS mood",
    "CREATE DOMAIN posposint AS posint CHECK (value < 1000000)",
    "CREATE DOMAIN phrase AS text",
    "CREATE DOMAIN raw AS bytea",
    "CREATE DOMAIN flag AS bool",
    "CREATE DOMAIN day AS date",
    "CREATE DOMAIN moment AS timestamptz",
    "CREATE DOMAIN hour AS time",
    "CREATE DOMAIN ratio AS float8",
)
MOMENTS = (
    "1970-01-01", "1969-12-31 23:59:59.999999", "1969-12-31 23:59:59.9", "2024-02-29 12:34:56.000001", "2024-02-29 23:59:59.5",
    "0001-01-01", "0001-12-31 23:59:59.999999 BC", "4713-01-01 00:00:00 BC", "9999-12-31 23:59:59.999999", "12345-06-07 08:09:10.11",
    "294246-12-31 23:59:59.999999", "1900-01-01", "1899-12-31 23:59:59.999999", "2041-01-01", "2041-01-01 00:00:00.000001",
    "2040-12-31 23:59:59.999999", "2000-01-01", "1600-02-29 00:00:00.1", "2024-10-27 00:30:00.123", "2024-10-27 01:30:00.12",
)  # fmt: skip
FLOATS = (
    "0", "-0", "0.1", "-0.1", "0.30000000000000004", "1e22", "1e23", "-1e23", "5e-324", "-5e-324", "2.2250738585072014e-308",
    "2.225073858507201e-308", "1.7976931348623157e308", "NaN", "Infinity", "-Infinity", "1500", "100", "1", "10", "999999999999999",
    "1000000000000000", "1234567890123456", "9007199254740991", "9007199254740992", "9007199254740993", "9007199254740996",
    "123456.789", "0.001", "0.0001", "0.00001", "0.000001", "1.5e-7", "123e-5", "7e22", "6.002261815e18", "3.4182e21",
)  # fmt: skip
TEXTS = (
    "", " ", "a", "ab  ", "Grüße \t\r\n'\"\\ 😀", ",", "1:a,", "NULL", "é" * 127, "é" * 128, "x" * 255, "x" * 256, "x" * 257,
    "x" * 255 + "é", "x" * 254 + "é", "ü" * 300, "\x01\x7f", "A", "a\u0308", "\u00e4",
)  # fmt: skip
VALUES: Mapping[str, Sequence[str]] = {
    "bool": ("true", "false"),
    "flag": ("true", "false"),
    "int2": ("-32768", "32767", "0", "-1"),
    "int4": ("-2147483648", "2147483647", "0"),
    "int8": ("-9223372036854775808", "9223372036854775807", "0"),
    "oid": ("0", "4294967295"),
    "posposint": ("1", "999999"),
    "float8": FLOATS,
    "ratio": FLOATS,
    "float4": (
        "0", "-0", "0.1", "1e-45", "-1e-45", "3.4028235e38", "NaN", "Infinity", "-Infinity", "16777216", "1e10", "1e15", "1e16",
        "1.17549435e-38", "0.3", "9.9999998e22",
    ),
    "numeric(12,2)": ("0", "-0.00", "-9999999999.99", "9999999999.99", "0.01", "-0.01", "1500"),
    "price": ("0", "1.5"),
    "numeric(38,0)": ("9" * 38, "-" + "9" * 38, "0"),
    "numeric(38,38)": ("0." + "9" * 38, "-0." + "0" * 37 + "1"),
    "numeric(39,5)": ("-" + "9" * 34 + ".99999",),
    "numeric(65,30)": ("9" * 35 + "." + "9" * 30, "-0." + "0" * 29 + "1", "1"),
    "numeric(76,1)": ("9" * 75 + ".9", "0"),
    "numeric(77,1)": ("9" * 76 + ".9",),
    "numeric": ("1.50", "1.5", "NaN", "1e-20", "-0", "1e400", "-1.000"),
    "date": ("0001-01-01", "0001-12-31 BC", "4713-01-01 BC", "2024-02-29", "1900-02-28", "9999-12-31", "12345-06-07",
             "5874897-12-31", "1970-01-01"),
    "day": ("1969-12-31",),
    "time": ("00:00", "23:59:59.999999", "12:00:00.5", "12:00:00.000001", "01:02:03.123", "23:59:59.1"),
    "hour": ("12:34:56.789",),
    "time(0)": ("12:00:01", "00:00"),
    **{f"timestamp({digits})": MOMENTS for digits in range(7)},
    "timestamp": MOMENTS,
    "timestamptz": (*MOMENTS, "2024-06-30 12:00:00.25-07", "0044-03-15 00:00:00+05:30 BC"),
    "moment": ("2024-06-30 12:00:00.25-07",),
    "timetz": ("24:00:00+05", "01:02:03.4-01:30"),
    "interval": ("1 year -2 days 03:04:05.6", "0", "-1 mon"),
    "text": (*TEXTS, "x" * 3_000_000, "😀" * 1_000_000),
    "phrase": TEXTS,
    "varchar(400)": TEXTS,
    "char(5)": ("ab", "", "abcde", "é😀"),
    "char(300)": ("ab", ""),
    "name": ("some name", ""),
    '"char"': ("x", "", "\\377"),
    "bytea": (r"\x", r"\x00", r"\x00ff5c", r"\x" + "0a" * 256, r"\x" + "0a" * 257, r"\x" + "00" * 3_000_000),
    "raw": (r"\x00ff",),
    "uuid": ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",),
    "json": ('{"b":1,  "a":[1, null]}', "null", '""'),
    "jsonb": ('{"b":1,"a":[1.10,null]}', "null", '{"k": "' + "x" * 300 + '"}'),
    "xml": ("<a>b</a>",),
    "bit(3)": ("101",),
    "varbit": ("", "0101010"),
    "inet": ("10.0.0.1", "10.0.0.1/8", "::1"),
    "cidr": ("10.0.0.0/8",),
    "macaddr": ("08:00:2b:01:02:03",),
    "macaddr8": ("08:00:2b:01:02:03:04:05",),
    "money": ("-1234.5",),
    "tsvector": ("'a':1 'b':2",),
    "tsquery": ("a & b",),
    "int4range": ("[1,5]", "empty"),
    "tstzrange": ("[2024-01-01 00:00+00,)",),
    "point": ("(1,2.5)",),
    "box": ("(1,1),(0,0)",),
    "polygon": ("((0,0),(1,1),(1,0))",),
    "pg_lsn": ("16/B374D848",),
    "int2vector": ("1 2 3",),
    "mood": ("so so", "Glück"),
    "moods": ("sad",),
    "pair": ('(1,"x y")', "(,)"),
    "citext": ("AbC", "x" * 300),
    "hstore": ('"a"=>"1"',),
    "ltree": ("Top.Science",),
    "refcursor": ("c1",),
    "int4[]": ("{}", "{1,NULL,-3}", "{7}", "{NULL}"),
    "text[]": ('{a,"b c","",NULL,"NULL","q\\"\\\\{,}",null}', "{}", '{"ü\n"}', "{" + "x" * 257 + "," + "y" * 256 + "}"),
    "char(3)[]": ("{a,NULL}",),
    "bool[]": ("{t,f,NULL}",),
    "bytea[]": (r'{"\\x00","\\x"}',),
    "float8[]": ("{" + ",".join(FLOATS) + ",NULL}",),
    "float4[]": ("{0.1,-0,NaN,NULL}",),
    "numeric(10,2)[]": ("{1,2.5,-0}",),
    "timestamp[]": ("{" + ",".join(f'"{moment}"' for moment in MOMENTS) + "}",),
    "timestamptz[]": ('{"2024-01-01 00:00:00+00",NULL}',),
    "date[]": ("{2024-01-01,0044-03-15 BC}",),
    "time[]": ("{12:00:00.5}",),
    "box[]": ("{(1,1),(0,0);(2,2),(0,0)}",),
    "mood[]": ('{sad,"so so"}',),
    "moods[]": ("{sad}",),
    "pair[]": ('{"(1,a)",NULL,"(,)","(2,\\"x, y\\")"}', "{}"),
    "couple[]": ('{"(1,a)",NULL}',),
    "posint[]": ("{1,2}",),
    "posints": ("{3,4}", "{}"),
    "uuid[]": ("{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",),
    "jsonb[]": ('{"{\\"a\\": 1}"}',),
}  # fmt: skip
UNHELD: Mapping[str, Sequence[str]] = {
    "numeric(12,2)": ("NaN",),
    "price": ("NaN",),
    "date": ("infinity", "-infinity"),
    "day": ("infinity",),
    "timestamp": ("infinity", "-infinity", "294276-12-31 23:59:59.999999"),
    "timestamptz": ("infinity", "-infinity", "294276-12-31 23:59:59.999999+00"),
    "time": ("24:00:00",),
    "int4[]": ("{{1,2},{3,4}}", "[0:1]={1,2}"),
    "text[]": ('{{"a b","c"}}', '[2:2]={"x y"}'),
    "posints": ("{{1}}",),
    "date[]": ("{infinity,2024-01-01}",),
    "numeric(10,2)[]": ("{1,NaN}",),
    "time[]": ("{24:00}",),
}


def schema_of(source: PostgresqlSource, table: TableId = T) -> TableSchema:
    return source.describe([table])[table].schema


def read(source: PostgresqlSource, schema: TableSchema) -> pa.RecordBatch:
    """The table's rows as a snapshot decodes them, with the source's column names."""
    with source.read_whole(schema) as whole:
        batches = list(whole.batches)
        assert whole.identity() is not None
    rows = joined(batches, schema)
    return pa.RecordBatch.from_arrays(rows.columns, names=[column.name for column in schema.columns])


Row = tuple[str, str, str]
"""Id, hash, row text."""


def expected(rows: pa.RecordBatch, schema: TableSchema, names: Sequence[str]) -> list[Row]:
    """What Python makes of the rows."""
    texts = row_texts(rows.select(list(names)))
    ids = key_texts(rows.select(list(schema.key))) if schema.key else texts
    return [(digest_of(i), digest_of(t), t) for i, t in zip(ids, texts, strict=True)]


def checksum_of(hashes: Sequence[str]) -> Checksum:
    high, low = (sum(int(h[part], 16) for h in hashes) % 2**64 for part in (slice(16), slice(16, 32)))
    return Checksum(rows=len(hashes), high=high, low=low)


def verify(source: PostgresqlSource, table: TableId = T, columns: Sequence[str] | None = None) -> list[Row]:
    """Compare everything that a state says with what a snapshot reads."""
    schema = schema_of(source, table)
    names = [c.name for c in schema.columns if columns is None or c.name in columns]
    batch = read(source, schema)
    rows = expected(batch, schema, names)
    with source.open_state(schema, names) as state:
        found = state.rows({""}).to_pydict()
        different = Counter(row[:2] for row in rows) - Counter(zip(found["id"], found["hash"], strict=True))
        # First what is wrong, if something is.
        chosen = [n for n, row in enumerate(rows) if row[:2] in different] or range(len(rows))
        compare_texts(state, batch.take(pa.array(chosen[:1000])), schema, names)
        assert not different
        assert len(found["id"]) == len(rows)
        for digits in range(5):
            groups: dict[str, list[str]] = {}
            for id_, hash_, _ in rows:
                groups.setdefault(id_[:digits], []).append(hash_)
            assert state.checksums(digits) == {group: checksum_of(hashes) for group, hashes in groups.items()}
        compare_among(state, rows)
        some = {id_[:1] for id_, _, _ in rows[: len(rows) // 2]}
        few = state.rows(some)
        assert Counter(few["hash"].to_pylist()) == Counter(h for i, h, _ in rows if i[:1] in some)
        assert state.identity() == source.describe([table])[table].identity
    return rows


def compare_among(state: VerifiedState, rows: Sequence[Row]) -> None:
    """Compare what a state says of some rows: of a sample, and of rows by their ids, one of which does not exist."""
    ids = sorted({id_ for id_, _, _ in rows})
    for among in (Below("5" + "0" * 31), Ids(frozenset({*ids[:1000:2], "0" * 32})), Ids(frozenset())):
        for digits in (0, 4):
            groups: dict[str, list[str]] = {}
            for id_, hash_, _ in rows:
                if id_ in among:
                    groups.setdefault(id_[:digits], []).append(hash_)
            found = {group: sums for group, sums in state.checksums(digits, among).items() if sums.rows}
            assert found == {group: checksum_of(hashes) for group, hashes in groups.items()}


def compare_texts(state: VerifiedState, batch: pa.RecordBatch, schema: TableSchema, names: Sequence[str]) -> None:
    ids = [id_ for id_, _, _ in expected(batch, schema, names)]
    texts = state.texts(set(ids))
    assert texts.keys() == set(ids)
    wrong = []
    for name in names:
        wanted = (key_texts if name in schema.key else row_texts)(batch.select([name]))
        for id_, want in zip(ids, wanted, strict=True):
            if (texts[id_][name] or "") + "," != want:
                wrong.append((name, (texts[id_][name] or "")[:80], want[:80]))
    assert wrong == []


def fill(database: ScratchDatabase, values: Mapping[str, Sequence[str | None]]) -> None:
    """Make a table with a column per type, and a row per value of the longest list."""
    names = ", ".join(f"c{n} {type_}" for n, type_ in enumerate(values))
    database.execute(f"CREATE TABLE t (n serial PRIMARY KEY, {names})")
    count = max(map(len, values.values())) + 1
    target = sql.SQL(", ").join(sql.SQL("%s::text::" + type_.replace("%", "%%")) for type_ in values)
    insert = sql.SQL("INSERT INTO t VALUES (DEFAULT, {})").format(target)
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(insert, [[v[i] if i < len(v) else None for v in values.values()] for i in range(count)])


@pytest.fixture
def types(any_database: ScratchDatabase) -> ScratchDatabase:
    any_database.execute(*TYPES)
    return any_database


def types_of(database: ScratchDatabase) -> Mapping[str, Sequence[str]]:
    """`VALUES` of the types that the server was built with."""
    there = {name for (name,) in database.execute("SELECT name FROM pg_available_extensions")} & set(EXTENSIONS)
    for extension in there:
        database.execute(f"CREATE EXTENSION {extension}")
    missing = set(EXTENSIONS) - there
    try:
        database.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        missing.add("xml")
    return {type_: values for type_, values in VALUES.items() if type_ not in missing}


def test_every_type_has_its_canonical_form(types: ScratchDatabase, source: PostgresqlSource) -> None:
    fill(types, types_of(types))
    verify(source)


@pytest.mark.matrix
def test_every_type_that_can_be_a_key_has_its_key_text(types: ScratchDatabase, source: PostgresqlSource) -> None:
    for number, (type_, values) in enumerate(types_of(types).items()):
        name = TableId("public", f"k{number}")
        if "float" in type_ or type_ == "ratio" or "[]" in type_ or type_ == "posints":
            continue
        types.execute(f"CREATE TABLE {name.name} (k {type_} NOT NULL)")
        try:
            types.execute(f"CREATE UNIQUE INDEX i{number} ON {name.name} (k)")
        except psycopg.errors.UndefinedObject:
            continue
        types.execute(f"ALTER TABLE {name.name} REPLICA IDENTITY USING INDEX i{number}")
        with types.connect() as connection, connection.cursor() as cursor:
            insert = f"INSERT INTO {name.name} VALUES (%s::text::{type_}) ON CONFLICT DO NOTHING"
            cursor.executemany(insert.encode(), [[value] for value in values if len(value) <= 2000])
        assert schema_of(source, name).key == ("k",)
        assert len(verify(source, name)) >= 1


@pytest.mark.matrix
def test_random_floats_have_their_shortest_digits(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    """Python's `repr` is the other side: bit patterns, decimals, integers beyond 2^53, all powers of two."""
    rng = random.Random(17)
    bits = (struct.unpack("<d", rng.randbytes(8))[0] for _ in range(50_000))
    floats = [
        *bits,
        *(float(f"{rng.randint(1, 10 ** rng.randint(1, 17))}e{rng.randint(-20, 45)}") for _ in range(70_000)),
        *(round(rng.uniform(-1e6, 1e6), rng.randint(0, 6)) for _ in range(30_000)),
        *(sign * 2.0**power for power in range(-1074, 1024) for sign in (1, -1)),
        # The middles between two floats, which read back as the even one.
        *(float((2 * rng.randrange(2**52, 2**53) + 1) * 2 ** rng.randint(0, 60)) for _ in range(10_000)),
        *(float(5**k * odd * 2**more) for k in range(1, 24) for odd in (1, 3, 7, 11) for more in range(90)),
    ]
    any_database.execute("CREATE TABLE t (n int PRIMARY KEY, v float8, w float4)")
    with (
        any_database.connect() as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY t FROM STDIN (FORMAT binary)") as copy,
    ):
        copy.set_types(["int4", "float8", "float4"])
        for number, value in enumerate(floats):
            copy.write_row((number, value, struct.unpack("<f", rng.randbytes(4))[0]))
    rows = verify(source)
    assert len(rows) == len(floats) >= 150_000


@pytest.mark.matrix
def test_random_decimals_and_moments(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    rng = random.Random(18)
    any_database.execute(
        "CREATE TABLE t (n int PRIMARY KEY, a numeric(38,10), b numeric(65,30), c numeric, d timestamp, e timestamptz, f date, g time)"
    )
    with (
        any_database.connect(options="-c timezone=UTC") as connection,
        connection.cursor().copy("COPY t FROM STDIN") as copy,
    ):
        for number in range(30_000):
            a, b = (f"{rng.randint(-(10 ** rng.randint(1, n)), 10**n)}.{rng.randint(0, 10**9)}" for n in (28, 35))
            us = rng.randint(-210_000_000_000_000_000, 9_223_371_000_000_000_000 // rng.choice([1, 10, 1000]))
            moment = f"{_text(us)}"
            time = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}.{rng.randrange(10**6):06d}"
            copy.write_row(
                (number, a, b, a, moment, moment, _text(us).split(" ")[0] + (" BC" if "BC" in moment else ""), time)
            )
    assert len(verify(source)) == 30_000


def _text(us: int) -> str:
    (text,) = key_text(pa.array([us], pa.int64()).view(pa.timestamp("us")))
    return text


QUESTIONS: Final[Sequence[Callable[[VerifiedState], object]]] = (
    lambda state: state.checksums(0),
    lambda state: state.checksums(2),
    lambda state: state.rows(set("0123456789abcdef")),
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sql_type", UNHELD)
def test_a_value_that_cannot_be_held_is_refused_or_null_as_in_a_snapshot(
    types: ScratchDatabase, make_source: MakeSource, sql_type: str
) -> None:
    fill(types, {sql_type: [VALUES[sql_type][0], *UNHELD[sql_type]]})
    verify(make_source(types, unrepresentable="null"))
    source = make_source(types)
    schema = schema_of(source)
    for ask in QUESTIONS:
        with (
            pytest.raises(UnsupportedTypeError, match="Column c0") as caught,
            source.open_state(schema, ["n", "c0"]) as state,
        ):
            ask(state)
        assert (caught.value.code, caught.value.table) == ("unrepresentable_value", "public.t")
        with pytest.raises(UnsupportedTypeError) as of_snapshot:
            read(source, schema)
        assert caught.value.message == of_snapshot.value.message


def test_a_value_that_cannot_be_held_is_no_error_of_rows_that_are_not_asked_for(
    any_database: ScratchDatabase, make_source: MakeSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (n int PRIMARY KEY, v date)", "INSERT INTO t VALUES (1, '2024-01-01'), (2, 'infinity')"
    )
    source = make_source(any_database)
    good, bad = (Ids(frozenset({digest_of(f"{n},")})) for n in (1, 2))
    with source.open_state(schema_of(source), ["n", "v"]) as state:
        assert sum(sums.rows for sums in state.checksums(4, good).values()) == 1
        assert state.rows(good.ids).num_rows == 1
        with pytest.raises(UnsupportedTypeError, match="Column v"):
            state.checksums(4, bad)


def test_as_many_ids_as_may_be_asked_for(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute(
        "CREATE TABLE t (n int PRIMARY KEY)", f"INSERT INTO t SELECT generate_series(1, {IDS_MAX + 5000})"
    )
    ids = Ids(frozenset(digest_of(f"{n},") for n in range(1, IDS_MAX + 1)))
    with source.open_state(schema_of(source), ["n"]) as state:
        assert state.checksums(0, ids)[""].rows == IDS_MAX


def test_a_key_that_cannot_be_held_is_refused_always(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    any_database.execute("CREATE TABLE t (k date PRIMARY KEY)", "INSERT INTO t VALUES ('infinity'), ('2024-01-01')")
    source = make_source(any_database, unrepresentable="null")
    for ask in QUESTIONS:
        with (
            pytest.raises(UnsupportedTypeError, match="Column k"),
            source.open_state(schema_of(source), ["k"]) as state,
        ):
            ask(state)


# -- tables


def test_a_table_without_a_key_is_a_multiset(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute(
        "CREATE TABLE t (a int, b text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT i % 7, CASE WHEN i % 2 = 0 THEN 'x' END FROM generate_series(1, 1000) i",
    )
    rows = verify(source)
    assert len(rows) == 1000
    assert len({row[0] for row in rows}) == 14
    assert all(id_ == hash_ for id_, hash_, _ in rows)


def test_composite_keys_collations_and_odd_names(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute(
        """CREATE TABLE "o'd""d %s" ("K 1" text COLLATE "C","""
        """ "s" text COLLATE "POSIX", "id" int, "x0" bytea, "c0" text COLLATE "C", "%%" text,"""
        """ "g" int GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY (id, "K 1", "x0", "s"))""",
        """INSERT INTO "o'd""d %s" SELECT chr(200 + i) || repeat('k', i * 20), 'é ', i, decode(repeat('00ff', i), 'hex'), 'c', 'p%'"""
        """ FROM generate_series(1, 40) i""",
    )
    table = TableId("public", """o'd"d %s""")
    assert schema_of(source, table).key == ("id", "K 1", "x0", "s")
    assert len(verify(source, table)) == 40
    assert len(verify(source, table, ["id", "K 1", "x0", "s", "%%"])) == 40


@pytest.mark.matrix
def test_many_columns(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    kinds = ["int", "text", "float8", "numeric(10,2)", "jsonb"]
    columns = ", ".join(f"c{n} {kinds[n % len(kinds)]}" for n in range(1000))
    any_database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
        f"INSERT INTO t SELECT 1, {', '.join(str(n % 10) if n % len(kinds) != 4 else repr('[1]') for n in range(1000))}",
        "INSERT INTO t (id, c3) VALUES (2, 1.5)",
    )
    assert len(verify(source)) == 2


def test_partitions_are_read_and_children_are_not(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t2 (v int, id int NOT NULL)",
        "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t SELECT i, i FROM generate_series(0, 19) i",
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE c (PRIMARY KEY (id)) INHERITS (p)",
        "INSERT INTO p VALUES (1)",
        "INSERT INTO c VALUES (2)",
    )
    assert len(verify(source)) == 20
    assert len(verify(source, TableId("public", "p"))) == 1


def test_the_row_filter_and_column_list_of_a_publication_hold(
    any_database: ScratchDatabase, make_source: MakeSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, secret text, v text)",
        "INSERT INTO t SELECT i, 's', 'v' FROM generate_series(1, 10) i",
        "CREATE PUBLICATION mine FOR TABLE t (id, v) WHERE (id > 5) WITH (publish_via_partition_root = true)",
    )
    assert len(verify(make_source(any_database, publication="mine"))) == 5


def test_an_empty_table(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with source.open_state(schema_of(source), ["id"]) as state:
        assert state.checksums(0).get("", Checksum(0, 0, 0)) == Checksum(0, 0, 0)
        assert state.checksums(2) == {}
        assert state.rows({"0"}).num_rows == 0
        assert state.texts({"0" * 32}) == {}


def test_settings_of_the_database_change_nothing(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    name = any_database.name
    any_database.execute(
        *(
            f'ALTER DATABASE "{name}" SET {setting}'
            for setting in (
                "timezone = 'America/New_York'", "datestyle = 'SQL, DMY'", "extra_float_digits = 0", "bytea_output = 'escape'",
                "intervalstyle = 'postgres_verbose'", "search_path = 'public'", "default_transaction_isolation = 'serializable'",
            )
        ),
        "CREATE FUNCTION public.octet_length(text) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'",
    )  # fmt: skip
    some = ("float8", "timestamptz", "timestamp", "date", "interval", "bytea", "float8[]", "timestamptz[]", "time")
    fill(any_database, {type_: VALUES[type_] for type_ in some})
    verify(source)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP", "SQL_ASCII"])
def test_databases_in_other_encodings(any_postgres: PostgresServer, make_source: MakeSource, encoding: str) -> None:
    with any_postgres.database(options=f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0") as database:
        letter = "あ" if encoding == "EUC_JP" else "é"
        texts = [*(t for t in TEXTS if t.isascii()), letter, letter * 128, letter * 129, "x" * 255 + letter]
        fill(
            database,
            {"text": texts, "char(300)": texts[:-1], "jsonb": [f'"{letter}"'], "text[]": [f"{{{letter * 200},a}}"]},
        )
        verify(make_source(database))
        database.execute("CREATE TABLE k (k text PRIMARY KEY)")
        with database.connect(client_encoding="UTF8") as connection:
            connection.execute("INSERT INTO k VALUES (%s), ('a')", (letter * 200,))
        verify(make_source(database), TableId("public", "k"))


def test_bytes_that_are_no_text_are_refused_or_null(any_postgres: PostgresServer, make_source: MakeSource) -> None:
    bad = ["ff", "c0af", "e0809f", "eda080", "f5808080", "f4908080", "80", "c3", "e282", "61ff62"]
    good = ["61", "c3a9", "e282ac", "f09f9880", "f48fbfbf", "ed9fbf", "c280", "efbfbf", "e0a080", "7f"]
    with any_postgres.database(options="ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0") as database:
        database.execute(
            "CREATE TABLE t (n serial PRIMARY KEY, v text)",
            *(f"INSERT INTO t (v) VALUES (convert_from('\\x{data}', 'SQL_ASCII'))" for data in good + bad),
        )
        rows = verify(make_source(database, unrepresentable="null"))
        assert sum(text.endswith(",,") for _, _, text in rows) == len(bad)
        source = make_source(database)
        message = f"Column v: {len(bad)} of {len(good + bad)} values"
        with (
            pytest.raises(UnsupportedTypeError, match=message),
            source.open_state(schema_of(source), ["n", "v"]) as state,
        ):
            state.checksums(0)


# -- one state


def test_everything_is_answered_from_one_state(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT i, i FROM generate_series(1, 100) i"
    )
    schema = schema_of(source)
    rows = expected(read(source, schema), schema, ["id", "v"])
    with any_database.connect(autocommit=False) as open_one, source.open_state(schema, ["id", "v"]) as state:
        ((late,),) = any_database.execute("INSERT INTO t VALUES (101, 1) RETURNING pg_current_xact_id()::text")
        any_database.execute("UPDATE t SET v = -v WHERE id < 50", "DELETE FROM t WHERE id > 90")
        assert state.checksums(0)[""] == checksum_of([hash_ for _, hash_, _ in rows])
        assert sorted(state.rows({""})["hash"].to_pylist()) == sorted(hash_ for _, hash_, _ in rows)
        assert len(state.texts({row[0] for row in rows})) == 100
        assert state.visibility.classify(pa.array([late])).to_pylist() == [int(Seen.UNSEEN)]
        assert state.identity() == source.describe([T])[T].identity
        open_one.rollback()
    verify(source)


def test_the_visibility_is_that_of_the_state(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    schema = schema_of(source)
    with any_database.connect(autocommit=False) as writer:
        running = writer.execute("INSERT INTO t VALUES (1) RETURNING pg_current_xact_id()::text").fetchone()
        ((ended,),) = any_database.execute("INSERT INTO t VALUES (2) RETURNING pg_current_xact_id()::text")
        with source.open_state(schema, ["id"]) as state:
            writer.commit()
            assert running is not None
            seen = state.visibility.classify(pa.array([running[0], ended])).to_pylist()
            assert seen == [int(Seen.UNSEEN), int(Seen.SEEN)]
            assert state.checksums(0)[""].rows == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE t ALTER COLUMN v TYPE bigint",
        "TRUNCATE t",
        "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t ADD COLUMN w int DEFAULT random()",
    ],
)
def test_a_state_that_waited_for_a_rewrite_is_void(
    any_database: ScratchDatabase, source: PostgresqlSource, ddl: str
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT i, i FROM generate_series(1, 500) i"
    )
    schema = schema_of(source)

    def ask() -> object:
        try:
            with source.open_state(schema, ["id", "v"]) as state:
                state.checksums(0)
                return state.identity()
        except TableError as error:
            return error

    with any_database.connect(autocommit=False) as writer, ThreadPoolExecutor() as pool:
        writer.execute(ddl.encode())
        outcome = pool.submit(ask)
        wait_until(lambda: waiting(any_database), "the state waits")
        writer.commit()
        result = outcome.result()
    assert result is None or isinstance(result, TableError)


def waiting(database: ScratchDatabase) -> bool:
    return database.execute("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass") != [(0,)]


def test_a_change_that_needs_no_lock_of_ours_makes_a_state_void(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE TABLE t (id int PRIMARY KEY, v mood)",
        "INSERT INTO t VALUES (1, 'sad')",
    )
    with source.open_state(schema_of(source), ["id", "v"]) as state:
        state.checksums(0)
        assert state.identity() is not None
        any_database.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
        assert state.identity() is None
    verify(source)


def test_a_state_gives_way_to_waiting_ddl(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    """Also while nothing runs in it, and the server would not hear that a statement is to end."""
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source = make_source(any_database, yield_after="20ms")

    def ask() -> None:
        with source.open_state(schema_of(source), ["id"]) as state:
            state.checksums(0)
            any_database.execute("ALTER TABLE t ADD COLUMN v int")
            state.checksums(0)

    with pytest.raises(TransientError) as caught:
        ask()
    assert (caught.value.code, caught.value.table) == ("gave_way", "public.t")
    verify(source)


def test_a_state_waits_for_a_lock_no_longer_than_set(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = make_source(any_database, lock_timeout="20ms")
    schema = schema_of(source)
    with any_database.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE t")
        with pytest.raises(TransientError) as caught, source.open_state(schema, ["id"]):
            pass
        assert (caught.value.code, caught.value.table) == ("lock_timeout", "public.t")


def test_a_state_writes_nothing_and_a_failed_one_leaves_nothing_open(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    schema = schema_of(source)
    with pytest.raises(KeyError), source.open_state(schema, ["id"]):
        raise KeyError
    assert any_database.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
    ) == [(0,)]
    verify(source)


def test_row_security_fails_a_state(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    role = f"r_{any_database.name}"
    any_database.execute(
        f"CREATE ROLE {role} LOGIN",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON t USING (id = 1)",
        f"GRANT SELECT ON t TO {role}",
    )
    try:
        source = make_source(any_database, user=role)
        with (
            pytest.raises(TableError, match="row-level security"),
            source.open_state(schema_of(source), ["id"]) as state,
        ):
            state.checksums(0)
        source.close()
    finally:
        any_database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
