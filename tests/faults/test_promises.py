"""Every promise of the README has a script that shows it, and the script holds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from replicator_testing.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples" / "promises").glob("*.py"))


@pytest.mark.matrix
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_promise_is_kept(script: Path) -> None:
    # Without Spark, whose starts would take most of the time; by default the targets are Delta tables.
    done = subprocess.run(
        [sys.executable, str(script), "--target", "duckdb"],
        capture_output=True,
        text=True,
        timeout=300 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_each_promise_has_a_script() -> None:
    promises = re.findall(r"^(\d)\. \*\*", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    shown = [re.findall(r"^\"\"\"Promise (\d):", script.read_text(encoding="utf-8")) for script in SCRIPTS]
    assert sorted(number for [number] in shown) == promises
