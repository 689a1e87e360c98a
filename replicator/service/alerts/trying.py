"""`alert test`: sends test messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import uuid4

from replicator.model.documents.alerts import AlertEvent, AlertMessage, AlertNotice
from replicator.model.errors import ConfigError
from replicator.service.alerts.delivery import deliver
from replicator.service.alerts.settings import alert_settings
from replicator.service.configuring.stored import find
from replicator.state.store import StateStore


def try_channels(store: StateStore, name: str, channels: Sequence[str]) -> Mapping[str, str | None]:
    """Send a test message to some channels of a replicator, or to all; return for each the reason why it was not taken, or None.

    Raises:
        ConfigError: `unknown_replicator`, `alerts_not_readable`, `unknown_channel`: there is none of that name, or none at all.
    """
    record = find(store, name)
    known = alert_settings(record).channels
    if unknown := [channel for channel in channels if channel not in known]:
        raise ConfigError(
            f"{name} has no channel {unknown[0]!r} for alerts.",
            code="unknown_channel",
            action=f"Its channels: {', '.join(sorted(known)) or 'none'}.",
        )
    if not known:
        raise ConfigError(
            f"{name} has no channel for alerts.",
            code="unknown_channel",
            action="Add one under `alerts:` (docs/alerts.md), then run: replicator reload FILE",
        )
    now = store.now()
    text = f"{name}: this is a test. Nothing is wrong."
    notice = AlertNotice(event=AlertEvent.TEST, kind=None, message=text, since=now)
    message = AlertMessage(
        replicator=name, uuid=record.uuid, created_at=now, is_test=True, summary=text, alerts=(notice,)
    )
    return {channel: deliver(known[channel], message, f"test-{uuid4()}", now) for channel in channels or sorted(known)}
