"""The log of change tracking: rounds of net changes.

A round reads, in one SNAPSHOT transaction, which rows have changed since the position, and their states: all tables as of one version.
For the host it is one transaction. So it is delivered in parts, of bounded size, and counts as a whole or not at all: after a crash in a
round the next one begins at the same position, under a later snapshot. What is committed while a round runs has a higher version, and
belongs to the next. The position is a version at which a round ended.

What makes changes unknown is looked for outside of the snapshot, before the round and after it: cleanup, TRUNCATE, and tracking that
was switched off. A table of which changes may be unknown is read again. A table that was altered meanwhile ends the round with an error.

Nothing that must survive is kept here.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyodbc
from typing_extensions import override

from replicator.model.errors import CurableError, OffsetExpiredError, SourceUnavailableError, TableError
from replicator.model.events import change_schema
from replicator.model.isolation import of_table
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins.source import TRANSACTION_SCHEMA, LogBatch, LogReader, PullLimits, TableChanges
from replicator_source_sqlserver.connecting.connection import Connection, Session
from replicator_source_sqlserver.connecting.errors import DENIED, TABLE_CHANGED, facts_of, number_of, translate
from replicator_source_sqlserver.snapshot.blocks import first_rows, next_rows
from replicator_source_sqlserver.tracking import queries as tracking
from replicator_source_sqlserver.tracking.changes import ChangesReader, LastTracked, TrackedChanges
from replicator_source_sqlserver.tracking.tables import Found, TrackedTables
from replicator_source_sqlserver.tracking.versions import VersionMarks, VersionPosition, spelled

POLL_S: Final = 0.25
LOOK_S: Final = 1.0
HEARTBEAT_S: Final = 10.0
"""Seconds between two reports of an idle log that it is up to date."""
_COUNTED_AT_ONCE: Final = 100
_NOT_TRACKED: Final = 22105
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


@dataclass(slots=True, kw_only=True)
class _Part:
    """The rest of a round of one table.

    Attributes:
        counted: Changes that were counted when the round began, and not read yet. It does not say where the part ends: what the server
            tells is relative to the version that it is asked for (CHANGETABLE), which is a later one with each page.
    """

    table: TableId
    changes: TrackedChanges
    counted: int
    last: LastTracked | None = None
    is_over: bool = False

    def limit(self, rows_max: int) -> int:
        """Return the number of changes to ask for: one more than expected, so that the counted ones end with fewer than were asked for."""
        return min(rows_max, self.counted + 1) if self.counted > 0 else rows_max


@dataclass(slots=True, kw_only=True)
class _Round:
    """A round that runs.

    Attributes:
        connection: The connection that has the transaction.
        since: The version up to which everything is delivered.
        version: The version that the transaction sees.
        moment: The time up to which every commit is in the round.
        parts: The parts that are left.
        respelled: Tables in which a key has other bytes than its change.
    """

    connection: Connection
    since: int
    version: int
    moment: datetime
    parts: list[_Part]
    is_begun: bool = False
    respelled: set[TableId] = field(default_factory=set)


class TrackingReader(LogReader):
    """See `LogReader`.

    Args:
        session: Its own connection.
        position: The version after which it begins.
        tables: The replicated tables.
        marks: The source's marks.
    """

    def __init__(
        self,
        session: Session,
        *,
        position: VersionPosition,
        tables: TrackedTables,
        marks: VersionMarks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._position, self._tables, self._marks = session, position.version, tables, marks
        self._clock = clock
        self._round: _Round | None = None
        self._event_numbers = itertools.count()
        self._looked_at: float | None = None
        self._told_at: float | None = None

    @override
    def pull(self, limits: PullLimits) -> LogBatch:
        deadline = self._clock() + limits.wait_s
        while True:
            with self._session.use("reading changes") as connection:
                batch = self._next(connection, limits)
            if batch is not None:
                return batch
            left = deadline - self._clock()
            if left <= 0:
                return LogBatch(open_transaction=None)
            time.sleep(min(POLL_S, left))

    @override
    def acknowledge(self, offset: Offset) -> None:
        """Tell the server nothing: it keeps changes by its own rules."""

    @override
    def keep_alive(self) -> None:
        """Do nothing: each poll is a query of its own, and no connection waits for us."""

    @override
    def close(self) -> None:
        self._session.close()

    # -- one pull ------------------------------------------------------------------------------------------------------

    def _next(self, connection: Connection, limits: PullLimits) -> LogBatch | None:
        if self._round is not None:
            return self._part(self._round, connection, limits)
        moment = tracking.clock(connection)
        head = tracking.head(connection)
        if head < self._position:
            raise OffsetExpiredError(
                f"Change tracking is at version {head}, and we are at {self._position}: it was switched off, or the database restored.",
                code="offset_expired",
                action="Run `replicator snapshot NAME --changed-only` or `--restart`.",
            )
        if head == self._position and not self._is_due(self._looked_at, LOOK_S):
            return self._idle(moment)
        self._looked_at = self._clock()
        found = self._tables.look(connection, self._position)
        if found.events or found.lost:
            return self._event(found, moment)
        if head == self._position:
            return self._idle(moment)
        return self._part(self._begin(connection), connection, limits)

    def _is_due(self, since: float | None, every_s: float) -> bool:
        return since is None or self._clock() - since >= every_s

    def _idle(self, moment: datetime) -> LogBatch | None:
        """Return the report of an idle log now and then; None in between."""
        marks, errors = self._marks.reached(self._position), self._tables.take_errors()
        if not (marks or errors or self._is_due(self._told_at, HEARTBEAT_S)):
            return None
        self._told_at = self._clock()
        return LogBatch(open_transaction=None, marks=marks, source_time=moment, table_errors=errors)

    def _event(self, found: Found, moment: datetime) -> LogBatch:
        """Return the events of tables, as a transaction of its own at the position."""
        id_ = f"{spelled(self._position)}:{next(self._event_numbers)}"
        count = len(found.lost) + len(found.events)
        return LogBatch(
            open_transaction=None,
            ddl=[replace(event, transaction_id=id_, source_timestamp=moment) for event in found.events],
            events=count,
            transactions=_ended(id_, count, moment),
            unlogged={table: ordinal for ordinal, table in enumerate(found.lost)},
            table_errors=self._tables.take_errors(),
        )

    # -- a round -------------------------------------------------------------------------------------------------------

    def _begin(self, connection: Connection) -> _Round:
        connection.begin_snapshot()
        moment = tracking.clock(connection)
        # The version first: if it did not begin the snapshot, it would be too low, and what it leaves out would come again.
        version = tracking.head(connection)
        changes = self._tables.changes()
        with _tables_kept():
            counts = self._counts(connection, changes)
        parts = [
            _Part(table=table, changes=one, counted=count)
            for (table, one), count in zip(changes, counts, strict=True)
            if count
        ]
        self._round = _Round(connection=connection, since=self._position, version=version, moment=moment, parts=parts)
        return self._round

    def _counts(self, connection: Connection, changes: Sequence[tuple[TableId, TrackedChanges]]) -> list[int]:
        """Count the changes of each table. A table that our account may not know of fails alone."""
        found: dict[int, int] = {}
        numbered = list(enumerate(changes))
        for start in range(0, len(numbered), _COUNTED_AT_ONCE):
            part = numbered[start : start + _COUNTED_AT_ONCE]
            try:
                found |= self._counted(connection, part)
            except pyodbc.Error as error:
                if number_of(error) not in DENIED:
                    raise
                for one in part:
                    found |= self._counted_alone(connection, one)
        return [found[number] for number, _ in numbered]

    def _counted(
        self, connection: Connection, part: Sequence[tuple[int, tuple[TableId, TrackedChanges]]]
    ) -> dict[int, int]:
        query = " UNION ALL ".join(changes.counted(self._position, number) for number, (_, changes) in part)
        return {int(number): int(count) for number, count in connection.rows(query)}

    def _counted_alone(self, connection: Connection, one: tuple[int, tuple[TableId, TrackedChanges]]) -> dict[int, int]:
        try:
            return self._counted(connection, [one])
        except pyodbc.Error as error:
            if number_of(error) not in DENIED:
                raise
            number, (table, _) = one
            self._tables.fail(table, _denied(error, table))
            return {number: 0}

    def _part(self, round_: _Round, connection: Connection, limits: PullLimits) -> LogBatch:
        """Read the next part of a round: as much as a pull takes, of one table after the other."""
        if connection is not round_.connection:
            raise SourceUnavailableError("The connection that read a round was lost.", code="source_unavailable")
        taken: list[ChangesReader] = []
        rows, size = max(1, limits.rows), max(1, limits.bytes)
        while round_.parts and rows > 0 and size > 0:
            part = round_.parts[0]
            changes = self._read(round_, part, rows, size)
            if changes is not None:
                taken.append(changes)
                rows, size = rows - len(changes), size - changes.bytes
            if not part.is_over:
                break
            round_.parts.pop(0)
        lost = self._end(round_) if not round_.parts else None
        return self._batch(round_, taken, lost)

    def _read(self, round_: _Round, part: _Part, rows_max: int, bytes_max: int) -> ChangesReader | None:
        """Read the next changes of one table; it stops where they grow too large."""
        limit = part.limit(rows_max)
        query, parameters = part.changes.part(round_.since, part.last, limit)
        size = first_rows(part.changes.plan.specs.values())
        found: ChangesReader | None = None
        read, is_cut = 0, False
        with _tables_kept(part.table), closing(round_.connection.blocks(query, parameters, lambda: size)) as blocks:
            for block in blocks:
                with of_table(part.table, "decoding its changes"):
                    changes = part.changes.decode(block, round_.version)
                found = changes if found is None else found.joined_with(changes)
                read += len(block)
                if found.bytes >= bytes_max:
                    is_cut = True
                    break
                size = next_rows(size, rows=read, size=found.bytes, left=bytes_max - found.bytes)
        part.counted -= read
        part.is_over = read < limit and not is_cut
        if part.is_over and part.counted > 0:
            raise SourceUnavailableError(
                "changes that were counted in a snapshot are not there any more in it.",
                code="snapshot_not_exact",
                table=str(part.table),
            )
        if found is not None:
            part.last = found.last
            if found.has_other_spelling:
                round_.respelled.add(part.table)
        return found

    def _end(self, round_: _Round) -> Sequence[TableId]:
        """End a round whose changes were all read; return the tables that have to be read again."""
        round_.connection.end_snapshot()
        is_same, lost = self._tables.look_behind(round_.connection, round_.since)
        if not is_same:
            raise SourceUnavailableError(
                "A table was altered while its changes were read; they are read again.",
                code="table_changed_under_snapshot",
            )
        self._round, self._position = None, round_.version
        return sorted({*lost, *round_.respelled})

    def _batch(self, round_: _Round, taken: Sequence[ChangesReader], lost: Sequence[TableId] | None) -> LogBatch:
        """Return a part of a round as a pull. `lost`: as `_end` has it; None: it has not ended."""
        id_ = spelled(round_.version)
        changes, count = list[TableChanges](), 0
        for one in taken:
            changes.append(_table_changes(one, id_, round_.moment, count))
            count += len(one)
        if lost is None:
            round_.is_begun = round_.is_begun or count > 0
            return LogBatch(
                open_transaction=id_ if round_.is_begun else None,
                changes=changes,
                events=count,
                table_errors=self._tables.take_errors(),
            )
        events = count + len(lost)
        self._told_at = self._clock()
        return LogBatch(
            open_transaction=None,
            changes=changes,
            events=events,
            transactions=_ended(id_, events, round_.moment) if events or round_.is_begun else _ended(id_, None, None),
            marks=self._marks.reached(self._position),
            offset=VersionPosition(self._position).offset,
            source_time=round_.moment,
            table_errors=self._tables.take_errors(),
            unlogged={table: count + number for number, table in enumerate(lost)},
        )


def _table_changes(changes: ChangesReader, id_: str, moment: datetime, first: int) -> TableChanges:
    count, schema = len(changes), changes.schema
    arrays = [
        pa.array(range(first, first + count), pa.int64()),
        changes.operations,
        pa.repeat(pa.scalar(False), count),
        pa.repeat(pa.scalar(moment, _TIMESTAMP), count),
        pa.repeat(pa.scalar(id_), count),
        pa.nulls(count, pa.list_(pa.string())),
        changes.before,
        changes.row,
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=change_schema(schema))
    return TableChanges(schema=schema, rows=rows, is_net=True)


def _ended(id_: str, end: int | None, moment: datetime | None) -> pa.RecordBatch:
    rows = [] if end is None else [{"id": id_, "end_ordinal": end, "committed_at": moment}]
    return pa.RecordBatch.from_pylist(rows, schema=TRANSACTION_SCHEMA)


def _denied(error: pyodbc.Error, table: TableId) -> TableError:
    said = translate(error, doing="reading its changes", table=str(table))
    return CurableError(said.message, code=said.code, table=str(table), action=said.action)


@contextmanager
def _tables_kept(table: TableId | None = None) -> Iterator[None]:
    """Translate errors of a table that was altered, dropped or is tracked no longer since the catalogue was read: a new reader sees it."""
    try:
        yield
    except pyodbc.Error as error:
        number = number_of(error)
        if table is not None and number in DENIED:
            raise _denied(error, table) from error
        if number not in {*TABLE_CHANGED, _NOT_TRACKED}:
            raise
        raise SourceUnavailableError(
            f"reading changes: {facts_of(error)}", code="table_changed_under_snapshot"
        ) from error
