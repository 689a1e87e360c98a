"""`docs/errors.md` lists exactly the codes that the source can raise, each with its classes."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from replicator.config.secrets import LITERAL_SECRET
from replicator.journal import files as journal_files
from replicator.model import errors as model
from replicator.model.rules import Rule, columns
from replicator.plugins.errors import errors_page, sections
from replicator.state.database import errors as state_errors
from replicator_source_mysql.connecting import errors as mysql_errors
from replicator_source_postgresql.connecting import errors as postgresql_errors
from replicator_target_delta import errors as delta_errors

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"
FINDING = "finding"
ALARM = "alarm"
ERRORS = frozenset(
    name for name, c in vars(model).items() if isinstance(c, type) and issubclass(c, model.ReplicatorError)
)
_CODE = re.compile(r"[a-z][a-z0-9_]+")


def source_files() -> Iterator[Path]:
    found = [*ROOT.glob("replicator/**/*.py"), *ROOT.glob("testing/replicator_testing/**/*.py")]
    found += ROOT.glob("plugins/*/*/replicator_*/**/*.py")
    yield from sorted(file for file in found if file.name != "rules.py" and file.parent.name != "rules")


def texts(node: ast.expr, constants: Mapping[str, str]) -> Iterator[str]:
    """The literal texts that an expression can be."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name(id=name) if name in constants:
            yield constants[name]
        case ast.IfExp(body=body, orelse=orelse):
            yield from texts(body, constants)
            yield from texts(orelse, constants)
        case _:
            pass


def constants_of(tree: ast.Module) -> dict[str, str]:
    found = {}
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text))):
                found[name] = text
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                found[name] = text
            case _:
                pass
    return found


def takers_of_code(trees: Sequence[ast.Module]) -> Mapping[str, frozenset[int]]:
    """Functions and classes with a positional parameter `code`, and its indexes in a call."""
    takers: dict[str, set[int]] = defaultdict(set)
    for node in (node for tree in trees for node in ast.walk(tree)):
        functions = [(node.name, node)] if isinstance(node, ast.FunctionDef) and node.name != "__init__" else []
        if isinstance(node, ast.ClassDef):
            functions = [(node.name, f) for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
        for name, function in functions:
            names = [a.arg for a in function.args.args if a.arg != "self"]
            if "code" in names:
                takers[name].add(names.index("code"))
    return {name: frozenset(indexes) for name, indexes in takers.items()}


def codes_of(
    tree: ast.Module, constants: Mapping[str, str], takers: Mapping[str, frozenset[int]]
) -> Iterator[tuple[str, str | None]]:
    """Every code in a module, with the class that has it where the call names it."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=keywords):
                bearer = FINDING if name == "Problem" else name if name in ERRORS else None
                for keyword in keywords:
                    if keyword.arg == "code":
                        yield from ((text, bearer) for text in texts(keyword.value, constants))
                for index in takers.get(name, ()):
                    if index < len(args):
                        yield from ((text, None) for text in texts(args[index], constants))
            case ast.Assign(targets=[ast.Name(id="code")], value=value):
                yield from ((text, None) for text in texts(value, constants))
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "code":
                        yield from ((text, None) for text in texts(value, constants))
            case ast.ClassDef(name="KeyFault", body=body):
                # Its values are the codes of findings.
                yield from (
                    (str(m.value.value), FINDING)
                    for m in body
                    if isinstance(m, ast.Assign) and isinstance(m.value, ast.Constant)
                )
            case ast.FunctionDef(name="_gap" | "_ahead"):
                # The slot's faults: pairs of code and message.
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Return) and isinstance(inner.value, ast.Tuple):
                        yield from ((text, "LogGapError") for text in texts(inner.value.elts[0], constants))
            case _:
                pass


def bearers(rule: Rule) -> Iterator[str]:
    yield from (kind.__name__ for kind in rule.raises)
    yield from [FINDING] if rule.found else []


def codes_of_tables() -> Iterator[tuple[str, str]]:
    """Codes that stand in tables, which the syntax tree does not tell."""
    yield from ((code, "SourceUnavailableError") for code, _ in postgresql_errors._TRANSIENT.values())
    yield from ((code, "SourceUnavailableError") for code in mysql_errors._TRANSIENT.values())
    yield from ((code, "TargetUnavailableError") for _, code, _ in delta_errors._STORAGE)
    yield from ((code, "JournalUnavailableError") for code, _ in journal_files._CAUSES.values())
    yield "journal_unavailable", "JournalUnavailableError"
    yield from ((code, "StateUnavailableError") for code, _ in state_errors._SQLITE_TRANSIENT.values())
    yield LITERAL_SECRET, FINDING
    # Raised and found by its rules.
    yield from ((rule.code, bearer) for rule in columns.SECTION.rules.values() for bearer in bearers(rule))
    # Not `code=`: the default of its parameter.
    yield "invalid_configuration", "ConfigError"


@cache
def raised() -> Mapping[str, frozenset[str]]:
    """Every code that can be raised → the classes that are known to have it."""
    found: dict[str, set[str]] = defaultdict(set)
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in source_files()]
    takers = takers_of_code(trees)
    for tree in trees:
        for code, bearer in codes_of(tree, constants_of(tree), takers):
            found[code] |= {bearer} if bearer else set()
    for code, bearer in codes_of_tables():
        found[code].add(bearer)
    return {code: frozenset(bearers) for code, bearers in found.items()}


@cache
def documented() -> Mapping[str, frozenset[str]]:
    """Every code of the page → the classes its row names."""
    rows: dict[str, frozenset[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"\| `([a-z0-9_]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", line):
            code, classes, *_ = match.groups()
            assert code not in rows, f"{code} stands twice"
            rows[code] = frozenset(part.split(" (")[0] for part in classes.strip().split(", "))
    return rows


def test_the_page_is_what_the_rules_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == errors_page(sections(["replicator_testing.memory.rules"])), (
        "run `make docs`"
    )


def test_codes_are_lower_snake_case() -> None:
    assert [code for code in raised() if not _CODE.fullmatch(code)] == []


def test_every_code_that_is_raised_is_documented() -> None:
    assert sorted(raised().keys() - documented().keys()) == []


def test_no_other_code_is_documented() -> None:
    assert sorted(documented().keys() - raised().keys()) == []


def test_rows_name_the_classes_that_bear_the_code() -> None:
    lacking = {code: sorted(bearers - documented()[code]) for code, bearers in raised().items() if code in documented()}
    assert {code: classes for code, classes in lacking.items() if classes} == {}
    known = ERRORS | {FINDING, ALARM}
    assert {code: sorted(classes - known) for code, classes in documented().items() if classes - known} == {}


def test_every_error_class_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in sorted(ERRORS) if f"`{name}`" not in text] == []
