"""Run what `make test` leaves out, part by part, and keep a record of what was green when: `make test-matrix`.

A part is a file of tests with those marked `matrix` or `soak`, or a version of a server (`versions/mysql-8.0`). The record,
`tests/matrix.json`, says of each part at which commit it was last green. A part is run again when something was changed since
then that it is about (`TOUCHES`); so a run that was interrupted continues with what is left. What is left is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from server_versions import SERVERS

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = ROOT / "tests" / "matrix.json"
LOGS: Final = ROOT / ".matrix"
MARKS: Final = "(matrix or soak) and not bench"
NO_TESTS: Final = 5
"""pytest's exit code for a run that had nothing to do."""

EVERYTHING: Final = ("*",)
TOUCHES: Final[Mapping[str, Sequence[str]]] = {
    "docs/": (),
    "benchmarks/": (),
    "tests/unit/": ("tests/unit/*",),
    "tests/simulation/": ("tests/simulation/*",),
    "tests/integration/": ("tests/integration/*",),
    "tests/faults/": ("tests/faults/*",),
    "tests/testbed/": ("tests/testbed/*",),
    "tests/": (),
    "examples/": ("examples/*",),
    "plugins/sources/mysql/": ("plugins/sources/mysql/*", "*mysql*", "versions/m*"),
    "plugins/sources/postgresql/": ("plugins/sources/postgresql/*", "*postgresql*"),
    "plugins/sources/sqlserver/": ("plugins/sources/sqlserver/*", "*sqlserver*"),
    "plugins/targets/bigquery/": ("plugins/targets/bigquery/*", "tests/faults/*"),
    "plugins/targets/delta/": (
        "plugins/targets/delta/*",
        "tests/faults/*",
        "tests/integration/test_reduce*",
        "*spark*",
    ),
    "plugins/targets/duckdb/": ("plugins/targets/duckdb/*", "tests/faults/*"),
    "testbed/replicator_testbed/sqlserver/": ("tests/testbed/sqlserver/*", "*sqlserver*"),
    "replicator/web/": ("tests/integration/test_rest*", "*dashboard*"),
    "replicator/spark/": ("*spark*", "*reduce*", "plugins/targets/delta/*"),
    "replicator/verify/": ("*verif*",),
    "replicator/observability/": ("*alerts*", "*lineage*", "*prometheus*"),
    "replicator/cli/": ("tests/faults/*",),
    "replicator/config/": ("tests/faults/*",),
    "tools/server_versions.py": ("versions/*",),
    "tools/": (),
    "Makefile": (),
    ".gitignore": (),
    "": EVERYTHING,
}
"""The parts that a change below a path is about; the longest path that fits counts."""


def touched(changed: Iterable[str], parts: Sequence[str]) -> frozenset[str]:
    """The parts that changes of these files are about."""
    found: set[str] = set()
    for file in changed:
        if file.endswith(".md"):
            continue
        folder = max((prefix for prefix in TOUCHES if file.startswith(prefix)), key=len)
        found.update(part for part in parts if any(fnmatchcase(part, pattern) for pattern in TOUCHES[folder]))
        found.update(part for part in parts if part == file)
    return frozenset(found)


@dataclass(kw_only=True)
class Outcome:
    """What a run of pytest said in its last line."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0

    @classmethod
    def read(cls, text: str) -> Outcome:
        """From what a run printed."""
        lines = [
            line
            for line in text.splitlines()
            if re.search(r"\d+ (passed|failed|error|skipped|deselected).* in [\d.]+s", line)
        ]
        if not lines:
            return cls()
        counts = Counter({word: int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", lines[-1].split(" in ")[0])})
        return cls(counts=counts, seconds=float(re.findall(r" in ([\d.]+)s", lines[-1])[0]))

    def add(self, other: Outcome) -> None:
        """Count what another run said, too."""
        self.counts.update(other.counts)
        self.seconds += other.seconds

    def __str__(self) -> str:
        """As pytest writes it."""
        said = [
            f"{self.counts[word]} {word}"
            for word in ("failed", "passed", "skipped", "xfailed", "error", "errors")
            if self.counts[word]
        ]
        return f"{', '.join(said) or 'no tests ran'} in {self.seconds:.2f}s"


class Record:
    """`tests/matrix.json`."""

    def __init__(self, path: Path = RECORD) -> None:
        self._path = path
        self.parts: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def green(self, part: str) -> str | None:
        """The commit at which a part was last green, if it is so still."""
        entry = self.parts.get(part, {})
        return None if "red" in entry else entry.get("commit")

    def keep(self, part: str, *, commit: str, outcome: Outcome, is_green: bool) -> None:
        """Note how a part ended. What is red keeps the commit at which it was green."""
        now = datetime.now(UTC).date().isoformat()
        if is_green:
            self.parts[part] = {
                "commit": commit,
                "date": now,
                "seconds": round(outcome.seconds),
                "passed": outcome.counts["passed"],
            }
        else:
            self.parts.setdefault(part, {})["red"] = {
                "commit": commit,
                "date": now,
                "failed": outcome.counts["failed"] + outcome.counts["errors"] + outcome.counts["error"],
            }
        self._path.write_text(json.dumps(dict(sorted(self.parts.items())), indent=1) + "\n", encoding="utf-8")


def all_parts() -> list[str]:
    """Every part: files with tests of the matrix, and versions of servers."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", MARKS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {line.partition("::")[0] for line in listed.splitlines() if "::" in line}
    return [*sorted(files), *(f"versions/{name}" for name in sorted(SERVERS))]


