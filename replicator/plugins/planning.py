"""Optional interface of sources and targets: forecasts of what replicating tables will take, for `replicator plan FILE`.

A source gives its server's statistics and a bounded sample of rows. Only reads are executed there. A target's settings give the cost of
a table in the target, without any connection.
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
    """The server's statistics of a table.

    Attributes:
        rows: Number of its rows.
        bytes: Size of its rows on the server's disk, without indexes.
        changes: Number of rows that were inserted, updated or deleted since `SourceStatistics.changes_since`.
    """

    rows: Figure
    bytes: Figure
    changes: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatistics:
    """The server's statistics.

    Attributes:
        at: Time of the server's clock.
        tables: Statistics by table; those that do not exist are missing.
        changes_since: Time since which changes of rows are counted; None: unknown, so only two readings tell their number.
        log_bytes: Bytes that were written into the log since `log_since`.
        log_since: Time since which they are counted; None: unknown.
        log_kept_bytes: Bytes of its log that the server keeps at most for a reader that has stopped; None: no such limit.
        log_kept_for: Time for which it keeps its log, even if a reader still needs it; None: no such limit.
        log_kept_how: The setting with this limit.
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
    """Some rows of a table: the fields of `schema.row_type`. `is_whole`: they are all of its rows."""

    rows: pa.RecordBatch
    is_whole: bool


class SupportsPlanning(ABC):
    """A source that can estimate how much there is to replicate. Its log is not open, and nothing was prepared for it."""

    @abstractmethod
    def statistics(self, tables: Sequence[TableId]) -> SourceStatistics:
        """Return the server's statistics now. Reads the catalogue; no lock is waited for. A figure that is not available is unknown.

        Called from the control thread, twice: the difference tells the growth of the counters.
        """

    @abstractmethod
    def sample(self, schema: TableSchema, rows: int) -> RowSample:
        """Read at most this many rows, in the order and the way in which a snapshot reads them. Changes nothing in the source.

        Called from the chunk reader's thread. Fewer rows than asked for if the table has no more, or if they would take too much memory.

        Raises:
            As `SourceChunks.read_chunk`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLoad:
    """Load of a table that a target will have to take.

    Attributes:
        schema: Its schema.
        sample: Some of its rows, the fields of `schema.row_type`; None if none could be read.
        rows: Number of its rows.
        row_bytes: Bytes of a row in the journal's Parquet files.
        changes_per_day: Number of its rows that change.
        merges_per_day: Number of batches in which they are applied.
    """

    schema: TableSchema
    sample: pa.RecordBatch | None
    rows: Figure
    row_bytes: Figure
    changes_per_day: Figure
    merges_per_day: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCost:
    """Cost of a table in the target.

    Attributes:
        bytes: Its size there, once the snapshot is complete.
        written_per_day: Bytes that batches write.
        billed_per_day: Bytes that are billed for batches; None: none are.
    """

    bytes: Figure
    written_per_day: Figure
    billed_per_day: Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A documented price. `how`: the priced item, where it is documented and as of when."""

    usd_per_tib: float
    how: str


@runtime_checkable
class SupportsTargetPlanning(Protocol):
    """Settings of a target that can estimate the cost of tables there. Asked without any connection."""

    @abstractmethod
    def table_cost(self, load: TableLoad) -> TableCost:
        """Return the cost of a table in the target."""

    @abstractmethod
    def price(self) -> Price | None:
        """Return the price of a TiB of `TableCost.billed_per_day`; None if nothing is billed."""

    @abstractmethod
    def planned_problems(self, billed_per_day: Figure, merges_per_day: Figure) -> Sequence[Problem]:
        """Return problems of these settings with the load of all tables."""
