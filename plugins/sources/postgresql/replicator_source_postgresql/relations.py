"""What the relations of the stream are: which replicated table each is, in which shape, and what changed about it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from replicator.model.errors import TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.isolation import table_error
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.arrow import Longs
from replicator_source_postgresql import pgoutput as p
from replicator_source_postgresql.messages import HEADER, Part
from replicator_source_postgresql.types import TypeInfo
from replicator_source_postgresql.wire import MalformedError


@dataclass(slots=True)
class RareEvents:
    """What the rare messages of a pull amount to, and where they end it."""

    stop: int
    ddl: list[DDLEvent] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    errors: dict[TableId, TableError] = field(default_factory=dict)


class Relations:
    """The relations that one stream has described.

    Args:
        schemas: The replicated tables in their last known shapes.
        objects: The oids under which tables are replicated.
        resolve_types: See `PgLogReader`.
    """

    def __init__(
        self,
        schemas: Mapping[TableId, TableSchema],
        objects: Mapping[TableId, int],
        resolve_types: Callable[[Collection[int]], Mapping[int, TypeInfo]],
    ) -> None:
        self._schemas = dict(schemas)
        self._objects = objects
        self._resolve_types = resolve_types
        self._infos: dict[int, TypeInfo] = {}
        # Relation id → shape; None for tables that are not replicated.
        self._shapes: dict[int, p.Shape | None] = {}
        # Relation id → name, of every table that was described.
        self._names: dict[int, TableId] = {}

    def name(self, part: Part, index: int) -> TableId:
        """The table of a row or Relation message."""
        return self._names[int(part.frames.int32(part.frames.starts[[index]] + HEADER + 1)[0]) & 0xFFFFFFFF]

    def shapes_of(self, part: Part, rows: npt.NDArray[np.int64]) -> tuple[list[p.Shape], Longs]:
        """The shapes that occur, and for each row the number of its own; -1 where its table is not replicated."""
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

    def take_relation(self, relation: p.Relation, index: int, events: RareEvents) -> None:
        """Record what the following rows look like; a change ends the pull, before this message if rows of the old shape may precede."""
        old = self._shapes.get(relation.id)
        # No table with a name that is not UTF-8 is replicated.
        known = self._schemas.get(relation.table) if relation.is_named else None
        shape, error = (None, None) if known is None else self._try_shape(relation, known)
        is_new = relation.id not in self._shapes and not self._has_relation(relation.table)
        is_same = relation.id in self._shapes and error is None and shape == old
        if not is_new and not is_same and index > 0:
            events.stop = index
            return
        if error is not None:
            events.errors[relation.table] = error
            self.drop(relation.table)
        name = old.schema.table if old is not None else self._name_of(relation.id)
        if name is not None and name != relation.table:
            events.ddl.append(DDLEvent(operation=DDLOperation.RENAME_TABLE, table=name, new_table=relation.table))
        if known is not None and self._objects.get(relation.table, relation.id) != relation.id:
            events.ddl.append(DDLEvent(operation=DDLOperation.CREATE_TABLE, table=relation.table, schema=known))
        for relation_id, other in list(self._shapes.items()):
            if shape is not None and other is not None and other.schema.table == relation.table:
                del self._shapes[relation_id]
        self._shapes[relation.id] = shape
        self._names[relation.id] = relation.table
        if shape is not None and shape.schema is not known:
            self._schemas[relation.table] = shape.schema
            events.ddl.append(DDLEvent(operation=DDLOperation.ALTER_TABLE, table=relation.table, schema=shape.schema))
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
        """Replicate a table no longer; its rows are skipped from here on."""
        self._schemas.pop(table, None)
        for relation_id, shape in self._shapes.items():
            if shape is not None and shape.schema.table == table:
                self._shapes[relation_id] = None

    def _try_shape(self, relation: p.Relation, known: TableSchema) -> tuple[p.Shape | None, TableError | None]:
        """The shape, or why its table fails."""
        try:
            return self._shape(relation, known), None
        except Exception as error:
            ours = table_error(error, relation.table, "reading its columns")
            if ours is None:
                raise
            return None, ours

    def _shape(self, relation: p.Relation, known: TableSchema) -> p.Shape:
        missing = p.type_oids(relation) - self._infos.keys()
        if missing:
            self._infos.update(self._resolve_types(missing))
        return p.shape_of(relation, known, self._infos)

    def _name_of(self, relation_id: int) -> TableId | None:
        """Under which name a relation is replicated that this session has not seen yet."""
        return next((table for table, oid in self._objects.items() if oid == relation_id), None)

    def _has_relation(self, table: TableId) -> bool:
        return any(shape is not None and shape.schema.table == table for shape in self._shapes.values())
