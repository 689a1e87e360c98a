"""What a killed process leaves is removed; what a living one holds stays."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from replicator.spark.scratch import ScratchFolder

_HOLD = """
import pathlib, sys
from replicator.spark.scratch import ScratchFolder
held = ScratchFolder(pathlib.Path(sys.argv[1]))
print(held.path, flush=True)
sys.stdin.read()
"""


def test_only_what_nobody_holds_is_removed(tmp_path: Path) -> None:
    mine = ScratchFolder(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        (theirs / "blocks").mkdir()
        another = ScratchFolder(tmp_path)
        assert mine.path.is_dir()
        assert theirs.is_dir()
        other.send_signal(signal.SIGKILL)
        other.wait()
    another.remove()
    last = ScratchFolder(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine.path, last.path])
    mine.remove()
    last.remove()
    assert list(tmp_path.iterdir()) == []
