"""Odd PostgreSQL tables, one per type, kind of key and kind of table, and random transactions over them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import sql

from replicator.model.schema import TableId
from replicator_testbed.postgresql.servers import ScratchDatabase

_LARGE: Final = "(SELECT string_agg(md5((g + {n})::text), '') FROM generate_series(1, 200) AS g)"
_SETTINGS: Final = (
    "-c datestyle=ISO -c intervalstyle=iso_8601 -c timezone=UTC -c lc_monetary=C -c extra_float_digits=1"
    " -c bytea_output=hex -c search_path=public -c xmlbinary=base64"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OddTable:
    """A table, the statements that make it, and what a random change may write into each of its columns.

    Attributes:
        columns: Column name → SQL expressions.
        can_truncate: Whether random transactions empty it now and then.
        through: The table that random changes name instead (a partition, or the parent of a foreign key).
    """

    name: str
    statements: Sequence[str]
    columns: Mapping[str, Sequence[str]]
    can_truncate: bool = False

    @property
    def table(self) -> TableId:
        """Its name in the schema public."""
        return TableId("public", self.name)

    @property
    def sql_name(self) -> str:
        """Quoted."""
        return quoted(self.name)


def quoted(name: str) -> str:
    """A name as a statement has it."""
    return sql.Identifier(name).as_string(None)


def _texts(*values: str) -> list[str]:
    return ["NULL", *(sql.Literal(value).as_string(None) for value in values)]


NUMBERS: Final = tuple(map(str, range(1, 40)))

# Type → values of a column that is not the key. NULL comes by itself.
VALUES: Final[Mapping[str, Sequence[str]]] = {
    "boolean": ("t", "f"),
    "smallint": ("-32768", "0", "32767"),
    "integer": ("-2147483648", "0", "7"),
    "bigint": ("-9223372036854775808", "1", "9223372036854775807"),
    "oid": ("0", "4294967295"),
    "real": ("NaN", "-0", "1e-45", "3.4028235e38", "Infinity", "0.1"),
    "double precision": ("NaN", "-0", "5e-324", "1.7976931348623157e308", "-Infinity", "0.1", "0.30000000000000004"),
    "numeric": ("NaN", "0", "0.00", "-1.50", "1e100", "123456789012345678901234567890.123456789"),
    "numeric(12,3)": ("0", "-999999999.999", "1.5"),
    "numeric(38,10)": ("0", "-9999999999999999999999999999.9999999999", "0.0000000001"),
    "numeric(60,5)": ("-1" + "0" * 50 + ".5", "3"),
    "numeric(200,5)": ("-1" + "0" * 150 + ".5", "3"),
    "money": ("-1.23", "92233720368547758.07"),
    "text": ("", " ", "ä\tb\nc", "\\N", "😀", "null", "'\"`$"),
    "varchar(20)": ("", "abc  ", "\u017f"),
    "char(8)": ("", "ab", "ab ", "12345678"),
    "name": ("a", "B c"),
    '"char"': ("a", ""),
    "bytea": ("", "\\x00ff10", "\\x" + "de" * 3000),
    "date": ("2024-02-29", "4713-01-01 BC", "5874897-12-31", "0001-12-31 BC", "1582-10-10"),
    "time": ("00:00", "23:59:59.999999", "12:34:56.1"),
    "time(3)": ("00:00", "23:59:59.999"),
    "timetz": ("00:00+14", "23:59:59.999999-12:59", "24:00+00"),
    "timestamp": ("2024-02-29 12:00", "4713-01-01 00:00 BC", "294246-12-31 23:59:59", "1900-01-01 00:00:00.000001"),
    "timestamp(0)": ("2024-02-29 12:00:01", "0001-01-01 00:00"),
    "timestamptz": ("2024-03-31 02:30+01", "0044-03-15 BC", "99999-01-01 00:00+00", "1883-11-18 12:03:58-04:56:02"),
    "interval": ("30 days", "1 mon", "-1 year 2 mons -3 days 04:05:06.789", "720:00", "0"),
    "interval day to second": ("1 day 2:03:04.5",),
    "uuid": ("00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "json": ('{"a": 1, "a" : 2}', "null", " [1,2] ", '"\\u0041"'),
    "jsonb": ('{"b": 1, "a": [1.0, 1.00]}', "null", "[]", '"ä"', "1e400"),
    "xml": ("<a/>", "text", "<b>&amp;</b><c/>"),
    "inet": ("10.0.0.1", "10.0.0.1/8", "::1", "fe80::1/10"),
    "cidr": ("10.0.0.0/8", "10.0.0.1/32", "2001:db8::/32"),
    "macaddr": ("08:00:2b:01:02:03",),
    "macaddr8": ("08:00:2b:01:02:03:04:05",),
    "bit(5)": ("10101", "00000"),
    "varbit": ("", "1", "0101010101"),
    "point": ("(0,-0)", "(1e-300,Infinity)", "(0.1,0.2)"),
    "line": ("{1,-1,0}",),
    "lseg": ("[(0,0),(1,1)]",),
    "box": ("(1,1),(0,0)",),
    "path": ("[(0,0),(1,1)]", "((0,0),(1,1))"),
    "polygon": ("((0,0),(1,1),(2,0))",),
    "circle": ("<(0,0),1>",),
    "tsvector": ("a fat cat", "'it''s':1A"),
    "tsquery": ("fat & (cat | !dog)", "'a b':*"),
    "int4range": ("empty", "[1,5)", "(,)", "[3,)"),
    "int8range": ("[1,9000000000)",),
    "numrange": ("[1.0,1.00]", "(0.5,2]"),
    "tsrange": ('["2024-01-01 00:00","2024-01-02 00:00")', "(,infinity)"),
    "tstzrange": ('["2024-01-01 00:00+05","2024-01-02 00:00+05")',),
    "daterange": ("[2024-01-01,2024-02-01]", "(-infinity,infinity)"),
    "pg_lsn": ("16/B374D848", "0/0"),
    "xid": ("0", "4294967295"),
    "tid": ("(0,1)", "(4294967295,65535)"),
    "cid": ("7",),
    "pg_snapshot": ("10:20:10,14,15",),
    "txid_snapshot": ("10:20:",),
    "jsonpath": ('$."a"[*] ? (@ > 1)', "strict $"),
    "oidvector": ("1 2 3", ""),
    "int2vector": ("1 2",),
    "refcursor": ("c",),
    "mood": ("sad", "ok", "very happy, 'quoted'"),
    "positive": ("1", "99"),
    "small_positive": ("1", "9"),
    "label": ("", "x"),
    "scores": ("{}", "{1,2,NULL}"),
    "pair": ("(1,a)", "(,)", '(2,"a ""quoted"", \\\\ one")'),
    "nested": ('("(1,a)","{1,2}",ok)', "(,,)"),
    "integer[]": ("{}", "{1,NULL,-3}"),
    "bigint[]": ("{9223372036854775807}", "{}"),
    "smallint[]": ("{1,2}",),
    "double precision[]": ("{NaN,-0,Infinity,NULL,5e-324}", "{}"),
    "real[]": ("{NaN,-0,0.1}",),
    "text[]": ("{}", '{"",NULL,"NULL","a,b","{}","\\"q\\"","\\\\"}'),
    "varchar(5)[]": ("{a,bc}",),
    "char(3)[]": ("{a,bc}",),
    "boolean[]": ("{t,f,NULL}",),
    "bytea[]": ('{"\\\\x00ff",NULL}',),
    "date[]": ("{2024-01-01,NULL}", '{"0044-03-15 BC"}'),
    "time[]": ("{00:00,23:59:59.5}",),
    "timestamp[]": ('{"2024-01-01 00:00:00.5",NULL}',),
    "timestamptz[]": ('{"2024-01-01 00:00+05"}',),
    "numeric[]": ("{NaN,1.0,1.00}",),
    "numeric(10,2)[]": ("{1.5,NULL}",),
    "uuid[]": ("{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",),
    "jsonb[]": ('{"{\\"a\\": 1}",NULL}',),
    "interval[]": ('{"1 mon","30 days"}',),
    "inet[]": ("{10.0.0.1,::1}",),
    "mood[]": ("{sad,NULL,\"very happy, 'quoted'\"}",),
    "positive[]": ("{1,2}",),
    "pair[]": ('{"(1,a)",NULL}',),
    "box[]": ("{(1,1),(0,0);(2,2),(1,1)}",),
    "int4range[]": ('{"[1,5)",empty}',),
    "oid[]": ("{0,4294967295}",),
}
_MULTIRANGES: Final = {
    "int4multirange": ("{}", "{[1,3),[5,9)}"),
    "nummultirange": ("{[1.0,1.5]}",),
    "tstzmultirange": ('{["2024-01-01 00:00+00","2024-01-02 00:00+00")}',),
    "datemultirange": ("{[2024-01-01,2024-02-01)}",),
    "xid8": ("0", "18446744073709551615"),
}
_EXTENSIONS: Final = {
    "hstore": ("hstore", ('a=>1, "b c"=>NULL', "")),
    "citext": ("citext", ("a", "A", "")),
    "ltree": ("ltree", ("a.b.c", "")),
}

# Key type → distinct values, and some that are equal to others under the key's own equality.
KEYS: Final[Mapping[str, Sequence[str]]] = {
    "numeric": ("1", "1.0", "1.00", "-1e50", "0", "0.0", "NaN", "7.5"),
    "numeric(10,2)": ("1", "2.50", "-3"),
    "numeric(60,5)": ("1", "-1e50", "2.5"),
    "smallint": ("-3", "0", "5", "6"),
    "bigint": ("-9223372036854775808", "0", "9223372036854775807", "5"),
    "oid": ("0", "1", "4294967295"),
    "boolean": ("t", "f"),
    "text": ("", "a", "A", "ä", "a ", "\\N", "'", "😀", "\u00e9", "e\u0301"),
    "varchar(10)": ("", "a", "a ", "B"),
    "char(8)": ("", "a", "a  ", "B", "12345678"),
    "name": ("a", "B", "c d"),
    '"char"': ("a", "b"),
    "bytea": ("", "\\x00", "\\xff", "\\x0001"),
    "date": ("0044-03-15 BC", "4713-01-01 BC", "5874897-12-31", "2024-02-29"),
    "time": ("00:00", "23:59:59.999999", "12:00"),
    "timetz": ("12:00+00", "13:00+01", "12:00+01", "00:00-12"),
    "timestamp": ("0044-03-15 12:00 BC", "2024-01-01", "294246-12-31"),
    "timestamptz": ("2024-01-01 00:00+00", "2024-01-01 05:00+05", "0044-03-15 BC"),
    "interval": ("30 days", "1 mon", "720:00", "0", "-1 day"),
    "inet": ("10.0.0.1", "10.0.0.1/8", "::1"),
    "cidr": ("10.0.0.0/8", "10.0.0.0/16"),
    "macaddr": ("08:00:2b:01:02:03", "08:00:2b:01:02:04"),
    "uuid": ("00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "jsonb": ("1", "1.0", '{"a": 1}', '{"a": 1.00}', "null", '"x"', "[]"),
    "int4range": ("empty", "[1,5)", "[1,4]", "(,)"),
    "numrange": ("[1.0,2]", "[1.00,2]", "empty"),
    "daterange": ("[2024-01-01,2024-02-01)", "[2024-01-01,2024-01-31]"),
    "money": ("1", "-2.50"),
    "bit(5)": ("10101", "00000"),
    "varbit": ("", "0", "1", "00"),
    "pg_lsn": ("0/0", "16/B374D848"),
    "mood": ("sad", "ok", "very happy, 'quoted'"),
    "positive": ("1", "2", "3"),
    "label": ("", "x", "X"),
    "pair": ("(1,a)", "(1,)", "(,a)", "(2,b)"),
    "tsvector": ("a b", "b"),
    "text COLLATE blind": ("a", "A", "á", "b"),
    "text COLLATE digits": ("a9", "a10", "a1", "b"),
    "char(6) COLLATE blind": ("a", "A", "b"),
}

_TYPES: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'very happy, ''quoted''')",
    "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
    "CREATE DOMAIN small_positive AS positive CHECK (VALUE < 10)",
    "CREATE DOMAIN label AS text",
    "CREATE DOMAIN scores AS int[]",
    "CREATE TYPE pair AS (n int, t text)",
    "CREATE TYPE nested AS (p pair, a int[], m mood)",
)
_COLLATIONS: Final = (
    "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level1', deterministic = false)",
    "CREATE COLLATION digits (provider = icu, locale = 'und-u-kn-true')",
)


def make_tables(database: ScratchDatabase, *, rows: int, seed: int = 1, only: int | None = None) -> list[OddTable]:
    """Make the tables, each with some rows. A server without ICU or XML has none with them.

    Args:
        database: A fresh one.
        rows: At most so many are tried in each; some are refused for their key.
        seed: Of the random rows.
        only: Every so-maniest table alone; None: all.
    """
    values = make_types(database)
    icu = "SELECT 1 FROM pg_collation WHERE collprovider = 'i' AND collname <> 'unicode' LIMIT 1"
    has_icu = bool(database.execute(icu))
    if has_icu:
        database.execute(*_COLLATIONS)
    tables = [
        *_of_values(values),
        *_of_keys(has_citext="citext" in values, has_icu=has_icu),
        *_of_kinds(has_icu=has_icu),
    ]
    tables = tables if only is None else tables[seed % only :: only]
    chance = random.Random(seed)
    for table in tables:
        database.execute(*table.statements)
    with connection_to(database) as connection:
        for table in tables:
            for _ in range(rows):
                _try(connection, _insert(table, chance))
    return tables


def make_types(database: ScratchDatabase) -> Mapping[str, Sequence[str]]:
    """Make the types that are not built in; returns the values of a column of each type that the server has."""
    database.execute(*_TYPES)
    available = {name for (name,) in database.execute("SELECT name FROM pg_available_extensions")}
    extensions = {name: values for extension, (name, values) in _EXTENSIONS.items() if extension in available}
    database.execute(*(f"CREATE EXTENSION {name}" for name in _EXTENSIONS if name in available))
    newer = _MULTIRANGES if database.server.major_version >= 14 else {}
    types = {**VALUES, **newer, **extensions}
    if not _has_xml(database):
        del types["xml"]
    return types


def _of_values(types: Mapping[str, Sequence[str]]) -> Iterator[OddTable]:
    for number, (type_, values) in enumerate(types.items()):
        name = f"v{number}"
        yield OddTable(
            name=name,
            statements=(f"CREATE TABLE {name} (id int PRIMARY KEY, v {type_})",),
            columns={"id": NUMBERS, "v": _texts(*values)},
        )


def _has_xml(database: ScratchDatabase) -> bool:
    try:
        database.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def _of_keys(*, has_citext: bool, has_icu: bool) -> Iterator[OddTable]:
    keys = {**KEYS, **({"citext": ("a", "A", "b", "")} if has_citext else {})}
    keys = {type_: values for type_, values in keys.items() if has_icu or "COLLATE" not in type_}
    for number, (type_, values) in enumerate(keys.items()):
        name = f"k{number}"
        yield OddTable(
            name=name,
            statements=(
                f"CREATE TABLE {name} (id {type_} PRIMARY KEY, v int, big text)",
                f"ALTER TABLE {name} ALTER COLUMN big SET STORAGE EXTERNAL",
            ),
            columns={"id": _texts(*values)[1:], "v": NUMBERS, "big": [_LARGE.format(n=1), _LARGE.format(n=2), "NULL"]},
        )


_BIG: Final = ["NULL", *(_LARGE.format(n=n) for n in range(3))]
_SMALL: Final = [*NUMBERS[:5], "NULL"]


def _of_kinds(*, has_icu: bool) -> Iterator[OddTable]:
    plain = {"id": NUMBERS, "v": _SMALL, "big": _BIG}
    blind = "COLLATE blind" if has_icu else ""

    def kind(name: str, columns: Mapping[str, Sequence[str]], *statements: str, can_truncate: bool = False) -> OddTable:
        return OddTable(name=name, statements=statements, columns=columns, can_truncate=can_truncate)

    body = "(id int PRIMARY KEY, v int, big text)"
    yield kind("toasted", plain, f"CREATE TABLE toasted {body}")
    yield kind("whole", plain, f"CREATE TABLE whole {body}", "ALTER TABLE whole REPLICA IDENTITY FULL")
    yield kind("emptied", plain, f"CREATE TABLE emptied {body}", can_truncate=True)
    yield kind("by_index", plain, "CREATE TABLE by_index (id int NOT NULL, v int, big text)",
        "CREATE UNIQUE INDEX by_index_i ON by_index (id DESC) INCLUDE (v)",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_i")  # fmt: skip
    yield kind("composite_key", {"b": _texts("x", "X", "y")[1:], "a": NUMBERS[:6], "v": _SMALL, "big": _BIG},
        f"CREATE TABLE composite_key (v int, b text {blind}, big text, a int, PRIMARY KEY (b, a))")  # fmt: skip
    yield kind("large_key", {"id": [_LARGE.format(n=n).replace("200", "78") for n in range(5)], "v": _SMALL},
        "CREATE TABLE large_key (id text PRIMARY KEY, v int)")  # fmt: skip
    yield kind("bag", {"n": NUMBERS[:3], "v": _texts("x"), "f": _texts("0", "-0", "NaN")},
        "CREATE TABLE bag (n int, v text, f float8)", "ALTER TABLE bag REPLICA IDENTITY FULL")  # fmt: skip
    yield kind("bag_emptied", {"n": NUMBERS[:3], "big": _BIG}, "CREATE TABLE bag_emptied (n int, big text)",
        "ALTER TABLE bag_emptied REPLICA IDENTITY FULL", can_truncate=True)  # fmt: skip
    yield kind("parts", {"id": NUMBERS, "part": NUMBERS[:4], "v": _SMALL, "big": _BIG},
        "CREATE TABLE parts (id int, part int, v int, big text, PRIMARY KEY (part, id)) PARTITION BY LIST (part)",
        "CREATE TABLE parts1 PARTITION OF parts FOR VALUES IN (1)",
        "CREATE TABLE parts2 (big text, gone int, v int, part int NOT NULL, id int NOT NULL, PRIMARY KEY (part, id))",
        "ALTER TABLE parts2 DROP COLUMN gone",
        "ALTER TABLE parts ATTACH PARTITION parts2 FOR VALUES IN (2)",
        "ALTER TABLE parts2 REPLICA IDENTITY FULL",
        "CREATE TABLE parts3 PARTITION OF parts FOR VALUES IN (3, 4) PARTITION BY RANGE (id)",
        "CREATE TABLE parts3a PARTITION OF parts3 FOR VALUES FROM (0) TO (20)",
        "CREATE TABLE parts3b PARTITION OF parts3 DEFAULT")  # fmt: skip
    yield kind("parent", plain, f"CREATE TABLE parent {body}", "CREATE TABLE child (more int, PRIMARY KEY (id)) INHERITS (parent)",
        "INSERT INTO child VALUES (1000, 1, 'of the child', 1)")  # fmt: skip
    yield kind("generated", {"id": NUMBERS, "v": _SMALL},
        "CREATE TABLE generated (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (v * 2) STORED)")  # fmt: skip
    yield kind("dropped", {"id": NUMBERS, "v": _SMALL, "w": _SMALL}, "CREATE TABLE dropped (a int, id int PRIMARY KEY, v int)",
        "ALTER TABLE dropped DROP COLUMN a", "ALTER TABLE dropped ADD COLUMN w int DEFAULT 7")  # fmt: skip
    yield kind("family", {"id": NUMBERS[:12], "up": ["NULL", *NUMBERS[:12]], "v": _SMALL},
        "CREATE TABLE family (id int PRIMARY KEY, up int REFERENCES family ON DELETE CASCADE ON UPDATE CASCADE, v int)")  # fmt: skip
    for name in ("Ta ble", "a.b", "..", "*", "NULL", "a\"b'c`", "_delta_log", "naïve"):
        yield kind(name, {"i.d": NUMBERS, "`v`": _SMALL, 'q"': _SMALL},
            f'CREATE TABLE {quoted(name)} ("i.d" int PRIMARY KEY, "`v`" int, "q""" int)')  # fmt: skip
    odd = ["row", "before", "key", "s", "t", "c2", "a b", "a.b", "a`b", "a\\b", "a\tb", "a\nb", "$x", "${x}", "NULL"]
    yield kind("odd_columns", {"id": NUMBERS, **dict.fromkeys(odd, _SMALL)},
        f"CREATE TABLE odd_columns (id int PRIMARY KEY, {', '.join(f'{quoted(n)} int' for n in odd)})")  # fmt: skip
    wide = [f"c{n:04}" for n in range(999)]
    yield kind("wide", {"id": NUMBERS[:8], "c0007": _SMALL, "c0998": _SMALL},
        f"CREATE TABLE wide (id int PRIMARY KEY, {', '.join(f'{n} int' for n in wide)})")  # fmt: skip


