"""Progress of apply with one table, in sequence numbers of the journal, and how each event changes it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from replicator.plugins.target import EMPTY_LEDGER


class Course(StrEnum):
    """Work that this process does with the table."""

    APPLYING = "applying"
    SEARCHING = "searching"
    """The table failed: only a snapshot or an incarnation that begins later is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Progress of a table in this process.

    Attributes:
        ledger: The target has applied everything up to this number, as far as this process knows.
        floor: Everything of the incarnation lies above it, so nothing older is read.
        looked_to: While applying: the journal has nothing for the target up to this number.
        searched_to: While searching: no snapshot that replaces the failed rows begins up to this number.
        tried_to: End of the last unit that could not be applied: such a snapshot begins after it.
        whole_at: While a snapshot is under way in the target: the number at which it is complete, if capture has the whole snapshot.
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
        """Return the progress at the start of the process, from the table's record."""
        return cls(ledger=last_applied, looked_to=last_applied)

    @property
    def is_searching(self) -> bool:
        """Return whether this process has given the table up until a snapshot or an incarnation begins."""
        return self.course is Course.SEARCHING

    @property
    def seen_to(self) -> int:
        """Return the number up to which nothing of the journal is left to read."""
        return self.searched_to if self.is_searching else max(self.ledger, self.looked_to)

    @property
    def read_from(self) -> int:
        """Return the number after which the journal is read for the next unit."""
        return max(self.ledger, self.floor)

    def planned(self, read_to: int, *, is_idle: bool) -> Reach:
        """Note that the journal was read up to a number, and whether it held something to do."""
        return replace(self, looked_to=read_to if is_idle else self.ledger)

    def claimed(self, ledger: int) -> Reach:
        """Note the ledger that the target returned."""
        return replace(self, ledger=ledger)

    def applied(self, last: int) -> Reach:
        """Note that a unit was applied or skipped."""
        return replace(self, ledger=last)

    def refused(self, last: int) -> Reach:
        """Note that a unit that ends at `last` could not be applied."""
        return replace(self, tried_to=last)

    def forgotten(self) -> Reach:
        """Note that the target's ledger must be read again."""
        return replace(self, looked_to=min(self.looked_to, self.ledger))

    def failed(self) -> Reach:
        """Stop the table here; a snapshot that replaces the failed rows begins after what was tried."""
        return replace(self, course=Course.SEARCHING, searched_to=max(self.searched_to, self.ledger, self.tried_to))

    def searched(self, number: int) -> Reach:
        """Note that the journal was searched up to a number."""
        return replace(self, searched_to=number)

    def resumed(self) -> Reach:
        """Continue: a snapshot in place replaces what failed."""
        return replace(self, course=Course.APPLYING)

    def begun(self, number: int) -> Reach:
        """Begin an incarnation with the event of this number, in an empty table of the target."""
        return replace(
            self,
            course=Course.APPLYING,
            ledger=EMPTY_LEDGER,
            looked_to=EMPTY_LEDGER,
            floor=number - 1,
            whole_at=None,
        )

    def whole_from(self, number: int | None) -> Reach:
        """Note the number at which the target's table is complete; None while that is not known."""
        return replace(self, whole_at=number)
