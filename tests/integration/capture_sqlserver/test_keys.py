"""Keys of a SQL Server's types, in a chunk and in the log: the journal replays to what the source holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from replicator.model.schema import TableId
from replicator.state.records import Stage
from replicator_testbed.journals.captured import Captured
from replicator_testbed.sqlserver.databases import SqlServerDatabase
from replicator_testbed.sqlserver.tables import KEYS, OTHER_KEYS, plain_value, source_rows
from tests.integration.capture_sqlserver.conftest import Around, Make, Moment, assert_equal

KINDS = {kind: values for kind, values in {**KEYS, **OTHER_KEYS}.items() if "UTF8" not in kind}
"""Text of another code page than the database's is refused."""
ODD = (
    "bit",
    "decimal(20,5)",
    "datetimeoffset(3)",
    "varbinary(20)",
    "varchar(20) COLLATE Latin1_General_CI_AS",
    "uniqueidentifier",
    "hierarchyid",
)
"""Those whose order, or whose form, is another one in the server than here."""


def plain_rows(captured: Captured, name: str, kind: str) -> Counter[tuple[Any, ...]]:
    """The journal's rows of a table (k, n, v) in the forms of `source_rows`."""
    found = captured.rows(TableId("dbo", name))
    return Counter(
        {
            (plain_value(key, kind), *(plain_value(other, "int") for other in rest)): n
            for (key, *rest), n in found.items()
        }
    )


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kinds", "moment"),
    [
        pytest.param(ODD, "behind", id="odd"),
        *(
            pytest.param(tuple(KINDS), m, marks=pytest.mark.matrix, id=f"all-{m}")
            for m in ("before", "inside", "behind")
        ),
    ],
)
@pytest.mark.condition("D07", "D10", "D11")
def test_keys_of_every_type_are_the_same_in_a_chunk_and_in_the_log(
    each_database: SqlServerDatabase, make: Make, around_reads: Around, kinds: Sequence[str], moment: Moment
) -> None:
    database = each_database
    # A deletion may come without the bits of its row.
    followed = [kind for kind in kinds if kind != "bit" or database.is_tracked]
    names = {f"k{number}": kind for number, kind in enumerate(followed)}
    with closing(database.connect()) as connection:
        for name, kind in names.items():
            connection.execute(f"CREATE TABLE {name} (k {kind} NOT NULL PRIMARY KEY, n int NOT NULL, v int NOT NULL)")
            rows = ", ".join(f"({value}, {n}, 0)" for n, value in enumerate(KINDS[kind]))
            connection.execute(f"INSERT INTO {name} VALUES {rows}")
        database.capture(*names)
        captured = make(database, *names)
        captured.settings = replace(captured.settings, chunk_rows=2)

        def act(_: int, name: str) -> None:
            values = KINDS[names[name]]
            first, last, final = values[0], values[-1], len(values) - 1
            connection.execute(f"UPDATE {name} SET v = v + 1")
            connection.execute(f"DELETE FROM {name} WHERE n = 0")
            connection.execute(f"INSERT INTO {name} VALUES ({first}, 0, 1000)")
            connection.execute(f"DELETE FROM {name} WHERE n = {final}")
            # A key that changes: at the next chunk the row is deleted, and another one has its former key.
            connection.execute(f"UPDATE {name} SET k = {last}, n = {final} WHERE n = 0")
            connection.execute(f"INSERT INTO {name} VALUES ({first}, 0, 2000)")

        with captured.running(alter=lambda source: around_reads(source, moment, act)) as running:
            captured.wait_for_streaming(running)
            captured.catch_up(running)
    for name, kind in names.items():
        assert captured.stage(TableId("dbo", name)) is Stage.STREAMING, kind
        assert plain_rows(captured, name, kind) == source_rows(database, name), kind


