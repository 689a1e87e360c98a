"""Capture over the model of a SQL Server: whatever happens there, the journal replays to what the source holds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.plugins.source import SourceContext
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.position import Position
from replicator_source_sqlserver.source import SqlServerSource
from replicator_source_sqlserver.versions import VersionPosition
from replicator_testbed import sqlserver_load
from replicator_testbed.captured import Captured
from replicator_testbed.servers import PostgresServer
from replicator_testbed.sqlserver.databases import SqlServerDatabase, SqlServers
from replicator_testbed.sqlserver_load import KEYED, TABLES, Load

KEYS = 60


@pytest.fixture(params=["cdc", "change_tracking"])
def database(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[SqlServerDatabase]:
    servers = SqlServers(postgres=postgres, is_tracked=request.param == "change_tracking")
    with servers.database() as database:
        yield database


@pytest.fixture
def captured(database: SqlServerDatabase, tmp_path: Path) -> Iterator[Captured]:
    settings = {name: value for name, value in database.source.items() if name != "type"}
    password = Secret(database.server.password)

    def make_source(context: SourceContext) -> SqlServerSource:
        return SqlServerSource(SqlServerConfig(**settings, password=password), context)

    tables = KEYED if database.is_tracked else TABLES
    captured = Captured(
        folder=tmp_path, name="model", make_source=make_source, tables=[TableId("dbo", name) for name in tables]
    )
    with closing(captured):
        yield captured


def clean_up(captured: Captured, load: Load) -> None:
    """Delete what no restart needs any more."""
    last = captured.store.last_segment(captured.name)
    assert last is not None
    assert last.offset is not None
    if load.database.is_tracked:
        load.clean_up_tracked(VersionPosition.of(last.offset).version)
    else:
        load.clean_up(Position.of(last.offset).lsn)


def test_random_transactions_with_snapshots_restarts_and_cleanups_leave_no_difference(
    database: SqlServerDatabase, captured: Captured
) -> None:
    """A slice of `tests/faults/test_sqlserver_load.py`, which continues to the target."""
    sqlserver_load.create(database, KEYS)
    captured.settings = replace(captured.settings, chunk_rows=20, pull_rows=30)
    chance = random.Random(4)
    with Load(database, keys=KEYS, pause_s=0.02) as load:
        for round_ in range(2):
            with captured.running() as running:
                captured.wait_for_streaming(running)
                if round_ == 0 and not database.is_tracked:
                    load.stop_capture()
                    load.let_write(20)
                    load.start_capture()
                if round_ == 1:
                    load.grow()
                load.let_write(40)
                captured.snapshot(running, chance.choice(captured.tables))
                clean_up(captured, load)
            load.let_write(20)
    with captured.running() as running:
        captured.catch_up(running)
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    for table in captured.tables:
        found, wanted = captured.rows(table), source_rows(database, table)
        assert found == wanted, (
            f"{table}: too many {list((found - wanted).items())[:3]}, lacking {list((wanted - found).items())[:3]}"
        )


def source_rows(database: SqlServerDatabase, table: TableId) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, database.rows(table.name, database.columns(table.name))))
