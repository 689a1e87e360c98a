"""The relations of the stream: the replicated table of each, its shape, and the changes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.model.errors import SourceUnavailableError, TableError
from replicator.model.events import DDLEvent, DDLOperation, no_fill
from replicator.model.identity import TableIdentity
from replicator.model.isolation import table_error
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.arrow import Longs
from replicator_source_postgresql.catalogue.tables import CatalogTable, filled, hidden_positions, highest_position
from replicator_source_postgresql.log import attributes, shapes
from replicator_source_postgresql.log import pgoutput as p
from replicator_source_postgresql.log.attributes import Found, Known, Shown, kind_of
from replicator_source_postgresql.log.lookups import Described, LiveColumns, Lookups
from replicator_source_postgresql.log.messages import HEADER, Part
from replicator_source_postgresql.log.shapes import FULL
from replicator_source_postgresql.types import PgType, TypeInfo
from replicator_source_postgresql.wire import MalformedError


@dataclass(slots=True)
class RareEvents:
    """The result of the rare messages of a pull, and the index at which they end it. `announced`: see `LogBatch.announced_by`."""

    stop: int
    ddl: list[DDLEvent] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    errors: dict[TableId, TableError] = field(default_factory=dict)
    announced: str | None = None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of a Relation message for a table: its shape, or the reason why it fails; and what was altered, if anything was.

    `is_read`: the columns that the message means are known.
    """

    shape: p.Shape | None = None
    altered: DDLEvent | None = None
    error: TableError | None = None
    is_read: bool = True


