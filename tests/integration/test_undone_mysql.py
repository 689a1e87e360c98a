"""What transactions take back, on real servers: ROLLBACK TO SAVEPOINT and ROLLBACK that stand in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

import pymysql
import pytest

from replicator.capture import pump
from replicator.model.events import SnapshotEvent, SnapshotPhase
from replicator.model.schema import TableId
from replicator_testbed.journals.captured import Captured
from replicator_testbed.mysql import load as mysql_load
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer

Make = Callable[..., Captured]

TABLES: Final = ("t", "bag")
SCHEMA: Final = (
    "CREATE TABLE t (id int PRIMARY KEY, a int, note varchar(100))",
    # Without a key: what is there twice, or not at all, shows.
    "CREATE TABLE bag (a int, note varchar(100))",
    "CREATE TABLE isam (id int) ENGINE = MyISAM",
    "CREATE TABLE audit (id int) ENGINE = MyISAM",
    "INSERT INTO t VALUES (1, 1, 'one'), (2, 2, 'two')",
    "INSERT INTO bag VALUES (1, 'one'), (2, 'two')",
)
DISCARDED: Final = "capture.discarded"
TEMP: Final = "CREATE TEMPORARY TABLE tt (id int)"
# What the server cannot undo wholly, so that it logs what was rolled back: the last statement, and what it takes beforehand.
TEMPORARY: Final = [TEMP]
STICKY: Final[Mapping[str, Sequence[str]]] = {
    "isam": ["INSERT INTO isam VALUES (1)"],
    "dropped": [TEMP, "DROP TEMPORARY TABLE tt"],
}
STICKY_OF_MARIADB: Final[Mapping[str, Sequence[str]]] = {
    "replaced": [TEMP, "CREATE OR REPLACE TEMPORARY TABLE tt (id int, a int)"],
    "made or replaced": ["CREATE OR REPLACE TEMPORARY TABLE tt (id int)"],
}

UPDATE, DELETE, BAG = "UPDATE t SET a = a + 10", "DELETE FROM t", "UPDATE bag SET a = a + 1"


Body = Sequence["str | Sequence[str]"]


def insert(number: int) -> Sequence[str]:
    return f"INSERT INTO t VALUES ({number}, {number}, REPEAT('x', 40))", f"INSERT INTO bag VALUES ({number}, 'b')"


# `?` stands for what the server cannot undo wholly; a statement behind an exclamation mark fails.
BODIES: Final[Mapping[str, Body]] = {
    "a savepoint": [UPDATE, "?", "SAVEPOINT a", DELETE, insert(9), "ROLLBACK TO SAVEPOINT a", insert(10)],
    "nothing before the savepoint": ["?", "SAVEPOINT a", DELETE, insert(3), "ROLLBACK TO a", insert(4)],
    "what makes it so comes later": [UPDATE, "SAVEPOINT a", DELETE, insert(9), "?", "ROLLBACK TO a"],
    "everything is undone": ["SAVEPOINT a", DELETE, insert(9), "?", "ROLLBACK TO a"],
    "nested": [
        insert(3), "?", "SAVEPOINT a", insert(4), "SAVEPOINT b", insert(5), "ROLLBACK TO b", insert(6), "ROLLBACK TO a",
        insert(7), "SAVEPOINT c", insert(8), "ROLLBACK TO a", insert(9), "ROLLBACK TO a", insert(10),
    ],
    "a name that is used again": [
        insert(3), "?", "SAVEPOINT a", insert(4), "SAVEPOINT b", insert(5), "SAVEPOINT a", insert(6), "ROLLBACK TO a",
        insert(7), "ROLLBACK TO b", insert(8),
    ],
    "released": [
        insert(3), "?", "SAVEPOINT a", insert(4), "SAVEPOINT b", insert(5), "RELEASE SAVEPOINT b", insert(6),
        "ROLLBACK TO a", insert(7),
    ],
    "the same one again and again": [
        insert(3), "?", "SAVEPOINT a", *(s for n in range(4, 9) for s in (insert(n), BAG, "ROLLBACK TO a")), insert(9),
    ],
    "odd names": [
        insert(3), "?", "SAVEPOINT `We``ird \"x\" -- # /* ; TO b`", insert(4), "SAVEPOINT `größe`", insert(5), "ROLLBACK TO `GRÖßE`",
        insert(6), "ROLLBACK WORK TO SAVEPOINT `wE``IRD \"X\" -- # /* ; to B`", insert(7), "SAVEPOINT `to`", DELETE, "ROLLBACK TO `to`",
        "SAVEPOINT `a `", insert(8), "SAVEPOINT `a`", insert(11), "ROLLBACK TO `a `", insert(12),
    ],
    "quotes of ANSI": [
        "SET sql_mode = ANSI_QUOTES", insert(3), "?", 'SAVEPOINT "b "" c"', insert(4), 'ROLLBACK TO "B "" C"', insert(5),
    ],
    "a statement that failed": [
        insert(3), "?", "SAVEPOINT a", "!INSERT INTO t VALUES (50, 5, ''), (3, 1, '')", insert(4),
    ],
}  # fmt: skip
ENDS: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "commit": ("BEGIN", ["COMMIT"]),
    "rollback": ("BEGIN", ["ROLLBACK"]),
    "prepared and committed": ("XA START 'x'", ["XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"]),
    "prepared and rolled back": ("XA START 'x'", ["XA END 'x'", "XA PREPARE 'x'", "XA ROLLBACK 'x'"]),
    "one phase": ("XA START 'x'", ["XA END 'x'", "XA COMMIT 'x' ONE PHASE"]),
    "rolled back in one phase": ("XA START 'x'", ["XA END 'x'", "XA ROLLBACK 'x'"]),
}
SOME: Final = ("a savepoint", "nested")
# MySQL has no temporary tables in XA, nor, with GTIDs, tables without transactions next to others; of an XA transaction that
# changed nothing the servers know no more.
TOLERATED: Final = {4091, 1785, 1397, 1402}


def run(database: MysqlDatabase, body: Body, sticky: Sequence[str], end: str) -> None:
    """One transaction in a session of its own."""
    begin, ends = ENDS[end]
    statements = [s for part in body for s in ([part] if isinstance(part, str) else part)]
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for text in (*sticky[:-1], begin, *statements, *ends):
            sql = sticky[-1] if text == "?" else text
            try:
                cursor.execute(sql.removeprefix("!"))
            except pymysql.MySQLError as error:
                if not sql.startswith("!") and error.args[0] not in TOLERATED:
                    raise


def assert_equal(captured: Captured, database: MysqlDatabase, what: str) -> None:
    for name in TABLES:
        found = captured.rows(TableId(database.name, name))
        wanted = Counter(database.execute(f"SELECT * FROM `{name}`"))
        assert found == wanted, f"{what}: {name}: too many {dict(found - wanted)}, lacking {dict(wanted - found)}"


def snapshots(captured: Captured, database: MysqlDatabase) -> list[int]:
    return [
        sum(
            isinstance(e, SnapshotEvent) and e.phase is SnapshotPhase.STARTED
            for e in captured.events(TableId(database.name, name))
        )
        for name in TABLES
    ]


@pytest.mark.parametrize(
    ("pull_rows", "bodies"),
    [(1, SOME), *(pytest.param(rows, tuple(BODIES), marks=pytest.mark.matrix) for rows in (1, 50_000))],
)
def test_what_is_rolled_back_to_a_savepoint_or_wholly_is_never_captured(
    any_mysql: MysqlServer, make_mysql: Make, pull_rows: int, bodies: Sequence[str]
) -> None:
    with any_mysql.database() as database:
        database.execute(*SCHEMA)
        captured = make_mysql(database, *TABLES)
        captured.settings = replace(captured.settings, pull_rows=pull_rows)
        with captured.running() as running:
            captured.wait_for_streaming(running)
            is_mariadb = any_mysql.flavor == "mariadb"
            others = [*STICKY.values(), *(STICKY_OF_MARIADB.values() if is_mariadb else ())]
            for turn, name in enumerate(bodies):
                body = BODIES[name]
                # MySQL cuts what is undone out of its log by itself.
                for number, end in enumerate(ENDS if is_mariadb else ("commit", "prepared and committed")):
                    # The slice takes one of them at a time.
                    one = others[(turn + number) % len(others)]
                    for sticky in [TEMPORARY, *([one] if pull_rows == 1 else others)]:
                        # What is wrong in the other table stays wrong.
                        database.execute("DELETE FROM t", "INSERT INTO t VALUES (1, 1, 'one'), (2, 2, 'two')")
                        run(database, body, sticky, end)
                captured.catch_up(running)
                assert_equal(captured, database, name)
        assert snapshots(captured, database) == [1, 1], "all of it was told by the log"


def test_a_crash_between_the_two_readings_changes_nothing(
    mariadb: MysqlServer, make_mysql: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    passed: list[str] = []

    def crash_point(name: str) -> None:
        if name == DISCARDED:
            passed.append(name)
            if len(passed) in {1, 3}:
                raise KilledError

    monkeypatch.setattr(pump, "crash_point", crash_point)
    with mariadb.database() as database:
        database.execute(*SCHEMA)
        captured = make_mysql(database, *TABLES)
        captured.settings = replace(captured.settings, pull_rows=2)
        with captured.running() as running:
            captured.wait_for_streaming(running)
        for end in ("rollback", "commit"):
            database.execute("DELETE FROM t WHERE id > 2")
            run(database, BODIES["a savepoint"], TEMPORARY, end)
        for _ in range(2):
            with captured.running() as running:
                assert isinstance(running.error(), KilledError)
        with captured.running() as running:
            captured.catch_up(running)
            assert_equal(captured, database, "after the crashes")
            run(
                database,
                ["?", insert(70), "SAVEPOINT a", *(insert(n) for n in range(80, 90)), "ROLLBACK TO a"],
                TEMPORARY,
                "commit",
            )
            captured.catch_up(running)
        assert_equal(captured, database, "after one more")
        assert len(passed) in {5, 6}, "each of the three is read twice, and what was not sealed before a crash again"
        assert snapshots(captured, database) == [1, 1]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("transactions", "rounds"),
    [pytest.param(200, 2, id="slice"), pytest.param(3_000, 10, marks=pytest.mark.matrix, id="many")],
)
def test_random_transactions_with_savepoints_and_what_cannot_be_undone_leave_no_difference(
    every_database: MysqlDatabase, make_mysql: Make, transactions: int, rounds: int
) -> None:
    mysql_load.create(every_database, 100)
    captured = make_mysql(every_database, *mysql_load.TABLES)
    for round_ in range(rounds):
        captured.settings = replace(captured.settings, chunk_rows=20, pull_rows=1 + round_ % 5)
        with captured.running() as running:
            captured.wait_for_streaming(running)
            # Not more than such small pulls can take.
            with mysql_load.Load(every_database, keys=100, sessions=2, seed=round_, pause_s=0.02) as load:
                load.begin_xa()
                running.wait_until(lambda: load.transactions >= transactions / rounds / 2, "half of it is written")
                if round_ % 2:
                    captured.request("snapshot", tables=[])
                running.wait_until(lambda: load.transactions >= transactions / rounds, "it is written")
            captured.catch_up(running)
            captured.wait_for_streaming(running)
            captured.catch_up(running)
        for name in mysql_load.TABLES:
            found = captured.rows(TableId(every_database.name, name))
            wanted = Counter(every_database.execute(f"SELECT * FROM `{name}`"))
            assert found == wanted, f"{name}: too many {dict(found - wanted)}, lacking {dict(wanted - found)}"


@pytest.mark.matrix
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "ROLLBACK TO a; COMMIT"])
def test_a_transaction_of_many_pulls_is_read_twice_and_not_held(
    mariadb: MysqlServer, make_mysql: Make, end: str
) -> None:
    with mariadb.database() as database:
        database.execute(*SCHEMA)
        captured = make_mysql(database, *TABLES)
        with captured.running() as running:
            captured.wait_for_streaming(running)
            with closing(database.connect()) as connection, connection.cursor() as cursor:
                for text in (
                    TEMP, "BEGIN", "INSERT INTO bag VALUES (3, 'kept')", "SAVEPOINT a", "DROP TEMPORARY TABLE tt",
                    "INSERT INTO t SELECT seq, seq, REPEAT('x', 90) FROM seq_10_to_300000", "UPDATE t SET a = a + 1", *end.split("; "),
                ):  # fmt: skip
                    cursor.execute(text)
            database.execute("INSERT INTO bag VALUES (4, 'last')")
            captured.catch_up(running)
        assert_equal(captured, database, end)
        assert snapshots(captured, database) == [1, 1]
