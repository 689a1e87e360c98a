"""Writes `docs/cli.md` from the commands themselves: `python -m replicator.cli.reference docs/cli.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from replicator.cli.demo import DemoCommand, load_demo
from replicator.cli.entry import main

_HEAD: Final = """\
# Commands

<!-- Generated from the commands by `make docs`. Edit their help there. -->

Every command also has `-h` and `--help`. Exit codes: 0 success (also after Ctrl-C or SIGTERM, which stop cleanly); 1 failed while running;
2 wrong usage or configuration. Errors go to stderr, with a code that `errors.md` explains.

`REPLICATOR_HOME` (default `~/.replicator`) and `REPLICATOR_STATE_URL` set where the state is kept: `operating.md`."""


def cli_reference() -> str:
    """Return the reference of every command, in Markdown."""
    lines = _HEAD.splitlines()
    context = click.Context(main, info_name="replicator")
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        lines += _command(name, load_demo() if isinstance(command, DemoCommand) else command, context)
    return "\n".join(lines).rstrip() + "\n"


def _command(name: str, command: click.Command, parent: click.Context, level: int = 2) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield from (
        "",
        f"{'#' * level} {context.command_path.removeprefix(f'{parent.find_root().info_name} ')}",
        "",
        f"    {' '.join([context.command_path, *command.collect_usage_pieces(context)])}",
        "",
    )
    for paragraph in (command.help or "").split("\n\n"):
        yield from (" ".join(paragraph.split()), "")
    options = [p for p in command.params if isinstance(p, click.Option)]
    if options:
        yield from ("| option | value | default | |", "| --- | --- | --- | --- |")
        yield from (_option(option, context) for option in options)
    if isinstance(command, click.Group):
        for sub in sorted(command.commands):
            yield from _command(sub, command.commands[sub], context, level + 1)


def _option(option: click.Option, context: click.Context) -> str:
    spellings = ", ".join(f"`{one}`" for one in option.opts)
    value = "" if option.is_flag else option.make_metavar(context)
    if isinstance(option.type, click.IntRange):
        value = f"{option.type.min:,} to {option.type.max:,}"
    default = f"`{option.default}`" if option.show_default else ""
    return f"| {spellings} | {_cell(value)} | {default} | {_cell(option.help or '')} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(cli_reference(), encoding="utf-8")
    else:
        sys.stdout.write(cli_reference())
