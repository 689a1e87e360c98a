"""What a killed process leaves is removed; what a living one holds stays."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("made", ["a folder of another user", "a link"])
def test_where_everybody_may_make_folders_one_of_another_user_is_refused(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybodys, others = tmp_path / "everybodys", tmp_path / "others"
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    others.mkdir()
    parent = everybodys / "replicator-1000"
    if made == "a link":
        parent.symlink_to(others)
    else:
        parent.mkdir()
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(OSError, match=str(parent)):
        ScratchFolder(parent)
    assert list(parent.iterdir()) == []


def test_where_everybody_may_make_folders_ours_is_closed_to_them(tmp_path: Path) -> None:
    everybodys = tmp_path / "everybodys"
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    parent = everybodys / "replicator-1000"
    parent.mkdir()
    parent.chmod(0o777)
    folder = ScratchFolder(parent)
    assert stat.S_IMODE(parent.stat().st_mode) == 0o700
    folder.remove()
