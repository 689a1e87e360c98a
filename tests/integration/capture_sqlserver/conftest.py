"""Databases of the model of a SQL Server whose tables are captured, and what is made to happen around the chunks of a snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from replicator.config import Secret
from replicator.model.schema import TableId
from replicator.plugins.source import Chunk, ChunkRequest, DeltaSource
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.snapshot import reader as snapshot
from replicator_source_sqlserver.snapshot.chunk_statements import ReadPlan, chunk_query
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.journals.captured import Captured
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.databases import SqlServerDatabase, SqlServers

Make = Callable[..., Captured]
Moment = Literal["before", "inside", "behind"]
Around = Callable[[DeltaSource[Any], Moment, Callable[[int, str], None]], None]


@pytest.fixture
def captured_database(postgres: PostgresServer) -> Iterator[SqlServerDatabase]:
    """With change data capture."""
    with SqlServers(postgres=postgres).database() as database:
        yield database


@pytest.fixture
def tracked_database(postgres: PostgresServer) -> Iterator[SqlServerDatabase]:
    """With change tracking."""
    with SqlServers(postgres=postgres, is_tracked=True).database() as database:
        yield database


@pytest.fixture(params=["captured_database", pytest.param("tracked_database", marks=pytest.mark.matrix)])
def each_database(request: pytest.FixtureRequest) -> SqlServerDatabase:
    """With change data capture; with change tracking in the matrix."""
    database: SqlServerDatabase = request.getfixturevalue(request.param)
    return database


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes the captures of tables of a database; further arguments are settings of the source.

    An attempt that reads a table in the very moment in which it is altered, dropped or captured no longer ends, and there is another one.

    A commit is taken for visible two seconds after it was captured, in place of a minute: on a busy machine it takes some of them.
    """
    for module in ("cdc.visibility", "cdc.capture"):
        monkeypatch.setattr(f"replicator_source_sqlserver.{module}.UNSETTLED_S", 2.0)
    made: list[Captured] = []

    def of(database: SqlServerDatabase, *tables: str, **settings: Any) -> Captured:
        folder = tmp_path / f"capture{len(made)}"
        folder.mkdir()
        block = {name: value for name, value in database.source.items() if name != "type"}
        config = SqlServerConfig(**{**block, "password": Secret(database.server.password), **settings})
        captured = Captured(
            folder=folder,
            name=f"shop{len(made)}",
            make_source=lambda context: SqlServerSource(config, context),
            tables=[TableId("dbo", table) for table in tables],
            ends_attempts=frozenset({"instance_changed", "table_changed_under_snapshot"}),
        )
        made.append(captured)
        return captured

    yield of
    for captured in made:
        captured.close()


@pytest.fixture
def around_reads(monkeypatch: pytest.MonkeyPatch) -> Around:
    """Has something done around each chunk: before it, between what it is said to see and its statement, or behind it.

    It is told the chunk's number, from 1, and its table.
    """

    def of(source: DeltaSource[Any], moment: Moment, act: Callable[[int, str], None]) -> None:
        read, count = source.read_chunk, [0]

        def acting(request: ChunkRequest) -> Chunk:
            count[0] += 1
            number, name = count[0], request.schema.table.name
            if moment == "before":
                act(number, name)
            chunk = read(request)
            if moment == "behind":
                act(number, name)
            return chunk

        def late(plan: ReadPlan, request: ChunkRequest) -> tuple[str, Any]:
            if moment == "inside":
                act(count[0], request.schema.table.name)
            return chunk_query(plan, request)

        source.read_chunk = acting  # type: ignore[method-assign]
        monkeypatch.setattr(snapshot, "chunk_query", late)

    return of


def assert_equal(captured: Captured, database: SqlServerDatabase, *names: str) -> None:
    """The journal replays to what the source holds now; of tables whose values the driver gives as the journal has them."""
    for name in names:
        found = captured.rows(TableId("dbo", name))
        wanted = Counter(tuple(row) for row in database.rows(name, database.columns(name)))
        assert found == wanted, (
            f"{name}: too many {list((found - wanted).items())[:5]}, lacking {list((wanted - found).items())[:5]}"
        )
