"""`FOR SYSTEM_TIME AS OF` for bqemulator: version 1.4.0 gives tables as they were before the scripts that changed them since.

It copies a table after each statement of its own that changes it, and after none inside of a script. Here the content of a table is kept
after each change, in memory, for the last changes; what a script changes in a transaction at the moment of its COMMIT. It becomes a table
of the emulator when a query asks for it.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import sqlglot
from bqemulator.domain.errors import OutOfRangeError
from bqemulator.domain.events import TableDataChanged
from bqemulator.scripting.interpreter import ScriptInterpreter
from bqemulator.storage.sql_identifiers import quoted_table_ref
from bqemulator.versioning.snapshots import SnapshotManager
from sqlglot import exp

Path = tuple[str, str, str]

_CHANGES_MAX: Final = 30
_history: Final[dict[Path, deque[tuple[datetime, pa.Table]]]] = {}
"""The last contents of a table, each with when it became so."""
_CHANGING: Final = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.TruncateTable, exp.Alter, exp.Create)


def install() -> None:
    """Let the emulator of this process do so."""
    interpreter: Any = ScriptInterpreter
    snapshots: Any = SnapshotManager
    execute = interpreter._exec_sql  # noqa: SLF001 - the emulator's statement of a script

    async def executed(self: Any, sql: str) -> None:
        changed = self.__dict__.setdefault("changed_tables", set())
        path = _changed_by(sql, self._project_id)
        if path is not None:
            _remember_first(self._ctx.snapshots, path)
            changed.add(path)
        await execute(self, sql)
        if self._active_txn is None and changed:
            now = self._ctx.clock.now()
            for one in changed:
                _remember(self._ctx.snapshots, one, now)
            changed.clear()

    interpreter._exec_sql = executed  # noqa: SLF001
    snapshots.record_change = _record_change
    snapshots.resolve_time_travel = _resolve


def _record_change(self: Any, *path: str) -> None:
    """What the emulator calls after a statement that is no part of a script."""
    project, dataset, table = path
    _remember(self, (project, dataset, table), self._clock.now())
    self._events.publish(TableDataChanged(project, dataset, table))


def _remember_first(snapshots: Any, path: Path) -> None:
    """Keep what a table is before its first change."""
    made = snapshots._catalog.get_table(*path)  # noqa: SLF001
    if made is not None and not _since(path, made.creation_time):
        _remember(snapshots, path, made.creation_time)


def _remember(snapshots: Any, path: Path, moment: datetime) -> None:
    if snapshots._catalog.get_table(*path) is not None:  # noqa: SLF001
        rows = snapshots._engine.fetch_arrow(f"SELECT * FROM {quoted_table_ref(*path)}")  # noqa: SLF001
        _history.setdefault(path, deque(maxlen=_CHANGES_MAX)).append((moment, rows))


def _since(path: Path, moment: datetime) -> list[tuple[datetime, pa.Table]]:
    return [entry for entry in _history.get(path, ()) if entry[0] >= moment]


def _resolve(self: Any, project: str, dataset: str, table: str, target: datetime) -> Any:
    """The table of the emulator that has what a table was at a moment."""
    path = (project, dataset, table)
    if target > self._clock.now():
        raise OutOfRangeError(f"Invalid snapshot time {target.isoformat()}: it is in the future")
    for copy in self._catalog.list_snapshots_for_table(*path):
        if copy.snapshot_time == target:
            return copy
    made = self._catalog.get_table(*path)
    if made is None:
        return None
    if target >= made.creation_time:
        _remember_first(self, path)
        known = _since(path, made.creation_time)
    else:
        known = list(_history.get(path, ()))
    found = [rows for moment, rows in known if moment <= target]
    if not found:
        raise OutOfRangeError(f"Invalid snapshot time {target.isoformat()}: the history does not go back so far")
    clock, self._clock = self._clock, _Stopped(target)
    try:
        copy = self.capture(*path)
    finally:
        self._clock = clock
    connection = self._engine.connection
    connection.register("remembered", found[-1])
    connection.execute(
        f'CREATE OR REPLACE TABLE "{copy.duckdb_schema}"."{copy.duckdb_table}" AS SELECT {_columns(found[-1])} FROM remembered'
    )
    connection.unregister("remembered")
    return copy


def _columns(rows: pa.Table) -> str:
    """All columns; JSON, which Arrow has as text, is JSON again."""
    documents = [field.name for field in rows.schema if (field.metadata or {}).get(b"bqemu.duckdb_type") == b"JSON"]
    casts = ", ".join(f'CAST("{name}" AS JSON) AS "{name}"' for name in documents)
    return f"* REPLACE ({casts})" if casts else "*"


class _Stopped:
    """A clock that shows one moment."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment.astimezone(UTC)

    def now(self) -> datetime:
        return self._moment


def _changed_by(sql: str, project: str) -> Path | None:
    """The table that a statement changes, if it is one that changes a table."""
    try:
        tree = sqlglot.parse_one(sql, read="bigquery")
    except sqlglot.errors.SqlglotError:
        # BEGIN TRANSACTION, say, or what the emulator itself refuses.
        return None
    target = tree.find(exp.Table) if isinstance(tree, _CHANGING) else None
    if target is None or not target.db:
        return None
    return target.catalog or project, target.db, target.name
