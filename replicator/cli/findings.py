"""Findings about a configuration, grouped and short."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from replicator.model.errors import ConfigError, Problem, Severity
from replicator.model.terminal import continued, in_one_line
from replicator.projection.checking import ArrivingColumn, arriving
from replicator.service.configuring.fixing import fixable
from replicator.service.status.snapshots import counted

if TYPE_CHECKING:
    from replicator.service.configuring.assess import Assessment

_COLOURS: Final = {Severity.BLOCKING: "red", Severity.WARNING: "yellow", Severity.NOTICE: "blue"}
_ORDER: Final = (Severity.NOTICE, Severity.WARNING, Severity.BLOCKING)
"""The blocking ones last, so that they are seen."""
_LOCATIONS_SHOWN: Final = 5


def findings(found: Sequence[Problem]) -> None:
    """Print findings on stderr: those that say the same of several tables or settings once, with all locations."""
    for line in lines(found):
        click.echo(line, err=True)


def warnings(found: Assessment) -> None:
    """Print findings that matter but do not refuse the start: warnings, and problems that fail single tables at a later start."""
    findings([one for one in found.problems if one.severity is not Severity.NOTICE])


def lines(found: Sequence[Problem]) -> Sequence[str]:
    """Return the lines that are printed of findings."""
    shown: list[str] = []
    ordered = sorted(found, key=lambda one: _ORDER.index(one.severity))
    groups: dict[tuple[Severity, str, str], list[Problem]] = {}
    for problem in ordered:
        groups.setdefault((problem.severity, problem.code, problem.message), []).append(problem)
    for (severity, code, message), group in groups.items():
        shown.append(
            f"{click.style(severity.value, fg=_COLOURS[severity])} [{code}] {in_one_line(_where(group))}{continued(message)}"
        )
        shown += [f"    → {continued(action)}" for action in _actions(group)]
    return shown


def assessment(found: Assessment, file: str) -> None:
    """Print the result of `validate`, with one line of verdict at the end unless something is blocking (`refusal`)."""
    findings(found.problems)
    for table in found.tables:
        key = ", ".join(table.key) if table.key else "none (a multiset of rows)"
        click.echo(f"{in_one_line(str(table.table))}: {counted(len(table.columns), 'column')}, key {in_one_line(key)}")
        if projection := found.projections.get(table.table):
            _arriving(arriving(table, projection))
    for summary in found.left_out:
        click.echo(f"{in_one_line(str(summary.table))}: left out, {continued(str(summary.left_out))}")
    if not found.is_blocked:
        rows = "" if found.estimated_rows is None else f", {counted(found.estimated_rows, 'row')} estimated"
        number = _count(found.problems, Severity.WARNING)
        kind = "blocking " if number else ""
        also = f", {counted(number, 'warning')}" if number else ""
        click.echo(
            f"No {kind}problems found: {counted(len(found.tables), 'table')}{rows}{also}.{_by_sql(found.problems, file)}"
        )


def _arriving(columns: Sequence[ArrivingColumn]) -> None:
    """Print what arrives of each column, where settings of columns say that something else does."""
    for column in columns:
        name = in_one_line(column.column)
        if column.name is None:
            click.echo(f"  {name}: left out")
            continue
        to = "" if column.name == column.column else f" → {in_one_line(column.name)}"
        how = "" if column.mask is None else f", masked by {column.mask}"
        click.echo(f"  {name}{to}: {column.type}{how}")


def refusal(found: Sequence[Problem], file: str) -> ConfigError:
    """Return the verdict if something is blocking."""
    blocking, number = (_count(found, severity) for severity in (Severity.BLOCKING, Severity.WARNING))
    also = f" and {counted(number, 'warning')}" if number else ""
    return ConfigError(
        f"{file} cannot be replicated as configured: {counted(blocking, 'blocking problem')}{also}.",
        code="assessment_failed",
        action=_by_sql(found, file).strip() or None,
    )


def _count(found: Sequence[Problem], severity: Severity) -> int:
    return sum(1 for one in found if one.severity is severity)


def _by_sql(found: Sequence[Problem], file: str) -> str:
    """Return the number of problems that a script fixes, and the command that prints it; empty if none."""
    number = sum(1 for one in fixable(found) if one.severity is not Severity.NOTICE)
    return f" SQL fixes {number} of them: replicator validate {shlex.quote(file)} --sql" if number else ""


def _where(group: Sequence[Problem]) -> str:
    locations = list(dict.fromkeys(one.location for one in group if one.location))
    shown = locations[:_LOCATIONS_SHOWN] + ([f"… ({len(locations)})"] if len(locations) > _LOCATIONS_SHOWN else [])
    return f"{', '.join(shown)}: " if shown else ""


def _actions(group: Sequence[Problem]) -> Sequence[str]:
    """Return the next steps. Statements for several tables, and programs of many lines, are left to the script."""
    actions = list(dict.fromkeys(one.action for one in group if one.action))
    if all(one.sql for one in group) and (len(actions) > 1 or any("\n" in action for action in actions)):
        return ["For the statements: replicator validate FILE --sql"]
    return actions
