"""Prepares a batch before the target's rows are looked up."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from replicator.plugins.kit.lake.fold import Folded, fold, read_changes, rows_of
from replicator.plugins.kit.lake.keys import KeyForm
from replicator.plugins.kit.lake.layout import Layout
from replicator.plugins.target import Batch, TargetTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A prepared batch.

    Attributes:
        table: The table.
        batch: The batch.
        form: The form of its keys.
        folded: One change per key; None: the rows are appended, and no row is looked up.
        rows: The rows to write, as complete as the batch has them (`is_complete`).
        keys: Keys of `rows`; none for an append.
    """

    table: TargetTable
    batch: Batch
    form: KeyForm
    folded: Folded | None
    rows: pa.Table
    keys: pa.Array

    @property
    def is_complete(self) -> bool:
        """Return whether the rows have all their values."""
        return self.folded is None or self.folded.is_complete


def work_of(table: TargetTable, batch: Batch, form: KeyForm, layout: Layout, *, with_key_columns: bool = False) -> Work:
    """Read and fold a batch.

    Args:
        table: The table.
        batch: The batch.
        form: The form of its keys (`key_form`).
        layout: Types of the table's data files.
        with_key_columns: See `fold`.

    Raises:
        TooLargeError: The batch does not fit into memory.
        EngineNeededError: The batch cannot be folded here.
    """
    changes = read_changes(batch)
    if batch.is_append:
        rows = rows_of(changes, batch.schema, table.options, layout)
        return Work(table=table, batch=batch, form=form, folded=None, rows=rows, keys=pa.array([], pa.int64()))
    folded = fold(
        changes,
        batch.schema,
        table.options,
        layout,
        has_key_changes=batch.has_key_changes,
        with_key_columns=with_key_columns,
    )
    rows, keys = folded.rows, folded.keys.filter(pa.array(folded.is_written))
    return Work(table=table, batch=batch, form=form, folded=folded, rows=rows, keys=keys)
