"""Sources over the scratch databases of `replicator_testbed.fixtures`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.postgresql.stream import Stream


@pytest.fixture
def source_of() -> Iterator[Callable[..., PostgresqlSource]]:
    """Makes sources of a server's database and closes them at the end; settings go over the server's own."""
    made: list[PostgresqlSource] = []

    def make(
        server: PostgresServer,
        database: str = "postgres",
        *,
        name: str = "shop",
        uuid: str = "u1",
        epoch: int = 1,
        **settings: Any,
    ) -> PostgresqlSource:
        values = {"host": server.host, "port": server.port, "user": server.user, "database": database, **settings}
        source = PostgresqlSource(PostgresqlConfig(**values), SourceContext(replicator=name, uuid=uuid, epoch=epoch))
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()


@pytest.fixture
def make_source(source_of: Callable[..., PostgresqlSource]) -> Callable[..., PostgresqlSource]:
    """As `source_of`, for a scratch database: slots live in the server, so each database's replicator is named after it."""

    def make(database: ScratchDatabase, **settings: Any) -> PostgresqlSource:
        return source_of(database.server, database.name, **{"name": database.name, **settings})

    return make


@pytest.fixture
def source(any_database: ScratchDatabase, make_source: Callable[..., PostgresqlSource]) -> PostgresqlSource:
    """A source of a fresh database, once on each server."""
    return make_source(any_database)


@pytest.fixture
def replicate() -> Iterator[Callable[..., Stream]]:
    """Makes streams and closes them at the end."""
    made: list[Stream] = []

    def make(database: ScratchDatabase, source: PostgresqlSource, *tables: TableId) -> Stream:
        made.append(Stream(database, source, *tables))
        return made[-1]

    yield make
    for stream in made:
        stream.close()
