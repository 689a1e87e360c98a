"""The one type mapping: a column's MySQL or MariaDB type → canonical Arrow type, for log, chunks and discovery alike.

| Column type | Arrow | canonical value |
|---|---|---|
| TINYINT, SMALLINT, MEDIUMINT, INT, BIGINT | int8, int16, int32, int32, int64 | TINYINT(1) is an int8: the log does not tell it |
| the same UNSIGNED | int16, int32, int32, int64, decimal128(20,0) | |
| DECIMAL(p,s) | decimal128(p,s), decimal256(p,s) from p 39 | exact |
| FLOAT, DOUBLE | float, double | the stored bits: a chunk reads `col * 1e0` (`+ 0e0` loses the sign of a negative zero) and narrows FLOAT |
| BIT(1), BIT(2..63), BIT(64) | bool, int64, decimal128(20,0) | the number |
| YEAR | int16 | 0 is 0 |
| DATE | date32 | zero, partial and impossible dates: setting `unrepresentable` |
| DATETIME | timestamp[us] | likewise |
| TIMESTAMP | timestamp[us, UTC] | likewise; sessions run in UTC |
| TIME(f) | string | what SELECT writes: `-838:59:59.000000`, always f digits. It is no time of day: negative, and up to 838 hours |
| CHAR, VARCHAR, TEXT | string | as stored, converted to UTF-8 as the server does; CHAR without trailing spaces |
| ENUM | string | the label; the invalid value is '' |
| SET | string | labels in the order of definition, joined by commas |
| BINARY(n) | binary | n bytes: trailing zeros are restored |
| VARBINARY, BLOB | binary | |
| JSON (MySQL) | string | what SELECT writes: `{"a": 1, "b": [true, null]}` |
| JSON (MariaDB) | string | the text itself |
| UUID, INET6, INET4 (MariaDB) | string | what SELECT writes |
| GEOMETRY and its kinds | binary | SRID (4 bytes, little-endian) and WKB, as SELECT gives |
| VECTOR | binary | float32, little-endian, as SELECT gives |
| … COMPRESSED (MariaDB) | as without | uncompressed |

Columns of MySQL's `sql_generate_invisible_primary_key`, invisible and generated columns are columns like others wherever
the row image has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

import pyarrow as pa

from replicator.model.errors import SchemaConflictError, UnsupportedTypeError
from replicator_source_mysql import column_types as t
from replicator_source_mysql.binlog.charsets import BINARY, charset_of, label
from replicator_source_mysql.binlog.tablemap import MapColumn
from replicator_source_mysql.flavors import Flavor

Unrepresentable = Literal["fail", "null"]


class TypeKind(StrEnum):
    """The kind of a value, independent of its width."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    BIT = "bit"
    YEAR = "year"
    DATE = "date"
    TIME = "time"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TEXT = "text"
    BYTES = "bytes"
    ENUM = "enum"
    SET = "set"
    JSON = "json"
    UUID = "uuid"
    INET4 = "inet4"
    INET6 = "inet6"
    GEOMETRY = "geometry"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """The parts of a column's type that matter for its values.

    Attributes:
        width: Bytes of an integer, bits of BIT, bytes of BINARY (`is_fixed`); else 0.
        precision: Precision of DECIMAL.
        scale: Scale of DECIMAL; digits of the fraction of TIME, DATETIME and TIMESTAMP.
        charset: The server's name of the character set of TEXT, ENUM and SET.
        labels: Labels of ENUM and SET.
    """

    kind: TypeKind
    width: int = 0
    precision: int = 0
    scale: int = 0
    is_unsigned: bool = False
    is_fixed: bool = False
    charset: str | None = None
    labels: tuple[str, ...] = ()

    @property
    def arrow(self) -> pa.DataType:
        """The canonical type."""
        match self.kind:
            case TypeKind.INTEGER:
                return _INTEGERS[self.width, self.is_unsigned]
            case TypeKind.DECIMAL:
                make = pa.decimal128 if self.precision <= _DECIMAL128_PRECISION else pa.decimal256
                return make(self.precision, self.scale)
            case TypeKind.BIT:
                return pa.bool_() if self.width == 1 else _WIDE if self.width == _BIT_MAX else pa.int64()
            case _:
                return _ARROW[self.kind]


_WIDE: Final = pa.decimal128(20, 0)
_BIT_MAX: Final = 64
_DECIMAL128_PRECISION: Final = 38
_INTEGERS: Final[Mapping[tuple[int, bool], pa.DataType]] = {
    (1, False): pa.int8(), (2, False): pa.int16(), (3, False): pa.int32(), (4, False): pa.int32(), (8, False): pa.int64(),
    (1, True): pa.int16(), (2, True): pa.int32(), (3, True): pa.int32(), (4, True): pa.int64(), (8, True): _WIDE,
}  # fmt: skip
_ARROW: Final[Mapping[TypeKind, pa.DataType]] = {
    TypeKind.FLOAT: pa.float32(),
    TypeKind.DOUBLE: pa.float64(),
    TypeKind.YEAR: pa.int16(),
    TypeKind.DATE: pa.date32(),
    TypeKind.DATETIME: pa.timestamp("us"),
    TypeKind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    TypeKind.BYTES: pa.binary(),
    TypeKind.GEOMETRY: pa.binary(),
    TypeKind.VECTOR: pa.binary(),
    **dict.fromkeys(
        (
            TypeKind.TIME,
            TypeKind.TEXT,
            TypeKind.ENUM,
            TypeKind.SET,
            TypeKind.JSON,
            TypeKind.UUID,
            TypeKind.INET4,
            TypeKind.INET6,
        ),
        pa.string(),
    ),
}

