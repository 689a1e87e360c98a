"""The part of the state store that holds alerts, waiting messages, and the results of deliveries.

Alerts and the messages about them are stored in one transaction. Each write is refused if another process has the job by now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, delete, insert, select, update

from replicator.model.counts import CounterName
from replicator.model.documents.alerts import AlertMessage
from replicator.state import counters
from replicator.state.alert_records import AlertingState, AlertKey, AlertRecord, ChannelRecord, WaitingMessage
from replicator.state.database.engine import Database, next_id, upsert
from replicator.state.database.errors import DamagedValueError
from replicator.state.tables import ALERT_MESSAGES, ALERTS
from replicator.state.watches import WatchJob, is_held, read_record, write_record

_ALERT: Final = TypeAdapter(AlertRecord)
_MESSAGE: Final = TypeAdapter(WaitingMessage)
_CHANNELS: Final = TypeAdapter(dict[str, ChannelRecord])


class Alerts:
    """Reads and writes alerts. Errors as those of `StateStore`. `holder` is the process that has `WatchJob.ALERTS` of the replicator."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, name: str) -> AlertingState:
        """Return all alerts of a replicator; messages in the order in which they were made."""
        with self._database.read() as connection:
            alerts = connection.execute(select(ALERTS).where(ALERTS.c.replicator == name))
            return AlertingState(
                alerts=tuple(_read(_ALERT, row.record) for row in alerts),
                messages=tuple(_messages(connection, name)),
                channels=_read(_CHANNELS, read_record(connection, name, WatchJob.ALERTS)),
            )

    def change(
        self,
        name: str,
        holder: str,
        *,
        changed: Iterable[AlertRecord],
        ended: Iterable[AlertKey],
        messages: Mapping[str, AlertMessage],
        messages_max: int,
    ) -> bool:
        """Store changes of alerts, and a message for each of some channels; False, and nothing is stored, if another process has the job.

        A channel with more messages than `messages_max` loses its oldest ones, which counts as given up.
        """
        with self._database.write() as connection:
            if not is_held(connection, name, WatchJob.ALERTS, holder):
                return False
            upsert(connection, ALERTS, [_row(name, record) for record in changed])
            for kind, table in ended:
                same = (
                    (ALERTS.c.replicator == name) & (ALERTS.c.kind == kind.value) & (ALERTS.c.subject == (table or ""))
                )
                connection.execute(delete(ALERTS).where(same))
            for channel, message in messages.items():
                waiting = WaitingMessage(id=next_id(connection), channel=channel, message=message)
                values = {
                    "replicator": name,
                    "id": waiting.id,
                    "channel": channel,
                    "record": _written(_MESSAGE, waiting),
                }
                connection.execute(insert(ALERT_MESSAGES), [values])
                _shorten(connection, name, channel, messages_max)
            return True

    def sent(self, name: str, holder: str, message: WaitingMessage, now: datetime) -> bool:
        """Note that a message was delivered: it waits no longer. False if another has the job: it may deliver it again."""
        with self._database.write() as connection:
            if not is_held(connection, name, WatchJob.ALERTS, holder):
                return False
            _remove(connection, name, [message.id])
            _put_channel(connection, name, message.channel, ChannelRecord(sent_at=now))
            counters.add(connection, name, Counter({(CounterName.ALERTS_SENT, (message.channel,)): 1}))
            return True

    def failed(
        self, name: str, holder: str, message: WaitingMessage, error: str, now: datetime, retry_at: datetime | None
    ) -> bool:
        """Note that an attempt failed; it is repeated at `retry_at`, or given up if that is None. Returns as `sent`."""
        with self._database.write() as connection:
            if not is_held(connection, name, WatchJob.ALERTS, holder):
                return False
            was = _channels(connection, name).get(message.channel, ChannelRecord())
            failed = replace(was, failures=was.failures + 1, error=error, failed_at=now)
            _put_channel(connection, name, message.channel, failed)
            counters.add(connection, name, Counter({(CounterName.ALERT_FAILURES, (message.channel,)): 1}))
            if retry_at is None:
                _give_up(connection, name, message.channel, [message.id])
                return True
            tried = replace(message, attempts=message.attempts + 1, retry_at=retry_at, error=error)
            mine = (ALERT_MESSAGES.c.replicator == name) & (ALERT_MESSAGES.c.id == message.id)
            connection.execute(update(ALERT_MESSAGES).where(mine).values(record=_written(_MESSAGE, tried)))
            return True

    def forget_channels(self, name: str, holder: str, kept: Iterable[str]) -> None:
        """Remove messages and results of channels that are not configured any more."""
        with self._database.write() as connection:
            if not is_held(connection, name, WatchJob.ALERTS, holder):
                return
            known = set(kept)
            others = (ALERT_MESSAGES.c.replicator == name) & ALERT_MESSAGES.c.channel.not_in(known)
            connection.execute(delete(ALERT_MESSAGES).where(others))
            channels = {channel: one for channel, one in _channels(connection, name).items() if channel in known}
            write_record(connection, name, WatchJob.ALERTS, _written(_CHANNELS, channels))


def _messages(connection: Connection, name: str, channel: str | None = None) -> Sequence[WaitingMessage]:
    query = select(ALERT_MESSAGES).where(ALERT_MESSAGES.c.replicator == name).order_by(ALERT_MESSAGES.c.id)
    if channel is not None:
        query = query.where(ALERT_MESSAGES.c.channel == channel)
    return [_read(_MESSAGE, row.record) for row in connection.execute(query)]


def _shorten(connection: Connection, name: str, channel: str, messages_max: int) -> None:
    waiting = _messages(connection, name, channel)
    if len(waiting) > messages_max:
        _give_up(connection, name, channel, [one.id for one in waiting[:-messages_max]])


def _give_up(connection: Connection, name: str, channel: str, ids: Sequence[int]) -> None:
    _remove(connection, name, ids)
    was = _channels(connection, name).get(channel, ChannelRecord())
    _put_channel(connection, name, channel, replace(was, given_up=was.given_up + len(ids)))
    counters.add(connection, name, Counter({(CounterName.ALERTS_GIVEN_UP, (channel,)): len(ids)}))


def _remove(connection: Connection, name: str, ids: Sequence[int]) -> None:
    mine = (ALERT_MESSAGES.c.replicator == name) & ALERT_MESSAGES.c.id.in_(ids)
    connection.execute(delete(ALERT_MESSAGES).where(mine))


def _channels(connection: Connection, name: str) -> dict[str, ChannelRecord]:
    found: dict[str, ChannelRecord] = _read(_CHANNELS, read_record(connection, name, WatchJob.ALERTS))
    return found


def _put_channel(connection: Connection, name: str, channel: str, record: ChannelRecord) -> None:
    channels = {**_channels(connection, name), channel: record}
    write_record(connection, name, WatchJob.ALERTS, _written(_CHANNELS, channels))


def _row(name: str, record: AlertRecord) -> dict[str, Any]:
    return {
        "replicator": name,
        "kind": record.kind.value,
        "subject": record.table or "",
        "record": _written(_ALERT, record),
    }


def _written(adapter: TypeAdapter[Any], value: object) -> Any:
    return adapter.dump_python(value, mode="json")


def _read(adapter: TypeAdapter[Any], value: object) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise DamagedValueError(f"a document about alerts cannot be read ({error.error_count()} faults)") from error
