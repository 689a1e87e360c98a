"""Captures of MariaDB and MySQL databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.plugins.source import SourceContext
from replicator.testing.captured import Captured
from replicator.testing.mysql_servers import MysqlDatabase, MysqlServer, has_mysql
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.source import MysqlSource


@pytest.fixture
def make_mysql(tmp_path: Path) -> Iterator[Callable[..., Captured]]:
    """Makes the captures of tables of a database; further arguments are settings of the source."""
    made: list[Captured] = []

    def of(database: MysqlDatabase, *tables: str, **settings: Any) -> Captured:
        server = database.server

        def source(context: SourceContext) -> MysqlSource:
            values = {
                "host": server.host,
                "port": server.port,
                "user": server.user,
                "password": Secret(server.password),
            }
            return MysqlSource(MysqlConfig(**{**values, **settings}), context)

        folder = tmp_path / f"capture{len(made)}"
        folder.mkdir()
        name = database.name.replace("_", "-")
        captured = Captured(
            folder=folder, name=name, make_source=source, tables=[TableId(database.name, t) for t in tables]
        )
        made.append(captured)
        return captured

    yield of
    for captured in made:
        captured.close()


@pytest.fixture(params=["mariadb", "mysql"])
def own_server(request: pytest.FixtureRequest) -> Iterator[MysqlServer]:
    """A server that the test may stop, kill and change."""
    if request.param == "mysql" and not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer(request.param) as server:
        yield server
