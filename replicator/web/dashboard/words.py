"""Words of the pages for a status: the tone of a state, numbers and times for people, and what needs attention. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from replicator.model.documents.status import ReplicatorState, ReplicatorStatus, TableState, TableStatus
from replicator.model.documents.verdict import Result
from replicator.model.errors import with_names
from replicator.service.status import refused as refused_status
from replicator.service.status.snapshots import counted, duration, share

UNKNOWN: Final = "\N{EN DASH}"
_STEP: Final = 1024
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0
_LOW_SHARE: Final = 0.25
"""Share of the source's log: a warning appears below it, as the alert of `examples/monitoring/` does."""


class Tone(StrEnum):
    """Appearance of a state. Each tone has a colour and a shape of its own, and its text stands next to it."""

    GOOD = "good"
    BUSY = "busy"
    WARNING = "warning"
    BAD = "bad"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A fact for the operator, and the next step."""

    tone: Tone
    subject: str
    message: str
    code: str | None = None
    action: str | None = None
    at: datetime | None = None
    table: str | None = None


_OF_REPLICATOR: Final[Mapping[ReplicatorState, Tone]] = {
    ReplicatorState.STARTING: Tone.BUSY,
    ReplicatorState.RUNNING: Tone.GOOD,
    ReplicatorState.RETRYING: Tone.WARNING,
    ReplicatorState.PAUSED: Tone.OFF,
    ReplicatorState.FAILED: Tone.BAD,
    ReplicatorState.NO_WORKER: Tone.BAD,
    ReplicatorState.DELETING: Tone.OFF,
}
_OF_TABLE: Final[Mapping[TableState, Tone]] = {
    TableState.PENDING: Tone.OFF,
    TableState.SNAPSHOT: Tone.BUSY,
    TableState.STREAMING: Tone.GOOD,
    TableState.FAILED: Tone.BAD,
    TableState.DROPPED: Tone.BAD,
}


def tone_of(one: ReplicatorStatus) -> Tone:
    """Return the tone of a replicator: that of its state, or worse if a table or the source is in trouble."""
    tone = _OF_REPLICATOR[one.state]
    is_calm = tone in (Tone.GOOD, Tone.BUSY)
    return Tone.WARNING if is_calm and any(remark.tone is not Tone.BUSY for remark in remarks(one)) else tone


def tone_of_table(row: TableStatus) -> Tone:
    """Return the tone of a table."""
    tone = _OF_TABLE[row.state]
    is_late = row.is_objective_met is False
    waits = row.waiting is not None and row.waiting.code is not None
    return Tone.WARNING if tone in (Tone.GOOD, Tone.BUSY) and (row.alarms or is_late or waits) else tone


def worst_objective(one: ReplicatorStatus) -> tuple[int, int]:
    """Return the number of tables that meet their objective, and of those that have one that counts now."""
    known = [row.is_objective_met for row in one.tables if row.is_objective_met is not None]
    return sum(known), len(known)


def remarks(one: ReplicatorStatus) -> Sequence[Remark]:
    """Return what needs attention, the worst first, each with its next step if there is one."""
    found = [*_of_all(one), *(remark for row in one.tables for remark in of_table(one.name, row))]
    order = list(reversed(Tone))
    return sorted(found, key=lambda remark: (remark.tone is not Tone.BAD, order.index(remark.tone)))


def _of_all(one: ReplicatorStatus) -> Iterator[Remark]:
    if one.error is not None:
        yield Remark(
            tone=Tone.BAD,
            subject="The replicator failed",
            message=one.error.message,
            code=one.error.code,
            action=_named(one.error.action, one.name),
            at=one.error.at,
        )
    if one.state is ReplicatorState.NO_WORKER:
        yield Remark(
            tone=Tone.BAD,
            subject="No worker runs it",
            message="It should run, but no process does. Nothing is captured or applied.",
            action="On a host of the installation, run: replicator serve. If one runs, see why it does not take it: replicator workers",
        )
    if one.retry is not None:
        yield Remark(
            tone=Tone.WARNING,
            subject=f"The process of {one.retry.role} is retried",
            message=one.retry.message,
            code=one.retry.code,
        )
    if one.source.is_alive is False:
        yield Remark(
            tone=Tone.BAD,
            subject="Nothing arrives from the source",
            message="Its log told nothing within three heartbeats.",
            action="See whether the source is up and can be reached.",
        )
    if one.source.headroom is not None and one.source.headroom.share < _LOW_SHARE:
        yield Remark(
            tone=Tone.WARNING,
            subject="The source is about to give up log that is still needed",
            message=f"{percent(one.source.headroom.share)} of its limit is left.",
            action="Let the replicator run, or raise the limit in the source.",
        )
    for refused in one.refused:
        yield Remark(
            tone=Tone.WARNING,
            subject=refused_status.WORDS[refused.of].capitalize(),
            message=refused.message,
            code=refused.code,
            action=refused.action,
            at=refused.at,
        )
    for finding in one.source.findings:
        yield Remark(
            tone=Tone.WARNING,
            subject="The next start would be refused",
            message=finding.message,
            code=finding.code,
            action=_named(finding.action, one.name),
        )
    for line in one.source.waiting_for:
        yield Remark(tone=Tone.BUSY, subject="Waits for the source", message=line)


def of_table(name: str, row: TableStatus) -> Iterator[Remark]:
    """Yield what needs attention of a table."""
    table = row.table
    if row.error is not None:
        yield Remark(
            tone=Tone.BAD,
            subject="Dropped in the source" if row.state is TableState.DROPPED else "The table failed",
            message=row.error.message,
            code=row.error.code,
            action=_named(row.error.action, name, table),
            at=row.error.at,
            table=table,
        )
    for alarm in row.alarms:
        yield Remark(
            tone=Tone.BAD,
            subject="The target may differ",
            message=alarm.message,
            code=alarm.code,
            action=_named(alarm.action, name, table),
            at=alarm.at,
            table=table,
        )
    if row.is_objective_met is False and row.error is None:
        yield Remark(
            tone=Tone.WARNING,
            subject="Later than its objective",
            message=f"Freshness is {age(row.freshness_s)}; the objective is {age(row.freshness_objective_s)}.",
            table=table,
        )
    if row.waiting is not None and row.waiting.code is not None:
        yield Remark(
            tone=Tone.WARNING,
            subject=f"Next attempt at {moment(row.waiting.until)}",
            message=row.waiting.message or "",
            code=row.waiting.code,
            table=table,
        )
    if row.verify.result is Result.NOT_VERIFIED:
        yield Remark(
            tone=Tone.WARNING,
            subject="Could not be verified",
            message=row.verify.reason or "",
            at=row.verify.verified_at,
            table=table,
        )
    if row.upkeep is not None:
        yield Remark(
            tone=Tone.WARNING,
            subject=f"Upkeep failed; next attempt at {moment(row.upkeep.retry_at)}",
            message=row.upkeep.last_error.message,
            code=row.upkeep.last_error.code,
            action=_named(row.upkeep.last_error.action, name, table),
            at=row.upkeep.last_error.at,
            table=table,
        )


def _named(action: str | None, name: str, table: str | None = None) -> str | None:
    return None if action is None else with_names(action, name, table)


def age(seconds: float | None) -> str:
    """Return a freshness, or another time span, for people."""
    if seconds is None:
        return UNKNOWN
    if seconds < 10:  # noqa: PLR2004 - below, a tenth of a second says something
        return f"{seconds:.1f} s"
    return f"{seconds / _DAY_S:.1f} days" if seconds >= 2 * _DAY_S else duration(seconds)


def moment(at: datetime | None) -> str:
    """Return a moment, in UTC."""
    return UNKNOWN if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(count: int | None) -> str:
    """Return a number of bytes for people."""
    if count is None:
        return UNKNOWN
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < _STEP:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _STEP
    return f"{value:.1f} TiB"


def number(count: int | None) -> str:
    """Return a number with its thousands apart."""
    return UNKNOWN if count is None else f"{count:,}"


def percent(part: float | None) -> str:
    """Return a share of 1 in percent."""
    return UNKNOWN if part is None else f"{round(part * 100)} %"


def state(text: str) -> str:
    """Return a state as people write it."""
    return text.replace("_", " ")


def tables_in_words(one: ReplicatorStatus) -> str:
    """Return a phrase such as `12 tables: 1 failed, 2 snapshot, 9 streaming`, the worst first."""
    order = (TableState.FAILED, TableState.DROPPED, TableState.SNAPSHOT, TableState.PENDING, TableState.STREAMING)
    counts = {found: sum(1 for row in one.tables if row.state is found) for found in order}
    parts = ", ".join(f"{count:,} {found.value}" for found, count in counts.items() if count)
    return f"{counted(len(one.tables), 'table')}: {parts}" if parts else "no tables yet"


def done_share(row: TableStatus) -> float | None:
    """Return the share of a table's snapshot that the target has, while it runs."""
    return share(row.snapshot) if row.snapshot is not None and row.state is TableState.SNAPSHOT else None
