"""What sources and targets may be able to do besides: say what replicating tables will take, for `replicator plan FILE`.

A source gives its server's statistics and a bounded sample of rows. Nothing is executed there but reads. A target's settings say what a
table will take in the target, without any connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

import pyarrow as pa

from replicator.model.errors import Problem
from replicator.model.figures import Figure, unknown
from replicator.model.schema import TableId, TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatistics:
    """What the server's statistics say of a table.

    Attributes:
        rows: How many it has.
        bytes: What its rows take on the server's disk, without indexes.
        changes: How many rows were inserted, updated or deleted, ever since `SourceStatistics.changes_since`.
    """

    rows: Figure
    bytes: Figure
    changes: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatistics:
    """What the server's statistics say.

    Attributes:
        at: The server's clock.
        tables: By table; those that do not exist are missing.
        changes_since: Since when changes of rows are counted; None: unknown, so that only two readings tell how many there are.
        log_bytes: How many bytes were written into the log, ever since `log_since`.
        log_since: Since when they are counted; None: unknown.
        log_kept_bytes: How much of its log the server keeps at most for a reader that has stopped; None: no such limit.
        log_kept_for: How long it keeps its log, even if a reader still needs it; None: no such limit.
        log_kept_how: The setting that says so.
    """

    at: datetime
    tables: Mapping[TableId, TableStatistics]
    changes_since: datetime | None = None
    log_bytes: Figure = field(default_factory=lambda: unknown("the source does not say"))
    log_since: datetime | None = None
    log_kept_bytes: int | None = None
    log_kept_for: timedelta | None = None
    log_kept_how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSample:
    """Some rows of a table: the fields of `schema.row_type`. `is_whole`: it has no others."""

    rows: pa.RecordBatch
    is_whole: bool


class SupportsPlanning(ABC):
    """A source that can say beforehand how much there is to replicate. Its log is not open, and nothing was prepared for it."""

    @abstractmethod
    def statistics(self, tables: Sequence[TableId]) -> SourceStatistics:
        """What the server's statistics say now. Reads the catalogue; no lock is waited for. A figure that is not to be had is unknown.

        Called from the control thread, twice: the difference tells how fast the counters grow.
        """

    @abstractmethod
    def sample(self, schema: TableSchema, rows: int) -> RowSample:
        """Read at most so many rows, in the order in which a snapshot reads them, and as it does. Changes nothing in the source.

        Called from the chunk reader's thread. Fewer rows than asked for if the table has no more, or if they would take too much memory.

        Raises:
            As `SourceChunks.read_chunk`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLoad:
    """What a target will have to take of a table.

    Attributes:
        schema: Its shape.
        sample: Some of its rows, the fields of `schema.row_type`; None if none could be read.
        rows: How many it has.
        row_bytes: What a row takes in the journal's Parquet files.
        changes_per_day: How many of its rows change.
        merges_per_day: In how many batches they are applied.
    """

    schema: TableSchema
    sample: pa.RecordBatch | None
    rows: Figure
    row_bytes: Figure
    changes_per_day: Figure
    merges_per_day: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCost:
    """What a table takes in the target.

    Attributes:
        bytes: Its size there, once the snapshot is complete.
        written_per_day: Bytes that batches write.
        billed_per_day: Bytes that somebody bills for batches; None: nobody does.
    """

    bytes: Figure
    written_per_day: Figure
    billed_per_day: Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A documented price. `how`: of what, where it is documented and as of when."""

    usd_per_tib: float
    how: str


@runtime_checkable
class SupportsTargetPlanning(Protocol):
    """Settings of a target that can say what tables will take there. Asked without any connection."""

    @abstractmethod
    def table_cost(self, load: TableLoad) -> TableCost:
        """What a table takes in the target."""

    @abstractmethod
    def price(self) -> Price | None:
        """What a TiB of `TableCost.billed_per_day` costs; None if nothing is billed."""

    @abstractmethod
    def planned_problems(self, billed_per_day: Figure, merges_per_day: Figure) -> Sequence[Problem]:
        """What of these settings does not go together with what all tables will take."""
