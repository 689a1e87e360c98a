"""The canonical form of values (`replicator.plugins.verification`) in GoogleSQL. Pure.

A value that the target cannot hold as the source has it gets a text that begins with `?`, which is equal to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from replicator.plugins.kit.canonical import DIGEST_DIGITS, TEXT_BYTES_MAX

_LOWEST_NORMAL: Final = "2.2250738585072014e-308"
_LOWEST_NORMAL_FLOAT32: Final = "1.1754943508222875e-38"
_HIGHEST_FLOAT32: Final = "3.4028235677973366e38"
# Digits after the point, in scientific notation. 15 digits are as many as every float64 keeps, 17 tell any two apart.
_FIFTEEN, _SIXTEEN, _SEVENTEEN = 14, 15, 16
# A number that is added to this is rounded to multiples of 2^-149, the lowest number of 32 bits.
_SHIFT: Final = repr(1.5 * 2.0**-97)
_NUMBERS: Final = {
    "BOOL": "CAST({x} AS INT64)",
    "DATE": "UNIX_DATE({x})",
    "TIME": "TIME_DIFF({x}, TIME '00:00:00', MICROSECOND)",
    "DATETIME": "DATETIME_DIFF({x}, DATETIME '1970-01-01 00:00:00', MICROSECOND)",
    "TIMESTAMP": "UNIX_MICROS({x})",
}
"""The integers as which values of a type are written."""
_FLOAT: Final = '^("(nan|-?inf)"|-?[0-9][0-9.]*(e[-+]?[0-9]+)?)$'
"""A float in the JSON of a list."""
_PARTS: Final = 4
_PART_DIGITS: Final = DIGEST_DIGITS // _PARTS


def joined(texts: Sequence[str]) -> str:
    """Return the row text or the key text of canonical forms."""
    parts = [part for text in texts for part in (f"COALESCE({text}, '')", "','")]
    return f"CONCAT({', '.join(parts)})"


def digest(text: str) -> str:
    """Return the digest of a text, or of bytes."""
    return f"SUBSTR(TO_HEX(SHA256({text})), 1, {DIGEST_DIGITS})"


def is_key_text_another(kind: pa.DataType) -> bool:
    """Return whether values of a type have another canonical form in a key text."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def is_comparable(kind: pa.DataType) -> bool:
    """Return whether values of a type have a canonical form here: lists of lists have none."""
    return not (pa.types.is_list(kind) and pa.types.is_list(kind.value_type))


def sums(hashes: str) -> str:
    """Return the statement for checksums: group, rows, and sums of the four parts of the hashes, as text.

    SUM of INT64 fails when it overflows: parts of 32 bits leave room for two billion rows of a group.

    Args:
        hashes: A query with the columns `g`, the group, and `h`, the hash.
    """
    parts = [f"CAST(CONCAT('0x', SUBSTR(h, {1 + n * _PART_DIGITS}, {_PART_DIGITS})) AS INT64)" for n in range(_PARTS)]
    found = ["COUNT(*)", *(f"SUM({part})" for part in parts)]
    return (
        f"SELECT g, {', '.join(f'CAST({x} AS STRING) AS s{n}' for n, x in enumerate(found))} FROM ({hashes}) GROUP BY g"
    )


def halves(parts: Sequence[int]) -> tuple[int, int]:
    """Return the sums of the hashes' halves, modulo 2^64, from those of the four parts."""
    first, second, third, fourth = parts
    return ((first << 32) + second) % (1 << 64), ((third << 32) + fourth) % (1 << 64)


def value(x: str, kind: pa.DataType, type_: str, *, is_key: bool) -> str:
    """Return the canonical form of one value; NULL for NULL.

    Args:
        x: The column.
        kind: Its type in the source.
        type_: Its type in BigQuery.
        is_key: True for a key text.
    """
    if pa.types.is_list(kind):
        return _list(x, kind.value_type)
    if type_ == "STRING" and pa.types.is_string(kind):
        return _string(x, is_key=is_key)
    if type_ == "BYTES":
        return _bytes(x, is_key=is_key)
    if type_ == "FLOAT64":
        return _float(x)
    if type_ in {"NUMERIC", "BIGNUMERIC"}:
        return _decimal(f"CAST({x} AS STRING)", kind.scale if pa.types.is_decimal(kind) else 0)
    if type_ == "STRING" and pa.types.is_decimal(kind):
        return _decimal_text(x, kind.scale)
    # The rest are whole numbers, and numbers in lists.
    return f"CAST({_NUMBERS.get(type_, '{x}').format(x=x)} AS STRING)"