# -- random transactions -------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class RandomLoad:
    """Transactions over the tables: savepoints, rollbacks, two-phase commits, refused statements."""

    database: ScratchDatabase
    tables: Sequence[OddTable]
    seed: int
    done: int = 0
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def run(self, transactions: int) -> None:
        """Run so many, one after the other."""
        with connection_to(self.database) as connection:
            for _ in range(transactions):
                self._transaction(connection)
                self.done += 1

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        chance = self._chance
        end = chance.choices(["COMMIT", "ROLLBACK", "PREPARE"], [8, 1, 1])[0]
        connection.execute("BEGIN")
        for _ in range(chance.randint(1, 12)):
            table = chance.choice(self.tables)
            if chance.random() < 0.2:
                connection.execute("SAVEPOINT s")
                for _ in range(chance.randint(1, 3)):
                    _try(connection, self._statement(table))
                connection.execute("ROLLBACK TO s" if chance.random() < 0.5 else "RELEASE s")
            else:
                _try(connection, self._statement(table))
        if end == "PREPARE":
            name = f"load {self.seed} {self.done}"
            connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
            end = f"{chance.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} PREPARED '{name}'"
        connection.execute(end.encode())

    def _statement(self, table: OddTable) -> str:
        chance = self._chance
        kinds = ["insert", "update", "update", "update_all", "delete"]
        kind = "truncate" if table.can_truncate and chance.random() < 0.05 else chance.choice(kinds)
        some = f"ctid = (SELECT ctid FROM ONLY {table.sql_name} OFFSET {chance.randint(0, 9)} LIMIT 1)"
        if table.name == "parts":
            some = f"(tableoid, ctid) = (SELECT tableoid, ctid FROM parts OFFSET {chance.randint(0, 9)} LIMIT 1)"
        only = "" if table.name == "parts" else "ONLY "
        if kind == "insert":
            return _insert(table, chance)
        if kind == "delete":
            return f"DELETE FROM {only}{table.sql_name} WHERE {some}"
        if kind == "truncate":
            return f"TRUNCATE {table.sql_name}"
        columns = list(table.columns)
        chosen = chance.sample(columns, chance.randint(1, len(columns)))
        if kind == "update_all":
            # What is not the key, of many rows at once.
            chosen, some = columns[-1:], "true"
        sets = ", ".join(f"{quoted(c)} = {chance.choice(table.columns[c])}" for c in chosen)
        return f"UPDATE {only}{table.sql_name} SET {sets} WHERE {some}"


def _insert(table: OddTable, chance: random.Random) -> str:
    names = ", ".join(map(quoted, table.columns))
    values = ", ".join(chance.choice(values) for values in table.columns.values())
    return f"INSERT INTO {table.sql_name} ({names}) VALUES ({values})"


def _try(connection: psycopg.Connection[Any], statement: str) -> None:
    """Run a statement that a key or a constraint may refuse."""
    with contextlib.suppress(psycopg.errors.IntegrityError), connection.transaction():
        connection.execute(statement.encode())


def connection_to(database: ScratchDatabase) -> psycopg.Connection[Any]:
    """A connection on which values are spelled in one way."""
    return database.connect(options=_SETTINGS)
