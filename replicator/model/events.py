"""Data on its way from source to target: operations, events, and the Arrow layout of changes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from replicator.model.arrow import pa
from replicator.model.schema import TableId, TableSchema

# Columns of a change batch, as the source delivers it and as the journal stores it (`change_schema`).
SEQUENCE_NUM: Final = "_sequence_num"
OPERATION: Final = "_operation"
IS_SNAPSHOT: Final = "_is_snapshot"
SOURCE_TIMESTAMP: Final = "_source_timestamp"
TRANSACTION_ID: Final = "_transaction_id"
ABSENT: Final = "_absent"
BEFORE: Final = "before"
ROW: Final = "row"
# Only in targets.
IS_DELETED: Final = "_is_deleted"
RESERVED_COLUMNS: Final = frozenset({SEQUENCE_NUM, IS_DELETED, SOURCE_TIMESTAMP})


class DMLOperation(StrEnum):
    """Operation of a change on a row. A snapshot row is an INSERT with `_is_snapshot`."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class DDLOperation(StrEnum):
    """Operation of a change on a table or database."""

    CREATE_DATABASE = "CREATE_DATABASE"
    DROP_DATABASE = "DROP_DATABASE"
    CREATE_TABLE = "CREATE_TABLE"
    DROP_TABLE = "DROP_TABLE"
    TRUNCATE_TABLE = "TRUNCATE_TABLE"
    ALTER_TABLE = "ALTER_TABLE"
    RENAME_TABLE = "RENAME_TABLE"


class SnapshotPhase(StrEnum):
    """The two ends of a table's snapshot, as the journal records them."""

    STARTED = "SNAPSHOT_STARTED"
    COMPLETED = "SNAPSHOT_COMPLETED"


@dataclass(frozen=True, slots=True, kw_only=True)
class DDLEvent:
    """One schema change of one table.

    Attributes:
        schema: The schema afterwards; None when the table does not exist or is unknown.
        before: Of an ALTER_TABLE: the schema before it, with the same numbers for columns that are the same (`Column.id`). None: unknown.
        fill: Of an ALTER_TABLE: one row with the values that existing rows have in new columns, by column name; a column that
            it lacks is NULL in them. None: unknown, the table needs a new snapshot.
        statement: The source's text where it has one.
        shown: Of an ALTER_TABLE that the source did not understand: the statement as a message may show it, short and without values. Not
            kept in the journal: the table stops.
    """

    operation: DDLOperation
    table: TableId
    schema: TableSchema | None = None
    before: TableSchema | None = None
    fill: pa.RecordBatch | None = None
    new_table: TableId | None = None
    statement: str | None = None
    shown: str | None = None
    transaction_id: str | None = None
    source_timestamp: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `event_from_json` reads back."""
        return {
            "event": self.operation.value,
            "table": [self.table.namespace, self.table.name],
            "schema": self.schema.to_json() if self.schema else None,
            **({"before": self.before.to_json()} if self.before else {}),
            **({"fill": _batch_to_text(self.fill)} if self.fill is not None else {}),
            "new_table": [self.new_table.namespace, self.new_table.name] if self.new_table else None,
            "statement": self.statement,
            "transaction_id": self.transaction_id,
            "source_timestamp": self.source_timestamp.isoformat() if self.source_timestamp else None,
        }


class SnapshotKind(StrEnum):
    """Kind of a snapshot: what it is written into."""

    FIRST = "first"
    """An empty table: the first of its incarnation."""
    IN_PLACE = "in_place"
    """A table that the target holds, and that readers read meanwhile."""
    KEYS = "keys"
    """Some rows of a table whose snapshot is complete. The journal has no event of it."""
    CHANGED = "changed"
    """A table that the target holds, of which only the rows that differ are read. Nothing is deleted at its end."""
    NONE = "none"
    """No table: only changes from here on are wanted, and nothing is read. It is complete when it begins."""


def check_start(kind: SnapshotKind, start_number: int | None) -> None:
    """Check that a snapshot in place has a start number, and others have none."""
    assert (kind is SnapshotKind.IN_PLACE) == (start_number is not None), f"{kind.value} with {start_number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEvent:
    """The beginning or the end of a table's snapshot.

    `start_number`: rows of the target that still carry a lower `_sequence_num` when a snapshot in place is complete no longer exist in
    the source. Only a snapshot in place has one.
    """

    phase: SnapshotPhase
    table: TableId
    kind: SnapshotKind = SnapshotKind.FIRST
    start_number: int | None = None

    def __post_init__(self) -> None:
        """Check that the two fields agree."""
        check_start(self.kind, self.start_number)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `event_from_json` reads back."""
        return {
            "event": self.phase.value,
            "table": [self.table.namespace, self.table.name],
            "kind": self.kind.value,
            "start_number": self.start_number,
        }


