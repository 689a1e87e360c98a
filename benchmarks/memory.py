"""The most memory that the Python processes take, beside Spark's JVM: in a first copy, and in one very large transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks import data
from benchmarks.captured import ITEMS
from benchmarks.measure import peak_rss_mib, say
from benchmarks.product import Product, running
from benchmarks.report import Line, Report, at_most
from benchmarks.scale import Scale

GOAL_MIB: Final = 512
_ROLES: Final = ("supervisor", "capture", "apply")
_TIMEOUT_S: Final = 1800.0


def run(scale: Scale) -> Report:
    """Copy the table three times the usual size, then change twice the usual size in one transaction."""
    copied, changed = 3 * scale.rows, 2 * scale.rows
    with data.server() as server, server.database("bench") as database:
        data.create_table(database)
        say(f"memory: loading {copied:,} rows")
        data.insert(database, 1, copied)
        with running(database) as product:
            peaks = {f"first copy of {copied:,} rows": _peaks(product, copied)}
            _forget_peaks(product)
            say(f"memory: one transaction of {changed:,} rows")
            data.insert(database, copied + 1, changed)
            peaks[f"one transaction of {changed:,} inserts"] = _peaks(product, copied + changed)
    lines: list[Line] = []
    for what, by_role in peaks.items():
        lines += [at_most(f"{what}: {role}", mib, GOAL_MIB, "MiB") for role, mib in by_role.items()]
        lines.append(at_most(f"{what}: all", sum(by_role.values()), GOAL_MIB, "MiB"))
    return Report(name="memory", lines=lines, raw=peaks)


def _peaks(product: Product, rows: int) -> dict[str, float]:
    """Wait until so many rows are applied; return each process's high-water mark."""
    peaks = dict.fromkeys(_ROLES, 0.0)

    def look() -> None:
        for role, process in product.workers().items():
            if role in peaks:
                peaks[role] = max(peaks[role], peak_rss_mib(process.pid) or 0.0)

    product.wait_until_applied(ITEMS, lambda record: record.rows >= rows, timeout_s=_TIMEOUT_S, look=look)
    look()
    say("  " + ", ".join(f"{role} {mib:.0f} MiB" for role, mib in peaks.items()))
    return peaks


def _forget_peaks(product: Product) -> None:
    """Set the high-water marks back to what is resident now."""
    for role, process in product.workers().items():
        if role in _ROLES:
            Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")
