"""The REST API of a real `replicator serve`, asked over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from replicator_testbed.processes import kill_all
from replicator_testing.waiting import PATIENCE

_ANSWER_S: Final = 60.0 * PATIENCE
_ENDS_S: Final = 60.0 * PATIENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestServer:
    """A `serve` that answers. `lines`: what it has printed."""

    process: subprocess.Popen[str]
    port: int
    certificate: Path | None = None
    lines: list[str] = field(default_factory=list)

    def ask(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """One request, on a connection of its own."""
        connection = self._connection()
        try:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, headers=found, body=response.read())
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self.certificate is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_S)
        context = ssl.create_default_context(cafile=str(self.certificate))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=_ANSWER_S, context=context)


def command(*arguments: str) -> list[str]:
    """`replicator` with these arguments, of this environment."""
    return [sys.executable, "-m", "replicator.cli", *arguments]


@contextmanager
def serving(
    home: Path, *options: str, address: str = "127.0.0.1:0", certificate: Path | None = None
) -> Iterator[RestServer]:
    """`replicator serve --listen` at a free port, until the block ends."""
    process = subprocess.Popen(
        command("serve", "--listen", address, *options),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "REPLICATOR_HOME": str(home)},
    )
    assert process.stderr is not None
    lines: list[str] = []
    reader = threading.Thread(target=lines.extend, args=(process.stderr,))
    try:
        for line in process.stderr:
            lines.append(line)
            if line.startswith("REST API: "):
                break
        else:
            raise AssertionError(f"serve ended: {''.join(lines)}")
        reader.start()
        port = int(line.rpartition(":")[2].partition("/")[0])
        yield RestServer(process=process, port=port, certificate=certificate, lines=lines)
        process.terminate()
        process.wait(_ENDS_S)
    finally:
        if process.poll() is None:
            kill_all(process)
        if reader.is_alive():
            reader.join(_ENDS_S)
        process.stderr.close()
