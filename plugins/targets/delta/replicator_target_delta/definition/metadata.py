"""A table's metadata after an ALTER_TABLE. Pure.

Columns are mapped by name: data files call a column the same for as long as it lives, even if it is renamed in the table. So a column
that is renamed keeps its values, and one that is dropped goes with the metadata alone. A new column gets a name that no file has,
even if one of the same name was dropped before: in older files it is NULL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from replicator.model.alteration import Steps
from replicator.model.events import SEQUENCE_NUM
from replicator.model.naming import folded
from replicator_target_delta.lane.creation import CLUSTERING, NO_ZONE, clustering_domain, has_no_zone
from replicator_target_delta.lane.known import (
    FIELD_METADATA,
    MAX_ID,
    STATISTICS_COLUMNS,
    WIDENING,
    WIDENS,
)
from replicator_target_delta.log.mapping import ID, MAPPING_MODE, PHYSICAL, TYPE_CHANGES, columns_property, fields_of
from replicator_target_delta.log.store import CONSTRAINT, obstacle
from replicator_target_delta.log.table import COLUMNS, SCHEMA, TableLog
from replicator_target_delta.shape.tables import STATISTICS_MAX, NewTable, listed, listed_names

_STATISTICS_COUNT: Final = "delta.dataSkippingNumIndexedCols"

Action = Mapping[str, Any]
Field = Mapping[str, Any]


class RefusedError(Exception):
    """The table is not one whose columns can be changed so. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """A table's metadata afterwards.

    Attributes:
        actions: Actions to write into the log.
        metadata: The `metaData` among them.
        fields: The columns.
        origin: Column → its name before; None: it is new.
    """

    actions: Sequence[Action]
    metadata: Mapping[str, Any]
    fields: Sequence[Field]
    origin: Mapping[str, str | None]

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        properties: Mapping[str, str] = self.metadata["configuration"]
        return properties


def widened(actual: NewTable, wanted: NewTable, steps: Steps) -> Sequence[str]:
    """The columns that get another type."""
    before = {field["name"]: field["type"] for field in actual.fields}
    origin = {field["name"]: steps.origin.get(field["name"], field["name"]) for field in wanted.fields}
    now = {field["name"]: field["type"] for field in wanted.fields}
    return [name for name, old in origin.items() if old is not None and before[old] != now[name]]


def altered(log: TableLog, actual: NewTable, wanted: NewTable, steps: Steps, *, keeps_files: bool) -> Altered:
    """Change the table's metadata from one shape to the other.

    Columns that are not ours, which a user has added, stay after ours.

    Args:
        log: The table.
        actual: The shape in which it was made, or to which it was altered.
        wanted: The shape that it is to have.
        steps: Steps from the one to the other. Types become wider ones only (`types.widens`).
        keeps_files: Data files stay as they are, also those that have a column in the type that it had.

    Raises:
        RefusedError: It has something that is not known here, or has not the shape in which it was made.
    """
    _check(log)
    found: dict[str, Field] = {field["name"]: field for field in fields_of(log.metadata)}
    before = {field["name"]: field for field in actual.fields}
    for name, field in before.items():
        if name not in found or found[name]["type"] != field["type"]:
            raise RefusedError(f"the table has no column {name}, or one of another type")
    origin = {field["name"]: steps.origin.get(field["name"], field["name"]) for field in wanted.fields}
    is_mixed = bool(widened(actual, wanted, steps)) and keeps_files
    # Delta wants to know of each change of a type for as long as the feature is on.
    is_recorded = is_mixed or log.properties.get(WIDENS) == "true"
    fields = _columns(wanted, origin, found, before, _last_id(log), is_recorded=is_recorded)
    strangers = [field for name, field in found.items() if name not in before]
    if clash := {folded(field["name"]) for field in strangers} & {folded(name) for name in origin}:
        raise RefusedError(f"somebody has added a column {min(clash)}")
    columns = columns_property(fields)
    fields += strangers
    origin |= {field["name"]: field["name"] for field in strangers}
    domain = _domain(log, fields)
    last_id = max(field["metadata"][ID] for field in fields)
    configuration = {
        **_with_statistics(log.properties, origin, _clustered_by(domain, fields)),
        SCHEMA: wanted.properties[SCHEMA],
        COLUMNS: columns,
        MAX_ID: str(max(last_id, _last_id(log))),
        **({WIDENS: "true"} if is_mixed else {}),
    }
    metadata = {
        **{name: value for name, value in log.metadata.items() if value is not None},
        "schemaString": json.dumps({"type": "struct", "fields": fields}, ensure_ascii=False),
        "configuration": configuration,
    }
    actions = [*_protocol(log, fields, is_mixed=is_mixed), {"metaData": metadata}]
    if domain is not None and domain != _clustering(log):
        actions.append(clustering_domain(domain))
    return Altered(actions=actions, metadata=metadata, fields=fields, origin=origin)


