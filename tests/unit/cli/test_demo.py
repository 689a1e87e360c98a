"""The demo is a distribution of its own."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from replicator.cli import demo
from replicator.cli.main import main


def test_the_demo_comes_with_the_testbed() -> None:
    assert "--target" in CliRunner().invoke(main, ["demo", "--help"]).output


def test_a_demo_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "entry_points", lambda group: ())  # noqa: ARG005
    monkeypatch.setitem(main.commands, "demo", demo.demo_command())
    done = CliRunner().invoke(main, ["demo", "--source", "mysql"])
    assert done.exit_code == 2
    assert 'pip install "replicator[demo]"' in done.stderr
