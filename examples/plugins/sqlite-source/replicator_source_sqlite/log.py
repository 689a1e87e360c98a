"""The table of changes as a log.

SQLite does not tell which transaction wrote a row. It has one writer at a time, so all rows that a read finds are of transactions that are
complete: what a poll finds is handed out as one transaction. A chunk must have seen all of it or nothing, so it ends where the read of a
chunk began (`Boundaries`).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from replicator.model.errors import TableError
from replicator.model.events import change_schema
from replicator.model.isolation import of_table
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins import TRANSACTION_SCHEMA, LogBatch, LogReader, PullLimits, Seen, TableChanges, Visibility
from replicator_source_sqlite.values import row_of

if TYPE_CHECKING:
    from replicator_source_sqlite.source import SqliteSource

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class SqliteVisibility(Visibility):
    """A read that saw every change up to a number. A transaction is called by the number of its first change."""

    last: int

    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        """Whether each transaction began at or below the number."""
        seen = [Seen.SEEN if int(i) <= self.last else Seen.UNSEEN for i in transaction_ids.to_pylist()]
        return pa.array([int(s) for s in seen], pa.int8())


class Boundaries:
    """The numbers at which reads began. Thread-safe: no read begins while the end of a transaction is chosen."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._numbers: set[int] = set()

    def begin_read(self, connection: sqlite3.Connection) -> SqliteVisibility:
        """Begin a read transaction, and say what it sees."""
        with self._lock:
            connection.execute("BEGIN")
            (last,) = connection.execute(f"SELECT max(id) FROM {self._log}").fetchone()
            self._numbers.add(last)
        return SqliteVisibility(last)

    def end_behind(self, connection: sqlite3.Connection, position: int) -> int:
        """The number of the last change that belongs to the transaction behind a position: a mark, a boundary, or the last of all."""
        with self._lock:
            found = connection.execute(
                f"SELECT max(id), min(id) FILTER (WHERE operation = 'MARK') FROM {self._log} WHERE id > ?", [position]
            ).fetchone()
            return min(
                [n for n in found if n is not None] + [n for n in self._numbers if n > position], default=position
            )

    def forget(self, position: int | None = None) -> None:
        """Forget the numbers up to a position; None: all of them."""
        with self._lock:
            self._numbers = {n for n in self._numbers if position is not None and n > position}


class SqliteLog(LogReader):
    """Polls the table of changes."""

    def __init__(self, source: SqliteSource, after: Offset, schemas: Mapping[TableId, TableSchema]) -> None:
        self._source = source
        self._schemas = schemas
        self._connection = source.connect()
        self._schema_version = -1
        self._position = self._end = after.value["id"]
        self._first = self._position + 1
        self._has_rows = False

    def pull(self, limits: PullLimits) -> LogBatch:
        """Poll until there is something, or the time is over."""
        deadline = time.monotonic() + limits.wait_s
        with self._source.translated():
            while True:
                batch = self._read(limits)
                if batch.events or batch.offset or batch.table_errors or time.monotonic() >= deadline:
                    return batch
                time.sleep(min(_POLL_S, limits.wait_s))

    def acknowledge(self, offset: Offset) -> None:
        """Delete what is before the offset. The row at the offset stays: it shows that the log goes on behind it."""
        self._source.boundaries.forget(offset.value["id"])
        with self._source.translated():
            self._connection.execute(f"DELETE FROM {self._source.log} WHERE id < ?", [offset.value["id"]])

    def keep_alive(self) -> None:
        """A file has no connection that could be dropped."""

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _read(self, limits: PullLimits) -> LogBatch:
        began, start = datetime.now(UTC), self._position
        if self._position == self._end:
            self._end = self._source.boundaries.end_behind(self._connection, self._position)
            self._first, self._has_rows = self._position + 1, False
        rows: dict[TableId, list[dict[str, Any]]] = {}
        marks, events, size, at = [], 0, 0, began
        found = self._connection.execute(
            f"SELECT id, at, table_name, operation, before, after FROM {self._source.log} WHERE id > ? AND id <= ? ORDER BY id",
            [self._position, self._end],
        )
        for number, text, name, operation, before, after in found:
            if events >= limits.rows or size >= limits.bytes:
                break
            self._position, at = number, datetime.fromisoformat(text).replace(tzinfo=UTC)
            table = TableId("main", name)
            if operation == "MARK":
                marks.append(after)
            elif (schema := self._schemas.get(table)) is not None:
                with of_table(table, "decoding its changes"):
                    old = None if before is None else row_of(schema, before)
                    names = schema.key_fields or tuple(schema.fields.values())
                    change = {
                        "_sequence_num": events, "_operation": operation, "_is_snapshot": False, "_source_timestamp": at,
                        "_transaction_id": str(self._first), "before": None if old is None else {n: old[n] for n in names},
                        "row": None if after is None else row_of(schema, after),
                    }  # fmt: skip
                rows.setdefault(table, []).append(change)
                events, size, self._has_rows = events + 1, size + len(after or before), True
        is_over, moved = self._position == self._end, self._position > start
        ended = [{"id": str(self._first), "end_ordinal": events, "committed_at": at}]
        return LogBatch(
            changes=[self._changes(table, changes) for table, changes in rows.items()],
            events=events,
            transactions=pa.RecordBatch.from_pylist(
                ended if is_over and moved and self._has_rows else [], schema=TRANSACTION_SCHEMA
            ),
            open_transaction=None if is_over else str(self._first),
            marks=marks,
            offset=Offset.of({"id": self._position}) if is_over and moved else None,
            source_time=at if moved else began,
            table_errors=self._table_errors(),
        )

    def _changes(self, table: TableId, changes: list[dict[str, Any]]) -> TableChanges:
        schema = self._schemas[table]
        with of_table(table, "decoding its changes"):
            return TableChanges(schema=schema, rows=pa.RecordBatch.from_pylist(changes, schema=change_schema(schema)))

    def _table_errors(self) -> Mapping[TableId, TableError]:
        """Tables whose triggers are missing, or do not write all columns: somebody dropped or changed them."""
        (version,) = self._connection.execute("PRAGMA schema_version").fetchone()
        if version == self._schema_version:
            return {}
        self._schema_version = version
        return {
            table: TableError(
                "The table was dropped, recreated or altered.",
                code="schema_changed",
                table=str(table),
                action=f"Take a new snapshot: replicator snapshot {self._source.context.replicator} {table} --recreate.",
            )
            for table, schema in self._schemas.items()
            if not self._source.is_logged(self._connection, schema)
        }
