"""`ddl accept` while the table is changed once more: before it is taken, as it is taken, as the new snapshot begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from replicator.capture.requests import OperatorRequests
from replicator.capture.snapshots.driver import SnapshotRunner
from replicator.config import DDLConfig
from replicator.state import table_life
from replicator.state.records import RequestKind, Stage
from replicator_testbed.journals.captured import Captured
from replicator_testbed.postgresql.captures import Make, assert_equal, table
from replicator_testbed.postgresql.servers import ScratchDatabase

T = table("t")
MOMENTS: dict[str, tuple[type, str, bool]] = {
    "before it is taken": (OperatorRequests, "_accept", True),
    "once it is taken": (OperatorRequests, "_accept", False),
    "as the snapshot begins": (SnapshotRunner, "begin", True),
}


def at(monkeypatch: pytest.MonkeyPatch, moment: str, act: Callable[[], object]) -> list[None]:
    """Act at that moment, once; the list has an item afterwards."""
    owner, name, is_before = MOMENTS[moment]
    original, done = getattr(owner, name), list[None]()

    def held(*arguments: Any) -> Any:
        if is_before and not done:
            done.append(None)
            act()
        result = original(*arguments)
        if not is_before and not done:
            done.append(None)
            act()
        return result

    monkeypatch.setattr(owner, name, held)
    return done


def stopped(make: Make, database: ScratchDatabase, policies: DDLConfig) -> Captured:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int)",
        "INSERT INTO t SELECT i, i, -i FROM generate_series(1, 25) i",
    )
    captured = make(database, "t")
    captured.settings = replace(captured.settings, ddl=lambda _: policies)
    return captured


@pytest.mark.matrix  # twelve captures; test_policies.py has what a policy stops
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    "second",
    [
        "ALTER TABLE t DROP b",
        "ALTER TABLE t RENAME b TO c",
        "ALTER TABLE t ALTER b TYPE text",
        "ALTER TABLE t ADD d int DEFAULT 7",
    ],
    ids=["drop", "rename", "type", "add"],
)
def test_a_second_change_is_followed_too_or_stops_the_table_again(
    database: ScratchDatabase, make: Make, monkeypatch: pytest.MonkeyPatch, moment: str, second: str
) -> None:
    policies = DDLConfig(drop_column="stop", rename_column="stop", change_type="stop", add_column="stop")
    captured = stopped(make, database, policies)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute("ALTER TABLE t DROP a", "UPDATE t SET b = 0 WHERE id = 1")
        captured.catch_up(running)
        assert table_life.waits_for_acceptance(captured.record(T))
        column = "b" if "RENAME" not in second and "DROP" not in second else "id"
        changed = (second, f"UPDATE t SET {column} = {column} WHERE id < 9", "DELETE FROM t WHERE id = 2")
        done = at(monkeypatch, moment, lambda: database.execute(*changed))
        request = captured.request(RequestKind.ACCEPT, tables=[str(T)])
        running.wait_until(lambda: captured.is_done(request), "it is accepted")
        captured.catch_up(running)
        running.wait_until(lambda: done, "the race was run")
        captured.catch_up(running)
        if captured.record(T).stage is Stage.FAILED:
            assert table_life.waits_for_acceptance(captured.record(T)), captured.record(T).error
            captured.request(RequestKind.ACCEPT, tables=[str(T)])
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t")


@pytest.mark.matrix
@pytest.mark.parametrize("moment", list(MOMENTS)[:2])
def test_a_table_that_is_there_again_as_its_end_is_accepted_is_copied_again(
    database: ScratchDatabase, make: Make, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    captured = stopped(make, database, DDLConfig(drop_table="stop"))
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute("DROP TABLE t")
        running.wait_until(lambda: table_life.waits_for_acceptance(captured.record(T)), "it stopped")
        made = ("CREATE TABLE t (id int PRIMARY KEY, n text)", "INSERT INTO t VALUES (1, 'again')")
        done = at(monkeypatch, moment, lambda: database.execute(*made))
        request = captured.request(RequestKind.ACCEPT, tables=[str(T)])
        running.wait_until(lambda: captured.is_done(request) and done, "it is accepted")
        captured.request(RequestKind.SNAPSHOT, tables=[str(T)])
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t")
