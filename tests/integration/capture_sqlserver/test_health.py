"""A capture job that has stopped or fails: never green, and replicated further by itself once the job works again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from replicator.model.errors import SourceUnavailableError
from replicator.model.schema import TableId
from replicator.runtime.policy import Consequence, RetryBudget, RetryLimits, consequence
from replicator_testbed.journals.captured import Captured
from replicator_testbed.sqlserver.capture.job import Failure
from replicator_testbed.sqlserver.databases import SqlServerDatabase
from replicator_testing.waiting import wait_until
from tests.integration.capture_sqlserver.conftest import Make, assert_equal

T = TableId("dbo", "t")
FAILURE = Failure(number=2628, text="String or binary data would be truncated")


@pytest.fixture
def captured(captured_database: SqlServerDatabase, make: Make, monkeypatch: pytest.MonkeyPatch) -> Captured:
    """A table that streams, with seconds in place of minutes."""
    for name, seconds in {
        "HEARTBEAT_S": 0.2,
        "BEHIND_S": 1.0,
        "FAILING_S": 3.0,
        "MARKED_S": 5.0,
        "_POLLS": 0.0,
    }.items():
        monkeypatch.setattr(f"replicator_source_sqlserver.cdc.job.{name}", seconds)
    captured_database.execute("CREATE TABLE t (id int NOT NULL PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    captured_database.capture("t")
    captured = make(captured_database, "t")
    captured.settings = replace(captured.settings, measure_every_s=0.1)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    return captured


def freshness(captured: Captured) -> timedelta:
    """How old what was made durable is, as the status has it."""
    segment = captured.store.journal.last_segment(captured.name)
    assert segment is not None
    assert segment.source_time is not None
    return datetime.now(UTC) - segment.source_time


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("failure", "code"), [(None, "capture_stalled"), (FAILURE, "capture_failing")])
def test_a_capture_job_that_captures_nothing_is_never_green(
    captured_database: SqlServerDatabase, captured: Captured, failure: Failure | None, code: str
) -> None:
    job = captured_database.server.capture
    budget = RetryBudget(limits=RetryLimits(first_s=0.1, longest_s=1.0, give_up_after_s=60.0))

    def end() -> None:
        if failure is None:
            job.stop()
        else:
            job.failure = failure
        captured_database.execute("INSERT INTO t VALUES (3)")

    def ended(error: BaseException) -> None:
        """With the reason, after which the supervisor begins again."""
        assert isinstance(error, SourceUnavailableError)
        assert error.code == code
        assert ("2628" in error.message) == (failure is not None)
        assert consequence(error) is Consequence.RETRY

    with captured.running() as running:
        captured.catch_up(running)
        end()
        line = running.wait_until(lambda: running.control.status.waiting_for, "the status says why")
        assert "capture_behind" in line[0]
        begun = freshness(captured)
        ended(running.error())
        assert freshness(captured) > begun
    assert budget.delay(0.0) is not None
    with captured.running() as running:
        # The next attempt finds it at once, in place of seconds in which nothing is said.
        ended(running.error())
        assert running.control.status.waiting_for
    assert budget.delay(1.0) is not None
    assert budget.delay(61.0) is None
    if failure is None:
        job.start()
    else:
        job.failure = None
    job.scan_all()
    with captured.running() as running:
        captured.catch_up(running)
        wait_until(lambda: not running.control.status.waiting_for, "nothing is behind any more")
    assert_equal(captured, captured_database, "t")
