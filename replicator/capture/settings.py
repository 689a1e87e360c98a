"""Bounds of capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pyarrow as pa

from replicator.config import ReplicatorConfig
from replicator.config.model import DDLConfig
from replicator.model.schema import TableId
from replicator.projection.rules import ColumnRules, rules_for

Widens = Callable[[pa.DataType, pa.DataType], bool]
"""True if the target gives a column of the first type the second one in place (`DeltaTarget.widens`)."""


def never_widens(before: pa.DataType, after: pa.DataType) -> bool:  # noqa: ARG001
    """Of a target that rebuilds the table."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """Bounds and policies of one capture.

    Attributes:
        snapshot_mode: `initial`: a snapshot, then changes; `never`: changes only; `only`: ends once every table has
            its snapshot.
        chunk_rows: Rows of a chunk.
        chunks_ahead: Chunks that may have been read and not yet emitted.
        chunk_retries: How often a chunk that failed for a passing reason is read again before the error is raised.
        chunk_backoff_s, chunk_backoff_max_s: How long the first and the longest of the waits before a chunk is read
            again.
        give_up_after_s: For how long a table is tried whose snapshot cannot be read for a reason of its own; then it fails.
        keys_max: Keys remembered to be read as a last chunk; beyond it the table is read once more.
        pull_rows, pull_bytes, pull_wait_s: Bounds of one pull.
        snapshot_wait_s: The same wait while snapshots run: chunks that were read are taken in between pulls.
        seal_rows, seal_bytes: The journal is sealed at the end of the transaction that reaches one of them.
        seal_every_s: While the log is busy, sealed at least so often.
        seal_gap_s: Once the log is idle, sealed at once, but not more often than this.
        idle_seal_s: How often a position in the log without rows is sealed.
        compare_every_s: How often the source's catalogue is compared with what is tracked.
        check_every_s: How often the source is asked what would keep the tables from being replicated right.
        cure_every_s: How often the source is asked whether tables that have failed may continue.
        check_target_every_s: How often the target is asked; less often, because a warehouse limits or bills what is asked of each table.
        retention_every_s, measure_every_s, request_every_s, report_every_s: How often the journal is swept, the source
            measured, requests looked for, the status reported.
        keep_alive_s: How often the open log is kept alive while it is not being pulled.
        unexplained_change: What happens when a table became another object without a trace in the log.
        ddl: The policies of a table for changes of its definition.
        selects: Whether the patterns of the configuration select a table of this name.
        rename_starts_new_table: Whether a table that is renamed is replicated under its new name, too.
        spool: Folder for what waits on local disk.
        widens: What the target can do to a column's type.
    """

    snapshot_mode: Literal["initial", "never", "only"]
    chunk_rows: int
    chunks_ahead: int
    chunk_retries: int
    chunk_backoff_s: float
    chunk_backoff_max_s: float
    give_up_after_s: float
    keys_max: int
    pull_rows: int
    pull_bytes: int
    pull_wait_s: float
    snapshot_wait_s: float
    seal_rows: int
    seal_bytes: int
    seal_every_s: float
    seal_gap_s: float
    idle_seal_s: float
    compare_every_s: float
    check_every_s: float
    cure_every_s: float
    check_target_every_s: float
    retention_every_s: float
    measure_every_s: float
    request_every_s: float
    report_every_s: float
    keep_alive_s: float
    unexplained_change: Literal["resnapshot", "stop"]
    ddl: Callable[[TableId], DDLConfig]
    selects: Callable[[TableId], bool]
    rename_starts_new_table: Callable[[TableId], bool]
    columns: Callable[[TableId], ColumnRules]
    spool: Path
    widens: Widens

    @classmethod
    def of(cls, config: ReplicatorConfig, *, spool: Path) -> CaptureSettings:
        """The settings of a configuration; what users cannot set has its one value here."""
        return cls(
            snapshot_mode=config.snapshot.mode,
            chunk_rows=config.snapshot.chunk_rows,
            chunks_ahead=2,
            chunk_retries=8,
            chunk_backoff_s=0.05,
            chunk_backoff_max_s=5.0,
            give_up_after_s=config.retry.give_up_after.total_seconds(),
            keys_max=100_000,
            pull_rows=50_000,
            pull_bytes=16 << 20,
            pull_wait_s=0.2,
            snapshot_wait_s=0.02,
            seal_rows=1_000_000,
            seal_bytes=256 << 20,
            seal_every_s=config.journal.seal_every.total_seconds(),
            seal_gap_s=config.journal.seal_every.total_seconds(),
            idle_seal_s=2.0,
            compare_every_s=60.0,
            check_every_s=60.0,
            cure_every_s=15.0,
            check_target_every_s=600.0,
            retention_every_s=10.0,
            measure_every_s=10.0,
            request_every_s=1.0,
            report_every_s=1.0,
            keep_alive_s=5.0,
            unexplained_change=config.snapshot.unexplained_change,
            ddl=config.ddl_for,
            selects=cache(lambda table: bool(config.tables.select([table]).tables)),
            rename_starts_new_table=lambda table: config.tables.options_for(table).rename_starts_new_table,
            columns=cache(lambda table: rules_for(table, config.tables.settings)),
            spool=spool,
            widens=never_widens,
        )
