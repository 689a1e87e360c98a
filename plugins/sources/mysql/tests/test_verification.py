"""What the server's SQL computes of a table equals what the canonical form says of the rows that a snapshot has."""

from __future__ import annotations

import math
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.errors import SchemaConflictError, TableError, UnsupportedTypeError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.canonical import digest_of, key_texts, row_texts, value_text
from replicator.plugins.source import ChunkRequest
from replicator.plugins.verification import IDS_MAX, Below, Checksum, Ids, SourceState
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer

Make = Callable[..., MysqlSource]

NUMBERS: dict[str, Sequence[Any]] = {
    **{
        f"{name}{sign}": [0, 1, 100, *((2**bits - 1,) if sign else (2 ** (bits - 1) - 1, -(2 ** (bits - 1)), -1))]
        for name, bits in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64))
        for sign in ("", " unsigned")
    },
    "tinyint(1)": [0, 1, -1, 100],
    "int(6) zerofill": [42, 0, 2**32 - 1],
    "bigint(20) zerofill": [42, 2**64 - 1],
    "decimal(12,2)": ["-1234567890.12", "0.00", "9999999999.99", "-0.01", "-0.00", "1.1"],
    "decimal(12,2) zerofill": ["1.10", "0", "9999999999.99"],
    "decimal(65,30)": ["-" + "9" * 35 + "." + "9" * 30, "0." + "0" * 29 + "1", "-0." + "0" * 29 + "1"],
    "decimal(65,0)": ["9" * 65, "-" + "9" * 65, "0"],
    "decimal(38,0)": ["9" * 38, "-1"],
    "decimal(5,5)": ["0.99999", "-0.00001", "0"],
    "decimal(1,0)": ["-9", "9"],
    "float": [1.1, 0.1, 16777217.0, -3.4e38, 1e-30, 0.0, "-0e0", 1e-45, 1.17549435e-38, 1234567, 0.3],
    "double": [
        1.1, 1e308, -2.2250738585072014e-308, 0.1 + 0.2, 5e-324, -5e-324, 1e22, 1e23, 1e15, 1e16, 1e14, 99999999999999.98,
        123456789012345680000.0, 1e-4, 1e-5, 9.999999999999999e-5, 0.00012345, 1500.0, "-0e0", 0, 1.7976931348623157e308, 0.5, -1.0,
        9007199254740993.0, 2.5e-10, -1e-7, 1e100, 100.0, 10.0, 1.0, 0.1, 0.01, 0.001, 999999999999999.9, 9.999999999999998,
    ],
    "bit(1)": ["b'0'", "b'1'"],
    "bit(10)": [0, 513, 1023],
    "bit(64)": [0, 2**63, 2**64 - 1],
    "year": [1901, 2155, 0, 2024],
}  # fmt: skip
TIMES: dict[str, Sequence[Any]] = {
    "date": ["1000-01-01", "9999-12-31", "1970-01-01", "1969-12-31", "2024-02-29", "2000-02-29", "1900-02-28", "0001-01-01", "2023-12-31",
             "2024-03-01", "0001-12-31", "1582-10-10", "0100-02-28", "0400-02-29"],
    **{f"time({d})": ["-838:59:59", "838:59:59", "00:00:00", "-00:00:01", "-00:00:00.25", "12:34:56.654321"] for d in range(7)},
    **{
        f"datetime({d})": ["1000-01-01 00:00:00", "9999-12-31 23:59:59", "1970-01-01 00:00:00", "1969-12-31 23:59:59.5",
                           "0001-01-01 00:00:01", "2024-02-29 02:30:00.123456", "2023-12-31 23:59:58.999999", "2038-01-19 03:14:08.000001"]
        for d in range(7)
    },
    **{
        f"timestamp({d})": ["1970-01-01 00:00:01", "2038-01-19 03:14:07", "2024-03-31 02:30:00", "2024-10-27 02:30:00.654321",
                            "1970-01-01 00:00:01.000001", "2024-01-31 01:02:03.04"]
        for d in range(7)
    },
}  # fmt: skip
TEXTS: dict[str, Sequence[Any]] = {
    "char(5)": ["", "b  ", "é", "𝄞ab"],
    "varchar(40)": ["", "trailing  ", "'\"\\\n\t\0,", "日本語", "NULL"],
    "varchar(64)": ["x" * 64, "𝄞" * 64],
    "varchar(65)": ["x" * 65, "𝄞" * 64, "𝄞" * 64 + "a", "𝄞" * 65],
    "varchar(300)": ["x" * 255, "x" * 256, "x" * 257, "é" * 128, "é" * 128 + "a"],
    **{f"varchar(300) character set {c}": ["aé", "x" * 257, "é" * 128, "é" * 129] for c in ("latin1", "utf8mb3", "ucs2", "utf16", "utf32")},
    "char(10) character set latin1": ["é€ü", ""],
    "char(10) character set ascii": ["az", ""],
    "varchar(10) character set cp1251": ["Привет"],
    "varchar(10) character set cp850": ["é"],
    "varchar(10) character set sjis": ["日本"],
    "varchar(10) character set gbk": ["日本"],
    "varchar(20) collate utf8mb4_bin": ["a", "A ", "é"],
    "varchar(20) collate utf8mb4_unicode_ci": ["a", "A ", "é"],
    "text": ["", "t" * 60_000, "é" * 129],
    "text character set latin1": ["é" * 1000],
    "tinytext": ["ß"],
    "longtext": ["l" * 5_000_000, "é"],
    "enum('a','b','it''s','é')": ["a", "it's", "é"],
    "enum('a','é') character set latin1": ["é"],
    "set('x','y','z')": ["", "x,z", "y"],
    "binary(6)": [b"a\0\0\0\0\0", b"\0" * 6, b"\xff" * 6],
    "varbinary(300)": [b"", b"\0\xff", b"x" * 300],
    "blob": [b"", b"\x00\x01\xfe\xff" * 1000],
    "longblob": [b"\xff" * 3_000_000],
    "json": [
        "null", "true", "[]", "{}", '"text é 𝄞"', "-9223372036854775808", "18446744073709551615", "1.5", "1e100", "0.1", "-0.0",
        '{"b": 1, "a": [null, {"x": "\\"q\\""}]}', '{"k": "' + "v" * 70_000 + '"}',
    ],
}  # fmt: skip
MARIADB: dict[str, Sequence[Any]] = {
    "uuid": ["123e4567-e89b-12d3-a456-426655440000", "00000000-0000-0000-0000-000000000000"],
    "inet6": ["::1", "2001:db8::ff00:42:8329", "::ffff:1.2.3.4"],
    "inet4": ["1.2.3.4", "255.255.255.255", "0.0.0.0"],
    "varchar(1000) compressed": ["c" * 900, "", "c" * 200],
    "blob compressed": [b"d" * 9000],
}
KEYS: dict[str, Sequence[Any]] = {
    "int(6) zerofill": [1, 42],
    "bigint unsigned": [0, 5, 2**63, 2**64 - 1],
    "decimal(20,5)": ["-1.5", "0", "7.00001"],
    "bit(12)": [1, 2, 4000],
    "bit(1)": ["b'0'", "b'1'"],
    "year": [0, 1901, 2000, 2155],
    "date": ["2000-01-01", "2020-02-29"],
    "time(3)": ["-10:00:00.5", "00:00:00", "100:00:00.001"],
    "datetime(6)": ["2000-01-01 00:00:00.000001", "2000-01-01 00:00:00.000002"],
    "timestamp(3) DEFAULT '2000-01-01'": ["2001-01-01 00:00:00.001", "2002-01-01"],
    "varchar(20)": ["a", "B", "c'd", "é", "𝄞", "e,f", ""],
    "varchar(700)": ["a" * 700, "a" * 699, "𝄞" * 256],
    "varchar(20) collate utf8mb4_bin": ["a", "A", "a b"],
    "varchar(20) character set latin1": ["a", "é", "z"],
    "varbinary(300)": [b"", b"\0", b"\0\0", b"\xff'", b"x" * 300],
    "binary(3)": [b"\0\0\0", b"a\0\0", b"abc"],
    "enum('z','a','m')": ["z", "a", "m"],
    "set('z','a','m')": ["", "z", "a,m", "z,a,m"],
}