class Relations:
    """The relations that one stream has described.

    A Relation message comes before the first row of a table, and before the next one after anything about the table has changed. It does
    not number its columns, so the catalogue is asked: whether the known columns live still, if it has the known names and types (the
    first time about all tables at once); else about the whole table.

    Args:
        schemas: The replicated tables in their last known shapes.
        objects: The oids under which tables are replicated.
        accepted: The identities under which the tables are replicated.
        lookups: See `PgLogReader`.
    """

    def __init__(
        self,
        schemas: Mapping[TableId, TableSchema],
        objects: Mapping[TableId, int],
        accepted: Mapping[TableId, TableIdentity],
        lookups: Lookups,
    ) -> None:
        self._schemas = dict(schemas)
        self._objects = objects
        self._accepted = accepted
        self._lookups = lookups
        self._infos: dict[int, TypeInfo] = {}
        # Relation id → shape; None for tables that are not replicated.
        self._shapes: dict[int, p.Shape | None] = {}
        # Relation id → name, of every table that was described.
        self._names: dict[int, TableId] = {}
        # Relation id → the highest number that a column was seen to have in this stream.
        self._highest: dict[int, int] = {}
        # Relation id → the last answer about its columns.
        self._live: dict[int, LiveColumns] = {}

    def name(self, part: Part, index: int) -> TableId:
        """Return the table of a row or Relation message."""
        return self._names[int(part.frames.int32(part.frames.starts[[index]] + HEADER + 1)[0]) & 0xFFFFFFFF]

    def shapes_of(self, part: Part, rows: npt.NDArray[np.int64]) -> tuple[list[p.Shape], Longs]:
        """Return the shapes that occur, and for each row the number of its own; -1 where its table is not replicated."""
        if not len(rows):
            return [], np.zeros(0, np.int64)
        relations = part.frames.int32(part.frames.starts[rows] + HEADER + 1) & 0xFFFFFFFF
        if (relations == relations[0]).all():
            ids, inverse = relations[:1], np.zeros(len(rows), np.int64)
        else:
            ids, inverse = np.unique(relations, return_inverse=True)
        shapes: list[p.Shape] = []
        numbers = np.full(len(ids), -1, np.int64)
        for index, relation_id in enumerate(ids.tolist()):
            if relation_id not in self._shapes:
                raise MalformedError(f"a row of relation {relation_id} came before the relation was described")
            shape = self._shapes[relation_id]
            if shape is not None:
                numbers[index] = len(shapes)
                shapes.append(shape)
        return shapes, numbers[inverse]

    def take_relation(self, relation: p.Relation, index: int, transaction: int, events: RareEvents) -> None:
        """Record the shape of the following rows; a change ends the pull, before this message if rows of the old shape may precede.

        `transaction`: the id of the one that the message is in.
        """
        old = self._shapes.get(relation.id)
        name = old.schema.table if old is not None else self._name_of(relation.id)
        known = self._known(relation, name)
        described = _Outcome() if known is None else self._try_describe(relation, known, transaction)
        shape, error = described.shape, described.error
        is_new = relation.id not in self._shapes and not self._has_relation(relation.table)
        is_same = relation.id in self._shapes and error is None and described.altered is None and shape == old
        if not is_new and not is_same and index > 0:
            events.stop = index
            return
        if error is not None:
            events.errors[relation.table] = error
            self.drop(relation.table)
        if name is not None and name != relation.table:
            events.ddl.append(DDLEvent(operation=DDLOperation.RENAME_TABLE, table=name, new_table=relation.table))
            self._move(name, relation.table, known if error is None else None)
        if known is not None and self._objects.get(relation.table, relation.id) != relation.id:
            events.ddl.append(DDLEvent(operation=DDLOperation.CREATE_TABLE, table=relation.table, schema=known))
        for relation_id, other in list(self._shapes.items()):
            if shape is not None and other is not None and other.schema.table == relation.table:
                del self._shapes[relation_id]
        self._shapes[relation.id] = shape
        self._names[relation.id] = relation.table
        if shape is not None and shape.schema is not known and described.is_read:
            self._schemas[relation.table] = shape.schema
            ids = shapes.ids_of(shape.schema) or ()
            self._highest[relation.id] = max([self._highest.get(relation.id, 0), *ids])
        if described.altered is not None:
            events.ddl.append(described.altered)
        if events.ddl:
            events.stop = index + 1

    def take_truncate(self, content: bytes, index: int, events: RareEvents) -> None:
        """Record which replicated tables a Truncate message empties; one ends the pull."""
        for relation_id in p.read_truncate(content):
            if relation_id not in self._shapes:
                raise MalformedError(f"a truncation of relation {relation_id} came before the relation was described")
            shape = self._shapes[relation_id]
            if shape is not None:
                events.ddl.append(
                    DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=shape.schema.table, schema=shape.schema)
                )
                events.stop = index + 1

    def drop(self, table: TableId) -> None:
        """Stop replicating a table; its rows are skipped from here on."""
        self._schemas.pop(table, None)
        for relation_id, shape in self._shapes.items():
            if shape is not None and shape.schema.table == table:
                self._shapes[relation_id] = None

    def _try_describe(self, relation: p.Relation, known: TableSchema, transaction: int) -> _Outcome:
        """Describe a relation, or return the reason why its table fails."""
        try:
            return self._describe(relation, known, transaction)
        except Exception as error:
            ours = table_error(error, relation.table, "reading its columns")
            if ours is None:
                raise
            return _Outcome(error=ours)

    def _describe(self, relation: p.Relation, known: TableSchema, transaction: int) -> _Outcome:
        missing = shapes.type_oids(relation) - self._infos.keys()
        if missing:
            self._infos.update(self._lookups.types(missing))
        types = shapes.types_of(relation, known.table, self._infos)
        is_same = shapes.has_same_columns(relation, types, known)
        since = Described(relation.id, transaction)
        if self._objects.get(known.table, relation.id) != relation.id:
            ids = shapes.ids_of(known) if is_same else None
            return _outcome(known, shapes.shape_of(relation, known, types, ids, by_id=False), None)
        if is_same and self._has_known_columns(known, since) and not self._may_have_other_key(relation, known, since):
            return _Outcome(p.Shape(known, tuple(types)))
        table = self._table(known.table, since)
        if table is None or table.oid != relation.id:
            # Renamed or dropped since: the log, or the next comparison, tells.
            return _unread(relation, known, types)
        return self._altered(relation, known, types, table)

    def _table(self, table: TableId, since: Described) -> CatalogTable | None:
        """Read a table from the catalogue; None if it does not exist, or cannot be asked about because a session holds its lock."""
        try:
            return self._lookups.table(table, since)
        except SourceUnavailableError as error:
            # A row filter is spelled under the table's lock. Other tables do not wait for it.
            if error.code != "lock_timeout":
                raise
            return None

    def _has_known_columns(self, known: TableSchema, since: Described) -> bool:
        """Return whether columns of the known names and types are the known ones.

        They are if the known ones live: none is missing, so no other can be there.
        """
        live, ids = self._live_columns(since).names.get(since.relation), shapes.ids_of(known)
        return live is None or (ids is not None and live.keys() >= set(ids))

    def _may_have_other_key(self, relation: p.Relation, known: TableSchema, since: Described) -> bool:
        """Return whether other columns make the key. A message of a table whose whole rows are logged does not say which do."""
        if relation.identity != FULL:
            return {column.name for column in relation.columns if column.is_identity} != set(known.key)
        ids = shapes.ids_of(known)
        primary = self._live_columns(since).primary.get(since.relation)
        return ids is not None and primary is not None and {known.column(n).id for n in known.key} != set(primary)

    def _live_columns(self, since: Described) -> LiveColumns:
        """Return an answer about the columns that lived after a transaction."""
        answer = self._live.get(since.relation)
        if answer is None or not answer.visibility.sees(since.transaction):
            oids = {since.relation} if self._live else {since.relation, *tuple(self._objects.values())}
            answer = self._lookups.live_columns(oids, since)
            self._live.update(dict.fromkeys(oids, answer))
        return answer

    def _altered(
        self, relation: p.Relation, known: TableSchema, types: Sequence[PgType], table: CatalogTable
    ) -> _Outcome:
        """Number the columns, and return the shape with the values that rows have in new ones."""
        accepted = self._accepted_as(relation.id, known.table)
        is_settled = accepted is not None and bool(accepted.columns) and _is_as_accepted(accepted, table.identity)
        is_same_storage = is_settled and accepted is not None and accepted.storage == table.identity.storage
        old = {c.id: c for c in known.columns if c.id is not None}
        published = {c.position: c for c in table.replicable_columns}
        highest = max([*old, self._highest.get(relation.id, 0), highest_position(accepted) if accepted else 0])
        ids = attributes.read(
            [Shown(c.name, kind_of(t.arrow)) for c, t in zip(relation.columns, types, strict=True)],
            Known(
                columns={number: Shown(c.name, kind_of(c.type)) for number, c in old.items()},
                highest=highest,
                hidden=(hidden_positions(accepted) if accepted else frozenset()) - old.keys(),
            ),
            Found(
                published={n: Shown(c.name, kind_of(c.mapping.arrow)) for n, c in published.items() if c.mapping},
                dropped=table.dropped_positions,
            ),
            is_same_storage=is_same_storage,
        )
        if ids is None:
            return _unread(relation, known, types)
        nullable = {number: column.is_nullable for number, column in published.items()}
        shape = shapes.shape_of(relation, known, types, ids, by_id=True, key_ids=table.key_numbers, nullable=nullable)
        if not _keep_values(shapes.retyped(known, shape.schema), is_same_storage=is_same_storage):
            return _outcome(known, shape, None)
        added = {c.name: published.get(c.id) for c in shape.schema.columns if c.id is not None and c.id not in old}
        if not added:
            return _outcome(known, shape, no_fill())
        # If a new column is of another type now, or was dropped, the catalogue does not say what it held before.
        is_known = is_same_storage and all(
            column is not None and column.mapping is not None and column.mapping.arrow == shape.schema.column(name).type
            for name, column in added.items()
        )
        values = {name: column.value_before for name, column in added.items() if column is not None}
        return _outcome(known, shape, filled(values) if is_known else None)

    def _known(self, relation: p.Relation, name: TableId | None) -> TableSchema | None:
        """Return the last known shape of a table under the name in a message; `name`: its earlier name, if that is known.

        No table with a name that is not UTF-8 is replicated.
        """
        if not relation.is_named:
            return None
        known = self._schemas.get(relation.table)
        if known is None and name is not None and name in self._schemas:
            return replace(self._schemas[name], table=relation.table)
        return known

    def _move(self, name: TableId, new: TableId, known: TableSchema | None) -> None:
        """Give a replicated table another name, unless another one has that already."""
        self._schemas.pop(name, None)
        if known is not None:
            self._schemas.setdefault(new, known)

    def _accepted_as(self, relation_id: int, table: TableId) -> TableIdentity | None:
        """Return the identity under which a table is replicated, perhaps under an earlier name."""
        found = self._accepted.get(table)
        if found is None:
            found = next((i for i in self._accepted.values() if i.object == str(relation_id)), None)
        return found

    def _name_of(self, relation_id: int) -> TableId | None:
        """Return the name under which a relation is replicated that this session has not seen yet."""
        return next((table for table, oid in self._objects.items() if oid == relation_id), None)

    def _has_relation(self, table: TableId) -> bool:
        return any(shape is not None and shape.schema.table == table for shape in self._shapes.values())


