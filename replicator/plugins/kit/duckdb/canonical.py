"""The canonical form of values (`replicator.plugins.verification`) in DuckDB's SQL. Pure.

Expressions expect the types of `stored_type`: a target that stores a type in another way converts it in its query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from replicator.plugins.kit.canonical import DIGEST_DIGITS, TEXT_BYTES_MAX
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.kit.keyranges import is_ordered
from replicator.plugins.verification import Bound

_NAMES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
}
_DIGITS_MAX: Final = 38
_TIME: Final = r"\d\d:\d\d:\d\d\.\d{6}"
_LOW: Final = (1 << 64) - 1
_LAST_MOMENT: Final = (1 << 63) - 1
_COMMA: Final = "','"
_INFINITY: Final = (1 << 63) - 1
"""The microseconds that DuckDB reads as infinity."""


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which a column of a canonical type is held: times, and decimals of more than 38 digits, as text.

    Raises:
        EngineNeededError: The type is outside the canonical set.
    """
    if pa.types.is_list(type_):
        return pa.list_(stored_type(type_.value_type))
    if pa.types.is_time64(type_):
        return pa.string()
    if pa.types.is_decimal(type_):
        return pa.decimal128(type_.precision, type_.scale) if type_.precision <= _DIGITS_MAX else pa.string()
    if type_ not in _NAMES:
        raise EngineNeededError(f"a column has the type {type_}")
    return type_


