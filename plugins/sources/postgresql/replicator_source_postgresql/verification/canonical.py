"""The canonical form of values (`replicator.plugins.verification`) as PostgreSQL's own expressions.

Nothing here decodes: the server writes what it holds, under `SESSION_SETTINGS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from replicator.plugins.kit.canonical import DIGEST_DIGITS, TEXT_BYTES_MAX
from replicator_source_postgresql.types import TypeInfo, base_of, output_text

UTF8: Final = "UTF8"
NO_ENCODING: Final = "SQL_ASCII"

_ARGUMENTS_MAX: Final = 100
"""Upper bound of a function's arguments. `concat` is given as many, and its results are joined."""

_NAN: Final = "numeric 'NaN'"
# The last moment whose microseconds since 1970 are an int64; the server itself counts from 2000.
_LAST_MOMENT: Final = "294247-01-10 04:00:54.775807"
# Between these, microseconds are at most 2^51, and neither their quotient by a million nor its product with it is rounded to another one.
_EXACT_MOMENTS: Final = ("1900-01-01", "2041-01-01")
# The well-formed byte sequences of UTF-8 (Unicode, table 3-7), for a database whose characters are bytes.
_UTF8_BYTES: Final = (
    r"^([\u0001-\u007f]|[\u00c2-\u00df][\u0080-\u00bf]|\u00e0[\u00a0-\u00bf][\u0080-\u00bf]"
    r"|[\u00e1-\u00ec\u00ee\u00ef][\u0080-\u00bf]{2}|\u00ed[\u0080-\u009f][\u0080-\u00bf]|\u00f0[\u0090-\u00bf][\u0080-\u00bf]{2}"
    r"|[\u00f1-\u00f3][\u0080-\u00bf]{3}|\u00f4[\u0080-\u008f][\u0080-\u00bf]{2})*$"
)
# Of this float on, not every integer is one; beyond the second, no number of 17 digits lies in the middle between two of them.
_HALVES: Final = ("9007199254740992", "1e40")


@dataclass(frozen=True, slots=True)
class Form:
    """Expressions about one value.

    Attributes:
        text: Its canonical form, of any type whose output that is; NULL for NULL. May fail for a value that cannot be held.
        held: False for a value that its Arrow type cannot hold. None: it can hold all values of this type.
    """

    text: str
    held: str | None = None

    @property
    def text_if_held(self) -> str:
        """The text, and NULL for a value that cannot be held."""
        return self.text if self.held is None else f"CASE WHEN {self.held} THEN {self.text} END"


@dataclass(slots=True)
class Scope:
    """Expressions that a subquery computes once a row, because several others need them; these name it by `alias`.

    Attributes:
        encoding: The encoding of the database.
        fails: A value that cannot be held inside a list makes the list one that cannot be held; else it becomes a NULL element.
    """

    alias: str
    encoding: str
    fails: bool
    derived: list[str] = field(default_factory=list)

    def derive(self, expression: str) -> str:
        """Return the name under which other expressions find the expression's value."""
        name = f"x{len(self.derived)}"
        self.derived.append(f"{expression} AS {name}")
        return f"{self.alias}.{name}"

    def query(self, columns: Sequence[str], source: str) -> str:
        """Return the subquery: `columns` and the derived expressions. With these, the planner must not merge it into the outer query."""
        fence = " OFFSET 0" if self.derived else ""
        return f"(SELECT {', '.join([*columns, *self.derived])} FROM {source}{fence}) AS {self.alias}"  # noqa: S608


def form_of(info: TypeInfo, arrow: pa.DataType, value: str, origin: str, scope: Scope, *, is_key: bool) -> Form:
    """Return the expressions for a value.

    Args:
        info: The value's type.
        arrow: The host's type for it.
        value: Name of the value outside of the scope's subquery.
        origin: Name of the value inside.
        scope: Computes the expressions that are needed more than once.
        is_key: True for a key text.
    """
    if pa.types.is_string(arrow):
        return _string(info, value, origin, scope, is_key=is_key)
    if pa.types.is_list(arrow):
        return _list(info, arrow, value, scope)
    if pa.types.is_floating(arrow):
        return Form(_float(value, origin, scope))
    if pa.types.is_binary(arrow):
        content = f"'$' || encode({value}, 'hex')" if is_key else f"'#' || {_digest(value)}"
        return Form(f"octet_length({value}) || {content}")
    return _number(arrow, value)