def literal(value: Any) -> str:
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        if value.startswith("b'") or value == "-0e0":
            return value
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return repr(value)


def schema_of(source: MysqlSource, database: MysqlDatabase, name: str = "t") -> TableSchema:
    table = TableId(database.name, name)
    return source.describe([table])[table].schema


def rows_of(source: MysqlSource, schema: TableSchema) -> pa.Table:
    """The rows as the product decodes them, by the source's names."""
    if schema.key:
        rows = pa.Table.from_batches([source.read_chunk(ChunkRequest(schema=schema, limit=10_000_000)).rows])
    else:
        with source.read_whole(schema) as read:
            rows = pa.Table.from_batches(list(read.batches), schema=pa.schema(list(schema.row_type)))
    return rows.rename_columns([column.name for column in schema.columns])


def expected(rows: pa.Table, schema: TableSchema, columns: Sequence[str]) -> Counter[tuple[str, str]]:
    """Id and hash of each row, by the Python encoder."""
    (batch,) = rows.combine_chunks().to_batches()
    hashes = [digest_of(text) for text in row_texts(batch.select(columns))]
    ids = [digest_of(text) for text in key_texts(batch.select(list(schema.key)))] if schema.key else hashes
    return Counter(zip(ids, hashes, strict=True))


def sums(rows: Counter[tuple[str, str]], digits: int) -> dict[str, Checksum]:
    found: dict[str, Checksum] = {}
    for (id_, hash_), count in rows.items():
        before = found.get(id_[:digits], Checksum(0, 0, 0))
        found[id_[:digits]] = Checksum(
            before.rows + count,
            (before.high + count * int(hash_[:16], 16)) % 2**64,
            (before.low + count * int(hash_[16:], 16)) % 2**64,
        )
    return found


