"""Builds the commented file that `replicator init` writes from the models, so that it stays up to date."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Final

import yaml
from pydantic import BaseModel

from replicator.config.document import PLACEHOLDER
from replicator.config.model import ReplicatorConfig
from replicator.config.shape import Field, Shape, fields_of

_WIDTH: Final = 100
_INDENT: Final = "  "
_HEAD: Final = """\
# A replicator: replicates a database continuously.
#
# Lines that begin with "# " explain. Lines that begin with "#" alone are settings at their defaults, or examples: take the "#"
# away to use one. ${env:NAME} and ${file:/path} stand for values from outside this file; passwords must come from there.
# Check the file with `replicator validate FILE`, start with `replicator run FILE`.
"""


def starter(source_type: str, source_model: type[BaseModel], target_type: str, target_model: type[BaseModel]) -> str:
    """Return a YAML file for these two plugins that loads once its environment variables are set and each `CHANGE-ME` is replaced.

    Keys that are required, or marked `json_schema_extra={"starter": True}` by their model, are written out with an example
    (`examples=[…]`), first in their block; the rest is there as comments with its default.
    """
    host = dict(fields_of(ReplicatorConfig))
    lines = [*_HEAD.splitlines(), "", *_field(host.pop("name"), 0, "")]
    for kind, type_name, model in (("source", source_type, source_model), ("target", target_type, target_model)):
        lines += ["", f"{kind}:", f"{_INDENT}type: {type_name}"]
        for field in sorted(fields_of(model).values(), key=lambda field: not _is_active(field)):
            lines += _field(field, 1, kind)
    for field in host.values():
        lines += ["", *_field(field, 0, "")]
    return "\n".join(lines) + "\n"


def _is_active(field: Field) -> bool:
    return field.is_required or field.is_starter


def _field(field: Field, depth: int, prefix: str) -> Iterator[str]:
    is_active = _is_active(field)
    yield from _explanation(field, depth)
    mark = "" if is_active else "#"
    margin = _INDENT * depth
    block = field.shape.block
    if block is not None:
        yield f"{margin}{mark}{field.key}:"
        for inner in fields_of(block).values():
            for line in _field(inner, depth + 1, f"{prefix}_{field.key}"):
                # In a block that is itself a comment, everything is one.
                content = line.lstrip()
                yield line if is_active or content.startswith("#") else f"{line[: -len(content)]}#{content}"
        return
    yield f"{margin}{mark}{field.key}: {_inline(_value(field, prefix))}"


def _explanation(field: Field, depth: int) -> Iterator[str]:
    margin = _INDENT * depth
    facts = []
    if len(field.shape.choices) > 1:
        facts.append(f"One of {', '.join(map(str, field.shape.choices))}.")
    if field.shape.bounds:
        facts.append(f"{field.shape.bounds[0].upper()}{field.shape.bounds[1:]}.")
    text = " ".join([field.description, *facts]).strip()
    for line in textwrap.wrap(text, _WIDTH - len(margin) - 2, break_long_words=False, break_on_hyphens=False):
        yield f"{margin}# {line}"


def _value(field: Field, prefix: str) -> Any:
    if not _is_active(field) and field.default not in (None, [], {}):
        return field.default
    if field.examples:
        return field.examples[0]
    if field.default is not None or not (_is_active(field) or field.shape.is_secret):
        return field.default
    return _placeholder(field.shape, f"{prefix}_{field.key}")


def _placeholder(shape: Shape, name: str) -> Any:
    if shape.is_secret:
        return f"${{env:{name.strip('_').upper().replace('-', '_')}}}"
    if shape.choices:
        return shape.choices[0]
    if shape.quantity is not None:
        return shape.low or shape.quantity.example
    if shape.items is not None:
        return {} if shape.is_mapping else [_placeholder(shape.items, name)]
    if shape.scalar in (int, float):
        return shape.scalar(shape.low or 1)
    return False if shape.scalar is bool else PLACEHOLDER


def _inline(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
