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

OWNER_CREATES: Final = "let the owner create the publication: publication_proposed has the statement."
POOLER_ACTION: Final = (
    "Set `source.host` and `source.port` to the PostgreSQL server itself: replication does not work through a pooler."
)
NOT_UTF8_ACTION: Final = "Rename it in the source, or exclude the table (tables.exclude)."
RESTART_ACTION: Final = (
    "Run `replicator snapshot NAME --changed-only`. It starts at a new log position, and reads only the rows "
    "again that differ. With --restart, it takes new snapshots of all tables instead."
)
REHEARSAL_ACTION: Final = (
    "Check its text. What cannot be rehearsed is replicated all the same, as the log and the catalogue show it."
)

NOT_UTF8: Final = SECTION.rule(
    "not_utf8",
    raises=(TableError,),
    found=(Severity.BLOCKING,),
    meaning=(
        "PostgreSQL, in a database with the encoding `SQL_ASCII`: the name of a column, a type or a collation of "
        "the table is not UTF-8, or the publication's row filter."
    ),
    remedy="Rename it, or exclude the table.",
    text="This is not UTF-8: {names}",
    action="Rename it in the source, or exclude the table (tables.exclude).",
)

SERVER_IS_STANDBY: Final = SECTION.rule(
    "server_is_standby",
    found=(Severity.BLOCKING,),
    meaning="The host is a standby; marks can be written on a primary only.",
    remedy="Name the primary.",
    text="The server is a standby; snapshots write marks into the log, which only a primary can do.",
    action="Name the primary in source.host.",
    location="source.host",
)

WAL_LEVEL_NOT_LOGICAL: Final = SECTION.rule(
    "wal_level_not_logical",
    found=(Severity.BLOCKING,),
    meaning="`wal_level` is not `logical`.",
    remedy="`ALTER SYSTEM SET wal_level = 'logical';`, restart the server.",
    text="wal_level is {wal_level}; logical decoding needs logical.",
    action=(
        "ALTER SYSTEM SET wal_level = 'logical'; then restart the server (managed services: set the parameter "
        "rds.logical_replication or its like)."
    ),
    location="source",
    sql=("ALTER SYSTEM SET wal_level = 'logical'; -- then restart the server",),
)

WAL_KEEP_UNBOUNDED: Final = SECTION.rule(
    "wal_keep_unbounded",
    found=(Severity.NOTICE,),
    meaning="The server keeps its log without a limit while the replicator is down.",
    remedy="Watch *source retains* in the status, or set `max_slot_wal_keep_size`.",
    text=(
        "max_slot_wal_keep_size is -1: while the replicator is stopped the server keeps its log without a limit, "
        "and its disk may fill up."
    ),
    action=(
        "Watch the bytes retained in the status, or set max_slot_wal_keep_size to what the disk can hold. If the "
        "limit is exceeded, a new snapshot is needed."
    ),
    location="source",
)

WAL_KEEP_BOUNDED: Final = SECTION.rule(
    "wal_keep_bounded",
    found=(Severity.NOTICE,),
    meaning="If the replicator falls behind by more than `max_slot_wal_keep_size`, it loses the slot.",
    remedy="Make sure that it is large enough for the longest pause.",
    text=(
        "max_slot_wal_keep_size is {wal_keep_max}: if the replicator falls behind by more, the slot is lost and "
        "a new snapshot is needed."
    ),
    location="source",
)

