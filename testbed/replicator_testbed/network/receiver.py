"""An HTTP server on this machine that receives webhooks: it takes them, refuses them, is slow, or never answers."""

from __future__ import annotations

import json
import queue
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from replicator_testing.waiting import PATIENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A request. Names of headers are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


Answering = Callable[[Received, BaseHTTPRequestHandler], None]


def take(_: Received, request: BaseHTTPRequestHandler) -> None:
    """Answer 204."""
    request.send_response(204)
    request.end_headers()


def refuse(status: int, text: str = "") -> Answering:
    """Answer with a status and a text."""

    def answer(_: Received, request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Location", "/elsewhere")
        request.end_headers()
        request.wfile.write(text.encode())

    return answer


@dataclass(kw_only=True)
class Receiver:
    """A server that runs. `answer` may be replaced at any time; `received` has what came, also what was refused."""

    url: str
    answer: Answering = take
    received: queue.Queue[Received] = field(default_factory=queue.Queue)
    closing: threading.Event = field(default_factory=threading.Event)

    def next(self) -> Received:
        """The next request, once it is there."""
        return self.received.get(timeout=60 * PATIENCE)

    def hang(self, _: Received, __: BaseHTTPRequestHandler) -> None:
        """Never answer: an `answer`."""
        self.closing.wait()

    def drip(self, _: Received, request: BaseHTTPRequestHandler) -> None:
        """Answer a byte now and then, so that no single read takes long, and never end: an `answer`."""
        request.wfile.write(b"HTTP/1.1 200 ")
        while not self.closing.wait(0.05):
            request.wfile.write(b"O")


@contextmanager
def receiving(*, certificate: tuple[Path, Path] | None = None) -> Iterator[Receiver]:
    """A server at a free port until the block ends; with a certificate and its key by TLS."""
    receiver: Receiver

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            received = Received(path=self.path, headers=headers, body=body)
            receiver.received.put(received)
            try:
                receiver.answer(received, self)
            except OSError:
                self.close_connection = True  # the other side did not wait
                return
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A side that refuses the certificate, or that is killed, ends its connection."""

    server = Server(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    scheme = "http" if certificate is None else "https"
    receiver = Receiver(url=f"{scheme}://127.0.0.1:{server.server_address[1]}/hook")
    thread = threading.Thread(target=server.serve_forever, name="receiver", daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody but itself has signed, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key),
            "-out", str(certificate), "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return certificate, key
