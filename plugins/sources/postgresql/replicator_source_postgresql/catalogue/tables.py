"""Facts of the catalogue as frozen values, and what we conclude from them without I/O: key, schema, identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

import pyarrow as pa

from replicator.model.events import no_fill
from replicator.model.identity import ColumnConstraints, TableIdentity
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import TableDescription
from replicator_source_postgresql.types import PgType

VERSION_COLUMN_LISTS: Final = 150000
VERSION_GENERATED_PUBLISHED: Final = 180000


class Identity(StrEnum):
    """`pg_class.relreplident`: what PostgreSQL logs of the row before a change."""

    DEFAULT = "d"
    FULL = "f"
    INDEX = "i"
    NOTHING = "n"


class KeyFault(StrEnum):
    """The reason why a table's changes cannot be attributed to rows."""

    NO_PRIMARY_KEY = "no_primary_key"
    DEFERRABLE = "deferrable_key"
    IDENTITY_NOTHING = "replica_identity_nothing"
    INDEX_MISSING = "replica_identity_index_missing"
    UNUSABLE_COLUMN = "unusable_key_column"
    GENERATED_COLUMN = "generated_column_in_identity"
    PARTITION = "partition_identity"


@dataclass(frozen=True, kw_only=True)
class CatalogColumn:
    """One column; `mapping` is None if its type is unsupported."""

    name: str
    position: int
    type_oid: int
    type_sql: str
    mapping: PgType | None
    fault: str | None
    """The reason why there is no mapping, or why the text of a value may change by itself."""
    is_wide: bool
    """True if values may be stored apart from their row: an UPDATE then leaves out those that it does not change."""
    is_nullable: bool
    is_generated: bool
    is_selectable: bool
    comment: str | None
    before: tuple[bytes, ...]
    """Texts of the value that older rows have in the column, unless they were written since it was added: none for NULL. More than one
    if that differs by partition."""
    default: str | None
    """The expression of its default; None if it has none, or is generated."""
    default_oid: str | None
    """The oid of the catalogue's row for the default; every statement that sets a default replaces that row."""

    @cached_property
    def value_before(self) -> pa.Array | None:
        """Return the value that older rows have in the column, as an array of one; None if it is not known."""
        if self.mapping is None or len(self.before) > 1:
            return None
        if not self.before:
            return pa.nulls(1, self.mapping.arrow)
        try:
            value, unheld = self.mapping.from_text(pa.array(self.before, pa.binary()))
        except ValueError:
            return None
        return None if unheld else value


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPart:
    """A key column with the order that its index keeps.

    `collation` is the index's where it is not the column's own; `operators` maps `<`, `>`, `=`, `<=`, `>=` to the
    index's own, as SQL. With `is_plain` they are the very operators of pg_catalog.
    """

    column: str
    position: int
    collation: str | None
    operators: Mapping[str, str]
    is_plain: bool
    is_descending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyIndex:
    """A unique index that may identify rows."""

    oid: int
    name: str
    is_primary: bool
    is_replica_identity: bool
    is_immediate: bool
    is_valid: bool
    parts: tuple[KeyPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A partition that holds rows.

    `identity_columns` are those of its replica identity's index. `attached` changes whenever it, or a partition above
    it, is attached (the catalogue rows' xmin).
    """

    name: TableId
    oid: int
    filenode: int
    attached: str
    persistence: str
    identity: Identity
    identity_columns: frozenset[str]
    estimated_rows: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A publication. `version` changes whenever its options or its owner do (the catalogue row's xmin)."""

    name: str
    oid: int
    version: str
    owner: str
    is_owned: bool
    comment: str | None
    is_for_all_tables: bool
    schemas: Mapping[str, int]
    """Oid of the catalogue's row that publishes a schema, by the schema whose tables are in the publication."""
    operations: frozenset[str]
    via_root: bool
    generated: str
    tables: frozenset[TableId]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAs:
    """The way in which a table is published; `rel_oid` is of its own row there, or of its schema's; None: FOR ALL TABLES.

    `is_listed`: it is published by its own name. `schema_oid` is of its schema's row if it is (also) published through its schema.
    """

    rel_oid: int | None
    is_listed: bool
    schema_oid: int | None
    columns: tuple[int, ...] | None
    row_filter: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Traces that changes leave in the catalogue although they were taken back.

    Attributes:
        schema_since: xmin of the row that says in which schema the table is: written by every `SET SCHEMA`.
        columns_since: The lowest xmin of the columns' rows. Attaching and detaching a partition writes them all.
        made_by: The transaction that wrote the table's row in pg_class last (64 bits). An ANALYZE writes it in place.
        is_first_command: True if that was the first command of its transaction.
        has_new_columns: True if that transaction wrote rows of columns, too.
        labels: xmin of the row of each label of the enums in its columns.
        composites: A hash of the attributes of each composite type in its columns.
    """

    schema_since: str | None
    columns_since: str | None
    made_by: int
    is_first_command: bool
    has_new_columns: bool
    labels: Mapping[int, str]
    composites: Mapping[int, str]


@dataclass(frozen=True, kw_only=True)
class CatalogTable:
    """A table as the catalogue has it now. `fingerprint` changes whenever anything that reads depend on does."""

    table: TableId
    server_version: int
    oid: int
    kind: str
    persistence: str
    filenode: int
    replica_identity: Identity
    is_partition: bool
    has_children: bool
    has_parent: bool
    has_row_security: bool
    is_schema_usable: bool
    is_owned: bool
    owner: str
    estimated_rows: float
    comment: str | None
    fingerprint: str
    other_storage: str | None
    """The access method that keeps the rows, its own or a partition's, if it is not PostgreSQL's heap."""
    columns: tuple[CatalogColumn, ...]
    highest_position: int
    """The highest number that a column ever had, also one that was dropped."""
    indexes: tuple[KeyIndex, ...]
    leaves: tuple[Leaf, ...]
    publication: Publication | None
    published: PublishedAs | None
    traces: Traces
    unreadable: Sequence[str] = ()
    """Names and texts that statements about the table use and that are not UTF-8. As they are spelled here they are other names."""

    @property
    def is_partitioned(self) -> bool:
        """Return whether the table is the root of partitions."""
        return self.kind == "p"

    @cached_property
    def published_columns(self) -> tuple[CatalogColumn, ...]:
        """The columns whose values the log carries, supported or not: not generated, and in the column list if there is one."""
        listed = self.published.columns if self.published else None
        return tuple(c for c in self.columns if not c.is_generated and (listed is None or c.position in listed))

    @cached_property
    def replicable_columns(self) -> tuple[CatalogColumn, ...]:
        """The published columns of supported types."""
        return tuple(c for c in self.published_columns if c.mapping is not None)

    @cached_property
    def key(self) -> tuple[KeyPart, ...]:
        """The columns by which changes are identified; empty if there is no usable key."""
        index = self._key_index
        return index.parts if index is not None and self._index_fault(index) is None else ()

    @property
    def key_numbers(self) -> tuple[int, ...]:
        """The numbers of the key's columns."""
        return tuple(part.position for part in self.key)

    @cached_property
    def key_index(self) -> KeyIndex | None:
        """The index that `key` comes from."""
        return self._key_index if self.key else None

    @cached_property
    def key_fault(self) -> KeyFault | None:
        """Return the reason why changes cannot be attributed to rows; None with a key, and for a table whose whole rows are logged."""
        if self.replica_identity is Identity.NOTHING:
            return KeyFault.IDENTITY_NOTHING
        if self.has_generated_identity:
            return KeyFault.GENERATED_COLUMN
        if self.is_partitioned:
            if not self.key:
                return (
                    None
                    if self.leaves and all(leaf.identity is Identity.FULL for leaf in self.leaves)
                    else self._own_fault
                )
            return KeyFault.PARTITION if self.unfit_leaves else None
        return None if self.key or self.replica_identity is Identity.FULL else self._own_fault

    @property
    def has_generated_identity(self) -> bool:
        """Return whether whole rows are logged and have generated columns: from 18 on, such a table's updates and deletes are refused."""
        identities = [leaf.identity for leaf in self.leaves] if self.is_partitioned else [self.replica_identity]
        return (
            self.server_version >= VERSION_GENERATED_PUBLISHED
            and any(c.is_generated for c in self.columns)
            and Identity.FULL in identities
        )

    @cached_property
    def unfit_leaves(self) -> tuple[Leaf, ...]:
        """Partitions that do not log the key of the row before a change."""
        key = frozenset(part.column for part in self.key)
        return tuple(
            leaf for leaf in self.leaves if leaf.identity is not Identity.FULL and leaf.identity_columns != key
        )

    @cached_property
    def schema(self) -> TableSchema:
        """The table's shape, with the columns that can be replicated."""
        return TableSchema(
            table=self.table,
            columns=tuple(
                Column(
                    name=c.name,
                    type=c.mapping.arrow,
                    source_type=c.mapping.source_type,
                    nullable=c.is_nullable,
                    comment=c.comment,
                    id=c.position,
                )
                for c in self.replicable_columns
                if c.mapping is not None
            ),
            key=tuple(part.column for part in self.key),
            comment=self.comment,
        )

    @cached_property
    def identity(self) -> TableIdentity:
        """The identity, which changes when this is another object, or is published in another way."""
        publication, published, index = self.publication, self.published, self._key_index
        parts = {
            "persistence": self.persistence,
            "replica_identity": self.replica_identity.value,
            "key_index": index.oid if index else None,
            "publication": f"{publication.oid}:{publication.version}" if publication else None,
            "publish": sorted(publication.operations) if publication else None,
            "via_root": publication.via_root if publication else None,
            "publication_rel": published.rel_oid if published else None,
            # A listed table is narrowed by its own filter while its schema is not published.
            "publication_schema": published.schema_oid if published else None,
            "is_published": published is not None,
            "column_list": list(published.columns) if published and published.columns is not None else None,
            "row_filter": published.row_filter if published else None,
            "partitions": {str(leaf.oid): [leaf.filenode, leaf.identity.value] for leaf in self.leaves}
            if self.is_partitioned
            else None,
            "attached": {str(leaf.oid): leaf.attached for leaf in self.leaves} if self.is_partitioned else None,
            "is_partition": self.is_partition,
            # Out of its schema and back, attached to another table and detached: nothing was published meanwhile.
            "schema_since": self.traces.schema_since if published and published.schema_oid is not None else None,
            "columns_since": self.traces.columns_since,
        }
        # A label that is new is a part that is new, which the host learns; one that was renamed has another xmin.
        labels = {f"label:{oid}": since for oid, since in self.traces.labels.items()}
        composites = {str(oid): attributes for oid, attributes in self.traces.composites.items()}
        return TableIdentity(
            object=str(self.oid),
            storage=str(self.filenode),
            parts=parts,
            columns={
                # A column's Arrow type says nothing of how values are written. What a column holds that is generated no longer was
                # never published.
                **{str(c.position): [c.type_oid, c.is_generated] for c in self.columns},
                **(
                    {f"dropped:{self.highest_position}": True}
                    if self.highest_position in self.dropped_positions
                    else {}
                ),
                **{f"composite:{oid}": attributes for oid, attributes in composites.items()},
                **labels,
            },
            constraints={
                str(c.position): ColumnConstraints(nullable=c.is_nullable, default=c.default, default_id=c.default_oid)
                for c in self.replicable_columns
            },
        )

    @property
    def dropped_positions(self) -> frozenset[int]:
        """The numbers of columns that were dropped."""
        return frozenset(range(1, self.highest_position + 1)) - {c.position for c in self.columns}

    @property
    def fill(self) -> pa.RecordBatch | None:
        """See `TableDescription.fill`."""
        columns = [c for c in self.replicable_columns if c.before]
        return filled({c.name: c.value_before for c in columns})

    @property
    def storage_by(self) -> str | None:
        """The transaction that made the present storage, if nothing but a TRUNCATE of the table can have made it there.

        A rewrite in the transaction of a TRUNCATE leaves the same xmin. It is never its first command, though, because it
        takes several. A change of a column's type writes the column's row, too; and nobody can take a table that is listed by
        name out of the log for a while (SET UNLOGGED).
        """
        traces = self.traces
        is_listed = self.published is not None and self.published.is_listed
        if self.is_partitioned or not (traces.is_first_command or (is_listed and not traces.has_new_columns)):
            return None
        return str(traces.made_by)

    @property
    def description(self) -> TableDescription:
        """The table as the host wants it described."""
        counts = [leaf.estimated_rows for leaf in self.leaves] if self.is_partitioned else [self.estimated_rows]
        known = [count for count in counts if count >= 0]
        return TableDescription(
            schema=self.schema,
            identity=self.identity,
            estimated_rows=int(sum(known)) if known else None,
            storage_by=self.storage_by,
            fill=self.fill,
        )

    @property
    def _key_index(self) -> KeyIndex | None:
        is_by_index = self.replica_identity is Identity.INDEX
        for index in self.indexes:
            if index.is_replica_identity if is_by_index else index.is_primary:
                return index
        return None

    @property
    def _own_fault(self) -> KeyFault:
        index = self._key_index
        if index is None:
            return KeyFault.INDEX_MISSING if self.replica_identity is Identity.INDEX else KeyFault.NO_PRIMARY_KEY
        return self._index_fault(index) or KeyFault.NO_PRIMARY_KEY

    def _index_fault(self, index: KeyIndex) -> KeyFault | None:
        if not index.is_valid:
            return KeyFault.INDEX_MISSING
        if not index.is_immediate:
            return KeyFault.DEFERRABLE
        usable = {c.position: c for c in self.replicable_columns}
        for part in index.parts:
            column = usable.get(part.position)
            if column is None or column.mapping is None or not column.mapping.can_be_key or column.is_nullable:
                return KeyFault.UNUSABLE_COLUMN
        return None


def filled(values: Mapping[str, pa.Array | None]) -> pa.RecordBatch | None:
    """A `DDLEvent.fill` of values by column, arrays of one; None if one is not known."""
    if any(value is None for value in values.values()):
        return None
    there = {name: value for name, value in values.items() if value is not None and not value.null_count}
    return pa.RecordBatch.from_arrays(list(there.values()), names=list(there)) if there else no_fill()


def highest_position(identity: TableIdentity) -> int:
    """The highest number that a column of the table had when it had this identity; 0 if unknown."""
    numbers = (name.removeprefix("dropped:") for name in identity.columns)
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def hidden_positions(identity: TableIdentity) -> frozenset[int]:
    """The numbers of the columns whose values the log did not carry when the table had this identity."""
    listed = identity.parts.get("column_list")
    return frozenset(
        int(name)
        for name, value in identity.columns.items()
        if name.isdigit() and (value[1] or (listed is not None and int(name) not in listed))
    )
