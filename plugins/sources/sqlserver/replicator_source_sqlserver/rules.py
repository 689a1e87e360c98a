"""Every code of this distribution's errors and findings, with its texts."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import ConfigError, CurableError, FatalError, Severity, SourceUnavailableError, TableError
from replicator.model.rules import Section, sources, tables

SECTION: Final = Section("SQL Server", "`validate` prints the statement for each finding that T-SQL fixes.")

CAPTURE_NOT_BEGUN: Final = SECTION.rule(
    "capture_not_begun",
    raises=(SourceUnavailableError,),
    meaning="SQL Server: the capture job has not run since the first table was captured.",
    remedy="See that SQL Server Agent runs, and the capture job.",
)

CAPTURE_STALLED: Final = SECTION.rule(
    "capture_stalled",
    raises=(SourceUnavailableError,),
    found=(Severity.WARNING,),
    meaning=(
        "SQL Server: the capture job stands still: no new position for ten minutes or, with a mark table, for "
        "one after a write into it. `validate` goes by the newest entry of `cdc.lsn_time_mapping`."
    ),
    remedy=(
        "Start SQL Server Agent and the job; after a failover, add it (`sys.sp_cdc_add_job`). A database with a "
        "publication: start the Log Reader Agent."
    ),
)

COLUMN_NOT_CAPTURED: Final = SECTION.rule(
    "column_not_captured",
    raises=(CurableError,),
    found=(Severity.BLOCKING,),
    meaning="SQL Server: a column was added that no capture instance has.",
    remedy=("Make a second capture instance with the statement that the message has. The table continues by itself."),
)

MARKS_NOT_CAPTURED: Final = SECTION.rule(
    "marks_not_captured",
    raises=(SourceUnavailableError,),
    meaning=(
        "SQL Server: the mark table is no longer captured, or was dropped and made again without. Chunks that "
        "wait for a write into it would never be emitted."
    ),
    remedy=(
        "Have it captured: `replicator validate` prints the statement. With `source.manage_capture: true` it is "
        "captured by itself."
    ),
)

INSTANCE_CHANGED: Final = SECTION.rule(
    "instance_changed",
    raises=(SourceUnavailableError,),
    meaning=(
        "SQL Server: a capture instance was disabled, cleanup deleted a part of it, or the capture job altered "
        "its change table, while it was read."
    ),
    remedy="It is read again.",
)

TABLE_NOT_CAPTURED: Final = SECTION.rule(
    "table_not_captured",
    raises=(CurableError,),
    found=(Severity.BLOCKING,),
    meaning="SQL Server: no capture instance has the table's changes.",
    remedy="`EXEC sys.sp_cdc_enable_table …`. The table continues by itself.",
)

CHANGE_TRACKING_OFF: Final = SECTION.rule(
    "change_tracking_off",
    raises=(SourceUnavailableError,),
    found=(Severity.BLOCKING,),
    meaning="SQL Server with `source.capture: change_tracking`: change tracking is off for the database.",
    remedy="The statement that the message has; afterwards every table is read again by itself.",
)

TABLE_NOT_TRACKED: Final = SECTION.rule(
    "table_not_tracked",
    raises=(CurableError,),
    found=(Severity.BLOCKING,),
    meaning="SQL Server: the table's changes are not tracked.",
    remedy="`ALTER TABLE … ENABLE CHANGE_TRACKING`. The table continues by itself.",
)

TRACKING_NOT_VISIBLE: Final = SECTION.rule(
    "tracking_not_visible",
    raises=(CurableError,),
    found=(Severity.BLOCKING,),
    meaning="SQL Server: the account may not see the table's tracked changes.",
    remedy="`GRANT VIEW CHANGE TRACKING ON … TO …`. The table continues by itself.",
)

SNAPSHOT_NOT_EXACT: Final = SECTION.rule(
    "snapshot_not_exact",
    raises=(SourceUnavailableError,),
    meaning=(
        "SQL Server: a SNAPSHOT transaction showed other changes than its version says. This contradicts the "
        "documentation of change tracking."
    ),
    remedy="It is read again. If it happens often, report it.",
)

DRIVER_CANNOT_BE_TOLD: Final = SECTION.rule(
    "driver_cannot_be_told",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning=("SQL Server: user, password or database has a closing brace and a semicolon, which FreeTDS cannot read."),
    remedy="Change it in the server, or use Microsoft's driver.",
)

DRIVER_MISSING: Final = SECTION.rule(
    "driver_missing",
    raises=(FatalError,),
    found=(Severity.BLOCKING,),
    meaning="SQL Server: there is no such ODBC driver on the host.",
    remedy="Install FreeTDS or Microsoft's driver, and name it in `source.driver`.",
)

TLS_NOT_VERIFIABLE: Final = SECTION.rule(
    "tls_not_verifiable",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning=(
        "SQL Server: the ODBC driver cannot verify the certificate as `source.tls` asks for, or `source.tls_ca` "
        "is no PEM file that can be read."
    ),
    remedy="Set `source.tls_ca`, or correct it; with Microsoft's driver let the system trust the authority.",
)

SNAPSHOT_ISOLATION_OFF: Final = SECTION.rule(
    "snapshot_isolation_off",
    raises=(SourceUnavailableError, TableError),
    found=(Severity.BLOCKING,),
    meaning=(
        "SQL Server: a table without a key is read in a SNAPSHOT transaction, and so is each that is verified; "
        "the database does not allow it. With change tracking everything is."
    ),
    remedy=("`ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON`, or a key; then a new snapshot of the table."),
)

UTF8_MISSING: Final = SECTION.rule(
    "utf8_missing",
    raises=(TableError,),
    meaning=(
        "SQL Server older than 2019: it cannot write text in UTF-8, so it cannot be verified. Replication is not "
        "affected."
    ),
    remedy="Upgrade the server.",
)

CAPTURE_BEHIND: Final = SECTION.rule(
    "capture_behind",
    raises=(SourceUnavailableError,),
    meaning=(
        "SQL Server: a table without a key is to be read, and the capture job has not read the log for more than "
        "ten minutes. In the status (`source.waiting_for`) it is no failure: the job works, but a write into the "
        "mark table that is more than 30 seconds old has not come back (without a mark table: the last commit is "
        "more than ten minutes old)."
    ),
    remedy="See that SQL Server Agent and the capture job run.",
)

CDC_DISABLED: Final = SECTION.rule(
    "cdc_disabled",
    found=(Severity.BLOCKING,),
    meaning="Change data capture is off for the database.",
    remedy=(
        "`EXEC sys.sp_cdc_enable_db;` (Amazon RDS: `EXEC msdb.dbo.rds_cdc_enable_db N'…';`). The statements of "
        "the tables follow in the same script."
    ),
)

EDITION_WITHOUT_CDC: Final = SECTION.rule(
    "edition_without_cdc",
    found=(Severity.BLOCKING,),
    meaning="The server's edition has no change data capture (Express, Web, Azure SQL Edge).",
    remedy="Use Standard, Enterprise or Developer.",
)

AGENT_STOPPED: Final = SECTION.rule(
    "agent_stopped",
    found=(Severity.WARNING,),
    meaning=("SQL Server Agent does not run. Nothing is captured; nothing is lost either, but the server's log grows."),
    remedy="Start the service.",
)

CAPTURE_JOB_MISSING: Final = SECTION.rule(
    "capture_job_missing",
    found=(Severity.WARNING,),
    meaning=(
        "The database has no capture job, as after a failover to a server that never had one. Nothing is "
        "captured, and the server's log grows."
    ),
    remedy="`EXEC sys.sp_cdc_add_job @job_type = N'capture';`",
)

CAPTURE_JOB_STOPPED: Final = SECTION.rule(
    "capture_job_stopped",
    found=(Severity.WARNING,),
    meaning="The capture job is stopped or disabled. Nothing is captured, and the server's log grows.",
    remedy=(
        "`EXEC sys.sp_cdc_start_job @job_type = N'capture';`; if it is disabled, first `EXEC "
        "msdb.dbo.sp_update_job @job_name = N'…', @enabled = 1;`."
    ),
)

CAPTURE_JOB_SCHEDULED: Final = SECTION.rule(
    "capture_job_scheduled",
    found=(Severity.WARNING,),
    meaning=(
        "A schedule runs the capture job (`@continuous = 0`). Changes come only when it does; if that is seldom, "
        "a running replicator says `capture_stalled` in between, and a snapshot may not advance."
    ),
    remedy="`EXEC sys.sp_cdc_change_job @job_type = N'capture', @continuous = 1;`, then start the job.",
)

CAPTURE_FAILING: Final = SECTION.rule(
    "capture_failing",
    raises=(SourceUnavailableError,),
    found=(Severity.WARNING,),
    meaning=(
        "SQL Server: the capture job fails since its last good scan. Nothing is captured, and the server's log "
        "grows. A running replicator says so once the position has stood still for 30 seconds, and retries; it "
        "continues by itself once the job captures again."
    ),
    remedy="What the message says for the error's number; `SELECT * FROM sys.dm_cdc_errors;` has the reason.",
)

CLEANUP_JOB_MISSING: Final = SECTION.rule(
    "cleanup_job_missing",
    found=(Severity.WARNING,),
    meaning="The database has no cleanup job: change tables grow without a limit.",
    remedy="`EXEC sys.sp_cdc_add_job @job_type = N'cleanup';`",
)

SOURCE_IS_REPLICA: Final = SECTION.rule(
    "source_is_replica",
    found=(Severity.WARNING,),
    meaning=(
        "The database is read-only, as on a readable secondary. No mark table can be written, commits have times "
        "of another server's clock, and the state of the jobs is unknown."
    ),
    remedy="Name the primary.",
)

MARK_TABLE: Final = SECTION.rule(
    "mark_table",
    found=(Severity.BLOCKING,),
    meaning="`source.mark_table` is missing, has other columns, is not captured, or may not be written.",
    remedy="The statements in the message.",
)

SESSIONS_HIDDEN: Final = SECTION.rule(
    "sessions_hidden",
    found=(Severity.WARNING,),
    meaning=(
        "SQL Server: the account is not shown what other sessions wait for, so a chunk does not give way to an "
        "`ALTER TABLE`, which waits until the chunk is read. Without a mark table marks also go by the server's "
        "clock."
    ),
    remedy=(
        "Grant what the message says: `VIEW SERVER STATE`, from SQL Server 2022 on `VIEW SERVER PERFORMANCE STATE`."
    ),
)

NO_MARK_TABLE: Final = SECTION.rule(
    "no_mark_table",
    found=(Severity.NOTICE,),
    meaning=(
        "Without `source.mark_table` a chunk may wait for five minutes, and a capture job that has stopped is "
        "found after ten minutes instead of one."
    ),
    remedy="Create the table as the message says, and name it.",
)

TWO_CAPTURE_INSTANCES: Final = SECTION.rule(
    "two_capture_instances",
    found=(Severity.WARNING,),
    meaning=(
        "The table has two capture instances that the Replicator did not create. The server allows no third, so "
        "columns that are added later cannot be captured."
    ),
    remedy="Drop the one that nobody reads.",
)

PARTITION_SWITCH: Final = SECTION.rule(
    "partition_switch",
    found=(Severity.BLOCKING,),
    meaning=(
        "The table is partitioned, and its capture instances allow `ALTER TABLE … SWITCH`, which moves rows "
        "without capturing them."
    ),
    remedy=(
        "Create an instance with `@allow_partition_switch = 0`; then `SWITCH` is refused. Or set "
        "`source.partition_switch: accept`, and read the table again after each switch."
    ),
)

COLUMNSTORE_NOT_CAPTURED: Final = SECTION.rule(
    "columnstore_not_captured",
    found=(Severity.BLOCKING,),
    meaning=("SQL Server: the table has a clustered columnstore index. Change data capture cannot be enabled on it."),
    remedy=(
        "Exclude the table. Or drop that index, and create a nonclustered columnstore index instead. Or, if the "
        "table has a primary key, `source.capture: change_tracking`."
    ),
)

COMMAND_ID_MISSING: Final = SECTION.rule(
    "command_id_missing",
    raises=(CurableError,),
    found=(Severity.BLOCKING,),
    meaning=(
        "The change table has no `__$command_id`, as a server without the update KB 3030352 made it: the order "
        "of changes in a transaction is unknown."
    ),
    remedy=("Create another capture instance with the statement that the message has. The table continues by itself."),
)

ACCELERATED_RECOVERY: Final = SECTION.rule(
    "accelerated_recovery",
    found=(Severity.WARNING,),
    meaning=(
        "The database has accelerated database recovery, which Microsoft supports together with change data "
        "capture only from SQL Server 2022 CU 18 on."
    ),
    remedy="Update the server, or switch it off.",
)

DELAYED_DURABILITY: Final = SECTION.rule(
    "delayed_durability",
    found=(Severity.WARNING,),
    meaning=(
        "The database allows or forces commits that are seen before they are on disk. According to the "
        "documentation that is not supported together with change data capture; a snapshot may read rows that "
        "the server loses when it crashes. Replicator then does not take the end of the server's log as a mark."
    ),
    remedy="`ALTER DATABASE CURRENT SET DELAYED_DURABILITY = DISABLED;`",
)

MIXED_COLLATIONS: Final = SECTION.rule(
    "mixed_collations",
    found=(Severity.BLOCKING,),
    meaning=(
        "A `char` or `varchar` column has another code page than the database: text that is not ASCII may be "
        "captured wrong."
    ),
    remedy="Change the column to `nvarchar` with the collation that it has, or exclude the table.",
)

LARGE_VALUES_REFUSED: Final = SECTION.rule(
    "large_values_refused",
    found=(Severity.WARNING,),
    meaning=(
        "`max text repl size` limits large values: the server refuses larger ones in captured tables, and the "
        "application that writes them gets error 7139."
    ),
    remedy=(
        "`EXEC sys.sp_configure N'max text repl size', -1; RECONFIGURE;`. Amazon RDS: the parameter group. Azure "
        "SQL Database cannot change it."
    ),
)

ROWS_FILTERED: Final = SECTION.rule(
    "rows_filtered",
    found=(Severity.WARNING,),
    meaning=(
        "SQL Server: a security policy filters the table's rows (row-level security). If it hides rows from the "
        "account, a snapshot lacks them. With change tracking, a changed row that is hidden is deleted in the "
        "target."
    ),
    remedy="See that the policy's function shows the account all rows; or exclude the table.",
)

UPDATETEXT_NOT_TRACKED: Final = SECTION.rule(
    "updatetext_not_tracked",
    found=(Severity.WARNING,),
    meaning=(
        "SQL Server: the table has `text`, `ntext` or `image`. By the manual, change tracking does not note what "
        "`UPDATETEXT` changes, so the target would keep the former value. With change data capture other tools "
        "list `UPDATETEXT` and `WRITETEXT` as not supported."
    ),
    remedy="(max) types, if an application uses `UPDATETEXT` or `WRITETEXT`; or exclude the table.",
)

KEY_SPELLING: Final = SECTION.rule(
    "key_spelling",
    found=(Severity.WARNING,),
    meaning=(
        "SQL Server with change tracking: the key has text or `varbinary`. If it changes only in case, accents, "
        "trailing spaces or trailing zeros, the target may keep the row under the former spelling, too."
    ),
    remedy="A new snapshot of the table after such a change, or `source.capture: cdc`.",
)

TRACKING_NOT_CLEANED: Final = SECTION.rule(
    "tracking_not_cleaned",
    found=(Severity.WARNING,),
    meaning=("SQL Server: AUTO_CLEANUP of change tracking is off, so what is known of changes grows without a limit."),
    remedy="Switch it on.",
)

COLUMN_HIDDEN: Final = SECTION.rule(
    "column_hidden",
    found=(Severity.BLOCKING,),
    meaning=(
        "A column is masked for the account, or encrypted by the client: a snapshot would have other values than "
        "the log."
    ),
    remedy="`GRANT UNMASK TO …;`, or exclude the table.",
)

SECTION.note(
    tables.UNSUPPORTED_TYPE, meaning="SQL Server: `sql_variant`, types of .NET, column sets of sparse columns."
)

SECTION.note(tables.CURSOR_STUCK, meaning="SQL Server: a value of its key is not valid in its code page.")

SECTION.note(sources.SERVER_TOO_OLD, meaning="SQL Server: older than 2017.")

SECTION.note(
    sources.SOURCE_UNAVAILABLE, remedy="SQL Server: where `source.tls` demands TLS, that may be the reason too."
)

SECTION.note(
    sources.LOCK_TIMEOUT,
    meaning=(
        "SQL Server: while the capture job locks what it writes, reading the log just waits, for a minute "
        "(without a mark table: ten)."
    ),
)

SECTION.note(sources.SELECT_MISSING, meaning="SQL Server: or its change table.")

SECTION.note(
    sources.NO_QUIET_MOMENT,
    meaning="SQL Server: it was written to within the last minute; it is tried again.",
    remedy="SQL Server: or `source.chunk_isolation: locking`.",
)

SECTION.note(
    sources.OTHER_HISTORY, meaning="SQL Server: the database was restored, or a replica took over that lacked changes."
)

SECTION.note(sources.KEY_NEEDED, meaning="SQL Server with change tracking: every table needs a key.")

SECTION.note(sources.OFFSET_EXPIRED, meaning="SQL Server: cleanup has deleted changes, or capture was disabled.")
