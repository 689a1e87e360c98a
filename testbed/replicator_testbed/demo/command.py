"""The command `replicator demo`, and what it can be run with."""

from __future__ import annotations

import sys

import click

from replicator_testbed.demo.sources import SOURCES
from replicator_testbed.demo.targets import TARGETS


@click.command()
@click.option(
    "--target", type=click.Choice(list(TARGETS)), default="delta", show_default=True,
    help="Where to replicate to; bigquery is an emulator on this machine.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the scratch folder.")
@click.option(
    "--source", type=click.Choice(list(SOURCES)), default="postgresql", show_default=True,
    help="What to replicate: an embedded PostgreSQL, a MySQL or MariaDB that is installed on this machine, or a MODEL of a SQL Server.",
)  # fmt: skip
def demo(source: str, target: str, keep: bool) -> None:
    """Replicate a live database and survive a kill -9. At the end it compares both sides row by row."""
    from replicator_testbed.demo.run import run_demo  # brings the host's runtime: only when it runs

    sys.exit(run_demo(source=source, target=target, keep=keep))
