"""The first version of a table, as Spark writes that of an empty one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from replicator_target_delta.lane.actions import Action, transaction
from replicator_target_delta.log.mapping import columns_property
from replicator_target_delta.log.table import COLUMNS
from replicator_target_delta.shape.tables import NewTable

_ALWAYS: Final = ("appendOnly", "invariants")
_CLUSTERED: Final = ("clustering", "domainMetadata")
NO_ZONE: Final = "timestampNtz"
CLUSTERING: Final = "delta.clustering"
_MAPPED: Final = ("columnMapping", "deletionVectors")


def first_version(new: NewTable, ledgers: Mapping[str, int], now_ms: int) -> Sequence[Action]:
    """The actions of version 0, without `commitInfo`.

    Args:
        new: The table.
        ledgers: Its ledger entries.
        now_ms: The time.
    """
    fields = [
        {
            **field,
            "metadata": {
                **field["metadata"],
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{uuid4()}",
            },
        }
        for number, field in enumerate(new.fields, 1)
    ]
    reader = {*_MAPPED, *([NO_ZONE] if any(has_no_zone(field["type"]) for field in fields) else [])}
    writer = {*reader, *_ALWAYS, *(_CLUSTERED if new.cluster_by else [])}
    physical = {field["name"]: field["metadata"]["delta.columnMapping.physicalName"] for field in fields}
    description = {"description": new.comment} if new.comment else {}
    actions: list[Action] = [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": sorted(reader),
                "writerFeatures": sorted(writer),
            }
        },
        {
            "metaData": {
                "id": str(uuid4()),
                **description,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}, ensure_ascii=False),
                "partitionColumns": [],
                "configuration": {
                    **new.properties,
                    COLUMNS: columns_property(fields),
                    "delta.columnMapping.maxColumnId": str(len(fields)),
                },
                "createdTime": now_ms,
            }
        },
    ]
    if new.cluster_by:
        actions.append(clustering_domain([[physical[name]] for name in new.cluster_by]))
    return [*actions, *(transaction(name, version, now_ms) for name, version in ledgers.items())]


def clustering_domain(columns: Sequence[Sequence[str]]) -> Action:
    """The domain metadata of a table that is clustered by columns, under their names in data files."""
    domain = {"clusteringColumns": columns, "domainName": CLUSTERING}
    text = json.dumps(domain, separators=(",", ":"))
    return {"domainMetadata": {"domain": CLUSTERING, "configuration": text, "removed": False}}


def has_no_zone(type_: Any) -> bool:
    """Return whether a type has timestamps without a zone, which are a feature of tables."""
    while not isinstance(type_, str):
        type_ = type_["elementType"]
    return bool(type_ == "timestamp_ntz")
