"""Conversions of columns, on real servers: what is said to keep every value does, in what a SELECT reads and in what the log has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
import pymysql

from replicator.model.alteration import widens
from replicator.model.events import ROW, DDLEvent
from replicator.model.schema import TableId
from replicator.plugins.source import PullLimits
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testing.defaults import chunk_request

Make = Callable[..., MysqlSource]

_STRICT: Final = "STRICT_ALL_TABLES"
_LIMITS: Final = PullLimits(rows=10_000, bytes=64 << 20, wait_s=1.0)
_BIG: Final = "9" * 35
_TEXTS: Final = ("''", "'a'", "'A'", "'a  '", "'größe'")
KEPT: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    # Integers.
    ("TINYINT", "SMALLINT", ("-128", "127", "NULL")),
    ("TINYINT(1)", "INT", ("-1", "0", "1")),
    ("SMALLINT", "MEDIUMINT", ("-32768", "32767")),
    ("MEDIUMINT", "INT", ("-8388608", "8388607")),
    ("INT", "BIGINT", ("-2147483648", "2147483647", "NULL")),
    ("INT UNSIGNED", "BIGINT", ("4294967295", "0")),
    ("INT UNSIGNED", "BIGINT UNSIGNED", ("4294967295", "0")),
    ("SMALLINT UNSIGNED", "INT UNSIGNED", ("65535",)),
    ("SMALLINT(3) UNSIGNED ZEROFILL", "INT UNSIGNED", ("65535", "7")),
    ("INT", "DECIMAL(12,2)", ("-2147483648", "2147483647")),
    ("BIGINT", "DECIMAL(19)", ("-9223372036854775808", "9223372036854775807")),
    ("BIGINT UNSIGNED", "DECIMAL(20)", ("18446744073709551615", "0")),
    ("BIGINT UNSIGNED", "DECIMAL(50,4)", ("18446744073709551615",)),
    ("INT", "DOUBLE", ("-2147483648", "2147483647")),
    ("YEAR", "SMALLINT", ("2155", "1901", "0")),
    ("YEAR", "INT UNSIGNED", ("2155", "0")),
    ("BIT(5)", "BIT(63)", ("b'10101'", "0")),
    # Other numbers.
    ("DECIMAL(5,2)", "DECIMAL(9,2)", ("-999.99", "0.01")),
    ("DECIMAL(5,2)", "DECIMAL(9,4)", ("-999.99", "0.01")),
    ("DECIMAL(38,3)", "DECIMAL(60,3)", (_BIG, f"-{_BIG}.001")),
    ("DECIMAL(5,2) UNSIGNED", "DECIMAL(5,2)", ("999.99",)),
    ("FLOAT", "DOUBLE", ("0.1", "-3.4e38", "1e-40", "16777217", "-0.0", "0.333333333")),
    ("FLOAT(7,3)", "DOUBLE", ("0.1", "1234.567")),
    ("FLOAT UNSIGNED", "FLOAT", ("0.1",)),
    ("DOUBLE(9,3)", "DOUBLE", ("0.1", "1234.567")),
    # Dates and times.
    ("DATE", "DATETIME", ("'2024-02-29'", "'0000-00-00'", "'2024-00-10'", "'9999-12-31'", "NULL")),
    ("DATE", "DATETIME(6)", ("'2024-02-29'", "'1000-01-01'")),
    ("DATETIME", "DATETIME(6)", ("'2024-02-29 23:59:59'", "'0000-00-00'")),
    ("DATETIME(3)", "DATETIME(4)", ("'2024-02-29 23:59:59.999'",)),
    ("TIMESTAMP NULL", "TIMESTAMP(6) NULL", ("'2024-02-29 23:59:59'", "NULL", "'0000-00-00'")),
    # Texts.
    ("VARCHAR(9)", "VARCHAR(300)", _TEXTS),
    ("CHAR(9)", "CHAR(30)", _TEXTS),
    ("CHAR(9)", "VARCHAR(9)", _TEXTS),
    ("CHAR(9)", "TEXT", _TEXTS),
    ("VARCHAR(9)", "TINYTEXT", _TEXTS),
    ("VARCHAR(9)", "LONGTEXT", _TEXTS),
    ("VARCHAR(300) CHARACTER SET latin1", "TEXT CHARACTER SET utf8mb4", _TEXTS),
    ("TINYTEXT", "TEXT", _TEXTS),
    ("TEXT", "MEDIUMTEXT", _TEXTS),
    ("VARCHAR(9) CHARACTER SET latin1", "VARCHAR(9) CHARACTER SET utf8mb4", ("'größe'", "x'80819d'")),
    ("VARCHAR(9) CHARACTER SET utf8mb4", "VARCHAR(9) CHARACTER SET latin1", ("'größe'", "'€'")),
    ("CHAR(9) CHARACTER SET latin1", "CHAR(9) CHARACTER SET utf8mb4", ("'größe'", "'a '")),
    ("ENUM('a','b','größe')", "ENUM('a','b','größe','c')", ("'a'", "'größe'", "NULL")),
    ("ENUM('a','b')", "ENUM('b','c','a')", ("'a'", "'b'", "NULL")),
    ("ENUM('a','b')", "VARCHAR(1)", ("'a'", "'b'", "NULL")),
    ("SET('a','b')", "SET('a','b','c')", ("''", "'a,b'")),
    ("SET('a','b')", "SET('c','a','d','b')", ("''", "'a,b'", "'b'")),
    ("SET('a','b')", "TEXT", ("''", "'a,b'")),
    ("JSON", "LONGTEXT", ("'{\"b\": [1.0, null],  \"a\": \"größe\"}'", "NULL")),
    # Bytes.
    ("VARBINARY(4)", "VARBINARY(300)", ("''", "x'ff00'", "x'2020'")),
    ("BINARY(4)", "VARBINARY(4)", ("''", "x'ff00'", "x'2020'")),
    ("BINARY(4)", "BLOB", ("''", "x'ff00'")),
    ("VARBINARY(300)", "BLOB", ("''", "x'ff00'")),
    ("TINYBLOB", "LONGBLOB", ("''", "x'ff00'")),
    ("POINT", "GEOMETRY", ("ST_GeomFromText('POINT(1 2)')", "NULL")),
)  # fmt: skip
CHANGED: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("INT", "INT AUTO_INCREMENT UNIQUE", ("0",)),
    ("VARCHAR(9)", "CHAR(9)", ("'a  '",)),
    ("VARCHAR(9)", "ENUM('a')", ("'A'",)),
    ("SET('a','b')", "SET('b','a')", ("'a,b'",)),
    ("BINARY(4)", "BINARY(5)", ("x'ff'",)),
    ("TIME", "TIME(3)", ("'10:11:12'",)),
    ("DATETIME(6)", "DATETIME", ("'2024-02-29 23:59:59.9'",)),
    ("DECIMAL(5,2)", "DECIMAL(6,1)", ("0.15",)),
    ("DOUBLE", "FLOAT", ("0.1",)),
)
"""A strict session does these without an error."""


def _run(
    database: MysqlDatabase, source: MysqlSource, cases: tuple[tuple[str, str, tuple[str, ...]], ...], sql_mode: str
) -> list[tuple[str, bool, list[Any], list[Any], list[Any]]]:
    """Of each conversion: the statement, whether the source says that it keeps values, and rows before, after, and of the log."""
    names = [f"t{number}" for number in range(len(cases))]
    tables = [TableId(database.name, name) for name in names]
    with closing(database.connect()) as session, session.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        for name, (old, _, values) in zip(names, cases, strict=True):
            cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, c {old}) CHARACTER SET utf8mb4")
            for number, value in enumerate(values):
                cursor.execute(f"INSERT INTO {name} VALUES ({number}, {value})")
    schemas = {table: found.schema for table, found in source.describe(tables).items()}
    offset = source.prepare(tables, is_first=True)
    before = {table: source.read_chunk(chunk_request(schemas[table], limit=100)).rows.to_pylist() for table in tables}
    statements = {
        table: f"ALTER TABLE {table.name} MODIFY c {case[1]}" for table, case in zip(tables, cases, strict=True)
    }
    with closing(database.connect()) as session, session.cursor() as cursor:
        cursor.execute(f"SET SESSION sql_mode = '{sql_mode}'")
        for table, text in statements.items():
            try:
                cursor.execute(text)
            except pymysql.err.MySQLError as error:
                raise AssertionError(text) from error
            cursor.execute(f"UPDATE {table.name} SET id = id + 1000")
        mark = source.mark()
    events: dict[TableId, DDLEvent] = {}
    logged: dict[TableId, list[Any]] = {table: [] for table in tables}
    with closing(source.open_log(offset, schemas)) as reader:
        while True:
            batch = reader.pull(_LIMITS)
            assert not batch.table_errors
            events |= {event.table: event for event in batch.ddl}
            for changes in batch.changes:
                assert changes.schema == events[changes.schema.table].schema
                logged[changes.schema.table] += [row[ROW] for row in changes.rows.to_pylist()]
            if mark in batch.marks:
                break
    found: list[tuple[str, bool, list[Any], list[Any], list[Any]]] = []
    for table, text in statements.items():
        event = events[table]
        assert event.schema is not None, text
        assert event.before is not None
        types = event.before.column("c").type, event.schema.column("c").type
        if event.fill is not None and types[0] != types[1]:
            assert widens(*types) or types == (pa.int64(), pa.float64()), text
        catalogue = source.describe([table])[table].schema
        assert [(c.name, c.type, c.source_type, c.nullable) for c in event.schema.columns] == [
            (c.name, c.type, c.source_type, c.nullable) for c in catalogue.columns
        ]
        read = source.read_chunk(chunk_request(event.schema, limit=100)).rows.to_pylist()
        assert list(map(repr, read)) == list(map(repr, logged[table])), text
        held = [row["c"] for row in before[table]]
        converted = pa.array(held, types[0]).cast(types[1]).to_pylist() if event.fill is not None else held
        found.append((text, event.fill is not None, converted, held, [row["c"] for row in logged[table]]))
    return found


def test_what_keeps_every_value_does(mysql_database: MysqlDatabase, source_of: Make) -> None:
    source = source_of(mysql_database.server, unrepresentable="null")
    for text, is_kept, converted, _, logged in _run(mysql_database, source, KEPT, _STRICT):
        assert is_kept, text
        assert list(map(repr, converted)) == list(map(repr, logged)), text


def test_what_a_strict_session_changes_without_an_error_is_not_said_to_keep_values(
    mysql_database: MysqlDatabase, source_of: Make
) -> None:
    source = source_of(mysql_database.server)
    found = _run(mysql_database, source, CHANGED, _STRICT)
    assert [text for text, is_kept, *_ in found if is_kept] == []
    assert [text for text, _, _, old, logged in found if old == logged] == [], "they keep their values"
