"""The host names no plugin, and no thing that only one kind of database has: what a plugin needs is a field of its interface."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import replicator

HOST = Path(replicator.__file__).parent
NAMES = re.compile(
    r"(?<![a-z])(delta(?!source|target|[a-z])|databricks|bigquery|postgres|psycopg|mysql|mariadb)", re.IGNORECASE
)
PARTS = re.compile(r"(?<![a-z])(slots?|publications?|binlogs?|gtids?)(?![a-z])", re.IGNORECASE)
"""Words of one database. Docstrings of the interface explain by them; code and texts for people do not need them."""
PYTHONS_OWN = {"slots", "__slots__"}
EXCEPT = ("config/reference.py",)
OWN_STORE = re.compile(r"postgres|psycopg", re.IGNORECASE)
"""`state` keeps its own tables in SQLite or PostgreSQL."""
OF_STORE = ("state/", "model/rules/state.py")
EXAMPLES = ("(MySQL: database.table)", "until it commits or rolls back (MySQL, ")
"""What descriptions of settings and of the status tell people."""


def code_of(path: Path) -> Iterator[tuple[int, str]]:
    """The tokens of a module that are neither comments nor docstrings, with their lines."""
    previous = tokenize.INDENT
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        is_docstring = token.type == tokenize.STRING and previous in {tokenize.INDENT, tokenize.NEWLINE, tokenize.NL}
        if token.type != tokenize.COMMENT and not is_docstring:
            yield token.start[0], token.string
        previous = token.type


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(HOST.rglob("*.py")):
        name = path.relative_to(HOST).as_posix()
        if not name.startswith(EXCEPT):
            yield name, path


def test_the_hosts_code_has_no_words_of_one_database() -> None:
    found = [
        f"{name}:{line}: {text}"
        for name, path in modules()
        for line, text in code_of(path)
        if PARTS.search(text) and text not in PYTHONS_OWN
    ]
    assert found == []


def test_a_word_of_one_database_is_found() -> None:
    assert all(map(PARTS.search, ("its slot and publication", "drop_slot", "GTIDs", "the binlog")))
    assert not PARTS.search("a slotted class")


def test_the_hosts_code_names_no_plugin() -> None:
    found = []
    for name, path in modules():
        for line, text in code_of(path):
            names = NAMES.findall(text)
            is_own_store = name.startswith(OF_STORE) and all(OWN_STORE.match(n) for n in names)
            if names and not is_own_store and not any(example in text for example in EXAMPLES):
                found.append(f"{name}:{line}: {text}")
    assert found == []
