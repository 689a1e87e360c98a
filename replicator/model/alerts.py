"""Alerts: what a channel is told when something is wrong, and when it is right again."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

VERSION: Final = 1


class AlertKind(StrEnum):
    """What can be wrong."""

    NO_WORKER = "no_worker"
    """It should run, and no worker runs it."""
    NO_HEARTBEAT = "no_heartbeat"
    """The source's log tells nothing, not even heartbeats."""
    REPLICATOR_FAILED = "replicator_failed"
    TABLE_FAILED = "table_failed"
    """It failed, or was dropped in the source."""
    TABLE_ALARM = "table_alarm"
    """The target table may differ from its source."""
    OBJECTIVE_BREACHED = "objective_breached"
    """A table does not meet its freshness objective."""
    SOURCE_LOG_HEADROOM = "source_log_headroom"
    """The source soon gives up log that is still needed."""
    JOURNAL_DISK = "journal_disk"
    """The journal, or its disk, is almost full."""


class AlertEvent(StrEnum):
    """What happened to an alert."""

    OPENED = "opened"
    REMINDER = "reminder"
    RECOVERED = "recovered"
    TEST = "test"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AlertNotice(_Model):
    """One alert of a message. `since`: when it began; `ended_at`: when it was right again."""

    event: AlertEvent
    kind: AlertKind | None = Field(description="None for a test.")
    table: str | None = None
    code: str | None = None
    message: str
    action: str | None = None
    since: AwareDatetime
    ended_at: AwareDatetime | None = None


class AlertMessage(_Model):
    """What a channel gets: docs/alerts.md describes it for those who receive it."""

    version: Literal[1] = VERSION
    replicator: str
    uuid: str
    created_at: AwareDatetime
    is_digest: bool = False
    is_test: bool = False
    summary: str
    alerts: tuple[AlertNotice, ...]
    left_out: int = Field(0, description="How many alerts are not listed, because there are too many.")
