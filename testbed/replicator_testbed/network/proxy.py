"""A TCP proxy that fails on demand: the network between a replicator and its source, in a test's hands."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
CONNECT_TIMEOUT_SECONDS = 10.0
# Closing with this linger time of zero sends a reset, which is what a broken network path looks like.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(slots=True, eq=False)
class _Link:
    """The two sockets of one proxied connection."""

    client: socket.socket
    upstream: socket.socket
    open_directions: int = 2
    threads: list[threading.Thread] = field(default_factory=list)

    def close(self, *, by_reset: bool) -> None:
        for end in (self.client, self.upstream):
            if by_reset:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            # Wakes the thread that waits in recv; close alone does not.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class FaultProxy:
    """Forward TCP connections from `host:port` to an upstream server, until told to fail.

    A context manager. All methods may be called from any thread.

    - `cut()` resets every connection and each new one, until `restore()`.
    - `alter(old, new)` replaces some bytes by others, once: what a broken network card does.
    - `lead_to(host, port)` makes new connections to another upstream, as a balancer does.
    - `cut_after(n)` does the same where byte n + 1 from the upstream would follow: in the middle of a message.
    - `blackhole()` lets connections stand, and be made, but nothing passes in either direction, until `restore()`;
      what was sent meanwhile then arrives, as it does after a network partition that TCP survives.
    """

    def __init__(self, upstream_host: str, upstream_port: int, *, host: str = HOST) -> None:
        """Listen on a free port of `host`, a loopback address, at once; forwarding begins with `start()` or the context manager."""
        self._upstream = (upstream_host, upstream_port)
        self._listener = socket.create_server((host, 0), backlog=64)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._passing = threading.Event()
        self._passing.set()
        self._links: set[_Link] = set()
        self._is_cut = False
        self._is_closed = False
        self._bytes_until_cut: int | None = None
        self._altered: tuple[bytes, bytes] | None = None
        self._connections = 0
        self._upstream_bytes = 0
        self._acceptor = threading.Thread(target=self._accept, name="fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        """Start forwarding."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Reset what is open and stop listening."""
        self.close()

    @property
    def connections(self) -> int:
        """How many connections have been forwarded so far."""
        with self._lock:
            return self._connections

    @property
    def upstream_bytes(self) -> int:
        """How many bytes the upstream has sent so far, over all connections."""
        with self._lock:
            return self._upstream_bytes

    def start(self) -> None:
        """Begin to accept connections."""
        self._acceptor.start()

    def cut(self) -> None:
        """Reset every connection, and each new one, until `restore()`."""
        with self._lock:
            self._is_cut = True
            self._bytes_until_cut = None
            links, self._links = self._links, set()
        self._passing.set()
        for link in links:
            link.close(by_reset=True)

    def cut_after(self, upstream_bytes: int) -> None:
        """Pass this many more bytes from the upstream, over all connections, and cut at the next one."""
        with self._lock:
            self._bytes_until_cut = upstream_bytes

    def alter(self, old: bytes, new: bytes) -> None:
        """Replace `old` by `new`, which is as long, where the upstream sends it next; once."""
        assert len(old) == len(new), "a length that changes is another fault"
        with self._lock:
            self._altered = (old, new)

    @property
    def has_altered(self) -> bool:
        """Whether nothing waits for being altered."""
        with self._lock:
            return self._altered is None

    def lead_to(self, host: str, port: int) -> None:
        """Make new connections to another upstream; those that are open stay."""
        with self._lock:
            self._upstream = (host, port)

    def blackhole(self) -> None:
        """Let nothing pass, without closing anything, until `restore()`."""
        self._passing.clear()

    def restore(self) -> None:
        """Forward again: what a black hole held back, and new connections."""
        with self._lock:
            self._is_cut = False
            self._bytes_until_cut = None
        self._passing.set()

    def close(self) -> None:
        """Reset what is open, stop listening, and wait for the threads; doing it twice changes nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            threads = [thread for link in self._links for thread in link.threads]
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._acceptor.ident is not None:
            threads.append(self._acceptor)
        for thread in threads:
            thread.join(CONNECT_TIMEOUT_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                with self._lock:
                    address = self._upstream
                upstream = socket.create_connection(address, CONNECT_TIMEOUT_SECONDS)
            except OSError:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                client.close()
                continue
            upstream.settimeout(None)
            self._join(_Link(client, upstream))

    def _join(self, link: _Link) -> None:
        for end in (link.client, link.upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            is_refused = self._is_cut
            if not is_refused:
                self._links.add(link)
                self._connections += 1
                for source, target in ((link.client, link.upstream), (link.upstream, link.client)):
                    thread = threading.Thread(target=self._pump, args=(link, source, target), daemon=True)
                    link.threads.append(thread)
                    thread.start()
        if is_refused:
            link.close(by_reset=True)

    def _pump(self, link: _Link, source: socket.socket, target: socket.socket) -> None:
        is_from_upstream = source is link.upstream
        try:
            while data := source.recv(CHUNK_BYTES):
                self._passing.wait()
                allowed = self._allowance(len(data)) if is_from_upstream else len(data)
                target.sendall((self._passed_on(data) if is_from_upstream else data)[:allowed])
                if allowed < len(data):
                    self.cut()
                    return
            # A black hole swallows the end of a stream too.
            self._passing.wait()
            target.shutdown(socket.SHUT_WR)
        except OSError:
            # One end was closed, or reset by us: the other end learns it in the same way.
            self._forget(link)
            link.close(by_reset=True)
        else:
            with self._lock:
                link.open_directions -= 1
                is_over = link.open_directions == 0
            if is_over:
                self._forget(link)
                link.close(by_reset=False)

    def _passed_on(self, data: bytes) -> bytes:
        with self._lock:
            if self._altered is None or self._altered[0] not in data:
                return data
            (old, new), self._altered = self._altered, None
            return data.replace(old, new, 1)

    def _allowance(self, wanted: int) -> int:
        with self._lock:
            self._upstream_bytes += wanted
            if self._bytes_until_cut is None:
                return wanted
            allowed = min(wanted, self._bytes_until_cut)
            self._bytes_until_cut -= allowed
            return allowed

    def _forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)
