"""What the commands print."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Final, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from replicator.model.errors import Problem, ReplicatorError, Severity, StateUnavailableError, with_names
from replicator.model.reports import RunningStep, SnapshotStep
from replicator.model.status import (
    ReplicatorState,
    ReplicatorStatus,
    TableState,
    TableStatus,
    WaitingStatus,
)
from replicator.model.verdict import Result
from replicator.plugins.registry import PluginInfo
from replicator.service import status as status_service
from replicator.service.assess import Assessment
from replicator.state.store import StateStore

_STYLES: Final[Mapping[ReplicatorState | TableState, str]] = {
    TableState.STREAMING: "green",
    ReplicatorState.RUNNING: "green",
    TableState.SNAPSHOT: "cyan",
    TableState.FAILED: "red",
    TableState.DROPPED: "red",
    ReplicatorState.FAILED: "red",
    ReplicatorState.RETRYING: "yellow",
    ReplicatorState.PAUSED: "yellow",
}

_NEXT: Final[Mapping[SnapshotStep, str]] = {
    SnapshotStep.PREPARING: "reading the catalogue",
    SnapshotStep.LOOKING: "reading open transactions",
    SnapshotStep.MARKING: "waiting for the log",
    SnapshotStep.SETTLING: "waiting for open transactions",
}
"""What the next snapshot of a table waits for."""

_RUNNING: Final[Mapping[RunningStep, str]] = {
    RunningStep.DUE: "waiting for its turn to be read",
    RunningStep.WAITING: "waiting to read again",
    RunningStep.MARKING: "waiting for the log",
    RunningStep.WRITING: "writing its rows",
}
"""What a snapshot that runs waits for. The others need no words: it is read, or the state of the table tells."""

# A target paces its tables by shorter ones all the time.
_REST_SHOWN_S: Final = 5.0

_MILESTONES: Final[Mapping[str, str]] = {
    "log_opened": "capture is running: it reads the source's log.",
    "apply_started": "apply is running: it writes to the target.",
    "spark_starting": "Spark is starting. This can take a minute.",
    "spark_started": "Spark is running.",
}
"""Events of the workers' logs that say that a part is up, in words."""


