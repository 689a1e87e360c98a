"""ALTER TABLE, applied to a shape: structure, numbers, and what rows that are there have in new columns."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.alteration import steps
from replicator.model.schema import Column, TableId, TableSchema
from replicator_source_mysql.ddl.alterations import Alteration, alteration
from replicator_source_mysql.ddl.statements import effects
from replicator_source_mysql.events import Query
from replicator_source_mysql.flavors import MARIADB, MYSQL, Flavor

T = TableId("d", "t")
STRICT = 1 << 21
INT = Column(name="", type=pa.int32(), source_type="int(11)")


def shape(*names: str, key: tuple[str, ...] = ("id",), kept: tuple[Column, ...] = ()) -> TableSchema:
    """A table of INT columns; the first one is `id`."""
    columns = [
        Column(name=name, type=pa.int32(), source_type="int(11)", nullable=name not in key) for name in ("id", *names)
    ]
    return TableSchema(table=T, columns=tuple(columns), key=key, kept=kept)


def altered(
    schema: TableSchema, text: str, *, flavor: Flavor = MARIADB, sql_mode: int = STRICT, after: int = 0
) -> Alteration | None:
    """What becomes of the table by `ALTER TABLE t` and this."""
    (effect,) = effects(Query("d", f"ALTER TABLE t {text}", sql_mode), [T], flavor=flavor, is_lower_case=False)
    return None if effect.columns is None else alteration(schema, effect.columns, after=after, flavor=flavor)


def _origin(found: Alteration | None) -> list[str]:
    """The columns afterwards, each with the name that it had; a new one with none."""
    assert found is not None
    return [f"{old or ''}>{new}" for new, old in steps(found.before, found.schema).origin.items()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ADD x INT", "id>id a>a b>b >x"),
        ("ADD COLUMN x INT FIRST", ">x id>id a>a b>b"),
        ("ADD x INT AFTER id, ADD y INT AFTER x", "id>id >x >y a>a b>b"),
        ("ADD x INT AFTER id, ADD y INT AFTER id", "id>id >y >x a>a b>b"),
        ("ADD (x INT, y INT)", "id>id a>a b>b >x >y"),
        ("DROP a", "id>id b>b"),
        ("DROP COLUMN `A` RESTRICT", "id>id b>b"),
        ("DROP a, ADD a INT", "id>id b>b >a"),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO a", "id>id a>b b>a"),
        ("CHANGE a b INT, CHANGE b a INT", "id>id a>b b>a"),
        ("CHANGE a b INT AFTER a, CHANGE b a INT", "id>id b>a a>b"),
        ("RENAME COLUMN a TO x, ADD y INT AFTER x", "id>id a>x >y b>b"),
        ("ADD y INT AFTER x, RENAME COLUMN a TO x", "id>id a>x >y b>b"),
        ("MODIFY b INT FIRST", "b>b id>id a>a"),
        ("MODIFY A INT AFTER b", "id>id b>b a>A"),
        # Until it is its turn, what moves stands where it stood.
        ("ADD x INT AFTER a, MODIFY a INT FIRST", "a>a id>id >x b>b"),
        ("MODIFY a INT AFTER b, ADD x INT AFTER a", "id>id b>b a>a >x"),
        ("CHANGE a x INT AFTER b, MODIFY b INT FIRST", "b>b id>id a>x"),
        ("DROP a, RENAME COLUMN b TO a", "id>id b>a"),
        ("ADD INDEX (a), DROP b, COMMENT 'x'", "id>id a>a"),
        ("DROP IF EXISTS x, DROP IF EXISTS a", "id>id b>b"),
        ("ADD IF NOT EXISTS a BIGINT, ADD IF NOT EXISTS x INT FIRST", ">x id>id a>a b>b"),
        ("RENAME COLUMN IF EXISTS x TO y", "id>id a>a b>b"),
        ("MODIFY IF EXISTS x INT FIRST", "id>id a>a b>b"),
    ],
)
def test_every_column_is_followed(text: str, expected: str) -> None:
    assert _origin(altered(shape("a", "b"), text)) == expected.split()


@pytest.mark.parametrize(
    "text",
    [
        "ADD a INT",
        "ADD x INT, ADD X INT",
        "ADD x INT AFTER y",
        "DROP x",
        "DROP id, DROP a, DROP b",
        "DROP a, DROP a",
        "MODIFY a INT, RENAME COLUMN a TO x",
        "RENAME COLUMN a TO b",
        "ADD y INT AFTER a, RENAME COLUMN a TO x",
        "ADD IF NOT EXISTS a INT, DROP a",
        "MODIFY a INT AFTER a",
        "ADD x INT DEFAULT 1 + 1",
        "ADD x TEXT(70)",
        "ADD x VARCHAR(70000)",
        "ADD x NOSUCH",
        "ADD x INT WITHOUT SYSTEM VERSIONING",
        "ADD SYSTEM VERSIONING",
        "DROP SYSTEM VERSIONING",
        "ADD PERIOD FOR p (a, b)",
        "DROP PERIOD FOR p",
        "ADD x ENUM('a\\\\b')",
        "ADD x ENUM('a') CHARACTER SET binary",
        "CONVERT TO CHARACTER SET binary",
        "CONVERT TO CHARACTER SET DEFAULT",
        "ADD PRIMARY KEY (x)",
        "ADD PRIMARY KEY (id), ADD x INT PRIMARY KEY",
        "ADD PRIMARY KEY IF NOT EXISTS (a)",
        "ADD PRIMARY KEY ((a + 1))",
        "DROP INDEX IF EXISTS `PRIMARY`",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (a) nonsense",
        "ADD gröẞe INT, ADD größe INT",
    ],
)
def test_what_has_two_readings_is_not_applied(text: str) -> None:
    assert altered(shape("a", "b"), text) is None


def test_names_that_the_server_may_take_for_one_are_told_apart_by_nobody() -> None:
    assert altered(shape("größe"), "DROP `GRÖSSE`") is None
    assert altered(shape("größe"), "DROP `GRÖßE`") is None
    assert _origin(altered(shape("größe"), "DROP `größe`")) == ["id>id"]


def test_types_of_other_modes_are_not_understood() -> None:
    oracle, maxdb = 1 << 9, 1 << 12
    assert altered(shape(), "ADD x DATE", sql_mode=oracle) is None
    assert altered(shape(), "ADD x TIMESTAMP NULL", sql_mode=maxdb) is None
    found = altered(shape(), "ADD x REAL", sql_mode=1)
    assert found is not None
    assert found.schema.column("x").type == pa.float32()


def test_the_generated_key_of_mysql_stays_first() -> None:
    schema = TableSchema(
        table=T, columns=(Column(name="my_row_id", type=pa.decimal128(20), source_type="bigint unsigned"), INT)
    )
    assert altered(schema, "ADD x INT FIRST", flavor=MYSQL) is None
    assert altered(schema, "ADD x INT AFTER my_row_id", flavor=MYSQL) is not None


# --- numbers --------------------------------------------------------------------------------------------------------


def test_columns_get_numbers_that_no_other_column_ever_gets() -> None:
    first = altered(shape("a", "b"), "DROP b, ADD c INT")
    assert first is not None
    assert [c.id for c in first.before.columns] == [1, 2, 3]
    assert [(c.name, c.id) for c in first.schema.columns] == [("id", 1), ("a", 2), ("c", 4)]
    second = altered(first.schema, "DROP c", after=4)
    assert second is not None
    third = altered(second.schema, "ADD d INT", after=4)
    assert third is not None
    assert [(c.name, c.id) for c in third.schema.columns] == [("id", 1), ("a", 2), ("d", 5)]


def test_kept_columns_are_carried_over_and_their_numbers_stay_theirs() -> None:
    kept = (Column(name="old", type=pa.int32(), source_type="int", id=9),)
    found = altered(shape("a", kept=kept), "ADD x INT")
    assert found is not None
    assert (found.before.kept, found.schema.kept) == (kept, kept)
    assert [c.id for c in found.schema.columns] == [1, 2, 10]
    low = (Column(name="old", type=pa.int32(), source_type="int", id=1),)
    found = altered(shape("a", kept=low), "ADD x INT")
    assert found is not None
    assert [c.id for c in found.schema.columns] == [2, 3, 4]


def test_the_key_has_the_new_names_of_its_columns() -> None:
    found = altered(shape("a", key=("a", "id")), "CHANGE a x INT NOT NULL, RENAME COLUMN id TO y")
    assert found is not None
    assert (found.schema.key, found.fill is not None) == (("x", "y"), True)
    found = altered(shape("a"), "CHANGE id y INT")
    assert found is not None
    assert (found.schema.key, found.schema.column("y").nullable, found.fill) == (("y",), False, None)


# --- rows that are there ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        ("INT", None),
        ("INT DEFAULT NULL", None),
        ("INT DEFAULT 5", 5),
        ("INT NOT NULL DEFAULT -5 COMMENT 'x'", -5),
        ("INT NOT NULL", 0),
        ("BOOL DEFAULT TRUE", 1),
        ("TINYINT UNSIGNED DEFAULT '255'", 255),
        ("BOOL DEFAULT b'1'", 1),
        ("INT DEFAULT 0b101", 5),
        ("BIGINT UNSIGNED DEFAULT 18446744073709551615", Decimal(18446744073709551615)),
        ("DECIMAL(10,2) DEFAULT 1.5", Decimal("1.50")),
        ("DECIMAL(10,2) NOT NULL", Decimal("0.00")),
        (f"DECIMAL(60,1) DEFAULT {'1234567890' * 5}", Decimal(f"{'1234567890' * 5}.0")),
        ("DOUBLE DEFAULT 0.1", 0.1),
        ("FLOAT DEFAULT 0.1", 0.10000000149011612),
        ("BIT DEFAULT b'1'", True),
        ("BIT(4) DEFAULT 0b101", 5),
        ("BIT(64) NOT NULL", Decimal(0)),
        ("YEAR DEFAULT 2024", 2024),
        ("DATE DEFAULT '2024-02-29'", date(2024, 2, 29)),
        ("DATETIME DEFAULT '2024-02-29 01:02:03'", datetime(2024, 2, 29, 1, 2, 3)),  # noqa: DTZ001 - it has no zone
        ("DATETIME(3) DEFAULT '2024-02-29 01:02:03.5'", datetime(2024, 2, 29, 1, 2, 3, 500_000)),  # noqa: DTZ001
        ("TIMESTAMP NULL", None),
        ("TIME(2) DEFAULT '-10:11:12.5'", "-10:11:12.50"),
        ("TIME(3) NOT NULL", "00:00:00.000"),
        ("VARCHAR(9) DEFAULT 'it''s'", "it's"),
        ("VARCHAR(9) DEFAULT 0", "0"),
        ("CHAR(9) DEFAULT 'a  '", "a"),
        ("VARCHAR(9) NOT NULL", ""),
        ("TEXT NOT NULL DEFAULT ('a')", "a"),
        ("BINARY(3) DEFAULT x'41'", b"A\0\0"),
        ("BINARY(2) NOT NULL", b"\0\0"),
        ("ENUM('a','b') DEFAULT 'b'", "b"),
        ("ENUM('a','b') NOT NULL", "a"),
        ("SET('a','b') DEFAULT 'a,b'", "a,b"),
        ("SET('a','b') NOT NULL", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("flavor", [MYSQL, MARIADB])
def test_rows_that_are_there_have_the_default(definition: str, value: Any, flavor: Flavor) -> None:
    found = altered(shape(), f"ADD x {definition}", flavor=flavor)
    assert found is not None
    assert found.fill is not None
    column = found.schema.column("x")
    if value is None:
        assert found.fill.schema.names == []
    else:
        assert (found.fill.column("x").type, found.fill.column("x").to_pylist()) == (column.type, [value])


@pytest.mark.parametrize(
    "text",
    [
        "ADD x INT DEFAULT (RAND())",
        "ADD x DATETIME DEFAULT CURRENT_TIMESTAMP",
        "ADD x DATETIME DEFAULT NOW() ON UPDATE NOW()",
        "ADD x VARCHAR(36) DEFAULT UUID()",
        "ADD x INT AS (id + 1) STORED",
        "ADD x INT GENERATED ALWAYS AS (id + 1) VIRTUAL",
        "ADD x INT AUTO_INCREMENT UNIQUE",
        "ADD x DATE NOT NULL",
        "ADD x DATE DEFAULT '0000-00-00'",
        "ADD x DATE DEFAULT '2024-02-30'",
        "ADD x TIMESTAMP",
        "ADD x TIMESTAMP NOT NULL",
        "ADD x TIMESTAMP NULL DEFAULT '2024-01-01 00:00:00'",
        "ADD x INT DEFAULT 1.5",
        "ADD x DECIMAL(5,1) DEFAULT 1.25",
        "ADD x FLOAT(5,1) DEFAULT 1.2",
        "ADD x YEAR DEFAULT '0'",
        "ADD x VARCHAR(9) DEFAULT 'größe'",
        "ADD x VARCHAR(9) CHARACTER SET utf8mb4 DEFAULT 'größe'",
        "ADD x VARCHAR(9) DEFAULT _latin1'a'",
        "ADD x VARCHAR(9) DEFAULT '{}'",
        "ADD x ENUM('größe') NOT NULL",
        "ADD x VARBINARY(9) DEFAULT 'a'",
        "ADD x ENUM('a','b') DEFAULT 1",
        "ADD x ENUM('a','b') DEFAULT 'A'",
        "ADD x SET('a','b') DEFAULT 'b,a'",
        "ADD x UUID NOT NULL",
        "ADD x INT, CONVERT TO CHARACTER SET latin1",
        "ADD x INT, ENGINE = InnoDB",
        "ADD x INT, ADD FOREIGN KEY (x) REFERENCES u (id) ON DELETE CASCADE",
        "CONVERT TO CHARACTER SET latin1",
        "MODIFY a TINYINT",
        "MODIFY a MEDIUMINT",
        "ADD x SERIAL",
        "ADD x INT PRIMARY KEY, DROP PRIMARY KEY",
        "ADD x INT REFERENCES u (id) ON DELETE CASCADE",
        "MODIFY a INT AUTO_INCREMENT",
        "MODIFY a INT AS (id) STORED",
    ],
)
def test_what_rows_have_may_be_unknown_where_the_columns_are_known(text: str) -> None:
    found = altered(shape("a"), text)
    assert found is not None
    assert found.fill is None


def test_an_ignoring_statement_may_delete_rows() -> None:
    (effect,) = effects(
        Query("d", "ALTER IGNORE TABLE t ADD x INT, ADD UNIQUE (a)", 0), [T], flavor=MARIADB, is_lower_case=False
    )
    assert effect.columns is not None
    found = alteration(shape("a"), effect.columns, after=0, flavor=MARIADB)
    assert found is not None
    assert found.fill is None


def test_an_empty_string_may_be_null_in_a_mode_of_mariadb() -> None:
    for flavor, is_known in ((MARIADB, False), (MYSQL, True)):
        found = altered(shape(), "ADD x VARCHAR(5) DEFAULT ''", flavor=flavor, sql_mode=1 << 32)
        assert found is not None
        assert (found.fill is not None) == is_known


@pytest.mark.parametrize(
    ("old", "new", "is_kept"),
    [
        ("varchar(5)", "VARCHAR(9)", True),
        ("varchar(5)", "VARCHAR(4)", False),
        ("varchar(5)", "VARCHAR(5) CHARACTER SET latin1", True),
        ("varchar(5)", "VARCHAR(5) CHARACTER SET sjis", False),
        ("text", "TEXT CHARACTER SET utf8mb4", False),
        ("char(5)", "VARCHAR(5)", True),
        ("bigint(20)", "BIGINT UNSIGNED", False),
        ("int(10) unsigned", "BIGINT", True),
        ("int(11)", "DECIMAL(11,2)", False),
        ("bigint(20)", "DOUBLE", False),
        ("json", "TEXT", False),
        ("year(4)", "TINYINT", False),
        ("varchar(5)", "CHAR(5)", False),
        ("text", "MEDIUMTEXT", True),
        ("mediumtext", "TEXT", False),
        ("enum('a','b')", "ENUM('a','b','c')", True),
        ("enum('a','b')", "ENUM('b','c','a')", True),
        ("set('a','b')", "SET('b','a')", False),
        ("set('a','b')", "SET('c','a','d','b')", True),
        ("enum('a','b')", "ENUM('a')", False),
        ("decimal(5,2)", "DECIMAL(5,2) UNSIGNED", False),
        ("decimal(5,2)", "DECIMAL(5,2)", True),
        ("datetime(6)", "DATETIME(3)", False),
        ("time", "TIME(3)", False),
        ("float", "FLOAT(5,1)", False),
        ("binary(4)", "BINARY(5)", False),
        ("varbinary(4)", "VARBINARY(5)", True),
        ("int(11)", "INT", True),
        ("int(11)", "INT NOT NULL", True),
        ("timestamp", "TIMESTAMP", False),
        ("timestamp", "TIMESTAMP NOT NULL", False),
        ("timestamp", "TIMESTAMP NULL", True),
    ],
)
def test_a_new_definition_may_keep_every_value(old: str, new: str, *, is_kept: bool) -> None:
    (before,) = _columns_of(old)
    schema = TableSchema(table=T, columns=(*shape().columns, before), key=("id",))
    found = altered(schema, f"MODIFY x {new}")
    assert found is not None
    assert (found.fill is not None) == is_kept


@pytest.mark.parametrize(("old", "new"), [("varchar(5)", "VARCHAR(5)"), ("int(11)", "INT NOT NULL")])
def test_a_session_that_is_not_strict_may_change_values_without_an_error(old: str, new: str) -> None:
    schema = TableSchema(table=T, columns=(*shape().columns, *_columns_of(old)), key=("id",))
    found = altered(schema, f"MODIFY x {new}", sql_mode=0)
    assert found is not None
    assert found.fill is None


@pytest.mark.parametrize(
    ("text", "key", "nullable"),
    [
        ("DROP PRIMARY KEY", (), []),
        ("DROP INDEX `primary`", (), []),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)", ("id", "a"), []),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (id)", ("id",), []),
        ("ADD PRIMARY KEY (B, id), DROP PRIMARY KEY", ("b", "id"), []),
        ("DROP PRIMARY KEY, ADD CONSTRAINT `PRIMARY` PRIMARY KEY USING BTREE (a DESC) COMMENT 'x'", ("a",), []),
        ("DROP PRIMARY KEY, CHANGE a x INT NOT NULL, ADD PRIMARY KEY (x)", ("x",), []),
        ("DROP PRIMARY KEY, MODIFY id INT NULL", (), ["id"]),
        ("DROP PRIMARY KEY, MODIFY id INT", (), ["id"]),
        ("DROP id, ADD PRIMARY KEY (a)", ("a",), []),
        ("DROP id", (), []),
        ("DROP PRIMARY KEY, ADD x DOUBLE NOT NULL, ADD PRIMARY KEY (x)", (), []),
        ("DROP PRIMARY KEY, ADD x VARCHAR(9) NOT NULL, ADD PRIMARY KEY (x(5))", (), []),
        ("DROP PRIMARY KEY, ADD x VARCHAR(9) NOT NULL, ADD PRIMARY KEY (x(9))", ("x",), []),
    ],
)
def test_a_key_is_what_the_statement_makes_it(text: str, key: tuple[str, ...], nullable: list[str]) -> None:
    schema = shape("a", "b")
    schema = replace(schema, columns=tuple(replace(c, nullable=False) for c in schema.columns))
    found = altered(schema, text)
    assert found is not None
    assert (found.before.key, found.schema.key) == (("id",), key)
    assert [c.name for c in found.schema.columns if c.nullable] == nullable


def test_null_in_a_new_key_becomes_another_value_where_nothing_is_strict() -> None:
    for sql_mode, is_known in ((STRICT, True), (0, False)):
        found = altered(shape("a"), "DROP PRIMARY KEY, ADD PRIMARY KEY (a)", sql_mode=sql_mode)
        assert found is not None
        assert (found.fill is not None, found.schema.column("a").nullable) == (is_known, False)


@pytest.mark.parametrize(
    "text",
    [
        "ADD x INT PARTITION BY HASH (id)",
        "ADD x INT REMOVE PARTITIONING",
        "ADD x INT REFERENCES u (id)",
        "ADD (x INT, KEY (x), CONSTRAINT u UNIQUE (x), CHECK (x > 0))",
        "ADD COLUMN IF NOT EXISTS (x INT, a INT)",
    ],
)
def test_what_follows_a_column_does_nothing_to_it(text: str) -> None:
    found = altered(shape("a"), text)
    assert found is not None
    assert [c.name for c in found.schema.columns] == ["id", "a", "x"]
    assert found.fill is not None


@pytest.mark.parametrize(
    ("definition", "type_"),
    [
        ("SERIAL", "bigint(20) unsigned"),
        ("TEXT(1000)", "text"),
        ("TEXT(20)", "tinytext"),
        ("BIGINT SERIAL DEFAULT VALUE", "bigint(20)"),
    ],
)
def test_types_with_other_names_are_those_of_the_catalogue(definition: str, type_: str) -> None:
    found = altered(shape(), f"ADD x {definition}")
    assert found is not None
    assert found.schema.column("x").source_type == type_


def test_another_type_is_told() -> None:
    found = altered(shape("a"), "MODIFY a VARCHAR(20) NOT NULL COMMENT 'c' FIRST")
    assert found is not None
    assert found.fill is None
    column = found.schema.columns[0]
    assert (column.type, column.source_type, column.nullable, column.comment) == (
        pa.string(), "varchar(20)", False, "c",
    )  # fmt: skip


def _columns_of(source_type: str) -> tuple[Column, ...]:
    """A column `x`, as an ALTER TABLE makes it."""
    found = altered(shape(), f"ADD x {source_type}{' NULL' if source_type == 'timestamp' else ''}")
    assert found is not None
    return (found.schema.column("x"),)
