"""Converts row keys that a user gives as JSON into row ids."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Context, Decimal, DecimalException
from typing import Any, Final

import pyarrow as pa

from replicator.model.errors import ConfigError, Problem
from replicator.model.schema import TableSchema
from replicator.plugins.kit.canonical import digest_of, key_texts

CODE: Final = "unknown_row_key"

_WHOLE: Final = re.compile(r"-?[0-9]{1,80}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,80}(\.[0-9]{1,80})?([eE][-+]?[0-9]{1,3})?")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]{1,6}))?")
_MOMENT: Final = re.compile(rf"{_DAY.pattern}[T ]{_TIME.pattern}(Z|[-+][0-9]{{2}}:[0-9]{{2}})?")
# Texts that `shown` writes for moments that Python has no date for.
_DAYS: Final = re.compile(r"(-?[0-9]{1,10}) days after 1970-01-01")
_MICROSECONDS: Final = re.compile(r"(-?[0-9]{1,19}) µs after 1970-01-01")
_HEX: Final = re.compile(r"([0-9a-fA-F]{2})*")
_EXACT: Final = Context(prec=200)
_EPOCH: Final = datetime.fromisoformat("1970-01-01")
_EPOCH_UTC: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MICROSECOND: Final = timedelta(microseconds=1)


def ids_of(texts: Sequence[str], schema: TableSchema) -> frozenset[str]:
    """Return the ids of the rows that have these keys.

    Args:
        texts: Keys as JSON: each an object of column and value, or the value alone if the key is one column.
        schema: The table's schema, with the source's names.

    Raises:
        ConfigError: `unknown_row_key`, with every problem of the keys. It never has the values.
    """
    table = str(schema.table)
    if not schema.key:
        raise ConfigError(
            "its rows have no key.", code=CODE, table=table, action="Leave out --keys, or compare a --sample of them."
        )
    ids, problems = set[str](), list[Problem]()
    for number, text in enumerate(texts, start=1):
        try:
            ids.add(_id_of(_parts(text, schema), schema))
        except _WrongError as wrong:
            where = f"--keys, number {number}" + (f", column {wrong.column}" if wrong.column else "")
            problems.append(Problem(code=CODE, location=where, message=wrong.message, action=wrong.action))
    if problems:
        example = json.dumps(dict.fromkeys(schema.key, "…"), ensure_ascii=False)
        raise ConfigError(
            "the keys of --keys cannot be keys of its rows.",
            code=CODE,
            table=table,
            action=f"Write each as --keys '{example}', with a value for every column.",
            problems=tuple(problems),
        )
    return frozenset(ids)


class _WrongError(Exception):
    """A key that cannot be used, with the reason. `column`: the key's column concerned, if it is one."""

    def __init__(self, message: str, action: str, column: str | None = None) -> None:
        super().__init__(message)
        self.message, self.action, self.column = message, action, column


def _parts(text: str, schema: TableSchema) -> Mapping[str, Any]:
    """Return the values of the key's columns, as JSON has them."""
    try:
        value = json.loads(
            text, parse_int=_Digits, parse_float=_Digits, parse_constant=_refuse_constant, object_pairs_hook=_unique
        )
    except (ValueError, RecursionError):
        raise _WrongError("is not JSON", "Write JSON in single quotes; texts are in double quotes inside.") from None
    columns = ", ".join(schema.key)
    if not isinstance(value, dict):
        if len(schema.key) > 1:
            raise _WrongError("is one value, but the key has several columns", f"Write an object with: {columns}.")
        return {schema.key[0]: value}
    if unknown := [name for name in value if name not in schema.key]:
        raise _WrongError(f"has {', '.join(unknown)}, which is not in the key", f"The key's columns are: {columns}.")
    if missing := [name for name in schema.key if name not in value]:
        raise _WrongError(f"lacks {', '.join(missing)}", f"The key's columns are: {columns}.")
    return value


class _Digits(str):
    """A number of JSON, as it was written."""

    __slots__ = ()