def terminal(*, stderr: bool = False) -> Console:
    """Where tables are printed. Their cells come from elsewhere, so markup is off."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def error(problem: ReplicatorError, replicator: str | None = None) -> None:
    """One message with the location and the next step, on stderr."""
    text = str(problem) if replicator is None else with_names(str(problem), replicator, problem.table)
    click.echo(f"{click.style('error', fg='red')} [{problem.code}] {text}", err=True)


def problems(found: Sequence[Problem]) -> None:
    """Findings, the blocking ones last so that they are seen."""
    colours = {Severity.BLOCKING: "red", Severity.WARNING: "yellow", Severity.NOTICE: "blue"}
    for one in sorted(found, key=lambda p: p.severity is Severity.BLOCKING):
        prefix = f"{one.location}: " if one.location else ""
        click.echo(
            f"{click.style(one.severity.value, fg=colours[one.severity])} [{one.code}] {prefix}{one.message}", err=True
        )
        if one.action:
            click.echo(f"    → {one.action}", err=True)


def warnings(found: Assessment) -> None:
    """Print what does not refuse the start but matters: warnings, and problems that fail single tables at a later start."""
    problems([p for p in found.problems if p.severity is not Severity.NOTICE])


def assessment(found: Assessment) -> None:
    """What `validate` found."""
    problems(found.problems)
    for table in found.tables:
        key = ", ".join(table.key) if table.key else "none (a multiset of rows)"
        click.echo(f"{table.table}: {counted(len(table.columns), 'column')}, key {key}")
    for summary in found.left_out:
        click.echo(f"{summary.table}: left out, {summary.left_out}")
    if not found.is_blocked:
        has_warnings = any(p.severity is Severity.WARNING for p in found.problems)
        rows = "" if found.estimated_rows is None else f", {counted(found.estimated_rows, 'row')} estimated"
        kind = "blocking " if has_warnings else ""
        click.echo(f"No {kind}problems found: {counted(len(found.tables), 'table')}{rows}.")


def plugins(found: Sequence[PluginInfo], *, as_json: bool) -> None:
    """The plugins, working or not."""
    rows = [
        {
            "name": p.name,
            "kind": p.kind,
            "distribution": p.distribution,
            "version": p.version,
            "state": p.state,
            "reason": p.reason,
        }
        for p in found
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("plugin", "kind", "distribution", "version", "state", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(str(row[c] or "") for c in ("name", "kind", "distribution", "version", "state")))
    console = terminal()
    console.print(table)
    for row in rows:
        if row["reason"]:
            console.print(Text(f"{row['name']}: {row['reason']}", style="red"), soft_wrap=True)


def replicators(documents: Sequence[ReplicatorStatus], *, as_json: bool) -> None:
    """One line each."""
    if as_json:
        statuses_json(documents)
        return
    table = Table("name", "state", "desired", "tables", "freshness", box=None, pad_edge=False)
    for one in documents:
        table.add_row(one.name, _styled(one.state), one.desired, str(len(one.tables)), _age(one.freshness_s))
    console = terminal()
    console.print(table)
    for one in documents:
        if text := f"[{one.error.code}] {one.error.message}" if one.error else _alarmed(one):
            console.print(Text(f"{one.name}: {text}", style="red"), soft_wrap=True)


def statuses_json(documents: Sequence[ReplicatorStatus]) -> None:
    """Print an array of status documents (`docs/status.schema.json`)."""
    click.echo(json.dumps([document.model_dump(mode="json") for document in documents], indent=2))


def status_json(document: ReplicatorStatus) -> None:
    """Print a status document (`docs/status.schema.json`)."""
    click.echo(json.dumps(document.model_dump(mode="json"), indent=2))


def status(document: ReplicatorStatus) -> None:
    """One replicator, table by table; below, at full width, what the operator should know."""
    console = terminal()
    console.print(_head(document), _tables(document))
    for line in remarks(document):
        # Not wrapped: the lines hold commands to paste.
        console.print(line, soft_wrap=True)


def render(one: ReplicatorStatus) -> Group:
    """Render a status document for a part of the terminal."""
    return Group(_head(one), _tables(one), *remarks(one))


def remarks(one: ReplicatorStatus) -> list[Text]:
    """What the operator should know of a replicator, each with the next step below: errors, alarms, what is waited for."""
    found = [line for row in one.tables for line in _of_table(row)]
    found += [Text(f"waits for {line}", style="yellow") for line in one.source.waiting_for]
    if oldest := one.source.oldest_open:
        found.append(Text(f"oldest open transaction, {oldest.age_s:.0f} s: {oldest.name}", style="yellow"))
    for finding in one.source.findings:
        where = f" ({finding.location})" if finding.location else ""
        text = f"would refuse the next start: [{finding.code}] {finding.message}{where}"
        found += _remark(text, finding.action, "yellow")
    if one.retry:
        found.append(Text(f"retrying {one.retry.role}: [{one.retry.code}] {one.retry.message}", style="yellow"))
    if one.error:
        found += _remark(f"[{one.error.code}] {one.error.message}", one.error.action, "red")
    return found


def _head(one: ReplicatorStatus) -> Text:
    return Text.assemble(
        (one.name, "bold"), "  ", _styled(one.state), f"  freshness {_age(one.freshness_s)}",
        f"  journal {size(one.journal.bytes)}",
        f"  source retains {size(one.source.retained_bytes)}{time_left(one)}{_verified(one)}",
    )  # fmt: skip


def _verified(one: ReplicatorStatus) -> str:
    """How many tables were proven equal in time, if there is a schedule."""
    return (
        ""
        if one.verify.every_s is None
        else f"  verified {one.verify.tables_proven} of {counted(len(one.tables), 'table')}"
    )


def _tables(one: ReplicatorStatus) -> Table:
    table = Table("table", "state", "snapshot", "changes applied", "freshness", box=None, pad_edge=False)
    for row in one.tables:
        table.add_row(
            row.table,
            Text(row.state, style="red") if row.alarms else _styled(row.state),
            f"next: {_NEXT[row.next_snapshot]}" if row.next_snapshot else _snapshot(row),
            f"{row.changes_applied:,}",
            _age(row.freshness_s) + _rest(row.waiting),
        )
    return table


def time_left(one: ReplicatorStatus) -> str:
    """How long the source still keeps the log after our position, if it does not keep it for us."""
    seconds = one.source.time_left_s
    if seconds is None:
        return ""
    days, hours = seconds / 86_400, seconds / 3600
    return f", keeps our position for at least {f'{days:.1f} days' if days >= 1 else f'{hours:.1f} h'}"


def size(count: int | None) -> str:
    """A number of bytes for people."""
    if count is None:
        return "unknown"
    step = 1024
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < step or unit == "TiB":
            break
        value /= step
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


class ProgressDisplay:
    """A live status in a terminal; elsewhere the workers' log lines. In both a plain line when a part of the replicator is up."""

    def __init__(self, store: StateStore, name: str) -> None:
        self._store, self._name = store, name
        self._is_live = sys.stderr.isatty()
        self._live = Live(console=terminal(stderr=True), auto_refresh=False, transient=False)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._is_live:
            self._thread.join()
            self._live.stop()

    def log_line(self, line: str) -> None:
        """A line of a worker's log."""
        if not self._is_live:
            click.echo(line, err=True)
        if text := _milestone(line):
            self.say(text)

    def say(self, text: str) -> None:
        """A plain line, above the live status where there is one. Thread-safe."""
        if self._is_live:
            self._live.console.print(Text(f"{self._name}: {text}"))
        else:
            click.echo(f"{self._name}: {text}", err=True)

    def _draw(self) -> None:
        while True:
            # While the store is unavailable, the last status stays; the workers log what they do about it.
            with suppress(StateUnavailableError):
                if record := self._store.replicator(self._name):
                    self._live.update(render(status_service.status(self._store, record)), refresh=True)
            if self._done.wait(1.0):
                return


