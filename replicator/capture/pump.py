"""Capture: the loop from the source's log to sealed segments.

One turn: pull → window → number and write → marks and what they set free, between transactions → seal → acknowledge.

A crash leaves, by place:

- before `capture.start_recorded`: the intent; the next start drops what an unfinished preparation made and begins
  again;
- anywhere between two seals: files that no index row names, which the next holder of the lease sweeps; the log is read
  again from the last sealed place, transactions as a whole, and gets the same numbers or others: none of them was
  durable;
- between seal and acknowledgement: a source that keeps a little more log than needed; the next acknowledgement covers
  it.

The same happens without a crash where the log takes back what it handed out (`LogBatch.is_rolled_back`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from replicator.capture.alive import KeepAlive
from replicator.capture.asking import Prepared, describe, prepare
from replicator.capture.checks import Assess, Checks, nothing_found
from replicator.capture.chunks import ChunkReader
from replicator.capture.copying import Copying
from replicator.capture.failures import Failures
from replicator.capture.follow import Follow
from replicator.capture.marks import MarkBoard
from replicator.capture.opening import bring_in_line, check, followed_schemas
from replicator.capture.settings import CaptureSettings
from replicator.capture.tables import Followed, Tables
from replicator.capture.window import Window
from replicator.journal.retention import Retention
from replicator.journal.writer import JournalWriter
from replicator.model.control import Control
from replicator.model.crash import crash_point
from replicator.model.isolation import TableFailedError, of_table
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins.source import (
    DeltaSource,
    LogBatch,
    LogReader,
    PullLimits,
    Standing,
    TableDescription,
    Visibility,
)
from replicator.state.records import Lease, Stage
from replicator.state.store import StateStore

NO_VISIBILITY: Final = "REPLICATOR_TEST_NO_VISIBILITY"
"""Tests set this variable to show that the published algorithm leaves wrong rows. Nobody else does."""

READY: Final = "ready"
INTENT: Final = "intent"

_VISIBILITY_WAIT_S: Final = 0.25
"""How long a seal waits to learn which transactions later reads see; without an answer the ring is sealed as it is."""
_PREPARE_LOOK_S: Final = 0.2


@dataclass(slots=True)
class _Clocks:
    """When things were last done, on the monotonic clock."""

    sealed: float
    unsealed_since: float | None = None
    compared: float = 0.0
    swept: float = 0.0
    measured: float = 0.0
    requested: float = 0.0
    reported: float = 0.0


@dataclass(slots=True)
class _Measures:
    """What the control thread found out for the status."""

    retained_bytes: int | None = None
    clock_ahead_s: float | None = None
    standing: Standing = field(default_factory=Standing)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a capture works with. `control` is the control thread: all calls of the source but those of its log and its chunks."""

    source: DeltaSource[Any]
    store: StateStore
    lease: Lease
    writer: JournalWriter
    retention: Retention
    selected: tuple[TableId, ...]
    settings: CaptureSettings
    clock: Callable[[], float]
    now: Callable[[], datetime]
    control: ThreadPoolExecutor
    select: Callable[[], Sequence[TableId]] | None
    failures: Failures
    checks: Checks


