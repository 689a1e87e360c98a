"""What the deletion of a replicator removed and what it kept, and how it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field


class Deletion(BaseModel):
    """What was removed and what was kept: phrases for people, such as `replication slot replicator_shop`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    removed: tuple[str, ...] = Field((), description="What is deleted.")
    kept: tuple[str, ...] = Field((), description="What stays, on purpose or because it could not be deleted.")
    notes: tuple[str, ...] = Field((), description="What the operator must do by hand, as sentences.")

    def __add__(self, other: Deletion) -> Deletion:
        """Both, one after the other."""
        return Deletion(
            removed=self.removed + other.removed, kept=self.kept + other.kept, notes=self.notes + other.notes
        )


class DeletionRequest(BaseModel):
    """The request to delete a replicator, as it passes through the state store."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    drop_target: bool = Field(False, description="Whether the tables in the target are deleted, too.")
    force: bool = Field(False, description="Whether what cannot be reached is skipped and named.")
    is_awaited: bool = Field(False, description="Whether a process waits for `answer`, and says when it has read it.")
    answer: Deletion | None = Field(None, description="What the worker did; None until only the state is left.")
    is_read: bool = Field(False, description="Whether the process that asked has read `answer`.")

    @classmethod
    def read(cls, payload: Mapping[str, Any]) -> Self:
        """A stored request; what only another version knows is left out."""
        return cls.model_validate(payload, extra="ignore")
