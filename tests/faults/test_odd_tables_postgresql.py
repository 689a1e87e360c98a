"""Every type, key and kind of table of PostgreSQL, under random transactions, end to end into Delta."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replicator_testbed.delta import read_delta
from replicator_testbed.java import short_lived_options
from replicator_testbed.postgresql_tables import (
    OddTable,
    RandomLoad,
    make_tables,
    plain_array,
    plain_value,
    source_rows,
)
from replicator_testbed.rig import Rig
from replicator_testbed.servers import PostgresServer

PARTS = 3
EXTRA = f"""
snapshot: {{chunk_rows: 7}}
retry: {{backoff_initial: 20ms, backoff_max: 500ms, give_up_after: 30m}}
spark:
  settings: {{spark.driver.memory: 1g, spark.driver.extraJavaOptions: {short_lived_options()["spark.driver.extraJavaOptions"]!r}}}
"""


def copied(rig: Rig, folder: Path, number: int, names: list[str]) -> Counter[tuple[Any, ...]]:
    """A table's copy as delta-rs reads it. It finds no folder with a percent sign in its name, so a link leads there."""
    link = folder / f"table{number}"
    if not link.exists():
        link.symlink_to(rig.lake / "public" / quoted(rig, number))
    rows = read_delta(link, names)
    columns = []
    for column in rows.columns:
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        if pa.types.is_string_view(array.type):
            array = array.cast(pa.string())
        columns.append([plain_value(value, array.type) for value in plain_array(array).to_pylist()])
    return Counter(zip(*columns, strict=True))


def quoted(rig: Rig, number: int) -> str:
    """The folder of a table: what its name may not hold is percent-encoded."""
    name = rig.tables[number]
    kept = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
    return "".join(chr(byte) if byte in kept else f"%{byte:02X}" for byte in name.encode())


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_the_odd_tables_are_the_same_in_delta(tmp_path: Path, postgres: PostgresServer, part: int) -> None:
    with postgres.database() as database:
        tables: list[OddTable] = make_tables(database, rows=20, seed=part, only=PARTS)
        rig = Rig(folder=tmp_path, database=database, extra=EXTRA)
        rig.tables = [table.name for table in tables]  # of the comparison; the configuration selects all there are
        RandomLoad(database=database, tables=tables, seed=100 + part).run(300)
        during = RandomLoad(database=database, tables=tables, seed=200 + part)
        writer = threading.Thread(target=during.run, args=(600,), name="load")
        writer.start()
        try:
            rig.catch_up_at_its_pace()
            writer.join()
            assert during.done == 600
            RandomLoad(database=database, tables=tables, seed=300 + part).run(300)
            rig.catch_up_at_its_pace()
            found = {}
            for number, table in enumerate(tables):
                names = [
                    name for name in database.columns(table.name) if not (table.name == "generated" and name == "g")
                ]
                copy, source = copied(rig, tmp_path, number, names), source_rows(database, table, has_times=False)
                if copy != source:
                    found[f"{table.name}: {table.statements[0]}"] = (
                        list((copy - source).items())[:3],
                        list((source - copy).items())[:3],
                    )
            assert found == {}
        finally:
            rig.kill()
            writer.join()
