"""Finds the command `replicator demo`, which comes with the testbed, when it is asked for."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import click

from replicator.model.errors import ConfigError


class DemoCommand(click.Command):
    """Stands for the installed demo until it is asked for: a demo that cannot be loaded breaks no other command."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Build the context of the demo's own command, with its options and its help."""
        return load_demo().make_context(info_name, args, parent, **extra)


def load_demo() -> click.Command:
    """Return the installed demo.

    Raises:
        ConfigError: `demo_not_installed`; `demo_broken`: it is installed, but cannot be loaded.
    """
    for found in entry_points(group="replicator.demo"):
        try:
            command = found.load()
        except Exception as error:
            raise _broken(found.value, f"{type(error).__name__}: {error}") from error
        if not isinstance(command, click.Command):
            raise _broken(found.value, f"it is no command but a {type(command).__name__}")
        return command
    raise ConfigError(
        "The demo is not installed.", code="demo_not_installed", action='Run: pip install "replicator[demo]"'
    )


def _broken(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"The demo is installed, but {name} cannot be loaded: {reason}.",
        code="demo_broken",
        action='Repair its installation: pip install --force-reinstall "replicator[demo]"',
    )
