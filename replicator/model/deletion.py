"""Request for the deletion of a replicator, and the result: removed and kept items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field


class Deletion(BaseModel):
    """Removed and kept items, as phrases for people, such as `replication slot replicator_shop`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    removed: tuple[str, ...] = Field((), description="Deleted items.")
    kept: tuple[str, ...] = Field((), description="Items that stay, on purpose or because they could not be deleted.")
    notes: tuple[str, ...] = Field((), description="Next steps that the operator must do by hand, as sentences.")

    def __add__(self, other: Deletion) -> Deletion:
        """Return both deletions, one after the other."""
        return Deletion(
            removed=self.removed + other.removed, kept=self.kept + other.kept, notes=self.notes + other.notes
        )


class DeletionRequest(BaseModel):
    """The request to delete a replicator, as it passes through the state store."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    drop_target: bool = Field(False, description="True if the tables in the target are deleted, too.")
    force: bool = Field(False, description="True if items that cannot be reached are skipped and named.")
    is_awaited: bool = Field(False, description="True if a process waits for `answer`, and says when it has read it.")
    answer: Deletion | None = Field(None, description="The worker's result; None until only the state is left.")
    is_read: bool = Field(False, description="True if the process that asked has read `answer`.")

    @classmethod
    def read(cls, payload: Mapping[str, Any]) -> Self:
        """Parse a stored request; keys of other versions are left out."""
        return cls.model_validate(payload, extra="ignore")
