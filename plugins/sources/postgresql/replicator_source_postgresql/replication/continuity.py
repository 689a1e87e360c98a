"""Check that the log continues at the recorded position: the same server, the same history, a slot that nobody advanced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from replicator.model.errors import LogGapError, OffsetExpiredError
from replicator_source_postgresql.catalogue.discovery import Connection
from replicator_source_postgresql.lsn import lsn_from_text, lsn_to_text
from replicator_source_postgresql.position import Position
from replicator_source_postgresql.replication.slot import SlotState, slot_active_error

RESTART_ACTION: Final = (
    "`replicator snapshot {name} --changed-only` starts at a new log position, and reads only the rows again that differ. "
    "With --restart, it takes new snapshots of all tables instead."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The server's answer to IDENTIFY_SYSTEM."""

    identifier: str
    timeline: int


def identify_system(replication: Connection) -> System:
    """Ask a replication connection which server this is."""
    row = replication.execute(b"IDENTIFY_SYSTEM").fetchone()
    assert row is not None
    return System(identifier=row[0], timeline=int(row[1]))


def read_timeline_history(replication: Connection, timeline: int) -> dict[int, int]:
    """Read the position at which each timeline that leads to this one ended, by its number."""
    if timeline == 1:
        return {}
    row = replication.execute(f"TIMELINE_HISTORY {timeline}".encode()).fetchone()
    assert row is not None
    content = row[1]
    return parse_timeline_history(content.decode() if isinstance(content, bytes) else content)


def parse_timeline_history(text: str) -> dict[int, int]:
    """Read a timeline history file: lines of timeline, switch point, reason."""
    switches = {}
    for line in text.splitlines():
        fields = line.split("#", 1)[0].split()
        if fields:
            timeline, switch, *_ = fields
            switches[int(timeline)] = lsn_from_text(switch)
    return switches


def verify_joins(
    slot: SlotState | None,
    slot_name: str,
    database: str,
    after: Position,
    system: System,
    history: dict[int, int],
    log_end: int | None,
    replicator: str,
) -> None:
    """Verify that the log continues exactly after `after`: same server, same history, a slot that was never moved beyond it.

    `log_end`: the position up to which the server's log is on disk; None on a standby.

    Raises:
        LogGapError: It does not.
        OffsetExpiredError: The slot has lost its log.
        TransientError: Another process reads the slot.
    """
    if fault := _gap(slot, slot_name, database, after, system, history, log_end):
        raise _gap_error(fault, replicator)
    assert slot is not None
    if slot.lost is not None:
        raise OffsetExpiredError(
            f"The replication slot {slot_name} has lost its log ({slot.lost}).",
            code="slot_lost",
            action=RESTART_ACTION.format(name=replicator),
        )
    if slot.active_pid is not None:
        raise slot_active_error(slot_name, slot.active_pid)


def verify_not_moved(slot: SlotState | None, slot_name: str, after: Position, replicator: str) -> None:
    """Check that a slot that is being read was not recreated, ahead of `after`, since `verify_joins`.

    Raises:
        LogGapError: It was.
    """
    if slot is not None and (fault := _ahead(slot, slot_name, after)):
        raise _gap_error(fault, replicator)


def _gap_error(fault: tuple[str, str], replicator: str) -> LogGapError:
    code, message = fault
    return LogGapError(message, code=code, action=RESTART_ACTION.format(name=replicator))


def _gap(
    slot: SlotState | None,
    slot_name: str,
    database: str,
    after: Position,
    system: System,
    history: dict[int, int],
    log_end: int | None,
) -> tuple[str, str] | None:
    if system.identifier != after.system:
        return (
            "other_system",
            f"The server's system identifier is {system.identifier}, but the recorded position belongs to {after.system}.",
        )
    if system.timeline != after.timeline:
        switch = history.get(after.timeline)
        if switch is None:
            return (
                "other_timeline",
                f"The server is on timeline {system.timeline}, which does not descend from the recorded timeline {after.timeline}.",
            )
        if switch < after.lsn:
            positions = f"at {lsn_to_text(switch)}, before the recorded position {lsn_to_text(after.lsn)}"
            return "timeline_behind", f"The server switched to timeline {system.timeline} {positions}."
    if log_end is not None and log_end < after.lsn:
        positions = f"ends at {lsn_to_text(log_end)}, before the recorded position {lsn_to_text(after.lsn)}"
        return "log_behind", f"The server's log {positions}: it was restored from an older state."
    if slot is None:
        return (
            "slot_missing",
            f"The replication slot {slot_name} does not exist; changes since {lsn_to_text(after.lsn)} may be lost.",
        )
    if fault := slot.unusable_in(database):
        return "slot_replaced", f"The replication slot {slot_name} {fault}."
    return _ahead(slot, slot_name, after)


def _ahead(slot: SlotState, slot_name: str, after: Position) -> tuple[str, str] | None:
    if slot.lost is None and slot.confirmed_flush is not None and slot.confirmed_flush > after.lsn:
        positions = (
            f"is at {lsn_to_text(slot.confirmed_flush)}, ahead of the recorded position {lsn_to_text(after.lsn)}"
        )
        return (
            "slot_ahead",
            (
                f"The replication slot {slot_name} {positions}: it was recreated or advanced by somebody else, or the state store "
                "was restored from a backup."
            ),
        )
    return None
