"""Findings about one table that cannot be replicated correctly, and the SQL that fixes them. Without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from psycopg.sql import Identifier

from replicator.model.errors import Problem, Severity
from replicator.model.schema import TableId
from replicator_source_postgresql.catalogue.tables import VERSION_GENERATED_PUBLISHED, CatalogTable, Identity, KeyFault
from replicator_source_postgresql.connecting.errors import NOT_UTF8_ACTION


def assess_table(table: CatalogTable, role: str) -> list[Problem]:
    """Return findings about one table for this role, whether it is to be published by us or by the user."""
    if table.is_partition:
        return [
            finding(
                table,
                "is_partition",
                "it is a partition; the whole table is replicated under the name of its root",
                "Name the root in tables.include.",
            )
        ]
    problems = (
        assess_persistence(table) + _assess_access(table, Identifier(role).as_string(None)) + _assess_columns(table)
    )
    if table.other_storage is not None:
        problems.append(
            finding(
                table,
                "other_access_method",
                f"its rows are kept by the access method {table.other_storage}: its extension may not write every change for "
                "logical decoding",
                "Check the extension's manual. If it does not: ALTER TABLE … SET ACCESS METHOD heap;",
                Severity.WARNING,
            )
        )
    if table.key_fault is not None:
        problems.append(_identity_finding(table, table.key_fault))
    if table.has_children or table.has_parent:
        problems.append(
            finding(
                table,
                "inheritance",
                "it is part of an inheritance tree; its own rows are replicated, those of its children belong to the children",
                "Include the children if their rows are wanted; the target table equals SELECT … FROM ONLY.",
                Severity.NOTICE,
            )
        )
    if table.key_fault is None and not table.key:
        problems.append(
            finding(
                table,
                "no_key",
                "it has no usable key and is replicated as a multiset of rows; its snapshot is one statement, which starts again "
                "if it is interrupted",
                "Give it a primary key if it is large.",
                Severity.NOTICE,
            )
        )
    if (
        any(not part.is_plain or part.collation for part in table.key)
        or len({part.is_descending for part in table.key}) > 1
    ):
        problems.append(
            finding(
                table,
                "unusual_key_order",
                "its key index has an order of its own; chunks are read in that order, and sorted where the index mixes"
                " ascending and descending columns",
                None,
                Severity.NOTICE,
            )
        )
    return problems


def missing_table(table: TableId) -> Problem:
    """The finding for a table that is not in the catalogue."""
    return Problem(
        code="table_not_found",
        message="there is no such table",
        table=str(table),
        action="Check the name; names are case-sensitive.",
    )


def identity_statements(table: CatalogTable) -> Sequence[str]:
    """Return SQL after which every change of the table can be attributed to a row; empty where a person must choose its columns."""
    if _by_hand(table) is not None:
        return []
    is_full_refused = _is_full_refused(table)
    wanted = "DEFAULT" if is_full_refused else "FULL"
    leaves = (
        [leaf for leaf in table.leaves if leaf.identity.name != wanted]
        if is_full_refused
        else table.unfit_leaves or table.leaves
    )
    names = [leaf.name for leaf in leaves]
    # The partitions' own identities count; the root's only says which columns are the key.
    if not (table.is_partitioned and table.key and names):
        names.insert(0, table.table)
    return [f"ALTER TABLE {quoted(name)} REPLICA IDENTITY {wanted};" for name in names]


def _by_hand(table: CatalogTable) -> str | None:
    """Return the action by which a person gives the table an identity where no statement can be proposed; None where one can."""
    if _is_full_refused(table) and not any(index.is_primary for index in table.indexes):
        return "Give it a primary key without generated columns; with those, PostgreSQL 18 accepts no REPLICA IDENTITY FULL."
    if _is_full_refused(table) and any(c.is_generated for c in table.columns if c.position in _index_positions(table)):
        return (
            "Put a unique index on other columns that are NOT NULL, and ALTER TABLE … REPLICA IDENTITY USING INDEX …;"
        )
    return None


def _is_full_refused(table: CatalogTable) -> bool:
    return table.server_version >= VERSION_GENERATED_PUBLISHED and any(c.is_generated for c in table.columns)


def _index_positions(table: CatalogTable) -> set[int]:
    return {part.position for index in table.indexes for part in index.parts}


def quoted(table: TableId) -> str:
    """Return the table's name as SQL."""
    return Identifier(table.namespace, table.name).as_string(None)


