"""README.md lists the rules of the model: each names tests that exist, and each rule that a test names is listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import replicator_testbed.sqlserver

README = Path(replicator_testbed.sqlserver.__file__).with_name("README.md").read_text(encoding="utf-8")
TESTS = "".join(
    path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).parent.glob("test_*.py"))
    if path != Path(__file__)
)
RULES = dict(re.findall(r"^\| (\d+) \| (.+) \|$", README, re.MULTILINE))


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_a_source_and_tests(rule: str) -> None:
    _, source, tests = (cell.strip() for cell in RULES[rule].split(" | "))
    assert re.search(r"\b(DOC|LAB|ISS|RUN|K)\b", source)
    names = re.findall(r"`(test_\w+)`", tests)
    assert names != []
    assert [name for name in names if f"def {name}(" not in TESTS] == []


def test_a_rule_that_a_test_names_is_listed() -> None:
    assert set(re.findall(r"rule (\d+)", TESTS)) <= set(RULES)


def test_the_beginning_says_that_no_sql_server_was_used() -> None:
    assert "No real SQL Server was ever used" in "\n".join(README.splitlines()[:10])