def pairs(state: SourceState, groups: Iterable[str]) -> Counter[tuple[str, str]]:
    rows = state.rows(list(groups)).to_pydict()
    return Counter(zip(rows["id"], rows["hash"], strict=True))


def assert_proved(source: MysqlSource, schema: TableSchema) -> None:
    """Everything that a state says is what the decoded rows say, column by column."""
    names = [column.name for column in schema.columns]
    rows = rows_of(source, schema)
    assert rows.num_rows
    with source.open_state(schema, names) as state:
        assert_columns(state, rows, schema)
        wanted = expected(rows, schema, names)
        assert pairs(state, [""]) == wanted
        for digits in (0, 1, 3, 4):
            assert dict(state.checksums(digits)) == sums(wanted, digits)
        for among in (
            Below("5" + "0" * 31),
            Ids(frozenset({*sorted({i for i, _ in wanted})[::2], "0" * 32})),
            Ids(frozenset()),
        ):
            few = Counter({row: n for row, n in wanted.items() if row[0] in among})
            assert [dict(state.checksums(digits, among)) for digits in (0, 4)] == [sums(few, 0), sums(few, 4)]
        some = sorted({id_[:2] for id_, _ in wanted})[::2]
        assert pairs(state, some) == Counter({key: n for key, n in wanted.items() if key[0][:2] in some})
        assert state.identity() is not None


def assert_columns(state: SourceState, rows: pa.Table, schema: TableSchema) -> None:
    """The same for `texts`, which says which column it is."""
    names = [column.name for column in schema.columns]
    (batch,) = rows.combine_chunks().to_batches()
    ids = [digest_of(t) for t in (key_texts(batch.select(list(schema.key))) if schema.key else row_texts(batch))]
    whole = [row_texts(batch.select([n])) if n not in schema.key else key_texts(batch.select([n])) for n in names]
    texts: dict[str, Any] = {}
    for start in range(0, len(ids), 1000):
        texts |= state.texts(ids[start : start + 1000])
    different = [
        (column.source_type, wanted[:80], str(texts[id_][column.name])[:80])
        for column, columns in zip(schema.columns, whole, strict=True)
        for id_, wanted in zip(ids, columns, strict=True)
        if id_ in texts and wanted[:-1] != (texts[id_][column.name] or "")
    ]
    assert not different, different[:20]
    assert set(texts) == set(ids), "ids differ"


def types_of(database: MysqlDatabase) -> dict[str, Sequence[Any]]:
    found = {**NUMBERS, **TIMES, **TEXTS}
    if database.server.flavor == "mariadb":
        since = {"inet4": (10, 10), "uuid": (10, 7)}
        found |= {name: v for name, v in MARIADB.items() if database.server.version >= since.get(name, ())}
    return {name: values for name, values in found.items() if values}


@pytest.fixture
def source(mysql_database: MysqlDatabase, source_of: Make) -> MysqlSource:
    return source_of(mysql_database.server)


