"""Random transactions on MariaDB or MySQL: every kind of change, of tables of every kind of key, from several sessions at once.

Chains of key changes within a statement, swaps of keys, keys that change their case only, savepoints (nested, used again,
released), transactions that are undone, deadlocks, XA transactions, tables that are swapped and emptied; where the server
lets them be in one transaction with the rest, temporary tables and audit tables that know no transactions, so that its log
has what was undone. Reproducible by seed, except timing.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT

from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testing.waiting import PATIENCE, wait_until

TABLES: Final = ("plain", "named", "pair", "alt", "bag")


_SCHEMA: Final = (
    """CREATE TABLE plain (
        id bigint PRIMARY KEY, v bigint NOT NULL, note text, amount decimal(16,4), at datetime(6), big int unsigned,
        KEY (v))""",
    # In the server's own collation, which knows no case: to the target these are different keys.
    "CREATE TABLE named (name varchar(40) PRIMARY KEY, v bigint NOT NULL, photo varbinary(200), kind enum('x', 'y', 'ü'))",
    "CREATE TABLE pair (a int, b varbinary(8), v bigint NOT NULL, doc json, day date, PRIMARY KEY (b, a))",
    "CREATE TABLE alt (u int unsigned NOT NULL, v bigint NOT NULL, took double, UNIQUE KEY (u))",
    "CREATE TABLE bag (v int, w varchar(20), flag tinyint, KEY (v))",
)
# Deadlock, lock time-out, duplicate key, a table that was being swapped, a savepoint behind a change of an Aria table: the
# transaction is undone, and its session continues.
_EXPECTED: Final = frozenset({1213, 1205, 1062, 1412, 1178})
# Its session still has it, or is just letting it go.
_NOT_THERE_YET: Final = frozenset({1397, 3176})
# MariaDB answers so to XA COMMIT where the transaction had changed nothing.
_ROLLED_BACK: Final = 1402
_PREPARED_S: Final = 0.02


_AUDIT: Final = (
    "CREATE TABLE audit (note varchar(20)) ENGINE = MyISAM",
    "CREATE TABLE trail (v bigint) ENGINE = {}",
    "CREATE TRIGGER noted AFTER DELETE ON pair FOR EACH ROW INSERT INTO trail VALUES (OLD.v)",
)
# What a server cannot undo: it then logs what was undone.
_STICKY: Final = (
    "INSERT INTO audit VALUES ('x')",
    "CREATE TEMPORARY TABLE IF NOT EXISTS scratch (id int)",
    "DROP TEMPORARY TABLE IF EXISTS scratch",
)


def create(database: MysqlDatabase, rows: int) -> None:
    """Make the tables, each with so many rows or fewer."""
    database.execute(*_SCHEMA)
    if _mixes_engines(database):
        database.execute(*(text.format("Aria" if database.server.flavor == "mariadb" else "MyISAM") for text in _AUDIT))
    chance = random.Random(1)
    with closing(_session(database, "READ COMMITTED")) as connection:
        for _ in range(rows // 20):
            inserts = [_inserts(table, chance, rows) for table in _WEIGHTED for _ in range(4)]
            assert _run(connection, ["BEGIN", *inserts, "COMMIT"])


@dataclass(eq=False, slots=True)
class Load:
    """Sessions that write from entering the context until leaving it.

    Attributes:
        keys: How many keys each table may have.
        sessions: How many sessions write ordinary transactions.
        pause_s: How long each of them rests behind one.
    """

    database: MysqlDatabase
    keys: int
    sessions: int = 4
    seed: int = 0
    pause_s: float = 0.0
    _sticky: Sequence[str] = ()
    _done: dict[str, int] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _errors: list[BaseException] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._sticky = _STICKY if _mixes_engines(self.database) else _STICKY[1:]
        for number in range(self.sessions):
            self._begin(f"writer{number}", self._write_plain)
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
        """How many were ended so far, by COMMIT or by ROLLBACK."""
        assert not self._errors, self._errors
        return sum(self._done.values())

    @property
    def prepared(self) -> int:
        """How many of them were XA transactions that were prepared first."""
        return self._done.get("xa", 0)

    def begin_xa(self) -> None:
        """Write XA transactions too: not before the log is read, for one prepared earlier costs new snapshots of all tables."""
        self._begin("xa", self._write_xa)

    def swap(self, table: str) -> None:
        """Replace the table by a copy of it, as tools for changes of tables do; what is written to it meanwhile is lost."""
        shadow, old = f"_{table}_gho", f"_{table}_del"
        self._insist(
            f"DROP TABLE IF EXISTS {shadow}, {old}",
            f"CREATE TABLE {shadow} LIKE {table}",
            f"INSERT INTO {shadow} SELECT * FROM {table}",
            f"RENAME TABLE {table} TO {old}, {shadow} TO {table}",
            f"DROP TABLE {old}",
        )

    def empty(self, table: str) -> None:
        """TRUNCATE."""
        self._insist(f"TRUNCATE {table}")

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _begin(self, name: str, write: Callable[[random.Random, str], None]) -> None:
        def run() -> None:
            try:
                write(random.Random(f"{self.seed} {name}"), name)
            except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
                self._errors.append(error)

        thread = threading.Thread(target=run, name=name)
        self._threads.append(thread)
        thread.start()

    def _write_plain(self, chance: random.Random, name: str) -> None:
        # Locks of gaps and without: what waits for whom is different.
        level = chance.choice(["READ COMMITTED", "REPEATABLE READ"])
        with closing(_session(self.database, level)) as connection:
            while not self._stop.is_set():
                if _run(connection, _transaction(chance, self.keys, self._sticky)):
                    self._done[name] = self._done.get(name, 0) + 1
                self._stop.wait(self.pause_s)

    def _write_xa(self, chance: random.Random, name: str) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            xid = f"'{self.seed}-{number}'"
            # MySQL has no temporary tables in XA transactions.
            sticky = self._sticky if self.database.server.flavor == "mariadb" else ()
            # The last one stays whatever is undone: servers forget a prepared transaction that changed nothing.
            body = [*_body(chance, self.keys, sticky), "INSERT INTO bag VALUES (1, 'xa', 0)"]
            begun = [f"XA START {xid}", *body, f"XA END {xid}"]
            with closing(_session(self.database, "READ COMMITTED")) as connection:
                if chance.random() < 0.2:
                    _run(connection, [*begun, f"XA COMMIT {xid} ONE PHASE"])
                    continue
                # What fails before it is prepared goes with its session.
                is_prepared = _run(connection, [*begun, f"XA PREPARE {xid}"])
            if is_prepared:
                self._stop.wait(_PREPARED_S)
                self._decide(f"XA {'ROLLBACK' if chance.random() < 0.2 else 'COMMIT'} {xid}")
                self._done[name] = self._done.get(name, 0) + 1

    def _decide(self, statement: str) -> None:
        """End a prepared transaction from another session: as soon as the server has taken it from the first."""

        def is_done() -> bool:
            try:
                self.database.execute(statement)
            except pymysql.MySQLError as error:
                if error.args[0] not in {*_NOT_THERE_YET, _ROLLED_BACK}:
                    raise
                return bool(error.args[0] == _ROLLED_BACK)
            return True

        wait_until(is_done, f"{statement} is done", every_s=0.005)

    def _insist(self, *statements: str) -> None:
        """Run statements until all of them, from the first, did not block any other."""

        def is_done() -> bool:
            with closing(_session(self.database, "READ COMMITTED")) as connection:
                return _run(connection, statements)

        wait_until(is_done, lambda: f"{statements} are done", every_s=0.05)


def _session(database: MysqlDatabase, level: str) -> Connection[Any]:
    connection = database.connect(client_flag=CLIENT.MULTI_STATEMENTS)
    settings = "SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 5"
    _run(connection, [settings, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}"])
    return connection


def _run(connection: Connection[Any], statements: Sequence[str]) -> bool:
    """Send statements in one message; False if one of them failed for a reason that is expected, and everything is undone."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(";".join(statements))
            while cursor.nextset():
                pass
        except pymysql.MySQLError as error:
            if error.args[0] not in _EXPECTED:
                raise
            if statements[0] == "BEGIN":
                cursor.execute("ROLLBACK")
            return False
    return True


