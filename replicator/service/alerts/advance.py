"""State machine of alerts: turns stored alerts and current conditions into messages. Pure.

An alert is told when its state differs from what the channels were last told of it. Quiet hours only delay this: a condition that
was wrong and is right again at their end is not told at all, and one that is still wrong is told then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from replicator.config import AlertsConfig
from replicator.model.documents.alerts import AlertEvent, AlertMessage, AlertNotice
from replicator.service.alerts.conditions import SeenCondition, SeenConditions
from replicator.service.alerts.quiet import is_quiet
from replicator.state.alert_records import AlertKey, AlertRecord

NOTICES_MAX: Final = 200
"""Alerts that one message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """Result of a look. `notices` are to be told; `is_digest`: quiet hours had held some of them back."""

    changed: tuple[AlertRecord, ...]
    ended: tuple[AlertKey, ...]
    notices: tuple[AlertNotice, ...]
    is_digest: bool

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is to be stored."""
        return not self.changed and not self.ended


def advance(known: Iterable[AlertRecord], seen: SeenConditions, config: AlertsConfig, now: datetime) -> Advanced:
    """Compute the new state of alerts from the conditions seen now."""
    before = {record.key: record for record in known}
    changed: list[AlertRecord] = []
    ended: list[AlertKey] = []
    notices: list[AlertNotice] = []
    is_digest = False
    for key in sorted({*before, *seen.conditions}, key=lambda key: (key[0].value, key[1] or "")):
        was, condition = before.get(key), seen.conditions.get(key)
        if was is None:
            assert condition is not None, "it is known or seen"
            record = _begun(condition, now)
        elif condition is None and key[0] in seen.unknown:
            record = was
        else:
            record = _seen(was, condition, now)
        record = _opened_or_ended(record, config, now)
        record, event = _told(record, config, now)
        if event is not None:
            is_digest = is_digest or record.is_held
            record = replace(record, is_held=False)
            notices.append(_notice(record, event))
        if not record.is_true and not record.is_open and not record.is_told:
            if was is not None:
                ended.append(key)
        elif record != was:
            changed.append(record)
    return Advanced(changed=tuple(changed), ended=tuple(ended), notices=tuple(notices), is_digest=is_digest)


def messages(
    notices: Sequence[AlertNotice], config: AlertsConfig, *, replicator: str, uuid: str, now: datetime, is_digest: bool
) -> Mapping[str, AlertMessage]:
    """Return a message for each channel that gets some of the notices."""
    found = {}
    for name, channel in config.channels.items():
        wanted = tuple(notice for notice in notices if not channel.kinds or notice.kind in channel.kinds)
        if wanted:
            found[name] = AlertMessage(
                replicator=replicator,
                uuid=uuid,
                created_at=now,
                is_digest=is_digest,
                summary=summary(replicator, wanted),
                alerts=wanted[:NOTICES_MAX],
                left_out=max(0, len(wanted) - NOTICES_MAX),
            )
    return found


def summary(replicator: str, notices: Sequence[AlertNotice]) -> str:
    """Return one line that summarises the notices."""
    if len(notices) == 1:
        notice = notices[0]
        return f"{'Recovered: ' if notice.event is AlertEvent.RECOVERED else ''}{notice.message}"
    counts = {event: sum(notice.event is event for notice in notices) for event in AlertEvent}
    parts = [f"{count} {event.value}" for event, count in counts.items() if count]
    return f"{replicator}: {', '.join(parts)}."


def _begun(condition: SeenCondition, now: datetime) -> AlertRecord:
    return AlertRecord(
        kind=condition.kind,
        table=condition.table,
        message=condition.message,
        action=condition.action,
        code=condition.code,
        is_true=True,
        since=now,
    )


def _seen(was: AlertRecord, condition: SeenCondition | None, now: datetime) -> AlertRecord:
    """Update an alert after a look. While it is open it keeps its first text, unless it has another cause."""
    record = was
    if was.is_true is not (condition is not None):
        record = replace(record, is_true=condition is not None, since=now)
    if condition is not None and (not was.is_open or condition.code != was.code):
        record = replace(record, message=condition.message, action=condition.action, code=condition.code)
    return record


def _opened_or_ended(record: AlertRecord, config: AlertsConfig, now: datetime) -> AlertRecord:
    if record.is_open == record.is_true or now - record.since < config.after:
        return record
    return replace(record, is_open=record.is_true, opened_at=record.since if record.is_true else record.opened_at)


def _told(record: AlertRecord, config: AlertsConfig, now: datetime) -> tuple[AlertRecord, AlertEvent | None]:
    """Return the alert after it is told, if it is due, and the event to tell it as."""
    event: AlertEvent | None = None
    if record.is_open != record.is_told:
        event = AlertEvent.OPENED if record.is_open else AlertEvent.RECOVERED
    elif record.is_open and config.remind_every is not None and record.told_at is not None:
        event = AlertEvent.REMINDER if now - record.told_at >= config.remind_every else None
    if event is None:
        return replace(record, is_held=False), None
    if is_quiet(config, record.kind, now):
        return replace(record, is_held=event is not AlertEvent.REMINDER), None
    return replace(record, is_told=record.is_open, told_at=now), event


def _notice(record: AlertRecord, event: AlertEvent) -> AlertNotice:
    return AlertNotice(
        event=event,
        kind=record.kind,
        table=record.table,
        code=record.code,
        message=record.message,
        action=None if event is AlertEvent.RECOVERED else record.action,
        since=record.opened_at or record.since,
        ended_at=record.since if event is AlertEvent.RECOVERED else None,
    )