@pytest.mark.parametrize("key", ["PRIMARY KEY", "NOT NULL"])
def test_every_type_has_its_canonical_form(mysql_database: MysqlDatabase, source: MysqlSource, key: str) -> None:
    types = types_of(mysql_database)
    columns = ", ".join(f"`c{i}` {t} NULL" for i, t in enumerate(types))
    columns += ", geo geometry NULL, `o'd``d,` int DEFAULT 1"
    mysql_database.execute(f"CREATE TABLE t (id int {key}, {columns}) CHARACTER SET utf8mb4 ROW_FORMAT=DYNAMIC")
    number = 0
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
        cursor.execute("INSERT INTO t (id) VALUES (-1)")
        for i, values in enumerate(types.values()):
            for value in values:
                number += 1
                cursor.execute(f"INSERT INTO t (id, `c{i}`) VALUES ({number}, {literal(value)})")
        cursor.execute("INSERT INTO t (id, geo) VALUES (100000, ST_GeomFromText('POINT(1.5 -2)', 4326))")
    assert_proved(source, schema_of(source, mysql_database))


@pytest.mark.parametrize("type_", KEYS)
def test_keys_of_every_type_have_their_canonical_form(
    mysql_database: MysqlDatabase, source: MysqlSource, type_: str
) -> None:
    mysql_database.execute(f"CREATE TABLE t (a {type_} NOT NULL, v int, b int NOT NULL, PRIMARY KEY (b, a))")
    values = ", ".join(f"({literal(v)}, {n}, {m})" for n, v in enumerate(KEYS[type_]) for m in (1, 2))
    mysql_database.execute(f"INSERT INTO t (a, v, b) VALUES {values}")
    assert_proved(source, schema_of(source, mysql_database))


@pytest.mark.parametrize("count", [4000, pytest.param(40_000, marks=pytest.mark.matrix)])
def test_random_numbers_have_their_canonical_form(
    mysql_database: MysqlDatabase, source: MysqlSource, count: int
) -> None:
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d double, f float, e decimal(30,10), g decimal(65,30), m datetime(6), n date,"
        " u timestamp(6) NULL)"
    )
    chance = random.Random(17)
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        for start in range(0, count, 4000):
            rows = ",".join(_random_row(chance, n) for n in range(start, start + 4000))
            cursor.execute(f"INSERT INTO t VALUES {rows}")
    schema = schema_of(source, mysql_database)
    rows = rows_of(source, schema)
    names = [column.name for column in schema.columns]
    for column in names[1:]:
        with source.open_state(schema, ["id", column]) as state:
            wanted = expected(rows, schema, ["id", column])
            found = pairs(state, [""])
            if different := list((wanted - found).keys())[:1000]:
                texts = state.texts([id_ for id_, _ in different])
                lines = zip(rows.column("id").to_pylist(), rows.column(column).to_pylist(), strict=True)
                mine = {digest_of(f"{i},"): v for i, v in lines}
                kind = rows.schema.field(column).type
                bad = [(mine[i], value_text(mine[i], kind, is_key=False), texts[i][column]) for i in texts]
                pytest.fail(f"{column}: {len(wanted - found)} differ: {bad[:20]}")
            assert dict(state.checksums(2)) == sums(wanted, 2)


def _random_row(chance: random.Random, number: int) -> str:
    (bits,) = struct.unpack("<d", chance.randbytes(8))
    double = chance.choice([bits, chance.uniform(-1e6, 1e6), chance.random(), chance.randint(-(10**9), 10**9) / 100])
    double = 0.0 if math.isnan(double) or math.isinf(double) else double
    (single,) = struct.unpack("<f", chance.randbytes(4))
    single = 0.0 if math.isnan(single) or math.isinf(single) else single
    day = f"{chance.randint(1, 9999):04}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"
    time = f"{chance.randint(0, 23)}:{chance.randint(0, 59)}:{chance.randint(0, 59)}.{chance.randint(0, 999999):06}"
    wide = f"'{chance.choice(['', '-'])}{chance.randint(0, 10**35 - 1)}.{chance.randint(0, 10**30 - 1):030}'"
    month_end = f"{chance.randint(1, 9999):04}-{chance.choice(['01-31', '02-28', '04-30', '12-31', '03-01', '01-01'])}"
    return (
        f"({number}, {double!r}, {single!r}, {_decimal(chance)}, {wide}, '{day} {time}', '{month_end}',"
        f" '{chance.randint(1971, 2037)}-05-{chance.randint(1, 31):02} {time}')"
    )


