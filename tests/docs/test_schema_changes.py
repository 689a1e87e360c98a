"""The page about schema changes names tests that exist, and every policy with its values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from replicator.config import DDLConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "schema-changes.md").read_text()


def defined() -> set[str]:
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("plugins/*/*/tests/**/test_*.py")]
    return {name for file in files for name in re.findall(r"^ *def (test_\w+)\(", file.read_text(), re.MULTILINE)}


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 40
    assert named - defined() == set()


@pytest.mark.parametrize("policy", DDLConfig.model_fields)
def test_every_policy_is_named_with_its_values(policy: str) -> None:
    cells = (line.rsplit("|", 2)[1] for line in PAGE.splitlines() if line.startswith("|"))
    cell = next(cell for cell in cells if cell.startswith(f" `ddl.{policy}`:"))
    field = DDLConfig.model_fields[policy]
    named = re.findall(r"`(\w+)`", cell)
    assert set(named) == set(get_args(field.annotation))
    assert named[0] == field.default
