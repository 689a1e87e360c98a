"""Log and chunk give the same values, of every type and many character sets, on both servers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.errors import TableError, UnsupportedTypeError
from replicator.model.events import BEFORE, OPERATION, ROW
from replicator.model.schema import TableId
from replicator.plugins.source import ChunkRequest, PullLimits
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testing.defaults import chunk_request

_LIMITS = PullLimits(rows=10_000, bytes=64 << 20, wait_s=1.0)

NUMBERS: dict[str, list[Any]] = {
    "tinyint": [-128, -1, 0, 127],
    "tinyint(1)": [0, 1, 100],
    "smallint": [-32768, 32767],
    "mediumint": [-8388608, 8388607, -1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "tinyint unsigned": [0, 128, 255],
    "smallint unsigned": [65535],
    "mediumint unsigned": [16777215],
    "int unsigned": [2**32 - 1],
    "int(6) zerofill": [42],
    "bigint unsigned": [0, 2**63, 2**64 - 1],
    "decimal(12,2)": ["-1234567890.12", "0.00", "9999999999.99", "-0.01"],
    "decimal(65,30)": ["-" + "9" * 35 + "." + "9" * 30, "0." + "0" * 29 + "1"],
    "decimal(38,0)": ["9" * 38],
    "decimal(5,5)": ["0.99999", "-0.00001"],
    "float": [1.1, 16777217.0, -3.4e38, 1e-30, 0.0],
    "double": [1.1, 1e308, -2.2250738585072014e-308, 0.1 + 0.2],
    "bit(1)": [0, 1],
    "bit(10)": [0, 513, 1023],
    "bit(64)": [0, 2**63, 2**64 - 1],
    "year": [1901, 2155, 0, 2024],
}
TIMES: dict[str, list[Any]] = {
    "date": ["1000-01-01", "9999-12-31", "1970-01-01", "2024-02-29"],
    "time": ["-838:59:59", "838:59:59", "00:00:00", "-00:00:01"],
    "time(2)": ["-01:00:00.25", "00:00:00.99", "-00:00:00.01"],
    "time(6)": ["-10:11:12.500001", "837:00:00.000001"],
    "datetime": ["1000-01-01 00:00:00", "9999-12-31 23:59:59"],
    "datetime(3)": ["2024-03-31 02:30:00.123"],
    "datetime(6)": ["1969-12-31 23:59:59.999999", "2038-01-19 03:14:08.000001"],
    "timestamp": ["1970-01-01 00:00:01", "2038-01-19 03:14:07", "2024-03-31 02:30:00"],
    "timestamp(6)": ["2024-10-27 02:30:00.654321", "1970-01-01 00:00:01.000001"],
}
TEXTS: dict[str, list[Any]] = {
    "char(5)": ["", "b  ", "é", "𝄞ab"],
    "varchar(40)": ["", "trailing  ", "'\"\\\n\t\0", "日本語"],
    "varchar(300)": ["x" * 300],
    "char(10) character set latin1": ["é€ü", ""],
    "varchar(10) character set cp1251": ["Привет"],
    "varchar(10) character set sjis": ["日本"],
    "varchar(10) character set ucs2": ["héé"],
    "varchar(10) character set utf16": ["𝄞é"],
    "text": ["", "t" * 60_000],
    "tinytext": ["ß"],
    "longtext": ["l" * 100],
    "enum('a','b','it''s','é')": ["a", "it's", "é"],
    "set('x','y','z')": ["", "x,z", "y"],
    "binary(6)": [b"a\0\0\0\0\0", b"\0" * 6, b"\xff" * 6],
    "varbinary(10)": [b"", b"\0\xff"],
    "blob": [b"", b"\x00\x01\xfe\xff" * 1000],
    "geometry": [],
}
JSONS = [
    "null", "true", "[]", "{}", '"text é 𝄞"', "-9223372036854775808", "18446744073709551615", "1.5", "1e100",
    '{"b": 1, "a": [null, {"x": "\\"q\\""}]}',
    '{"k": "' + "v" * 70_000 + '"}',
]  # fmt: skip
MARIADB: dict[str, list[Any]] = {
    "uuid": ["123e4567-e89b-12d3-a456-426655440000", "00000000-0000-0000-0000-000000000000"],
    "inet6": ["::1", "2001:db8::ff00:42:8329", "::ffff:1.2.3.4"],
    "inet4": ["1.2.3.4", "255.255.255.255"],
    "varchar(1000) compressed": ["c" * 900, ""],
    "blob compressed": [b"d" * 9000],
}


def _literal(value: Any) -> str:
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return repr(value)


@pytest.fixture
def source(mysql_database: MysqlDatabase, source_of: Callable[..., MysqlSource]) -> MysqlSource:
    return source_of(mysql_database.server)


def both(source: MysqlSource, table: TableId, write: Callable[[], object]) -> tuple[pa.Array, pa.Array]:
    """The rows that `write` makes, as the log and as a chunk has them, in the order of their key."""
    schema = source.describe([table])[table].schema
    reader = source.open_log(source.prepare([table], is_first=True), {table: schema})
    try:
        write()
        mark = source.mark()
        rows: list[pa.Array] = []
        while True:
            batch = reader.pull(_LIMITS)
            assert batch.table_errors == {}
            rows += [c.rows.column(ROW) for c in batch.changes]
            assert all(c.schema is schema or c.schema == schema for c in batch.changes)
            if mark in batch.marks:
                break
    finally:
        reader.close()
    chunk = source.read_chunk(ChunkRequest(schema=schema, limit=100_000))
    chunked = pa.StructArray.from_arrays(chunk.rows.columns, fields=list(schema.row_type))
    return pa.concat_arrays(rows), chunked


def assert_same(log: pa.Array, chunk: pa.Array) -> None:
    assert log.type == chunk.type
    assert len(log) == len(chunk) > 0
    for position, field in enumerate(log.type):
        left, right = log.field(position), chunk.field(position)
        if not left.equals(right):
            different = [
                (a, b)
                for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True)
                if a != b and repr(a) != repr(b)
            ]
            assert not different, f"{field.name}: log and chunk differ: {different[:3]!r:.500}"


def cases(database: MysqlDatabase) -> dict[str, list[Any]]:
    found = {**NUMBERS, **TIMES, **TEXTS, "json": list(JSONS)}
    if database.server.flavor == "mariadb":
        since = {"inet4": (10, 10), "uuid": (10, 7)}
        found |= {name: v for name, v in MARIADB.items() if database.server.version >= since.get(name, ())}
    return found


@pytest.mark.condition("D07", "M33")
def test_boundary_values_of_every_type_are_the_same(mysql_database: MysqlDatabase, source: MysqlSource) -> None:
    table = TableId(mysql_database.name, "every type")
    types = cases(mysql_database)
    columns = ", ".join(f"`c{i}` {_nullable(t)}" for i, t in enumerate(types))
    mysql_database.execute(f"CREATE TABLE `every type` (id int PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")

    def write() -> None:
        number = 0
        with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute("INSERT INTO `every type` (id) VALUES (-1)")
            for i, values in enumerate(types.values()):
                for value in values:
                    number += 1
                    cursor.execute(f"INSERT INTO `every type` (id, `c{i}`) VALUES ({number}, {_literal(value)})")
            i = list(types).index("geometry")
            cursor.execute(
                f"INSERT INTO `every type` (id, c{i}) VALUES (100000, ST_GeomFromText('POINT(1.5 -2)', 4326))"
            )

    log, chunk = both(source, table, write)
    assert_same(log, chunk)


def _nullable(type_: str) -> str:
    # TIMESTAMP would be NOT NULL by itself on older servers.
    return f"{type_} NULL"


def _random_value(chance: random.Random, type_: str) -> Any:
    match type_:
        case "bigint":
            return chance.randint(-(2**63), 2**63 - 1)
        case "decimal(30,10)":
            return f"{chance.randint(-(10**29), 10**29) / 10**9:.10f}"
        case "double":
            return chance.choice([chance.uniform(-1e300, 1e300), chance.random()])
        case "float":
            return chance.uniform(-1e30, 1e30)
        case "varchar(50)":
            return "".join(chance.choice("aé日𝄞 '\\") for _ in range(chance.randint(0, 50)))
        case "datetime(6)":
            day = f"{chance.randint(1000, 9999)}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"
            return f"{day} 12:{chance.randint(0, 59):02}:00.{chance.randint(0, 999999):06}"
        case "time(3)":
            sign, hours = chance.choice(["", "-"]), chance.randint(0, 837)
            return f"{sign}{hours}:{chance.randint(0, 59):02}:{chance.randint(0, 59):02}.{chance.randint(0, 999):03}"
        case _:
            return chance.randbytes(chance.randint(0, 300))


@pytest.mark.condition("D07", "M33")
def test_random_values_are_the_same_in_one_large_event(mysql_database: MysqlDatabase, source: MysqlSource) -> None:
    types = ["bigint", "decimal(30,10)", "double", "float", "varchar(50)", "datetime(6)", "time(3)", "blob"]
    columns = ", ".join(f"c{i} {t} NULL" for i, t in enumerate(types))
    mysql_database.execute(f"CREATE TABLE r (id int PRIMARY KEY, {columns})")
    chance = random.Random(7)
    rows = [(n, *(None if chance.random() < 0.1 else _random_value(chance, t) for t in types)) for n in range(3000)]

    def write() -> None:
        values = ", ".join("(" + ", ".join("NULL" if v is None else _literal(v) for v in row) + ")" for row in rows)
        mysql_database.execute(f"INSERT INTO r VALUES {values}")

    assert_same(*both(source, TableId(mysql_database.name, "r"), write))


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("bigint unsigned", [0, 5, 2**63, 2**64 - 1]),
        ("decimal(20,5)", ["-1.5", "0", "7.00001"]),
        ("bit(12)", [1, 2, 4000]),
        ("year", [0, 1901, 2000, 2155]),
        ("date", ["2000-01-01", "2020-02-29"]),
        ("time(3)", ["-10:00:00.5", "00:00:00", "100:00:00.001"]),
        ("datetime(6)", ["2000-01-01 00:00:00.000001", "2000-01-01 00:00:00.000002"]),
        ("timestamp(3) DEFAULT '2000-01-01'", ["2001-01-01 00:00:00.001", "2002-01-01"]),
        ("varchar(20)", ["a", "B", "c'd", "é", "𝄞"]),
        ("varchar(20) character set latin1", ["a", "é", "z"]),
        ("varbinary(8)", [b"", b"\0", b"\0\0", b"\xff'"]),
        ("binary(3)", [b"\0\0\0", b"a\0\0", b"abc"]),
        ("enum('z','a','m')", ["z", "a", "m"]),
        ("set('z','a','m')", ["", "z", "a,m", "z,a,m"]),
    ],
)  # fmt: skip
@pytest.mark.condition("D10", "D12")
def test_chunks_by_every_kind_of_key_are_the_whole_table(
    mysql_database: MysqlDatabase, source: MysqlSource, type_: str, values: list[Any]
) -> None:
    mysql_database.execute(f"CREATE TABLE k (a {type_} NOT NULL, b int NOT NULL, v int, PRIMARY KEY (a, b))")
    for number, value in enumerate(values):
        mysql_database.execute(
            f"INSERT INTO k VALUES ({_literal(value)}, 1, {number}), ({_literal(value)}, 2, {number})"
        )
    table = TableId(mysql_database.name, "k")
    schema = source.describe([table])[table].schema
    assert schema.key == ("a", "b")
    whole = source.read_chunk(chunk_request(schema)).rows
    assert whole.num_rows == 2 * len(values)
    read = list(_pages(source, schema, 3))
    assert pa.Table.from_batches(read).to_pylist() == whole.to_pylist()
    first = source.read_chunk(ChunkRequest(schema=schema, limit=2))
    assert source.read_chunk(chunk_request(schema, upto=first.cursor)).rows.to_pylist() == first.rows.to_pylist()


@pytest.mark.parametrize(("type_", "values"), [(t, v) for t, v in MARIADB.items() if "compressed" not in t])
@pytest.mark.condition("D11")
def test_chunks_by_keys_of_mariadb_s_own_types_are_the_whole_table(
    mariadb: MysqlServer, source_of: Callable[..., MysqlSource], type_: str, values: list[Any]
) -> None:
    if mariadb.version < {"inet4": (10, 10), "uuid": (10, 7)}.get(type_, ()):
        pytest.skip(f"this MariaDB has no {type_}")
    if type_ == "uuid":
        # Of several versions, which have orders of their own.
        values = [*values, "ffffffff-0000-1000-8000-000000000001", "00000001-0000-1000-8000-ffffffffffff"]
    with mariadb.database() as database:
        test_chunks_by_every_kind_of_key_are_the_whole_table(database, source_of(mariadb), type_, values)


@pytest.mark.condition("D26", "M32")
def test_the_servers_time_zone_changes_no_value(
    mysql_database: MysqlDatabase, source_of: Callable[..., MysqlSource]
) -> None:
    server = mysql_database.server
    mysql_database.execute("CREATE TABLE z (id int PRIMARY KEY, m timestamp(3) NULL, d datetime)")
    server.execute("SET GLOBAL time_zone = '-05:00'")
    try:
        # Connections take it when they are made.
        log, chunk = both(
            source_of(server),
            TableId(mysql_database.name, "z"),
            lambda: mysql_database.execute(
                "INSERT INTO z VALUES (1, '2024-03-10 02:30:00.5', '2024-03-10 02:30:00')",
                "SET time_zone = '+09:30'",
                "INSERT INTO z VALUES (2, '2024-03-10 02:30:00.5', '2024-03-10 02:30:00')",
            ),
        )
    finally:
        server.execute("SET GLOBAL time_zone = 'SYSTEM'")
    assert_same(log, chunk)
    assert [str(row["m"]) for row in chunk.to_pylist()] == [
        "2024-03-10 07:30:00.500000+00:00",
        "2024-03-09 17:00:00.500000+00:00",
    ]
    assert {str(row["d"]) for row in chunk.to_pylist()} == {"2024-03-10 02:30:00"}


@pytest.mark.condition("D29")
def test_columns_that_are_generated_or_invisible_are_the_same(
    mysql_database: MysqlDatabase, source: MysqlSource
) -> None:
    if mysql_database.server.lacks((8, 0, 23)):
        pytest.skip("invisible columns came with MySQL 8.0.23")
    mysql_database.execute(
        "CREATE TABLE g (id int PRIMARY KEY, a varchar(20), v int GENERATED ALWAYS AS (id + 1) VIRTUAL,"
        " s varchar(30) GENERATED ALWAYS AS (CONCAT(a, '!')) STORED, i int INVISIBLE DEFAULT 5)"
    )
    log, chunk = both(
        source,
        TableId(mysql_database.name, "g"),
        lambda: mysql_database.execute("INSERT INTO g (id, a) VALUES (1, 'x'), (2, NULL)"),
    )
    assert_same(log, chunk)
    assert chunk.to_pylist() == [
        {"id": 1, "a": "x", "v": 2, "s": "x!", "i": 5},
        {"id": 2, "a": None, "v": 3, "s": None, "i": 5},
    ]


@pytest.mark.condition("D29")
def test_a_key_that_the_server_made_by_itself_is_a_key_even_where_the_catalogue_hides_it(
    mysql: MysqlServer, source_of: Callable[..., MysqlSource]
) -> None:
    if mysql.lacks((8, 0, 30)):
        pytest.skip("generated invisible primary keys came with MySQL 8.0.30")
    with mysql.database() as database:
        database.execute("SET sql_generate_invisible_primary_key = ON", "CREATE TABLE k (v int)")
        mysql.execute("SET GLOBAL show_gipk_in_create_table_and_information_schema = OFF")
        try:
            source = source_of(mysql)
            log, chunk = both(
                source, TableId(database.name, "k"), lambda: database.execute("INSERT INTO k VALUES (7), (7)")
            )
        finally:
            mysql.execute("SET GLOBAL show_gipk_in_create_table_and_information_schema = ON")
        assert_same(log, chunk)
        assert chunk.to_pylist() == [{"my_row_id": 1, "v": 7}, {"my_row_id": 2, "v": 7}]


LONG_KEYS = {
    "over 3072 bytes": "id int PRIMARY KEY, url varchar(2000) CHARACTER SET utf8mb4 NOT NULL UNIQUE",
    "over TEXT, without another key": "v int, url text UNIQUE",
    "over TEXT, as the key": "url text NOT NULL UNIQUE, v int",
    "several": "id int PRIMARY KEY, url text UNIQUE, b blob NOT NULL, UNIQUE (b), UNIQUE (url, b)",
    "next to a column of that name": "id int PRIMARY KEY, DB_ROW_HASH_1 bigint unsigned, url text UNIQUE, db_row_hash_2 int",
    "none, but a column of that name": "id int PRIMARY KEY, url text, DB_ROW_HASH_1 bigint unsigned NOT NULL DEFAULT 7",
}


def log_of(source: MysqlSource, table: TableId, write: Callable[[], object]) -> list[tuple[str, Any, Any]]:
    """What `write` does to the table, as the log has it: operation, before and row."""
    schema = source.describe([table])[table].schema
    reader = source.open_log(source.prepare([table], is_first=True), {table: schema})
    changes: list[tuple[str, Any, Any]] = []
    try:
        write()
        mark = source.mark()
        while True:
            batch = reader.pull(_LIMITS)
            assert batch.table_errors == {}
            for change in batch.changes:
                assert change.schema == schema, "the columns are those of the catalogue"
                columns = (change.rows.column(name).to_pylist() for name in (OPERATION, BEFORE, ROW))
                changes += zip(*columns, strict=True)
            if mark in batch.marks:
                return changes
    finally:
        reader.close()


@pytest.mark.parametrize("columns", LONG_KEYS.values(), ids=LONG_KEYS)
def test_hashes_of_long_unique_keys_are_no_columns(
    mariadb: MysqlServer, source_of: Callable[..., MysqlSource], columns: str
) -> None:
    with mariadb.database() as database:
        database.execute(f"CREATE TABLE h ({columns}) CHARACTER SET utf8mb4")
        names = database.columns("h")
        row: dict[str, Any] = {
            n: {"id": 1, "v": 2, "url": "u" * 900, "b": b"\0" * 900, "DB_ROW_HASH_1": 5, "db_row_hash_2": 6}[n]
            for n in names
        }
        table = TableId(database.name, "h")
        source = source_of(mariadb)
        changes = log_of(
            source,
            table,
            lambda: (
                database.execute(
                    f"INSERT INTO h VALUES ({', '.join(_literal(row[n]) for n in names)})",
                    "UPDATE h SET url = 'changed'",
                    "DELETE FROM h",
                    f"INSERT INTO h VALUES ({', '.join(_literal(row[n]) for n in names)})",
                )
                and None
            ),
        )
        shape = source.describe([table])[table].schema
        assert [c.name for c in shape.columns] == names
        key = shape.key or names
        # With a key that stays, an UPDATE has no before image.
        old, new = {n: row[n] for n in key}, {n: {**row, "url": "changed"}[n] for n in key}
        assert [(o, b) for o, b, _ in changes] == [
            ("INSERT", None), ("UPDATE", old if old != new else None), ("DELETE", new), ("INSERT", None)
        ]  # fmt: skip
        read = source.read_chunk(chunk_request(shape)) if shape.key else None
        assert changes[-1][2] == {k: Decimal(v) if k == "DB_ROW_HASH_1" else v for k, v in row.items()}
        assert read is None or read.rows.to_pylist() == [changes[-1][2]]


@pytest.mark.parametrize(
    "columns",
    [
        "id int PRIMARY KEY, `!hidden!v!0!0` int, v varchar(20), INDEX ((upper(v))), UNIQUE ((id + 1))",
        "id int PRIMARY KEY, `!hidden!v!0!0` int, v varchar(20), FULLTEXT (v)",
    ],
)
def test_columns_that_mysql_hides_are_none(
    mysql: MysqlServer, source_of: Callable[..., MysqlSource], columns: str
) -> None:
    with mysql.database() as database:
        database.execute(f"CREATE TABLE h ({columns})")
        log, chunk = both(
            source_of(mysql),
            TableId(database.name, "h"),
            lambda: database.execute("INSERT INTO h VALUES (1, 2, 'x')") and None,
        )
        assert_same(log, chunk)
        # `c2`: how a struct of the journal calls a column whose name is none for it.
        assert chunk.to_pylist() == [{"id": 1, "c2": 2, "v": "x"}]


AMBIGUOUS = [
    ("varchar(9) character set cp1250", "x'81'", "x'83'", "?"),
    ("char(9) character set swe7", "x'80'", "x'81'", "?"),
    ("varchar(9) character set sjis", "x'8595'", "x'8596'", "?"),
    ("varchar(9) character set cp932", "x'8790'", "x'81e0'", "\u2252"),
    ("varchar(9) character set armscii8 collate armscii8_bin", "x'28'", "x'a5'", "("),
    ("enum('a', '')", "''", "'b'", ""),
    ("set('a', '')", "0", "2", ""),
]


@pytest.mark.parametrize(("type_", "first", "second", "text"), AMBIGUOUS, ids=[case[0] for case in AMBIGUOUS])
def test_keys_that_would_become_one_fail_their_table(
    mysql_database: MysqlDatabase, source: MysqlSource, type_: str, first: str, second: str, text: str
) -> None:
    """In the log, in a chunk of one row, and next to others; where they are no key they are what SELECT gives."""
    table, plain = TableId(mysql_database.name, "k"), TableId(mysql_database.name, "v")
    mysql_database.execute(
        f"CREATE TABLE k (a {type_} NOT NULL, b int NOT NULL, PRIMARY KEY (a, b))",
        f"CREATE TABLE v (b int NOT NULL PRIMARY KEY, a {type_} NOT NULL)",
    )
    schemas = {t: source.describe([t])[t].schema for t in (table, plain)}
    assert schemas[table].key == ("a", "b")
    reader = source.open_log(source.prepare([table, plain], is_first=True), schemas)
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(f"INSERT INTO k VALUES ({first}, 1), ({second}, 1)")
        cursor.execute(f"INSERT INTO v VALUES (1, {first}), (2, {second})")
    mark, rows = source.mark(), []
    errors: dict[TableId, TableError] = {}
    while True:
        batch = reader.pull(_LIMITS)
        errors |= batch.table_errors
        rows += [row for c in batch.changes for row in c.rows.column(ROW).to_pylist()]
        if mark in batch.marks:
            break
    reader.close()
    assert {t: e.code for t, e in errors.items()} == {table: "ambiguous_key"}
    assert rows == [{"b": 1, "a": text}, {"b": 2, "a": text}]
    assert source.read_chunk(chunk_request(schemas[plain])).rows.to_pylist() == rows
    for limit in (1, 100):
        with pytest.raises(UnsupportedTypeError) as refused:
            for _ in _pages(source, schemas[table], limit):
                pass
        assert (refused.value.code, refused.value.table) == ("ambiguous_key", str(table))


@pytest.mark.parametrize("last", ["'l63'", "''"], ids=["telling", "with a label of nothing"])
def test_keys_of_large_sets_are_read_exactly(mysql_database: MysqlDatabase, source: MysqlSource, last: str) -> None:
    """64 labels fill 64 bits: more than a double holds, which MySQL makes of a SET plus zero, or a signed number, which MariaDB does."""
    table = TableId(mysql_database.name, "t")
    labels = ", ".join([last, *(f"'l{n}'" for n in range(63))])
    mysql_database.execute(f"CREATE TABLE t (s set({labels}) NOT NULL, v int NOT NULL, PRIMARY KEY (s))")
    numbers = [2, 10**15, 10**15 + 2, 2**53, 2**53 + 2, 2**53 + 4, 2**63, 2**63 + 2, 2**64 - 4, 2**64 - 2]
    mysql_database.execute(
        f"INSERT INTO t VALUES {', '.join(f'({n}, {position})' for position, n in enumerate(numbers))}"
    )
    schema = source.describe([table])[table].schema
    for limit in (1, 3, 100):
        read = [row for page in _pages(source, schema, limit) for row in page.to_pylist()]
        assert [row["v"] for row in read] == list(range(len(numbers)))
        assert len({row["s"] for row in read}) == len(numbers)


def test_surrogates_of_ucs2_follow_the_setting(
    mysql_database: MysqlDatabase, source_of: Callable[..., MysqlSource]
) -> None:
    """Neither server refuses them, and a SELECT gives bytes that are no UTF-8."""
    mysql_database.execute("CREATE TABLE v (id int PRIMARY KEY, a varchar(9) character set ucs2)")
    table, reads = TableId(mysql_database.name, "v"), {}
    for policy in ("fail", "null"):
        source = source_of(mysql_database.server, unrepresentable=policy)
        schema = source.describe([table])[table].schema
        mysql_database.execute("DELETE FROM v")
        reader = source.open_log(source.prepare([table], is_first=True), {table: schema})
        mysql_database.execute("INSERT INTO v VALUES (1, x'd800'), (2, x'0061'), (3, x'd800dc00')")
        mark = source.mark()
        errors: dict[TableId, TableError] = {}
        rows: dict[int, Any] = {}
        while True:
            batch = reader.pull(_LIMITS)
            errors |= batch.table_errors
            rows |= {row["id"]: row for c in batch.changes for row in c.rows.column(ROW).to_pylist()}
            if mark in batch.marks:
                break
        reader.close()
        reads[policy] = (source, schema, errors, list(rows.values()))
    source, schema, errors, _ = reads["fail"]
    assert {t: e.code for t, e in errors.items()} == {table: "unrepresentable_value"}
    with pytest.raises(UnsupportedTypeError) as refused:
        source.read_chunk(chunk_request(schema))
    assert refused.value.code == "unrepresentable_value"
    source, schema, errors, read = reads["null"]
    assert not errors
    assert read == [{"id": 1, "a": None}, {"id": 2, "a": "a"}, {"id": 3, "a": None}]
    assert source.read_chunk(chunk_request(schema)).rows.to_pylist() == read


def _pages(source: MysqlSource, schema: Any, limit: int) -> Iterator[pa.RecordBatch]:
    after = None
    while True:
        chunk = source.read_chunk(ChunkRequest(schema=schema, after=after, limit=limit))
        yield chunk.rows
        if chunk.rows.num_rows < limit:
            return
        assert chunk.cursor != after
        after = chunk.cursor
