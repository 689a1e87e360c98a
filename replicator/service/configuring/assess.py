"""`validate`: every problem of a configuration, at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from replicator.capture.asking import ask, describe
from replicator.config import LoadedConfig
from replicator.journal.location import check_location
from replicator.model.errors import Problem, ReplicatorError, Severity, TransientError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.registry import Registry
from replicator.plugins.source import SourceCatalogue, SourceContext, TableSummary
from replicator.projection.checking import NOTHING_PROJECTED, ProjectedTables, project_tables, unmatched_columns
from replicator.projection.columns import Projection
from replicator.projection.rules import rules_for
from replicator.runtime import assembly
from replicator.runtime.home import Home
from replicator.service.configuring.paths import LOCATIONS, path_findings
from replicator.spark.master import java_problem, reach_problem, setting_problem, sharing_problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Result of `validate`.

    `problems` has each finding once. `identity` is compared with the stored configuration's; None if the source could not be asked.
    `selected` are the tables that the configuration names, `tables` the schemas of those that exist. `projections` say
    what settings make of their columns. `estimated_rows` is their sum by the
    source's statistics; None if a table has none.
    """

    tables: Sequence[TableSchema]
    left_out: Sequence[TableSummary]
    problems: Sequence[Problem]
    identity: dict[str, Any] | None
    selected: Sequence[TableId] = ()
    projections: Mapping[TableId, Projection] = field(default_factory=dict)
    estimated_rows: int | None = None

    def __post_init__(self) -> None:
        """Keep each finding once: host and target may find the same of a table."""
        once: dict[object, Problem] = {}
        for problem in self.problems:
            once.setdefault((problem.severity, problem.code, problem.message, problem.location), problem)
        object.__setattr__(self, "problems", list(once.values()))

    @property
    def is_blocked(self) -> bool:
        """Return whether a problem refuses a first start."""
        return any(p.severity is Severity.BLOCKING for p in self.problems)

    @property
    def is_blocked_for_all(self) -> bool:
        """Return whether a problem also refuses a later start: it concerns more than single tables, which fail alone."""
        names = {str(table) for table in self.selected}
        return any(p.severity is Severity.BLOCKING and p.table not in names for p in self.problems)


def assess(
    loaded: LoadedConfig, registry: Registry, home: Home, *, uuid: str = "", may_retry: bool = False
) -> Assessment:
    """Ask source and target about the configured tables; change nothing anywhere.

    With `may_retry` an unreachable source or target does not refuse the start: a worker that has begun retries by itself.
    """
    problems: list[Problem] = list(loaded.warnings)
    try:
        location = check_location(home.state_url, loaded.config.journal.uri or home.journal_uri(loaded.config.name))
    except ReplicatorError as error:
        location = _finding(error, "journal.uri", may_retry=may_retry)
    if location is not None:
        problems.append(location)
    source = registry.source(loaded.source_type)(loaded.source, SourceContext(replicator=loaded.config.name, uuid=uuid))
    try:
        asked = _ask_source(source, loaded, may_retry=may_retry)
        problems += asked.problems
    finally:
        source.close()
    target = assembly.make_target(loaded, registry, uuid=uuid)
    problems += path_findings(loaded, target.identity())
    if target.spark_needs is not None:
        problems += _spark_problems(loaded, home, target.identity(), may_retry=may_retry)
    try:
        problems += _asked_of_tables(target.check, asked.projected.shapes)
        target_identity = dict(target.identity())
    except ReplicatorError as error:
        problems.append(_finding(error, "target", may_retry=may_retry))
        target_identity = None
    finally:
        target.close()
    return Assessment(
        tables=asked.schemas,
        projections=asked.projected.projections,
        left_out=asked.left_out,
        problems=problems,
        identity={"source": asked.identity, "target": target_identity} if asked.identity and target_identity else None,
        selected=asked.selected,
        estimated_rows=asked.estimated_rows,
    )


