"""Ranges of keys as conditions that the server answers from the key's index, whatever part of the key the bounds have in common.

After (5, 10) and up to (8, 3) are the rows with a = 5 and b > 10, those with 5 < a < 8, and those with a = 8 and b <= 3. Each of these
parts is one stretch of the index. In one condition with OR, or with a bound of the first column alone, a range would cost as much as all
rows that share its first column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from replicator.model.schema import TableSchema
from replicator.plugins.kit.keyranges import cursor_of, is_ordered
from replicator.plugins.source import Cursor
from replicator.plugins.verification import Bound, KeyRange
from replicator_source_sqlserver.names import literal, quoted
from replicator_source_sqlserver.snapshot.chunk_statements import ReadPlan
from replicator_source_sqlserver.types import ColumnSpec, key_text

Piece = Sequence[tuple[int, str, str]]
"""Conditions that all hold: each the number of a column, a sign, and the text of a value."""

_UNORDERED: Final = frozenset({"varbinary"})
"""Types whose values have several lengths: the server compares them as if the shorter one had zeros at its end."""


def is_range_key(spec: ColumnSpec) -> bool:
    """Return whether the server orders a key's column by the values that it has in the target."""
    return is_ordered(spec.arrow) and spec.declared.name not in _UNORDERED


def pieces_of(after: Cursor | None, upto: Cursor | None) -> Sequence[Piece]:
    """Return disjoint pieces that together are the keys after one bound and up to another, in their order. No bound is no condition."""
    if after is None and upto is None:
        return [()]
    same = 0
    if after is not None and upto is not None:
        if after == upto:
            return []
        same = next(n for n, pair in enumerate(zip(after, upto, strict=True)) if pair[0] != pair[1])
    found: list[Piece] = []
    if after is not None:
        found += [_beside(after, n, ">") for n in reversed(range(same + 1, len(after)))]
    found.append(_between(after, upto, same))
    if upto is not None:
        found += [_beside(upto, n, _last(upto, n)) for n in range(same + 1, len(upto))]
    return found


def _between(after: Cursor | None, upto: Cursor | None, number: int) -> Piece:
    """Return the keys whose first part that differs is between both bounds."""
    either = after if after is not None else upto
    assert either is not None, "there is a bound"
    found = [*_equal(either, number)]
    if after is not None:
        found.append((number, ">", after[number]))
    if upto is not None:
        found.append((number, _last(upto, number), upto[number]))
    return found


def _beside(cursor: Cursor, number: int, sign: str) -> Piece:
    return [*_equal(cursor, number), (number, sign, cursor[number])]


def _equal(cursor: Cursor, count: int) -> Piece:
    return [(n, "=", cursor[n]) for n in range(count)]


def _last(upto: Cursor, number: int) -> str:
    return "<=" if number == len(upto) - 1 else "<"


def conditions(plan: ReadPlan, within: KeyRange) -> Sequence[str]:
    """Return the pieces of a range as conditions; empty for one that always holds."""
    after, upto = (_cursor(bound, within.columns, plan.schema) for bound in (within.after, within.upto))
    return [" AND ".join(_condition(plan, within.columns, part) for part in piece) for piece in pieces_of(after, upto)]


def _cursor(bound: Bound | None, columns: Sequence[str], schema: TableSchema) -> Cursor | None:
    return None if bound is None else cursor_of(bound, columns, schema)


def _condition(plan: ReadPlan, columns: Sequence[str], part: tuple[int, str, str]) -> str:
    number, sign, text = part
    spec = plan.specs[columns[number]]
    assert spec.key_value is not None, "columns of keys have values"
    return f"{quoted(columns[number])} {sign} {spec.key_value.format(literal(key_text(text, spec)))}"