def _check(log: TableLog) -> None:
    """Refuse a table with anything unknown that may depend on a column."""
    if (unknown := obstacle(log)) is not None:
        raise RefusedError(f"the table has the {unknown}")
    if constraints := [name for name in log.properties if name.lower().startswith(CONSTRAINT)]:
        raise RefusedError(f"the table has the constraint {constraints[0].split('.', 2)[-1]}")
    if log.metadata.get("partitionColumns"):
        raise RefusedError("the table is partitioned")
    if log.properties.get(MAPPING_MODE) != "name":
        raise RefusedError("the table's columns are not mapped by name")
    for field in fields_of(log.metadata):
        if unknown_keys := field["metadata"].keys() - FIELD_METADATA:
            raise RefusedError(f"the column {field['name']} has {min(unknown_keys)}")
        if not {ID, PHYSICAL} <= field["metadata"].keys():
            raise RefusedError(f"the column {field['name']} has no name in data files")


def _columns(
    wanted: NewTable,
    origin: Mapping[str, str | None],
    found: Mapping[str, Field],
    before: Mapping[str, Field],
    last_id: int,
    *,
    is_recorded: bool,
) -> list[Field]:
    columns: list[Field] = []
    for field in wanted.fields:
        old = origin[field["name"]]
        if old is None:
            last_id += 1
            mapping = {ID: last_id, PHYSICAL: f"col-{uuid4()}"}
            columns.append({**field, "metadata": {**field["metadata"], **mapping}})
            continue
        comment = field["metadata"].get("comment")
        metadata = dict(found[old]["metadata"])
        if comment != before[old]["metadata"].get("comment"):
            metadata["comment"] = comment
        metadata = {name: value for name, value in metadata.items() if value is not None}
        if field["type"] != found[old]["type"] and is_recorded:
            change = {"toType": field["type"], "fromType": found[old]["type"]}
            metadata[TYPE_CHANGES] = [*metadata.get(TYPE_CHANGES, ()), change]
        columns.append({**found[old], "name": field["name"], "type": field["type"], "metadata": metadata})
    return columns


def _last_id(log: TableLog) -> int:
    given, ids = log.properties.get(MAX_ID, "0"), [int(field["metadata"][ID]) for field in fields_of(log.metadata)]
    return max([int(given) if given.isdigit() else 0, *ids])


def _clustering(log: TableLog) -> list[list[str]] | None:
    """The columns that the table is clustered by, as data files call them; None if it is not."""
    text = log.domains.get(CLUSTERING)
    columns: list[list[str]] | None = None if text is None else json.loads(text)["clusteringColumns"]
    return columns


def _domain(log: TableLog, fields: Sequence[Field]) -> list[list[str]] | None:
    """The same without dropped columns: a user may have chosen others than the key."""
    there = {field["metadata"][PHYSICAL] for field in fields}
    columns = _clustering(log)
    return None if columns is None else [path for path in columns if path[0] in there]


def _clustered_by(domain: list[list[str]] | None, fields: Sequence[Field]) -> Sequence[str]:
    names = {field["metadata"][PHYSICAL]: field["name"] for field in fields}
    return [names[path[0]] for path in domain or ()]


def _with_statistics(
    properties: Mapping[str, str], origin: Mapping[str, str | None], clustered_by: Sequence[str]
) -> Mapping[str, str]:
    """Properties that name the columns that have statistics as they are called now; of many columns few have some (`ddl.new_table`)."""
    others = {name: value for name, value in properties.items() if name != STATISTICS_COLUMNS}
    text = properties.get(STATISTICS_COLUMNS)
    if text is None:
        if len(origin) <= STATISTICS_MAX or _STATISTICS_COUNT in properties:
            return others
        return {**others, STATISTICS_COLUMNS: listed([*clustered_by, SEQUENCE_NUM])}
    now = {old.lower(): new for new, old in origin.items() if old is not None}
    names = [now[name.lower()] for name in listed_names(text) if name.lower() in now]
    return {**others, STATISTICS_COLUMNS: listed(names)} if names else others


def _protocol(log: TableLog, fields: Sequence[Field], *, is_mixed: bool) -> list[Action]:
    """The protocol, where the table gets a feature: its first timestamp without a zone, or its first data files in an older type."""
    writers, readers = (list(log.protocol.get(name) or ()) for name in ("writerFeatures", "readerFeatures"))
    needed = {
        *([NO_ZONE] if any(has_no_zone(field["type"]) for field in fields) else []),
        *([WIDENING] if is_mixed else []),
    }
    if needed <= {*writers}:
        return []
    if (log.protocol.get("minReaderVersion"), log.protocol.get("minWriterVersion")) != (3, 7):
        raise RefusedError(f"the table's protocol is too old for {min(needed)}")
    features = {"readerFeatures": sorted({*readers, *needed}), "writerFeatures": sorted({*writers, *needed})}
    return [{"protocol": {**log.protocol, **features}}]
