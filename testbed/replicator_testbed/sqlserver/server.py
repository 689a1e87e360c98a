"""The server: a port that ODBC drivers connect to, with one PostgreSQL session behind each connection."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from replicator_testbed.scratch_servers import HOST, TIMEOUT_SECONDS
from replicator_testbed.sqlserver.connection import Connection, Session
from replicator_testbed.sqlserver.tds.handshake import Login

CONNECTIONS_MAX: Final = 64


class TdsServer:
    """Listens on a free loopback port, in a thread of its own; a context manager."""

    def __init__(self, open_session: Callable[[Login], Session], *, tls: ssl.SSLContext | None = None) -> None:
        """Describe a server; nothing listens yet.

        Args:
            open_session: Opens what runs the statements of one connection; raises SqlError for a login that is refused.
            tls: The server's certificate. Without it the server says that it does not encrypt.
        """
        self._open_session = open_session
        self._tls = tls
        self._executor = ThreadPoolExecutor(CONNECTIONS_MAX, thread_name_prefix="tds")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tds-server", daemon=True)
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0
        self.failures: list[Exception] = []
        """What ended connections and is no fault of the driver: leaving the context raises it."""

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End every connection, and listen no more."""
        assert self._listener is not None
        self._loop.call_soon_threadsafe(self._listener.close)
        self.disconnect_all()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_SECONDS)
        self._executor.shutdown()
        self._loop.close()
        if self.failures and error is None:
            raise ExceptionGroup("The model failed while it served a connection.", self.failures)

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return HOST

    def disconnect_all(self) -> None:
        """End every connection at once, as a server that goes away."""
        asyncio.run_coroutine_threadsafe(self._end_connections(), self._loop).result(TIMEOUT_SECONDS)

    @contextmanager
    def away(self) -> Iterator[None]:
        """As a server that is restarted: every connection ends and nothing listens, until the context is left; then at the same port."""
        assert self._listener is not None
        self._loop.call_soon_threadsafe(self._listener.close)
        self.disconnect_all()
        try:
            yield
        finally:
            self._listen()

    def _listen(self) -> None:
        starting = asyncio.start_server(self._accept, HOST, self.port)
        self._listener = asyncio.run_coroutine_threadsafe(starting, self._loop).result(TIMEOUT_SECONDS)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _end_connections(self) -> None:
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= CONNECTIONS_MAX:
                await Connection(
                    reader, writer, open_session=self._open_session, tls=self._tls, executor=self._executor
                ).serve()
            else:
                writer.close()
        except asyncio.CancelledError:
            writer.close()
        except Exception as failed:  # noqa: BLE001 - raised when the context is left
            self.failures.append(failed)
        finally:
            self._connections.discard(task)
