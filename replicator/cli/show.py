"""Output of the commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from replicator.model.deletion import Deletion
from replicator.model.documents.status import (
    ProjectionState,
    ReplicatorState,
    ReplicatorStatus,
    TableState,
    TableStatus,
    WaitingStatus,
)
from replicator.model.documents.verdict import Result
from replicator.model.errors import ReplicatorError, with_names
from replicator.model.guarantee import Guarantee
from replicator.model.processes.reports import SnapshotStep
from replicator.model.terminal import cleaned, continued, in_one_line
from replicator.service.status import refused as refused_status
from replicator.service.status import snapshots
from replicator.service.status.snapshots import SnapshotPace, counted
from replicator.state.records import Role

if TYPE_CHECKING:
    from replicator.plugins.registry import PluginInfo
    from replicator.service.reloading import Reloaded
    from replicator.service.status.objectives import Breach
    from replicator.service.workers import WorkerDocument

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
"""Snapshot step → what the next snapshot of a table waits for."""

NOTHING_STORED: Final = "No replicator is stored in this state store."
_BAR_WIDTH: Final = 30

# A target delays its tables by shorter pauses all the time.
_REST_SHOWN_S: Final = 5.0


class Listing(Table):
    """A table of which a name with a line break in it takes one line."""

    def add_row(self, *cells: RenderableType | None, **style: Any) -> None:
        """Add a row."""
        super().add_row(*(_one_line(cell) for cell in cells), **style)


class _CleanConsole(Console):
    """A console that cleans texts before it adds its own colours. `CleanStream` cannot tell those from others."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; each text is one line."""
        super().print(*(_one_line(one) for one in objects), **options)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            segment if segment.control else Segment(cleaned(segment.text), segment.style) for segment in buffer
        )


def _one_line(cell: Any) -> Any:
    if isinstance(cell, Text):
        # As long as it was, so that its colours stand where they stood.
        cell.plain = in_one_line(cell.plain)
    return in_one_line(cell) if isinstance(cell, str) else cell


def terminal(*, stderr: bool = False) -> Console:
    """Return a console for tables. Cells come from elsewhere, so markup is off, and characters that a terminal would act on are removed."""
    return _CleanConsole(stderr=stderr, markup=False, emoji=False, highlight=False)


def error(problem: ReplicatorError, replicator: str | None = None) -> None:
    """Print one message with the location and the next step, on stderr."""
    text = str(problem) if replicator is None else with_names(str(problem), replicator, problem.table)
    click.echo(f"{click.style('error', fg='red')} [{problem.code}] {continued(text)}", err=True)


def breaches(found: Sequence[Breach]) -> None:
    """Print the reasons why `status --check` fails."""
    for breach in found:
        click.echo(f"{click.style('check', fg='red')} [{breach.kind}] {continued(breach.message)}", err=True)


def plugins(found: Sequence[PluginInfo], *, as_json: bool) -> None:
    """Print the plugins, working or not."""
    from replicator.service.plugin_list import documents  # loads the plugins' interface

    rows = [document.model_dump(mode="json") for document in documents(found)]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Listing("plugin", "kind", "distribution", "version", "state", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(str(row[c] or "") for c in ("name", "kind", "distribution", "version", "state")))
    console = terminal()
    console.print(table)
    for row in rows:
        if row["reason"]:
            console.print(Text(f"{row['name']}: {row['reason']}", style="red"), soft_wrap=True)


def workers(documents: Sequence[WorkerDocument], *, as_json: bool) -> None:
    """Print one line per worker, then the replicators it cannot run."""
    if as_json:
        click.echo(json.dumps([document.model_dump(mode="json") for document in documents], indent=2))
        return
    if not documents:
        click.echo("No worker is running. To start one: replicator serve", err=True)
        return
    table = Listing("host", "process", "state", "runs", "capacity", "last heard", box=None, pad_edge=False)
    for one in documents:
        table.add_row(
            one.host,
            str(one.pid or ""),
            one.state,
            ", ".join(one.replicators),
            "" if one.capacity is None else f"{len(one.replicators)} of {one.capacity}",
            moment(one.seen_at) if one.seen_at else "",
        )
    console = terminal()
    console.print(table)
    for one in documents:
        for refusal in one.refuses:
            console.print(
                Text(f"{one.host} cannot run {refusal.replicator}: {refusal.message} [{refusal.code}]", style="red"),
                soft_wrap=True,
            )


