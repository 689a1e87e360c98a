"""Random tables, and what a random draw does to their definitions and rows, in the SQL of each source."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

LITERALS: Final[Mapping[str, Sequence[str]]] = {
    "small": ("7", "-1", "NULL"),
    "int": ("100000", "0", "NULL"),
    "bigint": ("9007199254740993", "-5", "NULL"),
    "vc10": ("'x'", "''", "NULL"),
    "vc40": ("'a longer text'", "'größe'", "NULL"),
    "text": ("'any'", "NULL"),
    "dec8": ("12.50", "-0.01", "NULL"),
    "dec12": ("1234567890.12", "0", "NULL"),
    "date": ("'2024-02-29'", "NULL"),
    "moment": ("'2024-02-29 12:00:00.5'", "NULL"),
}
WIDER: Final[Mapping[str, Sequence[str]]] = {
    "small": ("int", "bigint"),
    "int": ("bigint",),
    "vc10": ("vc40", "text"),
    "vc40": ("text",),
    "dec8": ("dec12",),
    "date": ("moment",),
}
OTHER: Final[Mapping[str, Sequence[str]]] = {
    "small": ("vc40", "dec12"),
    "int": ("vc40", "dec12"),
    "bigint": ("vc40",),
    "dec8": ("vc40",),
    "dec12": ("vc40",),
    "date": ("vc40",),
    "moment": ("vc40",),
}
"""Other types that hold what is in the column: a server refuses the rest."""
NAMES: Final = ("a", "b", "c", "d", "e f", "Größe")


@dataclass(slots=True)
class Shape:
    """A table of the source. `key`: of the columns `id` and `k`, which every table has. `kinds`: of the others."""

    key: tuple[str, ...]
    kinds: dict[str, str] = field(default_factory=dict)
    next_id: int = 1


class Dialect(ABC):
    """How a source spells it."""

    types: ClassVar[Mapping[str, str]]
    is_transactional: ClassVar[bool] = False
    """Whether definitions and rows are changed in one transaction."""

    @abstractmethod
    def quoted(self, name: str) -> str:
        """A name in quotes."""

    @abstractmethod
    def retyped(self, table: str, column: str, kind: str) -> Sequence[str]:
        """A column gets another type."""

    @abstractmethod
    def swapped(self, table: str, a: str, b: str, shape: Shape) -> Sequence[str]:
        """Two columns change their names."""

    @abstractmethod
    def rekeyed(self, table: str, before: tuple[str, ...], after: tuple[str, ...]) -> Sequence[str]:
        """Other columns make the key; none: there is none."""

    @abstractmethod
    def tables_swapped(self, a: str, b: str) -> Sequence[str]:
        """Two tables change their names."""

    @abstractmethod
    def replaced(self, table: str, addition: str) -> Sequence[str]:
        """A table that was made like it, and altered, takes the name; as migration tools do it. The old one is left as `old_…`."""

    def identified(self, draw: random.Random, table: str, shape: Shape) -> Sequence[str]:
        """The log names other columns of the rows that change."""
        del draw, table, shape
        return []

    def created(self, table: str, shape: Shape) -> Sequence[str]:
        """A table is made."""
        key = f", PRIMARY KEY ({', '.join(shape.key)})" if shape.key else ""
        columns = "".join(f", {self.quoted(name)} {self.types[kind]}" for name, kind in shape.kinds.items())
        return [f"CREATE TABLE {table} (id int NOT NULL, k int NOT NULL{columns}{key})"]

    def added(self, draw: random.Random, shape: Shape, name: str) -> str:
        """The action that adds a column."""
        kind = draw.choice(list(self.types))
        shape.kinds[name] = kind
        value = draw.choice(LITERALS[kind])
        # A text of MySQL cannot have a literal as its default.
        default = "" if kind == "text" or value == "NULL" or draw.random() < 0.4 else f" DEFAULT {value}"
        return f"ADD COLUMN {self.quoted(name)} {self.types[kind]}{default}"


class PostgresqlDialect(Dialect):
    """PostgreSQL."""

    types: ClassVar[Mapping[str, str]] = {
        "small": "smallint", "int": "int", "bigint": "bigint", "vc10": "varchar(10)", "vc40": "varchar(40)", "text": "text",
        "dec8": "numeric(8,2)", "dec12": "numeric(12,2)", "date": "date", "moment": "timestamp",
    }  # fmt: skip

    is_transactional = True

    def quoted(self, name: str) -> str:
        return f'"{name}"'

    def identified(self, draw: random.Random, table: str, shape: Shape) -> Sequence[str]:
        what = draw.choice(["FULL", "DEFAULT"]) if shape.key else "FULL"
        return [f"ALTER TABLE {table} REPLICA IDENTITY {what}"]

    def created(self, table: str, shape: Shape) -> Sequence[str]:
        statements = list(super().created(table, shape))
        return statements if shape.key else [*statements, f"ALTER TABLE {table} REPLICA IDENTITY FULL"]

    def retyped(self, table: str, column: str, kind: str) -> Sequence[str]:
        name, type_ = self.quoted(column), self.types[kind]
        drop = f"ALTER TABLE {table} ALTER COLUMN {name} DROP DEFAULT"
        return [drop, f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {type_} USING {name}::{type_}"]

    def swapped(self, table: str, a: str, b: str, shape: Shape) -> Sequence[str]:
        del shape
        one, other = self.quoted(a), self.quoted(b)
        return [
            f"ALTER TABLE {table} RENAME COLUMN {one} TO between_names",
            f"ALTER TABLE {table} RENAME COLUMN {other} TO {one}",
            f"ALTER TABLE {table} RENAME COLUMN between_names TO {other}",
        ]

    def rekeyed(self, table: str, before: tuple[str, ...], after: tuple[str, ...]) -> Sequence[str]:
        drop = (
            f"DO $$ DECLARE n text; BEGIN SELECT conname INTO n FROM pg_constraint WHERE conrelid = '{table}'::regclass"
            f" AND contype = 'p'; EXECUTE format('ALTER TABLE {table} DROP CONSTRAINT %I', n); END $$"
        )
        add = [
            f"ALTER TABLE {table} ADD PRIMARY KEY ({', '.join(after)})",
            f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT",
        ]
        none = [f"ALTER TABLE {table} REPLICA IDENTITY FULL"]
        return [*([drop] if before else []), *(add if after else none)]

    def tables_swapped(self, a: str, b: str) -> Sequence[str]:
        return [
            f"ALTER TABLE {a} RENAME TO between_tables",
            f"ALTER TABLE {b} RENAME TO {a}",
            f"ALTER TABLE between_tables RENAME TO {b}",
        ]

    def replaced(self, table: str, addition: str) -> Sequence[str]:
        return [
            f"CREATE TABLE new_{table} (LIKE {table} INCLUDING ALL)",
            f"INSERT INTO new_{table} SELECT * FROM {table}",
            f"ALTER TABLE new_{table} {addition}",
            f"ALTER TABLE new_{table} REPLICA IDENTITY FULL",
            f"DROP TABLE IF EXISTS old_{table}",
            f"ALTER TABLE {table} RENAME TO old_{table}",
            f"ALTER TABLE new_{table} RENAME TO {table}",
        ]


class MysqlDialect(Dialect):
    """MariaDB and MySQL."""

    types: ClassVar[Mapping[str, str]] = {
        "small": "smallint", "int": "int", "bigint": "bigint", "vc10": "varchar(10)", "vc40": "varchar(40)", "text": "text",
        "dec8": "decimal(8,2)", "dec12": "decimal(12,2)", "date": "date", "moment": "datetime(6)",
    }  # fmt: skip

    def quoted(self, name: str) -> str:
        return f"`{name}`"

    def retyped(self, table: str, column: str, kind: str) -> Sequence[str]:
        return [f"ALTER TABLE {table} MODIFY {self.quoted(column)} {self.types[kind]}"]

    def swapped(self, table: str, a: str, b: str, shape: Shape) -> Sequence[str]:
        one, other = self.quoted(a), self.quoted(b)
        types = self.types[shape.kinds[a]], self.types[shape.kinds[b]]
        return [f"ALTER TABLE {table} CHANGE {one} {other} {types[0]}, CHANGE {other} {one} {types[1]}"]

    def rekeyed(self, table: str, before: tuple[str, ...], after: tuple[str, ...]) -> Sequence[str]:
        actions = (["DROP PRIMARY KEY"] if before else []) + (
            [f"ADD PRIMARY KEY ({', '.join(after)})"] if after else []
        )
        return [f"ALTER TABLE {table} {', '.join(actions)}"]

    def tables_swapped(self, a: str, b: str) -> Sequence[str]:
        return [f"RENAME TABLE {a} TO between_tables, {b} TO {a}, between_tables TO {b}"]

    def replaced(self, table: str, addition: str) -> Sequence[str]:
        return [
            f"CREATE TABLE new_{table} LIKE {table}",
            f"INSERT INTO new_{table} SELECT * FROM {table}",
            f"ALTER TABLE new_{table} {addition}",
            f"DROP TABLE IF EXISTS old_{table}",
            f"RENAME TABLE {table} TO old_{table}, new_{table} TO {table}",
        ]
