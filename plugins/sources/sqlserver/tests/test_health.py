"""What is told of a capture job that stands still, fails, is behind, or keeps what it writes locked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from replicator.config import Secret
from replicator.model.errors import SourceUnavailableError
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins.source import LogReader, PullLimits, SourceContext
from replicator_source_sqlserver.cdc import queries as capturelog
from replicator_source_sqlserver.cdc.capture import ChangeDataCapture
from replicator_source_sqlserver.cdc.job import (
    BEHIND_S,
    FAILING_S,
    MARKED_S,
    CaptureHealth,
    polling_s,
)
from replicator_source_sqlserver.cdc.visibility import NotedHeads, known_head
from replicator_source_sqlserver.config import IDLE_S, SqlServerConfig
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.capture.job import Failure
from replicator_testbed.sqlserver.databases import SqlServerDatabase
from replicator_testbed.sqlserver.world import WIDE, Drained, World, drained, shown, world_of_two

T = TableId("dbo", "t")
FAILURE = Failure(number=2628, text="String or binary data would be truncated")


@dataclass
class Watched:
    """The log of a source, read while a test moves the clock; the capture job runs when it is told to."""

    database: SqlServerDatabase
    source: SqlServerSource
    reader: LogReader
    offset: Offset
    now: list[float] = field(default_factory=lambda: [0.0])

    def at(self, now: float) -> None:
        """Read at this time."""
        self.now[0] = now
        self.reader.pull(WIDE)

    def look_at_clock(self) -> None:
        """From now on the source's clock is the test's."""
        capture = self.source._capture
        assert isinstance(capture, ChangeDataCapture)
        assert capture._health is not None
        capture._health._clock = lambda: self.now[0]
        capture._health._moved_at = 0.0

    def scan(self) -> None:
        """Have everything captured."""
        self.database.server.capture.scan_all()

    @property
    def waiting_for(self) -> list[str]:
        """What the status says."""
        return list(self.source.status().waiting_for)


@pytest.fixture(params=[True, False], ids=["mark_table", "no_mark_table"])
def watched(database: SqlServerDatabase, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """With and without a mark table."""
    database.server.capture.start()
    database.execute("CREATE TABLE t (id int NOT NULL PRIMARY KEY)")
    database.capture("t")
    block = {name: value for name, value in database.source.items() if name != "type"}
    changed: dict[str, Any] = {} if request.param else {"mark_table": None}
    config = SqlServerConfig(**{**block, **changed}, password=Secret(database.server.password))
    source = SqlServerSource(config, SourceContext(replicator="shop", uuid="u1", epoch=1))
    offset = source.prepare([T], is_first=True)
    schemas = {T: source.describe([T])[T].schema}
    database.server.capture.stop()
    database.server.capture.scan_all()
    reader = source.open_log(offset, schemas)
    watched = Watched(database, source, reader, offset)
    watched.look_at_clock()
    yield watched
    watched.reader.close()
    source.close()


def has_mark_table(watched: Watched) -> bool:
    return watched.source.config.mark_table_id is not None


@pytest.mark.matrix
def test_a_job_that_stands_still_is_told(watched: Watched) -> None:
    limit_s = MARKED_S if has_mark_table(watched) else IDLE_S
    watched.at(1.0)
    watched.at(limit_s)
    with pytest.raises(SourceUnavailableError) as raised:
        watched.at(limit_s + 2.0)
    assert raised.value.code == "capture_stalled"


@pytest.mark.matrix
def test_a_job_that_seldom_looks_at_the_log_may_take_longer(watched: Watched) -> None:
    watched.database.execute("EXEC sys.sp_cdc_change_job @job_type = N'capture', @pollinginterval = 300")
    schemas = {T: watched.source.describe([T])[T].schema}
    watched.reader.close()
    watched.reader = watched.source.open_log(watched.offset, schemas)
    watched.look_at_clock()
    watched.at(1.0)
    watched.at(890.0)
    with pytest.raises(SourceUnavailableError) as raised:
        watched.at(905.0)
    assert raised.value.code == "capture_stalled"


@pytest.mark.matrix
def test_a_job_that_a_schedule_runs_has_no_pace_that_is_known(watched: Watched) -> None:
    watched.database.execute("EXEC sys.sp_cdc_change_job @job_type = N'capture', @continuous = 0")
    with watched.source._sessions.control.use("testing") as connection:
        assert polling_s(connection) == 0.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second in place of minutes."""
    for name, value in (("MARKED_S", 1.0), ("IDLE_S", 1.0), ("_POLLS", 0)):
        monkeypatch.setattr(f"replicator_source_sqlserver.cdc.job.{name}", value)


