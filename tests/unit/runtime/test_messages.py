"""Errors cross the pipe between worker and supervisor whole, and values of unknown ones do not cross at all."""

from __future__ import annotations

import json

from replicator.model.errors import LogGapError, ReplicatorError, SourceUnavailableError
from replicator.runtime import messages


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
