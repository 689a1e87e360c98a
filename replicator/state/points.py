"""Freshness of each replicator, minute by minute, for a day: the dashboard draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, select

from replicator.state.database.engine import Database, upsert
from replicator.state.tables import POINTS, REPLICATORS

KEPT: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Freshness of a replicator at a moment.

    Attributes:
        worst_s: Freshness of its least fresh table, in seconds; None if it is unknown.
        late: Number of its tables that miss their objective.
    """

    worst_s: float | None
    late: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Freshness in one minute. `at`: its beginning."""

    at: datetime
    freshness: Freshness


class Points:
    """The part of the state store that keeps these points. Errors as those of `StateStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, found: Mapping[str, Freshness]) -> None:
        """Record the freshness of these replicators now, and delete points that are older than a day.

        Of several records of a minute the last one counts. Replicators that were deleted meanwhile are left out.
        """
        with self._database.write() as connection:
            now = self._database.now(connection)
            # Held until the commit, so that none is deleted in between.
            there = connection.scalars(
                select(REPLICATORS.c.name)
                .where(REPLICATORS.c.name.in_(found))
                .order_by(REPLICATORS.c.name)
                .with_for_update(read=True, key_share=True)
            )
            rows = [
                {
                    "replicator": name,
                    "minute": now.replace(second=0, microsecond=0),
                    "freshness_ms": None if (worst := found[name].worst_s) is None else round(worst * 1000),
                    "late": found[name].late,
                }
                for name in there
            ]
            upsert(connection, POINTS, rows)
            connection.execute(delete(POINTS).where(POINTS.c.minute < now - KEPT))

    def of(self, name: str, since: datetime) -> Sequence[Point]:
        """Return the points of a replicator, the oldest first."""
        query = select(POINTS).where(POINTS.c.replicator == name, POINTS.c.minute >= since).order_by(POINTS.c.minute)
        with self._database.read() as connection:
            return [
                Point(
                    at=row.minute,
                    freshness=Freshness(
                        worst_s=None if row.freshness_ms is None else row.freshness_ms / 1000, late=row.late
                    ),
                )
                for row in connection.execute(query)
            ]
