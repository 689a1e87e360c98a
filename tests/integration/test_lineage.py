"""Lineage of a real process: what it says is said once, also by the next one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from replicator.model.schema import Column, TableId, TableSchema
from replicator.runtime.watch_process import LOOK_VARIABLE
from replicator.state import holder_id
from replicator.state.records import Stage, TableRecord
from replicator.state.store import StateStore
from replicator_testbed.network.rest import command
from replicator_testbed.present import present
from replicator_testing.waiting import PATIENCE, wait_until

CONFIG = """\
name: shop
source: {{type: postgresql, host: db.internal, user: u, password: "${{env:TEST_PASSWORD}}", database: shop}}
target: {{type: delta, path: /lake}}
lineage: {{file: {file}}}
"""
TABLE = TableId("public", "orders")
ID = Column(name="id", type=pa.int64(), source_type="bigint", nullable=False)
NAME = Column(name="name", type=pa.string(), source_type="text")


def told(file: Path, number: int) -> list[str]:
    """What so many events say, once they are there."""

    def read() -> list[str] | None:
        lines = file.read_text().splitlines() if file.exists() else []
        return lines if len(lines) >= number else None

    return [json.loads(line)["eventType"] for line in wait_until(read, f"{number} events are there")]


def watching(home: Path) -> subprocess.Popen[str]:
    environ = {**os.environ, "REPLICATOR_HOME": str(home), "TEST_PASSWORD": "hunter2hunter2", LOOK_VARIABLE: "0.1"}
    return subprocess.Popen(command("alert", "watch"), env=environ, text=True)


@pytest.mark.matrix
def test_a_process_that_is_killed_says_nothing_twice(tmp_path: Path) -> None:
    file = tmp_path / "lineage.ndjson"
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    store.create_replicator("shop", CONFIG.format(file=file), "/j")
    lease = present(store.leases.acquire("shop", holder_id(), 600))
    run = store.runs.start(lease)

    def put(*columns: Column) -> None:
        schema = TableSchema(table=TABLE, columns=columns, key=("id",))
        record = TableRecord(table=TABLE, incarnation=1, stage=Stage.STREAMING, schema=schema)
        store.put_tables("shop", lease.epoch, [record])

    put(ID)
    first = watching(tmp_path)
    assert told(file, 1) == ["START"]
    first.kill()
    first.wait()
    second = watching(tmp_path)
    put(ID, NAME)
    assert told(file, 2) == ["START", "RUNNING"]
    store.runs.end(lease, run, "stopped", None)
    assert told(file, 3) == ["START", "RUNNING", "COMPLETE"]
    second.terminate()
    assert second.wait(60 * PATIENCE) == 0
    assert "hunter2" not in file.read_text()
    store.close()