def _number(arrow: pa.DataType, value: str) -> Form:
    if pa.types.is_boolean(arrow):
        return Form(f"{value}::int4")
    if pa.types.is_decimal(arrow):
        return Form(value, f"{value} <> {_NAN}")
    if pa.types.is_date(arrow):
        return Form(f"({value} - date '1970-01-01')", f"isfinite({value})")
    if pa.types.is_time(arrow):
        return Form(f"(date_part('epoch', {value}) * 1000000)::int8", f"{value} < time '24:00'")
    if pa.types.is_timestamp(arrow):
        return _timestamp(value, "timestamptz" if arrow.tz else "timestamp")
    assert pa.types.is_integer(arrow), f"{arrow} is no canonical type"
    return Form(value)


def joined(texts: Sequence[str]) -> str:
    """Return the text of several canonical forms, each followed by a comma."""
    step = _ARGUMENTS_MAX // 2
    parts = [f"concat({', '.join(f'{t}, {_COMMA}' for t in texts[i : i + step])})" for i in range(0, len(texts), step)]
    return " || ".join(parts) if parts else "''"


_COMMA: Final = "','"


def sha256_of(text: str, encoding: str) -> str:
    """Return the bytes that a text's digest is the beginning of."""
    return f"sha256({_bytes(text, encoding)})"


def digits_of(sha256: str, count: int = DIGEST_DIGITS) -> str:
    """Return the first hex digits of a digest, to be compared as they are."""
    return f"left(encode({sha256}, 'hex'), {count}) COLLATE \"C\""


def number_of(sha256: str, first: int) -> str:
    """Return eight bytes of a digest as an int8; in all versions, faster than a detour by hex digits."""
    return " | ".join(f"(get_byte({sha256}, {first + n})::int8 << {56 - 8 * n})" for n in range(8))


def _digest(data: str) -> str:
    return f"left(encode(sha256({data}), 'hex'), {DIGEST_DIGITS})"


def _bytes(text: str, encoding: str) -> str:
    """Return a text's bytes in UTF-8; where the database has no encoding, as they are."""
    return f"convert_to({text}, '{NO_ENCODING if encoding == NO_ENCODING else UTF8}')"


def _string(info: TypeInfo, value: str, origin: str, scope: Scope, *, is_key: bool) -> Form:
    base = base_of(info)
    is_plain = base.namespace == "pg_catalog" and base.name in ("text", "varchar")
    written = f"{origin}::text" if is_plain else output_text(info, origin)
    text = f"{value}::text" if is_plain else scope.derive(written)
    if scope.encoding in (UTF8, NO_ENCODING):
        data, size = _bytes(text, scope.encoding), f"octet_length({text})"
    else:
        data = scope.derive(_bytes(written, scope.encoding))
        size = f"octet_length({data})"
    whole = f"{size} || ':' || {text}"
    held = None
    if scope.encoding == NO_ENCODING:
        held = f"{text} COLLATE \"C\" ~ '{_UTF8_BYTES}'"
    elif base.namespace == "pg_catalog" and base.name == "char":
        # A byte that is no character; from 16 on it is written in digits.
        held = f'NOT ({value}::"char"::int4 < 0 AND {size} = 1)'
    if is_key:
        return Form(whole, held)
    return Form(f"CASE WHEN {size} <= {TEXT_BYTES_MAX} THEN {whole} ELSE {size} || '#' || {_digest(data)} END", held)


def _timestamp(value: str, type_: str) -> Form:
    first, last = (f"{type_} '{moment}'" for moment in _EXACT_MOMENTS)
    held = f"({value} > {type_} '-infinity' AND {value} <= {type_} '{_LAST_MOMENT}')"
    seconds = f"date_part('epoch', date_trunc('second', {value}))::int8"
    slowly = f"{seconds} * 1000000 + date_part('microseconds', {value})::int8 % 1000000"
    quickly = f"(date_part('epoch', {value}) * 1000000)::int8"
    return Form(f"CASE WHEN {value} BETWEEN {first} AND {last} THEN {quickly} ELSE {slowly} END", held)