# --- transactions -------------------------------------------------------------------------------------------------------

_SAVEPOINTS: Final = ("a", "A", "b", "c d", "größe")
# The same names to the server.
_SPELLED: Final = {"a": "A", "A": "a", "b": "b", "c d": "C d", "größe": "GRÖßE"}
_WEIGHTED: Final = ("plain", "plain", "named", "pair", "alt", "bag")


def _mixes_engines(database: MysqlDatabase) -> bool:
    """Whether a transaction may write to tables without transactions, too: with GTIDs MySQL refuses it."""
    if database.server.flavor == "mariadb":
        return True
    ((consistency,),) = database.execute("SELECT @@GLOBAL.enforce_gtid_consistency")
    return str(consistency) in {"OFF", "0"}


def _transaction(chance: random.Random, keys: int, sticky: Sequence[str]) -> list[str]:
    return ["BEGIN", *_body(chance, keys, sticky), "ROLLBACK" if chance.random() < 0.1 else "COMMIT"]


def _body(chance: random.Random, keys: int, sticky: Sequence[str]) -> list[str]:
    """What a transaction does; at times with savepoints, and with what the server cannot undo."""
    found = _statements(chance, keys)
    if chance.random() < 0.75:
        return found
    live: list[str] = []
    for _ in range(chance.randint(1, 10)):
        match chance.choice(("set", "set", "back", "back", "release", "sticky", "change", "change")):
            case "set":
                name = chance.choice(_SAVEPOINTS)
                live = [*(n for n in live if n.upper() != name.upper()), name]
                found.append(f"SAVEPOINT `{name}`")
            case "back" if live:
                index = chance.randrange(len(live))
                found.append(f"ROLLBACK TO SAVEPOINT `{_SPELLED[live[index]]}`")
                del live[index + 1 :]
            case "release" if live:
                index = chance.randrange(len(live))
                found.append(f"RELEASE SAVEPOINT `{live[index]}`")
                del live[index:]
            case "sticky" if sticky:
                found.append(chance.choice(sticky))
            case _:
                found += _statements(chance, keys)
    return found


