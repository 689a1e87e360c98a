"""Where scratch servers have their files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from replicator_testbed import scratch_servers
from replicator_testbed.in_memory import remove_forgotten
from replicator_testbed.scratch_servers import folder_in_memory


@pytest.mark.parametrize(
    ("needed", "environ", "expected"),
    [(1, {}, True), (1 << 60, {}, False), (1, {"TMPDIR": "/var/tmp"}, False)],
    ids=["room", "no room", "somebody says where"],
)
def test_memory_is_used_where_there_is_room_and_nobody_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: int, environ: dict[str, str], *, expected: bool
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(scratch_servers, "MEMORY", tmp_path)
    monkeypatch.setattr(scratch_servers, "MEMORY_BYTES_MIN", needed)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert folder_in_memory() == (tmp_path if expected else None)


def test_a_machine_without_such_files_uses_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(scratch_servers, "MEMORY", tmp_path / "none")
    assert folder_in_memory() is None


def test_what_a_run_that_was_killed_left_in_memory_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    for pid in (ended.pid, os.getpid()):
        (tmp_path / f"replicator-tests-{pid}" / "server").mkdir(parents=True)
    remove_forgotten(tmp_path)
    assert [folder.name for folder in tmp_path.iterdir()] == [f"replicator-tests-{os.getpid()}"]