def _milestone(line: str) -> str | None:
    """What a line of a worker's log says of its start, for people; None if nothing."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return _MILESTONES.get(str(event.get("event"))) if isinstance(event, dict) else None


def _alarmed(one: ReplicatorStatus) -> str:
    """How many tables of a replicator have alarms; empty if none has."""
    count = sum(1 for row in one.tables if row.alarms)
    return f"{counted(count, 'table')} with alarms" if count else ""


def _snapshot(row: TableStatus) -> str:
    progress = row.snapshot
    if progress is None:
        return ""
    if progress.is_complete:
        return f"{counted(progress.rows, 'row')}{' captured' if row.state is TableState.SNAPSHOT else ''}"
    total = progress.estimated_rows
    rows = f"{progress.rows:,} of about {total:,}" if total else f"{counted(progress.rows, 'row')} so far"
    step = _RUNNING.get(progress.step) if progress.step else None
    return f"{rows}, {step}" if step else rows


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _rest(waiting: WaitingStatus | None) -> str:
    """A pause that nothing is wrong with: it belongs to the freshness, which it explains if it is long."""
    if waiting is None or waiting.code or waiting.retry_in_s < _REST_SHOWN_S:
        return ""
    return f", next batch at {waiting.until.astimezone():%H:%M:%S}"


def _of_table(row: TableStatus) -> list[Text]:
    """A table's error, alarms, failed attempts, name in the source and kept columns."""
    found: list[Text] = []
    if row.error:
        found += _remark(f"{row.table}: [{row.error.code}] {row.error.message}", row.error.action, "red")
    for alarm in row.alarms:
        found += _remark(f"{row.table}: alarm [{alarm.code}] {alarm.message}", alarm.action, "red")
    if row.verify.result is Result.NOT_VERIFIED:
        at = f" at {moment(row.verify.verified_at)}" if row.verify.verified_at else ""
        found.append(Text(f"{row.table}: could not be verified{at}: {row.verify.reason}", style="yellow"))
    if row.waiting and row.waiting.code:
        until = moment(row.waiting.until)
        text = f"{row.table}: waits until {until}: [{row.waiting.code}] {row.waiting.message}"
        found.append(Text(text, style="yellow"))
    if row.source_table:
        found.append(Text(f"{row.table}: its name in the source is {row.source_table}"))
    if row.kept_columns:
        found.append(Text(f"{row.table}: keeps columns that the source dropped: {', '.join(row.kept_columns)}"))
    if row.upkeep:
        error = row.upkeep.last_error
        text = f"{row.table}: upkeep failed, retry at {moment(row.upkeep.retry_at)}: [{error.code}] {error.message}"
        found += _remark(text, error.action, "yellow")
    return found


def _remark(text: str, action: str | None, style: str) -> list[Text]:
    """A fact, and the next step where there is one."""
    return [Text(text, style=style), *([Text(f"    → {action}")] if action else [])]


def _styled(state: ReplicatorState | TableState) -> Text:
    return Text(state, style=_STYLES.get(state, ""))


def moment(moment: datetime) -> str:
    """A moment of the status document, in local time."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"