def _statements(chance: random.Random, keys: int) -> list[str]:
    found: list[str] = []
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5))):
        table = chance.choice(_WEIGHTED)
        found += _bag_change(chance) if table == "bag" else _change(table, chance, keys)
    return found


def _change(table: str, chance: random.Random, keys: int) -> list[str]:
    one, other = _key(table, chance, keys), _key(table, chance, keys)
    choices: tuple[Callable[[], list[str]], ...] = (
        lambda: [_inserts(table, chance, keys)],
        lambda: [_inserts(table, chance, keys)],
        lambda: [_inserts(table, chance, keys, "REPLACE")],
        lambda: [f"{_inserts(table, chance, keys, 'INSERT')} ON DUPLICATE KEY UPDATE v = {table}.v + 10"],
        lambda: [f"UPDATE {table} SET v = v + 1 WHERE {_where(one)}"],
        lambda: [f"UPDATE {table} SET v = v + 1 WHERE {_where(one)}"],
        lambda: [f"UPDATE IGNORE {table} SET {_set(other)}, v = {chance.randint(0, 9)} WHERE {_where(one)}"],
        lambda: [f"DELETE FROM {table} WHERE {_where(one)}"],
        lambda: _swap_keys(table, one, other),
        lambda: [_chain(table, chance, keys)],
        lambda: [_many(table, chance, keys)],
    )
    return chance.choice(choices)()


def _swap_keys(table: str, one: Key, other: Key) -> list[str]:
    """Two rows exchange their keys by way of a third, in one transaction."""
    spare = {name: "4000000" if text.isdigit() else "'~spare'" for name, text in one.items()}
    return [
        f"UPDATE IGNORE {table} SET {_set(spare)} WHERE {_where(one)}",
        f"UPDATE IGNORE {table} SET {_set(one)} WHERE {_where(other)}",
        f"UPDATE IGNORE {table} SET {_set(other)} WHERE {_where(spare)}",
    ]


def _chain(table: str, chance: random.Random, keys: int) -> str:
    """Keys that move up by one, one behind the other, or that change their case only."""
    first = chance.randint(1, keys)
    match table:
        case "named":
            to = chance.choice(("UPPER", "LOWER"))
            return f"UPDATE IGNORE named SET name = {to}(name) WHERE name BETWEEN 'k{first}' AND 'k{first}9' LIMIT 8"
        case "pair":
            return f"UPDATE IGNORE pair SET a = a + 1 WHERE b = {_bytes(first)} ORDER BY a DESC LIMIT 8"
        case _:
            name = "id" if table == "plain" else "u"
            span = f"{name} BETWEEN {first} AND {first + 6}"
            return f"UPDATE IGNORE {table} SET {name} = {name} + 1 WHERE {span} ORDER BY {name} DESC"


