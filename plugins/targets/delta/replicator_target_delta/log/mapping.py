"""Check that a table's columns are still those that Replicator made. Pure.

A column's name says little: a user can drop a column and add another one of its name, or exchange two names. So the property
`replicator.columns` has two marks of each column of ours: one of its identity in data files (id and physical name), one of its type
and of all other settings but the harmless ones. Every commit of ours that makes or alters the table writes the property. Statements of
others keep it, and RESTORE brings back the one that belongs to the columns which it brings back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from replicator_target_delta.log.table import COLUMNS

MAPPING_MODE: Final = "delta.columnMapping.mode"
ID: Final = "delta.columnMapping.id"
PHYSICAL: Final = "delta.columnMapping.physicalName"
TYPE_CHANGES: Final = "delta.typeChanges"
"""The types that a column had before: older data files have it in one of them."""
_HARMLESS: Final = frozenset({ID, PHYSICAL, TYPE_CHANGES, "comment", "CURRENT_DEFAULT", "EXISTS_DEFAULT"})
"""Settings of a column that change no value. Replicator always names all of its columns, so that no default is used."""

Field = Mapping[str, Any]


def columns_property(fields: Iterable[Field]) -> str:
    """The property for a table with these columns of ours, as the log has them."""
    marks = {field["name"]: _marks(field) for field in fields}
    return json.dumps(marks, separators=(",", ":"))


def fields_of(metadata: Mapping[str, Any]) -> Sequence[Field]:
    """The columns of a table, from its `metaData`."""
    fields: Sequence[Field] = json.loads(metadata["schemaString"])["fields"]
    return fields


def conflict(metadata: Mapping[str, Any]) -> str | None:
    """A sentence about changes of our columns by others; None: there are none that matter.

    Columns that others added, the order of columns, comments, defaults and NOT NULL do not matter.
    """
    text = (metadata.get("configuration") or {}).get(COLUMNS)
    if text is None:
        return f"Its property {COLUMNS} was removed, or the table was replaced."
    expected: Mapping[str, Sequence[str]] = json.loads(text)
    found = {field["name"]: _marks(field) for field in fields_of(metadata)}
    called = {marks[0]: name for name, marks in found.items()}
    said = [
        told for name, marks in expected.items() if (told := _told(name, marks, found.get(name), called.get(marks[0])))
    ]
    return " ".join(said) or None


def _told(name: str, marks: Sequence[str], found: Sequence[str] | None, called: str | None) -> str | None:
    if called is None:
        added = ", and another one of that name was added" if found is not None else ""
        return f"Column {name} was dropped{added}."
    if called != name:
        return f"Column {name} was renamed to {called}."
    return None if found == list(marks) else f"Column {name} got another type or other settings."


def _marks(field: Field) -> list[str]:
    metadata = field["metadata"]
    others = {name: value for name, value in metadata.items() if name not in _HARMLESS}
    return [_mark([metadata.get(ID), metadata.get(PHYSICAL)]), _mark([field["type"], others])]


def _mark(value: object) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=6).hexdigest()
