"""The command `plan`: effort and effect of a start, or of a statement. Executes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from replicator.cli import changes, findings, planned
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.service.plan import ddl as statements
from replicator.service.plan import sampling
from replicator.service.plan import start as start_plan
from replicator.state.store import StateStore

_OF_STARTS: Final = ("sample_rows", "sample_seconds", "count_seconds", "usd_per_tib")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--ddl",
    "statement",
    metavar="STATEMENT",
    help="Instead: show what a statement such as 'ALTER TABLE …' would do to the target, by which policy, and what it would cost.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON (docs/start-plan.schema.json; with --ddl docs/plan.schema.json).",
)
@click.option(
    "--sample-rows",
    default=sampling.ROWS,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Rows to read from a table, at most.",
)
@click.option(
    "--sample-seconds",
    default=sampling.SECONDS,
    show_default=True,
    type=click.FloatRange(0.1, 3600),
    help="Time after which no further table is sampled; the largest come first.",
)
@click.option(
    "--count-seconds",
    default=sampling.COUNT_SECONDS,
    show_default=True,
    type=click.FloatRange(0.1, 86_400),
    help="Time between two readings of the server's counters, where these are too young to tell by themselves.",
)
@click.option(
    "--usd-per-tib",
    type=click.FloatRange(0, 1_000_000),
    help="Price of a TiB that the target bills. Default: the documented price, which is shown with its date.",
)
@click.pass_context
def plan(
    ctx: click.Context,
    file: Path,
    statement: str | None,
    as_json: bool,
    sample_rows: int,
    sample_seconds: float,
    count_seconds: float,
    usd_per_tib: float | None,
) -> None:
    """Show what replicating FILE will take: rows, time, disk, cost, missing grants. Executes nothing but reads.

    Reads the statistics of the source and a sample of its tables. Says of each figure how it is known. Exits 2 if a problem is blocking,
    as validate does. With --ddl it reads the catalogue only, and exits 2 if the source does not understand the statement.
    """
    given = [name for name in _OF_STARTS if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if statement is not None and given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} does not go together with --ddl.")
    registry, home = Registry.discover(), Home.from_environment()
    loaded = registry.load(file)
    home.ensure()
    store = StateStore(home.state_url)
    record = store.replicator(loaded.config.name)
    uuid = record.uuid if record else ""
    if statement is not None:
        tables = store.tables(loaded.config.name) if record else ()
        told = statements.plan_statement(loaded, registry, statement, uuid=uuid, stored=tables)
        if as_json:
            changes.plan_json(statements.document(told))
        else:
            changes.plan(told)
        return
    limits = sampling.SampleLimits(rows=sample_rows, seconds=sample_seconds, count_seconds=count_seconds)
    found = start_plan.plan_start(loaded, registry, home, uuid=uuid, limits=limits, usd_per_tib=usd_per_tib)
    if as_json:
        planned.start_plan_json(start_plan.document(found))
    else:
        planned.start_plan(found, str(file))
    if start_plan.is_blocked(found):
        raise findings.refusal(found.problems, str(file))
