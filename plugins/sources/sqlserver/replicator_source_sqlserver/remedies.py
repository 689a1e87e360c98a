"""The T-SQL that corrects a database, as findings print it. Each statement ends with its semicolon."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from replicator.model.schema import TableId
from replicator_source_sqlserver.catalogue.instance_names import derived_name
from replicator_source_sqlserver.catalogue.server import Account, Engine, ServerFacts
from replicator_source_sqlserver.catalogue.tables import CaptureInstance
from replicator_source_sqlserver.names import literal, quoted, quoted_table

INSTANCES_MAX: Final = 2
"""Maximum number of capture instances of a table."""
ALONE: Final = "If nobody else reads the older one of its two capture instances, and Replicator has read what came before the newer one"
"""The condition on which the older one is no longer needed: with it the changes are dropped that only it has."""
_PERFORMANCE: Final = (16,)
"""SQL Server 2022, in which VIEW SERVER STATE was split into parts."""
CONTINUOUS: Final = "EXEC sys.sp_cdc_change_job @job_type = N'capture', @continuous = 1;"
DURABLE: Final = "ALTER DATABASE CURRENT SET DELAYED_DURABILITY = DISABLED;"
ALLOW_SNAPSHOTS: Final = "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON;"
"""Let transactions read versions of rows. It waits for the transactions that run."""


def enable_database(facts: ServerFacts) -> str:
    """Switch change data capture on for the database. On Amazon RDS nobody is sysadmin, and a procedure of its own does it."""
    if facts.is_rds:
        return f"EXEC msdb.dbo.rds_cdc_enable_db {literal(facts.database)};"
    return "EXEC sys.sp_cdc_enable_db;"


def enable_table(table: TableId, name: str, account: Account, *, bars_switch: bool = False) -> tuple[str, ...]:
    """Make a capture instance, and let our account read its change table.

    Args:
        table: The table.
        name: The name of the instance.
        account: Our account.
        bars_switch: True if ALTER TABLE … SWITCH is to be refused.
    """
    given = "" if name == derived_name(table) else f", @capture_instance = {literal(name)}"
    switch = ", @allow_partition_switch = 0" if bars_switch else ""
    enable = (
        f"EXEC sys.sp_cdc_enable_table @source_schema = {literal(table.namespace)}, @source_name = {literal(table.name)},"
        f" @role_name = NULL{given}, @supports_net_changes = 0{switch};"
    )
    return enable, *grant("SELECT", change_table(name), account)


def another_instance(
    table: TableId, name: str, instances: Sequence[CaptureInstance], account: Account, *, bars_switch: bool = False
) -> tuple[str, ...]:
    """Make another capture instance of a table that has some; nothing where it has two, of which one has to go first."""
    if len(instances) >= INSTANCES_MAX:
        return ()
    return enable_table(table, name, account, bars_switch=bars_switch or _bars_switch(instances))


def replace_instance(
    table: TableId, name: str, instances: Sequence[CaptureInstance], account: Account, *, bars_switch: bool = False
) -> str | None:
    """Return the next step for a table with two capture instances: a person has to choose one to drop. None where there are fewer."""
    if len(instances) < INSTANCES_MAX:
        return None
    statements = (
        disable_instance(table, instances[0].name),
        *enable_table(table, name, account, bars_switch=bars_switch or _bars_switch(instances)),
    )
    return f"{ALONE}: {' '.join(statements)}"


def _bars_switch(instances: Sequence[CaptureInstance]) -> bool:
    return bool(instances) and not all(instance.is_switch_allowed for instance in instances)


def disable_instance(table: TableId, instance: str) -> str:
    """Remove a capture instance, with the changes that it has."""
    return (
        f"EXEC sys.sp_cdc_disable_table @source_schema = {literal(table.namespace)}, @source_name = {literal(table.name)},"
        f" @capture_instance = {literal(instance)};"
    )


def change_table(instance: str) -> str:
    """Return the change table of a capture instance, quoted."""
    return quoted_table(TableId("cdc", f"{instance}_CT"))


def grant(permissions: str, on: str, account: Account) -> tuple[str, ...]:
    """Grant our account something; nothing where it owns the database: the server refuses to grant to an owner."""
    return () if account.is_owner else (f"GRANT {permissions} ON {on} TO {quoted(account.user)};",)


def show_sessions(facts: ServerFacts) -> str:
    """Let our account see what sessions of others wait for. What concerns the server is granted in master."""
    account = facts.account
    if not facts.has_jobs:
        return f"GRANT VIEW DATABASE STATE TO {quoted(account.user)};"
    permission = "VIEW SERVER PERFORMANCE STATE" if facts.version >= _PERFORMANCE else "VIEW SERVER STATE"
    return f"USE master; GRANT {permission} TO {quoted(account.login)}; USE {quoted(facts.database)};"


def make_mark_table(table: TableId, name: str, account: Account) -> tuple[str, ...]:
    """Make the table that is written to for marks, capture it in an instance of this name, and let our account write it."""
    return (
        f"CREATE TABLE {quoted_table(table)} (id int NOT NULL PRIMARY KEY, token varchar(64));",
        *enable_table(table, name, account),
        *grant("SELECT, INSERT, UPDATE", quoted_table(table), account),
    )


def bit_nullable(table: TableId, column: str) -> str:
    """Let a bit be NULL: it has not been reported of such a one that the log leaves it out of a deletion."""
    return f"ALTER TABLE {quoted_table(table)} ALTER COLUMN {quoted(column)} bit NULL;"


def variant_as_text(table: TableId, column: str) -> tuple[str, ...]:
    """Put the values of a sql_variant into a column of text, as one batch.

    A batch is compiled before it is run, so a statement in it cannot name a column that another one adds: the UPDATE is a batch of its own.
    """
    name, old, new = quoted_table(table), quoted(column), quoted(f"{column}_text")
    update = f"UPDATE {name} SET {new} = CAST({old} AS nvarchar(4000));"  # noqa: S608 - for people to read
    return (
        f"ALTER TABLE {name} ADD {new} nvarchar(4000) NULL;",
        f"EXEC({literal(update)});",
        f"ALTER TABLE {name} DROP COLUMN {old};",
    )


def track_database(retention: timedelta) -> str:
    """Have the database track changes."""
    return f"ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = {retention.days} DAYS, AUTO_CLEANUP = ON);"


def keep_tracking_for(retention: timedelta) -> str:
    """Keep change tracking's data for `retention`."""
    return f"ALTER DATABASE CURRENT SET CHANGE_TRACKING (CHANGE_RETENTION = {retention.days} DAYS);"