def _keep_values(retyped: Sequence[tuple[Column, Column]], *, is_same_storage: bool) -> bool:
    """Return whether rows have the values that they had in columns of another type.

    Without a rewrite the bytes are the same, and so are the values if the type differs in its modifier alone: `int` → `oid` needs no
    rewrite either. After one, the result of `USING` is not known.
    """
    return not retyped or (
        is_same_storage and all(shapes.differ_in_modifier(old.source_type, new.source_type) for old, new in retyped)
    )


def _outcome(known: TableSchema, shape: p.Shape, fill: pa.RecordBatch | None) -> _Outcome:
    """Return a shape with the event that leads to it, unless it is the known one."""
    schema = shape.schema
    if schema == known:
        return _Outcome(shape)
    event = DDLEvent(operation=DDLOperation.ALTER_TABLE, table=known.table, before=known, schema=schema, fill=fill)
    return _Outcome(shape, event)


def _unread(relation: p.Relation, known: TableSchema, types: Sequence[PgType]) -> _Outcome:
    """Return an outcome without columns: the message does not tell which it means. Its event leaves them to the catalogue."""
    event = DDLEvent(operation=DDLOperation.ALTER_TABLE, table=known.table, before=known, schema=known)
    return _Outcome(shapes.shape_of(relation, known, types, None, by_id=False), event, is_read=False)


def _is_as_accepted(accepted: TableIdentity, found: TableIdentity) -> bool:
    return accepted.object == found.object and not accepted.is_redefined_in(found)
