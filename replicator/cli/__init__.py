"""The `replicator` command."""

import sys
from typing import Final

from replicator.model.processes.ending import end_at_once_on_signals

_RUN_ON: Final = (["run"], ["serve"], ["alert", "watch"])
"""Commands that run until they are told to stop. SIGTERM ends them with status 0 at any time."""


def main() -> None:
    """Run the command. Its modules are loaded only once signals are handled."""
    if any(sys.argv[1 : 1 + len(words)] == words for words in _RUN_ON):
        end_at_once_on_signals()
    from replicator.cli.entry import main as command

    command()


__all__ = ["main"]
