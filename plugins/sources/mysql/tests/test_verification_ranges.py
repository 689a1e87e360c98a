"""Ranges of keys: a range has on the server the rows that it has for everybody else, and is read through the key's index."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from plugins.sources.mysql.tests.test_verification import KEYS, Make, literal, rows_of, schema_of
from replicator.model.errors import UnsupportedTypeError
from replicator.plugins.verification import KeyRange
from replicator_source_mysql.source import MysqlSource
from replicator_source_mysql.verification.states import StateQueries
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testing.table_states import assert_ranges

RANGED: dict[str, Sequence[Any]] = {
    "tinyint": [-128, 127, 0, 10, 9, -10, -9],
    "int(6) zerofill": [1, 42, 2**32 - 1],
    "bigint": [-(2**63), 2**63 - 1, 0],
    "bigint unsigned": [0, 5, 2**63 - 1, 2**63, 2**64 - 1],
    "decimal(20,5)": ["-1.5", "0", "7.00001", "10", "9.5", "-10"],
    "decimal(12,2) zerofill": ["1.10", "0", "10"],
    "decimal(65,30)": ["9" * 35 + "." + "9" * 30, "-" + "9" * 35 + "." + "9" * 30, "0"],
    "date": ["2000-01-01", "2020-02-29", "0001-01-01", "9999-12-31", "1969-12-31", "0000-03-01"],
    "datetime(6)": ["2000-01-01 00:00:00.000001", "2000-01-01 00:00:00.000002", "0001-01-01", "9999-12-31 23:59:59.999999"],
    "datetime": ["1969-12-31 23:59:59", "1970-01-01", "0000-12-31 23:59:59"],
    "timestamp(3) DEFAULT '2000-01-01'": ["2001-01-01 00:00:00.001", "2024-10-27 00:30:00", "2024-10-27 01:30:00", "1970-01-01 00:00:01"],
    "varbinary(300)": [b"", b"\0", b"\0\0", b"\xff'", b"\x80", b"\x7f\xff", b"x" * 300],
    "binary(3)": [b"\0\0\0", b"a\0\0", b"abc", b"\xff\0\0"],
}  # fmt: skip
WHOLE = [
    name for name in KEYS if name.partition("(")[0].split()[0] in {"bit", "year", "time", "varchar", "enum", "set"}
]


@pytest.fixture
def source(mysql_database: MysqlDatabase, source_of: Make) -> MysqlSource:
    return source_of(mysql_database.server)


def fill(database: MysqlDatabase, type_: str, values: Sequence[Any], key: str = "PRIMARY KEY (a, b)") -> None:
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute(f"CREATE TABLE t (v int, b int NOT NULL, a {type_} NOT NULL, {key})")
        rows = ", ".join(f"({n}, {m}, {literal(value)})" for n, value in enumerate(values) for m in (-1, 1, 2))
        cursor.execute(f"INSERT INTO t VALUES {rows}")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("type_", RANGED)
def test_a_range_has_the_rows_that_it_has_for_everybody(
    mysql_database: MysqlDatabase, source: MysqlSource, type_: str
) -> None:
    fill(mysql_database, type_, RANGED[type_])
    schema = schema_of(source, mysql_database)
    (rows,) = rows_of(source, schema).combine_chunks().to_batches()
    with source.open_state(schema, ["v", "a", "b"]) as state:
        assert_ranges(state, rows, schema, columns=2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("type_", [*WHOLE, "uuid"])
def test_other_keys_are_read_in_one(mysql_database: MysqlDatabase, source: MysqlSource, type_: str) -> None:
    server = mysql_database.server
    if type_ == "uuid" and (server.flavor != "mariadb" or server.version < (10, 7)):
        pytest.skip("this server has no uuid")
    mysql_database.execute(
        f"CREATE TABLE t (a {type_} NOT NULL, b int NOT NULL, PRIMARY KEY (a, b))",
        f"CREATE TABLE u (a {type_} NOT NULL, b int NOT NULL, PRIMARY KEY (b, a))",
    )
    with source.open_state(schema_of(source, mysql_database), ["a", "b"]) as state:
        assert state.range_key == []
    with source.open_state(schema_of(source, mysql_database, "u"), ["a", "b"]) as state:
        assert state.range_key == ["b"]


def test_a_date_that_is_none_fails_the_range_that_has_it_and_the_search_for_bounds(
    mysql_database: MysqlDatabase, source: MysqlSource
) -> None:
    fill(mysql_database, "date", ["0000-00-00", "2024-01-01", "2024-02-31", "2024-05-01"])
    schema = schema_of(source, mysql_database)
    with source.open_state(schema, ["a", "b"]) as state:
        with pytest.raises(UnsupportedTypeError, match="Column a"):
            state.bound(("a",), None, 1)
        first, last = state.bound(("a",), None, 4), state.bound(("a",), None, 10)
        assert (first, last) == (("19723",), ("19844",))
        with pytest.raises(UnsupportedTypeError, match="Column a"):
            state.checksums(0, None, KeyRange(("a",), first, last))
        with pytest.raises(UnsupportedTypeError, match="Column a"):
            state.checksums(0, None, KeyRange(("a",), None, first))


@pytest.mark.parametrize("key", ["PRIMARY KEY (a, b)", "UNIQUE KEY `own``name` (a, b)"])
def test_a_range_is_read_through_the_index_whatever_the_statistics_say(
    mysql_database: MysqlDatabase, source: MysqlSource, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range of half of the table, of which all is also in indexes that are smaller."""
    fill(mysql_database, "bigint", range(300), f"{key}, KEY smaller (a), KEY whole (b, a, v)")
    mysql_database.execute("ANALYZE TABLE t")
    schema = schema_of(source, mysql_database)
    asked = list[str]()
    for name in ("bound", "checksums", "rows", "texts"):
        original = getattr(StateQueries, name)

        def note(self: StateQueries, *arguments: object, original: object = original) -> str:
            asked.append(original(self, *arguments))  # type: ignore[operator]
            return asked[-1]

        monkeypatch.setattr(StateQueries, name, note)
    with source.open_state(schema, ["a", "b", "v"]) as state:
        first = state.bound(("a", "b"), None, 200)
        within = KeyRange(("a", "b"), first, state.bound(("a", "b"), first, 450))
        assert sum(c.rows for c in state.checksums(2, None, within).values()) == 450
        ids = state.rows([""], within).column("id").to_pylist()
        state.texts(ids[:5], within)
    assert len(asked) == 5
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET @replicator_hash = ''")
        for number, query in enumerate(asked):
            cursor.execute(f"EXPLAIN FORMAT=TRADITIONAL {query}")
            names = [column[0] for column in cursor.description]
            plans = [dict(zip(names, plan, strict=True)) for plan in cursor.fetchall()]
            [plan] = [plan for plan in plans if plan["table"] == "t" and plan["key"] is not None]
            # The first bound is found from the beginning of the index.
            assert plan["type"] == ("index" if number == 0 else "range"), (query, plans)
            assert plan["key"] == ("PRIMARY" if key.startswith("PRIMARY") else "own`name"), (query, plans)
