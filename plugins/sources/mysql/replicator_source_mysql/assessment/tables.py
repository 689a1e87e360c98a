"""Findings about a table: `check`, table by table. Pure."""

from __future__ import annotations

from replicator.model.errors import AccessDeniedError, Problem, Severity
from replicator.model.schema import TableId
from replicator_source_mysql.assessment.server import account_of, granted_by_column
from replicator_source_mysql.catalogue.tables import CatalogTable, virtual_column
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.connecting.connection import quoted, quoted_table
from replicator_source_mysql.server import ServerFacts

_CASCADE_POLICIES = {
    "refuse": (Severity.BLOCKING, ""),
    "resnapshot": (
        Severity.NOTICE,
        "; the table gets a new snapshot in place after each change of a parent that may have cascaded",
    ),
    "warn": (Severity.WARNING, "; the target will differ"),
}


_HIDDEN = "the table exists, but the account may not read it"


def missing_table(table: TableId) -> Problem:
    """The table does not exist, or our account may not see it."""
    return Problem(
        code="table_missing",
        message="there is no such table, or the account may not see it",
        table=str(table),
        action=f"Exclude it, or GRANT SELECT ON {quoted_table(table)} to the account.",
    )


def hidden_table(table: TableId, account: str) -> Problem:
    """The table exists, and our account may not see it."""
    return Problem(
        code="select_missing",
        message=_HIDDEN,
        table=str(table),
        sql=(f"GRANT SELECT ON {quoted_table(table)} TO {account};",),
        is_access=True,
    )


def hidden_error(table: TableId) -> AccessDeniedError:
    """The error for the same, of a table that is being replicated."""
    return AccessDeniedError(
        f"{_HIDDEN}.",
        code="select_missing",
        table=str(table),
        action=f"GRANT SELECT ON {quoted_table(table)} to the account.",
    )


def assess_table(table: CatalogTable, facts: ServerFacts, config: MysqlConfig) -> list[Problem]:
    """Problems of the table that would keep it from being replicated correctly."""
    problems: list[Problem] = []
    named, name = str(table.table), quoted_table(table.table)
    if table.is_system_versioned:
        problems.append(
            Problem(
                code="system_versioned",
                message="it is system-versioned: its log mixes past and current rows",
                table=named,
                action=f"Exclude it, or ALTER TABLE {name} DROP SYSTEM VERSIONING;",
            )
        )
    if table.engine.lower() != "innodb":
        problems.append(
            Problem(
                code="engine_not_transactional",
                message=f"its engine is {table.engine or 'unknown'}: its reads cannot be matched with the log",
                table=named,
                sql=(f"ALTER TABLE {name} ENGINE = InnoDB;",),
            )
        )
    problems += [
        Problem(
            code="unsupported_type",
            message=f"its column {column.name} has the type {column.column_type}, which is unknown",
            table=named,
            action="Exclude the table, or change the column's type.",
        )
        for column in table.columns
        if column.spec is None
    ]
    for column in table.session_dependent(facts.flavor):
        error = virtual_column(table.table, column)
        problems.append(Problem(code=error.code, message=error.message.rstrip("."), table=named, action=error.action))
    problems += _unreadable(table, facts, config)
    problems += _filtered(table.table, facts)
    problems += _cascades(table, facts, config)
    if not table.key:
        problems.append(
            Problem(
                code="no_key",
                message="it has no primary key, and no unique key over columns that are all NOT NULL: it is replicated as a "
                "multiset of rows, and its snapshot is one statement",
                table=named,
                action=f"ALTER TABLE {name} ADD PRIMARY KEY (…);",
                severity=Severity.WARNING,
            )
        )
    return problems


def _unreadable(table: CatalogTable, facts: ServerFacts, config: MysqlConfig) -> list[Problem]:
    """Columns that our account may not read, or, granted column by column, may not even see."""
    names = [c.name for c in table.columns if not c.is_readable]
    if not names and not granted_by_column(facts, table.table):
        return []
    what = f"its columns {', '.join(names)} may not be read" if names else "it may be read column by column only"
    return [
        Problem(
            code="select_missing",
            message=f"{what} by the account {config.user}; the log has all its columns",
            table=str(table.table),
            sql=(f"GRANT SELECT ON {quoted_table(table.table)} TO {account_of(facts, config)};",),
            is_access=True,
        )
    ]


def _filtered(table: TableId, facts: ServerFacts) -> list[Problem]:
    """Filters that leave its changes out."""
    is_lower_case = facts.lower_case_table_names != 0
    problems = []
    if name := facts.filters.of_log(table, is_lower_case=is_lower_case):
        problems.append(
            Problem(
                code="left_out_of_log",
                message=f"{name} excludes its changes from the server's log",
                table=str(table),
                action=f"Remove {name} from the server's configuration and restart it, or exclude the table.",
            )
        )
    if name := facts.filters.of_replica(table, is_lower_case=is_lower_case):
        problems.append(
            Problem(
                code="left_out_of_replica",
                message=f"the server is a replica, and {name} may keep changes of the table from reaching it",
                table=str(table),
                action=f"{facts.flavor.clear_filter(name)} -- and name a server that has the table whole, or exclude it",
                severity=Severity.BLOCKING if facts.is_replica is not False else Severity.NOTICE,
            )
        )
    return problems


def _cascades(table: CatalogTable, facts: ServerFacts, config: MysqlConfig) -> list[Problem]:
    """Cascades that the server carries out without a trace in its log."""
    if facts.logs_cascades:
        return []
    severity, then = _CASCADE_POLICIES[config.foreign_keys]
    return [
        Problem(
            code="unlogged_cascade",
            message=f"its foreign key {key.name} to {key.parent} changes it by {key.rules}, which {facts.name} does not log{then}",
            table=str(table.table),
            action=f"ALTER TABLE {quoted_table(table.table)} DROP FOREIGN KEY {quoted(key.name)}; -- or exclude the table, or set"
            " source.foreign_keys: resnapshot (or warn)",
            severity=severity,
        )
        for key in table.cascades
    ]
