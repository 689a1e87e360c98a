"""A model of a SQL Server for each file, and connections to it as the source would open them. No real SQL Server is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyodbc
import pytest

from replicator.config import Secret
from replicator.plugins.source import SourceContext
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Connector, Session
from replicator_source_sqlserver.connecting.driver import settings_of, write_freetds_conf
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.databases import MARKS, SqlServerDatabase, SqlServers
from replicator_testbed.sqlserver.drivers import LOGIN_SECONDS, Driver, library
from replicator_testbed.sqlserver.foreign import server_under_test
from replicator_testbed.sqlserver.model import SqlServerModel

Open = Callable[..., pyodbc.Connection]
"""Takes a model, a driver, and settings of the source that differ from the usual ones."""


def config_of(model: SqlServerModel, driver: Driver, /, **changed: Any) -> SqlServerConfig:
    """The settings of a source that reads from a model."""
    address = model.address
    usual: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "password": Secret(address.password),
        "database": address.database,
        "driver": str(library(driver)),
        "tls": "disable",
    }
    return SqlServerConfig(**{**usual, **changed})


@pytest.fixture(scope="module")
def model(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    with server_under_test(postgres) as model:
        yield model


@pytest.fixture
def open_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    opened: list[pyodbc.Connection] = []

    def connect(
        model: SqlServerModel, driver: Driver, /, *, within_s: int = LOGIN_SECONDS, **changed: Any
    ) -> pyodbc.Connection:
        settings = settings_of(config_of(model, driver, **changed))
        if settings.freetds_conf is not None:
            monkeypatch.setenv("FREETDSCONF", str(write_freetds_conf(settings.freetds_conf, tmp_path)))
        monkeypatch.setattr(pyodbc, "pooling", False)
        opened.append(pyodbc.connect(settings.connection_string, autocommit=True, timeout=within_s))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


OpenSession = Callable[..., Session]
"""Takes a model, a driver, and settings of the source that differ from the usual ones."""


@pytest.fixture
def open_session() -> Iterator[OpenSession]:
    """Sessions as the source has them."""
    opened: list[tuple[Session, Connector]] = []

    def describe(model: SqlServerModel, driver: Driver, /, **changed: Any) -> Session:
        connector = Connector(config_of(model, driver, **changed))
        opened.append((Session(connector), connector))
        return opened[-1][0]

    yield describe
    for session, connector in opened:
        session.close()
        connector.close()


@pytest.fixture(params=[Driver.FREETDS, pytest.param(Driver.MICROSOFT, marks=pytest.mark.matrix)])
def connection(model: SqlServerModel, open_: Open, request: pytest.FixtureRequest) -> pyodbc.Connection:
    """Through each of the two drivers."""
    return open_(model, request.param)


@pytest.fixture(scope="module")
def of_the_module(postgres: PostgresServer) -> Iterator[SqlServerDatabase]:
    """A database whose capture job runs."""
    with SqlServers(postgres=postgres).database() as database:
        yield database


@pytest.fixture
def database(of_the_module: SqlServerDatabase) -> Iterator[SqlServerDatabase]:
    """The same, without tables of other tests."""
    yield of_the_module
    mark_table = MARKS.partition(".")[2]
    names = [row[0] for row in of_the_module.execute("SELECT name FROM sys.tables WHERE schema_id = SCHEMA_ID(N'dbo')")]
    of_the_module.execute(*(f"DROP TABLE dbo.{name}" for name in names if name != mark_table))


@pytest.fixture
def source(database: SqlServerDatabase) -> Iterator[SqlServerSource]:
    """A source of the database."""
    block = {name: value for name, value in database.source.items() if name != "type"}
    config = SqlServerConfig(**block, password=Secret(database.server.password))
    source = SqlServerSource(config, SourceContext(replicator="shop", uuid="u1", epoch=1))
    yield source
    source.close()
