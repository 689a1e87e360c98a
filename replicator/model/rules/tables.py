"""Rules about tables in general."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    FatalError,
    ImpossibleKeyError,
    KeyMissingError,
    PluginError,
    SchemaConflictError,
    Severity,
    TableError,
    UnsupportedTypeError,
)
from replicator.model.rules import Section

SECTION: Final = Section("Tables in general")

NO_TABLES: Final = SECTION.rule(
    "no_tables",
    found=(Severity.BLOCKING,),
    meaning="The patterns match no table, or the source shows none to the user.",
    remedy="Correct `tables:`, or grant the privileges; `validate` lists the tables that are left out.",
)

PATTERN_WITHOUT_MATCH: Final = SECTION.rule(
    "pattern_without_match",
    found=(Severity.WARNING,),
    meaning="A pattern matches no table.",
    remedy="Correct it; names are case-sensitive.",
)

TABLE_NAMES_CLASH: Final = SECTION.rule(
    "table_names_clash",
    raises=(TableError,),
    found=(Severity.BLOCKING,),
    meaning="Tables whose names differ only in case, or become one in the target.",
    remedy="Exclude all but one.",
)

COLUMN_NAMES_CLASH: Final = SECTION.rule(
    "column_names_clash",
    found=(Severity.BLOCKING,),
    meaning="Columns whose names differ only in case.",
    remedy="Rename all but one, or exclude the table.",
)

COLUMN_NAME_RESERVED: Final = SECTION.rule(
    "column_name_reserved",
    raises=(SchemaConflictError,),
    found=(Severity.BLOCKING,),
    meaning=(
        "A column has the name of one that the Replicator or the target adds. An error if the table was created "
        "while the replicator ran."
    ),
    remedy="Rename it, or exclude the table.",
)

TABLE_NOT_FOUND: Final = SECTION.rule(
    "table_not_found",
    raises=(SchemaConflictError,),
    found=(Severity.BLOCKING,),
    meaning="The table does not exist, or this user may not see it.",
    remedy="Check name and privileges.",
)

TABLE_MISSING: Final = SECTION.rule(
    "table_missing",
    raises=(SchemaConflictError, TableError),
    found=(Severity.BLOCKING,),
    meaning="A replicated table is no longer in the source (`dropped` in the status).",
    remedy="Exclude it; or create it again and take a new snapshot.",
)

TABLE_RENAMED: Final = SECTION.rule(
    "table_renamed",
    raises=(SchemaConflictError,),
    meaning=(
        "The table was renamed, and is not followed: `tables.include` does not match its new name, that is the "
        "name of another replicated table, or a setting says so (`ddl.rename_table`, `rename_starts_new_table`). "
        "The message says which."
    ),
    remedy="It continues when a table has its name again. Or exclude it, and include its new name.",
)

VALUE_DOES_NOT_FIT: Final = SECTION.rule(
    "value_does_not_fit",
    raises=(SchemaConflictError,),
    meaning=(
        "A value does not fit the type that the target keeps, because `ddl.widen_type` or `ddl.change_type` is "
        "`ignore`."
    ),
    remedy="`replicator ddl accept NAME TABLE`: the target table is rebuilt with the source's types.",
)

SCHEMA_CHANGED: Final = SECTION.rule(
    "schema_changed",
    raises=(SchemaConflictError, TableError),
    meaning=(
        "Rows in the log have other columns than before, and no statement says how that came "
        "(`docs/schema-changes.md`)."
    ),
    remedy="`replicator ddl accept NAME TABLE`: the target follows to the columns that the table has now.",
)

UNEXPLAINED_CHANGE: Final = SECTION.rule(
    "unexplained_change",
    raises=(FatalError,),
    meaning=(
        "With `snapshot.unexplained_change: stop`: the table was replaced by another one, or is published "
        "differently, and the log does not show it."
    ),
    remedy="A new snapshot of it; or set `resnapshot`.",
)

DDL_STOP: Final = SECTION.rule(
    "ddl_stop",
    raises=(SchemaConflictError,),
    meaning=(
        "A schema change reached a table whose policy for it is `stop`; or one that would lose columns which the "
        "target keeps."
    ),
    remedy=(
        "`replicator ddl accept NAME TABLE`: the target follows this one change. A new snapshot takes the table "
        "as it is now."
    ),
)

UNSUPPORTED_TYPE: Final = SECTION.rule(
    "unsupported_type",
    raises=(UnsupportedTypeError,),
    found=(Severity.BLOCKING,),
    meaning="A column's type cannot be replicated, by this source or in this target.",
    remedy="Exclude the table, publish it without the column, or drop it or change the column's type (`oid`).",
)

KEY_MISSING: Final = SECTION.rule(
    "key_missing",
    raises=(KeyMissingError,),
    meaning="A change came without a value in a key column.",
    remedy="Compare the replica identity with the key, then a new snapshot.",
)

INSERT_LACKS_COLUMNS: Final = SECTION.rule(
    "insert_lacks_columns",
    raises=(TableError,),
    meaning="The log has an INSERT without all columns. What is missing is not NULL, so nothing is written.",
    remedy="A new snapshot; replica identity FULL, or no row filter, prevents it.",
)

CORRUPT_ROWS: Final = SECTION.rule(
    "corrupt_rows",
    raises=(TableError,),
    meaning=(
        "Values of one table, or what the log says of its columns, do not have the form of their types. The log "
        "of the replicator has the traceback."
    ),
    remedy="A new snapshot of the table; if it fails again, exclude it and report its `CREATE TABLE`.",
)

IMPOSSIBLE_KEY: Final = SECTION.rule(
    "impossible_key",
    raises=(ImpossibleKeyError,),
    meaning=(
        "A key by which rows are read again is no value of its type. `verify --repair` deletes such a row in the "
        "target; it stops a table only if a source plugin has spelled the key."
    ),
    remedy="Report it.",
)

CURSOR_STUCK: Final = SECTION.rule(
    "cursor_stuck",
    raises=(PluginError, TableError),
    meaning=("Reading a table in chunks makes no progress, by an error of the source plugin or by values of its key."),
    remedy="Correct the values; otherwise report it.",
)
