"""`docs/crash-points.md` lists exactly the crash points of the source."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "crash-points.md"


@functools.cache
def in_code() -> frozenset[str]:
    names = set()
    for file in (*ROOT.glob("replicator/**/*.py"), *ROOT.glob("plugins/*/*/replicator_*/**/*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "crash_point(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "crash_point":
                (argument,) = node.args
                assert isinstance(argument, ast.Constant), (
                    f"{file}:{node.lineno}: the name of a crash point is a literal"
                )
                names.add(str(argument.value))
    return frozenset(names)


def in_tests() -> set[str]:
    """Names that tests kill at: texts, perhaps with the number of the time. Comparisons with a name do not kill there."""
    names = set()
    for file in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/*/tests/**/*.py")):
        text = file.read_text(encoding="utf-8")
        if not any(name in text for name in in_code()):
            continue
        tree = ast.parse(text)
        compared = {
            id(operand)
            for node in ast.walk(tree)
            if isinstance(node, ast.Compare)
            for operand in (node.left, *node.comparators)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in compared:
                names.add(re.sub(r":\d+$", "", node.value))
    return names


def on_page() -> list[str]:
    return re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_page_lists_every_crash_point_once() -> None:
    assert sorted(on_page()) == sorted(in_code())


def test_a_test_kills_at_every_crash_point() -> None:
    assert in_code() - in_tests() == frozenset()


def test_every_row_says_what_is_left_and_who_mends_it() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| `[a-z_]+\.", line)]
    assert [row for row in rows if not all(cell.strip() for cell in row.strip("|").split("|"))] == []
