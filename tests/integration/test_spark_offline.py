"""A start with jars that were resolved before asks no registry: every connection would come to the proxy, which counts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from replicator_testing.waiting import PATIENCE

SCRIPT = """
import sys
from replicator.config import SparkConfig
from replicator.model.errors import ReplicatorError
from replicator.spark.session import SparkHost
from replicator_target_delta.spark.settings import SPARK_NEEDS
from replicator_testbed.spark.java import short_lived_options
settings = {"spark.driver.memory": "512m", **short_lived_options()}
if len(sys.argv) > 1:
    settings["spark.jars.ivy"] = sys.argv[1]
host = SparkHost(SparkConfig(master="local[1]", settings=settings), SPARK_NEEDS, cores=1)
try:
    session = host.session()
    print(session.range(3).count(), "io.delta" in session.conf.get("spark.sql.extensions"))
except ReplicatorError as error:
    print(error.code)
finally:
    host.stop()
"""


class Proxy:
    """Takes connections and closes them at once: there is no network behind it."""

    def __init__(self) -> None:
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                connection.close()

    def close(self) -> None:
        """Stop to listen."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


def start(proxy: Proxy, *arguments: str) -> str:
    """Start Spark with everything that goes to another host sent to the proxy; what the script prints."""
    names = (f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={proxy.port}" for scheme in ("http", "https"))
    environ = {**os.environ, "JAVA_TOOL_OPTIONS": " ".join(names)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=280 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.matrix
def test_jars_that_are_in_the_cache_are_asked_of_nobody(proxy: Proxy) -> None:
    assert start(proxy) == "3 True"
    assert proxy.connections == 0


@pytest.mark.matrix
def test_an_empty_cache_asks_and_the_start_says_which_packages_are_missing(proxy: Proxy, tmp_path: Path) -> None:
    """That the proxy sees what is asked for: otherwise the test above would show nothing."""
    assert start(proxy, str(tmp_path / "ivy")) == "spark_packages_unresolved"
    assert proxy.connections > 0
