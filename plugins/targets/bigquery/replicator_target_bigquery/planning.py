"""The cost of tables in BigQuery, for `replicator plan`: sizes by its documented rules, and bytes that merges are billed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.errors import Problem, Severity
from replicator.model.figures import Basis, Figure, derived, product, unknown
from replicator.model.schema import Column, TableSchema
from replicator.plugins import format_size
from replicator.plugins.planning import Price, TableCost, TableLoad
from replicator_target_bigquery.types import JsonAs, target_type

PRICE: Final = Price(
    usd_per_tib=6.25,
    how="BigQuery's list price of on-demand queries in the US, USD 6.25 per TiB as of August 2025; other regions, editions and the first "
    "TiB of a month, which is free, differ",
)
MINIMUM_BYTES: Final = 10 << 20
"""The least that is billed for each table that a statement reads."""
# https://cloud.google.com/bigquery/docs/reference/standard-sql/data-types#data_type_sizes; NULL takes nothing.
_SIZES: Final[Mapping[str, int]] = {
    "BOOL": 1, "INT64": 8, "FLOAT64": 8, "NUMERIC": 16, "BIGNUMERIC": 32, "DATE": 8, "TIME": 8, "DATETIME": 8, "TIMESTAMP": 8,
}  # fmt: skip
_TEXT: Final = 2
"""Bytes of each text, in addition to its own."""
_OWN: Final = 8
"""Bytes of the column `_sequence_num` in each row."""


def table_cost(load: TableLoad, json_as: JsonAs) -> TableCost:
    """Estimate a table's size, and the bytes that its batches write and are billed: each merge the whole table, and its key once more."""
    sample = load.sample
    if sample is None or not sample.num_rows:
        missing = unknown(load.row_bytes.how)
        return TableCost(bytes=missing, written_per_day=missing, billed_per_day=missing)
    row, key = row_bytes(sample, load.schema, json_as), row_bytes(sample, load.schema, json_as, only=load.schema.key)
    sampled = f"{sample.num_rows:,} rows, by BigQuery's sizes of types"
    each = Figure(row + _OWN, Basis.MEASURED, sampled)
    size = product(f"rows times the size of a row ({sampled})", load.rows, each)
    written = product(f"changes times the size of a row ({sampled})", load.changes_per_day, each)
    if size.value is None or load.merges_per_day.value is None:
        return TableCost(bytes=size, written_per_day=written, billed_per_day=unknown(size.how))
    read = size.value * (1 + key / (row + _OWN)) if load.schema.key else size.value
    read_s = max(read, float(MINIMUM_BYTES)) + MINIMUM_BYTES
    how = f"merges times the whole table and its key once more, at least {format_size(2 * MINIMUM_BYTES)} each; less with partition_by"
    billed = derived(load.merges_per_day.value * read_s, how, load.merges_per_day, size)
    return TableCost(bytes=size, written_per_day=written, billed_per_day=billed)


def row_bytes(rows: pa.RecordBatch, schema: TableSchema, json_as: JsonAs, only: Sequence[str] | None = None) -> float:
    """Return the average bytes of a row, or of some columns of it."""
    fields = schema.fields
    wanted = [column for column in schema.columns if only is None or column.name in only]
    taken = sum(_column_bytes(rows.column(fields[c.name]), c, json_as) for c in wanted)
    return taken / int(rows.num_rows)


def problems(
    billed_per_day: Figure, merges_per_day: Figure, *, bytes_max: int | None, jobs_max: int
) -> Sequence[Problem]:
    """Find budgets that will be used up."""
    found = []
    if bytes_max is not None and billed_per_day.value is not None and billed_per_day.value > bytes_max:
        found.append(
            Problem(
                code="plan_budget",
                message=f"Batches will be billed up to {format_size(round(billed_per_day.value))} a day, and the limit is "
                f"{format_size(bytes_max)}: pauses between them grow.",
                location="target.budget.bytes_per_day",
                action="Raise apply.max_wait, or the limit.",
                severity=Severity.WARNING,
            )
        )
    if merges_per_day.value is not None and merges_per_day.value > jobs_max:
        found.append(
            Problem(
                code="plan_budget",
                message=f"Batches will need up to {merges_per_day.value:,.0f} load jobs a day, and the limit is {jobs_max:,}: pauses "
                "between them grow.",
                location="target.budget.load_jobs_per_day",
                action="Raise apply.max_wait, or the limit if the project's quota allows it.",
                severity=Severity.WARNING,
            )
        )
    return found


def _column_bytes(values: pa.Array, column: Column, json_as: JsonAs) -> float:
    type_ = target_type(column, json_as)
    held = len(values) - values.null_count
    if type_ in _SIZES:
        return float(held * _SIZES[type_])
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        return float(held * _TEXT + (pc.sum(pc.binary_length(values)).as_py() or 0))
    # Lists and wide decimals become text, whose length is about that of their values in memory.
    return float(held * _TEXT + values.nbytes)
