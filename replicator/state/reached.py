"""Time of the source up to which everything is in the target: the figure from which all freshness is computed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ScalarSelect, Table, exists, select

from replicator.state.database.engine import Database
from replicator.state.tables import APPLIED, DROPPED, SEGMENT_EVENTS, SEGMENT_FILES, SEGMENTS


class Reached:
    """The part of the state store that computes it. Errors as those of `StateStore`.

    A table that has applied everything in the journal has reached what the journal has reached, which moves on while the source is idle.
    A table with changes left has reached what the journal had reached before the first segment with one of them. Both are durable:
    a pause or a restart changes neither.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, name: str) -> Mapping[str, datetime | None]:
        """Return, by table that apply knows, the time before which everything committed is in the target; None if unknown.

        Valid only for a table whose changes are captured, and of which the target has the whole: the caller checks that.
        Unknown where some of the remaining changes were dropped from the journal.

        Cost: some look-ups in the journal's index per table, in one statement.
        """
        segment = SEGMENTS.c
        newest = select(segment.source_time).where(segment.replicator == name).order_by(segment.id.desc()).limit(1)
        left = select(
            APPLIED.c.table_name,
            _lowest_left(SEGMENT_FILES, SEGMENT_FILES.c.last_num).label("of_files"),
            _lowest_left(SEGMENT_EVENTS, SEGMENT_EVENTS.c.sequence_num).label("of_events"),
            _is_some_dropped().label("is_some_dropped"),
        ).where(APPLIED.c.replicator == name)
        earlier = select(segment.earlier_time).where(segment.replicator == name)
        found: dict[str, datetime | None] = {}
        with self._database.read() as connection:
            # First up to when the journal is complete, then what is left of it: so none is called fresher than it is.
            to = connection.scalar(newest)
            of_segments: dict[int, datetime | None] = {}
            for row in connection.execute(left).all():
                lowest = min((id_ for id_ in (row.of_files, row.of_events) if id_ is not None), default=None)
                if lowest is not None and lowest not in of_segments:
                    of_segments[lowest] = connection.scalar(earlier.where(segment.id == lowest))
                reached = to if lowest is None else of_segments[lowest]
                found[row.table_name] = None if row.is_some_dropped else reached
        return found


def _lowest_left(items: Table, number: Column[int]) -> ScalarSelect[Any]:
    """Select the segment of the first file or event of a table that is not applied."""
    mine = (items.c.replicator == APPLIED.c.replicator) & (items.c.table_name == APPLIED.c.table_name)
    query = select(items.c.segment_id).where(mine, number > APPLIED.c.last_applied).order_by(number).limit(1)
    return query.correlate(APPLIED).scalar_subquery()


def _is_some_dropped() -> Any:
    """Select whether retention has dropped something of a table that is not applied."""
    mine = (DROPPED.c.replicator == APPLIED.c.replicator) & (DROPPED.c.table_name == APPLIED.c.table_name)
    lost = (DROPPED.c.incarnation == APPLIED.c.incarnation) & (DROPPED.c.last_num > APPLIED.c.last_applied)
    return exists().where(mine, lost)
