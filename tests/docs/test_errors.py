"""`docs/errors.md` is what the rules say; each rule is written once, is used, and is used as it says."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from replicator.model import errors as model
from replicator.model.rules import Rule
from replicator.plugins.errors import HOST, errors_page, sections

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"
KIT = "replicator_testing.memory.rules"
ERRORS = {name: c for name, c in vars(model).items() if isinstance(c, type) and issubclass(c, model.ReplicatorError)}
MAKERS = frozenset({"error", "finding"})


def is_of_rules(file: Path) -> bool:
    """Whether a module is one of rules. `replicator/projection/rules.py` has other ones."""
    return file.parent.name == "rules" or (file.name == "rules.py" and file.parent.name != "projection")


def source_files() -> Iterator[Path]:
    found = [*ROOT.glob("replicator/**/*.py"), *ROOT.glob("testing/replicator_testing/**/*.py")]
    yield from sorted([*found, *ROOT.glob("plugins/*/*/replicator_*/**/*.py")])


@cache
def trees() -> Mapping[Path, ast.Module]:
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in source_files()}


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[next(i for i, part in enumerate(parts) if part.startswith("replicator")) :])


@cache
def rules() -> Mapping[str, Mapping[str, Rule]]:
    """Modules with rules → their rules by constant."""
    names = [f"replicator.model.rules.{name}" for name in HOST]
    names += [module_of(file) for file in source_files() if is_of_rules(file) and file.name == "rules.py"]
    modules = {name: vars(importlib.import_module(name)) for name in names}
    return {name: {n: r for n, r in found.items() if isinstance(r, Rule)} for name, found in modules.items()}


def rules_seen_from(file: Path) -> Mapping[str, Rule]:
    """Rules of the host and of the file's own distribution, by constant."""
    own = module_of(file).split(".")[0]
    seen: dict[str, Rule] = {}
    for name, found in rules().items():
        if name.startswith("replicator.") or name.split(".")[0] == own:
            seen |= found
    return seen


def constant(node: ast.expr) -> str | None:
    """The constant that an expression names: `SLOT_LOST`, `rules.SLOT_LOST`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) if name.isupper():
            return name
        case _:
            return None


def test_the_page_is_what_the_rules_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == errors_page(sections([KIT])), "run `make docs`"


def test_codes_are_lower_snake_case() -> None:
    codes = [rule.code for found in rules().values() for rule in found.values()]
    assert [code for code in codes if not re.fullmatch(r"[a-z][a-z0-9_]+", code)] == []


def test_no_code_is_written_outside_of_the_rules() -> None:
    """Nor in two of their modules, which `sections` refuses."""
    found = []
    for file, tree in trees().items():
        if is_of_rules(file) or file.stem.endswith("_contract"):  # they are tests
            continue
        for node in ast.walk(tree):
            match node:
                case ast.keyword(arg="code", value=ast.Constant(value=str(code))):
                    found.append(f"{file.relative_to(ROOT)}:{node.value.lineno}: {code}")
                case ast.Compare(left=ast.Attribute(attr="code"), comparators=[ast.Constant(value=str(code))]):
                    found.append(f"{file.relative_to(ROOT)}:{node.lineno}: {code}")
                case _:
                    pass
    assert found == []


def test_every_rule_is_used() -> None:
    used = defaultdict[str, set[str]](set)
    for file, tree in trees().items():
        distribution = module_of(file).split(".")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used[node.id].add(distribution)
            elif isinstance(node, ast.Attribute):
                # In a module of rules it is one of the host's.
                used[node.attr].add("replicator" if is_of_rules(file) else distribution)
    unused = []
    for name, found in rules().items():
        for constant_name in found:
            users = used[constant_name]
            if not (users if name.startswith("replicator.") else users & {name.split(".")[0]}):
                unused.append(f"{name}.{constant_name}")
    assert unused == []


def makings() -> Iterator[tuple[str, Rule, ast.Call, str]]:
    """Every call that makes an error or a finding of a constant rule: its line, the rule, the call, and what is made."""
    for file, tree in trees().items():
        seen = rules_seen_from(file)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MAKERS:
                rule = seen.get(constant(node.func.value) or "")
                if rule is not None:
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", rule, node, node.func.attr


def test_errors_have_a_class_that_their_rule_names() -> None:
    wrong = []
    for where, rule, call, made in makings():
        if made == "error":
            name = call.args[0].id if call.args and isinstance(call.args[0], ast.Name) else "?"
            if name in ERRORS and ERRORS[name] not in rule.raises:
                wrong.append(f"{where}: {name}")
        elif not rule.found:
            wrong.append(f"{where}: a finding")
    assert wrong == []


def test_calls_give_the_fields_of_the_texts() -> None:
    """A field that is missing would be noticed only when the error is raised."""
    wrong = []
    for where, rule, call, made in makings():
        given = {keyword.arg for keyword in call.keywords if keyword.arg}
        if len(given) < len(call.keywords):
            continue
        needed = rule.fields
        if "action" in given:
            needed = Rule(code=rule.code, meaning="", remedy="", text=rule.text, sql=rule.sql).fields
        also = {"table", "action", "sql", "severity", "location", "applies", "is_access"}
        if made == "error":
            name = call.args[0].id if call.args and isinstance(call.args[0], ast.Name) else "ReplicatorError"
            also = set(inspect.signature(ERRORS.get(name, model.ConfigError)).parameters)
        if needed - given or (given - rule.fields - also):
            wrong.append(f"{where}: lacks {sorted(needed - given)}, has {sorted(given - rule.fields - also)}")
    assert wrong == []


def test_a_text_is_a_sentence() -> None:
    """A capital and a full stop; what begins with a name in small letters, such as a setting, begins as that does."""
    wrong = []
    for name, found in rules().items():
        for constant_name, rule in found.items():
            first = rule.text.split(" ", 1)[0].rstrip(":,")
            if rule.text and (
                (rule.text[0].islower() and not re.search(r"[_.]", first)) or not re.search(r"[.?!}`]$|:\n?", rule.text)
            ):
                wrong.append(f"{name}.{constant_name}: {rule.text}")
    assert wrong == []


def test_classes_are_known() -> None:
    rows = re.findall(
        r"^\| `[a-z0-9_]+` \| ([^|]+) \| [^|]+ \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    classes = {part.split(" (")[0] for row in rows for part in row.strip().split(", ")}
    assert classes - ERRORS.keys() - {"finding", "alarm"} == set()


def test_every_error_class_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in sorted(ERRORS) if f"`{name}`" not in text] == []
