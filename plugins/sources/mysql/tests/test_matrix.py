"""The matrix of types: whatever is inserted, updated and deleted, the log folded row by row is what a snapshot reads, bit by bit.

Each group of types has a table with a key, one without, and one table per type whose key has it. `slow` runs more of the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from replicator.model.events import BEFORE, OPERATION, ROW
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import ChunkRequest, PullLimits
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql_servers import MysqlDatabase

Values = Callable[[random.Random], str]
"""Gives an SQL expression of a type, a boundary or a random one."""


def one_of(*fixed: str, or_: Values | None = None) -> Values:
    def value(chance: random.Random) -> str:
        return or_(chance) if or_ is not None and chance.random() < 0.4 else chance.choice(fixed)

    return value


def integers(bits: int, *, is_unsigned: bool) -> Values:
    low, high = (0, 2**bits - 1) if is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return one_of(*map(str, (low, high, 0, 1, high // 2, low + 1)), or_=lambda c: str(c.randint(low, high)))


def decimals(precision: int, scale: int, *, is_unsigned: bool = False) -> Values:
    def spelled(digits: str) -> str:
        digits = digits.rjust(precision, "0")
        return f"{digits[: precision - scale] or '0'}.{digits[precision - scale :]}".rstrip(".")

    def some(chance: random.Random) -> str:
        sign = "" if is_unsigned else chance.choice(["", "-"])
        return sign + spelled(str(chance.randrange(10 ** chance.randint(1, precision))))

    most = spelled("9" * precision)
    return one_of(
        most, spelled("0"), spelled("1"), *([] if is_unsigned else [f"-{most}", f"-{spelled('1')}"]), or_=some
    )


def reals(*, is_single: bool) -> Values:
    top = "3.4028234e38" if is_single else "1.7976931348623157e308"
    small = "1.17549435e-38" if is_single else "5e-324"
    return one_of(
        "0", "-0e0", "1.1", "-1.1", top, f"-{top}", small, f"-{small}", "16777217", "0.1e0 + 0.2e0", "123456.789",
        or_=lambda c: repr(c.uniform(-1, 1) * 10.0 ** c.randint(-30, 30)),
    )  # fmt: skip


def bits(count: int) -> Values:
    top = 2**count - 1
    return one_of("0", str(top), "1", str(top >> 1), or_=lambda c: str(c.randint(0, top)))


def _clock(chance: random.Random) -> str:
    return f"{chance.randrange(60):02}:{chance.randrange(60):02}.{chance.randrange(10**6):06}"


DATES = ["0000-00-00", "0000-01-01", "0000-12-31", "0001-01-01", "1000-01-01", "1582-10-10", "1900-02-28", "1969-12-31", "1970-01-01",
         "2000-02-29", "2024-00-00", "2024-05-00", "2024-02-31", "2024-02-29", "9999-12-31"]  # fmt: skip


def _day(chance: random.Random) -> str:
    return f"{chance.randrange(10000):04}-{chance.randrange(1, 13):02}-{chance.randrange(1, 32):02}"


def days() -> Values:
    return one_of(*(f"'{d}'" for d in DATES), or_=lambda c: f"'{_day(c)}'")


def moments() -> Values:
    fixed = [f"'{day} {time}'" for day in DATES for time in ("00:00:00", "23:59:59.999999", "12:34:56.5")]
    # Rounding up from the last second of the last year is out of range.
    fixed = [f for f in fixed if not f.startswith("'9999-12-31 23:59:59.9")] + ["'9999-12-31 23:59:59'"]
    return one_of(*fixed, or_=lambda c: f"'{_day(c)} {c.randrange(23):02}:{_clock(c)}'")


def instants() -> Values:
    return one_of(
        "'0000-00-00 00:00:00'", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'2024-03-31 02:30:00.123456'",
        "'2024-10-27 02:30:00.5'",
        or_=lambda c: f"FROM_UNIXTIME({c.randrange(1, 2**31 - 2)}.{c.randrange(10**6):06})",
    )  # fmt: skip


def times() -> Values:
    return one_of(
        "'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:00.000001'", "'-00:00:01'", "'99:59:59.9'", "'100:00:00.000009'",
        or_=lambda c: f"'{c.choice(['', '-'])}{c.randrange(838)}:{_clock(c)}'",
    )  # fmt: skip


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def texts(letters: str, size: int, *, fills: int = 0) -> Values:
    """Of these letters; `fills`: also one of so many bytes."""
    plain = ["''", "'a'", "'A'", "' '", "'a '", "'  b  '", "'it''s'", r"'\\'", r"'\n\t\r\0\Z'", quoted(letters[:size])]
    if fills:
        plain.append(f"REPEAT({quoted(letters[0])}, {fills})")
    return one_of(*plain, or_=lambda c: quoted("".join(c.choice(letters + "ab 'Z") for _ in range(c.randint(0, size)))))


def raw(size: int, *, fills: int = 0) -> Values:
    fixed = ["''", "x'00'", "x'ff'", "x'6100'", "x'2000'", f"x'{'00' * size}'", f"x'{'ff' * size}'", "x'27005c'"]
    if fills:
        fixed.append(f"REPEAT(x'00ff', {fills})")
    return one_of(*fixed, or_=lambda c: f"x'{c.randbytes(c.randint(0, size)).hex()}'")


def labels(count: int) -> Values:
    return one_of("1", str(count), "'l1'", "'it''s'", "''", or_=lambda c: str(c.randint(1, count)))


def sets(count: int) -> Values:
    top = 2**count - 1
    return one_of("0", "1", str(top), str(1 << count - 1), or_=lambda c: str(c.randint(0, top)))


def _labels_of(count: int) -> str:
    return ", ".join(["'l1'", "'it''s'", "'é'", "'Z z'", *(f"'label {i}'" for i in range(5, count + 1))][:count])


def geometries(kind: str) -> Values:
    shapes = {
        "POINT": ["POINT(0 0)", "POINT(-1.5 2.25)", "POINT(1e300 -1e-300)"],
        "LINESTRING": ["LINESTRING(0 0, 1 1)", "LINESTRING(0 0, 1.1 -1.1, 2 2)"],
        "POLYGON": ["POLYGON((0 0, 4 0, 4 4, 0 0), (1 1, 2 1, 2 2, 1 1))"],
        "MULTIPOINT": ["MULTIPOINT(0 0, 1 1)"],
        "MULTILINESTRING": ["MULTILINESTRING((0 0, 1 1), (2 2, 3 3))"],
        "MULTIPOLYGON": ["MULTIPOLYGON(((0 0, 4 0, 4 4, 0 0)))"],
        "GEOMETRYCOLLECTION": ["GEOMETRYCOLLECTION(POINT(1 1), LINESTRING(0 0, 1 1))"],
    }
    shapes["GEOMETRY"] = [shape for found in shapes.values() for shape in found]
    return one_of(*(f"ST_GeomFromText('{shape}', 0)" for shape in shapes[kind]))


JSONS = one_of(
    "'null'", "'{}'", "'[]'", """'{"b": 1, "a": [null, true, {"x": "q"}]}'""", "'-9223372036854775808'", "'1e100'", "'-0.0'", "'\"é 𝄞\"'",
    "JSON_OBJECT('k', REPEAT('v', 70000))",
    or_=lambda c: f"JSON_ARRAY({c.uniform(-1e9, 1e9)!r}, {c.randint(0, 2**64 - 1)}, '{c.randint(0, 9)}')",
)  # fmt: skip

LETTERS = {
    "utf8mb4": "aéß日𝄞Ω", "utf8mb3": "aéß日Ω", "latin1": "aéß€ü", "latin2": "ařŁž", "cp1250": "ařŁž€", "cp1251": "aПриЯ", "koi8r": "aПриЯ",
    "greek": "aΩλφ", "hebrew": "aשלם", "cp1256": "aعرب", "tis620": "aกขค", "ucs2": "aé日Ω", "utf16": "aé日𝄞", "utf16le": "aé日𝄞",
    "utf32": "aé日𝄞", "sjis": "a日本カ", "cp932": "a日本カ①", "ujis": "a日本カ", "eucjpms": "a日本カ①", "gbk": "a中文", "gb2312": "a中文",
    "big5": "a中文", "euckr": "a한국어", "ascii": "abcZ", "macroman": "aéß€", "armscii8": "aԱԲԳ", "swe7": "aåäö", "dec8": "aéß",
}  # fmt: skip

GROUPS: dict[str, dict[str, Values]] = {
    "integers": {
        f"{name}{sign}": integers(size, is_unsigned="unsigned" in sign or "zerofill" in sign)
        for name, size in {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}.items()
        for sign in ("", " unsigned", "(4) zerofill")
    },
    "decimals": {
        **{f"decimal({p},{s})": decimals(p, s) for p, s in
           [(1, 0), (1, 1), (5, 5), (9, 0), (10, 5), (18, 9), (19, 0), (20, 2), (30, 30), (38, 0), (38, 30), (39, 1), (65, 0), (65, 30)]},
        "decimal(20,4) unsigned": decimals(20, 4, is_unsigned=True),
        "decimal(8,2) zerofill": decimals(8, 2, is_unsigned=True),
    },
    "reals": {
        "float": reals(is_single=True), "double": reals(is_single=False), "float(9,3)": one_of("1.1", "-999999.999", "0.0005", "0"),
        "double(15,4)": one_of("1.00005", "-99999999999.9999", "0"), "float unsigned": one_of("0", "3.4e38", "1.1"),
        "real": reals(is_single=False),
    },
    "bits and years": {
        **{f"bit({n})": bits(n) for n in (1, 2, 7, 8, 9, 16, 31, 32, 33, 48, 56, 57, 63, 64)},
        "year": one_of("0", "1901", "2155", "2000", "'70'", or_=lambda c: str(c.randint(1901, 2155))),
        "boolean": one_of("true", "false", "2", "-128"),
    },
    "days": {"date": days(), **{f"datetime({n})": moments() for n in range(7)}},
    "times": {**{f"timestamp({n})": instants() for n in range(7)}, **{f"time({n})": times() for n in range(7)}},
    "labels": {
        "enum('l1')": one_of("1", "''"), f"enum({_labels_of(4)})": labels(4), f"enum({_labels_of(255)})": labels(255),
        f"enum({_labels_of(300)})": labels(300), "set('l1')": sets(1), f"set({_labels_of(8)})": sets(8), f"set({_labels_of(9)})": sets(9),
        f"set({_labels_of(24)})": sets(24), f"set({_labels_of(33)})": sets(33), f"set({_labels_of(64)})": sets(64),
        "enum('a', 'b') character set latin1": labels(2), "enum('x', 'é') character set ucs2": labels(2),
    },
    "texts": {
        **{f"varchar(20) character set {charset}": texts(letters, 20) for charset, letters in LETTERS.items()},
        "char(9)": texts(LETTERS["utf8mb4"], 9), "char(9) character set latin1": texts(LETTERS["latin1"], 9),
        "char(9) character set ucs2": texts(LETTERS["ucs2"], 9), "char(200) character set utf8mb4": texts(LETTERS["utf8mb4"], 200),
        "char(9) collate utf8mb4_bin": texts(LETTERS["utf8mb4"], 9),
    },
    "long texts": {
        "varchar(63) collate utf8mb4_bin": texts(LETTERS["utf8mb4"], 63), "varchar(64)": texts(LETTERS["utf8mb4"], 64),
        "varchar(300)": texts(LETTERS["utf8mb4"], 300), "varchar(1000) character set latin1": texts(LETTERS["latin1"], 90, fills=1000),
        "tinytext": texts("aé", 60), "text": texts("aé日", 60, fills=20_000), "mediumtext": texts("aé日", 60, fills=25_000),
        "longtext": texts("aé日", 60, fills=25_000), "text character set sjis": texts(LETTERS["sjis"], 60, fills=20_000),
    },
    "bytes": {
        "binary(1)": raw(1), "binary(9)": raw(9), "binary(255)": raw(90), "varbinary(9)": raw(9), "varbinary(300)": raw(300),
        "tinyblob": raw(250), "blob": raw(60, fills=30_000), "mediumblob": raw(60, fills=40_000), "longblob": raw(60, fills=40_000),
    },
    "json": {"json": JSONS},
    "geometries": {
        name: geometries(name.upper())
        for name in ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection")
    },
}  # fmt: skip
OF_MARIADB: dict[str, Values] = {
    "uuid": one_of(
        "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "'123e4567-e89b-12d3-a456-426655440000'",
        or_=lambda c: f"'{c.randbytes(16).hex()}'",
    ),
    "inet6": one_of("'::'", "'::1'", "'::ffff:1.2.3.4'", "'ffff::'", "'1:0:0:2::'", or_=lambda c: f"x'{c.randbytes(16).hex()}'"),
    "inet4": one_of("'0.0.0.0'", "'255.255.255.255'", or_=lambda c: f"x'{c.randbytes(4).hex()}'"),
    "varchar(1000) compressed": texts("aé日", 60, fills=300), "varbinary(1000) compressed": raw(60, fills=400),
    "text compressed": texts("aé日", 60, fills=20_000), "longblob compressed": raw(60, fills=40_000), "decimal(65,38)": decimals(65, 38),
    "decimal(38,38)": decimals(38, 38),
}  # fmt: skip
OF_MYSQL: dict[str, Values] = {
    "vector(3)": one_of("STRING_TO_VECTOR('[1, -2.5, 0]')", or_=lambda c: f"STRING_TO_VECTOR('[{c.random()}, {c.random()}, 1e-30]')"),
    "vector(2048)": one_of("STRING_TO_VECTOR(CONCAT('[', REPEAT('1.5,', 2047), '-1]'))"),
    "varchar(20) character set gb18030": texts("a中文", 20),
    "point srid 4326": one_of("ST_GeomFromText('POINT(1.5 -2)', 4326)", "ST_GeomFromText('POINT(90 180)', 4326)"),
}  # fmt: skip
NO_KEYS = ("float", "double", "real", "json", "geometry", "point", "linestring", "polygon", "multi", "text", "tiny", "medium", "long",
           "blob", "vector", "tinytext", "varchar(1000)", "varbinary(1000)")  # fmt: skip


def can_be_key(type_: str) -> bool:
    return type_.startswith(("tinyint", "mediumint")) or not type_.startswith(NO_KEYS)


def held(type_: str, values: Values) -> Values:
    """For a key: zero, partial and impossible dates fail the table there, whatever the setting."""
    if not type_.startswith(("date", "timestamp")):
        return values
    first, last = (1971, 2037) if type_.startswith("timestamp") else (1, 9998)

    def value(chance: random.Random) -> str:
        year = chance.choice([first, last, chance.randint(first, last)])
        day = f"{year:04}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"
        return f"'{day}'" if type_ == "date" else f"'{day} {chance.randrange(24):02}:{_clock(chance)}'"

    return value


def group_of(name: str, database: MysqlDatabase) -> dict[str, Values]:
    if name != "own":
        return GROUPS[name]
    if database.server.flavor == "mysql":
        return OF_MYSQL
    return OF_MARIADB


class Writer:
    """Random statements, each alone; those that the server refuses are no statements."""

    def __init__(self, database: MysqlDatabase, seed: int) -> None:
        self.chance = random.Random(seed)
        self.connection = database.connect()
        self.cursor = self.connection.cursor()
        # What the columns do not hold is cut to what they do, and invalid days are taken.
        self.cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        self.cursor.execute("SET time_zone = '+00:00'")
        self.taken = self.refused = 0

    def run(self, statement: str) -> None:
        try:
            self.cursor.execute(statement)
            self.taken += 1
        except pymysql.Error as error:
            if error.args[0] in {1064, 1054, 1146}:
                raise
            self.refused += 1

    def value(self, values: Values, nulls: float) -> str:
        return "NULL" if self.chance.random() < nulls else values(self.chance)

    def write(self, table: str, columns: dict[str, Values], count: int, *, where: str, nulls: float = 0.1) -> None:
        """Inserts, of which some are of several rows, updates of some columns, and deletes."""
        names = list(columns)
        for number in range(count):
            rows = [
                f"({number * 10 + i}, {', '.join(self.value(columns[n], nulls) for n in names)})"
                for i in range(self.chance.choice([1, 1, 5]))
            ]
            self.run(f"INSERT INTO {table} (id, {', '.join(names)}) VALUES {', '.join(rows)}")
            some = self.chance.sample(names, self.chance.randint(1, len(names)))
            place = where.format(self.chance.randrange(number * 10 + 10))
            self.run(
                f"UPDATE {table} SET {', '.join(f'{n} = {self.value(columns[n], nulls)}' for n in some)} WHERE {place}"
            )
            if self.chance.random() < 0.3:
                self.run(f"DELETE FROM {table} WHERE {where.format(self.chance.randrange(number * 10 + 10))}")


def canonical(rows: pa.Array) -> list[tuple[Any, ...]]:
    """Rows as comparable values, bit by bit: no date or moment becomes Python's, and a NULL row has only None."""
    columns = []
    for place in range(rows.type.num_fields):
        column = rows.field(place)
        if pa.types.is_floating(column.type):
            column = column.view(pa.int32() if column.type == pa.float32() else pa.int64())
        elif pa.types.is_date32(column.type):
            column = column.cast(pa.int32())
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns.append(column.to_pylist())
    return list(zip(*columns, strict=True))


