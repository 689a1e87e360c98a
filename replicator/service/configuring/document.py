"""Documents that answer a sent configuration: findings, tables, and changes to the stored one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import Field, NonNegativeInt

from replicator.model.documents.status import Code, StatusModel
from replicator.model.errors import ConfigError, Problem, ReplicatorError, RequestError, Severity, TransientError
from replicator.model.schema import TableSchema
from replicator.observability import redact
from replicator.projection.checking import arriving
from replicator.projection.columns import NO_PROJECTION, Projection
from replicator.service.configuring.assess import Assessment
from replicator.service.reloading import Reloaded

VERSION: Final = 1
ORIGIN: Final = "The configuration"
"""Name of the file in messages."""
FINDINGS_MAX: Final = 1_000
_TEXT_MAX: Final = 2_000
_LINE: Final = re.compile(rf"{ORIGIN}:(?P<line>\d+)(?: (?P<rest>.*))?", re.DOTALL)
_ORDER: Final = tuple(Severity)


class Finding(StatusModel):
    """A finding about a configuration."""

    code: Code = Field(description="See docs/errors.md.")
    severity: Severity = Field(description="`blocking`: it cannot be used as it is.")
    message: str = Field(description="Text of the finding. Never the value of a reference.")
    line: int | None = Field(description="Line of the YAML; null for JSON, and for what stands nowhere in the file.")
    location: str | None = Field(
        description="The setting, such as `source.host`; or the table, or where it is in the source. Null if it is the whole file."
    )
    table: str | None = Field(description="The table, as `schema.table`; null if it concerns no single one.")
    action: str | None = Field(description="The next step, where there is one.")
    sql: tuple[str, ...] = Field(description="Statements that fix it in the source, in order; empty where SQL cannot.")

    @classmethod
    def of(cls, problem: Problem, *, has_lines: bool) -> Finding:
        """Return the document of a problem, without secrets, and with no more text than a page can show."""
        found = _LINE.fullmatch(problem.location or "")
        location = problem.location if found is None else found["rest"]
        return cls(
            code=problem.code,
            severity=problem.severity,
            message=_shown(problem.message),
            line=int(found["line"]) if found and has_lines else None,
            location=None if location is None else _shown(location),
            table=problem.table,
            action=None if problem.action is None else _shown(problem.action),
            sql=tuple(map(redact, problem.sql)),
        )


class Findings(StatusModel):
    """Findings, the blocking ones first."""

    findings: tuple[Finding, ...] = Field(
        (), description=f"The findings, at most {FINDINGS_MAX:,}; blocking ones first."
    )
    findings_left_out: NonNegativeInt = Field(0, description="Number of further findings.")


def _listed(problems: Sequence[Problem], *, has_lines: bool) -> dict[str, Any]:
    """Return the problems as the fields of `Findings`, up to the limit of an answer."""
    ordered = sorted(problems, key=lambda problem: _ORDER.index(problem.severity))
    shown = tuple(Finding.of(problem, has_lines=has_lines) for problem in ordered[:FINDINGS_MAX])
    return {"findings": shown, "findings_left_out": len(ordered) - len(shown)}


class ArrivingColumnDocument(StatusModel):
    """A column of the source, and what arrives of it in the target."""

    column: str = Field(description="Its name in the source.")
    name: str | None = Field(description="Its name in the target; null if it is left out.")
    type: str = Field(description="Its type there.")
    mask: str | None = Field(description="Function of its values, without keys; null if they arrive as they are.")


class ValidatedTable(StatusModel):
    """A table that the configuration names."""

    table: str = Field(description="schema.table.")
    columns: NonNegativeInt = Field(description="Number of its columns.")
    key: tuple[str, ...] = Field(description="The columns of its key; empty for a table without one.")
    arriving: tuple[ArrivingColumnDocument, ...] = Field(description="Its columns, and what arrives of each.")

    @classmethod
    def of(cls, schema: TableSchema, projection: Projection) -> ValidatedTable:
        """Return the document of a table."""
        found = [ArrivingColumnDocument(**asdict(one)) for one in arriving(schema, projection)]
        return cls(
            table=str(schema.table), columns=len(schema.columns), key=tuple(schema.key or ()), arriving=tuple(found)
        )


class LeftOutTable(StatusModel):
    """A table that the configuration names and that is not replicated."""

    table: str = Field(description="schema.table.")
    reason: str = Field(description="Reason: it is a view, for example.")


class ValidationDocument(Findings):
    """Result of `replicator validate`: nothing was changed anywhere."""

    version: Literal[1] = Field(description="Version of this document.")
    name: str = Field(description="Name of the replicator.")
    is_blocked: bool = Field(description="True if a finding is blocking, so that a first start would be refused.")
    tables: tuple[ValidatedTable, ...] = Field(description="The tables that would be replicated.")
    left_out: tuple[LeftOutTable, ...] = Field(description="Tables that the patterns match and that are left out.")
    estimated_rows: NonNegativeInt | None = Field(
        description="Rows of all these tables by the source's statistics; null if unknown."
    )

    @classmethod
    def made(cls, name: str, found: Assessment, *, has_lines: bool) -> ValidationDocument:
        """Return the document of an assessment."""
        return cls(
            version=VERSION,
            name=redact(name),
            is_blocked=found.is_blocked,
            **_listed(found.problems, has_lines=has_lines),
            tables=tuple(
                ValidatedTable.of(one, found.projections.get(one.table, NO_PROJECTION)) for one in found.tables
            ),
            left_out=tuple(LeftOutTable(table=str(one.table), reason=one.left_out or "") for one in found.left_out),
            estimated_rows=found.estimated_rows,
        )


class ConfiguredDocument(Findings):
    """Changes made by storing a configuration."""

    version: Literal[1] = Field(description="Version of this document.")
    name: str = Field(description="Name of the replicator.")
    is_new: bool = Field(description="True if it was stored for the first time, and set to run.")
    changed: tuple[str, ...] = Field(
        description="Sections of the file that differ from what was stored; empty for a new one, and if nothing changed."
    )
    restarted: tuple[str, ...] = Field(
        description="Processes that the worker starts again for that, at a clean point; it keeps running itself."
    )
    added: tuple[str, ...] = Field(description="Tables that get a snapshot while the others continue.")
    removed: tuple[str, ...] = Field(description="Tables that are no longer replicated; their target tables stay.")
    recreated: tuple[str, ...] = Field(
        description="Tables with a changed setting that only a new target table can have (`snapshot` with `recreate`)."
    )
    has_worker: bool = Field(
        description="True if a worker runs the replicator already. A `serve` with room takes a new one within seconds; without any worker "
        "nothing happens."
    )

    @classmethod
    def first(cls, name: str, found: Assessment, *, has_worker: bool, has_lines: bool) -> ConfiguredDocument:
        """Return the document of a new one."""
        listed = _listed(found.problems, has_lines=has_lines)
        return cls.same(name, has_worker=has_worker).model_copy(update={"is_new": True, **listed})

    @classmethod
    def same(cls, name: str, *, has_worker: bool) -> ConfiguredDocument:
        """Return the document of one that is stored as it was sent."""
        return cls(
            version=VERSION,
            name=name,
            is_new=False,
            changed=(),
            restarted=(),
            added=(),
            removed=(),
            recreated=(),
            has_worker=has_worker,
        )

    @classmethod
    def again(cls, name: str, found: Reloaded, *, has_lines: bool) -> ConfiguredDocument:
        """Return the document of one that was stored before."""
        return cls(
            version=VERSION,
            name=name,
            is_new=False,
            changed=found.sections,
            restarted=tuple(sorted(role.value for role in found.roles)),
            added=tuple(map(str, found.added)),
            removed=tuple(map(str, found.removed)),
            recreated=tuple(map(str, found.recreated)),
            has_worker=found.has_worker,
            **_listed(found.assessment.problems, has_lines=has_lines),
        )


class RefusalKind(StrEnum):
    """Class of a refusal's error."""

    REQUEST = "request"
    CONFIG = "config"
    TRANSIENT = "transient"
    OTHER = "other"


