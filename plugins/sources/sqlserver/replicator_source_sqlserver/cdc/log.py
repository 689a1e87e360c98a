"""The log: change tables in, pulls of Arrow columns out.

A poll asks how far the capture job has come. If that is further than we are, the commits after our position make a page: as many as fit,
up to the next `Turn`, at which a table may change its shape, or to the first awaited token. Only change tables that have rows of
the page are read. Afterwards their low watermarks are looked at again: cleanup raises them before it deletes, and a range that was deleted
reads as empty. A page has as many bytes as a pull takes: where its rows have more, it ends at an earlier commit. A commit that is larger
than a page is read in parts, one table after the other.

Nothing that must survive is kept here. After a lost connection a new reader starts after the last durable offset.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import pyarrow as pa
import pyodbc
from typing_extensions import override

from replicator.model.errors import OffsetExpiredError, SourceUnavailableError, TableError
from replicator.model.events import DDLEvent
from replicator.model.isolation import TableFailedError
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins.source import TRANSACTION_SCHEMA, LogBatch, LogReader, PullLimits
from replicator_source_sqlserver.catalogue.tables import CaptureInstance
from replicator_source_sqlserver.cdc import queries
from replicator_source_sqlserver.cdc.change_table import ChangeTable, Decoded, Last, Query, up_to
from replicator_source_sqlserver.cdc.instances import Reading, may_have_lost, readings
from replicator_source_sqlserver.cdc.job import CaptureHealth
from replicator_source_sqlserver.cdc.marks import AwaitedMarks, server_moment
from replicator_source_sqlserver.cdc.pages import Commit, Page
from replicator_source_sqlserver.cdc.position import Position
from replicator_source_sqlserver.cdc.queries import InstanceStart
from replicator_source_sqlserver.cdc.reads import Piece, by_table, instances_kept, read_piece, rows_missing
from replicator_source_sqlserver.cdc.tables import CapturedTables, Turn
from replicator_source_sqlserver.cdc.visibility import NotedHeads
from replicator_source_sqlserver.connecting.connection import Connection, Session
from replicator_source_sqlserver.connecting.errors import DENIED, number_of
from replicator_source_sqlserver.denials import denied, read_unreadable, verify_some_readable
from replicator_source_sqlserver.lsn import lsn_to_text, next_lsn, previous_lsn

POLL_S: Final = 0.25
PAGE_ROWS: Final = 2_000
"""Minimum of a page's rows, however few are pulled at once: a page costs some queries whatever it brings."""
_LOOK_S: Final = 1.0
PAGE_BYTES: Final = 1 << 20
"""Minimum of a page's bytes."""
_COMMITS_MAX: Final = 5_000
_ROW_BYTES: Final = 200.0
"""The assumed size of a row, until a page has been read."""

T = TypeVar("T")
Starts = Mapping[int, InstanceStart]
Part = tuple[TableId, ChangeTable, Reading]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turned:
    """The shape changes that were handled at one position: those of `tables`, and all before `lsn`."""

    lsn: bytes = b""
    tables: frozenset[TableId] = frozenset()

    def has(self, turn: Turn) -> bool:
        """Return whether a shape change was handled."""
        return turn.lsn < self.lsn or (turn.lsn == self.lsn and turn.table in self.tables)

    def behind(self, turn: Turn) -> _Turned:
        """Return these and one more."""
        return _Turned(lsn=turn.lsn, tables=(self.tables if turn.lsn == self.lsn else frozenset()) | {turn.table})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    """The end of a page. `position`: where it begins; `turned`: the shape changes handled before it; `event`: that of the last one."""

    commits: list[Commit]
    position: Position
    turned: _Turned
    event: DDLEvent | None = None


@dataclass(slots=True)
class _LargeCommit:
    """The rest of a commit that is read in parts.

    Attributes:
        parts: Tables, of which the first one is being read.
        last: The row of that table that was read last; None: reading it has not begun.
        end: Its last row.
    """

    commit: Commit
    parts: list[Part]
    marks: Sequence[str]
    last: Last | None = None
    end: Last | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """Where the reader is: the position, the shape changes handled there, and the time of its last commit, by the server's clock."""

    position: Position
    turned: _Turned
    moment: datetime


