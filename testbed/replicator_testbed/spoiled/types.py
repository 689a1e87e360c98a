"""The types of each source, with values that can go wrong in every way, in `spoiled.tables`."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from psycopg import sql

from replicator_testbed.databases import Database, is_tracked
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.mysql.types import GROUPS, OF_MARIADB, OF_MYSQL, Values, held
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.postgresql.tables import make_types
from replicator_testbed.spoiled.corruptions import Corruption
from replicator_testbed.spoiled.tables import Layout, SpoiledTable, TypeValues, tables_of
from replicator_testbed.sqlserver import tables as sqlserver_tables

# Besides those that the odd tables have: values above 256 bytes, of which a digest stands in the row text, and letters.
_MORE_OF_POSTGRESQL: Final[Mapping[str, Sequence[str]]] = {
    "text": ("Zürich " * 60 + "7",),
    "jsonb": ('{"k": "' + "Zürich " * 60 + '"}',),
    "numeric(12,3)": ("-0.001",),
    "text[]": ("{" + "Zürich " * 60 + ",b}",),
}
_OF_EACH_FAMILY: Final = {
    "postgresql": (
        "boolean", "bigint", "numeric(12,3)", "real", "double precision", "date", "time", "timestamp", "timestamptz", "text", "jsonb",
        "bytea", "uuid", "text[]", "double precision[]",
    ),
    "mysql": (
        "bit(1)", "bigint", "bigint unsigned", "decimal(10,5)", "float", "double", "date", "time(6)", "datetime(6)", "timestamp(6)",
        "varchar(300)", "json", "blob",
    ),
    "sqlserver": (
        "bit", "bigint", "decimal(38,10)", "money", "real", "float", "date", "time(6)", "datetime", "datetime2(6)",
        "datetimeoffset(6)", "varchar(40)", "nvarchar(max)", "nvarchar(300) COLLATE Latin1_General_CS_AS", "uniqueidentifier",
        "varbinary(max)", "varbinary(300)",
    ),
}  # fmt: skip
_IN_KEYS: Final = {
    "postgresql": ("bigint", "numeric(12,3)", "date", "timestamp", "timestamptz", "text", "bytea", "uuid", "boolean"),
    "mysql": ("bigint", "decimal(10,5)", "date", "datetime(6)", "varchar(300)", "varbinary(300)", "time(6)"),
    # A bit in a key may be missing in the log of a deletion: then its table fails.
    "sqlserver": (
        "bigint", "numeric(12,2)", "date", "datetime", "datetime2(6)", "datetimeoffset(6)", "varchar(40)", "uniqueidentifier",
        "binary(4)",
    ),
}  # fmt: skip
_VALUES_MAX: Final = 4
_DRAWS: Final = 40
_MYSQL_SESSION: Final = "SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'"
_MYSQL_OPTIONS: Final = "ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4"

_CANNOT: Final[Mapping[str, Mapping[Corruption, Sequence[str]]]] = {
    "postgresql": {
        Corruption.LAST_DIGIT: (
            '"char"', "citext", "label", "ltree", "mood", "name", "refcursor", "tsquery", "varchar(20)", "xml",
        ),
        Corruption.LETTER_CASE: (
            "bit(5)", "box", "cid", "circle", "datemultirange", "int2vector", "int4multirange", "int8range", "line", "lseg", "money",
            "numeric(200,5)", "numeric(60,5)", "nummultirange", "numrange", "oidvector", "path", "pg_snapshot", "polygon", "tid", "timetz",
            "tstzmultirange", "tstzrange", "txid_snapshot", "varbit", "xid", "xid8",
        ),
        Corruption.ELEMENT_ORDER: ("bigint[]", "timestamptz[]", "uuid[]"),
    },
    "mysql": {
        Corruption.LAST_DIGIT: ("enum('a', 'b') character set latin1", "enum('x', 'é') character set ucs2"),
        # The decimals are text, because Delta tables have none of so many digits.
        Corruption.LETTER_CASE: ("decimal(39,1)", "decimal(65,0)", "decimal(65,30)", "decimal(65,38)", "inet4"),
    },
    "sqlserver": {},
}  # fmt: skip
_OF_LETTERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("char(", "varchar(", "tinytext", "text", "mediumtext", "longtext"), "'Az 1'"),
    "json": """'{"Az": 1}'""",
}
"""By how MySQL's texts begin, whose drawn values need not have a letter and a digit: one that has both."""
_UNFIT_OF_BIGQUERY: Final = re.compile(r"0000-|\d{5}|.* BC")
_DECIMAL: Final = re.compile(r"(?:numeric|decimal)\((\d+),(-?\d+)\)")
_NUMERIC_DIGITS: Final = (29, 9)
_BIGNUMERIC_DIGITS: Final = (38, 38)
"""In front of and behind the point."""
_DAYS: Final = ("date", "datetime", "timestamp")


def cannot_of(database: Database) -> Collection[tuple[str, Corruption]]:
    """Types none of whose values here can have a corruption that others of their family can: without a digit, a letter, two elements."""
    return {(name, one) for one, names in _CANNOT[_dialect(database)].items() for name in names}


