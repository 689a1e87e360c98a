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

SERVER_SETTING: Final = SECTION.rule(
    "server_setting",
    found=(Severity.BLOCKING,),
    meaning="A server variable has a value with which the log cannot be replicated correctly.",
    remedy="The statement in the message.",
)

LOG_BIN_OFF: Final = SECTION.rule(
    "log_bin_off",
    raises=(ConfigError,),
    meaning="The server writes no binary log.",
    remedy="Set `log_bin` in its configuration and restart it.",
)

GTID_OFF: Final = SECTION.rule(
    "gtid_off",
    raises=(LogGapError,),
    meaning=(
        "The replicator began with GTIDs, and `gtid_mode` is not ON, or transactions without GTIDs are in the log."
    ),
    remedy="Set it to ON again; if something was committed without GTIDs meanwhile, a new log position.",
)

GTID_MODE_BETWEEN: Final = SECTION.rule(
    "gtid_mode_between",
    raises=(ConfigError,),
    meaning="`gtid_mode` is `OFF_PERMISSIVE` or `ON_PERMISSIVE`: replication cannot start at a new log position.",
    remedy="Finish the change, to ON or to OFF.",
)

NO_GTIDS: Final = SECTION.rule(
    "no_gtids",
    found=(Severity.NOTICE,),
    meaning="MySQL without GTIDs: log positions are valid on this server only, and watermarks are written.",
    remedy="Nothing, or switch GTIDs on.",
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

COMMITS_UNORDERED: Final = SECTION.rule(
    "commits_unordered",
    raises=(SourceUnavailableError,),
    meaning="MySQL without GTIDs: `binlog_order_commits` is off, so it is not known what a read saw.",
    remedy="`SET GLOBAL binlog_order_commits = ON`, or switch GTIDs on.",
)

OTHER_SERVER: Final = SECTION.rule(
    "other_server",
    raises=(LogGapError,),
    meaning="MySQL without GTIDs: this is not the server that was read before.",
    remedy="Name the server that was read, or a new log position.",
)

LOG_MAY_BE_LOST: Final = SECTION.rule(
    "log_may_be_lost",
    found=(Severity.BLOCKING,),
    meaning=(
        "`sync_binlog` or `innodb_flush_log_at_trx_commit` is not 1: a crash of the server's operating system "
        "could lose what was already replicated."
    ),
    remedy="Set them to 1, or accept it with `source.accept_log_loss: true`.",
)

REPLICA_DOES_NOT_LOG: Final = SECTION.rule(
    "replica_does_not_log",
    found=(Severity.BLOCKING,),
    meaning="The server does not log what it replicates from another one.",
    remedy="`log_replica_updates` (MariaDB: `log_slave_updates`), or name the primary.",
)

AURORA_READER: Final = SECTION.rule(
    "aurora_reader",
    found=(Severity.BLOCKING,),
    meaning="A reader of Aurora has no log.",
    remedy="Name the writer endpoint.",
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

SYSTEM_VERSIONED: Final = SECTION.rule(
    "system_versioned",
    raises=(TableError,),
    found=(Severity.BLOCKING,),
    meaning="A system-versioned table's log mixes past and current rows.",
    remedy="Exclude it, or drop the versioning; then a new snapshot of it.",
)

ENGINE_NOT_TRANSACTIONAL: Final = SECTION.rule(
    "engine_not_transactional",
    found=(Severity.BLOCKING,),
    meaning="A read of such a table cannot be matched with the log.",
    remedy="`ALTER TABLE … ENGINE = InnoDB;`",
)

LOG_FILTER: Final = SECTION.rule(
    "log_filter",
    found=(Severity.WARNING,),
    meaning=(
        "`binlog_do_db` or `binlog_ignore_db` is set: statements about tables are left out of the log by their "
        "session's database."
    ),
    remedy="Remove it.",
)

LEFT_OUT_OF_LOG: Final = SECTION.rule(
    "left_out_of_log",
    found=(Severity.BLOCKING,),
    meaning="`binlog_do_db` or `binlog_ignore_db` leaves the table's changes, or our watermarks, out of the log.",
    remedy="Remove the filter, or exclude the table.",
)

LEFT_OUT_OF_REPLICA: Final = SECTION.rule(
    "left_out_of_replica",
    found=(Severity.BLOCKING, Severity.WARNING, Severity.NOTICE),
    meaning="The server is a replica whose filters may leave changes of the table out.",
    remedy="Clear the filter, name another server, or exclude the table.",
)

VIRTUAL_COLUMN: Final = SECTION.rule(
    "virtual_column",
    raises=(TableError,),
    found=(Severity.BLOCKING,),
    meaning=("The value of a VIRTUAL column may depend on the session that reads it, so that log and snapshot differ."),
    remedy="Make it STORED (drop and add it), or exclude the table; then a new snapshot of it.",
)

AMBIGUOUS_KEY: Final = SECTION.rule(
    "ambiguous_key",
    raises=(UnsupportedTypeError,),
    meaning=(
        "Values of a key have bytes that their character set does not define, or that read as another value: two "
        "keys would become one."
    ),
    remedy="Fix the values, or convert the table to utf8mb4; then a new snapshot of it.",
)

UNLOGGED_CASCADE: Final = SECTION.rule(
    "unlogged_cascade",
    found=(Severity.BLOCKING, Severity.WARNING, Severity.NOTICE),
    meaning="A foreign key changes the table without a trace in the log.",
    remedy="Drop the key, exclude the table, or `source.foreign_keys: resnapshot` (or `warn`).",
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

TLS_UNTRUSTED: Final = SECTION.rule(
    "tls_untrusted",
    raises=(AccessDeniedError,),
    meaning="The server's certificate is not signed by a trusted authority.",
    remedy="`source.tls_ca`, or another mode under `source.tls`.",
)

SOURCE_LAGS: Final = SECTION.rule(
    "source_lags",
    raises=(SourceLagsError,),
    meaning=(
        "Another server than before answers, and it has not executed everything that was captured. Replicator "
        "waits for it until `retry.give_up_after`; then it is a `LogGapError`."
    ),
    remedy="Wait, or name a server that has. If none has: a new log position.",
)

TLS_REFUSED: Final = SECTION.rule(
    "tls_refused",
    raises=(SourceUnavailableError,),
    meaning="The server offers no TLS, or none that we accept.",
    remedy="Switch it on there, or another mode under `source.tls`.",
)

SERVER_ID_TAKEN: Final = SECTION.rule(
    "server_id_taken",
    raises=(SourceUnavailableError,),
    meaning="Another reader of the log uses our server id. The next attempt draws another one.",
    remedy="Nothing.",
)

TRANSACTION_CUT: Final = SECTION.rule(
    "transaction_cut",
    raises=(SourceUnavailableError,),
    meaning="The server went down while it wrote a transaction to its log.",
    remedy="Nothing.",
)

LOG_INCIDENT: Final = SECTION.rule(
    "log_incident",
    raises=(LogGapError,),
    meaning="The server reports that changes are missing from its log.",
    remedy="A new log position.",
)

OTHER_FLAVOR: Final = SECTION.rule(
    "other_flavor",
    raises=(LogGapError,),
    meaning="The source was MySQL and is MariaDB now, or the other way round.",
    remedy="A new log position.",
)

UNKNOWN_EVENT: Final = SECTION.rule(
    "unknown_event",
    raises=(FatalError,),
    meaning="The log has an unknown event.",
    remedy="Switch the new feature off, or report it.",
)

CORRUPT_BINLOG_EVENT: Final = SECTION.rule(
    "corrupt_binlog_event",
    raises=(CorruptStreamError,),
    meaning="An event's checksum is wrong, or its content does not match its type.",
    remedy="`mysqlbinlog --verify-binlog-checksum` on the server; if its log is sound, report it.",
)

PREPARED_BEFORE_START: Final = SECTION.rule(
    "prepared_before_start",
    found=(Severity.WARNING,),
    meaning=(
        "XA transactions are prepared. When one is committed that was prepared before the log was first read, "
        "its changes are unknown, and every table gets a new snapshot in place."
    ),
    remedy="Before the first start, commit them or roll them back; the message has the statement.",
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

ROW_METADATA_MISSING: Final = SECTION.rule(
    "row_metadata_missing",
    raises=(TableError,),
    meaning="The log was written without `binlog_row_metadata = FULL`.",
    remedy="Set it; then a new snapshot of the table.",
)

ROW_IMAGE_NOT_FULL: Final = SECTION.rule(
    "row_image_not_full",
    raises=(TableError,),
    meaning="A session wrote incomplete row images.",
    remedy=(
        "Remove `SET SESSION binlog_row_image` from the application, or `SET GLOBAL binlog_row_image = FULL`; "
        "then a new snapshot of the table."
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
)

ROW_EVENT_TOO_LARGE: Final = SECTION.rule(
    "row_event_too_large",
    raises=(TableError,),
    meaning="One rows event has more than can be decoded at once.",
    remedy="Lower `binlog_row_event_max_size`; then a new snapshot of the table.",
)

SCHEMA_MISMATCH: Final = SECTION.rule(
    "schema_mismatch",
    raises=(SchemaConflictError,),
    meaning="Log and catalogue disagree on a column.",
    remedy="A new snapshot of the table.",
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
)

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
