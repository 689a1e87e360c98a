"""A failure is named when it happens, by whichever process of the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from replicator_testing.waiting import PATIENCE

TESTS = """
import pytest

@pytest.fixture
def broken():
    raise RuntimeError("no server")

def test_good():
    pass

def test_bad():
    assert 1 == 2, "one is not two"

def test_without_its_fixture(broken):
    pass
"""


@pytest.mark.matrix
@pytest.mark.parametrize("processes", [0, 1])
def test_each_failure_is_named_once_before_the_summary(tmp_path: Path, processes: int) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    options = f"-p no:bqemulator -p replicator_testbed.failures -n {processes}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120 * PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    shown, _, _ = done.stdout.partition("= ERRORS =")
    lines = [line for line in shown.splitlines() if line.startswith("FAILED ")]
    assert [line.partition(" s): ")[2] for line in lines] == [
        "AssertionError: one is not two",
        "RuntimeError: no server",
    ]
    assert [line.split()[1] for line in lines] == ["test_it.py::test_bad", "test_it.py::test_without_its_fixture"]
