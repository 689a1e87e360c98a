"""Translates pydantic's findings into the operator's words, without ever showing any part of a secret."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from replicator.config.document import PLACEHOLDER, Document, Path, dotted, kind_of
from replicator.config.masks import MASK_HELP
from replicator.config.model import ReplicatorConfig
from replicator.config.patterns import COLUMN_HELP, PATTERN_HELP
from replicator.config.secrets import LITERAL_SECRET, Resolved
from replicator.config.shape import Shape, fields_of, shape_at
from replicator.model.errors import Problem
from replicator.observability import MASK, is_sensitive_name, redact

_SHOWN_LENGTH: Final = 60
_BOUND_ERRORS: Final = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal"})
_TOO_FEW: Final = frozenset({"too_short", "too_long"})
_NOTHING: Final = object()
_CHOICE_ERRORS: Final = frozenset({"literal_error", "enum"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block that was validated by one model: its location in the file, and its values after resolving."""

    document: Document
    prefix: Path
    model: type[BaseModel]
    values: Mapping[str, Any]
    extra_keys: tuple[str, ...] = ()
    """Keys that are known in addition to the model's: `type`; and `source`, `target` at the top."""


def problems_of(block: Block, error: ValidationError, unresolved: Iterable[Path] = ()) -> list[Problem]:
    """Translate a model's findings, one problem per location, leaving out what results from an unresolved reference."""
    blind = tuple(unresolved)
    details = error.errors(include_url=False, include_context=True)
    paths = [_path(block, detail) for detail in details]
    problems: dict[tuple[Path, str], Problem] = {}
    for detail, path in zip(details, paths, strict=True):
        inner_is_wrong = any(len(other) > len(path) and other[: len(path)] == path for other in paths)
        if detail["type"] in _TOO_FEW and inner_is_wrong:
            continue
        if detail["type"] not in ("missing", "extra_forbidden") and any(_touch(path, other) for other in blind):
            continue
        problem = _problem(block, detail, path)
        # The branches of a union each complain about the same value; the first says enough.
        key = (path, "" if value_at(block, path) is not None else problem.code)
        problems.setdefault(key, problem)
    return list(problems.values())


def wrong_scalar(block: Block, path: Path, shape: Shape) -> Problem:
    """Refuse a scalar of another kind that pydantic would have converted."""
    return _wrong_type(block, path, shape)


def not_filled_in(block: Block, path: Path) -> Problem:
    """Report that a value is still the one that `replicator init` wrote."""
    message = f"`{dotted((*block.prefix, *path))}` is still {PLACEHOLDER}."
    return _make(block, path, "invalid_value", message, f"Set it. {_description(block, path)}".strip())


def literal_secret(block: Block, path: Path) -> Problem:
    """Refuse a secret that is written out."""
    shape = shape_at(block.model, path)
    what = "is a secret" if shape is not None and shape.is_secret else "is, or has in it, what looks like a secret,"
    message = f"{_name(block, path)} {what} and must not be written in the file."
    action = (
        "Write ${env:NAME} or ${file:/path} and keep the value there. Change the secret if others have seen the file."
    )
    if path[:2] == ("alerts", "commands"):
        action = (
            "Let the program read it from a file: every user of the host can read arguments. Change the secret if others have seen the"
            " file."
        )
    return _make(block, path, LITERAL_SECRET, message, action)


