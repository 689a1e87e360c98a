"""`replicator ddl`: an operator's answers to changes of tables in the source."""

from __future__ import annotations

import click

from replicator.cli import completion
from replicator.model.terminal import in_one_line
from replicator.runtime.home import Home
from replicator.service import attending
from replicator.service import ddl as use_cases
from replicator.state.store import StateStore


@click.group()
def ddl() -> None:
    """Act on changes of source tables that a policy has stopped."""


@ddl.command()
@click.argument("name", shell_complete=completion.names)
@click.argument("table", shell_complete=completion.tables)
def accept(name: str, table: str) -> None:
    """Have the target follow the change at which TABLE stopped, this once. Exits 2 if TABLE has not stopped at one."""
    home = Home.from_environment()
    home.ensure()
    store = StateStore(home.state_url)
    accepted = use_cases.accept(store, name, table)
    next_step = attending.next_step(store, name) or f"To watch it: replicator status {name}"
    click.echo(f"Accepted the change of {in_one_line(str(accepted))}. {next_step}")