class Refusal(Findings):
    """Reason why a configuration was not taken."""

    kind: RefusalKind = Field(description="Class of the error.")
    code: Code = Field(description="See docs/errors.md.")
    message: str = Field(description="Text of the error. Never the value of a reference.")
    action: str | None = Field(description="The next step; null if there is none.")
    status: int | None = Field(description="Status of the answer, where the error has one of its own.")

    @classmethod
    def of(cls, error: ReplicatorError, *, has_lines: bool) -> Refusal:
        """Return the document of an error with all its findings, without secrets."""
        problems = error.problems if isinstance(error, ConfigError) else ()
        return cls(
            kind=_kind(error),
            code=error.code,
            message=_shown(error.message),
            action=None if error.action is None else _shown(error.action),
            status=error.status if isinstance(error, RequestError) else None,
            **_listed(problems, has_lines=has_lines),
        )

    def error(self) -> ReplicatorError:
        """Return the error that it was made of, without the findings."""
        if self.kind is RefusalKind.REQUEST:
            return RequestError(self.message, status=self.status or 422, code=self.code, action=self.action)
        if self.kind is RefusalKind.CONFIG:
            return ConfigError(self.message, code=self.code, action=self.action)
        made = TransientError if self.kind is RefusalKind.TRANSIENT else ReplicatorError
        return made(self.message, code=self.code, action=self.action)


def _kind(error: ReplicatorError) -> RefusalKind:
    if isinstance(error, RequestError):
        return RefusalKind.REQUEST
    if isinstance(error, ConfigError):
        return RefusalKind.CONFIG
    return RefusalKind.TRANSIENT if isinstance(error, TransientError) else RefusalKind.OTHER


def _shown(text: str) -> str:
    clean = redact(text)
    return clean if len(clean) <= _TEXT_MAX else f"{clean[:_TEXT_MAX]}…"
