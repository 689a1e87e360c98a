"""What `status` and `list` show: one JSON document per replicator, made from the state store alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

from replicator.model.events import SnapshotKind
from replicator.model.merged import Merged
from replicator.model.schema import TableId
from replicator.state import table_life
from replicator.state.records import (
    AlarmRecord,
    AppliedRecord,
    Desired,
    ErrorRecord,
    ReplicatorRecord,
    Role,
    TableRecord,
)
from replicator.state.store import StateStore

VERSION: Final = 1
_STALE: Final = timedelta(seconds=15)
_SLIP: Final = timedelta(seconds=60)
"""How far a commit may lie ahead of what we take for the source's clock, which is measured now and then."""


def status(store: StateStore, record: ReplicatorRecord) -> dict[str, Any]:
    """The state of one replicator, as `docs/status.schema.json` describes it."""
    now = store.now()
    statuses = store.statuses(record.name)
    capture = _fresh(statuses, Role.CAPTURE, now)
    apply = _fresh(statuses, Role.APPLY, now)
    retrying = _retrying(statuses, now)
    # Also of a capture that no longer runs: the log position where it stopped stays, and clocks differ as they did.
    last_report = statuses.get(Role.CAPTURE, (now, {}))[1]
    clock = now + timedelta(seconds=float(last_report.get("clock_ahead_s") or 0.0))
    applied = store.applied(record.name)
    told_at = statuses[Role.APPLY][0] if Role.APPLY in statuses else now
    read_at = statuses[Role.CAPTURE][0] if Role.CAPTURE in statuses else now
    tables = [
        _table(
            t,
            applied.get(t.table),
            apply,
            clock,
            told_at,
            _reported(t.table, capture),
            read_at,
        )
        for t in store.tables(record.name)
        if table_life.is_replicated(t)
    ]
    lease = store.lease(record.name)
    ages = [t["freshness_s"] for t in tables if t["freshness_s"] is not None]
    return {
        "version": VERSION,
        "name": record.name,
        "uuid": record.uuid,
        "desired": "paused (apply)" if record.apply_paused else record.desired.value,
        "state": _state(record, lease is not None, capture, retrying),
        "worker": {"holder": lease.holder, "epoch": lease.epoch} if lease else None,
        "freshness_s": max(ages) if ages and len(ages) == len(tables) else None,
        "source": {
            "retained_bytes": last_report.get("retained_bytes"),
            "position": (capture or {}).get("position"),
            "waiting_for": list((capture or {}).get("waiting_for") or ()),
            "oldest_open": _oldest_open(last_report, clock),
            "time_left_s": _time_left(store, record.name, last_report, clock),
        },
        "journal": {"bytes": store.journal_bytes(record.name), "last_sequence_num": _last(store, record.name)},
        "retry": {k: v for k, v in retrying.items() if k != "stamp"} if retrying and "retry_in_s" in retrying else None,
        "error": _error(record.error),
        "tables": tables,
    }


def _oldest_open(report: Mapping[str, Any], clock: datetime) -> dict[str, Any] | None:
    oldest = report.get("oldest_open")
    if oldest is None:
        return None
    return {"name": oldest["name"], "age_s": _seconds(clock - datetime.fromisoformat(oldest["since"]))}


def _time_left(store: StateStore, name: str, report: Mapping[str, Any], clock: datetime) -> float | None:
    """How long at least the source still keeps the log after our position: it keeps a file as long as it says, from its last change on."""
    segment, keeps_log_s = store.last_segment(name), report.get("keeps_log_s")
    if keeps_log_s is None or segment is None or segment.source_time is None:
        return None
    oldest = report.get("oldest_open")
    reached = min(segment.source_time, *([datetime.fromisoformat(oldest["since"])] if oldest else ()), clock)
    return _seconds(timedelta(seconds=keeps_log_s) - (clock - reached))


def _seconds(duration: timedelta) -> float:
    return round(max(0.0, duration.total_seconds()), 1)


def _table(
    table: TableRecord,
    applied: AppliedRecord | None,
    apply: Mapping[str, Any] | None,
    clock: datetime,
    told_at: datetime,
    captured: Mapping[str, Any],
    read_at: datetime,
) -> dict[str, Any]:
    """One table; `captured`: what capture says of it."""
    progress = table.snapshot
    has_failed = table_life.has_failed(table, applied)
    error = table.error or (applied.error if applied else None)
    source_time = _source_time(table.table, applied, apply, clock)
    return {
        "table": str(table.table),
        "state": "failing" if has_failed else table.stage.value,
        "incarnation": table.incarnation,
        "snapshot": None
        if progress is None
        else {
            "rows": progress.rows,
            "estimated_rows": progress.estimated_rows,
            "is_complete": progress.completed_at is not None,
            "is_in_place": progress.kind is SnapshotKind.IN_PLACE,
        },
        "next_snapshot": captured.get("step"),
        "changes_applied": applied.rows if applied else 0,
        "last_applied": applied.last_applied if applied else -1,
        "freshness_s": None
        if source_time is None or not table_life.is_complete(table)
        else round(max(0.0, (clock - source_time).total_seconds()), 1),
        "last_batch": _reported(table.table, apply).get("last_batch"),
        "waiting": None
        if has_failed
        else _waiting(_reported(table.table, apply).get("waiting"), told_at)
        or _waiting(captured.get("waiting"), read_at),
        "upkeep": _upkeep(_reported(table.table, apply).get("upkeep"), told_at),
        "error": _error(error) if has_failed else None,
        "merged": asdict(applied.merged if applied else Merged()),
        "alarms": [_alarm(alarm) for alarm in (applied.alarms if applied else ())],
    }


