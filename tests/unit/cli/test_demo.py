"""The demo is a distribution of its own, and no other command depends on it."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
from click.testing import CliRunner

from replicator.cli import demo
from replicator.cli.entry import COMMANDS, main


def test_the_demo_comes_with_the_testbed() -> None:
    assert "--target" in CliRunner().invoke(main, ["demo", "--help"]).output


def test_the_list_of_commands_says_what_the_demo_itself_says() -> None:
    assert COMMANDS["demo"][1] == demo.load_demo().help


def test_a_demo_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "entry_points", lambda group: ())  # noqa: ARG005
    done = CliRunner().invoke(main, ["demo", "--source", "mysql"])
    assert done.exit_code == 2
    assert 'pip install "replicator[demo]"' in done.stderr


@pytest.mark.parametrize("value", ["no_such_testbed:demo", "replicator.cli.main:no_such_name", "json:dumps"])
def test_a_broken_demo_breaks_no_other_command(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    broken = EntryPoint("demo", value, "replicator.demo")
    monkeypatch.setattr(demo, "entry_points", lambda group: (broken,))  # noqa: ARG005
    for arguments in (["--help"], ["plugins", "--help"]):
        assert CliRunner().invoke(main, arguments).exit_code == 0
    done = CliRunner().invoke(main, ["demo", "--source", "mysql"])
    assert done.exit_code == 2
    assert "[demo_broken]" in done.stderr
    assert value in done.stderr
