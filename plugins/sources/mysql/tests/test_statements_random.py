"""Random statements of the servers' grammars, through a real server and through the reader of its log.

Whatever changed the rows, the columns, the engine or the primary key of a replicated table must have been seen: by an
effect, by rows of the table in the log, or by what watches for cascades that the log does not have. What the closed
lists name must have no effect at all. Statements that
the server refuses are welcome: half of them may have done something first.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest

from replicator.model.schema import TableId
from replicator_source_mysql.binlog import parse_table_map, table_id
from replicator_source_mysql.ddl.statements import effects
from replicator_source_mysql.events import query
from replicator_source_mysql.flavors import flavor_of_server
from replicator_source_mysql.reach.cascades import Cascades, Parent, read_edges
from replicator_testbed.mysql.programs import has_mysql
from replicator_testbed.mysql.servers import Flavor, MysqlServer

SHOP, APP = "shop", "app"
NAMES: Final = ("t", "key", 'a`b"c', "größe", "p")
FOLLOWED: Final = [TableId(SHOP, name) for name in NAMES] + [TableId(APP, "t")]
COLUMNS: Final = ("id", "a", "b", "key", "index", "check", "unique", "vector", "drop")
MODES: Final = ("", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES", "IGNORE_SPACE")
_DEFINITION: Final = (
    "(id int NOT NULL, a int NOT NULL DEFAULT 1, b varchar(20) DEFAULT 'x', `key` int, `index` int, `check` int, `unique` int,"
    " `vector` int, `drop` int, g int AS (a + 1) STORED, PRIMARY KEY (id), KEY i (a), UNIQUE KEY u (id, a))"
)
_PARTITIONS: Final = " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (3), PARTITION p1 VALUES LESS THAN (100))"
_ROWS_EVENTS: Final = frozenset({23, 24, 25, 30, 31, 32, 166, 167, 168})
_TABLE_MAP: Final = 19
_QUERY: Final = 2
_NOT_IN_ENGINE: Final = 1932
_CONTROL: Final = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "XA ")


# --- texts ------------------------------------------------------------------------------------------------------------


class Grammar:
    """Makes statements. A statement is a list of tokens; `is_harmless` is what the closed lists promise of the last one."""

    def __init__(self, rng: random.Random, flavor: Flavor, mode: str, *, is_lower_case: bool = False) -> None:
        self.rng = rng
        self.flavor = flavor
        self.has_ansi = "ANSI_QUOTES" in mode
        self.has_escapes = "NO_BACKSLASH" not in mode
        self.is_lower_case = is_lower_case
        self.is_harmless = True

    # ---- parts ----

    def any(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def quoted(self, name: str) -> str:
        quote = '"' if self.has_ansi and self.rng.random() < 0.4 else "`"
        return quote + name.replace(quote, quote * 2) + quote

    def name(self, name: str, reserved: Sequence[str] = ("key", "index", "check", "unique", "drop")) -> str:
        is_plain = name.isalnum() and name not in reserved
        if self.is_lower_case and self.flip(0.3):
            name = "".join(c.upper() if len(c.upper()) == 1 else c for c in name)
        return name if is_plain and self.rng.random() < 0.5 else self.quoted(name)

    def column(self) -> str:
        return self.name(self.rng.choice(COLUMNS))

    def table(self, database: str | None = None, name: str | None = None) -> list[str]:
        database = database or self.any(SHOP, SHOP, SHOP, APP)
        name = name or ("t" if database == APP else self.rng.choice(NAMES[:4]))
        if self.rng.random() < 0.5 and database == SHOP:
            return [self.name(name)]
        return [self.name(database), ".", self.name(name)]

    def text(self) -> str:
        content = self.any("x", "a''b", "/*", "*/", "-- ", ", DROP COLUMN a", "#", "`", "ENGINE=MEMORY", "größe", ";")
        if self.has_escapes:
            content += self.any("", "\\'", "\\\\")
        else:
            content += self.any("", "\\", "\\\\")
        if not self.has_ansi and self.rng.random() < 0.3:
            return '"' + content.replace('"', '""') + '"'
        return "'" + content + "'"

    def literal(self) -> list[str]:
        return self.any([str(self.rng.randrange(100))], ["-", "5"], ["NULL"], ["0x41"], ["1.5e1"])

    def flip(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    def columns(self) -> list[str]:
        first, second = self.rng.sample(COLUMNS[1:], 2)
        return ["(", self.name(first), *([",", self.name(second), *self.any([], ["DESC"])] if self.flip() else []), ")"]

    def equals(self) -> list[str]:
        return self.any([], ["="])

    def harmful(self, *tokens: str) -> list[str]:
        self.is_harmless = False
        return list(tokens)

    def references(self, *, acts: bool) -> list[str]:
        """What a foreign key refers to; `acts`: it changes rows of its table by itself."""
        rules = ["CASCADE", "SET NULL", "SET DEFAULT"] if acts else ["RESTRICT", "NO ACTION"]
        kinds = self.any(["DELETE"], ["UPDATE"], ["DELETE", "UPDATE"]) if acts or self.flip() else []
        tokens = ["REFERENCES", *self.table(), "(", self.any("id", "id", "a"), ")"]
        for kind in kinds:
            tokens += ["ON", kind, *self.any(*rules).split()]
        return tokens

    def foreign_key(self, *, acts: bool) -> list[str]:
        return [
            *self.any([], ["CONSTRAINT"], ["CONSTRAINT", self.name(self.any("fk", "key", "größe"))]),
            *("FOREIGN", "KEY", *self.any([], [self.index_name()])),
            *("(", self.name(self.any("a", "key", "index", "check", "drop")), ")"),
            *self.references(acts=acts),
        ]

    # ---- ALTER TABLE ----

    def option(self) -> list[str]:
        return self.any(
            ["COMMENT", *self.equals(), self.text()],
            ["AUTO_INCREMENT", *self.equals(), "50"],
            ["ROW_FORMAT", *self.equals(), self.any("DYNAMIC", "COMPACT")],
            ["STATS_PERSISTENT", *self.equals(), self.any("0", "1", "DEFAULT")],
            ["DEFAULT", "CHARACTER", "SET", *self.equals(), self.any("utf8mb4", "latin1")],
            ["COLLATE", *self.equals(), "utf8mb4_bin"],
            ["MAX_ROWS", *self.equals(), "5"],
        )

    def options(self) -> list[str]:
        tokens = self.option()
        while self.flip(0.4):
            tokens += self.option()
        return tokens

    def index_name(self) -> str:
        return self.name(self.any("i", "u", "n1", "key", "primary key"))

    def harmless_action(self) -> list[str]:
        visible = self.any("INVISIBLE", "VISIBLE") if self.flavor == "mysql" else self.any("IGNORED", "NOT IGNORED")
        return self.any(
            lambda: ["ADD", *self.any([], ["UNIQUE"]), self.any("INDEX", "KEY"), *self.any([], [self.index_name()]), *self.columns(),
                     *self.any([], ["COMMENT", self.text()], ["KEY_BLOCK_SIZE", *self.equals(), "8"], ["USING", "BTREE"])],
            lambda: ["ADD", "FULLTEXT", *self.any([], ["INDEX"]), "(", "b", ")"],
            lambda: ["ADD", "CONSTRAINT", *self.any([], [self.name("c1")]), "CHECK", "(", self.column(), "<>", "-7", ")"],
            lambda: ["ADD", "CONSTRAINT", "UNIQUE", *self.columns()],
            lambda: ["ADD", *self.foreign_key(acts=False)],
            lambda: ["DROP", "FOREIGN", "KEY", self.name(self.any("fk", "key", "größe"))],
            lambda: ["DROP", self.any("INDEX", "KEY"), self.name(self.any("i", "u", "n1"))],
            lambda: ["RENAME", self.any("INDEX", "KEY"), "i", "TO", self.name(self.any("j", "index"))],
            lambda: ["ALTER", "INDEX", "i", *visible.split()],
            lambda: ["ALTER", *self.any([], ["COLUMN"]), self.column(), "SET", "DEFAULT", *self.any(["7"], ["-", "5"], ["(", "5--1", ")"])],
            lambda: ["ALTER", self.column(), "DROP", "DEFAULT"],
            self.options,
            lambda: ["FORCE"],
            lambda: ["ALGORITHM", *self.equals(), self.any("INPLACE", "COPY", "INSTANT", "DEFAULT")],
            lambda: ["LOCK", *self.equals(), self.any("NONE", "SHARED", "DEFAULT")],
            lambda: [self.any("ENABLE", "DISABLE"), "KEYS"],
        )()  # fmt: skip

    def harmful_action(self) -> list[str]:
        self.is_harmless = False
        column, primary = self.column(), ("PRIMARY", "KEY")
        return self.any(
            lambda: ["DROP", *self.any([], ["COLUMN"]), column],
            lambda: ["ADD", *self.any([], ["COLUMN"]), self.name(self.any("key", "x", "index", "vector")), "int", *self.any([], ["FIRST"])],
            lambda: ["DROP", column, ",", "ADD", column, "int", "DEFAULT", "5"],
            lambda: ["ADD", *self.foreign_key(acts=True)],
            lambda: ["ADD", self.name(self.any("x", "foreign", "references")), "int", *self.references(acts=self.flip())],
            lambda: ["MODIFY", column, self.any("bigint", "varchar(30)", "int"), *self.any([], ["FIRST"], ["AFTER", "a"])],
            lambda: ["CHANGE", column, self.name("key"), "int"],
            lambda: ["RENAME", "COLUMN", column, "TO", self.name(self.any("y", "key", "foreign"))],
            lambda: [*self.options(), self.any("ENGINE", "engine"), *self.equals(), self.any("MEMORY", "MyISAM")],
            lambda: ["DROP", *primary, ",", "ADD", *primary, "(", "id", ",", "a", ")"],
            lambda: ["DROP", "INDEX", self.any("`PRIMARY`", "`primary`"), ",", "ADD", "CONSTRAINT", *primary, "(", "a", ",", "id", ")"],
            lambda: ["CONVERT", "TO", "CHARACTER", "SET", self.any("latin1", "utf8mb4")],
            lambda: ["RENAME", *self.any([], ["TO"], ["AS"], ["="]), *self.table(SHOP, self.any("moved", "t"))],
            lambda: ["MODIFY", "g", "int", "AS", "(", "a + 2", ")", "STORED"],
            lambda: ["ADD", "(", "n1", "int", ",", "n2", "int", ")"],
        )()  # fmt: skip

    def alter(self) -> list[str]:
        count = self.any(1, 1, 2, 3)
        actions = [self.harmless_action() if self.flip(0.6) else self.harmful_action() for _ in range(count)]
        tokens = ["ALTER"]
        if self.flavor == "mariadb" and self.flip(0.1):
            tokens += self.harmful("IGNORE")
        tokens += ["TABLE", *self.table()]
        for position, action in enumerate(actions):
            tokens += [*([","] if position else []), *action]
        # A comma behind it is one of its own.
        return [*tokens, *self.any([], [], [",", "ORDER", "BY", "a", ",", "id", "DESC"])]

    def partitions(self) -> list[str]:
        table = self.table(SHOP, "p")
        return ["ALTER", "TABLE", *table, *self.any(
            lambda: ["ADD", "PARTITION", "(", "PARTITION", "p2", "VALUES", "LESS", "THAN", "(", "500", ")", ")"],
            lambda: ["REORGANIZE", "PARTITION", "p1", "INTO", "(", "PARTITION", "p1", "VALUES", "LESS", "THAN", "(", "900", ")", ")"],
            lambda: ["ANALYZE", "PARTITION", "p0", ",", "p1"],
            lambda: ["REMOVE", "PARTITIONING"],
            lambda: [*self.options(), "REMOVE", "PARTITIONING"],
            lambda: self.harmful("TRUNCATE", "PARTITION", "p0"),
            lambda: self.harmful("TRUNCATE", "PARTITION", "p0", ",", "p1"),
            lambda: self.harmful("DROP", "PARTITION", "p0"),
            lambda: self.harmful("EXCHANGE", "PARTITION", "p0", "WITH", "TABLE", *self.table()),
            lambda: self.harmful("EXCHANGE", "PARTITION", "p0", "WITH", "TABLE", SHOP, ".", "ex", "WITHOUT", "VALIDATION"),
            lambda: self.harmful("REORGANIZE", "PARTITION"),
        )()]  # fmt: skip

    # ---- other statements ----

    def statement(self) -> list[str]:
        kinds = [self.alter] * 12 + [self.partitions] * 4 + [self.index] * 4 + [self.upkeep] * 3 + [self.objects] * 4
        kinds += [self.tables] * 6 + [self.rows] * 5 + [self.temporary] * 2
        tokens: list[str] = self.rng.choice(kinds)()
        if self.flavor == "mariadb" and self.flip(0.1):
            setting = self.any(
                ["max_statement_time", "=", "50"], ["lock_wait_timeout", "=", "5", ",", "unique_checks", "=", "ON"]
            )
            tokens = ["SET", "STATEMENT", *setting, "FOR", *tokens]
        return tokens

    def index(self) -> list[str]:
        if self.flip():
            kind = self.any([], ["UNIQUE"], ["FULLTEXT"])
            columns = ["(", "b", ")"] if kind == ["FULLTEXT"] else self.columns()
            return [
                "CREATE",
                *kind,
                "INDEX",
                self.index_name(),
                "ON",
                *self.table(),
                *columns,
                *self.any([], ["COMMENT", self.text()]),
            ]
        if self.flip(0.2):
            return self.harmful("DROP", "INDEX", self.any("`PRIMARY`", "`Primary`"), "ON", *self.table())
        return [
            "DROP",
            "INDEX",
            self.name(self.any("i", "u")),
            "ON",
            *self.table(),
            *self.any([], ["ALGORITHM", "=", "INPLACE"]),
        ]

    def upkeep(self) -> list[str]:
        verb = self.any("ANALYZE", "OPTIMIZE", "CHECK", "REPAIR", "FLUSH")
        if verb == "FLUSH":
            return ["FLUSH", self.any("TABLES", "PRIVILEGES", "STATUS")]
        local = self.any([], ["LOCAL"]) if verb != "CHECK" else []
        return [verb, *local, "TABLE", *self.table(), *([",", *self.table()] if self.flip() else [])]

    def objects(self) -> list[str]:
        name = f"o{self.rng.randrange(5)}"
        body = f"UPDATE {SHOP}.t SET a = a + 1"
        return self.any(
            ["CREATE", "OR", "REPLACE", "VIEW", self.name(name), "AS", "SELECT", "*", "FROM", *self.table(SHOP)],
            ["DROP", "VIEW", "IF", "EXISTS", name],
            ["CREATE", "PROCEDURE", f"{name}p", "(", ")", self.any(body, f"BEGIN {body}; TRUNCATE {SHOP}.t; END")],
            ["DROP", "PROCEDURE", "IF", "EXISTS", f"{name}p"],
            [
                "CREATE",
                "DEFINER",
                "=",
                "CURRENT_USER",
                "EVENT",
                f"{name}e",
                "ON",
                "SCHEDULE",
                "EVERY",
                "1",
                "DAY",
                "DO",
                body,
            ],
            ["DROP", "EVENT", "IF", "EXISTS", f"{name}e"],
            ["CREATE", "USER", "IF", "NOT", "EXISTS", f"{name}u", "IDENTIFIED", "BY", "'s3cret'"],
            ["GRANT", "SELECT", "ON", SHOP, ".", "t", "TO", f"{name}u"],
            ["CREATE", "TABLE", "IF", "NOT", "EXISTS", self.name(f"{name}t"), "(", "id", "int", ")", *self.options()],
            ["CREATE", "TABLE", f"{name}l", "LIKE", *self.table(SHOP)],
            [
                "CREATE",
                "TABLE",
                f"{name}c",
                "(",
                "id",
                "int",
                *self.any([], self.references(acts=self.flip())),
                ",",
                "a",
                "int",
                ",",
                "`key`",
                "int",
                ",",
                "`index`",
                "int",
                ",",
                "`check`",
                "int",
                ",",
                "`drop`",
                "int",
                ",",
                *self.foreign_key(acts=self.flip()),
                ")",
            ],
            ["DROP", "TABLE", "IF", "EXISTS", f"{name}c"],
            ["CREATE", "TABLE", f"{name}s", *self.any([], ["AS"]), "SELECT", "*", "FROM", *self.table(SHOP)],
            ["DROP", "TABLE", "IF", "EXISTS", f"{name}t", ",", f"{name}l", ",", f"{name}s"],
            ["ALTER", "DATABASE", SHOP, "CHARACTER", "SET", "utf8mb4"],
        )

    def tables(self) -> list[str]:
        self.is_harmless = False
        one, two = self.table(), self.table()
        choices = [
            ["TRUNCATE", *self.any([], ["TABLE"]), *one],
            [
                "DROP",
                "TABLE",
                *self.any([], ["IF", "EXISTS"]),
                *one,
                *([",", *two] if self.flip() else []),
                *self.any([], ["RESTRICT"]),
            ],
            ["RENAME", "TABLE", *one, "TO", SHOP, ".", "moved"],
            ["RENAME", "TABLE", *one, "TO", SHOP, ".", "moved", ",", *two, "TO", *one],
            ["RENAME", "TABLE", SHOP, ".", "ex", "TO", "ex2", ",", *one, "TO", "ex3", ",", "ex2", "TO", *one],
        ]
        if self.flavor == "mariadb":
            choices.append(["CREATE", "OR", "REPLACE", "TABLE", *one, "(", "id", "int", "PRIMARY", "KEY", ")"])
            choices.append(["CREATE", "OR", "REPLACE", "SEQUENCE", *one, *self.any([], ["START", "WITH", "5"])])
            choices.append(["ALTER", "TABLE", "IF", "EXISTS", *one, "WAIT", "5", "DROP", self.quoted("key")])
        return self.rng.choice(choices)

    def rows(self) -> list[str]:
        self.is_harmless = False
        choices = [
            ["DELETE", "FROM", f"`{SHOP}`.`t`"],
            ["DELETE", "FROM", *self.table()],
            ["INSERT", "INTO", APP, ".", "log", "VALUES", "(", "1", ")"],
            ["UPDATE", APP, ".", "v", "SET", "a", "=", "a + 1"],
            ["SELECT", f"{APP}.f(5)"],
            ["DO", f"{APP}.f(5)"],
            ["CALL", f"{APP}.q", "(", ")"],
            ["REPLACE", "INTO", *self.table(), "(", "id", ",", "a", ")", "VALUES", "(", "1", ",", "77", ")"],
            ["UPDATE", *self.table(), "SET", "a", "=", "a + 1", "LIMIT", "1"],
            ["UPDATE", *self.table(), "SET", "id", "=", "id + 10", "ORDER", "BY", "id", "DESC"],
            ["DELETE", "FROM", *self.table(), "WHERE", "id", "=", "2"],
        ]
        if self.flavor == "mariadb":
            choices += [
                ["ANALYZE", "DELETE", "FROM", *self.table()],
                ["ANALYZE", "FORMAT", "=", "JSON", "UPDATE", *self.table(), "SET", "a", "=", "55"],
                ["BEGIN", "NOT", "ATOMIC", "DELETE", "FROM", *self.table(), ";", "TRUNCATE", *self.table(), ";", "END"],
                ["EXECUTE", "IMMEDIATE", f"'TRUNCATE {SHOP}.t'"],
            ]
        return self.rng.choice(choices)

    def temporary(self) -> list[str]:
        """Of the session's temporary table that has the name of a replicated one."""
        self.is_harmless = False
        return self.any(
            [
                "CREATE",
                "TEMPORARY",
                "TABLE",
                "IF",
                "NOT",
                "EXISTS",
                *self.table(SHOP, "t"),
                "(",
                "id",
                "int",
                ",",
                "a",
                "int",
                ")",
            ],
            ["TRUNCATE", *self.table(SHOP, "t")],
            ["DROP", "TEMPORARY", "TABLE", "IF", "EXISTS", *self.table(SHOP, "t")],
        )

    # ---- noise ----

    def spelled(self, tokens: Sequence[str]) -> str:
        """The tokens as one text, with comments and spaces everywhere and key words in any case."""
        spelled = [self._cased(t) for t in tokens]
        if self.flip(0.25):
            begin = self.rng.randrange(len(spelled))
            end = self.rng.randrange(begin, len(spelled))
            marks = ["/*!50000 ", "/*!", "/*! "] + (
                ["/*M!100100 ", "/*!100100 "] if self.flavor == "mariadb" else ["/*!80000 "]
            )
            if not spelled[begin].isdigit():
                spelled[begin] = self.rng.choice(marks) + " " * spelled[begin][0].isdigit() + spelled[begin]
                spelled[end] += " */"
        if self.flip(0.1):
            spelled.insert(
                self.rng.randrange(len(spelled)),
                self.any("/*!99999 , DROP COLUMN a */", "/*!99999 x /* y */ ENGINE=MEMORY */"),
            )
        text = spelled[0]
        for before, token in itertools.pairwise(spelled):
            text += self._gap(before, token) + token
        return text + self.any("", "", "", " ", ";", "-- x", " -- START TRANSACTION", "/* y */", "\n# z")

    def _cased(self, token: str) -> str:
        if not token.isalpha() or not token.isupper():
            return token
        return self.any(token, token, token.lower(), token.capitalize())

    def _gap(self, before: str, token: str) -> str:
        if "." in {before, token}:
            return self.any("", "", "", " ", "/**/")
        return self.any(
            " ", " ", " ", "\n", "\t", "  ", " /**/ ", "/* c */", " /* '\" ` */ ", " -- d\n", " #e\n", " --\n", "\v"
        )


