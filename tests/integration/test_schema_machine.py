"""Random definitions and rows of real tables, into each target: equal at each pause and at the end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from google.api_core.exceptions import NotFound

from replicator.config import DDLConfig
from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator.plugins.target import DeltaTarget
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.names import Names
from replicator_target_bigquery.target import BigQueryTarget
from replicator_target_delta.config import DeltaLakeConfig
from replicator_target_delta.target import DeltaLakeTarget
from replicator_target_duckdb.config import DuckDBConfig
from replicator_target_duckdb.target import DuckDBTarget
from replicator_testbed.bigquery.emulator import BUCKET, LOCATION, PROJECT, BigQueryEmulator, target_rows
from replicator_testbed.databases import Database
from replicator_testbed.journals.captured import QUICK, Captured
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.spark.session import spark, spark_host  # noqa: F401 - fixtures
from replicator_testbed.target_tables import DuckDBTables
from replicator_testbed.workloads.schema_dialects import MysqlDialect, PostgresqlDialect
from replicator_testbed.workloads.schema_machine import SchemaMachine
from replicator_testing.defaults import target_context
from replicator_testing.memory import MemoryTarget, MemoryTargetConfig, MemoryWarehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.integration.conftest import SourceOf

FEW, STEPS = 2, 40
SOURCES = ("postgres", "mariadb", "mysql")


@pytest.fixture(params=SOURCES)
def origin(request: pytest.FixtureRequest) -> Iterator[Database]:
    with request.getfixturevalue(request.param).database() as database:
        yield database


def make_source(database: Database, mysql_source_of: SourceOf) -> Any:
    if not isinstance(database, ScratchDatabase):
        return mysql_source_of(database.server)
    server = database.server

    def source(context: SourceContext) -> PostgresqlSource:
        config = PostgresqlConfig(host=server.host, port=server.port, user=server.user, database=database.name)
        return PostgresqlSource(config, context)

    return source


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A target.

    Attributes:
        make: A target object for a replicator's name and uuid, and an epoch, as every new process makes it.
        found: The rows of a table; KeyError if it has not all of the columns.
        plain: A value as the target has it.
    """

    make: Callable[[str, str, int], DeltaTarget[Any]]
    found: Callable[[TableId, Sequence[str]], Counter[tuple[Any, ...]]]
    plain: Callable[[Any], Any] = lambda value: value


def drawn_policies(draw: random.Random) -> DDLConfig:
    """Follow everything, or each kind of change by a policy of its own."""
    if draw.random() < 0.5:
        return DDLConfig(change_type="apply", change_key="apply", drop_column=draw.choice(["keep", "apply"]))
    kinds = ("add_column", "rename_column", "widen_type", "change_type")
    return DDLConfig(
        **{kind: draw.choice(["apply", "ignore", "stop"]) for kind in kinds},
        drop_column=draw.choice(["keep", "apply", "stop"]),
        change_key=draw.choice(["apply", "stop"]),
        change_nullability=draw.choice(["apply", "ignore", "stop"]),
        truncate_table=draw.choice(["apply", "stop"]),
    )


def run(database: Database, side: Side, folder: Path, mysql_source_of: SourceOf, *, seed: int, steps: int) -> None:
    """One run of the machine."""
    draw = random.Random(seed)
    with machine_of(database, side, folder, mysql_source_of, draw) as machine:
        machine.run(steps)


@contextmanager
def machine_of(
    database: Database, side: Side, folder: Path, mysql_source_of: SourceOf, draw: random.Random
) -> Iterator[SchemaMachine]:
    """A machine with its first tables."""
    policies = drawn_policies(draw)
    name = database.name.replace("_", "-")
    with closing(side.make(name, "", 0)) as target:
        widens = target.widens
    captured = Captured(
        folder=folder,
        name=name,
        make_source=make_source(database, mysql_source_of),
        tables=[],
        settings=replace(QUICK, compare_every_s=0.2, check_every_s=0.5, ddl=lambda _: policies, widens=widens),
    )
    dialect = PostgresqlDialect() if isinstance(database, ScratchDatabase) else MysqlDialect()
    with closing(captured):
        machine = SchemaMachine(
            database=database,
            dialect=dialect,
            captured=captured,
            draw=draw,
            make_target=partial(side.make, name),
            found=side.found,
            plain=side.plain,
        )
        machine.begin()
        yield machine


@pytest.fixture
def memory(tmp_path: Path) -> Side:
    warehouse = MemoryWarehouse.open(str(tmp_path))

    def make(name: str, uuid: str, epoch: int) -> MemoryTarget:
        context = target_context(replicator=name, uuid=uuid, epoch=epoch)
        return MemoryTarget(MemoryTargetConfig(database=str(tmp_path)), context)

    def found(table: TableId, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row[name] for name in columns) for row in warehouse.tables[table].live())

    return Side(make=make, found=found)