class _Marks:
    """Marks that are reached: by a token in the mark table, or by a time."""

    def __init__(self, board: AwaitedMarks, mark_table: Callable[[Connection], Sequence[CaptureInstance]]) -> None:
        self._board, self._mark_table = board, mark_table

    def first(self, connection: Connection, after: bytes, commits: list[Commit]) -> tuple[list[Commit], list[str]]:
        """Return the commits up to and including the first with an awaited token, and the tokens that are reached there."""
        awaited, found = self._board.tokens, list[tuple[bytes, str]]()
        if awaited:
            instances = self._mark_table(connection)
            if not instances:
                raise SourceUnavailableError(
                    "The mark table is not captured, so snapshots cannot finish.",
                    code="marks_not_captured",
                    action="EXEC sys.sp_cdc_enable_table for `source.mark_table`, as `replicator validate` prints it.",
                )
            for reading in readings(instances, after, commits[-1].lsn):
                with instances_kept():
                    found += queries.tokens(connection, reading)
        at = min((lsn for lsn, token in found if token in awaited), default=None)
        if at is None:
            return commits, []
        return [commit for commit in commits if commit.lsn <= at], [token for lsn, token in found if lsn == at]

    def reached(self, connection: Connection, tokens: Sequence[str], end: Commit) -> Sequence[str]:
        """Return the marks that are reached with a commit that has these tokens."""
        now = server_moment(connection) if self._board.has_times else None
        return self._board.reached(tokens, end, now)


@dataclass(slots=True)
class _Events:
    """Events of tables, each batch of them as a transaction of its own. `zone`: the offset of the server's clock from UTC."""

    zone: timedelta
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def batch(
        self, events: Sequence[DDLEvent], lsn: bytes, moment: datetime, errors: Mapping[TableId, TableError]
    ) -> LogBatch:
        """Return events at a position."""
        # A transaction may both alter a table and change rows, and another event may have this position.
        at, id_ = (moment - self.zone).replace(tzinfo=UTC), f"{lsn_to_text(lsn)}:{next(self._numbers)}"
        ended = {"id": id_, "end_ordinal": len(events), "committed_at": at}
        return LogBatch(
            open_transaction=None,
            ddl=[replace(event, transaction_id=id_, source_timestamp=at) for event in events],
            events=len(events),
            transactions=pa.RecordBatch.from_pylist([ended], schema=TRANSACTION_SCHEMA),
            table_errors=errors,
        )


