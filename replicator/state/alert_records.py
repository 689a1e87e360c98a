"""What the state store holds of alerts, as immutable records."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from replicator.model.alerts import AlertKind, AlertMessage

AlertKey = tuple[AlertKind, str | None]
"""What an alert is about: its kind, and the table if it is about one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRecord:
    """Something that is or was wrong, and what was told of it.

    Attributes:
        is_true: Whether it was wrong when it was last looked at.
        since: Since when that is so.
        is_open: Whether it is an alert: it was wrong for long enough, and not right again for long enough.
        opened_at: Since when it was wrong when it became an alert; None if it is none yet.
        is_told: Whether the channels were last told that it is wrong.
        told_at: When.
        is_held: Quiet hours kept it from being told.
    """

    kind: AlertKind
    table: str | None
    message: str
    action: str | None
    code: str | None
    is_true: bool
    since: datetime
    is_open: bool = False
    opened_at: datetime | None = None
    is_told: bool = False
    told_at: datetime | None = None
    is_held: bool = False

    @property
    def key(self) -> AlertKey:
        """What it is about."""
        return self.kind, self.table


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessage:
    """A message that waits for its channel. `retry_at`: not before; `id` grows."""

    id: int
    channel: str
    message: AlertMessage
    attempts: int = 0
    retry_at: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRecord:
    """How deliveries to a channel went.

    Attributes:
        sent_at: Time of the last that succeeded.
        failures: How many attempts failed since.
        error, failed_at: Of the last attempt that failed; None once one succeeded.
        given_up: How many messages were given up since.
    """

    sent_at: datetime | None = None
    failures: int = 0
    error: str | None = None
    failed_at: datetime | None = None
    given_up: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertingState:
    """All that the store has of a replicator's alerts."""

    alerts: tuple[AlertRecord, ...] = ()
    messages: tuple[WaitingMessage, ...] = ()
    channels: dict[str, ChannelRecord] = field(default_factory=dict)
