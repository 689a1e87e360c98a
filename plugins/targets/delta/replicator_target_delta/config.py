"""Settings of the `target:` block."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from replicator.plugins import ConfigModel, Duration, Size


class MaintenanceConfig(ConfigModel):
    """When upkeep of a table is due."""

    enabled: bool = Field(True, description="Whether tables are compacted and old files removed in the background.")
    small_files_max: int = Field(
        64,
        ge=2,
        le=100_000,
        description="Data files below small_file_size that a table may have before they are compacted.",
    )
    small_file_size: Size = Field(32 << 20, ge=1 << 10, description="A data file below this size counts as small.")
    deleted_rows_share_max: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Share of rows that deletion vectors may hide before the files are rewritten without them.",
    )
    vacuum_every: Duration = Field(
        timedelta(days=1),
        ge=timedelta(minutes=1),
        description="Time between two removals of files that no version needs.",
    )
    vacuum_retention: Duration = Field(
        timedelta(days=7),
        ge=timedelta(0),
        description="Age up to which files of older versions are kept, for readers and time travel. Readers that run longer than "
        "this may fail.",
    )


class DeltaConfig(ConfigModel):
    """Where Delta tables are stored, and how. Default of `apply.max_wait`: 5s; an idle table never waits."""

    path: str = Field(
        min_length=1,
        description="Folder or URI for all tables. Each table is at <schema or database>/<table> below it.",
        examples=["/data/lake", "s3a://bucket/lake"],
    )
    adopt: Literal["refuse", "replace"] = Field(
        "refuse",
        description="What to do if another Delta table, not of this replicator, exists at a table's path: refuse it, or replace its "
        "content.",
    )
    clustering: bool = Field(
        True, description="Whether tables are clustered by their key, which lets merges and readers skip files."
    )
    maintenance: MaintenanceConfig = Field(MaintenanceConfig(), description="When upkeep of a table is due.")