class ChangeReader(LogReader):
    """See `LogReader`.

    Args:
        session: Its own connection.
        position: The position after which it begins.
        tables: The replicated tables.
        board: The source's marks.
        mark_table: Returns the instances of the mark table as they are now; none without such a table.
        health: Says when the capture job stands still.
        zone: The offset of the server's clock from UTC.
        heads: Notes each position of the capture job.
    """

    def __init__(
        self,
        session: Session,
        *,
        position: Position,
        tables: CapturedTables,
        board: AwaitedMarks,
        mark_table: Callable[[Connection], Sequence[CaptureInstance]],
        health: CaptureHealth,
        zone: timedelta,
        heads: NotedHeads | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._tables, self._health = session, tables, health
        self._marks, self._events = _Marks(board, mark_table), _Events(zone)
        self._clock, self._heads = clock, heads or NotedHeads()
        moment = datetime.now(UTC).replace(tzinfo=None) + zone
        self._progress = _Progress(position=position, turned=_Turned(), moment=moment)
        self._page: Page | None = None
        self._large: _LargeCommit | None = None
        self._row_bytes = _ROW_BYTES
        self._looked_at: float | None = None

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
        self._tables.acknowledge(Position.of(offset).lsn)

    @override
    def keep_alive(self) -> None:
        """Do nothing: each poll is a query of its own, and no connection waits for us."""

    @override
    def close(self) -> None:
        self._session.close()

    @property
    def _position(self) -> Position:
        return self._progress.position

    def _move_to(self, end: Commit) -> None:
        """Everything up to this commit was read."""
        self._progress = replace(self._progress, position=self._tables.position_of(end.lsn), moment=end.moment)

    # -- one pull ------------------------------------------------------------------------------------------------------

    def _next(self, connection: Connection, limits: PullLimits) -> LogBatch | None:
        if self._page is None or self._page.is_over:
            read = self._load if self._large is None else self._part
            loaded = self._health.patiently(lambda: read(connection, limits))
            if not isinstance(loaded, Page):
                return loaded
            self._page = loaded
        batch = self._page.take(max(1, min(limits.rows, int(limits.bytes / self._row_bytes))))
        return replace(batch, table_errors=self._tables.take_errors())

    def _load(self, connection: Connection, limits: PullLimits) -> Page | LogBatch | None:
        """Load the next page; a batch with the events of tables; None if there is nothing."""
        head = queries.head(connection)
        self._health.see(connection, head)
        if head is not None:
            self._heads.note(head)
        if head is None or head <= self._position.lsn:
            return self._look(connection)
        commits = queries.commits(connection, self._position.lsn, head, _COMMITS_MAX)
        if not commits:
            raise self._expired()
        starts = queries.starts(connection)
        # Also those after the page: the capture job has altered change tables as far as it has come, with all their rows.
        altered = queries.definitions(connection, self._position.lsn, head)
        self._tables.refresh(connection, starts, is_altered=bool(altered))
        self._check_kept(connection, starts)
        if told := self._tables.missing(connection, starts) or self._tables.overtaken(self._position.lsn, starts):
            return self._events.batch(told, self._position.lsn, self._progress.moment, self._tables.take_errors())
        reached = self._up_to_turn(commits, altered, starts)
        self._progress = replace(self._progress, position=reached.position, turned=reached.turned)
        if reached.event is not None:
            event, at = reached.event, reached.turned.lsn
            return self._events.batch([event], at, commits[0].moment, self._tables.take_errors())
        commits, marks = self._marks.first(connection, self._position.lsn, reached.commits)
        return self._read(connection, commits, marks, starts, limits)

    def _look(self, connection: Connection) -> LogBatch | None:
        """Look now and then for changes of the tables although nothing was captured."""
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < _LOOK_S:
            return None
        self._looked_at = now
        starts = queries.starts(connection)
        self._tables.refresh(connection, starts, is_altered=False)
        self._check_kept(connection, starts)
        if dropped := self._tables.missing(connection, starts):
            return self._events.batch(dropped, self._position.lsn, self._progress.moment, self._tables.take_errors())
        errors = self._tables.take_errors()
        return LogBatch(open_transaction=None, table_errors=errors) if errors else None

    def _up_to_turn(self, commits: list[Commit], altered: Sequence[tuple[bytes, int]], starts: Starts) -> _Reached:
        """Find the end of the page: the next shape change that has commits before it, or that brings an event."""
        position, turned = self._position, self._progress.turned
        for turn in self._tables.turns(altered, starts):
            if turn.lsn <= position.lsn or turned.has(turn) or turn.lsn > commits[-1].lsn:
                continue
            before = [commit for commit in commits if commit.lsn < turn.lsn]
            if before:
                return _Reached(commits=before, position=position, turned=turned)
            # No commit lies between, and before it there is nothing to be read any more in an older instance.
            position, turned = replace(position, lsn=previous_lsn(turn.lsn)), turned.behind(turn)
            if (event := self._tables.event(turn, starts)) is not None:
                return _Reached(commits=commits, position=position, turned=turned, event=event)
        return _Reached(commits=commits, position=position, turned=turned)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(
        self, connection: Connection, commits: list[Commit], tokens: Sequence[str], starts: Starts, limits: PullLimits
    ) -> Page:
        rows_max, bytes_max = self._rows_max(limits), max(PAGE_BYTES, limits.bytes)
        parts, counts = self._counts(connection, self._parts(commits[-1].lsn, starts), starts, rows_max + 1)
        fitting = _fitting(commits, counts, rows_max)
        moved = sorted({n for n, lsn in counts if fitting and lsn <= fitting[-1].lsn})
        read: list[Decoded] = []
        for n in moved:
            if not fitting:
                break
            # Each table has its share, whatever others have used; a table that has no commit in the page any more reads none.
            share = max(bytes_max - sum(changes.bytes for changes in read), bytes_max // len(moved))
            piece = self._table(connection, parts[n], fitting[-1].lsn, _count_of(counts, n, fitting[-1].lsn), share)
            read.append(piece.decoded)
            if piece.cut is not None:
                fitting = [commit for commit in fitting if commit.lsn < piece.cut]
                read = [up_to(changes, fitting[-1].lsn) for changes in read] if fitting else []
        if not fitting:
            wanted = [part for n, part in enumerate(parts) if (n, commits[0].lsn) in counts]
            marks = tokens if len(commits) == 1 else ()
            self._large = _LargeCommit(commit=commits[0], parts=wanted, marks=marks)
            return self._part(connection, limits)
        self._check_kept(connection, queries.starts(connection), [parts[n][2] for n in moved])
        return self._page_of(connection, by_table(read), fitting, tokens if len(fitting) == len(commits) else ())

    def _page_of(
        self, connection: Connection, tables: Sequence[Decoded], commits: Sequence[Commit], tokens: Sequence[str]
    ) -> Page:
        end = commits[-1]
        marks = self._marks.reached(connection, tokens, end)
        page = Page(tables, commits, zone=self._events.zone, position_of=self._tables.position_of, marks=marks)
        self._count_bytes(page)
        self._move_to(end)
        return page

    def _counts(
        self, connection: Connection, parts: list[Part], starts: Starts, limit: int
    ) -> tuple[list[Part], Mapping[tuple[int, bytes], int]]:
        """Count the rows that each commit has in each of the parts that may be read; tables with a part that may not be read fail."""
        while True:
            try:
                with instances_kept():
                    return parts, queries.counts(connection, [reading for *_, reading in parts], limit)
            except pyodbc.Error as error:
                failed = self._denied(connection, starts) if number_of(error) in DENIED else {}
                if not failed:
                    raise
            self._fail(failed)
            parts = [part for part in parts if part[0] not in failed]

    def _denied(self, connection: Connection, starts: Starts) -> Mapping[TableId, TableError]:
        unreadable, found = read_unreadable(connection), dict[TableId, TableError]()
        for table in self._tables.capturing():
            if lost := [i for i in self._tables.instances(table, starts) if i.object_id in unreadable]:
                found[table] = denied(table, lost, self._tables.user)
        return found

    def _fail(self, errors: Mapping[TableId, TableError]) -> None:
        verify_some_readable(errors, list(self._tables.capturing()))
        for table, error in errors.items():
            self._tables.fail(table, error)

    def _parts(self, upto: bytes, starts: Starts) -> list[Part]:
        found: list[Part] = []
        errors: dict[TableId, TableError] = {}
        for table in self._tables.capturing():
            instances = self._tables.instances(table, starts)
            try:
                found += [
                    (table, self._tables.change_table(table, reading.instance), reading)
                    for reading in readings(instances, self._position.lsn, upto)
                    if not self._tables.is_left_out(table, reading.instance, self._position)
                ]
            except TableError as error:
                errors[table] = error
        self._fail(errors)
        return found

    def _rows_max(self, limits: PullLimits) -> int:
        return max(PAGE_ROWS, min(limits.rows, int(limits.bytes / self._row_bytes)))

    def _table(self, connection: Connection, part: Part, upto: bytes, count: int, bytes_max: int) -> Piece:
        """Read the changes of one table, which has `count` rows, as far as they fit."""
        _, change_table, reading = part
        query = change_table.commits(reading.after, min(reading.upto, upto))
        piece = self._piece(connection, part, query, bytes_max)
        if piece.cut is None and piece.rows < count:
            raise rows_missing(reading)
        return piece

    def _part(self, connection: Connection, limits: PullLimits) -> Page:
        """Read the next part of a large commit."""
        large = self._large
        assert large is not None
        _, change_table, reading = part = large.parts[0]
        if large.end is None:
            found = self._guarded(part, lambda: connection.rows(*change_table.end(large.commit.lsn)))
            large.end = Last.of(found[0]) if found else None
        limit = max(2, self._rows_max(limits))
        query = change_table.part(large.commit.lsn, large.last, limit)
        piece = self._piece(connection, part, query, max(PAGE_BYTES, limits.bytes), limit)
        self._check_kept(connection, queries.starts(connection), [reading])
        is_over = piece.last is not None and piece.last == large.end
        if not is_over and piece.cut is None and piece.rows < limit:
            raise rows_missing(reading)
        # Only now: whatever was asked before may have to be asked again.
        large.last = piece.last
        if is_over:
            large.parts.pop(0)
            large.last = large.end = None
        is_whole = not large.parts
        end = large.commit
        marks = self._marks.reached(connection, large.marks, end) if is_whole else ()
        page = Page(
            [piece.decoded],
            [large.commit],
            zone=self._events.zone,
            position_of=self._tables.position_of,
            is_whole=is_whole,
            marks=marks,
        )
        self._count_bytes(page)
        if is_whole:
            self._large = None
            self._move_to(end)
        return page

    def _piece(
        self, connection: Connection, part: Part, query: Query, bytes_max: int, limit: int | None = None
    ) -> Piece:
        _, change_table, _ = part
        try:
            return self._guarded(
                part, lambda: read_piece(connection, change_table, query, bytes_max=bytes_max, limit=limit)
            )
        except TableFailedError as failed:
            if not self._tables.has_other_columns(connection, change_table.instance):
                raise
            raise SourceUnavailableError(
                f"The capture job altered the change table of {change_table.instance.name} while it was read.",
                code="instance_changed",
            ) from failed

    def _guarded(self, part: Part, read: Callable[[], T]) -> T:
        """Read a change table, of which the account may have lost its rights."""
        table, _, reading = part
        try:
            with instances_kept():
                return read()
        except pyodbc.Error as error:
            if number_of(error) not in DENIED:
                raise
            raise denied(table, [reading.instance], self._tables.user) from error

    def _count_bytes(self, page: Page) -> None:
        if page.events:
            self._row_bytes = max(1.0, page.bytes / page.events)

    # -- what may be lost ----------------------------------------------------------------------------------------------

    def _check_kept(self, connection: Connection, starts: Starts, read: Sequence[Reading] = ()) -> None:
        """Verify that cleanup has deleted nothing that is needed, or that was being read."""
        of_tables = (self._tables.instances(table, starts) for table in self._tables.capturing())
        lows = [low for instances in of_tables if (low := may_have_lost(instances, self._position)) is not None]
        # Where cleanup has come to the very next commit, nothing is lost.
        if lows and not queries.has_none_between(connection, self._position.lsn, max(lows)):
            raise self._expired()
        for reading in read:
            start = starts.get(reading.instance.object_id)
            if start is None or (start.start_lsn is not None and start.start_lsn > next_lsn(reading.after)):
                # Whether that was before or after it was read, nobody can say.
                raise SourceUnavailableError(
                    f"The instance {reading.instance.name} was cleaned up or disabled while it was read.",
                    code="instance_changed",
                )

    def _expired(self) -> OffsetExpiredError:
        return OffsetExpiredError(
            f"Change data capture no longer has the changes after {lsn_to_text(self._position.lsn)}: cleanup has deleted them.",
            code="offset_expired",
            action="Run `replicator snapshot NAME --changed-only` or `--restart`. To keep changes for longer: EXEC "
            "sys.sp_cdc_change_job @job_type = N'cleanup', @retention = minutes.",
        )


def _fitting(commits: Sequence[Commit], counts: Mapping[tuple[int, bytes], int], rows_max: int) -> list[Commit]:
    """Return the first commits that have no more rows than a page; empty if the first one has more."""
    per_commit: dict[bytes, int] = {}
    for (_, lsn), count in counts.items():
        per_commit[lsn] = per_commit.get(lsn, 0) + count
    total = 0
    for number, commit in enumerate(commits):
        total += per_commit.get(commit.lsn, 0)
        if total > rows_max:
            return list(commits[:number])
    return list(commits)


def _count_of(counts: Mapping[tuple[int, bytes], int], number: int, upto: bytes) -> int:
    return sum(count for (n, lsn), count in counts.items() if n == number and lsn <= upto)
