"""Policies for changes of columns, and what an operator can do about a table that stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicator.config import DDLConfig
from replicator.state.records import RequestKind
from replicator_testbed.postgresql.captures import Make, assert_equal, table
from replicator_testbed.postgresql.servers import ScratchDatabase


@pytest.mark.sampled(1)
@pytest.mark.parametrize("statement", ["ADD a int", "RENAME b TO a"])
def test_a_name_that_the_target_keeps_stops_the_table_until_it_is_accepted(
    database: ScratchDatabase, make: Make, statement: str
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int)",
        "INSERT INTO t SELECT i, i, -i FROM generate_series(1, 25) i",
    )
    captured = make(database, "t")
    policies = [DDLConfig(rename_column="ignore")]
    captured.settings = replace(captured.settings, ddl=lambda _: policies[-1])
    t = table("t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute("ALTER TABLE t RENAME a TO z", "UPDATE t SET z = 0 WHERE id = 1")
        captured.catch_up(running)
        assert captured.record(t).ignored
        policies.append(DDLConfig(rename_column="apply"))
        database.execute(f"ALTER TABLE t {statement}", "UPDATE t SET a = 1 WHERE id = 2")
        captured.catch_up(running)
        error = captured.record(t).error
        assert error is not None
        assert error.code == "ddl_stop"
        assert "keeps the name a for z" in error.message
        request = captured.request(RequestKind.ACCEPT, tables=[str(t)])
        running.wait_until(lambda: captured.is_done(request), "it is accepted")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert not captured.record(t).ignored
    assert_equal(captured, database, "t")
