"""What one table causes in capture is that table's, and no other's."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from replicator.config import DDLConfig
from replicator.journal.table_file import TableFile
from replicator.model.errors import (
    AccessDeniedError,
    CorruptStreamError,
    FatalError,
    PluginError,
    SourceUnavailableError,
)
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.processes.reports import RunningStep
from replicator.model.schema import TableId
from replicator.state.records import RequestKind, Stage
from replicator_testbed.present import present

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench

STREAMING = (Stage.STREAMING,)
Failing = Callable[[TableId], Exception]


def three(bench: Bench) -> list[TableId]:
    tables = [bench.create(bench.schema(f"t{i}", key=() if i == 2 else ("id",))) for i in range(3)]
    for table in tables:
        bench.fill(table, 5)
    return tables


def has_failed(bench: Bench, table: TableId, code: str) -> bool:
    record = bench.record(table)
    return record is not None and record.stage is Stage.FAILED and present(record.error).code == code


def snapshot(bench: Bench, table: TableId) -> None:
    bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": [str(table)]})


@pytest.mark.sampled(6)
@pytest.mark.parametrize("call", ["read_chunk", "describe", "accept", "decode"])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (lambda t: AccessDeniedError("permission denied", code="access_denied", table=str(t)), "access_denied"),
        (lambda t: CorruptStreamError("malformed", code="corrupt_rows", table=str(t)), "corrupt_rows"),
        (lambda t: PluginError("no cursor", code="cursor_stuck", table=str(t)), "cursor_stuck"),
        (lambda _: RuntimeError("a value: 42"), "internal_error"),
    ],
)
def test_an_error_of_one_table_fails_it_and_the_others_continue(
    bench: Bench, call: str, error: Failing, code: str
) -> None:
    bad, good, bag = three(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        capture.source.faults.fail(call, bad, lambda: error(bad))
        for table in (bad, good, bag):
            bench.write(table, {"id": 70, "a": "new", "b": None})
        snapshot(bench, bad)
        capture.until(lambda: has_failed(bench, bad, code))
        record = bench.record(bad)
        assert record is not None
        assert "replicator snapshot NAME TABLE" in present(present(record.error).action)
        assert "42" not in present(record.error).message
        bench.write(good, {"id": 71, "a": "later", "b": None})
        bench.write(bag, {"id": 71, "a": "later", "b": None})
        capture.until(lambda: bench.holds(good)() and bench.holds(bag)())
        capture.source.faults.heal()
        capture.until(lambda: not bench.store.requests.open("test"))
        snapshot(bench, bad)
        capture.until(
            lambda: not bench.store.requests.open("test") and bench.is_at(*STREAMING)() and bench.holds(bad)()
        )
    assert all(bench.holds(t)() for t in (good, bag))


@pytest.mark.parametrize("method", ["append", "flush", "finish"])
@pytest.mark.parametrize("error", [RuntimeError, pa.ArrowInvalid, OverflowError])
def test_a_journal_file_that_cannot_be_written_fails_its_table(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str, error: type[Exception]
) -> None:
    bad, good, bag = three(bench)
    real, is_broken = getattr(TableFile, method), [True]

    def broken(file: TableFile, *arguments: Any) -> Any:
        if is_broken[0] and file.schema.table == bad:
            raise error("a value: 42")
        return real(file, *arguments)

    with capture_logs() as lines, bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        monkeypatch.setattr(TableFile, method, broken)
        for table in (bad, good, bag):
            bench.write(table, {"id": 70, "a": "new", "b": None})
        capture.until(lambda: has_failed(bench, bad, "internal_error"))
        capture.until(lambda: bench.holds(good)() and bench.holds(bag)())
        is_broken[0] = False
        snapshot(bench, bad)
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(bad)())
    told = [line for line in lines if line["event"] == "table_failed"]
    assert [line["table"] for line in told] == [str(bad)]
    assert isinstance(told[0]["exc_info"], error), "the log has the traceback"


def test_a_failure_in_the_first_copy_loses_nothing_of_the_others(bench: Bench) -> None:
    bad, good, bag = three(bench)
    with bench.running(lambda s: s.faults.fail("read_chunk", bad, lambda: RuntimeError("x"))) as capture:
        capture.until(lambda: has_failed(bench, bad, "internal_error"))
        capture.until(lambda: all(bench.known(t).stage is Stage.STREAMING for t in (good, bag)))
    assert bench.holds(good)()
    assert bench.holds(bag)()


def test_what_cannot_be_described_is_not_taken_for_dropped(bench: Bench) -> None:
    bench.settings = replace(bench.settings, ddl=lambda _: DDLConfig(drop_table="apply"), compare_every_s=0.02)
    bad, good, _ = three(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        capture.source.faults.fail("describe", bad, lambda: OverflowError("x"))
        capture.until(lambda: has_failed(bench, bad, "internal_error"))
        bench.write(good, {"id": 70, "a": "new", "b": None})
        capture.until(bench.holds(good))
    drops = [i for _, i in bench.items(bad) if isinstance(i, DDLEvent) and i.operation is DDLOperation.DROP_TABLE]
    assert not drops


@pytest.mark.parametrize(
    "error",
    [
        SourceUnavailableError("away", code="source_unavailable"),
        FatalError("restored", code="ledger_ahead", table="public.t0"),
        AccessDeniedError("the login is refused", code="access_denied"),
        MemoryError(),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_what_is_everybodys_is_not_put_on_a_table(bench: Bench, error: Exception) -> None:
    bench.settings = replace(bench.settings, chunk_retries=0)
    bad, _, _ = three(bench)
    with (
        pytest.raises(type(error)),
        bench.running(lambda s: s.faults.fail("read_chunk", bad, lambda: error)) as capture,
    ):
        capture.join()
    assert bench.known(bad).stage is not Stage.FAILED


def test_an_error_that_keeps_naming_a_table_in_vain_ends_the_capture(bench: Bench) -> None:
    bad, _, _ = three(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    error = CorruptStreamError("malformed", code="corrupt_log", table=str(bad))
    with pytest.raises(CorruptStreamError), bench.running(lambda s: s.faults.script("pull", *[error] * 50)) as capture:
        capture.join()
    assert has_failed(bench, bad, "corrupt_log")


def test_a_table_that_cannot_be_read_now_waits_alone_and_says_why(bench: Bench) -> None:
    bench.settings = replace(bench.settings, chunk_retries=0)
    locked, good, bag = three(bench)
    error = SourceUnavailableError("it is locked", code="lock_timeout", table=str(locked))
    with bench.running(lambda s: s.faults.fail("read_chunk", locked, lambda: error)) as capture:
        capture.until(lambda: bench.record(bag) is not None and bench.known(bag).stage is Stage.STREAMING)
        bench.write(good, {"id": 70, "a": "new", "b": None})
        capture.until(lambda: bench.known(good).stage is Stage.STREAMING and bench.holds(good)())
        capture.until(lambda: capture.control.status.tables[str(locked)].waiting is not None)
        assert capture.control.status.tables[str(locked)].snapshot_step in (RunningStep.WAITING, RunningStep.READING)
        waiting = capture.control.status.tables[str(locked)].waiting
        assert waiting is not None
        assert (waiting.code, waiting.message) == ("lock_timeout", "it is locked")
        capture.source.faults.heal()
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(locked)())
        capture.until(lambda: capture.control.status.tables[str(locked)].waiting is None)


@pytest.mark.parametrize("call", ["read_chunk", "read_whole.batch"])
def test_a_table_that_cannot_be_read_for_too_long_fails_and_says_what_is_to_be_done(bench: Bench, call: str) -> None:
    """Also one without a key, of which each read begins and comes to no end (a statement's time limit)."""
    bench.settings = replace(bench.settings, chunk_retries=0, give_up_after_s=0.2)
    keyed, good, bag = three(bench)
    bad = keyed if call == "read_chunk" else bag
    error = SourceUnavailableError("it is locked", code="lock_timeout", table=str(bad), action="End the lock")
    with bench.running(lambda s: s.faults.fail(call, bad, lambda: error)) as capture:
        capture.until(lambda: has_failed(bench, bad, "lock_timeout"))
        assert bench.error_of(bad).message == "gave up after retry.give_up_after: it is locked"
        assert bench.error_of(bad).action == "End the lock. Then run `replicator snapshot NAME TABLE`."
        bench.write(good, {"id": 70, "a": "new", "b": None})
        capture.until(lambda: bench.known(good).stage is Stage.STREAMING and bench.holds(good)())
        capture.source.faults.heal()
        snapshot(bench, bad)
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(bad)())
