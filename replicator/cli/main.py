"""Commands: parse, call a use case, show. Exit codes: 0 fine, 1 failed while running, 2 wrong usage or configuration."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click

from replicator import config
from replicator.cli import changes, show, verified
from replicator.cli.ddl import ddl
from replicator.cli.demo import DemoCommand
from replicator.config import LoadedConfig
from replicator.model.errors import ConfigError, ReplicatorError
from replicator.observability import configure_logging
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.runtime.serve import serve as serve_all
from replicator.runtime.supervisor import End, RunOutcome
from replicator.service import assess, history, lifecycle, plan, status
from replicator.service import verify as verification
from replicator.service.logs import log_lines
from replicator.service.verify_scope import AskedScope
from replicator.state.store import StateStore
from replicator.verify import Verdict


class _Command(click.Group):
    """Turns our errors into one message and the documented exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            show.problems(error.problems)
            if not any(problem.message == error.message for problem in error.problems):
                show.error(error)
            ctx.exit(2)
        except ReplicatorError as error:
            show.error(error)
            ctx.exit(1)


@click.group(cls=_Command, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="replicator")
def main() -> None:
    """Replicate relational databases to lakes and warehouses, continuously."""
    configure_logging(format="auto", stream=sys.stderr)


@main.command()
@click.argument("source")
@click.argument("target")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file instead of the terminal. An existing file is not overwritten.",
)
def init(source: str, target: str, output: Path | None) -> None:
    """Write a commented starter file for a SOURCE and a TARGET plugin."""
    registry = Registry.discover()
    text = config.starter(source, registry.source(source).config_model, target, registry.target(target).config_model)
    if output is None:
        click.echo(text, nl=False)
        return
    if output.exists():
        raise ConfigError(f"{output} already exists", code="file_exists", action="Choose another name.")
    output.write_text(text, encoding="utf-8")
    click.echo(f"Wrote {output}. Next: fill it in, then run: replicator validate {output}")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(as_json: bool) -> None:
    """List the installed plugins and their versions. Shows why a plugin cannot load."""
    show.plugins(Registry.discover().plugins, as_json=as_json)


@main.command()
@click.argument("plugin", required=False)
def schema(plugin: str | None) -> None:
    """Print the JSON Schema of the YAML file. With PLUGIN, print that of the plugin's block."""
    registry = Registry.discover()
    models = {**registry.target_models(), **registry.source_models()}
    if plugin is None:
        document = config.json_schema(registry.source_models(), registry.target_models())
    elif plugin in models:
        document = config.plugin_schema(plugin, models[plugin])
    else:
        raise ConfigError(
            f"There is no plugin called {plugin!r}",
            code="unknown_plugin",
            action=f"Installed and working: {', '.join(sorted(models))}.",
        )
    click.echo(json.dumps(document, indent=2))


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
def validate(file: Path) -> None:
    """Check a configuration against source and target. Exits 2 if a problem is blocking."""
    registry, home = Registry.discover(), Home.from_environment()
    loaded = _load(file, registry)
    record = _open(home).replicator(loaded.config.name)
    # Tables that are ours already are no problem.
    assessment = assess.assess(loaded, registry, home, uuid=record.uuid if record else "")
    show.assessment(assessment)
    if assessment.is_blocked:
        raise ConfigError(f"{file} cannot be replicated as configured", code="assessment_failed")


@main.command(name="plan")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--ddl", "statement", metavar="STATEMENT", help="The statement, such as 'ALTER TABLE …'.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/plan.schema.json).")
def plan_(file: Path, statement: str | None, as_json: bool) -> None:
    """Show what a statement would become in the target, by which policy, and what it would cost. Executes nothing.

    Reads the catalogue of the source. Exits 2 if the source does not understand the statement.
    """
    if statement is None:
        raise click.UsageError(
            "plan needs --ddl for now: plan FILE --ddl 'ALTER TABLE …'. To check a file: validate FILE"
        )
    registry, home = Registry.discover(), Home.from_environment()
    loaded = _load(file, registry)
    store = _open(home)
    record = store.replicator(loaded.config.name)
    tables = store.tables(loaded.config.name) if record else ()
    found = plan.plan_statement(loaded, registry, statement, uuid=record.uuid if record else "", stored=tables)
    if as_json:
        changes.plan_json(plan.document(found))
    else:
        changes.plan(found)


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--until-caught-up",
    is_flag=True,
    help="Exit when every table has its snapshot and every change committed before now is applied.",
)
def run(file: Path, until_caught_up: bool) -> None:
    """Store a configuration and run its worker in the foreground. Ctrl-C stops it cleanly."""
    registry, home = Registry.discover(), Home.from_environment()
    loaded = _load(file, registry)
    store = _open(home)
    click.echo(f"{loaded.config.name}: checking source and target.", err=True)
    record, assessment = lifecycle.put(store, home, registry, loaded)
    show.warnings(assessment)
    lifecycle.start_unless_paused(store, record)
    stop = _stop_on_signals()
    display = show.ProgressDisplay(store, record.name)
    with display:
        display.say("starting capture and apply. To stop: Ctrl-C.")
        outcome = lifecycle.supervise(
            store, home, registry, record, stop, until_caught_up=until_caught_up, echo=display.log_line
        )
    _finish(record.name, outcome)


