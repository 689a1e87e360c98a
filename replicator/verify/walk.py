"""Compares a whole table, range by range in the order of its key.

The ranges are found during the comparison: the source returns the end of one that has enough rows. Some share the states of both sides,
so not each needs a barrier. Every range is recorded as soon as it is compared. A comparison that was killed is continued by another one,
which leaves out the recorded ranges (`Visit.keeps`).

That ranges have all rows of both sides needs no order that both share: each side's rows that are not in one range are in another, because
the next begins at the very bound where the one before ends. A shared order is what makes equal rows be in the same range on both sides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from replicator.model.errors import SchemaConflictError, TransientError
from replicator.model.schema import TableId
from replicator.plugins.kit.keyranges import sort_key
from replicator.plugins.verification import Ids, KeyRange
from replicator.state.records import AlarmRecord
from replicator.state.store import StateStore
from replicator.state.verification.ranges import Gap, gaps
from replicator.state.verification.records import RangeRecord
from replicator.verify.barriers import NotVerifiedError
from replicator.verify.moving import TableChangedError
from replicator.verify.pace import Pace
from replicator.verify.rounds import (
    AGAIN_SOON,
    CHANGES_TOO_MUCH,
    AgainError,
    Compared,
    Round,
    Sides,
    States,
)
from replicator.verify.verdicts import Counts

ROWS_MIN: Final = 100_000
"""Rows of a range. Large enough that its barrier and its answer cost little, small enough that one read is not felt."""
_GROWTH: Final = 100
"""Rows already compared per row of the next range, if that makes it larger: so a table of any size has few enough ranges."""
_AT_ONCE: Final = 50
"""Ranges that share the states of both sides, fewer if they are larger: the source keeps a state no longer than these rows take."""
ROUNDS_MAX: Final = 20
AGAIN: Final = (AgainError, TableChangedError, SchemaConflictError, TransientError)


KEPT_CHANGING: Final = "its definition kept changing"


def given_up(error: Exception) -> NotVerifiedError:
    """Return the reason for a comparison that errors of `AGAIN` have made void too often."""
    match error:
        case AgainError():
            return NotVerifiedError(error.reason, error.action)
        case SchemaConflictError():
            return NotVerifiedError(error.message, AGAIN_SOON)
        case TransientError():
            return NotVerifiedError(error.message, error.action)
        case _:
            return NotVerifiedError(KEPT_CHANGING, AGAIN_SOON)


def _nothing(_record: RangeRecord, _begun_at: datetime, _counts: Counts) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """Settings of the comparison of a whole table.

    Attributes:
        keeps: Returns whether a known range is not compared again.
        noted: Called with each range that was compared, the time when the comparison began, and the differences so far in all of them.
        pace: Pauses between ranges; None: there are none.
        rows: Rows of a range, at least.
        at_once: Ranges of this many times these rows share states.
    """

    keeps: Callable[[RangeRecord], bool] = lambda _: False
    noted: Callable[[RangeRecord, datetime, Counts], None] = _nothing
    pace: Pace | None = None
    rows: int = ROWS_MIN
    at_once: int = _AT_ONCE


@dataclass(frozen=True, slots=True)
class _Moment:
    """Time when states were opened, and apply's alarms then."""

    at: datetime
    alarms: tuple[AlarmRecord, ...]


@dataclass(slots=True)
class _Part:
    """A range that was compared. `within`: None, if it is the whole table. `moved`: ids of rows that are to be compared again."""

    gap: Gap
    within: KeyRange | None
    moment: _Moment
    rounds: list[Round]
    moved: frozenset[str]

    @property
    def counts(self) -> Counts:
        return sum((one.counts for one in self.rounds), start=Counts())


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """Result of comparing a whole table: the rounds of each range, and the ranges that were left out."""

    compared: Compared
    parts: Sequence[Sequence[Round]]
    kept: Sequence[RangeRecord]


