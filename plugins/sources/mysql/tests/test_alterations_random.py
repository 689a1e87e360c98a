"""Random ALTER TABLE statements on real servers: what becomes of the columns, and of the rows, is what the source says of it.

Each statement is run, read from the binary log, and applied to the shape that was known before. The source may say that it
cannot tell. What it says must be what the catalogue has afterwards, and what a SELECT reads.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pymysql
import pytest

from replicator.model.alteration import steps
from replicator.model.errors import TableError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins import Secret
from replicator.plugins.source import SourceContext
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.ddl.alterations import Alteration, alteration, numbered
from replicator_source_mysql.ddl.statements import Effect, TableEffect, effects
from replicator_source_mysql.events import query
from replicator_source_mysql.flavors import flavor_of_server
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.programs import has_mysql
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testing.defaults import chunk_request

MODES: Final = ("", "STRICT_TRANS_TABLES", "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE", "NO_BACKSLASH_ESCAPES",
                "ANSI_QUOTES,STRICT_TRANS_TABLES", "REAL_AS_FLOAT", "PAD_CHAR_TO_FULL_LENGTH,STRICT_TRANS_TABLES")  # fmt: skip
NAMES: Final = ("a", "b", "c", "d", "e", "f", "key", "größe", "x y", "First")
_QUERY: Final = 2

_NUMBERS: Final = ("0", "1", "-1", "'2'", "TRUE", "-0", "+3", "1.5", "(7)", "100000", "'1e1'", "0x05", "b'101'", "0b11")
_TEXTS: Final = ("''", "'x'", "'it''s'", r"'a\nb'", "'größe'", "'a  '", "5", "-7", "'~'", "('y')", "N'n'", "_latin1'l'")
TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "INT": _NUMBERS, "INTEGER(5)": _NUMBERS, "INT UNSIGNED": _NUMBERS, "TINYINT": _NUMBERS, "TINYINT(1)": _NUMBERS,
    "TINYINT(1) UNSIGNED": _NUMBERS, "BOOL": _NUMBERS, "SMALLINT(3) ZEROFILL": _NUMBERS, "MEDIUMINT": _NUMBERS,
    "BIGINT": _NUMBERS, "BIGINT UNSIGNED": (*_NUMBERS, "18446744073709551615"), "INT8 SIGNED": _NUMBERS,
    "DECIMAL(10,3)": (*_NUMBERS, "1.250", "-.5", "99999999.999"), "DEC": _NUMBERS, "NUMERIC(5) UNSIGNED": _NUMBERS,
    "DECIMAL(60,20)": (*_NUMBERS, "123456789012345678901234567890.12345"),
    "FLOAT": (*_NUMBERS, "0.1", "3.25"), "FLOAT(30)": _NUMBERS, "FLOAT(5,1)": (*_NUMBERS, "0.25"), "REAL": (*_NUMBERS, "0.1"),
    "DOUBLE PRECISION": (*_NUMBERS, "0.1", "1e3"), "DOUBLE UNSIGNED": (*_NUMBERS, "0.1"),
    "BIT": ("0", "1", "b'1'", "TRUE", "'1'"), "BIT(9)": ("0", "5", "b'101'", "0x1F", "x'0F'"), "BIT(64)": ("1", "b'11'"),
    "YEAR": ("2024", "'1999'", "0", "99", "'0'"), "DATE": ("'2024-02-29'", "'2024-2-9'", "'0000-00-00'", "20240101", "('2020-01-01')"),
    "DATETIME": ("'2024-02-29 10:11:12'", "'2024-01-01'", "CURRENT_TIMESTAMP", "NOW()", "'2024-01-01 00:00:00.5'"),
    "DATETIME(3)": ("'2024-02-29 10:11:12.25'", "NOW(3)", "'2024-02-29 10:11:12.123456'"),
    "TIMESTAMP": ("'2024-02-29 10:11:12'", "CURRENT_TIMESTAMP"), "TIMESTAMP(6)": ("CURRENT_TIMESTAMP(6)",),
    "TIME": ("'10:11:12'", "'-838:59:59'", "'1:2:3'", "'10:11:12.5'", "101112"), "TIME(2)": ("'100:11:12.5'", "'00:00:00'"),
    "CHAR(5)": _TEXTS, "CHAR": ("'x'", "''"), "VARCHAR(20)": _TEXTS, "VARCHAR(5)": _TEXTS, "NVARCHAR(9)": _TEXTS,
    "CHARACTER VARYING(9)": _TEXTS,
    "VARCHAR(20) CHARACTER SET latin1": _TEXTS, "VARCHAR(20) CHARSET utf8mb4 COLLATE utf8mb4_bin": _TEXTS,
    "CHAR(4) BYTE": ("''", "'ab'", "0x4142"), "VARCHAR(9) CHARACTER SET binary": ("''", "x'4100'"),
    "TINYTEXT": ("('t')",), "TEXT": ("('t')", "(concat('a', 'b'))"), "LONGTEXT": ("('')",), "LONG": ("('l')",),
    "BINARY(4)": ("''", "'ab'", "0x4142", "x'41424300'"), "VARBINARY(8)": ("''", "0x4142", "'ab'"), "BLOB": ("('')",),
    "BLOB(300)": ("('')",),
    "ENUM('a','b ','it''s')": ("'a'", "'b'", "'A'", "1", "'it''s'"), "ENUM('a','b','it''s','größe')": ("'a'", "'größe'"),
    "SET('x','y','z')": ("''", "'x'", "'x,z'", "'z,x'", "'X'", "3"), "JSON": ("('{}')", "(json_array())"), "POINT": (),
    "LONG VARBINARY": (),
}  # fmt: skip
# Types that hold what others do.
WIDE: Final = ("SMALLINT", "MEDIUMINT", "INT", "INT UNSIGNED", "BIGINT", "BIGINT UNSIGNED", "DECIMAL(20)", "DECIMAL(38,10)",
               "DECIMAL(60,20)", "DECIMAL(65,30)", "DOUBLE", "FLOAT", "YEAR", "BIT(30)", "BIT(63)", "CHAR(9)", "CHAR(30)", "VARCHAR(9)",
               "VARCHAR(40)", "VARCHAR(40) CHARACTER SET utf8mb4", "TINYTEXT", "TEXT", "TEXT(1000)", "LONGTEXT", "VARBINARY(9)",
               "VARBINARY(40)", "BINARY(9)", "TINYBLOB", "BLOB", "LONGBLOB", "DATETIME", "DATETIME(6)", "TIMESTAMP NULL",
               "TIMESTAMP(6) NULL", "TIME(6)", "ENUM('größe','it''s','a','b ','q')", "SET('w','x','v','y','z')", "SET('z','y','x')",
               "GEOMETRY")  # fmt: skip
_VALUES: Final = ("NULL", "0", "1", "-1", "7", "'a'", "'b'", "'x,y'", "'größe'", "'日本'", "'2024-05-06'", "'2024-05-06 07:08:09.125'",
                  "'12:34:56.78'", "x'ff00'", "''", "'{\"k\": 1}'", "'long enough to be cut'", "1.75")  # fmt: skip


class Grammar:
    """Makes statements about a table with these columns."""

    def __init__(self, rng: random.Random, flavor: str, columns: Sequence[str]) -> None:
        self.rng = rng
        self.flavor = flavor
        self.columns = columns
        self.named: list[str] = list(columns)

    def flip(self, chance: float) -> bool:
        return self.rng.random() < chance

    def quoted(self, name: str) -> str:
        if self.flip(0.1):
            name = name.swapcase() if name.isascii() else name
        return "`" + name.replace("`", "``") + "`"

    def old(self) -> str:
        return self.quoted(self.rng.choice(self.columns if self.flip(0.95) else NAMES))

    def new(self) -> str:
        name = (
            self.rng.choice([n for n in NAMES if n not in self.columns] or NAMES)
            if self.flip(0.8)
            else self.rng.choice(NAMES)
        )
        self.named.append(name)
        return self.quoted(name)

    def exists(self, *between: str) -> str:
        return " ".join(("IF", *between, "EXISTS")) if self.flavor == "mariadb" and self.flip(0.2) else ""

    def definition(self) -> str:
        type_ = self.rng.choice(list(TYPES))
        parts = [type_ if self.flip(0.7) else type_.lower()]
        if self.flip(0.06):
            # MySQL's catalogue garbles other letters in expressions.
            column = self.quoted(self.rng.choice([name for name in self.columns if name.isascii()]))
            return f"INT AS ({column} IS NULL) {self.rng.choice(['STORED', 'VIRTUAL', ''])}"
        options = [self.rng.choice(["NOT NULL", "NULL", "", ""])]
        defaults = TYPES[type_]
        if defaults and self.flip(0.6):
            options.append("DEFAULT " + (self.rng.choice(defaults) if self.flip(0.95) else "NULL"))
        if self.flip(0.1):
            options.append("COMMENT " + self.rng.choice(["'c'", "''", "'it''s'", r"'a\tb'"]))
        if self.flip(0.04):
            options.append(
                self.rng.choice(
                    ["INVISIBLE", "UNIQUE", "AUTO_INCREMENT UNIQUE", "CHECK (TRUE)", "FIRSTLY", "PRIMARY KEY", "KEY"]
                )
            )
        self.rng.shuffle(options)
        return " ".join(filter(None, [*parts, *options]))

    def position(self) -> str:
        if self.flip(0.5):
            return ""
        return "FIRST" if self.flip(0.3) else f"AFTER {self.quoted(self.rng.choice(self.named))}"

    def clause(self, types: Mapping[str, str]) -> str:
        column = self.rng.choice(["COLUMN ", ""])
        kind = self.rng.choice(
            ["ADD", "ADD", "ADD", "DROP", "RENAME", "CHANGE", "MODIFY", "MODIFY", "MODIFY", "MANY", "KEY", "OTHER"]
        )
        if kind == "ADD":
            return f"ADD {column}{self.exists('NOT')} {self.new()} {self.definition()} {self.position()}"
        if kind == "MANY":
            return f"ADD {column}({self.new()} {self.definition()}, {self.new()} {self.definition()})"
        if kind == "KEY":
            return self.key()
        if kind == "DROP":
            return f"DROP {column}{self.exists()} {self.old()}"
        if kind == "RENAME":
            return f"RENAME COLUMN {self.exists()} {self.old()} TO {self.new()}"
        if kind == "OTHER":
            return self.rng.choice(["COMMENT = 'x'", "FORCE", "ALGORITHM = COPY", "ADD INDEX (`id`)", "ENGINE = InnoDB",
                                    "CONVERT TO CHARACTER SET utf8mb4", "CONVERT TO CHARACTER SET latin1"])  # fmt: skip
        name = self.rng.choice(self.columns)
        # Most often the type that it has, or a wider one.
        same = types[name] + self.rng.choice(["", " NOT NULL", " NULL"])
        wider = same.replace("varchar(5)", "varchar(20)").replace("'it''s')", "'it''s','größe')")
        definition = wider if self.flip(0.4) else self.definition()
        if self.flip(0.5):
            definition = self.rng.choice(WIDE) + self.rng.choice(["", " NOT NULL", ""])
        new = (
            f" {self.new()}"
            if kind == "CHANGE" and self.flip(0.7)
            else f" {self.quoted(name)}"
            if kind == "CHANGE"
            else ""
        )
        return f"{kind} {column}{self.exists()} {self.quoted(name)}{new} {definition} {self.position()}"

    def key(self) -> str:
        parts = ", ".join(
            self.old() + self.rng.choice(["", "", "", "(5)", " DESC"]) for _ in range(self.rng.choice([1, 1, 2]))
        )
        added = f"ADD {self.rng.choice(['', 'CONSTRAINT ', 'CONSTRAINT k '])}PRIMARY KEY ({parts})"
        dropped = self.rng.choice(["DROP PRIMARY KEY", "DROP INDEX `PRIMARY`"])
        return self.rng.choice([added, dropped, f"{dropped}, {added}", f"{added}, {dropped}"])

    def statement(self, types: Mapping[str, str]) -> str:
        if self.flip(0.25):
            return f"ALTER TABLE t ADD {self.new()} {self.definition()} {self.position()}"
        clauses = [self.clause(types) for _ in range(self.rng.choice([1, 1, 2, 2, 3, 4]))]
        ignore = "IGNORE " if self.flavor == "mariadb" and self.flip(0.03) else ""
        return f"ALTER {ignore}TABLE t {', '.join(clauses)}"


class Bench:
    """A table on a server, what is known of it, and its rows."""

    def __init__(self, database: MysqlDatabase, rng: random.Random) -> None:
        server = database.server
        self.rng = rng
        self.database = database
        self.flavor = flavor_of_server(server.flavor)
        self.table = TableId(database.name, "t")
        config = MysqlConfig(
            host=server.host,
            port=server.port,
            user=server.user,
            password=Secret(server.password),
            unrepresentable="null",
        )
        self.source = MysqlSource(config, SourceContext(replicator="shop", uuid="u1", epoch=1))
        self._file, self._position = self._end()
        self._next = 0
        self.schema: TableSchema
        self.rows: list[dict[str, Any]] = []
        self.has_text = not server.lacks((8, 0, 19))

    def _end(self) -> tuple[Path, int]:
        file = max(self.database.server.data_folder.glob("binlog.[0-9][0-9][0-9][0-9][0-9][0-9]"))
        return file, file.stat().st_size

    def make(self) -> None:
        """Make the table as at first."""
        key = self.rng.choice(
            ["PRIMARY KEY (id)", "PRIMARY KEY (id)", "UNIQUE (id)", "KEY (id)", "PRIMARY KEY (id, a)"]
        )
        charset = self.rng.choice(["utf8mb4", "latin1", "utf8mb4"])
        self.database.execute(
            "DROP TABLE IF EXISTS t",
            "CREATE TABLE t (id int NOT NULL, a varchar(5) NOT NULL DEFAULT 'x', b int, c enum('a','b','it''s'),"
            f" {key}) CHARSET {charset}",
        )
        self.statements()
        self.look()
        self.insert()

    def look(self) -> None:
        """Take everything as it is now."""
        self.schema = numbered(self.found())
        self.rows = self.read(self.schema)

    def found(self) -> TableSchema:
        return self.source.describe([self.table])[self.table].schema

    def read(self, schema: TableSchema) -> list[dict[str, Any]]:
        if schema.key:
            return list(self.source.read_chunk(chunk_request(schema, limit=1000)).rows.to_pylist())
        with self.source.read_whole(schema) as whole:
            return [row for batch in whole.batches for row in batch.to_pylist()]

    def insert(self) -> None:
        """Insert rows with whatever the columns take."""
        extras = self.database.execute(
            "SELECT column_name, extra FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 't'"
        )
        names = [
            name for name, extra in extras if "GENERATED" not in extra.upper() or "DEFAULT_GENERATED" in extra.upper()
        ]
        for _ in range(2):
            self._next += 1
            values = []
            for name in names:
                is_key = self.schema.column(name).id == 1
                values.append(str(self._next) if is_key else self.rng.choice(_VALUES))
            columns = ", ".join("`" + name + "`" for name in names)
            try:
                self.database.execute(f"INSERT IGNORE INTO t ({columns}) VALUES ({', '.join(values)})")
            except pymysql.err.MySQLError:
                continue
        self.rows = self.read(self.schema)

    def statements(self) -> list[Any]:
        """What the log has since it was asked last."""
        raw = self._file.read_bytes()[self._position :]
        self._position += len(raw)
        found, offset = [], 0
        while offset < len(raw):
            _, kind, _, size, _, flags = struct.unpack_from("<IBIIIH", raw, offset)
            if kind == _QUERY:
                body = memoryview(raw[offset + 19 : offset + size - 4])
                found.append(query(body, flavor=self.flavor, flags=flags))
            offset += size
        return [statement for statement in found if statement.text.startswith("ALTER")]

    def effect(self, text: str) -> TableEffect | None:
        (statement,) = self.statements()
        found = effects(statement, [self.table], flavor=self.flavor, is_lower_case=False)
        assert len(found) <= 1, text
        return found[0] if found else None

    def check(self, text: str, said: Alteration | None) -> None:
        """Compare what was said with what there is."""
        catalogue = self.found()
        if said is None:
            self.look()
            return
        # What is not exact is the best reading: nullability and key may be others, and a snapshot follows.
        is_exact = said.fill is not None
        # CONVERT: TEXT may become the next larger type, which depends on the character set that it had.
        has_types = "CONVERT" not in text
        shown = [self._shown(s, is_exact=is_exact, has_types=has_types) for s in (said.schema, catalogue)]
        assert shown[0] == shown[1], text
        if not is_exact:
            self.look()
            return
        # Without a primary key it may be a unique one, which the next rows in the log tell.
        assert said.schema.key in {catalogue.key, ()}, text
        if said.schema.key != catalogue.key:
            self.look()
            return
        before, self.schema = self.rows, said.schema
        self.rows = self.read(self.schema)
        assert _sorted(self.rows) == _sorted(self._expected(before, said)), text

    def _shown(self, schema: TableSchema, *, is_exact: bool, has_types: bool = True) -> list[Any]:
        return [
            (c.name, c.type, c.comment)
            + ((c.source_type,) if self.has_text and is_exact and has_types else ())
            + ((c.nullable,) if is_exact else ())
            for c in schema.columns
        ]

    def _expected(self, before: list[dict[str, Any]], said: Alteration) -> list[dict[str, Any]]:
        origin = steps(said.before, said.schema).origin
        assert said.fill is not None
        new = {name: said.fill.column(name)[0].as_py() if name in said.fill.schema.names else None for name in origin}
        old, now = said.before.fields, said.schema.fields

        def value(row: dict[str, Any], name: str, was: str | None) -> Any:
            if was is None:
                return new[name]
            types = said.before.column(was).type, said.schema.column(name).type
            return pa.scalar(row[old[was]], types[0]).cast(types[1]).as_py()

        return [{now[name]: value(row, name, was) for name, was in origin.items()} for row in before]


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(list(row.items())) for row in rows)


def run(server: MysqlServer, seed: int, count: int) -> None:
    """Run so many statements."""
    rng = random.Random(seed)
    done = told = filled = 0
    with server.database() as database:
        bench = Bench(database, rng)
        try:
            for number in range(count):
                if number % 8 == 0 or len(bench.schema.columns) > 12 or not bench.schema.columns:
                    bench.make()
                mode = rng.choice(MODES)
                types = {c.name: c.source_type for c in bench.schema.columns}
                text = Grammar(rng, server.flavor, list(types)).statement(types)
                with database.connect() as session, session.cursor() as cursor:
                    cursor.execute(f"SET SESSION sql_mode = '{mode}'")
                    try:
                        cursor.execute(text)
                    except pymysql.err.MySQLError:
                        continue
                done += 1
                effect = bench.effect(text)
                spelled = (
                    f"[{seed}/{number} {mode}] {text}\nof {[(c.name, c.source_type) for c in bench.schema.columns]}"
                )
                said = None
                if effect is not None and effect.effect is Effect.ALTER and effect.columns is not None:
                    said = alteration(bench.schema, effect.columns, after=0, flavor=bench.flavor)
                elif effect is None:
                    assert bench._shown(bench.found(), is_exact=False) == bench._shown(bench.schema, is_exact=False), (
                        spelled
                    )
                told += said is not None
                filled += said is not None and said.fill is not None
                try:
                    bench.check(spelled, said)
                    bench.insert()
                except TableError as error:
                    # What is refused, a virtual column or a key of zero dates, is made again.
                    if error.code not in {"virtual_column", "unrepresentable_value"}:
                        raise
                    bench.make()
        finally:
            bench.source.close()
    assert done > count / 4, "most statements are refused: the grammar is not that of the server"
    assert told > done / 2
    assert filled > done / 8


_SETTINGS: Final = {"sync-binlog": "0", "innodb-flush-log-at-trx-commit": "2", "character-set-server": "utf8mb4"}


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def own_server(request: pytest.FixtureRequest) -> Iterator[MysqlServer]:
    if request.param == "mysql" and not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer(request.param, settings=_SETTINGS) as server:
        yield server


@pytest.mark.parametrize("count", [16, pytest.param(120, marks=pytest.mark.matrix)])
def test_what_is_said_of_a_statement_is_what_it_does(own_server: MysqlServer, count: int) -> None:
    run(own_server, seed=1, count=count)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(10, 12))
def test_what_is_said_of_many_statements_is_what_they_do(own_server: MysqlServer, seed: int) -> None:
    run(own_server, seed=seed, count=2500)
