"""Servers of somebody in the middle: they promise nothing, ask for whatever secret a client has, and keep all that they are sent.

Each speaks as much of a protocol as it takes to be given a password. `HOST` leads to this machine without being a loopback address by its
looks, so a client's rule for servers of a network holds.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

HOST: Final = "0.0.0.0"  # noqa: S104 a client connects to it; Linux leads it to this machine
_WAIT_S: Final = 20.0
_SSL_REQUEST: Final = struct.pack(">II", 8, 80_877_103)
_CLEAR_PASSWORD: Final = b"R" + struct.pack(">II", 8, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rogue:
    """A server that runs at `HOST` and a port, and all that it was told: in clear, and what came out of its TLS."""

    port: int
    connections: list[bytearray] = field(default_factory=list)

    @property
    def heard(self) -> bytes:
        """Everything that any client has said."""
        return b"\0".join(bytes(told) for told in self.connections)


Talk = Callable[[socket.socket, bytearray], None]
"""Talks to one client, and adds what it says to the second."""


@contextmanager
def rogue(talk: Talk) -> Iterator[Rogue]:
    """A server until the block ends, after which all that it was told is there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Rogue(port=listener.getsockname()[1])
        threads: list[threading.Thread] = []

        def serve(client: socket.socket, told: bytearray) -> None:
            # A client that refuses the certificate, or goes, ends the talk.
            with client, suppress(OSError):
                client.settimeout(_WAIT_S)
                talk(client, told)

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                told = bytearray()
                server.connections.append(told)
                threads.append(threading.Thread(target=serve, args=(client, told), daemon=True))
                threads[-1].start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()


def postgresql(tls: ssl.SSLContext | None = None) -> Talk:
    """Has no TLS, or a certificate that nobody trusts, and asks for the password in clear."""

    def talk(client: socket.socket, told: bytearray) -> None:
        first = _hear(client, told)
        if first == _SSL_REQUEST:
            client.sendall(b"N" if tls is None else b"S")
            if tls is not None:
                with tls.wrap_socket(client, server_side=True) as encrypted:
                    _hear(encrypted, told)
                    ask(encrypted, told)
                return
            _hear(client, told)
        ask(client, told)

    def ask(client: socket.socket, told: bytearray) -> None:
        client.sendall(_CLEAR_PASSWORD)
        _hear(client, told)

    return talk


def mysql(tls: ssl.SSLContext | None = None) -> Talk:
    """The same for MySQL: its plugin for passwords in clear."""
    # Long passwords, protocol 4.1, transactions, secure connections, authentication by plugin; TLS.
    capabilities = 0x1 | 0x200 | 0x2000 | 0x8000 | 0x80000 | (0x800 if tls is not None else 0)
    greeting = (
        b"\x0a8.0.36\0" + struct.pack("<I", 1) + b"12345678\0" + struct.pack("<H", capabilities & 0xFFFF) + b"\x2d"
        + struct.pack("<HH", 2, capabilities >> 16) + b"\x15" + bytes(10) + b"123456789012\0" + b"mysql_native_password\0"
    )  # fmt: skip
    switch = b"\xfemysql_clear_password\0"

    def talk(client: socket.socket, told: bytearray) -> None:
        client.sendall(_packet(greeting, 0))
        # No more than the packet: a client that asks for TLS begins with it at once.
        answer = _hear(client, told, 4)
        answer += _hear(client, told, int.from_bytes(answer[:3], "little"))
        if tls is not None and int.from_bytes(answer[4:8], "little") & 0x800:
            with tls.wrap_socket(client, server_side=True) as encrypted:
                _hear(encrypted, told)
                encrypted.sendall(_packet(switch, 3))
                _hear(encrypted, told)
            return
        client.sendall(_packet(switch, 2))
        _hear(client, told)

    return talk


def lines(greeting: bytes, answers: dict[bytes, bytes], otherwise: bytes) -> Talk:
    """Answers each line by the word it begins with, as SMTP does."""

    def talk(client: socket.socket, told: bytearray) -> None:
        client.sendall(greeting)
        while line := _hear(client, told):
            word = line.split()[0].upper() if line.split() else b""
            client.sendall(answers.get(word, otherwise))

    return talk


def smtp() -> Talk:
    """A mail server without TLS that likes to be told passwords."""
    return lines(
        b"220 rogue\r\n",
        {b"EHLO": b"250-rogue\r\n250 AUTH LOGIN PLAIN\r\n", b"AUTH": b"334 VXNlcm5hbWU6\r\n"},
        b"250 ok\r\n",
    )


def tls_first(tls: ssl.SSLContext, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") -> Talk:
    """A server of HTTPS or the like whose certificate nobody trusts."""

    def talk(client: socket.socket, told: bytearray) -> None:
        with tls.wrap_socket(client, server_side=True) as encrypted:
            _hear(encrypted, told)
            encrypted.sendall(answer)

    return talk


def http(answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") -> Talk:
    """A server of HTTP."""

    def talk(client: socket.socket, told: bytearray) -> None:
        _hear(client, told)
        client.sendall(answer)

    return talk


def tds() -> Talk:
    """A SQL Server that says it cannot encrypt, and keeps what it is then told. `tds_password` finds a password there."""
    # PRELOGIN: version and encryption, which is not supported (2).
    options = b"\x00\x00\x0b\x00\x06\x01\x00\x11\x00\x01\xff" + b"\x10\x00\x10\x00\x00\x00" + b"\x02"
    answer = b"\x04\x01" + struct.pack(">H", len(options) + 8) + b"\0\0\1\0" + options

    def talk(client: socket.socket, told: bytearray) -> None:
        _hear(client, told)
        client.sendall(answer)
        while _hear(client, told):
            pass

    return talk


def tds_password(password: str) -> bytes:
    """How a login of TDS spells a password: as UTF-16, the halves of each byte changed, and then some bits."""
    return bytes((((byte & 0xF) << 4) | (byte >> 4)) ^ 0xA5 for byte in password.encode("utf-16-le"))


def _hear(client: socket.socket, told: bytearray, size: int = 1 << 16) -> bytes:
    data = client.recv(size)
    told += data
    return data


def _packet(content: bytes, number: int) -> bytes:
    return len(content).to_bytes(3, "little") + bytes([number]) + content
