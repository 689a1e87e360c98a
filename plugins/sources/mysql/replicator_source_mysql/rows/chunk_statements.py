"""The statements that read chunks. All ordering is the server's: its collations, its padding, its order of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from replicator.model.schema import TableSchema
from replicator.plugins.kit.reads import impossible_key
from replicator.plugins.source import ChunkRequest, Cursor
from replicator_source_mysql.binlog import ColumnSpec
from replicator_source_mysql.connecting.connection import quoted, quoted_table
from replicator_source_mysql.rows.values import (
    key_condition,
    key_expression,
    key_literal,
    key_proof,
    key_selected,
    selected,
    value_literal,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """Columns to read of a table: those of the schema, the texts of the key's parts, and the proofs that they tell them apart.

    Attributes:
        schema: The host's schema.
        specs: Specs by which its values are read.
        index: Index of the key; None if there is none.
    """

    schema: TableSchema
    specs: Mapping[str, ColumnSpec]
    index: str | None

    @property
    def source(self) -> str:
        """The table with a hint about its index, for FROM.

        No view takes such a hint: both servers refuse it while they open the view (error 1176, "Key doesn't exist"). So a view that
        somebody exchanged for the table between a look at the catalogue and this statement is not read, and runs nothing as our account.
        """
        hint = f"FORCE INDEX ({quoted(self.index)})" if self.index is not None else "USE INDEX ()"
        return f"{quoted_table(self.schema.table)} {hint}"

    @property
    def columns(self) -> list[tuple[str, ColumnSpec]]:
        """Name and spec of the columns, in the schema's order."""
        return [(c.name, self.specs[c.name]) for c in self.schema.columns]

    @property
    def key(self) -> list[tuple[str, ColumnSpec]]:
        """Name and spec of the key's parts."""
        return [(name, self.specs[name]) for name in self.schema.key]


def chunk_query(plan: ReadPlan, request: ChunkRequest) -> str:
    """One chunk, in key order."""
    conditions = []
    if request.keys is not None:
        conditions.append(_any_of(plan, request.keys))
    if request.after is not None:
        conditions.append(_beyond(plan, request.after, is_after=True))
    if request.upto is not None:
        conditions.append(_beyond(plan, request.upto, is_after=False))
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    order = ", ".join(key_expression(name, spec) for name, spec in plan.key)
    limit = "" if request.keys is not None else f" LIMIT {request.limit}"
    return f"SELECT {_columns(plan)} FROM {plan.source}{where} ORDER BY {order}{limit}"  # noqa: S608 - quoted


def whole_query(plan: ReadPlan) -> str:
    """The whole table, in no order."""
    return f"SELECT {_columns(plan)} FROM {plan.source}"  # noqa: S608 - quoted


def range_conditions(plan: ReadPlan, columns: int, after: Cursor | None, upto: Cursor | None) -> list[str]:
    """Conditions for keys whose first columns are beyond a cursor, and not beyond another. `kit.cursors.cursors` spells them."""
    first = plan.key[:columns]

    def beyond(cursor: Cursor, *, is_after: bool) -> str:
        parts = [(quoted(name), value_literal(text, spec)) for (name, spec), text in zip(first, cursor, strict=True)]
        return _compared(parts, is_after=is_after)

    conditions = [] if after is None else [beyond(after, is_after=True)]
    return conditions if upto is None else [*conditions, beyond(upto, is_after=False)]


def _columns(plan: ReadPlan) -> str:
    columns = [selected(name, spec) for name, spec in plan.columns]
    keys = [key_selected(name, spec) for name, spec in plan.key]
    proofs = (key_proof(name, spec) for name, spec in plan.key)
    return ", ".join([*columns, *keys, *(proof for proof in proofs if proof is not None)])


def _parts(plan: ReadPlan, cursor: Cursor) -> list[tuple[str, str]]:
    return [
        (key_expression(name, spec), key_literal(text, spec))
        for (name, spec), text in zip(plan.key, cursor, strict=True)
    ]


def _beyond(plan: ReadPlan, cursor: Cursor, *, is_after: bool) -> str:
    """Keys greater than the cursor, or up to and including it.

    Rows are not compared as such: the server would not use the index for it. The bound on the first part alone makes it.
    """
    return _compared(_parts(plan, cursor), is_after=is_after)


def _compared(parts: Sequence[tuple[str, str]], *, is_after: bool) -> str:
    sign, last = (">", ">") if is_after else ("<", "<=")
    column, value = parts[-1]
    condition = f"{column} {last} {value}"
    for column, value in reversed(parts[:-1]):
        condition = f"({column} {sign} {value} OR ({column} = {value} AND {condition}))"
    if len(parts) > 1:
        column, value = parts[0]
        condition = f"{column} {sign}= {value} AND {condition}"
    return f"({condition})"


def _any_of(plan: ReadPlan, keys: Sequence[Cursor]) -> str:
    if not keys:
        return "FALSE"
    try:
        alternatives = [
            " AND ".join(key_condition(name, spec, text) for (name, spec), text in zip(plan.key, key, strict=True))
            for key in keys
        ]
    except ValueError as error:
        raise impossible_key(plan.schema.table) from error
    return "(" + " OR ".join(f"({a})" for a in alternatives) + ")"
