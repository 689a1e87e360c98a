"""A server in the middle gets no password where TLS is demanded."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import psycopg
import pytest

from replicator.config import Secret
from replicator.model.errors import ReplicatorError
from replicator.plugins.source import SourceContext
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.connecting.connection import verify_tls
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.network import rogue
from replicator_testbed.network.receiver import make_certificate
from replicator_testbed.postgresql.servers import PostgresServer

SECRET = "canary-of-the-source"


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize(("host", "mode"), [(rogue.HOST, None), (rogue.HOST, "require"), ("127.0.0.1", None)])
def test_a_rogue_server_gets_a_password_only_where_tls_is_not_demanded(
    tmp_path: Path, host: str, mode: Any, is_encrypted: bool
) -> None:
    context = None
    if is_encrypted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*make_certificate(tmp_path, "rogue"))
    with rogue.rogue(rogue.postgresql(context)) as server:
        config = PostgresqlConfig(
            host=host, port=server.port, user="rep", password=Secret(SECRET), database="d", tls=mode
        )
        source = PostgresqlSource(config, SourceContext(replicator="shop", uuid="u", epoch=1))
        with pytest.raises(ReplicatorError):
            source.identity()
        source.close()
    assert server.connections
    asked_for = host == "127.0.0.1" or (mode == "require" and is_encrypted)
    assert (SECRET.encode() in server.heard) is asked_for


def test_a_connection_that_a_driver_left_in_clear_is_not_used(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.dsn("postgres"), sslmode="disable") as connection:
        verify_tls(connection, {"sslmode": "prefer"})
        with pytest.raises(psycopg.OperationalError, match="not encrypted"):
            verify_tls(connection, {"sslmode": "verify-full"})
