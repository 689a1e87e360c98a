"""Findings about everything that would keep tables from being written, all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from replicator.model.errors import Problem, ReplicatorError, Severity
from replicator.model.naming import check_columns, comment_notices
from replicator.model.schema import TableSchema
from replicator.plugins import format_duration, format_size
from replicator.plugins.kit.ledger import not_ours
from replicator.plugins.target import TargetContext
from replicator_target_bigquery import types
from replicator_target_bigquery.calls.jobs import Jobs
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.errors import FencedAnswer, translated
from replicator_target_bigquery.names import Names, column_problems, table_problems
from replicator_target_bigquery.staging import StagingStore
from replicator_target_bigquery.tables import DESCRIPTION_MAX, TABLE_DESCRIPTION_MAX, ExistingTable, TableClient


@dataclass(frozen=True)
class Assessor:
    """Asks BigQuery and Cloud Storage; changes nothing. The clients are made when they are needed, as that may fail."""

    config: BigQueryConfig
    context: TargetContext
    names: Names
    tables: Callable[[], TableClient]
    jobs: Callable[[], Jobs]
    store: Callable[[], StagingStore]

    def problems(self, schemas: Sequence[TableSchema]) -> Sequence[Problem]:
        """Find all problems."""
        found: list[Problem] = table_problems(self.names, (s.table for s in schemas))
        for schema in schemas:
            found += check_columns(schema)
            found += column_problems(self.names, schema)
            found += comment_notices(schema, TABLE_DESCRIPTION_MAX, DESCRIPTION_MAX)
            found += self._types(schema)
        try:
            with translated():
                found += self._rights()
                found += self._bucket()
                found += self._datasets(schemas)
                for schema in schemas:
                    found += self._existing(schema)
        except ReplicatorError as error:
            found.append(Problem(code=error.code, message=error.message, location="target", action=error.action))
        except FencedAnswer as error:
            raise AssertionError("nothing was asked that a ledger guards") from error
        return found

    def _types(self, schema: TableSchema) -> list[Problem]:
        settings = self.config.table(schema.table)
        json_as = settings.json_as or "string"
        found = types.type_problems(schema, json_as, self.config.unfit_values)
        if not any(p.code == "unsupported_type" for p in found):
            found += types.layout_problems(
                schema, settings.partition_by, settings.partition_unit, settings.cluster_by, json_as
            )
        return found

    def _rights(self) -> list[Problem]:
        """Check that jobs may be run: a dry run needs that privilege. The error that it raises says the rest."""
        self.jobs().dry_run("SELECT 1")
        return []

    def _bucket(self) -> list[Problem]:
        bucket = self.config.staging.bucket
        location = self.store().location()
        if location is None:
            return [
                Problem(
                    code="bucket_missing",
                    message=f"There is no bucket {bucket}, or these credentials may not see it.",
                    location="target.staging.bucket",
                    action=f"Create it: gcloud storage buckets create gs://{bucket} --location={self.config.location}",
                )
            ]
        if not _is_usable_from(location, self.config.location):
            return [
                Problem(
                    code="bucket_elsewhere",
                    message=f"The bucket {bucket} is in {location}, the datasets are in {self.config.location}:"
                    " BigQuery cannot load from there.",
                    location="target.staging.bucket",
                    action=f"Use a bucket in {self.config.location}.",
                )
            ]
        missing = self.store().missing_rights()
        if missing:
            return [
                Problem(
                    code="rights_missing",
                    message=f"The bucket {bucket} lacks privileges for these credentials: {', '.join(missing)}.",
                    location="target.staging.bucket",
                    action=f"Grant the role Storage Object Admin (roles/storage.objectAdmin) on gs://{bucket},"
                    " and Storage Legacy Bucket Reader to see its location.",
                )
            ]
        return []

    def _datasets(self, schemas: Sequence[TableSchema]) -> list[Problem]:
        wanted = dict.fromkeys(f"{self.config.project}.{self.names.dataset(s.table)}" for s in schemas)
        found: list[Problem] = []
        for path in [*wanted, self.names.own_dataset]:
            dataset = self.tables().dataset(path)
            if dataset is None:
                if not self.config.create_datasets:
                    found.append(
                        Problem(
                            code="dataset_missing",
                            message=f"There is no dataset {path}, and target.create_datasets is false.",
                            location="target.dataset",
                            action=f"Create it: bq --location={self.config.location} mk --dataset {path.replace('.', ':', 1)}",
                        )
                    )
                continue
            if str(dataset.location).lower() != self.config.location.lower():
                found.append(
                    Problem(
                        code="dataset_elsewhere",
                        message=f"The dataset {path} is in {dataset.location}, target.location is {self.config.location}.",
                        location="target.location",
                        action="Correct target.location, or choose another target.dataset.",
                    )
                )
            elif dataset.default_table_expiration_ms or dataset.default_partition_expiration_ms:
                found.append(
                    Problem(
                        code="dataset_expires",
                        message=f"The dataset {path} lets tables or partitions expire: tables and ledgers would be deleted.",
                        location="target.dataset",
                        action=f"Run: ALTER SCHEMA `{path}` SET OPTIONS"
                        " (default_table_expiration_days = NULL, default_partition_expiration_days = NULL)",
                    )
                )
            elif not self.tables().may_create(path):
                found.append(
                    Problem(
                        code="rights_missing",
                        message=f"These credentials may not create tables in the dataset {path}.",
                        location="target.dataset",
                        action=f"Grant the role BigQuery Data Editor (roles/bigquery.dataEditor) on {path}.",
                    )
                )
        return found

    def _existing(self, schema: TableSchema) -> list[Problem]:
        path = self.names.path(schema.table)
        existing = self.tables().find(path)
        named = str(schema.table)
        if existing is None:
            return [self._estimate(named, None)]
        if existing.kind != "TABLE":
            return [
                Problem(
                    code="target_occupied",
                    message=f"{path} is a {existing.kind.lower()}.",
                    table=named,
                    action="Move it away, or choose another target.dataset.",
                )
            ]
        is_ours = existing.owner is not None and existing.owner == self.context.uuid
        if not is_ours and self.config.adopt != "replace":
            return [Problem.of(not_ours(schema.table, existing.owner, "target.dataset"))]
        found = [self._estimate(named, existing.bytes if is_ours else None)]
        return found + self._hindrances(existing, path, named) if is_ours else found

    def _estimate(self, named: str, size: int | None) -> Problem:
        """Estimate the highest cost per day of a table that changes all the time, by the bytes that it has now."""
        every = timedelta(seconds=self.context.max_wait_s)
        batches = round(86_400 / max(every.total_seconds(), 1.0))
        reads = "its size, which is unknown" if size is None else format_size(size)
        total = "" if size is None else f": {format_size(size * batches)} a day"
        return Problem(
            code="daily_estimate",
            message=f"With a batch every {format_duration(every)} (apply.max_wait): at most {batches} load jobs and as many merges a "
            f"day; each merge is billed up to {reads}{total}.",
            table=named,
            severity=Severity.NOTICE,
        )

    def _hindrances(self, existing: ExistingTable, path: str, named: str) -> list[Problem]:
        found = []
        if existing.wants_partition_filter:
            found.append(
                Problem(
                    code="partition_filter_required",
                    message=f"{path} has require_partition_filter, and a merge has none.",
                    table=named,
                    action=f"Run: ALTER TABLE `{path}` SET OPTIONS (require_partition_filter = false)",
                )
            )
        if self.tables().has_row_policies(path):
            found.append(
                Problem(
                    code="row_policies",
                    message=f"{path} has row-level access policies: rows that the writer cannot see would be written twice.",
                    table=named,
                    action=f"Drop them (DROP ALL ROW ACCESS POLICIES ON `{path}`), or let views filter the rows.",
                )
            )
        if existing.has_policy_tags:
            found.append(
                Problem(
                    code="policy_tags",
                    message=f"Columns of {path} have policy tags, and a merge reads them.",
                    table=named,
                    action="Give the writer the role Fine-Grained Reader on these tags.",
                    severity=Severity.WARNING,
                )
            )
        return found


def _is_usable_from(bucket: str, location: str) -> bool:
    """Return whether BigQuery in `location` can load from a bucket there: it must be the same location; the US loads from anywhere."""
    bucket, location = bucket.lower(), location.lower()
    return location in {bucket, "us"}
