"""The process that compares tables, one after the other, while capture and apply continue.

Tables that lost some of the source's log come first (`resyncing.py`), then others by a schedule (`verify.every`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from replicator.config import LoadedConfig
from replicator.journal import JournalReader
from replicator.model.errors import FencedError, ReplicatorError, StateUnavailableError
from replicator.model.isolation import table_error
from replicator.model.processes.control import Control
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.registry import Registry
from replicator.plugins.source import DeltaSource
from replicator.plugins.target import DeltaTarget, TableOptions
from replicator.runtime import assembly
from replicator.runtime.home import Home
from replicator.runtime.policy import RetryLimits
from replicator.runtime.pumps import return_unused_memory
from replicator.runtime.resyncing import Resyncing
from replicator.state.records import ReplicatorRecord, TableRecord
from replicator.state.store import StateStore
from replicator.state.verification.outcomes import VERIFY_DIFFERENT
from replicator.state.verification.records import VerificationRecord
from replicator.verify import Judge, Pace, Proofs, Result, Resync, Verdict, VerifySchedule, Visit
from replicator.verify.barriers import Barriers, NotVerifiedError
from replicator.verify.resync import can_compare
from replicator.verify.schedule import Known

_NICENESS: Final = 10
"""Capture and apply come first where there is too little processor time."""
_LOOK_S: Final = 0.1
_IDLE_MIN_S: Final = 1.0
_IDLE_MAX_S: Final = 60.0
_LOOKS: Final = 100
"""Number of times within `every` that the process looks whether a table is due."""
_WAITS_MAX_S: Final = 600.0
"""A table that apply does not bring to the barrier in this time is retried later: meanwhile the source keeps open what is read.

