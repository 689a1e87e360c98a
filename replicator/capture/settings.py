"""What bounds capture."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

DDLPolicy = Literal["apply", "ignore", "stop"]


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
        compare_every_s: How often the source's catalogue is compared with what is followed.
        check_every_s: How often the source is asked what would keep the tables from being replicated right.
        retention_every_s, measure_every_s, request_every_s, report_every_s: How often the journal is swept, the source
            measured, requests looked for, the status reported.
        keep_alive_s: How often the open log is kept alive while it is not being pulled.
        unexplained_change: What happens when a table became another object without a trace in the log.
        truncate, drop_table: Policies of these changes.
        spool: Folder for what waits on local disk.
    """

    snapshot_mode: Literal["initial", "never", "only"] = "initial"
    chunk_rows: int = 50_000
    chunks_ahead: int = 2
    chunk_retries: int = 8
    chunk_backoff_s: float = 0.05
    chunk_backoff_max_s: float = 5.0
    give_up_after_s: float = 3600.0
    keys_max: int = 100_000
    pull_rows: int = 50_000
    pull_bytes: int = 16 << 20
    pull_wait_s: float = 0.2
    snapshot_wait_s: float = 0.02
    seal_rows: int = 1_000_000
    seal_bytes: int = 256 << 20
    seal_every_s: float = 0.5
    seal_gap_s: float = 0.05
    idle_seal_s: float = 2.0
    compare_every_s: float = 60.0
    check_every_s: float = 60.0
    retention_every_s: float = 10.0
    measure_every_s: float = 10.0
    request_every_s: float = 1.0
    report_every_s: float = 1.0
    keep_alive_s: float = 5.0
    unexplained_change: Literal["resnapshot", "stop"] = "resnapshot"
    truncate: DDLPolicy = "apply"
    drop_table: DDLPolicy = "ignore"
    spool: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
