"""A thousand clients that only hold connections keep nobody out."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.service.access.listening import Listening
from replicator.web import accepting, server
from replicator.web.accepting import ConnectionSeat, Seats, origin
from replicator.web.app import WebApp
from replicator.web.server import BoundedServer, server_config
from replicator.web.sparing import PER_MINUTE, Sparing
from replicator_testing.waiting import PATIENCE, wait_until

REGISTRY = Registry.discover()


class Held:
    """A connection that waits, or does not."""

    def __init__(self, seat: ConnectionSeat, *, is_waiting: bool) -> None:
        self.seat, self.is_waiting, self.is_closed = seat, is_waiting, False

    def abort(self) -> None:
        self.is_closed = True


def held(address: str, *, is_waiting: bool = True) -> tuple[ConnectionSeat, Held]:
    seat = ConnectionSeat(address, socket.socket())
    seat.socket.close()
    connection = Held(seat, is_waiting=is_waiting)
    seat.connection = connection  # type: ignore[assignment]  # as much of one as is asked for
    return seat, connection


def test_the_oldest_of_an_address_that_waits_has_to_go_for_the_next_one() -> None:
    seats = Seats(per_address=3, most=100)
    made = [held("a", is_waiting=index != 0) for index in range(4)]
    other, _ = held("b")
    assert seats.take(other)
    assert all(seats.take(seat) for seat, _ in made)
    assert [connection.is_closed for _, connection in made] == [False, True, False, False]
    assert len(seats) == 4


def test_the_address_that_has_most_gives_way_to_another_one() -> None:
    seats = Seats(per_address=10, most=4)
    many, few = [held("a") for _ in range(3)], held("b")
    assert all(seats.take(seat) for seat, _ in [few, *many])
    assert seats.take(held("c")[0])
    assert [connection.is_closed for _, connection in (few, *many)] == [False, True, False, False]


def test_nobody_who_is_being_answered_has_to_go() -> None:
    seats = Seats(per_address=2, most=3)
    busy = [held("a", is_waiting=False) for _ in range(2)]
    assert all(seats.take(seat) for seat, _ in busy)
    assert not seats.take(held("a")[0])
    third = held("b", is_waiting=False)
    assert seats.take(third[0])
    assert not seats.take(held("c")[0])
    seats.leave(third[0])
    seats.leave(third[0])
    assert seats.take(held("c")[0])
    assert not any(connection.is_closed for _, connection in busy)


@contextmanager
def listening(folder: Path, **options: object) -> Iterator[tuple[int, BoundedServer]]:
    """The server of the API in a thread, at a free port."""
    home = Home(folder=folder, state_url=f"sqlite:///{folder / 'state.db'}")
    settings = Listening.model_validate({"host": "127.0.0.1", "port": 0, **options})
    app = WebApp(home=home, registry=REGISTRY, listening=settings)
    ready = threading.Event()
    listener = settings.bind()
    made = BoundedServer(server_config(app, settings), ready=ready.set)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(made.serve([listener])))
    thread.start()
    try:
        assert ready.wait(30 * PATIENCE)
        yield port, made
    finally:
        made.should_exit = made.force_exit = True
        thread.join(30 * PATIENCE)
        app.close()


def connect(port: int, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 10 * PATIENCE, source_address=(address, 0))


def is_alive(port: int, address: str = "127.0.0.1") -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=10 * PATIENCE, source_address=(address, 0))
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    finally:
        connection.close()


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough of them for a thousand clients and their server in one process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("descriptors")
def test_a_thousand_clients_that_hold_connections_leave_the_probe_alone(tmp_path: Path) -> None:
    never_reads = b"GET /static/dashboard.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20
    half = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\nx"
    sent = (b"", b"GET / HT", half)
    clients = []
    with listening(tmp_path, requests_per_second=100_000) as (port, made):
        try:
            for index in range(1000):
                # One half comes from the address of the probe, the other from twenty others.
                client = connect(port, "127.0.0.1" if index % 2 else f"127.0.0.{2 + index % 40}")
                client.sendall(never_reads if index % 64 < 2 else sent[index // 2 % len(sent)])
                clients.append(client)
                assert index % 100 or is_alive(port)
            assert is_alive(port)
            assert is_alive(port, "127.0.0.99")
            assert len(made.server_state.connections) <= accepting.CONNECTIONS_MAX
        finally:
            for client in clients:
                client.close()


def test_a_client_that_does_not_read_is_closed_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WRITE_S", 0.05)
    with listening(tmp_path, requests_per_second=100_000) as (port, made), connect(port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        request = b"GET /static/dashboard.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        count = 0

        def is_closed() -> bool:
            nonlocal count
            try:
                client.send(request * 100)
            except BlockingIOError:
                count += 1
            except (ConnectionResetError, BrokenPipeError):
                return True
            return False

        wait_until(is_closed, "the client still holds its connection")
        wait_until(lambda: not made.server_state.connections, "the server still has it")


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key),
            "-out", str(cert), "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return cert, key


def test_a_client_without_a_handshake_is_closed_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = certificate(tmp_path)
    monkeypatch.setattr(accepting, "HANDSHAKE_S", 0.2)
    with listening(tmp_path, tls_cert=cert, tls_key=key, connections_per_client=2) as (port, _):
        silent = [connect(port) for _ in range(5)]
        for client in silent:
            # The ones before gave their seats, and the last ones took too long.
            assert client.recv(1) == b""
            client.close()
        context = ssl.create_default_context(cafile=str(cert))
        with context.wrap_socket(connect(port), server_hostname="127.0.0.1") as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"\r\nstrict-transport-security: max-age=31536000\r\n" in answer


def test_a_stranger_causes_few_lines_of_the_log() -> None:
    now = 0.0
    lines = Sparing(lambda: now)
    assert [lines.take() for _ in range(PER_MINUTE + 2)] == [0] * PER_MINUTE + [None, None]
    now = 61.0
    assert [lines.take(), lines.take()] == [2, 0]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Content-Length: 2", 200),
        ("Transfer-Encoding: chunked", 200),
        ("Content-Length: 2\r\nTransfer-Encoding: chunked", 400),
        ("Content-Length: 2\r\nContent-Length: 3", 400),
        ("Content-Length: 2, 3", 400),
        ("Content-Length: +2", 400),
        ("Content-Length: 0x2", 400),
        ("Content-Length: -2", 400),
        ("Content-Length: ", 400),
        ("Transfer-Encoding: chunked, identity", 400),
        ("Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 2", 200),
    ],
)
def test_a_length_that_two_readers_may_read_in_two_ways_is_refused(port: int, head: str, status: int) -> None:
    body = "2\r\n{}\r\n0\r\n\r\n" if "Transfer-Encoding: chunked" in head else "{}"
    second = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    with connect(port) as client:
        client.sendall(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\n\r\n{body}{second}".encode())
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 %d" % status)
    # Nothing after a head that is not clear is taken for a request.
    assert answer.count(b"HTTP/1.1 ") == (2 if status == 200 else 1)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with listening(tmp_path_factory.mktemp("home"), requests_per_second=100_000) as (port, _):
        yield port


def test_what_is_no_http_is_logged_a_few_times(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(PER_MINUTE + 5):
            with connect(port) as client:
                client.sendall(b"nonsense\r\n\r\n")
                assert b" 400 " in client.recv(65536)
    lines = [record for record in caplog.records if record.name == "uvicorn.error"]
    assert len(lines) <= PER_MINUTE
    assert all(len(line.getMessage()) < 200 for line in lines)


def test_a_problem_is_json(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=10 * PATIENCE)
    connection.request("GET", "/healthz%0A")
    response = connection.getresponse()
    assert (response.status, response.headers["connection"]) == (400, "close")
    assert json.loads(response.read())["code"] == "malformed_request"
    connection.close()


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("2001:db8:0:1::9", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("local", "local"),
    ],
)
def test_all_addresses_that_one_host_may_have_are_one_client(address: str, client: str) -> None:
    assert origin(address) == client
