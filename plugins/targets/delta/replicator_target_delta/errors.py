"""Translates errors of Spark, Delta and file systems into ours; nothing else does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from replicator.model.errors import (
    CorruptStreamError,
    FatalError,
    KeyMissingError,
    ReplicatorError,
    SchemaConflictError,
    TableError,
    TargetDamagedError,
    TargetUnavailableError,
    ThrottledError,
)
from replicator.plugins.target import Batch, TargetTable
from replicator.spark.session import local_folder, spark_error
from replicator_target_delta.log.mapping import conflict
from replicator_target_delta.log.table import DamagedLogError, LostFilesError

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]{4,})\]")
_THROWN: Final = re.compile(
    r"\s*(?:(?:Caused by|Suppressed)?: )?(?:[\w$]+\.)+[\w$]*(?:Exception|Error)\b|\s+at [^)]*\)"
)
_CONCURRENT: Final = re.compile(
    r"Concurrent(?:Append|DeleteRead|DeleteDelete|Transaction|Write|Modification)Exception|MetadataChangedException|ProtocolChangedException"
    r"|DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED"
)
# Spark tries a task four times and a stage that lost its input as often, then it gives up; nothing was committed.
_EXECUTORS: Final = re.compile(
    r"ExecutorLostFailure|FetchFailed|MetadataFetchFailed|ExecutorDeadException|Could not find CoarseGrainedScheduler"
    r"|HeartbeatReceiver|cannot run anywhere due to node and executor excludeOnFailure|Lost executor|BlockNotFoundException"
    r"|Could not recover from a failed barrier|has failed the maximum allowable number of times|Failed to get broadcast_"
)
# Folders of drivers and executors for blocks and shuffles; none of them is the lake's or the journal's. A full disk is told without a
# path: who wrote stands in the frames.
_SCRATCH: Final = re.compile(
    r"DiskBlockManager|DiskBlockObjectWriter|TimeTrackingOutputStream|LocalDiskShuffle|IndexShuffleBlockResolver|DiskStore|SpillWriter"
    r"|blockmgr-|temp_shuffle_|temp_local_"
)
_UNUSABLE: Final = re.compile(
    r"No space left on device|NoSuchFileException|FileNotFoundException|Permission denied|Read-only file system|Failed to create local dir"
)
# A missing file of the table: its data, a deletion vector, or its log.
_MISSING: Final = re.compile(
    r"FAILED_READ_FILE|PATH_NOT_FOUND|DELTA_DELETION_VECTOR_(?:CARDINALITY|CHECKSUM|SIZE)_MISMATCH|ChecksumException|FileNotFoundException[^\n]*(?:\.parquet|deletion_vector_|_delta_log)"
)
_RIGHT: Final = "Give the process, and on a cluster the user of the executors, write access to it."
_STORAGE: Final = (
    ("No space left on device", "target_full", "Free space at the target's path."),
    ("Permission denied", "target_not_writable", _RIGHT),
    ("Read-only file system", "target_not_writable", _RIGHT),
    ("AccessControlException", "target_not_writable", _RIGHT),
    ("AccessDeniedException", "target_not_writable", _RIGHT),
    ("Mkdirs failed to create", "target_not_writable", _RIGHT),
    ("Unable to create directory", "target_not_writable", _RIGHT),
    ("Cannot create directory", "target_not_writable", _RIGHT),
    ("DELTA_CANNOT_CREATE_LOG_PATH", "target_not_writable", _RIGHT),
    ("java.net.ConnectException", "target_unreachable", "Check that the target's storage can be reached."),
    ("java.net.UnknownHostException", "target_unreachable", "Check that the target's storage can be reached."),
    ("java.net.SocketTimeoutException", "target_unreachable", "Check that the target's storage can be reached."),
    ("out of space in CodeCache", "spark_out_of_memory", "Give the JVM more room for code (-XX:ReservedCodeCacheSize)."),
)  # fmt: skip
ROW_MISSING: Final = "replicator: a row is missing"
"""Text of the error with which a checked merge fails."""
_LOG: Final = re.compile(
    r"DELTA_(?:LOG_FILE_NOT_FOUND|TRUNCATED_TRANSACTION_LOG|STATE_RECOVER_ERRORS?|VERSIONS_NOT_CONTIGUOUS|MISSING_PART_FILES)"
    r"|ChecksumException: [^\n]*_delta_log"
    r"|Json(?:Parse|EOF|Mapping)Exception(?=[\s\S]*org\.apache\.spark\.sql\.delta\.(?:actions|DeltaLog|Snapshot))"
)
# Thrown where nothing but names, paths and hosts can stand in the message.
_SPEAKS: Final = re.compile(
    r"(?:java\.(?:io|nio|net)|javax\.net|org\.apache\.(?:hadoop|http)|io\.delta|com\.(?:amazonaws|google\.(?:cloud|api))|software\.amazon)\.[\w.$]*"
)
_NAMES: Final = re.compile(
    r"\[(?:DELTA|UNRESOLVED|AMBIGUOUS|PARSE|PATH|TABLE|COLUMN|FAILED_READ_FILE|CANNOT|FEATURE|UNSUPPORTED|DATA_SOURCE|SCHEMA)_?[A-Z0-9_.]*\]"
    r"|The table property delta\.\w+\("
)
_CAUSE: Final = re.compile(
    r"^(?:.*?: )?(?:Caused by: )?((?:[\w$]+\.)+([\w$]*(?:Exception|Error)))(?:: (.*))?$", re.MULTILINE
)
_WORDS_MAX: Final = 300
_UNKNOWN: Final = "no further reason given"
_REFUSED: Final = re.compile(r"(?:Analysis|Parse|IllegalArgument|DeltaAnalysis|DeltaIllegalArgument)Exception")
_SHAPE: Final = re.compile(
    r"DATATYPE_MISMATCH|CAST_OVERFLOW|CAST_INVALID_INPUT|NUMERIC_VALUE_OUT_OF_RANGE|ARITHMETIC_OVERFLOW|UNRESOLVED_COLUMN|DELTA_FAILED_TO_MERGE"
    r"|DELTA_MERGE_UNRESOLVED|DELTA_SCHEMA|DELTA_METADATA_MISMATCH|DELTA_UNSUPPORTED|PARQUET_COLUMN_DATA_TYPE_MISMATCH"
)


_RESTORE_LOG: Final = (
    "Restore the log, or move the folder away and recreate the table: replicator snapshot NAME TABLE --recreate."
)
_RESTORE_COMMIT: Final = (
    "Restore the file, or recreate the table: replicator snapshot NAME TABLE --recreate. Then the file gets another name, and the table "
    "continues without it."
)
RECREATE: Final = "Run `replicator snapshot NAME TABLE --recreate`."


def not_readable(table: TargetTable, why: str, *, action: str = "Run the command again.") -> TableError:
    """The error for a state of a table that is to be compared, and does not exist any more or is not understood."""
    return TableError(
        f"The state to compare cannot be read. {why}.",
        code="state_not_readable",
        table=str(table.table),
        action=action,
    )


def refuse_columns_of_others(table: str, metadata: Mapping[str, Any]) -> None:
    """Refuse a table whose columns are no longer those that Replicator made.

    Raises:
        SchemaConflictError: `schema_conflict`.
    """
    if (why := conflict(metadata)) is not None:
        raise SchemaConflictError(
            f"Somebody else changed the columns of the target table. {why}",
            code="schema_conflict",
            table=table,
            action=RECREATE,
        )


@contextmanager
def translated(table: str, *, path: str = "", batch: Batch | None = None) -> Iterator[None]:
    """Translate errors of Spark, Delta and file systems into ours.

    Args:
        table: The table worked on, as `schema.table`.
        path: Its folder.
        batch: The batch that is being applied: an error that names one of its files is about the journal, not the target.
    """
    try:
        yield
    except ReplicatorError:
        raise
    except Exception as error:
        files = () if batch is None else tuple(file.uri for file in batch.files)
        ours = translate(error, table, files, path=path, size="" if batch is None else _size(batch))
        if ours is None:
            error.add_note(_frames(str(error)))  # asked of the JVM now: when it is logged, Spark has been stopped
            raise
        raise ours from error


def translate(
    error: BaseException, table: str, files: tuple[str, ...] = (), *, path: str = "", size: str = ""
) -> ReplicatorError | None:
    """Return our error for `error`; None if it is not known, which makes it a bug."""
    if lost := spark_error(error):
        return lost
    if isinstance(error, LostFilesError):
        return not_whole(table, str(error))
    if isinstance(error, DamagedLogError):
        action = _RESTORE_LOG if not error.version else _RESTORE_COMMIT
        return TargetDamagedError(str(error), code="target_unreadable", table=table, action=action)
    text = str(error)
    return (
        _of_log(text, table)
        or _of_access(text, files)
        or _of_memory(text, table, size)
        or _of_storage(error, text, table, path)
        or _of_data(text, table)
        or _of_files(text, table, files)
        or _of_spark(error, text, table)
    )


def is_concurrent(error: BaseException) -> bool:
    """Return whether the statement lost against another commit."""
    return _CONCURRENT.search(str(error)) is not None


def is_missing(error: BaseException) -> bool:
    """Return whether a checked merge found that a row is missing."""
    return ROW_MISSING in str(error)


def words_of(text: str) -> str:
    """The message of Spark, Delta or the storage, in one line: never a value of a row.

    The last cause whose kind speaks of names, paths and hosts alone; else the condition that Spark names.
    """
    first = text.strip().split("\n", 1)[0]
    told = [(name, words) for full, name, words in _CAUSE.findall(text) if _SPEAKS.fullmatch(full) and words]
    if told:
        name, words = told[-1]
        line = f"{name}: {words}"
    elif named := _NAMES.search(first):
        line = first[named.start() :]
    else:
        return _condition(text)
    return " ".join(line.split())[:_WORDS_MAX].rstrip(". ")


def _of_log(text: str, table: str) -> ReplicatorError | None:
    if not _LOG.search(text):
        return None
    return TargetDamagedError(
        f"The Delta log of the table cannot be read: {words_of(text)}.",
        code="target_unreadable",
        table=table,
        action=_RESTORE_LOG,
    )


def _of_access(text: str, files: tuple[str, ...]) -> ReplicatorError | None:
    """The error for executors of another user than ours: files of a local journal are readable by their owner only."""
    if "Permission denied" not in text or not any(_is_here(uri) and _name(uri) in text for uri in files):
        return None
    return FatalError(
        "Spark's executors have no right to read a journal file.",
        code="path_not_shared",
        action="Run the executors as the user of this process, or choose a journal.uri that both may read.",
    )


def _of_spark(error: BaseException, text: str, table: str) -> ReplicatorError | None:
    """The error for anything unexpected: a statement that Spark refuses fails its table, a job that failed is retried."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if not isinstance(error, Py4JJavaError | PySparkException):
        return None
    thrown = _CAUSE.search(text)
    if _REFUSED.search(type(error).__name__) or (thrown is not None and _REFUSED.search(thrown[2])):
        return TableError(
            f"Spark refuses a statement: {words_of(text)}.",
            code="spark_refused",
            table=table,
            action="Report it with the log. Until it is fixed, exclude the table (tables.exclude).",
        )
    return TargetUnavailableError(
        f"A job of Spark failed: {words_of(text)}.",
        code="spark_failed",
        table=table,
        action="It is retried automatically; the log has the details.",
    )


