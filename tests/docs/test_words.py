"""What a user reads uses the field's words: the pages, and the text of help, settings, output, errors and problems.

So do comments, docstrings and names. The help of commands is read through `docs/cli.md`. `docs/adr` is left out: a record of what was said
then.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

BANNED = {
    r"set(s|ting)? (\S+ ){0,4}aside": "fail, failed: what Debezium and dbt call it; nobody searches for it",
    r"anew": "again, recreate",
    r"(?<!in )(?<!in-)(?<!takes )(?<!take )(?<!took )places?": "position, offset, index, path, location: seven meanings in one word",
    r"in the way": "problem",
    r"(?-i:(first|new|its|their|the) cop(y|ies))|copied (again|anew)|being copied|copies of (tables|a table)": "snapshot; target table",
    r"follow(ed|s) tables?|tables? (is|are) followed|changes follow|host follows": "replicated table, streaming",
    r"for ever|forever": "permanently, without a time limit",
    r"whoever|whomever": "name who does it",
    r"but for": "except",
    r"beside": "next to, in addition to",
    r"(is|are|was|were) gone|gone on with": "does not exist, is missing, was deleted",
    r"(go|goes|went|going) on": "continue",
    r"a way on|is at it": "say what the operator does",
    r"tried again by itself|(begun|begin|begins) again by itself": "is retried automatically",
    r"mend(s|ed|ing)?": "fix, repair",
    r"cure[sd]?": "fix",
    r"vouch(es|ed)?": "sign, trust",
    r"handed out": "delivered, returned",
    r"nobody foresaw": "unexpected",
    r"bears?": "has",
}
"""Pattern → what to write, and why where it is not plain."""

_PATTERNS = [(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead) for pattern, instead in BANNED.items()]
_ANY = re.compile(rf"\b(?:{'|'.join(BANNED)})\b", re.IGNORECASE)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


PRODUCT = ("replicator", "plugins/*/*/replicator_*")
"""Packages whose comments, docstrings and names use the field's words, too."""
REST = ("testbed", "benchmarks", "tools", "examples", "tests", "plugins/*/*/tests")
"""What is not installed: its comments and docstrings, and the worst of its names."""
_WORST = r"places?|aside|anew|whoever|handed_out|go_on|goes_on"
_NAME = r"_*(\w+_)?({words})(_\w+)?"
_WORDS = {rf"{_WORST}|gone|copying|copied|copies|somebody|followed": PRODUCT, _WORST: REST}
BANNED_NAMES = {
    group: re.compile(_NAME.format(words=words), re.IGNORECASE) for words, groups in _WORDS.items() for group in groups
}
"""`in_place` is a kind of snapshot."""
PARTS = {
    group: re.compile(rf"(?<![a-z])(?:{words})(?![a-z])", re.IGNORECASE)
    for words, groups in _WORDS.items()
    for group in groups
}
"""What a file has that has a banned name."""
CODES = {"home_copied", "column_gone"}
"""Of errors: others rely on them."""


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield ROOT / "ARCHITECTURE.md"
    yield ROOT / "CHANGELOG.md"
    yield ROOT / "Makefile"
    yield from sorted(ROOT.glob("docs/*.schema.json"))
    yield from (p for p in sorted(ROOT.glob("docs/**/*.md")) if "adr" not in p.parts)
    yield from sorted(path for path in ROOT.glob("examples/**/*") if path.suffix in {".md", ".yaml"})
    yield from sorted(ROOT.glob("plugins/*/*/README.md"))


def modules() -> Iterator[Path]:
    yield from sorted(ROOT.glob("replicator/**/*.py"))
    yield from sorted(ROOT.glob("testbed/replicator_testbed/demo/**/*.py"))
    yield from sorted(ROOT.glob("plugins/*/*/replicator_*/**/*.py"))
    yield from sorted(ROOT.glob("examples/plugins/*/replicator_*/**/*.py"))


