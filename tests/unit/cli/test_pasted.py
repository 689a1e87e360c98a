"""What is meant to be pasted into a shell, or is offered by one, runs nothing that a name contains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
_COMMAND = re.compile(r"replicator [a-z]+ [^`.;]*$")


def commands_with_tables(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What stands in a text after `replicator COMMAND`, where it is a table's name."""
    for text in ast.walk(tree):
        if not isinstance(text, ast.JoinedStr):
            continue
        before = ""
        for part in text.values:
            if isinstance(part, ast.FormattedValue):
                shown = ast.unparse(part.value)
                if _COMMAND.search(before) and "table" in shown.lower():
                    yield part.lineno, shown
                before += "x"
            else:
                assert isinstance(part, ast.Constant)
                before += str(part.value)


def test_a_table_s_name_in_a_command_is_quoted_for_the_shell() -> None:
    files = [p for folder in ("replicator", "plugins") for p in (ROOT / folder).rglob("*.py") if "tests" not in p.parts]
    found = [
        (f"{path.relative_to(ROOT)}:{line}", shown)
        for path in files
        if "replicator " in (code := path.read_text("utf-8"))
        for line, shown in commands_with_tables(ast.parse(code))
    ]
    assert found
    assert [one for one in found if "quote(" not in one[1]] == []
