"""What a difference between the source's catalogue and what capture accepted means. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from replicator.model.errors import SchemaConflictError
from replicator.model.schema import TableSchema
from replicator.plugins.source import TableDescription

STORAGE: Final = "filenode"
"""The part of an identity that a TRUNCATE changes.

It alone: a table whose partitions changed their storage may have lost rows without a trace.
"""

_TRUNCATED_BY: Final = "truncated_by"


class Change(StrEnum):
    """What became of a table."""

    NONE = "none"
    EXPLAINED = "explained"
    ASK_AGAIN = "ask_again"
    OBJECT = "object"
    KEY = "key"
    COLUMNS = "columns"
    MISSING = "missing"


def same_columns(a: TableSchema, b: TableSchema) -> bool:
    """Whether rows of one fit the other: names and types in order. Nullability and comments do not matter."""
    return [(c.name, c.type) for c in a.columns] == [(c.name, c.type) for c in b.columns]


def same_shape(a: TableSchema, b: TableSchema) -> bool:
    """Whether changes of one can be written as changes of the other: the columns and the key."""
    return a.key == b.key and same_columns(a, b)


def same_identity(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> bool:
    """Whether two identities are equal as JSON."""
    return a is not None and b is not None and not different_parts(a, b)


def different_parts(a: Mapping[str, Any], b: Mapping[str, Any]) -> frozenset[str]:
    """The parts of two identities that are not equal as JSON."""
    left, right = _normal(a), _normal(b)
    return frozenset(
        part
        for part in left.keys() | right.keys()
        if left.get(part) != right.get(part) or (part in left) != (part in right)
    )


def judge(
    schema: TableSchema, identity: Mapping[str, Any], found: TableDescription | None, *, truncates_since: int
) -> Change:
    """Compare a table with what the catalogue said of it, once everything that was visible then has been delivered.

    Args:
        schema: As followed.
        identity: As last accepted.
        found: The catalogue's word; None: the table is not there.
        truncates_since: TRUNCATEs delivered since the catalogue was asked. One of these may or may not be in `found`:
            ask again, until none comes in between.
    """
    if found is None:
        return Change.MISSING
    # A part that an older version did not know is learned.
    new = found.identity.keys() - identity.keys() if identity else frozenset()
    parts = different_parts(identity, found.identity) - new
    if not same_columns(schema, found.schema):
        return Change.COLUMNS
    if schema.key != found.schema.key:
        return Change.KEY
    if not parts:
        return Change.EXPLAINED if new else Change.NONE
    if parts == {STORAGE} and isinstance(storage := identity.get(STORAGE), Mapping):
        if truncates_since:
            return Change.ASK_AGAIN
        # Exactly one storage is explained: the one that the TRUNCATE's transaction made, and made by that alone.
        by = storage.get(_TRUNCATED_BY)
        return Change.EXPLAINED if by is not None and by == found.storage_by else Change.OBJECT
    return Change.OBJECT


def columns_changed(before: TableSchema, after: TableSchema | None) -> SchemaConflictError:
    """Why a table fails whose columns changed."""
    return SchemaConflictError(
        f"its columns changed: {_difference(before, after)}." if after else "its columns changed.",
        code="schema_changed",
        table=str(before.table),
        action="Run `replicator snapshot NAME TABLE`: it takes the table with its new columns.",
    )


def truncated(identity: Mapping[str, Any], transaction: str | None) -> Mapping[str, Any]:
    """What is accepted of a table once its TRUNCATE was delivered.

    The same object, whose storage is to be learned from the catalogue: the one that `transaction` made. Durable with the TRUNCATE.
    """
    return {**identity, STORAGE: {_TRUNCATED_BY: transaction}} if STORAGE in identity else identity


def _normal(identity: Mapping[str, Any]) -> dict[str, Any]:
    normal: dict[str, Any] = json.loads(json.dumps(dict(identity), sort_keys=True, default=str))
    return normal


def _difference(before: TableSchema, after: TableSchema) -> str:
    old = {c.name: c.source_type for c in before.columns}
    new = {c.name: c.source_type for c in after.columns}
    parts = [f"{n} added" for n in new if n not in old] + [f"{n} dropped" for n in old if n not in new]
    parts += [f"{n} was {old[n]} and is {new[n]}" for n in old if n in new and old[n] != new[n]]
    return ", ".join(parts) or "their order or Arrow types"