def changes(source: MysqlSource, reader: Any) -> Iterator[tuple[TableId, str, Any, Any]]:
    """What the log has since it was opened: table, operation, before and row."""
    mark = source.mark()
    while True:
        batch = reader.pull(PullLimits(rows=100_000, bytes=256 << 20, wait_s=1.0))
        assert batch.table_errors == {}
        for change in batch.changes:
            before, row = change.rows.column(BEFORE), change.rows.column(ROW)
            no_before = before.is_null().to_pylist()
            for operation, old, new, is_absent in zip(
                change.rows.column(OPERATION).to_pylist(), canonical(before), canonical(row), no_before, strict=True
            ):
                yield change.schema.table, operation, None if is_absent else old, new
        if mark in batch.marks:
            return


class Fold:
    """Tables as the log says."""

    def __init__(self, schemas: dict[TableId, TableSchema]) -> None:
        self._keys = {t: [[c.name for c in s.columns].index(k) for k in s.key] for t, s in schemas.items()}
        self.keyed: dict[TableId, dict[tuple[Any, ...], tuple[Any, ...]]] = {t: {} for t in schemas}
        self.bags: dict[TableId, Counter[tuple[Any, ...]]] = {t: Counter() for t in schemas}

    def take(self, table: TableId, operation: str, before: Any, row: Any) -> None:
        places = self._keys[table]
        if not places:
            bag = self.bags[table]
            if operation != "INSERT":
                assert bag[before] > 0, (table, operation, before)
                bag[before] -= 1
            if operation != "DELETE":
                bag[row] += 1
            return
        rows = self.keyed[table]
        key = tuple(row[p] for p in places)
        if operation == "INSERT":
            assert key not in rows, (table, key)
        else:
            del rows[before if before is not None else key]
        if operation != "DELETE":
            rows[key] = row

    def rows(self, table: TableId) -> Counter[tuple[Any, ...]]:
        return +self.bags[table] if not self._keys[table] else Counter(self.keyed[table].values())


