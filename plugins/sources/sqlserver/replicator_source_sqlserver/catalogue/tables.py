"""Tables as SQL Server's catalogue shows them, and what follows from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from replicator.model.errors import UnsupportedTypeError
from replicator.model.identity import TableIdentity
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import TableDescription
from replicator_source_sqlserver.types import CODE_PAGE_TYPES, ColumnSpec, DeclaredType, spec_of

OUR_INSTANCES: Final = "replicator_"
"""Prefix of the names of capture instances that `source.manage_capture` makes."""
_VERSION: Final = "tracked_since"
_NOTED_IN: Final = "changes_noted_in"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogColumn:
    """A column.

    Attributes:
        id: `column_id`, which the server gives to no other column of the table.
        is_computed: Change tables always have NULL for the column.
        is_column_set: The column shows all sparse columns as one XML, whose changes are not captured.
    """

    id: int
    name: str
    declared: DeclaredType
    is_nullable: bool
    is_computed: bool
    is_column_set: bool = False

    @property
    def spec(self) -> ColumnSpec | None:
        """The column's replication; None if it cannot be replicated."""
        return None if self.is_computed or self.is_column_set else spec_of(self.declared)

    @property
    def is_refused(self) -> bool:
        """Return whether the column keeps its table from being replicated. A computed column is only left out."""
        return self.spec is None and not self.is_computed

    def __str__(self) -> str:
        """Return the column with its type, as messages name it."""
        kind = "column set" if self.is_column_set else str(self.declared)
        return f"{self.name} ({kind})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureInstance:
    """A capture instance of a table: its change table, and the parts of the table that are in it.

    Attributes:
        object_id: `object_id` of the change table.
        start_lsn: The first commit of which it has changes; None until the capture job has met the statement that enabled it.
        created_at: The time of its creation on the server's clock, without a zone.
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
        """Return the instance with its present start."""
        return replace(self, start_lsn=start_lsn)

    def has(self, name: str, id_: int | None) -> bool:
        """Return whether the instance captures the column of this name and `column_id`; None stands for any."""
        return name in self.ordinals and id_ in (None, self.ids[name])

    @property
    def is_ours(self) -> bool:
        """Return whether we made the instance, by its name: only such a one is ever dropped."""
        return self.name.startswith(OUR_INSTANCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedSince:
    """The beginning of the time for which a table has been tracked without a break.

    Attributes:
        version: `begin_version`, which TRUNCATE moves, too. It stays if no tracked table was changed between two moments.
        noted_in: Number of the server's own table that has the keys of changed rows: a new one where tracking begins again. None: our
            account is not shown it.
    """

    version: int
    noted_in: int | None = None

    def is_broken_by(self, now: TrackedSince) -> bool:
        """Return whether tracking has begun again since."""
        return self.version != now.version or (
            None not in (self.noted_in, now.noted_in) and self.noted_in != now.noted_in
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """The state of a table in change tracking.

    Attributes:
        since: The beginning of tracking; None: the table is not tracked.
        min_valid: All changes above this version, or above a later one, are known; None: our account may not see it.
        name: The table's present name, where it was asked for by its number; None: as it was asked for.
    """

    since: TrackedSince | None = None
    min_valid: int | None = None
    name: TableId | None = None


@dataclass(frozen=True, kw_only=True)
class CatalogTable:
    """A table as it is now.

    Attributes:
        primary_key: Its columns in key order.
        descriptions: `MS_Description` of columns by their numbers, and of the table under 0.
        instances: The oldest first. Only with `source.capture: cdc`.
        tracking: Only with `source.capture: change_tracking`.
    """

    table: TableId
    object_id: int
    columns: tuple[CatalogColumn, ...]
    primary_key: tuple[str, ...] = ()
    descriptions: Mapping[int, str] = field(default_factory=dict)
    instances: tuple[CaptureInstance, ...] = ()
    tracking: Tracking | None = None
    estimated_rows: int | None = None

    @cached_property
    def specs(self) -> dict[str, ColumnSpec]:
        """The replication of each column that can be replicated, and whose changes are captured."""
        return {
            column.name: spec
            for column in self.columns
            if (spec := column.spec) is not None and column.name not in self.uncaptured
        }

    @cached_property
    def uncaptured(self) -> frozenset[str]:
        """The columns that could be replicated, and that the newest capture instance does not have: they were added after it was made."""
        if not self.instances:
            return frozenset()
        newest = self.instances[-1]
        return frozenset(c.name for c in self.columns if c.spec is not None and not newest.has(c.name, c.id))

    def type_error(self) -> UnsupportedTypeError | None:
        """Return the error of a table with columns that cannot be replicated; None if there are none."""
        refused = [str(column) for column in self.columns if column.is_refused]
        return unsupported(self.table, refused) if refused else None

    def captured_by(self, instance: CaptureInstance) -> CatalogTable:
        """Return the table as one of its instances has it."""
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
                    comment=self.descriptions.get(column.id),
                    id=column.id,
                )
                for column in self.columns
                if column.name in self.specs
            ),
            key=self.key,
            comment=self.descriptions.get(0),
        )

    def has_shape_of(self, schema: TableSchema) -> bool:
        """Return whether the table has the shape of a schema, whatever its comments are."""
        columns = [[replace(column, comment=None) for column in one.columns] for one in (self.schema, schema)]
        return columns[0] == columns[1] and self.key == schema.key

    @property
    def identity(self) -> TableIdentity:
        """The table's identity. A table keeps its number when it is renamed or altered; a captured one cannot be truncated.

        What was changed while no instance captured it is not in any log, and what a new instance adds is not in rows that nobody changes: a
        new instance has the table read again. So it is with what was changed while the table was not tracked, or truncated.
        """
        parts: Mapping[str, int | str | None]
        if self.tracking is not None:
            parts = _parts(self.tracking.since)
        else:
            parts = {"capture_instance": str(self.instances[-1].object_id)} if self.instances else {}
        # Another collation may have another code page: the server converts the rows then, and no log tells of it.
        collations = {str(c.id): c.declared.collation for c in self.columns if c.declared.name in CODE_PAGE_TYPES}
        return TableIdentity(object=str(self.object_id), parts=parts, columns=collations)

    @property
    def description(self) -> TableDescription:
        """The description for the host."""
        return TableDescription(schema=self.schema, identity=self.identity, estimated_rows=self.estimated_rows)


@dataclass(frozen=True, slots=True)
class Accepted:
    """A table as the host has accepted it; `schema`: None if its shape is not known any more."""

    identity: TableIdentity
    schema: TableSchema | None

    @property
    def number(self) -> int | None:
        """Its `object_id`."""
        return None if self.identity.object is None else int(self.identity.object)


def unsupported(table: TableId, columns: Sequence[str]) -> UnsupportedTypeError:
    """The error of a table with columns, named with their types, that cannot be replicated."""
    return UnsupportedTypeError(
        f"its columns {', '.join(columns)} cannot be replicated.",
        code="unsupported_type",
        table=str(table),
        action="Drop the columns or change their types, then run `replicator snapshot NAME TABLE`; or exclude the table.",
    )


def tracked_since(identity: TableIdentity) -> TrackedSince | None:
    """Return the beginning of a table's tracking when it was described; None if it was not tracked."""
    version, noted_in = (identity.parts.get(name) for name in (_VERSION, _NOTED_IN))
    if not isinstance(version, int):
        return None
    return TrackedSince(version=version, noted_in=noted_in if isinstance(noted_in, int) else None)


def _parts(since: TrackedSince | None) -> dict[str, int | None]:
    """Return the parts of an identity, without what the account is not shown."""
    if since is None:
        return {_VERSION: None}
    return {_VERSION: since.version, **({} if since.noted_in is None else {_NOTED_IN: since.noted_in})}
