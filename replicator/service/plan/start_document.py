"""The document that `plan --json` prints without `--ddl`. `docs/start-plan.schema.json` is generated from it."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from replicator.model.documents.status import Code, StatusModel
from replicator.model.errors import Problem, Severity
from replicator.model.figures import Basis, Figure
from replicator.service.plan.forecast import Forecast, TableForecast

START_PLAN_VERSION: Final = 1


class FigureDocument(StatusModel):
    """A number with its basis."""

    value: NonNegativeFloat | None = Field(description="Null: unknown.")
    basis: Basis = Field(
        description="Basis of the figure: a setting (configured), measured now, counted by the server since its counters began, estimated "
        "from statistics or from other figures, or not at all (unknown)."
    )
    how: str = Field(description="Origin of the figure, or the reason why it is unknown.")

    @classmethod
    def of(cls, figure: Figure) -> Self:
        """Return the document of a figure."""
        return cls(value=figure.value, basis=figure.basis, how=figure.how)


class FindingDocument(StatusModel):
    """A finding, as `validate` shows it."""

    severity: Severity = Field(description="A blocking one refuses the start.")
    code: Code = Field(description="See docs/errors.md.")
    message: str = Field(description="Text of the finding.")
    location: str | None = Field(description="Location: a setting, a table or a file; null if unknown.")
    action: str | None = Field(description="The next step; null if there is none.")

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Return the document of a finding."""
        return cls(
            severity=problem.severity,
            code=problem.code,
            message=problem.message,
            location=problem.location,
            action=problem.action,
        )


class SampleDocument(StatusModel):
    """Rows that were read of the tables."""

    tables: NonNegativeInt = Field(description="Tables of which rows were read.")
    rows: NonNegativeInt = Field(description="Rows that were read.")
    bytes: NonNegativeInt = Field(description="Their size in memory.")
    seconds: NonNegativeFloat = Field(description="Time that reading took, in seconds.")


class TableForecastDocument(StatusModel):
    """Forecast of a table."""

    table: str = Field(description="schema.table, as in the status.")
    sampled_rows: NonNegativeInt = Field(description="Rows of it that were read.")
    rows: FigureDocument = Field(description="Its rows.")
    source_bytes: FigureDocument = Field(description="Its size in the source, without indexes.")
    snapshot_s: FigureDocument = Field(description="Seconds that its first snapshot takes, until it is in the journal.")
    changes_per_day: FigureDocument = Field(description="Rows that are inserted, updated and deleted in a day.")
    merges_per_day: FigureDocument = Field(description="Batches in which these are applied.")
    journal_snapshot_bytes: FigureDocument = Field(description="Size of its snapshot in the journal.")
    journal_bytes_per_day: FigureDocument = Field(description="Size of a day's changes in the journal.")
    target_bytes: FigureDocument = Field(description="Its size in the target after the snapshot.")
    target_bytes_per_day: FigureDocument = Field(description="Bytes that its batches write in a day.")
    billed_bytes_per_day: FigureDocument | None = Field(
        description="Bytes that the target bills for its batches; null if it bills nothing."
    )

    @classmethod
    def of(cls, one: TableForecast) -> Self:
        """Return the document of a table."""
        return cls(
            table=str(one.table),
            sampled_rows=one.sampled_rows,
            rows=FigureDocument.of(one.rows),
            source_bytes=FigureDocument.of(one.bytes),
            snapshot_s=FigureDocument.of(one.snapshot_s),
            changes_per_day=FigureDocument.of(one.changes_per_day),
            merges_per_day=FigureDocument.of(one.merges_per_day),
            journal_snapshot_bytes=FigureDocument.of(one.journal_snapshot_bytes),
            journal_bytes_per_day=FigureDocument.of(one.journal_bytes_per_day),
            target_bytes=FigureDocument.of(one.target.bytes),
            target_bytes_per_day=FigureDocument.of(one.target.written_per_day),
            billed_bytes_per_day=one.target.billed_per_day and FigureDocument.of(one.target.billed_per_day),
        )


class TotalsDocument(StatusModel):
    """Forecast of all tables."""

    rows: FigureDocument = Field(description="Rows.")
    source_bytes: FigureDocument = Field(description="Size in the source.")
    snapshot_s: FigureDocument = Field(
        description="Seconds of the first snapshot, until it is in the journal. The target's time for it is not included."
    )
    changes_per_day: FigureDocument = Field(description="Changes in a day.")
    merges_per_day: FigureDocument = Field(description="Batches in a day.")
    journal_bytes: FigureDocument = Field(
        description="The most that the journal takes: the snapshot, and the changes of journal.keep."
    )
    target_bytes: FigureDocument = Field(description="Size in the target after the snapshot.")
    target_bytes_per_day: FigureDocument = Field(description="Bytes that batches write in a day.")
    billed_bytes_per_day: FigureDocument | None = Field(
        description="Bytes that the target bills for a day's batches; null if it bills nothing."
    )
    usd_per_day: FigureDocument | None = Field(description="Their price in US dollars; null if there is none.")
    log_bytes_per_day: FigureDocument = Field(description="Growth of the source's log in a day.")
    log_pause_s: FigureDocument | None = Field(
        description="Seconds that a worker may be stopped before the source gives up log that is needed; null: the source has no limit."
    )

    @classmethod
    def of(cls, found: Forecast) -> Self:
        """Return the document of the totals."""
        return cls(
            rows=FigureDocument.of(found.rows),
            source_bytes=FigureDocument.of(found.bytes),
            snapshot_s=FigureDocument.of(found.snapshot_s),
            changes_per_day=FigureDocument.of(found.changes_per_day),
            merges_per_day=FigureDocument.of(found.merges_per_day),
            journal_bytes=FigureDocument.of(found.journal_bytes),
            target_bytes=FigureDocument.of(found.target_bytes),
            target_bytes_per_day=FigureDocument.of(found.written_per_day),
            billed_bytes_per_day=found.billed_per_day and FigureDocument.of(found.billed_per_day),
            usd_per_day=found.usd_per_day and FigureDocument.of(found.usd_per_day),
            log_bytes_per_day=FigureDocument.of(found.log_bytes_per_day),
            log_pause_s=found.log_pause_s and FigureDocument.of(found.log_pause_s),
        )


class StartPlanDocument(StatusModel):
    """Forecast of a start. Only reads were executed on the source."""

    version: Literal[1] = Field(description="Version of this document.")
    name: str = Field(description="Name of the replicator.")
    source: str = Field(description="Type of the source.")
    target: str = Field(description="Type of the target.")
    is_blocked: bool = Field(description="True if a finding refuses the start.")
    findings: tuple[FindingDocument, ...] = Field(
        description="Findings of `validate`, and settings and figures that do not go together."
    )
    sample: SampleDocument | None = Field(description="Rows that were read; null if none could be.")
    tables: tuple[TableForecastDocument, ...] = Field(description="The tables that will be replicated.")
    totals: TotalsDocument | None = Field(description="Forecast of all of them; null if nothing could be read.")
