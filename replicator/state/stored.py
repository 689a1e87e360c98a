"""Conversions of `replicator.model` values to JSON documents and columns of the state store."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import PlainSerializer, PlainValidator

from replicator.model.events import DDLEvent, JournalEvent, SnapshotEvent, event_from_json
from replicator.model.identity import TableIdentity
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema

T = TypeVar("T")


def _read(kind: type[T] | tuple[type[T], ...], read: Callable[[Any], T]) -> Callable[[Any], T]:
    """Read a stored value; an instance of the kind stays unchanged."""

    def validate(value: Any) -> T:
        if isinstance(value, kind):
            return value
        try:
            return read(value)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    return validate


@lru_cache(maxsize=4096)
def _table_id(text: str) -> TableId:
    return TableId.parse(text)


if TYPE_CHECKING:
    StoredTableId = TableId
    StoredSchema = TableSchema
    StoredIdentity = TableIdentity
    StoredOffset = Offset
    StoredEvent = JournalEvent
else:
    # Of `Any`: pydantic would otherwise look into the classes, though it never reads or writes their fields.
    StoredTableId = Annotated[Any, PlainValidator(_read(TableId, _table_id)), PlainSerializer(str)]
    StoredSchema = Annotated[
        Any, PlainValidator(_read(TableSchema, TableSchema.from_json)), PlainSerializer(TableSchema.to_json)
    ]
    StoredIdentity = Annotated[
        Any, PlainValidator(_read(TableIdentity, TableIdentity.from_json)), PlainSerializer(TableIdentity.to_json)
    ]
    StoredOffset = Annotated[
        Any, PlainValidator(_read(Offset, Offset)), PlainSerializer(lambda offset: offset.text, return_type=str)
    ]
    StoredEvent = Annotated[
        Any,
        PlainValidator(_read((DDLEvent, SnapshotEvent), event_from_json)),
        PlainSerializer(lambda event: event.to_json(), return_type=dict[str, Any]),
    ]
