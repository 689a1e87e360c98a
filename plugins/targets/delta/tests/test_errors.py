"""Who acts on an error of Spark or Delta."""

from __future__ import annotations

from pathlib import Path

import pytest

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
from replicator_target_delta.errors import translate, translated, words_of

JOURNAL = ("file:///journal/0001-abc.parquet",)


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("java.io.IOException: No space left on device", TargetUnavailableError, "target_full"),
        ("Mkdirs failed to create file:/x", TargetUnavailableError, "target_not_writable"),
        (
            "io.delta.exceptions.ConcurrentAppendException: [DELTA_CONCURRENT_APPEND]",
            TargetUnavailableError,
            "target_busy",
        ),
        ("java.lang.VirtualMachineError: out of space in CodeCache", TargetUnavailableError, "spark_out_of_memory"),
        ("java.lang.OutOfMemoryError: Java heap space", ThrottledError, "spark_out_of_memory"),
        ("[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated", KeyMissingError, "key_missing"),
        (
            "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times: ExecutorLostFailure (executor 1 exited)",
            TargetUnavailableError,
            "spark_executors_lost",
        ),
        (
            "FetchFailed(null): org.apache.spark.shuffle.MetadataFetchFailedException … java.net.ConnectException",
            TargetUnavailableError,
            "spark_executors_lost",
        ),
        (
            "[STAGE_MATERIALIZATION_MULTIPLE_FAILURES] java.io.FileNotFoundException: /tmp/blockmgr-1/0c/temp_shuffle_2 (No such file)",
            TargetUnavailableError,
            "spark_scratch_unusable",
        ),
        (
            "java.nio.file.NoSuchFileException: /x/y\n\tat org.apache.spark.storage.DiskBlockManager.getFile(DiskBlockManager.scala)",
            TargetUnavailableError,
            "spark_scratch_unusable",
        ),
        (
            "java.io.IOException: No space left on device … /tmp/local/blockmgr-1/0c/temp_shuffle_2",
            TargetUnavailableError,
            "spark_scratch_unusable",
        ),
        (
            "java.io.IOException: No space left on device\n\tat org.apache.spark.storage.TimeTrackingOutputStream.write(X.java:59)",
            TargetUnavailableError,
            "spark_scratch_unusable",
        ),
        (
            "java.io.FileNotFoundException: File file:/lake/t/deletion_vector_1.bin does not exist",
            TargetDamagedError,
            "target_file_unreadable",
        ),
        ("ExecutorLostFailure: java.lang.OutOfMemoryError", ThrottledError, "spark_out_of_memory"),
        ("[CAST_OVERFLOW] The value 1234 of the type", SchemaConflictError, "schema_conflict"),
        ("[FAILED_READ_FILE.NO_HINT] file:///journal/0001-abc.parquet", CorruptStreamError, "journal_file_unreadable"),
        (
            ": java.lang.RuntimeException: 7\nCaused by: org.apache.hadoop.fs.ChecksumException: Checksum error: /t/_delta_log/1.json at 0",
            TableError,
            "target_unreadable",
        ),
        ("java.io.FileNotFoundException: /x/y (File name too long)", TableError, "table_name_too_long"),
        ("[DELTA_LOG_FILE_NOT_FOUND] Unable to retrieve the delta log files", TableError, "target_unreadable"),
        ("[FAILED_READ_FILE.NO_HINT] file:///lake/part-1.parquet", TargetDamagedError, "target_file_unreadable"),
    ],
)
def test_reason_decides_who_acts(text: str, kind: type[ReplicatorError], code: str) -> None:
    error = translate(RuntimeError(text), "public.people", JOURNAL)
    assert isinstance(error, kind)
    assert (error.code, error.table) == (code, "public.people")


def test_a_batch_that_needs_too_much_memory_is_halved_and_its_size_told() -> None:
    error = translate(
        RuntimeError("java.lang.OutOfMemoryError: Java heap space"), "public.a", size="2 rows (190.8 MiB)"
    )
    assert isinstance(error, ThrottledError)
    assert (error.may_halve, error.is_limit, error.table) == (True, False, "public.a")
    assert str(error).startswith("public.a: Spark ran out of memory during a batch of 2 rows (190.8 MiB).")