def clean_tracking() -> str:
    """Remove change tracking's data that are older than the retention."""
    return "ALTER DATABASE CURRENT SET CHANGE_TRACKING (AUTO_CLEANUP = ON);"


def track_table(table: TableId, account: Account) -> tuple[str, ...]:
    """Have the changes of a table tracked, and let our account see them."""
    name = quoted_table(table)
    return f"ALTER TABLE {name} ENABLE CHANGE_TRACKING;", *grant("VIEW CHANGE TRACKING", name, account)


def add_job(job: str) -> str:
    """Make a job that is missing; it is started."""
    return f"EXEC sys.sp_cdc_add_job @job_type = {literal(job)};"


def start_job(job: str) -> str:
    """Start a job that was stopped."""
    return f"EXEC sys.sp_cdc_start_job @job_type = {literal(job)};"


def enable_job(name: str) -> str:
    """Have a job of SQL Server Agent start again by its schedule."""
    return f"EXEC msdb.dbo.sp_update_job @job_name = {literal(name)}, @enabled = 1;"


def start_capture(facts: ServerFacts) -> str:
    """Return the steps to take where nothing is captured and no error tells why."""
    if not facts.has_jobs:
        return (
            "The service's own scheduler captures. See SELECT * FROM sys.dm_cdc_errors; and try: EXEC sys.sp_cdc_scan;"
        )
    if facts.is_published:
        return (
            "The database has a publication: the replication's Log Reader Agent captures, and a capture job is not allowed. See that"
            " SQL Server Agent and the Log Reader Agent run."
        )
    return (
        "See that SQL Server Agent runs, and that the capture job is there: it is not after a failover to a server that never had one"
        f" ({add_job('capture')}). Then: {start_job('capture')}"
    )


def keep_for(retention: timedelta) -> str:
    """Keep changes for `retention`."""
    minutes = int(retention.total_seconds() // 60)
    return f"EXEC sys.sp_cdc_change_job @job_type = N'cleanup', @retention = {minutes};"


def allow_large_values(facts: ServerFacts) -> tuple[tuple[str, ...], str | None]:
    """Let values of any size be written to captured columns: return statements, or the next step where none can."""
    if facts.is_rds:
        return (), "Set max text repl size to -1 in the parameter group of the Amazon RDS instance."
    if facts.engine == Engine.AZURE_SQL_DATABASE:
        return (), "Azure SQL Database has no sp_configure: keep the values smaller, or exclude the table."
    return ("EXEC sys.sp_configure N'max text repl size', -1;", "RECONFIGURE;"), None
