"""The process that verifies tables by a schedule (`verify.every`), one after the other, while capture and apply continue."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from replicator.config import LoadedConfig
from replicator.journal import JournalReader
from replicator.model.control import Control
from replicator.model.errors import FencedError, ReplicatorError, StateUnavailableError
from replicator.model.isolation import table_error
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.registry import Registry
from replicator.plugins.source import DeltaSource
from replicator.plugins.target import DeltaTarget, TableOptions
from replicator.runtime import assembly
from replicator.runtime.home import Home
from replicator.runtime.pumps import return_unused_memory
from replicator.state.records import ReplicatorRecord, TableRecord
from replicator.state.store import StateStore
from replicator.state.verification_records import VerificationRecord
from replicator.state.verifications import VERIFY_DIFFERENT
from replicator.verify import Judge, Proofs, Result, Verdict, VerifySchedule
from replicator.verify.barriers import Barriers, NotVerifiedError
from replicator.verify.schedule import Known

_NICENESS: Final = 10
"""Capture and apply come first where there is too little processor time."""
_LOOK_S: Final = 0.1
_IDLE_MIN_S: Final = 1.0
_IDLE_MAX_S: Final = 60.0
_LOOKS: Final = 100
"""So often within `every` the process looks whether a table is due."""
_WAITS_MAX_S: Final = 600.0
"""A table that apply does not bring to the barrier in this time is tried again later: the source keeps what is read open meanwhile.

`apply.max_wait` is added to it, for which a table may rest between two batches.
"""
_log = get_logger(__name__)


def run_verify(
    store: StateStore, home: Home, registry: Registry, record: ReplicatorRecord, epoch: int, control: Control
) -> None:
    """Verify tables by the schedule until told to stop. Without `verify.every` there is nothing to do."""
    del home
    os.nice(_NICENESS)
    return_unused_memory()
    loaded = assembly.load(record, registry)
    every = loaded.config.verify.every
    if every is None:
        return
    Verifier(
        store=store,
        name=record.name,
        uuid=record.uuid,
        epoch=epoch,
        schedule=VerifySchedule(every=every, rows_per_second=loaded.config.verify.rows_per_second),
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

    Killed at any point it leaves a barrier at most, which its supervisor removes. A table that cannot be verified is tried again later,
    whatever the reason: only the state store, and another worker that has taken over, end the process.

    Attributes:
        open_sides: Makes a source and a target, which are closed behind each table.
        options: A table's settings, as apply has them.
        waits_max_s: As `Barriers.waits_max_s`.
    """

    store: StateStore
    name: str
    uuid: str
    epoch: int
    schedule: VerifySchedule
    open_sides: Callable[[], tuple[DeltaSource[Any], DeltaTarget[Any]]]
    options: Callable[[TableId], TableOptions]
    waits_max_s: float = _WAITS_MAX_S
    _alarmed: set[TableId] = field(default_factory=set)

    def run(self, control: Control) -> None:
        """Continue until told to stop.

        Raises:
            FencedError: Another worker has taken over.
            StateUnavailableError: The state store is away.
        """
        while not control.should_stop():
            known, now = self._known(), self.store.now()
            table = self.schedule.next_table(known, now)
            if table is not None:
                self.verify(table, control)
            elif (rest_s := self.schedule.rest_s(known, now)) > 0:
                control.wait(min(self.idle_s, max(_LOOK_S, rest_s)))
            else:
                control.wait(self.idle_s)

    @property
    def idle_s(self) -> float:
        """Seconds from one look to the next, if nothing is due. Each reads what is known of all tables."""
        return min(_IDLE_MAX_S, max(_IDLE_MIN_S, self.schedule.every.total_seconds() / _LOOKS))

    def verify(self, record: TableRecord, control: Control) -> None:
        """Compare a table, and note what comes of it. Raises as `run`."""
        self.store.begin_verification(self.name, self.epoch, record.table, record.incarnation)
        source, target = self.open_sides()
        try:
            proofs = Proofs(judge=self._judge(source, target, control), noted=self._tell)
            before = proofs.before(record.table)
            try:
                verdict = proofs.judge.verify(record.table)
            except (FencedError, StateUnavailableError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the other tables are verified, and this one later
                verdict = self._not_verified(record.table, error)
            if verdict.result is not Result.NOT_VERIFIED or not control.should_stop():
                proofs.note(verdict, before)
        finally:
            source.close()
            target.close()

    def _known(self) -> Known:
        known = Known(
            tables=self.store.tables(self.name),
            applied=self.store.applied(self.name),
            verified=self.store.verifications(self.name),
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
        """A line of the log for each comparison; another when an alarm is first raised, and when it is cleared."""
        table = str(record.table)
        result = record.result.value if record.result is not None else None
        _log.info("table_verified", table=table, result=result, rows=record.rows, reason=record.reason)
        if record.alarm is not None and record.table not in self._alarmed:
            _log.error("alarm_raised", table=table, code=record.alarm.code, reason=record.alarm.message)
        if record.alarm is None and record.table in self._alarmed:
            _log.info("alarm_cleared", table=table, code=VERIFY_DIFFERENT)
