"""Description of a settings model's fields for people: in messages, the starter file and the reference."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from replicator.config.masks import Mask
from replicator.config.patterns import ColumnPattern, TablePattern
from replicator.config.quantities import Quantity
from replicator.config.secrets import Secret

Part = str | int
Path = tuple[Part, ...]

_WORDS: Final[Mapping[Any, str]] = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    TablePattern: "table pattern",
    ColumnPattern: "column name or pattern",
    Mask: "mask",
    Secret: "secret",
}
_PLURALS: Final[Mapping[str, str]] = {
    "table pattern": "table patterns",
    "column name or pattern": "column names or patterns",
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The form of a value.

    Attributes:
        words: Name for people: `text`, `whole number`, `duration`, `one of a, b`, `list of text`, `block`.
        scalar: The Python type of a plain scalar; None for anything else.
        block: The model of a nested block.
        items: The form of a list's items or of a mapping's values.
        is_mapping: Keys are the user's own.
        keys: The form of those keys.
        choices: The only values allowed.
        low, high: Bounds, spelled with their units; `low_open`, `high_open`: the bound itself is not allowed.
        quantity: Units in which the value is written; None without units.
    """

    words: str
    scalar: type | None = None
    block: type[BaseModel] | None = None
    items: Shape | None = None
    is_mapping: bool = False
    keys: Shape | None = None
    choices: tuple[Any, ...] = ()
    is_secret: bool = False
    quantity: Quantity | None = None
    low: str | None = None
    high: str | None = None
    low_open: bool = False
    high_open: bool = False
    pattern: str | None = None

    @property
    def bounds(self) -> str | None:
        """Bounds as a phrase such as `at least 1s and at most 10m`; None without any."""
        low = f"{'more than' if self.low_open else 'at least'} {self.low}" if self.low is not None else None
        high = f"{'less than' if self.high_open else 'at most'} {self.high}" if self.high is not None else None
        return " and ".join(part for part in (low, high) if part) or None


@dataclass(frozen=True, kw_only=True)
class Field:
    """One key of a block. `default` is as YAML would have it, None for "not set"."""

    key: str
    shape: Shape
    is_required: bool
    default: Any
    description: str
    examples: Sequence[Any]
    is_starter: bool


@cache
def fields_of(model: type[BaseModel]) -> Mapping[str, Field]:
    """Return the keys of a block in the order of the model."""
    fields: dict[str, Field] = {}
    for name, info in model.model_fields.items():
        key = info.alias or name
        extra = info.json_schema_extra
        fields[key] = Field(
            key=key,
            shape=_shape(info.annotation, tuple(info.metadata)),
            is_required=info.is_required(),
            default=_plain_default(model, name, info),
            description=info.description or "",
            examples=tuple(info.examples or ()),
            is_starter=isinstance(extra, Mapping) and extra.get("starter") is True,
        )
    return types.MappingProxyType(fields)


def shape_at(model: type[BaseModel], path: Path) -> Shape | None:
    """Return the form of the value at `path` inside a block; None if nothing is known there."""
    shape: Shape | None = Shape(words="block", block=model)
    for part in path:
        if shape is None:
            return None
        if shape.block is not None:
            field = fields_of(shape.block).get(str(part))
            shape = field.shape if field else None
        else:
            shape = shape.items
    return shape


def _plain_default(model: type[BaseModel], name: str, info: FieldInfo) -> Any:
    if info.is_required():
        return None
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or value is None:
        return None
    # Serialised by the model itself, so that quantities, patterns and enums are spelled as users spell them.
    return model.model_construct(**{name: value}).model_dump(mode="json", include={name}, by_alias=False)[name]


def _shape(annotation: Any, metadata: tuple[Any, ...]) -> Shape:  # noqa: PLR0911 one table of cases
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _shape(inner, (*metadata, *more))
    if origin in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1:
            return _shape(members[0], metadata)
        shapes = [_shape(member, ()) for member in members]
        return Shape(
            words=" or ".join(dict.fromkeys(shape.words for shape in shapes)),
            block=next((shape.block for shape in shapes if shape.block), None),
            is_secret=any(shape.is_secret for shape in shapes),
        )
    if origin is Literal:
        return _choice(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _choice(tuple(member.value for member in annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return Shape(words="block", block=annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys, values = (_shape(argument, ()) for argument in get_args(annotation))
        return Shape(words=f"mapping of {keys.words} to {values.words}", items=values, keys=keys, is_mapping=True)
    if isinstance(origin, type) and issubclass(origin, Sequence | set | frozenset):
        item = _shape(get_args(annotation)[0], ())
        return Shape(words=f"list of {_PLURALS.get(item.words, item.words)}", items=item)
    return _scalar(annotation, metadata)


def _choice(values: tuple[Any, ...]) -> Shape:
    words = f"one of {', '.join(map(str, values))}" if len(values) > 1 else str(values[0])
    return Shape(words=words, choices=values)


def _scalar(annotation: Any, metadata: tuple[Any, ...]) -> Shape:
    quantity = next((m for m in metadata if isinstance(m, Quantity)), None)
    bounds: dict[str, Any] = {}
    pattern = None
    for item in _flat(metadata):
        match item:
            case annotated_types.Ge(value):
                bounds |= {"low": value, "low_open": False}
            case annotated_types.Gt(value):
                bounds |= {"low": value, "low_open": True}
            case annotated_types.Le(value):
                bounds |= {"high": value, "high_open": False}
            case annotated_types.Lt(value):
                bounds |= {"high": value, "high_open": True}
            case _:
                pattern = getattr(item, "pattern", None) or pattern
    for side in ("low", "high"):
        if side in bounds:
            bounds[side] = quantity.format(bounds[side]) if quantity else str(bounds[side])
    words = quantity.words if quantity else _WORDS.get(annotation)
    return Shape(
        words=words or getattr(annotation, "__name__", str(annotation)).lower(),
        scalar=annotation if annotation in (str, bool, int, float) and not quantity else None,
        is_secret=annotation is Secret,
        quantity=quantity,
        pattern=pattern if isinstance(pattern, str) and not quantity else None,
        **bounds,
    )


def _flat(metadata: tuple[Any, ...]) -> Iterator[Any]:
    for item in metadata:
        # FieldInfo stands in metadata when a plugin writes Annotated[int, Field(ge=1)].
        if isinstance(item, FieldInfo):
            yield from _flat(tuple(item.metadata))
        elif isinstance(item, annotated_types.GroupedMetadata):
            yield from item
        else:
            yield item
