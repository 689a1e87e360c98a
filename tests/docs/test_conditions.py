"""Every condition that a source has to hold under is shown by a test: on MySQL, on MariaDB, and on SQL Server by both ways to capture it.

Tests claim conditions with `@pytest.mark.condition("D05", …)`: D are those of a copy next to a log that continues, M those of the
binary log, which SQL Server does not have. A condition that no test claims fails here, and so does a claim of one that is not listed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

CONDITIONS = {
    "D01": "a change of the key while its chunk is read",
    "D02": "a row that moves past the position up to which the table was read, either way",
    "D03": "a read on another server than the log's",
    "D04": "a session whose view of the table is older than the read",
    "D05": "a transaction that is in the log and not visible yet",
    "D06": "a transaction that is open across many chunks",
    "D07": "keys that the log and a chunk must hold alike, whatever their type",
    "D08": "keys that collations take for equal: case, and spaces behind",
    "D09": "keys of approximate numbers",
    "D10": "keys whose order is not that of their text: unsigned, BIT, YEAR, ENUM, SET",
    "D11": "keys whose order is the server's own: UUID and addresses",
    "D12": "chunks by a key of several columns, which use its index",
    "D13": "unique keys that hold NULL are none",
    "D14": "tables without a key",
    "D15": "a server that may not be written",
    "D16": "two replicators of one table",
    "D17": "an end between a read and its mark",
    "D18": "a schema change while a chunk is read",
    "D19": "a delete, or a delete and an insert, while the chunk is read",
    "D20": "a delete of a row that was not read yet",
    "D21": "TRUNCATE and partitions that come, go and change positions",
    "D22": "cascades of foreign keys",
    "D23": "triggers, LOAD DATA, REPLACE, ON DUPLICATE KEY UPDATE, statements on several tables",
    "D24": "sessions that log statements",
    "D25": "sessions that do not log",
    "D26": "a server in another time zone",
    "D27": "rows that are too large for a chunk",
    "D28": "a row that changes during every chunk",
    "D29": "generated and invisible columns",
    "M01": "the connection to the log is killed",
    "M02": "an idle log does not hold up a pause",
    "M03": "the network swallows everything",
    "M04": "heartbeats are no old changes",
    "M05": "a byte of the log is flipped on its way",
    "M06": "a log written without the names of columns",
    "M07": "columns that changed positions since the log was written",
    "M08": "many schema changes since the log was written",
    "M09": "files beyond 4 GiB",
    "M10": "the log was purged",
    "M13": "tables of the same name, and names that differ in case",
    "M14": "rows larger than a packet of the protocol",
    "M15": "MySQL of today: its statements, and its passwords over TLS",
    "M16": "two readers of one log",
    "M17": "a reader that does not read for long",
    "M20": "transactions compressed by one session",
    "M21": "a log compressed by MariaDB",
    "M22": "updates of JSON logged as differences",
    "M23": "tagged GTIDs",
    "M24": "VECTOR columns",
    "M25": "XA: committed, rolled back, and an end in between",
    "M26": "savepoints",
    "M27": "engines without transactions",
    "M28": "changes logged as statements",
    "M29": "an INCIDENT in the log",
    "M30": "CREATE TABLE … SELECT, CREATE OR REPLACE, swaps of names",
    "M31": "cascades, logged by one server and not by the other",
    "M32": "a server in another time zone",
    "M33": "every type's boundary values",
    "M34": "the log begun again",
    "M35": "a replica takes over",
    "M36": "several domains of GTIDs",
    "M37": "a server's restart gives table numbers again",
    "M38": "row images that are not full",
}

ABSENT = {
    "M11": "without a position the client library begins at the log's end; it is not used (docs/adr/0006), and `Dump.open` has no default",
    "M12": "a setting of the same library",
    **dict.fromkeys(("M18", "M19"), "numbers that were never given"),
}
"""Numbers without a test, and why."""

ONE_SERVER = {
    "M09": "headers are made by hand: a file of 4 GiB takes too long to write",
    "M22": "MariaDB has no such setting",
    "M23": "MariaDB's GTIDs have no tags",
    "M24": "MariaDB 10.11 has no such type",
    "M29": "no server writes one on demand",
    "M36": "MySQL's GTIDs have no domains",
    "D11": "MySQL has no such types",
}
"""Shown on one of the servers, or on none, and why."""

SQLSERVER = {
    "cdc": {
        "D24": "change tables are filled from rows in the log: statements are not logged",
        "D25": "a session cannot keep its changes out of the log. What nobody captured because the instance was disabled is tested",
    },
    "change_tracking": {
        "D05": "versions, changes and rows are read in one SNAPSHOT transaction: what it cannot see, it does not deliver either",
        "D08": "a key that changes in its spelling only is no other key for the server: a known limit (`key_spelling`)",
        "D24": "keys of rows are noted: there are no statements",
        "D25": "a session cannot keep its changes from being noted. What nobody noted because tracking was off is tested",
    },
}
"""Conditions that mean nothing there, or that are known not to hold, and why. A test may claim them all the same."""

BOTH = frozenset({"mariadb", "mysql"})
BOTH_WAYS = frozenset(SQLSERVER)
SERVERS = {
    **dict.fromkeys(
        (
            *(
                "any_mysql",
                "binlog",
                "compressed",
                "each_binlog",
                "each_mysql",
                "each_mysql_database",
                "every_database",
            ),
            *("every_own_server", "facts", "flavor", "mysql_database", "own_server", "pair", "source"),
        ),
        BOTH,
    ),
    **dict.fromkeys(("mariadb", "mariadb_binlog"), frozenset({"mariadb"})),
    **dict.fromkeys(("mysql", "mysql_binlog"), frozenset({"mysql"})),
}
"""Fixtures and parameters, and the servers that a test of MySQL with them runs on."""
WAYS = {
    "captured_database": frozenset({"cdc"}),
    "tracked_database": frozenset({"change_tracking"}),
    "each_database": BOTH_WAYS,
    "is_tracked": BOTH_WAYS,
}
"""The same of tests of SQL Server."""

CONTRACT = ROOT / "testing" / "replicator_testing" / "source_contract.py"
NO_TRUNCATE = "test_truncating_tables_is_an_event_for_each_at_its_position"
"""Of the contract: SQL Server is asked to delete the rows."""
NET_CHANGES = ROOT / "testing" / "replicator_testing" / "net_changes_contract.py"
SQLSERVER_TESTS = (
    ROOT / "plugins" / "sources" / "sqlserver" / "tests",
    ROOT / "tests" / "integration" / "capture_sqlserver",
)


class Claim(NamedTuple):
    test: str
    servers: frozenset[str]


def files() -> Iterator[Path]:
    yield from (CONTRACT, NET_CHANGES)
    yield from sorted(ROOT.glob("plugins/sources/mysql/tests/**/test_*.py"))
    yield from sorted(ROOT.glob("tests/integration/test_*mysql*.py"))
    for folder in SQLSERVER_TESTS:
        yield from sorted(folder.glob("test_*.py"))


def functions(file: Path) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(n, ast.FunctionDef)]


@cache
def asked_otherwise() -> frozenset[str]:
    """Tests of the contract that sources of net changes are not asked."""
    return frozenset(node.name for node in functions(NET_CHANGES))


def servers_of(file: Path, node: ast.FunctionDef) -> frozenset[str]:
    """Where a test runs."""
    if file == CONTRACT:
        ways = BOTH_WAYS if node.name not in asked_otherwise() else frozenset({"cdc"})
        return BOTH | (ways if node.name != NO_TRUNCATE else frozenset())
    if file == NET_CHANGES:
        return frozenset({"change_tracking"})
    if file.parent not in SQLSERVER_TESTS:
        return frozenset[str]().union(*(SERVERS[a.arg] for a in node.args.args if a.arg in SERVERS))
    found = frozenset[str]().union(*(WAYS[a.arg] for a in node.args.args if a.arg in WAYS))
    return found or frozenset({"change_tracking" if "tracking" in file.name else "cdc"})


def claimed_ids(decorator: ast.expr) -> Iterator[str]:
    match decorator:
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="condition"), args=args):
            for argument in args:
                assert isinstance(argument, ast.Constant), "conditions are literals"
                yield str(argument.value)
        case _:
            pass


@cache
def claims() -> dict[str, list[Claim]]:
    found: dict[str, list[Claim]] = defaultdict(list)
    for file in files():
        for node in functions(file):
            claim = Claim(f"{file.name}::{node.name}", servers_of(file, node))
            for id_ in (i for decorator in node.decorator_list for i in claimed_ids(decorator)):
                assert node.name.startswith("test_"), f"{claim.test} is no test"
                found[id_].append(claim)
    return found


def test_every_condition_is_claimed_by_a_test() -> None:
    assert sorted(CONDITIONS.keys() - claims().keys()) == []


def test_only_known_conditions_are_claimed() -> None:
    assert {id_: tests for id_, tests in claims().items() if id_ not in CONDITIONS} == {}


def test_every_number_is_a_condition_or_has_a_reason_not_to_be() -> None:
    numbers = {f"D{n:02}" for n in range(1, 30)} | {f"M{n:02}" for n in range(1, 39)}
    assert CONDITIONS.keys() | ABSENT.keys() == numbers
    assert CONDITIONS.keys() & ABSENT.keys() == set()


def shown_on() -> dict[str, frozenset[str]]:
    return {id_: frozenset[str]().union(*(t.servers for t in tests)) for id_, tests in claims().items()}


def test_conditions_are_shown_on_both_servers() -> None:
    assert sorted(id_ for id_, servers in shown_on().items() if servers & BOTH != BOTH) == sorted(ONE_SERVER)


@pytest.mark.parametrize("way", sorted(BOTH_WAYS))
def test_conditions_of_copies_are_shown_on_sqlserver_or_have_a_reason_not_to_be(way: str) -> None:
    copies = {id_ for id_ in CONDITIONS if id_.startswith("D")}
    shown = {id_ for id_, servers in shown_on().items() if way in servers}
    assert sorted(copies - shown - SQLSERVER[way].keys()) == []
    assert SQLSERVER[way].keys() <= copies
