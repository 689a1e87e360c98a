"""Random transactions on the model of a SQL Server, from several sessions at once, and what happens to a server meanwhile.

Statements are those whose order in a change table is hard: many rows at once, keys that change, one by one and shifted over each other,
large values that an update leaves alone, NULLs, rows that are deleted and inserted again, and tables that are emptied and filled again.
What happens to the server: the capture job is stopped and started, cleanup deletes whatever is not needed any more, a table gets a column
and a capture instance that has it, connections are killed, and the server goes away and comes back. Reproducible by seed, except timing.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import pyodbc

from replicator_testbed.sqlserver.databases import SqlServerDatabase, enable
from replicator_testing.waiting import PATIENCE, wait_until

KEYED: Final = ("large", "pair", "emptied", "grown")
TABLES: Final = (*KEYED, "bag")
"""Change tracking has no tables without a key."""

_SCHEMA: Final = (
    """CREATE TABLE dbo.large (
        id int NOT NULL PRIMARY KEY, n int NULL, name nvarchar(40) NULL, note nvarchar(max) NULL, photo varbinary(max) NULL)""",
    """CREATE TABLE dbo.pair (
        a int NOT NULL, b varchar(10) NOT NULL, n int NULL, amount money NULL, at datetime2(6) NULL, PRIMARY KEY (b, a))""",
    "CREATE TABLE dbo.emptied (id bigint NOT NULL PRIMARY KEY, n int NULL, name nvarchar(40) NULL)",
    "CREATE TABLE dbo.grown (id int NOT NULL PRIMARY KEY, n int NULL, name nvarchar(40) NULL)",
    "CREATE TABLE dbo.bag (n int NULL, w nvarchar(20) NULL, took float NULL)",
)
_WORDS: Final = ("N'a'", "N'A'", "N'größe 🐢'", "N''", "N' '", "NULL")
_SPARE: Final = 1_000_000
"""Keys so far above the others are those of rows that were moved away."""
_RECONNECT_S: Final = 0.05


def create(database: SqlServerDatabase, keys: int) -> None:
    """Make the tables with some rows, and have their changes captured."""
    database.execute(*_SCHEMA)
    chance = random.Random(1)
    with closing(database.connect()) as connection:
        for table in KEYED:
            rows = ", ".join(f"({_row(table, key, chance)})" for key in range(1, keys + 1) if key % 5)
            connection.execute(f"INSERT INTO dbo.{table} VALUES {rows}")
        rows = ", ".join(f"({_row('bag', n, chance)})" for n in range(keys))
        connection.execute(f"INSERT INTO dbo.bag VALUES {rows}")
    database.capture(*TABLES)


@dataclass(eq=False, slots=True)
class Load:
    """Sessions that write from entering the context until leaving it.

    A session whose connection is lost makes another one; what it had not committed is undone by the server.

    Attributes:
        keys: How many keys each table may have, apart from those that are moved away.
        sessions: How many sessions write.
        pause_s: How long each of them rests behind a transaction.
        kinds: How often which kind of statement was committed, and how often which thing happened to the server.
    """

    database: SqlServerDatabase
    keys: int
    sessions: int = 3
    seed: int = 0
    pause_s: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    _refused: int = 0
    _columns: int = 0
    _instance: str = "dbo_grown"
    _older: str | None = None
    _done: dict[int, int] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _errors: list[BaseException] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        for number in range(self.sessions):
            thread = threading.Thread(target=self._run, args=(number,), name=f"writer{number}")
            self._threads.append(thread)
            thread.start()
        wait_until(lambda: self._errors or len(self._done) == self.sessions, "everybody writes")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60 * PATIENCE)
        if error is None:
            assert not self._errors, self._errors
            assert not any(thread.is_alive() for thread in self._threads)

    @property
    def transactions(self) -> int:
        """How many were committed so far."""
        assert not self._errors, self._errors
        return sum(self._done.values())

    def let_write(self, transactions: int) -> None:
        """Wait until so many more were committed."""
        wanted = self.transactions + transactions
        wait_until(
            lambda: self.transactions >= wanted, lambda: f"the load writes; now {self.transactions}", timeout_s=120
        )

    # --- what happens to the server -----------------------------------------------------------------------------------

    def stop_capture(self) -> None:
        """The capture job is stopped: the server captures nothing, and says nothing."""
        self.kinds["capture stopped"] += 1
        self.database.execute("EXEC sys.sp_cdc_stop_job @job_type = N'capture'")

    def start_capture(self) -> None:
        """And started again."""
        self.database.execute("EXEC sys.sp_cdc_start_job @job_type = N'capture'")

    def clean_up(self, position: bytes) -> None:
        """Cleanup deletes everything in front of a position, though it is younger than the retention."""
        self.kinds["cleaned up"] += 1
        self.database.server.capture.raise_low_watermark(position)
        self.database.server.capture.delete_below()

    def clean_up_tracked(self, version: int) -> None:
        """The same with change tracking: up to and including a version."""
        self.kinds["cleaned up"] += 1
        tracking = self.database.server.database.tracking
        tracking.raise_min_valid(version)
        tracking.delete_below()

    def kill_connections(self) -> None:
        """Every connection is killed, amid whatever it does."""
        self.kinds["connections killed"] += 1
        self.database.server.server.disconnect_all()

    def restart_server(self) -> None:
        """The server goes away, and comes back at the same address once somebody had to find that out."""
        self.kinds["server restarted"] += 1
        with self.database.server.away():
            before = self._refused
            wait_until(lambda: self._errors or self._refused > before, "a session finds nobody")

    def grow(self) -> None:
        """A table gets a column, and in the same transaction a second capture instance that has it."""
        self.kinds["column added"] += 1
        number = self._columns + 1
        statements = [f"ALTER TABLE dbo.grown ADD c{number} nvarchar(20) NULL"]
        if not self.database.is_tracked:
            assert self._older is None, "a table has two capture instances at most"
            self._older, self._instance = self._instance, f"dbo_grown_{number}"
            statements.append(enable("grown", self._instance))
        wait_until(lambda: self._is_done(statements), lambda: f"{statements} are done", every_s=_RECONNECT_S)
        self._columns = number

    def _is_done(self, statements: Sequence[str]) -> bool:
        """Run statements in one transaction; False if another session was in their way."""
        with closing(self.database.connect(autocommit=False)) as connection:
            try:
                for statement in statements:
                    connection.execute(statement)
            except pyodbc.Error as error:
                if not _is_deadlock(error):
                    raise
                return False
            connection.commit()
        return True

    @property
    def has_two_instances(self) -> bool:
        """Whether that table has an older instance, too."""
        return self._older is not None

    def begun_at(self) -> bytes | None:
        """Where the newest instance of that table begins, if the capture job has come to it."""
        query = f"SELECT start_lsn FROM cdc.change_tables WHERE capture_instance = N'{self._instance}'"
        ((start,),) = self.database.execute(query)
        return bytes(start) if start is not None else None

    def disable_older(self) -> None:
        """Disable the older instance of that table."""
        self.kinds["instance disabled"] += 1
        self.database.execute(
            "EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', @source_name = N'grown',"
            f" @capture_instance = N'{self._older}'"
        )
        self._older = None

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _run(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        try:
            while not self._stop.is_set():
                try:
                    with closing(self.database.connect(autocommit=False)) as connection:
                        self._write(connection, chance, number)
                except pyodbc.Error as error:
                    if not (_is_lost(error) or _is_deadlock(error)):
                        raise
                    self._refused += _is_lost(error)
                    self._stop.wait(_RECONNECT_S)
        except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
            self._errors.append(error)

    def _write(self, connection: pyodbc.Connection, chance: random.Random, number: int) -> None:
        while not self._stop.is_set():
            done = self._transaction(connection, chance)
            if done is not None:
                self.kinds.update(done)
                self._done[number] = self._done.get(number, 0) + 1
            self._stop.wait(self.pause_s)

    def _transaction(self, connection: pyodbc.Connection, chance: random.Random) -> Sequence[str] | None:
        """One transaction; the kinds of its statements, None if it was undone."""
        kinds = [chance.choice(_KINDS) for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 6)))]
        try:
            for kind in kinds:
                for statement in _STATEMENTS[kind](chance, self.keys, self._columns):
                    connection.execute(statement)
        except pyodbc.Error as error:
            if not _has(error, 2601, 2627):  # a key would be double
                raise
            connection.rollback()
            return None
        if chance.random() < 0.1:
            connection.rollback()
            return None
        connection.commit()
        return [*kinds, "several statements"] if len(kinds) > 1 else kinds


def _has(error: pyodbc.Error, *numbers: int) -> bool:
    return any(f"({number})" in str(error) for number in numbers)


def _is_deadlock(error: pyodbc.Error) -> bool:
    """Whether the session lost in a deadlock: its transaction has ended."""
    return _has(error, 1205)


def _is_lost(error: pyodbc.Error) -> bool:
    """Whether the connection was lost, or there was nobody to connect to."""
    return str(error.args[0]) in {"08S01", "08001", "HYT00", "01000", "HY000"} and not _is_deadlock(error)


# --- statements -----------------------------------------------------------------------------------------------------------

Statements = Callable[[random.Random, int, int], list[str]]


def _span(chance: random.Random, keys: int, rows: int = 8) -> str:
    first = chance.randint(1, keys)
    return f"BETWEEN {first} AND {first + chance.randint(0, rows)}"


def _text(chance: random.Random) -> str:
    return chance.choice(_WORDS)


def _note(chance: random.Random) -> str:
    if chance.random() < 0.2:
        return "NULL"
    return f"REPLICATE(CAST(N'{chance.choice('abż')}' AS nvarchar(max)), {chance.choice((0, 3, 900, 9000))})"


def _photo(chance: random.Random) -> str:
    return "NULL" if chance.random() < 0.3 else f"0x{chance.randbytes(chance.choice((1, 60, 3000))).hex()}"


def _key_of(table: str, key: int) -> str:
    return f"a = {key} AND b = '{key % 7}'" if table == "pair" else f"id = {key}"


def _row(table: str, key: int, chance: random.Random) -> str:
    """Values of a row; `grown` without those of its later columns."""
    n = chance.choice((str(chance.randint(0, 1000)), "NULL"))
    match table:
        case "large":
            return f"{key}, {n}, {_text(chance)}, {_note(chance)}, {_photo(chance)}"
        case "pair":
            at = f"'2024-02-29T23:59:59.{chance.randint(0, 999_999):06}'"
            return (
                f"{key}, '{key % 7}', {n}, {chance.randint(-(10**9), 10**9) / 10000:.4f}, {chance.choice((at, 'NULL'))}"
            )
        case "bag":
            return f"{chance.randint(0, 40)}, {_text(chance)}, {chance.choice(('0.1', '-1e300', 'NULL'))}"
        case _:
            return f"{key}, {n}, {_text(chance)}"


_NAMES: Final = {
    "large": "id, n, name, note, photo",
    "pair": "a, b, n, amount, at",
    "emptied": "id, n, name",
    "grown": "id, n, name",
    "bag": "n, w, took",
}


def _insert(table: str, key: int, chance: random.Random) -> str:
    return (
        f"IF NOT EXISTS (SELECT 1 FROM dbo.{table} WHERE {_key_of(table, key)})"
        f" INSERT INTO dbo.{table} ({_NAMES[table]}) VALUES ({_row(table, key, chance)})"
    )


def _inserts(chance: random.Random, keys: int, _: int) -> list[str]:
    return [_insert(chance.choice(KEYED), chance.randint(1, keys), chance)]


def _updates(chance: random.Random, keys: int, _: int) -> list[str]:
    table, key = chance.choice(KEYED), chance.randint(1, keys)
    return [f"UPDATE dbo.{table} SET n = {chance.choice(('n + 1', 'NULL', '7'))} WHERE {_key_of(table, key)}"]


def _deletes(chance: random.Random, keys: int, _: int) -> list[str]:
    table, key = chance.choice(KEYED), chance.randint(1, keys)
    return [f"DELETE FROM dbo.{table} WHERE {_key_of(table, key)}"]


def _reinserts(chance: random.Random, keys: int, _: int) -> list[str]:
    table, key = chance.choice(KEYED), chance.randint(1, keys)
    return [f"DELETE FROM dbo.{table} WHERE {_key_of(table, key)}", _insert(table, key, chance)]


def _many(chance: random.Random, keys: int, _: int) -> list[str]:
    table = chance.choice(("large", "emptied", "grown"))
    what = chance.choice((f"DELETE FROM dbo.{table}", f"UPDATE dbo.{table} SET n = id, name = {_text(chance)}"))
    return [f"{what} WHERE id {_span(chance, keys)}"]


def _chains(chance: random.Random, keys: int, _: int) -> list[str]:
    """A row is changed by one statement after the other: whatever turns them round leaves another row."""
    table, key = chance.choice(("large", "grown")), chance.randint(1, keys)
    return [f"UPDATE dbo.{table} SET n = {n}, name = {_text(chance)} WHERE id = {key}" for n in range(3)]


def _large_values(chance: random.Random, keys: int, _: int) -> list[str]:
    value = chance.choice((f"note = {_note(chance)}", f"photo = {_photo(chance)}"))
    return [f"UPDATE dbo.large SET {value} WHERE id {_span(chance, keys, 3)}"]


def _moves(chance: random.Random, keys: int, _: int) -> list[str]:
    """A row gets another key; its large values do not travel."""
    table, key = chance.choice(("large", "emptied", "grown")), chance.randint(1, keys)
    if chance.random() < 0.5:
        return [f"UPDATE dbo.{table} SET id = id + {_SPARE} WHERE id = {key}"]
    return [
        (
            f"UPDATE dbo.{table} SET id = id - {_SPARE}, n = {key} WHERE id = {key + _SPARE}"
            f" AND NOT EXISTS (SELECT 1 FROM dbo.{table} x WHERE x.id = {key})"
        )
    ]


def _shifts(chance: random.Random, keys: int, _: int) -> list[str]:
    """Keys are shifted over each other, or round in a circle; where one meets a row that stays, the statement is refused."""
    first = chance.randint(1, keys)
    match chance.choice(("large", "grown", "large", "pair", "emptied")):
        case "pair":
            span = f"a BETWEEN {first} AND {first + 12}"
            return [f"UPDATE dbo.pair SET a = a + {chance.choice((7, -7))} WHERE b = '{first % 7}' AND {span}"]
        case "emptied":
            return ["UPDATE dbo.emptied SET id = -id"]
        case table:
            last = first + chance.randint(1, 8)
            moved = chance.choice(("id + 1", "id - 1", f"CASE WHEN id = {last} THEN {first} ELSE id + 1 END"))
            return [f"UPDATE dbo.{table} SET id = {moved} WHERE id BETWEEN {first} AND {last}"]


def _empties(chance: random.Random, keys: int, _: int) -> list[str]:
    """Every row goes, as a TRUNCATE would have it, which is refused of captured tables; some come back."""
    rows = ", ".join(f"({_row('emptied', key, chance)})" for key in range(1, keys, chance.randint(2, 5)))
    return ["DELETE FROM dbo.emptied", f"INSERT INTO dbo.emptied VALUES {rows}"]


def _bags(chance: random.Random, _: int, __: int) -> list[str]:
    n = chance.randint(0, 40)
    return [
        chance.choice(
            (
                f"INSERT INTO dbo.bag VALUES ({_row('bag', n, chance)}), ({_row('bag', n, chance)})",
                f"INSERT INTO dbo.bag VALUES ({_row('bag', n, chance)})",
                f"UPDATE dbo.bag SET w = {_text(chance)} WHERE n = {n}",
                f"DELETE FROM dbo.bag WHERE n = {n}",
                "DELETE TOP (1) FROM dbo.bag",
            )
        )
    ]


def _grown_values(chance: random.Random, keys: int, columns: int) -> list[str]:
    """Values of the columns that came."""
    column = f"c{chance.randint(1, columns)}" if columns else "name"
    return [f"UPDATE dbo.grown SET {column} = {_text(chance)} WHERE id {_span(chance, keys)}"]


_STATEMENTS: Final[dict[str, Statements]] = {
    "insert": _inserts,
    "update": _updates,
    "delete": _deletes,
    "delete and insert": _reinserts,
    "many rows": _many,
    "one row again and again": _chains,
    "large values": _large_values,
    "another key": _moves,
    "shifted keys": _shifts,
    "emptied": _empties,
    "without a key": _bags,
    "column that came": _grown_values,
}
_KINDS: Final = (*(_STATEMENTS), *(kind for kind in _STATEMENTS if kind != "emptied"), "insert", "update")
