"""`python -m replicator.cli` is the `replicator` command."""

from replicator.cli.entry import main

main(prog_name="replicator")
