"""CAST, CONVERT and assignments: a value of any type as a value of one of SQL Server's types, in PostgreSQL's SQL."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from replicator_testbed.sqlserver.engine.types import reference
from replicator_testbed.sqlserver.sqltypes import MAX, TEXTS, SqlType, TypeName

STYLE_DEFAULT: Final = 0
_FUNCTIONS: Final = {
    TypeName.BIT: "to_bit",
    TypeName.TIME: "to_time2",
    TypeName.DATETIME2: "to_timestamp2",
    TypeName.DATETIME: "to_datetime",
    TypeName.SMALLDATETIME: "to_smalldatetime",
    TypeName.DATETIMEOFFSET: "to_instant",
    TypeName.DATE: "to_date2",
    TypeName.HIERARCHYID: "to_hierarchyid",
    TypeName.GEOMETRY: "to_geometry",
    TypeName.GEOGRAPHY: "to_geography",
}
"""Overloaded functions of `sql/01_types.sql` and `sql/07_clr_types.sql`, which round, cut and parse as SQL Server does."""


def cast(value: exp.Expression, kind: SqlType, *, style: int = STYLE_DEFAULT) -> exp.Expression:
    """CAST or CONVERT: a text or binary that is too long is cut [DOC: CAST and CONVERT, truncating and rounding results]."""
    if kind.name in {TypeName.BINARY, TypeName.VARBINARY}:
        value = _call("to_bytes", value, exp.Literal.number(style))
        if kind.length != MAX:
            pads = exp.Literal.number(int(kind.name is TypeName.BINARY))
            value = _call("to_binary", value, exp.Literal.number(kind.length), pads)
    elif kind.name in TEXTS and not isinstance(value, (exp.Literal, exp.Parameter)):
        value = _call("text_of", value, exp.Literal.number(style))
    elif kind.name in _FUNCTIONS:
        value = _call(_FUNCTIONS[kind.name], value)
    return exp.Cast(this=value, to=data_type(kind))


def assigned(value: exp.Expression, kind: SqlType | None) -> exp.Expression:
    """A value that is stored in a column: what is too long stays so, and is refused."""
    if kind is None or isinstance(value, (exp.Null, exp.Var)):
        return value
    if kind.name is TypeName.BINARY:
        return _call("to_binary", value, exp.Literal.number(kind.length), exp.Literal.number(1))
    return _call(_FUNCTIONS[kind.name], value) if kind.name in _FUNCTIONS else value


def data_type(kind: SqlType) -> exp.DataType:
    """The type for the generator."""
    return exp.DataType(this=exp.DType.USERDEFINED, kind=reference(kind))


def bytes_literal(digits: str) -> exp.Expression:
    """A binary constant."""
    padded = digits if len(digits) % 2 == 0 else "0" + digits
    return exp.Cast(this=exp.Literal.string("\\x" + padded), to=exp.DataType(this=exp.DType.USERDEFINED, kind="bytea"))


def _call(name: str, *arguments: exp.Expression) -> exp.Expression:
    function = exp.Anonymous(this=name, expressions=list(arguments))
    return exp.Dot(this=exp.to_identifier("sqlserver"), expression=function)
