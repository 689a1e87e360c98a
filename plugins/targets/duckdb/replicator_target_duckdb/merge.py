"""A batch, folded in Arrow and merged by DuckDB's SQL, inside a transaction of the caller's.

The batch is merged in parts, so that what stands in memory at once has a bound, however large the source's transaction was. The
transaction around them makes them one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.errors import SchemaConflictError
from replicator.model.events import BEFORE, IS_DELETED, ROW, SEQUENCE_NUM
from replicator.model.merged import Merged
from replicator.model.schema import TableSchema
from replicator.plugins.kit.folding import stored_columns
from replicator.plugins.kit.lake import found as kit
from replicator.plugins.kit.lake.fold import key_form, read_changes, rows_of
from replicator.plugins.kit.lake.needed import EngineNeededError
from replicator.plugins.kit.lake.work import Work, work_of
from replicator.plugins.target import Batch, BatchFile, TargetTable
from replicator_target_duckdb import sql
from replicator_target_duckdb.types import LAYOUT

_PART_BYTES: Final = 32 << 20
"""Journal bytes (compressed) that are folded at once; a larger file is one part."""


def merge(connection: duckdb.DuckDBPyConnection, table: TargetTable, batch: Batch) -> Merged:
    """Fold the batch and merge it.

    Raises:
        SchemaConflictError: The batch cannot be folded; the table has a key twice.
    """
    merged = Merged()
    try:
        for part in _parts(batch):
            merged += (
                _merge_keyed(connection, table, part) if batch.schema.key else _merge_rows(connection, table, part)
            )
    except EngineNeededError as error:
        raise SchemaConflictError(
            f"The batch cannot be merged: {error}.",
            code="schema_conflict",
            table=str(table.table),
            action=f"Recreate the table: replicator snapshot NAME {shlex.quote(str(table.table))} --recreate.",
        ) from error
    return merged


def _parts(batch: Batch) -> Iterator[Batch]:
    """The batch in parts of whole files."""
    files: list[BatchFile] = []
    size = 0
    for file in batch.files:
        if files and size + file.bytes > _PART_BYTES:
            yield replace(batch, files=files)
            files, size = [], 0
        files.append(file)
        size += file.bytes
    yield replace(batch, files=files)


def _merge_keyed(connection: duckdb.DuckDBPyConnection, table: TargetTable, batch: Batch) -> Merged:
    """Rows at the keys of the batch are replaced."""
    work = work_of(table, batch, key_form(batch.schema, LAYOUT), LAYOUT, with_key_columns=True)
    if work.folded is None:
        _insert(connection, table, batch.schema, work.rows)
        return Merged(inserted=work.rows.num_rows)
    hits = _rows_at(connection, table, work)
    found = kit.found_at(work.folded, hits, table.options, _read)
    rows = work.rows
    if not work.is_complete:
        rows, _ = kit.complete(work.folded, found, _read)
    _delete(connection, table, hits[0].file.column("rowid"))
    _insert(connection, table, batch.schema, rows)
    return kit.merged(work.folded, found, expects_rows=batch.expects_rows)


def _rows_at(connection: duckdb.DuckDBPyConnection, table: TargetTable, work: Work) -> Sequence[kit.FileHits[pa.Table]]:
    """What the table holds at the keys of the batch, as one file of the kit's: the columns that the batch may need of it."""
    assert work.folded is not None, "only asked for a batch that is folded"
    key, folded = work.batch.schema.key, work.folded
    needed = [*folded.lacking, *folded.kept, *([IS_DELETED] if table.options.deletes == "soft" else [])]
    columns = [
        "t.rowid AS rowid, k.n AS n",
        *(f"t.{sql.quoted(name)} AS {sql.quoted('v:' + name)}" for name in needed),
    ]
    keys = {f"k{i}": values for i, values in enumerate(folded.key_columns)}
    at_key = " AND ".join(f"t.{sql.quoted(name)} = k.k{i}" for i, name in enumerate(key))
    connection.register("keys", pa.table({"n": pa.array(np.arange(len(folded.keys))), **keys}))
    found = connection.execute(
        f"SELECT {', '.join(columns)} FROM {sql.path_of(table.table)} t JOIN keys k ON {at_key}"
    ).to_arrow_table()
    connection.unregister("keys")
    positions = found.column("n").to_numpy()
    return [kit.FileHits(file=found, positions=positions, rows=np.arange(found.num_rows))]


def _read(found: pa.Table, rows: npt.NDArray[np.int64], fields: Sequence[pa.Field]) -> pa.Table:
    """Some columns of rows that were found."""
    picked = found.select([f"v:{field.name}" for field in fields]).take(pa.array(rows))
    return picked.rename_columns([field.name for field in fields]).cast(pa.schema(fields))


