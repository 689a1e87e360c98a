"""`replicator.web.__main__ DESCRIPTOR`, a child of `serve`: serves on an inherited socket until `serve` says stop, or ends."""

from __future__ import annotations

import os
import socket
import sys
import threading

import uvicorn

from replicator.observability import configure_logging
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.runtime.web_process import READY, STOP
from replicator.service.access.listening import Listening
from replicator.web.app import WebApp
from replicator.web.server import BoundedServer, server_config


def main(arguments: list[str]) -> int:
    """Serve until told to stop."""
    configure_logging(format="auto", stream=sys.stderr)
    listening = Listening.model_validate_json(sys.stdin.readline())
    listener = socket.socket(fileno=int(arguments[0]))
    app = WebApp(home=Home.from_environment(), registry=Registry.discover(), listening=listening)
    server = BoundedServer(server_config(app, listening), ready=_say_ready)
    threading.Thread(target=_obey, args=(server,), name="leash", daemon=True).start()
    app.start()
    server.run(sockets=[listener])
    app.close()
    return 0


def _say_ready() -> None:
    sys.stdout.write(READY + "\n")
    sys.stdout.flush()


def _obey(server: uvicorn.Server) -> None:
    """Stop when told; end at once when the pipe closes, because the process that started this one has ended."""
    for line in sys.stdin:
        if line.strip() == STOP:
            server.should_exit = True
    if not server.should_exit:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