class Capture:
    """Reads one source's log and tables into the journal.

    Args:
        writer: Of this lease's epoch; it is discarded and closed at the end.
        tables: Those that the configuration selects.
        select: Asks which tables it selects by now; those that have come are followed too. Called in the control thread. None: never asked.
        assess: What host and target find against tables of these shapes. Called in the control thread.
        clock: Monotonic seconds.
        now: Aware UTC.
    """

    def __init__(
        self,
        source: DeltaSource[Any],
        store: StateStore,
        *,
        lease: Lease,
        writer: JournalWriter,
        retention: Retention,
        tables: Sequence[TableId],
        settings: CaptureSettings,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        select: Callable[[], Sequence[TableId]] | None = None,
        assess: Assess = nothing_found,
    ) -> None:
        self._parts = _Parts(
            source=source,
            store=store,
            lease=lease,
            writer=writer,
            retention=retention,
            selected=tuple(dict.fromkeys(tables)),
            settings=settings,
            clock=clock,
            now=now,
            control=ThreadPoolExecutor(max_workers=1, thread_name_prefix="control"),
            select=select,
            failures=Failures(store=store, lease=lease, now=now),
            checks=Checks(source=source, assess=assess, clock=clock, every_s=settings.check_every_s),
        )

    def run(self, control: Control) -> None:
        """Capture until `control` says stop, or (snapshot mode `only`) until every table is copied.

        Raises whatever ends it early; a new run goes on from the last seal.
        """
        try:
            self._parts.writer.sweep()
            while self._run_session(control):
                pass
        finally:
            self._parts.control.shutdown(wait=False, cancel_futures=True)
            self._parts.writer.close()

    def _run_session(self, control: Control) -> bool:
        """Open the log and turn; whether to do so again. What is one table's failure costs that table."""
        session: _Session | None = None
        try:
            session = self._open(control)
            if session is None:
                return False
            session.begin()
            goes_on = session.loop(control)
            self._parts = replace(self._parts, selected=(*self._parts.selected, *session.added))
        except Exception as error:
            tables = dict.fromkeys(self._parts.selected)
            if not self._parts.failures.confine(error, tables, is_opening=session is None):
                if isinstance(error, TableFailedError):
                    raise error.error from error
                raise
            self._parts.writer.discard()
            return True
        finally:
            if session is not None:
                session.close()
        return goes_on

    # --- start --------------------------------------------------------------------------------------------------------

    def _open(self, control: Control) -> _Session | None:
        """Prepare the source, and open the log behind the last durable place; None if told to stop meanwhile."""
        record = self._parts.store.replicator(self._parts.lease.replicator)
        assert record is not None, "the lease's replicator exists"
        last = self._parts.store.last_segment(self._parts.lease.replicator)
        restarts = [r.id for r in self._parts.store.requests(self._parts.lease.replicator) if r.kind == "restart"]
        is_new_place = record.prepared != READY or bool(restarts)
        tables = Tables(self._parts.writer, self._parts.store.tables(self._parts.lease.replicator), self._parts.now)
        bring_in_line(tables, self._parts.selected, is_new_place=is_new_place and last is not None)
        if is_new_place:
            self._parts.store.set_prepared(self._parts.lease, INTENT)
            crash_point("capture.intent_recorded")
        prepared = self._prepare(control, tables, is_first=is_new_place)
        if prepared is None:
            return None
        answer = self._parts.control.submit(describe, self._parts.source, self._parts.selected).result()
        refused = {**prepared.refused, **answer.refused, **self._parts.failures.refused}
        if last is not None:
            refused |= self._parts.control.submit(check, self._parts.checks, tables, answer.found).result()
        found = {t: d for t, d in answer.found.items() if t not in refused}
        ring: Sequence[str] = ()
        if is_new_place:
            offset = prepared.offset
            if last is not None:
                # A new place behind an old one: the place itself is durable before it counts as prepared, so that no
                # start joins the new log to the old offset.
                self._parts.writer.commit(
                    offset=offset,
                    source_time=last.source_time,
                    ring=(),
                    tables=tables.take_changed(),
                    done_requests=restarts,
                )
            self._parts.store.set_prepared(self._parts.lease, READY, offset)
            crash_point("capture.start_recorded")
        elif last is not None and last.offset is not None:
            offset, ring = last.offset, last.ring
        else:
            assert record.start_offset is not None, "what is prepared has a start"
            offset = record.start_offset
        for table, error in refused.items():
            followed = tables.get(table)
            if followed is not None and followed.record.stage is not Stage.FAILING:
                tables.fail(followed, error)
        if tables.has_changed:
            self._parts.store.put_tables(self._parts.lease.replicator, self._parts.lease.epoch, tables.take_changed())
        schemas = followed_schemas(self._parts.source, tables, found)
        reader = self._parts.source.open_log(offset, schemas)
        self._parts.failures.refused.clear()
        return _Session(self._parts, reader, tables, found, offset, ring, decoded=set(schemas))

    def _prepare(self, control: Control, tables: Tables, *, is_first: bool) -> Prepared | None:
        """Have the source prepared in the control thread; meanwhile say what it waits for."""
        parts = self._parts
        captured = {followed.table for followed in tables.all(Stage.SNAPSHOT, Stage.STREAMING)}
        call = parts.control.submit(lambda: prepare(parts.source, parts.selected, is_first=is_first, captured=captured))
        while not call.done():
            if control.should_stop():
                return None
            control.report({"stage": "preparing", "waiting_for": list(self._parts.source.waiting_for())})
            control.wait(_PREPARE_LOOK_S)
        return call.result()


