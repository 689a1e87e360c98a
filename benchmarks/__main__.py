"""`python -m benchmarks [NAME…]`: run benchmarks and print their figures."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks import report
from benchmarks.measure import busy_cores, machine, say
from benchmarks.scale import Scale

NAMES: Final = (
    "snapshot", "changes", "apply", "start", "freshness", "many_tables", "thousand_tables", "memory", "mysql_decode",
    "mysql_snapshot", "verify", "readers", "sqlserver_changes", "projection",
    "sqlserver_chunks",
)  # fmt: skip
LONG_NAMES: Final = ("hour", "hour_tables")
"""Run where they are asked for: each takes more than an hour."""
QUICK_ROWS: Final = 20_000


def main(arguments: list[str]) -> int:
    """Run what is asked for; exit 0 whatever the figures are, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which of {', '.join(NAMES)} (default: all), or {' or '.join(LONG_NAMES)}",
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="how often each side is run (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="how long the long ones measure (default: %(default)s)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a small run, whose figures mean nothing, to see that everything works"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(".benchmarks"),
        help="folder for figures.json and figures.md (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in NAMES + LONG_NAMES]:
        parser.error(f"there is no benchmark {unknown[0]!r}, only {', '.join(NAMES + LONG_NAMES)}")
    scale = (
        Scale(rows=QUICK_ROWS, repetitions=1, is_quick=True, minutes=0.5)
        if options.quick
        else Scale(rows=options.rows, repetitions=options.repetitions, minutes=options.minutes)
    )
    facts = {
        **machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores busy at the start": f"{busy_cores():.1f}",
    }
    reports = []
    for name in options.names or NAMES:
        say(f"== {name}")
        reports.append(importlib.import_module(f"benchmarks.{name}").run(scale))
        facts["at the end"] = f"{busy_cores():.1f}"
        # After each, so that a long run that is cut short has left something.
        report.write(reports, facts, options.output)
    print(report.markdown(reports, facts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
