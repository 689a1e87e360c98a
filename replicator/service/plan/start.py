"""`plan FILE`: forecast of a start. Only reads from the source."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from replicator.capture.asking import describe
from replicator.config import LoadedConfig
from replicator.journal.files import local_path
from replicator.model.errors import Problem, ReplicatorError, Severity
from replicator.model.figures import Basis, Figure, unknown
from replicator.plugins.planning import Price, SupportsPlanning, SupportsTargetPlanning
from replicator.plugins.registry import Registry
from replicator.runtime import assembly
from replicator.runtime.home import Home
from replicator.service.configuring.assess import Assessment, assess
from replicator.service.plan.forecast import Forecast, Given, forecast
from replicator.service.plan.sampling import Sampled, SampleLimits, sample
from replicator.service.plan.start_document import (
    START_PLAN_VERSION,
    FindingDocument,
    StartPlanDocument,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """Forecast of a start, with the findings.

    Attributes:
        assessment: Findings of `validate`.
        sampled: Statistics and samples; None if nothing could be read, or the source cannot tell.
        forecast: Forecast computed from them; None likewise.
        problem: Reason why there is none, unless the assessment names it.
    """

    loaded: LoadedConfig
    assessment: Assessment
    sampled: Sampled | None = None
    forecast: Forecast | None = None
    problem: Problem | None = None

    @property
    def problems(self) -> list[Problem]:
        """Return all findings: of `validate`, and of the figures."""
        found = list(self.assessment.problems)
        found += [] if self.problem is None else [self.problem]
        return found + list(self.forecast.problems if self.forecast else ())


def plan_start(
    loaded: LoadedConfig,
    registry: Registry,
    home: Home,
    *,
    uuid: str = "",
    limits: SampleLimits | None = None,
    usd_per_tib: float | None = None,
) -> StartPlan:
    """Check the configuration as `validate` does, read a sample, and compute the forecast of a start.

    Args:
        loaded: The configuration.
        registry: The plugins.
        home: Home with the journal, unless the configuration names another location.
        uuid: Uuid of the stored replicator, if there is one.
        limits: Limits of the sample.
        usd_per_tib: A price, instead of the documented one.
    """
    assessment = assess(loaded, registry, home, uuid=uuid)
    if not assessment.tables:
        return StartPlan(loaded=loaded, assessment=assessment)
    source = assembly.make_source(loaded, registry)
    try:
        if not isinstance(source, SupportsPlanning):
            return StartPlan(loaded=loaded, assessment=assessment, problem=_cannot_tell(loaded))
        # As it is now: the assessment has asked before.
        schemas = [found.schema for found in describe(source, [one.table for one in assessment.tables]).found.values()]
        sampled = sample(source, schemas, limits or SampleLimits())
    except ReplicatorError as error:
        failed = Problem(
            code=error.code, message=error.message, table=error.table, location="source", action=error.action
        )
        return StartPlan(loaded=loaded, assessment=assessment, problem=failed)
    finally:
        source.close()
    given = Given(
        journal=loaded.config.journal,
        max_wait_s=assembly.max_wait_s(loaded, registry),
        target=loaded.target if isinstance(loaded.target, SupportsTargetPlanning) else None,
        free_bytes=_free(loaded.config.journal.uri or home.journal_uri(loaded.config.name)),
        price=None
        if usd_per_tib is None
        else Price(usd_per_tib=usd_per_tib, how=f"USD {usd_per_tib:g} per TiB, as given"),
    )
    return StartPlan(loaded=loaded, assessment=assessment, sampled=sampled, forecast=forecast(schemas, sampled, given))


def document(found: StartPlan) -> StartPlanDocument:
    """Return the document that `plan --json` prints."""
    computed, sampled = found.forecast, found.sampled
    return StartPlanDocument(
        version=START_PLAN_VERSION,
        name=found.loaded.config.name,
        source=found.loaded.source_type,
        target=found.loaded.target_type,
        is_blocked=is_blocked(found),
        findings=tuple(FindingDocument.of(problem) for problem in found.problems),
        sample=None if sampled is None else sampled.read,
        tables=tuple(computed.tables) if computed else (),
        totals=computed.totals if computed else None,
    )


def is_blocked(found: StartPlan) -> bool:
    """Return whether a finding refuses a start."""
    return found.assessment.is_blocked or (found.problem is not None and found.problem.severity is Severity.BLOCKING)


def _cannot_tell(loaded: LoadedConfig) -> Problem:
    return Problem(
        code="planning_not_supported",
        message=f"A source of the type {loaded.source_type} cannot say how much there is to replicate.",
        location="source.type",
        severity=Severity.NOTICE,
    )


def _free(uri: str) -> Figure:
    """Return the free bytes on the disk of the journal's folder, or of the nearest folder above it that exists."""
    path = local_path(uri)
    if path is None:
        return unknown(f"{uri} is on no disk of this machine")
    folder = _existing(path)
    return Figure(float(shutil.disk_usage(folder).free), Basis.MEASURED, f"the disk of {folder}")


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())
