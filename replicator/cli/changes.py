"""What `history` and `plan --ddl` print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click
from rich.text import Text

from replicator.cli.show import moment, terminal
from replicator.model.difference import difference
from replicator.service.history import Happened
from replicator.service.history_document import HistoryDocument, Outcome
from replicator.state.records import Decision

_STATEMENT_SHOWN: Final = 500

_DECISIONS: Final[Mapping[Decision, str]] = {
    Decision.APPLY: "apply",
    Decision.KEEP: "keep dropped columns",
    Decision.IGNORE: "ignore",
    Decision.STOP: "stop, the table failed",
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
    """Events, oldest first: what was done, what became of the shape, what was decided, and what the target did."""
    console = terminal()
    for event in events:
        for line in _event(event):
            console.print(line, soft_wrap=True)


def history_json(document: HistoryDocument) -> None:
    """Print a history document (`docs/history.schema.json`)."""
    click.echo(document.model_dump_json(indent=2))


def _event(event: Happened) -> Sequence[Text]:
    entry = event.entry
    what = ", ".join(entry.changes) or entry.operation.value.lower()
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
    """A text of others as a part of a line: without what a terminal would act on, and not longer than a few lines."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= _STATEMENT_SHOWN else f"{line[:_STATEMENT_SHOWN]}…"
