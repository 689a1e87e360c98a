"""The most memory that the Python processes take, in addition to Spark's JVM: in a first snapshot, and in one very large transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks import data
from benchmarks.captured import ITEMS
from benchmarks.measure import peak_rss_mib, say, shared_once_mib
from benchmarks.product import Product, running
from benchmarks.report import Line, Report, at_most
from benchmarks.scale import Scale

GOAL_MIB: Final = 512
_ROLES: Final = ("supervisor", "capture", "apply")
_TOGETHER: Final = "together"
_TIMEOUT_S: Final = 1800.0


def run(scale: Scale) -> Report:
    """Copy the table three times the usual size, then change twice the usual size in one transaction."""
    first, changed = 3 * scale.rows, 2 * scale.rows
    with data.server() as server, server.database("bench") as database:
        data.create_table(database)
        say(f"memory: loading {first:,} rows")
        data.insert(database, 1, first)
        with running(database) as product:
            peaks = {f"first snapshot of {first:,} rows": _peaks(product, first)}
            _forget_peaks(product)
            say(f"memory: one transaction of {changed:,} rows")
            data.insert(database, first + 1, changed)
            peaks[f"one transaction of {changed:,} inserts"] = _peaks(product, first + changed)
    lines: list[Line] = []
    for what, by_role in peaks.items():
        lines += [at_most(f"{what}: {role}", by_role[role], None, "MiB") for role in _ROLES]
        lines.append(at_most(f"{what}: all, pages that they share counted once", by_role[_TOGETHER], GOAL_MIB, "MiB"))
    return Report(name="memory", lines=lines, raw=peaks)


def _peaks(product: Product, rows: int) -> dict[str, float]:
    """Wait until so many rows are applied; return each process's high-water mark, and the most seen of all together."""
    peaks = dict.fromkeys((*_ROLES, _TOGETHER), 0.0)

    def look() -> None:
        found = {role: process.pid for role, process in product.workers().items() if role in _ROLES}
        for role, pid in found.items():
            peaks[role] = max(peaks[role], peak_rss_mib(pid) or 0.0)
        peaks[_TOGETHER] = max(peaks[_TOGETHER], shared_once_mib(found.values()))

    product.wait_until_applied([ITEMS], lambda record: record.rows >= rows, timeout_s=_TIMEOUT_S, look=look)
    look()
    say("  " + ", ".join(f"{role} {mib:.0f} MiB" for role, mib in peaks.items()))
    return peaks


def _forget_peaks(product: Product) -> None:
    """Set the high-water marks back to what is resident now."""
    for role, process in product.workers().items():
        if role in _ROLES:
            Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")
