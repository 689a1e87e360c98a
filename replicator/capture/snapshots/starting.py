"""A snapshot that is to begin, step by step. Pure: the driver (`beginning.py`) asks the questions and hands in the answers.

    PREPARING ── Described ──▶ LOOKING ── LookedFirst ──▶ MARKING ── Delivered ──▶ SETTLING ── Reads ──▶ READY
                                                                                   ↺ Reads, Looked

Nothing of it is durable: after a crash at any step the table still waits, or the request is still open, and all is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, assert_never

from replicator.model.schema import TableId
from replicator.plugins.source import TableDescription, Visibility


class Step(StrEnum):
    """The step at which a snapshot that is to begin waits."""

    PREPARING = "preparing"
    """The source is prepared for the tables, its catalogue asked, and the tables checked."""
    LOOKING = "looking"
    """It is asked which transactions are running: what they have written the log may lack."""
    MARKING = "marking"
    """A mark is on its way through the log: when it is delivered, so is everything that the catalogue could know of."""
    SETTLING = "settling"
    """Reads must see every transaction delivered so far: none of their rows can be mistaken for a stale one then. And where the log may
    lack changes, every transaction that had begun must have ended: what it wrote before must be in the snapshot."""
    READY = "ready"
    """The snapshots begin."""


class Question(StrEnum):
    """The next question of the driver to the source."""

    NOTHING = "nothing"
    CATALOGUE = "catalogue"
    VISIBILITY = "visibility"
    MARK = "mark"


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A call in the control thread, and which starting snapshots its answer is for."""

    future: Future[Any]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StartingMark:
    """The mark of the snapshots that begin together under this id."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """Snapshots of some tables that are to begin together.

    Attributes:
        id: Tells it apart in this process.
        requests: What is done once they have begun.
        found: What the catalogue says, from LOOKING on.
        asked: Taken before it was asked; None: unknown.
        since: Taken once the tables were published as `found` has them, from MARKING on.
        may_lack: The log may have left out changes made before `since`.
        floor: The number above everything delivered before the mark, from SETTLING on.
        by: Taken once the floor was known, to name the transactions that delay it.
        seen: The last that was taken since.
        is_hidden: Reads may not see a transaction below the floor.
        is_early: A transaction that had begun by `since` has not ended.
        moved: What the catalogue has under another name than it was asked for.
        outdated: Tables of which something is known since it was asked that the answer may not know.
    """

    id: int
    tables: tuple[TableId, ...]
    requests: tuple[int, ...] = ()
    step: Step = Step.PREPARING
    found: Mapping[TableId, TableDescription] = field(default_factory=dict)
    asked: Visibility | None = None
    since: Visibility | None = None
    may_lack: bool = False
    floor: int = 0
    by: Visibility | None = None
    seen: Visibility | None = None
    is_hidden: bool = False
    is_early: bool = False
    moved: Mapping[TableId, TableId] = field(default_factory=dict)
    outdated: frozenset[TableId] = frozenset()

    @property
    def waits_for(self) -> Visibility | None:
        """The visibility by which the transactions that delay it had begun; None if none does."""
        return self.since if self.is_early else self.by if self.is_hidden else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The catalogue's answer. `tables` are those that nothing speaks against; `asked` was taken before it was asked."""

    tables: tuple[TableId, ...]
    found: Mapping[TableId, TableDescription]
    asked: Visibility | None = None
    moved: Mapping[TableId, TableId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedFirst:
    """The visibility of a read that began after it was asked. `may_lack`: some of the tables are not tracked as the catalogue has them."""

    since: Visibility
    may_lack: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The mark was delivered, and this number comes next."""

    next_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Between two transactions: reads that begin now see every delivered transaction below this number."""

    see_below: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The visibility of a read that began after it was asked."""

    seen: Visibility


Answer = Described | LookedFirst | Delivered | Reads | Looked


def advance(starting: Starting, answer: Answer) -> Starting:
    """The next step, once an answer is there. No other answer than the one that the step waits for may come."""
    match starting.step, answer:
        case Step.PREPARING, Described():
            starting = replace(starting, found=answer.found, asked=answer.asked, moved=answer.moved)
            return replace(starting, step=Step.LOOKING, tables=answer.tables)
        case Step.LOOKING, LookedFirst():
            return replace(starting, step=Step.MARKING, since=answer.since, may_lack=answer.may_lack)
        case Step.MARKING, Delivered():
            return replace(starting, step=Step.SETTLING, floor=answer.next_number)
        case Step.SETTLING, Looked():
            return replace(starting, by=starting.by or answer.seen, seen=answer.seen)
        case Step.SETTLING, Reads():
            return _settled(starting, answer)
        case _:
            raise AssertionError(f"{type(answer).__name__} while {starting.step.value}")


def question(starting: Starting) -> Question:
    """Return the next question; asked once for each answer."""
    match starting.step:
        case Step.PREPARING:
            return Question.CATALOGUE
        case Step.LOOKING:
            return Question.VISIBILITY
        case Step.MARKING:
            return Question.MARK
        case Step.SETTLING:
            wants_name = starting.is_hidden and starting.by is None
            return Question.VISIBILITY if starting.is_early or wants_name else Question.NOTHING
        case Step.READY:
            return Question.NOTHING
        case _:
            assert_never(starting.step)


def _settled(starting: Starting, reads: Reads) -> Starting:
    assert starting.since is not None, "it has looked"
    is_hidden = reads.see_below < starting.floor
    is_early = starting.may_lack and not (starting.seen is not None and starting.seen.is_beyond(starting.since))
    return replace(
        starting,
        step=Step.SETTLING if is_hidden or is_early else Step.READY,
        is_hidden=is_hidden,
        is_early=is_early,
    )