@main.command()
def serve() -> None:
    """Run a worker for each stored replicator. Skips those that another worker runs."""
    registry, home = Registry.discover(), Home.from_environment()
    store = _open(home)

    def log_line(line: str) -> None:
        click.echo(line, err=True)

    serve_all(
        store,
        lambda record, lease, stop: lifecycle.supervise(
            store, home, registry, record, stop, refuse_first=False, echo=log_line, lease=lease
        ),
        _stop_on_signals(),
    )


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
def start(file: Path) -> None:
    """Store a configuration and set it to run. A worker (`serve`) runs it."""
    registry, home = Registry.discover(), Home.from_environment()
    store = _open(home)
    record, assessment = lifecycle.put(store, home, registry, _load(file, registry))
    show.warnings(assessment)
    lifecycle.start(store, record)
    click.echo(f"{record.name} is set to run. If no worker is running, start one: replicator serve")


@main.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/status.schema.json).")
def list_(as_json: bool) -> None:
    """List the stored replicators."""
    store = _open(Home.from_environment())
    show.replicators([status.status(store, r) for r in store.replicators()], as_json=as_json)


@main.command(name="status")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/status.schema.json).")
def status_(name: str | None, as_json: bool) -> None:
    """Show the state of one replicator (or of all), table by table."""
    store = _open(Home.from_environment())
    records = [lifecycle.find(store, name)] if name else list(store.replicators())
    documents = [status.status(store, r) for r in records]
    if as_json:
        if name:
            show.status_json(documents[0])
        else:
            show.statuses_json(documents)
        return
    for document in documents:
        show.status(document)
    if not documents:
        click.echo("No replicator is stored in this state store.", err=True)


@main.command()
@click.argument("name")
@click.option(
    "--apply",
    "apply_only",
    is_flag=True,
    help="Pause only the writes to the target; capture continues, or starts again.",
)
def pause(name: str, apply_only: bool) -> None:
    """Pause a replicator. It keeps its position in the source's log."""
    store = _open(Home.from_environment())
    lifecycle.pause(store, name, apply_only=apply_only)
    document = status.status(store, lifecycle.find(store, name))
    retained = document.source.retained_bytes
    seen = "" if retained is None else f" ({show.size(retained)} when capture last checked)"
    kept = f" The source keeps its log meanwhile{seen}."
    if left := show.time_left(document):
        kept = f" The source{left.removeprefix(',')}, by its own rules. A longer pause loses the position."
    kept = "" if apply_only else kept
    what = " (writes to the target only)" if apply_only else ""
    click.echo(f"{name} is paused{what}.{kept} To continue: replicator resume {name}")


@main.command()
@click.argument("name")
def resume(name: str) -> None:
    """Resume a paused or failed replicator."""
    store = _open(Home.from_environment())
    lifecycle.resume(store, name)
    needed = "" if store.lease(name) else " No worker is running. Start one: replicator serve (or run FILE)"
    click.echo(f"{name} is set to run.{needed}")


@main.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--drop-target", is_flag=True, help="Also delete the tables in the target.")
@click.option("--force", is_flag=True, help="Skip an unreachable source and print what is left there.")
def delete(name: str, yes: bool, drop_target: bool, force: bool) -> None:
    """Delete a replicator, its journal and its state. Also deletes what it created in the source."""
    registry, home = Registry.discover(), Home.from_environment()
    store = _open(home)
    lifecycle.find(store, name)
    what = "Target tables are deleted, too." if drop_target else "Target tables stay."
    deleted = "This deletes its journal, its state and what it created in the source."
    if not yes and not click.confirm(f"Delete replicator {name}? {deleted} {what}"):
        click.echo("Nothing was deleted.")
        return
    lifecycle.delete(store, home, registry, name, drop_target=drop_target, force=force, tell=click.echo)
    click.echo(f"{name} is deleted.")


@main.command()
@click.argument("name")
@click.argument("tables", nargs=-1)
@click.option(
    "--restart",
    is_flag=True,
    help="Start at a new position in the source's log, after the old one was lost. Every table gets a new snapshot, in place.",
)
@click.option(
    "--recreate",
    is_flag=True,
    help="Recreate the target tables with the current settings and source columns, instead of updating them in place.",
)
def snapshot(name: str, tables: tuple[str, ...], restart: bool, recreate: bool) -> None:
    """Take a new snapshot of TABLES, or of all tables. It runs in place, while changes continue."""
    store = _open(Home.from_environment())
    chosen = lifecycle.snapshot(store, name, tables, restart=restart, recreate=recreate)
    click.echo(
        f"Requested a new snapshot of {', '.join(map(str, chosen)) or 'every table'}. To watch it: replicator status {name}"
    )


