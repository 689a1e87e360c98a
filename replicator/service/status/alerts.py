"""Alerts in the status."""

from __future__ import annotations

from collections import Counter

from replicator.model.documents.status import AlertsStatus, ChannelStatus, OpenAlertStatus
from replicator.state.alert_records import ChannelRecord
from replicator.state.records import ReplicatorRecord
from replicator.state.store import StateStore
from replicator.state.watches import WatchJob


def of_replicator(store: StateStore, record: ReplicatorRecord) -> AlertsStatus | None:
    """Return the alerts of one replicator; None if its configuration has none."""
    if "alerts" not in record.config:
        return None
    # Loaded only if there may be some: the configuration's models take their time.
    from replicator.service.alerts.settings import has_alerts

    if not has_alerts(record.config):
        return None
    found = store.alerts.read(record.name)
    waiting = Counter(message.channel for message in found.messages)
    return AlertsStatus(
        watcher=store.watches.holder(record.name, WatchJob.ALERTS),
        open=tuple(
            OpenAlertStatus(
                kind=alert.kind,
                table=alert.table,
                message=alert.message,
                since=alert.opened_at or alert.since,
                is_told=alert.is_told,
            )
            for alert in sorted(found.alerts, key=lambda alert: (alert.kind, alert.table or ""))
            if alert.is_open
        ),
        channels=tuple(
            _channel(name, found.channels.get(name, ChannelRecord()), waiting[name])
            for name in sorted({*found.channels, *waiting})
        ),
    )


def _channel(name: str, record: ChannelRecord, waiting: int) -> ChannelStatus:
    return ChannelStatus(
        channel=name,
        sent_at=record.sent_at,
        waiting=waiting,
        failures=record.failures,
        given_up=record.given_up,
        error=record.error,
        failed_at=record.failed_at,
    )
