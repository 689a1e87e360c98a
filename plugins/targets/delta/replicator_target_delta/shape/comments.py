"""Comments of the source, as Delta can hold them. Pure text.

The comment of a column stands in the schema that Spark hands through a Hadoop configuration to every Parquet file it
writes, and Hadoop resolves `${…}` there: environment variables (`${env.X}`), system properties and its own settings, the
storage's keys among them. More than twenty of them fail the write. So no such comment comes near it. The comment of a table
stands in the log only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from replicator.model.errors import Problem, Severity
from replicator.model.naming import comment_notices as cut_notices
from replicator.model.naming import cut
from replicator.model.schema import TableSchema

# Every file of the table carries the comments of its columns.
COLUMN_COMMENT_MAX: Final = 4_000
TABLE_COMMENT_MAX: Final = 16_000


def column_comment(comment: str | None) -> str | None:
    """A column's comment in which nothing is a reference to Hadoop: `${` becomes `$ {`."""
    return cut(comment, COLUMN_COMMENT_MAX).replace("${", "$ {") if comment else None


def table_comment(comment: str | None) -> str | None:
    """A table's comment."""
    return cut(comment, TABLE_COMMENT_MAX) if comment else None


def comment_notices(schema: TableSchema) -> Sequence[Problem]:
    """Notices of comments that do not arrive unchanged."""
    return [
        *cut_notices(schema, TABLE_COMMENT_MAX, COLUMN_COMMENT_MAX),
        *(
            Problem(
                code="comment_changed",
                message="In the comment ${ becomes $ {: Hadoop would resolve the reference.",
                table=str(schema.table),
                location=f"{schema.table}.{column.name}",
                severity=Severity.NOTICE,
            )
            for column in schema.columns
            if column.comment and "${" in column.comment
        ),
    ]
