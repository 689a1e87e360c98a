"""Judges differences between the source's catalogue and what capture accepted. Pure."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final

from replicator.model.errors import FatalError, SchemaConflictError
from replicator.model.identity import TableIdentity, Truncated
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import TableDescription
from replicator.state.table_life import TABLE_MISSING


class CatalogChange(StrEnum):
    """The change of a table, as the catalogue shows it."""

    NONE = "none"
    EXPLAINED = "explained"
    """The catalogue's identity is accepted: it differs by what a delivered TRUNCATE made, or by parts that are new."""
    ASK_AGAIN = "ask_again"
    OBJECT = "object"
    """Another object has its name."""
    STORAGE = "storage"
    """The same object has other rows, and the log does not say why."""
    DEFINITION = "definition"
    """Its definition, or how it is published, was changed, perhaps for a while."""
    KEY = "key"
    COLUMNS = "columns"
    DROPPED = "dropped"


UNEXPLAINED: Final = {
    CatalogChange.OBJECT: "the table was replaced by another one",
    CatalogChange.STORAGE: "the table's rows were rewritten or removed",
    CatalogChange.DEFINITION: "the table was redefined, or is published in another way",
}
"""Changes that the log does not show: it may lack changes of the table."""


def same_columns(a: TableSchema, b: TableSchema) -> bool:
    """Return whether rows of one fit the other: names and types in order, and the same numbers where both have them.

    Nullability, comments and kept columns do not matter.
    """
    if [(c.name, c.type) for c in a.columns] != [(c.name, c.type) for c in b.columns]:
        return False
    return all(None in (c.id, d.id) or c.id == d.id for c, d in zip(a.columns, b.columns, strict=True))


def same_shape(a: TableSchema, b: TableSchema) -> bool:
    """Return whether changes of one can be written as changes of the other: the columns and the key."""
    return a.key == b.key and same_columns(a, b)


def judge(
    schema: TableSchema, accepted: TableIdentity | None, found: TableDescription | None, *, truncates_since: int
) -> CatalogChange:
    """Compare a table with what the catalogue said of it, once everything that was visible then has been delivered.

    Args:
        schema: As tracked.
        accepted: Its identity as last accepted.
        found: What the catalogue said; None: the table does not exist.
        truncates_since: TRUNCATEs delivered since the catalogue was asked. One of these may or may not be in `found`:
            ask again, until none comes in between.
    """
    if found is None:
        return CatalogChange.DROPPED
    if not same_columns(schema, found.schema):
        return CatalogChange.COLUMNS
    if schema.key != found.schema.key:
        return CatalogChange.KEY
    if accepted is None:
        return CatalogChange.OBJECT
    change = _identity_change(accepted, found.identity)
    if change is CatalogChange.STORAGE and isinstance(accepted.storage, Truncated):
        if truncates_since:
            return CatalogChange.ASK_AGAIN
        return CatalogChange.EXPLAINED if _is_made_by(accepted.storage, accepted.altered, found) else change
    return change


def _is_made_by(truncate: Truncated, altered: str | None, found: TableDescription) -> bool:
    """Return whether a TRUNCATE alone made the storage: it is its transaction's, or nothing else was done to the table."""
    is_its_own = truncate.by is not None and truncate.by == found.storage_by
    return is_its_own or (altered is not None and altered == found.identity.altered)


def _identity_change(accepted: TableIdentity, found: TableIdentity) -> CatalogChange:
    """Return the change that two identities show; parts with a new name are learned."""
    if accepted.object is not None and accepted.object != found.object:
        return CatalogChange.OBJECT
    if accepted.is_redefined_in(found):
        return CatalogChange.DEFINITION
    if accepted.storage is not None and accepted.storage != found.storage:
        return CatalogChange.STORAGE
    is_same = (accepted, accepted.altered, accepted.constraints) == (found, found.altered, found.constraints)
    return CatalogChange.NONE if is_same else CatalogChange.EXPLAINED


