"""A model of a SQL Server for each file, and connections to it as the source would open them. No real SQL Server is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyodbc
import pytest

from replicator.config import Secret
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.driver import settings_of, write_freetds_conf
from replicator_testbed.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import LOGIN_SECONDS, Driver, library
from replicator_testbed.sqlserver.model import SqlServerModel

Open = Callable[..., pyodbc.Connection]
"""Takes a model, a driver, and settings of the source that differ from the usual ones."""


@pytest.fixture(scope="module")
def model(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    with SqlServerModel(postgres) as model:
        yield model


@pytest.fixture
def open_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    opened: list[pyodbc.Connection] = []

    def connect(
        model: SqlServerModel, driver: Driver, /, *, within_s: int = LOGIN_SECONDS, **changed: Any
    ) -> pyodbc.Connection:
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
        settings = settings_of(SqlServerConfig(**{**usual, **changed}))
        if settings.freetds_conf is not None:
            monkeypatch.setenv("FREETDSCONF", str(write_freetds_conf(settings.freetds_conf, tmp_path)))
        monkeypatch.setattr(pyodbc, "pooling", False)
        opened.append(pyodbc.connect(settings.connection_string, autocommit=True, timeout=within_s))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture(params=Driver)
def connection(model: SqlServerModel, open_: Open, request: pytest.FixtureRequest) -> pyodbc.Connection:
    """Through each of the two drivers."""
    return open_(model, request.param)