def _decimal(chance: random.Random) -> str:
    return f"'{chance.choice(['', '-'])}{chance.randint(0, 10 ** chance.randint(1, 20) - 1)}.{chance.randint(0, 10**10 - 1):010}'"


def test_a_table_without_a_key_is_a_multiset(mysql_database: MysqlDatabase, source: MysqlSource) -> None:
    mysql_database.execute(
        "CREATE TABLE t (a int, b varchar(9))", "INSERT INTO t VALUES (1,'x'),(1,'x'),(NULL,NULL),(2,'')"
    )
    schema = schema_of(source, mysql_database)
    assert schema.key == ()
    assert_proved(source, schema)
    with source.open_state(schema, ["b"]) as state:
        assert sorted(pairs(state, [""]).values()) == [1, 1, 2]


def test_an_empty_table_has_no_groups(mysql_database: MysqlDatabase, source: MysqlSource) -> None:
    mysql_database.execute("CREATE TABLE t (a int PRIMARY KEY)")
    with source.open_state(schema_of(source, mysql_database), ["a"]) as state:
        assert (state.checksums(0), state.checksums(3), state.texts([]), state.rows([]).num_rows) == ({}, {}, {}, 0)
        assert state.rows([""]).num_rows == 0


def test_a_column_may_be_called_like_what_is_computed(mysql_database: MysqlDatabase, source: MysqlSource) -> None:
    """GROUP BY takes a name for a column of the table before it takes it for what is selected."""
    mysql_database.execute(
        "CREATE TABLE t (`group` int PRIMARY KEY, t int, hash int)",
        "INSERT INTO t VALUES (1,1,1),(2,1,1),(3,1,1),(4,2,1)",
    )
    assert_proved(source, schema_of(source, mysql_database))


def test_a_wide_and_a_partitioned_table(mysql_database: MysqlDatabase, source: MysqlSource) -> None:
    columns = ", ".join(f"c{i} {('int', 'varchar(300)', 'double', 'date', 'text')[i % 5]}" for i in range(150))
    mysql_database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, {columns.replace('varchar(300)', 'varchar(20)')}) ROW_FORMAT=DYNAMIC",
        "INSERT INTO t (id, c1, c2, c3, c4, c149) VALUES (1, 'x', 1.5, '2024-01-31', 'y', 'z'), (2, NULL, NULL, NULL, NULL, NULL)",
        "CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY HASH (id) PARTITIONS 3",
        "INSERT INTO p VALUES (1,1),(2,2),(3,3),(4,NULL)",
    )
    for name in ("t", "p"):
        assert_proved(source, schema_of(source, mysql_database, name))


def test_a_state_stays_as_it_is_while_rows_change(mysql_database: MysqlDatabase, source: MysqlSource) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1,1),(2,2)")
    schema = schema_of(source, mysql_database)
    with source.open_state(schema, ["id", "v"]) as state, source.open_state(schema, ["id"]) as other:
        before = state.checksums(0)
        mysql_database.execute("UPDATE t SET v = 9", "INSERT INTO t VALUES (3,3)")
        assert state.checksums(0) == before
        assert before[""].rows == 2
        assert other.checksums(0)[""].rows == 2
        assert state.identity() is not None
    with source.open_state(schema, ["id", "v"]) as state:
        assert state.checksums(0)[""].rows == 3


def test_unrepresentable_values_are_those_of_a_snapshot(mysql_database: MysqlDatabase, source_of: Make) -> None:
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        cursor.execute(
            "CREATE TABLE t (id int PRIMARY KEY, d date, m datetime(3), z timestamp NULL, s varchar(20), u varchar(9) CHARACTER SET ucs2)"
        )
        cursor.execute(
            "INSERT INTO t (id, d, m, z) VALUES (1, '0000-00-00', '2024-00-10 00:00:00', '0000-00-00 00:00:00'),"
            " (2, '2024-02-31', '2024-02-28 01:02:03.004', NULL), (3, '2024-01-00', '2023-02-29 00:00:00', '2001-01-01'),"
            " (4, '0000-02-29', '0000-01-01 00:00:00.001', NULL), (5, '0000-03-01', '0000-12-31 23:59:59.999', NULL),"
            " (6, '0000-00-05', '1900-02-29 00:00:00', NULL), (7, '2000-02-29', '0000-02-29 01:02:03', NULL),"
            " (8, '0000-05-05', '0001-01-01', NULL), (9, '2024-04-31', '2024-06-30', NULL), (10, '2024-11-31', '0000-00-00', NULL)"
        )
        cursor.execute(
            "INSERT INTO t (id, s, u) VALUES (11, 'ok é', 'é'), (12, '', _ucs2 x'd800'), (13, '𝄞', _ucs2 x'0041dc00')"
        )
    nulls = source_of(mysql_database.server, unrepresentable="null")
    schema = schema_of(nulls, mysql_database)
    assert_proved(nulls, schema)
    failing = source_of(mysql_database.server)
    with failing.open_state(schema, ["id", "d"]) as state:
        for ask in (lambda: state.checksums(0), lambda: state.rows([""]), lambda: state.checksums(2)):
            with pytest.raises(UnsupportedTypeError) as refused:
                ask()
            assert (refused.value.code, refused.value.table) == ("unrepresentable_value", str(schema.table))
            assert "Column d: 6 of 13" in refused.value.message


