"""SIGTERM at any moment of a start, which a hook holds open: the process ends with status 0."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from replicator.runtime.process import child

_HOLD = '''
"""Holds the import of a module open."""
import os, sys

class Hold:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["HELD_AT"]:
            os.write(1, b"held\\n")
            while True:
                os.read(int(os.environ["HELD_BY"]), 1)

sys.meta_path.insert(0, Hold())
'''
REPLICATOR = [str(Path(sys.executable).with_name("replicator"))]


@pytest.mark.parametrize(
    ("command", "held_at"),
    [
        ([*REPLICATOR, "run", "shop.yaml"], "replicator.cli.entry"),
        ([*REPLICATOR, "serve"], "replicator.cli.serve"),
        ([*REPLICATOR, "alert", "watch"], "replicator.cli.main"),
        ([*child("replicator.runtime.worker"), "capture", "shop", "1"], "replicator.plugins"),
        ([*child("replicator.service.watching")], "replicator.service.watching"),
        ([*child("replicator.web.__main__"), "0"], "uvicorn"),
    ],
    ids=["run", "serve", "alert watch", "worker", "watching", "web"],
)
def test_sigterm_while_a_program_is_loaded_ends_it_cleanly(tmp_path: Path, command: list[str], held_at: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(_HOLD, encoding="utf-8")
    held_by, release = os.pipe()
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "HELD_AT": held_at, "HELD_BY": str(held_by)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, env=environ, cwd=tmp_path, pass_fds=(held_by,)
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    os.close(release)
    os.close(held_by)


def test_a_command_that_ends_by_itself_is_killed_as_ever(tmp_path: Path) -> None:
    """Status 0 of `validate` says that nothing was found."""
    (tmp_path / "sitecustomize.py").write_text(_HOLD, encoding="utf-8")
    held_by, release = os.pipe()
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "HELD_AT": "replicator.cli.entry", "HELD_BY": str(held_by)}
    command = [*REPLICATOR, "validate", "shop.yaml"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, pass_fds=(held_by,)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    os.close(release)
    os.close(held_by)
