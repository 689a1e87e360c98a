"""The commands `validate` and `preview`. Modules that ask the servers are loaded when one is called, so that help does not need them."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def commands() -> None:
    """Commands that check."""


@commands.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--sql", "as_sql", is_flag=True, help="Print one SQL script that fixes in the source what SQL can fix.")
def validate(file: Path, as_sql: bool) -> None:
    """Check a configuration against source and target. Exits 2 if a problem is blocking.

    With --sql the script is all that goes to the standard output: replicator validate FILE --sql > fix.sql
    """
    from replicator.cli import findings
    from replicator.plugins.registry import Registry
    from replicator.runtime.home import Home
    from replicator.service.configuring import assess, fixing
    from replicator.state.store import StateStore

    registry, home = Registry.discover(), Home.from_environment()
    loaded = registry.load(file)
    home.ensure()
    record = StateStore(home.state_url).replicator(loaded.config.name)
    # Tables that are ours already are no problem.
    assessment = assess.assess(loaded, registry, home, uuid=record.uuid if record else "")
    if as_sql:
        findings.findings(assessment.problems)
        click.echo(fixing.script(loaded.config.name, assessment.problems), nl=False)
    else:
        findings.assessment(assessment, str(file))
    if assessment.is_blocked:
        raise findings.refusal(assessment.problems, str(file))


@commands.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("table")
@click.option("--rows", default=20, show_default=True, type=click.IntRange(1, 10_000), help="The most rows.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def preview(file: Path, table: str, rows: int, as_json: bool) -> None:
    """Show rows of TABLE as they would arrive in the target. Changes nothing.

    They are the first ones in the order of the key, read from the source and projected as FILE says: columns that are left out are not
    there, and masked values are masked.
    """
    from replicator.cli import previewed
    from replicator.plugins.registry import Registry
    from replicator.runtime.home import Home
    from replicator.service.configuring import preview as previewing
    from replicator.state.store import StateStore

    registry, home = Registry.discover(), Home.from_environment()
    loaded = registry.load(file)
    home.ensure()
    stored = StateStore(home.state_url).tables(loaded.config.name)
    found = previewing.preview(loaded, registry, table, rows=rows, stored=stored)
    if as_json:
        previewed.as_json(found)
    else:
        previewed.as_text(found)