def finding(
    table: CatalogTable,
    code: str,
    message: str,
    action: str | None,
    severity: Severity = Severity.BLOCKING,
    *,
    sql: Sequence[str] = (),
    is_access: bool = False,
) -> Problem:
    """Return a problem of the table."""
    return Problem(
        code=code,
        message=message,
        table=str(table.table),
        action=action,
        sql=tuple(sql),
        severity=severity,
        is_access=is_access,
    )


def assess_persistence(table: CatalogTable) -> list[Problem]:
    """Return findings about a table whose changes are not in the log."""
    problems = []
    if table.persistence != "p" and not table.is_partitioned:
        logged = [f"ALTER TABLE {quoted(table.table)} SET LOGGED;"]
        message = "it is unlogged, so its changes are not in the log"
        problems.append(finding(table, "unlogged_table", message, None, sql=logged))
    unlogged = [leaf for leaf in table.leaves if leaf.persistence != "p"]
    if unlogged:
        names = ", ".join(str(leaf.name) for leaf in unlogged)
        problems.append(
            finding(
                table,
                "unlogged_partition",
                f"these partitions are unlogged, so their changes are not in the log: {names}",
                None,
                sql=[f"ALTER TABLE {quoted(leaf.name)} SET LOGGED;" for leaf in unlogged],
            )
        )
    return problems


def assess_row_filter(table: CatalogTable) -> list[Problem]:
    """Return findings about a filter by which an UPDATE can come as an INSERT that lacks values.

    An UPDATE that brings a row into the filter is sent as an INSERT, and a large value that it did not change is not sent with
    it, unless the row before the change is logged whole.
    """
    if table.published is None or table.published.row_filter is None:
        return []
    identities = [leaf.identity for leaf in table.leaves] if table.is_partitioned else [table.replica_identity]
    key = {part.column for part in table.key}
    wide = [c.name for c in table.published_columns if c.is_wide and c.name not in key]
    if not wide or all(identity is Identity.FULL for identity in identities):
        return []
    names = [leaf.name for leaf in table.leaves] if table.is_partitioned else [table.table]
    full = [f"ALTER TABLE {quoted(name)} REPLICA IDENTITY FULL;" for name in names]
    return [
        finding(
            table,
            "row_filter_needs_full_identity",
            "an UPDATE that brings a row into the publication's row filter comes as an INSERT, without the large values that it"
            f" did not change (columns {', '.join(wide)})",
            f"{' '.join(full)} Or take the filter, or these columns, out of the publication.",
            sql=full,
        )
    ]


def _assess_access(table: CatalogTable, role: str) -> list[Problem]:
    problems = []
    if not table.is_schema_usable:
        schema = Identifier(table.table.namespace).as_string(None)
        problems.append(
            finding(
                table,
                "schema_usage_missing",
                "the role may not use its schema",
                None,
                sql=[f"GRANT USAGE ON SCHEMA {schema} TO {role};"],
                is_access=True,
            )
        )
    if hidden := [c.name for c in table.published_columns if not c.is_selectable]:
        what = (
            "the role may not read it"
            if len(hidden) == len(table.published_columns)
            else f"the role may not read the columns {', '.join(hidden)}"
        )
        grant = f"GRANT SELECT ON {quoted(table.table)} TO {role};"
        problems.append(finding(table, "select_missing", what, None, sql=[grant], is_access=True))
    if table.has_row_security:
        problems.append(
            finding(
                table,
                "row_level_security",
                "row-level security hides rows from the role's reads, but not from the log",
                None,
                sql=[f"ALTER ROLE {role} BYPASSRLS;"],
            )
        )
    return problems