def test_journal_file_that_only_the_driver_sees_is_not_called_damaged(tmp_path: Path) -> None:
    file = tmp_path / "0001-abc.parquet"
    text = f"[FAILED_READ_FILE.FILE_NOT_EXIST] {file.as_uri()} … java.io.FileNotFoundException: File {file.as_uri()} does not exist"
    lost = translate(RuntimeError(text), "public.people", (file.as_uri(),))
    file.write_bytes(b"")
    error = translate(RuntimeError(text), "public.people", (file.as_uri(),))
    assert isinstance(lost, CorruptStreamError)
    assert isinstance(error, FatalError)
    assert error.code == "path_not_shared"


def test_journal_file_that_executors_may_not_read_is_not_called_the_targets(tmp_path: Path) -> None:
    file = tmp_path / "0001-abc.parquet"
    file.write_bytes(b"")
    text = (
        f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {file.as_uri()}. SQLSTATE: KD001\n"
        f"Caused by: java.io.FileNotFoundException: {file} (Permission denied)"
    )
    error = translate(RuntimeError(text), "public.people", (file.as_uri(),))
    assert isinstance(error, FatalError)
    assert error.code == "path_not_shared"
    assert "user" in (error.action or "")
    other = translate(RuntimeError(text.replace("0001-abc", "part-1")), "public.people", (file.as_uri(),))
    assert other is not None
    assert other.code == "target_not_writable"


def test_values_of_rows_are_not_passed_on() -> None:
    error = translate(RuntimeError("[CAST_OVERFLOW] The value 1234 of the type"), "public.people")
    assert isinstance(error, ReplicatorError)
    assert "1234" not in str(error)
    assert "CAST_OVERFLOW" in str(error)


def test_a_missing_file_of_nobody_is_not_the_tables() -> None:
    assert translate(RuntimeError("java.io.FileNotFoundException: /etc/x"), "public.people") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            ": java.lang.IllegalStateException: 1234\n\tat a.B.c(B.java:7)\nCaused by: java.net.ConnectException: Call to a:1 failed: x",
            "ConnectException: Call to a:1 failed: x",
        ),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `a` cannot be resolved. SQLSTATE: 42703; line 1\nMERGE INTO",
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `a` cannot be resolved. SQLSTATE: 42703; line 1",
        ),
        ("[CAST_INVALID_INPUT] The value 'a' of the type", "CAST_INVALID_INPUT"),
        (': java.lang.NumberFormatException: For input string: "1234"', "no further reason given"),
        (
            "requirement failed: The table property delta.logRetentionDuration(24 hours) needs to be greater.",
            "The table property delta.logRetentionDuration(24 hours) needs to be greater",
        ),
        ("java.io.IOException: " + "x" * 1000, "IOException: " + "x" * 287),
    ],
)
def test_the_causes_own_words_are_kept_and_values_of_rows_are_not(text: str, words: str) -> None:
    assert words_of(text) == words


def test_unknown_error_stays_what_it_is() -> None:
    assert translate(RuntimeError("something new"), "public.people") is None


def test_an_unknown_error_of_java_says_where_without_what() -> None:
    text = ": java.lang.IllegalStateException: the value 1234\n\tat a.B.c(B.java:7)\nCaused by: x.YError: 1234"
    with pytest.raises(RuntimeError) as caught, translated("public.people"):
        raise RuntimeError(text)
    assert caught.value.__notes__ == [": java.lang.IllegalStateException\n\tat a.B.c(B.java:7)\nCaused by: x.YError"]


def test_full_disk_in_our_own_files_is_transient() -> None:
    with pytest.raises(TargetUnavailableError), translated("public.people"):
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_named() -> None:
    told = "/lake/public/t: IOException: No space left on device"
    with pytest.raises(TargetUnavailableError, match=told), translated("public.t", path="/lake/public/t"):
        raise RuntimeError("x\njava.io.IOException: No space left on device")
