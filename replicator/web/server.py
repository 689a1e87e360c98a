"""uvicorn with bounds: on connections, on sizes, and on the time that a caller may take."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from h11 import SEND_BODY
from uvicorn.protocols.http.h11_impl import H11Protocol

from replicator.service.access.listening import Listening
from replicator.web.accepting import CONNECTIONS_MAX, ConnectionSeat, Door, Seats
from replicator.web.sparing import Sparing

_INCOMPLETE_BYTES_MAX: Final = 64 << 10
REQUEST_S: Final = 10.0
"""Time that a caller may take from connecting, or from its last answer's keep-alive, to a whole head of a request."""
WRITE_S: Final = 30.0
"""Interval within which a caller must have read some of an answer that waits for it."""
_WRITTEN_MIN: Final = 64 << 10
"""Bytes that it must have read."""
_KEEP_ALIVE_S: Final = 5
_SHUTDOWN_S: Final = 3


class BoundedProtocol(H11Protocol):
    """A connection that waits for its client for a limited time only; uvicorn bounds no more than the pause between requests."""

    seats: Seats
    seat: ConnectionSeat | None = None
    _deadline: asyncio.TimerHandle | None = None
    _look: asyncio.TimerHandle | None = None
    _unread = 0

    @property
    def is_waiting(self) -> bool:
        """Return whether the client has to send something, or to read."""
        is_asked = self.cycle is not None and not self.cycle.response_complete
        return not is_asked or self.flow.write_paused or self.conn.their_state is SEND_BODY

    def abort(self) -> None:
        """Close it at once, even with data not sent."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the request."""
        super().connection_made(transport)
        if self.seat is not None:
            self.seat.connection = self
        self._deadline = self.loop.call_later(REQUEST_S, self._give_up)
        self._look = self.loop.call_later(WRITE_S, self._look_at_unread)

    def data_received(self, data: bytes) -> None:
        """Take the data that came. An incomplete head of a request has a time limit, too."""
        super().data_received(data)
        is_waiting = self.cycle is None or self.cycle.response_complete
        if is_waiting and self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_S, self._give_up)
        elif not is_waiting:
            self._relax()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limits, and free the seat."""
        self._relax()
        if self._look is not None:
            self._look.cancel()
        if self.seat is not None:
            self.seats.leave(self.seat)
        super().connection_lost(exc)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def _look_at_unread(self) -> None:
        """Close the connection of a client that does not read, also one that is being closed and has not read its last answer."""
        unread = self.transport.get_write_buffer_size()
        if unread and self._unread and self._unread - unread < _WRITTEN_MIN:
            self.transport.abort()
            return
        self._unread = unread
        self._look = self.loop.call_later(WRITE_S, self._look_at_unread)


class BoundedServer(uvicorn.Server):
    """Accepts connections by its own rules, and reports when it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call `ready`."""
        assert sockets, "the process that starts the server has the socket"
        await self.lifespan.startup()
        made = self.config.http_protocol_class
        assert isinstance(made, type)
        assert issubclass(made, BoundedProtocol)

        def connection() -> BoundedProtocol:
            return made(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

        doors = [Door(listener, connection, made.seats, self.config.ssl) for listener in sockets]
        self.servers = doors  # type: ignore[assignment]  # only closed, and waited for
        for door in doors:
            door.open()
        self.started = True
        self._ready()


class _SparingFilter(logging.Filter):
    """Passes the same warning a few times a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._warnings: dict[object, Sparing] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written."""
        if record.levelno > logging.WARNING:
            return True
        left_out = self._warnings.setdefault(record.msg, Sparing()).take()
        if left_out:
            record.msg = f"{record.msg} ({left_out} more since the last such line)"
        return left_out is not None


_SPARING: Final = _SparingFilter()


def server_config(app: Any, listening: Listening) -> uvicorn.Config:
    """Return uvicorn's configuration. It believes no header about the origin of a request."""
    per_address = CONNECTIONS_MAX if listening.is_behind_proxy else listening.connections_per_client

    class ServedConnection(BoundedProtocol):
        seats = Seats(per_address=per_address)

    # Input that is no HTTP, or a wish for another protocol, is a line of the log each time.
    logging.getLogger("uvicorn.error").addFilter(_SPARING)
    return uvicorn.Config(
        app,
        http=ServedConnection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        h11_max_incomplete_event_size=_INCOMPLETE_BYTES_MAX,
        ssl_certfile=None if listening.tls_cert is None else str(listening.tls_cert),
        ssl_keyfile=None if listening.tls_key is None else str(listening.tls_key),
    )
