"""Virtual columns: those that are taken have one value in every session, and all others are refused."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
import pymysql
import pytest

from replicator.model.errors import Severity, TableError
from replicator.model.events import ROW
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import PullLimits
from replicator_source_mysql.binlog import ColumnSpec, declared_spec
from replicator_source_mysql.catalogue import virtual
from replicator_source_mysql.catalogue.virtual import _Type, is_same_for_all
from replicator_source_mysql.flavors import MYSQL, flavor_of_server
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testing.defaults import chunk_request

Make = Callable[..., MysqlSource]

BASE = (
    "id int PRIMARY KEY, i int, k tinyint, u int unsigned, b bigint, v varchar(20), w varchar(20) CHARACTER SET latin1,"
    " c char(5), d date, dt datetime(3), ts timestamp NULL, doc json, e enum('a', 'b', ''), f double, t text"
)
TAKEN = {
    "bigint": [
        "i + 1", "-i", "i - k * 2", "(i + u) % 7", "i div k", "i & 1 | 4", "i << 2", "~i", "i ^ u", "i = 1", "i <> u", "not i", "i <=> k",
        "i > 1 and k < 3", "i or k", "i xor k", "i is null", "ts is not null", "c is null", "f is null", "if(i > 0, i, k)", "ifnull(i, 0)",
        "coalesce(i, k, 0)", "nullif(i, 0)", "case when i > 0 then 1 else 2 end", "case i when 1 then 2 when 3 then 4 end",
        "greatest(i, k)", "least(i, k, 3)", "abs(i)", "sign(i)", "i between 1 and 5", "i in (1, 2, 3)", "mod(i, 3)", "year(d)", "month(dt)",
        "dayofmonth(d)", "quarter(d)", "hour(dt)", "minute(dt)", "second(dt)", "v = 'x'", "v in ('a', 'b')", "e = 'a'", "char_length(v)",
        "crc32(v)", "true", "5", "i", "v = w", "w < 'M'", "u + 5", "if(v = 'x' and i is null, 1, null)",
        # Numbers and hashes as text have no column's character set: their bytes and their collation are no session's either.
        "crc32(concat(i, 'x'))", "crc32(concat(i, k))", "concat(i, 'x') = concat(k, 'X')", "char_length(concat(i, k))",
        "crc32(sha2(v, 256))", "sha2(v, 256) = upper(sha2(v, 256))", "crc32(if(i > 0, 'yes', 'no'))",
        "crc32(json_unquote(json_extract(doc, '$.a')))",
    ],
    "varchar(100)": [
        "concat(v, ' ', w)", "concat('A-', i)", "concat_ws(',', v, w)", "upper(v)", "lower(w)", "left(v, 3)", "right(w, 3)", "sha2(v, 256)",
        "if(v = 'x', w, null)", "if(i > 0, 'yes', 'no')", "v", "coalesce(v, w, 'none')", "case e when 'a' then v end", "upper(left(v, 1))",
        "nullif(v, 'x')", "json_unquote(json_extract(doc, '$.a'))", "json_extract(doc, '$.b.c')",
        "sha2(sha2(v, 256), 224)", "sha2(concat(i, k), 256)", "upper(concat(i, 'x'))", "nullif(concat(i, 'x'), concat(k, 'X'))",
    ],
    "varchar(3) character set ascii": ["v", "concat(i, v)"],
    "tinyint": ["i", "i * 2", "u"],
    "int unsigned": ["i", "u + k"],
    "date": ["date(dt)", "d", "if(i > 0, d, null)"],
    "text": ["concat(v, w)"],
}  # fmt: skip
TAKEN_BY = {
    "mariadb": {
        "varchar(100)": [
            "json_value(doc, '$.a')",
            "md5(v)",
            "sha1(w)",
            "md5(concat(i, k))",
            "sha2(md5(v), 256)",
            "upper(md5(v))",
        ],
        "bigint": ["crc32(md5(v))", "md5(v) = upper(md5(v))", "sha1(w) = v"],
    },
    "mysql": {"json": ["json_extract(doc, '$.b')"], "varchar(100)": ["doc->>'$.a'", "concat(v, '')"]},
}
REFUSED = {
    "date": ["date(ts)", "cast(v as date)", "makedate(i, 1)", "d + interval 1 month", "from_days(i)", "coalesce(date(dt), d)"],
    "int": [
        "hour(ts)", "f", "i / 2", "u - i", "-u", "(i & 1) - 2", "crc32(v) - 1", "week(d)", "v + 1", "length(c)", "c = 'x'", "v like 'a%'",
        "cast(v as signed)", "i = 'x'", "year(ts)", "1.5", "i + 1.5", "to_days(ts)", "year(v)", "ascii(c)", "i in ('a', 2)", "'a' = 'A'",
        # Whether a zero or partial date is NULL as a date.
        "quarter(date(dt))", "date(dt) is null", "if(date(dt) is null, 1, 2)", "dayofmonth(cast(d as date))",
    ],
    "varchar(100)": [
        "monthname(d)", "dayname(d)", "concat(c, 'x')", "c", "date_format(d, '%M')", "i / 3", "f", "concat(f, 'x')", "concat(ts)", "ts",
        "dt", "concat(v, 'it''s')", "concat(v, 'é')", "substr(v, 1, 2)", "lpad(v, 5, '0')", "format(i, 2)", "i", "concat(t, v)", "upper(c)",
    ],
    "char(10)": ["v"],
    "datetime": ["dt", "ts"],
    "decimal(10,2)": ["i / 3", "i"],
}  # fmt: skip

SESSIONS = [
    ["sql_mode = ''"],
    ["sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,NO_UNSIGNED_SUBTRACTION,PIPES_AS_CONCAT,ANSI_QUOTES,IGNORE_SPACE,HIGH_NOT_PRECEDENCE'"],
    ["sql_mode = 'REAL_AS_FLOAT,NO_BACKSLASH_ESCAPES,ALLOW_INVALID_DATES'"],
    ["sql_mode = 'NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO'"],
    ["sql_mode = ''", "time_zone = '-11:30'", "lc_time_names = 'de_DE'", "div_precision_increment = 30", "default_week_format = 5"],
    ["sql_mode = ''", "collation_connection = ucs2_bin", "character_set_results = latin1"],
    ["sql_mode = ''", "NAMES latin1 COLLATE latin1_german2_ci"],
    ["sql_mode = ''", "collation_connection = utf16_general_ci"],
    ["sql_mode = ''", "collation_connection = utf32_bin"],
    ["sql_mode = ''", "NAMES utf8mb4 COLLATE utf8mb4_bin"],
    ["sql_mode = ''", "NAMES sjis"],
    ["sql_mode = ''", "NAMES binary"],
]  # fmt: skip
MARIADB_SESSIONS = [
    ["sql_mode = 'ORACLE'"],
    ["sql_mode = 'EMPTY_STRING_IS_NULL,TIME_ROUND_FRACTIONAL,SIMULTANEOUS_ASSIGNMENT'"],
    ["sql_mode = 'MSSQL'"],
    ["sql_mode = ''", "old_mode = 'NO_DUP_KEY_WARNINGS_WITH_IGNORE,ZERO_DATE_TIME_CAST,COMPAT_5_1_CHECKSUM'"],
]
MYSQL_SESSIONS = [["sql_mode = 'TIME_TRUNCATE_FRACTIONAL'"]]


def _columns(database: MysqlDatabase, table: str) -> dict[str, tuple[str, ColumnSpec | None]]:
    rows = database.execute(
        "SELECT column_name, column_type, character_set_name FROM information_schema.columns"
        f" WHERE table_schema = DATABASE() AND table_name = '{table}'"
    )
    return {n: (t, declared_spec(t, c, flavor_of_server(database.server.flavor))) for n, t, c in rows}


def _is_taken(database: MysqlDatabase, type_: str, expression: str) -> bool:
    database.execute(f"CREATE TABLE x ({BASE}, g {type_} AS ({expression}) VIRTUAL)")
    try:
        ((text,),) = database.execute(
            "SELECT generation_expression FROM information_schema.columns"
            " WHERE table_schema = DATABASE() AND table_name = 'x' AND column_name = 'g'"
        )
        return is_same_for_all(text, "g", _columns(database, "x"), flavor_of_server(database.server.flavor))
    finally:
        database.execute("DROP TABLE x")


def taken(flavor: str) -> list[tuple[str, str]]:
    return [(t, e) for forms in (TAKEN, TAKEN_BY[flavor]) for t, es in forms.items() for e in es]


def test_harmless_forms_are_taken_and_others_refused(mysql_database: MysqlDatabase) -> None:
    for type_, expression in taken(mysql_database.server.flavor):
        assert _is_taken(mysql_database, type_, expression), (type_, expression)
    tried = 0
    for type_, expressions in REFUSED.items():
        for expression in expressions:
            try:
                is_taken = _is_taken(mysql_database, type_, expression)
            except pymysql.Error:
                continue  # the server itself does not allow it
            tried += 1
            assert not is_taken, (type_, expression)
    assert tried > 40


@pytest.mark.parametrize("expression", [
    "", "`i` +", "(`i`", "`i` 1", "`i` + 1 -- x", "now()", "`i` + `unknown`", "f(`i`)", "`i`; drop", "if(`i`)", "case end", "concat()",
    "'a",
    "`i` is", "`i` in ()", "`i` between 1", "cast(`i` as date)", "left(`v`)", "year(`d`,1)", "@x", "`g`(1)", "_binary'x'",
    "`i` collate utf8mb4_bin", "\x00",
])  # fmt: skip
def test_what_is_not_understood_to_its_end_is_refused(expression: str) -> None:
    columns = {
        n: (t, declared_spec(t, "utf8mb4", MYSQL))
        for n, t in {"i": "int", "v": "varchar(9)", "d": "date", "g": "int"}.items()
    }
    assert not is_same_for_all(expression, "g", columns, MYSQL)
    assert is_same_for_all("((`i` + 1) = 5)", "g", columns, MYSQL)


def _values(chance: random.Random) -> list[str]:
    dates = [
        "NULL",
        "'0000-00-00'",
        "'2024-00-00'",
        "'2024-02-00'",
        "'2024-02-31'",
        "'2024-02-29'",
        "'0000-05-05'",
        "'9999-12-31'",
    ]
    day = chance.choice(dates)
    moment = (
        "NULL" if day == "NULL" else f"{day[:-1]} {chance.choice(['00:00:00.000', '23:59:59.999', '12:30:01.500'])}'"
    )
    texts = ["NULL", "''", "'x'", "'X'", "'x  '", "'10abc'", "'{\"a\": 1}'", "'äöü'", "'long text of 20 char'"]
    documents = ["NULL", "'{}'", """'{"a": 1, "b": {"c": [1.5, null, "x"]}}'""", """'{"a": "q\\"u\\\\\\\\o\\\\u0041\\\\n", "b": null}'""",
                 """'{"a": null, "b": {"c": 1e100}}'""", """'{"a": "long text of more than 20 characters"}'"""]  # fmt: skip
    return [
        chance.choice(["NULL", "0", "1", "-1", "3", "127", "-128", "2147483647", "-2147483648"]),
        chance.choice(["NULL", "0", "1", "-128", "127"]),
        chance.choice(["NULL", "0", "1", "4294967295"]),
        chance.choice(["NULL", "9223372036854775807", "0"]),
        chance.choice(texts), chance.choice(texts), chance.choice(["NULL", "'a'", "'a b'"]), day, moment,
        chance.choice(["NULL", "'2024-06-01 22:00:00'"]), chance.choice(documents), chance.choice(["NULL", "'a'", "'b'"]), "1.5", "'t'",
    ]  # fmt: skip


def test_what_is_taken_has_one_value_in_every_session(mysql_database: MysqlDatabase, source_of: Make) -> None:
    forms = taken(mysql_database.server.flavor)
    columns = ", ".join(f"g{n} {type_} AS ({expression}) VIRTUAL" for n, (type_, expression) in enumerate(forms))
    mysql_database.execute(f"CREATE TABLE t ({BASE}, {columns}) CHARACTER SET utf8mb4")
    texts = {f"g{n}": form for n, form in enumerate(forms)}
    assert _compare_sessions(mysql_database, source_of, {"t": texts}, rows=60) > 300


def _compare_sessions(
    database: MysqlDatabase, source_of: Make, tables: Mapping[str, Mapping[str, Any]], *, rows: int
) -> int:
    """Write under many sessions, each of which may also be the first to open the tables; compare log and chunk.

    Args:
        database: Has the tables, with the columns of BASE.
        source_of: Makes the source.
        tables: What each virtual column of each table is, for the message.
        rows: To try in each session and table.

    Returns:
        How many rows were compared.
    """
    flavor = database.server.flavor
    source = source_of(database.server, unrepresentable="null")
    ids = {name: TableId(database.name, name) for name in tables}
    assert [p for p in source.check(list(ids.values())) if p.severity is Severity.BLOCKING] == []
    schemas = {table: found.schema for table, found in source.describe(list(ids.values())).items()}
    reader = source.open_log(source.prepare(list(schemas), is_first=True), schemas)
    chance, number = random.Random(flavor), 0
    for session in [*SESSIONS, *(MARIADB_SESSIONS if flavor == "mariadb" else MYSQL_SESSIONS)]:
        database.execute("FLUSH TABLES")
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET NAMES utf8mb4")
            for setting in session:
                cursor.execute(f"SET {setting}")
            cursor.execute("START TRANSACTION")
            for name in [name for name in tables for _ in range(rows)]:
                number += 1
                names = "id, i, k, u, b, v, w, c, d, dt, ts, doc, e, f, t"
                values = ", ".join(_values(chance))
                # A value that this session does not take is no row of any.
                try:
                    cursor.execute(f"INSERT INTO {name} ({names}) VALUES ({number}, {values})")
                except pymysql.Error:
                    continue
            cursor.execute("COMMIT")
    logged = _rows(source, reader)
    compared = 0
    for name, table in ids.items():
        schema = schemas[table]
        chunk = _texts(source.read_chunk(chunk_request(schema)).rows.columns, schema)
        assert len(chunk) == len(logged[table])
        compared += len(chunk)
        wrong = {
            (str(tables[name].get(column, column)), row[column], other[column])
            for row, other in zip(logged[table], chunk, strict=True)
            for column in row
            if row[column] != other[column]
        }
        assert not wrong, sorted(map(str, wrong))[:10]
    return compared


class Forms:
    """Makes expressions out of the parser's own table of functions, and of what else it reads."""

    _LEAVES: Final = {
        _Type.INTEGER: ["i", "k", "u", "b", "0", "7", "true"],
        _Type.TEXT: ["v", "w"],
        _Type.LITERAL: ["'x'", "'A b'", "'10'"],
        _Type.LABEL: ["e"],
        _Type.JSON: ["doc"],
        _Type.DATE: ["d"],
        _Type.DATETIME: ["dt"],
    }
    COLUMNS: Final = {
        _Type.INTEGER: "bigint",
        _Type.TEXT: "varchar(300)",
        _Type.JSON: "varchar(300)",
        _Type.DATE: "date",
    }

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def one_of(self, types: Collection[_Type], depth: int) -> str:
        """Of any of these types."""
        return self.of(self._chance.choice(sorted(types, key=lambda t: t.value)), depth)

    def of(self, type_: _Type, depth: int) -> str:
        """Of a type."""
        makers = [lambda: self._called(type_, depth - 1)] * 3
        if type_ is _Type.INTEGER:
            makers += [lambda: self._calculated(depth - 1), lambda: self._condition(depth - 1)]
        if type_ in {_Type.INTEGER, _Type.TEXT, _Type.DATE}:
            makers.append(lambda: self._choice(type_, depth - 1))
        if type_ is _Type.DATE:
            makers.append(lambda: f"date({self.one_of({_Type.DATE, _Type.DATETIME}, depth - 1)})")
        if depth <= 0 or type_ in {_Type.LABEL, _Type.LITERAL, _Type.DATETIME} or self._chance.random() < 0.1:
            return self._chance.choice(self._LEAVES[type_])
        return self._chance.choice(makers)()

    def _called(self, type_: _Type, depth: int) -> str:
        functions = [name for name, (_, result) in virtual._FUNCTIONS.items() if result is type_]
        if not functions:
            return self._chance.choice(self._LEAVES[type_])
        name = self._chance.choice(functions)
        wanted, _ = virtual._FUNCTIONS[name]
        if name.startswith("json_") and len(wanted) > 1:
            path = self._chance.choice(["'$.a'", "'$.b.c'", "'$.b'"])
            return f"{name}({self.one_of(wanted[0], depth)}, {path})"
        if name == "sha2":
            return f"sha2({self.one_of(wanted[0], depth)}, {self._chance.choice([224, 256, 512])})"
        more = self._chance.randint(0, 2) if name in {"concat", "concat_ws", "greatest", "least"} else 0
        return f"{name}({', '.join(self.one_of(types, depth) for types in [*wanted, *[wanted[-1]] * more])})"

    def _calculated(self, depth: int) -> str:
        sign = self._chance.choice(["+", "*", "-", "%", "&", "|", "^", "div", "<<"])
        return f"({self.of(_Type.INTEGER, depth)} {sign} {self.of(_Type.INTEGER, min(depth, 1))})"

    def _pair(self, depth: int) -> tuple[str, str]:
        """What may be compared."""
        sides = [(_Type.INTEGER,) * 2, (_Type.TEXT,) * 2, (_Type.TEXT, _Type.LITERAL), (_Type.LABEL, _Type.LITERAL)]
        one, other = self._chance.choice(sides)
        return self.of(one, depth), self.of(other, depth)

    def _condition(self, depth: int) -> str:
        one, other = self._pair(depth)
        return self._chance.choice([
            f"({one} {self._chance.choice(['=', '<>', '<', '>=', '<=>'])} {other})",
            f"({one} in ({other}, {other}))",
            f"({one} between {one} and {other})",
            f"({one} is not null)",
            f"(({one} = {other}) {self._chance.choice(['and', 'or', 'xor'])} {self.of(_Type.INTEGER, depth)})",
            f"(nullif({one}, {other}) is null)",
        ])  # fmt: skip

    def _choice(self, type_: _Type, depth: int) -> str:
        types = {type_} if type_ is not _Type.TEXT else {_Type.TEXT, _Type.LITERAL}
        one, other = self.of(type_, depth), self.one_of(types, depth)
        subject, when = self._pair(depth)
        return self._chance.choice([
            f"if({self._condition(depth)}, {one}, {other})",
            f"ifnull({one}, {other})",
            f"coalesce({other}, {one})",
            f"case {subject} when {when} then {one} else {other} end",
            f"case when {self._condition(depth)} then {one} end",
        ])  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "tables"),
    [(1, 5), *(pytest.param(seed, 25, marks=pytest.mark.matrix) for seed in range(10, 14))],
)
def test_random_compositions_that_are_taken_have_one_value_in_every_session(
    mysql_database: MysqlDatabase, source_of: Make, seed: int, tables: int
) -> None:
    flavor = flavor_of_server(mysql_database.server.flavor)
    forms = Forms(random.Random(seed))
    made: dict[str, dict[str, str]] = {}
    tried = 0
    for name in [f"t{n}" for n in range(tables)]:
        mysql_database.execute(f"CREATE TABLE {name} ({BASE}) CHARACTER SET utf8mb4")
        for n in range(8):
            type_ = forms._chance.choice(list(Forms.COLUMNS))
            expression = forms.of(type_, forms._chance.randint(2, 4))
            try:
                mysql_database.execute(f"ALTER TABLE {name} ADD g{n} {Forms.COLUMNS[type_]} AS ({expression}) VIRTUAL")
            except pymysql.Error:
                continue  # the server itself does not allow it
            tried += 1
        columns = _columns(mysql_database, name)
        printed: dict[str, str] = dict(
            mysql_database.execute(
                "SELECT column_name, generation_expression FROM information_schema.columns"
                f" WHERE table_schema = DATABASE() AND table_name = '{name}' AND column_name LIKE 'g%'"
            )
        )
        made[name] = {g: text for g, text in printed.items() if is_same_for_all(text, g, columns, flavor)}
        for g in printed.keys() - made[name].keys():
            mysql_database.execute(f"ALTER TABLE {name} DROP COLUMN {g}")
    assert sum(map(len, made.values())) > tried / 3, "most are refused: the forms are not those of the parser"
    assert _compare_sessions(mysql_database, source_of, made, rows=12) > 30 * tables


