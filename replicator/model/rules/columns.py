"""Rules about the settings of columns: what leaves the source."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import SchemaConflictError, Severity
from replicator.model.rules import Section

SECTION: Final = Section("What leaves the source", text="See `projection.md`.")
_SETTINGS: Final = "Change the table's settings under `tables.settings`, then run `replicator reload FILE`"
_AGAIN: Final = f"{_SETTINGS} and `replicator snapshot NAME {{table}}`."

ALL_COLUMNS_EXCLUDED: Final = SECTION.rule(
    "all_columns_excluded",
    found=(Severity.BLOCKING,),
    meaning="By `columns` under `tables.settings` no column of the table is replicated.",
    remedy="Change the setting, or leave the table out.",
    text="By the settings of its columns none of them is replicated.",
    action="Change columns under `tables.settings`, or leave the table out under `tables.exclude`.",
)

COLUMN_WITHOUT_MATCH: Final = SECTION.rule(
    "column_without_match",
    found=(Severity.WARNING,),
    meaning="A name in the settings of columns is that of no column of the tables that the pattern matches.",
    remedy="Correct the name; the message has the nearest one.",
    text="No table that {pattern} matches has a column {column}.",
    location="tables.settings.{pattern}.{setting}",
)

MASK_DOES_NOT_FIT: Final = SECTION.rule(
    "mask_does_not_fit",
    raises=(SchemaConflictError,),
    found=(Severity.BLOCKING,),
    meaning="A mask cannot be used for the type of its column.",
    remedy="Choose another mask; `redact` and `null` fit every type.",
    text="Column {column} has the type {source_type}. The mask {function} {reason}.",
    action=f"{_SETTINGS}. redact and null can be used for every type.",
)

VALUE_CANNOT_BE_MASKED: Final = SECTION.rule(
    "value_cannot_be_masked",
    raises=(SchemaConflictError,),
    meaning="The masked value has no room in its type: a `bucket` below the smallest 64-bit integer, or a day before the first one.",
    remedy="Choose another mask, then a new snapshot.",
    text="A value of column {column} cannot be masked: {mask} {reason}.",
    action=_AGAIN,
)

MASK_KEY_CHANGED: Final = SECTION.rule(
    "mask_key_changed",
    raises=(SchemaConflictError,),
    found=(Severity.BLOCKING,),
    meaning="The key of an `hmac` is another one than before, under the same id.",
    remedy="Give it the former key again, another `id=…`, or name the former key by `was=…`.",
    text="The key of the mask of column {column} is another one than before, under the same id.",
    action="Give the mask the former key again. To change it, give the new key another id=…, or name the former one by was=….",
)
MASK_CHANGED: Final = MASK_KEY_CHANGED.worded(
    "Column {column} is masked by {mask}, and the settings have another function or key.", action=_AGAIN
)

KEY_EXCLUDED: Final = SECTION.rule(
    "key_excluded",
    raises=(SchemaConflictError,),
    found=(Severity.BLOCKING,),
    meaning="A column of the key is left out by the settings.",
    remedy="Let it arrive: rows are found by it.",
    text="Column {column} is part of the key, by which rows are found, and cannot be left out.",
    action=f"{_SETTINGS}: the columns of the key must stay.",
)

KEY_MASKED: Final = SECTION.rule(
    "key_masked",
    raises=(SchemaConflictError,),
    found=(Severity.BLOCKING,),
    meaning="A column of the key is masked by the settings.",
    remedy="Take the mask away; from a pattern by `NAME: clear`.",
    text="Column {column} is part of the key, by which rows are found, and cannot be masked.",
    action=f"{_SETTINGS}. Write `mask: {{{{{{column}}: clear}}}}` if a pattern masks it.",
)

PROJECTION_LOST: Final = SECTION.rule(
    "projection_lost",
    raises=(SchemaConflictError,),
    meaning=(
        "The source renamed a column, or may have done so, and under its new name the settings would treat it in another way. Nothing of"
        " the table is replicated until that is decided."
    ),
    remedy="Add the new name to the settings (`NAME: clear` to replicate it as it is), `replicator reload FILE`, then a new snapshot.",
    text="The source renamed column {old} to {column}. Under its old name it was {was}; by the settings it would be {becomes} now.",
    action=f"{_AGAIN} To replicate {{column}} as it is, write `mask: {{{{{{column}}: clear}}}}`.",
)
COLUMN_REPLACED: Final = PROJECTION_LOST.worded(
    "The source does not have column {old} any more, which was {was}, and has {others} instead: that may be the same column under another"
    " name.",
    action=PROJECTION_LOST.action,
)

NAME_TAKEN_OVER: Final = PROJECTION_LOST.worded(
    "The source renamed column {old} to {column}, which was the name of another column. Under its old name it was {was}; by the settings"
    " it would be {becomes} now.",
    action=(
        "Give the columns names that the settings treat alike. To take the table as it is now, leave it out under `tables.exclude`,"
        " then take it in again, each with `replicator reload FILE`."
    ),
)
