"""The statements that read chunks. All ordering is the server's: its collations, and the order of its `uniqueidentifier`.

After the key (x, y) of a key (a, b) are the rows with a = x and b > y, and those with a > x. As alternatives of one condition the
server would read all rows from the beginning of the index; as parts of a UNION ALL it finds the beginning of each.

Every column of the table is named with the table's alias. A table may have columns that are called like what we select (`c1`, `k1`), and
a name alone in ORDER BY would be what is selected under it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from replicator.model.schema import TableSchema
from replicator.plugins.source import ChunkRequest, Cursor
from replicator_source_sqlserver.names import literal, quoted, quoted_table
from replicator_source_sqlserver.types import ColumnSpec, key_text

Query = tuple[str, Sequence[str]]
"""A statement with its parameters, all of them texts."""
KEYS_MAX: Final = 200
"""Upper bound of the alternatives in one condition. With thousands of them the server gives up (8623, 8631, 8632)."""
_ALIAS: Final = "t"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The parts of the statements that read a table.

    Attributes:
        hint: A table hint, such as `WITH (READCOMMITTEDLOCK)`; may be empty.
    """

    schema: TableSchema
    specs: Mapping[str, ColumnSpec]
    hint: str = ""

    @property
    def table(self) -> str:
        """The table, as in a FROM."""
        return f"{quoted_table(self.schema.table)} AS {_ALIAS} {self.hint}".rstrip()

    @property
    def columns(self) -> list[str]:
        """The selected expressions, in the order of the schema."""
        return [
            f"{self.specs[c.name].selected.format(_column(c.name))} AS c{number}"
            for number, c in enumerate(self.schema.columns, start=1)
        ]

    @property
    def key(self) -> list[str]:
        """The columns of the key."""
        return [_column(name) for name in self.schema.key]

    def values(self, cursor: Cursor) -> Sequence[Query]:
        """Return the parts of a key as expressions, each with its parameter."""
        found = []
        for name, text in zip(self.schema.key, cursor, strict=True):
            spec = self.specs[name]
            assert spec.key_value is not None
            found.append((spec.key_value.format("?"), (key_text(text, spec),)))
        return found


def chunk_query(plan: ReadPlan, request: ChunkRequest) -> Query:
    """Return the query of one chunk, in key order."""
    if request.keys is not None:
        order = ", ".join(plan.key)
        return (
            f"SELECT {', '.join(plan.columns)} FROM {plan.table} WHERE {_any_of(plan, request.keys)} ORDER BY {order}",
            (),
        )
    upto = [] if request.upto is None else [_at_most(plan, request.upto)]
    pieces = [None] if request.after is None else rows_after(plan.key, plan.values(request.after))
    parts = [_piece(plan, request.limit, [*([] if piece is None else [piece]), *upto]) for piece in pieces]
    if len(parts) == 1:
        query, parameters = parts[0]
        return f"SELECT {_outer(plan)} FROM ({query}) p ORDER BY {_keys(plan)}", parameters
    union = " UNION ALL ".join(f"SELECT * FROM ({query}) p{number}" for number, (query, _) in enumerate(parts))
    parameters = [text for _, texts in parts for text in texts]
    return f"SELECT TOP ({request.limit}) {_outer(plan)} FROM ({union}) u ORDER BY {_keys(plan)}", parameters


def whole_query(plan: ReadPlan) -> str:
    """Return the query of the whole table, in no order."""
    return f"SELECT {', '.join(plan.columns)} FROM {plan.table}"


def some_query(plan: ReadPlan, rows: int) -> str:
    """Return the query of any `rows` rows of the table."""
    return f"SELECT TOP ({rows}) {', '.join(plan.columns)} FROM {plan.table}"


def _column(name: str) -> str:
    return f"{_ALIAS}.{quoted(name)}"


def _outer(plan: ReadPlan) -> str:
    return ", ".join(f"c{number}" for number in range(1, len(plan.schema.columns) + 1))


def _keys(plan: ReadPlan) -> str:
    return ", ".join(f"k{number}" for number in range(1, len(plan.key) + 1))


def _piece(plan: ReadPlan, limit: int, conditions: Sequence[Query]) -> Query:
    keys = [f"{column} AS k{number}" for number, column in enumerate(plan.key, start=1)]
    where = f" WHERE {' AND '.join(condition for condition, _ in conditions)}" if conditions else ""
    query = f"SELECT TOP ({limit}) {', '.join([*plan.columns, *keys])} FROM {plan.table}{where} ORDER BY {', '.join(plan.key)}"
    return query, [text for _, texts in conditions for text in texts]


def rows_after(columns: Sequence[str], values: Sequence[Query]) -> list[Query]:
    """Return disjoint conditions that together are "the columns are greater than the values", in the order of the columns."""
    pieces = []
    for last in reversed(range(len(columns))):
        signs = ["="] * last + [">"]
        pieces.append(_all(columns[: last + 1], signs, values[: last + 1]))
    return pieces


def _at_most(plan: ReadPlan, cursor: Cursor) -> Query:
    """Return the condition for keys up to and including the cursor. The bound on the first part alone is where the server may stop."""
    columns, values = plan.key, plan.values(cursor)
    pieces = []
    for last in range(len(columns)):
        is_whole = last == len(columns) - 1
        signs = ["="] * last + ["<=" if is_whole else "<"]
        pieces.append(_all(columns[: last + 1], signs, values[: last + 1]))
    if len(pieces) == 1:
        return pieces[0]
    (bound, texts), any_of = _all(columns[:1], ["<="], values[:1]), " OR ".join(f"({piece})" for piece, _ in pieces)
    return f"{bound} AND ({any_of})", [*texts, *(text for _, piece_texts in pieces for text in piece_texts)]


def _all(columns: Sequence[str], signs: Sequence[str], values: Sequence[Query]) -> Query:
    conditions = [f"{c} {sign} {value}" for c, sign, (value, _) in zip(columns, signs, values, strict=True)]
    return " AND ".join(conditions), [text for _, texts in values for text in texts]


def _any_of(plan: ReadPlan, keys: Sequence[Cursor]) -> str:
    """Return the condition for exactly these keys, with literals: a statement takes no more than 2,100 parameters."""
    if not keys:
        return "1 = 0"
    return " OR ".join(f"({_equal(plan, key)})" for key in keys)


def _equal(plan: ReadPlan, key: Cursor) -> str:
    parts = []
    for name, text in zip(plan.schema.key, key, strict=True):
        spec = plan.specs[name]
        assert spec.key_value is not None
        parts.append(f"{_column(name)} = {spec.key_value.format(literal(key_text(text, spec)))}")
    return " AND ".join(parts)
