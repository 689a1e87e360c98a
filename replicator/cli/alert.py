"""`replicator alert`: tests and runs the messages sent when something is wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from replicator.cli import completion
from replicator.cli.stopping import stop_on_signals
from replicator.runtime.home import Home
from replicator.service.alerts.trying import try_channels
from replicator.service.configuring.stored import find
from replicator.service.watching import watch as watch_replicators
from replicator.state.store import StateStore


@click.group()
def alert() -> None:
    """Test the channels that get alerts, and watch replicators without running them."""


@alert.command()
@click.argument("name", shell_complete=completion.names)
@click.argument("channels", nargs=-1)
def test(name: str, channels: tuple[str, ...]) -> None:
    """Send a test message to CHANNELS, or to all channels of a replicator. Exits 1 if one does not take it."""
    results = try_channels(_open(), name, channels)
    for channel, error in results.items():
        if error is None:
            click.echo(f"{channel}: delivered.")
        else:
            click.echo(f"{click.style('error', fg='red')} {channel}: {error}", err=True)
    if any(results.values()):
        sys.exit(1)


@alert.command()
@click.argument("names", nargs=-1, shell_complete=completion.names)
def watch(names: Sequence[str]) -> None:
    """Watch NAMES, or all replicators, and send their alerts and lineage events. Runs no worker; Ctrl-C stops it.

    `run` and `serve` do the same by themselves. This is for another host, which also notices that no worker runs at all.
    """
    store = _open()
    for name in names:
        find(store, name)
    click.echo("Watching. To stop: Ctrl-C.", err=True)
    watch_replicators(store, names or None, stop_on_signals())


def _open() -> StateStore:
    home = Home.from_environment()
    home.ensure()
    return StateStore(home.state_url)
