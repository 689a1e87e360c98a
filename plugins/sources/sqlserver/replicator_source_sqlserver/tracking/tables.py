"""The replicated tables of a log of change tracking: their shapes, and whether changes of them may have been lost.

Change tracking reports no change of a definition. So the catalogue is looked at before each round, and again after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from replicator.model.errors import CurableError, TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import TableId, TableSchema
from replicator_source_sqlserver.catalogue.tables import Accepted, CatalogTable, TrackedSince, tracked_since
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.names import quoted_table
from replicator_source_sqlserver.snapshot.reader import read_plan
from replicator_source_sqlserver.tracking import queries as tracking
from replicator_source_sqlserver.tracking.changes import TrackedChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Changes of tables that a look at the catalogue found.

    Attributes:
        events: Tables that were dropped, or that have another shape.
        lost: Tables of which changes may be missing: rows that they have now have to be read again.
    """

    events: Sequence[DDLEvent] = ()
    lost: Sequence[TableId] = ()


class TrackedTables:
    """The tables of one open log.

    Args:
        schemas: Their shapes, as the host knows them.
        numbers: Their `object_id`, of those that exist.
        since: Known beginning of the tracking of each table when its snapshot began.
        enable: Has a table's changes tracked; None where others have to do that.
    """

    def __init__(
        self,
        schemas: Mapping[TableId, TableSchema],
        numbers: Mapping[TableId, int],
        since: Mapping[TableId, TrackedSince | None],
        *,
        enable: Callable[[Connection, CatalogTable], None] | None = None,
    ) -> None:
        self._schemas, self._numbers, self._since, self._enable = dict(schemas), dict(numbers), dict(since), enable
        self._lock = threading.Lock()
        self._accepted: dict[TableId, Accepted] = {}
        self._found: Mapping[TableId, CatalogTable] = {}
        self._failed: set[TableId] = set()
        self._errors: dict[TableId, TableError] = {}
        self._told: dict[TableId, int] = {}

    def accept(self, tables: Mapping[TableId, Accepted]) -> None:
        """Note that snapshots of these tables begin. Called from any thread."""
        with self._lock:
            self._accepted |= tables

    def take_errors(self) -> Mapping[TableId, TableError]:
        """Take the errors that were not reported yet."""
        errors, self._errors = self._errors, {}
        return errors

    def fail(self, table: TableId, error: TableError) -> None:
        """Stop replicating a table."""
        self._failed.add(table)
        self._errors[table] = error

    def following(self) -> Iterable[TableId]:
        """The tables whose changes are delivered."""
        return [table for table in self._schemas if table not in self._failed]

    def changes(self) -> list[tuple[TableId, TrackedChanges]]:
        """Plan the reading of each table's changes, in the shape that was found last."""
        return [
            (table, TrackedChanges(read_plan(found, self._schemas[table]), name_of(found)))
            for table in self.following()
            if (found := self._found.get(table)) is not None
        ]

    def look(self, connection: Connection, position: int) -> Found:
        """Read the catalogue, outside of any snapshot, and compare.

        Args:
            connection: Any.
            position: The version up to which everything is delivered.
        """
        accepted = self._take_accepted()
        self._found = self._read(connection)
        for table, one in accepted.items():
            self._failed.discard(table)
            if table in self._found:
                # What the catalogue shows by now is an event, below.
                self._schemas[table] = one.schema or self._found[table].schema
                self._since[table] = tracked_since(one.identity)
        events: list[DDLEvent] = []
        lost: list[TableId] = []
        for table in self.following():
            found = self._found.get(table)
            if found is None:
                self._failed.add(table)
                events.append(DDLEvent(operation=DDLOperation.DROP_TABLE, table=table))
                continue
            if (error := _obstacle(found)) is not None:
                self.fail(table, error)
                continue
            if self._has_lost(table, found, position):
                lost.append(table)
            known = self._schemas[table]
            if not found.has_shape_of(known):
                self._schemas[table] = found.schema
                events.append(
                    DDLEvent(operation=DDLOperation.ALTER_TABLE, table=table, schema=found.schema, before=known)
                )
        return Found(events=events, lost=lost)

    def look_behind(self, connection: Connection, position: int) -> tuple[bool, Sequence[TableId]]:
        """Check whether the tables stayed as they were while changes above a version were read.

        Returns:
            True if they kept their shapes, and the tables of which changes may have been missing.
        """
        before, self._found = self._found, self._read(connection)
        shapes = [
            {t: (f.object_id, f.columns, f.primary_key) for t, f in one.items() if t not in self._failed}
            for one in (before, self._found)
        ]
        lost = [t for t in self.following() if t in self._found and self._has_lost(t, self._found[t], position)]
        return shapes[0] == shapes[1], lost

    def _take_accepted(self) -> Mapping[TableId, Accepted]:
        with self._lock:
            accepted, self._accepted = self._accepted, {}
        self._numbers |= {t: one.number for t, one in accepted.items() if one.number is not None}
        return {table: one for table, one in accepted.items() if table in self._schemas}

    def _read(self, connection: Connection) -> Mapping[TableId, CatalogTable]:
        wanted = {number: table for table, number in self._numbers.items() if table in self._schemas}
        found = tracking.read_objects(connection, wanted)
        if self._enable is None:
            return found
        untracked = [t for t in found.values() if t.tracking is not None and t.tracking.since is None and t.key]
        for table in untracked:
            self._enable(connection, table)
            # What was changed before is not known, even if no version has passed.
            self._since[table.table] = None
        return tracking.read_objects(connection, wanted) if untracked else found

    def _has_lost(self, table: TableId, found: CatalogTable, position: int) -> bool:
        """Return whether changes of a table above a version may be unknown; it is told once."""
        if found.tracking is None or found.tracking.since is None or found.tracking.min_valid is None:
            return False
        since, min_valid = found.tracking.since, found.tracking.min_valid
        known = self._since.setdefault(table, since)
        # Its snapshot began when it was tracked already: what was before is in what that has read.
        is_broken = known is None or known.is_broken_by(since)
        is_lost = is_broken or min_valid > max(position, since.version, self._told.get(table, 0))
        if is_lost:
            self._since[table], self._told[table] = since, min_valid
        return is_lost


def name_of(table: CatalogTable) -> TableId:
    """Return the present name of the table."""
    return table.table if table.tracking is None or table.tracking.name is None else table.tracking.name


def _obstacle(table: CatalogTable) -> TableError | None:
    """Return the reason why changes of the table cannot be read; None if they can."""
    if (refused := table.type_error()) is not None:
        return refused
    name = quoted_table(name_of(table))
    if not table.key:
        return CurableError(
            "it has no primary key that identifies its rows, and change tracking tells changed rows by it.",
            code="key_needed",
            table=str(table.table),
            action=f"ALTER TABLE {name} ADD PRIMARY KEY (…).",
        )
    if table.tracking is None or table.tracking.since is None:
        return CurableError(
            "its changes are not tracked.",
            code="table_not_tracked",
            table=str(table.table),
            action=f"ALTER TABLE {name} ENABLE CHANGE_TRACKING.",
        )
    if table.tracking.min_valid is None:
        return CurableError(
            "the account may not see its changes.",
            code="tracking_not_visible",
            table=str(table.table),
            action=f"GRANT VIEW CHANGE TRACKING ON {name} TO the account.",
        )
    return None
