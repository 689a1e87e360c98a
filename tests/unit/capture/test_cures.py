"""Tables that failed by something in the source continue by themselves once it is in order."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from replicator.capture.cures import Cures
from replicator.model.errors import (
    AccessDeniedError,
    CurableError,
    KeyMissingError,
    Problem,
    RefusedError,
    ReplicatorError,
    TableError,
    UnsupportedTypeError,
)
from replicator.model.schema import TableId
from replicator.state import table_life
from replicator.state.records import Decision, ErrorRecord, RequestKind, Stage
from replicator.state.table_life import DDL_STOP, JOURNAL_GIVEN_UP, RESUMES_MAX, VALUE_DOES_NOT_FIT
from replicator_testbed.present import present
from tests.unit.capture.conftest import NAME

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench, Running

STREAMING = (Stage.STREAMING,)
ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def two(bench: Bench) -> list[TableId]:
    bench.settings = replace(bench.settings, cure_every_s=0.05)
    tables = [bench.create(bench.schema(name)) for name in ("t1", "t2")]
    for table in tables:
        bench.fill(table, 3)
    return tables


def finding(table: TableId | None, code: str = "column_not_captured") -> Problem:
    return Problem(
        code=code,
        message="it lacks a column",
        table=None if table is None else str(table),
        location="here",
        action="Add it.",
    )


def fail(
    bench: Bench, capture: Running, table: TableId, error: ReplicatorError | None = None, *, is_found: bool = True
) -> None:
    """Have the log fail a table by something that the check finds."""
    if is_found:
        bench.database.problems.append(finding(table))
    curable = CurableError("it lacks a column.", code="column_not_captured", table=str(table), action="Add it.")
    capture.source.faults.script("pull", error or curable)
    capture.until(lambda: bench.known(table).stage is Stage.FAILED)
    bench.write(table, {"id": 50 + len(bench.known(table).resumed_at), "a": "unseen", "b": None})


def asked_again(capture: Running) -> None:
    """Wait until the source was asked, and the answer was taken."""
    before = capture.source.faults.counts["check"]
    capture.until(lambda: capture.source.faults.counts["check"] >= before + 2)


def test_a_failed_table_continues_in_place_once_the_check_finds_nothing(bench: Bench) -> None:
    bad, good = two(bench)
    with bench.running() as capture, capture_logs() as lines:
        capture.until(bench.is_at(*STREAMING))
        fail(bench, capture, bad)
        asked_again(capture)
        assert bench.known(bad).stage is Stage.FAILED
        bench.database.problems.clear()
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(bad)())
        bench.write(bad, {"id": 70, "a": "later", "b": None})
        bench.write(good, {"id": 70, "a": "later", "b": None})
        capture.until(lambda: bench.holds(bad)() and bench.holds(good)())
    record = bench.known(bad)
    assert (record.incarnation, len(record.resumed_at), record.error) == (1, 1, None)
    assert present(record.snapshot).start_number is not None, "in place"
    entry = bench.store.histories.latest(NAME, 10)[-1]
    assert (entry.table, entry.operation, entry.decision) == (bad, None, Decision.SNAPSHOT)
    assert "column_not_captured" in present(entry.reason)
    (line,) = [line for line in lines if line["event"] == "table_resumed"]
    assert (line["table"], line["code"]) == (str(bad), "column_not_captured")


def test_a_table_that_failed_by_anything_else_waits_for_a_person(bench: Bench) -> None:
    bad, good = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        fail(bench, capture, bad, TableError("bad", code="source_error", table=str(bad)), is_found=False)
        fail(bench, capture, good)
        bench.database.problems.clear()
        capture.until(lambda: bench.known(good).stage is Stage.STREAMING)
        assert bench.known(bad).stage is Stage.FAILED


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", [TableError, RefusedError, KeyMissingError, UnsupportedTypeError])
@pytest.mark.parametrize("point", ["pull", "prepare"])
def test_what_the_check_finds_is_the_reason_of_a_failure_that_another_part_met_first(
    bench: Bench, point: str, kind: type[TableError]
) -> None:
    bad, _ = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.database.problems.append(finding(bad))
        error = kind("another reason", code="other", table=str(bad), action="Run `replicator snapshot NAME TABLE`.")
        capture.source.faults.script(point, error)
        if point == "prepare":
            bench.store.requests.add(NAME, RequestKind.SNAPSHOT, {"tables": [str(bad)]})
        capture.until(lambda: bench.known(bad).stage is Stage.FAILED and bench.error_of(bad).is_curable)
        found = bench.error_of(bad)
        assert (found.code, found.message) == ("column_not_captured", "it lacks a column.")
        assert present(found.action).startswith("Add it. Then a new snapshot begins by itself")
        bench.write(bad, {"id": 70, "a": "unseen", "b": None})
        bench.database.problems.clear()
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(bad)())


# All that a check may find against one table or all, as the documentation has them.
FINDINGS = re.findall(r"^\| `(\w+)` \| (?:\w+, )*finding \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)


def test_every_finding_of_a_check_makes_the_failure_one_that_resumes_by_itself(bench: Bench) -> None:
    """Whatever the source, and whatever part met it first. That a table is not there has ways of its own."""
    codes = sorted({*FINDINGS} - {"table_not_found", "table_missing"})
    assert len(codes) > 40
    tables = {code: bench.create(bench.schema(code)) for code in codes}
    bench.database.problems += [finding(table, code) for code, table in tables.items()]
    _, source = bench.make()
    cures = Cures(source=source, clock=time.monotonic, every_s=1.0)
    failed = {}
    for code, table in tables.items():
        error = ErrorRecord.of(TableError("met by the log", code=code, table=str(table)), NOW)
        record = table_life.failed(table_life.added(table), error)
        assert table_life.may_have_finding(record), code
        failed[table] = error
    found: dict[TableId, TableError] = {}
    for _ in range(2):
        cures.explain(failed, at_once, found.update)
    for code, table in tables.items():
        record = table_life.failed(table_life.added(table), ErrorRecord.of(found[table], NOW))
        assert table_life.resumes_itself(record, NOW), code
        assert found[table].code == code


def at_once(call: Callable[..., Any], *arguments: object) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(call(*arguments))
    return done


def test_a_failure_that_the_check_does_not_find_keeps_its_reason_and_is_asked_about_once(bench: Bench) -> None:
    bad, good = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        fail(bench, capture, bad, TableError("bad", code="source_error", table=str(bad)), is_found=False)
        # One is the check of the log that is opened again.
        capture.until(lambda: capture.source.faults.counts["check"] == 2)
        bench.fill(good, 20, first=100)
        capture.until(bench.holds(good))
        assert capture.source.faults.counts["check"] == 2
        assert (bench.error_of(bad).code, bench.error_of(bad).is_curable) == ("source_error", False)


@pytest.mark.parametrize("code", [DDL_STOP, VALUE_DOES_NOT_FIT, JOURNAL_GIVEN_UP])
def test_a_failure_by_a_policy_or_by_the_target_is_no_question_to_the_source(bench: Bench, code: str) -> None:
    bad, good = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        fail(bench, capture, bad, TableError("bad", code=code, table=str(bad)))
        bench.fill(good, 20, first=100)
        capture.until(bench.holds(good))
        assert capture.source.faults.counts["check"] == 1, "that of the log that is opened again"
        assert bench.error_of(bad).code == code


def test_a_cure_that_comes_while_no_capture_runs_is_seen_by_the_next(bench: Bench) -> None:
    """Whether the start's check sees it, or one later."""
    bad, _ = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        fail(bench, capture, bad)
    with bench.running() as capture:
        asked_again(capture)
        assert bench.known(bad).stage is Stage.FAILED
        assert bench.error_of(bad).is_curable
        bench.database.problems.clear()
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(bad)())
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        fail(bench, capture, bad)
    bench.database.problems.clear()
    with bench.running() as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(bad)())
    assert len(bench.known(bad).resumed_at) == 2


