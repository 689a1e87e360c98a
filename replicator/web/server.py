"""uvicorn with bounds: on connections, on sizes, and on the time that a caller may take."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from replicator.service.listening import Listening

CONNECTIONS_MAX: Final = 512
_INCOMPLETE_BYTES_MAX: Final = 64 << 10
REQUEST_S: Final = 10.0
"""How long a caller may take from connecting, or from its last answer's keep-alive, to a whole head of a request."""
_KEEP_ALIVE_S: Final = 5
_SHUTDOWN_S: Final = 3


class BoundedProtocol(H11Protocol):
    """A connection whose first request must have come within a time; uvicorn bounds only the pause between requests."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the caller a while for its request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(REQUEST_S, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Take what came. A head of a request that is not whole has a time limit, too."""
        super().data_received(data)
        is_waiting = self.cycle is None or self.cycle.response_complete
        if is_waiting and self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_S, self._give_up)
        elif not is_waiting:
            self._relax()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time limit."""
        self._relax()
        super().connection_lost(exc)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class BoundedServer(uvicorn.Server):
    """Says when it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def server_config(app: Any, listening: Listening) -> uvicorn.Config:
    """Everything that uvicorn is told. It believes no header about where a request came from."""
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
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
        limit_concurrency=CONNECTIONS_MAX,
        h11_max_incomplete_event_size=_INCOMPLETE_BYTES_MAX,
        ssl_certfile=None if listening.tls_cert is None else str(listening.tls_cert),
        ssl_keyfile=None if listening.tls_key is None else str(listening.tls_key),
    )