def test_unrepresentable_values_of_rows_that_are_not_asked_for_are_no_error(
    mysql_database: MysqlDatabase, source_of: Make
) -> None:
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY, d date)")
        cursor.execute("INSERT INTO t VALUES (1, '2024-01-01'), (2, '2024-02-31')")
    source = source_of(mysql_database.server)
    good, bad = (Ids(frozenset({digest_of(f"{n},")})) for n in (1, 2))
    with source.open_state(schema_of(source, mysql_database), ["id", "d"]) as state:
        assert sum(found.rows for found in state.checksums(4, good).values()) == 1
        assert state.rows(good.ids).num_rows == 1
        with pytest.raises(UnsupportedTypeError, match="Column d"):
            state.checksums(4, bad)


def test_as_many_ids_as_may_be_asked_for(mysql_database: MysqlDatabase, source: MysqlSource) -> None:
    mysql_database.execute("CREATE TABLE t (n int PRIMARY KEY)")
    for start in range(0, IDS_MAX + 5000, 35_000):
        numbers = ", ".join(f"({n})" for n in range(start, start + 35_000))
        mysql_database.execute(f"INSERT INTO t VALUES {numbers}")
    ids = Ids(frozenset(digest_of(f"{n},") for n in range(IDS_MAX)))
    with source.open_state(schema_of(source, mysql_database), ["n"]) as state:
        assert state.checksums(0, ids)[""].rows == IDS_MAX


def test_a_table_that_was_replaced_or_changed_is_void(mysql_database: MysqlDatabase, source_of: Make) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1,1)")
    source = source_of(mysql_database.server)
    schema = schema_of(source, mysql_database)
    with source.open_state(schema, ["id"]) as state:
        # Nothing was read yet, so nothing is locked.
        mysql_database.execute("CREATE TABLE u LIKE t", "RENAME TABLE t TO w, u TO t")
        assert state.identity() is None
    mysql_database.execute("ALTER TABLE t DROP COLUMN v")
    with pytest.raises(SchemaConflictError), source.open_state(schema, ["id"]):
        pass


def test_without_gtids_a_state_of_a_table_with_a_key_knows_what_it_saw(
    mysql_without_gtids: MysqlServer, source_of: Make
) -> None:
    with mysql_without_gtids.database() as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1,1)")
        assert_proved(source_of(mysql_without_gtids), schema_of(source_of(mysql_without_gtids), database))


def test_a_row_text_beyond_the_packet_is_an_error(mysql_database: MysqlDatabase, source_of: Make) -> None:
    columns = ", ".join(f"c{i} text" for i in range(60))
    mysql_database.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    mysql_database.execute(f"INSERT INTO t VALUES (1, {', '.join(['REPEAT(0x78, 256)'] * 60)})")
    server = mysql_database.server
    source = source_of(server)
    schema = schema_of(source, mysql_database)
    ((before,),) = server.execute("SELECT @@GLOBAL.max_allowed_packet")
    server.execute("SET GLOBAL max_allowed_packet = 12288")
    try:
        small = source_of(server)
        with small.open_state(schema, ["id"]) as state:
            assert state.checksums(0)[""].rows == 1
        with pytest.raises(TableError) as refused, small.open_state(schema, [c.name for c in schema.columns]) as state:
            state.checksums(0)
        assert refused.value.code == "max_allowed_packet"
    finally:
        server.execute(f"SET GLOBAL max_allowed_packet = {before}")
