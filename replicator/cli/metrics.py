"""`replicator metrics`: prints the metrics that Prometheus scrapes."""

from __future__ import annotations

import click

from replicator.runtime.home import Home
from replicator.service.metrics import exposition
from replicator.state.store import StateStore


@click.command()
def metrics() -> None:
    """Print the metrics of all replicators in Prometheus' text format (docs/metrics.md). Needs replicator[web].

    For node_exporter's textfile collector, write them to a file: replicator metrics > FILE.tmp && mv FILE.tmp FILE.prom
    """
    home = Home.from_environment()
    home.ensure()
    click.echo(exposition(StateStore(home.state_url)).decode(), nl=False)