@pytest.fixture
def file(tmp_path: Path) -> Side:
    path = tmp_path / "target.duckdb"

    def make(name: str, uuid: str, epoch: int) -> DuckDBTarget:
        return DuckDBTarget(DuckDBConfig(path=str(path)), target_context(replicator=name, uuid=uuid, epoch=epoch))

    def found(table: TableId, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
        try:
            return Counter(DuckDBTables(path).rows(table.namespace, table.name, columns))
        except duckdb.Error as error:
            raise KeyError(str(error)) from error

    return Side(make=make, found=found)


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Side:  # noqa: F811 - the fixture
    path = tmp_path / "lake"

    def make(name: str, uuid: str, epoch: int) -> DeltaLakeTarget:
        context = target_context(replicator=name, uuid=uuid, epoch=epoch, spark=lambda: spark)
        return DeltaLakeTarget(DeltaLakeConfig(path=str(path)), context)

    def found(table: TableId, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
        # delta-rs does not read tables whose columns were widened.
        rows = spark.read.format("delta").load(str(path / table.namespace / table.name))
        _check_columns(columns, rows.columns)
        return Counter(tuple(row) for row in rows.select([f"`{name}`" for name in columns]).collect())

    return Side(make=make, found=found)


@pytest.fixture
def warehouse(origin: Database) -> Iterator[Side]:
    with BigQueryEmulator() as emulator, closing(emulator.client()) as client:
        prefix = origin.name
        config = BigQueryConfig.model_validate(
            {
                "project": PROJECT,
                "location": LOCATION,
                "dataset": f"{prefix}_{{namespace}}",
                "own_dataset": f"_{prefix}",
                "endpoint": emulator.endpoint,
                "staging": {"bucket": BUCKET, "prefix": prefix, "folder": emulator.storage},
            }
        )
        names = Names(config)

        def make(name: str, uuid: str, epoch: int) -> BigQueryTarget:
            return BigQueryTarget(config, target_context(replicator=name, uuid=uuid, epoch=epoch))

        def found(table: TableId, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
            in_target = [names.column(column) for column in columns]
            path = names.path(table)
            try:
                # The emulator does not always tell the columns of a replaced table otherwise.
                shown = client.query(f"SELECT * FROM `{path}` LIMIT 0").result().schema
                _check_columns(in_target, [field.name for field in shown])
                rows = target_rows(client, path, in_target)
            except NotFound as error:
                # A table that is replaced by one of another layout is missing for a moment (docs/schema-changes.md, "Targets").
                raise KeyError(path) from error
            return Counter(tuple(map(_in_digits, row)) for row in rows)

        yield Side(make=make, found=found, plain=_in_digits)


def _check_columns(wanted: Sequence[str], found: Sequence[str]) -> None:
    """Raise KeyError as the target in memory does, where a change has not arrived yet."""
    if missing := [name for name in wanted if name not in found]:
        raise KeyError(*missing)


def _in_digits(value: Any) -> Any:
    """The emulator gives decimals with other zeros behind the point."""
    return value.normalize() if isinstance(value, Decimal) else value


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("seed", "steps"), [(0, STEPS // 2), *(pytest.param(seed, STEPS, marks=pytest.mark.matrix) for seed in range(FEW))]
)
def test_definitions_and_rows_arrive(
    origin: Database, memory: Side, tmp_path: Path, mysql_source_of: SourceOf, seed: int, steps: int
) -> None:
    run(origin, memory, tmp_path, mysql_source_of, seed=seed, steps=steps)


@pytest.mark.parametrize(
    ("seed", "rounds"), [(0, 1), *(pytest.param(seed, 3, marks=pytest.mark.matrix) for seed in range(1, 9))]
)
def test_every_change_arrives_that_is_made_while_nothing_runs(
    origin: Database, file: Side, tmp_path: Path, mysql_source_of: SourceOf, seed: int, rounds: int
) -> None:
    with machine_of(origin, file, tmp_path, mysql_source_of, random.Random(seed)) as machine:
        machine.run_stopped(rounds)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(FEW, 500))
def test_definitions_and_rows_arrive_for_long(
    origin: Database, memory: Side, tmp_path: Path, mysql_source_of: SourceOf, seed: int
) -> None:
    run(origin, memory, tmp_path, mysql_source_of, seed=seed, steps=STEPS)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1000, 1030))
def test_definitions_and_rows_arrive_in_delta(
    origin: Database, lake: Side, tmp_path: Path, mysql_source_of: SourceOf, seed: int
) -> None:
    run(origin, lake, tmp_path, mysql_source_of, seed=seed, steps=STEPS)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2000, 2003))
def test_definitions_and_rows_arrive_in_bigquery(
    origin: Database, warehouse: Side, tmp_path: Path, mysql_source_of: SourceOf, seed: int
) -> None:
    run(origin, warehouse, tmp_path, mysql_source_of, seed=seed, steps=STEPS)