def _float(value: str, origin: str, scope: Scope) -> str:
    """See `_short`; its digits and their exponent, taken from `ddd.ddd`, `0.00ddd` and `d.ddde+xx`."""
    size = scope.derive(f"abs({origin}::float8)")
    text = scope.derive(_short(f"abs({origin}::float8)"))
    digits = f"rtrim(replace({text}, '.', ''), '0')"
    is_fixed = f"{size} >= 1 AND ({size} < float8 '1e15' OR strpos({text}, 'e') = 0)"
    form = (
        f"CASE WHEN {is_fixed} THEN {digits} || 'e' || strpos({text} || '.', '.') - 2"
        f" WHEN strpos({text}, 'e') > 0 THEN replace(replace(replace({text}, '.', ''), 'e+', 'e'), 'e-0', 'e-')"
        f" ELSE ltrim({digits}, '0') || 'e' || 1 + length(ltrim({text}, '0.')) - length({text}) END"
    )
    sign = f"CASE WHEN {value} < 0 THEN '-' ELSE '' END"
    return (
        f"CASE WHEN {size} > 0 AND {size} < float8 'Infinity' THEN {sign} || {form}"
        f" WHEN {size} = 0 THEN '0' WHEN {size} = float8 'NaN' THEN 'nan' WHEN {value} < 0 THEN '-inf' WHEN {value} > 0 THEN 'inf' END"
    )


def _short(size: str) -> str:
    """Return the shortest digits of a float that is not negative.

    The server's are those strictly between the two middles to the float's neighbours. A middle reads back as the float too, if that is
    even, and may be shorter: 1e23, where the server writes 9.999999999999999e+22. Then it ends with a zero, so it is known by the last
    digit of the mantissa whether one of them is, and which.
    """
    low, high = (f"float8 '{limit}'" for limit in _HALVES)
    mantissa = f"({size} / 2::float8 ^ {_exponent(size)})::int8"
    odd = f"(2 * {mantissa} + CASE {mantissa} % 10 WHEN 2 THEN 1 ELSE -1 END)"
    middle = f"trunc({odd}::numeric * 2::numeric ^ ({_exponent(size)} - 1))::text"
    is_shorter = f"length(rtrim({middle}, '0')) < length(replace(split_part({size}::text, 'e', 1), '.', ''))"
    may_be = f"{size} > {low} AND {size} < {high}"
    return (
        f"CASE WHEN CASE WHEN {may_be} THEN CASE WHEN {mantissa} % 10 IN (2, 8) THEN {is_shorter} END END"
        f" THEN {middle} ELSE {size}::text END"
    )


def _exponent(size: str) -> str:
    """Return the exponent of the last bit of a float's mantissa."""
    return f"((get_byte(float8send({size}), 0) & 127) * 16 + get_byte(float8send({size}), 1) / 16 - 1075)"


def _list(info: TypeInfo, arrow: pa.DataType, value: str, scope: Scope) -> Form:
    element = base_of(info).element
    assert element is not None
    inner = Scope("e", scope.encoding, scope.fails)
    form = form_of(element, arrow.value_type, "e.v", "u.v", inner, is_key=False)
    unnested = f"unnest({value}) WITH ORDINALITY AS u(v, n)"
    if base_of(element).kind == "c":
        # Of composites, unnest makes a column of each field.
        unnested = f"(SELECT ({value})[n] AS v, n FROM generate_subscripts({value}, 1) AS n) AS u"  # noqa: S608
    elements = inner.query(["u.v", "u.n"], unnested)
    joined_elements = f"string_agg({joined([form.text_if_held])}, '' ORDER BY e.n)"
    text = f"CASE WHEN {value} IS NOT NULL THEN (SELECT concat('[', {joined_elements}, ']') FROM {elements}) END"  # noqa: S608
    held = f"(array_ndims({value}) IS NULL OR array_ndims({value}) = 1 AND array_lower({value}, 1) = 1)"
    if form.held is not None and scope.fails:
        held = f"({held} AND NOT EXISTS (SELECT FROM {elements} WHERE ({form.held}) IS FALSE))"
    return Form(text, held)
