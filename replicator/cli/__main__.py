"""`python -m replicator.cli` is the `replicator` command."""

from replicator.cli.main import main

main(prog_name="replicator")
