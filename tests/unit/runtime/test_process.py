"""Processes of ours run our modules, and no others of the same names."""

from __future__ import annotations

import subprocess
from pathlib import Path

from replicator.runtime.process import child

ROOT = Path(__file__).parents[3]


def test_a_file_of_the_current_folder_stands_in_for_no_module(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for name in ("replicator", "importlib", "signal"):
        (tmp_path / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r})\n")
    # It has no `main`, so the process ends once it is imported.
    said = subprocess.run(
        child("replicator.model.processes.ending"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "has no attribute 'main'" in said.stderr
    assert not ran.exists()


def test_one_module_starts_python() -> None:
    """So no other one forgets the option."""
    starting = [path for path in (ROOT / "replicator").rglob("*.py") if "sys.executable" in path.read_text("utf-8")]
    assert [path.relative_to(ROOT).as_posix() for path in starting] == ["replicator/runtime/process.py"]
