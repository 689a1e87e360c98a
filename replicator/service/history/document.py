"""The document that `history --json` prints. `docs/history.schema.json` is generated from it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, Self

from pydantic import AwareDatetime, Field, NonNegativeInt

from replicator.model.alteration import Change
from replicator.model.documents.status import Code, StatusModel
from replicator.model.events import DDLOperation
from replicator.model.schema import Column, TableSchema, type_to_text
from replicator.state.records import Decision

HISTORY_VERSION: Final = 1


class Outcome(StrEnum):
    """Outcome of a change of a table's definition in the target."""

    APPLIED = "applied"
    WAITING = "waiting"
    FAILED = "failed"
    NOTHING = "nothing"


class ColumnDocument(StatusModel):
    """A column of a table's shape."""

    name: str = Field(description="Its name.")
    type: str = Field(description="Its type in the journal and the target, as Arrow spells it.")
    source_type: str = Field(description="Its type in the source's own spelling.")
    nullable: bool = Field(description="True if it may be NULL in the source.")

    @classmethod
    def of(cls, column: Column) -> Self:
        """Return the document of a column."""
        return cls(
            name=column.name,
            type=type_to_text(column.type),
            source_type=column.source_type,
            nullable=column.nullable,
        )


class ShapeDocument(StatusModel):
    """A table's shape."""

    columns: tuple[ColumnDocument, ...] = Field(description="Its columns, in their order.")
    key: tuple[str, ...] = Field(description="The columns of its key, in key order; empty: it has none.")
    kept: tuple[ColumnDocument, ...] = Field(
        description="Columns that the source dropped and the target keeps, under their names in the target."
    )

    @classmethod
    def of(cls, schema: TableSchema | None) -> Self | None:
        """Return the document of a shape; None if there is none."""
        if schema is None:
            return None
        return cls(
            columns=tuple(map(ColumnDocument.of, schema.columns)),
            key=schema.key,
            kept=tuple(map(ColumnDocument.of, schema.kept)),
        )


class TargetDocument(StatusModel):
    """Outcome in the target."""

    state: Outcome = Field(
        description="`applied`: the target has the change, or was recreated since. `waiting`: it has not come to it yet. `failed`: the "
        "table failed in the target before it, or because of it. `nothing`: the decision leaves the target as it is."
    )
    code: Code | None = Field(
        description="Error of a table that failed in the target; otherwise null. See docs/errors.md."
    )


class EventDocument(StatusModel):
    """A change of a table's definition."""

    sequence_num: NonNegativeInt = Field(
        description="Its number in the order of changes. Of a change that the log did not show: that of the next change."
    )
    offset: str | None = Field(
        description="The source's offset after the segment of the journal that holds it, in the source's own format; null if unknown."
    )
    table: str = Field(description="schema.table, as in the status; its name at that time.")
    incarnation: NonNegativeInt = Field(
        description="Number of times that the target table had been created from scratch."
    )
    at: AwareDatetime = Field(description="Time of its commit in the source; of its capture, if the log does not say.")
    operation: DDLOperation | None = Field(
        description="Operation on the table; null: none, it continues after a failure, as `reason` says."
    )
    changes: tuple[str, ...] = Field(description=f"Its kinds: keys under `ddl` ({', '.join(Change)}).")
    statement: str | None = Field(description="In the source's words; null if the log does not have it.")
    before: ShapeDocument | None = Field(description="The table's shape before; null if unknown, or if there was none.")
    after: ShapeDocument | None = Field(
        description="The table's shape afterwards; null if unknown, or if there is none."
    )
    new_table: str | None = Field(description="Its name afterwards, if it was renamed; otherwise null.")
    decision: Decision = Field(
        description="`apply`: the target follows. `keep`: it follows, and keeps dropped columns. `ignore`: it does not follow. `stop`: the "
        "table failed. `record`: nothing changes in the target. `snapshot`: the target follows, and a new snapshot in place reads the "
        "rows again. `rebuild`: the table is rebuilt, and replaces the old one once it is complete."
    )
    reason: str | None = Field(description="Reason, if the decision does not follow from the policy alone.")
    target: TargetDocument = Field(description="Outcome in the target.")


class HistoryDocument(StatusModel):
    """The latest changes of tables' definitions, and failed tables that continued by themselves."""

    version: Literal[1] = Field(description="Version of this document.")
    name: str = Field(description="Name of the replicator.")
    uuid: str = Field(description="Drawn when the replicator was stored; another one of the same name has another.")
    events: tuple[EventDocument, ...] = Field(description="The newest events, oldest first.")
