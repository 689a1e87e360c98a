"""Example plugins are small, and install as `docs/plugins.md` tells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from replicator_testing.waiting import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
LINES_MAX = 300


def examples() -> list[Path]:
    found = [path.parent for path in EXAMPLES.glob("*/pyproject.toml")]
    assert found
    return sorted(found)


@pytest.mark.parametrize("folder", examples(), ids=lambda folder: folder.name)
def test_an_example_is_read_in_one_sitting(folder: Path) -> None:
    """A longer one means that the interface or the kit lacks something."""
    (package,) = folder.glob("replicator_*")
    lines = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in package.glob("*.py")}
    assert sum(lines.values()) < LINES_MAX, lines


@pytest.mark.sampled(1)
@pytest.mark.parametrize("folder", examples(), ids=lambda folder: folder.name)
def test_an_installed_example_is_found_by_its_entry_point(folder: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*pip, str(tmp_path), str(folder)], check=True, capture_output=True, timeout=200 * PATIENCE)
    name, kind = folder.name.split("-")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    answer = subprocess.run(
        [sys.executable, "-m", "replicator.cli", "plugins"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=200 * PATIENCE,
    )
    assert answer.returncode == 0, answer.stderr
    (line,) = [line for line in answer.stdout.splitlines() if line.split()[:2] == [name, kind]]
    assert "ok" in line.split()
