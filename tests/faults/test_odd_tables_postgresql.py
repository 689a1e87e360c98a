"""Every type, key and kind of table of PostgreSQL, under random transactions, end to end into Delta."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from replicator.model.documents.status import ReplicatorStatus
from replicator.model.naming import path_part
from replicator_testbed.delta import plain_rows
from replicator_testbed.postgresql.rows import source_rows
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.postgresql.tables import OddTable, RandomLoad, make_tables
from replicator_testbed.rig import Rig, is_captured
from replicator_testbed.spark.java import short_lived_options

EXTRA = f"""
snapshot: {{chunk_rows: 7}}
retry: {{backoff_initial: 20ms, backoff_max: 500ms, give_up_after: 30m}}
spark:
  settings: {{spark.driver.memory: 1g, spark.driver.extraJavaOptions: {short_lived_options()["spark.driver.extraJavaOptions"]!r}}}
"""


@pytest.mark.parametrize(
    ("part", "parts", "rounds"),
    [
        pytest.param(22, 42, 30, marks=pytest.mark.matrix, id="slice"),
        *(pytest.param(n, 3, 300, id=str(n), marks=pytest.mark.soak) for n in range(3)),
    ],
)
def test_the_odd_tables_are_the_same_in_delta(
    tmp_path: Path, postgres: PostgresServer, part: int, parts: int, rounds: int
) -> None:
    with postgres.database() as database:
        tables: list[OddTable] = make_tables(database, rows=20, seed=part, only=parts)
        rig = Rig(folder=tmp_path, database=database, extra=EXTRA)
        rig.tables = [table.name for table in tables]  # of the comparison; the configuration selects all there are
        RandomLoad(database=database, tables=tables, seed=100 + part).run(rounds)
        during = RandomLoad(database=database, tables=tables, seed=200 + part)
        writer = threading.Thread(target=during.run, args=(2 * rounds,), name="load")
        writer.start()
        try:
            worker = rig.start()
            rig.wait_for_status(lambda status: have_snapshots(status, len(tables)), worker, timeout_s=600)
            writer.join()
            assert during.done == 2 * rounds
            RandomLoad(database=database, tables=tables, seed=300 + part).run(rounds)
            # A merge costs seconds of Spark. What was written so far is in the journal at once, and is applied in few of them.
            assert rig.stop(worker) == 0, rig.output()
            rig.catch_up_at_its_pace()
            found = {}
            for table in tables:
                names = [
                    name for name in database.columns(table.name) if not (table.name == "generated" and name == "g")
                ]
                copy = plain_rows(rig.lake / "public" / path_part(table.name), names)
                source = source_rows(database, table, has_times=False)
                if copy != source:
                    found[f"{table.name}: {table.statements[0]}"] = (
                        list((copy - source).items())[:3],
                        list((source - copy).items())[:3],
                    )
            assert found == {}
        finally:
            rig.kill()
            writer.join()


def have_snapshots(status: ReplicatorStatus, count: int) -> bool:
    """Whether the first snapshots of so many tables are in the journal."""
    return [is_captured(table) for table in status.tables].count(True) >= count
