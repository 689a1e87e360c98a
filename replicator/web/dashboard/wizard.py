"""Form of a new replicator, built from the settings models of host and plugins; and the configuration that its fields make. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import yaml
from pydantic import BaseModel

from replicator.config import ReplicatorConfig
from replicator.config.secrets import is_literal
from replicator.config.shape import Field, fields_of
from replicator.service.configuring.document import Finding

KINDS: Final = ("source", "target")
_INDEX: Final = re.compile(r"(\[\d+\])+$")
_FIRST: Final = "name"
_OPEN: Final = ("tables",)
"""Blocks with every setting shown."""
_BOOLEANS: Final = {"true": True, "false": False}


class PluginKind(StrEnum):
    """Form element of a setting."""

    TEXT = "text"
    CHOICE = "choice"
    LINES = "lines"
    SECRET = "secret"  # noqa: S105 a kind of settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A setting. `path` is its name in the configuration and in the form. `default` as YAML would have it; empty: not set."""

    path: str
    kind: PluginKind
    label: str
    description: str
    is_required: bool
    choices: tuple[str, ...] = ()
    default: str = ""
    example: str = ""
    value: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Settings of a block: those that are shown, and those that are folded away."""

    path: str
    title: str
    description: str = ""
    shown: tuple[Input, ...] = ()
    folded: tuple[Input, ...] = ()
    groups: tuple[Group, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def needs_look(self) -> bool:
        """Return whether a setting in it, or below it, has a value or a finding: then nothing of it is folded away."""
        own = any(one.value or one.findings for one in (*self.shown, *self.folded))
        return own or any(group.needs_look for group in self.groups)

    @property
    def needs_folded(self) -> bool:
        """Return the same for the settings that are folded away."""
        hidden = [group for group in self.groups if not group.is_shown]
        return any(one.value or one.findings for one in self.folded) or any(group.needs_look for group in hidden)

    @property
    def is_shown(self) -> bool:
        """Return whether any part of it is shown without being unfolded."""
        return bool(self.shown) or any(group.is_shown for group in self.groups)


@dataclass(frozen=True, slots=True)
class Models:
    """Models of the chosen plugins, next to the host's own blocks."""

    source: type[BaseModel]
    target: type[BaseModel]

    def blocks(self) -> Iterator[tuple[str, str, type[BaseModel]]]:
        """Yield every block in the order of a file, with its purpose."""
        yield from (("source", "", self.source), ("target", "", self.target))
        for key, one in fields_of(ReplicatorConfig).items():
            if one.shape.block is not None:
                yield key, one.description, one.shape.block


def form(models: Models, values: Mapping[str, str], findings: Sequence[Finding]) -> Sequence[Group]:
    """Return the groups of the form, in the order of a file, with the user's input and the findings about it."""
    by_path: dict[str, list[Finding]] = {}
    for finding in findings:
        by_path.setdefault(input_path(finding), []).append(finding)
    general = [_input(key, one, values, by_path) for key, one in _settings().items()]
    required = tuple(one for one in general if one.is_required)
    rest = tuple(one for one in general if not one.is_required)
    blocks = [_group(key, description, model, values, by_path) for key, description, model in models.blocks()]
    return [Group(path="", title="replicator", shown=required, folded=rest), *blocks]


def input_path(finding: Finding) -> str:
    """Return the field that a finding concerns: `tables.include[0]` concerns `tables.include`."""
    return _INDEX.sub("", finding.location or "")


def inputs(groups: Iterable[Group]) -> Iterator[Input]:
    """Yield every field of a form."""
    for group in groups:
        yield from (*group.shown, *group.folded)
        yield from inputs(group.groups)