def snapshot(source: MysqlSource, schema: TableSchema) -> Counter[tuple[Any, ...]]:
    batches = []
    if not schema.key:
        with source.read_whole(schema) as read:
            batches = list(read.batches)
    else:
        after = None
        while True:
            chunk = source.read_chunk(ChunkRequest(schema=schema, after=after, limit=7))
            batches.append(chunk.rows)
            if chunk.rows.num_rows < 7:
                break
            assert chunk.cursor != after
            after = chunk.cursor
    return Counter(
        row for b in batches for row in canonical(pa.StructArray.from_arrays(b.columns, fields=list(schema.row_type)))
    )


def run_matrix(database: MysqlDatabase, source: MysqlSource, group: str, seed: int, count: int) -> None:
    types = group_of(group, database)
    columns = {f"c{n}": values for n, values in enumerate(types.values())}
    made = ", ".join(f"c{n} {type_} NULL" for n, type_ in enumerate(types))
    keys = {n: type_ for n, type_ in enumerate(types) if can_be_key(type_)}
    database.execute(
        f"CREATE TABLE keyed (id int PRIMARY KEY, {made}, plus bigint AS (id + 1) VIRTUAL, twice bigint AS (id * 2) STORED)"
        " ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4",
        f"CREATE TABLE bag (id int, {made}) ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4",
        # Which rows a key holds for one, its collation says: 'a' and 'A' are two keys only if it takes them for two.
        *(
            f"CREATE TABLE k{n} (id int, c{n} {t} NOT NULL, PRIMARY KEY (c{n})) CHARACTER SET utf8mb4"
            for n, t in keys.items()
        ),
    )
    tables = [TableId(database.name, name) for name in ("keyed", "bag", *(f"k{n}" for n in keys))]
    schemas = {table: d.schema for table, d in source.describe(tables).items()}
    assert all(schemas[t].key == (t.name.replace("k", "c"),) for t in tables[2:])
    reader = source.open_log(source.prepare(tables, is_first=True), schemas)
    fold = Fold(schemas)
    try:
        writer = Writer(database, seed)
        with closing(writer.connection):
            writer.write("keyed", columns, count, where="id = {}")
            # Without a key, also rows that are equal.
            writer.write("bag", columns, count, where="id BETWEEN {0} AND {0} + 3")
            writer.run("INSERT INTO bag SELECT * FROM bag LIMIT 20")
            writer.run("DELETE FROM bag LIMIT 5")
            for n, type_ in keys.items():
                writer.write(
                    f"k{n}",
                    {f"c{n}": held(type_, columns[f"c{n}"])},
                    max(10, count // 2),
                    nulls=0,
                    where="id BETWEEN {0} AND {0} + 3",
                )
        assert writer.taken > writer.refused / 3
        for change in changes(source, reader):
            fold.take(*change)
    finally:
        reader.close()
    for table in tables:
        logged, read = fold.rows(table), snapshot(source, schemas[table])
        names = [c.name for c in schemas[table].columns]
        assert logged == read, (
            f"{table.name} ({keys.get(int(table.name[1:]) if table.name[1:].isdigit() else -1, group)}), {names}:"
            f" only in the log {list((logged - read).items())[:2]!r:.2000}, only read {list((read - logged).items())[:2]!r:.2000}"
        )


@pytest.fixture
def source(mysql_database: MysqlDatabase, source_of: Callable[..., MysqlSource]) -> MysqlSource:
    return source_of(mysql_database.server, unrepresentable="null")


@pytest.mark.parametrize("group", [*GROUPS, "own"])
@pytest.mark.condition("D07", "D10", "D12", "M33")
def test_log_and_snapshot_agree(mysql_database: MysqlDatabase, source: MysqlSource, group: str) -> None:
    run_matrix(mysql_database, source, group, seed=1, count=25)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("group", [*GROUPS, "own"])
def test_log_and_snapshot_agree_for_longer(
    mysql_database: MysqlDatabase, source: MysqlSource, group: str, seed: int
) -> None:
    run_matrix(mysql_database, source, group, seed=seed, count=300)
