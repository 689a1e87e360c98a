"""Settings of the `target:` block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from replicator.config import TablePattern
from replicator.model.schema import TableId
from replicator.plugins import ConfigModel, Duration, Size
from replicator.plugins.lineage import DatasetName

if TYPE_CHECKING:
    from replicator.model.errors import Problem
    from replicator.model.figures import Figure
    from replicator.plugins.planning import Price, TableCost, TableLoad

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


class CredentialsConfig(ConfigModel):
    """The credentials of the clients. Default: Google's application default credentials."""

    file: Path | None = Field(
        None,
        description="File of a service account's key, or of the configuration of a workload identity pool.",
    )
    impersonate: str | None = Field(
        None,
        pattern=r"^[^@\s]+@[^@\s]+$",
        description="Service account to act as; the credentials need the privilege to create tokens for it.",
        examples=["replicator@my-project.iam.gserviceaccount.com"],
    )


class StagingConfig(ConfigModel):
    """The location of journal files while BigQuery loads them."""

    bucket: str = Field(
        min_length=3,
        max_length=222,
        pattern=r"^[a-z0-9][a-z0-9._-]*[a-z0-9]$",
        description="Cloud Storage bucket, in the location of the target.",
    )
    prefix: str = Field(
        "replicator",
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_/-]*$",
        description="Folder in the bucket below which files are put.",
    )
    folder: Path | None = Field(
        None,
        description="For emulators: a local folder used instead of Cloud Storage: gs://bucket/x is at <folder>/bucket/x.",
    )
    endpoint: str | None = Field(
        None,
        pattern=r"^https?://.+$",
        description="URL of Cloud Storage's API. Default: Google's public one.",
    )
    keep: Duration = Field(
        timedelta(days=2),
        ge=timedelta(hours=1),
        le=timedelta(days=30),
        description="Time after which a staging table that a crash left behind expires.",
    )


class TableConfig(ConfigModel):
    """Settings of one table. They take effect when the table is created."""

    partition_by: str | None = Field(
        None, description="Column of the source (a date or a timestamp) to partition the table by."
    )
    partition_unit: Literal["hour", "day", "month", "year"] = Field("day", description="What one partition holds.")
    cluster_by: tuple[str, ...] | None = Field(
        None, max_length=4, description="Columns of the source to cluster by. Default: the key."
    )
    json_as: Literal["string", "json"] | None = Field(
        None,
        description="How JSON is stored in this table. Default: target.json_as.",
    )


class BudgetConfig(ConfigModel):
    """Limits on use. Near a limit the pauses between batches grow; no table fails because of it."""

    load_jobs_per_day: int = Field(
        50_000, ge=1, description="Load jobs that this replicator may start in 24 hours; a project may start 100,000."
    )
    bytes_per_day: Size | None = Field(
        None, ge=1, description="Bytes that this replicator's scripts may be billed in 24 hours. Default: no limit."
    )
    maximum_bytes_billed: Size | None = Field(
        None,
        ge=1,
        description="Bytes that one script may be billed. BigQuery refuses a more expensive script without billing it. Then the "
        "batch is halved if that helps; otherwise the table waits, and status shows why. BigQuery bills at least 10 MiB "
        "for each table that a statement reads.",
    )


