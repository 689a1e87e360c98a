"""Findings of targets about a table's columns, in one wording."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from replicator.model.errors import Problem, Severity, TableError, UnsupportedTypeError
from replicator.model.schema import Column, TableSchema


def type_findings(schema: TableSchema, changes_of: Callable[[Column], Sequence[str]]) -> list[Problem]:
    """Return findings for the columns that a target changes or cannot store.

    Args:
        schema: The table.
        changes_of: Returns a sentence for each difference of a column's stored values. UnsupportedTypeError: they cannot be stored.
    """
    problems: list[Problem] = []
    for column in schema.columns:
        table, location = str(schema.table), f"{schema.table}.{column.name}"
        try:
            told = changes_of(column)
        except UnsupportedTypeError as error:
            problems.append(
                Problem(
                    code=error.code,
                    message=error.message,
                    table=table,
                    location=location,
                    action="Exclude the table.",
                )
            )
            continue
        problems += [
            Problem(code="type_changed", message=text, table=table, location=location, severity=Severity.NOTICE)
            for text in told
        ]
    return problems + key_findings(schema)


def key_findings(schema: TableSchema) -> list[Problem]:
    """Return findings for columns of the key whose values do not identify a row."""
    return [
        Problem(
            code="key_type_unsupported",
            message=f"The key has a floating-point column ({column.source_type}): NaN and -0.0 cannot identify a row.",
            table=str(schema.table),
            location=f"{schema.table}.{column.name}",
            action="Give the table a key of another type, or replicate it without a key.",
        )
        for column in schema.columns
        if column.name in schema.key and pa.types.is_floating(column.type)
    ]


def refuse_long_names(schema: TableSchema, bytes_max: int) -> None:
    """Refuse a table with a name that the target would cut.

    Raises:
        TableError: `table_name_too_long`.
    """
    names = [schema.table.namespace, schema.table.name, *(column.name for column in schema.held)]
    if max(len(name.encode()) for name in names) > bytes_max:
        raise TableError(
            f"A name of the table is longer than {bytes_max} bytes.",
            code="table_name_too_long",
            table=str(schema.table),
            action="Exclude the table.",
        )
