"""A shop, a writer and a replicator for each test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replicator_testbed.bigquery.emulator import WITHOUT_RESTS, BigQueryEmulator
from replicator_testbed.databases import Database, is_tracked
from replicator_testbed.demo.shop import ShopWriter, Size
from replicator_testbed.demo.sources import Shop, shop_of
from replicator_testbed.rig import Rig
from replicator_testbed.spark.java import short_lived_options
from replicator_testbed.spark.session import spark, spark_host  # noqa: F401 (fixtures)
from replicator_testbed.target_tables import BigQueryTables, DeltaLakeTables, DuckDBTables, TargetTables

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

SIZE = Size(customers=3_000, products=200, orders=6_000)
SMALL = Size(customers=2_000, products=200, orders=2_000)
"""Of walks into DuckDB, which are in `make test`: their writers rest five times as long, too."""
# One table whose keys change and one without a key: each further one costs every start of a worker seconds.
FOLLOWED = ("customers", "page_views")
# Change tracking knows no table without a key: one whose rows come and go.
KEYED = ("customers", "order_items")
Opening = Callable[[Path, Database], tuple[Shop, Rig]]
Reading = Callable[[Rig], TargetTables]
QUICK = f"""
snapshot: {{chunk_rows: 1000}}
retry: {{backoff_initial: 20ms, backoff_max: 500ms, give_up_after: 30m}}
spark:
  settings: {json.dumps({"spark.driver.memory": "1g", **short_lived_options()})}
"""


@pytest.fixture
def kind() -> str:
    """What is copied from; a test that is parametrised by it runs on others."""
    return "postgresql"


@pytest.fixture
def origin(kind: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A fresh database of that kind."""
    server = request.getfixturevalue("postgres" if kind == "postgresql" else kind)
    with server.database() as database:
        yield database


@pytest.fixture(scope="session")
def emulator() -> Iterator[BigQueryEmulator]:
    """BigQuery's emulator, running."""
    with BigQueryEmulator() as emulator:
        yield emulator


@pytest.fixture(scope="session")
def client(emulator: BigQueryEmulator) -> Iterator[Client]:
    """Google's own client of it."""
    client = emulator.client()
    yield client
    client.close()


@pytest.fixture
def target() -> str:
    """What is copied to: duckdb, bigquery, delta, or spark, which is Delta with `engine: spark`.

    Most walks are not about the target. DuckDB costs them neither a JVM nor an emulator.
    """
    return "delta"


@pytest.fixture
def opening(target: str, request: pytest.FixtureRequest) -> Opening:
    """Fills a shop with its first rows, and makes a replicator of it, stored nowhere yet."""

    def open_shop(folder: Path, origin: Database) -> tuple[Shop, Rig]:
        is_quick = target == "duckdb"
        shop = shop_of(origin, SMALL if is_quick else SIZE, pause_s=0.05 if is_quick else 0.01)
        shop.fill()
        tables = KEYED if is_tracked(origin) else FOLLOWED
        rig = Rig(folder=folder, database=origin, tables=tables, extra=QUICK)
        if target == "bigquery":
            emulator: BigQueryEmulator = request.getfixturevalue("emulator")
            rig.target = emulator.block(dataset=f"{origin.name}_{{namespace}}", own_dataset=f"_{origin.name}")
            rig.extra += WITHOUT_RESTS
            rig.write_yaml()
        else:
            rig.write_to(target)
        return shop, rig

    return open_shop


@pytest.fixture
def reading(target: str, request: pytest.FixtureRequest) -> Reading:
    """Reads the target tables that a replicator makes."""
    if target in {"delta", "spark"}:
        return lambda rig: DeltaLakeTables(rig.lake)
    if target == "duckdb":
        return lambda rig: DuckDBTables(rig.duckdb)
    client = request.getfixturevalue("client")
    return lambda rig: BigQueryTables(client, prefix=f"{rig.database.name}_")


@pytest.fixture
def target_tables(rig: Rig, reading: Reading) -> TargetTables:
    """What the replicator's target holds."""
    return reading(rig)


@pytest.fixture
def opened(tmp_path: Path, origin: Database, opening: Opening) -> Iterator[tuple[Shop, Rig]]:
    """A shop and its replicator."""
    shop, rig = opening(tmp_path, origin)
    yield shop, rig
    rig.kill()


@pytest.fixture
def shop(opened: tuple[Shop, Rig]) -> Shop:
    """A shop with its first rows."""
    return opened[0]


@pytest.fixture
def rig(opened: tuple[Shop, Rig]) -> Rig:
    """A replicator of the shop, stored nowhere yet."""
    return opened[1]


@pytest.fixture
def writer(shop: Shop) -> Iterator[ShopWriter]:
    """Changes the shop from the start of the test until it is stopped."""
    busy = shop.writer()
    busy.start()
    yield busy
    busy.stop()
