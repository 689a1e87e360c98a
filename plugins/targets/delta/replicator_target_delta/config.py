"""Settings of the `target:` block."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field

from replicator.model.naming import path_part
from replicator.model.schema import TableId
from replicator.plugins import ConfigModel, Duration, Size
from replicator.plugins.lineage import DatasetName

if TYPE_CHECKING:
    from replicator.model.errors import Problem
    from replicator.model.figures import Figure
    from replicator.plugins.planning import TableCost, TableLoad

DIRECT_ROWS: Final = 200_000
"""Changes of a batch, where transactions allow it: larger batches would not be faster."""
DIRECT_ROWS_MAX: Final = 1_000_000
"""Changes of a batch that is committed directly: it stands in memory twice. Of larger ones Spark's fixed costs are a small part.
One with rows that lack columns has `DIRECT_ROWS` at most."""


LOG_RETENTION_MIN: Final = timedelta(days=1)
"""The shortest time for which the log keeps its versions; otherwise as long as data files of older versions are kept."""


class MaintenanceConfig(ConfigModel):
    """Conditions under which upkeep of a table is due."""

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


class DeltaLakeConfig(ConfigModel):
    """Path and layout of the tables. Default of `apply.max_wait`: 1s; with `engine: spark` 5s."""

    path: str = Field(
        min_length=1,
        description="Absolute path or URI of the folder for all tables. Each table is at <schema or database>/<table> below it.",
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
    engine: Literal["auto", "spark"] = Field(
        "auto",
        description="What applies batches. auto: Replicator commits them directly where it can, which takes a hundredth of the "
        "processor time of a MERGE, and Spark merges the rest; `status --json` says what applied the last batch, and why. "
        "spark: Spark merges all of them.",
    )
    index_memory: Size = Field(
        512 << 20,
        ge=0,
        description="Memory for the keys of data files, of all tables together: 8 to 12 bytes per row for "
        "whole-number keys, more for others. If a batch needs more, Spark looks its keys up; with 0 it looks up all. "
        "Large ones are mapped from the temporary folder.",
    )
    type_widening: Literal["enable", "rewrite"] = Field(
        "enable",
        description="How a column gets a wider type. enable: Delta's feature type widening is switched on for the table when it is first "
        "needed; older data files stay as they are, and delta-rs cannot read the table. rewrite: all data files are written again in the "
        "new type, and every reader continues.",
    )
    maintenance: MaintenanceConfig = Field(MaintenanceConfig(), description="When upkeep of a table is due.")

    def dataset_name(self, table: TableId) -> DatasetName:
        """See `SupportsLineage`. A path on this machine is in the namespace `file`; in a store it is in that of its bucket or server."""
        from replicator_target_delta.storage import absolute

        path = f"{absolute(self.path)}/{path_part(table.namespace)}/{path_part(table.name)}"
        parts = urlsplit(path)
        if not parts.scheme:
            return DatasetName(namespace="file", name=path)
        # Spark has other names for the protocols of some stores.
        scheme = {"s3a": "s3", "s3n": "s3"}.get(parts.scheme, parts.scheme)
        return DatasetName(namespace=f"{scheme}://{parts.netloc}", name=parts.path.lstrip("/"))

    def column_name(self, name: str) -> str:
        """See `SupportsLineage`."""
        return name

    def table_cost(self, load: TableLoad) -> TableCost:
        """See `SupportsTargetPlanning`."""
        from replicator_target_delta.planning import table_cost

        return table_cost(load)

    def price(self) -> None:
        """See `SupportsTargetPlanning`. The price of storage and its requests depends on who keeps the files."""

    def planned_problems(self, billed_per_day: Figure, merges_per_day: Figure) -> Sequence[Problem]:  # noqa: ARG002
        """See `SupportsTargetPlanning`."""
        return ()
