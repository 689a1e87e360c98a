"""Capture: the loop from the source's log to sealed segments.

One turn: pull → window → number and write → marks and what they set free, between transactions → seal → acknowledge.

A crash leaves:

- before `capture.start_recorded`: the intent; the next start drops what an unfinished preparation made and begins
  again;
- anywhere between two seals: files that no index row names, which the next holder of the lease sweeps; the log is read
  again from the last sealed position, transactions as a whole, and gets the same numbers or others: none of them was
  durable;
- between seal and acknowledgement: a source that keeps a little more log than needed; the next acknowledgement covers
  it.

The same happens without a crash where the log takes back what it delivered (`LogBatch.is_rolled_back`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from replicator.capture.alive import KeepAlive
from replicator.capture.asking import Answer, Prepared, look, prepare
from replicator.capture.checks import Checks, nothing_found
from replicator.capture.cures import Cures
from replicator.capture.definitions.applying import Definitions
from replicator.capture.definitions.comparison import Comparison, ComparisonMark
from replicator.capture.definitions.names import NamedSource, SourceNames
from replicator.capture.definitions.renaming import Renaming, SelectionAnswer
from replicator.capture.definitions.seen import Alterations
from replicator.capture.definitions.unlogged import Unlogged
from replicator.capture.failures import Failures
from replicator.capture.marks import MarkBoard
from replicator.capture.measuring import Measuring
from replicator.capture.opening import bring_in_line, check, named_in_source, tracked_schemas
from replicator.capture.parts import Parts
from replicator.capture.periodic import PeriodicWork, Selecting
from replicator.capture.requests import BarrierMark, OperatorRequests, PositionMark
from replicator.capture.sealing import RingPruner, Sealer, Unsealed
from replicator.capture.settings import CaptureSettings
from replicator.capture.snapshots.beginning import Beginnings
from replicator.capture.snapshots.chunks import ChunkReader, TableRead
from replicator.capture.snapshots.driver import SnapshotRunner
from replicator.capture.snapshots.running import AtMark, ChunkAtMark
from replicator.capture.snapshots.starting import StartingMark, Step
from replicator.capture.tables import TrackedTables
from replicator.capture.target_checks import Assess, TargetChecks
from replicator.capture.tracker import CatalogTracker
from replicator.capture.window import Window
from replicator.journal.retention import Retention
from replicator.journal.writer import JournalWriter
from replicator.model.crash import crash_point
from replicator.model.isolation import TableFailedError, of_table
from replicator.model.offset import Offset
from replicator.model.processes.control import Control
from replicator.model.processes.reports import (
    CapturedTable,
    CaptureReport,
    CaptureStage,
    FindingReport,
    OpenTransactionReport,
    SnapshotStep,
)
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.source import (
    DeltaSource,
    LogBatch,
    LogReader,
    LogStatus,
    PullLimits,
)
from replicator.state import table_life
from replicator.state.records import Lease, Preparation, RequestKind, Stage
from replicator.state.store import StateStore

_PREPARE_LOOK_S: Final = 0.2
_log = get_logger(__name__)


class Capture:
    """Reads one source's log and tables into the journal.

    Args:
        writer: Of this lease's epoch; it is discarded and closed at the end.
        tables: Those that the configuration selects.
        select: Asks which tables it selects by now; those that have come are tracked too. Called in the control thread. None: never asked.
        make_window: Makes the window of an opened log from the ring that was sealed last.
        assess: What host and target find against tables of these shapes. Called in the control thread, and in one of its own.
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
        make_window: Callable[[Sequence[str]], Window] = Window,
    ) -> None:
        names = SourceNames()
        named = NamedSource(source, names, settings.columns)
        self._wanted: tuple[TableId, ...] | None = tuple(dict.fromkeys(tables))
        self._parts = Parts(
            source=named,
            names=names,
            store=store,
            lease=lease,
            writer=writer,
            retention=retention,
            selected=(),
            settings=settings,
            clock=clock,
            now=now,
            control=ThreadPoolExecutor(max_workers=1, thread_name_prefix="control"),
            select=select,
            make_window=make_window,
            failures=Failures(store=store, lease=lease, now=now),
            checks=Checks(
                source=named, columns=settings.columns, assess=assess, clock=clock, every_s=settings.check_every_s
            ),
            cures=Cures(source=named, clock=clock, every_s=settings.cure_every_s),
            target_checks=TargetChecks(
                assess=assess, clock=clock, every_s=settings.check_target_every_s, again_s=settings.check_every_s
            ),
        )

    def run(self, control: Control) -> None:
        """Capture until `control` says stop, or (snapshot mode `only`) until every table has its snapshot.

        Raises whatever ends it early; a new run continues from the last seal.
        """
        try:
            self._parts.writer.sweep()
            while self._run_session(control):
                pass
        finally:
            self._parts.control.shutdown(wait=False, cancel_futures=True)
            self._parts.target_checks.close()
            self._parts.writer.close()

    def _run_session(self, control: Control) -> bool:
        """Open the log and turn; whether to do so again. What is one table's failure costs that table."""
        session: _Session | None = None
        try:
            opened = self._open(control)
            if opened is None:
                return False
            session, found = opened
            session.begin(found)
            _log.info("log_opened", tables=len(found.found))
            continues = session.loop()
            self._parts = replace(self._parts, selected=tuple(dict.fromkeys([*self._parts.selected, *session.added])))
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
        return continues

    # --- start --------------------------------------------------------------------------------------------------------

    def _open(self, control: Control) -> tuple[_Session, Answer] | None:
        """Prepare the source, and open the log behind the last durable position; None if told to stop meanwhile."""
        record = self._parts.store.replicator(self._parts.lease.replicator)
        assert record is not None, "the lease's replicator exists"
        last = self._parts.store.journal.last_segment(self._parts.lease.replicator)
        restarts = [
            r for r in self._parts.store.requests.open(self._parts.lease.replicator) if r.kind is RequestKind.RESTART
        ]
        is_new_position = record.preparation is not Preparation.READY or bool(restarts)
        tables = TrackedTables(
            self._parts.writer,
            self._parts.store.tables(self._parts.lease.replicator),
            self._parts.now,
            self._parts.settings.columns,
        )
        selected = self._select(tables, is_new_position=is_new_position)
        bring_in_line(tables, selected, is_new_position=is_new_position and last is not None, restarts=restarts)
        if is_new_position:
            self._parts.store.set_preparation(self._parts.lease, Preparation.INTENT)
            crash_point("capture.intent_recorded")
        prepared = self._prepare(control, tables, is_new_position=is_new_position, has_begun=last is not None)
        if prepared is None:
            return None
        answer = self._parts.control.submit(look, self._parts.source, self._parts.selected).result()
        refused = {**prepared.refused, **answer.refused, **self._parts.failures.refused}
        if last is not None:
            refused |= self._parts.control.submit(check, self._parts.checks, tables, answer.found).result()
        found = {t: d for t, d in answer.found.items() if t not in refused}
        ring: Sequence[str] = ()
        if is_new_position:
            offset = prepared.offset
            if last is not None:
                # A new position after an old one: the position itself is durable before it counts as prepared, so that no
                # start joins the new log to the old offset.
                self._parts.writer.commit(
                    offset=offset,
                    source_time=last.source_time,
                    ring=(),
                    tables=tables.take_changed(),
                    done_requests=[request.id for request in restarts],
                )
            self._parts.store.set_preparation(self._parts.lease, Preparation.READY, offset)
            crash_point("capture.start_recorded")
        elif last is not None and last.offset is not None:
            offset, ring = last.offset, last.ring
        else:
            assert record.start_offset is not None, "what is prepared has a start"
            offset = record.start_offset
        for table, error in refused.items():
            tracked = tables.get(table)
            if tracked is not None and not table_life.has_failed(tracked.record):
                tables.fail(tracked, error)
        if tables.has_changed:
            self._parts.store.put_tables(self._parts.lease.replicator, self._parts.lease.epoch, tables.take_changed())
        schemas = tracked_schemas(self._parts.source, tables, found)
        reader = self._parts.source.open_log(offset, schemas)
        self._parts.failures.refused.clear()
        session = _Session(self._parts, control, reader, tables, offset, ring, decoded=set(schemas))
        return session, replace(answer, found=found)

    def _select(self, tables: TrackedTables, *, is_new_position: bool) -> Sequence[TableId]:
        """Find the tables under the names that they have in the source, and say which are to be tracked."""
        parts, wanted = self._parts, self._wanted
        parts.names.load(tracked.record for tracked in tables.all())
        if wanted is None:
            # In the course of this process some may have turned out to be others that were renamed.
            selected = tuple(table for table in parts.selected if parts.names.owns(table))
        else:
            asked = parts.control.submit(named_in_source, parts, tables, wanted, is_new_position=is_new_position)
            selected = asked.result()
        self._parts, self._wanted = replace(parts, selected=selected), None
        return selected

    def _prepare(
        self, control: Control, tables: TrackedTables, *, is_new_position: bool, has_begun: bool
    ) -> Prepared | None:
        """Have the source prepared in the control thread; meanwhile say what it waits for."""
        parts = self._parts
        captured = {tracked.table for tracked in tables.all(*table_life.CAPTURED)}
        call = parts.control.submit(
            prepare,
            parts.source,
            parts.selected,
            is_new_position=is_new_position,
            has_begun=has_begun,
            captured=captured,
        )
        while not call.done():
            if control.should_stop():
                return None
            waiting_for = tuple(self._parts.source.status().waiting_for)
            control.report(CaptureReport(stage=CaptureStage.PREPARING, waiting_for=waiting_for))
            control.wait(_PREPARE_LOOK_S)
        return call.result()


