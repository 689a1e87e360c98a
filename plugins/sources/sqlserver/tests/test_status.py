"""What the source says of itself: its clock, its guarantee, and how long it keeps changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from replicator.config import Secret
from replicator.model.guarantee import Guarantee
from replicator.plugins.source import LogStatus, SourceContext
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.servers import PostgresServer
from replicator_testbed.sqlserver.databases import SqlServerDatabase, SqlServers


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


@pytest.mark.parametrize(
    ("changed", "guarantee", "has_heartbeat"),
    [
        ({}, Guarantee.FULL, True),
        ({"chunk_isolation": "default"}, Guarantee.BOUNDED_WAIT, True),
        ({"signal_table": None}, Guarantee.BOUNDED_WAIT, False),
    ],
)
def test_the_guarantee_rests_on_the_signal_table_and_on_locks(
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
