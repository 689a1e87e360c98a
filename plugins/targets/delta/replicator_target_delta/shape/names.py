"""Names of columns that a Delta table cannot have here. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from replicator.model.errors import Problem
from replicator.model.naming import check_columns, folded
from replicator.model.schema import TableSchema

# What the MERGE, UPDATE and DELETE of Delta 4.4, and Spark's reader, add to a table's columns under these names.
_TAKEN: Final = frozenset(
    {
        "_metadata", "_target_row_present_", "_source_row_present_", "_target_row_index_", "_source_row_index", "_row_dropped_", "_row_id_",
        "_file_name_", "_input_file_name_", "_condition_", "__condition__", "__is_cdc", "__metadata_col", "__row_id_metadata_col",
        "__base_row_id_metadata_col", "_tmp_metadata_row_index",
    }
)  # fmt: skip
_TAKEN_PREFIX: Final = "__delta_internal_"


def column_problems(schema: TableSchema) -> Sequence[Problem]:
    """Problems of columns that have a name of ours or of Delta's, or that differ only in case."""
    return [
        *check_columns(schema),
        *(
            Problem(
                code="column_name_reserved",
                message=f"The column {column.name} has a name that Delta uses for a column of its own.",
                table=str(schema.table),
                action="Rename the column in the source, or exclude the table (tables.exclude).",
            )
            for column in schema.columns
            if folded(column.name) in _TAKEN or folded(column.name).startswith(_TAKEN_PREFIX)
        ),
    ]