@pytest.mark.matrix
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("watched", [False], indirect=True)
def test_without_a_mark_table_an_attempt_says_from_its_beginning_how_old_the_last_commit_is(watched: Watched) -> None:
    """It does not end for it: nobody can tell whether there was anything to capture."""
    schemas = {T: watched.source.describe([T])[T].schema}
    watched.database.execute("INSERT INTO t VALUES (1)")
    watched.scan()
    time.sleep(1.5)
    with closing(watched.source.open_log(watched.offset, schemas)):
        (line,) = watched.waiting_for
    assert "capture_behind" in line


@pytest.mark.matrix
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("watched", [True], indirect=True)
def test_an_attempt_that_begins_while_the_job_stands_still_ends_at_once(watched: Watched) -> None:
    """It would else be green until its own time is up, again and again."""
    schemas = {T: watched.source.describe([T])[T].schema}
    watched.at(1.0)
    time.sleep(1.5)
    with pytest.raises(SourceUnavailableError) as raised:
        watched.source.open_log(watched.offset, schemas)
    assert raised.value.code == "capture_stalled"
    watched.database.execute("INSERT INTO t VALUES (1)")
    watched.scan()
    with closing(watched.source.open_log(watched.offset, schemas)) as reader:
        reader.pull(WIDE)
        assert watched.waiting_for == []


@pytest.mark.matrix
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("watched", [True], indirect=True)
def test_an_idle_database_whose_last_write_was_captured_is_no_stalled_one(watched: Watched) -> None:
    """As after a long pause: nothing was written, and nothing captured."""
    watched.at(1.0)
    watched.scan()
    time.sleep(1.5)
    schemas = {T: watched.source.describe([T])[T].schema}
    with closing(watched.source.open_log(watched.offset, schemas)) as reader:
        reader.pull(WIDE)
        assert watched.waiting_for == []


