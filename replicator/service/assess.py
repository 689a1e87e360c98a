"""`validate`: everything that would keep a configuration from working, at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from replicator.config import LoadedConfig
from replicator.journal.location import check_location
from replicator.model.errors import Problem, ReplicatorError, Severity, TransientError
from replicator.model.naming import check_columns
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.registry import Registry
from replicator.plugins.source import DeltaSource, SourceContext, TableSummary
from replicator.runtime import assembly
from replicator.runtime.home import Home
from replicator.spark.master import java_problem, reach_problem, setting_problem, sharing_problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What `validate` found.

    `identity` is what the stored configuration is compared with; None if the source could not be asked. `selected` are the tables that
    the configuration names, `tables` the shapes of those that are there.
    """

    tables: Sequence[TableSchema]
    left_out: Sequence[TableSummary]
    problems: Sequence[Problem]
    identity: dict[str, Any] | None
    selected: Sequence[TableId] = ()

    @property
    def is_blocked(self) -> bool:
        """Whether anything found forbids a first start."""
        return any(p.severity is Severity.BLOCKING for p in self.problems)

    @property
    def is_blocked_for_all(self) -> bool:
        """Whether anything found forbids a later start, too: it is about more than single tables, which fail alone."""
        names = {str(table) for table in self.selected}
        return any(p.severity is Severity.BLOCKING and p.place not in names for p in self.problems)


def assess(
    loaded: LoadedConfig, registry: Registry, home: Home, *, uuid: str = "", may_retry: bool = False
) -> Assessment:
    """Ask source and target about the configured tables; changes nothing anywhere.

    With `may_retry` a source or target that is away for now forbids nothing: a worker that has begun tries again by itself.
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
        selected, schemas, left_out, found, source_identity = _ask_source(source, loaded, may_retry=may_retry)
        problems += found
    finally:
        source.close()
    target = assembly.make_target(loaded, registry, uuid=uuid)
    if target.spark_needs is not None:
        problems += _spark_problems(loaded, home, target.identity(), may_retry=may_retry)
    try:
        problems += target.check(schemas)
        target_identity = dict(target.identity())
    except ReplicatorError as error:
        problems.append(_finding(error, "target", may_retry=may_retry))
        target_identity = None
    finally:
        target.close()
    identity = {"source": source_identity, "target": target_identity} if source_identity and target_identity else None
    return Assessment(tables=schemas, left_out=left_out, problems=problems, identity=identity, selected=selected)


def _spark_problems(
    loaded: LoadedConfig, home: Home, target: Mapping[str, str], *, may_retry: bool
) -> Sequence[Problem]:
    """What would keep Spark from starting, as far as that can be seen without starting it."""
    spark = loaded.config.spark
    found = [p for p in (setting_problem(spark.master), java_problem()) if p is not None]
    if not found and (away := reach_problem(spark.master)) is not None:
        found.append(replace(away, severity=Severity.WARNING) if may_retry else away)
    places = [("journal.uri", loaded.config.journal.uri or home.journal_uri(loaded.config.name))]
    places += [(f"target.{name}", value) for name, value in target.items() if name in {"path", "uri"}]
    return [*found, *sharing_problems(spark.master, places)]


def _ask_source(
    source: DeltaSource[Any], loaded: LoadedConfig, *, may_retry: bool
) -> tuple[Sequence[TableId], list[TableSchema], Sequence[TableSummary], list[Problem], dict[str, str] | None]:
    problems: list[Problem] = []
    try:
        selection = assembly.select_tables(source, loaded)
    except ReplicatorError as error:
        return (), [], (), [_finding(error, "source", may_retry=may_retry)], None
    problems += selection.problems
    if not selection.tables:
        return (), [], selection.left_out, problems, None
    try:
        problems += source.check(selection.tables)
        described = source.describe(selection.tables)
        identity = dict(source.identity())
    except ReplicatorError as error:
        failed = _finding(error, "source", may_retry=may_retry)
        return selection.tables, [], selection.left_out, [*problems, failed], None
    schemas = [d.schema for d in described.values()]
    for schema in schemas:
        problems += check_columns(schema)
    problems += [_missing(t) for t in selection.tables if t not in described and not _has_finding(problems, t)]
    return selection.tables, schemas, selection.left_out, problems, identity


def _finding(error: ReplicatorError, place: str, *, may_retry: bool) -> Problem:
    return Problem(
        code=error.code,
        message=error.message,
        place=error.table or place,
        action=error.action,
        severity=Severity.WARNING if may_retry and isinstance(error, TransientError) else Severity.BLOCKING,
    )


def _missing(table: TableId) -> Problem:
    return Problem(
        code="table_not_found",
        message="the table does not exist, or this user may not see it",
        place=str(table),
        action="Check the name and the privileges.",
    )


def _has_finding(problems: Sequence[Problem], table: TableId) -> bool:
    return any(p.place == str(table) and p.severity is Severity.BLOCKING for p in problems)
