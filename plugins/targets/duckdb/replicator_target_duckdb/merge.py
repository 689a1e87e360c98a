"""A batch, folded in Arrow and merged by DuckDB's SQL, inside a transaction of the caller's.

What does not fit into memory is folded in parts. The transaction around them makes them one.
"""

from __future__ import annotations

import itertools
import shlex

import duckdb
import numpy as np
import pyarrow as pa

from replicator.model.errors import SchemaConflictError
from replicator.model.events import SEQUENCE_NUM
from replicator.model.merged import Merged
from replicator.model.schema import TableSchema
from replicator.plugins.kit.columns import stored_columns
from replicator.plugins.kit.folding.arrow import net_changes, net_rows
from replicator.plugins.kit.folding.fold import NetChanges
from replicator.plugins.kit.folding.found import needed_columns, replacement
from replicator.plugins.kit.folding.multiset import NetRows
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.target import Batch, TargetTable
from replicator_target_duckdb import sql
from replicator_target_duckdb.types import LAYOUT


def merge(connection: duckdb.DuckDBPyConnection, table: TargetTable, batch: Batch) -> Merged:
    """Fold the batch and merge it.

    Raises:
        SchemaConflictError: The batch cannot be folded; the table has a key twice.
    """
    merged = Merged()
    try:
        if batch.schema.key:
            for net in net_changes(batch, table.options, LAYOUT, with_key_columns=True):
                merged += _merge_keyed(connection, table, batch, net)
        else:
            for rows in net_rows(batch, table.options, LAYOUT):
                merged += _merge_rows(connection, table, batch, rows)
    except EngineNeededError as error:
        raise SchemaConflictError(
            f"The batch cannot be merged: {error}.",
            code="schema_conflict",
            table=str(table.table),
            action=f"Recreate the table: replicator snapshot NAME {shlex.quote(str(table.table))} --recreate.",
        ) from error
    return merged


def _merge_keyed(connection: duckdb.DuckDBPyConnection, table: TargetTable, batch: Batch, net: NetChanges) -> Merged:
    """Replace the rows at the keys of the batch."""
    if net.is_append:
        _insert(connection, table, batch.schema, net.rows)
        return Merged(inserted=net.rows.num_rows)
    found = _rows_at(connection, table, batch.schema, net)
    stored = found.drop_columns(["row", "n"]).rename_columns(list(needed_columns(net, table.options)))
    positions = found.column("n").to_numpy()
    rows, merged = replacement(net, positions, stored, table.options, expects_rows=batch.expects_rows)
    connection.register("ids", found.select(["row"]))
    connection.execute(f"DELETE FROM {sql.path_of(table.table)} WHERE rowid IN (SELECT row FROM ids)")
    connection.unregister("ids")
    _insert(connection, table, batch.schema, rows)
    return merged


def _rows_at(
    connection: duckdb.DuckDBPyConnection, table: TargetTable, schema: TableSchema, net: NetChanges
) -> pa.Table:
    """Return the rows at the keys of the batch: their identity, the number of the key, and the columns that the batch needs of them."""
    columns = ["t.rowid AS row", "k.n AS n"]
    columns += [f"t.{sql.quoted(name)} AS v{i}" for i, name in enumerate(needed_columns(net, table.options))]
    keys = {f"k{i}": values for i, values in enumerate(net.key_columns)}
    at_key = " AND ".join(f"t.{sql.quoted(name)} = k.k{i}" for i, name in enumerate(schema.key))
    connection.register("keys", pa.table({"n": pa.array(np.arange(len(net.keys))), **keys}))
    found = connection.execute(
        f"SELECT {', '.join(columns)} FROM {sql.path_of(table.table)} t JOIN keys k ON {at_key}"
    ).to_arrow_table()
    connection.unregister("keys")
    return found


def _merge_rows(connection: duckdb.DuckDBPyConnection, table: TargetTable, batch: Batch, net: NetRows) -> Merged:
    """Remove of a table without a key as many equal rows as were deleted, the newest first, and add the new ones."""
    path, columns = sql.path_of(table.table), batch.schema.columns
    taken = {column.name.casefold() for column in columns}
    number, wanted = itertools.islice((name for n in itertools.count() if (name := f"n{n}") not in taken), 2)
    lost = net.removed.append_column(number, pa.array(np.arange(len(net.times))))
    connection.register("lost", lost.append_column(wanted, pa.array(net.times)))
    deleted = _number(
        connection,
        f"DELETE FROM {path} WHERE rowid IN (SELECT id FROM (SELECT t.rowid AS id, l.{wanted} AS wanted, row_number() OVER "
        f"(PARTITION BY l.{number} ORDER BY t.{SEQUENCE_NUM} DESC) AS nth FROM {path} t JOIN lost l"
        f" ON {sql.is_same('t', 'l', columns)}) WHERE nth <= wanted)",
    )
    connection.unregister("lost")
    _insert(connection, table, batch.schema, net.added)
    missing = int(net.times.sum()) - deleted
    return Merged(inserted=net.added.num_rows, deleted=deleted, not_found=missing if batch.expects_rows else 0)


def _insert(connection: duckdb.DuckDBPyConnection, table: TargetTable, schema: TableSchema, rows: pa.Table) -> None:
    names = ", ".join(map(sql.quoted, stored_columns(schema, table.options)))
    connection.register("rows", rows)
    connection.execute(f"INSERT INTO {sql.path_of(table.table)} ({names}) SELECT {names} FROM rows")
    connection.unregister("rows")


def _number(connection: duckdb.DuckDBPyConnection, statement: str) -> int:
    found = connection.execute(statement).fetchone()
    assert found is not None, "one row with one number"
    return int(found[0])
