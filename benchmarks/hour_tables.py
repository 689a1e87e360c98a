"""The product for an hour with a hundred small tables and one transaction a second each."""

from __future__ import annotations

from benchmarks.hour import load_of, report
from benchmarks.report import Report
from benchmarks.scale import Scale


def run(scale: Scale) -> Report:
    """As `hour`; the first of the tables is read."""
    tables, held_rows = (4 if scale.is_quick else 100), scale.rows // 1000
    load = load_of(scale, tables=tables, held_rows=held_rows, rate=tables)
    return report("hour_tables", f"{tables} tables of {held_rows:,} rows, {tables} transactions/s in all", load)