def _refuse_constant(_: str) -> None:
    raise ValueError


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _id_of(parts: Mapping[str, Any], schema: TableSchema) -> str:
    fields, arrays = list[pa.Field](), list[pa.Array]()
    for name in schema.key:
        kind = schema.column(name).type
        arrays.append(_array(parts[name], kind, name))
        fields.append(pa.field(name, kind))
    (text,) = key_texts(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
    return digest_of(text)


def _array(value: Any, kind: pa.DataType, column: str) -> pa.Array:
    """Convert the value to the column's type."""
    if value is None:
        raise _WrongError("is NULL, which no key has", "Write its value.", column)
    for applies, read, words in _READERS:
        if applies(kind):
            try:
                return read(value, kind)
            except (ValueError, OverflowError, DecimalException):
                raise _WrongError(f"is no value of the type {kind}", f"Write {words}.", column) from None
    raise _WrongError(f"has the type {kind}, of which no value can be named", "Compare the whole table.", column)


def _bool(value: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(value, bool):
        return pa.array([value], kind)
    return pa.array([_checked(value, _BOOL)[0] in ("1", "true")], kind)


_BOOL: Final = re.compile("0|1|true|false")


def _integer(value: Any, kind: pa.DataType) -> pa.Array:
    return pa.array([int(_checked(value, _WHOLE)[0])], kind)


def _decimal(value: Any, kind: pa.DataType) -> pa.Array:
    number = Decimal(_checked(value, _NUMBER)[0])
    scaled = number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    if scaled != number:
        raise ValueError
    return pa.array([scaled], kind)


def _float(value: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(value, str) and _NO_NUMBER.fullmatch(value):
        return pa.array([float(value)], kind)
    array = pa.array([float(_checked(value, _NUMBER)[0])], pa.float64()).cast(kind, safe=False)
    if math.isinf(array[0].as_py()):
        raise ValueError
    return array


_NO_NUMBER: Final = re.compile("nan|-?inf")


def _string(value: Any, kind: pa.DataType) -> pa.Array:
    return pa.array([_text(value).encode()], pa.binary()).cast(kind)


def _binary(value: Any, kind: pa.DataType) -> pa.Array:
    return pa.array([bytes.fromhex(_checked_text(value, _HEX)[0])], kind)


def _date(value: Any, kind: pa.DataType) -> pa.Array:
    text = _text(value)
    if shown := _DAYS.fullmatch(text):
        return pa.array([int(shown[1])], pa.int32()).cast(kind)
    return pa.array([date.fromisoformat(_checked_text(text, _DAY)[0])], kind)


def _time(value: Any, kind: pa.DataType) -> pa.Array:
    hours, minutes, seconds, fraction = _checked_text(value, _TIME).groups()
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return pa.array([whole * 1_000_000 + int((fraction or "0").ljust(6, "0"))], pa.int64()).cast(kind)


def _timestamp(value: Any, kind: pa.DataType) -> pa.Array:
    text = _text(value)
    if shown := _MICROSECONDS.fullmatch(text):
        return pa.array([int(shown[1])], pa.int64()).cast(kind)
    zone = _checked_text(text, _MOMENT).groups()[-1]
    if (zone is not None) != (kind.tz is not None):
        raise ValueError
    passed = datetime.fromisoformat(text) - (_EPOCH if kind.tz is None else _EPOCH_UTC)
    return pa.array([passed // _MICROSECOND], pa.int64()).cast(kind)


def _has_zone(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _text(value: Any) -> str:
    if isinstance(value, str) and not isinstance(value, _Digits):
        return value
    raise ValueError


def _checked_text(value: Any, pattern: re.Pattern[str]) -> re.Match[str]:
    return _checked(_text(value), pattern)


def _checked(value: Any, pattern: re.Pattern[str]) -> re.Match[str]:
    """Match a number or a text against its form."""
    found = pattern.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError
    return found


_READERS: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], pa.Array], str]]] = (
    (pa.types.is_boolean, _bool, "true or false"),
    (pa.types.is_integer, _integer, "a whole number that the type can hold"),
    (pa.types.is_decimal, _decimal, "a number with no more digits than the type has, on both sides of the point"),
    (pa.types.is_floating, _float, 'a number that the type can hold, or "nan", "inf", "-inf"'),
    (pa.types.is_string, _string, "a text in double quotes, exactly as the table holds it"),
    (pa.types.is_binary, _binary, "its bytes as hex digits in double quotes"),
    (pa.types.is_date, _date, 'a day in double quotes, such as "2026-01-31"'),
    (pa.types.is_time, _time, 'a time in double quotes, such as "12:30:00" or "12:30:00.5"'),
    (_has_zone, _timestamp, 'a time with its offset from UTC in double quotes, such as "2026-01-31 12:30:00+01:00"'),
    (pa.types.is_timestamp, _timestamp, 'a time without an offset in double quotes, such as "2026-01-31 12:30:00.5"'),
)
"""Per kind of type: a predicate, the reader of its values, and the form that a user should write."""
