"""The state of a table, for `replicator verify`: copied out of the file, which others need."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from replicator.model.errors import TableError
from replicator.model.events import IS_DELETED
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.duckdb.state import DuckDBState
from replicator.plugins.kit.transactional import LedgerEntry
from replicator.plugins.target import TargetTable
from replicator.plugins.verification import VerifiedState, order_of
from replicator_target_duckdb import sql, tables
from replicator_target_duckdb.database import Database
from replicator_target_duckdb.types import type_name

_COPY: Final = "state"
_RECREATE: Final = "Recreate the table: replicator snapshot NAME TABLE --recreate."


@contextmanager
def table_state(
    database: Database,
    table: TargetTable,
    schema: TableSchema,
    columns: Mapping[str, str],
    at: int,
    entry_of: Callable[[duckdb.DuckDBPyConnection, TableId], LedgerEntry | None],
) -> Iterator[VerifiedState]:
    """Copy what is compared into a file of its own, and answer from there for as long as the context.

    Raises:
        TableError: `state_not_readable`; `ledger_damaged`, by `entry_of`.
    """
    names = order_of(list(columns), schema)
    reads = {name: (f"c{i}", schema.column(name).type) for i, name in enumerate(names)}
    with tempfile.TemporaryDirectory(prefix="replicator-verify-") as folder:
        copy = Path(folder) / "state.duckdb"
        with database.transaction(table.table, is_read_only=True) as connection:
            _check(connection, entry_of(connection, table.table), table, schema, columns, at)
            selected = [f"{_held(sql.quoted(columns[name]), kind)} AS {alias}" for name, (alias, kind) in reads.items()]
            where = f" WHERE {IS_DELETED} IS NOT TRUE" if table.options.deletes == "soft" else ""
            connection.execute(f"ATTACH {sql.text(str(copy))} AS {_COPY}")
            connection.execute(
                f"CREATE TABLE {_COPY}.main.rows AS SELECT {', '.join(selected)} FROM {sql.path_of(table.table)}{where}"
            )
        database.detach(_COPY)
        with closing(duckdb.connect(str(copy), read_only=True)) as connection:
            yield CopiedState(connection, reads, schema.key)


class CopiedState(DuckDBState):
    """Answers from the file."""

    def select(self, texts: Sequence[str], condition: str) -> str:
        """Read the one table of the file."""
        return f"SELECT {', '.join(texts)} FROM rows WHERE {condition}"


def _check(
    connection: duckdb.DuckDBPyConnection,
    entry: LedgerEntry | None,
    table: TargetTable,
    schema: TableSchema,
    columns: Mapping[str, str],
    at: int,
) -> None:
    """Check that the table is as it was at the number, with the columns that are compared in their types."""
    if entry is None or (entry.uuid, entry.incarnation) != (table.uuid, table.incarnation) or entry.shape is None:
        raise _not_readable(table, "The table was replaced or dropped meanwhile")
    if entry.last_applied > at:
        raise _not_readable(table, "Later changes have been applied, and the file keeps no older state")
    found = {name: type_ for name, type_, _ in tables.columns(connection, table.table)}
    for name, there in columns.items():
        if found.get(there) is None:
            raise _not_readable(table, f"The table has no column {there}", _RECREATE)
        if found[there] != tables.described(type_name(schema.column(name).type)):
            raise _not_readable(table, f"The column {there} has another type ({found[there]})", _RECREATE)


def _held(expression: str, type_: pa.DataType) -> str:
    """A value as the canonical form reads it: times as HH:MM:SS.ffffff."""
    if pa.types.is_list(type_) and pa.types.is_time(type_.value_type):
        return f"list_transform({expression}, lambda e: {_held('e', type_.value_type)})"
    if pa.types.is_time(type_):
        us = f"epoch_us({expression})"
        parts = f"{us} // 3600000000, {us} // 60000000 % 60, {us} // 1000000 % 60, {us} % 1000000"
        return f"CASE WHEN {expression} IS NOT NULL THEN format('{{:02d}}:{{:02d}}:{{:02d}}.{{:06d}}', {parts}) END"
    return expression


def _not_readable(table: TargetTable, why: str, action: str = "Run the command again.") -> TableError:
    return TableError(
        f"The state to compare cannot be read. {why}.",
        code="state_not_readable",
        table=str(table.table),
        action=action,
    )
