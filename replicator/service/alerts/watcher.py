"""Checks replicators, and tells channels about their alerts.

Steps: take the job of a replicator → see what is wrong → store the alerts, with a message per channel → deliver → store that it was
delivered. A crash before the store's transaction has told nobody, and the next look sees the same. A crash after it leaves the
messages, which the next process delivers. A crash between the answer of a channel and the last step lets a message be delivered again,
with the same id.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from replicator.config import AlertsConfig
from replicator.config.alerts import ChannelConfig
from replicator.model.crash import crash_point
from replicator.model.documents.alerts import AlertMessage
from replicator.model.errors import ConfigError, ReplicatorError, StateUnavailableError
from replicator.model.processes.reports import RefusedReport
from replicator.observability import get_logger
from replicator.service.alerts import delivery
from replicator.service.alerts.advance import advance, messages
from replicator.service.alerts.conditions import JournalRoom, look
from replicator.service.alerts.settings import alert_settings, has_alerts
from replicator.service.configuring.stored_settings import stored_settings
from replicator.service.metrics import journal_disk
from replicator.service.status.assemble import status
from replicator.state.alert_records import WaitingMessage
from replicator.state.records import Desired, ReplicatorRecord
from replicator.state.store import StateStore
from replicator.state.watches import WatchJob

TTL_S: Final = 60.0
"""Time for which a process keeps the job without a sign of life: longer than a delivery takes, so that no other begins it meanwhile."""
_DELIVERIES_PARALLEL: Final = 8
_BACKOFF_FIRST_S: Final = 5.0
_BACKOFF_MAX_S: Final = 300.0
assert TTL_S > delivery.ATTEMPT_MAX_S

_log = get_logger(__name__)

Deliver = Callable[[ChannelConfig, AlertMessage, str, datetime], str | None]


class AlertWatcher:
    """Watches replicators of a state store. Another process may watch others.

    Args:
        holder: This process, as `holder_id` names it.
        names: Replicators to watch; None: all.
        deliver: Delivers a message, within `delivery.ATTEMPT_MAX_S`.
    """

    def __init__(
        self,
        store: StateStore,
        holder: str,
        names: Collection[str] | None = None,
        *,
        deliver: Deliver = delivery.deliver,
    ) -> None:
        self._store, self._holder, self._names, self._deliver = store, holder, names, deliver
        self._pool = ThreadPoolExecutor(_DELIVERIES_PARALLEL, thread_name_prefix="alert")
        self._lock = threading.Lock()
        self._under_way: set[tuple[str, str]] = set()
        self._unreadable: set[tuple[str, str]] = set()

    def look(self) -> None:
        """See what is wrong with each replicator, and start the deliveries that are due. Waits for no delivery.

        Raises:
            StateUnavailableError: The state store is unavailable.
        """
        for record in self._store.replicators():
            if (self._names is None or record.name in self._names) and record.desired is not Desired.DELETED:
                self._look(record)

    def close(self) -> None:
        """Wait for deliveries that are under way, then let others take the jobs."""
        self._pool.shutdown()
        for record in self._store.replicators():
            with suppress(ConfigError):  # it was deleted meanwhile
                self._store.watches.release(record.name, WatchJob.ALERTS, self._holder)

    def _look(self, record: ReplicatorRecord) -> None:
        """Look at one replicator; an error with it does not affect the others."""
        try:
            self._watch(record)
        except StateUnavailableError:
            raise
        except ConfigError as error:
            self._not_watched(record, error)
        except Exception:  # noqa: BLE001 - see above; it is looked at again
            _log.exception("watch_crashed", replicator=record.name)

    def _watch(self, record: ReplicatorRecord) -> None:
        if not has_alerts(record.config):
            return
        config = alert_settings(record)
        self._unreadable.discard((record.name, record.config))
        if not config.channels or not self._store.watches.hold(record.name, WatchJob.ALERTS, self._holder, TTL_S):
            return
        self._advance(record, config)
        known = self._store.alerts.read(record.name)
        channels = {*known.channels, *(message.channel for message in known.messages)}
        if channels - set(config.channels):
            self._store.alerts.forget_channels(record.name, self._holder, config.channels)
        self._begin_deliveries(record.name, config, known.messages)

    def _advance(self, record: ReplicatorRecord, config: AlertsConfig) -> None:
        document, now = status(self._store, record), self._store.now()
        room = JournalRoom(
            bytes_max=stored_settings(record.config).config.journal.bytes_max, disk=journal_disk(record.journal_uri)
        )
        advanced = advance(self._store.alerts.read(record.name).alerts, look(document, config, room), config, now)
        if advanced.is_empty:
            return
        told = messages(
            advanced.notices,
            config,
            replicator=record.name,
            uuid=record.uuid,
            now=now,
            is_digest=advanced.is_digest,
        )
        is_stored = self._store.alerts.change(
            record.name,
            self._holder,
            changed=advanced.changed,
            ended=advanced.ended,
            messages=told,
            messages_max=config.messages_max,
        )
        crash_point("alerts.stored")
        for notice in advanced.notices if is_stored else ():
            _log.info(
                "alert",
                replicator=record.name,
                kind=notice.kind,
                alert_event=notice.event,
                table=notice.table,
                text=notice.message,
            )

    def _begin_deliveries(self, name: str, config: AlertsConfig, waiting: Collection[WaitingMessage]) -> None:
        """Start the oldest message of each channel, if it is due and none is under way: a channel gets them in their order."""
        now = self._store.now()
        begun: set[str] = set()
        for message in waiting:
            channel = config.channels.get(message.channel)
            if channel is None or message.channel in begun:
                continue
            begun.add(message.channel)
            if message.retry_at is not None and now < message.retry_at:
                continue
            with self._lock:
                if (name, message.channel) in self._under_way:
                    continue
                self._under_way.add((name, message.channel))
            self._pool.submit(self._deliver_one, name, channel, message, config.give_up_after)

    def _deliver_one(
        self, name: str, channel: ChannelConfig, message: WaitingMessage, give_up_after: timedelta
    ) -> None:
        try:
            # After a while another process may have the job, and may have delivered this.
            known = self._store.alerts.read(name).messages
            if message not in known or not self._store.watches.hold(name, WatchJob.ALERTS, self._holder, TTL_S):
                return
            error = self._deliver(channel, message.message, f"{message.message.uuid}-{message.id}", self._store.now())
            crash_point("alerts.delivered")
            self._note(name, message, error, give_up_after)
        except ReplicatorError as error:
            _log.warning("alert_not_noted", replicator=name, channel=message.channel, code=error.code, error=str(error))
        except Exception:  # noqa: BLE001 - the end of this thread would go unnoticed; the message is tried again at the next look
            _log.exception("alert_crashed", replicator=name, channel=message.channel)
        finally:
            with self._lock:
                self._under_way.discard((name, message.channel))

    def _note(self, name: str, message: WaitingMessage, error: str | None, give_up_after: timedelta) -> None:
        now = self._store.now()
        if error is None:
            self._store.alerts.sent(name, self._holder, message, now)
            return
        pause = timedelta(seconds=min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2 ** min(message.attempts, 10)))
        retry_at = now + pause if now + pause <= message.message.created_at + give_up_after else None
        self._store.alerts.failed(name, self._holder, message, error, now, retry_at)
        _log.warning(
            "alert_not_delivered",
            replicator=name,
            channel=message.channel,
            error=error,
            retry_in_ms=None if retry_at is None else round(pause.total_seconds() * 1000),
        )

    def _not_watched(self, record: ReplicatorRecord, error: ConfigError) -> None:
        """Report once per configuration that its alerts cannot be read here: another process may be able to."""
        if (record.name, record.config) not in self._unreadable:
            self._unreadable.add((record.name, record.config))
            self._store.put_report(record.name, RefusedReport.made("alerts", record.config, error))
            _log.warning("alerts_not_watched", replicator=record.name, code=error.code, error=str(error))
