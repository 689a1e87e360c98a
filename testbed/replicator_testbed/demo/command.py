"""The command `replicator demo`, and what it can be run with."""

from __future__ import annotations

import sys

import click


@click.command()
@click.option(
    "--target", type=click.Choice(["delta", "bigquery"]), default="delta", show_default=True,
    help="Where to copy to; bigquery is an emulator on this machine.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the scratch folder for a look.")
@click.option(
    "--source", type=click.Choice(["postgresql", "mysql"]), default="postgresql", show_default=True,
    help="What to copy from: an embedded PostgreSQL, or a MySQL or MariaDB that is installed here.",
)  # fmt: skip
def demo(source: str, target: str, keep: bool) -> None:
    """Copy a live database into Delta or BigQuery tables, kill it in the middle, and prove both sides equal."""
    from replicator_testbed.demo.run import run_demo  # brings servers, drivers and Arrow: only when it runs

    sys.exit(run_demo(source=source, target=target, keep=keep))
