"""What a thousand small tables cost: their first snapshot, a cycle through all of them, and memory."""

from __future__ import annotations

from dataclasses import asdict

from benchmarks.hour import Seen, memory_lines
from benchmarks.report import Line, Report, at_most
from benchmarks.scale import Scale
from benchmarks.steady import Load, measure


def run(scale: Scale) -> Report:
    """A thousand tables of a hundred rows, and one transaction in ten seconds each. There are no goals."""
    tables, rate = (10, 5) if scale.is_quick else (1000, 100)
    seconds = 20 if scale.is_quick else 120
    load = Load(tables=tables, held_rows=scale.rows // 10_000, rate=rate, warm_s=seconds, measured_s=seconds)
    seen = Seen(table=load.names[0])
    measured = measure(load, "auto", look=seen.look)
    cycle = tables / rate
    lines = [
        at_most(f"{tables:,} tables of {load.held_rows} rows: from `run` to all visible", measured.first_s, None, "s"),
        at_most(f"{rate} transactions/s in all: commit → visible, p50", measured.age(0.5), None, "s"),
        at_most("commit → visible, p99", measured.age(0.99), None, "s"),
        at_most("time between two versions of a table, p50", measured.gap(), None, "s"),
        *(
            Line(
                what=f"processor time of the {role} while each table changes once",
                figure=f"{share * cycle:.2f} s",
                against=f"{cycle:.0f} s",
                ratio=share,
            )
            for role, share in sorted(measured.cores.items())
        ),
        *memory_lines(seen),
        at_most("cores that others used before or after", measured.busy_cores, None, "cores"),
    ]
    return Report(name="thousand_tables", lines=lines, raw={"load": asdict(load), "memory": seen.memory})
