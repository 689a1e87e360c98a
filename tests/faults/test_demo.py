"""The demo ends with equal sides, whatever it replicates between: the first command that a newcomer runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from replicator_testing.waiting import PATIENCE


@pytest.mark.matrix
@pytest.mark.parametrize("target", ["delta", "bigquery"])
@pytest.mark.parametrize("source", ["postgresql", "mysql"])
def test_the_demo_ends_with_source_and_target_equal(source: str, target: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "replicator.cli", "demo", "--source", source, "--target", target],
        capture_output=True,
        text=True,
        timeout=600 * PATIENCE,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "source == target" in output
    assert "DIFFERENT" not in output
