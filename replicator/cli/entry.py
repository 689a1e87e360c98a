"""The command `replicator`: imports the module of a command when it is asked for, so that no command waits for imports it does not need."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click

from replicator.cli.output import clean_output

_LOOKING: Final = "replicator.cli.looking"
_ACTING: Final = "replicator.cli.main"
_CHECKING: Final = "replicator.cli.validate"
_SLOW: Final = ("plan", "preview", "reload", "run", "start", "validate")

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "alert": (_ACTING, "Test the channels that get alerts, and watch replicators without running them."),
    "ddl": (_ACTING, "Act on changes of source tables that a policy has stopped."),
    "delete": (_ACTING, "Delete a replicator, its journal and its state. Also deletes what it created in the source."),
    "demo": (_ACTING, "Replicate a live database and survive a kill -9. At the end it compares both sides row by row."),
    "history": (
        _ACTING,
        "Show the schema changes of a replicator's tables, or of TABLE: what was done, decided and applied.",
    ),
    "init": (_ACTING, "Write a commented starter file for a SOURCE and a TARGET plugin."),
    "list": (_LOOKING, "List the stored replicators."),
    "logs": (_ACTING, "Show what a replicator's workers logged on this host."),
    "metrics": (
        _ACTING,
        "Print the metrics of all replicators in Prometheus' text format (docs/metrics.md). Needs replicator[web].",
    ),
    "pause": (_ACTING, "Pause a replicator. It keeps its position in the source's log."),
    "plan": (
        _ACTING,
        "Show what replicating FILE will take: rows, time, disk, cost, missing grants. Executes nothing but reads.",
    ),
    "preview": (_CHECKING, "Show rows of TABLE as they would arrive in the target. Changes nothing."),
    "plugins": (_ACTING, "List the installed plugins and their versions. Shows why a plugin cannot load."),
    "reload": (
        _ACTING,
        "Have a running replicator take a changed FILE. Its worker keeps running; tables that are added start, the others continue.",
    ),
    "resume": (_ACTING, "Resume a paused or failed replicator."),
    "run": (_ACTING, "Store a configuration and run its worker in the foreground. Ctrl-C stops it cleanly."),
    "schema": (_ACTING, "Print the JSON Schema of the YAML file. With PLUGIN, print that of the plugin's block."),
    "serve": (_ACTING, "Run the stored replicators: all of them, or, next to other workers, a share."),
    "snapshot": (_ACTING, "Take a new snapshot of TABLES, or of all tables. It runs in place, while changes continue."),
    "start": (_ACTING, "Store a configuration and set it to run. A worker (`serve`) runs it."),
    "status": (_LOOKING, "Show the state of one replicator (or of all), table by table."),
    "token": (_ACTING, "Manage the tokens that the REST API accepts."),
    "validate": (_CHECKING, "Check a configuration against source and target. Exits 2 if a problem is blocking."),
    "verify": (
        _ACTING,
        "Compare TABLES, or all tables, with the source, at positions of its log. Changes continue meanwhile.",
    ),
    "workers": (_LOOKING, "List the workers (`serve`, `run`) of all hosts, with what each runs."),
}
"""Command → its module, and the first line of its help."""


class Commands(click.Group):
    """Loads a command when it is asked for; turns our errors into one message and the documented exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command; all its output is cleaned before it reaches a terminal, even a bug's traceback."""
        with clean_output():
            try:
                return super().main(*args, **extra)
            except Exception:  # noqa: BLE001  Python would print it around the clean stream
                from traceback import format_exc

                from replicator.model.redaction import redact

                sys.stderr.write(redact(format_exc()))
                sys.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = import_module(COMMANDS[cmd_name][0])
        found: click.Command = module.commands.commands[cmd_name]
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run, and print a line first if it is slow. Only commands that act configure logging."""
        is_run = not ctx.resilient_parsing and not {"-h", "--help"}.intersection(args)
        if args[0] in _SLOW and is_run:
            click.echo("Reading the configuration.", err=True)
        name, command, rest = super().resolve_command(ctx, args)
        if is_run and name is not None and COMMANDS[name][0] != _LOOKING:
            from replicator.observability import configure_logging

            configure_logging(format="auto", stream=sys.stderr)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading them."""
        width = formatter.width - 6 - max(map(len, COMMANDS))
        rows = [
            (name, click.Command(name, help=COMMANDS[name][1]).get_short_help_str(width))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        from replicator.model.errors import ConfigError, ReplicatorError

        try:
            return super().invoke(ctx)
        except ConfigError as error:
            from replicator.cli import findings, show  # what prints is loaded once there is something to print

            findings.findings(error.problems)
            if not any(problem.message == error.message for problem in error.problems):
                # Without the findings, which are printed.
                show.error(ConfigError(error.message, code=error.code, table=error.table, action=error.action))
            ctx.exit(2)
        except ReplicatorError as error:
            from replicator.cli import show

            show.error(error)
            ctx.exit(1)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="replicator")
def main() -> None:
    """Replicate relational databases to lakes and warehouses, continuously."""