def types_of(database: Database, target: str) -> Sequence[TypeValues]:
    """All types of a source, with values that the target can hold. Types that are not built in are made."""
    if isinstance(database, ScratchDatabase):
        types = {name: (*_MORE_OF_POSTGRESQL.get(name, ()), *values) for name, values in make_types(database).items()}
        found = [_fit(name, [_literal(value) for value in values], target) for name, values in types.items()]
    elif isinstance(database, MysqlDatabase):
        found = [_fit(name, _drawn(name, values), target) for name, values in _of_mysql(database).items()]
    else:
        found = [_fit(name, values[:_VALUES_MAX], target) for name, values in sqlserver_tables.ALL.items()]
    return [type_ for type_ in found if target != "bigquery" or not _is_bignumeric(type_.name)]


def _is_bignumeric(name: str) -> bool:
    """Whether BigQuery has the decimal as BIGNUMERIC. The emulator answers with an internal error then."""
    decimal = _DECIMAL.match(name)
    if decimal is None:
        return False
    precision, scale = map(int, decimal.groups())
    digits = (precision - scale, scale)
    fits = [digits[0] <= most[0] and digits[1] <= most[1] for most in (_NUMERIC_DIGITS, _BIGNUMERIC_DIGITS)]
    return fits == [False, True]


def _fit(name: str, values: Sequence[str], target: str) -> TypeValues:
    """BigQuery has no years before 1 or after 9999: a value of such a year is an error of the table."""
    if target != "bigquery" or name.endswith("[]") or not name.startswith(_DAYS):
        return TypeValues(name, values)
    return TypeValues(name, [value for value in values if not _UNFIT_OF_BIGQUERY.match(value.lstrip("'"))])


def _of_mysql(database: Database) -> Mapping[str, Values]:
    assert isinstance(database, MysqlDatabase), "corruptions are made in PostgreSQL, MySQL and MariaDB"
    own = OF_MYSQL if database.server.flavor == "mysql" else OF_MARIADB
    return {name: values for group in (*GROUPS.values(), own) for name, values in group.items()}


def tables_of_all(database: Database, target: str) -> Sequence[SpoiledTable]:
    """Every type in tables with an id; some types in a key, and in a table without a key."""
    types = types_of(database, target)
    return [*tables_of(types, Layout.BY_ID, "by_id"), *_of_some(database, types)]


def tables_of_families(database: Database, target: str) -> Sequence[SpoiledTable]:
    """At least a type of each family in a table with an id, and some in the other layouts."""
    types = types_of(database, target)
    some = [type_ for type_ in types if type_.name in _OF_EACH_FAMILY[_dialect(database)]]
    return [*tables_of(some, Layout.BY_ID, "by_id"), *_of_some(database, types)]


def statements(database: Database, table: SpoiledTable) -> Sequence[str]:
    """What makes a table with the rows that its snapshot reads."""
    if isinstance(database, ScratchDatabase):
        identity = [f"ALTER TABLE {table.name} REPLICA IDENTITY FULL"] if table.layout is Layout.BAG else []
        return [table.create(), *identity, *table.fill()]
    if not isinstance(database, MysqlDatabase):
        return [table.create(), _enable(database, table.name), *table.fill()]
    return [_MYSQL_SESSION, table.create(_MYSQL_OPTIONS), *table.fill()]


def _enable(database: Database, table: str) -> str:
    if is_tracked(database):
        return f"ALTER TABLE dbo.[{table}] ENABLE CHANGE_TRACKING"
    from replicator_testbed.sqlserver.databases import enable  # with packages of an extra

    return enable(table)


def changes(database: Database, table: SpoiledTable) -> Sequence[str]:
    """What follows the snapshot."""
    return [*([_MYSQL_SESSION] if isinstance(database, MysqlDatabase) else []), *table.change()]


def _of_some(database: Database, types: Sequence[TypeValues]) -> Sequence[SpoiledTable]:
    dialect = _dialect(database)
    in_keys = [type_ for type_ in types if type_.name in _IN_KEYS[dialect]]
    if isinstance(database, MysqlDatabase):
        values_of = _of_mysql(database)
        in_keys = [
            TypeValues(type_.name, _drawn(type_.name, held(type_.name, values_of[type_.name]))) for type_ in in_keys
        ]
    of_each = [TypeValues(type_.name, type_.values[:2]) for type_ in types if type_.name in _OF_EACH_FAMILY[dialect]]
    if dialect == "sqlserver":
        of_each = [type_ for type_ in of_each if not type_.name.endswith(sqlserver_tables.WITH_A_KEY_ONLY)]
    without = [] if is_tracked(database) else tables_of(of_each, Layout.BAG, "bag")
    return [*tables_of(in_keys, Layout.BY_ALL, "by_all"), *without]


def _dialect(database: Database) -> str:
    if isinstance(database, ScratchDatabase):
        return "postgresql"
    return "mysql" if isinstance(database, MysqlDatabase) else "sqlserver"


def _literal(value: str) -> str:
    return sql.Literal(value).as_string(None)


def _drawn(name: str, values: Values) -> Sequence[str]:
    """Some values of a type: the longest that was drawn, one that is empty or zero, and others."""
    chance = random.Random(name)
    drawn = list(dict.fromkeys(values(chance) for _ in range(_DRAWS)))
    lettered = [value for prefix, value in _OF_LETTERS.items() if name.startswith(prefix)]
    first = [max(drawn, key=len), min(drawn, key=len), *lettered]
    return list(dict.fromkeys([*first, *drawn]))[:_VALUES_MAX]
