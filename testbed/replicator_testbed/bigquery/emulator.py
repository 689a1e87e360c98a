"""A BigQuery emulator for tests and for the demo: bqemulator in a process of its own, with a folder for Cloud Storage.

`with_copies` adds what the product needs and it lacks.

It ends with the context manager, and with this process, however that dies. Needs the packages `bqemulator`,
`duckdb-extensions`, `duckdb-extension-spatial` and `duckdb-extension-avro`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from replicator_testbed.compare import Sum, sum_rows
from replicator_testbed.scratch_servers import free_port
from replicator_testing.waiting import wait_until

if TYPE_CHECKING:
    from types import TracebackType

PROJECT: Final = "demo-project"
BUCKET: Final = "staging"
LOCATION: Final = "EU"
WITHOUT_RESTS: Final = "apply: {max_wait: 0s}\n"
# Ends the emulator when the pipe ends, whose other end this process holds.
_GUARDED: Final = '"$@" & emulator=$!; read -r _; kill -9 $emulator'
_EXTENSIONS: Final = "import duckdb_extensions; duckdb_extensions.import_extension('spatial'); duckdb_extensions.import_extension('avro')"


class BigQueryEmulator:
    """One emulator, empty at first; `gs://<bucket>/<path>` is `<storage>/<bucket>/<path>`.

    Args:
        log_file: Takes what the emulator prints; left out: a file in its scratch folder.
    """

    def __init__(self, log_file: Path | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="replicator-bigquery-")
        self.storage = Path(self._scratch.name) / "storage"
        (self.storage / BUCKET).mkdir(parents=True)
        self._log_file = log_file or Path(self._scratch.name) / "emulator.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def endpoint(self) -> str:
        """The URL that clients are pointed to."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        # The extensions cannot be downloaded by every machine; these packages carry them.
        subprocess.run([sys.executable, "-c", _EXTENSIONS], check=True, capture_output=True)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._scratch.cleanup()

    def block(self, **settings: str) -> str:
        """The `target:` block of a replicator that writes to this emulator; `settings` add to it. `WITHOUT_RESTS` goes with it."""
        values = {
            "type": "bigquery",
            "project": PROJECT,
            "location": LOCATION,
            "endpoint": self.endpoint,
            "staging": f"{{bucket: {BUCKET}, folder: {self.storage}}}",
            **settings,
        }
        return "\n".join(f"  {name}: {value}" for name, value in values.items())

    def client(self) -> Any:
        """Google's own client."""
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import bigquery

        return bigquery.Client(
            project=PROJECT,
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": self.endpoint},
            location=LOCATION,
        )

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        command = [
            sys.executable, "-P", "-m", "replicator_testbed.bigquery.with_copies", "start", "--ephemeral", "--log-level", "warning",
            "--rest-port", str(self.port), "--grpc-port", "0", "--project", PROJECT,
        ]  # fmt: skip
        environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(Path.home()),
            "BQEMU_GCS_LOCAL_ROOT": str(self.storage),
            "BQEMU_QUERY_CACHE_TTL_SECONDS": "0",
        }
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARDED, "sh", *command],
                env=environ, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_until(self._answers, f"the emulator answers; see {self._log_file}", timeout_s=60)

    def stop(self) -> None:
        """End it at once; what it held is lost."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the emulator ended: {self._log_file.read_text(errors='replace')[-3000:]}")
        try:
            with urllib.request.urlopen(  # noqa: S310 - our own loopback address
                f"{self.endpoint}/bigquery/v2/projects/{PROJECT}/datasets", timeout=5
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


def canonical_sum(rows: Iterable[Sequence[Any]]) -> Sum:
    """Sum rows as BigQuery holds them: arrays as JSON text, decimals by their value."""
    return sum_rows([_canonical(value) for value in row] for row in rows)


def target_sum(client: Any, path: str, columns: Sequence[str]) -> Sum:
    """Sum the target table, read with Google's own client."""
    return canonical_sum(target_rows(client, path, columns))


def target_rows(client: Any, path: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Read the target table with Google's own client."""
    names = ", ".join(f"`{name}`" for name in columns)
    job = client.query(f"SELECT {names} FROM `{path}`", retry=None, job_retry=None)
    return [row.values() for row in job.result(retry=None)]


def _canonical(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value.normalize() if isinstance(value, Decimal) else value
