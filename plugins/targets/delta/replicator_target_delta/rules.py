"""Every code of this distribution's errors and findings, with its texts."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    FatalError,
    Severity,
    TableError,
    TargetDamagedError,
    TargetUnavailableError,
    ThrottledError,
)
from replicator.model.rules import Section, spark, tables, targets

SECTION: Final = Section("Delta")

RESTORE_LOG: Final = (
    "Restore the log, or move the folder away and recreate the table: replicator snapshot NAME TABLE --recreate."
)
RECREATE: Final = "Run `replicator snapshot NAME TABLE --recreate`."

SPARK_EXECUTORS_LOST: Final = SECTION.rule(
    "spark_executors_lost",
    raises=(TargetUnavailableError,),
    meaning="Executors were lost while a table was worked on, more often than Spark itself retries.",
    remedy="Nothing; if it happens again, check the executors' logs (exit codes 52 and 137: too little memory).",
    text="Spark lost executors while it worked on the table, and gave up after its own retries: {words}.",
    action=(
        "It is retried automatically. If it happens again, check the executors' logs (exit codes 52, 137: too "
        "little memory)."
    ),
)

SPARK_OUT_OF_MEMORY: Final = SECTION.rule(
    "spark_out_of_memory",
    raises=(TargetUnavailableError, ThrottledError),
    meaning=(
        "Spark ran out of memory. Smaller batches are tried; a batch that cannot be split waits, and its table "
        "fails in the end. Other tables continue."
    ),
    remedy="Raise `spark.settings.spark.driver.memory`. Values of 100 MB need some gigabytes.",
    text="Spark ran out of memory{size}.",
    action=("Give Spark more memory (spark.settings.spark.driver.memory; on a cluster also spark.executor.memory)."),
)

SPARK_REFUSED: Final = SECTION.rule(
    "spark_refused",
    raises=(TableError,),
    meaning="Spark refuses a statement for the table; the message quotes it.",
    remedy="Report it; until it is fixed, exclude the table.",
    text="Spark refuses a statement: {words}.",
    action="Report it with the log. Until it is fixed, exclude the table (tables.exclude).",
)

SPARK_FAILED: Final = SECTION.rule(
    "spark_failed",
    raises=(TargetUnavailableError,),
    meaning="A Spark job failed for a reason without a code of its own; the message quotes the cause.",
    remedy="Nothing; it is retried. If it keeps failing, read the log and report it.",
)

JOB_FAILED: Final = SPARK_FAILED.worded(
    "A job of Spark failed: {words}.", action="It is retried automatically; the log has the details."
)

APPEND_ONLY: Final = SPARK_FAILED.worded(
    "Somebody else made the target table append-only: {words}.",
    action=("Run ALTER TABLE … UNSET TBLPROPERTIES ('delta.appendOnly') on it. The batch is retried automatically."),
)

SPARK_MISSING: Final = SECTION.rule(
    "spark_missing",
    raises=(FatalError,),
    meaning="A target needs Spark, but the host did not provide it.",
    remedy="Report it.",
    text="The Delta Lake target needs Spark, but the host did not provide it.",
)

TARGET_UNREADABLE: Final = SECTION.rule(
    "target_unreadable",
    raises=(TargetDamagedError,),
    found=(Severity.BLOCKING,),
    meaning=(
        "The Delta log of a table at this path cannot be read. The message names the file of a commit that was "
        "written in half or is damaged."
    ),
    remedy=(
        "Follow the message: restore the file or recreate the table; or, where the first versions are damaged, "
        "move the folder away and recreate it."
    ),
)

LOG_UNREADABLE: Final = TARGET_UNREADABLE.worded(
    "The Delta log of the table cannot be read: {words}.", action=RESTORE_LOG
)

LOG_DAMAGED: Final = TARGET_UNREADABLE.worded("{error}")

TARGET_FILE_UNREADABLE: Final = SECTION.rule(
    "target_file_unreadable",
    raises=(TargetDamagedError,),
    meaning=(
        "A file that the table needs (data, deleted rows) was removed, cut off or changed by something else. A "
        "batch, upkeep or a verification met it, or the comparison with a listing of the folder, at most ten "
        "minutes later."
    ),
    remedy="Recreate the table.",
    text="{message}",
    action=(
        "Something else removed or changed files of the table. Recreate it: replicator snapshot NAME TABLE --recreate."
    ),
)

LEDGER_DISAGREES: Final = SECTION.rule(
    "ledger_disagrees",
    raises=(FatalError,),
    meaning="A bug: Delta skipped a batch that the ledger does not hold. The table fails.",
    remedy="Report it; then a new snapshot.",
    text="Delta skipped a batch up to {last}, and the ledger says {entry}.",
)

TARGET_OCCUPIED: Final = targets.TARGET_OCCUPIED.worded(
    "{path} contains files but is not a Delta table.", action="Move the folder away, or choose another target.path."
)

TARGET_NOT_WRITABLE: Final = targets.TARGET_NOT_WRITABLE.worded(
    "{root} cannot be written: {reason}.",
    action="Make it accessible and writable for this process, or choose another target.path.",
    location="target.path",
)

COMMITTED_BY_OTHERS: Final = targets.TARGET_BUSY.worded(
    "Others commit to the table all the time.", action="It is retried automatically."
)

CHANGED_BY_ANOTHER: Final = targets.TARGET_BUSY.worded(
    "Another writer changed the table at the same time: {words}.", action="It is retried automatically."
)

RECREATED_SINCE_CLAIM: Final = targets.TARGET_BUSY.worded(
    "The table was recreated since this process claimed it.", action="It is retried automatically."
)

WRITTEN_BY_ANOTHER: Final = targets.TARGET_BUSY.worded(
    "Another process wrote to the table at the same moment.", action="It is retried automatically."
)

STATE_NOT_READABLE: Final = targets.STATE_NOT_READABLE.worded("The state to compare cannot be read. {why}.")

JOURNAL_NOT_READABLE: Final = spark.PATH_NOT_SHARED.worded(
    "Spark's executors have no right to read a journal file.",
    action="Run the executors as the user of this process, or choose a journal.uri that both may read.",
)

JOURNAL_NOT_SHARED: Final = spark.PATH_NOT_SHARED.worded(
    "Spark's executors cannot find a journal file that exists on this host.",
    action=(
        "Let all hosts of the cluster mount the journal's folder at this path and run the executors as the user "
        "of this process, or choose a journal.uri that all can reach."
    ),
)

TARGET_NOT_SHARED: Final = spark.PATH_NOT_SHARED.worded(
    "Spark's executors wrote {tasks} files below {root}, and {count} of them arrived on this host.",
    action=("Let all hosts of the cluster mount one file system at target.path, or choose a path that all can reach."),
)

COLUMNS_CHANGED: Final = targets.SCHEMA_CONFLICT.worded(
    "Somebody else changed the columns of the target table. {why}", action=RECREATE
)

CONSTRAINT_REFUSES: Final = targets.SCHEMA_CONFLICT.worded(
    "A constraint that somebody else added to the target table refuses a row: {words}.",
    action="Drop it (ALTER TABLE … DROP CONSTRAINT …). Then run `replicator snapshot NAME TABLE`.",
)

BATCH_REFUSED: Final = targets.SCHEMA_CONFLICT.worded("Spark refuses the batch: {words}.", action=RECREATE)

SPARK_SCRATCH_UNUSABLE: Final = spark.SPARK_SCRATCH_UNUSABLE.worded(
    "Spark cannot use its folder for temporary files{folder}: {words}.",
    action=(
        "Check space and rights of SPARK_LOCAL_DIRS on the workers (local masters: of that folder, which is in "
        "REPLICATOR_HOME by default), and that nothing deletes its files."
    ),
)

TABLE_NAME_TOO_LONG: Final = targets.TABLE_NAME_TOO_LONG.worded(
    (
        "The name of the table or of its schema is too long for a folder: other characters than ASCII letters "
        "and digits are written as two digits for each of their bytes."
    ),
    action="Rename the table in the source, exclude it (tables.exclude), or write to an object store.",
)


KEY_MISSING: Final = tables.KEY_MISSING.worded("A change has no value in a key column.")

MERGE_NOT_UNIQUE: Final = targets.MERGE_NOT_UNIQUE.worded(
    "Two rows in the source of a merge have the same key.", action="Report this as a bug."
)

JOURNAL_FILE_UNREADABLE: Final = targets.JOURNAL_FILE_UNREADABLE.worded(
    "A journal file cannot be read: {words}.", action="Restore the file, or run `replicator snapshot NAME TABLE`."
)

NOT_OURS: Final = targets.NOT_OURS.worded(
    "Another replicator has taken the table over (its target.adopt: replace).",
    action=(
        "Delete this replicator, or choose another target.path. Or delete the other one, move the table's folder "
        "away, and recreate the table: replicator snapshot NAME TABLE --recreate."
    ),
)

COMMENT_CHANGED: Final = targets.COMMENT_CHANGED.worded(
    "In the comment ${{ becomes $ {{: Hadoop would resolve the reference."
)

COLUMN_NAME_RESERVED: Final = tables.COLUMN_NAME_RESERVED.worded(
    "The column {name} has a name that Delta uses for a column of its own.",
    action="Rename the column in the source, or exclude the table (tables.exclude).",
)

UNSUPPORTED_TYPE: Final = tables.UNSUPPORTED_TYPE.worded("The type {type_} does not exist in Delta.")

SECTION.note(
    targets.STATE_NOT_READABLE,
    meaning="Delta: its version or files were removed, or only Spark understands the table.",
    remedy='Delta: see "Reading" in `targets/delta.md`.',
)

SECTION.note(targets.COMMENT_CHANGED, meaning="Delta gets `$ {` for `${`.", remedy="See `targets/delta.md`.")

SECTION.note(targets.TYPE_CHANGED, remedy="See `targets/delta.md`.")

_STORAGE_FAILED: Final = "The target's storage failed{at}: {fact}."

STORAGE_FULL: Final = targets.TARGET_FULL.worded(_STORAGE_FAILED)

STORAGE_NOT_WRITABLE: Final = targets.TARGET_NOT_WRITABLE.worded(_STORAGE_FAILED)

STORAGE_UNREACHABLE: Final = targets.TARGET_UNREACHABLE.worded(_STORAGE_FAILED)

CODE_CACHE_FULL: Final = SPARK_OUT_OF_MEMORY.worded(_STORAGE_FAILED)

PATH_IS_A_FILE: Final = targets.TARGET_OCCUPIED.worded(
    "{path} is a file.", action="Move it away, or choose another target.path."
)

PATH_OF_BUILDINGS: Final = targets.TARGET_OCCUPIED.worded(
    "{path} is where Replicator builds new incarnations of tables.",
    action="Rename the table in the source, or exclude it (tables.exclude).",
)

LOG_OF_OTHERS_UNREADABLE: Final = TARGET_UNREADABLE.worded("{fact}", action="Move the folder away.")

LOG_NOT_READ: Final = TARGET_UNREADABLE.worded(
    "The Delta log in {path} cannot be read: {fact}.", action="Move the folder away."
)

FOLDER_NAME_TOO_LONG: Final = targets.TABLE_NAME_TOO_LONG.worded(
    "The folder's name would have {longest} bytes, more than {most}: other characters than ASCII letters and digits are "
    "written as two digits for each of their bytes.",
    action="Rename the table in the source, exclude it (tables.exclude), or write to an object store.",
)
