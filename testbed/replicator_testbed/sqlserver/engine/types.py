"""SQL Server's types on PostgreSQL: each is a domain that has its name, so that the names stand in PostgreSQL's own catalogue."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from replicator_testbed.sqlserver import sqltypes
from replicator_testbed.sqlserver.outcomes import SqlError
from replicator_testbed.sqlserver.sqltypes import MAX, SYSTEM_TYPE_IDS, TEXTS, USER_TYPE_IDS, SqlType, TypeName
from replicator_testbed.sqlserver.tds.temporal import DAYS_MAX, Moment

NATIVE: Final[Mapping[TypeName, str]] = {
    TypeName.BIGINT: "int8",
    TypeName.INT: "int4",
    TypeName.SMALLINT: "int2",
    TypeName.FLOAT: "float8",
    TypeName.REAL: "float4",
    TypeName.UNIQUEIDENTIFIER: "uuid",
    TypeName.DATE: "date",
}
"""Types that PostgreSQL has as SQL Server has them; the others are domains."""
_BASES: Final[Mapping[TypeName, str]] = {
    TypeName.TINYINT: "int2 CHECK (VALUE BETWEEN 0 AND 255)",
    TypeName.BIT: "int2",
    TypeName.MONEY: "numeric(19,4) CHECK (VALUE BETWEEN -922337203685477.5808 AND 922337203685477.5807)",
    TypeName.SMALLMONEY: "numeric(10,4) CHECK (VALUE BETWEEN -214748.3648 AND 214748.3647)",
    TypeName.TEXT: "text",
    TypeName.NTEXT: "text",
    TypeName.SYSNAME: "varchar(128)",
    TypeName.IMAGE: "bytea",
    TypeName.TIMESTAMP: "bytea",
    TypeName.DATETIME: "timestamp(3)",
    TypeName.SMALLDATETIME: "timestamp(0)",
    TypeName.XML: "text",
    TypeName.JSON: "text CHECK (VALUE IS NULL OR VALUE::pg_catalog.json IS NOT NULL)",
    TypeName.SQL_VARIANT: "text",
    TypeName.HIERARCHYID: "int8[]",
    TypeName.GEOMETRY: "sqlserver.shape",
    TypeName.GEOGRAPHY: "sqlserver.shape",
}
NUL: Final = "\ufffe"
"""What stands for a character of code 0, which PostgreSQL has not: no text has this one, and it sorts in front of all others, too."""
_MICROSECONDS: Final = 6
"""Digits behind the second that PostgreSQL has."""
_NVARCHAR_MAX: Final = sqltypes.of(TypeName.NVARCHAR, MAX)
_NVARCHAR_4000: Final = sqltypes.of(TypeName.NVARCHAR, 4000)
_EXPRESSIONS: Final[Mapping[str, SqlType]] = {
    "int8": sqltypes.BIGINT,
    "int4": sqltypes.INT,
    "int2": sqltypes.of(TypeName.SMALLINT),
    "bool": sqltypes.of(TypeName.BIT),
    "float8": sqltypes.of(TypeName.FLOAT),
    "float4": sqltypes.of(TypeName.REAL),
    "uuid": sqltypes.of(TypeName.UNIQUEIDENTIFIER),
    "date": sqltypes.of(TypeName.DATE),
    "timestamp": sqltypes.of(TypeName.DATETIME2, scale=7),
    "timestamptz": sqltypes.of(TypeName.DATETIME2, scale=7),
    "time": sqltypes.of(TypeName.TIME, scale=7),
    "bytea": sqltypes.of(TypeName.VARBINARY, MAX),
    "oid": sqltypes.INT,
    "instant": sqltypes.of(TypeName.DATETIMEOFFSET, scale=7),
}
"""What an expression without a type of SQL Server is taken for."""
_INSTANT: Final = re.compile(r'\("?([^",]*)"?,(-?\d*)\)')


def domain_name(kind: SqlType) -> str:
    """The name of the type's domain, such as `nvarchar(50)`."""
    return str(kind)


def reference(kind: SqlType) -> str:
    """The type in PostgreSQL's SQL."""
    native = NATIVE.get(kind.name)
    return f"pg_catalog.{native}" if native else f'sqlserver."{domain_name(kind)}"'


def column_type(kind: SqlType) -> str:
    """A column's type with its collation, in PostgreSQL's SQL."""
    return reference(kind) + (f' COLLATE sqlserver."{kind.collation}"' if kind.name in TEXTS else "")


