"""Errors cross the pipe between worker and supervisor whole, and values of unknown ones do not cross at all."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from replicator.model.errors import LogGapError, ReplicatorError, SourceUnavailableError
from replicator.runtime import messages
from replicator.runtime.policy import Consequence, consequence


def test_an_error_of_ours_arrives_as_the_same_class_with_all_it_said() -> None:
    sent = LogGapError("expected 5, found 9", code="log_gap", table="public.a", action="Do that.")
    line = messages.encode(messages.ERROR, messages.encode_error(sent))
    fields = json.loads(line)
    assert fields.pop("event") == messages.ERROR
    got = messages.decode_error(fields)
    assert type(got) is LogGapError
    assert (got.message, got.code, got.table, got.action) == (sent.message, sent.code, sent.table, sent.action)


def test_an_unknown_exception_arrives_as_a_bug_without_its_text() -> None:
    value = "secret-row-value"
    try:
        int(value)
    except ValueError as error:
        fields = messages.encode_error(error)
    assert "secret-row-value" not in json.dumps(fields)
    got = messages.decode_error(fields)
    assert type(got) is ReplicatorError
    assert got.code == "internal_error"
    assert "ValueError" in got.message


def test_a_class_that_is_no_error_is_not_made() -> None:
    assert type(messages.decode_error({"kind": "Problem", "message": "m", "code": "c"})) is ReplicatorError
    assert (
        type(messages.decode_error({"kind": "SourceUnavailableError", "message": "m", "code": "c"}))
        is SourceUnavailableError
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/some/file"), "disk_full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk_full"),
        (OSError(errno.EROFS, "Read-only file system"), "disk_read_only"),
        (OSError(errno.EMFILE, "Too many open files"), "machine_exhausted"),
        (MemoryError(), "machine_exhausted"),
        (RuntimeError("can't start new thread"), "machine_exhausted"),
    ],
)
def test_what_the_host_has_run_out_of_is_retried_and_named(
    error: BaseException, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path))
    got = messages.decode_error(json.loads(json.dumps(messages.encode_error(error))))
    assert got.code == code
    assert consequence(got) is Consequence.RETRY
    if code == "disk_full":
        assert f"bytes on the volume of {tmp_path} (REPLICATOR_HOME)" in got.message
