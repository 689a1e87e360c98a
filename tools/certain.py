"""Run `make test` again and again, to see whether it ever fails by chance: `make test-certain`.

Each run adds a line to `tests/certain.jsonl`: when, at which commit, next to which load, for how many seconds, and what failed.
Every second run is next to a load of busy processes, until enough runs in a row had no failure, whatever their commits. With
`--measured` no such process is started: the load is then what else wanted a processor while the run lasted. A run that was
interrupted leaves no line; the next call continues with what is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = ROOT / "tests" / "certain.jsonl"
LOGS: Final = ROOT / ".certain"
# What the environment of every process of a run has, by which the load tells them from the rest.
MARK: Final = "REPLICATOR_CERTAIN"
SAMPLE_SECONDS: Final = 5.0


def runs_in_a_row(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest runs without a failure, oldest first; each line names its commit."""
    found: list[dict[str, Any]] = []
    for line in reversed(lines):
        if line["failures"]:
            break
        found.insert(0, line)
    return found


def next_load(row: Sequence[dict[str, Any]], *, runs: int, loaded: int, load: int) -> int | None:
    """How many busy processes run next to the next run; None if there were runs enough."""
    with_load = sum(1 for line in row if line["load"] >= load)
    if len(row) >= runs and with_load >= loaded:
        return None
    wants_load = with_load < loaded and (len(row) % 2 == 1 or runs - len(row) <= loaded - with_load)
    return load if wants_load else 0


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def others_running(mark: str, processes: Path = Path("/proc")) -> int:
    """The number of threads that compute or wait for a disk, as in the load average, without those of the run itself."""
    count = 0
    for process in processes.glob("[0-9]*"):
        try:
            if int(process.name) == os.getpid() or f"{MARK}={mark}".encode() in (
                process / "environ"
            ).read_bytes().split(b"\0"):
                continue
            # The state is the first field after the name, which may itself have brackets.
            states = [stat.read_text(errors="replace").rpartition(") ")[2][:1] for stat in process.glob("task/*/stat")]
        except OSError:
            continue  # It has ended, or belongs to somebody else.
        count += sum(1 for state in states if state in ("R", "D"))
    return count


@contextlib.contextmanager
def load_measured(mark: str) -> Iterator[list[int]]:
    """Collect every few seconds how many threads other than those of the run wanted a processor."""
    samples: list[int] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            samples.append(others_running(mark))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def failures(text: str) -> list[str]:
    """The tests that failed, by what pytest printed."""
    return sorted({line.split()[1] for line in text.splitlines() if re.match(r"(FAILED|ERROR) \S+", line)})


def run(command: Sequence[str], load: int | None, log: Path) -> dict[str, Any]:
    """Run the tests once next to a load (None: next to what there is); return the line of the record, without the commit."""
    began = time.monotonic()
    mark = str(os.getpid())
    with busy(load or 0), load_measured(mark) as samples, log.open("wb") as output:
        # Waits that end in vain wait longer before they say so, as in CI.
        environment = {"REPLICATOR_TEST_PATIENCE": "3", **os.environ, MARK: mark}
        code = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    found = failures(log.read_text(errors="replace"))
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        **({"load": load} if load is not None else {"load": measured(samples), "measured": True}),
        "seconds": round(time.monotonic() - began),
        "failures": found if found or code == 0 else [f"exit code {code}"],
    }


def measured(samples: Sequence[int]) -> float:
    """The mean of the samples."""
    return round(statistics.fmean(samples), 1) if samples else 0.0


def commit() -> str:
    """The commit that is checked out."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return head.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left; return the exit code: 1 after a run with a failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="so many runs in a row")
    parser.add_argument("--loaded", type=int, default=5, help="so many of them next to a load")
    parser.add_argument("--load", type=int, default=6, help="so many busy processes")
    parser.add_argument(
        "--measured", action="store_true", help="start no busy processes; measure what else the machine does"
    )
    parser.add_argument("--once", action="store_true", help="one run, whatever is left")
    parser.add_argument("command", nargs="*", default=["make", "test"], help="what is run")
    chosen = parser.parse_args(arguments)
    LOGS.mkdir(exist_ok=True)
    while True:
        lines = [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []
        row = runs_in_a_row(lines)
        load = next_load(row, runs=chosen.runs, loaded=chosen.loaded, load=chosen.load)
        if load is None and not chosen.once:
            with_load = sum(1 for line in row if line["load"] >= chosen.load)
            print(f"{len(row)} runs in a row without a failure, {with_load} of them next to a load")
            return 0
        log = LOGS / f"{len(lines) + 1}.log"
        line = {"commit": commit(), **run(chosen.command, None if chosen.measured else load or 0, log)}
        with RECORD.open("a", encoding="utf-8") as record:
            record.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        if line["failures"]:
            print(f"see {LOGS.name}/{log.name}")
            return 1
        if chosen.once:
            return 0


if __name__ == "__main__":
    raise SystemExit(main())
