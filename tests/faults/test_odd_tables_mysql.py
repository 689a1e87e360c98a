"""Every type, key and change of shape of MariaDB and MySQL, under random transactions, end to end into Delta."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from replicator.model.status import ReplicatorStatus, TableState
from replicator_testbed.delta import plain_rows
from replicator_testbed.java import short_lived_options
from replicator_testbed.mysql_servers import MysqlDatabase, MysqlServer
from replicator_testbed.mysql_tables import (
    OddTable,
    RandomLoad,
    make,
    source_rows,
    tables_of_keys,
    tables_of_shapes,
    tables_of_values,
)
from replicator_testbed.rig import Rig, is_streaming

Of = Callable[[MysqlDatabase], Iterator[OddTable]]
EXTRA = f"""
snapshot: {{chunk_rows: 7}}
retry: {{backoff_initial: 20ms, backoff_max: 500ms, give_up_after: 30m}}
spark:
  settings: {json.dumps({"spark.driver.memory": "1g", **short_lived_options()})}
"""
SLICE = {"v_moments", "bag_numbers", "k_texts_0", "by_prefix"}


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


def are_copied(rig: Rig, status: ReplicatorStatus, count: int) -> bool:
    """Whether the copies of so many tables are in the journal, and none is asked for any more."""
    return (
        is_streaming(status)
        and len(status.tables) == count
        and rig.store is not None
        and not rig.store.requests(rig.name)
    )


def failed(status: ReplicatorStatus) -> set[str]:
    """The names of tables that have failed."""
    return {table.table for table in status.tables if table.state in {TableState.FAILED, TableState.DROPPED}}


def run_values(folder: Path, database: MysqlDatabase, tables: Sequence[OddTable], rounds: int, times: int) -> None:
    """Changes before, during and after the first snapshot; then the same with a snapshot of all in place.

    A merge costs seconds of Spark. What is written in the end is in the journal at once, and is applied in few of them.
    """
    rig = prepared(folder, database, tables)
    try:
        for number in range(times):
            load = RandomLoad(database=database, tables=tables, seed=10 + number)
            writer = threading.Thread(target=load.run, args=(2 * rounds,), name="load")
            writer.start()
            worker = rig.start()
            if number:
                rig.command("snapshot", rig.name)
            rig.wait_for_status(lambda status: are_copied(rig, status, len(tables)), worker, timeout_s=600)
            writer.join()
            assert load.done == 2 * rounds
            RandomLoad(database=database, tables=tables, seed=20 + number).run(rounds)
            assert rig.stop(worker) == 0, rig.output()
            rig.catch_up_at_its_pace()
            assert differences(rig, tables) == {}
    finally:
        rig.kill()


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
        worker = rig.start()
        rig.wait_for_status(lambda status: are_copied(rig, status, len(tables)), worker, timeout_s=600)
        for number, table in enumerate(tables):
            # Changes of the same tables stand in the log right before and right behind.
            RandomLoad(database=mysql_database, tables=tables, seed=100 + number).run(3)
            mysql_database.execute(*table.reshape)
        rig.wait_for_status(lambda status: failed(status) >= failing, worker, timeout_s=600)
        assert rig.stop(worker) == 0, rig.output()
        rig.catch_up(check=1)
        assert failed(rig.status()) == failing
        assert differences(rig, [table for table in tables if not table.fails]) == {}
        take_again(rig, failing)
        after = RandomLoad(database=mysql_database, tables=tables, seed=2)
        after.run(2 * len(tables))
        after.fill(6)
        rig.catch_up_at_its_pace()
        assert differences(rig, tables) == {}
    finally:
        rig.kill()


def take_again(rig: Rig, names: Collection[str]) -> None:
    """Ask for new snapshots of tables that have failed, and have them taken."""
    worker = rig.start()
    rig.command("snapshot", rig.name, *sorted(names))
    rig.wait_for_status(lambda status: are_copied(rig, status, len(rig.tables)), worker, timeout_s=600)
    assert rig.stop(worker) == 0, rig.output()