def _size(batch: Batch) -> str:
    rows = "1 row" if batch.rows == 1 else f"{batch.rows:,} rows"
    return f"{rows} ({sum(file.bytes for file in batch.files) / (1 << 20):,.1f} MiB in the journal)"


def _of_memory(text: str, table: str, size: str) -> ReplicatorError | None:
    """The error for too little memory. A smaller batch may fit; where it cannot shrink, the table waits, and fails alone in the end."""
    if "out of space in CodeCache" in text or "java.lang.OutOfMemoryError" not in text:
        return None
    return ThrottledError(
        f"Spark ran out of memory{f' during a batch of {size}' if size else ''}.",
        code="spark_out_of_memory",
        table=table,
        action="Give Spark more memory (spark.settings.spark.driver.memory; on a cluster also spark.executor.memory).",
        may_halve=True,
    )


def _of_storage(error: BaseException, text: str, table: str, path: str) -> ReplicatorError | None:
    if _CONCURRENT.search(text):
        return TargetUnavailableError(
            f"Another writer changed the table at the same time: {words_of(text)}.",
            code="target_busy",
            table=table,
            action="It is retried automatically.",
        )
    if _EXECUTORS.search(text) and "java.lang.OutOfMemoryError" not in text:
        return TargetUnavailableError(
            f"Spark lost executors while it worked on the table, and gave up after its own retries: {words_of(text)}.",
            code="spark_executors_lost",
            table=table,
            action="It is retried automatically. If it happens again, check the executors' logs (exit codes 52, 137: too little memory).",
        )
    if _SCRATCH.search(text) and _UNUSABLE.search(text):
        folder = local_folder()
        return TargetUnavailableError(
            f"Spark cannot use its folder for temporary files{f' {folder}' if folder else ''}: {words_of(text)}.",
            code="spark_scratch_unusable",
            table=table,
            action=(
                "Check space and rights of SPARK_LOCAL_DIRS on the workers (local masters: of that folder, which is in REPLICATOR_HOME by "
                "default), and that nothing deletes its files."
            ),
        )
    if "File name too long" in text:
        return TableError(
            "The name of the table or of its schema is too long for a folder: other characters than ASCII letters and digits are written "
            "as two digits for each of their bytes.",
            code="table_name_too_long",
            table=table,
            action="Rename the table in the source, exclude it (tables.exclude), or write to an object store.",
        )
    for words, code, action in _STORAGE:
        if words in text:
            told = words_of(text)
            where = f" at {path}" if path else ""
            message = f"The target's storage failed{where}: {words if told == _UNKNOWN else told}."
            return TargetUnavailableError(message, code=code, table=table, action=action)
    if isinstance(error, OSError):
        message = f"The target's storage failed: {error.strerror or type(error).__name__}."
        return TargetUnavailableError(message, code="target_unreachable", table=table)
    return None


