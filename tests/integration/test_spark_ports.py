"""Who may talk to Spark's JVM, and what other users of the host can read of it."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from replicator.spark import SparkHost
from replicator_testbed.spark.java import jvm_pid
from replicator_testbed.spark.session import SECRET, SECRET_SETTING, spark_host  # noqa: F401 - a fixture

RPC_REQUEST = 3


@pytest.fixture
def jvm(spark_host: SparkHost) -> psutil.Process:  # noqa: F811
    session = spark_host.session()
    if not session.sparkContext.master.startswith("local"):
        pytest.skip("the ports of a cluster's driver are the operator's")
    pid = jvm_pid(spark_host)
    assert pid is not None
    return psutil.Process(pid)


def answer(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        # A peer that refused at once has closed already; what it said can be read all the same.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while data := connection.recv(1 << 16):
                found += data
        except ConnectionResetError:
            pass
        return found


def test_no_port_of_the_jvm_serves_a_peer_without_its_secret(jvm: psutil.Process) -> None:
    body = b"\xac\xed\x00\x05t\x00\x04evil"  # a Java object: a text
    head = struct.pack(">BQI", RPC_REQUEST, 1, len(body))
    frame = struct.pack(">Q", 8 + len(head) + len(body)) + head + body
    ports = {c.laddr.port: c.laddr.ip for c in jvm.net_connections() if c.status == psutil.CONN_LISTEN}
    assert all(ip.endswith("127.0.0.1") for ip in ports.values())
    said = {port: answer(port, frame) for port in ports}
    by_sasl = {port for port, text in said.items() if b"Expected SaslMessage" in text}
    assert len(by_sasl) == 2, said  # the driver's and its block manager's
    # py4j's: a call before the token.
    (gateway,) = set(ports) - by_sasl
    call = b"c\nz:java.lang.System\ngetProperty\nsuser.name\ne\n"
    assert b"!y" not in answer(gateway, call)
    assert b"!y" not in answer(gateway, b"A\nguessed\n" + call)


def test_others_of_the_host_read_no_setting_and_the_jvm_knows_no_password_of_ours(
    jvm: psutil.Process,
    spark_host: SparkHost,  # noqa: F811
) -> None:
    conf = spark_host.session().sparkContext.getConf()
    assert conf.get(SECRET_SETTING) == SECRET
    # As the JVM read it from its file, before we set it again.
    system = spark_host.session()._jvm.java.lang.System
    assert system.getProperty(SECRET_SETTING) == SECRET
    for what in ("cmdline", "environ"):
        assert SECRET.encode() not in Path(f"/proc/{jvm.pid}/{what}").read_bytes()
    scratch = Path(conf.get("spark.local.dir")).parent
    assert [path for path in scratch.iterdir() if path.suffix == ".properties"] == []
