"""Findings about everything that would keep tables from being written, all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from replicator.model.errors import Problem, ReplicatorError
from replicator.model.naming import check_columns, comment_notices
from replicator.model.rules.tables import UNSUPPORTED_TYPE
from replicator.model.schema import TableSchema
from replicator.plugins import format_duration, format_size
from replicator.plugins.kit.ledger import not_ours
from replicator.plugins.target import TargetContext
from replicator_target_bigquery import rules, types
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
        if not any(p.code == UNSUPPORTED_TYPE.code for p in found):
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
            return [rules.BUCKET_MISSING.finding(bucket=bucket, where=self.config.location)]
        if not _is_usable_from(location, self.config.location):
            return [rules.BUCKET_ELSEWHERE.finding(bucket=bucket, where=location, where_2=self.config.location)]
        missing = self.store().missing_rights()
        if missing:
            return [rules.BUCKET_RIGHTS_MISSING.finding(bucket=bucket, missing=", ".join(missing))]
        return []

    def _datasets(self, schemas: Sequence[TableSchema]) -> list[Problem]:
        wanted = dict.fromkeys(f"{self.config.project}.{self.names.dataset(s.table)}" for s in schemas)
        found: list[Problem] = []
        for path in [*wanted, self.names.own_dataset]:
            dataset = self.tables().dataset(path)
            if dataset is None:
                if not self.config.create_datasets:
                    found.append(
                        rules.DATASET_MISSING_0.finding(
                            path=path, where=self.config.location, replace=path.replace(".", ":", 1)
                        )
                    )
                continue
            if str(dataset.location).lower() != self.config.location.lower():
                found.append(
                    rules.DATASET_ELSEWHERE.finding(path=path, where=dataset.location, where_2=self.config.location)
                )
            elif dataset.default_table_expiration_ms or dataset.default_partition_expiration_ms:
                found.append(rules.DATASET_EXPIRES.finding(path=path))
            elif not self.tables().may_create(path):
                found.append(rules.DATASET_RIGHTS_MISSING.finding(path=path))
        return found

    def _existing(self, schema: TableSchema) -> list[Problem]:
        path = self.names.path(schema.table)
        existing = self.tables().find(path)
        named = str(schema.table)
        if existing is None:
            return [self._estimate(named, None)]
        if existing.kind != "TABLE":
            return [rules.OCCUPIED_BY.finding(table=named, path=path, sort=existing.kind.lower())]
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
        return rules.DAILY_ESTIMATE.finding(
            table=named, every=format_duration(every), batches=batches, reads=reads, total=total
        )

    def _hindrances(self, existing: ExistingTable, path: str, named: str) -> list[Problem]:
        found = []
        if existing.wants_partition_filter:
            found.append(rules.PARTITION_FILTER_REQUIRED.finding(table=named, path=path))
        if self.tables().has_row_policies(path):
            found.append(rules.ROW_POLICIES.finding(table=named, path=path))
        if existing.has_policy_tags:
            found.append(rules.POLICY_TAGS.finding(table=named, path=path))
        return found


def _is_usable_from(bucket: str, location: str) -> bool:
    """Return whether BigQuery in `location` can load from a bucket there: it must be the same location; the US loads from anywhere."""
    bucket, location = bucket.lower(), location.lower()
    return location in {bucket, "us"}
