"""A shop, a writer and a replicator for each test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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
MakeRig = Callable[[Path, ScratchDatabase], Rig]
MakeWriter = Callable[[ScratchDatabase], shop.Writer]
QUICK = f"""
snapshot: {{chunk_rows: 1000}}
retry: {{backoff_initial: 20ms, backoff_max: 500ms, give_up_after: 30m}}
spark:
  settings: {json.dumps({"spark.driver.memory": "1g", **short_lived_options()})}
"""


@pytest.fixture(scope="session")
def filled() -> MakeRig:
    """Fills the shop of a database and makes a replicator of it, stored nowhere yet."""

    def fill(folder: Path, database: ScratchDatabase) -> Rig:
        shop.fill(database.dsn, SIZE)
        return Rig(folder=folder, database=database, tables=FOLLOWED, extra=QUICK)

    return fill


@pytest.fixture(scope="session")
def busy() -> MakeWriter:
    """Starts a writer on a shop."""

    def start(database: ScratchDatabase) -> shop.Writer:
        writer = shop.Writer(database.dsn, SIZE)
        writer.start()
        return writer

    return start


@pytest.fixture
def rig(tmp_path: Path, database: ScratchDatabase, filled: MakeRig) -> Iterator[Rig]:
    """A replicator of the shop, stored nowhere yet."""
    rig = filled(tmp_path, database)
    yield rig
    rig.kill()


@pytest.fixture
def writer(rig: Rig, busy: MakeWriter) -> Iterator[shop.Writer]:
    """Changes the shop from the start of the test until it is stopped."""
    writer = busy(rig.database)
    yield writer
    writer.stop()
