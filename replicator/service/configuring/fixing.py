"""Output of `validate --sql`: one script that fixes in the source what SQL can fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from replicator.model.errors import Problem, Severity


def fixable(problems: Iterable[Problem]) -> Sequence[Problem]:
    """Return the findings that SQL can fix."""
    return [problem for problem in problems if problem.sql]


def script(name: str, problems: Sequence[Problem]) -> str:
    """Return the script for a replicator's findings, in an order in which it can be run, each statement once.

    Statements that only improve something are at the end: they can be left out.
    """
    needed = [problem for problem in fixable(problems) if problem.severity is not Severity.NOTICE]
    optional = [problem for problem in fixable(problems) if problem.severity is Severity.NOTICE]
    if not needed and not optional:
        return f"-- {name}: nothing that was found can be fixed by SQL.\n"
    reasons = _reasons(needed)
    lines = [f"-- {name}: run this in the source as a superuser, connected to the database that is replicated."]
    lines += _lines(reasons)
    if more := {sql: why for sql, why in _reasons(optional).items() if sql not in reasons}:
        lines += ["", "-- Optional.", *_lines(more)]
    return "\n".join(lines) + "\n"


def _reasons(problems: Iterable[Problem]) -> Mapping[str, Sequence[str]]:
    """Return for each statement, in order, the findings that it fixes."""
    found: dict[str, list[str]] = {}
    for problem in problems:
        for statement in problem.sql:
            why = f"{problem.code}: {problem.location}" if problem.location else problem.code
            found.setdefault(statement, []).append(why)
    return found


def _lines(statements: Mapping[str, Sequence[str]]) -> Iterable[str]:
    said: Sequence[str] = ()
    for statement, reasons in statements.items():
        if reasons != said:
            yield f"-- {'; '.join(dict.fromkeys(reasons))}"
            said = reasons
        yield statement
