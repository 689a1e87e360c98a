"""The `replicator` command."""

from replicator.cli.entry import main

__all__ = ["main"]
