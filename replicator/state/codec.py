"""Converts records to rows and back: pydantic's type adapters make the values, the tables below map fields to columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Row

from replicator.model.processes.reports import ApplyReport, CaptureReport, RefusedReport, Report, RetryReport
from replicator.model.schema import TableSchema
from replicator.state.database.errors import DamagedValueError
from replicator.state.records import (
    AppliedRecord,
    ErrorRecord,
    EventEntry,
    HistoryEntry,
    Lease,
    ReplicatorRecord,
    Reported,
    Reports,
    Request,
    Role,
    Run,
    SegmentFile,
    TableOutline,
    TableRecord,
)
from replicator.state.stored import StoredSchema
from replicator.state.verification.records import RangeRecord, VerificationRecord

T = TypeVar("T")
R = TypeVar("R", bound=Report)

_ERROR: Final = TypeAdapter(ErrorRecord)
_SCHEMA: Final[TypeAdapter[TableSchema]] = TypeAdapter(StoredSchema)

_REFUSED: Final = "refused_"
"""Prefix of the role of a `RefusedReport`, before its `of`."""


class _Stored(Generic[T]):
    """Mapping of a kind of records to columns.

    Args:
        kind: The record.
        columns: Per column the field that it has, or those of its document; without the owner's name.
    """

    def __init__(self, kind: type[T], /, **columns: str | tuple[str, ...]) -> None:
        self._what, self._columns = kind.__name__, columns
        self._adapter = TypeAdapter(kind)

    def write(self, record: T) -> dict[str, Any]:
        """Convert a record to columns. A column with only a time keeps it as a datetime: it has its own type."""
        values = self._adapter.dump_python(record, mode="json")
        row: dict[str, Any] = {}
        for column, held in self._columns.items():
            if isinstance(held, tuple):
                row[column] = {field: values[field] for field in held}
            else:
                value = getattr(record, held)
                row[column] = value if isinstance(value, datetime) else values[held]
        return row

    def read(self, row: Row[Any], **instead: Any) -> T:
        """Read a record from columns, or the values given instead; DamagedValueError if they hold no such record."""
        values: dict[str, Any] = {}
        try:
            for column, held in self._columns.items():
                stored = instead[column] if column in instead else getattr(row, column)
                if isinstance(held, tuple):
                    values |= {field: stored[field] for field in held}
                else:
                    values[held] = stored
            return self._adapter.validate_python(values)
        except DamagedValueError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(self._what, error) from error


_REPLICATORS: Final = _Stored(
    ReplicatorRecord,
    name="name",
    uuid="uuid",
    desired="desired",
    config="config",
    identity="identity",
    preparation="preparation",
    start_offset="start_offset",
    journal_uri="journal_uri",
    apply_paused="apply_paused",
    error="error",
    created_at="created_at",
    restarted_at="restarted_at",
)
_LEASES: Final = _Stored(Lease, replicator="replicator", epoch="epoch", holder="holder", expires_at="expires_at")
_TABLES: Final = _Stored(
    TableRecord,
    table_name="table",
    incarnation="incarnation",
    state="stage",
    source_table="source_table",
    record=(
        "schema",
        "identity",
        "is_recreated",
        "is_changed_only",
        "is_accepted",
        "is_net",
        "ignored",
        "stopped_at",
        "snapshot",
        "reread",
        "first_change",
        "error",
        "resumed_at",
    ),
    is_altered="is_altered",
)
_APPLIED: Final = _Stored(
    AppliedRecord,
    table_name="table",
    incarnation="incarnation",
    claimed_by="claimed_by",
    last_applied="last_applied",
    row_count="rows",
    state="state",
    error="error",
    audit=("copy", "whole_before", "merged", "audited_to", "alarms", "snapshot_rows"),
    engine=("crashes", "upkeep_crash"),
)
_FILES: Final = _Stored(
    SegmentFile,
    last_num="last",
    first_num="first",
    table_name="table",
    incarnation="incarnation",
    schema_fingerprint="schema_fingerprint",
    uri="uri",
    row_count="rows",
    byte_count="bytes",
    sha256="sha256",
    snapshot_rows="snapshot_rows",
    has_absent="has_absent",
    has_key_changes="has_key_changes",
    seal_id="seal",
)
_EVENTS: Final = _Stored(
    EventEntry, sequence_num="sequence_num", table_name="table", incarnation="incarnation", event="event"
)
_HISTORY: Final = _Stored(
    HistoryEntry,
    sequence_num="sequence_num",
    table_name="table",
    incarnation="incarnation",
    at="at",
    resume_offset="offset",
    entry=("operation", "changes", "decision", "reason", "statement", "before", "after", "new_table"),
)
_VERIFICATIONS: Final = _Stored(
    VerificationRecord,
    table_name="table",
    incarnation="incarnation",
    record=(
        "result",
        "verified_at",
        "reason",
        "action",
        "position",
        "rows",
        "proven_at",
        "proven_position",
        "alarm",
        "disproved",
        "scheduled_at",
        "scheduled_rows",
        "ranges_proven",
        "ranges_total",
        "not_compared",
    ),
)
_RANGES: Final = _Stored(
    RangeRecord,
    record=("definition", "after", "upto", "position", "rows", "proven_at", "disproves", "not_compared"),
)
_REQUESTS: Final = _Stored(Request, id="id", kind="kind", payload="payload", created_at="created_at")
_RUNS: Final = _Stored(
    Run,
    id="id",
    replicator="replicator",
    epoch="epoch",
    holder="holder",
    started_at="started_at",
    ended_at="ended_at",
    outcome="outcome",
    error="error",
)

read_replicator: Final = _REPLICATORS.read
read_lease: Final = _LEASES.read
"""Reads a row that has a holder."""
write_table: Final = _TABLES.write
read_table: Final = _TABLES.read
write_applied: Final = _APPLIED.write
read_applied: Final = _APPLIED.read
write_file: Final = _FILES.write
read_file: Final = _FILES.read
write_event: Final = _EVENTS.write
read_event: Final = _EVENTS.read
write_history: Final = _HISTORY.write
read_history: Final = _HISTORY.read
write_verification: Final = _VERIFICATIONS.write
read_verification: Final = _VERIFICATIONS.read
write_range: Final = _RANGES.write
read_range: Final = _RANGES.read
read_request: Final = _REQUESTS.read
read_run: Final = _RUNS.read


def read_outline(row: Row[Any]) -> TableOutline:
    """Read a table's record without its schema, of which only the names of kept columns are read: making schemas loads PyArrow."""
    try:
        shape = row.record["schema"]
        kept = () if shape is None else tuple(str(column["name"]) for column in shape.get("kept", ()))
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged("TableOutline", error) from error
    return TableOutline(record=_TABLES.read(row, record={**row.record, "schema": None}), kept_columns=kept)