@main.command()
@click.argument("name")
@click.argument("tables", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/verify.schema.json).")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write a report to this file: .json or .md.",
)
@click.option("--show-values", is_flag=True, help="Show the values of rows that differ, not only their keys.")
@click.option("--repair", is_flag=True, help="Read rows that differ again from the source, and verify them once more.")
@click.option("--sample", metavar="PERCENT", help="Compare only so many percent of the rows: the same ones each time.")
@click.option(
    "--keys",
    metavar="JSON",
    multiple=True,
    help="Compare only the row of TABLES that has this key, such as '{\"id\": 7}' or 7. Can be given more than once.",
)
@click.option("--since", metavar="DURATION", help="Compare only rows that were changed within this time, such as 90m.")
def verify(
    name: str,
    tables: tuple[str, ...],
    as_json: bool,
    report: Path | None,
    show_values: bool,
    repair: bool,
    sample: str | None,
    keys: tuple[str, ...],
    since: str | None,
) -> None:
    """Compare TABLES, or all tables, with the source, at one position of its log. Changes continue meanwhile.

    Exits 0 if all are equal (also after --repair), 3 if one differs, 1 if one could not be compared.
    """
    registry, home = Registry.discover(), Home.from_environment()
    if report is not None:
        verification.check_report(report)
    asked = AskedScope.read(tables, sample=sample, keys=keys, since=since)

    def tell(verdict: Verdict) -> None:
        if not as_json:
            one = verification.document(name, [verdict], with_values=show_values)
            verified.table(verdict, one.tables[0])

    verdicts = verification.verify(
        _open(home),
        home,
        registry,
        name,
        tables,
        asked=asked,
        with_values=show_values,
        repairs=repair,
        tell=tell,
        log=lambda line: click.echo(line, err=True),
    )
    document = verification.document(name, verdicts, with_values=show_values)
    if as_json:
        verified.document(document)
    if report is not None:
        text = document.model_dump_json(indent=2) if report.suffix == ".json" else verified.markdown(document)
        report.write_text(text, encoding="utf-8")
    sys.exit(verification.exit_code(verdicts))


@main.command(name="history")
@click.argument("name")
@click.argument("table", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/history.schema.json).")
@click.option(
    "--limit",
    default=50,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Number of events to show: the newest, oldest first.",
)
def history_(name: str, table: str | None, as_json: bool, limit: int) -> None:
    """Show the schema changes of a replicator's tables, or of TABLE: what was done, decided and applied.

    Each event has its position, the table's shape before and after, the decision by policy, and what the target did.
    """
    store = _open(Home.from_environment())
    record = lifecycle.find(store, name)
    events = history.history(store, record, table=table, limit=limit)
    if as_json:
        changes.history_json(history.document(record, events))
        return
    changes.history(events)
    if not events:
        click.echo("No schema change is known.", err=True)


@main.command()
@click.argument("name")
@click.option(
    "--lines",
    "-n",
    default=100,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Number of lines to show, from the end of the log.",
)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines.")
def logs(name: str, lines: int, follow: bool) -> None:
    """Show what a replicator's workers logged on this host."""
    home = Home.from_environment()
    lifecycle.find(_open(home), name)
    for line in log_lines(home.log_file(name), lines, follow=follow):
        click.echo(line)


main.add_command(ddl)
main.add_command(
    DemoCommand(
        "demo",
        help="Replicate a live database and survive a kill -9. At the end it compares both sides row by row.",
    )
)


def _load(file: Path, registry: Registry) -> LoadedConfig:
    return registry.load(file)


def _open(home: Home) -> StateStore:
    home.ensure()
    return StateStore(home.state_url)


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()

    def end(*_: object) -> None:
        if not stop.is_set():
            # Not through Python's buffers: the interrupted code may be writing to them. A full disk must not keep it running.
            with contextlib.suppress(OSError):
                os.write(2, b"Stopping cleanly. A batch that the target has started is finished first.\n")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    return stop


def _finish(name: str, outcome: RunOutcome) -> None:
    if outcome.end is End.REFUSED:
        assert outcome.error is not None
        show.error(outcome.error, name)
        sys.exit(2)
    if outcome.error:
        show.error(outcome.error, name)
        sys.exit(1)
    end = outcome.end.value.replace("_", " ")
    if outcome.failed:
        click.echo(
            f"{name}: {end}, except failed tables: {', '.join(outcome.failed)}. For the reasons: replicator status {name}",
            err=True,
        )
    if outcome.alarmed:
        click.echo(
            f"{name}: {end}, but alarms show that the target may differ from the source. For details: replicator status {name}. Next "
            f"step: replicator verify {name} {' '.join(shlex.quote(table) for table in outcome.alarmed)} --repair",
            err=True,
        )
    if outcome.failed or outcome.alarmed:
        sys.exit(1)
    click.echo(f"{name}: {end}.", err=True)
