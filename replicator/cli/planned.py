"""Output of `plan` for a start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import click
from rich.text import Text

from replicator.cli import findings
from replicator.cli.show import Listing, size, terminal
from replicator.model.documents.ordering import natural
from replicator.model.errors import Severity
from replicator.model.figures import Basis, Figure
from replicator.service.plan.forecast import DAY_S, TableForecast, Totals
from replicator.service.plan.sampling import Sampled
from replicator.service.plan.start import StartPlan, is_blocked
from replicator.service.plan.start_document import StartPlanDocument
from replicator.service.status.snapshots import counted, duration

_NAMES_SHOWN: Final = 3
_HOURS_SHOWN_S: Final = 2 * DAY_S
_UNKNOWN: Final = "unknown"


def start_plan(found: StartPlan, file: str) -> None:
    """Print the tables, the totals, the basis of each figure, the findings, and a line of verdict unless something is blocking."""
    console = terminal()
    if found.forecast is not None and found.sampled is not None:
        console.print(_tables(found.forecast.tables))
        sample = found.sampled.read
        read = f"{counted(sample.rows, 'row')} of {counted(sample.tables, 'table')}, {size(sample.bytes)}, in {sample.seconds:.1f} s"
        lines = [
            *_totals(len(found.forecast.tables), found.forecast.totals, found.sampled),
            "How this is known:",
            *_hows(found.forecast.tables),
            f"Read from the source: {read}. Nothing else was executed there.",
        ]
        for line in lines:
            console.print(Text(line), soft_wrap=True)
    findings.findings(found.problems)
    if not is_blocked(found):
        console.print(Text(_verdict(found, file)), soft_wrap=True)


def start_plan_json(document: StartPlanDocument) -> None:
    """Print a plan document (`docs/start-plan.schema.json`)."""
    click.echo(document.model_dump_json(indent=2))


def _tables(tables: Sequence[TableForecast]) -> Listing:
    has_bill = any(one.billed_bytes_per_day is not None for one in tables)
    table = Listing("table", *_COLUMNS, *([_BILLED] if has_bill else []), box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for one in sorted(tables, key=lambda one: natural(one.table)):
        cells = [_cell(figure(one), text) for figure, text in _COLUMNS.values()]
        if has_bill:
            cells.append(_cell(one.billed_bytes_per_day, _size))
        table.add_row(one.table, *cells)
    return table


def _totals(count: int, found: Totals, sampled: Sampled) -> Sequence[str]:
    tables, rows = counted(count, "table"), _cell(found.rows, _number)
    held = f"{_cell(found.source_bytes, _size)} in the source, {_cell(found.target_bytes, _size)} in the target"
    changes, merges = _cell(found.changes_per_day, _number), _cell(found.merges_per_day, _number)
    log = f"The source's log: {_cell(found.log_bytes_per_day, _size)} a day ({found.log_bytes_per_day.how})."
    if found.log_pause_s is None:
        log += f" It is kept without a limit: {sampled.after.log_kept_how}."
    else:
        log += f" A worker may be stopped for {_cell(found.log_pause_s, _time)} ({found.log_pause_s.how})."
    lines = [
        f"In all: {tables}, {rows} rows, {held}.",
        f"First snapshot: {_cell(found.snapshot_s, _time)} until it is in the journal. How long the target takes is unknown.",
        f"Changes: {changes} a day, in {merges} batches, which write {_cell(found.target_bytes_per_day, _size)} a day.",
        f"Journal: {_cell(found.journal_bytes, _size)} ({found.journal_bytes.how}).",
    ]
    if found.billed_bytes_per_day is not None:
        lines.append(f"Billed: up to {_cell(found.billed_bytes_per_day, _size)} a day{_price(found)}.")
    return [*lines, log]


def _price(found: Totals) -> str:
    if found.usd_per_day is None or found.usd_per_day.value is None:
        return ""
    return f", USD {found.usd_per_day.value:,.2f} a day ({found.usd_per_day.how})"


def _hows(tables: Sequence[TableForecast]) -> Sequence[str]:
    """Return for each column the basis of its figures; tables with the same basis are named together."""
    lines: list[str] = []
    columns = {name: figure for name, (figure, _) in _COLUMNS.items()}
    for name, figure in columns.items():
        groups: dict[tuple[Basis, str], list[str]] = {}
        for one in tables:
            groups.setdefault((figure(one).basis, figure(one).how), []).append(one.table)
        for (basis, how), names in groups.items():
            of = "" if len(groups) == 1 else f" [{_named(names)}]"
            lines.append(f"  {name}: {basis}: {how}{of}")
    billed = {one.billed_bytes_per_day.how for one in tables if one.billed_bytes_per_day is not None}
    return lines + [f"  {_BILLED}: {how}" for how in sorted(billed)]


def _named(names: Sequence[str]) -> str:
    more = [f"… ({len(names)})"] if len(names) > _NAMES_SHOWN else []
    return ", ".join([*names[:_NAMES_SHOWN], *more])


def _cell(figure: Figure | None, text: Callable[[float], str]) -> str:
    if figure is None:
        return "-"
    if figure.value is None:
        return _UNKNOWN
    return f"{'~' if figure.basis is Basis.ESTIMATED else ''}{text(figure.value)}"


def _time(seconds: float) -> str:
    if seconds >= _HOURS_SHOWN_S:
        return f"{seconds / DAY_S:.1f} days"
    return f"{seconds:.2f} s" if seconds < 1 else duration(seconds)


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _size(value: float) -> str:
    return size(round(value))


def _verdict(found: StartPlan, file: str) -> str:
    name = found.loaded.config.name
    warnings = sum(1 for one in found.problems if one.severity is Severity.WARNING)
    also = f", with {counted(warnings, 'warning')}" if warnings else ""
    return f"{name} can start{also}. Next: replicator run {file}"


_COLUMNS: Final[Mapping[str, tuple[Callable[[TableForecast], Figure], Callable[[float], str]]]] = {
    "rows": (lambda one: one.rows, _number),
    "in source": (lambda one: one.source_bytes, _size),
    "snapshot": (lambda one: one.snapshot_s, _time),
    "changes/day": (lambda one: one.changes_per_day, _number),
    "merges/day": (lambda one: one.merges_per_day, _number),
    "in target": (lambda one: one.target_bytes, _size),
}
_BILLED: Final = "billed/day"
