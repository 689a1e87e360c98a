"""Random transactions on a SQL Server while its tables are copied: the journal replays to what the source holds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from replicator_source_sqlserver.cdc.position import Position
from replicator_source_sqlserver.tracking.versions import VersionPosition
from replicator_testbed.journals.captured import Captured
from replicator_testbed.sqlserver import load as sqlserver_load
from replicator_testbed.sqlserver.databases import SqlServerDatabase
from replicator_testbed.sqlserver.load import KEYED, TABLES, Load
from tests.integration.capture_sqlserver.conftest import Make, assert_equal

KEYS = 60


def clean_up(captured: Captured, load: Load) -> None:
    """Delete what no restart needs any more."""
    last = captured.store.journal.last_segment(captured.name)
    assert last is not None
    assert last.offset is not None
    if load.database.is_tracked:
        load.clean_up_tracked(VersionPosition.of(last.offset).version)
    else:
        load.clean_up(Position.of(last.offset).lsn)


@pytest.mark.matrix
def test_random_transactions_with_snapshots_restarts_and_cleanups_leave_no_difference(
    each_database: SqlServerDatabase, make: Make
) -> None:
    """A slice of `tests/faults/test_sqlserver_load.py`, which continues to the target."""
    sqlserver_load.create(each_database, KEYS)
    captured = make(each_database, *(KEYED if each_database.is_tracked else TABLES))
    captured.settings = replace(captured.settings, chunk_rows=20, pull_rows=30)
    chance = random.Random(4)
    with Load(each_database, keys=KEYS, pause_s=0.02) as load:
        for round_ in range(2):
            with captured.running() as running:
                captured.wait_for_streaming(running)
                if round_ == 0 and not each_database.is_tracked:
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
    assert_equal(captured, each_database, *(table.name for table in captured.tables))
