"""Names of tables and columns that are also folders, or names in a target that ignores case."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from replicator.model.errors import Problem, SchemaConflictError, Severity
from replicator.model.events import RESERVED_COLUMNS
from replicator.model.schema import TableId, TableSchema

_ENCODED: Final = re.compile(rb"[^A-Za-z0-9_-]+|_(?=[xX](?:[0-9A-Fa-f]{2})+(?![A-Za-z0-9-]))|\A_(?=\w+_log\Z)")
"""Bytes that are encoded in a path: also an underscore that would look like the beginning of an encoding, or of a table's log."""


def path_part(name: str) -> str:
    """Return `name` as one part of a path: `[A-Za-z0-9_-]` is kept, other bytes of its UTF-8 form become `_x`, their digits, `_`.

    Every reader opens such a path as it is written (`docs/adr/0056-folder-names-have-no-percent-sign.md`): `order items` becomes
    `order_x20_items`. Different names give different parts (which may differ only in case if the names do, see `check_names`),
    and none is `.` or `..`.
    """
    data = name.encode("utf-8", "surrogatepass")
    return _ENCODED.sub(lambda match: b"_x%b_" % match[0].hex().upper().encode(), data).decode("ascii")


def folded(name: str) -> str:
    """Fold a name as the most forgiving of the targets compares it: names that these take for equal are equal here, too.

    Java compares letters in capitals, and takes U+0130 and U+0131 (a dotted capital, a small letter without a dot) for `i`.
    """
    return name.replace("\u0131", "i").replace("\u0130", "i").casefold()


def check_names(tables: Iterable[TableId]) -> tuple[Problem, ...]:
    """Refuse tables whose names differ only in case: many file systems and catalogues would store them under one name."""
    groups: dict[tuple[str, str], set[TableId]] = defaultdict(set)
    for table in tables:
        groups[folded(table.namespace), folded(table.name)].add(table)
    return tuple(
        Problem(
            code="table_names_clash",
            message=f"{_listed(str(table) for table in group)} differ only in case, and a target may treat them as one table.",
            table=str(min(group)),
            action="Exclude all but one of them (tables.exclude).",
        )
        for group in groups.values()
        if len(group) > 1
    )


def check_columns(schema: TableSchema) -> tuple[Problem, ...]:
    """Refuse columns that have a name of ours, or that differ only in case."""
    reserved = {folded(name): name for name in RESERVED_COLUMNS}
    groups: Mapping[str, list[str]] = defaultdict(list)
    for column in schema.held:
        groups[folded(column.name)].append(column.name)
    problems: list[Problem] = []
    for name, names in groups.items():
        if name in reserved:
            problems.append(
                Problem(
                    code="column_name_reserved",
                    message=f"The column {names[0]} has a name that Replicator uses for a column of its own ({reserved[name]}).",
                    table=str(schema.table),
                    action="Rename the column in the source, or exclude the table (tables.exclude).",
                )
            )
        if len(names) > 1:
            problems.append(
                Problem(
                    code="column_names_clash",
                    message=f"The columns {_listed(names)} differ only in case, and targets ignore the case of column names.",
                    table=str(schema.table),
                    action="Rename all but one of them in the source, or exclude the table (tables.exclude).",
                )
            )
    return tuple(problems)


def refuse_columns(schema: TableSchema, problems: Iterable[Problem]) -> None:
    """Fail a table that came, or got its columns, while the replicator ran, for the problems that `validate` refuses at the start.

    Raises:
        SchemaConflictError: With the first of `problems`, if there is one.
    """
    for problem in problems:
        raise SchemaConflictError(problem.message, code=problem.code, table=str(schema.table), action=problem.action)


def cut(text: str, length: int) -> str:
    """Return the text, with an ellipsis at its end where it is longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def comment_notices(schema: TableSchema, table_length: int, column_length: int) -> tuple[Problem, ...]:
    """Return notices for the comments that a target cuts."""
    comments = [(str(schema.table), schema.comment, table_length)]
    comments += [(f"{schema.table}.{c.name}", c.comment, column_length) for c in schema.columns]
    return tuple(
        Problem(
            code="comment_changed",
            message=f"The comment has {len(comment)} characters and is shortened to {length}.",
            location=location,
            severity=Severity.NOTICE,
        )
        for location, comment, length in comments
        if comment and len(comment) > length
    )


def _listed(names: Iterable[str]) -> str:
    *rest, last = sorted(names)
    return f"{', '.join(rest)} and {last}" if rest else last