def replicators(documents: Sequence[ReplicatorStatus], *, as_json: bool) -> None:
    """Print one line per replicator."""
    if as_json:
        statuses_json(documents)
        return
    table = Listing("name", "state", "desired", "tables", "freshness", box=None, pad_edge=False)
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
    """Print one replicator, table by table; below, at full width, the remarks for the operator."""
    console = terminal()
    console.print(_head(document), _tables(document))
    for line in remarks(document):
        # Not wrapped: the lines hold commands to paste.
        console.print(line, soft_wrap=True)


def render(one: ReplicatorStatus, paces: Mapping[str, SnapshotPace]) -> Group:
    """Render a status document for a part of the terminal, with bars where snapshots run."""
    return Group(_head(one), _tables(one, paces), *(_one_line(line) for line in remarks(one)))


def remarks(one: ReplicatorStatus) -> list[Text]:
    """Return the remarks for the operator, each with the next step below: errors, alarms, what is waited for."""
    found = [line for row in one.tables for line in _of_table(row)]
    found += [Text(f"waits for {line}", style="yellow") for line in one.source.waiting_for]
    if oldest := one.source.oldest_open:
        found.append(Text(f"oldest open transaction, {oldest.age_s:.0f} s: {oldest.name}", style="yellow"))
    for finding in one.source.findings:
        where = f" ({finding.location})" if finding.location else ""
        text = f"would refuse the next start: [{finding.code}] {finding.message}{where}"
        found += _remark(text, finding.action, "yellow")
    for refused in one.refused:
        found += _remark(
            f"{refused_status.WORDS[refused.of]}: [{refused.code}] {refused.message}", refused.action, "yellow"
        )
    found += _of_alerts(one)
    if one.retry:
        found.append(Text(f"retrying {one.retry.role}: [{one.retry.code}] {one.retry.message}", style="yellow"))
    if one.error:
        found += _remark(f"[{one.error.code}] {one.error.message}", one.error.action, "red")
    return found


def _of_alerts(one: ReplicatorStatus) -> list[Text]:
    """Return remarks on channels that do not take messages, and on a missing watcher. The alerts' causes are shown elsewhere."""
    if one.alerts is None:
        return []
    found: list[Text] = []
    if one.alerts.watcher is None and all(refused.of != "alerts" for refused in one.refused):
        found += _remark(
            "no process watches this replicator and sends its alerts", f"replicator alert watch {one.name}", "yellow"
        )
    for channel in one.alerts.channels:
        if channel.failures:
            counts = f"{counted(channel.waiting, 'message')} waiting, {channel.given_up} given up"
            text = f"alerts to {channel.channel} are not delivered ({counts}): {channel.error}"
            found += _remark(text, f"replicator alert test {one.name} {channel.channel}", "yellow")
    return found


def _head(one: ReplicatorStatus) -> Text:
    return Text.assemble(
        (one.name, "bold"), "  ", _styled(one.state), f"  freshness {_age(one.freshness_s)}",
        f"  journal {size(one.journal.bytes)}",
        f"  source retains {size(one.source.retained_bytes)}{time_left(one)}{_guarantee(one)}{_verified(one)}",
    )  # fmt: skip


def _guarantee(one: ReplicatorStatus) -> str:
    """Return the guarantee of the source if it is less than the full one."""
    found = one.source.guarantee
    return "" if found is None or found is Guarantee.FULL else f"  guarantee {found}"


