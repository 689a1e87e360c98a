"""The advice of errors, followed literally: what somebody does until a table stops, what that tells to do, and each of its ways."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

import pytest

from replicator.model.errors import Problem, ReplicatorError
from replicator_testbed.present import present

ERRORS: Final = Path(__file__).parents[2] / "docs" / "errors.md"
WorldT = TypeVar("WorldT")


@dataclass(frozen=True, kw_only=True)
class Case(Generic[WorldT]):
    """What somebody does until the table stops: an error is raised, or a finding returned.

    Attributes:
        code: Code of the error or finding.
        stop: Does it.
        advice: What that tells the user to do, word for word.
        ways: Each of its alternatives by some of its words.
        slow: The ways that are left to the matrix.
    """

    code: str
    stop: Callable[[WorldT], Problem | None]
    advice: str
    ways: Mapping[str, Callable[[WorldT], object]]
    slow: frozenset[str] = frozenset()

    def check(self, world: WorldT, way: str) -> None:
        """Let it happen, and compare what is told."""
        try:
            problem = self.stop(world)
        except ReplicatorError as error:
            told = error.code, error.action
        else:
            found = present(problem)
            told = found.code, found.action
        assert told == (self.code, self.advice), told
        assert way in self.advice


def ways_of(cases: Mapping[str, Case[Any]]) -> list[Any]:
    """Parameters of a test: the case's name and the way."""
    return [
        pytest.param(name, way, marks=[pytest.mark.matrix] if way in case.slow else [])
        for name, case in cases.items()
        for way in case.ways
    ]


def codes_in(modules: Iterable[ModuleType]) -> set[str]:
    """Codes of `docs/errors.md` that stand in modules, or in any module of a package."""
    known = set(re.findall(r"^\| `([a-z_]+)`", ERRORS.read_text(encoding="utf-8"), re.MULTILINE))
    found = set[str]()
    for module in modules:
        file = Path(present(module.__file__))
        for path in file.parent.rglob("*.py") if file.name == "__init__.py" else [file]:
            texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
            found |= {text for text in texts if isinstance(text, str)} & known
    return found