def _texts(columns: list[pa.Array], schema: TableSchema) -> list[dict[str, Any]]:
    """Rows as texts: Python has no year 0."""
    values = [column.cast(pa.string()).to_pylist() for column in columns]
    return [dict(zip([c.name for c in schema.columns], row, strict=True)) for row in zip(*values, strict=True)]


def _rows(source: MysqlSource, reader: Any) -> Mapping[TableId, list[dict[str, Any]]]:
    mark = source.mark()
    rows: dict[TableId, list[dict[str, Any]]] = defaultdict(list)
    try:
        while True:
            batch = reader.pull(PullLimits(rows=10_000, bytes=64 << 20, wait_s=1.0))
            assert batch.table_errors == {}
            for change in batch.changes:
                rows[change.schema.table] += _texts(change.rows.column(ROW).flatten(), change.schema)
            if mark in batch.marks:
                return rows
    finally:
        reader.close()


def test_a_virtual_column_that_depends_on_the_session_is_refused(
    mysql_database: MysqlDatabase, source_of: Make
) -> None:
    mysql_database.execute(
        "CREATE TABLE bad (v int, ts timestamp NULL, d date AS (date(ts)) VIRTUAL, e int AS (v + 1) VIRTUAL)",
        "CREATE TABLE nested (id int PRIMARY KEY, ts timestamp NULL, h int AS (hour(ts)) VIRTUAL, n int AS (h + 1) VIRTUAL)",
        "CREATE TABLE good (id int PRIMARY KEY, v varchar(9), n int AS (id + 1) VIRTUAL, m varchar(30) AS (concat(v, '-', n)) VIRTUAL)",
        "CREATE TABLE kept (id int PRIMARY KEY, dt datetime, m varchar(20) AS (concat(year(dt), '!')) STORED)",
    )
    source = source_of(mysql_database.server)
    tables = [TableId(mysql_database.name, n) for n in ("bad", "nested", "good", "kept")]
    found = [(p.location, p.code) for p in source.check(tables) if p.severity is Severity.BLOCKING]
    assert found == [(str(tables[0]), "virtual_column"), (str(tables[1]), "virtual_column")]
    (first,) = [p for p in source.check(tables[:1]) if p.code == "virtual_column"]
    assert "its virtual column d " in first.message
    assert "STORED" in (first.action or "")
    for table in tables[:2]:
        schema = source.describe([table])[table].schema
        with pytest.raises(TableError) as refused, source.read_whole(schema):
            pass
        assert (refused.value.code, refused.value.table) == ("virtual_column", str(table))
    mysql_database.execute("INSERT INTO good (id, v) VALUES (1, 'x')")
    schema = source.describe([tables[2]])[tables[2]].schema
    assert source.read_chunk(chunk_request(schema)).rows.to_pylist() == [{"id": 1, "v": "x", "n": 2, "m": "x-2"}]
