"""`status --check`: objectives that replicators do not meet. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from replicator.model.documents.status import ReplicatorState, ReplicatorStatus, TableState, TableStatus

EXIT_BREACHED: Final = 4


class BreachKind(StrEnum):
    """Reason why a replicator does not pass the check."""

    NO_WORKER = "no_worker"
    FAILED = "failed"
    TABLE_FAILED = "table_failed"
    STALE = "stale"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A failed check. `table` None: it concerns the whole replicator."""

    replicator: str
    kind: BreachKind
    message: str
    table: str | None = None


def meets_objective(
    objective: timedelta | None, freshness_s: float | None, *, has_failed: bool, was_whole: bool
) -> bool | None:
    """Return whether a table meets its objective; None if it has none, or if the target never had the whole table."""
    if objective is None or not was_whole:
        return None
    return not has_failed and freshness_s is not None and freshness_s <= objective.total_seconds()


def breaches(document: ReplicatorStatus) -> Sequence[Breach]:
    """Return the failed checks: no worker, a failed replicator or table, with or without objective, and an objective that is not met."""
    return [*_of_replicator(document), *(b for table in document.tables for b in _of_table(document.name, table))]


def _of_replicator(document: ReplicatorStatus) -> Iterator[Breach]:
    name = document.name
    if document.state is ReplicatorState.FAILED:
        why = f" [{document.error.code}]" if document.error else ""
        yield Breach(replicator=name, kind=BreachKind.FAILED, message=f"{name} has failed{why}.")
    elif document.worker is None:
        yield Breach(replicator=name, kind=BreachKind.NO_WORKER, message=f"No worker runs {name}.")


def _of_table(name: str, table: TableStatus) -> Iterator[Breach]:
    if table.state in (TableState.FAILED, TableState.DROPPED):
        why = f" [{table.error.code}]" if table.error else ""
        message = f"{name}: {table.table} has failed{why}."
        if table.state is TableState.DROPPED:
            message = f"{name}: {table.table} was dropped in the source{why}."
        yield Breach(replicator=name, kind=BreachKind.TABLE_FAILED, table=table.table, message=message)
    elif table.is_objective_met is False:
        assert table.freshness_objective_s is not None, "an objective is not met"
        from replicator.config import (
            format_duration,  # the status, which asks for `meets_objective`, does without the models
        )

        objective = format_duration(timedelta(seconds=table.freshness_objective_s))
        if table.freshness_s is None:
            kind, found = BreachKind.UNKNOWN, "its freshness is unknown"
        else:
            kind, found = BreachKind.STALE, f"it is {table.freshness_s:.1f} s behind"
        message = f"{name}: {table.table} does not meet its objective ({objective}): {found}."
        yield Breach(replicator=name, kind=kind, table=table.table, message=message)