# --- the server -------------------------------------------------------------------------------------------------------


class Log:
    """What the server wrote into its binary log since it was asked last, read by the plugin's own readers."""

    def __init__(self, server: MysqlServer, connection: pymysql.connections.Connection[Any]) -> None:
        self._server = server
        self._file, self._position = self._end()
        self.cascades = Cascades(
            flavor=flavor_of_server(server.flavor),
            replicated=frozenset(FOLLOWED),
            read=lambda: read_edges(connection),
            size_max=1 << 24,
        )
        self.cascades.look()

    def _end(self) -> tuple[Path, int]:
        # MariaDB 11.4 keeps an index of GTIDs next to each file, binlog.000001.idx.
        file = max(self._server.data_folder.glob("binlog.[0-9][0-9][0-9][0-9][0-9][0-9]"))
        return file, file.stat().st_size

    def seen(self, *, is_lower_case: bool) -> tuple[dict[TableId, set[str]], set[TableId], list[str]]:
        """The effects on replicated tables (rows events among them), where cascades may have gone, and the statements' texts."""
        found: dict[TableId, set[str]] = {}
        cascaded: set[TableId] = set()
        texts = []
        maps: dict[int, TableId] = {}
        parents: dict[int, Parent | None] = {}
        for kind, flags, body in self._events():
            if kind == _TABLE_MAP:
                table_map = parse_table_map(body, flavor_of_server(self._server.flavor))
                number = table_id(memoryview(body))
                maps[number] = TableId(table_map.schema, table_map.table)
                parents[number] = self.cascades.parent(table_map)
            elif kind in _ROWS_EVENTS:
                number = table_id(memoryview(body))
                table, parent = maps[number], parents[number]
                if parent is not None:
                    cascaded |= self.cascades.of_rows(parent, kind, memoryview(body))
                if table in FOLLOWED:
                    found.setdefault(table, set()).add("rows")
            elif kind == _QUERY:
                statement = query(memoryview(body), flavor=flavor_of_server(self._server.flavor), flags=flags)
                if statement.text.startswith(_CONTROL) and " NOT " not in statement.text.upper()[:20]:
                    continue
                texts.append(statement.text)
                flavor = flavor_of_server(self._server.flavor)
                for effect in effects(statement, FOLLOWED, flavor=flavor, is_lower_case=is_lower_case):
                    found.setdefault(effect.table, set()).add(effect.effect.value)
                cascaded |= self.cascades.of_statement(statement.text)
        return found, cascaded, texts

    def _events(self) -> Iterator[tuple[int, int, bytes]]:
        raw = self._file.read_bytes()[self._position :]
        self._position += len(raw)
        position = 0
        while position < len(raw):
            _, kind, _, size, _, flags = struct.unpack_from("<IBIIIH", raw, position)
            yield kind, flags, raw[position + 19 : position + size - 4]
            position += size


