"""Every type, key and kind of table of PostgreSQL under random transactions: the journal replays to what the source holds."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replicator.model.events import ABSENT, BEFORE, IS_SNAPSHOT, OPERATION, ROW, SEQUENCE_NUM
from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator.state.records import EventEntry, Stage
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.journals.captured import Captured, Replay
from replicator_testbed.journals.sealed import SealedReader
from replicator_testbed.postgresql.rows import plain_array, plain_value, source_rows
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.postgresql.tables import OddTable, RandomLoad, make_tables


def replayed(captured: Captured, table: TableId) -> Counter[tuple[Any, ...]]:
    """The table after everything sealed, its values spelled as `source_rows` spells them."""
    replay, last = Replay(), -1
    for item in SealedReader(captured.store, captured.name).changes(tables=[table]):
        if isinstance(item, EventEntry):
            assert item.sequence_num > last
            last = item.sequence_num
            replay.apply(last, None, item.event)
            continue
        schema, rows = item
        kinds = {name: {f.name: f.type for f in rows.schema.field(name).type} for name in (BEFORE, ROW)}
        structs = {name: plain_array(rows.column(name)).to_pylist() for name in (BEFORE, ROW)}
        plain = {name: rows.column(name).to_pylist() for name in (SEQUENCE_NUM, OPERATION, IS_SNAPSHOT, ABSENT)}
        for index in range(rows.num_rows):
            change = {name: values[index] for name, values in plain.items()}
            for name, values in structs.items():
                held = values[index]
                change[name] = held and {key: plain_value(value, kinds[name][key]) for key, value in held.items()}
            assert change[SEQUENCE_NUM] > last
            last = change[SEQUENCE_NUM]
            replay.apply(last, schema, change)
    return replay.rows


def is_settled(captured: Captured, table: TableId) -> bool:
    """Whether a table is copied, and nothing in the catalogue waits to be explained."""
    record = captured.record(table)
    return record.stage is Stage.STREAMING and record.identity is not None and isinstance(record.identity.storage, str)


def differences(captured: Captured, database: ScratchDatabase, tables: list[OddTable]) -> dict[str, Any]:
    found = {}
    for table in tables:
        copy, source = replayed(captured, table.table), source_rows(database, table)
        if copy != source:
            found[f"{table.name}: {table.statements[0]}"] = (
                list((copy - source).items())[:3],
                list((source - copy).items())[:3],
            )
    return found


def run(folder: Path, server: PostgresServer, *, only: int | None, rounds: int, seed: int) -> int:
    """Changes before, during and after the snapshot, with chunks of seven rows; then a snapshot of all in place under load."""
    with server.database() as database:
        tables = make_tables(database, rows=25, seed=seed, only=only)
        RandomLoad(database=database, tables=tables, seed=seed).run(rounds)

        def source(context: SourceContext) -> PostgresqlSource:
            config = PostgresqlConfig(host=server.host, port=server.port, user=server.user, database=database.name)
            return PostgresqlSource(config, context)

        captured = Captured(
            folder=folder, name=database.name, make_source=source, tables=[table.table for table in tables]
        )
        captured.settings = replace(captured.settings, chunk_rows=7)
        try:
            for number in (2, 3):
                load = RandomLoad(database=database, tables=tables, seed=seed + 10 * number)
                writer = threading.Thread(target=load.run, args=(rounds,), name="load")
                with captured.running() as running:
                    writer.start()
                    if number == 2:
                        captured.wait_for_streaming(running)
                    else:
                        captured.snapshot(running)
                    writer.join()
                    assert load.done == rounds
                    RandomLoad(database=database, tables=tables, seed=seed + 10 * number + 1).run(rounds)
                    captured.catch_up(running)
                    running.wait_until(
                        lambda: all(is_settled(captured, table.table) for table in tables),
                        lambda: f"all are followed, and the storage of all is known: {running.control.status}",
                    )
                    captured.catch_up(running)
                assert differences(captured, database, tables) == {}
        finally:
            captured.close()
        return len(tables)


def test_a_slice_of_the_odd_tables_is_captured_exactly(tmp_path: Path, postgres: PostgresServer) -> None:
    assert run(tmp_path, postgres, only=8, rounds=60, seed=1) >= 15


@pytest.mark.matrix
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_odd_tables_are_captured_exactly(tmp_path: Path, any_postgres: PostgresServer, seed: int) -> None:
    assert run(tmp_path, any_postgres, only=None, rounds=600, seed=seed) >= 138
