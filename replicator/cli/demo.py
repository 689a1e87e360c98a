"""Finds the command `replicator demo`, which comes with the testbed."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import click

from replicator.model.errors import ConfigError


def demo_command() -> click.Command:
    """Return the installed demo, or a command that says how to install it."""
    for found in entry_points(group="replicator.demo"):
        command: click.Command = found.load()
        return command
    return _not_installed


@click.command("demo", context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def _not_installed(options: Any) -> None:  # noqa: ARG001 - whatever was asked for
    """Replicate a live database, kill the replicator half-way, and prove both sides equal (not installed)."""
    raise ConfigError(
        "The demo is not installed.", code="demo_not_installed", action='Run: pip install "replicator[demo]"'
    )
