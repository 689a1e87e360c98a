"""Admission of connections, and choice of those that are closed for new ones.

The newest connection gets a seat: the oldest connection that waits for its client is closed, of the same address once that has its
share, else of the address that has most. So clients that only hold connections keep nobody out, whatever their number.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from replicator.observability import get_logger

CONNECTIONS_MAX: Final = 512
HANDSHAKE_S: Final = 10.0
"""Time that a client may take for the handshake of TLS."""
_AT_ONCE: Final = 64
_HOST_BITS: Final = 64
_PAUSE_S: Final = 1.0

_log = get_logger(__name__)


class AcceptedConnection(Protocol):
    """A connection as this module sees it."""

    seat: ConnectionSeat | None

    @property
    def is_waiting(self) -> bool:
        """Return whether the client, not the server, has to do something."""

    def abort(self) -> None:
        """Close it at once."""


class ConnectionSeat:
    """The seat of one connection. `connection`: None during the handshake of TLS."""

    __slots__ = ("address", "connection", "socket", "task")

    def __init__(self, address: str, sock: socket.socket) -> None:
        self.address, self.socket = address, sock
        self.connection: AcceptedConnection | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether it may be closed for a new one."""
        return self.connection is None or self.connection.is_waiting

    def give_up(self) -> None:
        """Close the connection at once."""
        if self.connection is not None:
            self.connection.abort()
        elif self.task is not None:
            self.task.cancel()


class Seats:
    """Seats by address, the oldest first."""

    def __init__(self, *, per_address: int, most: int = CONNECTIONS_MAX) -> None:
        self._per_address, self._most = per_address, most
        self._by_address: dict[str, dict[ConnectionSeat, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, seat: ConnectionSeat) -> bool:
        """Give the seat, closing another connection if needed; return False if every other one is being answered."""
        mine = self._by_address.get(seat.address, {})
        if len(mine) >= self._per_address and not self._make_room(mine):
            return False
        if self._count >= self._most:
            # Addresses in descending order of their connections; most of them have few, so there are not many to look at.
            crowds = sorted(self._by_address.values(), key=len, reverse=True)
            if not any(self._make_room(crowd) for crowd in crowds):
                return False
        self._by_address.setdefault(seat.address, {})[seat] = None
        self._count += 1
        return True

    def leave(self, seat: ConnectionSeat) -> None:
        """Remove it. May be called twice."""
        mine = self._by_address.get(seat.address)
        if mine is None or seat not in mine:
            return
        del mine[seat]
        self._count -= 1
        if not mine:
            del self._by_address[seat.address]

    def _make_room(self, crowd: dict[ConnectionSeat, None]) -> bool:
        oldest = next((one for one in crowd if one.is_waiting), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.give_up()
        return True


def origin(address: str) -> str:
    """Return the key of one client: an address of IPv4, or the network of an address of IPv6, all of which one host may have."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, _HOST_BITS), strict=False))


class Door:
    """Accepts connections from a socket until `close`. Takes the position of asyncio's server in uvicorn."""

    def __init__(
        self, listener: socket.socket, make: Callable[[], AcceptedConnection], seats: Seats, tls: ssl.SSLContext | None
    ) -> None:
        self._listener, self._make, self._seats, self._tls = listener, make, seats, tls
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def open(self) -> None:
        """Start accepting."""
        if not self._is_closed:
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting. Open connections stay open; handshakes end."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._listener.fileno())
            for task in self._tasks:
                task.cancel()

    async def wait_closed(self) -> None:
        """Wait for the end of the cancelled handshakes."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptor is left, for example.
                _log.warning("not_accepted", error=error.strerror)
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(_PAUSE_S, self.open)
                return
            sock.setblocking(False)
            seat = ConnectionSeat(origin(str(peer[0])), sock)
            if not self._seats.take(seat):
                sock.close()
                continue
            seat.task = self._loop.create_task(self._begin(seat))
            self._tasks.add(seat.task)
            seat.task.add_done_callback(partial(self._begun, seat))

    async def _begin(self, seat: ConnectionSeat) -> None:
        timeout = None if self._tls is None else HANDSHAKE_S
        connection = self._make()
        connection.seat = seat
        try:
            await self._loop.connect_accepted_socket(
                lambda: cast("asyncio.BaseProtocol", connection),
                seat.socket,
                ssl=self._tls,
                ssl_handshake_timeout=timeout,
            )
        except OSError as error:
            # An SSLError and a TimeoutError are OSErrors. Any client can cause them as often as it likes.
            _log.debug("handshake_failed", error=type(error).__name__)

    def _begun(self, seat: ConnectionSeat, task: asyncio.Task[None]) -> None:
        """Check whether there is a connection now. A task that was cancelled at once has not run at all."""
        self._tasks.discard(task)
        if seat.connection is None:
            self._seats.leave(seat)
            seat.socket.close()
