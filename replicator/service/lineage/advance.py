"""State machine of lineage events. Pure.

A job is a table of a replicator, and its run is that of a supervisor: it begins with START, repeats RUNNING periodically and at each
change of the table's definition, and ends with COMPLETE, FAIL or ABORT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID, uuid5

from pydantic import AwareDatetime, BaseModel, ConfigDict

from replicator.runtime.supervisor import End
from replicator.state.records import Run


class LineageEvent(StrEnum):
    """State of a run in an event, as OpenLineage calls it."""

    START = "START"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TableCursor(_Model):
    """Events sent for a table so far. `attempt`: number of starts of its run within one run of a supervisor."""

    fingerprint: str
    attempt: int = 1
    is_open: bool = True


class LineageCursor(_Model):
    """Events sent for a replicator so far: the run of its supervisor, and the last time of the periodic events."""

    run: int | None = None
    at: AwareDatetime | None = None
    tables: dict[str, TableCursor] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTable:
    """Current state of a table. `error`: why it failed."""

    fingerprint: str
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """An event to send. `is_altered`: the table's definition has changed."""

    table: str
    event: LineageEvent
    run_id: UUID
    error: str | None = None
    is_altered: bool = False


def advance(
    cursor: LineageCursor, uuid: UUID, run: Run | None, tables: Mapping[str, SeenTable], now: datetime, every: timedelta
) -> tuple[LineageCursor, tuple[Due, ...]]:
    """Return the cursor after the due events are sent, and these events."""
    if run is None:
        return cursor, ()
    saying = _Saying(uuid=uuid, run=cursor.run, said=dict(cursor.tables))
    is_new = cursor.run != run.id
    if is_new:
        saying.end_all(LineageEvent.ABORT)
        saying.run, saying.said = run.id, {}
    if run.ended_at is not None:
        has_failed = run.outcome in (End.FAILED.value, End.REFUSED.value)
        message = run.error.message if run.error is not None else "The replicator failed."
        saying.end_all(LineageEvent.FAIL if has_failed else LineageEvent.COMPLETE, message if has_failed else None)
        return LineageCursor(run=run.id, at=cursor.at, tables=saying.said), tuple(saying.due)
    is_time = is_new or cursor.at is None or now - cursor.at >= every
    for name in sorted(set(saying.open) - set(tables)):
        saying.end(name, LineageEvent.COMPLETE)
    for name, table in sorted(tables.items()):
        saying.look(name, table, is_time=is_time)
    return LineageCursor(run=run.id, at=now if is_time else cursor.at, tables=saying.said), tuple(saying.due)


@dataclass(kw_only=True)
class _Saying:
    """Cursor under change, and the events that are due by it."""

    uuid: UUID
    run: int | None
    said: dict[str, TableCursor]
    due: list[Due] = field(default_factory=list)

    @property
    def open(self) -> list[str]:
        """Tables whose run has begun and not ended."""
        return [name for name, table in self.said.items() if table.is_open]

    def look(self, name: str, table: SeenTable, *, is_time: bool) -> None:
        """Add the event for a change of a table, or the periodic one when it is time."""
        was = self.said.get(name)
        is_open = was is not None and was.is_open
        if table.error is not None:
            if is_open:
                self.end(name, LineageEvent.FAIL, table.error)
        elif was is None or not is_open:
            attempt = 1 if was is None else was.attempt + 1
            self.said[name] = TableCursor(fingerprint=table.fingerprint, attempt=attempt)
            self._say(name, LineageEvent.START)
        elif was.fingerprint != table.fingerprint:
            self.said[name] = was.model_copy(update={"fingerprint": table.fingerprint})
            self._say(name, LineageEvent.RUNNING, is_altered=True)
        elif is_time:
            self._say(name, LineageEvent.RUNNING)

    def end(self, name: str, event: LineageEvent, error: str | None = None) -> None:
        """Add the event for the end of a table's run."""
        self._say(name, event, error=error)
        self.said[name] = self.said[name].model_copy(update={"is_open": False})

    def end_all(self, event: LineageEvent, error: str | None = None) -> None:
        """Add it for all tables whose run has not ended."""
        for name in self.open:
            self.end(name, event, error)

    def _say(self, name: str, event: LineageEvent, *, error: str | None = None, is_altered: bool = False) -> None:
        run_id = uuid5(self.uuid, f"{self.run}/{name}/{self.said[name].attempt}")
        self.due.append(Due(table=name, event=event, run_id=run_id, error=error, is_altered=is_altered))
