"""`docs/cli.md` is what `make docs` writes, and names every command and option."""

from __future__ import annotations

from pathlib import Path

import click

from replicator.cli.entry import main
from replicator.cli.reference import cli_reference
from replicator_testbed.present import present

REFERENCE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_reference_is_what_the_commands_say() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == cli_reference(), "run `make docs`"


def test_every_command_and_option_is_there_and_has_help() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    context = click.Context(main)
    for name in main.list_commands(context):
        command = present(main.get_command(context, name))
        assert f"\n## {name}\n" in text
        assert command.help, name
        for parameter in command.params:
            for spelling in parameter.opts if parameter.param_type_name == "option" else ():
                assert f"`{spelling}`" in text, f"{name} {spelling}"
