"""Questions to the source about many tables at once, narrowed to the one that makes them fail. Called in the control thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from replicator.model.errors import (
    THEN_BY_ITSELF,
    ConfigError,
    CurableError,
    Problem,
    RefusedError,
    Severity,
    TableError,
    TransientError,
)
from replicator.model.isolation import failed_table, table_error
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins.source import DeltaSource, SourceCatalogue, TableDescription, Visibility

T = TypeVar("T")
Descriptions = Mapping[TableId, TableDescription]
Refusals = Mapping[TableId, TableError]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer of the catalogue about tables.

    Attributes:
        found: What it says.
        refused: The tables of which it could not say anything; they are not in `found`.
        seen: Taken before it was asked: what it saw, the answer knows. None: unknown.
        moved: Names under which it has those that it does not have under their own.
    """

    found: Descriptions = field(default_factory=dict)
    refused: Refusals = field(default_factory=dict)
    seen: Visibility | None = None
    moved: Mapping[TableId, TableId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A source that is prepared for all tables that exist but those that it refuses. `offset` as `SourceLog.prepare` gave it."""

    offset: Offset
    refused: Refusals = field(default_factory=dict)


def describe(source: SourceCatalogue, tables: Sequence[TableId]) -> Answer:
    """Return the answer of the source's catalogue about the tables."""
    answers, refused = ask(source.describe, tables, "describing it")
    return Answer(found={table: found for answer in answers for table, found in answer.items()}, refused=refused)


def look(source: DeltaSource[Any], tables: Sequence[TableId]) -> Answer:
    """The same, with what it knows of for certain."""
    seen: Visibility | None = None
    # A server that says nothing of that is not trusted to know; why it does not, its checks tell.
    with suppress(TransientError):
        seen = source.visibility()
    answer = describe(source, tables)
    missing = [table for table in tables if table not in answer.found and table not in answer.refused]
    return replace(answer, seen=seen, moved=source.locate(missing) if missing else {})


def ask(
    question: Callable[[Sequence[TableId]], T], tables: Sequence[TableId], doing: str
) -> tuple[Sequence[T], Refusals]:
    """Ask about all tables together; if that fails for a reason that may be one table's, about each alone.

    Returns:
        The answers, and for the tables whose question failed alone, too, why. If all of several failed, it is no table's failure: the first
        error is raised. So is what is not a table's from the beginning.
    """
    if not tables:
        return [], {}
    try:
        return [question(tables)], {}
    except Exception as error:
        if not may_be_of_one(error):
            raise
        first = error
    is_narrowed = len(tables) > 1
    answers: list[T] = []
    refused: dict[TableId, TableError] = {}
    for table in tables:
        try:
            answers.append(question([table]))
        except Exception as error:
            ours = table_error(error, table, doing, is_narrowed=is_narrowed)
            if ours is None:
                raise
            refused[table] = ours
    if not answers and is_narrowed:
        raise first
    return answers, refused


def prepare(
    source: DeltaSource[Any],
    tables: Sequence[TableId],
    *,
    is_new_position: bool,
    has_begun: bool,
    captured: Collection[TableId] = (),
) -> Prepared:
    """Have the source prepared for those of the tables that exist and that it does not refuse.

    Args:
        source: Is prepared.
        tables: All that are wanted.
        is_new_position: The log is read from where `Prepared.offset` says.
        has_begun: There is a segment. Before the first one a refusal is the configuration's, and raised.
        captured: Were prepared before, and are never left out for another table's sake: the log would lack their changes meanwhile.
    """
    answer = describe(source, tables)
    missing = [table for table in captured if table in tables and table not in answer.found]
    # What was renamed, perhaps a moment ago, loses nothing by it.
    moved = source.locate(missing) if missing else {}
    left = [table for table in tables if table in answer.found or table in moved]
    refused = dict(answer.refused)
    while True:
        try:
            return Prepared(offset=source.prepare(left, is_first=is_new_position), refused=refused)
        except Exception as error:
            if not has_begun or not may_be_of_one(error):
                raise
            if not (named := _named(error, left)):
                ask_source = partial(source.prepare, is_first=is_new_position)
                return _prepare_one_by_one(ask_source, left, captured, refused, error)
        refused |= named
        left = [table for table in left if table not in named]


def blocking(problems: Sequence[Problem], tables: Collection[TableId]) -> Mapping[TableId, Problem]:
    """The first blocking finding about each of the tables."""
    found = {p.table: p for p in reversed(problems) if p.severity is Severity.BLOCKING}
    return {table: found[str(table)] for table in tables if str(table) in found}


def refusal(table: TableId, problem: Problem, *, is_curable: bool = False) -> TableError:
    """A blocking finding about a table as the reason why it is not tracked. `is_curable`: the source's check finds it."""
    message = problem.message if problem.message.endswith(".") else f"{problem.message}."
    action = (problem.action or "Fix it with the SQL that `replicator validate` prints").rstrip(".")
    if is_curable:
        action = f"{action}{'' if action.endswith(';') else '.'} {THEN_BY_ITSELF}"
        return CurableError(message, code=problem.code, table=str(table), action=action)
    joined = f"{action} then" if action.endswith(";") else f"{action}. Then"
    action = f"{joined} run `replicator snapshot NAME TABLE`; the next start takes one automatically."
    return RefusedError(message, code=problem.code, table=str(table), action=action)


def may_be_of_one(error: Exception) -> bool:
    """Return whether a question about several tables may have failed for one of them: not a passing error, nor one of all tables."""
    return table_error(error, TableId("-", "-"), "", is_narrowed=True) is not None


def _named(error: Exception, tables: Collection[TableId]) -> Mapping[TableId, TableError]:
    """The tables that an error names as its reason."""
    if isinstance(error, ConfigError) and error.problems:
        problems = {p.table: p for p in error.problems}
        return {t: refusal(t, problems[str(t)]) for t in tables if str(t) in problems}
    failed = failed_table(error)
    return {failed.table: failed.error} if failed is not None and failed.table in tables else {}


def _prepare_one_by_one(
    ask_source: Callable[[Sequence[TableId]], Offset],
    tables: Sequence[TableId],
    captured: Collection[TableId],
    refused: dict[TableId, TableError],
    first: Exception,
) -> Prepared:
    """Prepare those that were prepared before, and then each other one with them; one that makes it fail is refused."""
    good = [t for t in tables if t in captured]
    new = [t for t in tables if t not in captured]
    offset: Offset | None = None
    if good:
        offset, spoiler = _prepare_known(ask_source, good, first, is_tried=not new)
        if spoiler is not None:
            good.remove(spoiler)
            refused[spoiler] = _unfit(first, spoiler)
    for table in new:
        try:
            offset = ask_source([*good, table])
        except Exception as error:
            if not may_be_of_one(error):
                raise
            refused[table] = _unfit(error, table)
        else:
            good.append(table)
    if offset is None:
        raise first
    return Prepared(offset=offset, refused=refused)


def _prepare_known(
    ask_source: Callable[[Sequence[TableId]], Offset], tables: Sequence[TableId], first: Exception, *, is_tried: bool
) -> tuple[Offset, TableId | None]:
    """Prepare tables that were prepared before: all, or all but the one that makes it fail, which is returned too.

    A table that is left out for a moment is noticed as published in another way, and gets a new snapshot.
    """
    candidates: Sequence[TableId | None] = tables if is_tried else [None, *tables]
    for left_out in candidates if len(tables) > 1 else ():
        try:
            return ask_source([t for t in tables if t != left_out]), left_out
        except Exception as error:
            if not may_be_of_one(error):
                raise
    raise first


def _unfit(error: Exception, table: TableId) -> TableError:
    ours = table_error(error, table, "preparing it", is_narrowed=True)
    assert ours is not None, "what may be one table's"
    return ours