def unknown_plugin(kind: str, name: str, known: Iterable[str], broken: str | None = None) -> Problem:
    """Report that no plugin has this name: name the nearest one, those installed, and how to get it.

    Args:
        kind: `source` or `target`.
        name: Name that the configuration gives.
        known: Names of the usable plugins of that kind.
        broken: Reason why the plugin of that name cannot be used, if it is installed.
    """
    names = sorted(known)
    if broken is not None:
        return Problem(
            code="plugin_broken",
            message=f"The {kind} plugin {name} is installed, but {broken}.",
            action="Repair its installation; `replicator plugins` shows the state of every plugin.",
        )
    listed = f"Installed {kind}s: {', '.join(names)}." if names else f"No {kind} plugin is installed."
    near = nearest(name, names)
    shown = name if len(name) <= _SHOWN_LENGTH else f"{name[:_SHOWN_LENGTH]}…"
    hint = f"Did you mean {near}? If not, install it" if near else "Install the plugin"
    return Problem(
        code="unknown_plugin",
        message=f"There is no {kind} plugin called {redact(shown)!r}. {listed}",
        action=f"{hint}: pip install replicator-{kind}-NAME",
    )


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` is most likely a slip of."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(word.casefold()[:_SHOWN_LENGTH], list(by_folded), n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def _path(block: Block, detail: ErrorDetails) -> Path:
    """Reduce pydantic's location to the path in the file: union members, function names and `[key]` are pydantic's own."""
    path: list[str | int] = []
    here: Any = block.values
    parts = detail["loc"]
    for position, part in enumerate(parts):
        inner = _child(here, part)
        if inner is not _NOTHING:
            here = inner
        elif detail["type"] == "missing" and position == len(parts) - 1:
            return (*path, part)
        else:
            continue
        path.append(part)
    return tuple(path)


def _problem(block: Block, detail: ErrorDetails, path: Path) -> Problem:  # noqa: PLR0911 one table of cases
    shape = shape_at(block.model, path)
    match detail["type"]:
        case "missing":
            return _missing(block, path)
        case "extra_forbidden":
            return _unknown_key(block, path)
        case "table_pattern":
            is_key = detail["loc"][-1] == "[key]"
            shown = repr(str(path[-1])[:_SHOWN_LENGTH]) if is_key else _shown(block, path, shape)
            message = f"{shown or 'This'} is not a table pattern."
            return _make(block, path, "invalid_value", message, PATTERN_HELP)
        case ("column_pattern" | "mask") as type_:
            remedy = MASK_HELP if type_ == "mask" else COLUMN_HELP
            return _make(block, path, "invalid_value", _own_words(block, detail, path), remedy)
        case type_ if type_ == LITERAL_SECRET:
            return literal_secret(block, path)
        case type_ if type_ in _CHOICE_ERRORS and shape is not None and shape.choices:
            return _wrong_choice(block, path, shape)
        case type_ if type_ in _BOUND_ERRORS and shape is not None and shape.bounds:
            message = f"{_name(block, path)} must be {shape.bounds}{_found(block, path, shape)}."
            return _make(block, path, "out_of_bounds", message, f"Write a value that is {shape.bounds}.")
        case "string_pattern_mismatch" if shape is not None:
            return _wrong_pattern(block, path, shape)
        case type_ if shape is not None and (type_.endswith(("_type", "_parsing")) or type_ == "int_from_float"):
            return _wrong_type(block, path, shape)
        case _:
            return _make(block, path, "invalid_value", _own_words(block, detail, path), None)


def _missing(block: Block, path: Path) -> Problem:
    action = f"Add `{path[-1]}:`. {_description(block, path)}"
    return _make(block, path, "missing_key", f"{_name(block, path)} is missing.", action.strip())


def _description(block: Block, path: Path) -> str:
    """Return the purpose of a setting; empty if it has no description."""
    *parent, key = path
    owner = shape_at(block.model, tuple(parent))
    field = fields_of(owner.block).get(str(key)) if owner is not None and owner.block is not None else None
    return field.description if field else ""


def _unknown_key(block: Block, path: Path) -> Problem:
    *parent, key = path
    owner = shape_at(block.model, tuple(parent))
    known = list(fields_of(owner.block)) if owner is not None and owner.block is not None else []
    if not parent:
        known = [*block.extra_keys, *known]
    near = nearest(str(key), known)
    elsewhere = _where_it_belongs(str(key), is_top=not path[:-1] and not block.prefix)
    action = elsewhere or (f"Did you mean `{near}`?" if near else f"Known keys here: {', '.join(known)}.")
    return _make(block, path, "unknown_key", f"{_name(block, path)} is not a known key.", action)


def _where_it_belongs(key: str, *, is_top: bool) -> str | None:
    """Return the fix for a host's key in a block that is not its own; None if the host has no such key."""
    top = fields_of(ReplicatorConfig)
    if not is_top and (key in top or key in ("source", "target")):
        return f"`{key}` is a key of its own. Write it without indentation."
    owners = [name for name, field in top.items() if field.shape.block and key in fields_of(field.shape.block)]
    return f"`{key}` belongs under `{owners[0]}:`. Check the indentation." if len(owners) == 1 else None


def _wrong_choice(block: Block, path: Path, shape: Shape) -> Problem:
    value = value_at(block, path)
    near = nearest(value, [str(choice) for choice in shape.choices]) if isinstance(value, str) else None
    allowed = ", ".join(map(str, shape.choices))
    must = f"one of {allowed}" if len(shape.choices) > 1 else allowed
    message = f"{_name(block, path)} must be {must}{_found(block, path, shape)}."
    return _make(block, path, "invalid_value", message, f"Did you mean {near}?" if near else f"Write {must}.")


def _wrong_pattern(block: Block, path: Path, shape: Shape) -> Problem:
    message = f"{_name(block, path)} does not have the required form{_found(block, path, shape)}."
    action = _description(block, path) or f"It must match {shape.pattern}."
    return _make(block, path, "invalid_value", message, action)


def _wrong_type(block: Block, path: Path, shape: Shape) -> Problem:
    value = value_at(block, path)
    form = (
        "a block of keys and values"
        if shape.block
        else f"a {shape.words}"
        if shape.words[0] not in "aeiou"
        else shape.words
    )
    form = shape.words if shape.scalar in (str, bool) else form
    found = kind_of(value)
    message = f"{_name(block, path)} must be {form}; found {found}."
    return _make(block, path, "wrong_type", message, _type_remedy(shape, value))


def _type_remedy(shape: Shape, value: Any) -> str | None:
    if value is None:
        return "Give it a value, or remove the key."
    if shape.block is not None:
        return f"Write one of its keys, indented, on a line of its own: {', '.join(fields_of(shape.block))}."
    if shape.scalar is str and not isinstance(value, dict | list):
        return "Put it in quotes: YAML reads some texts (on, no, 1.0, 2024-01-31) as something else."
    if shape.quantity is not None:
        return f"For example: {shape.quantity.example}."
    if shape.items is not None and not shape.is_mapping:
        return "Write the values in brackets: [one, two]."
    return None


def _own_words(block: Block, detail: ErrorDetails, path: Path) -> str:
    """Return the plugin's or pydantic's words without resolved values, which a validator may quote."""
    words = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    for value in sorted(resolved_values(value_at(block, path)), key=len, reverse=True):
        words = words.replace(value, MASK).replace(repr(value)[1:-1], MASK)
    words = redact(words).rstrip(".")
    joint = " " if words.startswith(("is ", "has ", "must ")) else ": "
    return f"{_name(block, path)}{joint}{words}."


def resolved_values(value: Any) -> set[str]:
    """Return every non-empty text in `value` that came from outside the file."""
    match value:
        case Resolved():
            return {str(value)} - {""}
        case dict():
            return set().union(*map(resolved_values, value.values()))
        case list():
            return set().union(*map(resolved_values, value))
        case _:
            return set()


def _found(block: Block, path: Path, shape: Shape | None) -> str:
    shown = _shown(block, path, shape)
    return f"; found {shown}" if shown else ""


def _shown(block: Block, path: Path, shape: Shape | None) -> str | None:
    """Return the offending value as text, or None if it could reveal a secret."""
    value = value_at(block, path)
    if shape is None or shape.is_secret or any(isinstance(part, str) and is_sensitive_name(part) for part in path):
        return None
    if isinstance(value, Resolved):
        return f"what {value.written} holds" if len(value.written) <= _SHOWN_LENGTH else None
    if not isinstance(value, str | int | float):
        return None
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"
    return redact(repr(text) if isinstance(value, str) else text)


def value_at(block: Block, path: Path) -> Any:
    """Return the value at a path of a block after resolving; None if there is none."""
    here: Any = block.values
    for part in path:
        here = _child(here, part)
        if here is _NOTHING:
            return None
    return here


def _child(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(part, _NOTHING)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return _NOTHING


def _name(block: Block, path: Path) -> str:
    full = (*block.prefix, *path)
    return f"`{full[-1] if full and isinstance(full[-1], str) else dotted(full)}`" if full else "The file"


def _make(block: Block, path: Path, code: str, message: str, action: str | None) -> Problem:
    location = block.document.where((*block.prefix, *path))
    return Problem(code=code, message=message, location=location, action=action)


def _touch(a: Path, b: Path) -> bool:
    length = min(len(a), len(b))
    return a[:length] == b[:length]
