"""Conditions that are wrong with a replicator, read from its status. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from replicator.config import AlertsConfig, format_duration, format_size
from replicator.model.documents.alerts import AlertKind
from replicator.model.documents.status import DesiredState, ReplicatorState, ReplicatorStatus, TableState
from replicator.service.status.objectives import Breach, BreachKind, breaches
from replicator.state.alert_records import AlertKey

_KINDS: Final[Mapping[BreachKind, AlertKind]] = {
    BreachKind.NO_WORKER: AlertKind.NO_WORKER,
    BreachKind.FAILED: AlertKind.REPLICATOR_FAILED,
    BreachKind.TABLE_FAILED: AlertKind.TABLE_FAILED,
    BreachKind.STALE: AlertKind.OBJECTIVE_BREACHED,
    BreachKind.UNKNOWN: AlertKind.OBJECTIVE_BREACHED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCondition:
    """A condition that is wrong."""

    kind: AlertKind
    table: str | None = None
    code: str | None = None
    message: str
    action: str | None = None

    @property
    def key(self) -> AlertKey:
        """Kind and table that it concerns."""
        return self.kind, self.table


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenConditions:
    """Conditions that are wrong now, and the kinds that could not be checked: alerts of these stay as they were."""

    conditions: Mapping[AlertKey, SeenCondition]
    unknown: frozenset[AlertKind] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRoom:
    """Room of the journal. `disk`: free and all bytes of its disk; None if the disk is not on this host."""

    bytes_max: int
    disk: tuple[int, int] | None


def look(document: ReplicatorStatus, config: AlertsConfig, room: JournalRoom) -> SeenConditions:
    """Return what is wrong with a replicator."""
    found = [
        *(_of_breach(document, breach) for breach in breaches(document) if _counts(document, breach)),
        *_of_alarms(document),
        *_of_source(document, config),
        *_of_journal(document, config, room),
    ]
    is_reporting = document.source.position is not None
    unknown = set()
    if not is_reporting and document.source.is_alive is None:
        unknown.add(AlertKind.NO_HEARTBEAT)
    if not is_reporting and document.source.headroom is None:
        unknown.add(AlertKind.SOURCE_LOG_HEADROOM)
    return SeenConditions(conditions={condition.key: condition for condition in found}, unknown=frozenset(unknown))


def _counts(document: ReplicatorStatus, breach: Breach) -> bool:
    """Return whether a breach counts: a paused replicator needs no worker."""
    return breach.kind is not BreachKind.NO_WORKER or document.state is ReplicatorState.NO_WORKER


def _of_breach(document: ReplicatorStatus, breach: Breach) -> SeenCondition:
    error = document.error if breach.kind is BreachKind.FAILED else None
    for table in document.tables:
        if table.table == breach.table and table.state in (TableState.FAILED, TableState.DROPPED):
            error = table.error
    if error is not None:
        message = f"{breach.message.rstrip('.')}: {error.message}"
        return SeenCondition(
            kind=_KINDS[breach.kind], table=breach.table, code=error.code, message=message, action=error.action
        )
    return SeenCondition(
        kind=_KINDS[breach.kind], table=breach.table, message=breach.message, action=_next(document, breach)
    )


def _next(document: ReplicatorStatus, breach: Breach) -> str:
    if breach.kind is BreachKind.NO_WORKER:
        return "Start a worker: replicator serve. If one runs, see why it does not take this: replicator workers"
    if document.desired in (DesiredState.PAUSED, DesiredState.APPLY_PAUSED):
        return f"It is paused. To continue: replicator resume {document.name}"
    return f"See what it waits for: replicator status {document.name}"


def _of_alarms(document: ReplicatorStatus) -> Iterator[SeenCondition]:
    for table in document.tables:
        if table.alarms:
            first = table.alarms[0]
            yield SeenCondition(
                kind=AlertKind.TABLE_ALARM,
                table=table.table,
                code=first.code,
                message=f"{document.name}: the target table of {table.table} may differ from its source: {first.message}",
                action=first.action,
            )


def _of_source(document: ReplicatorStatus, config: AlertsConfig) -> Iterator[SeenCondition]:
    name, source = document.name, document.source
    if source.is_alive is False:
        yield SeenCondition(
            kind=AlertKind.NO_HEARTBEAT,
            message=f"{name}: the source's log told nothing for three heartbeats.",
            action=f"See what capture waits for: replicator status {name}",
        )
    headroom = source.headroom
    if headroom is None:
        return
    least_s = config.source_log_headroom_min.total_seconds()
    found = []
    if headroom.share < config.source_log_share_min:
        found.append(f"{headroom.share:.0%} of its limit are left")
    if headroom.seconds is not None and headroom.seconds < least_s:
        found.append(f"{headroom.seconds:.0f} s are left, less than {format_duration(config.source_log_headroom_min)}")
    if found:
        yield SeenCondition(
            kind=AlertKind.SOURCE_LOG_HEADROOM,
            message=f"{name}: the source soon gives up log that is still needed: {'; '.join(found)}.",
            action=f"Let capture run (replicator status {name}), or let the source keep more of its log.",
        )


def _of_journal(document: ReplicatorStatus, config: AlertsConfig, room: JournalRoom) -> Iterator[SeenCondition]:
    found = []
    if document.journal.bytes > room.bytes_max * (1 - config.journal_free_min):
        found.append(f"it has {document.journal.bytes:,} bytes of {format_size(room.bytes_max)} (journal.bytes_max)")
    if room.disk is not None and room.disk[0] < room.disk[1] * config.journal_free_min:
        found.append(f"its disk has {room.disk[0]:,} bytes free of {room.disk[1]:,}")
    if found:
        yield SeenCondition(
            kind=AlertKind.JOURNAL_DISK,
            message=f"{document.name}: the journal is almost full: {'; '.join(found)}.",
            action=f"See why apply is behind (replicator status {document.name}), raise journal.bytes_max, or enlarge the disk.",
        )
