"""A shop, a writer and a replicator for each test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicator.demo import shop
from replicator.testing.java import short_lived_options
from replicator.testing.rig import Rig
from replicator.testing.servers import ScratchDatabase
from replicator.testing.spark import spark, spark_host  # noqa: F401 (fixtures)

SIZE = shop.Size(customers=3_000, products=200, orders=6_000)
# One table whose keys change and one without a key: each further one costs every start of a worker seconds.
FOLLOWED = ("customers", "page_views")
QUICK = f"""
snapshot: {{chunk_rows: 1000}}
retry: {{backoff_initial: 20ms, backoff_max: 500ms, give_up_after: 30m}}
spark:
  settings: {json.dumps({"spark.driver.memory": "1g", **short_lived_options()})}
"""


@pytest.fixture
def rig(tmp_path: Path, database: ScratchDatabase) -> Iterator[Rig]:
    """A replicator of the shop, stored nowhere yet."""
    shop.fill(database.dsn, SIZE)
    rig = Rig(folder=tmp_path, database=database, tables=FOLLOWED, extra=QUICK)
    yield rig
    rig.kill()


@pytest.fixture
def writer(database: ScratchDatabase, rig: Rig) -> Iterator[shop.Writer]:
    """Changes the shop from the start of the test until it is stopped."""
    assert rig.database is database
    busy = shop.Writer(database.dsn, SIZE)
    busy.start()
    yield busy
    busy.stop()