`apply.max_wait` is added to it: a table may rest that long between two batches.
"""
_log = get_logger(__name__)


def run_verify(
    store: StateStore, home: Home, registry: Registry, record: ReplicatorRecord, epoch: int, control: Control
) -> None:
    """Compare tables until told to stop: those that lost some of the log, and with `verify.every` others by the schedule."""
    del home
    os.nice(_NICENESS)
    return_unused_memory()
    loaded = assembly.load(record, registry)
    every, verify = loaded.config.verify.every, loaded.config.verify
    Verifier(
        store=store,
        name=record.name,
        uuid=record.uuid,
        epoch=epoch,
        schedule=None if every is None else VerifySchedule(every=every, rows_per_second=verify.rows_per_second),
        resyncing=Resyncing(
            store=store,
            name=record.name,
            rows_max=verify.repair_rows_max,
            limits=RetryLimits.of(loaded.config.retry),
        ),
        open_sides=lambda: _sides(loaded, registry, record),
        options=loaded.config.tables.options_for,
        waits_max_s=_WAITS_MAX_S + assembly.max_wait_s(loaded, registry),
    ).run(control)


def _sides(
    loaded: LoadedConfig, registry: Registry, record: ReplicatorRecord
) -> tuple[DeltaSource[Any], DeltaTarget[Any]]:
    return assembly.make_source(loaded, registry, record), assembly.make_target(loaded, registry, uuid=record.uuid)


@dataclass(kw_only=True)
class Verifier:
    """Verifies tables one after the other.

    Killed at any point it leaves a barrier at most, which its supervisor removes, and the ranges that it had proven. A table that cannot
    be verified is retried later for any reason: only the state store, and another worker that has taken over, end the process.

    Attributes:
        schedule: Schedule by which tables are verified; None: never.
        resyncing: Tables to resynchronise; None: none.
        open_sides: Opens a source and a target, which are closed after each table.
        options: A table's settings, as apply has them.
        waits_max_s: As `Barriers.waits_max_s`.
        ranges: Size of the ranges of a table.
    """

    store: StateStore
    name: str
    uuid: str
    epoch: int
    schedule: VerifySchedule | None
    open_sides: Callable[[], tuple[DeltaSource[Any], DeltaTarget[Any]]]
    options: Callable[[TableId], TableOptions]
    resyncing: Resyncing | None = None
    waits_max_s: float = _WAITS_MAX_S
    ranges: Visit = field(default_factory=Visit)
    _alarmed: set[TableId] = field(default_factory=set)

    def run(self, control: Control) -> None:
        """Continue until told to stop.

        Raises:
            FencedError: Another worker has taken over.
            StateUnavailableError: The state store is unavailable.
        """
        while not control.should_stop():
            if (table := self._next_resync()) is not None:
                self.resync(table, control)
            elif self.schedule is None:
                control.wait(_IDLE_MIN_S)
            else:
                self._follow(self.schedule, control)

    def _follow(self, schedule: VerifySchedule, control: Control) -> None:
        known, now = self._known(), self.store.now()
        table = schedule.next_table(known, now)
        if table is not None:
            self.verify(table, control)
        elif (rest_s := schedule.rest_s(known, now)) > 0:
            self._rest(min(self.idle_s, max(_LOOK_S, rest_s)), control)
        else:
            self._rest(self.idle_s, control)

    @property
    def idle_s(self) -> float:
        """Seconds from one look to the next if nothing is due. Each look reads the state of all tables."""
        every_s = 0.0 if self.schedule is None else self.schedule.every.total_seconds()
        return min(_IDLE_MAX_S, max(_IDLE_MIN_S, every_s / _LOOKS))

    def verify(self, record: TableRecord, control: Control) -> None:
        """Compare a table, and store the result. Raises as `run`."""
        self.store.verifications.begin(self.name, self.epoch, record.table, record.incarnation)
        with self._judging(control) as judge:
            proofs = Proofs(
                judge=judge, visit=self._visit(record.table, judge, control), is_scheduled=True, noted=self._tell
            )
            before = proofs.before(record.table)
            verdict = self._guarded(record.table, lambda: proofs.compare(record.table, before))
            if verdict.result is not Result.NOT_VERIFIED or not control.should_stop():
                proofs.note(verdict, before)

    def resync(self, record: TableRecord, control: Control) -> None:
        """Resynchronise a table, and store the result: a proof, or why there is none. Raises as `run`.

        Differing rows raise no alarm, as they are read again.
        """
        resyncing = self.resyncing
        assert resyncing is not None, "it says that a table is due"
        with self._judging(control) as opened:
            judge = replace(opened, keys_max=resyncing.rows_max, can_compare=can_compare)
            proofs = Proofs(judge=judge, noted=self._tell)
            resync = Resync(judge=judge, rows_max=resyncing.rows_max, visit=self.ranges)
            before = proofs.before(record.table)
            verdict = resyncing.resync(
                record, resync, lambda: self._guarded(record.table, lambda: resync.resync(record))
            )
            is_complete = verdict.result in (Result.EQUAL, Result.EQUAL_IN_PART)
            if is_complete or (verdict.result is Result.NOT_VERIFIED and not control.should_stop()):
                # Its ranges were not noted one by one: what differed in them was no alarm.
                proofs.note(replace(verdict, ranges=None), before)

    def _next_resync(self) -> TableRecord | None:
        return None if self.resyncing is None else self.resyncing.next_table()

    def _rest(self, seconds: float, control: Control) -> None:
        """Wait; end early if a table is to be resynchronised."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not control.should_stop() and self._next_resync() is None:
            control.wait(min(left, seconds if self.resyncing is None else _IDLE_MIN_S))

    @contextmanager
    def _judging(self, control: Control) -> Iterator[Judge]:
        source, target = self.open_sides()
        try:
            yield self._judge(source, target, control)
        finally:
            source.close()
            target.close()

    def _visit(self, table: TableId, judge: Judge, control: Control) -> Visit:
        """Return a pass over the due ranges, with pauses. Ranges that were proven before this process was killed are left out."""
        schedule = self.schedule
        assert schedule is not None, "it says that a table is due"
        applied, now = self.store.applied(self.name).get(table), self.store.now()
        alarms = applied.alarms if applied is not None else ()
        return replace(
            self.ranges,
            keeps=lambda one: schedule.keeps(one, alarms, now),
            pace=Pace(rows_per_second=schedule.rows_per_second, check=judge.barriers.check, wait=control.wait),
        )

    def _guarded(self, table: TableId, verified: Callable[[], Verdict]) -> Verdict:
        """Return the verdict. An error only postpones this table; the other tables are compared."""
        try:
            return verified()
        except (FencedError, StateUnavailableError):
            raise
        except Exception as error:  # noqa: BLE001 - see above
            return self._not_verified(table, error)

    def _known(self) -> Known:
        known = Known(
            tables=self.store.tables(self.name),
            applied=self.store.applied(self.name),
            verified=self.store.verifications.of(self.name),
        )
        self._alarmed = {table for table, record in known.verified.items() if record.alarm is not None}
        return known

    def _judge(self, source: DeltaSource[Any], target: DeltaTarget[Any], control: Control) -> Judge:
        def check() -> None:
            if control.should_stop():
                raise NotVerifiedError("the worker stops")

        barriers = Barriers(
            store=self.store,
            name=self.name,
            check=check,
            wait=lambda: control.wait(_LOOK_S),
            is_scheduled=True,
            waits_max_s=self.waits_max_s,
        )
        return Judge(
            source=source,
            target=target,
            store=self.store,
            reader=JournalReader(self.store, self.name),
            name=self.name,
            uuid=self.uuid,
            options=self.options,
            barriers=barriers,
        )

    def _not_verified(self, table: TableId, error: Exception) -> Verdict:
        ours = error if isinstance(error, ReplicatorError) else table_error(error, table, "verifying it")
        if ours is None:
            raise error
        _log.warning("table_not_verified", table=str(table), code=ours.code, exc_info=error)
        return Verdict(table=table, result=Result.NOT_VERIFIED, reason=str(ours), action=ours.action)

    def _tell(self, record: VerificationRecord) -> None:
        """Log each comparison; also log when an alarm is first raised and when it is cleared."""
        table = str(record.table)
        result = record.result.value if record.result is not None else None
        _log.info("table_verified", table=table, result=result, rows=record.rows, reason=record.reason)
        if record.alarm is not None and record.table not in self._alarmed:
            _log.error("alarm_raised", table=table, code=record.alarm.code, reason=record.alarm.message)
        if record.alarm is None and record.table in self._alarmed:
            _log.info("alarm_cleared", table=table, code=VERIFY_DIFFERENT)