def _merge_rows(connection: duckdb.DuckDBPyConnection, table: TargetTable, batch: Batch) -> Merged:
    """Of a table without a key as many equal rows are removed as were deleted, the newest first, and the new ones are added.

    Of the changes with one value, in their order, each removal takes back the latest addition of the batch that is left; those that find
    none remove rows of the table. So with the running sum of additions (+1) and removals (-1), its minimum is what the table loses, and an
    addition stays if the sum never falls below what it was with it.
    """
    changes, schema = read_changes(batch), batch.schema
    added = _rows(changes, schema, table, ROW)
    if batch.is_append:
        _insert(connection, table, schema, added)
        return Merged(inserted=added.num_rows)
    path, names = sql.path_of(table.table), ", ".join(map(sql.quoted, stored_columns(schema, table.options)))
    equal = f"PARTITION BY {sql.distinct_by(schema.columns)} ORDER BY _at"
    connection.register("added", added)
    connection.register("removed", _rows(changes, schema, table, BEFORE))
    # An UPDATE takes its old row away before it adds the new one.
    connection.execute(
        f"CREATE TEMP TABLE touched AS SELECT *, sum(_step) OVER ({equal}) AS _sum FROM ("
        f"SELECT {names}, 2 * {SEQUENCE_NUM} + 1 AS _at, 1 AS _step FROM added UNION ALL "
        f"SELECT {names}, 2 * {SEQUENCE_NUM} AS _at, -1 AS _step FROM removed)"
    )
    # One row of each value that the table loses, with how many of it.
    connection.execute(
        f"CREATE TEMP TABLE lost AS SELECT * EXCLUDE (_least), -_least AS _wanted FROM (SELECT *, min(_sum) OVER "
        f"(PARTITION BY {sql.distinct_by(schema.columns)}) AS _least, row_number() OVER ({equal}) AS _nth FROM touched)"
        f" WHERE _nth = 1 AND _least < 0"
    )
    connection.execute(
        f"CREATE TEMP TABLE doomed AS SELECT id FROM (SELECT t.rowid AS id, l._wanted AS wanted, row_number() OVER "
        f"(PARTITION BY l._at ORDER BY t.{SEQUENCE_NUM} DESC) AS nth FROM {path} t JOIN lost l"
        f" ON {sql.is_same('t', 'l', schema.columns)}) WHERE nth <= wanted"
    )
    wanted = _number(connection, "SELECT coalesce(sum(_wanted), 0)::BIGINT FROM lost")
    deleted = _number(connection, f"DELETE FROM {path} WHERE rowid IN (SELECT id FROM doomed)")
    inserted = _number(
        connection,
        f"INSERT INTO {path} ({names}) SELECT {names} FROM (SELECT *, min(_sum) OVER ({equal}"
        f" ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS _least FROM touched) WHERE _step = 1 AND _least >= _sum",
    )
    for temporary in ("touched", "lost", "doomed"):
        connection.execute(f"DROP TABLE temp.{temporary}")
    for view in ("added", "removed"):
        connection.unregister(view)
    return Merged(inserted=inserted, deleted=deleted, not_found=wanted - deleted if batch.expects_rows else 0)


def _rows(changes: pa.Table, schema: TableSchema, table: TargetTable, struct: str) -> pa.Table:
    """The rows that the changes add (`row`) or remove (`before`), with all columns of the table."""
    rows = changes.filter(pc.is_valid(changes.column(struct)))
    if struct == BEFORE:
        at = rows.column_names.index(ROW)
        values = rows.column(BEFORE).combine_chunks()
        fields = {field.name for field in values.type}
        lacking = [name for name in schema.fields.values() if name not in fields]
        if lacking:
            raise EngineNeededError(f"a removed row lacks the columns {', '.join(lacking)}")
        rows = rows.set_column(at, ROW, values)
    return rows_of(rows, schema, table.options, LAYOUT)


def _delete(connection: duckdb.DuckDBPyConnection, table: TargetTable, ids: pa.ChunkedArray) -> None:
    connection.register("ids", pa.table({"id": ids}))
    connection.execute(f"DELETE FROM {sql.path_of(table.table)} WHERE rowid IN (SELECT id FROM ids)")
    connection.unregister("ids")


def _insert(connection: duckdb.DuckDBPyConnection, table: TargetTable, schema: TableSchema, rows: pa.Table) -> None:
    names = ", ".join(map(sql.quoted, stored_columns(schema, table.options)))
    connection.register("rows", rows)
    connection.execute(f"INSERT INTO {sql.path_of(table.table)} ({names}) SELECT {names} FROM rows")
    connection.unregister("rows")


def _number(connection: duckdb.DuckDBPyConnection, statement: str) -> int:
    found = connection.execute(statement).fetchone()
    assert found is not None, "one row with one number"
    return int(found[0])
