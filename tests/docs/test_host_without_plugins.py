"""The host names no plugin: what a plugin needs is a field of its interface."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import replicator

HOST = Path(replicator.__file__).parent
# `state` keeps its own tables in SQLite or PostgreSQL; examples for people name a plugin.
EXCEPT = {"config/reference.py", "config/starter.py"}
EXCEPT_FOLDERS = {"state", "testing"}
NAMES = ("delta-spark", "spark.databricks", "io.delta", '"delta"', '"bigquery"', '"postgresql"', '"mysql"', "mariadb")


def code_of(path: Path) -> Iterator[tuple[int, str]]:
    """The tokens of a module that are neither comments nor docstrings, with their lines."""
    previous = tokenize.INDENT
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        is_docstring = token.type == tokenize.STRING and previous in {tokenize.INDENT, tokenize.NEWLINE, tokenize.NL}
        if token.type != tokenize.COMMENT and not is_docstring:
            yield token.start[0], token.string
        previous = token.type


def test_the_hosts_code_names_no_plugin() -> None:
    found = []
    for path in sorted(HOST.rglob("*.py")):
        name = path.relative_to(HOST).as_posix()
        if name in EXCEPT or name.split("/")[0] in EXCEPT_FOLDERS:
            continue
        found += [f"{name}:{line}: {text}" for line, text in code_of(path) if any(n in text.lower() for n in NAMES)]
    assert found == []
