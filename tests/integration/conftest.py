"""Captures of MariaDB and MySQL databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.plugins.source import SourceContext
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.journals.captured import Captured
from replicator_testbed.mysql.programs import has_mysql
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer

SourceOf = Callable[..., Callable[[SourceContext], MysqlSource]]


@pytest.fixture
def mysql_source_of() -> SourceOf:
    """Makes what makes the source of a server; further arguments are its settings."""

    def of(server: MysqlServer, **settings: Any) -> Callable[[SourceContext], MysqlSource]:
        where = {"host": server.host, "port": server.port, "user": server.user, "password": Secret(server.password)}
        return lambda context: MysqlSource(MysqlConfig(**{**where, **settings}), context)

    return of


@pytest.fixture
def make_mysql(tmp_path: Path, mysql_source_of: SourceOf) -> Iterator[Callable[..., Captured]]:
    """Makes the captures of tables of a database; further arguments are settings of the source."""
    made: list[Captured] = []

    def of(database: MysqlDatabase, *tables: str, **settings: Any) -> Captured:
        folder = tmp_path / f"capture{len(made)}"
        folder.mkdir()
        captured = Captured(
            folder=folder,
            name=database.name.replace("_", "-"),
            make_source=mysql_source_of(database.server, **settings),
            tables=[TableId(database.name, t) for t in tables],
        )
        made.append(captured)
        return captured

    yield of
    for captured in made:
        captured.close()


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def own_server(request: pytest.FixtureRequest) -> Iterator[MysqlServer]:
    """A server that the test may stop, kill and change."""
    if request.param == "mysql" and not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer(request.param) as server:
        yield server


@pytest.fixture(
    params=["mariadb", *(pytest.param(other, marks=pytest.mark.matrix) for other in ("mysql", "mysql_without_gtids"))]
)
def every_database(request: pytest.FixtureRequest) -> Iterator[MysqlDatabase]:
    """A fresh database on each kind of server: what tells reads from changes differs between them."""
    server: MysqlServer = request.getfixturevalue(request.param)
    with server.database() as database:
        yield database
