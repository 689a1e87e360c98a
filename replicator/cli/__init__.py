"""The `replicator` command."""

from replicator.cli.main import main

__all__ = ["main"]
