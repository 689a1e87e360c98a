"""Every type, key and change of shape of MariaDB and MySQL, under random transactions, end to end into Delta."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from replicator.model.documents.status import ReplicatorStatus, TableState
from replicator_testbed.delta import plain_rows
from replicator_testbed.journals.captured import Sealed
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testbed.mysql.tables import (
    OddTable,
    RandomLoad,
    make,
    source_rows,
    tables_of_keys,
    tables_of_shapes,
    tables_of_values,
)
from replicator_testbed.rig import Rig, has_snapshots
from replicator_testbed.spark.java import short_lived_options

Of = Callable[[MysqlDatabase], Iterator[OddTable]]
EXTRA = f"""
snapshot: {{chunk_rows: 7}}
retry: {{backoff_initial: 20ms, backoff_max: 500ms, give_up_after: 30m}}
spark:
  settings: {json.dumps({"spark.driver.memory": "1g", **short_lived_options()})}
"""
SLICE = {"v_moments", "bag_numbers", "k_texts_0"}


def prepared(folder: Path, database: MysqlDatabase, tables: Sequence[OddTable]) -> Rig:
    """The tables with some rows, and a replicator of them that was never started."""
    make(database, tables)
    load = RandomLoad(database=database, tables=tables, seed=1)
    load.fill(20)
    load.run(4 * len(tables))
    rig = Rig(folder=folder, database=database, tables=[table.name for table in tables], extra=EXTRA)
    rig.write_yaml(source={"unrepresentable": "null"})
    return rig


def differences(rig: Rig, tables: Sequence[OddTable]) -> dict[str, Any]:
    """Tables whose copy, as delta-rs reads it, is not what the server says."""
    assert isinstance(rig.database, MysqlDatabase)
    found = {}
    for table in tables:
        source = source_rows(rig.database, table.name)
        assert source, f"{table.name} has rows"
        copy = plain_rows(rig.lake / rig.database.name / table.name, rig.database.columns(table.name))
        if copy != source:
            found[table.name] = (list((copy - source).items())[:3], list((source - copy).items())[:3])
    return found


@contextmanager
def capturing(rig: Rig) -> Iterator[subprocess.Popen[str]]:
    """A worker that writes nothing to the target, ended when all that was committed is in the journal.

    A merge costs seconds of Spark. What the journal holds already is applied in few of them.
    """
    rig.command("start", str(rig.file))
    rig.command("pause", rig.name, "--apply")
    worker = rig.start("serve")
    rig.wait_for_status(lambda status: is_captured(rig, status), worker, timeout_s=600)
    yield worker
    assert rig.store is not None
    sealed = Sealed(name=rig.name, store=rig.store)
    position = sealed.request("position")
    rig.wait_for_status(lambda _: sealed.is_done(position), worker, timeout_s=600)
    assert rig.stop(worker) == 0, rig.output()
    rig.command("resume", rig.name)


def is_captured(rig: Rig, status: ReplicatorStatus) -> bool:
    """Whether all snapshots are in the journal, and nothing is asked of the capture any more."""
    return (
        has_snapshots(status)
        and len(status.tables) == len(rig.tables)
        and rig.store is not None
        and not rig.store.requests.open(rig.name)
    )


def failed(status: ReplicatorStatus) -> set[str]:
    """The names of tables that have failed."""
    return {table.table for table in status.tables if table.state in {TableState.FAILED, TableState.DROPPED}}


def run_values(folder: Path, database: MysqlDatabase, tables: Sequence[OddTable], rounds: int, times: int) -> None:
    """Changes before, during and after the first snapshot; then the same with a snapshot of all in place."""
    rig = prepared(folder, database, tables)
    try:
        for number in range(times):
            load = RandomLoad(database=database, tables=tables, seed=10 + number)
            writer = threading.Thread(target=load.run, args=(2 * rounds,), name="load")
            writer.start()
            with capturing(rig) as worker:
                if number:
                    rig.command("snapshot", rig.name)
                    rig.wait_for_status(lambda status: is_captured(rig, status), worker, timeout_s=600)
                writer.join()
                assert load.done == 2 * rounds
                RandomLoad(database=database, tables=tables, seed=20 + number).run(rounds)
            rig.catch_up_at_its_pace()
            assert differences(rig, tables) == {}
    finally:
        rig.kill()


@pytest.mark.matrix
def test_some_odd_tables_are_the_same_in_delta(tmp_path: Path, mariadb: MysqlServer) -> None:
    with mariadb.database() as database:
        of = [table for of in (tables_of_values, tables_of_keys) for table in of(database) if table.name in SLICE]
        run_values(tmp_path, database, of, rounds=10, times=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("of", [tables_of_values, tables_of_keys])
def test_every_odd_table_is_the_same_in_delta(tmp_path: Path, mysql_database: MysqlDatabase, of: Of) -> None:
    run_values(tmp_path, mysql_database, list(of(mysql_database)), rounds=300, times=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_change_of_shape_arrives_or_fails_its_table(tmp_path: Path, mysql_database: MysqlDatabase) -> None:
    tables = list(tables_of_shapes(mysql_database))
    failing = {f"{mysql_database.name}.{table.name}" for table in tables if table.fails}
    rig = prepared(tmp_path, mysql_database, tables)
    try:
        with capturing(rig) as worker:
            for number, table in enumerate(tables):
                # Changes of the same tables stand in the log right before and right behind.
                RandomLoad(database=mysql_database, tables=tables, seed=100 + number).run(3)
                mysql_database.execute(*table.reshape)
            rig.wait_for_status(lambda status: failed(status) >= failing, worker, timeout_s=600)
        rig.catch_up_at_its_pace(check=1)
        status = rig.status()
        assert status is not None
        assert failed(status) == failing
        assert differences(rig, [table for table in tables if not table.fails]) == {}

        rig.command("snapshot", rig.name, *sorted(failing))
        with capturing(rig):
            after = RandomLoad(database=mysql_database, tables=tables, seed=2)
            after.run(2 * len(tables))
            after.fill(6)
        rig.catch_up_at_its_pace()
        assert differences(rig, tables) == {}
    finally:
        rig.kill()
