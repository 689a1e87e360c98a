"""The column types of MySQL and MariaDB, and what may stand in them: boundaries and random values, as SQL expressions."""

from __future__ import annotations

import random
from collections.abc import Callable

from replicator_testbed.mysql.servers import MysqlDatabase

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
    "utf8mb4": "aéß日𝄞Ω", "utf8mb3": "aéß日Ω", "latin1": "aéß€ü", "latin2": "ařŁž", "cp1250": "ařŁž€", "cp1251": "aПжиЯ", "koi8r": "aПжиЯ",
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
