"""`replicator verify` while a table is altered, truncated and refilled, and in the end dropped: none of that is called a difference."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from replicator_testbed.background import in_background
from replicator_testbed.databases import Database
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.rig import Rig, is_streaming
from replicator_testbed.target_tables import TargetTables

ROWS = 2_000
PAUSE_S = 0.2
"""From one statement to the next: a verification of a small table takes a second or two."""
GONE = {
    "the table no longer exists.",
    "the source does not have it any more, so there is nothing to compare it with",
}
"""Until capture has found out, and from then on."""


def _filled(first: int) -> str:
    rows = ", ".join(f"({id_}, {id_ % 7})" for id_ in range(first, first + ROWS))
    return f"INSERT INTO items (id, v) VALUES {rows}"


def _turn(database: Database, number: int) -> Iterator[str]:
    """Statements of which each leaves another definition, or other rows under the same keys."""
    change, kind = ("ALTER", "TYPE ") if isinstance(database, ScratchDatabase) else ("MODIFY", "")
    yield f"ALTER TABLE items ADD extra int DEFAULT {number}"
    yield f"UPDATE items SET v = v + 1, extra = 7 WHERE id % 10 = {number}"
    yield f"ALTER TABLE items {change} v {kind}bigint"
    yield "TRUNCATE TABLE items"
    yield _filled(first=number)
    yield "ALTER TABLE items DROP COLUMN extra"
    yield f"DELETE FROM items WHERE id % 10 = {number + 1}"


def _verified(rig: Rig, *arguments: str) -> Any:
    """What `verify` says of the table, with its exit code."""
    done = rig.command("verify", rig.name, *arguments, "--json", check=None)
    assert done.stdout, done.stderr
    [table] = json.loads(done.stdout)["tables"]
    assert done.returncode == {"equal": 0, "not_verified": 1}[table["result"]], table
    assert "unexpected" not in str(table["reason"]), table
    return table


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_no_change_of_a_definition_is_called_a_difference(rig: Rig, target_tables: TargetTables) -> None:
    rig.database.execute("CREATE TABLE items (id int PRIMARY KEY, v int)", _filled(first=0))
    rig.tables = ("items",)
    rig.write_yaml(settings={rig.full_name("items"): {"ddl": {"drop_column": "apply"}}})
    worker = rig.start()
    rig.wait_for_status(is_streaming, worker)

    for number, options in enumerate(((), ("--sample", "50"), ("--since", "10m"))):

        def change(stop: threading.Event, number: int = number) -> None:
            for statement in _turn(rig.database, number):
                stop.wait(PAUSE_S)
                rig.database.execute(statement)

        with in_background(change):
            table = _verified(rig, *options)
        assert table["result"] == "equal" or table["reason"], table
        rig.wait_for_status(is_streaming, worker)
        rig.settle(worker)
    rig.verify()
    assert rig.differences(target_tables) == {}

    rig.database.execute("DROP TABLE items")
    assert _verified(rig)["reason"] in GONE
    assert rig.stop(worker) == 0, rig.output()