@pytest.mark.matrix
@pytest.mark.parametrize("moment", ["behind", pytest.param("inside", marks=pytest.mark.matrix)])
@pytest.mark.condition("D08")
def test_keys_that_the_collation_takes_for_equal_are_followed_by_their_spelling(
    captured_database: SqlServerDatabase, make: Make, around_reads: Around, moment: Moment
) -> None:
    collation = "Latin1_General_CI_AS"
    database = captured_database
    database.execute(
        f"CREATE TABLE one (k varchar(20) COLLATE {collation} NOT NULL PRIMARY KEY, v int NOT NULL)",
        f"CREATE TABLE two (k nvarchar(20) COLLATE {collation} NOT NULL, n int NOT NULL, v int NOT NULL, PRIMARY KEY (k, n))",
    )
    database.capture("one", "two")
    words = [f"{letter}{n}" for letter in "abcdefghij" for n in range(4)]
    database.execute(
        "INSERT INTO one VALUES " + ", ".join(f"('{word}', 0)" for word in words),
        "INSERT INTO two VALUES " + ", ".join(f"(N'{word}', {n}, 0)" for word in words for n in (1, 2)),
    )
    captured = make(database, "one", "two")

    def act(number: int, name: str) -> None:
        word = words[(7 * number) % len(words)]
        database.execute(
            f"UPDATE {name} SET k = UPPER(k) WHERE k = N'{word}'",
            f"UPDATE {name} SET v = v + 1 WHERE k = N'{word.upper()}'",
            f"DELETE FROM {name} WHERE k = N'{words[number % len(words)].upper()}' AND v = 0",
            f"UPDATE {name} SET k = CONCAT(k, N' ') WHERE k = N'{words[(11 * number) % len(words)]}'",
        )

    with captured.running(alter=lambda source: around_reads(source, moment, act)) as running:
        captured.wait_for_streaming(running)
        database.execute(*(f"UPDATE {name} SET k = UPPER(k) WHERE k > N'c'" for name in ("one", "two")))
        captured.catch_up(running)
    assert_equal(captured, database, "one", "two")
    spelled = [row[0] for row in captured.rows(TableId("dbo", "one"))]
    assert any(word != word.lower() for word in spelled)
    assert len({word.lower() for word in spelled}) == len(spelled), "no row stayed under its former spelling"


@pytest.mark.matrix
@pytest.mark.condition("D09", "D13", "D14")
def test_tables_whose_keys_tell_no_rows_apart_are_followed_by_all_their_values(
    captured_database: SqlServerDatabase, make: Make
) -> None:
    database = captured_database
    database.execute(
        "CREATE TABLE approximate (k float NOT NULL PRIMARY KEY, v int NULL)",
        "CREATE TABLE small (k real NOT NULL PRIMARY KEY, v int NULL)",
        "CREATE TABLE alternative (a int NULL, b nvarchar(10) NULL, v int NULL, UNIQUE (a, b))",
        "CREATE TABLE bag (v int NULL, w nvarchar(10) NULL)",
    )
    names = ("approximate", "small", "alternative", "bag")
    database.capture(*names)
    database.execute(
        "INSERT INTO approximate VALUES (1.1, 1), (0.1, 2), (3, 3), (1E300, 4)",
        "INSERT INTO small VALUES (1.1, 1), (0.1, 2), (16777217, 3)",
        "INSERT INTO alternative VALUES (NULL, N'x', 1), (1, NULL, 2), (NULL, NULL, 3), (1, N'x', 4)",
        "INSERT INTO bag VALUES (1, N'a'), (1, N'a'), (NULL, NULL), (NULL, NULL), (2, NULL)",
    )
    captured = make(database, *names)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        for table in names:
            schema = captured.record(TableId("dbo", table)).schema
            assert schema is not None
            assert schema.key == (), table
        database.execute(
            "UPDATE approximate SET v = v + 1 WHERE k > 0.5",
            "DELETE FROM approximate WHERE v = 2",
            "UPDATE approximate SET k = k * 3 WHERE v = 4",
            "UPDATE small SET k = k / 3, v = NULL",
            "UPDATE alternative SET v = 5 WHERE a IS NULL AND b IS NULL",
            "UPDATE alternative SET a = NULL WHERE v = 2",
            "DELETE FROM alternative WHERE v = 1",
            "INSERT INTO bag SELECT v, w FROM bag",
            "UPDATE TOP (1) bag SET w = N'b' WHERE v = 1",
            "DELETE TOP (1) FROM bag WHERE v IS NULL",
        )
        captured.catch_up(running)
    assert_equal(captured, database, *names)