def _verified(one: ReplicatorStatus) -> str:
    """Return the number of tables proven equal in time, if there is a schedule."""
    return (
        ""
        if one.verify.every_s is None
        else f"  verified {one.verify.tables_proven} of {counted(len(one.tables), 'table')}"
    )


def _tables(one: ReplicatorStatus, paces: Mapping[str, SnapshotPace] | None = None) -> Table:
    """Return the table of tables, with bars of snapshots only if `paces`, which are current, are given."""
    table = Listing("table", "state", "snapshot", "changes applied", "freshness", box=None, pad_edge=False)
    for row in one.tables:
        table.add_row(
            row.table,
            Text(row.state, style="red") if row.alarms else _styled(row.state),
            f"next: {_NEXT[row.next_snapshot]}" if row.next_snapshot else _snapshot(row, paces),
            f"{row.changes_applied - row.snapshot_rows_applied:,}",
            Text(_age(row.freshness_s) + _rest(row.waiting), style="red" if row.is_objective_met is False else ""),
        )
    return table


def _snapshot(row: TableStatus, paces: Mapping[str, SnapshotPace] | None) -> RenderableType:
    line = Text(snapshots.text(row))
    if paces is None or row.snapshot is None or row.state is not TableState.SNAPSHOT:
        return line
    part, pace = snapshots.share(row.snapshot), paces.get(row.table)
    below = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=1.0, completed=part, width=_BAR_WIDTH) if part is not None else Text("")
    below.add_row(bar, Text(snapshots.pace_in_words(pace) if pace else ""))
    return Group(line, below)


def time_left(one: ReplicatorStatus) -> str:
    """Return the time for which the source still keeps the log after our position, if it does not keep it for us."""
    seconds = one.source.time_left_s
    if seconds is None:
        return ""
    days, hours = seconds / 86_400, seconds / 3600
    return f", keeps our position for at least {f'{days:.1f} days' if days >= 1 else f'{hours:.1f} h'}"


def size(count: int | None) -> str:
    """Return a number of bytes for people."""
    if count is None:
        return "unknown"
    step = 1024
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < step or unit == "TiB":
            break
        value /= step
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def deletion(name: str, done: Deletion) -> None:
    """Print what `delete` removed and kept, and what is left to do."""
    for line in done.notes:
        click.echo(in_one_line(line))
    click.echo(f"{name} is deleted.")
    for title, phrases in (("removed", done.removed), ("kept", done.kept)):
        for phrase in phrases:
            click.echo(f"  {title}: {in_one_line(phrase)}")


def reloaded(found: Reloaded, next_step: str) -> None:
    """Print the changes of `reload`, and what else is to be done. `next_step` is empty if a worker runs the replicator."""
    name = found.record.name
    if not found.sections:
        click.echo(f"{name}: nothing changed: the file says what is stored.")
        return
    changed = ", ".join(found.sections)
    if next_step:
        click.echo(f"{name}: {changed} changed; the next start has it. {next_step}")
    else:
        click.echo(f"{name}: {changed} changed. {_restarted(found)} To watch it: replicator status {name}")
    for table in found.added:
        click.echo(f"  added: {in_one_line(str(table))}, which gets a snapshot while the others continue")
    for table in found.removed:
        click.echo(f"  removed: {in_one_line(str(table))}; its target table stays")
    for table in found.recreated:
        command = f"replicator snapshot {name} {shlex.quote(str(table))} --recreate"
        click.echo(
            f"  needs a new target table (deletes, source_timestamp): {in_one_line(str(table))}. Run: {continued(command)}"
        )