@dataclass(slots=True, kw_only=True)
class Walk:
    """Comparison of one whole table.

    Attributes:
        look: Returns the table's current definition; raises NotVerifiedError if it cannot be compared.
    """

    sides: Sides
    store: StateStore
    name: str
    table: TableId
    look: Callable[[], Compared]
    visit: Visit
    _compared: Compared | None = None
    _definition: str = ""
    _kept: Sequence[RangeRecord] = ()
    _todo: deque[Gap] | None = None
    _moved: list[_Part] = field(default_factory=list)
    _done: list[_Part] = field(default_factory=list)

    def run(self) -> Walked:
        """Compare all ranges.

        Raises:
            NotVerifiedError: Some range could not be compared. Those before it were recorded.
            ReplicatorError: Source, target or state store cannot be asked.
        """
        failures, why = 0, NotVerifiedError(KEPT_CHANGING, AGAIN_SOON)
        while True:
            # A range may need no wait, in which a worker that stops would be noticed.
            self.sides.barriers.check()
            compared = self._look()
            if self._todo is not None and not self._todo and not self._moved:
                return Walked(compared=compared, parts=[part.rounds for part in self._done], kept=self._kept)
            if failures == ROUNDS_MAX:
                raise why
            done = len(self._done)
            try:
                if self.visit.pace is not None and not self._moved:
                    self.visit.pace.rest()
                moment = self._moment()
                with self.sides.open(compared) as states:
                    self._visit(states, compared, moment)
            except AGAIN as error:
                failures, why = failures + 1, given_up(error)
                self.sides.barriers.check()
                self.sides.barriers.wait()
            if len(self._done) > done:
                failures = 0

    def _look(self) -> Compared:
        """Return the table's current definition. If it has changed, everything begins again."""
        compared = self.look()
        if self._compared is None or not compared.is_as(self._compared):
            self._todo, self._kept = None, ()
            self._moved, self._done = [], []
        self._compared = compared
        return compared

    def _moment(self) -> _Moment:
        applied = self.store.applied(self.name).get(self.table)
        return _Moment(self.store.now(), applied.alarms if applied is not None else ())

    def _visit(self, states: States, compared: Compared, moment: _Moment) -> None:
        if self._todo is None:
            self._plan(states, compared)
        assert self._todo is not None, "it is planned"
        for part in list(self._moved):
            self._compare_again(states, part)
        left = self.visit.at_once * self.visit.rows
        while self._todo and left > 0 and (self.visit.pace is None or self.visit.pace.rest_s <= 0):
            # A range that has no rows any more counts, too.
            left -= max(self.visit.rows, self._compare_next(states, moment))

    def _plan(self, states: States, compared: Compared) -> None:
        self._definition = compared.definition(states.range_key)
        known = [
            one for one in self.store.verifications.ranges(self.name, self.table) if one.definition == self._definition
        ]
        self._kept = [one for one in known if self.visit.keeps(one)]
        self._todo = deque(gaps(known, set(self._kept).__contains__))

    def _compare_next(self, states: States, moment: _Moment) -> int:
        """Compare the first remaining range; return its number of rows."""
        assert self._todo, "something is left"
        gap, pace = self._todo[0], self.visit.pace
        if pace is not None:
            pace.begin()
        upto = gap.upto
        if states.range_key:
            bound = states.bound(gap.after, max(self.visit.rows, gap.rows // _GROWTH))
            if bound is not None and (upto is None or sort_key(bound) < sort_key(upto)):
                upto = bound
        within = KeyRange(states.range_key, gap.after, upto) if gap.after is not None or upto is not None else None
        one = self._round(states, None, within)
        if pace is not None:
            pace.took(one.rows_target)
        part = _Part(Gap(gap.after, upto), within, moment, [one], frozenset(one.moved))
        self._todo.popleft()
        if upto != gap.upto:
            self._todo.appendleft(replace(gap, after=upto, rows=gap.rows + one.rows_target))
        if part.moved:
            self._moved.append(part)
        else:
            self._settle(part)
        return one.rows_target

    def _compare_again(self, states: States, part: _Part) -> None:
        """Compare the rows of a range again that had moved: the id of a row has its key, so it is in no other range."""
        one = self._round(states, Ids(part.moved), part.within)
        part.rounds.append(one)
        part.moved = frozenset(one.moved)
        if not part.moved:
            self._moved.remove(part)
            self._settle(part)
        elif len(part.rounds) == ROUNDS_MAX:
            reason = f"{len(part.moved)} of its rows were changed again whenever they were read"
            raise NotVerifiedError(reason, CHANGES_TOO_MUCH)

    def _round(self, states: States, among: Ids | None, within: KeyRange | None) -> Round:
        rounds = [one for part in (*self._done, *self._moved) for one in part.rounds]
        one = states.compare(
            among,
            within,
            described=sum(len(found.described) for found in rounds),
            keys=sum(len(found.row_keys) for found in rounds),
        )
        assert self._compared is not None, "a walk has looked"
        if not self.look().is_as(self._compared):
            raise AgainError("its definition changed meanwhile")
        return one

    def _settle(self, part: _Part) -> None:
        """Record the result of a range."""
        self._done.append(part)
        first = part.rounds[0]
        assert self._compared is not None, "a walk has looked"
        record = RangeRecord(
            definition=self._definition,
            after=part.gap.after,
            upto=part.gap.upto,
            position=first.position,
            rows=first.rows_target,
            proven_at=None if part.counts.total else part.moment.at,
            disproves=part.moment.alarms,
            not_compared=self._compared.not_compared,
        )
        counts = sum((done.counts for done in self._done), start=Counts())
        self.visit.noted(record, part.moment.at, counts)
