"""Tables, their columns and keys, and their Arrow layout."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from replicator.model.arrow import pa

_PLAIN_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_DECIMAL = re.compile(r"decimal(128|256)\((\d+), ?(-?\d+)\)")


@dataclass(frozen=True, slots=True, order=True)
class TableId:
    """A table's name in its source: the schema (PostgreSQL) or database (MySQL), and the table."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return `namespace.name`, with dots and backslashes inside the parts escaped by a backslash."""
        return f"{_escape(self.namespace)}.{_escape(self.name)}"

    @classmethod
    def parse(cls, text: str) -> TableId:
        """Read a text that `str` wrote.

        Raises:
            ValueError: `text` has no dot, or more than one that is not escaped.
        """
        match _split_escaped(text):
            case [namespace, name] if namespace and name:
                return cls(namespace, name)
        raise ValueError(f"{text!r} is not of the form schema.table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    `type` is the canonical Arrow type (see `type_to_text` for the closed set); `source_type` the source's own spelling.
    `id` is the number by which the source knows the column under any name, and which it gives to no other column of the table;
    None if it has no such number. Versions of a table are compared by it.
    """

    name: str
    type: pa.DataType
    source_type: str
    nullable: bool = True
    comment: str | None = None
    id: int | None = None


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """A version of a table's schema.

    `key` names the key columns in key order; empty for a table without a key, which is a multiset of rows. `kept` are columns that the
    source dropped and the target keeps, under their names in the target: rows do not have them. Only capture sets it.
    """

    table: TableId
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    comment: str | None = None
    kept: tuple[Column, ...] = ()

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """Return a mapping of column name → its field name inside `row` and `before`.

        The field has the source's name where that is a plain identifier and unique after case-folding, else `c<position>`, counted from 1.
        """
        folded: dict[str, int] = {}
        for column in self.columns:
            folded[column.name.casefold()] = folded.get(column.name.casefold(), 0) + 1
        taken = {
            c.name.casefold() for c in self.columns if _PLAIN_FIELD.fullmatch(c.name) and folded[c.name.casefold()] == 1
        }
        names: dict[str, str] = {}
        for position, column in enumerate(self.columns, start=1):
            if column.name.casefold() in taken:
                names[column.name] = column.name
                continue
            name = f"c{position}"
            while name in taken:
                name = f"{name}_"
            taken.add(name)
            names[column.name] = name
        return names

    @cached_property
    def key_fields(self) -> tuple[str, ...]:
        """Return the field names of the key columns, in key order."""
        return tuple(self.fields[name] for name in self.key)

    @cached_property
    def row_type(self) -> pa.StructType:
        """Return the type of `row`: every column in table order, all nullable (a column may be absent)."""
        return pa.struct([pa.field(self.fields[c.name], c.type) for c in self.columns])

    @cached_property
    def before_type(self) -> pa.StructType:
        """Return the type of `before`: the key columns in key order; every column for a table without a key."""
        if not self.key:
            return self.row_type
        by_name = {c.name: c for c in self.columns}
        return pa.struct([pa.field(self.fields[name], by_name[name].type) for name in self.key])

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change whenever columns, types, nullability, key or kept columns change."""
        shape = [[c.name, type_to_text(c.type), c.nullable] for c in self.columns]
        kept = [[c.name, type_to_text(c.type)] for c in self.kept]
        return hashlib.sha256(json.dumps([shape, list(self.key), *([kept] if kept else [])]).encode()).hexdigest()[:16]

    @cached_property
    def held(self) -> tuple[Column, ...]:
        """Return the columns that a target holds of the table: those of its rows, then those that are kept."""
        return (*self.columns, *self.kept)

    def column(self, name: str) -> Column:
        """Return the column called `name`; KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads back."""
        return {
            "table": [self.table.namespace, self.table.name],
            "columns": [_column_to_json(c) for c in self.columns],
            "key": list(self.key),
            "comment": self.comment,
            **({"kept": [_column_to_json(c) for c in self.kept]} if self.kept else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableSchema:
        """Read a document that `to_json` wrote; KeyError or ValueError if it is something else."""
        return cls(
            table=TableId(*data["table"]),
            columns=tuple(map(_column_from_json, data["columns"])),
            key=tuple(data["key"]),
            comment=data["comment"],
            kept=tuple(map(_column_from_json, data.get("kept", ()))),
        )


def type_to_text(type_: pa.DataType) -> str:
    """Spell a canonical Arrow type.

    The closed set: bool, int8…int64, float, double, decimal128/256, string, binary, date32,
    time64[us], timestamp[us(, UTC)], lists of these.

    Raises:
        ValueError: The type is outside the canonical set.
    """
    if pa.types.is_list(type_):
        return f"list<{type_to_text(type_.value_type)}>"
    if pa.types.is_decimal(type_):
        return str(type_).replace(" ", "")
    text = str(type_)
    if text not in _simple_types():
        raise ValueError(f"{text} is not a canonical type")
    return text


def type_from_text(text: str) -> pa.DataType:
    """Read a text that `type_to_text` wrote; ValueError if it is something else."""
    if text.startswith("list<") and text.endswith(">"):
        return pa.list_(type_from_text(text[5:-1]))
    if match := _DECIMAL.fullmatch(text):
        make = pa.decimal128 if match[1] == "128" else pa.decimal256
        return make(int(match[2]), int(match[3]))
    if text not in _simple_types():
        raise ValueError(f"{text!r} is not a canonical type")
    return _simple_types()[text]


@cache
def _simple_types() -> Mapping[str, pa.DataType]:
    """Return the canonical types without parameters, by their spelling."""
    types = (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(),
        pa.binary(), pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", tz="UTC"),
    )  # fmt: skip
    return {str(type_): type_ for type_ in types}


def _column_to_json(column: Column) -> dict[str, Any]:
    document = {
        "name": column.name,
        "type": type_to_text(column.type),
        "source_type": column.source_type,
        "nullable": column.nullable,
        "comment": column.comment,
    }
    return document if column.id is None else {**document, "id": column.id}


def _column_from_json(data: Mapping[str, Any]) -> Column:
    return Column(
        name=data["name"],
        type=type_from_text(data["type"]),
        source_type=data["source_type"],
        nullable=data["nullable"],
        comment=data["comment"],
        id=data.get("id"),
    )


def _escape(part: str) -> str:
    return part.replace("\\", "\\\\").replace(".", "\\.")


def _split_escaped(text: str) -> Sequence[str]:
    parts, current, escaped = [], "", False
    for char in text:
        if escaped:
            current, escaped = current + char, False
        elif char == "\\":
            escaped = True
        elif char == ".":
            parts.append(current)
            current = ""
        else:
            current += char
    return [*parts, current]
