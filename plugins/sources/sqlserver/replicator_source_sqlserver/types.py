"""The one type mapping: the expression that selects a column, the Arrow type it is kept in, and the server's form of a key's value.

A column is asked for by the same expression in its table and in the change table, so that a snapshot and the log agree on every value.
What a client library would have to convert, the server converts: code pages to Unicode, `datetimeoffset` to UTC, `datetime` to the
milliseconds that it shows. What is left has one form in every driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

_NVARCHAR_MAX: Final = 4000
_MICROSECONDS: Final = 6
_MAX: Final = -1
_UTC: Final = "'+00:00'"
CODE_PAGE_TYPES: Final = frozenset({"char", "varchar", "text"})
"""Types of text in the code page of its collation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredType:
    """A column's type as the catalogue has it.

    Attributes:
        name: Name of the system type, such as `nvarchar`; of a CLR type its own (`hierarchyid`).
        max_length: The length in bytes; -1 is max.
        precision, scale: Their values in `sys.columns`; 0 where they have no meaning.
        collation: The collation of text; None for others.
    """

    name: str
    max_length: int = 0
    precision: int = 0
    scale: int = 0
    collation: str | None = None

    @property
    def length(self) -> int:
        """The length in characters or bytes, as declared; -1 is max."""
        return self.max_length // 2 if self.name.startswith("n") and self.max_length != _MAX else self.max_length

    def __str__(self) -> str:
        """Return the type as a CREATE TABLE has it."""
        if self.name in {"decimal", "numeric"}:
            return f"{self.name}({self.precision},{self.scale})"
        if self.name in {"time", "datetime2", "datetimeoffset"}:
            return f"{self.name}({self.scale})"
        if self.name in {"char", "varchar", "nchar", "nvarchar", "binary", "varbinary"}:
            return f"{self.name}({'max' if self.max_length == _MAX else self.length})"
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """The replication of a column.

    Attributes:
        arrow: The canonical type.
        selected: The expression that is selected; `{}` is the column.
        key_value: The expression of a key's value; `{}` is a text, spelled as `kit.cursors` has it. None: no part of a key.
        is_lob: The log leaves it out of an UPDATE that does not touch it.
    """

    declared: DeclaredType
    arrow: pa.DataType
    selected: str = "{}"
    key_value: str | None = None
    is_lob: bool = False


def spec_of(declared: DeclaredType) -> ColumnSpec | None:
    """Return the replication of a column of this type; None if there is none (`sql_variant`, user-defined types of .NET, newer ones)."""
    make = _SPECS.get(declared.name)
    return None if make is None else make(declared)


def key_text(text: str, spec: ColumnSpec) -> str:
    """Return a part of a key, as `kit.cursors` spells it, in the form that `key_value` takes."""
    if pa.types.is_binary(spec.arrow):
        return "0x" + text.removeprefix("\\x")
    if pa.types.is_timestamp(spec.arrow):
        return text.removesuffix("Z")
    return text


def _plain(arrow: pa.DataType, key_value: str | None = "CAST({} AS %s)") -> Callable[[DeclaredType], ColumnSpec]:
    def make(declared: DeclaredType) -> ColumnSpec:
        return ColumnSpec(
            declared=declared, arrow=arrow, key_value=key_value and key_value.replace("%s", str(declared))
        )

    return make


def _decimal(declared: DeclaredType) -> ColumnSpec:
    arrow = pa.decimal128(declared.precision, declared.scale)
    return ColumnSpec(declared=declared, arrow=arrow, key_value=f"CAST({{}} AS {declared})")


def _unicode(declared: DeclaredType) -> ColumnSpec:
    is_max = declared.max_length == _MAX
    key_value = None if is_max else f"CAST({{}} AS {declared})"
    return ColumnSpec(declared=declared, arrow=pa.string(), key_value=key_value, is_lob=is_max)


def _code_page(declared: DeclaredType) -> ColumnSpec:
    """Return the spec of text in a code page: a character takes a byte at least, so the same length holds it."""
    is_max = declared.max_length == _MAX
    wide = "max" if is_max or declared.length > _NVARCHAR_MAX else str(declared.length)
    # nchar would pad a char of a code page with several bytes for a character.
    selected = f"CAST({{}} AS nvarchar({wide}))"
    # Without the column's collation the text would become one of the database's code page first.
    key_value = f"CAST(CAST({{}} AS nvarchar({wide})) COLLATE {declared.collation} AS {declared})"
    return ColumnSpec(
        declared=declared,
        arrow=pa.string(),
        selected=selected,
        key_value=None if is_max or declared.collation is None else key_value,
        is_lob=is_max,
    )