def write_error(error: ErrorRecord | None) -> Mapping[str, Any] | None:
    """Convert an error to a document."""
    return None if error is None else _ERROR.dump_python(error, mode="json")


def read_schema(document: Mapping[str, Any]) -> TableSchema:
    """Read a schema from a document."""
    try:
        return _SCHEMA.validate_python(document)
    except ValueError as error:
        raise _damaged(TableSchema.__name__, error) from error


def write_report(report: Report) -> Mapping[str, Any]:
    """Convert a report to the columns of `statuses`, except owner and time."""
    match report:
        case CaptureReport():
            role = Role.CAPTURE
        case ApplyReport():
            role = Role.APPLY
        case RefusedReport(of=of):
            return {"role": f"{_REFUSED}{of}", "document": report.document()}
        case _:
            role = Role.SUPERVISOR
    return {"role": role.value, "document": report.document()}


def read_reports(rows: Iterable[Row[Any]]) -> Reports:
    """Read reports from the rows of `statuses` of a replicator."""
    by_role = {row.role: row for row in rows}

    def read(role: str, kind: type[R]) -> Reported[R] | None:
        row = by_role.get(role)
        try:
            return None if row is None else Reported(at=row.updated_at, report=kind.read(row.document))
        except ValueError as error:
            raise _damaged(kind.__name__, error) from error

    return Reports(
        supervisor=read(Role.SUPERVISOR, RetryReport),
        capture=read(Role.CAPTURE, CaptureReport),
        apply=read(Role.APPLY, ApplyReport),
        refused=tuple(
            one for role in sorted(by_role) if role.startswith(_REFUSED) and (one := read(role, RefusedReport))
        ),
    )


def _damaged(what: str, error: Exception) -> DamagedValueError:
    """Return an error that names the fields, never their values."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        fact = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    else:
        fact = f"{type(error).__name__}: {error}"
    return DamagedValueError(f"a row does not hold a {what} ({fact})")
