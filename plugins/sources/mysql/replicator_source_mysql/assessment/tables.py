"""Findings about a table: `check`, table by table. Pure."""

from __future__ import annotations

from replicator.model.errors import AccessDeniedError, Problem, Severity
from replicator.model.schema import TableId
from replicator_source_mysql import rules
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
    return rules.TABLE_MISSING.finding(table=str(table), table_name=quoted_table(table))


def hidden_table(table: TableId, account: str) -> Problem:
    """The table exists, and our account may not see it."""
    return rules.TABLE_HIDDEN_0.finding(table=str(table), table_name=quoted_table(table), account=account)


def hidden_error(table: TableId) -> AccessDeniedError:
    """The error for the same, of a table that is being replicated."""
    return rules.TABLE_HIDDEN_1.error(AccessDeniedError, table=str(table), table_name=quoted_table(table))


def assess_table(table: CatalogTable, facts: ServerFacts, config: MysqlConfig) -> list[Problem]:
    """Problems of the table that would keep it from being replicated correctly."""
    problems: list[Problem] = []
    named, name = str(table.table), quoted_table(table.table)
    if table.is_system_versioned:
        problems.append(rules.SYSTEM_VERSIONED_0.finding(table=named, name=name))
    if table.engine.lower() != "innodb":
        problems.append(
            rules.ENGINE_NOT_TRANSACTIONAL.finding(table=named, engine=table.engine or "unknown", name=name)
        )
    problems += [
        rules.UNKNOWN_TYPE.finding(table=named, name=column.name, column_type=column.column_type)
        for column in table.columns
        if column.spec is None
    ]
    for column in table.session_dependent(facts.flavor):
        error = virtual_column(table.table, column)
        problems.append(Problem(code=error.code, message=error.message, table=named, action=error.action))
    problems += _unreadable(table, facts, config)
    problems += _filtered(table.table, facts)
    problems += _cascades(table, facts, config)
    if not table.key:
        problems.append(rules.NO_KEY.finding(table=named, name=name))
    return problems


def _unreadable(table: CatalogTable, facts: ServerFacts, config: MysqlConfig) -> list[Problem]:
    """Columns that our account may not read, or, granted column by column, may not even see."""
    names = [c.name for c in table.columns if not c.is_readable]
    if not names and not granted_by_column(facts, table.table):
        return []
    what = f"Its columns {', '.join(names)} may not be read" if names else "It may be read column by column only"
    return [
        rules.COLUMNS_HIDDEN.finding(
            table=str(table.table),
            what=what,
            user=config.user,
            table_name=quoted_table(table.table),
            account_of=account_of(facts, config),
        )
    ]


def _filtered(table: TableId, facts: ServerFacts) -> list[Problem]:
    """Filters that leave its changes out."""
    is_lower_case = facts.lower_case_table_names != 0
    problems = []
    if name := facts.filters.of_log(table, is_lower_case=is_lower_case):
        problems.append(rules.TABLE_FILTERED.finding(table=str(table), name=name))
    if name := facts.filters.of_replica(table, is_lower_case=is_lower_case):
        problems.append(
            rules.LEFT_OUT_OF_REPLICA.finding(
                table=str(table),
                name=name,
                clear_filter=facts.flavor.clear_filter(name),
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
        rules.UNLOGGED_CASCADE.finding(
            table=str(table.table),
            name=key.name,
            parent=key.parent,
            rules=key.rules,
            name_2=facts.name,
            then=then,
            table_name=quoted_table(table.table),
            name_3=quoted(key.name),
            severity=severity,
        )
        for key in table.cascades
    ]
