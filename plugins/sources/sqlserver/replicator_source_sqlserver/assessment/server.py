"""Findings about driver, server, database and account: `check`, as far as no table is concerned. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from replicator.model.errors import ConfigError, Problem, Severity
from replicator.model.schema import TableId
from replicator_source_sqlserver import remedies
from replicator_source_sqlserver.assessment.cdc import assess_capture
from replicator_source_sqlserver.catalogue.server import Engine, ServerFacts
from replicator_source_sqlserver.catalogue.tables import CatalogTable
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.driver import settings_of
from replicator_source_sqlserver.connecting.errors import NO_DRIVER
from replicator_source_sqlserver.names import quoted, quoted_table

OLDEST: Final = (14,)
"""SQL Server 2017, the oldest version whose catalogue has everything that is asked for."""
_MARK_COLUMNS: Final = (("id", "int"), ("token", "varchar(64)"))
_WITHOUT_CDC: Final = frozenset({Engine.EXPRESS, Engine.AZURE_SQL_EDGE})
BARS_ALL: Final = frozenset({"server_too_old", "edition_without_cdc"})
"""Codes after which no finding about tables would help."""
_EXAMPLE: Final = TableId("dbo", "replicator_marks")


def assess_connection(config: SqlServerConfig, installed: Collection[str]) -> list[Problem]:
    """Find problems that would keep a connection from being opened, or from being safe.

    Args:
        config: The configuration.
        installed: Names of the ODBC drivers that this host knows (`pyodbc.drivers()`).
    """
    problems = []
    if not _is_installed(config.driver, installed):
        known = ", ".join(sorted(installed)) or "none"
        problems.append(
            Problem(
                code="driver_missing",
                message=f"This host has no ODBC driver {config.driver}; it has: {known}.",
                location="source.driver",
                action=NO_DRIVER,
            )
        )
    try:
        settings_of(config)
    except ConfigError as error:
        problems.append(
            Problem(code=error.code, message=error.message.rstrip("."), location="source.tls", action=error.action)
        )
    return problems


def _is_installed(driver: str, installed: Collection[str]) -> bool:
    if Path(driver).is_absolute():
        return Path(driver).exists()
    # unixODBC compares names without case.
    return driver.lower() in {name.lower() for name in installed}


def assess_version(facts: ServerFacts) -> list[Problem]:
    """Check that the server is new enough."""
    if facts.version >= OLDEST or facts.is_azure:
        return []
    return [
        Problem(
            code="server_too_old",
            message=f"The server is {facts.name}; SQL Server 2017 or later is needed.",
            location="source.host",
            action="Upgrade the server.",
        )
    ]


def assess_server(facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    """Find everything about the server that would keep its changes from being replicated correctly."""
    if too_old := assess_version(facts):
        return too_old
    if facts.engine in _WITHOUT_CDC or _is_web(facts):
        return [
            Problem(
                code="edition_without_cdc",
                message=f"The server is {facts.name}, which has no change data capture.",
                location="source.host",
                action="Use an edition that has it: Standard, Enterprise or Developer. Or set `source.capture: change_tracking`.",
            )
        ]
    return [
        *_replica(facts, config),
        *assess_account(facts, config),
        *_sessions(facts, config),
        *assess_capture(facts, config),
        *_mark_table(facts, config),
    ]


def _is_web(facts: ServerFacts) -> bool:
    return facts.engine == Engine.STANDARD_OR_WEB and facts.edition.startswith("Web")


def _replica(facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    if not facts.is_read_only:
        return []
    problems = [
        Problem(
            code="source_is_replica",
            message="The database is read-only here, as on a readable secondary: no mark table can be written, the times of commits are"
            " those of another server's clock, and the state of the jobs is unknown.",
            location="source.host",
            action="Name the primary, or the listener of the availability group without ApplicationIntent=ReadOnly.",
            severity=Severity.WARNING,
        )
    ]
    if config.mark_table_id is not None:
        problems.append(
            Problem(
                code="mark_table",
                message=f"{config.mark_table_id} cannot be written: the database is read-only here.",
                location="source.mark_table",
                action="Name the primary in source.host, or leave source.mark_table out.",
            )
        )
    return problems


def assess_account(facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    """Find privileges that our account lacks, or should not have."""
    account = facts.account
    if config.manage_capture and not account.is_owner:
        return [
            Problem(
                code="privilege_missing",
                message=f"The account {account.user} is not db_owner, and source.manage_capture is true.",
                location="source.manage_capture",
                sql=(f"ALTER ROLE db_owner ADD MEMBER {quoted(account.user)};",),
            )
        ]
    excess = "sysadmin" if account.is_administrator else "db_owner" if account.is_owner else None
    if excess is None or (excess == "db_owner" and config.manage_capture):
        return []
    if config.capture == "change_tracking":
        needed = "SELECT and VIEW CHANGE TRACKING only"
    elif config.mark_table_id is not None:
        needed = f"SELECT only, and INSERT and UPDATE on {config.mark_table_id}"
    else:
        needed = "SELECT only"
    return [
        Problem(
            code="privilege_excess",
            message=f"The account {account.user} is {excess}, and needs {needed}.",
            location="source.user",
            action="Use a separate account for Replicator.",
            severity=Severity.WARNING,
        )
    ]


def _sessions(facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    """Report a missing VIEW SERVER STATE: without it the server shows an account its own sessions only."""
    if facts.account.sees_sessions:
        return []
    marks = " and marks, without a mark table, go by the server's clock" if config.mark_table_id is None else ""
    return [
        Problem(
            code="sessions_hidden",
            message=f"The account {facts.account.user} is not shown what other sessions wait for: an ALTER TABLE waits until a chunk is"
            f" read, which would otherwise give way to it{';' if marks else ''}{marks}.",
            location="source.user",
            sql=(remedies.show_sessions(facts),),
            severity=Severity.WARNING,
        )
    ]


def _mark_table(facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    table, found = config.mark_table_id, facts.mark_table
    if table is None:
        return _no_mark_table(facts)
    if facts.is_read_only:
        return []
    if found is None:
        return [
            _mark_table_problem(
                table,
                "there is no such table",
                remedies.make_mark_table(table, facts.instance_name(table), facts.account),
            )
        ]
    if not _is_mark_table(found):
        return [
            _mark_table_problem(
                table,
                "it needs the columns id int (its primary key) and token varchar(64), and no others that are NOT NULL without a default",
                (),
                "Name another table.",
            )
        ]
    problems = []
    if not found.instances and not config.manage_capture:
        problems.append(
            _mark_table_problem(
                table, "it is not captured", remedies.enable_table(table, facts.instance_name(table), facts.account)
            )
        )
    known = facts.tables[found.object_id]
    if known.denied:
        denied = ", ".join(sorted(known.denied))
        problems.append(
            _mark_table_problem(
                table,
                f"the account {facts.account.user} lacks {denied}",
                remedies.grant("SELECT, INSERT, UPDATE", quoted_table(table), facts.account),
            )
        )
    unreadable = [instance.name for instance in found.instances if instance.name in known.unreadable]
    if unreadable and len(unreadable) == len(found.instances):
        changes = remedies.change_table(unreadable[-1])
        problems.append(
            _mark_table_problem(
                table,
                f"the account {facts.account.user} may not read its change table {changes}",
                remedies.grant("SELECT", changes, facts.account),
            )
        )
    return problems


def _is_mark_table(table: CatalogTable) -> bool:
    columns = {column.name: str(column.declared) for column in table.columns}
    return all(columns.get(name) == kind for name, kind in _MARK_COLUMNS) and table.primary_key == ("id",)


def _mark_table_problem(table: TableId, message: str, sql: Sequence[str], action: str | None = None) -> Problem:
    return Problem(
        code="mark_table",
        message=f"{table}: {message}",
        location="source.mark_table",
        sql=tuple(sql),
        action=action,
    )


def _no_mark_table(facts: ServerFacts) -> list[Problem]:
    if facts.is_read_only or not facts.is_captured:
        return []
    statements = " ".join(remedies.make_mark_table(_EXAMPLE, facts.instance_name(_EXAMPLE), facts.account))
    return [
        Problem(
            code="no_mark_table",
            message="There is no source.mark_table: on a database where nothing changes a chunk waits for up to five minutes, and a"
            " capture job that has stopped is found after ten minutes instead of one.",
            location="source.mark_table",
            action=f"Set `source.mark_table: {_EXAMPLE}` after: {statements}",
            severity=Severity.NOTICE,
        )
    ]
