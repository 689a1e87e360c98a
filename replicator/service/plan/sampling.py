"""Reads a bounded sample of a source's tables, and its statistics before and after. Nothing else is executed there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import pyarrow as pa
from pydantic import Field, NonNegativeFloat, NonNegativeInt

from replicator.capture.window import snapshot_changes
from replicator.journal.table_file import encoded_bytes
from replicator.model.documents.status import StatusModel
from replicator.model.errors import TableError, TransientError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.planning import SourceStatistics, SupportsPlanning

ROWS: Final = 20_000
SECONDS: Final = 10.0
"""Time after which no sample of another table is begun."""
COUNT_SECONDS: Final = 10.0
"""Time between two readings of a counter that says nothing by itself."""
COUNTED_MIN_S: Final = 600.0
"""Age below which a counter says less about a day than two readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLimits:
    """Limits on reading: rows of a table, and the time after which no further table is begun. `count_seconds`: see `sample`."""

    rows: int = ROWS
    seconds: float = SECONDS
    count_seconds: float = COUNT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSample:
    """Some rows of a table.

    Attributes:
        rows: The fields of `TableSchema.row_type`.
        seconds: Time that reading them and encoding them as journal files took.
        journal_bytes: Their size as journal files.
        is_whole: The table has no more rows.
    """

    rows: pa.RecordBatch
    seconds: float
    journal_bytes: int
    is_whole: bool


class SampleRead(StatusModel, title="SampleDocument"):
    """Rows that were read of the tables."""

    tables: NonNegativeInt = Field(description="Tables of which rows were read.")
    rows: NonNegativeInt = Field(description="Rows that were read.")
    bytes: NonNegativeInt = Field(description="Their size in memory.")
    seconds: NonNegativeFloat = Field(description="Time that reading took, in seconds.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Statistics and samples that were read.

    Attributes:
        before: The server's statistics at the beginning.
        after: The same at the end.
        samples: Samples by table.
        failed: Tables that could not be read, with the reason.
        seconds: Time of all samples.
    """

    before: SourceStatistics
    after: SourceStatistics
    samples: Mapping[TableId, TableSample] = field(default_factory=dict)
    failed: Mapping[TableId, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def read(self) -> SampleRead:
        """Return how much was read."""
        rows = [one.rows for one in self.samples.values()]
        return SampleRead(
            tables=len(rows),
            rows=sum(one.num_rows for one in rows),
            bytes=sum(one.nbytes for one in rows),
            seconds=self.seconds,
        )


def sample(
    source: SupportsPlanning,
    schemas: Sequence[TableSchema],
    limits: SampleLimits,
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Sampled:
    """Read the statistics, some rows of the largest tables, and the statistics again.

    If a counter does not say since when it counts, or began a moment ago, the two readings are `limits.count_seconds` apart.
    """
    tables = [schema.table for schema in schemas]
    before, begun = source.statistics(tables), clock()
    samples: dict[TableId, TableSample] = {}
    failed: dict[TableId, str] = {}
    for schema in _largest_first(schemas, before):
        if clock() - begun >= limits.seconds:
            break
        try:
            samples[schema.table] = _of_table(source, schema, limits.rows, clock)
        except (TableError, TransientError) as error:
            failed[schema.table] = f"[{error.code}] {error.message}"
    took = clock() - begun
    has_young = any(is_young(one, before.at) for one in (before.changes_since, before.log_since))
    if has_young and took < limits.count_seconds:
        wait(limits.count_seconds - took)
    return Sampled(before=before, after=source.statistics(tables), samples=samples, failed=failed, seconds=took)


def is_young(since: datetime | None, at: datetime) -> bool:
    """Return whether a counter that began then says too little about a day, or its start is unknown."""
    return since is None or (at - since).total_seconds() < COUNTED_MIN_S


def _largest_first(schemas: Sequence[TableSchema], known: SourceStatistics) -> Sequence[TableSchema]:
    def size(schema: TableSchema) -> float:
        found = known.tables.get(schema.table)
        return 0.0 if found is None else found.bytes.value or found.rows.value or 0.0

    return sorted(schemas, key=size, reverse=True)


def _of_table(source: SupportsPlanning, schema: TableSchema, rows: int, clock: Callable[[], float]) -> TableSample:
    # The first read of a table also opens the connection and asks the catalogue.
    source.sample(schema, 1)
    begun = clock()
    found = source.sample(schema, rows)
    encoded = encoded_bytes(snapshot_changes(schema, found.rows), schema) if found.rows.num_rows else 0
    return TableSample(rows=found.rows, seconds=clock() - begun, journal_bytes=encoded, is_whole=found.is_whole)