def _many(table: str, chance: random.Random, keys: int) -> str:
    """Several rows in one statement."""
    first = chance.randint(1, keys)
    what = f"DELETE FROM {table}" if chance.random() < 0.4 else f"UPDATE {table} SET v = v + 100"
    match table:
        case "named":
            return f"{what} WHERE name BETWEEN 'k{first}' AND 'k{first}9' LIMIT 8"
        case "pair":
            return f"{what} WHERE b = {_bytes(first)} LIMIT 8"
        case _:
            name = "id" if table == "plain" else "u"
            return f"{what} WHERE {name} BETWEEN {first} AND {first + 8}"


def _bag_change(chance: random.Random) -> list[str]:
    v = chance.randint(0, 40)
    match chance.randint(0, 4):
        case 0 | 1:
            rows = (
                f"({chance.randint(0, 40)}, {chance.choice(_WORDS)}, {chance.choice(('0', '1', 'NULL'))})" for _ in "ab"
            )
            return [f"INSERT INTO bag VALUES {', '.join(rows)}"]
        case 2:
            return [f"UPDATE bag SET w = {chance.choice(_WORDS)} WHERE v = {v} LIMIT 2"]
        case _:
            return [f"DELETE FROM bag WHERE v = {v} LIMIT 2"]


# --- keys and values ----------------------------------------------------------------------------------------------------

Key = dict[str, str]
"""Columns of a key, and the literals that they have."""

_WORDS: Final = ("'a'", "'A'", "'größe'", "'日本語'", "''", "NULL")


def _key(table: str, chance: random.Random, keys: int) -> Key:
    number = chance.randint(1, keys)
    match table:
        case "plain":
            return {"id": str(number)}
        case "named":
            text = chance.choice(("k{}", "K{}", "k{}", "k{} ")).format(number)
            return {"name": f"'{text}'"}
        case "pair":
            return {"a": str(number), "b": _bytes(number)}
        case _:
            return {"u": str(number)}


def _bytes(number: int) -> str:
    """Few values, one of them with a zero behind it."""
    return f"x'{number % 23:02x}{'00' if number % 2 else ''}'"


def _where(key: Key) -> str:
    return " AND ".join(f"{name} = {text}" for name, text in key.items())


def _set(key: Key) -> str:
    return ", ".join(f"{name} = {text}" for name, text in key.items())


def _inserts(table: str, chance: random.Random, keys: int, verb: str = "INSERT IGNORE") -> str:
    """A statement that inserts one to five rows."""
    rows = ", ".join(f"({_row(table, chance, keys)})" for _ in range(chance.choice((1, 1, 2, 5))))
    return f"{verb} INTO {table} VALUES {rows}"


def _row(table: str, chance: random.Random, keys: int) -> str:
    if table == "bag":
        return f"{chance.randint(0, 40)}, {chance.choice(_WORDS)}, {chance.choice(('0', '1', 'NULL'))}"
    key, v = ", ".join(_key(table, chance, keys).values()), chance.randint(0, 1000)
    match table:
        case "plain":
            note = (
                f"REPEAT('{chance.choice('abü')}', {chance.choice((3, 40, 700))})" if chance.random() < 0.7 else "NULL"
            )
            moment = f"'2024-02-29 23:59:59.{chance.randint(0, 999_999):06}'"
            return f"{key}, {v}, {note}, {chance.randint(-(10**9), 10**9) / 7:.4f}, {moment}, {chance.choice((0, 1 << 31, (1 << 32) - 1))}"
        case "named":
            return f"{key}, {v}, x'{chance.randbytes(chance.randint(0, 60)).hex()}', {chance.choice(('1', '2', '3', 'NULL'))}"
        case "pair":
            document = f"""'{{"n": {v}, "w": ["{chance.choice("aü")}", null, true]}}'"""
            return f"{key}, {v}, {chance.choice((document, 'NULL'))}, '20{chance.randint(10, 40)}-01-31'"
        case _:
            return f"{key}, {v}, {chance.choice(('0.1', '-1e300', '2.5e-10', 'NULL'))}"
