"""Random transactions rich in what makes copies wrong, on PostgreSQL and on MySQL or MariaDB.

Chains and swaps of keys, keys that are used again, values too long to be sent again, equal rows without a key, deletes
that leave a mark, tables that are emptied, and transactions that are given up.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql

from replicator_testbed.bigquery.emulator import canonical_sum, target_sum
from replicator_testbed.compare import Sum
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.postgresql.servers import ScratchDatabase

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

KEYS = 12
DAYS = 5
SIZE = 3_000
COLUMNS = {
    "chain": ("k", "v", "big", "n", "made"),
    "pair": ("a", "b", "v", "big"),
    "visits": ("day", "id", "v", "big"),
    "softly": ("k", "v", "big"),
    "bag": ("v", "w", "x"),
}
_POSTGRESQL = (
    "CREATE TABLE chain (k int PRIMARY KEY, v text, big text, n numeric(20,6), made timestamptz)",
    "CREATE TABLE pair (a int, b text, v text, big text, PRIMARY KEY (a, b))",
    "CREATE TABLE visits (day date, id int, v text, big text, PRIMARY KEY (id, day))",
    "CREATE TABLE softly (k int PRIMARY KEY, v text, big text)",
    "CREATE TABLE bag (v int, w text, x float8)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    *(f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL" for table in ("chain", "pair", "visits", "softly")),
)
_MYSQL = (
    "CREATE TABLE chain (k int PRIMARY KEY, v varchar(50), big longtext, n decimal(20,6), made datetime(6))",
    "CREATE TABLE pair (a int, b varchar(20) COLLATE utf8mb4_bin, v varchar(50), big longtext, PRIMARY KEY (a, b))",
    "CREATE TABLE visits (day date, id int, v varchar(50), big longtext, PRIMARY KEY (id, day))",
    "CREATE TABLE softly (k int PRIMARY KEY, v varchar(50), big longtext)",
    "CREATE TABLE bag (v int, w varchar(20), x double)",
)
Database = ScratchDatabase | MysqlDatabase


def prepare(database: Database) -> None:
    """Make the tables, with some rows."""
    is_postgresql = isinstance(database, ScratchDatabase)
    database.execute(*(_POSTGRESQL if is_postgresql else _MYSQL))
    draw = random.Random(0)
    with closing(_connect(database)) as connection:
        for _ in range(60):
            _transaction(connection, draw, is_postgresql=is_postgresql, may_truncate=False)


def differences(database: Database, client: Client, dataset: str) -> dict[str, tuple[Sum, Sum]]:
    """Tables whose rows are not the same on both sides, those marked as deleted left out."""
    found = {}
    for table, names in COLUMNS.items():
        with closing(_connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(names)} FROM {table}")
            source = canonical_sum(cursor.fetchall())
        path = f"{dataset}.{table}"
        if table == "softly":
            # Google's types lack that None means no retry.
            rows = client.query(
                f"SELECT k, v, big FROM `{path}` WHERE NOT _is_deleted",
                retry=None,  # type: ignore[arg-type]
                job_retry=None,
            )
            target = canonical_sum(row.values() for row in rows.result(retry=None))
        else:
            target = target_sum(client, path, names)
        if source != target:
            found[table] = (source, target)
    return found


class Writer:
    """Threads that write as much as they may until they are stopped; conflicts among them are given up, as applications do."""

    def __init__(self, database: Database, seed: int, *, threads: int = 2, pause_s: float = 0.02) -> None:
        self._database, self._pause_s = database, pause_s
        self._stop = threading.Event()
        self._bound = 0
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(seed * 100 + n,)) for n in range(threads)]
        self.transactions = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def has_reached(self, transactions: int) -> bool:
        return self.transactions >= transactions

    def let_write(self, bound: int) -> None:
        """So many transactions altogether, and those that are under way.

        Without it a busy machine, on which everything takes longer, would have ever more to apply.
        """
        self._bound = bound

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _run(self, seed: int) -> None:
        draw = random.Random(seed)
        is_postgresql = isinstance(self._database, ScratchDatabase)
        try:
            with closing(_connect(self._database)) as connection:
                while not self._stop.wait(self._pause_s):
                    if self.transactions >= self._bound:
                        continue
                    _transaction(connection, draw, is_postgresql=is_postgresql, may_truncate=True)
                    self.transactions += 1
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self._failures.append(error)


def _connect(database: Database) -> Any:
    if isinstance(database, ScratchDatabase):
        return psycopg.connect(database.dsn)
    return database.connect(autocommit=False)


def _transaction(connection: Any, draw: random.Random, *, is_postgresql: bool, may_truncate: bool) -> None:
    try:
        with connection.cursor() as cursor:
            for _ in range(draw.choice([1, 1, 2, 3, 8])):
                for statement, *values in _step(draw, may_truncate=may_truncate, is_postgresql=is_postgresql):
                    cursor.execute(statement, values)
        if draw.random() < 0.1:
            connection.rollback()
        else:
            connection.commit()
    except (psycopg.errors.IntegrityError, psycopg.errors.OperationalError, pymysql.err.IntegrityError) as error:
        if isinstance(error, psycopg.errors.OperationalError) and not isinstance(
            error, psycopg.errors.DeadlockDetected
        ):
            raise
        connection.rollback()
    except pymysql.err.OperationalError as error:
        if error.args[0] not in {1205, 1213}:
            raise
        connection.rollback()


def _step(draw: random.Random, *, may_truncate: bool, is_postgresql: bool) -> Iterator[Sequence[Any]]:
    if may_truncate and draw.random() < 0.004:
        yield (f"TRUNCATE TABLE {draw.choice(list(COLUMNS))}",)
        return
    key, other = draw.sample(range(KEYS), 2)
    v, big = f"v{draw.randrange(1000)}", _big(draw)
    match draw.randrange(6):
        case 0:
            yield from _keyed(draw, "chain", ("k",), (key,), (other,), v, big)
            if draw.random() < 0.3:
                at = f"20{draw.randrange(10, 99)}-02-28 12:00:00.{draw.randrange(10**6):06}"
                yield (
                    f"UPDATE chain SET n = %s, made = '{at}' WHERE k = %s",
                    draw.randrange(-(10**9), 10**9) / 1000,
                    key,
                )
        case 1:
            names = ("x", "X", "x ", "ß")
            yield from _keyed(
                draw, "pair", ("a", "b"), (key % 4, draw.choice(names)), (other % 4, draw.choice(names)), v, big
            )
        case 2:
            days = [f"2024-02-{draw.randrange(1, DAYS + 1):02}" for _ in range(2)]
            yield from _keyed(draw, "visits", ("id", "day"), (key % 6, days[0]), (other % 6, days[1]), v, big)
        case 3:
            yield from _keyed(draw, "softly", ("k",), (key,), (other,), v, big)
        case _:
            yield from _bag(draw, is_postgresql=is_postgresql)


def _keyed(
    draw: random.Random, table: str, key: Sequence[str], one: Sequence[Any], two: Sequence[Any], v: str, big: str | None
) -> Iterator[Sequence[Any]]:
    is_one = " AND ".join(f"{name} = %s" for name in key)
    to_two = ", ".join(f"{name} = %s" for name in key)
    names, marks = ", ".join(key), ", ".join(["%s"] * len(key))
    delete = f"DELETE FROM {table} WHERE {is_one}"
    insert = f"INSERT INTO {table} ({names}, v, big) VALUES ({marks}, %s, %s)"
    move = f"UPDATE {table} SET {to_two} WHERE {is_one}"
    match draw.randrange(9):
        case 0 | 1:
            yield delete, *one
            yield insert, *one, v, big
        case 2:
            yield delete, *one
        case 3:
            yield f"UPDATE {table} SET v = %s WHERE {is_one}", v, *one
        case 4:
            yield f"UPDATE {table} SET v = %s, big = %s WHERE {is_one}", v, big, *one
        case 5:
            yield delete, *two
            yield move, *two, *one
        case 6:
            # A swap, by way of a key that nobody else has.
            spare = (-1 - draw.randrange(10**6), *one[1:])
            yield move, *spare, *one
            yield move, *one, *two
            yield f"UPDATE {table} SET v = %s WHERE {is_one}", v, *one
            yield move, *two, *spare
        case 7:
            # A chain, and the key that it began with is used again.
            spare = (-1 - draw.randrange(10**6), *one[1:])
            yield delete, *two
            yield move, *spare, *one
            yield insert, *one, v, big
            yield move, *two, *spare
        case _:
            yield f"UPDATE {table} SET {to_two}, v = %s WHERE {is_one}", *one, v, *one


def _bag(draw: random.Random, *, is_postgresql: bool) -> Iterator[Sequence[Any]]:
    row = (draw.randrange(4), draw.choice(["a", "b", None]), draw.choice([0.0, 1.5, None]))
    match draw.randrange(5):
        case 0 | 1:
            count = draw.randrange(1, 4)
            yield f"INSERT INTO bag VALUES {', '.join(['(%s, %s, %s)'] * count)}", *row * count
        case 2:
            one = "ctid = (SELECT min(ctid) FROM bag WHERE v = %s)" if is_postgresql else "v = %s LIMIT 1"
            yield f"DELETE FROM bag WHERE {one}", row[0]
        case 3:
            yield "UPDATE bag SET w = %s WHERE v = %s", row[1], row[0]
        case _:
            yield "DELETE FROM bag WHERE v = %s AND w = 'a'", row[0]


def _big(draw: random.Random) -> str | None:
    match draw.randrange(5):
        case 0:
            return None
        case 1:
            return "short"
        case _:
            return "".join(draw.choice("0123456789abcdef") for _ in range(SIZE))
