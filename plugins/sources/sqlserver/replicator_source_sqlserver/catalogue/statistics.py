"""Statistics of tables and of the log from the server's catalogue, for `replicator plan`. Only read."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from replicator.model.figures import Basis, Figure, unknown
from replicator.model.schema import TableId
from replicator.plugins.planning import SourceStatistics, TableStatistics
from replicator_source_sqlserver.catalogue.discovery import read_tables
from replicator_source_sqlserver.catalogue.server import read_retention
from replicator_source_sqlserver.catalogue.tables import CatalogTable
from replicator_source_sqlserver.connecting.connection import Connection

_PAGE_BYTES: Final = 8192
_CLOCK: Final = "SELECT SYSUTCDATETIME()"
# The parts of the table itself, with its large values: the heap, or the clustered index.
_PAGES: Final = """
SELECT p.object_id, SUM(a.used_pages) FROM sys.partitions p
JOIN sys.allocation_units a ON a.container_id = CASE WHEN a.type = 2 THEN p.partition_id ELSE p.hobt_id END
WHERE p.index_id IN (0, 1) AND p.object_id IN ({numbers}) GROUP BY p.object_id
"""
_AT_ONCE: Final = 200


def read_statistics(connection: Connection, tables: Collection[TableId]) -> SourceStatistics:
    """Read the statistics. The server counts statements that change a table, and not the rows: how many change is unknown."""
    moment: datetime = connection.rows(_CLOCK)[0][0]
    found = read_tables(connection, tables)
    pages = _pages(connection, [table.object_id for table in found.values()])
    kept = read_retention(connection)
    return SourceStatistics(
        at=moment.replace(tzinfo=UTC),
        tables={name: _of(table, pages.get(table.object_id)) for name, table in found.items()},
        log_bytes=unknown("change data capture is a part of the database, and has no size of its own"),
        log_kept_for=kept,
        log_kept_how="the account may not read msdb.dbo.cdc_jobs, or no job removes changes"
        if kept is None
        else "the retention of the cleanup job of change data capture",
    )


def _of(table: CatalogTable, pages: int | None) -> TableStatistics:
    rows = table.estimated_rows
    return TableStatistics(
        rows=unknown("sys.partitions does not show the table")
        if rows is None
        else Figure(float(rows), Basis.ESTIMATED, "sys.partitions.rows"),
        bytes=unknown("sys.allocation_units does not show the table")
        if pages is None
        else Figure(float(pages * _PAGE_BYTES), Basis.ESTIMATED, "sys.allocation_units.used_pages"),
        changes=unknown("SQL Server counts no changes of rows"),
    )


def _pages(connection: Connection, numbers: list[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for start in range(0, len(numbers), _AT_ONCE):
        listed = ", ".join(map(str, numbers[start : start + _AT_ONCE]))
        found |= {int(number): int(count) for number, count in connection.rows(_PAGES.format(numbers=listed))}
    return found