def _string(x: str, *, is_key: bool) -> str:
    size = f"CAST(BYTE_LENGTH({x}) AS STRING)"
    whole = f"CONCAT({size}, ':', {x})"
    if is_key:
        return f"CASE WHEN {x} IS NOT NULL THEN {whole} END"
    return (
        f"CASE WHEN BYTE_LENGTH({x}) <= {TEXT_BYTES_MAX} THEN {whole}"
        f" WHEN {x} IS NOT NULL THEN CONCAT({size}, '#', {digest(x)}) END"
    )


def _bytes(x: str, *, is_key: bool) -> str:
    content = f"'$', TO_HEX({x})" if is_key else f"'#', {digest(x)}"
    return f"CASE WHEN {x} IS NOT NULL THEN CONCAT(CAST(BYTE_LENGTH({x}) AS STRING), {content}) END"


def _decimal(text: str, scale: int) -> str:
    """Return a decimal with zeros at its end, which BigQuery does not write. If there are more digits than the scale, they stay."""
    if scale <= 0:
        return f"REGEXP_REPLACE({text}, r'\\.0*$', '')"
    padded = f"CONCAT({text}, IF(STRPOS({text}, '.') > 0, '', '.'), '{'0' * scale}')"
    return f"REGEXP_REPLACE({padded}, r'^(-?\\d*\\.\\d{{{scale}}}\\d*?)0*$', r'\\1')"


def _decimal_text(x: str, scale: int) -> str:
    """Return a decimal that is stored as text. A text that is no decimal is equal to nothing, and an empty one not to NULL."""
    form = rf"^-?[0-9]+\.[0-9]{{{scale}}}$" if scale > 0 else "^-?[0-9]+$"
    return f"CASE WHEN REGEXP_CONTAINS({x}, r'{form}') THEN {x} WHEN {x} IS NOT NULL THEN CONCAT('?', {x}) END"


def _float(x: str) -> str:
    """Return the shortest digits that read back as the same number, which CAST does not give: it writes 15 or 17.

    The nearest of 16 digits need not read back although another one does: below a power of two, numbers are closer to each other than
    above it. Numbers below the lowest normal one may need fewer than 15 digits although 15 read back.
    """
    number = f"ABS({x})"

    def written(digits: int) -> str:
        return f"FORMAT('%.{digits}e', {number})"

    def reads_back(text: str) -> str:
        return f"SAFE_CAST({text} AS FLOAT64) = {number}"

    sixteen = written(_SIXTEEN)
    next_digits = f"CAST(CAST(CONCAT(SUBSTR({sixteen}, 1, 1), SUBSTR({sixteen}, 3, 15)) AS INT64) + 1 AS STRING)"
    above = f"CONCAT(SUBSTR({next_digits}, 1, 1), '.', SUBSTR({next_digits}, 2), SUBSTR({sixteen}, 18))"
    few = [f"WHEN {number} < {_LOWEST_NORMAL} AND {reads_back(written(n))} THEN {written(n)}" for n in range(_FIFTEEN)]
    more = [f"WHEN {reads_back(text)} THEN {text}" for text in (written(_FIFTEEN), sixteen, above)]
    plain = f"CASE {' '.join([*few, *more])} ELSE {written(_SEVENTEEN)} END"
    digits = f"REGEXP_REPLACE({plain}, r'^(\\d)\\.?(\\d*?)0*e', r'\\1\\2e')"
    short = f"REGEXP_REPLACE({digits}, r'e\\+?(-?)0*(\\d)', r'e\\1\\2')"
    return (
        f"CASE WHEN {x} IS NULL THEN NULL WHEN IS_NAN({x}) THEN 'nan' WHEN IS_INF({x}) THEN IF({x} > 0, 'inf', '-inf')"
        f" WHEN {x} = 0 THEN '0' ELSE CONCAT(IF({x} < 0, '-', ''), {short}) END"
    )