def _spark_problems(
    loaded: LoadedConfig, home: Home, target: Mapping[str, str], *, may_retry: bool
) -> Sequence[Problem]:
    """Return problems that would prevent Spark from starting, as far as they can be found without starting it."""
    spark = loaded.config.spark
    found = [p for p in (setting_problem(spark.master), java_problem()) if p is not None]
    if not found and (away := reach_problem(spark.master)) is not None:
        found.append(replace(away, severity=Severity.WARNING) if may_retry else away)
    uris = [("journal.uri", loaded.config.journal.uri or home.journal_uri(loaded.config.name))]
    uris += [(f"target.{name}", value) for name, value in target.items() if name in LOCATIONS]
    return [*found, *sharing_problems(spark.master, uris)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Answers of the source."""

    problems: Sequence[Problem]
    selected: Sequence[TableId] = ()
    left_out: Sequence[TableSummary] = ()
    schemas: Sequence[TableSchema] = ()
    projected: ProjectedTables = NOTHING_PROJECTED
    estimated_rows: int | None = None
    identity: dict[str, str] | None = None


def _ask_source(source: SourceCatalogue, loaded: LoadedConfig, *, may_retry: bool) -> _Asked:
    problems: list[Problem] = []
    try:
        selection = assembly.select_tables(source, loaded)
    except ReplicatorError as error:
        return _Asked(problems=[_finding(error, "source", may_retry=may_retry)])
    problems += selection.problems
    if not selection.tables:
        return _Asked(problems=problems, left_out=selection.left_out)
    try:
        answers, unchecked = ask(source.check, selection.tables, "checking it")
        # Its findings are reported even if a missing privilege, which they name, prevents the tables from being described.
        problems += [problem for answer in answers for problem in answer]
        described = describe(source, [table for table in selection.tables if table not in unchecked])
        identity = dict(source.identity())
    except ReplicatorError as error:
        failed = _finding(error, "source", may_retry=may_retry)
        return _Asked(problems=[*problems, failed], selected=selection.tables, left_out=selection.left_out)
    refused = {**unchecked, **described.refused}
    problems += [Problem.of(error) for error in refused.values()]
    schemas = [d.schema for d in described.found.values()]
    settings = loaded.config.tables.settings
    projected = project_tables(schemas, lambda table: rules_for(table, settings))
    problems += [*projected.problems, *unmatched_columns(schemas, settings)]
    problems += [_missing(t) for t in selection.tables if t not in described.found and not _has_finding(problems, t)]
    counts = [d.estimated_rows for d in described.found.values() if d.estimated_rows is not None]
    return _Asked(
        problems=problems,
        selected=selection.tables,
        left_out=selection.left_out,
        schemas=schemas,
        projected=projected,
        estimated_rows=sum(counts) if len(counts) == len(described.found) else None,
        identity=identity,
    )


def _asked_of_tables(
    check: Callable[[Sequence[TableSchema]], Sequence[Problem]], schemas: Sequence[TableSchema]
) -> Sequence[Problem]:
    """Return the findings of `check`; if it fails for one table, that is a finding about this table."""
    by_table = {schema.table: schema for schema in schemas}
    answers, refused = ask(lambda tables: check([by_table[t] for t in tables]), list(by_table), "checking its target")
    return [
        *(problem for answer in answers for problem in answer),
        *(Problem.of(error) for error in refused.values()),
    ]


def _finding(error: ReplicatorError, location: str, *, may_retry: bool) -> Problem:
    return Problem(
        code=error.code,
        message=error.message,
        location=error.table or location,
        table=error.table,
        action=error.action,
        severity=Severity.WARNING if may_retry and isinstance(error, TransientError) else Severity.BLOCKING,
    )


def _missing(table: TableId) -> Problem:
    return Problem(
        code="table_not_found",
        message="The table does not exist, or this user may not see it.",
        table=str(table),
        action="Check the name and the privileges.",
    )


def _has_finding(problems: Sequence[Problem], table: TableId) -> bool:
    return any(p.table == str(table) and p.severity is Severity.BLOCKING for p in problems)