def _of_data(text: str, table: str) -> ReplicatorError | None:
    if "DELTA_NOT_NULL_CONSTRAINT_VIOLATED" in text:
        return KeyMissingError("A change has no value in a key column.", code="key_missing", table=table)
    if "DELTA_MULTIPLE_SOURCE_ROW_MATCHING" in text:
        return FatalError(
            "Two rows in the source of a merge have the same key.",
            code="merge_not_unique",
            table=table,
            action="Report this as a bug.",
        )
    if "DELTA_CANNOT_MODIFY_APPEND_ONLY" in text:
        return TargetUnavailableError(
            f"Somebody else made the target table append-only: {words_of(text)}.",
            code="spark_failed",
            table=table,
            action="Run ALTER TABLE … UNSET TBLPROPERTIES ('delta.appendOnly') on it. The batch is retried automatically.",
        )
    if "DELTA_VIOLATE_CONSTRAINT" in text:
        return SchemaConflictError(
            f"A constraint that somebody else added to the target table refuses a row: {words_of(text)}.",
            code="schema_conflict",
            table=table,
            action="Drop it (ALTER TABLE … DROP CONSTRAINT …). Then run `replicator snapshot NAME TABLE`.",
        )
    # A mismatch met while reading a file is the file's fault, not the batch's.
    if _SHAPE.search(text) and "FAILED_READ_FILE" not in text:
        return SchemaConflictError(
            f"Spark refuses the batch: {words_of(text)}.",
            code="schema_conflict",
            table=table,
            action=RECREATE,
        )
    return None


