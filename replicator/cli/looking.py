"""Commands that show what the state store knows. They load no plugin and nothing that works on data: they run often."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence

import click

from replicator.cli import completion, progress, show
from replicator.model.documents.status import ReplicatorStatus
from replicator.runtime.home import Home
from replicator.service import workers
from replicator.service.configuring.stored import find
from replicator.service.status import assemble as status
from replicator.service.status.objectives import EXIT_BREACHED, breaches
from replicator.state.records import ReplicatorRecord
from replicator.state.store import StateStore


@click.group()
def commands() -> None:
    """Commands that only show."""


@commands.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/status.schema.json).")
@click.option("--worst-first", is_flag=True, help="Show failed replicators first, then the others by their trouble.")
def list_(as_json: bool, worst_first: bool) -> None:
    """List the stored replicators."""
    show.replicators(status.statuses(_store(), worst_first=worst_first), as_json=as_json)


@commands.command(name="status")
@click.argument("name", required=False, shell_complete=completion.names)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/status.schema.json).")
@click.option("--worst-first", is_flag=True, help="Show failed tables first, then the others by their trouble.")
@click.option(
    "--watch", "-w", is_flag=True, help="Show it again and again, with the pace of snapshots. Ctrl-C ends it."
)
@click.option(
    "--check",
    is_flag=True,
    help="Exit 4 if no worker runs, if a table has failed, or if one does not meet its objective (freshness).",
)
def status_(name: str | None, as_json: bool, worst_first: bool, watch: bool, check: bool) -> None:
    """Show the state of one replicator (or of all), table by table."""
    if watch and (as_json or check):
        raise click.UsageError(f"--watch and {'--json' if as_json else '--check'} cannot be combined.")
    store = _store()
    if check:
        _check_readable([find(store, name)] if name else store.replicators())

    def look() -> Sequence[ReplicatorStatus]:
        return status.statuses(store, name, worst_first=worst_first)

    if watch:
        progress.watch(look, _until_interrupted())
        return
    documents = look()
    if as_json:
        if name:
            show.status_json(documents[0])
        else:
            show.statuses_json(documents)
    else:
        for document in documents:
            show.status(document)
        if not documents:
            click.echo(show.NOTHING_STORED, err=True)
    if check and (found := [breach for document in documents for breach in breaches(document)]):
        show.breaches(found)
        sys.exit(EXIT_BREACHED)


@commands.command(name="workers")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def workers_(as_json: bool) -> None:
    """List the workers (`serve`, `run`) of all hosts, with what each runs."""
    show.workers(workers.workers(_store()), as_json=as_json)


def _check_readable(records: Sequence[ReplicatorRecord]) -> None:
    # Loaded only here: the configuration's models take their time.
    from replicator.service.configuring.stored_settings import check_objectives

    for record in records:
        check_objectives(record)


def _store() -> StateStore:
    home = Home.from_environment()
    home.ensure()
    return StateStore(home.state_url)


def _until_interrupted() -> threading.Event:
    """Return an event that Ctrl-C or SIGTERM sets."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
