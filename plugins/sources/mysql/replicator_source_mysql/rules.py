"""Every code of this distribution's errors and findings, with its texts."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    AccessDeniedError,
    ConfigError,
    CorruptStreamError,
    FatalError,
    LogGapError,
    SchemaConflictError,
    Severity,
    SourceLagsError,
    SourceUnavailableError,
    TableError,
    UnsupportedTypeError,
)
from replicator.model.rules import Section, commands, sources, tables

SECTION: Final = Section("MySQL and MariaDB")

HIDDEN: Final = "The table exists, but the account may not read it."
RESTART_ACTION: Final = (
    "Run `replicator snapshot NAME --changed-only`. It starts at a new log position, and reads only the rows "
    "again that differ. With --restart, it takes new snapshots of all tables instead."
)
RAISE_PACKET: Final = "Raise max_allowed_packet on the server, to 1G at most."
# Measured on MySQL 9.7 and MariaDB 10.11: the server's max_allowed_packet does not bound what it sends of its log, 1 GiB does.
BEHIND_EVENT: Final = (
    "No server sends an event of more than 1 GiB, whatever its max_allowed_packet is. Write less into one "
    "row; an UPDATE logs it twice. To continue after the event: Run `replicator snapshot NAME "
    "--changed-only`. It starts at a new log position, and reads only the rows again that differ. With "
    "--restart, it takes new snapshots of all tables instead."
)

SERVER_SETTING: Final = SECTION.rule(
    "server_setting",
    found=(Severity.BLOCKING,),
    meaning="A server variable has a value with which the log cannot be replicated correctly.",
    remedy="The statement in the message.",
)

VARIABLE_DIFFERS: Final = SERVER_SETTING.worded("{name} is {found}; {wanted} is needed.")

GTIDS_HALF_ON: Final = SERVER_SETTING.worded(
    (
        "gtid_mode is {gtid_mode}: the log has transactions with and without GTIDs, so a GTID set does not "
        "describe what was read. ON is needed, or OFF."
    ),
    action="Finish the change: SET PERSIST gtid_mode = ON; -- or one step back at a time, to OFF",
    location="gtid_mode",
)

READ_ONLY_SERVER: Final = SERVER_SETTING.worded(
    "read_only is ON, but without GTIDs Replicator must write watermarks.",
    action="Name the primary server as host, or switch GTIDs on.",
    location="read_only",
)

LOG_BIN_OFF: Final = SECTION.rule(
    "log_bin_off",
    raises=(ConfigError,),
    meaning="The server writes no binary log.",
    remedy="Set `log_bin` in its configuration and restart it.",
    text="The server has no binary log.",
    action="Start it with log_bin.",
)

GTID_OFF: Final = SECTION.rule(
    "gtid_off",
    raises=(LogGapError,),
    meaning=(
        "The replicator began with GTIDs, and `gtid_mode` is not ON, or transactions without GTIDs are in the log."
    ),
    remedy="Set it to ON again; if something was committed without GTIDs meanwhile, a new log position.",
    text="{message}",
    action=("Switch gtid_mode to ON again. If transactions were committed without GTIDs meanwhile: " + RESTART_ACTION),
)

GTID_MODE_BETWEEN: Final = SECTION.rule(
    "gtid_mode_between",
    raises=(ConfigError,),
    meaning="`gtid_mode` is `OFF_PERMISSIVE` or `ON_PERMISSIVE`: replication cannot start at a new log position.",
    remedy="Finish the change, to ON or to OFF.",
    text="The server's gtid_mode is {gtid_mode}: its log has transactions with and without GTIDs.",
    action=(
        "Finish the change: SET GLOBAL gtid_mode = …, step by step, to ON (or to OFF: then "
        "source.watermark_table is needed)."
    ),
)

NO_GTIDS: Final = SECTION.rule(
    "no_gtids",
    found=(Severity.NOTICE,),
    meaning="MySQL without GTIDs: log positions are valid on this server only, and watermarks are written.",
    remedy="Nothing, or switch GTIDs on.",
    text=(
        "gtid_mode is OFF. Log positions are valid on this server only, so failover to another server is not "
        "possible. For each chunk, a row is inserted into {watermark} and deleted again."
    ),
    action=(
        "Better: SET PERSIST enforce_gtid_consistency = ON; SET PERSIST gtid_mode = OFF_PERMISSIVE; then "
        "ON_PERMISSIVE; then ON;"
    ),
    location="gtid_mode",
)

WATERMARK_TABLE: Final = SECTION.rule(
    "watermark_table",
    raises=(FatalError,),
    found=(Severity.BLOCKING,),
    meaning=(
        "MySQL without GTIDs: `source.watermark_table` is not there, is not InnoDB, may not be written, or is "
        "not in the log."
    ),
    remedy="The statements in the message.",
)

WATERMARK_TABLE_UNFIT: Final = WATERMARK_TABLE.worded("{message}", location="source.watermark_table")

WATERMARK_NOT_IN_LOG: Final = WATERMARK_TABLE.worded(
    "A watermark was written into {table_name}, but it is not in the log.",
    action=(
        "Take its database out of binlog_ignore_db, or into binlog_do_db, or name another table under "
        "source.watermark_table."
    ),
)

WATERMARK_NOT_WRITTEN: Final = WATERMARK_TABLE.worded(
    ("Without GTIDs a watermark is written into {table_name}, which does not exist or cannot be written: {facts}."),
    action="{creation} {grant}",
)

COMMITS_UNORDERED: Final = SECTION.rule(
    "commits_unordered",
    raises=(SourceUnavailableError,),
    meaning="MySQL without GTIDs: `binlog_order_commits` is off, so it is not known what a read saw.",
    remedy="`SET GLOBAL binlog_order_commits = ON`, or switch GTIDs on.",
    text="binlog_order_commits is OFF: the order of the log does not show what a read sees.",
    action="SET GLOBAL binlog_order_commits = ON; -- and in the server's option file; or switch GTIDs on.",
)

OTHER_SERVER: Final = SECTION.rule(
    "other_server",
    raises=(LogGapError,),
    meaning="MySQL without GTIDs: this is not the server that was read before.",
    remedy="Name the server that was read, or a new log position.",
    text=(
        "The server is {server}, but the log was read from {server_2}: without GTIDs a log position is valid on "
        "one server only."
    ),
    action=("Name the server that was read; or: " + RESTART_ACTION),
)

LOG_MAY_BE_LOST: Final = SECTION.rule(
    "log_may_be_lost",
    found=(Severity.BLOCKING,),
    meaning=(
        "`sync_binlog` or `innodb_flush_log_at_trx_commit` is not 1: a crash of the server's operating system "
        "could lose what was already replicated."
    ),
    remedy="Set them to 1, or accept it with `source.accept_log_loss: true`.",
    text=(
        "{name} is {variable}: after a crash of its operating system the server may have lost transactions that "
        "were already replicated, and reuse their GTIDs."
    ),
    action="SET GLOBAL {name} = 1; -- and in the server's option file; or set source.accept_log_loss: true",
    sql=("SET GLOBAL {name} = 1; -- and in the server's option file",),
)

REPLICA_DOES_NOT_LOG: Final = SECTION.rule(
    "replica_does_not_log",
    found=(Severity.BLOCKING,),
    meaning="The server does not log what it replicates from another one.",
    remedy="`log_replica_updates` (MariaDB: `log_slave_updates`), or name the primary.",
    text="{updates} is OFF: the server does not log what it replicates from another one.",
    action="Add `{updates}` to its configuration and restart it, or name the primary server as host.",
)

AURORA_READER: Final = SECTION.rule(
    "aurora_reader",
    found=(Severity.BLOCKING,),
    meaning="A reader of Aurora has no log.",
    remedy="Name the writer endpoint.",
    text="The server is a reader of Aurora, which has no log of its own.",
    action="Name the cluster's writer endpoint.",
    location="source.host",
)

MAX_ALLOWED_PACKET: Final = SECTION.rule(
    "max_allowed_packet",
    raises=(FatalError, TableError, UnsupportedTypeError),
    found=(Severity.WARNING,),
    meaning=(
        "MySQL: the text of a JSON value is longer than the server's `max_allowed_packet`, and a snapshot cannot "
        "read it: the table fails, and the message names the limit. The finding says that the setting is below "
        "64 MiB. Or the log has an event of more than 1 GiB, which no server sends: that stops all tables; the "
        "message names its transaction, and the tables of which it may have rows."
    ),
    remedy=(
        "A table: raise `max_allowed_packet`, then a new snapshot. The log: a new log position; write less into "
        "one row."
    ),
)

PACKETS_SMALL: Final = MAX_ALLOWED_PACKET.worded(
    (
        "max_allowed_packet is {variable}: a JSON value whose text is longer cannot be read by a snapshot, and "
        "fails its table."
    ),
    location="max_allowed_packet",
    sql=("SET GLOBAL max_allowed_packet = {packet_min}; -- and in the server's option file",),
)

EVENT_OF_TABLES_TOO_LARGE: Final = MAX_ALLOWED_PACKET.worded(
    "{message} The event has more than 1 GiB and {rows} in the transaction {transaction}."
)

PACKET_OF_TABLE_TOO_LARGE: Final = MAX_ALLOWED_PACKET.worded("{message}", action=(RAISE_PACKET + " {then}"))

PACKET_TOO_LARGE: Final = MAX_ALLOWED_PACKET.worded("{message}", action=RAISE_PACKET)

EVENT_TOO_LARGE: Final = MAX_ALLOWED_PACKET.worded("{message}", action=BEHIND_EVENT)

JSON_TOO_LARGE: Final = MAX_ALLOWED_PACKET.worded(
    "Column {name}: the text of a JSON value is longer than the server's max_allowed_packet.", action=RAISE_PACKET
)

TEXT_OF_ROW_TOO_LARGE: Final = MAX_ALLOWED_PACKET.worded(
    "A text that the server computed of a row is longer than its max_allowed_packet.", action=RAISE_PACKET
)

SYSTEM_VERSIONED: Final = SECTION.rule(
    "system_versioned",
    raises=(TableError,),
    found=(Severity.BLOCKING,),
    meaning="A system-versioned table's log mixes past and current rows.",
    remedy="Exclude it, or drop the versioning; then a new snapshot of it.",
)

SYSTEM_VERSIONED_0: Final = SYSTEM_VERSIONED.worded(
    "It is system-versioned: its log mixes past and current rows.",
    action="Exclude it, or ALTER TABLE {name} DROP SYSTEM VERSIONING;",
)

SYSTEM_VERSIONED_1: Final = SYSTEM_VERSIONED.worded(
    "It is system-versioned: its log mixes past and current rows.",
    action=(
        "ALTER TABLE {table_name} DROP SYSTEM VERSIONING; then run `replicator snapshot NAME TABLE`; or exclude it."
    ),
)

ENGINE_NOT_TRANSACTIONAL: Final = SECTION.rule(
    "engine_not_transactional",
    found=(Severity.BLOCKING,),
    meaning="A read of such a table cannot be matched with the log.",
    remedy="`ALTER TABLE … ENGINE = InnoDB;`",
    text="Its engine is {engine}: its reads cannot be matched with the log.",
    sql=("ALTER TABLE {name} ENGINE = InnoDB;",),
)

LOG_FILTER: Final = SECTION.rule(
    "log_filter",
    found=(Severity.WARNING,),
    meaning=(
        "`binlog_do_db` or `binlog_ignore_db` is set: statements about tables are left out of the log by their "
        "session's database."
    ),
    remedy="Remove it.",
    text=(
        "{name} is set ({names}): statements such as TRUNCATE and ALTER TABLE are filtered by the default "
        "database of their session, whatever table they name."
    ),
    action="Remove it from the configuration and restart the server.",
)

LEFT_OUT_OF_LOG: Final = SECTION.rule(
    "left_out_of_log",
    found=(Severity.BLOCKING,),
    meaning="`binlog_do_db` or `binlog_ignore_db` leaves the table's changes, or our watermarks, out of the log.",
    remedy="Remove the filter, or exclude the table.",
)

WATERMARKS_FILTERED: Final = LEFT_OUT_OF_LOG.worded(
    "{name} keeps watermarks out of the log.",
    action="Remove the filter, or name a table of another database.",
    location="source.watermark_table",
)

TABLE_FILTERED: Final = LEFT_OUT_OF_LOG.worded(
    "{name} excludes its changes from the server's log.",
    action="Remove {name} from the server's configuration and restart it, or exclude the table.",
)

LEFT_OUT_OF_REPLICA: Final = SECTION.rule(
    "left_out_of_replica",
    found=(Severity.BLOCKING, Severity.WARNING, Severity.NOTICE),
    meaning="The server is a replica whose filters may leave changes of the table out.",
    remedy="Clear the filter, name another server, or exclude the table.",
    text="The server is a replica, and {name} may keep changes of the table from reaching it.",
    action="{clear_filter} -- and name a server that has the table whole, or exclude it",
)

VIRTUAL_COLUMN: Final = SECTION.rule(
    "virtual_column",
    raises=(TableError,),
    found=(Severity.BLOCKING,),
    meaning=("The value of a VIRTUAL column may depend on the session that reads it, so that log and snapshot differ."),
    remedy="Make it STORED (drop and add it), or exclude the table; then a new snapshot of it.",
    text=(
        "Its virtual column {name} may depend on the session that reads it: AS ({expression}). The log may have "
        "another value than a SELECT."
    ),
    action=(
        "Make it STORED: ALTER TABLE {table_name} DROP COLUMN {name_2}, ADD COLUMN {name_2} {type_} AS (…) "
        "STORED; or exclude the table."
    ),
)

AMBIGUOUS_KEY: Final = SECTION.rule(
    "ambiguous_key",
    raises=(UnsupportedTypeError,),
    meaning=(
        "Values of a key have bytes that their character set does not define, or that read as another value: two "
        "keys would become one."
    ),
    remedy="Fix the values, or convert the table to utf8mb4; then a new snapshot of it.",
    text=(
        "Column {column}: {count} of {total} values of the key have bytes that their character set does not "
        "define, or the same text as another value. Two keys would become one."
    ),
    action=(
        "Fix the values, or ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4, then run `replicator snapshot NAME "
        "TABLE`; or exclude the table."
    ),
)

UNLOGGED_CASCADE: Final = SECTION.rule(
    "unlogged_cascade",
    found=(Severity.BLOCKING, Severity.WARNING, Severity.NOTICE),
    meaning="A foreign key changes the table without a trace in the log.",
    remedy="Drop the key, exclude the table, or `source.foreign_keys: resnapshot` (or `warn`).",
    text="Its foreign key {name} to {parent} changes it by {rules}, which {name_2} does not log{then}",
    action=(
        "ALTER TABLE {table_name} DROP FOREIGN KEY {name_3}; -- or exclude the table, or set "
        "source.foreign_keys: resnapshot (or warn)"
    ),
)

INVALID_START: Final = SECTION.rule(
    "invalid_start",
    raises=(ConfigError,),
    meaning=(
        "`source.start_at` is not a GTID set of this server, or (without GTIDs) not a log position where a "
        "transaction ended."
    ),
    remedy="Correct it.",
)

START_NOT_A_SET: Final = INVALID_START.worded("source.start_at is not a {names} of {name}: {error}.")

START_NOT_A_POSITION: Final = INVALID_START.worded("source.start_at is not a log position of {name}: {message}")

TLS_UNTRUSTED: Final = SECTION.rule(
    "tls_untrusted",
    raises=(AccessDeniedError,),
    meaning="The server's certificate is not signed by a trusted authority.",
    remedy="`source.tls_ca`, or another mode under `source.tls`.",
    text="{message}",
    action=("Set `source.tls_ca` to the authority of the server's certificate, or choose another `source.tls`."),
)

SOURCE_LAGS: Final = SECTION.rule(
    "source_lags",
    raises=(SourceLagsError,),
    meaning=(
        "Another server than before answers, and it has not executed everything that was captured. Replicator "
        "waits for it until `retry.give_up_after`; then it is a `LogGapError`."
    ),
    remedy="Wait, or name a server that has. If none has: a new log position.",
    text=("The server {server} has not executed {missing}, which {server_2} had: it lags, or has another history."),
    action=("Name a server that has caught up; if none has these transactions: " + RESTART_ACTION),
)

TLS_REFUSED: Final = SECTION.rule(
    "tls_refused",
    raises=(SourceUnavailableError,),
    meaning="The server offers no TLS, or none that we accept.",
    remedy="Switch it on there, or another mode under `source.tls`.",
    text="{message}",
)

SERVER_ID_TAKEN: Final = SECTION.rule(
    "server_id_taken",
    raises=(SourceUnavailableError,),
    meaning="Another reader of the log uses our server id. The next attempt draws another one.",
    remedy="Nothing.",
    text="{message}",
)

TRANSACTION_CUT: Final = SECTION.rule(
    "transaction_cut",
    raises=(SourceUnavailableError,),
    meaning="The server went down while it wrote a transaction to its log.",
    remedy="Nothing.",
    text=("The log ended inside the transaction {id}, which never committed; what was read of it is dropped."),
)

LOG_INCIDENT: Final = SECTION.rule(
    "log_incident",
    raises=(LogGapError,),
    meaning="The server reports that changes are missing from its log.",
    remedy="A new log position.",
    text="The server says that changes are missing from its log (an INCIDENT event).",
    action=RESTART_ACTION,
)

OTHER_FLAVOR: Final = SECTION.rule(
    "other_flavor",
    raises=(LogGapError,),
    meaning="The source was MySQL and is MariaDB now, or the other way round.",
    remedy="A new log position.",
    text="The source was {name} and is {name_2} now.",
    action=RESTART_ACTION,
)

UNKNOWN_EVENT: Final = SECTION.rule(
    "unknown_event",
    raises=(FatalError,),
    meaning="The log has an unknown event.",
    remedy="Switch the new feature off, or report it.",
    text="The log has an event of type {sort}, which is unknown.",
    action="Report the server's version. If a new feature writes such events, switch it off.",
)

CORRUPT_BINLOG_EVENT: Final = SECTION.rule(
    "corrupt_binlog_event",
    raises=(CorruptStreamError,),
    meaning="An event's checksum is wrong, or its content does not match its type.",
    remedy="`mysqlbinlog --verify-binlog-checksum` on the server; if its log is sound, report it.",
)

EVENT_MALFORMED: Final = CORRUPT_BINLOG_EVENT.worded(
    "{message}",
    action=(
        "Check the source's binlog with mysqlbinlog --verify-binlog-checksum; if it is sound, report this as a bug."
    ),
)

DUMP_MALFORMED: Final = CORRUPT_BINLOG_EVENT.worded(
    "Reading the log of {server}: {what}.",
    action="Check the source's binlog with mysqlbinlog --verify-binlog-checksum, and the network between.",
)

PREPARED_BEFORE_START: Final = SECTION.rule(
    "prepared_before_start",
    found=(Severity.WARNING,),
    meaning=(
        "XA transactions are prepared. When one is committed that was prepared before the log was first read, "
        "its changes are unknown, and every table gets a new snapshot in place."
    ),
    remedy="Before the first start, commit them or roll them back; the message has the statement.",
    text=(
        "{fact} prepared: {shown}. When one is committed that was prepared before the log was first read, its "
        "changes are unknown, and every table gets a new snapshot."
    ),
    action="Before the first start: XA COMMIT {name}; or XA ROLLBACK {name};{fact_2}",
    location="XA RECOVER",
)

TRANSACTION_TOO_LARGE: Final = SECTION.rule(
    "transaction_too_large",
    raises=(FatalError, TableError),
    meaning=(
        "A compressed event of the log is larger than `source.transaction_bytes_max` once it is uncompressed; "
        "the message has its size. The table of its rows fails, the others continue."
    ),
    remedy="Raise it; then a new snapshot of the table.",
)

EVENT_UNCOMPRESSED_TOO_LARGE: Final = TRANSACTION_TOO_LARGE.worded(
    "{what} would become {size} bytes, more than source.transaction_bytes_max ({size_max}).",
    action="Raise source.transaction_bytes_max.",
)

ROWS_UNCOMPRESSED_TOO_LARGE: Final = TRANSACTION_TOO_LARGE.worded(
    "{message}", action="{step} Then run `replicator snapshot NAME TABLE`."
)

ROW_METADATA_MISSING: Final = SECTION.rule(
    "row_metadata_missing",
    raises=(TableError,),
    meaning="The log was written without `binlog_row_metadata = FULL`.",
    remedy="Set it; then a new snapshot of the table.",
    text="The log was written without the names of the columns.",
    action="SET GLOBAL binlog_row_metadata = 'FULL'; then run `replicator snapshot NAME TABLE`.",
)

ROW_IMAGE_NOT_FULL: Final = SECTION.rule(
    "row_image_not_full",
    raises=(TableError,),
    meaning="A session wrote incomplete row images.",
    remedy=(
        "Remove `SET SESSION binlog_row_image` from the application, or `SET GLOBAL binlog_row_image = FULL`; "
        "then a new snapshot of the table."
    ),
    text="A row image does not hold all columns.",
    action=(
        "Remove what sets it: the session that wrote (SET SESSION binlog_row_image), or for all (SET GLOBAL "
        "binlog_row_image = FULL). Then run `replicator snapshot NAME TABLE`. If it is FULL and the table has "
        "generated columns, the server leaves these out: exclude the table (docs/sources/mysql.md, Limits)."
    ),
)

UNSUPPORTED_ROW_EVENT: Final = SECTION.rule(
    "unsupported_row_event",
    raises=(TableError,),
    meaning="A session wrote JSON as differences.",
    remedy=(
        "Remove `SET SESSION binlog_row_value_options` from the application, or empty the global setting; then a "
        "new snapshot of the table."
    ),
    text="An update came as differences of JSON documents, which do not hold the whole row.",
    action=(
        "Remove PARTIAL_JSON where it is set: by the session that wrote (SET SESSION binlog_row_value_options), "
        "or for all (SET GLOBAL binlog_row_value_options = ''). Then run `replicator snapshot NAME TABLE`."
    ),
)

ROW_EVENT_TOO_LARGE: Final = SECTION.rule(
    "row_event_too_large",
    raises=(TableError,),
    meaning="One rows event has more than can be decoded at once.",
    remedy="Lower `binlog_row_event_max_size`; then a new snapshot of the table.",
    text="Rows events of {size} bytes are more than can be decoded at once.",
    action=("Lower binlog_row_event_max_size, then run `replicator snapshot NAME TABLE`; or exclude the table."),
)

SCHEMA_MISMATCH: Final = SECTION.rule(
    "schema_mismatch",
    raises=(SchemaConflictError,),
    meaning="Log and catalogue disagree on a column.",
    remedy="A new snapshot of the table.",
    text="Column {name} is {sort} ({arrow}) in the log and {sort_2} ({arrow_2}) in the catalogue.",
    action="Run `replicator snapshot NAME TABLE`.",
)

STATEMENT_FORMAT: Final = SECTION.rule(
    "statement_format",
    raises=(TableError,),
    meaning=(
        "The log has a statement in place of rows: a session set `binlog_format`. The tables that it can have "
        "changed through views, triggers, routines and foreign keys fail; every replicated table if that cannot "
        'be proven (`docs/sources/mysql.md`, "Statements in place of rows").'
    ),
    remedy="Remove `SET SESSION binlog_format` from the application; then a new snapshot of the table.",
    text=("The log has a statement instead of the rows that it changed; these may be rows of this table: {statement}"),
    action=(
        "Remove what sets it: the session that wrote (SET SESSION binlog_format), or for all (SET GLOBAL "
        "binlog_format = 'ROW'). Then run `replicator snapshot NAME TABLE`."
    ),
)

PRIVILEGE_MISSING: Final = sources.PRIVILEGE_MISSING.worded(
    "The account {user} lacks {option}.", location="source.user", sql=("GRANT {option} ON *.* TO {account_of};",)
)

LOG_RETENTION: Final = sources.LOG_RETENTION.worded(
    "The server keeps its log for {seconds:.1f} days; after a longer pause the position is lost.",
    location="binlog_expire_logs_seconds",
)

SERVER_TOO_OLD: Final = sources.SERVER_TOO_OLD.worded(
    "The server is {name}; {oldest} or later is needed.", action="Upgrade the server.", location="source.host"
)

PRIVILEGE_EXCESS: Final = sources.PRIVILEGE_EXCESS.worded(
    "The account {user} has more privileges than needed on every database: {excess}.",
    action="Use a separate account for Replicator.",
    location="source.user",
)

TABLE_MISSING: Final = tables.TABLE_MISSING.worded(
    "There is no such table, or the account may not see it.",
    action="Exclude it, or GRANT SELECT ON {table_name} to the account.",
)

TABLE_HIDDEN_0: Final = sources.SELECT_MISSING.worded(
    HIDDEN, sql=("GRANT SELECT ON {table_name} TO {account};",), is_access=True
)

TABLE_HIDDEN_1: Final = sources.SELECT_MISSING.worded(HIDDEN, action="GRANT SELECT ON {table_name} to the account.")

COLUMNS_HIDDEN: Final = sources.SELECT_MISSING.worded(
    "{what} by the account {user}; the log has all its columns.",
    sql=("GRANT SELECT ON {table_name} TO {account_of};",),
    is_access=True,
)

UNKNOWN_TYPE: Final = tables.UNSUPPORTED_TYPE.worded(
    "Its column {name} has the type {column_type}, which is unknown.",
    action="Exclude the table, or change the column's type.",
)

UNKNOWN_TYPE_IN_LOG: Final = tables.UNSUPPORTED_TYPE.worded(
    "A column's type in the log is unknown, so the lengths of its values are unknown.",
    action="Drop the column, then run `replicator snapshot NAME TABLE`; or exclude the table.",
)

TYPE_NOT_TOLD: Final = tables.UNSUPPORTED_TYPE.worded(
    "Column {name} {what}.",
    action="Set binlog_row_metadata=FULL, then run `replicator snapshot NAME TABLE`; or exclude the table.",
)

OLD_TIMES: Final = tables.UNSUPPORTED_TYPE.worded(
    ("Column {name} has the form that times had before mysql56_temporal_format, whose length the log does not tell."),
    action=(
        "SET GLOBAL mysql56_temporal_format=ON, run ALTER TABLE … FORCE, then run `replicator snapshot NAME TABLE`."
    ),
)

NO_KEY: Final = sources.NO_KEY.worded(
    (
        "It has no primary key, and no unique key over columns that are all NOT NULL: it is replicated as a "
        "multiset of rows, and its snapshot is one statement."
    ),
    action="ALTER TABLE {name} ADD PRIMARY KEY (…);",
    severity=Severity.WARNING,
)

VALUES_DO_NOT_FIT: Final = sources.UNREPRESENTABLE_VALUE.worded(
    "Column {name}: {unheld} of {count} values of type {source_type} cannot be held as {type}.",
    action=(
        "Fix the values, or set `unrepresentable: null` if they may become NULL; then run `replicator snapshot "
        "NAME TABLE`."
    ),
)

INVALID_TEXT: Final = sources.UNREPRESENTABLE_VALUE.worded(
    "Column {name}: {lost} of {count} values are invalid text in their character set.",
    action="Fix the values, exclude the table, or set `source.unrepresentable: null`.",
)

IMPOSSIBLE_DATES: Final = sources.UNREPRESENTABLE_VALUE.worded(
    "Column {name}: {lost} of {count} values are zero, partial or impossible dates.",
    action="Fix the values, exclude the table, or set `source.unrepresentable: null`.",
)

INVALID_VALUES: Final = sources.UNREPRESENTABLE_VALUE.worded(
    ("Column {name}: {count} of {total} values are impossible dates, or invalid text in their character set."),
    action="Fix the values, exclude the table, or set `source.unrepresentable: null`.",
)

INVALID_BYTES: Final = tables.CORRUPT_ROWS.worded(
    "Column {name} holds bytes that are not a valid {source_type} ({error_type}).",
    action=("Run `replicator snapshot NAME TABLE`; if it fails again, exclude the table and report its CREATE TABLE."),
)

ROWS_NOT_READABLE: Final = tables.CORRUPT_ROWS.worded(
    "{message}",
    action=("Run `replicator snapshot NAME TABLE`; if it fails again, exclude the table and report its CREATE TABLE."),
)

ROWS_DO_NOT_MATCH: Final = tables.CORRUPT_ROWS.worded(
    "Column {name}: the server's rows do not match their types ({error_type}).",
    action=("Run `replicator snapshot NAME TABLE`; if it fails again, exclude the table and report its CREATE TABLE."),
)

COLUMNS_NOT_READABLE: Final = tables.CORRUPT_ROWS.worded(
    "What the log says of its columns cannot be read ({error_type}: {error}).",
    action="Exclude the table, and report its CREATE TABLE.",
)

ANOTHER_SERVER: Final = sources.ANOTHER_SERVER.worded(
    "The connection reached another server: {name}. Before, it was {name_2}.",
    action="Set source.host to one server. A proxy must not spread connections over several servers.",
)

STATEMENT_FAILED_FOR_TABLE: Final = sources.SOURCE_ERROR.worded("{message}", action="Fix it on the server. {then}")

STATEMENT_FAILED: Final = sources.SOURCE_ERROR.worded("{message}")

ACCESS_DENIED: Final = sources.ACCESS_DENIED.worded("{message}")

TABLE_CHANGED: Final = sources.TABLE_CHANGED.worded("{message}")

CONNECTION_LOST: Final = sources.SOURCE_UNAVAILABLE.worded("{message}")

DUMP_CLOSED: Final = sources.SOURCE_UNAVAILABLE.worded("Reading the log: the connection is closed.")

DUMP_ENDED: Final = sources.SOURCE_UNAVAILABLE.worded(
    "The server {server} ended the reading of its log. It does so when another reader uses the same server id."
)

DUMP_FAILED: Final = sources.SOURCE_UNAVAILABLE.worded("Reading the log of {server}: {facts}")

POSITION_UNKNOWN: Final = sources.OTHER_HISTORY.worded("{message}", action=RESTART_ACTION)

OTHER_LINEAGE: Final = sources.OTHER_HISTORY.worded(
    "The server's history is not the one that was read: {what}.", action=RESTART_ACTION
)

LOG_NOT_SENT: Final = sources.LOG_REMOVED.worded("{message}", action=RESTART_ACTION)

FILE_PURGED: Final = sources.LOG_REMOVED.worded(
    "The server has purged {file}, which was not read to its end; its log begins with {first}.", action=RESTART_ACTION
)

TRANSACTIONS_PURGED: Final = sources.LOG_REMOVED.worded(
    "The server has purged transactions that were not read: {lost}.", action=RESTART_ACTION
)

NO_QUIET_MOMENT: Final = sources.NO_QUIET_MOMENT.worded(
    (
        "It has no key and is written all the time. Each of {snapshot_tries} reads met a change that was being "
        "committed. Without GTIDs it is unknown whether a read sees such a change."
    ),
    action=("Run `replicator snapshot NAME TABLE` at a quieter time; or give the table a key, or switch GTIDs on."),
)

STATEMENT_IN_LOG: Final = sources.DDL_NOT_UNDERSTOOD.worded(
    "The log has a statement that was not understood and may be about this table: {statement}",
    action=("Run `replicator ddl accept NAME TABLE`: the target follows to the columns that the table has now."),
)

STATEMENT_NOT_PARSED: Final = sources.DDL_NOT_UNDERSTOOD.worded(
    "This statement would not be understood, and the table would fail: {said}",
    action=(
        "Write it in other words, or in several statements; or plan for `replicator ddl accept NAME TABLE` after it."
    ),
)

STATEMENT_WITHOUT_TABLE: Final = sources.DDL_NOT_UNDERSTOOD.worded("It defines no table: {shown}")

STATEMENT_WITHOUT_DATABASE: Final = sources.DDL_NOT_UNDERSTOOD.worded(
    "It names {named} without a database, and {count} databases have all of them: {shown}",
    action="Write DATABASE.TABLE.",
)

SCHEMA_CHANGED: Final = tables.SCHEMA_CHANGED.worded(
    "Its columns changed between XA PREPARE and XA COMMIT of a transaction with rows of it.",
    action=("Run `replicator ddl accept NAME TABLE`: the target follows to the columns that the table has now."),
)

CORRUPT_OFFSET: Final = sources.CORRUPT_OFFSET.worded("{offset} is not an offset of a MySQL source.")


SECTION.note(commands.PLAN_LOG_SHORT, remedy="MySQL: `binlog_expire_logs_seconds`.")

SECTION.note(
    tables.CURSOR_STUCK,
    meaning="MySQL: several values of its key are the same text in UTF-8.",
    remedy="MySQL: or convert the key to utf8mb4.",
)

SECTION.note(sources.SERVER_TOO_OLD, meaning="MySQL: older than 8.0; MariaDB: older than 10.5.")

SECTION.note(
    sources.NO_QUIET_MOMENT, meaning="MySQL, without GTIDs: it is written all the time.", remedy="MySQL: or GTIDs."
)