def quoted(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a string."""
    return "'" + text.replace("'", "''") + "'"


def type_name(stored: pa.DataType) -> str:
    """Return DuckDB's type for a type of a data file."""
    if pa.types.is_list(stored):
        return f"{type_name(stored.value_type)}[]"
    return f"DECIMAL({stored.precision}, {stored.scale})" if pa.types.is_decimal(stored) else _NAMES[stored]


def joined(columns: Sequence[tuple[str, pa.DataType]], *, is_key: bool) -> str:
    """Return the row text or the key text of columns, given as expressions with the types of the source's columns."""
    return f"concat({', '.join(f'{part}' for x, kind in columns for part in (*_parts(x, kind, is_key), _COMMA))})"


def value(x: str, kind: pa.DataType, *, is_key: bool) -> str:
    """Return the canonical form of one value."""
    parts = _parts(x, kind, is_key)
    return parts[0] if len(parts) == 1 else " || ".join(parts)


def digest(text: str) -> str:
    """Return the digest of a text, or of bytes."""
    return f"left(sha256({text}), {DIGEST_DIGITS})"


def sums(texts: str) -> str:
    """Return the statement for checksums: group, rows, and the sums of both halves of the hashes.

    The fastest of the tested forms: bits become a number whose first byte is the highest, and sums of 64 bits have 128.

    Args:
        texts: A query with the columns `g`, the group, and `t`, the row text.
    """
    numbers = f"SELECT g, unhex({digest('t')})::BIT::UHUGEINT AS n FROM ({texts})"
    halves = f"sum((n >> 64)::UBIGINT), sum((n & {_LOW}::UHUGEINT)::UBIGINT)"
    return f"SELECT g, count(*), {halves} FROM ({numbers}) GROUP BY g"


def is_ordered_alike(kind: pa.DataType) -> bool:
    """Return whether DuckDB orders the stored values of a type as `TableState.range_key` requires. Long decimals are stored as text."""
    return pa.types.is_string(kind) or (is_ordered(kind) and not pa.types.is_string(stored_type(kind)))


def is_within(columns: Sequence[tuple[str, pa.DataType]], after: Bound | None, upto: Bound | None) -> str:
    """Return the condition that a row is in a `KeyRange`, from expressions and types of its columns.

    An implied condition is in front, because DuckDB skips parts of files that have no such values in the first column.
    """
    conditions = []
    if after is not None:
        conditions += [f"{columns[0][0]} >= {constant(after[0], columns[0][1])}", _is_behind(columns, after)]
        if upto is not None:
            conditions.append(f"{columns[0][0]} <= {constant(upto[0], columns[0][1])}")
    if upto is not None:
        conditions.append(f"{_is_behind(columns, upto)} IS NOT TRUE")
    return " AND ".join(conditions) or "true"


def _is_behind(columns: Sequence[tuple[str, pa.DataType]], bound: Bound) -> str:
    condition = ""
    for (x, kind), text in reversed(list(zip(columns, bound, strict=True))):
        value = constant(text, kind)
        condition = f"({x} > {value} OR ({x} = {value} AND {condition}))" if condition else f"({x} > {value})"
    return condition


def constant(text: str, kind: pa.DataType) -> str:
    """Return the value that has this canonical form in a key text, of a type for which `is_ordered_alike` holds."""
    if pa.types.is_string(kind):
        return literal(text.partition(":")[2])
    if pa.types.is_binary(kind):
        return f"unhex({literal(text.partition('$')[2])})"
    if pa.types.is_boolean(kind):
        return "true" if text == "1" else "false"
    if pa.types.is_date(kind):
        return f"(DATE '1970-01-01' + {int(text)})"
    if pa.types.is_timestamp(kind):
        if int(text) == _INFINITY:
            return f"'infinity'::{type_name(kind)}"
        return f"make_timestamptz({int(text)})" if kind.tz else f"make_timestamp({int(text)})"
    return f"{literal(text)}::{type_name(stored_type(kind))}"


def _parts(x: str, kind: pa.DataType, is_key: bool) -> Sequence[str]:
    """Return expressions that, one after another, are the canonical form of `x`; all of them NULL, if `x` is."""
    if pa.types.is_string(kind):
        if is_key:
            return [f"strlen({x})", f"':' || {x}"]
        whole = f"strlen({x}) <= {TEXT_BYTES_MAX}"
        return [f"strlen({x})", f"CASE WHEN {whole} THEN ':' || {x} ELSE '#' || {digest(x)} END"]
    if pa.types.is_binary(kind):
        return [f"octet_length({x})", f"'$' || lower(hex({x}))" if is_key else f"'#' || {digest(x)}"]
    return [_text(x, kind)]


def _text(x: str, kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        element = f"{x}_e".replace('"', "").replace(".", "_")
        inner = f"list_transform({x}, lambda {element}: {joined([(element, kind.value_type)], is_key=False)})"
        return f"CASE WHEN {x} IS NOT NULL THEN concat('[', array_to_string({inner}, ''), ']') END"
    if pa.types.is_boolean(kind):
        return f"{x}::TINYINT::VARCHAR"
    if pa.types.is_decimal(kind):
        return _decimal(x, kind)
    if pa.types.is_floating(kind):
        return _floating(f"{x}::DOUBLE")
    if pa.types.is_date(kind):
        return f"({x} - DATE '1970-01-01')::VARCHAR"
    if pa.types.is_time(kind):
        return _time(x)
    if pa.types.is_timestamp(kind):
        return _moment(x)
    # Whole numbers.
    return f"{x}::VARCHAR"


def _decimal(x: str, kind: pa.DataType) -> str:
    """Decimals that are stored as text: a text of another form is equal to nothing; an empty one is not equal to NULL."""
    if stored_type(kind) == pa.string():
        form = rf"-?\d+\.\d{{{kind.scale}}}" if kind.scale > 0 else r"-?\d+"
        return f"CASE WHEN regexp_full_match({x}, {literal(form)}) THEN {x} ELSE '?' || {x} END"
    return _fraction(x) if kind.precision == kind.scale else f"{x}::VARCHAR"


def _fraction(x: str) -> str:
    """Add the zero: DuckDB writes no digit before the point of such a decimal."""
    return f"CASE WHEN {x} < 0 THEN '-0' || substr({x}::VARCHAR, 2) ELSE '0' || {x}::VARCHAR END"


def _floating(x: str) -> str:
    """DuckDB writes the shortest digits that read back as the same number: `0.001`, `1500.0`, `1.5e+16`.

    For some powers of two it writes others (2^81) or no number (2^807), and needs to be given the number of digits.
    """
    number, short = f"abs({x})", f"abs({x})::VARCHAR"
    sixteen, seventeen = (f"format('{{:.{digits}e}}', {number})" for digits in (15, 16))
    plain = f"""CASE
        WHEN TRY_CAST({short} AS DOUBLE) = {number} THEN {short}
        WHEN {sixteen}::DOUBLE = {number} THEN {sixteen}
        ELSE {seventeen} END"""
    digits = "rtrim(ltrim(replace(split_part(plain, 'e', 1), '.', ''), '0'), '0')"
    # By a list of one element, the text is computed once.
    return f"""list_transform([{plain}], lambda plain: CASE
        WHEN isfinite({x}) AND {x} <> 0 THEN
            CASE WHEN {x} < 0 THEN '-' ELSE '' END || {digits} || 'e' || CASE
                WHEN contains(plain, 'e') THEN split_part(plain, 'e', 2)::INTEGER
                WHEN abs({x}) >= 1 THEN strpos(plain, '.') - 2
                ELSE strlen(ltrim(substr(plain, 3), '0')) - strlen(plain) + 1
            END
        WHEN {x} = 0 THEN '0'
        WHEN isnan({x}) THEN 'nan'
        ELSE {x}::VARCHAR END)[1]"""


def _moment(x: str) -> str:
    """DuckDB reads the last and the first moment that 64 bits can hold as infinite, of which it knows no microseconds."""
    ends = f"CASE WHEN {x} = '-infinity' THEN '-{_LAST_MOMENT}' WHEN {x} = 'infinity' THEN '{_LAST_MOMENT}' END"
    return f"coalesce(epoch_us({x})::VARCHAR, {ends})"


def _time(x: str) -> str:
    """Times are stored as HH:MM:SS.ffffff. A text of another form is equal to nothing."""
    hours, minutes, seconds, rest = (f"TRY_CAST(substr({x}, {at}) AS BIGINT)" for at in ("1, 2", "4, 2", "7, 2", "10"))
    number = f"((({hours} * 60 + {minutes}) * 60 + {seconds}) * 1000000 + {rest})::VARCHAR"
    return f"CASE WHEN regexp_full_match({x}, {literal(_TIME)}) THEN {number} ELSE '?' || {x} END"
