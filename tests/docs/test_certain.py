"""`make test-certain` runs what is left of ten runs in a row; threads yield, and processes stand still, where they are told to."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from replicator.model.schema import TableId
from replicator_testbed import yielding
from replicator_testbed.processes import put_to_sleep, wake
from replicator_testing.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def certain() -> ModuleType:
    spec = importlib.util.spec_from_file_location("certain_tool", ROOT / "tools" / "certain.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(commit: str = "a", load: float = 0, failures: Sequence[str] = ()) -> dict[str, Any]:
    return {"commit": commit, "load": load, "failures": list(failures)}


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        ([], 0),
        ([line(), line(load=6)], 2),
        ([line(), line("b")], 2),
        ([line(), line(failures=["test_one"]), line()], 1),
        ([line(), line(), line(failures=["test_one"])], 0),
    ],
)
def test_runs_in_a_row_are_the_newest_without_a_failure_whatever_their_commits(
    certain: ModuleType, lines: list[dict[str, Any]], count: int
) -> None:
    assert len(certain.runs_in_a_row(lines)) == count


def test_ten_runs_are_done_five_of_them_next_to_a_load(certain: ModuleType) -> None:
    row: list[dict[str, Any]] = []
    while (load := certain.next_load(row, runs=10, loaded=5, load=6)) is not None:
        row.append(line(load=load))
    assert len(row) == 10
    assert [one["load"] for one in row].count(6) == 5
    assert {certain.next_load(row[:n], runs=10, loaded=5, load=6) for n in range(10)} == {0, 6}


def test_a_run_that_fails_without_a_test_that_failed_is_a_failure(certain: ModuleType, tmp_path: Path) -> None:
    found = certain.run([sys.executable, "-c", "raise SystemExit(3)"], 1, tmp_path / "log")
    assert (found["load"], found["failures"]) == (1, ["exit code 3"])
    printed = "print('FAILED tests/a.py::test_one - no'); raise SystemExit(1)"
    assert certain.run([sys.executable, "-c", printed], 0, tmp_path / "log")["failures"] == ["tests/a.py::test_one"]
    assert certain.run([sys.executable, "-c", ""], 0, tmp_path / "log")["failures"] == []


def test_a_measured_load_is_what_other_processes_want(
    certain: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for process, mark, states in (("10", "7", "RR"), ("11", "8", "RSD"), ("12", "77", "R")):
        (tmp_path / process).mkdir()
        (tmp_path / process / "environ").write_bytes(f"HOME=/\0{certain.MARK}={mark}\0".encode())
        for number, state in enumerate(states):
            task = tmp_path / process / "task" / str(number)
            task.mkdir(parents=True)
            (task / "stat").write_text(f"{number} (of a (test)) {state} 1 2 3")
    (tmp_path / "13").mkdir()
    assert certain.others_running("7", tmp_path) == 3
    assert certain.others_running("9", tmp_path) == 5
    assert certain.others_running("7") >= 0

    monkeypatch.setattr(certain, "SAMPLE_SECONDS", 0.01)
    script = f"import os, time; time.sleep(0.2); assert os.environ['{certain.MARK}']"
    with certain.busy(2):
        found = certain.run([sys.executable, "-c", script], None, tmp_path / "log")
    assert found["load"] >= 1
    assert (found["measured"], found["failures"]) == (True, [])


def test_threads_yield_in_code_of_the_host_and_no_longer_than_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[int] = []
    monkeypatch.setattr(time, "sleep", lambda _: slept.append(threading.get_ident()))

    def work() -> None:
        for n in range(100):
            str(TableId("shop", f"t{n}"))

    before = sys.getswitchinterval()
    with yielding.yields_at_random(1, every=5):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        work()
    assert len(set(slept)) == 2
    count = len(slept)
    work()
    assert (len(slept), sys.getswitchinterval()) == (count, before)
    assert sys.getprofile() is None


def test_a_process_that_was_put_to_sleep_does_nothing_more(tmp_path: Path) -> None:
    script = """
import sys, threading
def work():
    while True:
        open(sys.argv[1], "a").write("x")
for _ in range(3):
    threading.Thread(target=work).start()
"""
    written = tmp_path / "written"
    with subprocess.Popen([sys.executable, "-c", script, str(written)]) as process:
        wait_until(written.exists, "it writes")
        sleeper = psutil.Process(process.pid)
        sizes = [0]
        for _ in range(10):
            put_to_sleep([sleeper])
            sizes.append(written.stat().st_size)
            assert written.stat().st_size == sizes[-1]
            wake([sleeper])
            wait_until(lambda: written.stat().st_size > sizes[-1], "it writes again", every_s=0.01)
        process.kill()