def columns_changed(before: TableSchema, after: TableSchema | None) -> SchemaConflictError:
    """Why a table fails whose columns changed."""
    return SchemaConflictError(
        f"its columns changed: {_difference(before, after)}." if after else "its columns changed.",
        code="schema_changed",
        table=str(before.table),
        action="Run `replicator ddl accept NAME TABLE`: the target follows to the columns that the table has now.",
    )


def not_understood(table: TableId, statement: str) -> SchemaConflictError:
    """Why a table fails of which nobody knows what a statement made of its columns."""
    return SchemaConflictError(
        f"the log has a statement about this table that was not understood: {statement}",
        code="ddl_not_understood",
        table=str(table),
        action="Run `replicator ddl accept NAME TABLE`: the target follows to the columns that the table has now.",
    )


def unexplained(table: TableId, change: CatalogChange) -> FatalError:
    """Why the replicator stops where a policy says so at what the log does not show."""
    return FatalError(
        f"{UNEXPLAINED[change]}, and the log does not show it.",
        code="unexplained_change",
        table=str(table),
        action="Run `replicator snapshot NAME TABLE`, or set `snapshot.unexplained_change: resnapshot`.",
    )


def missing(table: TableId) -> SchemaConflictError:
    """Why a table fails that its source does not have any more."""
    return SchemaConflictError(
        "the table does not exist in the source.",
        code=TABLE_MISSING,
        table=str(table),
        action="Exclude it in `tables.exclude`; or create it again and run `replicator snapshot NAME TABLE`.",
    )


def renamed(table: TableId, new: TableId | None, cause: str | None = None) -> SchemaConflictError:
    """Why a table fails that has another name. `cause`: why it is not followed, in a sentence."""
    what = f"it was renamed to {new}." if new else "it was renamed."
    return SchemaConflictError(
        f"{what} {cause}" if cause else what,
        code="table_renamed",
        table=str(table),
        action="It continues when it has its name again. Or exclude it in `tables.exclude`, and include its new name in `tables.include`.",
    )


def renamed_by_policy(table: TableId, new: TableId) -> SchemaConflictError:
    """Why a table fails whose renaming is to stop it."""
    return SchemaConflictError(
        f"The source renamed the table to {new}. The policy ddl.rename_table is `stop`.",
        code="ddl_stop",
        table=str(table),
        action="Run `replicator snapshot NAME TABLE`: it takes the table under its new name, if `tables.include` matches that.",
    )


def stopped_by_policy(table: TableId, reason: str) -> SchemaConflictError:
    """Why a table fails that waits for somebody to accept a change of it."""
    return SchemaConflictError(
        reason,
        code="ddl_stop",
        table=str(table),
        action="Run `replicator ddl accept NAME TABLE`: the target follows this change.",
    )


def truncated_by_policy(table: TableId) -> SchemaConflictError:
    """Why a table fails whose TRUNCATE is to stop it."""
    return stopped_by_policy(table, "The source truncated the table. The policy ddl.truncate_table is `stop`.")


def dropped_by_policy(table: TableId) -> SchemaConflictError:
    """Why a table fails whose DROP is to stop it."""
    return SchemaConflictError(
        "The source dropped the table. The policy ddl.drop_table is `stop`.",
        code="ddl_stop",
        table=str(table),
        action="Run `replicator ddl accept NAME TABLE`: the target table is dropped, too. Or exclude the table in `tables.exclude`.",
    )


def truncated(accepted: TableIdentity | None, transaction: str | None) -> TableIdentity | None:
    """Return the identity that is accepted of a table once its TRUNCATE was delivered.

    The same object, whose storage is to be learned from the catalogue: the one that `transaction` made. Durable with the TRUNCATE.
    """
    if accepted is None or accepted.storage is None:
        return accepted
    return replace(accepted, storage=Truncated(by=transaction))


def _difference(before: TableSchema, after: TableSchema) -> str:
    old = {c.name: c.source_type for c in before.columns}
    new = {c.name: c.source_type for c in after.columns}
    parts = [f"{n} added" for n in new if n not in old] + [f"{n} dropped" for n in old if n not in new]
    parts += [f"{n} was {old[n]} and is {new[n]}" for n in old if n in new and old[n] != new[n]]
    return ", ".join(parts) or "their order or Arrow types"
