"""Random definitions and rows of real tables, into the target in memory: equal at each pause and at the end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replicator.config import DDLConfig
from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator.testing.defaults import target_context
from replicator.testing.memory import MemoryTarget, MemoryTargetConfig, MemoryWarehouse
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.captured import QUICK, Captured
from replicator_testbed.databases import Database
from replicator_testbed.schema_dialects import MysqlDialect, PostgresqlDialect
from replicator_testbed.schema_machine import SchemaMachine
from replicator_testbed.servers import ScratchDatabase

if TYPE_CHECKING:
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


def into_memory(database: Database, folder: Path, mysql_source_of: SourceOf, seed: int) -> None:
    """One run of the machine."""
    draw = random.Random(seed)
    policies = drawn_policies(draw)
    context = target_context(replicator="any")
    widens = MemoryTarget(MemoryTargetConfig(database=str(folder)), context).widens
    captured = Captured(
        folder=folder,
        name=database.name.replace("_", "-"),
        make_source=make_source(database, mysql_source_of),
        tables=[],
        settings=replace(QUICK, compare_every_s=0.2, check_every_s=0.5, ddl=lambda _: policies, widens=widens),
    )
    warehouse = MemoryWarehouse.open(str(folder))

    def target(uuid: str, epoch: int) -> MemoryTarget:
        context = target_context(replicator=captured.name, uuid=uuid, epoch=epoch)
        return MemoryTarget(MemoryTargetConfig(database=str(folder)), context)

    def found(table: TableId, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row[name] for name in columns) for row in warehouse.tables[table].live())

    dialect = PostgresqlDialect() if isinstance(database, ScratchDatabase) else MysqlDialect()
    with closing(captured):
        machine = SchemaMachine(
            database=database, dialect=dialect, captured=captured, draw=draw, make_target=target, found=found
        )
        machine.begin()
        machine.run(STEPS)


@pytest.mark.parametrize("seed", range(FEW))
def test_definitions_and_rows_arrive(origin: Database, tmp_path: Path, mysql_source_of: SourceOf, seed: int) -> None:
    into_memory(origin, tmp_path, mysql_source_of, seed)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(FEW, 500))
def test_definitions_and_rows_arrive_for_long(
    origin: Database, tmp_path: Path, mysql_source_of: SourceOf, seed: int
) -> None:
    into_memory(origin, tmp_path, mysql_source_of, seed)