def suspects(paths: Iterable[Path], also: re.Pattern[str] = _ANY) -> Iterator[tuple[Path, str]]:
    """Files in whose text something banned appears at all, with that text: few are worth parsing."""
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if _ANY.search(text) or also.search(text.replace("in_place", "").replace("IN_PLACE", "")):
            yield path, text


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every text of a module but docstrings, with its line; of an f-string the text between its values."""
    bare = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    parts = {id(part) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for part in n.values}
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=values):
                yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in values)
            case ast.Constant(value=str(text)) if id(node) not in bare | parts:
                yield node.lineno, text
            case _:
                pass


def faults(text: str) -> Iterator[tuple[str, str]]:
    """Each banned phrase in a text, outside of code, with what to write instead."""
    prose = _CODE.sub("``", text)
    for pattern, instead in _PATTERNS:
        yield from ((found[0], instead) for found in pattern.finditer(prose))


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in pages()])
def test_a_page_uses_the_fields_words(page: Path) -> None:
    assert list(faults(page.read_text(encoding="utf-8"))) == []


def test_texts_of_the_product_use_the_fields_words() -> None:
    found = [
        f"{module.relative_to(ROOT)}:{line}: {phrase!r} ({instead})"
        for module, code in suspects(modules())
        for line, text in literals(ast.parse(code))
        if " " in text and "SELECT " not in text  # statements have their own aliases
        for phrase, instead in faults(text)
    ]
    assert found == []


def one_word(group: str) -> Iterator[tuple[str, str]]:
    """Every text of a group's modules that is a name: columns of ours, events of the log, keys. With its place."""
    for module, code in suspects(python_files(group), PARTS[group]):
        for line, text in literals(ast.parse(code)):
            if re.fullmatch(r"\w+", text):
                yield f"{module.relative_to(ROOT)}:{line}", text


def python_files(group: str) -> Iterator[Path]:
    """The modules of a group; this one lists what is banned."""
    yield from (p for folder in sorted(ROOT.glob(group)) for p in sorted(folder.glob("**/*.py")) if p != Path(__file__))


@pytest.mark.parametrize("group", BANNED_NAMES)
def test_comments_docstrings_and_names_use_the_fields_words(group: str) -> None:
    found: list[str] = []
    for module, code in suspects(python_files(group), PARTS[group]):
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            where = f"{module.relative_to(ROOT)}:{token.start[0]}"
            if token.type == tokenize.COMMENT or token.string.startswith(('"""', 'r"""')):
                found += [f"{where}: {phrase!r} ({instead})" for phrase, instead in faults(token.string)]
            elif token.type == tokenize.NAME and BANNED_NAMES[group].fullmatch(token.string):
                is_known = "in_place" in token.string.lower() or token.string.lower() in CODES
                found += [] if is_known else [f"{where}: {token.string}"]
    assert found == []


@pytest.mark.parametrize("group", BANNED_NAMES)
def test_texts_that_are_names_use_the_fields_words(group: str) -> None:
    banned = [(where, text) for where, text in one_word(group) if BANNED_NAMES[group].fullmatch(text)]
    found = [f"{where}: {text!r}" for where, text in banned if "in_place" not in text.lower() and text not in CODES]
    assert found == []


def test_every_group_has_modules() -> None:
    assert [group for group in BANNED_NAMES if not list(python_files(group))] == []


@pytest.mark.parametrize("name", ["set_aside", "_place", "is_copying", "handed_out", "Gone", "followed_tables"])
def test_a_banned_name_is_found(name: str) -> None:
    assert BANNED_NAMES["replicator"].fullmatch(name)


@pytest.mark.parametrize(
    "text",
    [
        "The table is set aside.",
        "sets the whole table aside",
        "It is made anew.",
        "a new place in the log",
        "Nothing stands in the way.",
        "the copy differs",
        "waits for ever",
        "all but for one",
        "the other goes on",
        "Mend the cause.",
    ],
)
def test_a_banned_phrase_is_found(text: str) -> None:
    assert list(faults(text))


@pytest.mark.parametrize("text", ["a snapshot in place", "an in-place snapshot", "set `place` to it", "a COPY command"])
def test_the_fields_own_words_are_not_banned(text: str) -> None:
    assert list(faults(text)) == []
