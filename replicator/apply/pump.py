"""The loop of the apply process: tables side by side, each in its own order."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from replicator.apply import divergence
from replicator.apply.advice import Advice
from replicator.apply.context import ApplyContext
from replicator.apply.divergence import Alarms
from replicator.apply.failures import crashed_too_often, is_exhausted, urgency, waited_too_long
from replicator.apply.progress import TableProgress
from replicator.apply.schedule import Schedule, Turn
from replicator.apply.settings import ApplySettings
from replicator.apply.table import TableApplier
from replicator.apply.upkeep import Upkeep
from replicator.apply.waiting import Others, Waits
from replicator.journal import JournalReader
from replicator.model.errors import (
    TableError,
    TargetCrashedError,
    TargetUnavailableError,
    ThrottledError,
)
from replicator.model.isolation import INTERNAL, table_error
from replicator.model.processes.control import Control
from replicator.model.processes.reports import AppliedTable, ApplyReport, WaitingReport
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.target import DeltaTarget
from replicator.state import table_life
from replicator.state.records import TableRecord
from replicator.state.store import StateStore

_ALIKE = 2
"""After this many tables fail with the same code and nothing is applied since, the next one waits before it fails."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What the state store said at the last look.

    Attributes:
        highest: The highest number of each table in the journal.
        captured: Capture's records.
        disproved: Alarms that verification has disproved.
    """

    highest: Mapping[TableId, int] = field(default_factory=dict)
    captured: Mapping[TableId, TableRecord] = field(default_factory=dict)
    disproved: Mapping[TableId, Alarms] = field(default_factory=dict)


class Apply:
    """Applies the journal to the target until told to stop.

    One thread reads the journal's index whenever it is woken; `tables_parallel` threads apply. A thread that has finished
    a unit takes the next at once. An error of one table, expected or not, fails that table (see `table_error`). A
    throttled table waits for a time that the retry policy chooses, and fails when that gives it up. So does a table at
    which the target failed, as long as it takes others: after the first failure that is not known yet, and the table
    waits alone; if it fails again and nothing was applied meanwhile, it is the target that is away. That, a crash of the
    target's engine (`_note_crash`), and any other error ends the loop once the units in flight are done, and is raised:
    a restart continues from the ledgers.

    Args:
        target: The target.
        store: The state store.
        reader: The journal.
        name: Name of the replicator.
        uuid: Identifier of the replicator.
        epoch: Epoch of the lease.
        settings: Bounds and choices.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        target: DeltaTarget[Any],
        store: StateStore,
        reader: JournalReader,
        *,
        name: str,
        uuid: str,
        epoch: int,
        settings: ApplySettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = ApplyContext(
            target=target,
            advice=Advice(target),
            store=store,
            reader=reader,
            name=name,
            uuid=uuid,
            epoch=epoch,
            settings=settings,
            clock=clock,
        )
        self._tables: dict[TableId, TableApplier] = {}
        self._look = _Look()
        self._waits = Waits(settings.patience, clock)
        # Guards all of these and the schedule, and is notified when a thread may find work, or shall end.
        self._news = threading.Condition()
        self._schedule = Schedule(threads=settings.tables_parallel, max_wait_s=settings.max_wait_s)
        self._upkeep = Upkeep(
            pause_s=settings.upkeep_pause_s,
            pause_max_s=settings.upkeep_pause_max_s,
            audit_every_s=settings.audit_every_s if target.sees_others else math.inf,
            clock=clock,
            now=store.now,
        )
        self._is_ending = False
        self._errors: list[BaseException] = []

    def run(self, control: Control) -> None:
        """Apply until `control` says stop. Called once.

        Raises:
            FencedError: A newer epoch has the target or the state store.
            FatalError: `ledger_ahead`, or an error of target, journal or state store.
            TransientError: Target, journal or state store failed; a new `Apply` continues from the ledgers.
        """
        self._remember()
        threads = [
            threading.Thread(target=self._work, args=(control,), name=f"apply-{n}")
            for n in range(self._context.settings.tables_parallel)
        ]
        for thread in threads:
            thread.start()
        try:
            self._watch(control)
        finally:
            self._end()
            for thread in threads:
                thread.join()
        if self._errors:
            raise min(self._errors, key=urgency)

    def progress(self) -> Mapping[TableId, TableProgress]:
        """Return the progress of each table, as this process knows it. Thread-safe."""
        with self._news:
            return {table: self._progress(table, applier) for table, applier in self._tables.items()}

    # -- the watching thread

    def _remember(self) -> None:
        applied = self._context.store.applied(self._context.name)
        self._tables = {table: TableApplier(self._context, table, record) for table, record in applied.items()}

    def _watch(self, control: Control) -> None:
        while not control.should_stop():
            self._poll()
            control.report(self._report())
            with self._news:
                if self._is_ending:
                    return
            control.wait(self._context.settings.wake_s)

    def _poll(self) -> None:
        """Read what is new in the journal."""
        store, name = self._context.store, self._context.name
        look = _Look(
            highest=store.journal.feed_tables(name),
            captured={record.table: record for record in store.tables(name)},
            disproved=self._read_disproved(),
        )
        with self._news:
            self._look = look
            for table in look.highest:
                if table not in self._tables:
                    self._tables[table] = TableApplier(self._context, table, None)
                self._offer(table)
            self._news.notify_all()

    def _read_disproved(self) -> Mapping[TableId, Alarms]:
        """Return the alarms that verification has disproved. Asked only while there are alarms."""
        with self._news:
            alarmed = [table for table, applier in self._tables.items() if applier.record.alarms]
        found = self._context.store.verifications.of(self._context.name, alarmed) if alarmed else {}
        return {table: record.disproved for table, record in found.items()}

    def _offer(self, table: TableId) -> None:
        applier = self._tables[table]
        if self._is_removed(table) or self._is_superseded(table):
            return
        now, backlog = self._context.clock(), self._backlog(table)
        rest_s = self._rest_s(table) if backlog > 0 else 0.0
        if (pause_s := max(rest_s, self._waits.left_s(table))) > 0:
            # It may have been offered while it had its turn.
            self._schedule.hold(table, now=now, until=now + pause_s)
            return
        if backlog > 0 or applier.crashes:
            self._schedule.offer(table, now=now, backlog=backlog, crashes=applier.crashes)
        elif (
            self._upkeep.is_due(table, applier)
            or self._upkeep.is_audit_due(table, applier)
            or divergence.holding(applier.record.alarms, self._look.disproved.get(table, ())) != applier.record.alarms
        ):
            self._schedule.offer_upkeep(table)

    def _backlog(self, table: TableId) -> int:
        return self._look.highest.get(table, -1) - self._tables[table].looked_to

    def _rest_s(self, table: TableId) -> float:
        applier, held_s = self._tables[table], self._waits.held_s(table)
        if applier.is_held_back and held_s is not None:
            return held_s
        return self._context.advice.rest_s(table, is_behind=applier.is_behind)

    def _is_removed(self, table: TableId) -> bool:
        """Return whether the table is no longer replicated: by the configuration, on which capture may not have acted, or by its record."""
        captured = self._look.captured.get(table)
        return not self._context.settings.selects(table) or (
            captured is not None and not table_life.is_replicated(captured)
        )

    def _is_superseded(self, table: TableId) -> bool:
        """Return whether the table was removed and came back: its part of the journal is obsolete, and a new incarnation begins soon."""
        captured, applied = self._look.captured.get(table), self._tables[table].record
        return captured is not None and table_life.waits(captured) and 0 < applied.incarnation < captured.incarnation

    def _is_to_be_left(self, table: TableId) -> bool:
        """Return whether the table was removed after it was offered."""
        with self._news:
            return self._is_removed(table)

    def _end(self) -> None:
        with self._news:
            self._is_ending = True
            self._news.notify_all()

    # -- the applying threads

    def _work(self, control: Control) -> None:
        while (turn := self._next_turn()) is not None:
            try:
                self._take_turn(turn, control)
            except BaseException as error:  # noqa: BLE001 - `run` raises it in its own thread
                with self._news:
                    self._errors.append(error)
                self._end()
            self._end_turn(turn)

    def _end_turn(self, turn: Turn) -> None:
        with self._news:
            self._schedule.release(turn.table)
            if not self._is_ending:
                self._offer(turn.table)
            self._news.notify_all()

    def _next_turn(self) -> Turn | None:
        with self._news:
            while not self._is_ending:
                now = self._context.clock()
                for table in self._schedule.rested(now):
                    self._offer(table)
                turn = self._schedule.take(now)
                if turn is not None:
                    return turn
                pause_s = self._schedule.next_s(now)
                self._news.wait(None if pause_s is None else min(pause_s, self._context.settings.wake_s))
            return None

    def _take_turn(self, turn: Turn, control: Control) -> None:
        """Work on a table; raise errors that are not this table's failure."""
        if self._is_to_be_left(turn.table):
            return
        applier = self._tables[turn.table]
        try:
            self._work_on(turn, applier, control)
        except TargetCrashedError as error:
            self._note_crash(turn, applier, error)
            raise
        except TargetUnavailableError as error:
            self._wait_or_fail(turn.table, applier, error)
        except Exception as error:
            ours = table_error(error, turn.table, "applying it")
            if ours is None:
                raise
            if ours.code == INTERNAL:
                _log.error("table_crashed", table=str(turn.table), exc_info=error)
            is_again = applier.is_given_up
            if not is_again and ours is not error and self._may_be_everybodys(turn.table, ours.code):
                applier.forget_claim()
                if self._let_wait(turn.table, ours):
                    return
            self._fail(applier, ours)
            if is_again:
                # The search for a later snapshot failed, too: pause before the next try.
                with self._news:
                    self._waits.pause(turn.table, ours)
            else:
                self._resume_turns(turn.table)

    def _work_on(self, turn: Turn, applier: TableApplier, control: Control) -> None:
        applier.clear_alarms(self._look.disproved.get(turn.table, ()))
        if turn.is_upkeep:
            applier.claim()
            if self._upkeep.is_audit_due(turn.table, applier):
                self._upkeep.audit(turn.table, applier)
            if self._upkeep.is_due(turn.table, applier):
                self._upkeep.look_after(turn.table, applier)
            return
        was_applied = applier.step()
        if applier.is_held_back:
            with self._news:
                self._waits.hold(turn.table, self._context.settings.wake_s)
        if was_applied:
            control.announce("progress")
        self._resume_turns(turn.table, units=int(was_applied))
        if applier.commits >= self._context.settings.maintain_every and not self._upkeep.is_postponed(
            turn.table, applier
        ):
            self._upkeep.look_after(turn.table, applier)

    def _wait_or_fail(self, table: TableId, applier: TableApplier, error: TargetUnavailableError) -> None:
        """Let the table wait, or fail it when that is enough; raises the error if it may be that the target takes no table."""
        with self._news:
            others = self._waits.others(table)
        is_of_table = isinstance(error, ThrottledError) or others is Others.APPLIED
        if not is_of_table and (error.table is None or others is Others.STUCK):
            raise error
        applier.forget_claim()
        if not self._let_wait(table, error):
            if not is_of_table:
                raise error
            self._fail(applier, waited_too_long(error, self._context.name))
            self._resume_turns(table)

    def _note_crash(self, turn: Turn, applier: TableApplier, error: TargetCrashedError) -> None:
        """Note a crash: the table is applied alone from now on, until one of its units is applied.

        A table at which the engine crashes even then fails. Not if the engine applied nothing else either, and other tables are suspected,
        too: then the machine may be the cause.
        """
        applier.note_crash(error, was_alone=turn.is_alone)
        with self._news:
            others = [other for table, other in self._tables.items() if table != turn.table]
            is_of_table = self._waits.has_applied or not any(other.crashes for other in others)
        if is_exhausted(applier.record) and is_of_table:
            self._fail(applier, crashed_too_often(error, turn.table))

    def _fail(self, applier: TableApplier, error: TableError) -> None:
        applier.fail(error)
        with self._news:
            self._waits.note_failure()

    def _may_be_everybodys(self, table: TableId, code: str) -> bool:
        """Return whether several others failed with the same code and nothing was applied since: one cause, which may pass.

        Of errors not raised as this table's own. The table waits then, as long as the retry budget allows or until others continue.
        """
        with self._news:
            records = [applier.record for other, applier in self._tables.items() if other != table]
            alike = sum(r.has_failed and r.error is not None and r.error.code == code for r in records)
            return alike >= _ALIKE and self._waits.is_still(table)

    def _let_wait(self, table: TableId, error: TargetUnavailableError | TableError) -> bool:
        """Leave one table alone for a while; False if it was retried for as long as the policy allows."""
        with self._news:
            delay = self._waits.let_wait(table, error)
        if delay is None:
            return False
        retry_in_ms = round(delay * 1000)
        _log.warning("table_waits", table=str(table), code=error.code, reason=error.message, retry_in_ms=retry_in_ms)
        return True

    def _resume_turns(self, table: TableId, units: int = 0) -> None:
        with self._news:
            self._waits.resume(table, units)

    # -- telling

    def _progress(self, table: TableId, applier: TableApplier) -> TableProgress:
        record, highest = applier.record, self._look.highest.get(table, -1)
        return TableProgress(
            incarnation=record.incarnation,
            last_applied=record.last_applied,
            highest=highest,
            is_complete=applier.is_complete,
            has_failed=record.has_failed,
        )

    def _report(self) -> ApplyReport:
        return ApplyReport(
            tables={
                str(table): AppliedTable(
                    last_batch=self._tables[table].last_batch,
                    engine=self._context.advice.engine(table),
                    waiting=self._waiting(table),
                    upkeep=self._upkeep.report(table, self._tables[table]),
                )
                for table in self.progress()
                if not self._is_removed(table)
            },
            retried=dict(self._waits.retried),
        )

    def _waiting(self, table: TableId) -> WaitingReport | None:
        """Return for how long a table that has something to apply is left alone, and why."""
        with self._news:
            wait, waits_s, backlog = self._waits.of(table), self._waits.left_s(table), self._backlog(table)
            is_busy = table in self._schedule.busy
        if is_busy:
            return None
        if wait is not None:
            return WaitingReport(retry_in_s=round(waits_s, 1), code=wait.error.code, message=str(wait.error))
        rest_s = self._rest_s(table) if backlog > 0 else 0.0
        return WaitingReport(retry_in_s=round(rest_s, 1), code=None, message=None) if rest_s > 0 else None
