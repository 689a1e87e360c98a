"""The canonical form of values (`replicator.plugins.verification`), as SQL of both servers.

Nothing here decodes a value: the server writes all of it. A value that a snapshot would refuse raises an error in the server (`REFUSED`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from replicator.plugins.kit.canonical import DIGEST_DIGITS, TEXT_BYTES_MAX
from replicator_source_mysql.binlog import ColumnSpec, TypeKind
from replicator_source_mysql.catalogue.tables import CatalogColumn
from replicator_source_mysql.connecting.connection import quoted

OUT_OF_RANGE: Final = 1690
"""The number of the error that `_refused` raises."""

_UTF8: Final = frozenset({"utf8", "utf8mb3", "utf8mb4"})
_LABELLED: Final = frozenset({TypeKind.ENUM, TypeKind.SET})
_AS_TEXT: Final = frozenset({TypeKind.UUID, TypeKind.INET4, TypeKind.INET6})
_CHARACTERS: Final = re.compile(r"(?:var)?char\((\d+)\)", re.IGNORECASE)
_UTF8_BYTES_MAX: Final = 4
_MICROSECONDS: Final = 6

# MySQL and MariaDB write doubles of this size without an exponent. A double compares with a power of ten as its shortest digits do.
_PLAIN_FROM: Final = -3
_PLAIN_BELOW: Final = 14


def digest(text: str) -> str:
    """The digest of a string or of bytes."""
    return f"LEFT(SHA2({text}, 256), {DIGEST_DIGITS})"


def joined_text(texts: Sequence[str]) -> str:
    """A row text, or a key text, of its columns' `column_text`. NULL if it is longer than max_allowed_packet."""
    values = [f"COALESCE({text}, '')" for text in texts]
    return f"CONCAT_WS(',', {', '.join(values)}, '')"


def never_null(value: str) -> str:
    """An expression that raises an error where it would be NULL: a text in it was too long."""
    return f"COALESCE({value}, {_refused('RAND()')})"


def column_text(column: CatalogColumn, *, is_key: bool, fails: bool, proves_text: bool) -> str:
    """The canonical form of a column; NULL for NULL.

    Args:
        column: A column of a known type.
        is_key: The form for the key text.
        fails: A value that cannot be represented raises an error; else it is NULL.
        proves_text: Text that is invalid in its character set counts among it. To see it costs time; otherwise its bytes stay as they are.
    """
    spec, name = column.spec, quoted(column.name)
    assert spec is not None
    match spec.kind:
        case TypeKind.INTEGER | TypeKind.BIT | TypeKind.YEAR:
            is_plain = spec.kind is TypeKind.INTEGER and "zerofill" not in column.column_type.lower()
            return name if is_plain else f"{name} + 0"
        case TypeKind.DECIMAL:
            # Adding zero removes the zeros of ZEROFILL.
            return name if "zerofill" not in column.column_type.lower() else f"{name} + 0"
        case TypeKind.FLOAT | TypeKind.DOUBLE:
            return _float(name)
        case TypeKind.DATE | TypeKind.DATETIME | TypeKind.TIMESTAMP:
            return _temporal(name, spec, fails=fails)
        case TypeKind.BYTES | TypeKind.GEOMETRY | TypeKind.VECTOR:
            tail = f"'$', LOWER(HEX({name}))" if is_key else f"'#', {digest(name)}"
            return f"CONCAT(LENGTH({name}), {tail})"
        case TypeKind.JSON:
            # No JSON is empty: its text was longer than max_allowed_packet.
            return f"CASE WHEN LENGTH({name}) = 0 THEN {_refused(_SOMETHING)} ELSE {_string(name, is_short=False)} END"
    text = _string(_utf8(name, spec), is_short=is_key or _is_short(column))
    if not proves_text or (condition := _is_text(name, spec)) is None:
        return text
    otherwise = _refused(_SOMETHING) if fails else "NULL"
    return f"CASE WHEN {name} IS NULL THEN NULL WHEN {condition} THEN {text} ELSE {otherwise} END"


def is_refused(column: CatalogColumn) -> str | None:
    """A condition that holds for a column's values that cannot be represented; None if all can."""
    spec, name = column.spec, quoted(column.name)
    assert spec is not None
    match spec.kind:
        case TypeKind.TIMESTAMP:
            return f"UNIX_TIMESTAMP({name}) = 0"
        case TypeKind.DATE | TypeKind.DATETIME:
            return f"NOT {_is_date(name)}"
        case TypeKind.TEXT | TypeKind.ENUM | TypeKind.SET if (condition := _is_text(name, spec)) is not None:
            return f"NOT {condition}"
    return None


# What is evaluated again for each row, and is never empty.
_SOMETHING: Final = "RAND()"


def _refused(something: str) -> str:
    """An expression that raises an error once it is evaluated."""
    return f"CONCAT(18446744073709551615 + LENGTH({something}))"


# ---- strings ----


def _utf8(name: str, spec: ColumnSpec) -> str:
    if spec.kind in {TypeKind.TEXT, *_LABELLED}:
        return name if spec.charset in _UTF8 else f"CONVERT({name} USING utf8mb4)"
    return f"CAST({name} AS CHAR)" if spec.kind in _AS_TEXT else name


def _string(text: str, *, is_short: bool) -> str:
    whole = f"CONCAT(LENGTH({text}), ':', {text})"
    if is_short:
        return whole
    return f"IF(LENGTH({text}) <= {TEXT_BYTES_MAX}, {whole}, CONCAT(LENGTH({text}), '#', {digest(text)}))"


