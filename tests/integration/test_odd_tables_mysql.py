"""Every type, key and change of shape of MariaDB and MySQL under random transactions: the journal replays to what the server says.

`plugins/sources/mysql/tests/test_matrix.py` compares log and snapshot, bit by bit; this one compares both with the server's own
text of each value, so that what they get wrong together is seen too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from replicator.model.events import ABSENT, BEFORE, IS_SNAPSHOT, OPERATION, ROW, SEQUENCE_NUM
from replicator.model.schema import TableId
from replicator.state.records import EventEntry, Stage
from replicator_testbed.journals.captured import Captured, Replay
from replicator_testbed.journals.sealed import SealedReader
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.mysql.tables import (
    OddTable,
    RandomLoad,
    make,
    source_rows,
    tables_of_keys,
    tables_of_shapes,
    tables_of_values,
)
from replicator_testbed.postgresql.rows import plain_array, plain_value

Make = Callable[..., Captured]
Of = Callable[[MysqlDatabase], Iterator[OddTable]]
_PLAIN = (SEQUENCE_NUM, OPERATION, IS_SNAPSHOT, ABSENT)


def replayed(captured: Captured, table: TableId) -> Counter[tuple[Any, ...]]:
    """The table after everything sealed, its values spelled as `source_rows` spells them."""
    replay = Replay()
    for item in SealedReader(captured.store, captured.name).changes(tables=[table]):
        if isinstance(item, EventEntry):
            replay.apply(item.sequence_num, None, item.event)
            continue
        schema, rows = item
        kinds = {name: {f.name: f.type for f in rows.schema.field(name).type} for name in (BEFORE, ROW)}
        structs = {name: plain_array(rows.column(name)).to_pylist() for name in (BEFORE, ROW)}
        plain = {name: rows.column(name).to_pylist() for name in _PLAIN}
        for index in range(rows.num_rows):
            change = {name: values[index] for name, values in plain.items()}
            for name, values in structs.items():
                held = values[index]
                change[name] = held and {key: plain_value(value, kinds[name][key]) for key, value in held.items()}
            replay.apply(change[SEQUENCE_NUM], schema, change)
    return replay.rows


def differences(captured: Captured, database: MysqlDatabase) -> dict[str, Any]:
    found = {}
    for table in captured.tables:
        copy, source = replayed(captured, table), source_rows(database, table.name)
        assert source, f"{table} has rows"
        if copy != source:
            found[table.name] = (list((copy - source).items())[:3], list((source - copy).items())[:3])
    return found


def prepared(database: MysqlDatabase, make_mysql: Make, tables: Sequence[OddTable]) -> Captured:
    make(database, tables)
    load = RandomLoad(database=database, tables=tables, seed=1)
    load.fill(20)
    load.run(4 * len(tables))
    captured = make_mysql(database, *(table.name for table in tables), unrepresentable="null")
    captured.settings = replace(captured.settings, chunk_rows=7, check_every_s=0.5, compare_every_s=0.5)
    return captured


def run_values(database: MysqlDatabase, make_mysql: Make, of: Of, rounds: int) -> None:
    """Changes before, during and after the snapshot; then a snapshot of all in place under load."""
    tables = list(of(database))
    captured = prepared(database, make_mysql, tables)
    for number in range(2):
        load = RandomLoad(database=database, tables=tables, seed=10 + number)
        writer = threading.Thread(target=load.run, args=(rounds,), name="load")
        with captured.running() as running:
            writer.start()
            if number == 0:
                captured.wait_for_streaming(running)
            else:
                captured.snapshot(running)
            writer.join()
            assert load.done == rounds
            RandomLoad(database=database, tables=tables, seed=20 + number).run(rounds)
            captured.catch_up(running)
        assert differences(captured, database) == {}


@pytest.mark.parametrize("of", [tables_of_values, pytest.param(tables_of_keys, marks=pytest.mark.matrix)])
def test_a_few_changes_of_every_type_are_captured_exactly(
    mysql_database: MysqlDatabase, make_mysql: Make, of: Of
) -> None:
    run_values(mysql_database, make_mysql, of, rounds=10)


@pytest.mark.matrix
@pytest.mark.parametrize("of", [tables_of_values, tables_of_keys])
def test_changes_of_every_type_are_captured_exactly(mysql_database: MysqlDatabase, make_mysql: Make, of: Of) -> None:
    run_values(mysql_database, make_mysql, of, rounds=1000)


@pytest.mark.matrix
def test_every_change_of_shape_is_captured_exactly(mysql_database: MysqlDatabase, make_mysql: Make) -> None:
    tables = list(tables_of_shapes(mysql_database))
    captured = prepared(mysql_database, make_mysql, tables)
    failed = {TableId(mysql_database.name, table.name) for table in tables if table.fails}
    with captured.running() as running:
        captured.wait_for_streaming(running)
        for number, table in enumerate(tables):
            # Changes of the same tables stand in the log right before and right behind.
            RandomLoad(database=mysql_database, tables=tables, seed=100 + number).run(3)
            mysql_database.execute(*table.reshape)

        def stages() -> dict[TableId, Stage | None]:
            return {table: captured.stage(table) for table in captured.tables}

        running.wait_until(
            lambda: {t for t, stage in stages().items() if stage is Stage.FAILED} == failed,
            lambda: f"the tables fail that should: {stages()}",
        )
        captured.snapshot(running, *failed)
        after = RandomLoad(database=mysql_database, tables=tables, seed=2)
        after.run(2 * len(tables))
        after.fill(6)
        captured.catch_up(running)
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert differences(captured, mysql_database) == {}