def test_a_table_that_fails_again_and_again_is_left_to_a_person(bench: Bench) -> None:
    bad, _ = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        for round_ in range(RESUMES_MAX):
            fail(bench, capture, bad)
            bench.database.problems.clear()
            capture.until(bench.is_at(*STREAMING))
            assert len(bench.known(bad).resumed_at) == round_ + 1
        fail(bench, capture, bad)
        bench.database.problems.clear()
        checks = capture.source.faults.counts["check"]
        bench.fill(bench.tables[1], 20, first=100)
        capture.until(bench.holds(bench.tables[1]))
        assert capture.source.faults.counts["check"] == checks, "it is not even asked about"
        assert bench.known(bad).stage is Stage.FAILED


def test_a_table_that_may_not_be_read_continues_once_it_may(bench: Bench) -> None:
    bad, good = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        denied = AccessDeniedError("denied", code="access_denied", table=str(bad), action="GRANT it.")
        fail(bench, capture, bad, denied)
        assert present(bench.error_of(bad).action).startswith("GRANT it. Then a new snapshot begins by itself")
        bench.write(good, {"id": 70, "a": "new", "b": None})
        capture.until(bench.holds(good))
        bench.database.problems.clear()
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(bad)())


def test_nothing_continues_while_the_check_finds_something_about_the_server(bench: Bench) -> None:
    """Then it may not have come to the tables."""
    bad, _ = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        fail(bench, capture, bad)
        bench.database.problems[:] = [finding(None, "cdc_disabled")]
        asked_again(capture)
        assert bench.known(bad).stage is Stage.FAILED
        bench.database.problems.clear()
        capture.until(bench.is_at(*STREAMING))


def test_a_table_that_cannot_be_checked_does_not_continue(bench: Bench) -> None:
    bad, good = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        for table in (bad, good):
            fail(bench, capture, table)
        bench.database.problems.clear()
        capture.source.faults.fail("check", bad, lambda: OverflowError("x"))
        capture.until(lambda: bench.known(good).stage is Stage.STREAMING)
        assert bench.known(bad).stage is Stage.FAILED
        capture.source.faults.fail("check", good, lambda: OverflowError("x"))
        fail(bench, capture, good)
        bench.database.problems.clear()
        asked_again(capture)
        assert not bench.is_at(Stage.STREAMING)()
        capture.source.faults.heal()
        capture.until(bench.is_at(*STREAMING))


def test_a_dropped_table_is_not_cured(bench: Bench) -> None:
    bad, _ = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        fail(bench, capture, bad)
        bench.database.drop_table(bad)
        bench.database.problems.clear()
        asked_again(capture)
        assert bench.known(bad).stage is Stage.FAILED
