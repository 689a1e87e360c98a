"""The group of events that is being read, and what of it was rolled back.

Most of what is rolled back is so in the pull that has it, and is cut out of it. What an earlier pull handed out cannot
be taken back here: the rest of the group is then only looked through for what else is rolled back, and the host drops
what it has not sealed and opens the log again (`LogBatch.is_rolled_back`). The second reading knows what to leave out.
So a transaction of any size costs a second reading only if it is of that kind, and nothing otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Final

from replicator.model.schema import TableId
from replicator_source_mysql.events import Begin
from replicator_source_mysql.pulls import Pull, Transaction
from replicator_source_mysql.undoing import END, Savepoints, Undone, released_name, set_name, target_name
from replicator_source_mysql.xa import HeldRows

log = logging.getLogger(__name__)

_REPLACEMENT: Final = "\ufffd"

UndoneGroups = MutableMapping[str, Undone]
"""What was rolled back of groups that have to be read twice, by their ids."""


@dataclass(slots=True)
class Group:
    """The group of events that is being read.

    Attributes:
        begin: Its first event. Without GTIDs its `gtid` is where that ended, `binlog.000003:1234`.
        id: The transaction's id.
        started: Where its first event ended: places in the group are counted from here.
        first_slot: In the pull at hand, the slot of its first event.
        is_open: A BEGIN came, so that it ends with a commit; without, its first statement ends it.
        is_skipped: It was durable here before (see `Position.restart`).
        transaction: Once it has rows or DDL events of ours.
        is_xa: It is the first half of an XA transaction, whose changes are held back.
        held: Their rows events.
        held_bytes: Their size.
        unlogged: Tables that a prepared XA transaction may have changed without a trace.
        handed_out: Slots that earlier pulls handed out.
        touched: Tables of which earlier pulls handed out rows.
        savepoints: Once one was set.
        known: What is rolled back of it, where it is read for the second time.
        is_lost: Rows that were handed out were rolled back: the rest is only looked through.
    """

    begin: Begin
    id: str
    timestamp: int
    server_id: int
    started: int
    first_slot: int
    is_open: bool
    is_skipped: bool = False
    transaction: Transaction | None = None
    is_xa: bool = False
    held: HeldRows = field(default_factory=list)
    held_bytes: int = 0
    unlogged: frozenset[TableId] = frozenset()
    handed_out: int = 0
    touched: set[TableId] = field(default_factory=set)
    savepoints: Savepoints | None = None
    known: Undone | None = None
    is_lost: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether its rows go straight into the pull."""
        return not (self.is_skipped or self.is_xa or self.is_lost or self.known is not None)

    def hand_out(self, pull: Pull) -> None:
        """The pull ends inside the group."""
        self.handed_out += pull.slots - self.first_slot
        self.touched |= pull.tables(self.first_slot)
        self.first_slot = 0

    def is_undone(self, place: int) -> bool:
        """Whether the rows event that ends here counts for nothing."""
        return self.is_lost or (self.known is not None and self.known.has(place - self.started))


@dataclass(slots=True, kw_only=True)
class Undoing:
    """Takes back what groups roll back.

    Attributes:
        groups: Those that have to be read twice; kept by the source while its log is opened again.
        fold: One spelling of all names that are the same to the server; asked for those that are not ASCII.
    """

    groups: UndoneGroups
    fold: Callable[[str], str]
    _passed: list[str] = field(default_factory=list)

    def begin(self, group: Group) -> None:
        """A group begins: it may have been read before."""
        known = self.groups.get(group.id)
        if known is not None and not group.is_skipped:
            group.known = known
            known.rewind()
            self._passed.append(group.id)

    def acknowledge(self) -> None:
        """Everything that was handed out is durable."""
        for id_ in self._passed:
            self.groups.pop(id_, None)
        self._passed.clear()

    def take(self, group: Group, text: str, place: int, pull: Pull) -> bool:
        """Take a statement about savepoints; False: it is none."""
        if (name := set_name(text)) is not None:
            if group.savepoints is None:
                group.savepoints = Savepoints()
            slot = len(group.held) if group.is_xa else group.handed_out + pull.slots - group.first_slot
            group.savepoints.set(self._folded(name), slot, place - group.started)
        elif (name := released_name(text)) is not None:
            if group.savepoints is not None:
                group.savepoints.release(self._folded(name))
        elif (name := target_name(text)) is not None:
            self._roll_back_to(group, name, place - group.started, pull)
        else:
            return False
        return True

    def roll_back(self, group: Group, pull: Pull) -> None:
        """The whole group is rolled back."""
        group.held.clear()
        if group.handed_out and group.known is None:
            group.is_lost = True
            group.savepoints = group.savepoints or Savepoints()
            group.savepoints.undone.add(0, END)
        else:
            pull.cut(group.first_slot)

    def end(self, group: Group, pull: Pull) -> bool:
        """The group ends; False: it has to be read again, and the pull hands out nothing."""
        if not group.is_lost:
            return True
        assert group.savepoints is not None
        self.groups[group.id] = group.savepoints.undone
        pull.is_rolled_back = True
        return False

    def _roll_back_to(self, group: Group, name: str, place: int, pull: Pull) -> None:
        slot = None
        if group.savepoints is not None and _REPLACEMENT not in name:
            slot = group.savepoints.roll_back_to(self._folded(name), place)
        if group.is_xa and slot is not None:
            del group.held[slot:]
            group.held_bytes = sum(len(body) for *_, body in group.held)
        elif slot is None or (slot < group.handed_out and group.known is not None):
            self._doubt(group, pull)
        elif slot >= group.handed_out:
            pull.cut(group.first_slot + slot - group.handed_out)
        else:
            # What the pull has of it goes, too.
            pull.cut(group.first_slot)
            group.is_lost = True

    def _doubt(self, group: Group, pull: Pull) -> None:
        """What was rolled back cannot be told: the tables that may be concerned are copied again."""
        if group.is_lost:
            return  # it is said in the second reading
        if group.is_xa:
            tables = {version.schema.table for version, *_ in group.held}
            group.unlogged |= tables
        else:
            tables = group.touched | pull.tables(group.first_slot)
            if tables and group.transaction is not None:
                pull.unlogged(group.transaction, tables)
        for table in sorted(tables, key=str):
            log.warning(
                "The transaction %s rolls back to an unknown savepoint: a new snapshot of %s is taken.",
                group.id,
                table,
            )

    def _folded(self, name: str) -> str:
        return name.upper() if name.isascii() else self.fold(name)