def _assess_columns(table: CatalogTable) -> list[Problem]:
    if table.unreadable:
        return [
            finding(
                table,
                "not_utf8",
                f"this is not UTF-8: {', '.join(table.unreadable)}",
                NOT_UTF8_ACTION,
            )
        ]
    problems = [
        finding(
            table,
            "unsupported_type",
            f"the column {c.name} has the type {c.type_sql}, which cannot be replicated"
            + (f": {c.fault}" if c.fault else ""),
            "Exclude the table, publish it with a column list that leaves the column out, or change its type"
            + (f" (ALTER TABLE {quoted(table.table)} ALTER COLUMN … TYPE oid; or text)." if c.fault else "."),
        )
        for c in table.published_columns
        if c.mapping is None
    ]
    problems += [
        finding(
            table,
            "type_not_immutable",
            f"the column {c.name} has the type {c.type_sql}: {c.fault}",
            "Check what the type's output function reads. If it reads only the value: `ALTER FUNCTION … IMMUTABLE`.",
            Severity.WARNING,
        )
        for c in table.published_columns
        if c.mapping is not None and c.fault is not None
    ]
    if not table.published_columns:
        problems.append(finding(table, "no_columns", "it has no column that can be replicated", "Exclude it."))
    if generated := [c.name for c in table.columns if c.is_generated]:
        problems.append(
            finding(
                table,
                "generated_columns",
                f"generated columns are left out: {', '.join(generated)}",
                None,
                Severity.NOTICE,
            )
        )
    if table.published is not None and table.published.row_filter is not None:
        problems.append(
            finding(
                table,
                "row_filter",
                "the publication's row filter applies to its snapshot too: the target has only rows that pass it",
                None,
                Severity.NOTICE,
            )
        )
    return problems


def _identity_finding(table: CatalogTable, fault: KeyFault) -> Problem:
    statements = identity_statements(table)
    return finding(
        table, fault.value, _FAULT_TEXTS[fault](table), None if statements else _by_hand(table), sql=statements
    )


def _unusable_columns(table: CatalogTable) -> str:
    index_columns = _index_positions(table)
    names = []
    for column in table.columns:
        if column.position not in index_columns:
            continue
        reasons = [
            ("it is generated", column.is_generated),
            ("it may be NULL", column.is_nullable),
            (f"{column.type_sql} cannot identify rows", column.mapping is None or not column.mapping.can_be_key),
            ("it is not published", column not in table.published_columns),
        ]
        names += [f"{column.name} ({reason})" for reason, holds in reasons[:] if holds][:1]
    return f"its key cannot be used: {', '.join(names)}"


_FAULT_TEXTS: Final[Mapping[KeyFault, Callable[[CatalogTable], str]]] = {
    KeyFault.NO_PRIMARY_KEY: lambda _: (
        "it has no primary key, and its replica identity is DEFAULT: PostgreSQL would refuse its updates and deletes once it is published"
    ),
    KeyFault.DEFERRABLE: lambda _: (
        "its key is deferrable, so it may hold duplicates inside a transaction and cannot identify rows"
    ),
    KeyFault.IDENTITY_NOTHING: lambda _: (
        "its replica identity is NOTHING: PostgreSQL would refuse its updates and deletes once it is published"
    ),
    KeyFault.INDEX_MISSING: lambda _: "the index of its replica identity is missing or not valid",
    KeyFault.UNUSABLE_COLUMN: _unusable_columns,
    KeyFault.GENERATED_COLUMN: lambda _: (
        "its replica identity is FULL and it has generated columns: PostgreSQL 18 would refuse its updates and deletes once it is published"
    ),
    KeyFault.PARTITION: lambda t: (
        f"these partitions do not log its key: {', '.join(str(leaf.name) for leaf in t.unfit_leaves)}"
    ),
}