def _is_short(column: CatalogColumn) -> bool:
    """Return whether no value is so long that its digest stands for it."""
    spec = column.spec
    assert spec is not None
    if spec.kind in _AS_TEXT or spec.kind is TypeKind.TIME:
        return True
    found = _CHARACTERS.match(column.column_type)
    return found is not None and int(found[1]) * _UTF8_BYTES_MAX <= TEXT_BYTES_MAX


def _is_text(name: str, spec: ColumnSpec) -> str | None:
    """A condition that text is valid; None if all of it is, for characters that Unicode lacks are sent as `?`.

    UTF-16 takes neither surrogates, which UCS-2 may have, nor codes of no character.
    """
    if spec.charset not in _UTF8 | {"ucs2"}:
        return None
    own = "ucs2" if spec.charset == "ucs2" else "utf8mb4"
    back = f"CONVERT(CONVERT({name} USING utf16) USING {own})"
    return f"(CAST({back} AS BINARY) = CAST({name} AS BINARY))"


# ---- floats ----


def _float(name: str) -> str:
    """The canonical form out of the server's text, which has the shortest digits: `1500`, `0.0015`, `1.5e-10`.

    MySQL cuts that text to 22 characters, but not in JSON, which takes longer to make.
    """
    size = f"ABS({name} * 1e0)"
    sign = f"IF({name} < 0, '-', '')"
    powers = ", ".join(f"1e{power}" for power in range(_PLAIN_FROM, _PLAIN_BELOW + 1))
    plain = f"CONCAT({sign}, {_digits(size)}, 'e', INTERVAL({size}, {powers}) + {_PLAIN_FROM - 1})"
    text = f"REPLACE(REPLACE(JSON_ARRAY({size}), '[', ''), ']', '')"
    mantissa = f"SUBSTRING_INDEX({text}, 'e', 1)"
    fraction = f"SUBSTRING_INDEX({text}, '.', -1)"
    exponent = (
        f"CASE WHEN LOCATE('e', {text}) > 0 THEN CAST(SUBSTRING_INDEX({text}, 'e', -1) AS SIGNED)"
        f" WHEN {size} >= 1 THEN LENGTH(SUBSTRING_INDEX({text}, '.', 1)) - 1"
        f" ELSE CAST(LENGTH(TRIM(LEADING '0' FROM {fraction})) AS SIGNED) - LENGTH({fraction}) - 1 END"
    )
    return (
        f"CASE WHEN {name} IS NULL THEN NULL WHEN {name} = 0 THEN '0'"
        f" WHEN {size} >= 1e{_PLAIN_FROM} AND {size} < 1e{_PLAIN_BELOW} THEN {plain}"
        f" ELSE CONCAT({sign}, {_digits(mantissa)}, 'e', {exponent}) END"
    )


def _digits(text: str) -> str:
    return f"TRIM(TRAILING '0' FROM TRIM(LEADING '0' FROM REPLACE({text}, '.', '')))"


# ---- dates and times ----


def _temporal(name: str, spec: ColumnSpec, *, fails: bool) -> str:
    """The canonical form by the server's own arithmetic where it is right; by the calendar's rules in the year 0 and at ends of months."""
    otherwise = _refused(_SOMETHING) if fails else "NULL"
    if spec.kind is TypeKind.TIMESTAMP:
        zeros = "0" * (_MICROSECONDS - spec.scale)
        seconds = f"UNIX_TIMESTAMP({name})"
        return (
            f"CASE WHEN {name} IS NULL THEN NULL WHEN {seconds} > 0 THEN CONCAT(REPLACE({seconds}, '.', ''), '{zeros}')"
            f" ELSE {otherwise} END"
        )
    simple = f"DAYOFMONTH({name}) BETWEEN 1 AND 28 AND MONTH({name}) > 0 AND YEAR({name}) > 0"
    if spec.kind is TypeKind.DATE:
        fast, slow = f"TO_DAYS({name}) - 719528", _days(name)
    else:
        fast = f"TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', {name})"
        seconds = f"{_days(name)} * 86400 + HOUR({name}) * 3600 + MINUTE({name}) * 60 + SECOND({name})"
        slow = f"({seconds}) * 1000000 + MICROSECOND({name})"
    return f"CASE WHEN {name} IS NULL THEN NULL WHEN {simple} THEN {fast} WHEN {_is_date(name)} THEN {slow} ELSE {otherwise} END"


def _is_date(name: str) -> str:
    year, month, day = f"YEAR({name})", f"MONTH({name})", f"DAYOFMONTH({name})"
    february = f"28 + ({year} % 4 = 0 AND ({year} % 100 <> 0 OR {year} % 400 = 0))"
    last = f"CASE {month} WHEN 0 THEN 0 WHEN 2 THEN {february} WHEN 4 THEN 30 WHEN 6 THEN 30 WHEN 9 THEN 30 WHEN 11 THEN 30 ELSE 31 END"
    return f"({day} BETWEEN 1 AND {last})"


def _days(name: str) -> str:
    """Days since 1970 of any date of the calendar, counted from a March 400 years earlier."""
    year = f"(YEAR({name}) + 400 - (MONTH({name}) <= 2))"
    month = f"(MONTH({name}) + IF(MONTH({name}) > 2, -3, 9))"
    in_year = f"(153 * {month} + 2) DIV 5 + DAYOFMONTH({name}) - 1"
    # MySQL's YEAR is unsigned.
    return f"(CAST(365 * {year} + {year} DIV 4 - {year} DIV 100 + {year} DIV 400 + {in_year} AS SIGNED) - 865565)"
