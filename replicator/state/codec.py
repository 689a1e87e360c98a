"""Records as rows and JSON documents, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Row

from replicator.model.events import SnapshotKind, event_from_json
from replicator.model.merged import Merged
from replicator.model.offset import Offset
from replicator.model.reports import ApplyReport, CaptureReport, Report, RetryReport
from replicator.model.schema import TableId, TableSchema
from replicator.state.errors import DamagedValueError
from replicator.state.records import (
    AlarmRecord,
    AppliedRecord,
    ApplyState,
    Desired,
    ErrorRecord,
    EventEntry,
    KeyRange,
    Lease,
    Preparation,
    ReplicatorRecord,
    Reported,
    Reports,
    Request,
    RequestKind,
    Role,
    Run,
    SegmentFile,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=Report)


def _decodes(function: Callable[P, T]) -> Callable[P, T]:
    """Make what a damaged row causes while it is read a DamagedValueError."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except DamagedValueError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = function.__name__.removeprefix("read_").replace("_", " ")
            raise DamagedValueError(f"a row does not hold a {what} ({type(error).__name__}: {error})") from error

    return wrapped


@_decodes
def read_replicator(row: Row[Any]) -> ReplicatorRecord:
    """From a row of `replicators`."""
    return ReplicatorRecord(
        name=row.name,
        uuid=row.uuid,
        desired=Desired(row.desired),
        config=row.config,
        identity=row.identity,
        preparation=Preparation(row.preparation),
        start_offset=None if row.start_offset is None else Offset(row.start_offset),
        journal_uri=row.journal_uri,
        apply_paused=row.apply_paused,
        error=read_error(row.error),
        created_at=row.created_at,
    )


@_decodes
def read_lease(row: Row[Any]) -> Lease:
    """From a row of `leases` that has a holder."""
    return Lease(replicator=row.replicator, epoch=row.epoch, holder=row.holder, expires_at=row.expires_at)


def write_error(error: ErrorRecord | None) -> Mapping[str, Any] | None:
    """To a document."""
    if error is None:
        return None
    return {
        "code": error.code,
        "message": error.message,
        "action": error.action,
        "at": error.at.isoformat(),
        "is_finding": error.is_finding,
    }


@_decodes
def read_error(document: Mapping[str, Any] | None) -> ErrorRecord | None:
    """From a document."""
    if document is None:
        return None
    return ErrorRecord(
        code=document["code"],
        message=document["message"],
        action=document["action"],
        at=datetime.fromisoformat(document["at"]),
        # Older documents lack it.
        is_finding=document.get("is_finding", False),
    )


def write_table(record: TableRecord) -> Mapping[str, Any]:
    """To the columns of `tables`, except the owner."""
    return {
        "table_name": str(record.table),
        "incarnation": record.incarnation,
        "state": record.stage.value,
        "document": {
            "schema": record.schema.to_json() if record.schema else None,
            "identity": None if record.identity is None else dict(record.identity),
            "is_recreated": record.is_recreated,
            "snapshot": _write_snapshot(record.snapshot) if record.snapshot else None,
            "first_change": record.first_change,
            "error": write_error(record.error),
        },
    }


@_decodes
def read_table(row: Row[Any]) -> TableRecord:
    """From a row of `tables`."""
    document = row.document
    return TableRecord(
        table=_table_id(row.table_name),
        incarnation=row.incarnation,
        stage=Stage(row.state),
        schema=TableSchema.from_json(document["schema"]) if document["schema"] else None,
        identity=document["identity"],
        is_recreated=document["is_recreated"],
        snapshot=_read_snapshot(document["snapshot"]) if document["snapshot"] else None,
        first_change=document["first_change"],
        error=read_error(document["error"]),
    )


def write_applied(record: AppliedRecord) -> Mapping[str, Any]:
    """To the columns of `applied`, except the owner."""
    return {
        "table_name": str(record.table),
        "incarnation": record.incarnation,
        "claimed_by": record.claimed_by,
        "last_applied": record.last_applied,
        "row_count": record.rows,
        "source_time": record.source_time,
        "state": record.state.value,
        "error": write_error(record.error),
        "audit": {
            "copy": record.copy.value,
            "merged": asdict(record.merged),
            "audited_to": record.audited_to,
            "alarms": [{**asdict(alarm), "at": alarm.at.isoformat()} for alarm in record.alarms],
        },
    }


@_decodes
def read_applied(row: Row[Any]) -> AppliedRecord:
    """From a row of `applied`."""
    audit = row.audit
    return AppliedRecord(
        table=_table_id(row.table_name),
        incarnation=row.incarnation,
        claimed_by=row.claimed_by,
        last_applied=row.last_applied,
        rows=row.row_count,
        source_time=row.source_time,
        state=ApplyState(row.state),
        error=read_error(row.error),
        copy=TargetCopy(audit["copy"]),
        merged=Merged(**audit["merged"]),
        audited_to=audit["audited_to"],
        alarms=tuple(AlarmRecord(**{**alarm, "at": datetime.fromisoformat(alarm["at"])}) for alarm in audit["alarms"]),
    )


