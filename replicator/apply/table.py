"""Brings one table's changes from the journal into the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from replicator.apply import divergence, trust
from replicator.apply.context import ApplyContext
from replicator.apply.failures import is_exhausted
from replicator.apply.plan import (
    APPEND_NOTHING,
    MORE,
    AdvanceUnit,
    BatchLimits,
    BatchUnit,
    BeginUnit,
    EventUnit,
    Item,
    More,
    Unit,
    append_bound,
    before_hold,
    begins_incarnation,
    end_of,
    last_number,
    next_unit,
    starts_in_place,
)
from replicator.apply.reach import Reach
from replicator.model.counts import BatchCount
from replicator.model.crash import crash_point
from replicator.model.errors import (
    BatchTooLargeError,
    CorruptStreamError,
    PluginError,
    ReplicatorError,
    TableError,
    TargetCrashedError,
    ThrottledError,
    TransientError,
    with_names,
)
from replicator.model.events import DDLEvent, SnapshotEvent, SnapshotPhase
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.target import EMPTY_LEDGER, Batch, BatchFile, TargetTable
from replicator.state import table_life
from replicator.state.next_steps import REPAIR
from replicator.state.records import AppliedRecord, ErrorRecord, EventEntry, SegmentFile, TargetCopy

_HOLD_S = 300.0
"""Seconds that a table waits at most for a verification of a target without older states: one that was killed delays it no longer."""
_SMALLER_PER_CRASH, _TIMES_SMALLER_MAX = 10, 3
"""An engine that is killed for its memory may be able to apply smaller batches."""
_log = get_logger(__name__)


class TableApplier:
    """Applies one table; used by one thread at a time.

    A unit of work takes these steps; what a crash after each leaves:

    1. For a new incarnation, its number is recorded. It is claimed next time; the target still holds the old table.
    2. Once per process and incarnation the ledger is read, the epoch recorded, and the table claimed in the target. It is claimed again.
    3. The unit is applied together with the ledger. The ledger says so; the record is older until the next claim.
    4. The record of the table is brought up to the ledger.
    """

    def __init__(self, context: ApplyContext, table: TableId, applied: AppliedRecord | None) -> None:
        self._context = context
        self._table = table
        self._record = applied or table_life.nothing_applied(table)
        self._claimed: TargetTable | None = None
        self._reach = Reach.begin(self._record.last_applied)
        self._commits = 0
        self._was_looked_after = False
        self._last_batch: Mapping[str, Any] | None = None
        self._batch: BatchCount | None = None
        self._is_behind = self._is_held_back = False
        # No batch was planned yet; whether the table still rests after one of an earlier process the target knows once it is claimed.
        self._is_new = True
        # Smaller once the target could not take a batch; for the rest of this process.
        self._limits = context.settings.batch
        if self._record.has_failed and is_exhausted(self._record) and self._record.claimed_by == context.epoch:
            # Unlike after other failures: an attempt may cost the other tables an engine.
            self._reach = self._reach.failed()

    @property
    def record(self) -> AppliedRecord:
        """Return the table's record as the state store has it."""
        return self._record

    @property
    def is_given_up(self) -> bool:
        """Return whether this process has given the table up until a snapshot or an incarnation begins."""
        return self._reach.is_searching

    @property
    def crashes(self) -> int:
        """Return the crashes of the target's engine while it worked on the table, with nothing of it applied since; 0 once given up."""
        return 0 if self.is_given_up else self._record.crashes

    @property
    def is_complete(self) -> bool:
        """Return whether the target holds the whole table, perhaps an old state of it: no snapshot has begun in it and not ended."""
        return self._record.copy is not TargetCopy.SNAPSHOT

    @property
    def looked_to(self) -> int:
        """Return the number up to which nothing of the journal is left to read."""
        return self._reach.seen_to

    @property
    def is_behind(self) -> bool:
        """Return whether the last unit left something that was there when it was chosen."""
        return self._is_behind

    @property
    def is_held_back(self) -> bool:
        """Return whether the next changes wait for a verification that reads the target's state, which they would end."""
        return self._is_held_back

    @property
    def last_batch(self) -> Mapping[str, Any] | None:
        """Return the target's details of the last batch of this process; None before it."""
        return self._last_batch

    @property
    def commits(self) -> int:
        """Return the commits since the table's last upkeep."""
        return self._commits

    @property
    def is_upkeep_due(self) -> bool:
        """Return whether upkeep is due when the table has nothing to apply.

        The number of commits in earlier processes is unknown, so the first of this one counts for all of them.
        """
        return self._commits >= (self._context.settings.maintain_idle if self._was_looked_after else 1)

    def note_crash(self, error: TargetCrashedError, *, was_alone: bool) -> None:
        """Note that the target's engine ended while it applied a batch of the table: its next batches are smaller, and applied alone."""
        self._store(table_life.crashed(self._record, was_alone=was_alone))
        _log.warning(
            "engine_crashed", table=str(self._table), code=error.code, crashes=self._record.crashes, alone=was_alone
        )

    def note_upkeep_crash(self, error: TargetCrashedError) -> None:
        """Note that the target's engine ended in the table's upkeep."""
        self._put(upkeep_crash=ErrorRecord.of(error, self._context.store.now()))

    def step(self) -> bool:
        """Do the next unit; False if there is none, or if it was too large and will be split.

        A failed table first looks for a later event with which it can continue.

        Raises:
            TableError: The table fails (`fail`).
            FencedError, FatalError, TransientError: Errors of target, journal or state store; nothing is lost or doubled
            by starting again from the ledger.
        """
        if self._reach.is_searching and not self._search():
            return False
        if self._record.copy is TargetCopy.SNAPSHOT and self._reach.whole_at is None:
            self._reach = self._reach.whole_from(self._find_whole())
        unit = self._plan()
        while isinstance(unit, BeginUnit):
            self._begin(unit.entry)
            unit = self._plan()
        if unit is None and self._is_held_back:
            return False
        if unit is None:
            self._see_whole(self._reach.looked_to)
            # Of a failed table, too: it would be offered again and again.
            self._store(table_life.nothing_left(self._record))
            return False
        if self._is_new and isinstance(unit, BatchUnit):
            self._is_new, self._is_behind = False, unit.following is not None
            if self._context.advice.rest_s(self._table, is_behind=self._is_behind) > 0:
                return False
        if not self._do(unit):
            return False
        crash_point("apply.after_unit")
        self._note(unit)
        return True

    def fail(self, error: TableError) -> None:
        """Leave the table as it is, with the reason, until a later snapshot or incarnation begins."""
        self._reach = self._reach.failed()
        _log.error("table_failed", table=str(self._table), code=error.code, reason=error.message)
        self._store(table_life.refused(self._record, ErrorRecord.of(error, self._context.store.now())))

    def claim(self) -> None:
        """Claim the table in the target, if it was begun there and this process has not claimed it, or has given that up."""
        if self._claimed is None and self._record.incarnation > 0 and not self._reach.is_searching:
            self._claim()

    def forget_claim(self) -> None:
        """Forget the target's state: after a failed unit its ledger is read when the table is claimed again."""
        self._claimed = None
        self._reach = self._reach.forgotten()

    def maintain(self) -> None:
        """Let the target do the table's upkeep; while it finds something to do, it is asked again."""
        self._commits, self._was_looked_after = 0, True
        if self._claimed is None or self._reach.is_searching:
            return
        done = self._context.target.maintain(self._claimed)
        if done is not None:
            _log.info("table_maintained", table=str(self._table), details=dict(done))
            self._commits = self._context.settings.maintain_idle

    def audit(self) -> None:
        """Ask the target what others changed since the last unit of work."""
        if self._claimed is not None and not self._reach.is_searching:
            self._store(self._audited(self._record, self._claimed, starts=False, completes=False))

    def clear_alarms(self, disproved: divergence.Alarms) -> None:
        """Remove alarms that a verification has disproved."""
        self._put(alarms=divergence.holding(self._record.alarms, disproved))

    # -- what to do

    def _plan(self) -> Unit | None:
        incarnation = self._record.incarnation
        if self._claimed is None and incarnation > 0:
            self._claim()
        page = self._context.settings.feed_items
        items: list[Item] = []
        after = self._reach.read_from
        unit: Unit | More | None = MORE
        while unit is MORE:
            window = self._context.reader.feed(self._table, after, page)
            after = last_number(window[-1]) if window else after
            items += [item for item in window if item.incarnation >= incarnation]
            try:
                unit = self._next(items, is_whole=len(window) < page)
            except CorruptStreamError:
                trust.check_beginning(self._context, self._table, items)
                raise
        if not isinstance(unit, BeginUnit):
            trust.check_kept(self._context, self._table, incarnation, self._reach.ledger)
        self._reach = self._reach.planned(after, is_idle=unit is None and not self._is_held_back)
        return unit

    def _next(self, items: Sequence[Item], *, is_whole: bool) -> Unit | More | None:
        incarnation = self._record.incarnation
        bound = APPEND_NOTHING
        if any(isinstance(item, SegmentFile) and item.snapshot_rows == item.rows for item in items):
            bound = append_bound(self._context.record_of(self._table), incarnation)
        limits = self._limits_now()
        # After the feed, as what follows a barrier is sealed later.
        barriers = self._context.store.requests.barriers(self._context.name)
        if not self._context.target.keeps_states:
            held = before_hold(items, self._context.store.requests.barriers(self._context.name, asked_within_s=_HOLD_S))
            self._is_held_back, items = len(held) < len(items), held
            is_whole = is_whole or self._is_held_back
        return next_unit(
            items, incarnation=incarnation, is_whole=is_whole, limits=limits, append_below=bound, barriers=barriers
        )

    def _limits_now(self) -> BatchLimits:
        limits, rows_max = self._smaller(), self._context.advice.rows_max(self._table)
        return limits if rows_max is None else replace(limits, rows=min(limits.rows, rows_max))

    def _smaller(self) -> BatchLimits:
        """Return the limits, divided with every crash of the target's engine except the first, which another table may have caused."""
        return self._limits.divided(_SMALLER_PER_CRASH ** min(_TIMES_SMALLER_MAX, max(0, self._record.crashes - 1)))

    def _begin(self, entry: EventEntry) -> None:
        self._claimed = None
        self._reach = self._reach.begun(entry.sequence_num)
        # The new snapshot clears what is wrong with the old one.
        alarms = divergence.covered(self._record.alarms)
        self._store(table_life.begun_in_target(self._record, entry.incarnation, alarms))
        crash_point("apply.incarnation_recorded")
        self._claim()

    def _find_whole(self) -> int | None:
        """Return the table's highest number once capture has its whole snapshot: a former process may have applied its end unrecorded."""
        captured = self._context.record_of(self._table)
        if captured is None or not table_life.is_complete(captured) or captured.incarnation != self._record.incarnation:
            return None
        return self._context.store.journal.feed_end(self._context.name, self._table)

    def _see_whole(self, number: int) -> None:
        """Note that everything of the journal up to `number` is applied."""
        if self._reach.whole_at is not None and number >= self._reach.whole_at:
            self._reach = self._reach.whole_from(None)
            captured = self._context.record_of(self._table)
            has_snapshot = captured is not None and captured.snapshot is not None
            self._store(table_life.found_whole(self._record, has_snapshot=has_snapshot))

    def _claim(self) -> None:
        table = TargetTable(
            table=self._table,
            uuid=self._context.uuid,
            incarnation=self._record.incarnation,
            epoch=self._context.epoch,
            options=self._context.settings.options(self._table),
        )
        trust.check_store(self._context, self._record, self._context.target.read_ledger(table))
        self._put(claimed_by=self._context.epoch)
        crash_point("apply.claim_recorded")
        ledger = self._context.target.claim(table).last_applied
        crash_point("apply.claimed")
        files, phase = trust.missed(self._context, self._record, ledger)
        starts, completes = phase is SnapshotPhase.STARTED, phase is SnapshotPhase.COMPLETED
        record = self._audited(self._record, table, starts=starts, completes=completes)
        if starts or ledger < self._record.last_applied:
            # A target that was set back may be in the middle of a snapshot, too.
            self._reach = self._reach.whole_from(None)
            record = table_life.snapshot_begun_in_target(record, record.alarms)
        self._claimed, self._reach = table, self._reach.claimed(ledger)
        self._store(record.applied(files, last=ledger))

    def _search(self) -> bool:
        """Look for a snapshot or incarnation that replaces what could not be applied, and continue from there; False if there is none."""
        page, before = self._context.settings.feed_items, self._reach.searched_to
        begin: EventEntry | None = None
        start: int | None = None
        is_whole = False
        while not is_whole:
            window = self._context.reader.feed(self._table, self._reach.searched_to, page)
            is_whole = len(window) < page
            for item in window:
                self._reach = self._reach.searched(last_number(item))
                if isinstance(item, EventEntry) and begins_incarnation(item, self._record.incarnation):
                    begin = item
                elif (number := starts_in_place(item, self._record.incarnation)) is not None:
                    start = number
        try:
            if begin is not None:
                self._begin(begin)
            elif start is not None:
                self._jump(start - 1)
        except TransientError:
            self._reach = self._reach.searched(before)  # it is found again
            raise
        return not self._reach.is_searching

    def _jump(self, number: int) -> None:
        """Continue above a number: an in-place snapshot reads everything before it again."""
        self._claim()
        assert self._claimed is not None
        self._reach = self._reach.whole_from(None)
        self._store(table_life.snapshot_begun_in_target(self._record, divergence.covered(self._record.alarms)))
        self._context.check_lease()
        if self._reach.ledger == EMPTY_LEDGER:  # it failed before the table was there
            self._reach = self._reach.applied(self._context.create(self._claimed, self._reach.floor))
        if number > self._reach.ledger:
            self._context.target.advance(self._claimed, number)
            self._reach = self._reach.applied(number)
        self._reach = self._reach.resumed()
        self._store(replace(table_life.taken_up(self._record), last_applied=self._reach.ledger))

    # -- doing it

    def _do(self, unit: BatchUnit | EventUnit | AdvanceUnit) -> bool:
        """Apply a unit; False if it was too large: the next one is smaller."""
        assert self._claimed is not None, "what has an incarnation is claimed before it is planned"
        self._context.check_lease()
        target, table = self._context.target, self._claimed
        try:
            match unit:
                case BatchUnit():
                    self._merge(table, unit)
                case AdvanceUnit():
                    target.advance(table, unit.last)
                case EventUnit(entry=EventEntry(event=DDLEvent() as event)):
                    target.apply_ddl(table, event, unit.last)
                case EventUnit(entry=EventEntry(event=SnapshotEvent(start_number=int(start)))):
                    target.complete_snapshot(table, start, unit.last)
                case EventUnit(entry=EventEntry(event=SnapshotEvent(phase=SnapshotPhase.COMPLETED))):
                    target.publish(table, unit.last)
                case _:
                    raise AssertionError(f"{unit} asks nothing of a target")  # noqa: TRY301 - an invariant
        except (TableError, ThrottledError) as error:
            may_halve = isinstance(error, BatchTooLargeError) or (isinstance(error, ThrottledError) and error.may_halve)
            if may_halve and isinstance(unit, BatchUnit) and self._cut(unit, error):
                return False
            self._reach = self._reach.refused(end_of(unit))
            raise
        except Exception:
            # Any error blocks the table up to here; the pump reports it.
            self._reach = self._reach.refused(end_of(unit))
            raise
        return True

    def _cut(self, unit: BatchUnit, error: ReplicatorError) -> bool:
        """Reduce the size of units from now on; False if that would not make this unit smaller."""
        smaller = self._limits.below(unit)
        if smaller is None:
            return False
        self._limits = smaller
        self.forget_claim()  # it may have been committed all the same
        now = {"rows": smaller.rows, "bytes": smaller.bytes}
        _log.warning("batch_size_reduced", table=str(self._table), code=error.code, reason=error.message, **now)
        return True

    def _merge(self, table: TargetTable, unit: BatchUnit) -> None:
        for file in unit.files:
            trust.check_file(self._context, self._table, file)
        batch = Batch(
            schema=self._context.reader.schema(unit.files[0]),
            files=[BatchFile(uri=f.uri, rows=f.rows, bytes=f.bytes, first=f.first, last=f.last) for f in unit.files],
            last=unit.last,
            skip_to=self._reach.ledger,
            rows=sum(f.rows for f in unit.files),
            is_append=unit.is_append,
            has_absent=any(f.has_absent for f in unit.files),
            has_key_changes=any(f.has_key_changes for f in unit.files),
            expects_rows=self._record.copy is TargetCopy.WHOLE
            and not unit.is_in_snapshot
            and not self._context.is_net(self._table),
            source_position=trust.position(self._context, unit.files[-1]),
        )
        crash_point("apply.batch_planned")
        begun = self._context.clock()
        result = self._context.target.apply_batch(table, batch)
        if result.was_skipped:
            self._check_skipped(table, batch)
        else:
            self._batch = BatchCount(rows=batch.rows, seconds=self._context.clock() - begun)
            self._last_batch = dict(result.details or {})
        _log.info(
            "batch_applied",
            table=str(self._table),
            rows=batch.rows,
            last=batch.last,
            is_append=batch.is_append,
            details=dict(result.details or {}),
        )

    def _check_skipped(self, table: TargetTable, batch: Batch) -> None:
        """Explain a skipped batch above the ledger: a newer epoch has the table (claiming says so), or the target broke its contract."""
        found = self._context.target.claim(table).last_applied
        if found != batch.last:
            raise PluginError(
                f"The target skipped a batch from {batch.skip_to} to {batch.last}; its ledger is {found}.",
                code="broken_contract",
                table=str(self._table),
            )

    # -- remembering it

    def _note(self, unit: BatchUnit | EventUnit | AdvanceUnit) -> None:
        assert self._claimed is not None, "it was applied"
        self._reach = self._reach.applied(unit.last)
        self._is_behind = unit.following is not None
        self._commits += 1
        self._see_whole(unit.last)
        if unit.passed.starts or unit.passed.completes:
            self._reach = self._reach.whole_from(None)
        self._limits = self._smaller()
        record, passed = table_life.taken_up(self._record), unit.passed
        record = self._audited(record, self._claimed, starts=passed.starts, completes=passed.completes)
        record = record.applied(unit.files if isinstance(unit, BatchUnit) else (), last=unit.last)
        batch, self._batch = self._batch, None
        self._store(record, batch)

    def _audited(self, record: AppliedRecord, table: TargetTable, *, starts: bool, completes: bool) -> AppliedRecord:
        """Return the record after an audit of the target, made after work that passed the start or the end of a snapshot.

        A snapshot replaces what others wrote before it started.
        """
        audit = self._context.target.audit(table, record.audited_to)
        alarms = divergence.raised(
            record.alarms,
            audit,
            record.merged,
            action=with_names(REPAIR, self._context.name, str(self._table)),
            now=self._context.store.now,
        )
        record = replace(record, merged=audit.merged, audited_to=audit.position, alarms=alarms)
        if starts:
            return table_life.snapshot_begun_in_target(record, divergence.covered(alarms))
        return table_life.snapshot_completed_in_target(record, divergence.cleared(alarms)) if completes else record

    def _put(self, **changes: Any) -> None:
        self._store(replace(self._record, **changes))

    def _store(self, record: AppliedRecord, batch: BatchCount | None = None) -> None:
        before = self._record
        if record != before:
            self._context.store.put_applied(self._context.name, self._context.epoch, [record], batch=batch)
            self._record = record
            self._tell_alarms(before, record)

    def _tell_alarms(self, before: AppliedRecord, after: AppliedRecord) -> None:
        """Log a line when an alarm is first raised, and when it is cleared."""
        was, now = ({alarm.code: alarm for alarm in record.alarms} for record in (before, after))
        for code in now.keys() - was.keys():
            _log.error("alarm_raised", table=str(self._table), code=code, reason=now[code].message)
        for code in was.keys() - now.keys():
            _log.info("alarm_cleared", table=str(self._table), code=code)