Waiting = StartingMark | ComparisonMark | SelectionAnswer | PositionMark | BarrierMark | AtMark
"""A record that waits for a mark."""


class _Session:
    """One open log and all that hangs on it."""

    def __init__(
        self,
        parts: Parts,
        control: Control,
        reader: LogReader,
        tables: TrackedTables,
        offset: Offset,
        ring: Sequence[str],
        *,
        decoded: set[TableId],
    ) -> None:
        settings, source, clock, submit = parts.settings, parts.source, parts.clock, parts.control.submit
        self._parts = parts
        self._control = control
        self._reader = reader
        self._tables = tables
        self._window = window = parts.make_window(ring)
        self._marks: MarkBoard[Waiting] = MarkBoard()
        self._chunks = ChunkReader(source, settings, parts.write_mark)
        self._snapshots = SnapshotRunner(
            window=window, reader=self._chunks, marks=self._marks, tables=tables, settings=settings, clock=clock
        )
        definitions = Definitions(
            source=source,
            tables=tables,
            snapshots=self._snapshots,
            names=parts.names,
            alterations=Alterations(ring),
            decoded=decoded,
        )
        alterations = definitions.alterations
        comparison = Comparison(source=source, submit=submit, marks=self._marks, tables=tables, alterations=alterations)
        beginnings = Beginnings(
            source=source,
            submit=submit,
            configured=parts.selected,
            checks=parts.checks,
            marks=self._marks,
            window=window,
            tables=tables,
            comparison=comparison,
        )
        self._tracker = CatalogTracker(
            window=window,
            tables=tables,
            snapshots=self._snapshots,
            settings=settings,
            definitions=definitions,
            comparison=comparison,
            beginnings=beginnings,
            renaming=Renaming(parts.names, tables, settings, alterations),
            unlogged=Unlogged(settings, tables),
        )
        self._sealer = Sealer(
            ring=RingPruner(source=source, window=window, submit=submit), reader=reader, writer=parts.writer, tables=tables,
            tracker=self._tracker, settings=settings, clock=clock, control=control, unsealed=Unsealed(position=offset),
        )  # fmt: skip
        self._requests = OperatorRequests(parts=parts, tables=tables, tracker=self._tracker, marks=self._marks)
        self._periodic = PeriodicWork(
            parts=parts,
            tables=tables,
            tracker=self._tracker,
            snapshots=self._snapshots,
            selecting=Selecting(parts=parts, tables=tables, tracker=self._tracker, marks=self._marks),
            measuring=Measuring(parts),
        )
        self._alive = KeepAlive(reader, settings.keep_alive_s)

    @property
    def added(self) -> tuple[TableId, ...]:
        """Tables that the configuration selects and that were not there when the log was opened."""
        return self._periodic.selecting.added

    def close(self) -> None:
        """End the threads and the log."""
        self._alive.close()
        self._parts.checks.forget()
        self._parts.cures.forget()
        for tracked in self._tables.all():
            self._snapshots.drop(tracked.table)
        self._chunks.close()
        self._reader.close()

    def loop(self) -> bool:
        """Turn until the end.

        True: open the log again, at a new position, for tables that this one skips (`added` among them), or to read again what was
        rolled back.
        """
        while True:
            if self._control.should_stop():
                if not self._sealer.unsealed.is_open:
                    self._sealer.seal(is_final=True)
                return False
            batch = self._pull()
            if batch.is_rolled_back:
                self._parts.writer.discard()
                crash_point("capture.discarded")
                return True
            self._turn(batch)
            if self._sealer.unsealed.is_open:
                continue
            if self._requests.wants_restart or self._tracker.needs_reopening or self.added:
                self._sealer.seal(is_final=True)
                return True
            if self._parts.settings.snapshot_mode == "only" and not self._tables.all(*table_life.UNFINISHED):
                self._sealer.seal(is_final=True)
                return False

    # --- a turn -------------------------------------------------------------------------------------------------------

    def begin(self, answer: Answer) -> None:
        """Continue the snapshots that ran, begin those that are pending, and compare the rest with the catalogue."""
        self._tracker.follow_settings()
        for tracked in [f for f in self._tables.all() if table_life.is_reading(f.record)]:
            with of_table(tracked.table, "continuing its snapshot"):
                self._snapshots.begin(tracked)
        found = answer.found
        waiting = self._tables.all(Stage.PENDING)
        pending = [f.table for f in waiting]
        if self._parts.settings.snapshot_mode == "never":
            # Nothing is read, so nothing has to be waited for: the table gets what the log brings from here on.
            for tracked in [f for f in waiting if not table_life.has_begun(f.record) and f.table in found]:
                with of_table(tracked.table, "starting its snapshot"):
                    self._parts.source.accept({tracked.table: found[tracked.table].identity})
                    self._tables.begin_incarnation(
                        tracked, found[tracked.table], incarnation=tracked.record.incarnation, mode="never"
                    )
                pending.remove(tracked.table)
        if pending:
            self._tracker.start(pending, found=answer)
        self._tracker.repeat_outdated([f.table for f in self._tables.all(Stage.STREAMING)])
        captured = [f.table for f in self._tables.all(*table_life.CAPTURED)]
        self._tracker.compare_with(captured, answer)

    def _turn(self, batch: LogBatch) -> None:
        self._snapshots.collect()
        self._deliver(batch)
        self._tracker.poll()
        if not self._sealer.unsealed.is_open:
            for due in self._marks.take_due():
                self._take_mark(due)
            self._tracker.refuse(self._snapshots.failed)
            self._tracker.repeat_outdated(self._snapshots.take_completed())
            self._tracker.begin_due()
            self._snapshots.schedule()
            self._sealer.seal()
        self._alive.check()
        self._periodic.run_due()
        self._requests.take_due()
        if self._periodic.is_report_due():
            self._periodic.note_report()
            self._control.report(self._report())

    def _take_mark(self, due: Waiting) -> None:
        """Hand on what waited for a mark. What asks for a commit gets it here, and nowhere else."""
        match due:
            case StartingMark() | ComparisonMark():
                self._tracker.take_mark(due)
            case SelectionAnswer():
                self._periodic.selecting.take_mark(due)
            case PositionMark():
                self._sealer.unsealed.positions.append(due.request)
            case BarrierMark():
                self._sealer.commit(barriers=[due.request])
            case ChunkAtMark() | TableRead():
                asked = self._snapshots.take_mark(due)
                if asked is not None:
                    self._sealer.commit()
                    self._snapshots.put_whole(asked)
                    self._sealer.commit()

    def _pull(self) -> LogBatch:
        settings = self._parts.settings
        wait_s = settings.snapshot_wait_s if self._snapshots.is_busy else settings.pull_wait_s
        if self._sealer.has_unsealed:
            wait_s = min(wait_s, self._sealer.idle_wait_s)
        with self._alive.in_pull():
            return self._reader.pull(PullLimits(rows=settings.pull_rows, bytes=settings.pull_bytes, wait_s=wait_s))

    def _deliver(self, batch: LogBatch) -> None:
        self._sealer.unsealed.check(batch)
        writer = self._parts.writer
        base = writer.take(batch.events) if batch.events else writer.next_sequence_num
        moves = self._window.deliver(batch, base)
        if self._snapshots.is_busy:
            self._snapshots.delivered(moves)
        for changes in batch.changes:
            tracked = self._tables.get(changes.schema.table)
            if tracked is None or not tracked.is_captured:
                continue
            with of_table(tracked.table, "processing its changes"):
                if not tracked.matches(changes.schema):
                    self._tracker.reshaped(tracked, changes.schema)
                elif self._snapshots.is_held_back(tracked):
                    self._snapshots.hold_back(tracked, changes.rows)
                else:
                    self._tables.rows(tracked, changes.rows, base, is_net=changes.is_net)
        for ordinal, event in enumerate(batch.ddl, start=batch.events - len(batch.ddl)):
            self._tracker.ddl(event, base + ordinal)
        for table, ordinal in batch.unlogged.items():
            with of_table(table, "starting a new snapshot of it"):
                self._tracker.unlogged_rows(table, base + ordinal, batch.unlogged_errors.get(table))
        self._fail_undecoded(batch)
        if batch.announced_by is not None:
            self._periodic.announcements.add(batch.announced_by)
        self._marks.deliver(batch.marks)
        self._sealer.unsealed.add(batch, self._parts.clock())

    def _fail_undecoded(self, batch: LogBatch) -> None:
        for table, error in batch.table_errors.items():
            self._tracker.definitions.decoded.discard(table)
            failed = self._tables.get(table)
            if failed is not None and failed.is_captured:
                self._tracker.undecoded(failed, error)

    def _report(self) -> CaptureReport:
        measures = self._periodic.measuring.found
        source = measures.source or LogStatus(now=self._parts.now())
        keeps_log, oldest = source.retention.keeps_log, source.retention.oldest_open
        heard_at, heartbeat = self._sealer.unsealed.heard_at, source.heartbeat
        return CaptureReport(
            stage=CaptureStage.CAPTURING,
            position=str(self._sealer.unsealed.position),
            retained_bytes=source.retained_bytes,
            clock_ahead_s=measures.clock_ahead_s,
            keeps_log_s=keeps_log.total_seconds() if keeps_log is not None else None,
            log_bytes_left=source.retention.bytes_left,
            log_bytes_max=source.retention.bytes_max,
            log_bytes_per_s=measures.log_bytes_per_s,
            silent_s=None if heard_at is None else round(self._parts.clock() - heard_at, 1),
            heartbeat_s=None if heartbeat is None else heartbeat.total_seconds(),
            guarantee=None if measures.source is None else source.guarantee,
            oldest_open=OpenTransactionReport(name=oldest.name, since=oldest.since) if oldest is not None else None,
            source_time=self._sealer.unsealed.source_time,
            # What a snapshot waited for is over with it, before the source is asked again.
            waiting_for=()
            if measures.has_since and self._tracker.beginnings.since is None
            else tuple(source.waiting_for),
            findings=tuple(
                FindingReport(code=p.code, message=p.message, location=p.location, action=p.action)
                for p in self._parts.checks.findings
            ),
            tables={str(f.table): self._report_of(f.table) for f in self._tables.all()},
        )

    def _report_of(self, table: TableId) -> CapturedTable:
        step = self._tracker.beginnings.step_of(table)
        return CapturedTable(
            step=None if step is None or step is Step.READY else SnapshotStep(step.value),
            snapshot_step=self._snapshots.step_of(table),
            waiting=self._snapshots.waiting(table),
        )