def _restarted(found: Reloaded) -> str:
    """Return the parts that a worker starts again for a changed configuration."""
    from replicator.runtime.reloading import ON_THE_SIDE  # loads the configuration's models

    said = ["Its worker keeps running"]
    words = {Role.CAPTURE: "capture", Role.APPLY: "apply", Role.VERIFY: "verification"}
    if again := [word for role, word in words.items() if role in found.roles]:
        *others, last = again
        listed = f"{', '.join(others)} and {last}" if others else last
        said.append(f"starts {listed} again, at a clean point")
    if found.was_scheduled != found.is_scheduled:
        said.append(f"{'begins' if found.is_scheduled else 'ends'} scheduled verification")
    if len(said) == 1:
        said.append("starts nothing again")
    sentence = f"{said[0]} and {', and '.join(said[1:])}."
    on_the_side = [section for section in found.sections if section in ON_THE_SIDE]
    return (
        f"{sentence} The process that sends {' and '.join(on_the_side)} has it within seconds."
        if on_the_side
        else sentence
    )


def _alarmed(one: ReplicatorStatus) -> str:
    """Return the number of tables of a replicator that have alarms, in words; empty if none has."""
    count = sum(1 for row in one.tables if row.alarms)
    return f"{counted(count, 'table')} with alarms" if count else ""


def _rest(waiting: WaitingStatus | None) -> str:
    """Return a normal pause of a table, which explains its freshness; empty if it is short."""
    if waiting is None or waiting.code or waiting.retry_in_s < _REST_SHOWN_S:
        return ""
    return f", next batch at {waiting.until.astimezone():%H:%M:%S}"


def _of_table(row: TableStatus) -> list[Text]:
    """Return a table's error, alarms, failed attempts, name in the source, kept columns, and why it is applied slowly."""
    found: list[Text] = []
    if row.error:
        found += _remark(f"{row.table}: [{row.error.code}] {row.error.message}", row.error.action, "red")
    if row.resumes_by_itself:
        found.append(Text(f"{row.table}: continues by itself once that is fixed, with a new snapshot", style="yellow"))
    for alarm in row.alarms:
        found += _remark(f"{row.table}: alarm [{alarm.code}] {alarm.message}", alarm.action, "red")
    found += _of_verification(row)
    if row.waiting and row.waiting.code:
        until = moment(row.waiting.until)
        text = f"{row.table}: waits until {until}: [{row.waiting.code}] {row.waiting.message}"
        found.append(Text(text, style="yellow"))
    if row.source_table:
        found.append(Text(f"{row.table}: its name in the source is {row.source_table}"))
    if row.projection is ProjectionState.PENDING:
        found.append(
            Text(f"{row.table}: values from before the settings of its columns are still in the target or the journal")
        )
    if row.kept_columns:
        found.append(Text(f"{row.table}: keeps columns that the source dropped: {', '.join(row.kept_columns)}"))
    if row.engine and row.engine.reason:
        found.append(Text(f"{row.table}: its last batch was slow ({row.engine.rung}): {row.engine.reason}"))
    if row.upkeep:
        error = row.upkeep.last_error
        text = f"{row.table}: upkeep failed, retry at {moment(row.upkeep.retry_at)}: [{error.code}] {error.message}"
        found += _remark(text, error.action, "yellow")
    return found


def _of_verification(row: TableStatus) -> list[Text]:
    """Return the reason why a table's last verification is no proof."""
    if row.verify.result is Result.NOT_VERIFIED:
        at = f" at {moment(row.verify.verified_at)}" if row.verify.verified_at else ""
        return [Text(f"{row.table}: could not be verified{at}: {row.verify.reason}", style="yellow")]
    if row.verify.result is Result.EQUAL_IN_PART:
        columns = ", ".join(row.verify.not_compared)
        return [Text(f"{row.table}: equal in part; columns that could not be compared: {columns}", style="yellow")]
    return []


def _remark(text: str, action: str | None, style: str) -> list[Text]:
    """Return a fact, and the next step if there is one."""
    return [Text(text, style=style), *([Text(f"    → {action}")] if action else [])]


def _styled(state: ReplicatorState | TableState) -> Text:
    return Text(state, style=_STYLES.get(state, ""))


def moment(moment: datetime) -> str:
    """Return a moment of the status document, in local time."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"