def create_domain(kind: SqlType) -> str | None:
    """The statement that makes the type, or None where PostgreSQL has it.

    A text has no collation of its own: a cast must not win over the column that it is compared with. The catalogue's names have.
    """
    if kind.name in NATIVE:
        return None
    collation = f' COLLATE sqlserver."{sqltypes.DEFAULT_COLLATION}"' if kind.name is TypeName.SYSNAME else ""
    base, check = _base(kind).split(" ", 1) if " CHECK" in _base(kind) else (_base(kind), "")
    return f'CREATE DOMAIN sqlserver."{domain_name(kind)}" AS {base}{collation} {check}'


def catalogue_row(kind: SqlType) -> tuple[Any, ...]:
    """The type's row of `sqlserver.types`, without PostgreSQL's oid."""
    precision, scale = kind.numeric_precision
    number = SYSTEM_TYPE_IDS[kind.name]
    sizes = kind.max_length, precision, scale
    return str(kind.name), number, *sizes, kind.name in TEXTS, USER_TYPE_IDS.get(kind.name, number)


def _base(kind: SqlType) -> str:
    name, length = kind.name, kind.length
    if name in {TypeName.CHAR, TypeName.NCHAR}:
        return f"char({length})"
    if name in {TypeName.VARCHAR, TypeName.NVARCHAR}:
        return "text" if length == MAX else f"varchar({length})"
    if name in {TypeName.BINARY, TypeName.VARBINARY}:
        return "bytea" if length == MAX else f"bytea CHECK (octet_length(VALUE) <= {length})"
    if name in {TypeName.DECIMAL, TypeName.NUMERIC}:
        return f"numeric({kind.precision},{kind.scale})"
    if name is TypeName.TIME:
        return f"time({min(kind.scale, _MICROSECONDS)})"
    if name is TypeName.DATETIME2:
        return f"timestamp({min(kind.scale, _MICROSECONDS)})"
    if name is TypeName.DATETIMEOFFSET:
        return "sqlserver.instant"
    return _BASES[name]


def from_domain(name: str, collation: str | None = None) -> SqlType:
    """The type that a domain is; `collation` of a text."""
    kind = sqltypes.parse(name)
    return kind.collated(collation) if collation else kind


def of_expression(pg_name: str, values: list[Any]) -> SqlType:
    """A type for an expression that has none of SQL Server's, by PostgreSQL's type and by the values."""
    if pg_name == "numeric":
        exponents = [v.as_tuple().exponent for v in values if isinstance(v, Decimal)]
        scale = max((-exponent for exponent in exponents if isinstance(exponent, int)), default=0)
        return sqltypes.of(TypeName.DECIMAL, precision=38, scale=max(0, scale))
    if pg_name in _EXPRESSIONS:
        return _EXPRESSIONS[pg_name]
    longest = max((len(v) for v in values if isinstance(v, str)), default=0)
    return _NVARCHAR_4000 if longest <= _NVARCHAR_4000.length // 2 else _NVARCHAR_MAX


def to_wire(kind: SqlType) -> Callable[[Any], Any] | None:
    """What turns psycopg's value into the wire's; None where they are the same."""
    name = kind.name
    if name is TypeName.DATETIMEOFFSET:
        return _instant
    if name in {TypeName.DATE, TypeName.TIME, TypeName.DATETIME, TypeName.SMALLDATETIME}:
        return Moment.of
    if name is TypeName.DATETIME2:
        return lambda value: Moment.of(value.replace(tzinfo=None))
    if name in {TypeName.BIT, TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT}:
        return int
    if name in {TypeName.FLOAT, TypeName.REAL}:
        return float
    return _text if name in TEXTS else None


def _text(value: Any) -> str:
    return str(value).replace(NUL, "\0")


def parameter(value: Any, kind: SqlType | None) -> Any:
    """A driver's value as psycopg takes it."""
    if isinstance(value, Moment):
        if value.days > DAYS_MAX:
            raise SqlError(
                8023, "The incoming TDS stream is incorrect: a parameter is not a valid instance of its date type."
            )
        name = kind.name if kind is not None else TypeName.DATETIME2
        if name is TypeName.DATE:
            return value.date
        if name is TypeName.TIME:
            return value.time
        if name is TypeName.DATETIMEOFFSET:
            return f"({value.text(scale=_MICROSECONDS)},{value.offset})"
        return value.datetime
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and kind is not None and kind.name in {TypeName.BINARY, TypeName.VARBINARY}:
        return value.encode("utf-16-le")
    return value.replace("\0", NUL) if isinstance(value, str) else value


def _instant(value: Any) -> Moment:
    if isinstance(value, str):
        found = _INSTANT.fullmatch(value)
        assert found is not None, "PostgreSQL writes the composite as (timestamp,minutes)"
        value = (dt.datetime.fromisoformat(found[1]), int(found[2]))
    utc, minutes = value
    moment = Moment.of(utc)
    return Moment(moment.days, moment.ticks, minutes)
