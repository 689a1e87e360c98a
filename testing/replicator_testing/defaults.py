"""The inner settings of a configuration without settings: tests run what users run, and name what they change."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from replicator.apply import ApplySettings
from replicator.capture import CaptureSettings
from replicator.config import ReplicatorConfig, RetryConfig
from replicator.journal import WriterLimits
from replicator.model.documents.status import VerifiedTableStatus
from replicator.model.schema import TableSchema
from replicator.plugins.source import ChunkRequest
from replicator.plugins.target import TargetContext
from replicator.runtime.policy import RetryBudget, RetryLimits

CONFIG: Final = ReplicatorConfig(name="shop")
MAX_WAIT_S: Final = 5.0
AT_ONCE: Final = RetryConfig(
    give_up_after=timedelta(0), backoff_initial=timedelta(milliseconds=1), backoff_max=timedelta(milliseconds=1)
)
"""Gives up at the first error."""

NEVER_VERIFIED: Final = VerifiedTableStatus(
    ranges_proven=0,
    ranges_total=None,
    not_compared=(),
    verify_age_seconds=None,
    proven_at=None,
    proven_position=None,
    result=None,
    verified_at=None,
    position=None,
    rows=None,
    reason=None,
)
"""Status of a table that was never verified."""


def capture_settings(**changes: Any) -> CaptureSettings:
    """Return capture's settings; data that waits on disk is in the system's folder for temporary files."""
    return replace(CaptureSettings.of(CONFIG, spool=Path(tempfile.gettempdir())), **changes)


def apply_settings(retry: RetryConfig = CONFIG.retry, **changes: Any) -> ApplySettings:
    """Return apply's settings."""
    limits = RetryLimits.of(retry)
    settings = ApplySettings.of(CONFIG, max_wait_s=MAX_WAIT_S, patience=lambda: RetryBudget(limits=limits))
    return replace(settings, **changes)


def writer_limits(**changes: int) -> WriterLimits:
    """Return the journal writer's limits."""
    return replace(WriterLimits.of(CONFIG.journal), **changes)


def chunk_request(schema: TableSchema, **parts: Any) -> ChunkRequest:
    """Return a request for a chunk of the default size."""
    return ChunkRequest(**{"schema": schema, "limit": CONFIG.snapshot.chunk_rows, **parts})


def target_context(replicator: str, **parts: Any) -> TargetContext:
    """Return the host's description for a target whose `apply.max_wait` is the default."""
    return TargetContext(**{"replicator": replicator, "max_wait_s": MAX_WAIT_S, **parts})
