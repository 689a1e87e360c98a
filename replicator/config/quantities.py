"""Durations and sizes as people write them: `5s`, `1h30m`, `64MiB`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

DURATION_PATTERN: Final = r"^(\d+(\.\d+)?(us|ms|s|m|h|d))+$"
SIZE_PATTERN: Final = r"^\d+(\.\d+)?(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)$"
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)")
# Quantities are short; a longer text is not looked at, so that no text can make the parsers work hard.
_LONGEST: Final = 40

_MICROSECONDS: Final = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_BYTES: Final = {
    "TiB": 1 << 40,
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
    "KB": 10**3,
    "B": 1,
}


def parse_duration(text: str) -> timedelta:
    """Read a duration: numbers, each with a unit (`us ms s m h d`), added up.

    Raises:
        ValueError: `text` is something else, or too long for a timedelta.
    """
    if len(text) > _LONGEST or not re.fullmatch(DURATION_PATTERN, text, re.ASCII):
        raise ValueError("is not a duration; write numbers with units, such as 200ms, 5s or 1h30m")
    try:
        return timedelta(microseconds=sum(_times(n, _MICROSECONDS[unit]) for n, unit in _DURATION_PART.findall(text)))
    except OverflowError:
        raise ValueError("is too long a duration") from None


def format_duration(value: timedelta) -> str:
    """Spell a duration of at least zero so that `parse_duration` reads it back: `1h30m`, `0s`."""
    rest = value // timedelta(microseconds=1)
    parts = []
    for unit, microseconds in _MICROSECONDS.items():
        count, rest = divmod(rest, microseconds)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Read a number of bytes with its unit: `64MiB`, `1.5GB`, `512B`.

    Raises:
        ValueError: `text` is something else.
    """
    match = _SIZE.fullmatch(text) if len(text) <= _LONGEST and text.isascii() else None
    if match is None:
        raise ValueError("is not a size; write a number with a unit, such as 64MiB, 1GB or 512B")
    return _times(match[1], _BYTES[match[2]])


def format_size(value: int) -> str:
    """Spell a number of bytes in the largest unit that fits evenly, so that `parse_size` reads it back."""
    for unit, count in _BYTES.items():
        if value and value % count == 0:
            return f"{value // count}{unit}"
    return f"{value}B"


def _times(number: str, factor: int) -> int:
    whole, _, fraction = number.partition(".")
    return int(whole) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)


@dataclass(frozen=True, slots=True)
class Quantity:
    """Marks an annotated number as written with units; messages and documentation find it in a field's metadata."""

    words: str
    pattern: str
    example: str
    parse: Callable[[str], Any]
    format: Callable[[Any], str]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler(source)
        return core_schema.no_info_before_validator_function(
            self._read,
            inner,
            serialization=core_schema.plain_serializer_function_ser_schema(
                self.format, return_schema=core_schema.str_schema(), when_used="json"
            ),
        )

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": self.pattern, "examples": [self.example]}

    def _read(self, value: Any) -> Any:
        if isinstance(value, str):
            try:
                return self.parse(value)
            except ValueError as error:
                raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from None
        is_bare_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_bare_number and self is DURATION:
            raise PydanticCustomError(
                "quantity", "has no unit; write for instance {example}", {"example": self.example}
            )
        return value


DURATION: Final = Quantity(
    words="duration", pattern=DURATION_PATTERN, example="5s", parse=parse_duration, format=format_duration
)
SIZE: Final = Quantity(words="size", pattern=SIZE_PATTERN, example="64MiB", parse=parse_size, format=format_size)

Duration = Annotated[timedelta, DURATION]
"""A duration, in YAML a text such as `5s`; a number without a unit is refused. Bound it with `Field(ge=timedelta(...))`."""

Size = Annotated[int, SIZE]
"""A number of bytes, in YAML a text such as `64MiB` (a bare number is bytes). Bound it with `Field(ge=…)`."""
