"""A server in the middle: it gets no password where TLS is demanded, and no more memory than any server needs."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from replicator.config import Secret
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.connecting import wire
from replicator_source_mysql.connecting.connection import connect
from replicator_source_mysql.connecting.wire import LostError, PacketReader
from replicator_testbed.mysql.servers import MysqlServer
from replicator_testbed.network import rogue
from replicator_testbed.network.receiver import make_certificate

SECRET = "canary-of-the-source"


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize(
    ("host", "mode"), [(rogue.HOST, None), (rogue.HOST, "verify-full"), (rogue.HOST, "require"), ("127.0.0.1", None)]
)
def test_a_rogue_server_gets_a_password_only_where_tls_is_not_demanded(
    tmp_path: Path, host: str, mode: Any, is_encrypted: bool
) -> None:
    context = None
    if is_encrypted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*make_certificate(tmp_path, "rogue"))
    with rogue.rogue(rogue.mysql(context)) as server:
        config = MysqlConfig(host=host, port=server.port, user="rep", password=Secret(SECRET), tls=mode)
        with pytest.raises((pymysql.MySQLError, OSError)):
            connect(config, read_timeout_s=20)
    assert server.connections
    # What is only preferred, and what is not verified, is what somebody asked for, or cannot leave this machine.
    asked_for = host == "127.0.0.1" or (mode == "require" and is_encrypted)
    assert (SECRET.encode() in server.heard) is asked_for


def test_a_connection_that_a_driver_left_in_clear_is_not_used(
    mariadb: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyMySQL before 1.2 did, whatever else it was told."""
    real = pymysql.connect
    monkeypatch.setattr(pymysql, "connect", lambda **options: real(**{**options, "ssl": None, "ssl_disabled": True}))
    config = MysqlConfig(
        host=mariadb.host, port=mariadb.port, user=mariadb.user, password=Secret(mariadb.password), tls="require"
    )
    with pytest.raises(pymysql.err.OperationalError, match="not encrypted") as caught:
        connect(config, read_timeout_s=20)
    assert caught.value.args[0] == 2026


def packets_of(reader: PacketReader) -> None:
    while True:
        assert reader.packets(60.0) == []


def test_a_packet_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_JOINED_MAX", 20 << 20)
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs:
            piece = bytes((1 << 24) - 1)
            for number in range(3):
                try:
                    theirs.sendall(b"\xff\xff\xff" + bytes([number]) + piece)
                except OSError:
                    return  # it was given up

    sender = Thread(target=send)
    sender.start()
    with ours:
        reader = PacketReader(SimpleNamespace(_sock=ours), sequence=0, silence_s=60)
        with pytest.raises(LostError, match="more than 20,971,520 bytes"):
            packets_of(reader)
    sender.join()
