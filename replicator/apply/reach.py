"""How far apply is with one table, in sequence numbers of the journal, and how each event changes that. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from replicator.plugins.target import EMPTY_LEDGER


class Course(StrEnum):
    """What this process does with the table."""

    APPLYING = "applying"
    SEARCHING = "searching"
    """It failed: only a snapshot or an incarnation that begins later is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far a table is in this process.

    Attributes:
        ledger: Up to here the target has applied everything, as far as this process knows.
        floor: Everything of the incarnation lies above; spares reading what it superseded.
        looked_to: While applying: up to here the journal has nothing for the target.
        searched_to: While searching: up to here no snapshot begins that makes up for what failed.
        tried_to: Where the last unit ends that could not be applied: such a snapshot begins behind it.
        whole_at: While a snapshot is under way in the target: the number by which its table is whole, if capture says that the snapshot is.
    """

    course: Course = Course.APPLYING
    ledger: int
    looked_to: int
    floor: int = EMPTY_LEDGER
    searched_to: int = EMPTY_LEDGER
    tried_to: int = EMPTY_LEDGER
    whole_at: int | None = None

    @classmethod
    def begin(cls, last_applied: int) -> Reach:
        """At the start of the process, from the table's record."""
        return cls(ledger=last_applied, looked_to=last_applied)

    @property
    def is_searching(self) -> bool:
        """Whether this process has given the table up until a snapshot or an incarnation begins."""
        return self.course is Course.SEARCHING

    @property
    def seen_to(self) -> int:
        """The number up to which nothing of the journal is left to look at."""
        return self.searched_to if self.is_searching else max(self.ledger, self.looked_to)

    @property
    def read_from(self) -> int:
        """Behind which number the journal is read for the next unit."""
        return max(self.ledger, self.floor)

    def planned(self, read_to: int, *, is_idle: bool) -> Reach:
        """The journal was read up to a number, and held something to do or not."""
        return replace(self, looked_to=read_to if is_idle else self.ledger)

    def claimed(self, ledger: int) -> Reach:
        """The target said what its ledger is."""
        return replace(self, ledger=ledger)

    def applied(self, last: int) -> Reach:
        """A unit was applied, or passed by."""
        return replace(self, ledger=last)

    def refused(self, last: int) -> Reach:
        """A unit that ends at `last` could not be applied."""
        return replace(self, tried_to=last)

    def forgotten(self) -> Reach:
        """What the target holds is to be asked again."""
        return replace(self, looked_to=min(self.looked_to, self.ledger))

    def failed(self) -> Reach:
        """The table stops here; what makes up for it lies behind what was tried."""
        return replace(self, course=Course.SEARCHING, searched_to=max(self.searched_to, self.ledger, self.tried_to))

    def searched(self, number: int) -> Reach:
        """The journal was searched up to a number."""
        return replace(self, searched_to=number)

    def resumed(self) -> Reach:
        """A snapshot in place makes up for what failed."""
        return replace(self, course=Course.APPLYING)

    def begun(self, number: int) -> Reach:
        """An incarnation begins with the event of this number, in an empty table of the target."""
        return replace(
            self,
            course=Course.APPLYING,
            ledger=EMPTY_LEDGER,
            looked_to=EMPTY_LEDGER,
            floor=number - 1,
            whole_at=None,
        )

    def whole_from(self, number: int | None) -> Reach:
        """The number by which the target's table is whole; None while that is not known."""
        return replace(self, whole_at=number)
