"""Every code of this distribution's errors and findings, with its texts."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    THEN_BY_ITSELF,
    ConfigError,
    CurableError,
    FatalError,
    Severity,
    SourceUnavailableError,
    TableError,
)
from replicator.model.rules import Section, sources, tables, targets

SECTION: Final = Section("SQL Server", "`validate` prints the statement for each finding that T-SQL fixes.")

WAITING: Final = "changes wait in the server's log, and the log grows"
NO_DRIVER: Final = (
    "Install FreeTDS (Debian, Ubuntu: `apt-get install tdsodbc unixodbc`), or Microsoft's driver from "
    "Microsoft's own package repository (`ACCEPT_EULA=Y apt-get install msodbcsql18`). Then name it in "
    "`source.driver`: `FreeTDS` or `ODBC Driver 18 for SQL Server`."
)
CHECK_SERVER: Final = "Check that the server runs, and that source.host and source.port are right."
CHECK_ACCOUNT: Final = "Check source.user, source.password and source.database, and that the account is not locked."
GRANT: Final = "Grant the permission that the message names. docs/sources/sqlserver.md lists all that are needed."
REPORT: Final = (
    "Run `replicator snapshot NAME TABLE`; if it fails again, exclude the table and report its CREATE TABLE."
)

CAPTURE_NOT_BEGUN: Final = SECTION.rule(
    "capture_not_begun",
    raises=(SourceUnavailableError,),
    meaning="SQL Server: the capture job has not run since the first table was captured.",
    remedy="See that SQL Server Agent runs, and the capture job.",
    text="No capture instance has begun: the capture job has not run since it was made.",
    action=(
        "See that SQL Server Agent runs, and the capture job: EXEC sys.sp_cdc_start_job @job_type = N'capture'; "
        "(where the database has a publication, the Log Reader Agent captures)."
    ),
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

NOTHING_CAPTURED: Final = CAPTURE_STALLED.worded(
    ("Nothing was captured for {length}, though an idle database has an entry every five minutes: " + WAITING + "."),
    location="cdc.lsn_time_mapping",
)

CAPTURE_STANDS_STILL: Final = CAPTURE_STALLED.worded(
    "The capture job has captured nothing for {seconds:.0f} s.",
    action=(
        "See that SQL Server Agent runs and the job exists (it does not after a failover): EXEC "
        "sys.sp_cdc_add_job @job_type = N'capture'; EXEC sys.sp_cdc_start_job @job_type = N'capture'. A database "
        "with a publication has none: start its Log Reader Agent."
    ),
)

COLUMN_NOT_CAPTURED: Final = SECTION.rule(
    "column_not_captured",
    raises=(CurableError,),
    found=(Severity.BLOCKING,),
    meaning="SQL Server: a column was added that no capture instance has.",
    remedy=("Make a second capture instance with the statement that the message has. The table continues by itself."),
)

COLUMN_NOT_CAPTURED_0: Final = COLUMN_NOT_CAPTURED.worded("The newest capture instance lacks its columns {missing}")

COLUMN_NOT_CAPTURED_1: Final = COLUMN_NOT_CAPTURED.worded("The capture instance lacks {columns}.")

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
    text="The mark table is not captured, so snapshots cannot finish.",
    action="EXEC sys.sp_cdc_enable_table for `source.mark_table`, as `replicator validate` prints it.",
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

INSTANCE_ALTERED: Final = INSTANCE_CHANGED.worded(
    "The capture job altered the change table of {name} while it was read."
)

INSTANCE_DISABLED: Final = INSTANCE_CHANGED.worded("The instance {name} was cleaned up or disabled while it was read.")

CHANGES_DISAPPEARED: Final = INSTANCE_CHANGED.worded(
    "Rows of the change table of {name} that were counted are not there any more."
)

INSTANCE_READ_FAILED: Final = INSTANCE_CHANGED.worded("Reading changes: {facts}")

TABLE_NOT_CAPTURED: Final = SECTION.rule(
    "table_not_captured",
    raises=(CurableError,),
    found=(Severity.BLOCKING,),
    meaning="SQL Server: no capture instance has the table's changes.",
    remedy="`EXEC sys.sp_cdc_enable_table …`. The table continues by itself.",
)

TABLE_NOT_CAPTURED_0: Final = TABLE_NOT_CAPTURED.worded("No capture instance records its changes.")

TABLE_NOT_CAPTURED_1: Final = TABLE_NOT_CAPTURED.worded(
    "No capture instance has its changes.", action=("{enable_table} " + THEN_BY_ITSELF)
)

CHANGE_TRACKING_OFF: Final = SECTION.rule(
    "change_tracking_off",
    raises=(SourceUnavailableError,),
    found=(Severity.BLOCKING,),
    meaning="SQL Server with `source.capture: change_tracking`: change tracking is off for the database.",
    remedy="The statement that the message has; afterwards every table is read again by itself.",
)

TRACKING_OFF: Final = CHANGE_TRACKING_OFF.worded("Change tracking is off for the database {database}.")

TRACKING_SWITCHED_OFF: Final = CHANGE_TRACKING_OFF.worded(
    "Change tracking is off for the database, so nothing tells which rows are changed.",
    action=(
        "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 7 DAYS, AUTO_CLEANUP = ON), then "
        "ALTER TABLE … ENABLE CHANGE_TRACKING of each table. `replicator validate` prints the statements."
    ),
)

TABLE_NOT_TRACKED: Final = SECTION.rule(
    "table_not_tracked",
    raises=(CurableError,),
    found=(Severity.BLOCKING,),
    meaning="SQL Server: the table's changes are not tracked.",
    remedy="`ALTER TABLE … ENABLE CHANGE_TRACKING`. The table continues by itself.",
)

TABLE_NOT_TRACKED_0: Final = TABLE_NOT_TRACKED.worded("Its changes are not tracked.")

TABLE_NOT_TRACKED_1: Final = TABLE_NOT_TRACKED.worded(
    "Its changes are not tracked.", action="ALTER TABLE {name} ENABLE CHANGE_TRACKING."
)

TRACKING_NOT_VISIBLE: Final = SECTION.rule(
    "tracking_not_visible",
    raises=(CurableError,),
    found=(Severity.BLOCKING,),
    meaning="SQL Server: the account may not see the table's tracked changes.",
    remedy="`GRANT VIEW CHANGE TRACKING ON … TO …`. The table continues by itself.",
)

TRACKING_NOT_VISIBLE_0: Final = TRACKING_NOT_VISIBLE.worded(
    "The account {user} may not see its changes.",
    sql=("GRANT VIEW CHANGE TRACKING ON {table_name} TO {user_2};",),
    is_access=True,
)

TRACKING_NOT_VISIBLE_1: Final = TRACKING_NOT_VISIBLE.worded(
    "The account may not see its changes.", action="GRANT VIEW CHANGE TRACKING ON {name} TO the account."
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

SNAPSHOT_AHEAD: Final = SNAPSHOT_NOT_EXACT.worded(
    "The server's snapshot has changes of version {version}, and says that its version is {upto}."
)

CHANGES_NOT_IN_SNAPSHOT: Final = SNAPSHOT_NOT_EXACT.worded(
    "Changes that were counted in a snapshot are not there any more in it."
)

DRIVER_CANNOT_BE_TOLD: Final = SECTION.rule(
    "driver_cannot_be_told",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning=("SQL Server: user, password or database has a closing brace and a semicolon, which FreeTDS cannot read."),
    remedy="Change it in the server, or use Microsoft's driver.",
    text="Source: FreeTDS cannot be told {name}: it has a closing brace and a semicolon.",
    action="Change the value in the server, or use Microsoft's driver.",
)

DRIVER_MISSING: Final = SECTION.rule(
    "driver_missing",
    raises=(FatalError,),
    found=(Severity.BLOCKING,),
    meaning="SQL Server: there is no such ODBC driver on the host.",
    remedy="Install FreeTDS or Microsoft's driver, and name it in `source.driver`.",
)

DRIVER_NOT_INSTALLED: Final = DRIVER_MISSING.worded(
    "This host has no ODBC driver {driver}; it has: {known}.", action=NO_DRIVER, location="source.driver"
)

DRIVER_NOT_LOADED: Final = DRIVER_MISSING.worded("{message}", action=NO_DRIVER)

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

NO_AUTHORITIES: Final = TLS_NOT_VERIFIABLE.worded(
    "source.tls: this system has no file of certificate authorities.",
    action="Set `source.tls_ca` to the authority of the server's certificate.",
)

AUTHORITIES_NOT_TAKEN: Final = TLS_NOT_VERIFIABLE.worded(
    ("source.tls: Microsoft's driver takes no file of certificate authorities, which {tls_mode} with tls_ca asks for."),
    action="Let the system trust the authority and leave `source.tls_ca` out, or use FreeTDS.",
)

AUTHORITIES_UNUSABLE: Final = TLS_NOT_VERIFIABLE.worded(
    "source.tls_ca: {authorities} cannot be used: {reason}.",
    action=(
        "Set `source.tls_ca` to a PEM file of the authority of the server's certificate, which Replicator may read."
    ),
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

SNAPSHOT_NEEDED_WITHOUT_KEY: Final = SNAPSHOT_ISOLATION_OFF.worded(
    "Without a key it is read in a SNAPSHOT transaction, which the database does not allow."
)

SNAPSHOT_REFUSED: Final = SNAPSHOT_ISOLATION_OFF.worded(
    "{doing} in a SNAPSHOT transaction, which the database does not allow.",
    action="Run `ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON`, {otherwise}",
)

SNAPSHOT_NEEDED_FOR_TRACKING: Final = SNAPSHOT_ISOLATION_OFF.worded(
    "Changes and rows are read in SNAPSHOT transactions, which the database {database} does not allow."
)

UTF8_MISSING: Final = SECTION.rule(
    "utf8_missing",
    raises=(TableError,),
    meaning=(
        "SQL Server older than 2019: it cannot write text in UTF-8, so it cannot be verified. Replication is not "
        "affected."
    ),
    remedy="Upgrade the server.",
    text="This server cannot write text in UTF-8, in which it is compared.",
    action="Verification needs SQL Server 2019 or later, or Azure SQL.",
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
    text="The capture job has read nothing of the log that is later than {behind}.",
    action="See that SQL Server Agent and the capture job run (`EXEC sys.sp_cdc_help_jobs`).",
)

CDC_DISABLED: Final = SECTION.rule(
    "cdc_disabled",
    found=(Severity.BLOCKING,),
    meaning="Change data capture is off for the database.",
    remedy=(
        "`EXEC sys.sp_cdc_enable_db;` (Amazon RDS: `EXEC msdb.dbo.rds_cdc_enable_db N'…';`). The statements of "
        "the tables follow in the same script."
    ),
    text="Change data capture is off for the database {database}.",
)

EDITION_WITHOUT_CDC: Final = SECTION.rule(
    "edition_without_cdc",
    found=(Severity.BLOCKING,),
    meaning="The server's edition has no change data capture (Express, Web, Azure SQL Edge).",
    remedy="Use Standard, Enterprise or Developer.",
    text="The server is {name}, which has no change data capture.",
    action=("Use an edition that has it: Standard, Enterprise or Developer. Or set `source.capture: change_tracking`."),
    location="source.host",
)

AGENT_STOPPED: Final = SECTION.rule(
    "agent_stopped",
    found=(Severity.WARNING,),
    meaning=("SQL Server Agent does not run. Nothing is captured; nothing is lost either, but the server's log grows."),
    remedy="Start the service.",
    text=("SQL Server Agent does not run: " + WAITING + "."),
    action="Start the service on the server, and let it start with the server.",
    location="SQL Server Agent",
)

CAPTURE_JOB_MISSING: Final = SECTION.rule(
    "capture_job_missing",
    found=(Severity.WARNING,),
    meaning=(
        "The database has no capture job, as after a failover to a server that never had one. Nothing is "
        "captured, and the server's log grows."
    ),
    remedy="`EXEC sys.sp_cdc_add_job @job_type = N'capture';`",
    text=(
        "The database has no capture job, as after a failover to a server that never had one: no change is "
        "captured, and no error tells it."
    ),
    location="msdb.dbo.cdc_jobs",
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

CAPTURE_JOB_DISABLED: Final = CAPTURE_JOB_STOPPED.worded("{fact}", location="msdb.dbo.sysjobs")

CAPTURE_JOB_NOT_RUNNING: Final = CAPTURE_JOB_STOPPED.worded(
    ("The capture job does not run: " + WAITING + "."), location="msdb.dbo.sysjobactivity"
)

CAPTURE_JOB_SCHEDULED: Final = SECTION.rule(
    "capture_job_scheduled",
    found=(Severity.WARNING,),
    meaning=(
        "A schedule runs the capture job (`@continuous = 0`). Changes come only when it does; if that is seldom, "
        "a running replicator says `capture_stalled` in between, and a snapshot may not advance."
    ),
    remedy="`EXEC sys.sp_cdc_change_job @job_type = N'capture', @continuous = 1;`, then start the job.",
    text=(
        "A schedule runs the capture job: changes come only when it does, and whenever nothing was captured for "
        "a while the replicator takes it for stopped."
    ),
    location="msdb.dbo.cdc_jobs",
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

CAPTURE_JOB_FAILS: Final = CAPTURE_FAILING.worded(
    ("The capture job fails with error {capture_error}: " + WAITING + "."), location="sys.dm_cdc_errors"
)

CAPTURE_KEEPS_FAILING: Final = CAPTURE_FAILING.worded(
    (
        "The capture job fails with error {number} since its last good scan, and has captured nothing for "
        "{stood_s:.0f} s."
    ),
    action="Fix what `SELECT * FROM sys.dm_cdc_errors` says. Replicator continues once the capture job does.",
)

CLEANUP_JOB_MISSING: Final = SECTION.rule(
    "cleanup_job_missing",
    found=(Severity.WARNING,),
    meaning="The database has no cleanup job: change tables grow without a limit.",
    remedy="`EXEC sys.sp_cdc_add_job @job_type = N'cleanup';`",
    text="The database has no cleanup job: its change tables grow without a limit.",
    location="msdb.dbo.cdc_jobs",
)

SOURCE_IS_REPLICA: Final = SECTION.rule(
    "source_is_replica",
    found=(Severity.WARNING,),
    meaning=(
        "The database is read-only, as on a readable secondary. No mark table can be written, commits have times "
        "of another server's clock, and the state of the jobs is unknown."
    ),
    remedy="Name the primary.",
    text=(
        "The database is read-only here, as on a readable secondary: no mark table can be written, the times of "
        "commits are those of another server's clock, and the state of the jobs is unknown."
    ),
    action="Name the primary, or the listener of the availability group without ApplicationIntent=ReadOnly.",
    location="source.host",
)

MARK_TABLE: Final = SECTION.rule(
    "mark_table",
    found=(Severity.BLOCKING,),
    meaning="`source.mark_table` is missing, has other columns, is not captured, or may not be written.",
    remedy="The statements in the message.",
)

MARK_TABLE_UNFIT: Final = MARK_TABLE.worded("{table_name}: {message}", location="source.mark_table")

MARK_TABLE_READ_ONLY: Final = MARK_TABLE.worded(
    "{mark_table_id} cannot be written: the database is read-only here.",
    action="Name the primary in source.host, or leave source.mark_table out.",
    location="source.mark_table",
)

MARK_TABLE_NOT_NEEDED: Final = MARK_TABLE.worded(
    "Change tracking needs no mark table: nothing is written into it.",
    action="Leave source.mark_table out.",
    location="source.mark_table",
    severity=Severity.NOTICE,
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
    text=(
        "The account {user} is not shown what other sessions wait for: an ALTER TABLE waits until a chunk is "
        "read, which would otherwise give way to it{fact}{marks}."
    ),
    location="source.user",
)

NO_MARK_TABLE: Final = SECTION.rule(
    "no_mark_table",
    found=(Severity.NOTICE,),
    meaning=(
        "Without `source.mark_table` a chunk may wait for five minutes, and a capture job that has stopped is "
        "found after ten minutes instead of one."
    ),
    remedy="Create the table as the message says, and name it.",
    text=(
        "There is no source.mark_table: on a database where nothing changes a chunk waits for up to five "
        "minutes, and a capture job that has stopped is found after ten minutes instead of one."
    ),
    action="Set `source.mark_table: {example}` after: {statements}",
    location="source.mark_table",
)

TWO_CAPTURE_INSTANCES: Final = SECTION.rule(
    "two_capture_instances",
    found=(Severity.WARNING,),
    meaning=(
        "The table has two capture instances that the Replicator did not create. The server allows no third, so "
        "columns that are added later cannot be captured."
    ),
    remedy="Drop the one that nobody reads.",
    text=(
        "It has two capture instances ({names}), and no more are possible: columns that are added cannot be captured."
    ),
    action="{alone}: {disable_instance}",
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

SWITCH_ALLOWED: Final = PARTITION_SWITCH.worded("{message}")

SWITCH_ACCEPTED: Final = PARTITION_SWITCH.worded(
    "{message}: the target keeps rows that were switched out, and lacks those that were switched in.",
    action="After each SWITCH run `replicator snapshot NAME {quoted_table}`.",
    severity=Severity.WARNING,
)

COLUMNSTORE_NOT_CAPTURED: Final = SECTION.rule(
    "columnstore_not_captured",
    found=(Severity.BLOCKING,),
    meaning=("SQL Server: the table has a clustered columnstore index. Change data capture cannot be enabled on it."),
    remedy=(
        "Exclude the table. Or drop that index, and create a nonclustered columnstore index instead. Or, if the "
        "table has a primary key, `source.capture: change_tracking`."
    ),
    text="It has a clustered columnstore index, with which change data capture cannot be enabled.",
    action=(
        "Exclude it{tracked}. Or drop that index, and create a nonclustered columnstore index if queries need one."
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

COMMAND_ID_MISSING_0: Final = COMMAND_ID_MISSING.worded(
    "Its change table has no __$command_id, as a server without the update KB 3030352 made it: the order of "
    "changes in a transaction is unknown."
)

COMMAND_ID_MISSING_1: Final = COMMAND_ID_MISSING.worded(
    "Its change table has no __$command_id: the order of changes in a transaction is unknown."
)

ACCELERATED_RECOVERY: Final = SECTION.rule(
    "accelerated_recovery",
    found=(Severity.WARNING,),
    meaning=(
        "The database has accelerated database recovery, which Microsoft supports together with change data "
        "capture only from SQL Server 2022 CU 18 on."
    ),
    remedy="Update the server, or switch it off.",
    text=(
        "The database has accelerated database recovery, which Microsoft supports together with change data "
        "capture from SQL Server 2022 CU 18 on: the log may fill up, and what is captured may be wrong."
    ),
    action=(
        "Update the server. Or, while nobody is connected to the database: ALTER DATABASE CURRENT SET "
        "ACCELERATED_DATABASE_RECOVERY = OFF;"
    ),
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
    text=(
        "Commits may be delayed on their way to the disk, which Microsoft does not support together with change "
        "data capture: a snapshot may read rows that the server loses when it crashes."
    ),
)

MIXED_COLLATIONS: Final = SECTION.rule(
    "mixed_collations",
    found=(Severity.BLOCKING,),
    meaning=(
        "A `char` or `varchar` column has another code page than the database: text that is not ASCII may be "
        "captured wrong."
    ),
    remedy="Change the column to `nvarchar` with the collation that it has, or exclude the table.",
    text=(
        "Its columns {named} have another code page than the database ({collation}): capture may record their "
        "text wrong, except ASCII."
    ),
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
    text=(
        "Max text repl size is {limit}: once the table is captured, the server refuses to write larger values "
        "into {large} (error 7139)."
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
    text="A security policy filters its rows: if it applies to the account {user}, {effect}",
    action="See that the policy's function shows the account all rows, or exclude the table.",
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
    text="Its columns {old} are text, ntext or image: {why}",
    action=(
        "If an application uses UPDATETEXT or WRITETEXT, change the columns to varchar(max), nvarchar(max) or "
        "varbinary(max), or exclude the table."
    ),
)

KEY_SPELLING: Final = SECTION.rule(
    "key_spelling",
    found=(Severity.WARNING,),
    meaning=(
        "SQL Server with change tracking: the key has text or `varbinary`. If it changes only in case, accents, "
        "trailing spaces or trailing zeros, the target may keep the row under the former spelling, too."
    ),
    remedy="A new snapshot of the table after such a change, or `source.capture: cdc`.",
    text=(
        "Its key has text or varbinary ({spelled}): if it changes only in case, accents, trailing spaces or "
        "trailing zeros, the target may keep the row under the former spelling, too."
    ),
    action=("If such changes happen, run `replicator snapshot NAME TABLE` after them, or set source.capture: cdc."),
)

TRACKING_NOT_CLEANED: Final = SECTION.rule(
    "tracking_not_cleaned",
    found=(Severity.WARNING,),
    meaning=("SQL Server: AUTO_CLEANUP of change tracking is off, so what is known of changes grows without a limit."),
    remedy="Switch it on.",
    text="AUTO_CLEANUP is off: what is known of changes grows without a limit.",
    location="sys.change_tracking_databases",
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

COLUMN_ENCRYPTED: Final = COLUMN_HIDDEN.worded(
    "Its columns {encrypted} are encrypted by the client (Always Encrypted).", action="Exclude the table."
)

COLUMN_MASKED: Final = COLUMN_HIDDEN.worded(
    "Its columns {masked} are masked for the account {user}: a snapshot would have the masks.",
    sql=("GRANT UNMASK TO {user_2};",),
)

RETENTION_TO_BE: Final = sources.LOG_RETENTION.worded(
    "The server will keep changes for {days} days; after a longer pause the position is lost."
)

RETENTION: Final = sources.LOG_RETENTION.worded(
    "The server keeps changes for {kept:.1f} days; after a longer pause the position is lost."
)

TRACKING_RETENTION: Final = sources.LOG_RETENTION.worded(
    "The server keeps changes for {kept:.1f} days; after a longer pause every table is read again.",
    location="sys.change_tracking_databases",
)

SERVER_TOO_OLD: Final = sources.SERVER_TOO_OLD.worded(
    "The server is {name}; SQL Server 2017 or later is needed.", action="Upgrade the server.", location="source.host"
)

PRIVILEGE_EXCESS: Final = sources.PRIVILEGE_EXCESS.worded(
    "The account {user} is {excess}, and needs {needed}.",
    action="Use a separate account for Replicator.",
    location="source.user",
)

PRIVILEGE_MISSING: Final = sources.PRIVILEGE_MISSING.worded(
    "The account {user} is not db_owner, and source.manage_capture is true.",
    location="source.manage_capture",
    sql=("ALTER ROLE db_owner ADD MEMBER {user_2};",),
)

TABLE_NOT_THERE: Final = tables.TABLE_MISSING.worded(
    "There is no such table, or the account may not see it.",
    action="Exclude it, or GRANT SELECT ON {table_name} to the account.",
)

TABLE_NO_LONGER_THERE: Final = tables.TABLE_MISSING.worded(
    "There is no such table, or the account may not see it.",
    action=(
        "Exclude it in `tables.exclude`. Or create it again, or grant SELECT on it, and run `replicator snapshot "
        "NAME TABLE`."
    ),
)

TYPE_NOT_REPLICATED: Final = tables.UNSUPPORTED_TYPE.worded(
    "Its column {name} has the type {declared}, which cannot be replicated."
)

COLUMN_SET: Final = tables.UNSUPPORTED_TYPE.worded(
    "Its column {set} is a column set for sparse columns, which change data capture does not record.",
    action="Exclude the table, or drop the column set; sparse columns alone are replicated.",
)

TYPES_NOT_REPLICATED: Final = tables.UNSUPPORTED_TYPE.worded(
    "Its columns {columns} cannot be replicated.",
    action=("Drop the columns or change their types, then run `replicator snapshot NAME TABLE`; or exclude the table."),
)

TYPE_CHANGED: Final = targets.TYPE_CHANGED.worded("Of its columns {cut} the seventh digit of a second is cut off.")

NO_KEY: Final = sources.NO_KEY.worded(
    "{reason}: it is replicated as a multiset of rows, and its snapshot is one statement{failing}",
    severity=Severity.WARNING,
)

COLUMNS_NOT_READABLE: Final = sources.SELECT_MISSING.worded(
    "{what} may not be read by the account {user}.", is_access=True
)

CHANGE_TABLE_NOT_READABLE_0: Final = sources.SELECT_MISSING.worded(
    "Its change table {tables} may not be read by the account {user}.", is_access=True
)

CHANGE_TABLE_NOT_READABLE: Final = sources.SELECT_MISSING.worded(
    "Its change table {names} may not be read.", action=("{grants} " + THEN_BY_ITSELF)
)

CAPTURED_TABLE_HIDDEN: Final = sources.SELECT_MISSING.worded(
    "It is captured, but the account may not see it.",
    action=("GRANT SELECT ON {table_name} TO {user}; " + THEN_BY_ITSELF),
)

NO_TABLE_READABLE: Final = sources.SELECT_MISSING.worded(
    "Replicator may no longer read any of the {count} tables, or of their change tables.",
    action="GRANT SELECT on them, as `replicator validate` prints it.",
)

GENERATED_COLUMNS: Final = sources.GENERATED_COLUMNS.worded(
    "Its computed columns {computed} are left out: change tables have NULL for them."
)

KEY_NEEDED_FOR_LARGE_VALUES: Final = sources.KEY_NEEDED.worded(
    (
        "{reason}, and the log leaves large values ({large}) out of updates: which row an update changed would "
        "be unknown."
    ),
    action="{give} -- or exclude the table",
)

NO_KEY_TO_READ_BY: Final = sources.KEY_NEEDED.worded(
    "It has no primary key that identifies its rows, and change tracking tells changed rows by it.",
    action="Give the table a primary key, exclude it, or set `source.capture: cdc`.",
)

KEY_NEEDED_FOR_TRACKING: Final = sources.KEY_NEEDED.worded(
    "{reason}, and change tracking tells changed rows by it.",
    action="ALTER TABLE {name} ADD PRIMARY KEY (…); -- or exclude the table, or set source.capture: cdc",
)

NO_KEY_TO_TRACK_BY: Final = sources.KEY_NEEDED.worded(
    "It has no primary key that identifies its rows, and change tracking tells changed rows by it.",
    action="ALTER TABLE {name} ADD PRIMARY KEY (…).",
)

CAPTURE_BEGINS_LATER: Final = sources.OFFSET_EXPIRED.worded(
    "Change data capture ends before {lsn}, where we are: it was disabled, or the database restored.",
    action="Run `replicator snapshot NAME --changed-only` or `--restart`.",
)

CHANGES_CLEANED_UP: Final = sources.OFFSET_EXPIRED.worded(
    "Change data capture no longer has the changes after {lsn}: cleanup has deleted them.",
    action=(
        "Run `replicator snapshot NAME --changed-only` or `--restart`. To keep changes for longer: EXEC "
        "sys.sp_cdc_change_job @job_type = N'cleanup', @retention = minutes."
    ),
)

TRACKING_BEGINS_AGAIN: Final = sources.OFFSET_EXPIRED.worded(
    ("Change tracking is at version {head}, and we are at {position}: it was switched off, or the database restored."),
    action="Run `replicator snapshot NAME --changed-only` or `--restart`.",
)

HALF_AN_UPDATE: Final = tables.CORRUPT_ROWS.worded(
    "The change table of {name} has half of an UPDATE.", action="Run `replicator snapshot NAME TABLE`."
)

NULL_IN_DELETED_ROW: Final = tables.CORRUPT_ROWS.worded(
    "The change table of {name} has NULL for {name_2}, which is NOT NULL, of a deleted row: which row that "
    "was is unknown{fact}."
)

UNEXPECTED_VALUES: Final = tables.CORRUPT_ROWS.worded(
    "Column {name}: {declared} was expected; the driver gave {others}.", action=REPORT
)

NO_CDC_OFFSET: Final = sources.CORRUPT_OFFSET.worded("{offset} is not an offset of a SQL Server source.")

NO_TRACKING_OFFSET: Final = sources.CORRUPT_OFFSET.worded(
    "{offset} is not an offset of a SQL Server source with change tracking."
)

NO_ANSWER: Final = sources.SOURCE_UNAVAILABLE.worded(
    "{doing}: {facts}", action=(CHECK_SERVER + " It may also be TLS: check {needs}, as `source.tls: {tls}` demands.")
)

CONNECTION_LOST: Final = sources.SOURCE_UNAVAILABLE.worded("{message}", action=CHECK_SERVER)

ROUND_LOST: Final = sources.SOURCE_UNAVAILABLE.worded("The connection that read a round was lost.")

STATEMENT_FAILED_FOR_TABLE: Final = sources.SOURCE_ERROR.worded(
    "{message}", action="Fix it on the server. Then run `replicator snapshot NAME TABLE`."
)

STATEMENT_FAILED: Final = sources.SOURCE_ERROR.worded("{message}")

INVALID_TEXT_IN_TABLE: Final = sources.UNREPRESENTABLE_VALUE.worded(
    "{message}", action="Fix the values, or exclude the table."
)

INVALID_VALUE: Final = sources.UNREPRESENTABLE_VALUE.worded(
    "Column {name}: of {count} values at least one is not a valid {declared}.",
    action="Fix the values, or exclude the table.",
)

VALUES_TOO_LARGE: Final = sources.UNREPRESENTABLE_VALUE.worded(
    "Column {name}: {count} values have more than 2 GiB together.", action="Exclude the table."
)

ACCOUNT_DENIED: Final = sources.ACCESS_DENIED.worded("{message}", action=CHECK_ACCOUNT)

PRIVILEGE_DENIED: Final = sources.ACCESS_DENIED.worded("{message}", action=GRANT)

TABLE_CHANGED: Final = sources.TABLE_CHANGED.worded("{message}")

STATEMENT_INTERRUPTED: Final = sources.STATEMENT_INTERRUPTED.worded("{message}")

STATEMENT_TIMEOUT: Final = sources.STATEMENT_TIMEOUT.worded("{message}", action="Raise source.statement_timeout{fact}")

OTHER_HISTORY: Final = sources.OTHER_HISTORY.worded(
    (
        "The database has another history than the one that was read: it was restored, or a replica took over "
        "that lacked changes ({told}: {known}, now {now})."
    ),
    action="Run `replicator snapshot NAME --changed-only` or `--restart`.",
)

ANOTHER_SERVER: Final = sources.ANOTHER_SERVER.worded(
    "The connection reached another database than those before ({other}).",
    action=(
        "Set source.host to one server, or to an availability group's listener. A proxy must not spread "
        "connections over several servers."
    ),
)


NO_QUIET_MOMENT: Final = sources.NO_QUIET_MOMENT.worded(
    ("The table has no key and was written to within the last minute: it is not known which transactions a read sees."),
    action=(
        "Nothing, if it is written to rarely. Otherwise set `source.chunk_isolation: locking`, or give it a "
        "primary key."
    ),
)

TABLE_ALTERED: Final = sources.TABLE_CHANGED_UNDER_SNAPSHOT.worded(
    "A table was altered while its changes were read; they are read again."
)

TRACKING_READ_FAILED: Final = sources.TABLE_CHANGED_UNDER_SNAPSHOT.worded("Reading changes: {facts}")

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

SNAPSHOT_ISOLATION_LOST: Final = SNAPSHOT_ISOLATION_OFF.worded("{message}")