@pytest.mark.matrix
@pytest.mark.parametrize("watched", [True], indirect=True)
def test_a_job_that_was_behind_is_behind_for_the_next_attempt(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator_source_sqlserver.cdc.job.BEHIND_S", 1.0)
    watched.at(1.0)
    time.sleep(1.5)
    schemas = {T: watched.source.describe([T])[T].schema}
    with closing(watched.source.open_log(watched.offset, schemas)) as reader:
        (line,) = watched.waiting_for
        assert "capture_behind" in line
        reader.pull(WIDE)
        assert len(watched.waiting_for) == 1
        watched.scan()
        monkeypatch.setattr("replicator_source_sqlserver.cdc.job.HEARTBEAT_S", 0.0)
        reader.pull(WIDE)
        watched.scan()
        reader.pull(WIDE)
        assert watched.waiting_for == []


@pytest.mark.matrix
def test_a_job_that_fails_is_told_with_its_error(watched: Watched) -> None:
    watched.at(1.0)
    watched.database.server.capture.failure = FAILURE
    watched.database.execute("INSERT INTO t VALUES (1)")
    watched.scan()
    watched.at(FAILING_S - 10)
    with pytest.raises(SourceUnavailableError, match="error 2628") as raised:
        watched.at(FAILING_S + 2)
    assert raised.value.code == "capture_failing"
    # It continues by itself.
    watched.database.server.capture.failure = None
    watched.scan()
    watched.at(FAILING_S + 3)
    watched.at(FAILING_S + 20)


@pytest.mark.matrix
def test_an_error_that_was_mended_is_not_blamed(watched: Watched) -> None:
    watched.at(1.0)
    watched.database.server.capture.failure = FAILURE
    watched.database.execute("INSERT INTO t VALUES (1)")
    watched.scan()
    watched.database.server.capture.failure = None
    watched.scan()
    assert watched.database.execute("SELECT error_number FROM sys.dm_cdc_errors")
    watched.at(2.0)
    watched.at(2.0 + FAILING_S)
    limit_s = MARKED_S if has_mark_table(watched) else IDLE_S
    with pytest.raises(SourceUnavailableError) as raised:
        watched.at(15.0 + FAILING_S + limit_s)
    assert raised.value.code == "capture_stalled"
    assert "2628" not in raised.value.message


@pytest.mark.matrix
@pytest.mark.sampled(2)
@pytest.mark.parametrize("watched", [True], indirect=True)
def test_a_job_that_moves_but_is_behind_is_told_and_no_failure(watched: Watched) -> None:
    """It captures one transaction at a time, while more are made."""
    watched.database.execute("EXEC sys.sp_cdc_change_job @job_type = N'capture', @maxtrans = 1")
    capture = watched.database.server.capture
    watched.database.execute(*(f"INSERT INTO t VALUES ({n})" for n in range(20)))
    for n in range(20):
        capture.scan()
        watched.at(10.0 * n)
        assert bool(watched.waiting_for) == (10.0 * n >= BEHIND_S), (n, watched.waiting_for)
    assert watched.waiting_for == ["the capture job, which is at least 190 s behind (capture_behind)"]
    # The write of the beginning comes back, a later one is awaited: the job is no less behind for it.
    capture.scan()
    watched.at(200.0)
    assert watched.waiting_for == ["the capture job, which is at least 190 s behind (capture_behind)"]
    watched.database.execute("EXEC sys.sp_cdc_change_job @job_type = N'capture', @maxtrans = 500")
    watched.scan()
    watched.at(210.0)
    watched.scan()
    watched.at(220.0)
    assert watched.waiting_for == []


@pytest.mark.matrix
@pytest.mark.parametrize("watched", [False], indirect=True)
def test_without_a_mark_table_the_times_of_commits_tell_it(watched: Watched) -> None:
    watched.at(1.0)
    assert watched.waiting_for == []
    watched.database.server.set_clock(timedelta(hours=2))
    try:
        watched.at(12.0)
        (line,) = watched.waiting_for
        assert "capture_behind" in line
        watched.database.execute("INSERT INTO t VALUES (1)")
        watched.scan()
        watched.at(23.0)
        assert watched.waiting_for == []
    finally:
        watched.database.server.set_clock(timedelta(0))


@pytest.mark.matrix
@pytest.mark.parametrize("watched", [True], indirect=True)
def test_a_write_that_an_instance_has_lost_is_not_awaited_for_ever(watched: Watched) -> None:
    watched.at(0.0)
    watched.database.execute(
        "EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', @source_name = N'replicator_marks',"
        " @capture_instance = N'dbo_replicator_marks'"
    )
    watched.scan()
    watched.database.capture("replicator_marks")
    for now in (10.0, 20.0, 30.0, 40.0, 50.0):
        watched.scan()
        watched.at(now)
    assert watched.waiting_for == []


@pytest.fixture
def two(postgres: PostgresServer) -> Iterator[World]:
    """Two captured tables in a database without row versions; their readers wait for a lock only shortly."""
    with world_of_two(postgres) as two:
        two.execute("ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT OFF")
        two.connector.config = two.connector.config.model_copy(update={"lock_timeout": timedelta(milliseconds=50)})
        yield two


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize("has_victims", [False, True], ids=["1222", "1205"])
def test_while_a_scan_locks_the_positions_there_is_nothing_new(two: World, *, has_victims: bool) -> None:
    with closing(two.open(two.position())) as reader:
        two.execute("INSERT INTO dbo.t (id) VALUES (1)")
        two.capture()
        with two.model.capture.scanning(has_victims=has_victims):
            for _ in range(3):
                batch = reader.pull(WIDE)
                assert (batch.events, batch.offset) == (0, None)
        assert shown(drained(reader)) == [("t", "INSERT", 1)]


@pytest.mark.matrix
def test_a_lock_that_stays_ends_the_attempt(two: World) -> None:
    now = [0.0]
    with closing(two.open(two.position())) as reader:
        health = reader._health = CaptureHealth(None, clock=lambda: now[0])
        with two.model.capture.scanning():
            reader.pull(WIDE)
            now[0] = IDLE_S
            reader.pull(WIDE)
            (line,) = health.reasons
            assert "lock_timeout" in line
            now[0] = IDLE_S + 1
            with pytest.raises(SourceUnavailableError) as raised:
                reader.pull(WIDE)
    assert raised.value.code == "lock_timeout"


@pytest.mark.matrix
def test_a_lock_that_is_let_go_of_does_not_count_any_more(two: World) -> None:
    now = [0.0]
    with closing(two.open(two.position())) as reader:
        reader._health = CaptureHealth(None, clock=lambda: now[0])
        for _ in range(4):
            with two.model.capture.scanning():
                reader.pull(WIDE)
            now[0] += IDLE_S / 2
            reader.pull(WIDE)
            two.execute(f"INSERT INTO dbo.u (id) VALUES ({now[0]:.0f})")
            two.capture()
        assert len(drained(reader).changes) > 0


@pytest.mark.matrix
@pytest.mark.parametrize("rows", [1, 60])
def test_a_scan_that_locks_change_tables_delays_a_large_transaction_and_loses_nothing(
    two: World, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Before each of its parts; before the first one when its rows have been counted."""
    monkeypatch.setattr("replicator_source_sqlserver.cdc.log.PAGE_ROWS", 51)
    limits = PullLimits(rows=rows, bytes=64 << 20, wait_s=0.0)
    values = ", ".join(f"({n})" for n in range(60))
    start = two.position()
    two.execute(
        f"BEGIN TRANSACTION; INSERT INTO dbo.t (id) VALUES {values}; UPDATE dbo.t SET name = N'x';"
        f" INSERT INTO dbo.u (id) VALUES {values}; COMMIT"
    )
    two.capture()
    with closing(two.open(start)) as reader:
        free = drained(reader, limits)
    counts, delayed, found = capturelog.counts, 0, Drained()
    with closing(two.open(start)) as reader, ExitStack() as stack:

        def count_and_lock(*arguments: Any) -> Any:
            counted = counts(*arguments)
            stack.enter_context(two.model.capture.scanning("dbo_t", "dbo_u"))
            return counted

        monkeypatch.setattr(capturelog, "counts", count_and_lock)
        while not found.transactions:
            if reader._page is None or reader._page.is_over:
                if reader._large is not None:
                    stack.enter_context(two.model.capture.scanning("dbo_t", "dbo_u"))
                batch = reader.pull(limits)
                assert (batch.events, batch.offset) == (0, None)
                stack.close()
                delayed += 1
            found.add(reader.pull(limits))
    assert delayed > 3
    assert shown(found) == shown(free)
    assert len(found.transactions) == len(free.transactions) == 1
    assert found.open_transaction is None


@pytest.mark.matrix
def test_what_is_known_to_be_captured_is_seen_while_a_scan_locks_the_positions(two: World) -> None:
    heads, session = NotedHeads(), two.session()
    with closing(session), session.use("asking") as connection:
        two.execute("INSERT INTO dbo.t (id) VALUES (1)")
        two.capture()
        head = known_head(connection, heads)
        heads.note(head)
        with two.model.capture.scanning():
            assert known_head(connection, heads) == head
