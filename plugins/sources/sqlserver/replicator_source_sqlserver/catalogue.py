"""What SQL Server's catalogue says of tables, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from replicator.model.identity import TableIdentity
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import TableDescription
from replicator_source_sqlserver.types import ColumnSpec, DeclaredType, spec_of

OUR_INSTANCES: Final = "replicator_"
"""What the names of capture instances begin with that `source.manage_capture` makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogColumn:
    """A column.

    Attributes:
        id: `column_id`, which the server gives to no other column of the table.
        is_computed: Change tables have NULL for it, always.
    """

    id: int
    name: str
    declared: DeclaredType
    is_nullable: bool
    is_computed: bool

    @property
    def spec(self) -> ColumnSpec | None:
        """How it is replicated; None if it cannot be."""
        return None if self.is_computed else spec_of(self.declared)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureInstance:
    """A capture instance of a table: its change table, and what of the table is in it.

    Attributes:
        object_id: Of the change table.
        start_lsn: From which commit on it has changes; None until the capture job has met the statement that enabled it.
        created_at: On the server's clock, without a zone.
        ordinals: `column_ordinal` by the name that a column had when it was enabled; its bit in `__$update_mask`.
        ids: `column_id` by the same name: another column that got the name of a dropped one is not captured.
        is_switch_allowed: Partitions may be switched in and out, and are not captured then.
    """

    name: str
    object_id: int
    start_lsn: bytes | None
    created_at: datetime
    ordinals: dict[str, int]
    ids: dict[str, int]
    is_switch_allowed: bool = False

    def started(self, start_lsn: bytes | None) -> CaptureInstance:
        """The instance, with its start as it is now."""
        return replace(self, start_lsn=start_lsn)

    def has(self, name: str, id_: int | None) -> bool:
        """Whether it captures the column of this name and `column_id`; None stands for any."""
        return name in self.ordinals and id_ in (None, self.ids[name])

    @property
    def is_ours(self) -> bool:
        """Whether we made it, by its name: only such a one is ever dropped."""
        return self.name.startswith(OUR_INSTANCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """What change tracking knows of a table.

    Attributes:
        since: `begin_version`, which TRUNCATE moves, too; None: it is not tracked.
        min_valid: Changes above a version below this one are not all known any more; None: our account may not see it.
        kept_in: The server's own table with its changes, which is another one once tracking was switched off and on; None: it is not shown.
        name: What the table is called now, where it was asked for by its number; None: as it was asked for.
    """

    since: int | None = None
    min_valid: int | None = None
    kept_in: int | None = None
    name: TableId | None = None


@dataclass(frozen=True, kw_only=True)
class CatalogTable:
    """A table as it is now.

    Attributes:
        primary_key: Its columns in key order.
        instances: The oldest first. Only with `source.capture: cdc`.
        tracking: Only with `source.capture: change_tracking`.
    """

    table: TableId
    object_id: int
    columns: tuple[CatalogColumn, ...]
    primary_key: tuple[str, ...] = ()
    instances: tuple[CaptureInstance, ...] = ()
    tracking: Tracking | None = None
    estimated_rows: int | None = None

    @cached_property
    def specs(self) -> dict[str, ColumnSpec]:
        """How each column is replicated that can be, and whose changes are captured."""
        return {
            column.name: spec
            for column in self.columns
            if (spec := column.spec) is not None and column.name not in self.uncaptured
        }

    @cached_property
    def uncaptured(self) -> frozenset[str]:
        """Columns that could be replicated, and that the newest capture instance does not have: they were added after it was made."""
        if not self.instances:
            return frozenset()
        newest = self.instances[-1]
        return frozenset(c.name for c in self.columns if c.spec is not None and not newest.has(c.name, c.id))

    def captured_by(self, instance: CaptureInstance) -> CatalogTable:
        """The table as one of its instances has it."""
        return replace(self, instances=(instance,))

    @cached_property
    def key(self) -> tuple[str, ...]:
        """The primary key; empty if there is none, or if a part of it is no identity (`ColumnSpec.key_value`)."""
        specs = [self.specs.get(name) for name in self.primary_key]
        return self.primary_key if all(spec is not None and spec.key_value is not None for spec in specs) else ()

    @cached_property
    def schema(self) -> TableSchema:
        """The shape that is replicated."""
        return TableSchema(
            table=self.table,
            columns=tuple(
                Column(
                    name=column.name,
                    type=self.specs[column.name].arrow,
                    source_type=str(column.declared),
                    nullable=column.is_nullable,
                    id=column.id,
                )
                for column in self.columns
                if column.name in self.specs
            ),
            key=self.key,
        )

    @property
    def identity(self) -> TableIdentity:
        """A table keeps its number when it is renamed or altered; one that is captured cannot be truncated.

        What was changed while no instance captured it is not in any log, and what a new instance adds is not in rows that nobody changes: a
        new instance has the table read again. So it is with what was changed while the table was not tracked, or truncated.
        """
        if self.tracking is not None:
            # Where nothing is tracked in the whole database meanwhile, tracking that is switched off and on begins at the same version.
            parts: dict[str, Any] = {"tracked_since": self.tracking.since, "tracked_in": self.tracking.kept_in}
            return TableIdentity(object=str(self.object_id), parts=parts)
        parts = {"capture_instance": str(self.instances[-1].object_id)} if self.instances else {}
        return TableIdentity(object=str(self.object_id), parts=parts)

    @property
    def description(self) -> TableDescription:
        """For the host."""
        return TableDescription(schema=self.schema, identity=self.identity, estimated_rows=self.estimated_rows)
