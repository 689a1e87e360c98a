"""Findings about a table: `check`, table by table. Pure."""

from __future__ import annotations

import shlex
from typing import Final

from replicator.model.errors import Problem, Severity
from replicator.model.schema import TableId
from replicator_source_sqlserver import remedies
from replicator_source_sqlserver.catalogue.facts import ColumnFacts, TableFacts
from replicator_source_sqlserver.catalogue.server import ServerFacts
from replicator_source_sqlserver.catalogue.tables import CatalogColumn, CatalogTable
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.names import quoted, quoted_table
from replicator_source_sqlserver.types import CODE_PAGE_TYPES, ColumnSpec

_NVARCHAR_MAX: Final = 4000
_MICROSECONDS: Final = 6
_OLD_LARGE_TYPES: Final = frozenset({"text", "ntext", "image"})
_SCALED: Final = frozenset({"time", "datetime2", "datetimeoffset"})


def missing_table(table: TableId) -> Problem:
    """The finding for a table that does not exist, or that our account may not see."""
    return Problem(
        code="table_missing",
        message="there is no such table, or the account may not see it",
        table=str(table),
        action=f"Exclude it, or GRANT SELECT ON {quoted_table(table)} to the account.",
    )


def assess_table(table: CatalogTable, facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    """Find everything about the table that would keep it from being replicated correctly."""
    known = facts.tables[table.object_id]
    return [
        *_types(table),
        *_hidden(table, facts, known),
        *assess_reading(table, facts, config),
        *_large_values(table, facts),
        *assess_old_writes(table, config),
        *_instances(table, facts, config, known),
        *_code_pages(table, facts, known),
        *_key(table, facts),
        *_digits(table),
    ]


def assess_columns(table: CatalogTable, facts: ServerFacts) -> list[Problem]:
    """Return the findings about its columns that do not depend on how changes are captured."""
    known = facts.tables[table.object_id]
    return [*_types(table), *_hidden(table, facts, known), *_digits(table)]


def assess_reading(table: CatalogTable, facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    """Check that our account may read the table, and all of its rows."""
    known = facts.tables[table.object_id]
    return [*_permissions(table, facts, known), *_filtered(table, facts, config, known)]


def assess_old_writes(table: CatalogTable, config: SqlServerConfig) -> list[Problem]:
    """Report statements that change a part of an old large value: the manual of CHANGETABLE says of UPDATETEXT that it is not tracked.

    Of change data capture Microsoft's manuals say nothing; other tools list both as not supported with it.
    """
    old = [column.name for column in table.columns if column.declared.name in _OLD_LARGE_TYPES]
    if not old:
        return []
    why = (
        "change tracking does not note what UPDATETEXT changes in them"
        if config.capture == "change_tracking"
        else "what UPDATETEXT and WRITETEXT change in them may not be captured"
    )
    return [
        Problem(
            code="updatetext_not_tracked",
            table=str(table.table),
            message=f"its columns {', '.join(old)} are text, ntext or image: {why}",
            action="If an application uses UPDATETEXT or WRITETEXT, change the columns to varchar(max), nvarchar(max) or"
            " varbinary(max), or exclude the table.",
            severity=Severity.WARNING,
        )
    ]


# -- columns -----------------------------------------------------------------------------------------------------------


def _types(table: CatalogTable) -> list[Problem]:
    problems = [
        Problem(
            code="unsupported_type",
            table=str(table.table),
            message=f"its column {column.name} has the type {column.declared}, which cannot be replicated",
            action=_other_type(table, column),
        )
        for column in table.columns
        if column.is_refused and not column.is_column_set
    ]
    sets = [column.name for column in table.columns if column.is_column_set]
    if sets:
        problems.append(
            Problem(
                code="unsupported_type",
                table=str(table.table),
                message=f"its column {sets[0]} is a column set for sparse columns, which change data capture does not record",
                action="Exclude the table, or drop the column set; sparse columns alone are replicated.",
            )
        )
    computed = [column.name for column in table.columns if column.is_computed]
    if computed:
        problems.append(
            Problem(
                code="generated_columns",
                table=str(table.table),
                message=f"its computed columns {', '.join(computed)} are left out: change tables have NULL for them",
                severity=Severity.NOTICE,
            )
        )
    return problems


def _other_type(table: CatalogTable, column: CatalogColumn) -> str:
    """Return the next step. The server casts no sql_variant by itself, so ALTER COLUMN is refused: values are copied to a new column."""
    if column.declared.name != "sql_variant":
        return "Exclude the table, or change the column's type."
    statements = " ".join(remedies.variant_as_text(table.table, column.name))
    return f"Exclude the table, or put the column's values into one of another type: {statements}"


def _hidden(table: CatalogTable, facts: ServerFacts, known: TableFacts) -> list[Problem]:
    """Find columns whose values a SELECT of ours does not show, while the log has them."""
    problems = []
    encrypted = [name for name, column in known.columns.items() if column.is_encrypted]
    if encrypted:
        problems.append(
            Problem(
                code="column_hidden",
                table=str(table.table),
                message=f"its columns {', '.join(encrypted)} are encrypted by the client (Always Encrypted)",
                action="Exclude the table.",
            )
        )
    masked = [name for name, column in known.columns.items() if column.is_masked]
    if masked and not facts.account.sees_masked:
        problems.append(
            Problem(
                code="column_hidden",
                table=str(table.table),
                message=f"its columns {', '.join(masked)} are masked for the account {facts.account.user}: a snapshot would have the masks",
                sql=(f"GRANT UNMASK TO {quoted(facts.account.user)};",),
            )
        )
    return problems


def _code_pages(table: CatalogTable, facts: ServerFacts, known: TableFacts) -> list[Problem]:
    """Report text that may change: capture keeps it for a moment without its collation, whose code page may not be the database's."""
    wrong = [
        column
        for column in table.columns
        if column.spec is not None
        and column.declared.name in CODE_PAGE_TYPES
        and known.columns.get(column.name, ColumnFacts()).code_page not in {None, facts.code_page}
    ]
    if not wrong:
        return []
    named = ", ".join(f"{column.name} ({column.declared.collation})" for column in wrong)
    statements = [_as_unicode(table, column) for column in wrong]
    return [
        Problem(
            code="mixed_collations",
            table=str(table.table),
            message=f"its columns {named} have another code page than the database ({facts.collation}): capture may record their text"
            " wrong, except ASCII",
            action=None
            if all(statements)
            else "Change the columns to nvarchar or nchar, or to a collation with the code page of the database; or exclude the table.",
            sql=tuple(statement for statement in statements if statement) if all(statements) else (),
        )
    ]


def _as_unicode(table: CatalogTable, column: CatalogColumn) -> str | None:
    """Return a statement that keeps every text; None where a person must decide: columns of a key, text, lengths that nvarchar lacks."""
    declared = column.declared
    if column.name in table.primary_key or declared.name == "text" or declared.length > _NVARCHAR_MAX:
        return None
    length = "max" if declared.length < 0 else declared.length
    null = "NULL" if column.is_nullable else "NOT NULL"
    # Without its collation the column would get the database's, which may compare differently.
    collate = f" COLLATE {declared.collation}" if declared.collation else ""
    return (
        f"ALTER TABLE {quoted_table(table.table)} ALTER COLUMN {quoted(column.name)}"
        f" n{declared.name}({length}){collate} {null};"
    )


def _large_values(table: CatalogTable, facts: ServerFacts) -> list[Problem]:
    """Report large values: one above the limit fails in the application that writes it, once the table is captured."""
    large = [column.name for column in table.columns if column.spec is not None and column.spec.is_lob]
    limit = facts.text_size_max
    if not large or limit is None or limit < 0:
        return []
    sql, action = remedies.allow_large_values(facts)
    return [
        Problem(
            code="large_values_refused",
            table=str(table.table),
            message=f"max text repl size is {limit}: once the table is captured, the server refuses to write larger values into"
            f" {', '.join(large)} (error 7139)",
            sql=sql,
            action=action,
            severity=Severity.WARNING,
        )
    ]


def _digits(table: CatalogTable) -> list[Problem]:
    cut = [
        column.name
        for column in table.columns
        if column.declared.name in _SCALED and column.declared.scale > _MICROSECONDS
    ]
    if not cut:
        return []
    return [
        Problem(
            code="type_changed",
            table=str(table.table),
            message=f"of its columns {', '.join(cut)} the seventh digit of a second is cut off",
            severity=Severity.NOTICE,
        )
    ]


def _key(table: CatalogTable, facts: ServerFacts) -> list[Problem]:
    if table.key:
        return []
    large = [name for name, spec in table.specs.items() if spec.is_lob]
    reason = (
        f"its primary key ({', '.join(table.primary_key)}) has a part that cannot identify a row"
        if table.primary_key
        else "it has no primary key"
    )
    give = f"ALTER TABLE {quoted_table(table.table)} ADD PRIMARY KEY (…);"
    if large:
        return [
            Problem(
                code="key_needed",
                table=str(table.table),
                message=f"{reason}, and the log leaves large values ({', '.join(large)}) out of updates: which row an update"
                " changed would be unknown",
                action=f"{give} -- or exclude the table",
            )
        ]
    bits = [name for name, spec in table.specs.items() if _is_left_out(table, name, spec)]
    failing = (
        f". A server may leave {', '.join(bits)} (bit NOT NULL) out of a deletion in the log: the table fails there (corrupt_rows)"
        if bits
        else ""
    )
    nullable = [remedies.bit_nullable(table.table, name) for name in bits]
    problems = [
        Problem(
            code="no_key",
            table=str(table.table),
            message=f"{reason}: it is replicated as a multiset of rows, and its snapshot is one statement{failing}",
            action=f"{give} Or, so that no deletion fails it: {' '.join(nullable)}" if nullable else give,
            severity=Severity.WARNING,
        )
    ]
    if not facts.is_snapshot_allowed:
        problems.append(
            Problem(
                code="snapshot_isolation_off",
                table=str(table.table),
                message="without a key it is read in a SNAPSHOT transaction, which the database does not allow",
                sql=(remedies.ALLOW_SNAPSHOTS,),
            )
        )
    return problems


def _is_left_out(table: CatalogTable, name: str, spec: ColumnSpec) -> bool:
    """Return whether a column is a bit that servers were seen to leave out of deletions, and that a statement can make nullable."""
    is_nullable = table.schema.column(name).nullable
    return spec.declared.name == "bit" and not is_nullable and name not in table.primary_key


# -- capture -----------------------------------------------------------------------------------------------------------


def _permissions(table: CatalogTable, facts: ServerFacts, known: TableFacts) -> list[Problem]:
    hidden = [name for name, column in known.columns.items() if not column.is_readable]
    if "SELECT" not in known.denied and not hidden:
        return []
    what = "it" if "SELECT" in known.denied else f"its columns {', '.join(hidden)}"
    return [
        Problem(
            code="select_missing",
            table=str(table.table),
            message=f"{what} may not be read by the account {facts.account.user}",
            sql=remedies.grant("SELECT", quoted_table(table.table), facts.account),
            is_access=True,
        )
    ]


def _filtered(table: CatalogTable, facts: ServerFacts, config: SqlServerConfig, known: TableFacts) -> list[Problem]:
    """Report a filter that may hide rows from our account: only its own function decides, and it cannot be asked."""
    if not known.is_filtered:
        return []
    if config.capture == "change_tracking":
        effect = "a changed row that is hidden is deleted in the target, and a snapshot lacks it"
    else:
        effect = "a snapshot lacks rows that are hidden, while the log has them"
    return [
        Problem(
            code="rows_filtered",
            table=str(table.table),
            message=f"a security policy filters its rows: if it applies to the account {facts.account.user}, {effect}",
            action="See that the policy's function shows the account all rows, or exclude the table.",
            severity=Severity.WARNING,
        )
    ]


def _instances(table: CatalogTable, facts: ServerFacts, config: SqlServerConfig, known: TableFacts) -> list[Problem]:
    if not table.instances:
        if known.is_columnstore:
            return [_columnstore(table)]
        return [] if config.manage_capture else [_not_captured(table, facts, config, known)]
    problems = []
    unreadable = [instance.name for instance in table.instances if instance.name in known.unreadable]
    if unreadable:
        tables = [remedies.change_table(name) for name in unreadable]
        problems.append(
            Problem(
                code="select_missing",
                table=str(table.table),
                message=f"its change table {', '.join(tables)} may not be read by the account {facts.account.user}",
                sql=tuple(grant for one in tables for grant in remedies.grant("SELECT", one, facts.account)),
                is_access=True,
            )
        )
    problems += _missing_columns(table, facts, config)
    if known.is_partitioned and all(instance.is_switch_allowed for instance in table.instances):
        problems.append(_switchable(table, facts, config))
    if table.instances[-1].name in known.unordered:
        problems.append(
            Problem(
                code="command_id_missing",
                table=str(table.table),
                message="its change table has no __$command_id, as a server without the update KB 3030352 made it: the order of changes in"
                " a transaction is unknown",
                action=remedies.replace_instance(
                    table.table, facts.instance_name(table.table), table.instances, facts.account
                ),
                sql=remedies.another_instance(
                    table.table, facts.instance_name(table.table), table.instances, facts.account
                ),
            )
        )
    if len(table.instances) >= remedies.INSTANCES_MAX and not any(instance.is_ours for instance in table.instances):
        names = [instance.name for instance in table.instances]
        problems.append(
            Problem(
                code="two_capture_instances",
                table=str(table.table),
                message=f"it has two capture instances ({', '.join(names)}), and no more are possible: columns that are added cannot"
                " be captured",
                action=f"{remedies.ALONE}: {remedies.disable_instance(table.table, names[0])}",
                severity=Severity.WARNING,
            )
        )
    return problems


def _switchable(table: CatalogTable, facts: ServerFacts, config: SqlServerConfig) -> Problem:
    """Report that partitions may be switched in and out, which change data capture does not see; a warning if the user accepts it."""
    message = "it is partitioned, and its capture instances let ALTER TABLE … SWITCH move rows in and out, which is not captured"
    if config.partition_switch == "accept":
        return Problem(
            code="partition_switch",
            table=str(table.table),
            message=f"{message}: the target keeps rows that were switched out, and lacks those that were switched in",
            action=f"After each SWITCH run `replicator snapshot NAME {shlex.quote(str(table.table))}`.",
            severity=Severity.WARNING,
        )
    accepting = "If partitions have to be switched: set `source.partition_switch: accept`."
    dropping = remedies.replace_instance(
        table.table, facts.instance_name(table.table), table.instances, facts.account, bars_switch=True
    )
    return Problem(
        code="partition_switch",
        table=str(table.table),
        message=message,
        action=accepting if dropping is None else f"{accepting} {dropping}",
        sql=remedies.another_instance(
            table.table, facts.instance_name(table.table), table.instances, facts.account, bars_switch=True
        ),
    )


def _columnstore(table: CatalogTable) -> Problem:
    """Report a clustered columnstore index: the server refuses to capture the table."""
    tracked = ", or set source.capture: change_tracking" if table.primary_key else ""
    return Problem(
        code="columnstore_not_captured",
        table=str(table.table),
        message="it has a clustered columnstore index, with which change data capture cannot be enabled",
        action=f"Exclude it{tracked}. Or drop that index, and create a nonclustered columnstore index if queries need one.",
    )


def _not_captured(table: CatalogTable, facts: ServerFacts, config: SqlServerConfig, known: TableFacts) -> Problem:
    return Problem(
        code="table_not_captured",
        table=str(table.table),
        message="no capture instance records its changes",
        # If the database captures nothing, that is the cause, which fails no table by itself.
        severity=Severity.BLOCKING if facts.is_captured else Severity.WARNING,
        sql=remedies.enable_table(
            table.table,
            facts.instance_name(table.table),
            facts.account,
            bars_switch=known.is_partitioned and config.partition_switch == "refuse",
        ),
    )


def _missing_columns(table: CatalogTable, facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    missing = sorted(table.uncaptured)
    can_be_made = len(table.instances) < remedies.INSTANCES_MAX or any(instance.is_ours for instance in table.instances)
    if not missing or (config.manage_capture and can_be_made):
        return []
    return [
        Problem(
            code="column_not_captured",
            table=str(table.table),
            message=f"the newest capture instance lacks its columns {', '.join(missing)}",
            action=remedies.replace_instance(
                table.table, facts.instance_name(table.table), table.instances, facts.account
            ),
            sql=remedies.another_instance(
                table.table, facts.instance_name(table.table), table.instances, facts.account
            ),
        )
    ]
