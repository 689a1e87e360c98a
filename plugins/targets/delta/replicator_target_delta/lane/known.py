"""Tables that the direct writer knows well enough to write them. Pure.

A list of the harmless: what stands on it was examined, everything else sends the table to Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator_target_delta.lane.log import LogState
from replicator_target_delta.log.mapping import ID, MAPPING_MODE, PHYSICAL, TYPE_CHANGES, fields_of

_READER_VERSION: Final = 3
_WRITER_VERSION: Final = 7
WIDENING: Final = "typeWidening"
_READER_FEATURES: Final = frozenset({"columnMapping", "deletionVectors", "timestampNtz", WIDENING})
_WRITER_FEATURES: Final = _READER_FEATURES | {"domainMetadata", "clustering", "appendOnly", "invariants"}
_VECTORS: Final = "delta.enableDeletionVectors"
MAX_ID: Final = "delta.columnMapping.maxColumnId"
WIDENS: Final = "delta.enableTypeWidening"
STATISTICS_COLUMNS: Final = "delta.dataSkippingStatsColumns"
_HARMLESS: Final = frozenset(
    {
        MAX_ID, "delta.autoOptimize.autoCompact", "delta.autoOptimize.optimizeWrite",
        "delta.checkpointInterval", "delta.deletedFileRetentionDuration", "delta.enableExpiredLogCleanup",
        "delta.isolationLevel", "delta.logRetentionDuration", "delta.targetFileSize", "delta.tuneFileSizesForRewrites",
        STATISTICS_COLUMNS, WIDENS,
    }
)  # fmt: skip
_REQUIRED: Final = {MAPPING_MODE: "name", _VECTORS: "true"}
FIELD_METADATA: Final = frozenset({ID, PHYSICAL, TYPE_CHANGES, "comment"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """A column of the table: its name there, and its name in data files."""

    name: str
    physical: str
    id: int
    nullable: bool


def known_columns(state: LogState, fields: Sequence[Mapping[str, Any]]) -> Sequence[TargetColumn]:
    """The table's columns, if the table is one that the direct writer can write.

    Args:
        state: State of the table.
        fields: Columns that it should have (`ddl.NewTable.fields`).

    Raises:
        EngineNeededError: It is not.
    """
    columns = columns_as_found(state)
    found = fields_of(state.metadata)
    if added := {field["name"] for field in found} - {field["name"] for field in fields}:
        raise EngineNeededError(f"somebody else added the column {min(added)}")
    if [_shape(field) for field in found] != [_shape(field) for field in fields]:
        raise EngineNeededError("the table's columns are not those of the source")
    return columns


def columns_as_found(state: LogState) -> Sequence[TargetColumn]:
    """The table's columns, if the direct writer knows everything else about it.

    Raises:
        EngineNeededError: It does not.
    """
    if state.unknown is not None:
        raise EngineNeededError(state.unknown)
    _check_protocol(state.protocol)
    _check_properties(state.properties)
    if state.metadata.get("partitionColumns"):
        raise EngineNeededError("the table is partitioned")
    if (state.metadata.get("format") or {}).get("provider") != "parquet":
        raise EngineNeededError("the table's files are not Parquet")
    found = fields_of(state.metadata)
    for field in found:
        if unknown := field["metadata"].keys() - FIELD_METADATA:
            raise EngineNeededError(f"a column has {min(unknown)}")
    return [
        TargetColumn(
            name=field["name"],
            physical=field["metadata"][PHYSICAL],
            id=field["metadata"][ID],
            nullable=field["nullable"],
        )
        for field in found
    ]


def _check_protocol(protocol: Mapping[str, Any]) -> None:
    versions = (protocol.get("minReaderVersion"), protocol.get("minWriterVersion"))
    if versions != (_READER_VERSION, _WRITER_VERSION):
        raise EngineNeededError(f"the table has protocol {versions[0]}, {versions[1]}")
    for features, known in (("readerFeatures", _READER_FEATURES), ("writerFeatures", _WRITER_FEATURES)):
        if unknown := set(protocol.get(features) or ()) - known:
            raise EngineNeededError(f"the table has the feature {min(unknown)}")


def _check_properties(properties: Mapping[str, str]) -> None:
    for name, value in _REQUIRED.items():
        if properties.get(name) != value:
            raise EngineNeededError(f"the table's property {name} is not {value}")
    for name in properties:
        # Those of users and of ours mean nothing to Delta.
        if name.lower().startswith("delta.") and name not in _HARMLESS and name not in _REQUIRED:
            raise EngineNeededError(f"the table has the property {name}")


def _shape(field: Mapping[str, Any]) -> tuple[Any, ...]:
    return (field["name"], field["type"], field["nullable"])
