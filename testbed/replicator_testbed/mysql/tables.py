"""Odd tables of MySQL and MariaDB, of every type, kind of key and change of shape, and random transactions over them.

What such a table holds is compared as the server itself spells it, value by value: dates and moments are read from its text
by the calendar, floats by their bits. Nothing of the source plugin has a part in that.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

import pymysql

from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.mysql.types import Values, can_be_key, group_of, held, one_of, texts

# A table for many types: what a merge costs is the table, not its columns.
_FAMILIES: Final[Mapping[str, Sequence[str]]] = {
    "numbers": ("integers", "decimals", "reals", "bits and years"),
    "moments": ("days", "times"),
    "texts": ("texts", "long texts"),
    "others": ("labels", "bytes", "json", "geometries", "own"),
}
_GROUPS_OF_KEYS: Final = (
    "integers", "decimals", "bits and years", "days", "times", "labels", "texts", "long texts", "bytes", "own",
)  # fmt: skip
_KEY_COLUMNS_MAX: Final = 16
# Keys of one column: values that the server takes for one key and the target for two, or the other way round.
_SINGLE_KEYS: Final = (
    "varchar(20) character set utf8mb4", "char(9)", "varchar(20) character set sjis", "binary(9)", "varbinary(9)", "decimal(65,30)",
    "time(3)", "datetime(6)",
)  # fmt: skip
_SYNTAX, _NO_COLUMN, _NO_TABLE = 1064, 1054, 1146


def some_ids(count: int) -> Values:
    """Whole numbers from 1 on."""
    return one_of(*map(str, range(1, count + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OddTable:
    """A table, the statement that makes it, and what a random change may write into each of its columns.

    Attributes:
        columns: Column → SQL expressions; generated columns and those that nothing writes are left out.
        null_share: How much of what is written into the columns is NULL; keys never are.
        key: Columns that are never NULL.
        reshape: What changes the table while it is replicated.
        fails: Whether that fails the table, so that somebody has to ask for a new snapshot.
    """

    name: str
    create: str
    columns: Mapping[str, Values]
    key: Sequence[str] = ()
    null_share: float = 0.1
    reshape: Sequence[str] = ()
    fails: bool = False


def tables_of_values(database: MysqlDatabase) -> Iterator[OddTable]:
    """Every type as a column, in tables with a key and without one."""
    for family, groups in _FAMILIES.items():
        types = {type_: values for group in groups for type_, values in group_of(group, database).items()}
        columns = {f"c{n}": values for n, values in enumerate(types.values())}
        made = ", ".join(f"c{n} {type_} NULL" for n, type_ in enumerate(types))
        more = "ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4"
        yield OddTable(
            name=f"v_{family}",
            create=f"(id int PRIMARY KEY, {made}, plus bigint AS (id + 1) VIRTUAL, twice bigint AS (id * 2) STORED) {more}",
            columns={"id": some_ids(120), **columns},
            key=("id",),
        )
        yield OddTable(name=f"bag_{family}", create=f"(id int, {made}) {more}", columns={"id": some_ids(5), **columns})


def tables_of_keys(database: MysqlDatabase) -> Iterator[OddTable]:
    """Every type that may be in a key: many in one key, and some alone; keys by which a table is known otherwise."""
    for group in _GROUPS_OF_KEYS:
        types = [
            (type_, held(type_, values)) for type_, values in group_of(group, database).items() if can_be_key(type_)
        ]
        for part, start in enumerate(range(0, len(types), _KEY_COLUMNS_MAX)):
            some = types[start : start + _KEY_COLUMNS_MAX]
            yield _keyed(f"k_{group.replace(' ', '_')}_{part}", some)
    known = {type_: values for group in _GROUPS_OF_KEYS for type_, values in group_of(group, database).items()}
    some_set = next(type_ for type_ in known if type_.startswith("set(") and type_.count(",") > 2)
    singles = [(type_, held(type_, known[type_])) for type_ in (*_SINGLE_KEYS, some_set)]
    yield from (_keyed(f"k{n}", [single]) for n, single in enumerate(singles))
    letters = texts("aéÉ", 5)
    yield OddTable(
        name="by_prefix", create="(a varchar(40), v int, PRIMARY KEY (a(3))) CHARACTER SET utf8mb4",
        columns={"a": letters, "v": some_ids(9)}, key=("a",),
    )  # fmt: skip
    yield OddTable(
        name="by_double", create="(d double PRIMARY KEY, v int)",
        columns={"d": one_of("0", "-0e0", "1.5", "-1.5", "1e300", "5e-324", "7", "8", "9"), "v": some_ids(9)}, key=("d",),
    )  # fmt: skip
    yield OddTable(
        name="by_second_unique", create="(a int NOT NULL, b int NOT NULL, v int, UNIQUE zz (a), UNIQUE aa (b))",
        columns={"a": some_ids(60), "b": some_ids(60), "v": some_ids(9)}, key=("a", "b"),
    )  # fmt: skip
    yield OddTable(
        name="in_other_order", create="(v int, b varchar(9) NOT NULL, w text, a int, PRIMARY KEY (b, a)) CHARACTER SET utf8mb4",
        columns={"v": some_ids(9), "b": letters, "w": letters, "a": some_ids(9)}, key=("a", "b"),
    )  # fmt: skip


def _keyed(name: str, types: Sequence[tuple[str, Values]]) -> OddTable:
    key = {f"c{n}": values for n, (_, values) in enumerate(types)}
    made = ", ".join(f"c{n} {type_} NOT NULL" for n, (type_, _) in enumerate(types))
    return OddTable(
        name=name,
        create=f"({made}, v int, PRIMARY KEY ({', '.join(key)})) ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4",
        columns={**key, "v": some_ids(9)},
        key=tuple(key),
    )


def tables_of_shapes(database: MysqlDatabase) -> Iterator[OddTable]:
    """What `docs/sources/mysql.md` says of changes of tables, each at a table of its own; `id` and `v` stay."""
    is_mariadb = database.server.flavor == "mariadb"
    plain, parts = (
        "(id int PRIMARY KEY, v int, `key` int DEFAULT 1)",
        "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (40), PARTITION p1 VALUES LESS THAN MAXVALUE)",
    )

    def shape(name: str, *reshape: str, create: str = plain, fails: bool = False) -> OddTable:
        made = tuple(statement.format(t=name) for statement in reshape)
        ids = {"id": some_ids(80), "v": some_ids(9)}
        return OddTable(name=name, create=create, columns=ids, key=("id",), reshape=made, fails=fails)

    yield shape("untouched")
    yield shape("emptied", "TRUNCATE TABLE {t}", "INSERT INTO {t} (id, v) VALUES (1, 1)")
    yield shape(
        "indexed", "ALTER TABLE {t} ADD INDEX (v), COMMENT = 'a, b'", "ALTER TABLE {t} ALTER COLUMN `key` SET DEFAULT 3"
    )
    yield shape("rebuilt", "ALTER TABLE {t} FORCE")
    yield shape("optimized", "OPTIMIZE TABLE {t}")
    yield shape("swapped", "CREATE TABLE {t}_new LIKE {t}", "INSERT INTO {t}_new (id, v) SELECT id, 1 - v FROM {t}",
        "RENAME TABLE {t} TO {t}_old, {t}_new TO {t}", "UPDATE {t} SET v = 7 LIMIT 3")  # fmt: skip
    yield shape("rekeyed", "UPDATE {t} SET `key` = id", "ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (`key`, id)",
        "UPDATE {t} SET v = 3 LIMIT 5")  # fmt: skip
    yield shape(
        "parts", "ALTER TABLE {t} DROP PARTITION p0", "INSERT INTO {t} (id, v) VALUES (2, 2)", create=f"{plain} {parts}"
    )
    yield shape("emptied_part", "ALTER TABLE {t} TRUNCATE PARTITION p1", create=f"{plain} {parts}")
    yield shape("exchanged", f"CREATE TABLE {{t}}_other {plain}", "INSERT INTO {t}_other VALUES (5, 5, 5)",
        "ALTER TABLE {t} EXCHANGE PARTITION p0 WITH TABLE {t}_other", create=f"{plain} {parts}")  # fmt: skip
    yield shape("unpartitioned", "ALTER TABLE {t} REMOVE PARTITIONING", create=f"{plain} {parts}")
    yield shape("widened", "ALTER TABLE {t} MODIFY v bigint", "UPDATE {t} SET v = 5000000000 LIMIT 2", fails=True)
    yield shape("added", "ALTER TABLE {t} ADD COLUMN w varchar(9) DEFAULT 'é' FIRST", fails=True)
    yield shape("dropped", "ALTER TABLE {t} DROP `key`, ADD `key` int DEFAULT 5", fails=True)
    yield shape("named", "ALTER TABLE {t} RENAME COLUMN `key` TO w", fails=True)
    yield shape("moved", "RENAME TABLE {t} TO {t}_gone", "RENAME TABLE {t}_gone TO {t}", fails=True)
    yield shape(
        "made_again",
        "DROP TABLE {t}",
        f"CREATE TABLE {{t}} {plain}",
        "INSERT INTO {t} (id, v) VALUES (1, 1)",
        fails=True,
    )
    yield OddTable(
        name="by_unique", create="(id int NOT NULL, b int NOT NULL, v int, UNIQUE zz (id), UNIQUE aa (b))",
        columns={"id": some_ids(80), "b": some_ids(80), "v": some_ids(9)}, key=("id", "b"),
        reshape=("DROP INDEX aa ON by_unique", "INSERT INTO by_unique SELECT 200, b, 1 FROM by_unique LIMIT 1",
                 "DELETE FROM by_unique WHERE id = 200", "CREATE UNIQUE INDEX aa ON by_unique (b)"),
    )  # fmt: skip
    if is_mariadb:
        yield shape("replaced", f"CREATE OR REPLACE TABLE {{t}} {plain}", "INSERT INTO {t} (id, v) VALUES (1, 1)")
        yield shape("long_unique", "UPDATE {t} SET v = 3 LIMIT 3",
            create="(id int PRIMARY KEY, v int, url varchar(2000) CHARACTER SET utf8mb4 UNIQUE)")  # fmt: skip


def make(database: MysqlDatabase, tables: Sequence[OddTable]) -> None:
    """Make the tables."""
    database.execute(*(f"CREATE TABLE {table.name} {table.create}" for table in tables))


# -- random transactions -------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class RandomLoad:
    """Transactions over the tables from one session: savepoints, rollbacks, temporary tables, refused statements.

    Attributes:
        taken: Statements that the server took, by table.
        refused: Those that it did not.
    """

    database: MysqlDatabase
    tables: Sequence[OddTable]
    seed: int
    done: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def fill(self, rows: int) -> None:
        """Insert about so many rows into each table."""
        with closing(self._session()) as connection, connection.cursor() as cursor:
            for table in self.tables:
                for _ in range(rows // 2):
                    self._try(cursor, table, self._insert(table))

    def run(self, transactions: int) -> None:
        """Run so many, one after the other."""
        with closing(self._session()) as connection, connection.cursor() as cursor:
            for _ in range(transactions):
                self._transaction(cursor)
                self.done += 1

    def _session(self) -> pymysql.connections.Connection[Any]:
        connection = self.database.connect()
        with connection.cursor() as cursor:
            # What a column does not hold is cut to what it does, and invalid days are taken.
            cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        return connection

    def _transaction(self, cursor: Any) -> None:
        chance = self._chance
        end = chance.choices(["COMMIT", "ROLLBACK"], [9, 1])[0]
        cursor.execute("BEGIN")
        for _ in range(chance.randint(1, 8)):
            table = chance.choice(self.tables)
            if chance.random() < 0.1:
                # With it MariaDB's log has what is rolled back, too.
                cursor.execute("CREATE TEMPORARY TABLE IF NOT EXISTS scratch (id int)")
            if chance.random() < 0.2:
                cursor.execute("SAVEPOINT s")
                for _ in range(chance.randint(1, 3)):
                    self._try(cursor, table, self._statement(table))
                cursor.execute("ROLLBACK TO SAVEPOINT s" if chance.random() < 0.5 else "RELEASE SAVEPOINT s")
            else:
                self._try(cursor, table, self._statement(table))
        cursor.execute(end)

    def _try(self, cursor: Any, table: OddTable, statement: str) -> None:
        """Run a statement that a key or a type may refuse."""
        try:
            cursor.execute(statement)
            self.taken[table.name] += 1
        except pymysql.Error as error:
            if error.args[0] in {_SYNTAX, _NO_COLUMN, _NO_TABLE}:
                raise
            self.refused[table.name] += 1

    def _statement(self, table: OddTable) -> str:
        chance = self._chance
        kind = chance.choice(
            ["insert", "insert", "replace", "upsert", "update", "update", "update", "update_many", "delete"]
        )
        somewhere = f"ORDER BY RAND({chance.randrange(1 << 30)}) LIMIT"
        if kind == "insert":
            return self._insert(table)
        if kind == "replace":
            return self._insert(table, "REPLACE")
        if kind == "delete":
            return f"DELETE FROM {table.name} {somewhere} {chance.choice([1, 1, 2])}"
        chosen = chance.sample(list(table.columns), chance.randint(1, min(4, len(table.columns))))
        if kind == "upsert":
            return f"{self._insert(table)} ON DUPLICATE KEY UPDATE {self._sets(table, chosen)}"
        if kind == "update_many":
            chosen = [name for name in chosen if name not in table.key] or list(table.columns)[-1:]
        return f"UPDATE {table.name} SET {self._sets(table, chosen)} {somewhere} {1 if kind == 'update' else 10}"

    def _sets(self, table: OddTable, names: Sequence[str]) -> str:
        return ", ".join(f"{name} = {self._value(table, name)}" for name in names)

    def _insert(self, table: OddTable, verb: str = "INSERT") -> str:
        rows = [
            f"({', '.join(self._value(table, name) for name in table.columns)})"
            for _ in range(self._chance.choice([1, 1, 4]))
        ]
        return f"{verb} INTO {table.name} ({', '.join(table.columns)}) VALUES {', '.join(rows)}"

    def _value(self, table: OddTable, name: str) -> str:
        is_null = name not in table.key and self._chance.random() < table.null_share
        return "NULL" if is_null else table.columns[name](self._chance)


# -- comparison ----------------------------------------------------------------------------------------------------------

_WHOLE: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"})
_REALS: Final = {"float": ">f", "double": ">d"}
_DAYS: Final = frozenset({"date", "datetime", "timestamp"})
_BYTES: Final = frozenset(
    {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector", "geometry", "point", "linestring", "polygon",
     "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection"}
)  # fmt: skip
_EPOCH: Final = date(1970, 1, 1).toordinal()
_400_YEARS: Final = 146_097


def source_rows(database: MysqlDatabase, table: str) -> Counter[tuple[Any, ...]]:
    """A table's own rows as the server spells them, in the forms of `postgresql.rows.plain_value`."""
    columns = database.execute(
        "SELECT column_name, LOWER(data_type), LOWER(column_type) FROM information_schema.columns"
        f" WHERE table_schema = '{database.name}' AND table_name = '{table}' ORDER BY ordinal_position"
    )
    spelled = ", ".join(_spelled(f"`{name}`", kind, type_) for name, kind, type_ in columns)
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT {spelled} FROM `{table}`")
        return Counter(
            tuple(
                None if value is None else _plain(value, kind, type_)
                for value, (_, kind, type_) in zip(row, columns, strict=True)
            )
            for row in cursor
        )


