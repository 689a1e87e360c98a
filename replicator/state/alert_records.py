"""Immutable records of alerts in the state store."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from replicator.model.documents.alerts import AlertKind, AlertMessage

AlertKey = tuple[AlertKind, str | None]
"""Key of an alert: its kind, and the table if it is about one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRecord:
    """A problem, present or past, and the messages sent about it.

    Attributes:
        is_true: True if the problem was present at the last check.
        since: Time since which that is so.
        is_open: True if it is an alert: the problem lasted long enough, and was not absent for long enough since.
        opened_at: Beginning of the problem when it became an alert; None if it is none yet.
        is_told: True if the last message to the channels said that the problem is present.
        told_at: Time of that message.
        is_held: True if quiet hours kept the message back.
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
        """Return the key of the alert."""
        return self.kind, self.table


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessage:
    """A message that waits for its channel. `retry_at`: time of the next attempt; `id` grows."""

    id: int
    channel: str
    message: AlertMessage
    attempts: int = 0
    retry_at: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRecord:
    """Results of deliveries to a channel.

    Attributes:
        sent_at: Time of the last delivery that succeeded.
        failures: Attempts that failed since then.
        error, failed_at: Error and time of the last attempt that failed; None once one succeeded.
        given_up: Messages that were given up since then.
    """

    sent_at: datetime | None = None
    failures: int = 0
    error: str | None = None
    failed_at: datetime | None = None
    given_up: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertingState:
    """All records of a replicator's alerts."""

    alerts: tuple[AlertRecord, ...] = ()
    messages: tuple[WaitingMessage, ...] = ()
    channels: dict[str, ChannelRecord] = field(default_factory=dict)