# ---- from the catalogue ----

_INTEGER_BYTES: Final = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "integer": 4, "bigint": 8}
_WITH_FRACTION: Final = {"time": TypeKind.TIME, "datetime": TypeKind.DATETIME, "timestamp": TypeKind.TIMESTAMP}
_PLAIN: Final = {
    "float": TypeKind.FLOAT,
    "double": TypeKind.DOUBLE,
    "year": TypeKind.YEAR,
    "date": TypeKind.DATE,
    "uuid": TypeKind.UUID,
    "inet4": TypeKind.INET4,
    "inet6": TypeKind.INET6,
    "vector": TypeKind.VECTOR,
    "json": TypeKind.JSON,
    **dict.fromkeys(("varbinary", "tinyblob", "blob", "mediumblob", "longblob"), TypeKind.BYTES),
    **dict.fromkeys(
        ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
         "geometrycollection", "geomcollection"),
        TypeKind.GEOMETRY,
    ),
}  # fmt: skip
_TEXTS: Final = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_DECLARATION: Final = re.compile(r"(\w+)(?:\((.*)\))?((?: \S+)*)", re.DOTALL)
_LABEL: Final = re.compile(r"'((?:[^']|'')*)'(?:,|$)", re.DOTALL)


def declared_spec(column_type: str, charset: str | None, flavor: Flavor) -> ColumnSpec | None:
    """The spec of a column from the catalogue.

    Args:
        column_type: `information_schema.columns.column_type`: `int(10) unsigned`, `enum('a','b')`, `varchar(20)`.
        charset: `character_set_name` of the same row.
        flavor: The server's flavor.

    Returns:
        None if the type is not known: discovery then refuses the table with `UnsupportedTypeError`.
    """
    match = _DECLARATION.fullmatch(re.sub(r"\s*/\*.*?\*/", "", column_type))
    if match is None:
        return None
    name, arguments, words = match[1].lower(), match[2] or "", match[3].lower().split()
    if name in {"enum", "set"}:
        labels = tuple(part.replace("''", "'") for part in _LABEL.findall(arguments))
        return ColumnSpec(kind=TypeKind(name), charset=charset, labels=labels)
    if name in _TEXTS or (name == "json" and flavor.json_is_text):
        return ColumnSpec(kind=TypeKind.TEXT, charset=charset)
    if (kind := _PLAIN.get(name)) is not None:
        return ColumnSpec(kind=kind)
    numbers = [int(part) for part in arguments.split(",") if part.strip().isdigit()]
    return _with_numbers(name, numbers, is_unsigned="unsigned" in words)


def _with_numbers(name: str, numbers: Sequence[int], *, is_unsigned: bool) -> ColumnSpec | None:
    first = numbers[0] if numbers else 0
    if name in _INTEGER_BYTES:
        return ColumnSpec(kind=TypeKind.INTEGER, width=_INTEGER_BYTES[name], is_unsigned=is_unsigned)
    if name == "decimal" and len(numbers) == 2:  # noqa: PLR2004  (the catalogue always names both)
        return ColumnSpec(kind=TypeKind.DECIMAL, precision=first, scale=numbers[1])
    if name in _WITH_FRACTION:
        return ColumnSpec(kind=_WITH_FRACTION[name], scale=first)
    if name == "bit":
        return ColumnSpec(kind=TypeKind.BIT, width=first or 1)
    if name == "binary":
        return ColumnSpec(kind=TypeKind.BYTES, width=first or 1, is_fixed=True)
    return None


# ---- from the log ----

_LOGGED_INTEGERS: Final = {t.TINY: 1, t.SHORT: 2, t.INT24: 3, t.LONG: 4, t.LONGLONG: 8}
_LOGGED: Final = {
    t.FLOAT: TypeKind.FLOAT,
    t.DOUBLE: TypeKind.DOUBLE,
    t.YEAR: TypeKind.YEAR,
    t.DATE: TypeKind.DATE,
    t.NEWDATE: TypeKind.DATE,
    t.JSON: TypeKind.JSON,
    t.GEOMETRY: TypeKind.GEOMETRY,
    t.VECTOR: TypeKind.VECTOR,
}
_LOGGED_TIMES: Final = {
    t.TIME: TypeKind.TIME,
    t.DATETIME: TypeKind.DATETIME,
    t.TIMESTAMP: TypeKind.TIMESTAMP,
    t.TIME2: TypeKind.TIME,
    t.DATETIME2: TypeKind.DATETIME,
    t.TIMESTAMP2: TypeKind.TIMESTAMP,
}
_STRINGS: Final = frozenset({t.VARCHAR, t.VAR_STRING, t.STRING, t.BLOB, t.BLOB_COMPRESSED, t.VARCHAR_COMPRESSED})
# What the log calls BINARY of so many bytes, or (0) VARBINARY.
_ONLY_DECLARED: Final = {TypeKind.UUID: 16, TypeKind.INET6: 16, TypeKind.INET4: 4, TypeKind.VECTOR: 0}