def _spelled(column: str, kind: str, type_: str) -> str:
    if kind in _REALS:
        return f"{column} * 1e0"
    if kind in _WHOLE or "zerofill" in type_:
        return f"CAST({column} + 0 AS CHAR)"
    if kind in _BYTES:
        return f"HEX({column})"
    if kind in _DAYS or kind == "decimal":
        return f"CAST({column} AS CHAR)"
    return f"HEX(CAST({column} AS CHAR CHARACTER SET utf8mb4))"


def _plain(value: Any, kind: str, type_: str) -> str | None:
    if kind in _REALS:
        return struct.pack(_REALS[kind], value).hex()
    if kind in _BYTES:
        return str(value).lower()
    if kind in _DAYS:
        return _moment(str(value))
    if kind in _WHOLE or kind == "decimal":
        return {"0": "false", "1": "true"}[value] if type_ == "bit(1)" else str(value)
    return bytes.fromhex(value).decode()


def _moment(text: str) -> str | None:
    """Days, or microseconds, since 1970; None for what is on no calendar."""
    day, _, clock = text.partition(" ")
    year, month, of_month = map(int, day.split("-"))
    is_first = year == 0  # which Python's calendar lacks; it repeats itself after 400 years
    try:
        days = date(400 if is_first else year, month, of_month).toordinal() - _EPOCH - (_400_YEARS if is_first else 0)
    except ValueError:
        return None
    if not clock:
        return str(days)
    hours, minutes, seconds = clock.split(":")
    whole, _, part = seconds.partition(".")
    total = ((days * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(whole)
    return str(total * 1_000_000 + int(part.ljust(6, "0") or 0))