class BigQueryConfig(ConfigModel):
    """Project, datasets, and tables. Default of `apply.max_wait`: 5m after a table's last batch."""

    project: str = Field(min_length=1, pattern=r"^[a-z0-9.:-]+$", description="Project that holds the datasets.")
    billing_project: str | None = Field(
        None, pattern=r"^[a-z0-9.:-]+$", description="Project that runs and pays for the jobs. Default: project."
    )
    location: str = Field(
        min_length=2,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Location of all datasets.",
        examples=["EU", "us-central1"],
    )
    dataset: str = Field(
        "{namespace}",
        min_length=1,
        description="Dataset of a table. {namespace} is its schema (PostgreSQL) or database (MySQL) in the source.",
        examples=["{namespace}", "shop_{namespace}"],
    )
    own_dataset: str = Field(
        "_replicator",
        pattern=r"^[A-Za-z0-9_]{1,1024}$",
        description="Dataset of ledgers and staging tables; readers of the tables need no access to it.",
    )
    create_datasets: bool = Field(True, description="Whether to create missing datasets.")
    staging: StagingConfig = Field(description="Where journal files are stored while BigQuery loads them.")
    credentials: CredentialsConfig = Field(
        CredentialsConfig(), description="The credentials of the clients. Default: application default credentials."
    )
    endpoint: str | None = Field(
        None,
        description="URL of BigQuery's API. Default: Google's public one. A plain http:// address of this machine counts as an "
        "emulator and gets no credentials.",
        examples=["https://bigquery.europe-west3.rep.googleapis.com"],
    )
    adopt: Literal["refuse", "replace"] = Field(
        "refuse",
        description="What to do if another table, not of this replicator, has the name of a target table: refuse it, or replace it.",
    )
    names: Literal["ascii", "unicode"] = Field(
        "ascii",
        description="Characters that names of columns and tables keep: A-Z, a-z, 0-9 and _ (ascii),"
        " or letters and digits of every script (unicode). Others become _.",
    )
    json_as: Literal["string", "json"] = Field(
        "string",
        description="How JSON is stored: as its text (string) or as BigQuery's JSON (json), which changes some numbers.",
    )
    unfit_values: Literal["stop", "null"] = Field(
        "stop",
        description="What to do with dates and times outside of BigQuery's range (0001 to 9999): fail the table (stop), or write "
        "NULL (null). Values in a key always fail the table.",
    )
    time_travel: Duration | None = Field(
        None,
        ge=timedelta(days=2),
        le=timedelta(days=7),
        description="Time-travel window of new datasets, in whole days. Default: BigQuery's own (7 days).",
    )
    kms_key: str | None = Field(
        None, description="Cloud KMS key that protects tables (projects/…/cryptoKeys/…). Default: Google's own keys."
    )
    labels: Mapping[str, str] = Field(
        {}, description="Labels for tables and jobs, in addition to the replicator's own."
    )
    job_timeout: Duration = Field(
        timedelta(hours=2),
        ge=timedelta(minutes=1),
        le=timedelta(hours=6),
        description="Time after which BigQuery cancels a job that is still running.",
    )
    budget: BudgetConfig = Field(BudgetConfig(), description="Limits on what may be used.")
    tables: Mapping[TablePattern, TableConfig] = Field(
        {}, description="How single tables are created. Keys are table patterns; later ones win, setting by setting."
    )

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, labels: Mapping[str, str]) -> Mapping[str, str]:
        own = [name for name in labels if name.startswith("replicator")]
        if own:
            raise ValueError(f"labels that begin with replicator are the replicator's own: {', '.join(own)}")
        return labels

    @model_validator(mode="after")
    def _check_endpoint(self) -> Self:
        if self.endpoint is not None:
            parts = urlsplit(self.endpoint)
            if parts.scheme not in {"http", "https"} or not parts.hostname:
                raise ValueError(f"endpoint {self.endpoint} is not a URL")
            if parts.scheme == "http" and not self.is_emulator:
                raise ValueError("endpoint is not encrypted (http://); only an emulator on this machine may use it")
        if self.staging.endpoint is not None and self.staging.endpoint.startswith("http:") and not self.is_emulator:
            raise ValueError("staging.endpoint is not encrypted (http://), and target.endpoint is not an emulator")
        if self.staging.folder is not None and not self.is_emulator:
            raise ValueError("staging.folder needs the endpoint of an emulator on this machine")
        return self

    @property
    def is_emulator(self) -> bool:
        """Return whether the endpoint is an emulator on this machine."""
        if self.endpoint is None:
            return False
        parts = urlsplit(self.endpoint)
        return parts.scheme == "http" and parts.hostname in _LOOPBACK

    def table(self, table: TableId) -> TableConfig:
        """Return the settings of one table."""
        values: dict[str, object] = {"json_as": self.json_as}
        for pattern, block in self.tables.items():
            if pattern.matches(table):
                values |= {name: getattr(block, name) for name in block.model_fields_set}
        return TableConfig.model_validate(values)

    def dataset_name(self, table: TableId) -> DatasetName:
        """See `SupportsLineage`."""
        from replicator_target_bigquery.names import Names

        return DatasetName(namespace="bigquery", name=Names(self).path(table))

    def column_name(self, name: str) -> str:
        """See `SupportsLineage`."""
        from replicator_target_bigquery.names import Names

        return Names(self).column(name)

    def table_cost(self, load: TableLoad) -> TableCost:
        """See `SupportsTargetPlanning`."""
        from replicator_target_bigquery.planning import table_cost

        return table_cost(load, self.table(load.schema.table).json_as or "string")

    def price(self) -> Price:
        """See `SupportsTargetPlanning`."""
        from replicator_target_bigquery.planning import PRICE

        return PRICE

    def planned_problems(self, billed_per_day: Figure, merges_per_day: Figure) -> Sequence[Problem]:
        """See `SupportsTargetPlanning`."""
        from replicator_target_bigquery.planning import problems

        limits = self.budget
        return problems(
            billed_per_day, merges_per_day, bytes_max=limits.bytes_per_day, jobs_max=limits.load_jobs_per_day
        )
