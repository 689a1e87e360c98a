"""Queries of change tracking: versions, tracked tables, the beginning of their tracking, and the transaction that reads a version."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from replicator.model.errors import SourceUnavailableError
from replicator.model.schema import TableId
from replicator_source_sqlserver.catalogue import discovery
from replicator_source_sqlserver.catalogue.tables import CatalogTable, TrackedSince, Tracking
from replicator_source_sqlserver.connecting.connection import Connection

_AT_ONCE: Final = 200
_HEAD: Final = "SELECT CHANGE_TRACKING_CURRENT_VERSION()"
_CLOCK: Final = "SELECT SYSUTCDATETIME()"
_SETTINGS: Final = """
SELECT d.is_auto_cleanup_on, d.retention_period, d.retention_period_units FROM sys.change_tracking_databases d WHERE d.database_id = DB_ID()
"""
_UNITS: Final = {1: timedelta(minutes=1), 2: timedelta(hours=1), 3: timedelta(days=1)}
_TRACKED: Final = """
SELECT t.object_id, t.begin_version, CHANGE_TRACKING_MIN_VALID_VERSION(t.object_id), i.object_id
FROM sys.change_tracking_tables t
LEFT JOIN sys.internal_tables i ON i.parent_id = t.object_id AND i.internal_type = 209
WHERE t.object_id IN ({numbers})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingSettings:
    """The settings of change tracking in a database. `retention`: how long changes are kept, if they are removed at all (`is_cleaned`)."""

    is_cleaned: bool
    retention: timedelta

    @property
    def kept(self) -> timedelta | None:
        """The time for which changes are kept; None: without an end."""
        return self.retention if self.is_cleaned else None


def read_settings(connection: Connection) -> TrackingSettings | None:
    """Read the settings of the database; None if change tracking is off."""
    rows = connection.rows(_SETTINGS)
    if not rows:
        return None
    is_cleaned, period, unit = rows[0]
    return TrackingSettings(is_cleaned=bool(is_cleaned), retention=int(period) * _UNITS[int(unit)])


def head(connection: Connection) -> int:
    """Read the version of the last commit; in a SNAPSHOT transaction that of the snapshot.

    Raises:
        SourceUnavailableError: `change_tracking_off`: the database is not tracked.
    """
    version = connection.rows(_HEAD)[0][0]
    if version is None:
        raise SourceUnavailableError(
            "Change tracking is off for the database, so nothing tells which rows are changed.",
            code="change_tracking_off",
            action="ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 7 DAYS, AUTO_CLEANUP = ON), then ALTER TABLE … "
            "ENABLE CHANGE_TRACKING of each table. `replicator validate` prints the statements.",
        )
    return int(version)


def clock(connection: Connection) -> datetime:
    """Read the server's clock. Asked before a version: what was committed by then is in it."""
    moment = connection.rows(_CLOCK)[0][0]
    assert isinstance(moment, datetime)
    return moment.replace(tzinfo=UTC)


def read_tables(connection: Connection, tables: Collection[TableId]) -> dict[TableId, CatalogTable]:
    """Read from the catalogue those of the tables that exist, under exactly these names."""
    return _with_tracking(connection, discovery.read_tables(connection, tables, is_captured=False))


def read_objects(connection: Connection, tables: Mapping[int, TableId]) -> dict[TableId, CatalogTable]:
    """Read tables from the catalogue by their numbers, whatever they are called now."""
    found = _with_tracking(connection, discovery.read_objects(connection, tables, is_captured=False))
    names = discovery.read_names(connection, tables)
    return {
        table: replace(one, tracking=replace(one.tracking, name=names.get(one.object_id)))
        for table, one in found.items()
        if one.tracking is not None
    }


@contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """Open a transaction that sees one version. Whatever ends it early also has to close the connection."""
    connection.begin_snapshot()
    yield
    connection.end_snapshot()


def _with_tracking(connection: Connection, tables: Mapping[TableId, CatalogTable]) -> dict[TableId, CatalogTable]:
    numbers = sorted(table.object_id for table in tables.values())
    found: dict[int, Tracking] = {}
    for start in range(0, len(numbers), _AT_ONCE):
        listed = ", ".join(map(str, numbers[start : start + _AT_ONCE]))
        for number, version, min_valid, noted_in in connection.rows(_TRACKED.format(numbers=listed)):
            since = TrackedSince(version=int(version), noted_in=None if noted_in is None else int(noted_in))
            found[int(number)] = Tracking(since=since, min_valid=None if min_valid is None else int(min_valid))
    # One that was dropped meanwhile would look as if it was not tracked.
    there = found.keys() | discovery.read_names(connection, set(numbers) - found.keys()).keys()
    return {
        name: replace(table, tracking=found.get(table.object_id, Tracking()))
        for name, table in tables.items()
        if table.object_id in there
    }
