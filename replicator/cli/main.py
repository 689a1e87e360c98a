"""Commands: parse, call a use case, show. Exit codes: 0 fine, 1 failed while running, 2 wrong usage or configuration."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click

from replicator import config
from replicator.cli import changes, completion, findings, progress, show, verified
from replicator.cli.alert import alert
from replicator.cli.ddl import ddl
from replicator.cli.demo import DemoCommand
from replicator.cli.metrics import metrics
from replicator.cli.plan import plan
from replicator.cli.serve import serve
from replicator.cli.stopping import stop_on_signals
from replicator.cli.token import token
from replicator.config import LoadedConfig
from replicator.model.errors import ConfigError
from replicator.model.terminal import in_one_line
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.runtime.supervisor import End, RunOutcome
from replicator.runtime.watch_process import watched
from replicator.service import attending, lifecycle, reloading
from replicator.service.configuring.stored import find
from replicator.service.history import changes as history
from replicator.service.logs import log_lines
from replicator.service.status import assemble as status
from replicator.service.verify import check as verification
from replicator.service.verify.scope import AskedScope
from replicator.service.watching import is_watched
from replicator.state.store import StateStore
from replicator.verify import Verdict


@click.group()
def commands() -> None:
    """Commands that act."""


@commands.command()
@click.argument("source", shell_complete=completion.plugins)
@click.argument("target", shell_complete=completion.plugins)
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
        raise ConfigError(f"{output} already exists.", code="file_exists", action="Choose another name.")
    output.write_text(text, encoding="utf-8")
    click.echo(f"Wrote {output}. Next: fill it in, then run: replicator validate {output}")


@commands.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(as_json: bool) -> None:
    """List the installed plugins and their versions. Shows why a plugin cannot load."""
    show.plugins(Registry.discover().plugins, as_json=as_json)


@commands.command()
@click.argument("plugin", required=False, shell_complete=completion.plugins)
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
            f"There is no plugin called {plugin!r}.",
            code="unknown_plugin",
            action=f"Installed and working: {', '.join(sorted(models))}.",
        )
    click.echo(json.dumps(document, indent=2))


@commands.command()
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
    findings.warnings(assessment)
    lifecycle.start_unless_paused(store, record)
    stop = stop_on_signals()
    lease = lifecycle.take(store, record.name)
    display = progress.ProgressDisplay(store, record.name)
    with display, watched(is_watched(store, [record.name]), (record.name,), display.log_line):
        display.say("starting capture and apply. To stop: Ctrl-C.")
        outcome = lifecycle.supervise(
            store, home, registry, record, stop, until_caught_up=until_caught_up, echo=display.log_line, lease=lease
        )
    _finish(record.name, outcome)


@commands.command()
@click.argument("file", type=click.Path(path_type=Path))
def start(file: Path) -> None:
    """Store a configuration and set it to run. A worker (`serve`) runs it."""
    registry, home = Registry.discover(), Home.from_environment()
    store = _open(home)
    record, assessment = lifecycle.put(store, home, registry, _load(file, registry))
    findings.warnings(assessment)
    lifecycle.start(store, record)
    click.echo(_and(f"{record.name} is set to run.", attending.next_step(store, record.name)))


@commands.command(name="reload")
@click.argument("file", type=click.Path(path_type=Path))
def reload_(file: Path) -> None:
    """Have a running replicator take a changed FILE. Its worker keeps running; tables that are added start, the others continue.

    The worker starts those of its processes again that read what changed, each at a clean point. Exits 2 if the file cannot be taken.
    """
    registry, home = Registry.discover(), Home.from_environment()
    store = _open(home)
    found = reloading.reload(store, home, registry, _load(file, registry))
    findings.warnings(found.assessment)
    show.reloaded(found, attending.next_step(store, found.record.name))


@commands.command()
@click.argument("name", shell_complete=completion.names)
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
    document = status.status(store, find(store, name))
    retained = document.source.retained_bytes
    seen = "" if retained is None else f" ({show.size(retained)} when capture last checked)"
    kept = f" The source keeps its log meanwhile{seen}."
    if left := show.time_left(document):
        kept = f" The source{left.removeprefix(',')}, by its own rules. A longer pause loses the position."
    kept = "" if apply_only else kept
    what = " (writes to the target only)" if apply_only else ""
    # If capture is to continue, possibly no worker runs it.
    lacking = attending.next_step(store, name) if apply_only else ""
    click.echo(_and(f"{name} is paused{what}.{kept} To continue: replicator resume {name}", lacking))


@commands.command()
@click.argument("name", shell_complete=completion.names)
def resume(name: str) -> None:
    """Resume a paused or failed replicator."""
    store = _open(Home.from_environment())
    lifecycle.resume(store, name)
    click.echo(_and(f"{name} is set to run.", attending.next_step(store, name)))


@commands.command()
@click.argument("name", shell_complete=completion.names)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--drop-target", is_flag=True, help="Also delete the tables in the target.")
@click.option("--force", is_flag=True, help="Skip an unreachable source and print what is left there.")
def delete(name: str, yes: bool, drop_target: bool, force: bool) -> None:
    """Delete a replicator, its journal and its state. Also deletes what it created in the source."""
    registry, home = Registry.discover(), Home.from_environment()
    store = _open(home)
    find(store, name)
    what = "Target tables are deleted, too." if drop_target else "Target tables stay."
    deleted = "This deletes its journal, its state and what it created in the source."
    if not yes and not click.confirm(f"Delete replicator {name}? {deleted} {what}"):
        click.echo("Nothing was deleted.")
        return
    show.deletion(name, lifecycle.delete(store, home, registry, name, drop_target=drop_target, force=force))


@commands.command()
@click.argument("name", shell_complete=completion.names)
@click.argument("tables", nargs=-1, shell_complete=completion.tables)
@click.option(
    "--restart",
    is_flag=True,
    help="Start at a new position in the source's log, after the old one was lost. Every table gets a new snapshot, in place.",
)
@click.option(
    "--changed-only",
    is_flag=True,
    help="Like --restart, but compare source and target first, and read only the rows again that differ. See docs/verify.md.",
)
@click.option(
    "--recreate",
    is_flag=True,
    help="Recreate the target tables with the current settings and source columns, instead of updating them in place.",
)
def snapshot(name: str, tables: tuple[str, ...], restart: bool, changed_only: bool, recreate: bool) -> None:
    """Take a new snapshot of TABLES, or of all tables. It runs in place, while changes continue."""
    store = _open(Home.from_environment())
    chosen = lifecycle.snapshot(store, name, tables, restart=restart, changed_only=changed_only, recreate=recreate)
    what = "a new snapshot of only what changed in" if changed_only else "a new snapshot of"
    watch = f"To watch it: replicator status {name}"
    requested = f"Requested {what} {in_one_line(', '.join(map(str, chosen))) or 'every table'}."
    click.echo(_and(requested, attending.next_step(store, name) or watch))


@commands.command()
@click.argument("name", shell_complete=completion.names)
@click.argument("tables", nargs=-1, shell_complete=completion.tables)
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
@click.option(
    "--rows-per-second",
    metavar="N",
    type=click.IntRange(1, 1_000_000_000),
    help="Pause between ranges of a table, so that no more rows are read per second. Default: no pauses.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Leave out the ranges of tables that an earlier run, or the schedule, has proven equal recently.",
)
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
    rows_per_second: int | None,
    resume: bool,
) -> None:
    """Compare TABLES, or all tables, with the source, at positions of its log. Changes continue meanwhile.

    Exits 0 if all are equal (also after --repair), 3 if one differs, 1 if one could not be compared.
    """
    registry, home = Registry.discover(), Home.from_environment()
    if report is not None:
        verification.check_report(report)
    asked = AskedScope.read(
        tables, sample=sample, keys=keys, since=since, rows_per_second=rows_per_second, resumes=resume
    )

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


@commands.command(name="history")
@click.argument("name", shell_complete=completion.names)
@click.argument("table", required=False, shell_complete=completion.tables)
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
    record = find(store, name)
    events = history.history(store, record, table=table, limit=limit)
    if as_json:
        changes.history_json(history.document(record, events))
        return
    changes.history(events)
    if not events:
        click.echo("No schema change is known.", err=True)


@commands.command()
@click.argument("name", shell_complete=completion.names)
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
    find(_open(home), name)
    for line in log_lines(home.log_file(name), lines, follow=follow):
        click.echo(line)


commands.add_command(alert)
commands.add_command(ddl)
commands.add_command(metrics)
commands.add_command(plan)
commands.add_command(serve)
commands.add_command(token)
commands.add_command(
    DemoCommand(
        "demo",
        help="Replicate a live database and survive a kill -9. At the end it compares both sides row by row.",
    )
)


def _and(done: str, next_step: str) -> str:
    """Join the result and the next step, if there is one."""
    return f"{done} {next_step}" if next_step else done


def _load(file: Path, registry: Registry) -> LoadedConfig:
    return registry.load(file)


def _open(home: Home) -> StateStore:
    home.ensure()
    return StateStore(home.state_url)


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
