"""What `make test` costs; `make durations` measures it. Nothing may become dearer: what comes in moves something out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from replicator_testbed.selection import LAYERS, layer

ROOT = Path(__file__).parents[2]
FILES: dict[str, dict[str, Any]] = json.loads((ROOT / "tests" / "durations.json").read_text(encoding="utf-8"))
BUDGET_S: Final = {"fast": 205, "servers": 340, "lake": 200, "walks": 200}
"""Seconds of processor time of each layer, with a little room. A slower machine takes up to three times as many for the same
tests: what is renewed is measured where the rest was."""
TEST_S: Final = {"fast": 5, "servers": 5, "lake": 5, "walks": 40}
DEARER_MAX: Final = 8
"""So many tests cost more than `TEST_S`; the goal is none."""


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_keeps_its_budget(name: str) -> None:
    costs = Counter({file: cost["seconds"] + cost["shared"] for file, cost in FILES.items() if layer(file) == name})
    assert costs.total() <= BUDGET_S[name], f"the dearest files: {costs.most_common(10)}"


def test_no_more_tests_are_dearer_than_their_layer_allows() -> None:
    dearer = {
        f"{file}::{test}": seconds
        for file, cost in FILES.items()
        for test, seconds in cost["dear"].items()
        if seconds > TEST_S[layer(file)]
    }
    assert len(dearer) <= DEARER_MAX, dearer


def test_files_that_were_measured_exist() -> None:
    assert [file for file in FILES if not (ROOT / file).exists()] == []