def _of_files(text: str, table: str, files: tuple[str, ...]) -> ReplicatorError | None:
    if not _MISSING.search(text):
        return None
    unread = [uri for uri in files if _name(uri) in text]
    if any(_is_here(uri) for uri in unread) and "FileNotFoundException" in text:
        return FatalError(
            "Spark's executors cannot find a journal file that exists on this host.",
            code="path_not_shared",
            action="Let all hosts of the cluster mount the journal's folder at this path and run the executors as the user of this "
            "process, or choose a journal.uri that all can reach.",
        )
    if unread:
        return CorruptStreamError(
            f"A journal file cannot be read: {words_of(text)}.",
            code="journal_file_unreadable",
            table=table,
            action="Restore the file, or run `replicator snapshot NAME TABLE`.",
        )
    return not_whole(table, f"A data file of the target cannot be read: {words_of(text)}.")


def not_whole(table: str, message: str) -> TargetDamagedError:
    """The error for a table whose files differ from its log."""
    return TargetDamagedError(
        message,
        code="target_file_unreadable",
        table=table,
        action="Something else removed or changed files of the table. Recreate it: replicator snapshot NAME TABLE --recreate.",
    )


def _frames(text: str) -> str:
    """The Java exceptions of `text` and their stack frames, without their messages, which may hold values of rows."""
    lines = (_THROWN.match(line) for line in text.splitlines())
    return "\n".join(line[0] for line in lines if line)


def _condition(text: str) -> str:
    """The error's own name. Its message may hold values of rows, so it is not passed on."""
    match = _CONDITION.search(text)
    return match[1] if match else _UNKNOWN


def _is_here(uri: str) -> bool:
    return uri.startswith("file://") and Path(uri.removeprefix("file://")).exists()


def _name(uri: str) -> str:
    return uri.rsplit("/", 1)[-1]