class _Session:
    """One open log and all that hangs on it."""

    def __init__(
        self,
        parts: _Parts,
        reader: LogReader,
        tables: Tables,
        found: Mapping[TableId, TableDescription],
        offset: Offset,
        ring: Sequence[str],
        *,
        decoded: set[TableId],
    ) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._source = parts.source
        self._writer = parts.writer
        self._clock = parts.clock
        self._reader = reader
        self._tables = tables
        self._offset: Offset | None = None
        self._position = offset
        self._source_time: datetime | None = None
        self._sealed_source_time: datetime | None = None
        self._is_open_transaction = False
        self._was_idle = False
        self._places: list[int] = []
        self._asked_requests: set[int] = set()
        self._wants_restart = False
        self._selecting: Future[Sequence[TableId]] | None = None
        self.added: tuple[TableId, ...] = ()
        """Tables that the configuration selects and that were not there when the log was opened."""
        self._measures = _Measures()
        self._clocks = _Clocks(sealed=self._clock(), compared=self._clock())
        self._seeing: Future[Visibility] | None = None
        self._measuring: Future[tuple[int | None, datetime, Standing]] | None = None
        self._window = Window(ring, visibility_rule=NO_VISIBILITY not in os.environ)
        self._marks = MarkBoard()
        self._chunks = ChunkReader(self._source, self._settings, self._write_mark)
        self._control: Control | None = None
        self._copying = Copying(
            window=self._window, reader=self._chunks, marks=self._marks, tables=tables, settings=self._settings,
            clock=self._clock, commit=self._commit,
        )  # fmt: skip
        self._follow = Follow(
            source=self._source, submit=parts.control.submit, writer=self._writer, window=self._window, marks=self._marks,
            tables=tables, copying=self._copying, settings=self._settings, configured=parts.selected, decoded=decoded, checks=parts.checks,
        )  # fmt: skip
        self._alive = KeepAlive(reader, self._settings.keep_alive_s)
        self._found = found

    def close(self) -> None:
        """End the threads and the log."""
        self._alive.close()
        self._parts.checks.forget()
        for followed in self._tables.all():
            self._copying.drop(followed.table)
        self._chunks.close()
        self._reader.close()

    def loop(self, control: Control) -> bool:
        """Turn until the end.

        True: open the log again, at a new place, for tables that this one skips (`added` among them), or to read again what was
        rolled back.
        """
        self._control = control
        while True:
            if control.should_stop():
                if not self._is_open_transaction:
                    self._seal(is_final=True)
                return False
            batch = self._pull()
            if batch.is_rolled_back:
                self._writer.discard()
                crash_point("capture.discarded")
                return True
            self._turn(batch, control)
            if self._is_open_transaction:
                continue
            if self._wants_restart or self._follow.needs_reopening or self.added:
                self._seal(is_final=True)
                return True
            if self._settings.snapshot_mode == "only" and not self._tables.all(Stage.PENDING, Stage.SNAPSHOT):
                self._seal(is_final=True)
                return False

    # --- a turn -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Go on with what was being copied, begin what is pending, and compare the rest with the catalogue."""
        found = self._found
        for followed in self._tables.all(Stage.SNAPSHOT):
            with of_table(followed.table, "continuing its snapshot"):
                self._copying.begin(followed)
        pending = [f.table for f in self._tables.all(Stage.PENDING)]
        if self._settings.snapshot_mode == "never":
            # Nothing is read, so nothing has to be waited for: the copy is what the log brings from here on.
            for followed in [
                f for f in self._tables.all(Stage.PENDING) if f.record.schema is None and f.table in found
            ]:
                with of_table(followed.table, "starting its snapshot"):
                    self._source.accept({followed.table: found[followed.table].identity})
                    self._tables.begin_copy(
                        followed, found[followed.table], incarnation=followed.record.incarnation, mode="never"
                    )
                pending.remove(followed.table)
        if pending:
            self._follow.copy(pending, found=found)
        self._follow.copy_outdated([f.table for f in self._tables.all(Stage.STREAMING)])
        captured = [f.table for f in self._tables.all(Stage.SNAPSHOT, Stage.STREAMING)]
        self._follow.compared(captured, found, {})

    def _turn(self, batch: LogBatch, control: Control) -> None:
        self._copying.collect()
        self._deliver(batch)
        self._follow.poll()
        if not self._is_open_transaction:
            for act in self._marks.due():
                act()
            self._set_failed_aside()
            self._follow.copy_outdated(self._copying.take_completed())
            self._follow.begin_due()
            self._copying.schedule()
            self._seal()
        self._look_around(control)

    def _pull(self) -> LogBatch:
        settings = self._settings
        wait_s = settings.copying_wait_s if self._copying.is_busy else settings.pull_wait_s
        if self._has_unsealed():
            wait_s = min(wait_s, max(0.0, settings.seal_gap_s - (self._clock() - self._clocks.sealed)))
        with self._alive.in_pull():
            return self._reader.pull(PullLimits(rows=settings.pull_rows, bytes=settings.pull_bytes, wait_s=wait_s))

    def _deliver(self, batch: LogBatch) -> None:
        base = self._writer.take(batch.events) if batch.events else self._writer.next_sequence_num
        moved = self._window.deliver(batch, base)
        if self._copying.is_busy:
            self._copying.delivered(moved)
        for changes in batch.changes:
            followed = self._tables.get(changes.schema.table)
            if followed is None or not followed.is_captured:
                continue
            with of_table(followed.table, "processing its changes"):
                if self._follow.fits(followed, changes.schema) and not self._copying.holds(followed, changes.rows):
                    self._tables.rows(followed, changes.rows, base)
        for place, event in enumerate(batch.ddl, start=batch.events - len(batch.ddl)):
            self._follow.ddl(event, base + place)
        for table, ordinal in batch.unlogged.items():
            with of_table(table, "starting a new snapshot of it"):
                self._follow.unlogged(table, base + ordinal)
        self._set_undecoded_aside(batch)
        self._marks.deliver(batch.marks)
        self._is_open_transaction = batch.open_transaction is not None
        if self._is_open_transaction:
            crash_point("capture.mid_transaction")
        self._offset = batch.offset or self._offset
        self._position = batch.offset or self._position
        self._source_time = batch.source_time or self._source_time
        self._was_idle = not batch.events and not batch.marks
        if self._clocks.unsealed_since is None and batch.events:
            self._clocks.unsealed_since = self._clock()

    def _set_undecoded_aside(self, batch: LogBatch) -> None:
        for table, error in batch.table_errors.items():
            self._follow.decoded.discard(table)
            failed = self._tables.get(table)
            if failed is not None and failed.is_captured:
                self._follow.set_aside(failed, error)

    def _set_failed_aside(self) -> None:
        for table, error in self._copying.failed:
            followed = self._tables.get(table)
            if followed is not None:
                self._follow.set_aside(followed, error)
        self._copying.failed.clear()

    # --- seal ---------------------------------------------------------------------------------------------------------

    def _has_unsealed(self) -> bool:
        return bool(self._writer.pending_rows or self._tables.has_changed or self._follow.done_requests or self._places)

    def _seal(self, *, is_final: bool = False) -> None:
        """Between transactions: commit if the policy asks for it."""
        now, settings, clocks = self._clock(), self._settings, self._clocks
        if self._has_unsealed():
            since = clocks.unsealed_since if clocks.unsealed_since is not None else clocks.sealed
            is_due = (
                is_final
                or self._writer.pending_rows >= settings.seal_rows
                or self._writer.pending_bytes >= settings.seal_bytes
                or now - since >= settings.seal_every_s
                or (self._was_idle and now - clocks.sealed >= settings.seal_gap_s)
            )
        else:
            has_moved = self._offset is not None or self._source_time != self._sealed_source_time
            is_due = has_moved and (is_final or now - clocks.sealed >= settings.idle_seal_s)
        if is_due:
            self._commit()
        elif self._follow.is_waiting:
            self._prune()

    def _commit(self) -> None:
        """Files, index row, acknowledgement: in that order."""
        assert not self._is_open_transaction, "no position inside a transaction is durable"
        self._prune()
        offset, places, done = self._offset, self._places, [*self._follow.done_requests, *self._places]
        crash_point("capture.before_seal")
        segments = self._writer.commit(
            offset=offset,
            source_time=self._source_time,
            ring=self._window.ring_texts(),
            tables=self._tables.take_changed(),
            done_requests=done,
        )
        crash_point("capture.after_seal")
        self._offset, self._places = None, []
        self._follow.done_requests.clear()
        self._sealed_source_time = self._source_time
        self._clocks.sealed, self._clocks.unsealed_since = self._clock(), None
        if offset is not None:
            crash_point("capture.before_ack")
            self._reader.acknowledge(offset)
            crash_point("capture.after_ack")
        self._announce(segments[-1].last if segments else self._writer.next_sequence_num - 1, has_places=bool(places))

    def _announce(self, last: int, *, has_places: bool) -> None:
        if self._control is None:
            return
        self._control.announce("sealed", last=last)
        self._control.announce("progress")
        if has_places:
            self._control.announce("place", last=last)

    def _prune(self) -> None:
        """Let the ring forget what every later read sees, if the control thread says so in time.

        An answer that came late is as good: visibility is monotone.
        """
        if not self._window.ring_size or self._window.is_reading:
            return
        if self._seeing is None:
            self._seeing = self._parts.control.submit(self._source.visibility)
        try:
            visibility = self._seeing.result(timeout=_VISIBILITY_WAIT_S)
        except TimeoutError:
            if self._seeing.done():
                raise
            return
        self._seeing = None
        self._window.prune(visibility)

    # --- now and then -------------------------------------------------------------------------------------------------

    def _look_around(self, control: Control) -> None:
        now, clocks, settings = self._clock(), self._clocks, self._settings
        self._alive.check()
        if now - clocks.compared >= settings.compare_every_s or self._copying.suspicious:
            clocks.compared = now
            self._follow.compare()
            if self._parts.select is not None and self._selecting is None:
                self._selecting = self._parts.control.submit(self._parts.select)
        if self._selecting is not None and self._selecting.done():
            selected, self._selecting = self._selecting.result(), None
            self.added = tuple(table for table in selected if table not in self._parts.selected)
        self._parts.checks.watch(self._follow.captured(), self._parts.control.submit, self._follow.refuse)
        if now - clocks.requested >= settings.request_every_s:
            clocks.requested = now
            self._take_requests()
        if now - clocks.measured >= settings.measure_every_s and self._measuring is None:
            clocks.measured = now
            self._measuring = self._parts.control.submit(self._measure)
        if self._measuring is not None and self._measuring.done():
            retained, source_now, standing = self._measuring.result()
            self._measuring = None
            self._measures = _Measures(retained, (source_now - self._parts.now()).total_seconds(), standing)
        if now - clocks.swept >= settings.retention_every_s:
            clocks.swept = now
            self._sweep()
        if now - clocks.reported >= settings.report_every_s:
            clocks.reported = now
            control.report(self._status())

    def _measure(self) -> tuple[int | None, datetime, Standing]:
        return self._source.retained_bytes(), self._source.now(), self._source.standing()

    def _sweep(self) -> None:
        for record in self._parts.retention.sweep().given_up:
            followed = self._tables.get(record.table)
            if followed is None:
                continue
            if record.stage is Stage.FAILING:
                self._copying.drop(record.table)
            self._tables.adopt(replace(followed.record, stage=record.stage, error=record.error))

    def _take_requests(self) -> None:
        for request in self._parts.store.requests(self._parts.lease.replicator):
            if request.id in self._asked_requests:
                continue
            self._asked_requests.add(request.id)
            if request.kind == "restart":
                self._wants_restart = True
            elif request.kind == "place":
                self._marks.expect(self._write_mark(), lambda id_=request.id: self._places.append(id_))  # type: ignore[misc]
            elif request.kind == "snapshot":
                names = request.payload.get("tables") or []
                self._request_snapshot(request.id, names, is_anew=bool(request.payload.get("recreate")))

    def _request_snapshot(self, request: int, names: Sequence[str], *, is_anew: bool) -> None:
        wanted = {TableId.parse(n) for n in names}
        stages = Stage.PENDING, Stage.SNAPSHOT, Stage.STREAMING, Stage.FAILING
        chosen = [f for f in self._tables.all(*stages) if not names or f.table in wanted]
        chosen = [f for f in chosen if not self._parts.failures.is_left_out(request, f.table)]
        if is_anew:
            self._follow.renew([f.table for f in chosen])
        tables = [f.table for f in chosen if f.record.stage is not Stage.PENDING]
        if tables:
            self._follow.copy(tables, requests=[request])
        else:
            self._follow.done_requests.append(request)

    def _write_mark(self) -> Future[str]:
        return self._parts.control.submit(self._mark)

    def _mark(self) -> str:
        mark = self._source.mark()
        crash_point("capture.mark_written")
        return mark

    def _status(self) -> Mapping[str, Any]:
        measures = self._measures
        keeps_log, oldest = measures.standing.keeps_log, measures.standing.oldest_open
        return {
            "stage": "capturing",
            "position": str(self._position),
            "retained_bytes": measures.retained_bytes,
            "clock_ahead_s": measures.clock_ahead_s,
            "keeps_log_s": keeps_log.total_seconds() if keeps_log is not None else None,
            "oldest_open": {"name": oldest.name, "since": oldest.since.isoformat()} if oldest is not None else None,
            "source_time": self._source_time.isoformat() if self._source_time else None,
            "last_sequence_num": self._writer.next_sequence_num - 1,
            "pending_rows": self._writer.pending_rows,
            "ring": self._window.ring_size,
            "waiting_for": list(self._source.waiting_for(self._follow.since)),
            "tables": {str(f.table): _table_status(f, self._copying.waiting(f.table)) for f in self._tables.all()},
        }


def _table_status(followed: Followed, waiting: Mapping[str, Any] | None) -> Mapping[str, Any]:
    progress = followed.record.snapshot
    status: dict[str, Any] = {"stage": followed.record.stage.value, "incarnation": followed.record.incarnation}
    if progress is not None:
        status |= {"snapshot_rows": progress.rows, "estimated_rows": progress.estimated_rows}
    return status if waiting is None else status | {"waiting": waiting}
