"""Selection of tables by patterns over `schema.table` names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from replicator.model.errors import Problem, Severity
from replicator.model.naming import folded
from replicator.model.schema import TableId

PATTERN_HELP: Final = (
    "Write schema.table, such as public.customers, public.* or *.customers; a backslash takes a * or . literally."
)
COLUMN_HELP: Final = "Write a name, or a pattern such as *_email; a backslash takes a * literally."
_SHAPE: Final = r"^([^.\\]|\\.)+\.([^.\\]|\\.)+$"
_COLUMN_SHAPE: Final = r"^([^\\]|\\.)+$"
_LONGEST: Final = 1024


@dataclass(frozen=True)
class TablePattern:
    r"""A pattern such as `public.*`.

    Compared case-sensitively with the two parts of a table's name. `*` stands for any characters of one part and does not cross the
    dot between them; `\` takes the next character literally.

    Raises:
        ValueError: `text` is not two non-empty parts joined by one dot, or ends in a backslash.
    """

    text: str

    def __post_init__(self) -> None:
        """Refuse a text that is not a pattern."""
        if len(self.text) > _LONGEST or not re.fullmatch(_SHAPE, self.text, re.DOTALL):
            raise ValueError("is not a table pattern")

    def matches(self, table: TableId) -> bool:
        """Return whether the pattern matches this table."""
        namespace, name = self._parts
        return _like(namespace, table.namespace) and _like(name, table.name)

    @cached_property
    def _parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Per part of the name, the literal texts between its stars."""
        namespace, name = _parts_of(self.text, dots=True)
        return namespace, name

    def __str__(self) -> str:
        """Return the pattern as written."""
        return self.text

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._from_setting,
            serialization=core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema()),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": _SHAPE}

    @classmethod
    def _from_setting(cls, value: Any) -> TablePattern:
        if isinstance(value, TablePattern):
            return value
        if not isinstance(value, str):
            raise PydanticCustomError("string_type", "must be text")
        try:
            return cls(str(value))
        except ValueError as error:
            raise PydanticCustomError("table_pattern", "{reason}", {"reason": str(error)}) from None


@dataclass(frozen=True)
class ColumnPattern:
    r"""A column's name, or a pattern of names such as `*_email`.

    Compared without case. `*` stands for any characters; `\` takes the next character literally.

    Raises:
        ValueError: `text` is empty, or ends in a backslash.
    """

    text: str

    def __post_init__(self) -> None:
        """Refuse a text that is not a pattern."""
        if len(self.text) > _LONGEST or not re.fullmatch(_COLUMN_SHAPE, self.text, re.DOTALL):
            raise ValueError("is not the name of a column or a pattern of names")

    def matches(self, column: str) -> bool:
        """Return whether the pattern matches this name."""
        return _like(self._literals, folded(column))

    @property
    def is_name(self) -> bool:
        """Return whether it has no star: it is the name of one column."""
        return len(self._literals) == 1

    @property
    def name(self) -> str:
        """Return the pattern without its backslashes: the name that it is, if it has no star."""
        return "*".join(_parts_of(self.text, dots=False)[0])

    @cached_property
    def _literals(self) -> tuple[str, ...]:
        """The folded texts between its stars."""
        return tuple(folded(part) for part in _parts_of(self.text, dots=False)[0])

    def __str__(self) -> str:
        """Return the pattern as written."""
        return self.text

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._from_setting,
            serialization=core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema()),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": _COLUMN_SHAPE}

    @classmethod
    def _from_setting(cls, value: Any) -> ColumnPattern:
        if isinstance(value, ColumnPattern):
            return value
        if not isinstance(value, str):
            raise PydanticCustomError("string_type", "must be text")
        try:
            return cls(str(value))
        except ValueError as error:
            raise PydanticCustomError("column_pattern", "{reason}", {"reason": str(error)}) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Tables that a configuration's patterns choose from those that exist.

    Attributes:
        tables: The tables to replicate, in the order given.
        problems: Patterns that match nothing (warnings), and a blocking one if no table is left.
    """

    tables: tuple[TableId, ...]
    problems: tuple[Problem, ...] = field(default=())


def select(
    tables: Iterable[TableId],
    include: Sequence[TablePattern],
    exclude: Sequence[TablePattern] = (),
    settings: Iterable[TablePattern] = (),
) -> Selection:
    """Choose the tables that some `include` matches and no `exclude` does.

    `settings` are the patterns of per-table settings; they choose nothing, but are warned of like the others if they match nothing.
    """
    candidates = tuple(tables)
    chosen = tuple(table for table in candidates if _any_matches(include, table) and not _any_matches(exclude, table))
    problems = [
        *_unmatched("tables.include", include, candidates),
        *_unmatched("tables.exclude", exclude, candidates),
        *_unmatched("tables.settings", tuple(settings), chosen),
    ]
    if not chosen:
        message = (
            f"The patterns match none of the tables that the source shows to this user ({len(candidates)})."
            if candidates
            else "The source shows no tables to this user."
        )
        action = "Change tables.include, or grant the user access to the tables."
        problems.append(Problem(code="no_tables", message=message, location="tables", action=action))
    return Selection(tables=chosen, problems=tuple(problems))


def _parts_of(text: str, *, dots: bool) -> Sequence[tuple[str, ...]]:
    """Return for each part between dots the literal texts between its stars; without `dots` there is one part."""
    parts: list[list[str]] = [[""]]
    escaped = False
    for char in text:
        if not escaped and char == "\\":
            escaped = True
            continue
        if not escaped and dots and char == ".":
            parts.append([""])
        elif not escaped and char == "*":
            parts[-1].append("")
        else:
            parts[-1][-1] += char
        escaped = False
    return [tuple(part) for part in parts]


def _any_matches(patterns: Iterable[TablePattern], table: TableId) -> bool:
    return any(pattern.matches(table) for pattern in patterns)


def _unmatched(location: str, patterns: Iterable[TablePattern], tables: Sequence[TableId]) -> list[Problem]:
    return [
        Problem(
            code="pattern_without_match",
            message=f"The pattern {pattern} matches no table.",
            location=location,
            action=f"Names are case-sensitive. {PATTERN_HELP}",
            severity=Severity.WARNING,
        )
        for pattern in patterns
        if not any(pattern.matches(table) for table in tables)
    ]


def _like(literals: Sequence[str], text: str) -> bool:
    """Return whether `text` is the literals in order with anything between them. Linear, unlike a regular expression with many stars."""
    first, *rest = literals
    if not rest:
        return text == first
    *middle, last = rest
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    position, end = len(first), len(text) - len(last)
    for literal in middle:
        found = text.find(literal, position, end)
        if found < 0:
            return False
        position = found + len(literal)
    return True
