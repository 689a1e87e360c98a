"""Every code of this distribution's errors and findings, with its texts."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    ConfigError,
    CorruptStreamError,
    FatalError,
    KeyMissingError,
    LogGapError,
    OffsetExpiredError,
    Severity,
    SourceUnavailableError,
    TableError,
)
from replicator.model.rules import Section, commands, sources, tables

SECTION: Final = Section("PostgreSQL")

NOT_UTF8: Final = SECTION.rule(
    "not_utf8",
    raises=(TableError,),
    found=(Severity.BLOCKING,),
    meaning=(
        "PostgreSQL, in a database with the encoding `SQL_ASCII`: the name of a column, a type or a collation of "
        "the table is not UTF-8, or the publication's row filter."
    ),
    remedy="Rename it, or exclude the table.",
)

SERVER_IS_STANDBY: Final = SECTION.rule(
    "server_is_standby",
    found=(Severity.BLOCKING,),
    meaning="The host is a standby; marks can be written on a primary only.",
    remedy="Name the primary.",
)

WAL_LEVEL_NOT_LOGICAL: Final = SECTION.rule(
    "wal_level_not_logical",
    found=(Severity.BLOCKING,),
    meaning="`wal_level` is not `logical`.",
    remedy="`ALTER SYSTEM SET wal_level = 'logical';`, restart the server.",
)

WAL_KEEP_UNBOUNDED: Final = SECTION.rule(
    "wal_keep_unbounded",
    found=(Severity.NOTICE,),
    meaning="The server keeps its log without a limit while the replicator is down.",
    remedy="Watch *source retains* in the status, or set `max_slot_wal_keep_size`.",
)

WAL_KEEP_BOUNDED: Final = SECTION.rule(
    "wal_keep_bounded",
    found=(Severity.NOTICE,),
    meaning="If the replicator falls behind by more than `max_slot_wal_keep_size`, it loses the slot.",
    remedy="Make sure that it is large enough for the longest pause.",
)

DDL_TRIGGER_MISSING: Final = SECTION.rule(
    "ddl_trigger_missing",
    found=(Severity.NOTICE,),
    meaning=(
        "The optional event trigger is not installed: changes of tables without a change of a row are found "
        "within a minute."
    ),
    remedy="If that is too late, have a superuser run the script that `validate` prints.",
)

CONNECTION_POOLER: Final = SECTION.rule(
    "connection_pooler",
    raises=(ConfigError,),
    meaning=(
        "A connection pooler such as PgBouncer is between Replicator and the server: it refuses a connection as "
        "poolers do, or dropped the settings that the session was opened with."
    ),
    remedy="Set `source.host` and `source.port` to the server itself.",
)

ROLE_LACKS_REPLICATION: Final = SECTION.rule(
    "role_lacks_replication",
    found=(Severity.BLOCKING,),
    meaning="The role has no replication privilege.",
    remedy="`ALTER ROLE … REPLICATION;` (Amazon RDS: `GRANT rds_replication TO …;`).",
)

ROLE_IS_SUPERUSER: Final = SECTION.rule(
    "role_is_superuser",
    found=(Severity.WARNING,),
    meaning="The role has more privileges than needed.",
    remedy="Create one with LOGIN, REPLICATION and SELECT.",
)

REPLICATION_REFUSED: Final = SECTION.rule(
    "replication_refused",
    found=(Severity.BLOCKING,),
    meaning="The server refuses a replication connection.",
    remedy="Allow it in `pg_hba.conf`.",
)

DATABASE_MISSING: Final = SECTION.rule(
    "database_missing",
    raises=(ConfigError,),
    meaning="There is no such database.",
    remedy="Correct `source.database`.",
)

NO_FREE_SLOT: Final = SECTION.rule(
    "no_free_slot",
    found=(Severity.BLOCKING,),
    meaning="Every replication slot is taken.",
    remedy="Drop unused ones, or raise `max_replication_slots`.",
)

NO_FREE_WAL_SENDER: Final = SECTION.rule(
    "no_free_wal_sender",
    found=(Severity.BLOCKING,),
    meaning="Every WAL sender is busy.",
    remedy="Raise `max_wal_senders`.",
)

SLOT_MISSING: Final = SECTION.rule(
    "slot_missing",
    raises=(ConfigError, LogGapError),
    found=(Severity.BLOCKING,),
    meaning="The slot does not exist; once something was captured, changes may be lost.",
    remedy="Create your slot (the message has the SQL); otherwise a new log position.",
)

SLOT_UNUSABLE: Final = SECTION.rule(
    "slot_unusable",
    raises=(ConfigError, LogGapError),
    found=(Severity.BLOCKING,),
    meaning="The slot is of another database or plugin, temporary or physical, or was invalidated.",
    remedy="Name a permanent logical slot that uses `pgoutput`; otherwise a new log position.",
)

SLOT_LOST: Final = SECTION.rule(
    "slot_lost",
    raises=(ConfigError, OffsetExpiredError),
    found=(Severity.BLOCKING,),
    meaning="The server has removed log that the slot needed.",
    remedy="Create your slot again, then a new log position.",
)

SLOT_ACTIVE: Final = SECTION.rule(
    "slot_active",
    raises=(SourceUnavailableError,),
    found=(Severity.WARNING,),
    meaning="Another process reads the slot.",
    remedy=(
        "Stop it: a second replicator of this name, or a reader that was just killed (its slot is released by "
        "itself). A reader of an earlier lease of the same replicator is ended without that."
    ),
)

SLOT_NAME_TAKEN: Final = SECTION.rule(
    "slot_name_taken",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="A slot with the name that we would use exists and is not ours.",
    remedy="Rename the replicator, or drop that slot.",
)

SLOT_AHEAD: Final = SECTION.rule(
    "slot_ahead",
    raises=(LogGapError,),
    meaning=(
        "The slot's position is ahead of what was captured. It was recreated or advanced by somebody else, or "
        "the state store was restored from a backup."
    ),
    remedy=(
        "A new log position. For a restored store: restore the newest one, or `delete NAME --drop-target` and "
        "run the file again."
    ),
)

SLOT_REPLACED: Final = SECTION.rule(
    "slot_replaced",
    raises=(LogGapError,),
    meaning="The slot of this name is of another kind.",
    remedy="Drop it, then a new log position.",
)

OTHER_SYSTEM: Final = SECTION.rule(
    "other_system",
    raises=(LogGapError,),
    meaning="Another server than the one that was captured.",
    remedy="Correct `source.host`; if the server was really replaced: a new log position.",
)

OTHER_TIMELINE: Final = SECTION.rule(
    "other_timeline",
    raises=(LogGapError,),
    meaning="The server's history does not descend from the captured one.",
    remedy="A new log position.",
)

TIMELINE_BEHIND: Final = SECTION.rule(
    "timeline_behind",
    raises=(LogGapError,),
    meaning="A failover took place before what was captured: those changes no longer exist in the source.",
    remedy="A new log position.",
)

LOG_BEHIND: Final = SECTION.rule(
    "log_behind",
    raises=(LogGapError,),
    meaning="The server's log ends before what was captured: its disk was set back to an older state.",
    remedy="A new log position.",
)

SLOT_OR_PUBLICATION_MISSING: Final = SECTION.rule(
    "slot_or_publication_missing",
    raises=(LogGapError,),
    meaning="Slot or publication was dropped, or the publication did not exist yet at this log position.",
    remedy="A new log position.",
)

CORRUPT_STREAM: Final = SECTION.rule(
    "corrupt_stream",
    raises=(CorruptStreamError,),
    meaning=(
        "The server sent what is not the protocol; what cannot be read of one table's rows is `corrupt_rows` instead."
    ),
    remedy="Start again. If it fails at the same position, report it and start at a new log position.",
)

CORRUPT_COPY: Final = SECTION.rule(
    "corrupt_copy",
    raises=(CorruptStreamError,),
    meaning="The server's COPY is malformed.",
    remedy="Start again; report it if it happens again.",
)

PUBLICATION_MISSING: Final = SECTION.rule(
    "publication_missing",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="Your publication does not exist.",
    remedy="Run the SQL of the message.",
)

PUBLICATION_NAME_TAKEN: Final = SECTION.rule(
    "publication_name_taken",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="A publication with the name that we would use covers all tables or schemas, so it is not ours.",
    remedy="Rename the replicator, or drop it.",
)

PUBLICATION_OF_ANOTHER: Final = SECTION.rule(
    "publication_of_another",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="Publication and slot belong to another replicator.",
    remedy="Rename this one; drop both if the other replicator no longer exists.",
)

PUBLICATION_NOT_OWNED: Final = SECTION.rule(
    "publication_not_owned",
    found=(Severity.BLOCKING,),
    meaning="The publication belongs to another role.",
    remedy="Name it in `source.publication`, or grant that role.",
)

MAY_NOT_CREATE_PUBLICATION: Final = SECTION.rule(
    "may_not_create_publication",
    found=(Severity.BLOCKING,),
    meaning="The role may not create a publication.",
    remedy=("Grant CREATE on the database, or make the publication as the owner (`publication_proposed` has the SQL)."),
)

PUBLICATION_PROPOSED: Final = SECTION.rule(
    "publication_proposed",
    found=(Severity.NOTICE,),
    meaning=(
        "The statement with which the owner of the tables creates the publication, where our role may not. It "
        "names the tables that it leaves out and why."
    ),
    remedy="Run it, and name the publication in `source.publication`; or grant what the other findings say.",
)

PUBLICATION_LACKS_OPERATIONS: Final = SECTION.rule(
    "publication_lacks_operations",
    raises=(FatalError,),
    found=(Severity.BLOCKING,),
    meaning="Some of insert, update, delete, truncate are not published.",
    remedy="`ALTER PUBLICATION … SET (publish = 'insert, update, delete, truncate');`",
)

GENERATED_COLUMNS_PUBLISHED: Final = SECTION.rule(
    "generated_columns_published",
    found=(Severity.BLOCKING,),
    meaning="The publication holds the table's generated columns, which snapshots leave out.",
    remedy="`ALTER PUBLICATION … SET (publish_generated_columns = none);`",
)

PUBLICATION_FOR_ALL_TABLES: Final = SECTION.rule(
    "publication_for_all_tables",
    found=(Severity.WARNING,),
    meaning="FOR ALL TABLES makes updates fail on every table without replica identity, new ones too.",
    remedy="List the tables by name.",
)

PARTITIONS_NOT_VIA_ROOT: Final = SECTION.rule(
    "partitions_not_via_root",
    found=(Severity.BLOCKING,),
    meaning="The publication names partitions instead of their root.",
    remedy="`ALTER PUBLICATION … SET (publish_via_partition_root = true);`",
)

TABLE_NOT_OWNED: Final = SECTION.rule(
    "table_not_owned",
    found=(Severity.BLOCKING,),
    meaning="Only its owner can add the table to a publication.",
    remedy=(
        "Grant the owner, or create the publication as the owner (`publication_proposed`); where it exists, add "
        "the table as a superuser."
    ),
)

TABLE_NOT_PUBLISHED: Final = SECTION.rule(
    "table_not_published",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="Your publication does not list a table.",
    remedy="`ALTER PUBLICATION … ADD TABLE …;`",
)

TABLE_NOT_PUBLISHABLE: Final = SECTION.rule(
    "table_not_publishable",
    raises=(ConfigError,),
    meaning=(
        "Tables whose changes a publication cannot carry: without usable identity, partitions, unlogged ones, "
        "and so on. Each has a finding of its own."
    ),
    remedy="`validate` prints the SQL.",
)

ROW_TOO_LARGE: Final = SECTION.rule(
    "row_too_large",
    raises=(FatalError, TableError),
    meaning=(
        "PostgreSQL cannot send a row of 1 GB or more as text (`bytea` takes two characters a byte). In the log "
        "it stops all tables: the message names the transaction, and the table if the server had announced it; "
        "otherwise the table of the change before it."
    ),
    remedy=("Make the value smaller, or exclude the table; then a new log position (log) or a new snapshot (table)."),
)

IDLE_IN_TRANSACTION_TIMEOUT: Final = SECTION.rule(
    "idle_in_transaction_timeout",
    raises=(SourceUnavailableError,),
    meaning="The server ended a transaction that waited.",
    remedy="Nothing; it is tried again.",
)

SERIALIZATION_FAILURE: Final = SECTION.rule(
    "serialization_failure",
    raises=(SourceUnavailableError,),
    meaning="The server asks to try again.",
    remedy="Nothing.",
)

COMMIT_NOT_VISIBLE: Final = SECTION.rule(
    "commit_not_visible",
    raises=(SourceUnavailableError,),
    meaning=(
        "A transaction that altered a table is in the log, and nobody sees its changes yet: its commit waits for "
        "a synchronous standby."
    ),
    remedy="Check the standbys; it is tried again.",
)

NO_PRIMARY_KEY: Final = SECTION.rule(
    "no_primary_key",
    found=(Severity.BLOCKING,),
    meaning="No primary key, replica identity DEFAULT: once published, its updates and deletes would be refused.",
    remedy="Give it a key, or `REPLICA IDENTITY FULL`.",
)

DEFERRABLE_KEY: Final = SECTION.rule(
    "deferrable_key",
    found=(Severity.BLOCKING,),
    meaning="A deferrable key cannot identify rows.",
    remedy="Another unique index as replica identity, or FULL.",
)

REPLICA_IDENTITY_NOTHING: Final = SECTION.rule(
    "replica_identity_nothing",
    found=(Severity.BLOCKING,),
    meaning="Replica identity NOTHING.",
    remedy="Set DEFAULT, an index, or FULL.",
)

REPLICA_IDENTITY_INDEX_MISSING: Final = SECTION.rule(
    "replica_identity_index_missing",
    found=(Severity.BLOCKING,),
    meaning="The index of the replica identity is missing or not valid.",
    remedy="Create it again, or set another identity.",
)

UNUSABLE_KEY_COLUMN: Final = SECTION.rule(
    "unusable_key_column",
    found=(Severity.BLOCKING,),
    meaning="A key column is generated, nullable, not published, or of a type that cannot identify rows.",
    remedy="Another unique index as replica identity, or FULL.",
)

GENERATED_COLUMN_IN_IDENTITY: Final = SECTION.rule(
    "generated_column_in_identity",
    found=(Severity.BLOCKING,),
    meaning="PostgreSQL 18: identity FULL with generated columns makes updates fail once published.",
    remedy="Give it a key.",
)

PARTITION_IDENTITY: Final = SECTION.rule(
    "partition_identity",
    found=(Severity.BLOCKING,),
    meaning="Some partitions do not log the key.",
    remedy="Set their replica identity (the message has the SQL).",
)

IS_PARTITION: Final = SECTION.rule(
    "is_partition",
    found=(Severity.BLOCKING,),
    meaning="A partition cannot be published for itself.",
    remedy="Name its root.",
)

UNLOGGED_TABLE: Final = SECTION.rule(
    "unlogged_table",
    found=(Severity.BLOCKING,),
    meaning="Unlogged: its changes are not in the log.",
    remedy="`ALTER TABLE … SET LOGGED;` or exclude it.",
)

UNLOGGED_PARTITION: Final = SECTION.rule(
    "unlogged_partition",
    found=(Severity.BLOCKING,),
    meaning="Some partitions are unlogged.",
    remedy="`ALTER TABLE … SET LOGGED;`",
)

SCHEMA_USAGE_MISSING: Final = SECTION.rule(
    "schema_usage_missing",
    found=(Severity.BLOCKING,),
    meaning=(
        "The role may not use the schema. If that is so for all tables while the replicator runs, it retries and "
        "no table fails."
    ),
    remedy="`GRANT USAGE ON SCHEMA …;`",
)

ROW_LEVEL_SECURITY: Final = SECTION.rule(
    "row_level_security",
    found=(Severity.BLOCKING,),
    meaning="Policies hide rows from our reads and not from the log.",
    remedy="`ALTER ROLE … BYPASSRLS;`",
)

NO_COLUMNS: Final = SECTION.rule(
    "no_columns",
    found=(Severity.BLOCKING,),
    meaning="It has no column that can be replicated.",
    remedy="Exclude it.",
)

ROW_FILTER_NEEDS_FULL_IDENTITY: Final = SECTION.rule(
    "row_filter_needs_full_identity",
    found=(Severity.BLOCKING,),
    meaning=(
        "If an UPDATE brings a row into the publication's row filter, PostgreSQL sends an INSERT without the "
        "unchanged large values."
    ),
    remedy="`ALTER TABLE … REPLICA IDENTITY FULL;`, or take the filter off.",
)

TYPE_NOT_IMMUTABLE: Final = SECTION.rule(
    "type_not_immutable",
    found=(Severity.WARNING,),
    meaning=(
        "The output function of an extension's type is not marked IMMUTABLE: if a value's text depends on more "
        "than the value, source and target differ unnoticed."
    ),
    remedy="Check the function; mark it IMMUTABLE if it is.",
)

OTHER_ACCESS_METHOD: Final = SECTION.rule(
    "other_access_method",
    found=(Severity.WARNING,),
    meaning=(
        "The table's rows, or a partition's, are kept by an extension's access method, which may not write every "
        "change for logical decoding."
    ),
    remedy="Ask its manual; `ALTER TABLE … SET ACCESS METHOD heap;` if it does not.",
)

ROW_FILTER: Final = SECTION.rule(
    "row_filter",
    found=(Severity.NOTICE,),
    meaning="The publication's row filter applies to the snapshot too.",
    remedy="Nothing.",
)

INHERITANCE: Final = SECTION.rule(
    "inheritance",
    found=(Severity.NOTICE,),
    meaning="Part of an inheritance tree: only its own rows are replicated.",
    remedy="Include the children if their rows are wanted.",
)

UNUSUAL_KEY_ORDER: Final = SECTION.rule(
    "unusual_key_order",
    found=(Severity.NOTICE,),
    meaning="The key's index has an order of its own; chunks are read in that order.",
    remedy="Nothing.",
)

FILTERED_ROW_INCOMPLETE: Final = SECTION.rule(
    "filtered_row_incomplete",
    raises=(KeyMissingError,),
    meaning=(
        "A row entered the publication's row filter by an UPDATE, and came without the large values that it kept."
    ),
    remedy="`ALTER TABLE … REPLICA IDENTITY FULL`, or take the filter off; then a new snapshot.",
)

OLD_ROW_MISSING: Final = SECTION.rule(
    "old_row_missing",
    raises=(KeyMissingError,),
    meaning="A table without a key sent a change without the old row.",
    remedy="`ALTER TABLE … REPLICA IDENTITY FULL`, then a new snapshot.",
)

SECTION.note(commands.PLAN_LOG_SHORT, remedy="PostgreSQL: `max_slot_wal_keep_size`.")

SECTION.note(
    tables.UNSUPPORTED_TYPE,
    meaning="PostgreSQL: `regclass` and similar types, whose text changes when the object is renamed.",
)

SECTION.note(tables.INSERT_LACKS_COLUMNS, meaning="PostgreSQL: an UPDATE that a row filter turned into one.")

SECTION.note(
    tables.CORRUPT_ROWS,
    meaning="PostgreSQL: also a column's name that is not UTF-8 (in a database with the encoding `SQL_ASCII`).",
)

SECTION.note(sources.SERVER_TOO_OLD, meaning="PostgreSQL: older than 13.")

SECTION.note(sources.ANOTHER_SERVER, meaning="PostgreSQL: or the server was restarted.")