def _bytes(declared: DeclaredType) -> ColumnSpec:
    is_max = declared.max_length == _MAX
    key_value = None if is_max else f"CONVERT({declared}, {{}}, 1)"
    return ColumnSpec(declared=declared, arrow=pa.binary(), key_value=key_value, is_lob=is_max)


def _clock(declared: DeclaredType, arrow: pa.DataType, *, is_utc: bool = False) -> ColumnSpec:
    """Return the spec of a time: seven digits are cut to six when they are read, so two values would be one: no key."""
    plain = f"{'datetime2' if is_utc else declared.name}({declared.scale})"
    selected = f"CAST(SWITCHOFFSET({{}}, {_UTC}) AS {plain})" if is_utc else "{}"
    value = f"CONVERT({plain}, {{}}, 121)"
    key_value = f"TODATETIMEOFFSET({value}, {_UTC})" if is_utc else value
    return ColumnSpec(
        declared=declared,
        arrow=arrow,
        selected=selected,
        key_value=key_value if declared.scale <= _MICROSECONDS else None,
    )


def _rounded(scale: int) -> Callable[[DeclaredType], ColumnSpec]:
    """Return a maker of specs: `datetime` counts 1/300 s, which drivers spell differently; the server shows and compares milliseconds."""

    def make(declared: DeclaredType) -> ColumnSpec:
        return ColumnSpec(
            declared=declared,
            arrow=pa.timestamp("us"),
            selected=f"CAST({{}} AS datetime2({scale}))",
            key_value=f"CAST(CONVERT(datetime2({scale}), {{}}, 121) AS {declared.name})",
        )

    return make


def _converted(
    arrow: pa.DataType, selected: str, key_value: str | None = None, *, is_lob: bool = False
) -> Callable[[DeclaredType], ColumnSpec]:
    def make(declared: DeclaredType) -> ColumnSpec:
        return ColumnSpec(declared=declared, arrow=arrow, selected=selected, key_value=key_value, is_lob=is_lob)

    return make


_SPECS: Final[Mapping[str, Callable[[DeclaredType], ColumnSpec]]] = {
    "bit": _plain(pa.bool_()),
    "tinyint": _plain(pa.int16()),
    "smallint": _plain(pa.int16()),
    "int": _plain(pa.int32()),
    "bigint": _plain(pa.int64()),
    "decimal": _decimal,
    "numeric": _decimal,
    "money": _plain(pa.decimal128(19, 4)),
    "smallmoney": _plain(pa.decimal128(10, 4)),
    # Neither is an identity: what is equal in one form need not be in another.
    "float": _plain(pa.float64(), None),
    "real": _plain(pa.float32(), None),
    "nchar": _unicode,
    "nvarchar": _unicode,
    "char": _code_page,
    "varchar": _code_page,
    "text": _converted(pa.string(), "CAST({} AS nvarchar(max))", is_lob=True),
    "ntext": _converted(pa.string(), "CAST({} AS nvarchar(max))", is_lob=True),
    "xml": _converted(pa.string(), "CAST({} AS nvarchar(max))", is_lob=True),
    "json": _converted(pa.string(), "CAST({} AS nvarchar(max))", is_lob=True),
    "binary": _bytes,
    "varbinary": _bytes,
    "image": _converted(pa.binary(), "CAST({} AS varbinary(max))", is_lob=True),
    "timestamp": _converted(pa.binary(), "CAST({} AS binary(8))", "CONVERT(binary(8), {}, 1)"),
    "uniqueidentifier": _converted(pa.string(), "LOWER(CAST({} AS nchar(36)))", "CAST({} AS uniqueidentifier)"),
    "date": _plain(pa.date32(), "CONVERT(date, {}, 23)"),
    "time": lambda declared: _clock(declared, pa.time64("us")),
    "datetime2": lambda declared: _clock(declared, pa.timestamp("us")),
    "datetimeoffset": lambda declared: _clock(declared, pa.timestamp("us", tz="UTC"), is_utc=True),
    "datetime": _rounded(3),
    "smalldatetime": _rounded(0),
    "hierarchyid": _converted(pa.string(), "{}.ToString()", "CAST({} AS hierarchyid)"),
    "geometry": _converted(pa.binary(), "{}.AsBinaryZM()", is_lob=True),
    "geography": _converted(pa.binary(), "{}.AsBinaryZM()", is_lob=True),
}
