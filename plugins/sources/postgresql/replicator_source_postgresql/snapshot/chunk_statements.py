"""The statements that read tables: chunks in the order of the key's own index, rows by key, whole tables.

Everything about order is left to the database: columns are compared with the operators and collations of the key's index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from psycopg import sql

from replicator.model.schema import TableId
from replicator.plugins.kit.reads import impossible_key
from replicator.plugins.source import ChunkRequest, Cursor
from replicator_source_postgresql.catalogue.queries import fingerprint_query
from replicator_source_postgresql.catalogue.tables import CatalogColumn, KeyPart
from replicator_source_postgresql.types import RAW_SETTING, PgType, base_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The parts of the statements that read a table.

    Attributes:
        key: The key's columns with their order; empty without a key.
        key_columns: The same, as columns.
        columns: The columns to read, in the order of the host's schema.
        is_partitioned: True if the rows are in partitions (else ONLY the table's own are read).
        row_filter: The publication's, as SQL.
        is_raw: True if texts come as they are (`RAW_SETTING`).
    """

    table: TableId
    publication: str
    key: tuple[KeyPart, ...]
    key_columns: tuple[CatalogColumn, ...]
    columns: tuple[CatalogColumn, ...]
    is_partitioned: bool
    row_filter: str | None
    is_raw: bool = False

    @property
    def mappings(self) -> list[PgType]:
        """The types of the columns."""
        return [c.mapping for c in self.columns if c.mapping is not None]


BEGIN_READ: Final = "BEGIN ISOLATION LEVEL READ COMMITTED, READ ONLY"
"""Opens the transaction of `chunk_script` and `whole_script`."""


def chunk_script(plan: ReadPlan, request: ChunkRequest) -> str:
    """Return the script that reads one chunk, after `BEGIN_READ`; results: …, fingerprint, COPY, fingerprint, …."""
    conditions = _filter(plan)
    if request.keys is not None:
        conditions.append(_among(plan, request.keys))
    if request.after is not None:
        conditions.append(_beyond(plan, request.after))
    if request.upto is not None:
        conditions.append(_up_to(plan, request.upto))
    order = ", ".join(_ordering(part) for part in plan.key)
    return _script(plan, f"{_where(conditions)} ORDER BY {order} LIMIT {int(request.limit)}")


def whole_script(plan: ReadPlan, limit: int | None = None) -> str:
    """Return the script that reads a whole table in no particular order, or that many of its rows; results as `chunk_script`.

    It may run as long as it takes.
    """
    tail = "" if limit is None else f" LIMIT {limit}"
    return _script(plan, f"{_where(_filter(plan))}{tail}", prologue="SET LOCAL statement_timeout = 0; ")


def chunk_query(plan: ReadPlan, request: ChunkRequest) -> str:
    """Return the SELECT inside the chunk's COPY, for EXPLAIN."""
    script = chunk_script(plan, request)
    return script[script.index("COPY (") + len("COPY (") : script.index(") TO STDOUT")]


def _script(plan: ReadPlan, tail: str, prologue: str = "") -> str:
    # The first SELECT takes the lock. COPY takes its snapshot before it waits for the table, so without that a read that waits for
    # a rewriting ALTER TABLE would find every row too new and return nothing.
    source = table_source(plan)
    fingerprint = fingerprint_query(plan.table, plan.publication)
    expressions = ", ".join(
        f"{mapping.select('t.' + quoted(column.name))} AS c{position}"
        for position, (column, mapping) in enumerate(zip(plan.columns, plan.mappings, strict=True))
    )
    nulls = ", NULL" * len(plan.columns)
    if plan.is_raw:
        prologue += f"SET LOCAL {RAW_SETTING[0]} = '{RAW_SETTING[1]}'; "
    rows = f"SELECT {expressions} FROM {source}{tail}"  # noqa: S608 names are quoted, values are literals
    query = f"SELECT pg_current_snapshot()::text{nulls} UNION ALL SELECT NULL, q.* FROM ({rows}) AS q"  # noqa: S608
    return (
        f"{prologue}SELECT FROM {source} LIMIT 0; {fingerprint};"
        f" COPY ({query}) TO STDOUT (FORMAT binary); {fingerprint}; COMMIT"
    )


def lock_statement(plan: ReadPlan) -> str:
    """Return a statement that takes the lock of a SELECT from whatever has the table's name, and evaluates nothing of it.

    It is parsed and not planned: planning a SELECT from a view evaluates functions in it. LOCK TABLE needs a privilege on all columns.
    """
    return f"PREPARE replicator_lock AS SELECT FROM {table_source(plan)}; DEALLOCATE replicator_lock"


def table_source(plan: ReadPlan) -> str:
    """Return the item of a FROM clause for the table as `t`."""
    name = sql.Identifier(plan.table.namespace, plan.table.name).as_string(None)
    return f"{'' if plan.is_partitioned else 'ONLY '}{name} AS t"


def published_rows(plan: ReadPlan, conditions: Sequence[str] = ()) -> str:
    """Return the item of a FROM clause for all rows of the table `t` that are replicated, or those of them for which conditions hold."""
    return table_source(plan) + _where([*_filter(plan), *conditions])


def range_conditions(plan: ReadPlan, columns: int, after: Cursor | None, upto: Cursor | None) -> list[str]:
    """Return conditions for keys whose first columns are beyond a cursor, and not beyond another. `kit.cursors.cursors` spells them."""
    some = replace(plan, key=plan.key[:columns], key_columns=plan.key_columns[:columns])

    def spelled(cursor: Cursor) -> Cursor:
        return tuple(map(_with_era, cursor, some.key_columns))

    conditions = [] if after is None else [_beyond(some, spelled(after))]
    return conditions if upto is None else [*conditions, _up_to(some, spelled(upto))]


