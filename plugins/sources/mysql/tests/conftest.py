"""Sources over the scratch databases of `replicator_testbed.fixtures`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from replicator.plugins import Secret
from replicator.plugins.source import SourceContext
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlServer


def config_of(server: MysqlServer, **settings: Any) -> MysqlConfig:
    """The settings that reach a scratch server as its administrator."""
    values = {"host": server.host, "port": server.port, "user": server.user, "password": Secret(server.password)}
    return MysqlConfig(**{**values, **settings})


@pytest.fixture
def source_of() -> Iterator[Callable[..., MysqlSource]]:
    """Makes sources of a server and closes them at the end; settings go over the server's own."""
    made: list[MysqlSource] = []

    def make(server: MysqlServer, **settings: Any) -> MysqlSource:
        source = MysqlSource(config_of(server, **settings), SourceContext(replicator="shop", uuid="u1", epoch=1))
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()