def logged_spec(column: MapColumn, declared: ColumnSpec | None, flavor: Flavor) -> ColumnSpec:
    """The spec of a column from the log; from the schema history where the log does not tell: UUID, INET6 and INET4.

    Raises:
        UnsupportedTypeError: `unsupported_type`: no such type is known, or its form cannot be told. Holds no table: the caller knows it.
        SchemaConflictError: `schema_mismatch`: log and `declared` cannot be the same column.
    """
    spec = _from_log(column, flavor)
    may_have_fractions = flavor.old_times_may_have_fractions and (declared is None or declared.scale)
    if column.type_code in t.OLD_TIMES and may_have_fractions:
        raise UnsupportedTypeError(
            f"Column {_name(column)} has the form that times had before mysql56_temporal_format, whose length the log does not tell.",
            code="unsupported_type",
            action="SET GLOBAL mysql56_temporal_format=ON, run ALTER TABLE … FORCE, then run `replicator snapshot NAME TABLE`.",
        )
    if declared is None:
        return spec
    if spec.kind is TypeKind.BYTES and spec.width == _ONLY_DECLARED.get(declared.kind):
        return declared
    if (spec.kind, spec.arrow) != (declared.kind, declared.arrow):
        raise SchemaConflictError(
            f"Column {_name(column)} is {spec.kind} ({spec.arrow}) in the log and {declared.kind} ({declared.arrow}) in the catalogue.",
            code="schema_mismatch",
            action="Run `replicator snapshot NAME TABLE`.",
        )
    return spec


def _from_log(column: MapColumn, flavor: Flavor) -> ColumnSpec:
    code = column.type_code
    if column.metadata < 0 or code not in t.METADATA_SIZES:
        raise _unsupported(column, f"has type code {code}, or follows a column with such a code, which is unknown")
    if code in _LOGGED_INTEGERS:
        if column.is_unsigned is None:
            raise _unsupported(column, "has no sign in the log: it may be unsigned")
        return ColumnSpec(kind=TypeKind.INTEGER, width=_LOGGED_INTEGERS[code], is_unsigned=column.is_unsigned)
    if code == t.NEWDECIMAL:
        return ColumnSpec(kind=TypeKind.DECIMAL, precision=column.metadata >> 8, scale=column.metadata & 0xFF)
    if code == t.BIT:
        return ColumnSpec(kind=TypeKind.BIT, width=column.metadata)
    if code in _LOGGED_TIMES:
        return ColumnSpec(kind=_LOGGED_TIMES[code], scale=column.metadata)
    if code in {t.ENUM, t.SET}:
        return _labelled(column, flavor)
    if code in _STRINGS:
        return _string(column, flavor)
    return ColumnSpec(kind=_LOGGED[code])


def _labelled(column: MapColumn, flavor: Flavor) -> ColumnSpec:
    if column.labels is None:
        raise _unsupported(column, "has no labels in the log")
    charset = _charset(column, flavor)
    labels = tuple(label(raw, charset) for raw in column.labels)
    return ColumnSpec(
        kind=TypeKind.ENUM if column.type_code == t.ENUM else TypeKind.SET, charset=charset, labels=labels
    )


def _string(column: MapColumn, flavor: Flavor) -> ColumnSpec:
    charset = _charset(column, flavor)
    if charset != BINARY:
        return ColumnSpec(kind=TypeKind.TEXT, charset=charset)
    is_fixed = column.type_code == t.STRING
    return ColumnSpec(kind=TypeKind.BYTES, width=column.metadata if is_fixed else 0, is_fixed=is_fixed)


def _charset(column: MapColumn, flavor: Flavor) -> str:
    if column.collation is None:
        raise _unsupported(column, "has no character set in the log")
    charset = charset_of(column.collation, flavor)
    if charset is None:
        raise _unsupported(column, f"has collation {column.collation}, which is unknown")
    return charset


def _unsupported(column: MapColumn, what: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"Column {_name(column)} {what}.",
        code="unsupported_type",
        action="Set binlog_row_metadata=FULL, then run `replicator snapshot NAME TABLE`; or exclude the table.",
    )


def _name(column: MapColumn) -> str:
    return column.name or f"number {column.position + 1}"


def ambiguous_key(column: str, count: int, total: int, *, table: str | None = None) -> UnsupportedTypeError:
    """The error for values of a key column that become texts that other values have as well."""
    return UnsupportedTypeError(
        f"Column {column}: {count} of {total} values of the key have bytes that their character set does not define, or the same "
        "text as another value. Two keys would become one.",
        code="ambiguous_key",
        table=table,
        action="Fix the values, or ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4, then run `replicator snapshot NAME TABLE`; or "
        "exclude the table.",
    )
