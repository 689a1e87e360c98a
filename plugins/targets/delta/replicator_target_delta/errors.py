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
from replicator_target_delta import rules
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
    ("No space left on device", rules.STORAGE_FULL, "Free space at the target's path."),
    ("Permission denied", rules.STORAGE_NOT_WRITABLE, _RIGHT),
    ("Read-only file system", rules.STORAGE_NOT_WRITABLE, _RIGHT),
    ("AccessControlException", rules.STORAGE_NOT_WRITABLE, _RIGHT),
    ("AccessDeniedException", rules.STORAGE_NOT_WRITABLE, _RIGHT),
    ("Mkdirs failed to create", rules.STORAGE_NOT_WRITABLE, _RIGHT),
    ("Unable to create directory", rules.STORAGE_NOT_WRITABLE, _RIGHT),
    ("Cannot create directory", rules.STORAGE_NOT_WRITABLE, _RIGHT),
    ("DELTA_CANNOT_CREATE_LOG_PATH", rules.STORAGE_NOT_WRITABLE, _RIGHT),
    ("java.net.ConnectException", rules.STORAGE_UNREACHABLE, "Check that the target's storage can be reached."),
    ("java.net.UnknownHostException", rules.STORAGE_UNREACHABLE, "Check that the target's storage can be reached."),
    ("java.net.SocketTimeoutException", rules.STORAGE_UNREACHABLE, "Check that the target's storage can be reached."),
    ("out of space in CodeCache", rules.CODE_CACHE_FULL, "Give the JVM more room for code (-XX:ReservedCodeCacheSize)."),
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


_RESTORE_COMMIT: Final = (
    "Restore the file, or recreate the table: replicator snapshot NAME TABLE --recreate. Then the file gets another name, and the table "
    "continues without it."
)
RECREATE: Final = rules.RECREATE


def not_readable(table: TargetTable, why: str, *, action: str = "Run the command again.") -> TableError:
    """The error for a state of a table that is to be compared, and does not exist any more or is not understood."""
    return rules.STATE_NOT_READABLE.error(TableError, table=str(table.table), why=why, action=action)


def refuse_columns_of_others(table: str, metadata: Mapping[str, Any]) -> None:
    """Refuse a table whose columns are no longer those that Replicator made.

    Raises:
        SchemaConflictError: `schema_conflict`.
    """
    if (why := conflict(metadata)) is not None:
        raise rules.COLUMNS_CHANGED.error(SchemaConflictError, table=table, why=why)


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
        action = rules.RESTORE_LOG if not error.version else _RESTORE_COMMIT
        return rules.LOG_DAMAGED.error(TargetDamagedError, table=table, error=str(error), action=action)
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
    return rules.LOG_UNREADABLE.error(TargetDamagedError, table=table, words=words_of(text))


def _of_access(text: str, files: tuple[str, ...]) -> ReplicatorError | None:
    """The error for executors of another user than ours: files of a local journal are readable by their owner only."""
    if "Permission denied" not in text or not any(_is_here(uri) and _name(uri) in text for uri in files):
        return None
    return rules.JOURNAL_NOT_READABLE.error(FatalError)


def _of_spark(error: BaseException, text: str, table: str) -> ReplicatorError | None:
    """The error for anything unexpected: a statement that Spark refuses fails its table, a job that failed is retried."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if not isinstance(error, Py4JJavaError | PySparkException):
        return None
    thrown = _CAUSE.search(text)
    if _REFUSED.search(type(error).__name__) or (thrown is not None and _REFUSED.search(thrown[2])):
        return rules.SPARK_REFUSED.error(TableError, table=table, words=words_of(text))
    return rules.JOB_FAILED.error(TargetUnavailableError, table=table, words=words_of(text))


def _size(batch: Batch) -> str:
    rows = "1 row" if batch.rows == 1 else f"{batch.rows:,} rows"
    return f"{rows} ({sum(file.bytes for file in batch.files) / (1 << 20):,.1f} MiB in the journal)"


def _of_memory(text: str, table: str, size: str) -> ReplicatorError | None:
    """The error for too little memory. A smaller batch may fit; where it cannot shrink, the table waits, and fails alone in the end."""
    if "out of space in CodeCache" in text or "java.lang.OutOfMemoryError" not in text:
        return None
    return rules.SPARK_OUT_OF_MEMORY.error(
        ThrottledError, table=table, size=f" during a batch of {size}" if size else "", may_halve=True
    )


def _of_storage(error: BaseException, text: str, table: str, path: str) -> ReplicatorError | None:
    if _CONCURRENT.search(text):
        return rules.CHANGED_BY_ANOTHER.error(TargetUnavailableError, table=table, words=words_of(text))
    if _EXECUTORS.search(text) and "java.lang.OutOfMemoryError" not in text:
        return rules.SPARK_EXECUTORS_LOST.error(TargetUnavailableError, table=table, words=words_of(text))
    if _SCRATCH.search(text) and _UNUSABLE.search(text):
        folder = local_folder()
        return rules.SPARK_SCRATCH_UNUSABLE.error(
            TargetUnavailableError, table=table, folder=f" {folder}" if folder else "", words=words_of(text)
        )
    if "File name too long" in text:
        return rules.TABLE_NAME_TOO_LONG.error(TableError, table=table)
    for words, rule, action in _STORAGE:
        if words in text:
            told = words_of(text)
            where = f" at {path}" if path else ""
            fact = words if told == _UNKNOWN else told
            return rule.error(TargetUnavailableError, table=table, at=where, fact=fact, action=action)
    if isinstance(error, OSError):
        fact = error.strerror or type(error).__name__
        return rules.STORAGE_UNREACHABLE.error(TargetUnavailableError, table=table, at="", fact=fact)
    return None


def _of_data(text: str, table: str) -> ReplicatorError | None:
    if "DELTA_NOT_NULL_CONSTRAINT_VIOLATED" in text:
        return rules.KEY_MISSING.error(KeyMissingError, table=table)
    if "DELTA_MULTIPLE_SOURCE_ROW_MATCHING" in text:
        return rules.MERGE_NOT_UNIQUE.error(FatalError, table=table)
    if "DELTA_CANNOT_MODIFY_APPEND_ONLY" in text:
        return rules.APPEND_ONLY.error(TargetUnavailableError, table=table, words=words_of(text))
    if "DELTA_VIOLATE_CONSTRAINT" in text:
        return rules.CONSTRAINT_REFUSES.error(SchemaConflictError, table=table, words=words_of(text))
    # A mismatch met while reading a file is the file's fault, not the batch's.
    if _SHAPE.search(text) and "FAILED_READ_FILE" not in text:
        return rules.BATCH_REFUSED.error(SchemaConflictError, table=table, words=words_of(text))
    return None


def _of_files(text: str, table: str, files: tuple[str, ...]) -> ReplicatorError | None:
    if not _MISSING.search(text):
        return None
    unread = [uri for uri in files if _name(uri) in text]
    if any(_is_here(uri) for uri in unread) and "FileNotFoundException" in text:
        return rules.JOURNAL_NOT_SHARED.error(FatalError)
    if unread:
        return rules.JOURNAL_FILE_UNREADABLE.error(CorruptStreamError, table=table, words=words_of(text))
    return not_whole(table, f"A data file of the target cannot be read: {words_of(text)}.")


def not_whole(table: str, message: str) -> TargetDamagedError:
    """The error for a table whose files differ from its log."""
    return rules.TARGET_FILE_UNREADABLE.error(TargetDamagedError, table=table, message=message)


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
