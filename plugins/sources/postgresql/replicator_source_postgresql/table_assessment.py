"""Findings about one table that cannot be replicated correctly, and the SQL that fixes them. Without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from psycopg.sql import Identifier

from replicator.model.errors import Problem
from replicator.model.rules import Rule
from replicator.model.schema import TableId
from replicator_source_postgresql import rules
from replicator_source_postgresql.catalogue.tables import VERSION_GENERATED_PUBLISHED, CatalogTable, Identity, KeyFault


def assess_table(table: CatalogTable, role: str) -> list[Problem]:
    """Return findings about one table for this role, whether it is to be published by us or by the user."""
    if table.is_partition:
        return [rules.IS_PARTITION.finding(table=str(table.table))]
    problems = (
        assess_persistence(table) + _assess_access(table, Identifier(role).as_string(None)) + _assess_columns(table)
    )
    if table.other_storage is not None:
        problems.append(rules.OTHER_ACCESS_METHOD.finding(table=str(table.table), other_storage=table.other_storage))
    if table.key_fault is not None:
        problems.append(_identity_finding(table, table.key_fault))
    if table.has_children or table.has_parent:
        problems.append(rules.INHERITANCE.finding(table=str(table.table)))
    if table.key_fault is None and not table.key:
        problems.append(rules.NO_KEY.finding(table=str(table.table)))
    if (
        any(not part.is_plain or part.collation for part in table.key)
        or len({part.is_descending for part in table.key}) > 1
    ):
        problems.append(rules.UNUSUAL_KEY_ORDER.finding(table=str(table.table)))
    return problems


def missing_table(table: TableId) -> Problem:
    """The finding for a table that is not in the catalogue."""
    return rules.NO_SUCH_TABLE.finding(table=str(table))


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


def assess_persistence(table: CatalogTable) -> list[Problem]:
    """Return findings about a table whose changes are not in the log."""
    problems = []
    if table.persistence != "p" and not table.is_partitioned:
        logged = [f"ALTER TABLE {quoted(table.table)} SET LOGGED;"]
        problems.append(rules.UNLOGGED_TABLE.finding(table=str(table.table), sql=tuple(logged)))
    unlogged = [leaf for leaf in table.leaves if leaf.persistence != "p"]
    if unlogged:
        names = ", ".join(str(leaf.name) for leaf in unlogged)
        problems.append(
            rules.UNLOGGED_PARTITION.finding(
                table=str(table.table),
                names=names,
                sql=tuple([f"ALTER TABLE {quoted(leaf.name)} SET LOGGED;" for leaf in unlogged]),
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
        rules.ROW_FILTER_NEEDS_FULL_IDENTITY.finding(
            table=str(table.table), wide=", ".join(wide), full=" ".join(full), sql=tuple(full)
        )
    ]


def _assess_access(table: CatalogTable, role: str) -> list[Problem]:
    problems = []
    if not table.is_schema_usable:
        schema = Identifier(table.table.namespace).as_string(None)
        problems.append(
            rules.SCHEMA_USAGE_MISSING.finding(
                table=str(table.table), sql=(f"GRANT USAGE ON SCHEMA {schema} TO {role};",)
            )
        )
    if hidden := [c.name for c in table.published_columns if not c.is_selectable]:
        what = (
            "The role may not read it."
            if len(hidden) == len(table.published_columns)
            else f"The role may not read the columns {', '.join(hidden)}."
        )
        grant = f"GRANT SELECT ON {quoted(table.table)} TO {role};"
        problems.append(rules.SELECT_MISSING.finding(table=str(table.table), what=what, sql=(grant,)))
    if table.has_row_security:
        problems.append(
            rules.ROW_LEVEL_SECURITY.finding(table=str(table.table), sql=(f"ALTER ROLE {role} BYPASSRLS;",))
        )
    return problems


def _assess_columns(table: CatalogTable) -> list[Problem]:
    if table.unreadable:
        return [rules.NOT_UTF8.finding(table=str(table.table), names=", ".join(table.unreadable))]
    problems = [
        rules.UNSUPPORTED_TYPE.finding(
            table=str(table.table),
            name=c.name,
            type_sql=c.type_sql,
            fault=f": {c.fault}" if c.fault else "",
            action="Exclude the table, publish it with a column list that leaves the column out, or change its type"
            + (f" (ALTER TABLE {quoted(table.table)} ALTER COLUMN … TYPE oid; or text)." if c.fault else "."),
        )
        for c in table.published_columns
        if c.mapping is None
    ]
    problems += [
        rules.TYPE_NOT_IMMUTABLE.finding(table=str(table.table), name=c.name, type_sql=c.type_sql, fault=c.fault)
        for c in table.published_columns
        if c.mapping is not None and c.fault is not None
    ]
    if not table.published_columns:
        problems.append(rules.NO_COLUMNS.finding(table=str(table.table)))
    if generated := [c.name for c in table.columns if c.is_generated]:
        problems.append(rules.GENERATED_COLUMNS.finding(table=str(table.table), generated=", ".join(generated)))
    if table.published is not None and table.published.row_filter is not None:
        problems.append(rules.ROW_FILTER.finding(table=str(table.table)))
    return problems


def _identity_finding(table: CatalogTable, fault: KeyFault) -> Problem:
    statements = identity_statements(table)
    rule, fact = _FAULTS[fault]
    action = None if statements else _by_hand(table)
    return rule.finding(table=str(table.table), fact=fact(table), action=action, sql=tuple(statements))


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
    return ", ".join(names)


def _no_fact(_: CatalogTable) -> str:
    return ""


def _unfit_leaves(table: CatalogTable) -> str:
    return ", ".join(str(leaf.name) for leaf in table.unfit_leaves)


_FAULTS: Final[Mapping[KeyFault, tuple[Rule, Callable[[CatalogTable], str]]]] = {
    KeyFault.NO_PRIMARY_KEY: (rules.NO_PRIMARY_KEY, _no_fact),
    KeyFault.DEFERRABLE: (rules.DEFERRABLE_KEY, _no_fact),
    KeyFault.IDENTITY_NOTHING: (rules.REPLICA_IDENTITY_NOTHING, _no_fact),
    KeyFault.INDEX_MISSING: (rules.REPLICA_IDENTITY_INDEX_MISSING, _no_fact),
    KeyFault.UNUSABLE_COLUMN: (rules.UNUSABLE_KEY_COLUMN, _unusable_columns),
    KeyFault.GENERATED_COLUMN: (rules.GENERATED_COLUMN_IN_IDENTITY, _no_fact),
    KeyFault.PARTITION: (rules.PARTITION_IDENTITY, _unfit_leaves),
}

KEY_FAULTS: Final[Mapping[KeyFault, Rule]] = {fault: rule for fault, (rule, _) in _FAULTS.items()}
"""Reasons why a table's changes cannot be attributed to rows → their rules."""
