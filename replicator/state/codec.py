"""Converts records to rows and back: pydantic's type adapters make the values, and fields have the columns of their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Row, Table

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
from replicator.state.tables import (
    APPLIED,
    HISTORY,
    LEASES,
    REPLICATORS,
    REQUESTS,
    RUNS,
    SEGMENT_EVENTS,
    SEGMENT_FILES,
    TABLES,
    VERIFICATIONS,
    VERIFIED_RANGES,
)
from replicator.state.verification.records import RangeRecord, VerificationRecord

T = TypeVar("T")
R = TypeVar("R", bound=Report)

_ERROR: Final = TypeAdapter(ErrorRecord)
_SCHEMA: Final[TypeAdapter[TableSchema]] = TypeAdapter(StoredSchema)

_REFUSED: Final = "refused_"
"""Prefix of the role of a `RefusedReport`, before its `of`."""


_COLUMNS: Final = {
    "table": "table_name",
    "first": "first_num",
    "last": "last_num",
    "rows": "row_count",
    "bytes": "byte_count",
    "seal": "seal_id",
    "offset": "resume_offset",
}
"""Fields whose columns have another name: theirs is a word of SQL."""


class _Stored(Generic[T]):
    """Mapping of a kind of records to a table of the store: each field to the column of its name, all others to one document.

    Args:
        kind: The record.
        table: Its table.
        document: The column that has the fields without one of their own; None: every field has one.
    """

    def __init__(self, kind: type[T], table: Table, document: str | None = None) -> None:
        self._what = kind.__name__
        self._adapter = TypeAdapter(kind)
        names = {name: _COLUMNS.get(name, name) for name in getattr(kind, "__dataclass_fields__")}  # noqa: B009
        self._columns = {name: column for name, column in names.items() if column in table.c}
        self._document = document
        self._held = tuple(name for name in names if name not in self._columns)
        assert (document is None) == (not self._held), f"{self._what} has fields without a column: {self._held}"

    def write(self, record: T) -> dict[str, Any]:
        """Convert a record to columns. A column with only a time keeps it as a datetime: it has its own type."""
        values = self._adapter.dump_python(record, mode="json")
        row: dict[str, Any] = {}
        for name, column in self._columns.items():
            value = getattr(record, name)
            row[column] = value if isinstance(value, datetime) else values[name]
        if self._document is not None:
            row[self._document] = {name: values[name] for name in self._held}
        return row

    def read(self, row: Row[Any], **instead: Any) -> T:
        """Read a record from columns, or the values given instead; DamagedValueError if they hold no such record."""
        try:
            values = {name: getattr(row, column) for name, column in self._columns.items()}
            if self._document is not None:
                stored = {**getattr(row, self._document), **instead}
                values |= {name: stored[name] for name in self._held}
            return self._adapter.validate_python(values)
        except DamagedValueError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(self._what, error) from error


_REPLICATORS: Final = _Stored(ReplicatorRecord, REPLICATORS)
_LEASES: Final = _Stored(Lease, LEASES)
_TABLES: Final = _Stored(TableRecord, TABLES, "record")
_APPLIED: Final = _Stored(AppliedRecord, APPLIED, "record")
_FILES: Final = _Stored(SegmentFile, SEGMENT_FILES)
_EVENTS: Final = _Stored(EventEntry, SEGMENT_EVENTS)
_HISTORY: Final = _Stored(HistoryEntry, HISTORY, "entry")
_VERIFICATIONS: Final = _Stored(VerificationRecord, VERIFICATIONS, "record")
_RANGES: Final = _Stored(RangeRecord, VERIFIED_RANGES, "record")
_REQUESTS: Final = _Stored(Request, REQUESTS)
_RUNS: Final = _Stored(Run, RUNS)

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
    return TableOutline(record=_TABLES.read(row, schema=None), kept_columns=kept)


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
