"""Datasets and tables through BigQuery's REST API: read, and created where they are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from google.api_core import exceptions as api
from google.cloud import bigquery

from replicator.model.errors import TargetUnavailableError
from replicator.model.events import (
    ABSENT,
    BEFORE,
    IS_DELETED,
    IS_SNAPSHOT,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    SOURCE_TIMESTAMP,
    TRANSACTION_ID,
)
from replicator.model.naming import cut
from replicator.model.schema import TableSchema
from replicator.plugins.kit.columns import Made
from replicator.plugins.target import TargetTable
from replicator_target_bigquery.alteration import DESCRIPTION_MAX as DESCRIPTION_MAX  # noqa: PLC0414
from replicator_target_bigquery.calls.clients import READ_RETRY, TIMEOUT_S
from replicator_target_bigquery.config import BigQueryConfig, TableConfig
from replicator_target_bigquery.names import Names, staged_fields
from replicator_target_bigquery.shape import ColumnShape, Shape
from replicator_target_bigquery.statements import everything
from replicator_target_bigquery.types import clustering_columns, staged_type

UUID_LABEL: Final = "replicator_uuid"
INCARNATION_LABEL: Final = "replicator_incarnation"
SHAPE_LABEL: Final = "replicator_shape"
_KEY_COLUMNS_MAX: Final = 16
_KEY_TYPES: Final = frozenset({"BOOL", "BYTES", "DATE", "DATETIME", "INT64", "NUMERIC", "STRING", "TIMESTAMP"})
TABLE_DESCRIPTION_MAX: Final = 16_000
# A query's schema has the names of legacy SQL.
_LEGACY: Final = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingTable:
    """A table that exists: its owner, its age and size, and properties that matter to readers and writers.

    `layout` is how it is partitioned and clustered, as far as BigQuery compares that when one table replaces another; `columns` has name,
    type and collation of each, `modes` their modes by name.
    """

    owner: str | None
    incarnation: int | None
    shape: str | None
    made_at_ms: int
    bytes: int
    kind: str
    wants_partition_filter: bool
    has_policy_tags: bool
    labels: Mapping[str, str]
    description: str | None
    layout: tuple[Any, ...]
    columns: Sequence[tuple[str, str, str]]
    modes: Mapping[str, str]
    clustered_by: Sequence[str]
    partitioned_by: str | None
    primary_key: Sequence[str]

    @property
    def fixed(self) -> Sequence[str]:
        """Columns that BigQuery neither renames, nor drops, nor retypes."""
        partitioned_by = [self.partitioned_by] if self.partitioned_by else []
        return [*self.clustered_by, *partitioned_by, *self.primary_key]


class TableClient:
    """Reads datasets and tables, and creates them."""

    def __init__(self, client: Any, config: BigQueryConfig, names: Names) -> None:
        self._client = client
        self._config = config
        self._names = names

    def dataset(self, path: str) -> Any | None:
        """Return a dataset; None if there is none."""
        try:
            return self._client.get_dataset(path, retry=READ_RETRY, timeout=TIMEOUT_S)
        except api.NotFound:
            return None

    def ensure_dataset(self, path: str) -> None:
        """Make a dataset if it does not exist."""
        if self.dataset(path) is not None:
            return
        if not self._config.create_datasets:
            raise TargetUnavailableError(
                f"There is no dataset {path}, and target.create_datasets is false.",
                code="dataset_missing",
                action="Create it; it is retried automatically.",
            )
        project, _, name = path.rpartition(".")
        resource: dict[str, Any] = {
            "datasetReference": {"projectId": project, "datasetId": name},
            "location": self._config.location,
            "description": "Created by Replicator.",
            "labels": dict(self._config.labels),
        }
        if self._config.time_travel is not None:
            resource["maxTimeTravelHours"] = str(self._config.time_travel.days * 24)
        if self._config.kms_key is not None:
            resource["defaultEncryptionConfiguration"] = {"kmsKeyName": self._config.kms_key}
        self._client.create_dataset(
            bigquery.Dataset.from_api_repr(resource), exists_ok=True, retry=None, timeout=TIMEOUT_S
        )

    def find(self, path: str) -> ExistingTable | None:
        """Return a table; None if there is none."""
        try:
            table = self._client.get_table(path, retry=READ_RETRY, timeout=TIMEOUT_S)
        except api.NotFound:
            return None
        labels = table.labels or {}
        incarnation = labels.get(INCARNATION_LABEL, "")
        key = None if table.table_constraints is None else table.table_constraints.primary_key
        return ExistingTable(
            owner=labels.get(UUID_LABEL),
            incarnation=int(incarnation) if incarnation.isdigit() else None,
            shape=labels.get(SHAPE_LABEL),
            made_at_ms=_milliseconds(table.created),
            bytes=int(table.num_bytes or 0),
            kind=str(table.table_type or "TABLE"),
            wants_partition_filter=bool(table.require_partition_filter),
            has_policy_tags=any(field.policy_tags is not None for field in table.schema),
            labels=dict(labels),
            description=table.description,
            layout=_layout(table),
            columns=[(f.name, f.field_type, f.to_api_repr().get("collation") or "") for f in table.schema],
            modes={f.name: f.mode or "NULLABLE" for f in table.schema},
            clustered_by=list(table.clustering_fields or ()),
            partitioned_by=None if table.time_partitioning is None else table.time_partitioning.field,
            primary_key=[] if key is None else list(key.columns),
        )

    def columns(self, path: str, at: str | None = None) -> Mapping[str, str]:
        """Return a table's columns, name → type, as a statement would see them: a dry run of a query says so, and costs nothing.

        Args:
            path: The path of the table.
            at: A moment of its history, in GoogleSQL. None: now.
        """
        config = bigquery.QueryJobConfig(dry_run=True, use_query_cache=False)
        job = self._client.query(
            everything(path, at), config, location=self._config.location, retry=READ_RETRY, timeout=TIMEOUT_S,
            job_retry=None,
        )  # fmt: skip
        return {field.name: _LEGACY.get(field.field_type, field.field_type) for field in job.schema}

    def made(self, path: str, existing: ExistingTable) -> Made:
        """Return the columns of a table in its order, with their modes."""
        return [(name, type_, existing.modes.get(name, "")) for name, type_ in self.columns(path).items()]

    def create(self, path: str, table: TargetTable, schema: TableSchema, shape: Shape, settings: TableConfig) -> bool:
        """Make a table of the target; False if there is one of that name.

        Columns are nullable except the key's: a column of the source may lose that constraint at any time.
        """
        resource = self.resource(path, table, schema, shape, settings)
        try:
            self._client.create_table(bigquery.Table.from_api_repr(resource), retry=None, timeout=TIMEOUT_S)
        except api.Conflict:
            return False
        return True

    def resource(
        self, path: str, table: TargetTable, schema: TableSchema, shape: Shape, settings: TableConfig
    ) -> dict[str, Any]:
        """Return the table as BigQuery's `tables` resource."""
        fields = [
            {
                "name": c.name,
                "type": c.type,
                "mode": "NULLABLE" if c.key_index is None else "REQUIRED",
                **({"description": cut(c.column.comment, DESCRIPTION_MAX)} if c.column.comment else {}),
                # Keys are compared byte by byte, whatever the dataset's default is.
                **({"collation": ""} if c.type == "STRING" else {}),
            }
            for c in shape.held
        ]
        fields.append(_own(SEQUENCE_NUM, "INT64", "Number of the last change of the row", is_required=True))
        if shape.is_soft:
            fields.append(_own(IS_DELETED, "BOOL", "Whether the row was deleted in the source", is_required=True))
        if shape.options.source_timestamp:
            fields.append(_own(SOURCE_TIMESTAMP, "TIMESTAMP", "Commit time of the last change in the source"))
        json_as = settings.json_as or "string"
        clustering = clustering_columns(schema, settings.cluster_by, json_as)
        resource: dict[str, Any] = {
            "tableReference": _reference(path),
            "schema": {"fields": fields},
            "defaultCollation": "",
            "labels": {
                **self._config.labels,
                UUID_LABEL: table.uuid,
                INCARNATION_LABEL: str(table.incarnation),
                SHAPE_LABEL: shape.mark,
            },
        }
        if schema.comment:
            resource["description"] = cut(schema.comment, TABLE_DESCRIPTION_MAX)
        if clustering:
            resource["clustering"] = {"fields": [self._names.column(name) for name in clustering]}
        if settings.partition_by is not None:
            resource["timePartitioning"] = {
                "type": settings.partition_unit.upper(),
                "field": self._names.column(settings.partition_by),
            }
        if is_primary_key(shape.key):
            resource["tableConstraints"] = {"primaryKey": {"columns": [c.name for c in shape.key]}}
        return self._encrypted(resource)

    def cluster(self, path: str, columns: Sequence[str]) -> None:
        """Set the columns by which new rows of a table are clustered; existing rows stay as they are."""
        table = self._client.get_table(path, retry=READ_RETRY, timeout=TIMEOUT_S)
        table.clustering_fields = list(columns) or None
        self._client.update_table(table, ["clustering_fields"], retry=None, timeout=TIMEOUT_S)

    def create_staging(self, path: str, schema: TableSchema) -> None:
        """Make a staging table that BigQuery removes after a time, if no process does before."""
        expires = datetime.now(UTC) + max(self._config.staging.keep, timedelta(hours=1))
        resource = self._encrypted(
            {
                "tableReference": _reference(path),
                "schema": {"fields": [field.to_api_repr() for field in staging_schema(schema)]},
                "defaultCollation": "",
                "expirationTime": str(_milliseconds(expires)),
            }
        )
        self._client.create_table(bigquery.Table.from_api_repr(resource), exists_ok=True, retry=None, timeout=TIMEOUT_S)

    def may_create(self, dataset: str) -> bool:
        """Return whether tables may be made in a dataset: one is made, and removed at once. BigQuery would remove it in an hour."""
        path = f"{dataset}.replicator_probe_{uuid4().hex}"
        expires = datetime.now(UTC) + timedelta(hours=1)
        resource = {"tableReference": _reference(path), "expirationTime": str(_milliseconds(expires))}
        try:
            self._client.create_table(bigquery.Table.from_api_repr(resource), retry=None, timeout=TIMEOUT_S)
        except api.Forbidden:
            return False
        self.drop(path)
        return True

    def has_row_policies(self, path: str) -> bool:
        """Return whether a table has row-level access policies."""
        project, dataset, table = path.rsplit(".", 2)
        resource = f"/projects/{project}/datasets/{dataset}/tables/{table}/rowAccessPolicies"
        try:
            # The client has no method for it.
            answer = self._client._connection.api_request("GET", resource, timeout=TIMEOUT_S)  # noqa: SLF001
        except api.NotFound:
            return False
        return bool(answer.get("rowAccessPolicies"))

    def rows(self, path: str) -> int | None:
        """Count the rows of a table; None if there is no table."""
        try:
            return int(self._client.get_table(path, retry=READ_RETRY, timeout=TIMEOUT_S).num_rows or 0)
        except api.NotFound:
            return None

    def drop(self, path: str) -> None:
        """Remove a table of our own, if it is there."""
        self._client.delete_table(path, not_found_ok=True, retry=None, timeout=TIMEOUT_S)

    def own_tables(self, prefix: str) -> list[str]:
        """List the paths of the tables in our own dataset whose names begin with `prefix`."""
        try:
            found = list(self._client.list_tables(self._names.own_dataset, retry=READ_RETRY, timeout=TIMEOUT_S))
        except api.NotFound:
            return []
        return [f"{self._names.own_dataset}.{t.table_id}" for t in found if t.table_id.startswith(prefix)]

    def _encrypted(self, resource: dict[str, Any]) -> dict[str, Any]:
        if self._config.kms_key is not None:
            resource["encryptionConfiguration"] = {"kmsKeyName": self._config.kms_key}
        return resource