def _alarm(alarm: AlarmRecord) -> dict[str, Any]:
    return {
        "code": alarm.code,
        "message": alarm.message,
        "action": alarm.action,
        "at": alarm.at.isoformat(),
        "count": alarm.count,
    }


def _waiting(waiting: Mapping[str, Any] | None, told_at: datetime) -> dict[str, Any] | None:
    """What apply said, with the moment until which the table waits."""
    if waiting is None:
        return None
    until = told_at + timedelta(seconds=waiting["retry_in_s"])
    return {**waiting, "until": until.isoformat(timespec="seconds")}


def _upkeep(upkeep: Mapping[str, Any] | None, told_at: datetime) -> dict[str, Any] | None:
    """What apply said of upkeep that failed, with the moments instead of the seconds."""
    if upkeep is None:
        return None
    at, until = (told_at + timedelta(seconds=s) for s in (-upkeep["failed_s"], upkeep["retry_in_s"]))
    error = {"code": upkeep["code"], "message": upkeep["message"], "action": upkeep["action"], "at": at.isoformat()}
    return {"failures": upkeep["failures"], "last_error": error, "retry_at": until.isoformat(timespec="seconds")}


def _reported(table: TableId, apply: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What a living process says of a table."""
    said: Mapping[str, Any] = ((apply or {}).get("tables") or {}).get(str(table), {})
    return said


def _source_time(
    table: TableId, applied: AppliedRecord | None, apply: Mapping[str, Any] | None, clock: datetime
) -> datetime | None:
    """The newest claim that can be: apply's report moves on while a table is idle, its record only with its data.

    None if the source's clock, or ours, was set back so far that nothing can be said.
    """
    reported = _reported(table, apply).get("source_time")
    candidates = [datetime.fromisoformat(reported)] if reported else []
    if applied and applied.source_time:
        candidates.append(applied.source_time)
    return max((moment for moment in candidates if moment <= clock + _SLIP), default=None)


def _state(
    record: ReplicatorRecord, is_held: bool, capture: Mapping[str, Any] | None, retrying: Mapping[str, Any] | None
) -> str:
    if record.desired is Desired.DELETED:
        return "deleting"
    if record.error:
        return "failed"
    if not is_held:
        return "paused" if record.desired is Desired.PAUSED else "no worker"
    if record.desired is Desired.PAUSED:
        return "paused"
    if retrying and "retry_in_s" in retrying:
        return "retrying"
    return "running" if capture else "starting"


def _retrying(statuses: Mapping[Role, tuple[datetime, Mapping[str, Any]]], now: datetime) -> Mapping[str, Any] | None:
    """What the supervisor waits to retry; until the worker that failed has reported again."""
    if Role.SUPERVISOR not in statuses:
        return None
    said_at, said = statuses[Role.SUPERVISOR]
    worker = Role(str(said["role"])) if "role" in said else None
    is_over = now - said_at > _STALE + timedelta(seconds=float(said.get("retry_in_s", 0.0)))
    has_reported = worker is not None and worker in statuses and _is_later(statuses[worker], statuses[Role.SUPERVISOR])
    return None if is_over or has_reported else said


def _is_later(one: tuple[datetime, Mapping[str, Any]], other: tuple[datetime, Mapping[str, Any]]) -> bool:
    """Whether a process said the one after the other; by the clock on the wall only where an older version said it."""
    stamps = [said.get("stamp") for _, said in (one, other)]
    return stamps[0] > stamps[1] if None not in stamps else one[0] > other[0]  # type: ignore[operator]


def _fresh(
    statuses: Mapping[Role, tuple[datetime, Mapping[str, Any]]], role: Role, now: datetime
) -> Mapping[str, Any] | None:
    if role not in statuses or now - statuses[role][0] > _STALE:
        return None
    return statuses[role][1]


def _last(store: StateStore, name: str) -> int:
    segment = store.last_segment(name)
    return segment.last if segment else -1


def _error(error: ErrorRecord | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"code": error.code, "message": error.message, "action": error.action, "at": error.at.isoformat()}
