"""The canonical form of values (`replicator.plugins.verification`), as T-SQL.

Nothing here decodes a value: the server writes all of it, as text in UTF-8, which is a `varchar` of a collation of UTF-8. So the bytes of
such a text, and their number, are those that the canonical form asks for. These collations are there since SQL Server 2019.

Only floats have no form here: no documented conversion of the server writes their shortest digits. They are sent as they are (`hashing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from replicator.plugins.kit.canonical import TEXT_BYTES_MAX
from replicator_source_sqlserver.names import quoted
from replicator_source_sqlserver.types import ColumnSpec

UTF8: Final = "Latin1_General_100_BIN2_UTF8"
"""The one binary collation of UTF-8; all text is compared and joined in it, whatever its column's collation."""
DIGEST_BYTES: Final = 16
"""The number of bytes of SHA-256 that the 32 hex digits of a digest stand for."""

_ARGUMENTS_MAX: Final = 250
"""Upper bound of the arguments of CONCAT, which takes 254."""
_EMPTY: Final = f"CAST('' AS varchar(max)) COLLATE {UTF8}"
"""The first argument of a CONCAT: its result is then a text of any length in UTF-8. Without it, 8,000 bytes are kept."""
_VARCHAR_MAX: Final = 8000
_NUMBER_LENGTH: Final = 20
_DECIMAL_LENGTH: Final = 41
_DAY: Final = "CONVERT(date, '19700101', 112)"
_MIDNIGHT: Final = "CONVERT(time(7), '00:00:00', 108)"
_EPOCH: Final = "CONVERT(datetime2(7), '19700101', 112)"


def digest(bytes_: str) -> str:
    """Return the bytes of the digest of a `varbinary`."""
    return f"SUBSTRING(HASHBYTES('SHA2_256', {bytes_}), 1, {DIGEST_BYTES})"


def text_bytes(text: str) -> str:
    """Return the bytes of a text in UTF-8."""
    return f"CAST({text} AS varbinary(max))"


def joined_text(texts: Sequence[str]) -> str:
    """Return a row text, or a key text, of its columns' `column_text`: each followed by a comma. NULL is nothing."""
    # CONCAT makes nothing of NULL.
    arguments = [part for text in texts for part in (text, "','")]
    blocks = [arguments[i : i + _ARGUMENTS_MAX] for i in range(0, len(arguments), _ARGUMENTS_MAX)]
    found = [f"CONCAT({', '.join([_EMPTY, *block])})" for block in blocks]
    return found[0] if len(found) == 1 else f"CONCAT({', '.join([_EMPTY, *found])})"


def is_float(spec: ColumnSpec) -> bool:
    """Return whether the server cannot write the canonical form."""
    return bool(pa.types.is_floating(spec.arrow))


def column_text(name: str, spec: ColumnSpec, *, is_key: bool) -> str:
    """Return the canonical form of a column that is no float; NULL for NULL.

    Args:
        name: The column's name.
        spec: The column's replication.
        is_key: True for the key text.
    """
    kind, value = spec.arrow, spec.selected.format(quoted(name))
    assert not is_float(spec), "the server writes no float"
    if pa.types.is_string(kind):
        return _string(f"CAST({value} COLLATE {UTF8} AS varchar(max))", quoted(name), is_key=is_key)
    if pa.types.is_binary(kind):
        return _binary(value, quoted(name), spec, is_key=is_key)
    if pa.types.is_decimal(kind):
        # By way of a decimal of four digits, because a money would be written with two.
        return f"CONVERT(varchar({_DECIMAL_LENGTH}), CAST({value} AS decimal({kind.precision},{kind.scale})))"
    if pa.types.is_date(kind):
        value = f"DATEDIFF(day, {_DAY}, {value})"
    elif pa.types.is_time(kind):
        value = f"DATEDIFF_BIG(microsecond, {_MIDNIGHT}, {value})"
    elif pa.types.is_timestamp(kind):
        # Counts how often the clock shows another microsecond: the seventh digit is cut, before 1970 too.
        value = f"DATEDIFF_BIG(microsecond, {_EPOCH}, {value})"
    return f"CONVERT(varchar({_NUMBER_LENGTH}), {value})"


def _string(text: str, column: str, *, is_key: bool) -> str:
    """Return the canonical form of text. Lengths are those of the text in UTF-8; LEN would not count spaces at the end."""
    size = f"DATALENGTH({text})"
    whole = f"CONCAT({_EMPTY}, {size}, ':', {text})"
    if is_key:
        return f"CASE WHEN {column} IS NULL THEN NULL ELSE {whole} END"
    long = f"CONCAT({_EMPTY}, {size}, '#', {hex_digits(digest(text_bytes(text)))})"
    return f"CASE WHEN {column} IS NULL THEN NULL WHEN {size} <= {TEXT_BYTES_MAX} THEN {whole} ELSE {long} END"


def _binary(value: str, column: str, spec: ColumnSpec, *, is_key: bool) -> str:
    size = f"DATALENGTH({value})"
    tail = f"'$', {hex_digits(value, 2 * spec.declared.length)}" if is_key else f"'#', {hex_digits(digest(value))}"
    return f"CASE WHEN {column} IS NULL THEN NULL ELSE CONCAT({_EMPTY}, {size}, {tail}) END"


def hex_digits(bytes_: str, length: int = 2 * DIGEST_BYTES) -> str:
    """Return bytes as lower-case hex digits, at most `length` of them."""
    return f"LOWER(CONVERT(varchar({length if length <= _VARCHAR_MAX else 'max'}), {bytes_}, 2))"