DDL_TRIGGER_MISSING: Final = SECTION.rule(
    "ddl_trigger_missing",
    found=(Severity.NOTICE,),
    meaning=(
        "The optional event trigger is not installed: changes of tables without a change of a row are found "
        "within a minute."
    ),
    remedy="If that is too late, have a superuser run the script that `validate` prints.",
    text=(
        "PostgreSQL's log describes a table only before the next change of one of its rows; what else happens to "
        "tables is found once a minute. An optional event trigger announces it in the log."
    ),
    action="If they are to arrive at once, have a superuser run:\n{script}",
    location="source",
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

SETTINGS_DROPPED: Final = CONNECTION_POOLER.worded(
    (
        "The session does not have the settings that it was opened with ({differing}): a connection pooler, such "
        "as PgBouncer, is between Replicator and the server, and drops them."
    ),
    action=POOLER_ACTION,
)

POOLER_ANSWERS: Final = CONNECTION_POOLER.worded(
    "{message}. Only a connection pooler, such as PgBouncer, says that.", action=POOLER_ACTION
)

ROLE_LACKS_REPLICATION: Final = SECTION.rule(
    "role_lacks_replication",
    found=(Severity.BLOCKING,),
    meaning="The role has no replication privilege.",
    remedy="`ALTER ROLE … REPLICATION;` (Amazon RDS: `GRANT rds_replication TO …;`).",
    text="The role {role} has no replication privilege.",
    action="ALTER ROLE {role_2} REPLICATION; (on Amazon RDS: GRANT rds_replication TO {role_2};)",
    location="source.user",
    sql=("ALTER ROLE {role_2} REPLICATION;",),
)

ROLE_IS_SUPERUSER: Final = SECTION.rule(
    "role_is_superuser",
    found=(Severity.WARNING,),
    meaning="The role has more privileges than needed.",
    remedy="Create one with LOGIN, REPLICATION and SELECT.",
    text="The role {role} is a superuser, which is more than needed.",
    action="Create a role with LOGIN, REPLICATION and SELECT on the tables.",
    location="source.user",
)

REPLICATION_REFUSED: Final = SECTION.rule(
    "replication_refused",
    found=(Severity.BLOCKING,),
    meaning="The server refuses a replication connection.",
    remedy="Allow it in `pg_hba.conf`.",
    text="The server refuses a replication connection: {replication_error}",
    action="Allow the role to connect to the database from this host in pg_hba.conf.",
    location="source.user",
)

DATABASE_MISSING: Final = SECTION.rule(
    "database_missing",
    raises=(ConfigError,),
    meaning="There is no such database.",
    remedy="Correct `source.database`.",
    text="{message}",
    action="Name an existing database under `source.database`.",
)

NO_FREE_SLOT: Final = SECTION.rule(
    "no_free_slot",
    found=(Severity.BLOCKING,),
    meaning="Every replication slot is taken.",
    remedy="Drop unused ones, or raise `max_replication_slots`.",
    text="All {slots_max} replication slots are in use.",
    action="Drop unused slots, or raise max_replication_slots and restart the server.",
    location="source",
)

NO_FREE_WAL_SENDER: Final = SECTION.rule(
    "no_free_wal_sender",
    found=(Severity.BLOCKING,),
    meaning="Every WAL sender is busy.",
    remedy="Raise `max_wal_senders`.",
    text="All {senders_max} WAL senders are busy.",
    action="Raise max_wal_senders and restart the server.",
    location="source",
)

SLOT_MISSING: Final = SECTION.rule(
    "slot_missing",
    raises=(ConfigError, LogGapError),
    found=(Severity.BLOCKING,),
    meaning="The slot does not exist; once something was captured, changes may be lost.",
    remedy="Create your slot (the message has the SQL); otherwise a new log position.",
    text="There is no replication slot {name}.",
    action="Create it: {statement} or leave source.slot out.",
    location="source.slot",
)

SLOT_DROPPED: Final = SLOT_MISSING.worded(
    "The replication slot {slot} does not exist; changes since {position} may be lost."
)


SLOT_UNUSABLE: Final = SECTION.rule(
    "slot_unusable",
    raises=(ConfigError, LogGapError),
    found=(Severity.BLOCKING,),
    meaning="The slot is of another database or plugin, temporary or physical, or was invalidated.",
    remedy="Name a permanent logical slot that uses `pgoutput`; otherwise a new log position.",
    text="The replication slot {name} {fault}.",
    action="Name a permanent logical slot of this database that uses pgoutput.",
    location="source.slot",
)


SLOT_NOT_DECODED: Final = SLOT_UNUSABLE.worded("Slot {slot}: {message}", action=RESTART_ACTION)


SLOT_LOST: Final = SECTION.rule(
    "slot_lost",
    raises=(ConfigError, OffsetExpiredError),
    found=(Severity.BLOCKING,),
    meaning="The server has removed log that the slot needed.",
    remedy="Create your slot again, then a new log position.",
    text="The replication slot {name} has lost its log ({lost}).",
    action="SELECT pg_drop_replication_slot({literal}); and create it again.",
    location="source.slot",
)

SLOT_LOST_WHILE_READ: Final = SLOT_LOST.worded(SLOT_LOST.text, action=RESTART_ACTION)


SLOT_ACTIVE: Final = SECTION.rule(
    "slot_active",
    raises=(SourceUnavailableError,),
    found=(Severity.WARNING,),
    meaning="Another process reads the slot.",
    remedy=(
        "Stop it: a second replicator of this name, or a reader that was just killed (its slot is released by "
        "itself). A reader of an earlier lease of the same replicator is ended without that."
    ),
    text="The replication slot {name} is in use by {holder}.",
    action="Stop the other process: a second replicator of this name, or a reader that was just killed.",
    location="source.slot",
)

SLOT_READ_BY_ANOTHER: Final = SLOT_ACTIVE.worded(
    "{message}",
    action="Another process still reads the slot; if it is not one of ours, find it in pg_stat_replication.",
)


SLOT_NAME_TAKEN: Final = SECTION.rule(
    "slot_name_taken",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="A slot with the name that we would use exists and is not ours.",
    remedy="Rename the replicator, or drop that slot.",
    text="A replication slot {name} exists already and {fault}.",
    action="Rename the replicator, or drop that slot.",
    location="name",
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
    text=(
        "The replication slot {slot} is at {position}, ahead of the recorded position {recorded}: it was recreated or "
        "advanced by somebody else, or the state store was restored from a backup."
    ),
)

SLOT_REPLACED: Final = SECTION.rule(
    "slot_replaced",
    raises=(LogGapError,),
    meaning="The slot of this name is of another kind.",
    remedy="Drop it, then a new log position.",
    text="The replication slot {slot} {fault}.",
)

OTHER_SYSTEM: Final = SECTION.rule(
    "other_system",
    raises=(LogGapError,),
    meaning="Another server than the one that was captured.",
    remedy="Correct `source.host`; if the server was really replaced: a new log position.",
    text="The server's system identifier is {system}, but the recorded position belongs to {recorded}.",
)

OTHER_TIMELINE: Final = SECTION.rule(
    "other_timeline",
    raises=(LogGapError,),
    meaning="The server's history does not descend from the captured one.",
    remedy="A new log position.",
    text="The server is on timeline {timeline}, which does not descend from the recorded timeline {recorded}.",
)

TIMELINE_BEHIND: Final = SECTION.rule(
    "timeline_behind",
    raises=(LogGapError,),
    meaning="A failover took place before what was captured: those changes no longer exist in the source.",
    remedy="A new log position.",
    text="The server switched to timeline {timeline} at {switch}, before the recorded position {recorded}.",
)

LOG_BEHIND: Final = SECTION.rule(
    "log_behind",
    raises=(LogGapError,),
    meaning="The server's log ends before what was captured: its disk was set back to an older state.",
    remedy="A new log position.",
    text=(
        "The server's log ends at {end}, before the recorded position {recorded}: it was restored from an older state."
    ),
)

SLOT_OR_PUBLICATION_MISSING: Final = SECTION.rule(
    "slot_or_publication_missing",
    raises=(LogGapError,),
    meaning="Slot or publication was dropped, or the publication did not exist yet at this log position.",
    remedy="A new log position.",
    text="{message}",
    action=RESTART_ACTION,
)

CORRUPT_STREAM: Final = SECTION.rule(
    "corrupt_stream",
    raises=(CorruptStreamError,),
    meaning=(
        "The server sent what is not the protocol; what cannot be read of one table's rows is `corrupt_rows` instead."
    ),
    remedy="Start again. If it fails at the same position, report it and start at a new log position.",
    text="The log after {offered_lsn}: {message}.",
    action=(
        "Start again. If it fails again at the same position, report it and run `replicator snapshot NAME --restart`."
    ),
)

CORRUPT_COPY: Final = SECTION.rule(
    "corrupt_copy",
    raises=(CorruptStreamError,),
    meaning="The server's COPY is malformed.",
    remedy="Start again; report it if it happens again.",
    text="The server's COPY is malformed: {message}.",
)

PUBLICATION_MISSING: Final = SECTION.rule(
    "publication_missing",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="Your publication does not exist.",
    remedy="Run the SQL of the message.",
    text="There is no publication {name}.",
    location="source.publication",
)


PUBLICATION_NAME_TAKEN: Final = SECTION.rule(
    "publication_name_taken",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="A publication with the name that we would use covers all tables or schemas, so it is not ours.",
    remedy="Rename the replicator, or drop it.",
    text="The publication {name} is for all tables or for schemas, so it was not created by Replicator.",
    action="Rename the replicator, or drop that publication.",
    location="name",
)


PUBLICATION_OF_ANOTHER: Final = SECTION.rule(
    "publication_of_another",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="Publication and slot belong to another replicator.",
    remedy="Rename this one; drop both if the other replicator no longer exists.",
    text="The publication {name} and the slot of that name belong to another replicator of this name.",
    action="Rename this replicator; or, if the other one no longer exists, drop its slot and its publication.",
    location="name",
)


PUBLICATION_NOT_OWNED: Final = SECTION.rule(
    "publication_not_owned",
    found=(Severity.BLOCKING,),
    meaning="The publication belongs to another role.",
    remedy="Name it in `source.publication`, or grant that role.",
    text="The publication {name} belongs to {owner}.",
    action="Name it in source.publication to use it as it is, or grant {owner} to the role.",
    location="source.publication",
)

MAY_NOT_CREATE_PUBLICATION: Final = SECTION.rule(
    "may_not_create_publication",
    found=(Severity.BLOCKING,),
    meaning="The role may not create a publication.",
    remedy=("Grant CREATE on the database, or make the publication as the owner (`publication_proposed` has the SQL)."),
    text="The role {role} may not create a publication in the database {database}.",
    action=("Either {grant} or " + OWNER_CREATES),
    location="source.publication",
)

PUBLICATION_PROPOSED: Final = SECTION.rule(
    "publication_proposed",
    found=(Severity.NOTICE,),
    meaning=(
        "The statement with which the owner of the tables creates the publication, where our role may not. It "
        "names the tables that it leaves out and why."
    ),
    remedy="Run it, and name the publication in `source.publication`; or grant what the other findings say.",
    text=("The owner of the tables can create the publication instead; then set source.publication to {name}."),
    location="source.publication",
)

PUBLICATION_LACKS_OPERATIONS: Final = SECTION.rule(
    "publication_lacks_operations",
    raises=(FatalError,),
    found=(Severity.BLOCKING,),
    meaning="Some of insert, update, delete, truncate are not published.",
    remedy="`ALTER PUBLICATION … SET (publish = 'insert, update, delete, truncate');`",
    text="The publication {name} does not publish {lacking}.",
    sql=("ALTER PUBLICATION {quoted} SET (publish = 'insert, update, delete, truncate');",),
    location="source.publication",
    # Changes of these kinds are missing from the log, without a trace there.
    applies="always",
)

PUBLICATION_LACKS_OPERATIONS_WHILE_READ: Final = PUBLICATION_LACKS_OPERATIONS.worded(
    PUBLICATION_LACKS_OPERATIONS.text,
    action="ALTER PUBLICATION {quoted} SET (publish = 'insert, update, delete, truncate'); Then start again.",
)

GENERATED_COLUMNS_PUBLISHED: Final = SECTION.rule(
    "generated_columns_published",
    found=(Severity.BLOCKING,),
    meaning="The publication holds the table's generated columns, which snapshots leave out.",
    remedy="`ALTER PUBLICATION … SET (publish_generated_columns = none);`",
    text="The publication {name} publishes its generated columns, which snapshots leave out.",
    action="ALTER PUBLICATION {name_2} SET (publish_generated_columns = none); and list no generated column.",
)

PUBLICATION_FOR_ALL_TABLES: Final = SECTION.rule(
    "publication_for_all_tables",
    found=(Severity.WARNING,),
    meaning="FOR ALL TABLES makes updates fail on every table without replica identity, new ones too.",
    remedy="List the tables by name.",
    text=(
        "The publication {name} is FOR ALL TABLES: updates and deletes fail on every table without a replica "
        "identity, new ones included."
    ),
    action="List the tables by name instead.",
    location="source.publication",
)

PARTITIONS_NOT_VIA_ROOT: Final = SECTION.rule(
    "partitions_not_via_root",
    found=(Severity.BLOCKING,),
    meaning="The publication names partitions instead of their root.",
    remedy="`ALTER PUBLICATION … SET (publish_via_partition_root = true);`",
    text="The publication {name} names its partitions instead of it.",
)

TABLE_NOT_OWNED: Final = SECTION.rule(
    "table_not_owned",
    found=(Severity.BLOCKING,),
    meaning="Only its owner can add the table to a publication.",
    remedy=(
        "Grant the owner, or create the publication as the owner (`publication_proposed`); where it exists, add "
        "the table as a superuser."
    ),
    text="The table belongs to {owner}; only its owner can add it to a publication.",
    action="Either {grant} or {instead}",
)

TABLE_NOT_PUBLISHED: Final = SECTION.rule(
    "table_not_published",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="Your publication does not list a table.",
    remedy="`ALTER PUBLICATION … ADD TABLE …;`",
    text="The publication {name} does not list it.",
    action="{fact}{addition}",
)

TABLE_NOT_PUBLISHABLE: Final = SECTION.rule(
    "table_not_publishable",
    raises=(ConfigError,),
    meaning=(
        "Tables whose changes a publication cannot carry: without usable identity, partitions, unlogged ones, "
        "and so on. Each has a finding of its own."
    ),
    remedy="`validate` prints the SQL.",
    text="These tables cannot be replicated through the publication {name}: {tables}.",
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

CHANGED_ROW_TOO_LARGE: Final = ROW_TOO_LARGE.worded(
    (
        "{message}. A changed row has 1 GB or more as text (bytea takes two characters a byte), which PostgreSQL "
        "cannot send."
    ),
    action=("Make the value smaller in the source, or exclude the table. " + RESTART_ACTION),
)

READ_ROW_TOO_LARGE: Final = ROW_TOO_LARGE.worded(
    "{message}. A row of the table has 1 GB or more as text, which PostgreSQL cannot send.",
    action="Make the value smaller, then run `replicator snapshot NAME TABLE`; or exclude the table.",
)

IDLE_IN_TRANSACTION_TIMEOUT: Final = SECTION.rule(
    "idle_in_transaction_timeout",
    raises=(SourceUnavailableError,),
    meaning="The server ended a transaction that waited.",
    remedy="Nothing; it is tried again.",
    text="{message}",
)

SERIALIZATION_FAILURE: Final = SECTION.rule(
    "serialization_failure",
    raises=(SourceUnavailableError,),
    meaning="The server asks to try again.",
    remedy="Nothing.",
    text="{message}",
)

COMMIT_NOT_VISIBLE: Final = SECTION.rule(
    "commit_not_visible",
    raises=(SourceUnavailableError,),
    meaning=(
        "A transaction that altered a table is in the log, and nobody sees its changes yet: its commit waits for "
        "a synchronous standby."
    ),
    remedy="Check the standbys; it is tried again.",
    text="Transaction {transaction} has altered a table, and nobody sees that yet.",
    action="Check whether the server's synchronous standbys answer.",
)

NO_PRIMARY_KEY: Final = SECTION.rule(
    "no_primary_key",
    found=(Severity.BLOCKING,),
    meaning="No primary key, replica identity DEFAULT: once published, its updates and deletes would be refused.",
    remedy="Give it a key, or `REPLICA IDENTITY FULL`.",
    text=(
        "It has no primary key, and its replica identity is DEFAULT: PostgreSQL would refuse its updates and "
        "deletes once it is published."
    ),
)

DEFERRABLE_KEY: Final = SECTION.rule(
    "deferrable_key",
    found=(Severity.BLOCKING,),
    meaning="A deferrable key cannot identify rows.",
    remedy="Another unique index as replica identity, or FULL.",
    text="Its key is deferrable, so it may hold duplicates inside a transaction and cannot identify rows.",
)

REPLICA_IDENTITY_NOTHING: Final = SECTION.rule(
    "replica_identity_nothing",
    found=(Severity.BLOCKING,),
    meaning="Replica identity NOTHING.",
    remedy="Set DEFAULT, an index, or FULL.",
    text=("Its replica identity is NOTHING: PostgreSQL would refuse its updates and deletes once it is published."),
)

REPLICA_IDENTITY_INDEX_MISSING: Final = SECTION.rule(
    "replica_identity_index_missing",
    found=(Severity.BLOCKING,),
    meaning="The index of the replica identity is missing or not valid.",
    remedy="Create it again, or set another identity.",
    text="The index of its replica identity is missing or not valid.",
)

UNUSABLE_KEY_COLUMN: Final = SECTION.rule(
    "unusable_key_column",
    found=(Severity.BLOCKING,),
    meaning="A key column is generated, nullable, not published, or of a type that cannot identify rows.",
    remedy="Another unique index as replica identity, or FULL.",
    text="Its key cannot be used: {fact}.",
)

GENERATED_COLUMN_IN_IDENTITY: Final = SECTION.rule(
    "generated_column_in_identity",
    found=(Severity.BLOCKING,),
    meaning="PostgreSQL 18: identity FULL with generated columns makes updates fail once published.",
    remedy="Give it a key.",
    text=(
        "Its replica identity is FULL and it has generated columns: PostgreSQL 18 would refuse its updates and "
        "deletes once it is published."
    ),
)

PARTITION_IDENTITY: Final = SECTION.rule(
    "partition_identity",
    found=(Severity.BLOCKING,),
    meaning="Some partitions do not log the key.",
    remedy="Set their replica identity (the message has the SQL).",
    text="These partitions do not log its key: {fact}.",
)

IS_PARTITION: Final = SECTION.rule(
    "is_partition",
    found=(Severity.BLOCKING,),
    meaning="A partition cannot be published for itself.",
    remedy="Name its root.",
    text="It is a partition; the whole table is replicated under the name of its root.",
    action="Name the root in tables.include.",
)

UNLOGGED_TABLE: Final = SECTION.rule(
    "unlogged_table",
    found=(Severity.BLOCKING,),
    meaning="Unlogged: its changes are not in the log.",
    remedy="`ALTER TABLE … SET LOGGED;` or exclude it.",
    text="It is unlogged, so its changes are not in the log.",
)

UNLOGGED_PARTITION: Final = SECTION.rule(
    "unlogged_partition",
    found=(Severity.BLOCKING,),
    meaning="Some partitions are unlogged.",
    remedy="`ALTER TABLE … SET LOGGED;`",
    text="These partitions are unlogged, so their changes are not in the log: {names}",
)

SCHEMA_USAGE_MISSING: Final = SECTION.rule(
    "schema_usage_missing",
    found=(Severity.BLOCKING,),
    meaning=(
        "The role may not use the schema. If that is so for all tables while the replicator runs, it retries and "
        "no table fails."
    ),
    remedy="`GRANT USAGE ON SCHEMA …;`",
    text="The role may not use its schema.",
    is_access=True,
)

ROW_LEVEL_SECURITY: Final = SECTION.rule(
    "row_level_security",
    found=(Severity.BLOCKING,),
    meaning="Policies hide rows from our reads and not from the log.",
    remedy="`ALTER ROLE … BYPASSRLS;`",
    text="Row-level security hides rows from the role's reads, but not from the log.",
)

NO_COLUMNS: Final = SECTION.rule(
    "no_columns",
    found=(Severity.BLOCKING,),
    meaning="It has no column that can be replicated.",
    remedy="Exclude it.",
    text="It has no column that can be replicated.",
    action="Exclude it.",
)

ROW_FILTER_NEEDS_FULL_IDENTITY: Final = SECTION.rule(
    "row_filter_needs_full_identity",
    found=(Severity.BLOCKING,),
    meaning=(
        "If an UPDATE brings a row into the publication's row filter, PostgreSQL sends an INSERT without the "
        "unchanged large values."
    ),
    remedy="`ALTER TABLE … REPLICA IDENTITY FULL;`, or take the filter off.",
    text=(
        "An UPDATE that brings a row into the publication's row filter comes as an INSERT, without the large "
        "values that it did not change (columns {wide})."
    ),
    action="{full} Or take the filter, or these columns, out of the publication.",
)

TYPE_NOT_IMMUTABLE: Final = SECTION.rule(
    "type_not_immutable",
    found=(Severity.WARNING,),
    meaning=(
        "The output function of an extension's type is not marked IMMUTABLE: if a value's text depends on more "
        "than the value, source and target differ unnoticed."
    ),
    remedy="Check the function; mark it IMMUTABLE if it is.",
    text="The column {name} has the type {type_sql}: {fault}",
    action=("Check what the type's output function reads. If it reads only the value: `ALTER FUNCTION … IMMUTABLE`."),
)

OTHER_ACCESS_METHOD: Final = SECTION.rule(
    "other_access_method",
    found=(Severity.WARNING,),
    meaning=(
        "The table's rows, or a partition's, are kept by an extension's access method, which may not write every "
        "change for logical decoding."
    ),
    remedy="Ask its manual; `ALTER TABLE … SET ACCESS METHOD heap;` if it does not.",
    text=(
        "Its rows are kept by the access method {other_storage}: its extension may not write every change for "
        "logical decoding."
    ),
    action="Check the extension's manual. If it does not: ALTER TABLE … SET ACCESS METHOD heap;",
)

ROW_FILTER: Final = SECTION.rule(
    "row_filter",
    found=(Severity.NOTICE,),
    meaning="The publication's row filter applies to the snapshot too.",
    remedy="Nothing.",
    text="The publication's row filter applies to its snapshot too: the target has only rows that pass it.",
)

INHERITANCE: Final = SECTION.rule(
    "inheritance",
    found=(Severity.NOTICE,),
    meaning="Part of an inheritance tree: only its own rows are replicated.",
    remedy="Include the children if their rows are wanted.",
    text=(
        "It is part of an inheritance tree; its own rows are replicated, those of its children belong to the children."
    ),
    action="Include the children if their rows are wanted; the target table equals SELECT … FROM ONLY.",
)

UNUSUAL_KEY_ORDER: Final = SECTION.rule(
    "unusual_key_order",
    found=(Severity.NOTICE,),
    meaning="The key's index has an order of its own; chunks are read in that order.",
    remedy="Nothing.",
    text=(
        "Its key index has an order of its own; chunks are read in that order, and sorted where the index mixes "
        "ascending and descending columns."
    ),
)

FILTERED_ROW_INCOMPLETE: Final = SECTION.rule(
    "filtered_row_incomplete",
    raises=(KeyMissingError,),
    meaning=(
        "A row entered the publication's row filter by an UPDATE, and came without the large values that it kept."
    ),
    remedy="`ALTER TABLE … REPLICA IDENTITY FULL`, or take the filter off; then a new snapshot.",
    text="A row entered the publication's row filter without its unchanged value of column {name}.",
    action=("ALTER TABLE … REPLICA IDENTITY FULL, or take the filter off; then run `replicator snapshot NAME TABLE`."),
)

OLD_ROW_MISSING: Final = SECTION.rule(
    "old_row_missing",
    raises=(KeyMissingError,),
    meaning="A table without a key sent a change without the old row.",
    remedy="`ALTER TABLE … REPLICA IDENTITY FULL`, then a new snapshot.",
    text="{wanting} changes came without the old row, which a table without a key needs.",
    action="ALTER TABLE … REPLICA IDENTITY FULL, then run `replicator snapshot NAME TABLE`.",
)

SERVER_TOO_OLD: Final = sources.SERVER_TOO_OLD.worded(
    "The server is PostgreSQL {version_text}; 13 or later is needed.",
    action="Upgrade the server.",
    location="source.host",
)

ANOTHER_SERVER: Final = sources.ANOTHER_SERVER.worded(
    (
        "The connection reached another server, or the server was restarted. It was started at {moment}; the one "
        "before was started at {moment_2}."
    ),
    action="After a restart or a failover, nothing to do. Otherwise set source.host to one server.",
)

SERVER_UNAVAILABLE: Final = sources.SOURCE_UNAVAILABLE.worded("{message}")

CONNECTION_LOST: Final = sources.SOURCE_UNAVAILABLE.worded("Reading the log: the server ended the stream.")

STREAM_ENDED: Final = sources.SOURCE_UNAVAILABLE.worded("Reading the log: the connection is closed.")

CORRUPT_ROWS: Final = tables.CORRUPT_ROWS.worded(
    "Its rows in the log cannot be read: {what}.",
    action=("Run `replicator snapshot NAME TABLE`; if it fails again, exclude the table and report its CREATE TABLE."),
)

PRIVILEGE_DENIED: Final = sources.ACCESS_DENIED.worded(
    "{message}", action="Grant the privilege or fix the credential; `replicator validate` names it."
)

CREDENTIALS_DENIED: Final = sources.ACCESS_DENIED.worded(
    "{message}", action="Check user, password, certificate and the server's pg_hba.conf."
)

ROLE_UNKNOWN: Final = sources.ACCESS_DENIED.worded(
    "{message}", action="Create the role, or name another under `source.user`."
)

LOGIN_DENIED: Final = sources.ACCESS_DENIED.worded(
    "{message}", action="Grant LOGIN and REPLICATION to the role, and CONNECT on the database."
)

TABLE_DENIED: Final = sources.ACCESS_DENIED.worded(
    "{message}",
    action=(
        "Grant SELECT on the table (with row-level security: BYPASSRLS) to the role; then run `replicator "
        "snapshot NAME TABLE`."
    ),
)

STATEMENT_FAILED_FOR_TABLE: Final = sources.SOURCE_ERROR.worded(
    "{message}", action="Fix what the server reports; then run `replicator snapshot NAME TABLE`."
)

STATEMENT_FAILED: Final = sources.SOURCE_ERROR.worded("{message}")

TABLE_CHANGED_SINCE: Final = sources.TABLE_CHANGED.worded("{message}")

TABLE_ALTERED: Final = sources.TABLE_CHANGED.worded("It was altered, or another object has its name.")

LOG_REMOVED: Final = sources.LOG_REMOVED.worded("{message}", action=RESTART_ACTION)

KEY_MISSING: Final = tables.KEY_MISSING.worded(
    "A change came without a value of key column {name}.",
    action="Compare the table's replica identity with its key, then run `replicator snapshot NAME TABLE`.",
)

TYPE_DROPPED: Final = tables.UNSUPPORTED_TYPE.worded(
    ("Column {name} has a type (oid {type_oid}) that is no longer in the catalogue, or that cannot be stored."),
    action="Run `replicator snapshot NAME TABLE`.",
)

TYPE_NOT_REPLICATED: Final = tables.UNSUPPORTED_TYPE.worded(
    "Values of the type {type_sql} cannot be replicated: {said}", action="Choose another type."
)

CORRUPT_OFFSET: Final = sources.CORRUPT_OFFSET.worded(
    "The recorded offset {said!r} is not a position in a PostgreSQL log."
)

STATEMENT_NOT_REHEARSED: Final = sources.DDL_NOT_UNDERSTOOD.worded("{why}: {said}", action=REHEARSAL_ACTION)

STATEMENT_NOT_PARSED: Final = sources.DDL_NOT_UNDERSTOOD.worded(
    "The statement is not understood: {said}", action=REHEARSAL_ACTION
)

TABLE_DROPPED: Final = tables.TABLE_NOT_FOUND.worded("The table no longer exists.")

NO_SUCH_TABLE: Final = tables.TABLE_NOT_FOUND.worded(
    "There is no such table.", action="Check the name; names are case-sensitive."
)


UNREPRESENTABLE_VALUE: Final = sources.UNREPRESENTABLE_VALUE.worded(
    "{count} of {total} values of type {source_type} cannot be held as {arrow}, which holds {fits}."
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

UNSUPPORTED_TYPE: Final = tables.UNSUPPORTED_TYPE.worded(
    "The column {name} has the type {type_sql}, which cannot be replicated{fault}."
)

NO_KEY: Final = sources.NO_KEY.worded(
    (
        "It has no usable key and is replicated as a multiset of rows; its snapshot is one statement, which "
        "starts again if it is interrupted."
    ),
    action="Give it a primary key if it is large.",
)

SELECT_MISSING: Final = sources.SELECT_MISSING.worded("{what}", is_access=True)

GENERATED_COLUMNS: Final = sources.GENERATED_COLUMNS.worded("Generated columns are left out: {generated}.")

PARTITION_LISTED: Final = IS_PARTITION.worded(
    "It is a partition: its changes are published as those of its root.",
    action="Remove it from `tables.include` and name its root instead.",
)

TABLE_OF_ANOTHER_OWNER: Final = TABLE_NOT_OWNED.worded(
    "It belongs to {owner}; only its owner can add it to a publication.",
    action=("GRANT {quote} TO the role of source.user; or name a publication of the owner's in source.publication."),
)


SOURCE_READ_ONLY: Final = sources.SOURCE_READ_ONLY.worded("{message}", action="Name the primary server as host.")