def write_file(file: SegmentFile) -> Mapping[str, Any]:
    """To the columns of `segment_files`, except owner and segment."""
    return {
        "last_num": file.last,
        "first_num": file.first,
        "table_name": str(file.table),
        "incarnation": file.incarnation,
        "schema_fingerprint": file.schema_fingerprint,
        "uri": file.uri,
        "row_count": file.rows,
        "byte_count": file.bytes,
        "sha256": file.sha256,
        "snapshot_rows": file.snapshot_rows,
        "has_absent": file.has_absent,
        "has_key_changes": file.has_key_changes,
        "seal_id": file.seal,
    }


@_decodes
def read_file(row: Row[Any]) -> SegmentFile:
    """From a row of `segment_files`."""
    return SegmentFile(
        table=_table_id(row.table_name),
        incarnation=row.incarnation,
        schema_fingerprint=row.schema_fingerprint,
        uri=row.uri,
        rows=row.row_count,
        bytes=row.byte_count,
        sha256=row.sha256,
        first=row.first_num,
        last=row.last_num,
        snapshot_rows=row.snapshot_rows,
        has_absent=row.has_absent,
        has_key_changes=row.has_key_changes,
        seal=row.seal_id,
    )


def write_event(entry: EventEntry) -> Mapping[str, Any]:
    """To the columns of `segment_events`, except owner and segment."""
    return {
        "sequence_num": entry.sequence_num,
        "table_name": str(entry.table),
        "incarnation": entry.incarnation,
        "event": entry.event.to_json(),
    }


@_decodes
def read_event(row: Row[Any]) -> EventEntry:
    """From a row of `segment_events`."""
    return EventEntry(
        sequence_num=row.sequence_num,
        table=_table_id(row.table_name),
        incarnation=row.incarnation,
        event=event_from_json(row.event),
    )


@_decodes
def read_schema(document: Mapping[str, Any]) -> TableSchema:
    """From a document."""
    return TableSchema.from_json(document)


@_decodes
def read_request(row: Row[Any]) -> Request:
    """From a row of `requests`."""
    return Request(id=row.id, kind=RequestKind(row.kind), payload=row.payload, created_at=row.created_at)


@_decodes
def read_run(row: Row[Any]) -> Run:
    """From a row of `runs`."""
    return Run(
        id=row.id,
        replicator=row.replicator,
        epoch=row.epoch,
        holder=row.holder,
        started_at=row.started_at,
        ended_at=row.ended_at,
        outcome=row.outcome,
        error=read_error(row.error),
    )


def write_report(report: Report) -> Mapping[str, Any]:
    """To the columns of `statuses`, except owner and time."""
    match report:
        case CaptureReport():
            role = Role.CAPTURE
        case ApplyReport():
            role = Role.APPLY
        case _:
            role = Role.SUPERVISOR
    return {"role": role.value, "document": report.document()}


@_decodes
def read_reports(rows: Iterable[Row[Any]]) -> Reports:
    """From the rows of `statuses` of a replicator."""
    by_role = {Role(row.role): row for row in rows}

    def read(role: Role, kind: type[R]) -> Reported[R] | None:
        row = by_role.get(role)
        return None if row is None else Reported(at=row.updated_at, report=kind.read(row.document))

    return Reports(
        supervisor=read(Role.SUPERVISOR, RetryReport),
        capture=read(Role.CAPTURE, CaptureReport),
        apply=read(Role.APPLY, ApplyReport),
    )


@lru_cache(maxsize=4096)
def _table_id(text: str) -> TableId:
    return TableId.parse(text)


def _write_snapshot(progress: SnapshotProgress) -> Mapping[str, Any]:
    return {
        "kind": progress.kind.value,
        "start_number": progress.start_number,
        "ranges": [{"after": _list(r.after), "upto": _list(r.upto), "is_done": r.is_done} for r in progress.ranges],
        "keys": [list(key) for key in progress.keys],
        "rows": progress.rows,
        "estimated_rows": progress.estimated_rows,
        "started_at": progress.started_at.isoformat() if progress.started_at else None,
        "completed_at": progress.completed_at.isoformat() if progress.completed_at else None,
        "is_outdated": progress.is_outdated,
    }


def _read_snapshot(document: Mapping[str, Any]) -> SnapshotProgress:
    started, completed = document["started_at"], document["completed_at"]
    return SnapshotProgress(
        kind=SnapshotKind(document["kind"]),
        start_number=document["start_number"],
        ranges=tuple(
            KeyRange(after=_tuple(r["after"]), upto=_tuple(r["upto"]), is_done=r["is_done"]) for r in document["ranges"]
        ),
        keys=tuple(tuple(key) for key in document["keys"]),
        rows=document["rows"],
        estimated_rows=document["estimated_rows"],
        started_at=datetime.fromisoformat(started) if started else None,
        completed_at=datetime.fromisoformat(completed) if completed else None,
        is_outdated=document["is_outdated"],
    )


def _list(key: tuple[str, ...] | None) -> list[str] | None:
    return None if key is None else list(key)


def _tuple(key: list[str] | None) -> tuple[str, ...] | None:
    return None if key is None else tuple(key)