def nth_key(plan: ReadPlan, columns: int, after: Cursor | None, row: int) -> str:
    """Return the item of a FROM clause for the first columns of the key (as of a table `t`) of one row beyond a cursor: the first is 1."""
    parts = plan.key[:columns]
    names = ", ".join(f"t.{quoted(part.column)}" for part in parts)
    rows = published_rows(plan, range_conditions(plan, columns, after, None))
    return f"(SELECT {names} FROM {rows} ORDER BY {', '.join(map(_ordering, parts))} LIMIT 1 OFFSET {row - 1}) AS t"  # noqa: S608


def _filter(plan: ReadPlan) -> list[str]:
    return [f"({plan.row_filter})"] if plan.row_filter is not None else []


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _beyond(plan: ReadPlan, cursor: Cursor) -> str:
    """Return the condition for keys greater than the cursor."""
    values = _literals(plan, cursor)
    if _is_plain(plan):
        return f"{_row(_operand(part) for part in plan.key)} > {_row(values)}"
    condition = ""
    for part, value in reversed(list(zip(plan.key, values, strict=True))):
        condition = _step(part, value, ">", ">=", condition)
    return condition


def _up_to(plan: ReadPlan, cursor: Cursor) -> str:
    """Return the condition for keys up to and including the cursor."""
    values = _literals(plan, cursor)
    if _is_plain(plan):
        return f"{_row(_operand(part) for part in plan.key)} <= {_row(values)}"
    *init, last = list(zip(plan.key, values, strict=True))
    condition = f"({_compare(last[0], '<=', last[1])})"
    for part, value in reversed(init):
        condition = _step(part, value, "<", "<=", condition)
    return condition


def _step(part: KeyPart, value: str, strict: str, weak: str, rest: str) -> str:
    # The weak comparison in front is implied; it is what lets the index bound the scan.
    if not rest:
        return f"({_compare(part, strict, value)})"
    return f"({_compare(part, weak, value)} AND ({_compare(part, strict, value)} OR {_compare(part, '=', value)} AND {rest}))"


def _among(plan: ReadPlan, keys: Sequence[Cursor]) -> str:
    """Return the condition for exactly these keys.

    Raises:
        ImpossibleKeyError: One of them has a NUL, which no value of PostgreSQL has. The driver would refuse the whole statement.
    """
    if not keys:
        return "false"
    if any("\0" in part for key in keys for part in key):
        raise impossible_key(plan.table)
    rows = _rows(plan, keys)
    names = ", ".join(f"k{position}" for position in range(len(plan.key)))
    matches = " AND ".join(_compare(part, "=", f"v.k{position}") for position, part in enumerate(plan.key))
    return f"EXISTS (SELECT FROM (VALUES {rows}) AS v({names}) WHERE {matches})"


def keys_query(plan: ReadPlan, keys: Sequence[Sequence[str | None]]) -> str:
    """Return a statement that fails if one of the keys is no value of its type, and reads nothing. Parts may be NULL."""
    return f"SELECT * FROM (VALUES {_rows(plan, keys)}) AS v"  # noqa: S608 names are quoted, values are literals


def _rows(plan: ReadPlan, keys: Sequence[Sequence[str | None]]) -> str:
    """Return the keys as VALUES."""
    types = [_base_type(column) for column in plan.key_columns]
    texts = (
        [None if text is None else _with_era(text, column) for text, column in zip(key, plan.key_columns, strict=True)]
        for key in keys
    )
    return ", ".join(
        f"({', '.join(f'{sql.Literal(text).as_string(None)}::{type_}' for text, type_ in zip(row, types, strict=True))})"
        for row in texts
    )


def _base_type(column: CatalogColumn) -> str:
    """Return the type of a literal for the column: of a domain its base type.

    The domain's constraints may call functions of its owner, which must not run as our role; and rows may be older than one that is
    NOT VALID.
    """
    info = column.mapping.info if column.mapping is not None else None
    if info is None or info.base is None:
        return column.type_sql
    base = base_of(info)
    return f"{quoted(base.namespace)}.{quoted(base.name)}"


def _with_era(text: str, column: CatalogColumn) -> str:
    """Return a date or moment with the year 1 BC as PostgreSQL reads it, where it is `0000`."""
    assert column.mapping is not None, "a key's column is replicable"
    kind = column.mapping.arrow
    is_dated = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    if not is_dated or not text.startswith(("-", "0000")):
        return text
    year, _, rest = text.removeprefix("-").partition("-")
    return f"{int(year) + 1:04}-{rest} BC"


def _is_plain(plan: ReadPlan) -> bool:
    # Row comparison looks its operators up by name; those of other schemas would not be found, or others would.
    return all(part.is_plain for part in plan.key)


def _row(operands: Iterable[str]) -> str:
    return f"({', '.join(operands)})"


def _compare(part: KeyPart, operator: str, value: str) -> str:
    return f"{_operand(part)} {part.operators[operator]} {value}"


def _operand(part: KeyPart) -> str:
    collation = f" COLLATE {part.collation}" if part.collation else ""
    return f"t.{quoted(part.column)}{collation}"


def _ordering(part: KeyPart) -> str:
    return _operand(part) if part.is_plain else f"{_operand(part)} USING {part.operators['<']}"


def _literals(plan: ReadPlan, cursor: Cursor) -> list[str]:
    return [
        f"{sql.Literal(text).as_string(None)}::{_base_type(column)}"
        for text, column in zip(cursor, plan.key_columns, strict=True)
    ]


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return sql.Identifier(name).as_string(None)
