"""Settings of the `target:` block."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, field_validator

from replicator.model.schema import TableId
from replicator.plugins.kit.transactional import TransactionalConfig
from replicator.plugins.lineage import DatasetName


class DuckDBConfig(TransactionalConfig):
    """Settings of the DuckDB target."""

    path: str = Field(
        min_length=1,
        description="The database file: an absolute path. It is made with the first table; its folder must exist.",
        examples=["/data/shop.duckdb"],
    )

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not Path(value).is_absolute():
            raise ValueError("must be an absolute path: workers may run in another folder")
        return os.path.normpath(value)

    @property
    def file(self) -> Path:
        """The database file."""
        return Path(self.path)

    def dataset_name(self, table: TableId) -> DatasetName:
        """Return the table's name for lineage: the file is the namespace."""
        return DatasetName(namespace=f"duckdb://{self.path}", name=str(table))

    def column_name(self, name: str) -> str:
        """Return the column's own name: DuckDB takes every name."""
        return name
