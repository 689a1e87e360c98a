"""The document that `plan --ddl --json` prints. `docs/plan.schema.json` is generated from it."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, NonNegativeInt

from replicator.model.alteration import Change
from replicator.model.documents.status import Code, StatusModel
from replicator.model.events import DDLOperation
from replicator.service.history.document import ShapeDocument
from replicator.state.records import Decision

PLAN_VERSION: Final = 1


class AppliedPolicy(StatusModel, title="PolicyDocument"):
    """A policy that decides about a table."""

    change: Change = Field(description="The kind of change: its key under `ddl`.")
    policy: str = Field(description="The policy.")
    set_by: str = Field(description="The setting that it comes from; `default` if none sets it.")


class PlannedErrorDocument(StatusModel):
    """The error with which a table would fail."""

    code: Code = Field(description="See docs/errors.md.")
    message: str = Field(description="Text of the error.")
    action: str | None = Field(description="The next step, where there is one.")


class PlannedTableDocument(StatusModel):
    """Effect of the statement on a table."""

    table: str = Field(description="schema.table, as in the status.")
    new_table: str | None = Field(description="Its name afterwards, if it is renamed; otherwise null.")
    operation: DDLOperation = Field(description="Operation that the log would have.")
    is_replicated: bool = Field(
        description="True if it concerns a replicated table; otherwise the target changes nothing."
    )
    policies: tuple[AppliedPolicy, ...] = Field(
        description="The kinds of change, each with the policy that decides about it."
    )
    decision: Decision | None = Field(description="As in the history; null for a table that is not replicated.")
    effects: tuple[str, ...] = Field(description="Effects on the target, one sentence each.")
    error: PlannedErrorDocument | None = Field(description="Error with which the table would fail; otherwise null.")
    before: ShapeDocument | None = Field(description="The table's shape now; null if it has none, or if it is unknown.")
    after: ShapeDocument | None = Field(
        description="The table's shape afterwards, with the columns that the target keeps; null if there is none, or if it is unknown."
    )
    is_read_again: bool = Field(description="True if all its rows are read from the source, by a snapshot.")
    is_rewritten: bool = Field(description="True if the target writes all rows of the table again.")
    estimated_rows: NonNegativeInt | None = Field(
        description="Rows of the table by the source's statistics; null if unknown."
    )
    note: str | None = Field(description="Further remark; otherwise null.")


class PlanDocument(StatusModel):
    """Effect of a statement on the target. Nothing was executed."""

    version: Literal[1] = Field(description="Version of this document.")
    name: str = Field(description="Name of the replicator.")
    statement: str = Field(description="The statement as it was given.")
    tables: tuple[PlannedTableDocument, ...] = Field(
        description="The tables that it would concern, in the order of the log."
    )
