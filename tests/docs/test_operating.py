"""Commands that `operating.md`, `several-hosts.md` and `deploy/README.md` tell an operator to run are ones that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from replicator.cli.entry import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("operating.md", "several-hosts.md", "deploy/README.md")
_BLOCK = re.compile(r"^```\n(.*?)^```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(
    r"^(?:\$ )?(?:\w+=\S+ |runuser \S+ \S+ -- |kubectl .* -- )*(?:\S*/)?replicator (.+)$", re.MULTILINE
)


def commands(page: str) -> Iterator[list[str]]:
    """The arguments of each command that a block of the page has, without its comment and redirection."""
    for block in _BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        for line in _COMMAND.findall(block):
            yield shlex.split(re.split(r"\s>\s|\s&", line)[0], comments=True)


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_page_are_taken(page: str) -> None:
    found = list(commands(page))
    assert found
    refused = [arguments for arguments in found if CliRunner().invoke(main, [*arguments, "--help"]).exit_code != 0]
    assert refused == []
