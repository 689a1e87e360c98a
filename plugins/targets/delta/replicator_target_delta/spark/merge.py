"""A batch as the merge that applies it: the folded rows, the statements, and the count of missing rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from replicator.plugins.target import Batch, TableOptions, TargetTable
from replicator.spark import reduce
from replicator_target_delta.log import history
from replicator_target_delta.spark import statements as merge


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """A merge that is ready to run.

    Attributes:
        source: The folded batch.
        statement: SQL that merges it, even if rows are missing.
        checked: SQL that fails if a row is missing (`errors.is_missing`); None: nothing is expected, or the counts alone tell.
        note: Counts the missing rows, for the commit (`history.note`).
    """

    source: DataFrame
    statement: str
    checked: str | None
    note: Callable[[], str]


def merging_of(session: Any, path: str, table: TargetTable, batch: Batch, changes: DataFrame) -> Merging:
    """Fold a batch for the table at `path`."""
    schema, options = batch.schema, table.options
    fields = [schema.fields[column.name] for column in schema.columns]
    rows = merge.target_rows(session, path, schema, options)
    if not schema.key:
        balance = reduce.reduce_multiset(changes, fields)
        return Merging(
            source=merge.multiset_source(balance, rows, schema),
            statement=merge.multiset_merge_statement(path, schema, options),
            checked=None,
            note=lambda: history.note(removals=merge.count_removals(balance)),
        )
    source = _folded(batch, changes, rows, fields, options)
    statement, checked = (
        merge.merge_statement(path, schema, options, has_absent=batch.has_absent, is_checked=is_checked)
        for is_checked in (False, True)
    )
    return Merging(
        source=source,
        statement=statement,
        checked=checked if batch.expects_rows else None,
        note=lambda: history.note(not_found=merge.count_missing(source, rows, schema)),
    )


def _folded(batch: Batch, changes: DataFrame, rows: DataFrame, fields: list[str], options: TableOptions) -> DataFrame:
    source = reduce.net_changes(changes, batch, options)
    is_lacking = batch.has_absent and batch.has_key_changes
    return reduce.fill_from_origin(source, rows, batch.schema.key_fields, fields) if is_lacking else source