class Bench:
    """The replicated tables on a server, and what they are now."""

    def __init__(self, server: MysqlServer) -> None:
        self.server = server
        for database in (SHOP, APP):
            server.execute(f"CREATE DATABASE {database}")
        server.execute("SET GLOBAL log_bin_trust_function_creators = 1")
        self._quiet = server.connect(SHOP)
        self._run("SET sql_log_bin = 0, foreign_key_checks = 0")
        for table in FOLLOWED:
            self.make(table)
        self._run(
            f"CREATE TABLE {SHOP}.ex {_DEFINITION}",
            f"CREATE TABLE {APP}.log (id int)",
            f"CREATE TRIGGER {APP}.g AFTER INSERT ON {APP}.log FOR EACH ROW UPDATE {SHOP}.t SET a = a + 1",
            f"CREATE VIEW {APP}.v AS SELECT * FROM {SHOP}.t",
            f"CREATE FUNCTION {APP}.f(x int) RETURNS int MODIFIES SQL DATA BEGIN UPDATE {SHOP}.`größe` SET a = a + x; RETURN x; END",
            f"CREATE PROCEDURE {APP}.q() DELETE FROM {SHOP}.`key` WHERE id = 1",
        )
        self.before = self.state()
        self.log = Log(server, self._quiet)

    def reset(self) -> None:
        """Make everything as it was at first, indexes included."""
        for table in FOLLOWED:
            self.make(table)
        self._look()

    def _look(self) -> None:
        """Take everything as it is now, as a reader does that begins here."""
        self.before = self.state()
        self.log.cascades.look()

    def close(self) -> None:
        self._quiet.close()

    def _run(self, *statements: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        with self._quiet.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
        return rows

    def make(self, table: TableId) -> None:
        """Make a table as it was at first."""
        quoted = _quoted(table)
        partitions = _PARTITIONS if table.name == "p" else ""
        values = ", ".join(f"({i}, {i}, 'v{i}', {i}, {i}, {i}, {i}, {i}, {i})" for i in range(1, 5))
        columns = ", ".join(f"`{c}`" for c in COLUMNS)
        self._run(
            f"DROP TABLE IF EXISTS {quoted}",
            f"CREATE TABLE {quoted} {_DEFINITION}{partitions}",
            f"INSERT INTO {quoted} ({columns}) VALUES {values}",
        )

    def state(self) -> dict[TableId, Any]:
        """Columns, engine, primary key and rows of each replicated table."""
        names = f"table_schema IN ('{SHOP}', '{APP}')"
        found: dict[TableId, list[Any]] = {}
        for schema, name, engine in self._run(
            f"SELECT table_schema, table_name, engine FROM information_schema.tables WHERE {names} AND table_type = 'BASE TABLE'"
        ):
            found[TableId(schema, name)] = [engine]
        for schema, name, *column in self._run(
            "SELECT table_schema, table_name, ordinal_position, column_name, column_type, character_set_name, is_nullable,"
            f" generation_expression FROM information_schema.columns WHERE {names} ORDER BY 1, 2, 3"
        ):
            found.get(TableId(schema, name), []).append(tuple(column))
        for schema, name, *part in self._run(
            "SELECT table_schema, table_name, seq_in_index, column_name, sub_part FROM information_schema.statistics"
            f" WHERE index_name = 'PRIMARY' AND {names} ORDER BY 1, 2, 3"
        ):
            found.get(TableId(schema, name), []).append(tuple(part))
        state = {}
        for table in FOLLOWED:
            if table in found:
                try:
                    rows = sorted(map(repr, self._run(f"SELECT * FROM {_quoted(table)}")))
                except pymysql.err.OperationalError as error:
                    if error.args[0] != _NOT_IN_ENGINE:
                        raise
                    # Seen once: a statement that failed left a table behind that cannot be opened.
                    rows = [repr(error)]
                state[table] = (found[table], rows)
        return state

    def check(self, spelled: str, *, is_harmless: bool, is_lower_case: bool = False) -> None:
        """Compare what a statement did with what the log's reader saw of it; then make everything as it was."""
        seen, cascaded, texts = self.log.seen(is_lower_case=is_lower_case)
        # Where the server logs what its foreign keys do, nothing watches for them.
        if self.server.flavor == "mysql":
            cascaded.clear()
        after = self.state()
        self.before, before = after, self.before
        for table in FOLLOWED:
            # These two change the target: they must be true.
            if "drop" in seen.get(table, ()):
                assert table not in after, f"{table} was not dropped\nran: {spelled!r}\nlog: {texts!r}"
            if "truncate" in seen.get(table, ()):
                assert not after[table][1], f"{table} was not emptied\nran: {spelled!r}\nlog: {texts!r}"
            if after.get(table) != before.get(table):
                assert seen.get(table) or table in cascaded, (
                    f"{table} changed and nobody saw it\nran: {spelled!r}\nlog: {texts!r}"
                )
                self.make(table)
        if is_harmless:
            # A changed default is told, and changes no row.
            is_default = "default" in spelled.lower()
            told = {table: effects for table, effects in seen.items() if not (is_default and set(effects) == {"alter"})}
            assert not told, f"{seen} of a harmless statement\nran: {spelled!r}\nlog: {texts!r}"
        if after != before:
            self._run("DROP TABLE IF EXISTS moved, ex2, ex3", f"CREATE TABLE IF NOT EXISTS {SHOP}.ex {_DEFINITION}")
            self._look()


def _quoted(table: TableId) -> str:
    return f"`{table.namespace}`.`" + table.name.replace("`", "``") + "`"


def run(server: MysqlServer, seed: int, count: int, *, is_lower_case: bool = False) -> None:
    """Run so many statements and judge each of them."""
    rng = random.Random(seed)
    bench = Bench(server)
    done = harmless = 0
    try:
        for number in range(count):
            if number % 20 == 0:
                bench.reset()
                session = server.connect(SHOP)
                mode = rng.choice(MODES)
                has_rows = rng.random() < 0.6
                with session.cursor() as cursor:
                    cursor.execute(f"SET SESSION sql_mode = '{mode}'")
                    cursor.execute(
                        f"SET SESSION binlog_format = {'ROW' if has_rows else rng.choice(['STATEMENT', 'MIXED'])}"
                    )
                    cursor.execute(f"SET SESSION foreign_key_checks = {rng.choice([0, 1, 1])}")
            grammar = Grammar(rng, server.flavor, mode, is_lower_case=is_lower_case)
            text = grammar.spelled(grammar.statement())
            with session.cursor() as cursor:
                cursor.execute(f"USE {SHOP if rng.random() < 0.8 else APP}")
                try:
                    cursor.execute(text)
                except (pymysql.err.MySQLError, ValueError):
                    is_done = False
                else:
                    is_done = True
            done += is_done
            is_harmless = grammar.is_harmless and has_rows
            harmless += is_harmless and is_done
            spelled = f"[{seed}/{number} {mode} {'ROW' if has_rows else ''}] {text}"
            bench.check(spelled, is_harmless=is_harmless, is_lower_case=is_lower_case)
            if number % 20 == 19:
                session.close()
    finally:
        bench.close()
    assert done > count / 3, "most statements are refused: the grammar is not that of the server"
    assert harmless > count / 10


_SETTINGS: Final = {"sync-binlog": "0", "innodb-flush-log-at-trx-commit": "2", "event-scheduler": "OFF"}


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def own_server(request: pytest.FixtureRequest) -> Iterator[MysqlServer]:
    if request.param == "mysql" and not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer(request.param, settings=_SETTINGS) as server:
        yield server


@pytest.mark.parametrize("count", [20, pytest.param(80, marks=pytest.mark.matrix)])
def test_what_changed_a_table_was_seen(own_server: MysqlServer, count: int) -> None:
    run(own_server, seed=1, count=count)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(10, 12))
def test_what_changed_a_table_was_seen_in_many_statements(own_server: MysqlServer, seed: int) -> None:
    run(own_server, seed=seed, count=2000)


@pytest.mark.matrix
@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_names_of_any_case_are_one_where_the_server_stores_them_so(flavor: Flavor) -> None:
    if flavor == "mysql" and not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer(flavor, settings={**_SETTINGS, "lower-case-table-names": "1"}) as server:
        run(server, seed=20, count=1000, is_lower_case=True)
