"""Tables that failed by something in the source continue by themselves once it is in order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from structlog.testing import capture_logs

from replicator.model.errors import AccessDeniedError, CurableError, Problem, ReplicatorError, TableError
from replicator.model.schema import TableId
from replicator.state.records import Decision, Stage
from replicator.state.table_life import RESUMES_MAX
from replicator_testbed.present import present
from tests.unit.capture.conftest import NAME

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench, Running

STREAMING = (Stage.STREAMING,)


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


def fail(bench: Bench, capture: Running, table: TableId, error: ReplicatorError | None = None) -> None:
    """Have the log fail a table by something that the check finds."""
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
    entry = bench.store.history(NAME, 10)[-1]
    assert (entry.table, entry.operation, entry.decision) == (bad, None, Decision.SNAPSHOT)
    assert "column_not_captured" in present(entry.reason)
    (line,) = [line for line in lines if line["event"] == "table_resumed"]
    assert (line["table"], line["code"]) == (str(bad), "column_not_captured")


def test_a_table_that_failed_by_anything_else_waits_for_a_person(bench: Bench) -> None:
    bad, good = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        fail(bench, capture, bad, TableError("bad", code="source_error", table=str(bad)))
        bench.database.problems.clear()
        fail(bench, capture, good)
        bench.database.problems.clear()
        capture.until(lambda: bench.known(good).stage is Stage.STREAMING)
        assert bench.known(bad).stage is Stage.FAILED


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
