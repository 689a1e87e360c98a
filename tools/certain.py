"""Run `make test` again and again, to see whether it ever fails by chance: `make test-certain`.

Each run adds a line to `tests/certain.jsonl`: when, at which commit, next to how many busy processes, for how many seconds, and
what failed. Every second run is next to a load, until enough runs in a row, at this commit, had no failure. A run that was
interrupted leaves no line; the next call continues with what is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = ROOT / "tests" / "certain.jsonl"
LOGS: Final = ROOT / ".certain"


def runs_in_a_row(lines: Sequence[dict[str, Any]], commit: str) -> list[dict[str, Any]]:
    """The newest runs of a commit without a failure, oldest first."""
    found: list[dict[str, Any]] = []
    for line in reversed(lines):
        if line["commit"] != commit or line["failures"]:
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


def failures(text: str) -> list[str]:
    """The tests that failed, by what pytest printed."""
    return sorted({line.split()[1] for line in text.splitlines() if re.match(r"(FAILED|ERROR) \S+", line)})


def run(command: Sequence[str], load: int, log: Path) -> dict[str, Any]:
    """Run the tests once next to a load; return the line of the record, without the commit."""
    began = time.monotonic()
    with busy(load), log.open("wb") as output:
        code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    found = failures(log.read_text(errors="replace"))
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": load,
        "seconds": round(time.monotonic() - began),
        "failures": found if found or code == 0 else [f"exit code {code}"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left; return the exit code: 1 after a run with a failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="so many runs in a row")
    parser.add_argument("--loaded", type=int, default=5, help="so many of them next to a load")
    parser.add_argument("--load", type=int, default=6, help="so many busy processes")
    parser.add_argument("command", nargs="*", default=["make", "test"], help="what is run")
    chosen = parser.parse_args(arguments)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    LOGS.mkdir(exist_ok=True)
    while True:
        lines = [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []
        row = runs_in_a_row(lines, commit)
        load = next_load(row, runs=chosen.runs, loaded=chosen.loaded, load=chosen.load)
        if load is None:
            print(f"{len(row)} runs in a row without a failure, {sum(1 for r in row if r['load'])} next to a load")
            return 0
        line = {"commit": commit, **run(chosen.command, load, LOGS / f"{len(lines) + 1}.log")}
        with RECORD.open("a", encoding="utf-8") as record:
            record.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        if line["failures"]:
            print(f"see {LOGS.name}/{len(lines) + 1}.log")
            return 1


if __name__ == "__main__":
    raise SystemExit(main())
