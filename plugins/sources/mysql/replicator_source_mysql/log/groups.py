"""The group of events that is being read, and its parts that were rolled back.

Most of what is rolled back is so in the pull that has it, and is cut out of it. Rows that an earlier pull delivered cannot
be taken back here: the rest of the group is then only looked through for what else is rolled back, and the host drops
what it has not sealed and opens the log again (`LogBatch.is_rolled_back`). The second reading knows what to leave out.
So a transaction of any size costs a second reading only if it is of that kind, and nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Final

from replicator.model.schema import TableId
from replicator.plugins import get_logger
from replicator_source_mysql.events import Begin
from replicator_source_mysql.log.pulls import Pull, Transaction
from replicator_source_mysql.log.undoing import END, Savepoints, Undone, released_name, set_name, target_name
from replicator_source_mysql.versions import HeldRows, Version

_log = get_logger(__name__)

_REPLACEMENT: Final = "\ufffd"

UndoneGroups = MutableMapping[str, Undone]
"""Rolled back parts of groups that have to be read twice, by their ids."""


@dataclass(slots=True)
class Group:
    """The group of events that is being read.

    Attributes:
        begin: Its first event. Without GTIDs its `gtid` is the position of that event's end, `binlog.000003:1234`.
        id: The transaction's id.
        started: The end of its first event: offsets in the group are counted from here.
        first_slot: Slot of its first event in the current pull.
        is_open: A BEGIN came, so that it ends with a commit; without, its first statement ends it.
        is_skipped: It was durable here before (see `Position.restart`).
        transaction: Its transaction; None until it has rows or DDL events of ours.
        is_xa: It is the first half of an XA transaction, whose changes are held back.
        held: Their rows events.
        held_bytes: Their size.
        unlogged: Tables that a prepared XA transaction may have changed without a trace.
        delivered: Slots that earlier pulls delivered.
        touched: Tables of which earlier pulls delivered rows.
        savepoints: Its savepoints; None until one was set.
        known: Its parts that are rolled back; set where it is read for the second time.
        is_lost: Rows that were delivered were rolled back: the rest is only looked through.
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
    delivered: int = 0
    touched: set[TableId] = field(default_factory=set)
    savepoints: Savepoints | None = None
    known: Undone | None = None
    is_lost: bool = False

    @property
    def is_plain(self) -> bool:
        """Return whether its rows go straight into the pull."""
        return not (self.is_skipped or self.is_xa or self.is_lost or self.known is not None)

    def ensure_transaction(self) -> Transaction:
        """The transaction as a pull names it, made with its first row or DDL event."""
        if self.transaction is None:
            us = self.begin.committed_us
            moment = us if us is not None else self.timestamp * 1_000_000
            self.transaction = Transaction(self.id, moment)
        return self.transaction

    def hold(self, version: Version, kind: int, body: memoryview) -> None:
        """Keep a rows event of an XA transaction; not of a table that needs a new snapshot anyway."""
        if version.schema.table not in self.unlogged:
            self.held.append((version, kind, bytes(body)))
            self.held_bytes += len(body)

    def hand_out(self, pull: Pull) -> None:
        """Count the rows that this pull delivers, as it ends inside the group."""
        self.delivered += pull.slots - self.first_slot
        self.touched |= pull.tables(self.first_slot)
        self.first_slot = 0

    def is_undone(self, offset: int) -> bool:
        """Return whether the rows event that ends here was rolled back."""
        return self.is_lost or (self.known is not None and self.known.has(offset - self.started))


@dataclass(slots=True, kw_only=True)
class Undoing:
    """Takes back what groups roll back.

    Attributes:
        groups: Groups that have to be read twice; kept by the source while its log is opened again.
        fold: Returns one spelling of all names that are the same to the server; called for those that are not ASCII.
    """

    groups: UndoneGroups
    fold: Callable[[str], str]
    _passed: list[str] = field(default_factory=list)

    def begin(self, group: Group) -> None:
        """Begin a group, which may have been read before."""
        known = self.groups.get(group.id)
        if known is not None and not group.is_skipped:
            group.known = known
            self._passed.append(group.id)

    def acknowledge(self) -> None:
        """Forget the groups that were delivered: they are durable."""
        for id_ in self._passed:
            self.groups.pop(id_, None)
        self._passed.clear()

    def take(self, group: Group, text: str, offset: int, pull: Pull) -> bool:
        """Take a statement about savepoints; False: it is none."""
        if (name := set_name(text)) is not None:
            if group.savepoints is None:
                group.savepoints = Savepoints()
            slot = len(group.held) if group.is_xa else group.delivered + pull.slots - group.first_slot
            group.savepoints.set(self._folded(name), slot, offset - group.started)
        elif (name := released_name(text)) is not None:
            if group.savepoints is not None:
                group.savepoints.release(self._folded(name))
        elif (name := target_name(text)) is not None:
            self._roll_back_to(group, name, offset - group.started, pull)
        else:
            return False
        return True

    def roll_back(self, group: Group, pull: Pull) -> None:
        """Roll back the whole group."""
        group.held.clear()
        if group.delivered and group.known is None:
            group.is_lost = True
            group.savepoints = group.savepoints or Savepoints()
            group.savepoints.undone.add(0, END)
        else:
            pull.cut(group.first_slot)

    def end(self, group: Group, pull: Pull) -> bool:
        """End the group; False: it has to be read again, and the pull delivers nothing."""
        if not group.is_lost:
            return True
        assert group.savepoints is not None
        self.groups[group.id] = group.savepoints.undone
        pull.is_rolled_back = True
        return False

    def _roll_back_to(self, group: Group, name: str, offset: int, pull: Pull) -> None:
        slot = None
        if group.savepoints is not None and _REPLACEMENT not in name:
            slot = group.savepoints.roll_back_to(self._folded(name), offset)
        if group.is_xa and slot is not None:
            del group.held[slot:]
            group.held_bytes = sum(len(body) for *_, body in group.held)
        elif slot is None or (slot < group.delivered and group.known is not None):
            self._doubt(group, pull)
        elif slot >= group.delivered:
            pull.cut(group.first_slot + slot - group.delivered)
        else:
            # What the pull has of it is dropped, too.
            pull.cut(group.first_slot)
            group.is_lost = True

    def _doubt(self, group: Group, pull: Pull) -> None:
        """Take new snapshots of the tables that may be concerned: the parts that were rolled back are unknown."""
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
            _log.warning("unknown_savepoint", table=str(table), transaction=group.id, then="a new snapshot")

    def _folded(self, name: str) -> str:
        return name.upper() if name.isascii() else self.fold(name)
