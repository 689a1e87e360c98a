"""Fixtures have types: a test that asks for one is checked against what it gets. mypy sees to it that they say one at all."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "tests",
    "plugins/*/*/tests",
    "examples/plugins/*/tests",
    "testbed/replicator_testbed",
    "testing/replicator_testing",
)


FIXTURE = re.compile(r"^\s*@pytest\.fixture\b.*?\bdef (\w+)", re.MULTILINE | re.DOTALL)


def texts() -> Iterator[tuple[Path, str]]:
    """Every module of tests and of what they are made of."""
    for folder in (folder for pattern in FOLDERS for folder in sorted(ROOT.glob(pattern))):
        for path in sorted(folder.rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")


@functools.cache
def functions() -> Sequence[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function, with its location, of modules that say `Any` at all."""
    return tuple(
        (f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}", node)
        for path, text in texts()
        if "Any" in text
        for node in _defined(ast.parse(text))
    )


def _defined(outer: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions at any depth; expressions have none."""
    for node in ast.iter_child_nodes(outer):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _defined(node)


def is_fixture(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    named = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    return any(ast.unparse(decorator) == "pytest.fixture" for decorator in named)


def is_any(annotation: ast.expr | None) -> bool:
    """Whether a type says nothing: `Any`, or `Any` with nothing but an iterator around it."""
    return annotation is not None and ast.unparse(annotation) in {
        "Any",
        "Iterator[Any]",
        "Generator[Any]",
        "Callable[..., Any]",
    }


def test_no_fixture_is_typed_any() -> None:
    fixtures = [(where, function) for where, function in functions() if is_fixture(function)]
    assert fixtures
    assert [where for where, function in fixtures if is_any(function.returns)] == []


def test_nobody_asks_for_a_fixture_as_any() -> None:
    found = functions()
    fixtures = {name for _, text in texts() for name in FIXTURE.findall(text)}
    assert {function.name for _, function in found if is_fixture(function)} <= fixtures
    askers = [(where, f) for where, f in found if is_fixture(f) or f.name.startswith("test_")]
    assert [
        f"{where}({argument.arg})"
        for where, function in askers
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if argument.arg in fixtures and is_any(argument.annotation)
    ] == []


def test_a_fixture_without_a_type_is_found() -> None:
    [function] = ast.parse("@pytest.fixture\ndef one() -> Iterator[Any]: ...").body
    assert isinstance(function, ast.FunctionDef)
    assert is_fixture(function)
    assert is_any(function.returns)
