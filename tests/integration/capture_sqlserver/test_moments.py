"""What happens to tables of a SQL Server while they are copied, moment by moment: the journal replays to what the source holds."""

from __future__ import annotations

import contextlib
from contextlib import closing
from typing import Any, Literal

import pyodbc
import pytest

from replicator_testbed.sqlserver.databases import SqlServerDatabase
from tests.integration.capture_sqlserver.conftest import Around, Make, Moment, assert_equal


def moments(*quick: str, slow: tuple[str, ...] = ()) -> list[Any]:
    """Moments as parameters; those that show little more than the others are left to the long runs."""
    return [*quick, *(pytest.param(moment, marks=pytest.mark.matrix) for moment in slow)]


def statements_of(number: int) -> list[str]:
    """What is done at a chunk of ten rows, of which every second number is there, each another thing."""
    first = 20 * (number - 1)
    kinds: list[list[str]] = [
        [f"UPDATE t SET v = v + 1 WHERE id = {first + 6}"],
        # Out of the chunk: to where is read later, to where was read; from there and there, into it and past it.
        [f"UPDATE t SET id = {first + 5000} WHERE id = {first + 6}"],
        [f"UPDATE t SET id = {-first} - 7 WHERE id = {first + 8}"],
        [f"UPDATE t SET id = {first + 7} WHERE id = {first + 50}"],
        [f"UPDATE t SET id = {first + 9} WHERE id = {first - 10}"],
        [f"UPDATE t SET id = {-first} - 5 WHERE id = {first + 52}"],
        [f"UPDATE t SET id = {first + 6001} WHERE id = {first - 12}"],
        [f"DELETE FROM t WHERE id = {first + 4}"],
        [f"DELETE FROM t WHERE id = {first + 4}", f"INSERT INTO t VALUES ({first + 4}, 77, N'again')"],
        [f"DELETE FROM t WHERE id IN ({first + 60}, {first - 8})"],
        [f"INSERT INTO t VALUES ({first + 3}, 1, NULL), ({first + 61}, 1, NULL), ({-first} - 3, 1, NULL)"],
        # A large value that is written, one that is not, and one that its row takes along.
        [f"UPDATE t SET note = N'written' WHERE id IN ({first + 6}, {first + 64}, {first - 14})"],
        [f"UPDATE t SET id = {first + 7000} WHERE id = {first + 6}", f"UPDATE t SET v = 5 WHERE id = {first + 7000}"],
        [
            f"UPDATE t SET id = {first + 11} WHERE id = {first + 10}",
            f"UPDATE t SET id = {first + 8000} WHERE id = {first + 11}",
        ],
        # Many keys at once: all deletions come before all insertions.
        [f"UPDATE t SET id = id + 2 WHERE id BETWEEN {first} AND {first + 20}"],
        [f"UPDATE t SET id = {2 * first + 20} - id WHERE id BETWEEN {first} AND {first + 20}"],
    ]
    return kinds[number % len(kinds)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("moment", "isolation"),
    [
        ("inside", "default"),
        ("behind", "default"),
        ("behind", "locking"),
        *(
            pytest.param(moment, isolation, marks=pytest.mark.matrix)
            for moment, isolation in (("before", "default"), ("before", "locking"), ("inside", "locking"))
        ),
    ],
)
@pytest.mark.condition("D01", "D02", "D06", "D19", "D20", "D28")
def test_what_happens_around_a_chunk_is_neither_lost_nor_undone(
    captured_database: SqlServerDatabase,
    make: Make,
    around_reads: Around,
    moment: Moment,
    isolation: Literal["default", "locking"],
) -> None:
    rows_change_around_chunks(captured_database, make, around_reads, moment, chunk_isolation=isolation)


@pytest.mark.matrix
@pytest.mark.parametrize("moment", moments("inside", "behind", slow=("before",)))
@pytest.mark.condition("D01", "D02", "D06", "D19", "D20", "D28")
def test_the_last_state_of_what_happens_around_a_chunk_arrives(
    tracked_database: SqlServerDatabase, make: Make, around_reads: Around, moment: Moment
) -> None:
    rows_change_around_chunks(tracked_database, make, around_reads, moment)


def rows_change_around_chunks(
    database: SqlServerDatabase, make: Make, around_reads: Around, moment: Moment, **settings: Any
) -> None:
    """Rows change at each chunk, and two transactions stay open over many; with locks a chunk would wait for their rows."""
    database.execute("CREATE TABLE t (id bigint NOT NULL PRIMARY KEY, v bigint NOT NULL, note nvarchar(max) NULL)")
    database.capture("t")
    values = ", ".join(f"({2 * i}, 0, N'note {i}')" for i in range(1, 171))
    database.execute(f"INSERT INTO t VALUES {values}")
    captured = make(database, "t", **settings)
    early_rows = "302, 338" if settings.get("chunk_isolation") == "locking" else "2, 302, 338"
    done: list[int] = []
    with (
        closing(database.connect(autocommit=False)) as early,
        closing(database.connect(autocommit=False)) as late,
        closing(database.connect()) as other,
    ):
        early.execute(f"UPDATE t SET v = 100 WHERE id IN ({early_rows})")

        def act(number: int, _: str) -> None:
            if number == 2:
                late.execute("UPDATE t SET v = 200 WHERE id IN (304, 334)")
            if number == 9:
                early.commit()
            if number == 11:
                late.commit()
            for statement in ("UPDATE t SET v = v + 1 WHERE id = 330", *statements_of(number)):
                with contextlib.suppress(pyodbc.IntegrityError):  # the key is taken
                    other.execute(statement)
            done.append(number)

        with captured.running(alter=lambda source: around_reads(source, moment, act)) as running:
            captured.wait_for_streaming(running)
            captured.catch_up(running)
    assert len(set(done)) >= 17
    assert_equal(captured, database, "t")