JournalEvent = DDLEvent | SnapshotEvent


def event_from_json(data: Mapping[str, Any]) -> JournalEvent:
    """Read an event that `to_json` wrote; KeyError or ValueError if it is something else."""
    table = TableId(*data["table"])
    if data["event"] in {p.value for p in SnapshotPhase}:
        return SnapshotEvent(
            phase=SnapshotPhase(data["event"]),
            table=table,
            kind=SnapshotKind(data["kind"]),
            start_number=data["start_number"],
        )
    moment = data["source_timestamp"]
    return DDLEvent(
        operation=DDLOperation(data["event"]),
        table=table,
        schema=TableSchema.from_json(data["schema"]) if data["schema"] else None,
        before=TableSchema.from_json(data["before"]) if data.get("before") else None,
        fill=_batch_from_text(data["fill"]) if data.get("fill") else None,
        new_table=TableId(*data["new_table"]) if data["new_table"] else None,
        statement=data["statement"],
        transaction_id=data["transaction_id"],
        source_timestamp=datetime.fromisoformat(moment) if moment else None,
    )


def no_fill() -> pa.RecordBatch:
    """Return the `DDLEvent.fill` of an alteration whose new columns are NULL in the existing rows."""
    return pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))


def _batch_to_text(batch: pa.RecordBatch) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return base64.b64encode(sink.getvalue()).decode()


def _batch_from_text(text: str) -> pa.RecordBatch:
    with pa.ipc.open_stream(base64.b64decode(text)) as stream:
        return stream.read_next_batch()


def change_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of a batch of changes of one table version.

    | column | type | |
    |---|---|---|
    | `_sequence_num` | int64 | unique, ascending; between source and capture: the ordinal within the pull, from 0 |
    | `_operation` | string | INSERT, UPDATE, DELETE |
    | `_is_snapshot` | bool | read from the table, not from the log |
    | `_source_timestamp` | timestamp[us, UTC] | commit time at the source; null if unknown |
    | `_transaction_id` | string | as the source names it; null for snapshot rows |
    | `_absent` | list<string> | field names of `row` that the source did not send; null or empty: none. Absent is not NULL |
    | `before` | struct | DELETE: always. UPDATE: when the key changed, or the table has no key, or the source gave it. INSERT: null |
    | `row` | struct | the row afterwards; null for DELETE |
    """
    return pa.schema(
        [
            pa.field(SEQUENCE_NUM, pa.int64(), nullable=False),
            pa.field(OPERATION, pa.string(), nullable=False),
            pa.field(IS_SNAPSHOT, pa.bool_(), nullable=False),
            pa.field(SOURCE_TIMESTAMP, pa.timestamp("us", tz="UTC")),
            pa.field(TRANSACTION_ID, pa.string()),
            pa.field(ABSENT, pa.list_(pa.string())),
            pa.field(BEFORE, schema.before_type),
            pa.field(ROW, schema.row_type),
        ]
    )
