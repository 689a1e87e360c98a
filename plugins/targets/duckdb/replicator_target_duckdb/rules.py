"""Every code of this distribution's errors and findings, with its texts."""

from __future__ import annotations

from typing import Final

from replicator.model.rules import Section, tables, targets

SECTION: Final = Section("DuckDB")


CHANGE_REFUSED: Final = targets.SCHEMA_CONFLICT.worded(
    "DuckDB refuses the change ({error_type}).",
    action=(
        "Somebody changed the table, or something depends on it. Undo that, or recreate the table: replicator "
        "snapshot NAME TABLE --recreate."
    ),
)

CONSTRAINT_REFUSES: Final = targets.SCHEMA_CONFLICT.worded(
    ("Something that somebody added to the table, such as a constraint, keeps DuckDB from the change ({error_type})."),
    action=(
        "Drop it; if it is a foreign key, drop the table that has it. Then recreate the table: replicator "
        "snapshot NAME TABLE --recreate."
    ),
)

BATCH_REFUSED: Final = targets.SCHEMA_CONFLICT.worded(
    "The batch cannot be merged: {error}.",
    action="Recreate the table: replicator snapshot NAME {quoted_table} --recreate.",
)

TARGET_BUSY: Final = targets.TARGET_BUSY.worded(
    "Another process has had {file} open for {wait_s:g} s.",
    action="Close other programs that have the file open: DuckDB lets no other process in while one writes.",
)

FILE_OCCUPIED: Final = targets.TARGET_OCCUPIED.worded(
    "{file} is not a database that this version of DuckDB can open.",
    action="Move the file away, or choose another target.path.",
)

VIEW_OCCUPIES: Final = targets.TARGET_OCCUPIED.worded(
    "A view has the table's name in the target.",
    action="Drop the view, then recreate the table: replicator snapshot NAME TABLE --recreate.",
)

TARGET_FULL: Final = targets.TARGET_FULL.worded(
    "DuckDB has not enough memory or space for temporary files (512MB).",
    action="Free space in the folder for temporary files (TMPDIR).",
)

TARGET_UNREACHABLE: Final = targets.TARGET_UNREACHABLE.worded(
    "DuckDB cannot use {file} ({error_type}).", action="Check the file and its disk."
)

TARGET_NOT_WRITABLE: Final = targets.TARGET_NOT_WRITABLE.worded(
    "The folder {folder} {what}.",
    action="Make the folder, writable for this process, or choose another target.path.",
    location="target.path",
)

UNSUPPORTED_TYPE: Final = tables.UNSUPPORTED_TYPE.worded("DuckDB has no type for {type_}.")

STATE_NOT_READABLE: Final = targets.STATE_NOT_READABLE.worded("The state to compare cannot be read. {why}.")

FILE_FULL: Final = targets.TARGET_FULL.worded("{file} cannot be written: {fact}.")

FILE_NOT_WRITABLE: Final = targets.TARGET_NOT_WRITABLE.worded("{file} cannot be written: {fact}.")
