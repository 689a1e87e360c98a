"""Builds OpenLineage events, with its client's own classes. Loaded only if there is lineage. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any, Final

from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.generated import (
    column_lineage_dataset,
    datasource_dataset,
    error_message_run,
    job_type_job,
    lifecycle_state_change_dataset,
    schema_dataset,
)
from openlineage.client.serde import Serde

from replicator.config import TableOptions
from replicator.model.schema import TableId, TableSchema, type_to_text
from replicator.plugins.lineage import DatasetName, SupportsLineage
from replicator.projection.columns import Projection
from replicator.service.lineage.advance import Due

PRODUCER: Final = f"https://pypi.org/project/replicator/{version('replicator')}"
_TARGET_COLUMNS: Final = (
    ("_sequence_num", "int64", None),
    ("_is_deleted", "bool", "deletes"),
    ("_source_timestamp", "timestamp", "time"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of source and target. `source_table`: its name in the source. `projection`: what lies between the two."""

    table: TableId
    source_table: TableId
    schema: TableSchema | None
    projection: Projection
    options: TableOptions


def make(
    due: Due, table: Table, source: SupportsLineage, target: SupportsLineage, *, job: tuple[str, str], now: datetime
) -> RunEvent:
    """Return the event of a table. `job`: its namespace and the replicator's name."""
    read, written = source.dataset_name(table.source_table), target.dataset_name(table.table)
    facets: dict[str, Any] = {}
    if due.error is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(due.error, "Python", producer=PRODUCER)
    return RunEvent(
        eventTime=now.isoformat(),
        producer=PRODUCER,
        eventType=RunState[due.event.value],
        run=Run(runId=str(due.run_id), facets=facets),
        job=Job(
            namespace=job[0],
            name=f"{job[1]}.{table.table}",
            facets={
                "jobType": job_type_job.JobTypeJobFacet(
                    processingType="STREAMING", integration="REPLICATOR", jobType="TABLE", producer=PRODUCER
                )
            },
        ),
        inputs=[InputDataset(read.namespace, read.name, facets=_of_source(read, table))],
        outputs=[OutputDataset(written.namespace, written.name, facets=_of_target(written, read, table, target, due))],
    )


def as_json(event: RunEvent) -> str:
    """Return an event as one line."""
    return Serde.to_json(event)


def _of_source(name: DatasetName, table: Table) -> dict[str, Any]:
    facets: dict[str, Any] = {"dataSource": _data_source(name)}
    if table.schema is not None:
        fields = [
            schema_dataset.SchemaDatasetFacetFields(
                name=column.name, type=column.source_type, description=column.comment, ordinal_position=position
            )
            for position, column in enumerate(table.schema.columns, start=1)
        ]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER)
    return facets


def _of_target(name: DatasetName, read: DatasetName, table: Table, target: SupportsLineage, due: Due) -> dict[str, Any]:
    facets: dict[str, Any] = {"dataSource": _data_source(name)}
    if due.is_altered:
        state = lifecycle_state_change_dataset
        facets["lifecycleStateChange"] = state.LifecycleStateChangeDatasetFacet(
            state.LifecycleStateChange.ALTER, producer=PRODUCER
        )
    if table.schema is None:
        return facets
    held = held_columns(table, target)
    columns = [(there, type_) for _, there, type_ in held]
    columns += [(there, type_) for there, type_, needs in _TARGET_COLUMNS if _has(table.options, needs)]
    facets["schema"] = schema_dataset.SchemaDatasetFacet(
        fields=[
            schema_dataset.SchemaDatasetFacetFields(name=there, type=type_, ordinal_position=position)
            for position, (there, type_) in enumerate(columns, start=1)
        ],
        producer=PRODUCER,
    )
    lineage = column_lineage_dataset
    facets["columnLineage"] = lineage.ColumnLineageDatasetFacet(
        fields={
            there: lineage.Fields(
                inputFields=[
                    lineage.InputField(read.namespace, read.name, here, transformations=[_transformation(table, here)])
                ]
            )
            for here, there, _ in held
            if here is not None
        },
        producer=PRODUCER,
    )
    return facets


def _transformation(table: Table, column: str) -> Any:
    """Return what becomes of a column's values on their way."""
    entry = table.projection.of(column)
    make = column_lineage_dataset.Transformation
    if entry is None or entry.mask is None:
        return make(type="DIRECT", subtype="IDENTITY", masking=False)
    return make(type="DIRECT", subtype="TRANSFORMATION", description=entry.mask, masking=True)


def held_columns(table: Table, target: SupportsLineage) -> list[tuple[str | None, str, str]]:
    """Return for each column of the target: its source column (None: dropped there), its name and its type."""
    assert table.schema is not None, "asked of tables that have a shape"
    found: list[tuple[str | None, str, str]] = [
        (column.name, target.column_name(held.name), type_to_text(held.type))
        for column, held in table.projection.pairs(table.schema)
    ]
    found += [(None, target.column_name(column.name), type_to_text(column.type)) for column in table.schema.kept]
    return found


def _has(options: TableOptions, needs: str | None) -> bool:
    return {"deletes": options.deletes == "soft", "time": options.source_timestamp}.get(needs or "", True)


def _data_source(name: DatasetName) -> Any:
    return datasource_dataset.DatasourceDatasetFacet(name=name.namespace, uri=name.namespace, producer=PRODUCER)