def document(models: Models, kinds: Mapping[str, str], values: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration that the fields make. Empty fields are left out."""
    settings = {key: _value(one, text) for key, one in _settings().items() if (text := values.get(key, "").strip())}
    made: dict[str, Any] = {_FIRST: settings.pop(_FIRST)} if _FIRST in settings else {}
    for key, _, model in models.blocks():
        block = _filled(key, model, values)
        if key in KINDS:
            made[key] = {"type": kinds[key], **block}
        elif block:
            made[key] = block
    return made | settings


def without_secrets(models: Models, values: Mapping[str, str], mask: str) -> Mapping[str, str]:
    """Return the fields with `mask` for secrets that were written out instead of referred to: nothing shows or keeps those."""
    secrets = {path for key, _, model in models.blocks() for path, one in _fields_in(key, model) if one.shape.is_secret}
    return {
        path: mask if path in secrets and value.strip() and is_literal(value) else value
        for path, value in values.items()
    }


def text_of(made: Mapping[str, Any]) -> str:
    """Return a configuration as YAML."""
    return yaml.safe_dump(dict(made), sort_keys=False, allow_unicode=True)


def _settings() -> Mapping[str, Field]:
    """Return the host's keys that are no blocks."""
    return {key: one for key, one in fields_of(ReplicatorConfig).items() if one.shape.block is None}


def _fields_in(prefix: str, model: type[BaseModel]) -> Iterator[tuple[str, Field]]:
    for key, one in fields_of(model).items():
        if one.shape.block is not None:
            yield from _fields_in(f"{prefix}.{key}", one.shape.block)
        else:
            yield f"{prefix}.{key}", one


def _group(
    path: str,
    description: str,
    model: type[BaseModel],
    values: Mapping[str, str],
    findings: Mapping[str, Sequence[Finding]],
) -> Group:
    group = Group(path=path, title=path, description=description)
    for key, one in fields_of(model).items():
        inner = f"{path}.{key}"
        if one.shape.block is not None:
            inside = _group(inner, one.description, one.shape.block, values, findings)
            group = replace(group, groups=(*group.groups, inside))
        elif not _has_field(one):
            group = replace(group, left_out=(*group.left_out, inner))
        elif one.is_required or one.is_starter or (one.shape.is_secret and path in KINDS) or path in _OPEN:
            group = replace(group, shown=(*group.shown, _input(inner, one, values, findings)))
        else:
            group = replace(group, folded=(*group.folded, _input(inner, one, values, findings)))
    return group


def _has_field(one: Field) -> bool:
    """Return whether a field of a form can hold it: a mapping and a list of blocks cannot be written in one."""
    items = one.shape.items
    return not one.shape.is_mapping and (items is None or items.block is None)


def _input(path: str, one: Field, values: Mapping[str, str], findings: Mapping[str, Sequence[Finding]]) -> Input:
    shape = one.shape
    kind, choices = PluginKind.TEXT, tuple(map(str, shape.choices))
    if shape.is_secret:
        kind = PluginKind.SECRET
    elif shape.items is not None:
        kind = PluginKind.LINES
    elif choices or shape.scalar is bool:
        kind, choices = PluginKind.CHOICE, choices or tuple(_BOOLEANS)
    return Input(
        path=path,
        kind=kind,
        label=path.rpartition(".")[2].replace("_", " "),
        description=" ".join(part for part in (one.description, _bounds(one)) if part),
        is_required=one.is_required,
        choices=choices,
        default=_spelled(one.default),
        example=_spelled(one.examples[0]) if one.examples else "",
        value=values.get(path, ""),
        findings=tuple(findings.get(path, ())),
    )


def _bounds(one: Field) -> str:
    bounds = one.shape.bounds
    return f"{bounds[0].upper()}{bounds[1:]}." if bounds else ""


def _spelled(value: Any) -> str:
    """Return a default or an example as a user would write it into the field."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list() | tuple():
            return "\n".join(map(str, value))
        case _:
            return str(value)


def _filled(prefix: str, model: type[BaseModel], values: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, one in fields_of(model).items():
        path = f"{prefix}.{key}"
        if one.shape.block is not None:
            inner = _filled(path, one.shape.block, values)
            if inner:
                made[key] = inner
        elif _has_field(one) and (text := values.get(path, "").strip()):
            made[key] = _value(one, text)
    return made


def _value(one: Field, text: str) -> Any:
    """Return the input as YAML has it. Input of another kind than the setting needs stays text, and is refused as such."""
    if one.shape.items is not None:
        return [line.strip() for line in text.splitlines() if line.strip()]
    if one.shape.scalar is bool:
        return _BOOLEANS.get(text, text)
    if one.shape.scalar in (int, float):
        return _number(one.shape.scalar, text)
    return next((choice for choice in one.shape.choices if str(choice) == text), text)


def _number(kind: type, text: str) -> Any:
    if not re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", text, re.ASCII):
        return text
    return int(text) if kind is int and "." not in text else float(text)


__all__ = [
    "KINDS",
    "Group",
    "Input",
    "Models",
    "PluginKind",
    "document",
    "form",
    "input_path",
    "inputs",
    "text_of",
    "without_secrets",
]
