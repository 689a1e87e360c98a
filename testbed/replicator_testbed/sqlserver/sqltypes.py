"""The types of SQL Server that the model has: their names, sizes and how T-SQL writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

DEFAULT_COLLATION: Final = "SQL_Latin1_General_CP1_CI_AS"
MAX: Final = -1
"""The length of a (max) type, as `sys.columns.max_length` has it."""


class TypeName(StrEnum):
    """A system type, by its name in `sys.types`."""

    BIGINT = "bigint"
    INT = "int"
    SMALLINT = "smallint"
    TINYINT = "tinyint"
    BIT = "bit"
    FLOAT = "float"
    REAL = "real"
    MONEY = "money"
    SMALLMONEY = "smallmoney"
    DECIMAL = "decimal"
    NUMERIC = "numeric"
    CHAR = "char"
    VARCHAR = "varchar"
    TEXT = "text"
    NCHAR = "nchar"
    NVARCHAR = "nvarchar"
    NTEXT = "ntext"
    SYSNAME = "sysname"
    BINARY = "binary"
    VARBINARY = "varbinary"
    IMAGE = "image"
    TIMESTAMP = "timestamp"
    UNIQUEIDENTIFIER = "uniqueidentifier"
    DATE = "date"
    TIME = "time"
    DATETIME = "datetime"
    SMALLDATETIME = "smalldatetime"
    DATETIME2 = "datetime2"
    DATETIMEOFFSET = "datetimeoffset"
    XML = "xml"
    JSON = "json"
    SQL_VARIANT = "sql_variant"
    HIERARCHYID = "hierarchyid"
    GEOMETRY = "geometry"
    GEOGRAPHY = "geography"


SYSTEM_TYPE_IDS: Final[Mapping[TypeName, int]] = {
    TypeName.IMAGE: 34,
    TypeName.TEXT: 35,
    TypeName.UNIQUEIDENTIFIER: 36,
    TypeName.DATE: 40,
    TypeName.TIME: 41,
    TypeName.DATETIME2: 42,
    TypeName.DATETIMEOFFSET: 43,
    TypeName.TINYINT: 48,
    TypeName.SMALLINT: 52,
    TypeName.INT: 56,
    TypeName.SMALLDATETIME: 58,
    TypeName.REAL: 59,
    TypeName.MONEY: 60,
    TypeName.DATETIME: 61,
    TypeName.FLOAT: 62,
    TypeName.NTEXT: 99,
    TypeName.BIT: 104,
    TypeName.DECIMAL: 106,
    TypeName.NUMERIC: 108,
    TypeName.SMALLMONEY: 122,
    TypeName.BIGINT: 127,
    TypeName.VARBINARY: 165,
    TypeName.VARCHAR: 167,
    TypeName.BINARY: 173,
    TypeName.CHAR: 175,
    TypeName.TIMESTAMP: 189,
    TypeName.NVARCHAR: 231,
    TypeName.SYSNAME: 231,
    TypeName.NCHAR: 239,
    TypeName.XML: 241,
    TypeName.SQL_VARIANT: 98,
    TypeName.HIERARCHYID: 240,
    TypeName.GEOMETRY: 240,
    TypeName.GEOGRAPHY: 240,
    TypeName.JSON: 244,
}
"""`sys.types.system_type_id`."""
USER_TYPE_IDS: Final[Mapping[TypeName, int]] = {
    TypeName.HIERARCHYID: 128,
    TypeName.GEOMETRY: 129,
    TypeName.GEOGRAPHY: 130,
    TypeName.SYSNAME: 256,
}
"""`sys.types.user_type_id`, where it is another one."""

NARROW_TEXTS: Final = frozenset({TypeName.CHAR, TypeName.VARCHAR, TypeName.TEXT})
WIDE_TEXTS: Final = frozenset({TypeName.NCHAR, TypeName.NVARCHAR, TypeName.NTEXT, TypeName.SYSNAME})
TEXTS: Final = NARROW_TEXTS | WIDE_TEXTS
BINARIES: Final = frozenset({TypeName.BINARY, TypeName.VARBINARY, TypeName.IMAGE, TypeName.TIMESTAMP})
OLD_LARGE: Final = frozenset({TypeName.TEXT, TypeName.NTEXT, TypeName.IMAGE})
"""The large types from before (max)."""
SPATIAL: Final = frozenset({TypeName.GEOMETRY, TypeName.GEOGRAPHY})
DOCUMENTS: Final = frozenset({TypeName.XML, TypeName.JSON})
UNSENT: Final = frozenset({TypeName.SQL_VARIANT, TypeName.HIERARCHYID}) | SPATIAL
"""Types whose values the model does not send."""

_FIXED_SIZES: Final[Mapping[TypeName, int]] = {
    TypeName.BIGINT: 8,
    TypeName.INT: 4,
    TypeName.SMALLINT: 2,
    TypeName.TINYINT: 1,
    TypeName.BIT: 1,
    TypeName.FLOAT: 8,
    TypeName.REAL: 4,
    TypeName.MONEY: 8,
    TypeName.SMALLMONEY: 4,
    TypeName.TEXT: 16,
    TypeName.NTEXT: 16,
    TypeName.IMAGE: 16,
    TypeName.TIMESTAMP: 8,
    TypeName.UNIQUEIDENTIFIER: 16,
    TypeName.DATE: 3,
    TypeName.DATETIME: 8,
    TypeName.SMALLDATETIME: 4,
    TypeName.XML: MAX,
    TypeName.SYSNAME: 256,
    TypeName.JSON: MAX,
    TypeName.SQL_VARIANT: 8016,
    TypeName.HIERARCHYID: 892,
    TypeName.GEOMETRY: MAX,
    TypeName.GEOGRAPHY: MAX,
}
_FIXED_PRECISIONS: Final[Mapping[TypeName, tuple[int, int]]] = {
    TypeName.BIGINT: (19, 0),
    TypeName.INT: (10, 0),
    TypeName.SMALLINT: (5, 0),
    TypeName.TINYINT: (3, 0),
    TypeName.BIT: (1, 0),
    TypeName.FLOAT: (53, 0),
    TypeName.REAL: (24, 0),
    TypeName.MONEY: (19, 4),
    TypeName.SMALLMONEY: (10, 4),
    TypeName.DATE: (10, 0),
    TypeName.DATETIME: (23, 3),
    TypeName.SMALLDATETIME: (16, 0),
}
_TIMES: Final = frozenset({TypeName.TIME, TypeName.DATETIME2, TypeName.DATETIMEOFFSET})
_SIZED: Final = frozenset(
    {TypeName.CHAR, TypeName.VARCHAR, TypeName.NCHAR, TypeName.NVARCHAR, TypeName.BINARY, TypeName.VARBINARY}
)
_NUMBERS: Final = frozenset({TypeName.DECIMAL, TypeName.NUMERIC})
_SYNONYMS: Final[Mapping[str, str]] = {
    "integer": "int",
    "dec": "decimal",
    "rowversion": "timestamp",
    "character": "char",
    "char varying": "varchar",
    "character varying": "varchar",
    "national character": "nchar",
    "national char": "nchar",
    "national character varying": "nvarchar",
    "national char varying": "nvarchar",
    "binary varying": "varbinary",
    "double precision": "float",
}
_TEXT: Final = re.compile(
    r"\s*(?:\[?sys\]?\s*\.\s*)?\[?([a-z][a-z0-9_ ]*?)\]?\s*(?:\(\s*(\w+)\s*(?:,\s*(\d+)\s*)?\))?\s*", re.IGNORECASE
)


class UnknownTypeError(Exception):
    """A type that SQL Server does not have, or that the model does not have. `number`: of its error, if it is always the same."""

    number: int | None = None


class TooLongTypeError(UnknownTypeError):
    """A text or binary that is longer than the longest [DOC: char and varchar, nchar and nvarchar, binary and varbinary]."""

    number = 131


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlType:
    """A type with its sizes.

    Attributes:
        name: The system type.
        length: Characters of a text, bytes of a binary; MAX for (max); 0 for other types.
        precision: Of decimal and numeric.
        scale: Of decimal and numeric, and digits behind the second of the newer times.
        collation: Of a text.
    """

    name: TypeName
    length: int = 0
    precision: int = 0
    scale: int = 0
    collation: str = DEFAULT_COLLATION

    @property
    def is_large(self) -> bool:
        """Whether a value may be larger than a page: a (max) type, one of the old large types, xml, json, or a spatial type."""
        return self.length == MAX or self.name in OLD_LARGE | DOCUMENTS | SPATIAL

    @property
    def is_cast_on_use(self) -> bool:
        """Whether PostgreSQL has to be told the type of a parameter, because no type of its own says as much."""
        return self.name is TypeName.DATETIMEOFFSET

    @property
    def max_length(self) -> int:
        """`sys.columns.max_length`: bytes, or -1."""
        if self.name in _FIXED_SIZES:
            return _FIXED_SIZES[self.name]
        if self.name in _NUMBERS:
            return decimal_size(self.precision) + 1
        if self.name in _TIMES:
            extra = {TypeName.TIME: 0, TypeName.DATETIME2: 3, TypeName.DATETIMEOFFSET: 5}[self.name]
            return time_size(self.scale) + extra
        return self.length if self.length == MAX or self.name not in WIDE_TEXTS else 2 * self.length

    @property
    def numeric_precision(self) -> tuple[int, int]:
        """`sys.columns.precision` and `scale`."""
        if self.name in _NUMBERS:
            return self.precision, self.scale
        if self.name in _TIMES:
            digits = {TypeName.TIME: 8, TypeName.DATETIME2: 19, TypeName.DATETIMEOFFSET: 26}[self.name]
            return digits + (self.scale + 1 if self.scale else 0), self.scale
        return _FIXED_PRECISIONS.get(self.name, (0, 0))

    def __str__(self) -> str:
        """The type as T-SQL writes it."""
        if self.name in _SIZED:
            return f"{self.name}({'max' if self.length == MAX else self.length})"
        if self.name in _NUMBERS:
            return f"{self.name}({self.precision},{self.scale})"
        if self.name in _TIMES:
            return f"{self.name}({self.scale})"
        return str(self.name)

    def collated(self, collation: str) -> SqlType:
        """The type with another collation."""
        return replace(self, collation=collation)


def parse(text: str, *, in_cast: bool = False) -> SqlType:
    """Read a type as T-SQL writes it.

    Args:
        text: Such as `nvarchar(50)` or `[decimal](10, 2)`.
        in_cast: A text or binary without a length has 30 characters or bytes in CAST and CONVERT, else 1
            [DOC: char and varchar, remarks].

    Raises:
        UnknownTypeError: The model does not have it.
    """
    found = _TEXT.fullmatch(text)
    word = re.sub(r"\s+", " ", found[1].lower()) if found else ""
    try:
        name = TypeName(_SYNONYMS.get(word, word))
    except ValueError:
        raise UnknownTypeError(f"The model has no type {text.strip()}.") from None
    assert found is not None
    first, second = found[2], found[3]
    if name in _SIZED:
        length = MAX if first and first.lower() == "max" else int(first or (30 if in_cast else 1))
        longest = 4000 if name in {TypeName.NCHAR, TypeName.NVARCHAR} else 8000
        if length > longest:
            raise TooLongTypeError(
                f"The size ({length}) given to the type '{name}' exceeds the maximum allowed for any data type ({longest})."
            )
        return SqlType(name=name, length=length)
    if name in _NUMBERS:
        return SqlType(name=name, precision=int(first or 18), scale=int(second or 0))
    if name in _TIMES:
        return SqlType(name=name, scale=int(first) if first else 7)
    if name is TypeName.FLOAT and first and int(first) <= _FIXED_PRECISIONS[TypeName.REAL][0]:
        return SqlType(name=TypeName.REAL)
    return SqlType(name=name, length=128 if name is TypeName.SYSNAME else 0)


def decimal_size(precision: int) -> int:
    """Bytes of a decimal's digits [DOC: decimal and numeric]."""
    return next(size for digits, size in ((9, 4), (19, 8), (28, 12), (38, 16)) if precision <= digits)


def time_size(scale: int) -> int:
    """Bytes of a time with so many digits behind the second [DOC: MS-TDS 2.2.5.5.1.8]."""
    return 3 if scale <= 2 else 4 if scale <= 4 else 5


def of(name: TypeName, length: int = 0, *, precision: int = 0, scale: int = 0) -> SqlType:
    """A type, shortly."""
    return SqlType(name=name, length=length, precision=precision, scale=scale)


INT: Final = of(TypeName.INT)
BIGINT: Final = of(TypeName.BIGINT)
SYSNAME: Final = of(TypeName.SYSNAME, 128)
LSN: Final = of(TypeName.BINARY, 10)
