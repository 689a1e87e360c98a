"""Conditions in `docs/conditions.md` are what it says that they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from replicator.projection.condition import ConditionError, parse
from replicator.projection.condition.syntax import DEPTH_MAX, LENGTH_MAX, OPERANDS_MAX, PATTERN_MAX

TEXT = (Path(__file__).parents[2] / "docs/conditions.md").read_text(encoding="utf-8")
EXAMPLES = TEXT.partition("```\n")[2].partition("```")[0].splitlines()
_, WRITTEN, VALUES, _, DIFFERENT = (re.findall(r"^\|.*\|$", part, re.MULTILINE)[2:] for part in TEXT.split("\n## "))


def test_the_examples_are_conditions() -> None:
    in_table = [re.findall(r"`(.+?)`", row)[-1] for row in WRITTEN]
    in_values = [f"c = {value}" for row in VALUES[:-1] for value in re.findall(r"`([^`]+)`", row.split(" | ")[1])]
    for text in [*EXAMPLES, *in_table, *in_values]:
        assert parse(str(parse(text))) == parse(text)
    assert len(EXAMPLES) + len(in_table) + len(in_values) > 30


def test_what_databases_do_differently_is_read_or_refused_as_it_says() -> None:
    for row in DIFFERENT:
        text, here, _ = row.strip("| ").split(" | ")
        for condition in re.findall(r"`([^`]* [^`]*)`", text):
            if "refused" in here and condition.startswith("t "):
                with pytest.raises(ConditionError):
                    parse(condition)
            else:
                parse(condition)
        for condition in re.findall(r"write `([a-z]+ = [^`]*)`", here):
            parse(condition)


def test_limits_are_those_of_the_code() -> None:
    assert LENGTH_MAX == 64 * 1024
    assert f"{OPERANDS_MAX:,} names and values, {DEPTH_MAX} parentheses" in TEXT
    assert f"{PATTERN_MAX:,} characters in a pattern" in TEXT
