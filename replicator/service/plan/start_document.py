"""The document that `plan --json` prints without `--ddl`. `docs/start-plan.schema.json` is generated from it."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field

from replicator.model.documents.status import Code, StatusModel
from replicator.model.errors import Problem, Severity
from replicator.service.plan.forecast import TableForecast, Totals
from replicator.service.plan.sampling import SampleRead

START_PLAN_VERSION: Final = 1


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
    sample: SampleRead | None = Field(description="Rows that were read; null if none could be.")
    tables: tuple[TableForecast, ...] = Field(description="The tables that will be replicated.")
    totals: Totals | None = Field(description="Forecast of all of them; null if nothing could be read.")
