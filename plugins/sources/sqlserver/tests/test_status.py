"""What the source says of itself: its clock, its guarantee, and how long it keeps changes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from replicator.config import Secret
from replicator.model.guarantee import Guarantee
from replicator.model.schema import TableId
from replicator.plugins.source import LogStatus, SourceContext
from replicator_source_sqlserver.cdc.marks import write_token
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.databases import MARKS, SqlServerDatabase, SqlServers
from replicator_testing.waiting import wait_until


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[SqlServerDatabase]:
    with SqlServers(postgres=postgres).database() as database:
        yield database


def status(database: SqlServerDatabase, **changed: Any) -> LogStatus:
    block = {name: value for name, value in database.source.items() if name != "type"}
    config = SqlServerConfig(**{**block, **changed}, password=Secret(database.server.password))
    source = SqlServerSource(config, SourceContext(replicator="shop", uuid="u1", epoch=1))
    try:
        return source.status()
    finally:
        source.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("changed", "guarantee", "has_heartbeat"),
    [
        ({}, Guarantee.FULL, True),
        ({"chunk_isolation": "default"}, Guarantee.BOUNDED_WAIT, True),
        ({"mark_table": None}, Guarantee.FULL, False),
    ],
)
def test_the_guarantee_rests_on_marks_and_on_locks(
    database: SqlServerDatabase, changed: dict[str, Any], guarantee: Guarantee, has_heartbeat: bool
) -> None:
    found = status(database, **changed)
    assert (found.guarantee, found.heartbeat is not None) == (guarantee, has_heartbeat)


def test_changes_are_kept_as_long_as_the_cleanup_job_says(database: SqlServerDatabase) -> None:
    assert status(database).retention.keeps_log == timedelta(days=3)
    database.execute("EXEC sys.sp_cdc_change_job @job_type = N'cleanup', @retention = 10080")
    assert status(database).retention.keeps_log == timedelta(days=7)
    database.execute("EXEC sys.sp_cdc_drop_job @job_type = N'cleanup'")
    assert status(database).retention.keeps_log is None


@pytest.mark.matrix
def test_two_sessions_that_both_make_the_row_of_the_mark_table_both_write_into_it(
    database: SqlServerDatabase,
) -> None:
    """Between the UPDATE that finds no row and the INSERT another session inserts it, and commits while the INSERT waits."""
    database.execute(f"DELETE FROM {MARKS}")
    other = database.connect(autocommit=False)
    other.execute(f"INSERT INTO {MARKS} (id, token) VALUES (1, 'theirs')")
    raw = database.connect()
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write_token, Connection(raw), TableId.parse(MARKS), "ours")
        waiting = "SELECT COUNT(*) FROM sys.dm_exec_requests WHERE wait_type LIKE N'LCK%'"
        wait_until(lambda: written.done() or database.execute(waiting)[0][0], "the INSERT waits for the other one")
        other.commit()
        written.result(timeout=30)
    assert database.execute(f"SELECT id, token FROM {MARKS}") == [(1, "ours")]
    other.close()
    raw.close()
