"""Each fault that a hostile reading found names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = ROOT / "docs" / "adr" / "0018-where-each-fault-is-shown.md"


def test_every_test_of_the_list_exists() -> None:
    named = re.findall(r"`(test_[a-z0-9_]+)(\.py)?`", LIST.read_text())
    tests = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("plugins/*/*/tests/**/test_*.py")]
    tests += ROOT.glob("testing/replicator_testing/*_contract.py")
    functions = {name for path in tests for name in re.findall(r"^\s*def (test_\w+)\(", path.read_text(), re.MULTILINE)}
    files = {path.stem for path in tests}
    missing = [name + end for name, end in named if name not in (files if end else functions)]
    assert len(named) > 30
    assert missing == []
