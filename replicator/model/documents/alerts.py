"""Alerts: messages to a channel when something is wrong, and when it is right again."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

VERSION: Final = 1


class AlertKind(StrEnum):
    """Problem that an alert is about."""

    NO_WORKER = "no_worker"
    """The replicator should run, and no worker runs it."""
    NO_HEARTBEAT = "no_heartbeat"
    """The source's log delivers nothing, not even heartbeats."""
    REPLICATOR_FAILED = "replicator_failed"
    TABLE_FAILED = "table_failed"
    """The table failed, or was dropped in the source."""
    TABLE_ALARM = "table_alarm"
    """The target table may differ from its source."""
    OBJECTIVE_BREACHED = "objective_breached"
    """A table does not meet its freshness objective."""
    SOURCE_LOG_HEADROOM = "source_log_headroom"
    """The source will soon discard log that is still needed."""
    JOURNAL_DISK = "journal_disk"
    """The journal, or its disk, is almost full."""


class AlertEvent(StrEnum):
    """Event in the life of an alert."""

    OPENED = "opened"
    REMINDER = "reminder"
    RECOVERED = "recovered"
    TEST = "test"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AlertNotice(_Model):
    """One alert of a message. `since`: its beginning; `ended_at`: its end."""

    event: AlertEvent
    kind: AlertKind | None = Field(description="None for a test.")
    table: str | None = None
    code: str | None = None
    message: str
    action: str | None = None
    since: AwareDatetime
    ended_at: AwareDatetime | None = None


class AlertMessage(_Model):
    """Message to a channel: docs/alerts.md describes it for those who receive it."""

    version: Literal[1] = VERSION
    replicator: str
    uuid: str
    created_at: AwareDatetime
    is_digest: bool = False
    is_test: bool = False
    summary: str
    alerts: tuple[AlertNotice, ...]
    left_out: int = Field(0, description="Number of alerts that are not listed, because there are too many.")