def _list(x: str, kind: pa.DataType) -> str:
    """Return the canonical form of a list, stored as JSON. Only strings need a reader of JSON; it would round some numbers."""
    if pa.types.is_string(kind):
        elements = f"JSON_QUERY_ARRAY(IF(STARTS_WITH({x}, '['), {x}, NULL))"
        is_list = f"{elements} IS NOT NULL"
    else:
        elements, is_list = f"SPLIT(SUBSTR({x}, 2, LENGTH({x}) - 2), ',')", f"STARTS_WITH({x}, '[')"
    read = f"SELECT NULLIF(e, 'null') AS r, o AS n FROM UNNEST({elements}) AS e WITH OFFSET AS o"
    for step in _steps(kind):
        read = f"SELECT {step} AS f, r, n FROM ({read})"
    read = f"SELECT {_element(kind)} AS v, r, n FROM ({read})"
    text = "CONCAT(COALESCE(v, CONCAT('?', r), ''), ',')"
    return (
        f"CASE WHEN {x} IS NULL THEN NULL WHEN {x} = '[]' THEN '[]' WHEN {is_list}"
        f" THEN CONCAT('[', (SELECT STRING_AGG({text}, '' ORDER BY n) FROM ({read})), ']') ELSE CONCAT('?', {x}) END"
    )


def _steps(kind: pa.DataType) -> Sequence[str]:
    """Return the steps from an element's JSON `r` to its value `f`; NULL for an element that is no value of its type."""
    # CAST reads more than the target writes: values with spaces around them, and other names of what is no number.
    plain = "IF(REGEXP_CONTAINS(r, r'^\"?\\s|\\s\"?$'), NULL, REPLACE(r, '\"', ''))"
    if pa.types.is_string(kind):
        return ["JSON_VALUE(r, '$')"]
    if pa.types.is_binary(kind):
        # It also reads texts with other bits after the last byte, which no encoder of these bytes writes.
        return [f"SAFE.FROM_BASE64({plain})", f"IF(TO_BASE64(f) = {plain}, f, NULL)"]
    if pa.types.is_boolean(kind):
        return ["SAFE_CAST(r AS BOOL)"]
    if pa.types.is_floating(kind):
        number = f"SAFE_CAST(IF(REGEXP_CONTAINS(r, r'{_FLOAT}'), REPLACE(r, '\"', ''), NULL) AS FLOAT64)"
        return [number, _float32("f")] if pa.types.is_float32(kind) else [number]
    if pa.types.is_timestamp(kind):
        return [f"SAFE_CAST(REPLACE({plain}, 'Z', '') AS DATETIME)"]
    if pa.types.is_date(kind):
        return [f"SAFE_CAST({plain} AS DATE)"]
    if pa.types.is_time(kind):
        return [f"SAFE_CAST({plain} AS TIME)"]
    return ["IF(REGEXP_CONTAINS(r, r'^-?[0-9]'), r, NULL)"]


def _element(kind: pa.DataType) -> str:
    """Return the canonical form of `f`."""
    names = (
        (pa.types.is_string, "STRING"),
        (pa.types.is_binary, "BYTES"),
        (pa.types.is_boolean, "BOOL"),
        (pa.types.is_floating, "FLOAT64"),
        (pa.types.is_timestamp, "DATETIME"),
        (pa.types.is_date, "DATE"),
        (pa.types.is_time, "TIME"),
    )
    return value("f", kind, next((name for is_one, name in names if is_one(kind)), "INT64"), is_key=False)


def _float32(x: str) -> str:
    """Return the nearest number that 32 bits hold, as a float64: JSON has the shortest digits that tell those apart.

    Adding and taking away a number that is so much larger rounds to 24 bits. A number that is too large for 32 bits stays what it is.
    """
    large = f"{x} * 536870913"
    return (
        f"CASE WHEN IS_NAN({x}) OR ABS({x}) > {_HIGHEST_FLOAT32} THEN {x}"
        f" WHEN ABS({x}) < {_LOWEST_NORMAL_FLOAT32} THEN ({x} + {_SHIFT}) - {_SHIFT}"
        f" ELSE {large} - ({large} - {x}) END"
    )