def is_primary_key(key: Sequence[ColumnShape]) -> bool:
    """Return whether BigQuery is told of the key."""
    return 0 < len(key) <= _KEY_COLUMNS_MAX and all(column.type in _KEY_TYPES for column in key)


def staging_schema(schema: TableSchema) -> list[bigquery.SchemaField]:
    """Return the journal's columns as BigQuery loads them: nothing is left to detection."""

    def record(name: str, columns: list[str]) -> bigquery.SchemaField:
        by_name = {c.name: c for c in schema.columns}
        fields = [bigquery.SchemaField(staged[c], staged_type(by_name[c].type)) for c in columns]
        return bigquery.SchemaField(name, "RECORD", fields=fields)

    everything = [column.name for column in schema.columns]
    staged = staged_fields(schema)
    return [
        bigquery.SchemaField(SEQUENCE_NUM, "INT64"),
        bigquery.SchemaField(OPERATION, "STRING"),
        bigquery.SchemaField(IS_SNAPSHOT, "BOOL"),
        bigquery.SchemaField(SOURCE_TIMESTAMP, "TIMESTAMP"),
        bigquery.SchemaField(TRANSACTION_ID, "STRING"),
        bigquery.SchemaField(ABSENT, "STRING", mode="REPEATED"),
        record(BEFORE, list(schema.key) or everything),
        record(ROW, everything),
    ]


def _layout(table: bigquery.Table) -> tuple[Any, ...]:
    by_time, by_range = table.time_partitioning, table.range_partitioning
    return (
        None if by_time is None else (by_time.type_, by_time.field),
        None if by_range is None else repr(by_range.to_api_repr()),
        tuple(table.clustering_fields or ()),
    )


def _own(name: str, type_: str, description: str, *, is_required: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "type": type_,
        "mode": "REQUIRED" if is_required else "NULLABLE",
        "description": description,
    }


def _reference(path: str) -> dict[str, str]:
    project, dataset, table = path.rsplit(".", 2)
    return {"projectId": project, "datasetId": dataset, "tableId": table}


def _milliseconds(moment: datetime | None) -> int:
    return 0 if moment is None else round(moment.timestamp() * 1000)
