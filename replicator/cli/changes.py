"""Output of `history` and `plan --ddl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click
from rich.text import Text

from replicator.cli.show import moment, terminal
from replicator.model.difference import difference
from replicator.model.errors import with_names
from replicator.service.history.changes import Happened
from replicator.service.history.document import HistoryDocument, Outcome
from replicator.service.plan.ddl import PlannedTable, StatementPlan
from replicator.service.plan.ddl_document import PlanDocument
from replicator.service.plan.rehearsal import Rehearsed
from replicator.service.status.snapshots import counted
from replicator.state.records import Decision

_STATEMENT_SHOWN: Final = 500

_DECISIONS: Final[Mapping[Decision, str]] = {
    Decision.APPLY: "apply",
    Decision.KEEP: "keep dropped columns",
    Decision.IGNORE: "ignore",
    Decision.STOP: "stop, the table fails",
    Decision.RECORD: "record",
    Decision.SNAPSHOT: "apply, with a new snapshot in place",
    Decision.REBUILD: "rebuild the target table",
}
_OUTCOMES: Final[Mapping[Outcome, tuple[str, str]]] = {
    Outcome.APPLIED: ("applied", "green"),
    Outcome.WAITING: ("waiting", "yellow"),
    Outcome.FAILED: ("failed", "red"),
    Outcome.NOTHING: ("nothing to do", ""),
}


def history(events: Sequence[Happened]) -> None:
    """Print events, oldest first: the change, the table before and after, the decision, and the effect on the target."""
    console = terminal()
    for event in events:
        for line in _event(event):
            console.print(line, soft_wrap=True)


def history_json(document: HistoryDocument) -> None:
    """Print a history document (`docs/history.schema.json`)."""
    click.echo(document.model_dump_json(indent=2))


def plan(found: StatementPlan) -> None:
    """Print for each table what a statement would do, by which policy, and what it would cost."""
    console = terminal()
    for table in found.tables:
        for line in _planned(found.name, table):
            console.print(line, soft_wrap=True)
    if not found.is_replicated:
        console.print(Text("The statement changes nothing that is replicated."))
    console.print(Text("Nothing was executed."))


def plan_json(document: PlanDocument) -> None:
    """Print a plan document (`docs/plan.schema.json`)."""
    click.echo(document.model_dump_json(indent=2))


def _planned(name: str, table: PlannedTable) -> Sequence[Text]:
    event, rehearsed = table.event, table.rehearsed
    title = Text.assemble((str(event.table), "bold"), f"  {event.operation.value.lower()}")
    facts = [f"renamed to {event.new_table}"] if event.new_table else []
    if rehearsed is None:
        return [title, *(Text(f"    {one_line(fact)}") for fact in facts), Text("    not replicated")]
    if table.before is not None:
        facts += difference(table.before, rehearsed.after)
    facts += [f"policy: {one.change.value}: {one.policy} ({one.set_by})" for one in table.policies]
    facts.append(f"decision: {_DECISIONS[rehearsed.decision]}")
    facts += [f"target: {effect}" for effect in rehearsed.effects]
    facts.append(f"cost: {_cost(rehearsed, table.estimated_rows)}")
    if table.note:
        facts.append(f"note: {table.note}")
    lines = [title, *(Text(f"    {one_line(fact)}") for fact in facts)]
    if (error := rehearsed.error) is not None:
        lines.append(Text(f"    error: [{error.code}] {one_line(error.message)}", style="red"))
        if error.action:
            lines.append(Text(f"    → {with_names(error.action, name, str(event.table))}"))
    return lines


def _cost(rehearsed: Rehearsed, estimated_rows: int | None) -> str:
    rows = "all rows" if estimated_rows is None else f"about {counted(estimated_rows, 'row')}"
    read = f"{rows} read from the source" if rehearsed.is_read_again else "no row is read from the source"
    written = (
        f"{rows} written again in the target" if rehearsed.is_rewritten else "no row is written again in the target"
    )
    return f"{read}, {written}"


def _event(event: Happened) -> Sequence[Text]:
    entry = event.entry
    operation = "continues by itself" if entry.operation is None else entry.operation.value.lower()
    what = ", ".join(entry.changes) or operation
    outcome, style = _OUTCOMES[event.target.state]
    if entry.decision is Decision.STOP:
        style = "red"
    cause = f": {event.target.code}" if event.target.code else ""
    facts = [f"statement: {one_line(entry.statement)}"] if entry.statement else []
    facts += [f"renamed to {entry.new_table}"] if entry.new_table else []
    facts += difference(entry.before, entry.after)
    facts.append(f"decision: {_DECISIONS[entry.decision]}")
    if entry.reason:
        facts.append(f"reason: {one_line(entry.reason)}")
    offset = f", offset {entry.offset.text}" if entry.offset else ""
    return [
        Text.assemble(f"{moment(entry.at)}  ", (str(entry.table), "bold"), f"  {what}"),
        *(Text(f"    {one_line(fact)}") for fact in facts),
        Text.assemble("    target: ", (f"{outcome}{cause}", style)),
        Text(f"    position: {entry.sequence_num}{offset}"),
    ]


def one_line(text: str) -> str:
    """Return a text of others as part of a line: without characters that a terminal would act on, and at most a few lines long."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= _STATEMENT_SHOWN else f"{line[:_STATEMENT_SHOWN]}…"
