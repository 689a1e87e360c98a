"""A server in the middle that says it cannot encrypt gets no password where TLS is demanded."""

from __future__ import annotations

from typing import Any

import pyodbc
import pytest

from replicator.config import Secret
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Connector
from replicator_testbed.network import rogue
from replicator_testbed.sqlserver.drivers import Driver, library

SECRET = "canary-of-the-source"


@pytest.mark.parametrize("driver", Driver)
@pytest.mark.parametrize("mode", [None, "require", "disable"])
def test_a_rogue_server_gets_a_password_only_where_tls_is_not_demanded(driver: Driver, mode: Any) -> None:
    with rogue.rogue(rogue.tds()) as server:
        config = SqlServerConfig(
            host=rogue.HOST, port=server.port, user="rep", password=Secret(SECRET), database="d", tls=mode,
            driver=str(library(driver)), connect_timeout="2s",
        )  # fmt: skip
        connector = Connector(config)
        with pytest.raises(pyodbc.Error):
            connector.connect()
        connector.close()
    assert server.connections
    assert (rogue.tds_password(SECRET) in server.heard) is (mode == "disable")
