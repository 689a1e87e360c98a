"""Predicates over columns of Arrow values, with SQL's three-valued logic: NULL is unknown. No Python object per row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from replicator.projection.condition.syntax import Operator

Columns = Mapping[str, pa.Array]
"""Field → its values; all of one length."""
Evaluator = Callable[[Columns], pa.BooleanArray]

_COMPARE: Final = {
    Operator.EQUAL: pc.equal,
    Operator.UNEQUAL: pc.not_equal,
    Operator.LESS: pc.less,
    Operator.LESS_EQUAL: pc.less_equal,
    Operator.GREATER: pc.greater,
    Operator.GREATER_EQUAL: pc.greater_equal,
}
_OPPOSITE: Final = {
    Operator.UNEQUAL: Operator.EQUAL,
    Operator.LESS_EQUAL: Operator.GREATER,
    Operator.GREATER_EQUAL: Operator.LESS,
}
_UNKNOWN: Final = pa.scalar(None, pa.bool_())


def compare(
    columns: Columns, operator: Operator, field: str, other: str | pa.Scalar, type_: pa.DataType
) -> pa.BooleanArray:
    """Compare a column, as `type_`, with another one or a value of that type."""
    left = columns[field].cast(type_, safe=False)
    right = columns[other].cast(type_, safe=False) if isinstance(other, str) else other
    return _compare_floats(operator, left, right) if pa.types.is_floating(type_) else _COMPARE[operator](left, right)


def constant(columns: Columns, field: str, answer: bool | None) -> pa.BooleanArray:
    """Return one answer for all values of a column but NULL."""
    return pc.if_else(columns[field].is_valid(), pa.scalar(answer, pa.bool_()), _UNKNOWN)


def is_one_of(columns: Columns, field: str, values: pa.Array, *, has_null: bool) -> pa.BooleanArray:
    """Look a column's values up in others; with a NULL among those, what is not found is unknown."""
    column = columns[field]
    if pa.types.is_floating(values.type):
        column = pc.add(column.cast(values.type), 0.0)  # -0.0 becomes 0.0, as in `values`: they are found by their bits
    found = pc.is_in(column, value_set=values)
    return pc.if_else(found if has_null else column.is_valid(), found, _UNKNOWN)


def matches(columns: Columns, field: str, expression: str) -> pa.BooleanArray:
    """Match texts with a regular expression of RE2, whose time is linear."""
    return pc.match_substring_regex(columns[field], expression)


def is_null(columns: Columns, field: str) -> pa.BooleanArray:
    """Tell which values are NULL."""
    return columns[field].is_null()


def is_true(columns: Columns, field: str) -> pa.BooleanArray:
    """Return a column of truth values."""
    return columns[field]


def negation(columns: Columns, evaluator: Evaluator) -> pa.BooleanArray:
    """Return the opposite."""
    return pc.invert(evaluator(columns))


def every(columns: Columns, evaluators: Sequence[Evaluator]) -> pa.BooleanArray:
    """Join by AND."""
    return reduce(pc.and_kleene, (evaluator(columns) for evaluator in evaluators))


def some(columns: Columns, evaluators: Sequence[Evaluator]) -> pa.BooleanArray:
    """Join by OR."""
    return reduce(pc.or_kleene, (evaluator(columns) for evaluator in evaluators))


def expression_of(pattern: str, escape: str | None = None) -> str:
    """Return the regular expression of a pattern of LIKE."""
    written, characters = [r"(?s)\A"], iter(pattern)
    for character in characters:
        if character == escape:
            written.append(_itself(next(characters)))
        elif character == "%":
            written.extend([] if written[-1] == ".*" else [".*"])
        else:
            written.append("." if character == "_" else _itself(character))
    return "".join([*written, r"\z"])


def _itself(character: str) -> str:
    return character if character.isalnum() else f"\\x{{{ord(character):x}}}"


def _compare_floats(operator: Operator, left: pa.Array, right: pa.Array | pa.Scalar) -> pa.BooleanArray:
    """Compare as PostgreSQL does: NaN equals NaN and is greater than every other number."""
    if operator in _OPPOSITE:
        return pc.invert(_compare_floats(_OPPOSITE[operator], left, right))
    if operator is Operator.GREATER:
        operator, left, right = Operator.LESS, right, left
    left_first = pc.is_nan(left) if operator is Operator.EQUAL else pc.invert(pc.is_nan(left))
    return pc.or_kleene(_COMPARE[operator](left, right), pc.and_kleene(left_first, pc.is_nan(right)))
