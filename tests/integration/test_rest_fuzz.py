"""The REST API under a fuzzer of its own OpenAPI document: no status 5xx, no answer that the document does not describe, no hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from replicator.model.access import Scope
from replicator.model.schema import TableId
from replicator.service.access import tokens
from replicator.state import holder_id
from replicator.state.records import Stage, TableRecord
from replicator.state.store import StateStore
from replicator_testbed.network.rest import serving
from replicator_testbed.present import present

CHECKS: Final = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
TIME_S: Final = 25
"""What a run may take; it then ends with what it has tried, hundreds of requests."""


CONFIGURATIONS: Final = ("/api/v1/validate", "PUT")
"""The operations that take a configuration, by path and by method. Each call starts a process, so they have a run of their own."""


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("config", "chosen"),
    [
        ("", ("--exclude-path", CONFIGURATIONS[0], "--exclude-method", CONFIGURATIONS[1])),
        ('[parameters]\nname = "shop"\n', ("--exclude-path", CONFIGURATIONS[0], "--exclude-method", CONFIGURATIONS[1])),
        ("", ("--include-path", CONFIGURATIONS[0])),
        ('[parameters]\nname = "shop"\n', ("--include-method", CONFIGURATIONS[1])),
    ],
    ids=["any name", "a replicator's name", "validate", "put"],
)
def test_no_request_makes_the_server_fail_or_hang(tmp_path: Path, config: str, chosen: tuple[str, ...]) -> None:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator("shop", "name: shop\n", str(tmp_path / "journal"))
    # The lease is the test's, so that no worker acts on what is asked for.
    lease = present(store.leases.acquire("shop", holder_id(), 3600))
    table = TableRecord(table=TableId("public", "orders"), incarnation=1, stage=Stage.STREAMING)
    store.put_tables("shop", lease.epoch, [table])
    _, token = tokens.create(store, "fuzzer", Scope.CONFIGURE, None)
    store.close()
    (tmp_path / "schemathesis.toml").write_text(config, encoding="utf-8")
    with serving(tmp_path, "--requests-per-second", "100000") as server:
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")), "--config-file", "schemathesis.toml", "run",
                f"http://127.0.0.1:{server.port}/api/v1/openapi.json", "--phases", "coverage,fuzzing", "--checks", CHECKS,
                "--max-examples", "20", "--max-time", str(TIME_S), "--request-timeout", "90", "--seed", "1", "--no-color",
                "--header", f"Authorization: Bearer {token}", *chosen,
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert server.ask("/readyz").status == 200
    assert "request_failed" not in "".join(server.lines)
