"""Names of tables in lineage events: by the naming rules of OpenLineage."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from replicator.model.schema import TableId


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetName:
    """Identifier of a table for all senders of lineage: `postgres://host:5432` and `database.schema.table`, for example."""

    namespace: str
    name: str


@runtime_checkable
class SupportsLineage(Protocol):
    """Settings of a source or target that can name its tables. Asked without any connection, in a process that moves no data."""

    @abstractmethod
    def dataset_name(self, table: TableId) -> DatasetName:
        """Return the name of a table by OpenLineage's naming rules for this kind of database or storage."""

    @abstractmethod
    def column_name(self, name: str) -> str:
        """Return the name of a column of the source here: its own name, except in a target that cannot take every name."""