def git(*arguments: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def stale(record: Record, parts: Sequence[str]) -> list[str]:
    """The parts that are not green, or were green before a change that they are about."""
    changed: dict[str, frozenset[str]] = {}
    found = []
    for part in parts:
        commit = record.green(part)
        if (
            commit is None
            or subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, capture_output=True, check=False).returncode
        ):
            found.append(part)
            continue
        if commit not in changed:
            changed[commit] = touched(git("diff", "--name-only", commit).splitlines(), parts)
        if part in changed[commit]:
            found.append(part)
    return found


def run(part: str, *, within_s: float | None) -> tuple[Outcome, bool | None]:
    """Run a part; whether it is green, or None if its time was over before."""
    LOGS.mkdir(exist_ok=True)
    log = LOGS / (part.replace("/", "-") + ".log")
    environ = dict(os.environ)
    if part.startswith("versions/"):
        command = [sys.executable, str(ROOT / "tools" / "server_versions.py")]
        environ["VERSIONS"] = part.removeprefix("versions/")
    else:
        command = [sys.executable, "-m", "pytest", "-q", "-m", MARKS, "--timeout=0", part]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            # Its servers and workers end with it; pytest's own handling of an interrupt removes them.
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return Outcome(), None
    return Outcome.read(log.read_text(errors="replace")), code in {0, NO_TESTS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; return the exit code: 1 if a part that was green is red."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", help="patterns of parts (tests/faults/*, versions/*); without any: all that are stale"
    )
    parser.add_argument(
        "--list", action="store_true", help="say which parts there are and which are stale; run nothing"
    )
    parser.add_argument("--seconds", type=float, help="begin and continue no part after so many seconds")
    parser.add_argument(
        "--recorded", action="store_true", help="only parts that the record has green; write no record (CI)"
    )
    parser.add_argument("--after", type=Path, help="what `make test` printed; the last line counts both")
    chosen = parser.parse_args(arguments)

    record = Record()
    parts = [part for part in record.parts if record.green(part)] if chosen.recorded else all_parts()
    wanted = [p for p in parts if not chosen.parts or any(fnmatchcase(p, pattern) for pattern in chosen.parts)]
    left = stale(record, wanted)
    if chosen.list:
        for part in wanted:
            entry = record.parts.get(part, {})
            print(
                f"{'stale' if part in left else 'green'}  {part}  {entry.get('date', 'never')} {entry.get('commit', '')[:12]}"
            )
        return 0
    ends = time.monotonic() + chosen.seconds if chosen.seconds is not None else None
    total = Outcome.read(chosen.after.read_text(errors="replace")) if chosen.after else Outcome()
    # CI writes no record, and may run outside of a repository.
    commit = "" if chosen.recorded else git("rev-parse", "HEAD")
    red: list[str] = []
    unreached: list[str] = []
    for part in left:
        remaining = None if ends is None else ends - time.monotonic()
        outcome, is_green = (
            (Outcome(), None) if remaining is not None and remaining <= 0 else run(part, within_s=remaining)
        )
        if is_green is None:
            unreached.append(part)
            continue
        total.add(outcome)
        print(f"{'green' if is_green else 'RED  '} {part}: {outcome}", flush=True)
        if not is_green:
            red.append(part)
        if not chosen.recorded:
            record.keep(part, commit=commit, outcome=outcome, is_green=is_green)
    for part in unreached:
        print(f"not reached: {part}")
    for part in red:
        print(f"red: {part}; see {LOGS.relative_to(ROOT)}/{part.replace('/', '-')}.log")
    print(f"===== {total} =====")
    return 1 if red else 0


if __name__ == "__main__":
    raise SystemExit(main())
