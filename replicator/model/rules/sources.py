"""Rules about sources in general."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    AccessDeniedError,
    ConfigError,
    CorruptStreamError,
    CurableError,
    FatalError,
    LogGapError,
    OffsetExpiredError,
    SchemaConflictError,
    Severity,
    SourceUnavailableError,
    TableError,
    UnsupportedTypeError,
)
from replicator.model.rules import Section

SECTION: Final = Section(
    "Sources in general", "Several sources have these codes. They mean the same, whatever the server calls the cause."
)

SERVER_TOO_OLD: Final = SECTION.rule(
    "server_too_old",
    found=(Severity.BLOCKING,),
    meaning="The server is older than Replicator supports.",
    remedy="Upgrade.",
)

ACCESS_DENIED: Final = SECTION.rule(
    "access_denied",
    raises=(AccessDeniedError, TableError),
    meaning=(
        "A credential is refused or a privilege is missing. If SELECT on one table was revoked, or its row-level "
        "security was switched on, only that table fails."
    ),
    remedy="Check the account, or grant what the message names. Then run again; one table continues by itself.",
)

LOG_REMOVED: Final = SECTION.rule(
    "log_removed",
    raises=(OffsetExpiredError,),
    meaning="The server has removed the log behind our position.",
    remedy="A new log position.",
)

CORRUPT_OFFSET: Final = SECTION.rule(
    "corrupt_offset",
    raises=(CorruptStreamError,),
    meaning="The recorded position is not one of the source's log.",
    remedy="Restore the state store, or a new log position.",
)

SOURCE_UNAVAILABLE: Final = SECTION.rule(
    "source_unavailable",
    raises=(SourceUnavailableError,),
    meaning="The server cannot be reached, refuses connections, or closed one; the message quotes the server.",
    remedy="If it did not answer: check server, host and port.",
)

ANOTHER_SERVER: Final = SECTION.rule(
    "another_server",
    raises=(SourceUnavailableError,),
    meaning=(
        "The host leads to another server than a moment ago. Replicator opens the log again, and compares the "
        "positions."
    ),
    remedy="Nothing after a restart or a failover. A proxy must not spread our connections over several servers.",
)

SOURCE_CLOSED: Final = SECTION.rule(
    "source_closed",
    raises=(SourceUnavailableError,),
    meaning="The plugin was used after it was closed; a restart fixes it.",
    remedy="Nothing; report it if it happens again.",
)

SOURCE_READ_ONLY: Final = SECTION.rule(
    "source_read_only",
    raises=(SourceUnavailableError,),
    meaning="The server takes no writes: a standby, or read-only.",
    remedy="Name the primary.",
)

SOURCE_OUT_OF_RESOURCES: Final = SECTION.rule(
    "source_out_of_resources",
    raises=(SourceUnavailableError,),
    meaning="The server has no disk space or memory left for a statement.",
    remedy="Read the server's message; free space or memory there.",
)

SOURCE_ERROR: Final = SECTION.rule(
    "source_error",
    raises=(FatalError, TableError),
    meaning=(
        "The server refused a statement for a reason without a code of its own; the message has its text and "
        "SQLSTATE. While reading the log, also the transaction and the position; while reading one table, only "
        "that table fails."
    ),
    remedy="Read the message; report it if it is ours.",
)

LOCK_TIMEOUT: Final = SECTION.rule(
    "lock_timeout",
    raises=(SourceUnavailableError,),
    meaning="A lock was not free within `source.lock_timeout`.",
    remedy="Nothing; it is tried again.",
)

STATEMENT_TIMEOUT: Final = SECTION.rule(
    "statement_timeout",
    raises=(SourceUnavailableError,),
    meaning="A statement took longer than `source.statement_timeout`.",
    remedy="Lower `snapshot.chunk_rows`, or raise the time-out.",
)

DEADLOCK: Final = SECTION.rule(
    "deadlock",
    raises=(SourceUnavailableError,),
    meaning="The server ended our statement to solve a deadlock.",
    remedy="Nothing.",
)

GAVE_WAY: Final = SECTION.rule(
    "gave_way",
    raises=(SourceUnavailableError,),
    meaning="A read ended because another session waited for its lock.",
    remedy="Nothing; it is tried again.",
)

SELECT_MISSING: Final = SECTION.rule(
    "select_missing",
    raises=(AccessDeniedError, CurableError, SourceUnavailableError),
    found=(Severity.BLOCKING,),
    meaning=(
        "The role may not read the table or some columns. If that is so for all tables while the replicator "
        "runs, it retries and no table fails."
    ),
    remedy="`GRANT SELECT ON …;`",
)

GENERATED_COLUMNS: Final = SECTION.rule(
    "generated_columns",
    found=(Severity.NOTICE,),
    meaning="Generated columns are left out.",
    remedy="Nothing.",
)

NO_KEY: Final = SECTION.rule(
    "no_key",
    found=(Severity.NOTICE,),
    meaning="Replicated as a multiset of rows, snapshot in one statement.",
    remedy="Give it a key if it is large.",
)

TABLE_CHANGED: Final = SECTION.rule(
    "table_changed",
    raises=(SchemaConflictError,),
    meaning="The table, or a column, no longer existed when it was read.",
    remedy="A new snapshot.",
)

COLUMN_GONE: Final = SECTION.rule(
    "column_gone",
    raises=(SchemaConflictError,),
    meaning="A column no longer existed when a chunk was read.",
    remedy="A new snapshot.",
)

COLUMN_TYPE_CHANGED: Final = SECTION.rule(
    "column_type_changed",
    raises=(SchemaConflictError,),
    meaning="A column's type changed.",
    remedy="A new snapshot.",
)

KEY_CHANGED: Final = SECTION.rule(
    "key_changed",
    raises=(SchemaConflictError,),
    meaning="The table's key changed.",
    remedy="A new snapshot.",
)

UNREPRESENTABLE_VALUE: Final = SECTION.rule(
    "unrepresentable_value",
    raises=(UnsupportedTypeError,),
    meaning="Values that their Arrow type cannot hold, such as an infinite date. The message says what fits.",
    remedy=(
        "Find the rows with the statement in the message, fix them and take a new snapshot; or set "
        "`source.unrepresentable: null`."
    ),
)

NO_QUIET_MOMENT: Final = SECTION.rule(
    "no_quiet_moment",
    raises=(SourceUnavailableError, TableError),
    meaning="A table without a key is written to, so it could not be read at a known position.",
    remedy="A new snapshot of it while it is written less; or a key.",
)

LOG_RETENTION: Final = SECTION.rule(
    "log_retention",
    found=(Severity.NOTICE, Severity.WARNING),
    meaning="How long the server keeps its log.",
    remedy="Make it longer than the longest pause.",
)

PRIVILEGE_MISSING: Final = SECTION.rule(
    "privilege_missing",
    found=(Severity.BLOCKING,),
    meaning="The account lacks a privilege.",
    remedy="The GRANT in the message.",
)

PRIVILEGE_EXCESS: Final = SECTION.rule(
    "privilege_excess",
    found=(Severity.WARNING,),
    meaning="The account has more privileges than needed.",
    remedy="Use a separate account.",
)

SOURCE_SHUTDOWN: Final = SECTION.rule(
    "source_shutdown",
    raises=(SourceUnavailableError,),
    meaning="The server shuts down.",
    remedy="Nothing.",
)

TOO_MANY_CONNECTIONS: Final = SECTION.rule(
    "too_many_connections",
    raises=(SourceUnavailableError,),
    meaning="The server takes no more connections.",
    remedy="Raise `max_connections`; the Replicator needs five.",
)

CONNECTION_KILLED: Final = SECTION.rule(
    "connection_killed",
    raises=(SourceUnavailableError,),
    meaning="Somebody ended our connection.",
    remedy="Nothing.",
)

STATEMENT_INTERRUPTED: Final = SECTION.rule(
    "statement_interrupted",
    raises=(SourceUnavailableError,),
    meaning="Somebody ended our statement.",
    remedy="Nothing; it is run again.",
)

TABLE_CHANGED_UNDER_SNAPSHOT: Final = SECTION.rule(
    "table_changed_under_snapshot",
    raises=(SourceUnavailableError,),
    meaning="The table was rebuilt or altered while it, or its tracked changes, were read.",
    remedy="Nothing; it is read again.",
)

OTHER_HISTORY: Final = SECTION.rule(
    "other_history",
    raises=(LogGapError,),
    meaning="The server does not know the last transaction that was captured, or its log is another one.",
    remedy="A new log position.",
)

DDL_NOT_UNDERSTOOD: Final = SECTION.rule(
    "ddl_not_understood",
    raises=(ConfigError, SchemaConflictError, TableError),
    meaning=(
        "A statement in the log may be about the table and was not understood; the message shows it, without its "
        "values. Or the statement of `plan --ddl` is not understood, or does not fit the table."
    ),
    remedy=(
        "`replicator ddl accept NAME TABLE`: the target follows to what the table is now, with a new snapshot. "
        "Report the statement. Of `plan --ddl`: check its text."
    ),
)

KEY_NEEDED: Final = SECTION.rule(
    "key_needed",
    raises=(CurableError,),
    found=(Severity.BLOCKING,),
    meaning=(
        "A table without a usable primary key has large values. The log leaves these out of updates, so the "
        "updated row cannot be found."
    ),
    remedy="Add a primary key, or exclude the table.",
)

OFFSET_EXPIRED: Final = SECTION.rule(
    "offset_expired",
    raises=(OffsetExpiredError,),
    meaning=(
        "The source no longer has its log after our position, or a table of changes lacks rows that were not read."
    ),
    remedy="A new log position. To keep changes for longer, see the message.",
)
