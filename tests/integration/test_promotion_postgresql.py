"""A standby is promoted while its primary is captured: capture continues where nothing is lost, and says so where something may be."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Self

import psycopg
import pytest

from replicator.model.errors import LogGapError, SourceUnavailableError
from replicator.model.events import SnapshotEvent
from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.journals.captured import QUICK, Captured, RunningCapture
from replicator_testbed.network.proxy import FaultProxy
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.scratch_servers import ServerProgramsNotFoundError
from replicator_testing.waiting import wait_until

T = TableId("public", "t")
TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)",
    "INSERT INTO t SELECT i, 0 FROM generate_series(1, 50) i",
)
UNTIL_THE_FIRST_CHECK = replace(QUICK, check_every_s=3600.0)
"""Nobody asks whom the host leads to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A primary and its standby, and the address that leads to one of them."""

    primary: PostgresServer
    standby: PostgresServer
    address: FaultProxy

    def fail_over(self) -> None:
        """The primary crashes in the middle of its work; the standby is promoted with what it has, and the address leads there."""
        self.primary.kill9()
        self.standby.promote()
        self.address.lead_to(self.standby.host, self.standby.port)
        self.address.cut()
        self.address.restore()

    def promote(self) -> None:
        """Promote the standby, which has everything by then; new connections go there, and nobody stops the old primary."""
        end = self.primary.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        caught_up = f"SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{end}'"
        wait_until(lambda: self.standby.execute(caught_up), "the standby has it all")
        self.standby.promote()
        self.address.lead_to(self.standby.host, self.standby.port)


def settings() -> dict[str, str]:
    return {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s", "wal_retrieve_retry_interval": "100ms"}


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Without a slot on the standby, as before PostgreSQL 17 or by default."""
    with (
        PostgresServer.distribution(settings=settings()) as primary,
        PostgresServer.standby_of(primary) as standby,
        FaultProxy(primary.host, primary.port) as address,
    ):
        yield Pair(primary=primary, standby=standby, address=address)


class Writer:
    """An application that changes the table all the time through the address; it connects again when its connection breaks."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._stop = threading.Event()
        self._errors: list[Exception] = []
        self.committed = 0
        self._thread = threading.Thread(target=self._run, name="writer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._errors:
            raise self._errors[0]

    def wait_for(self, more: int) -> None:
        """Wait until so many more transactions were committed."""
        until = self.committed + more
        wait_until(lambda: self.committed >= until or bool(self._errors), "the writer has committed")

    def _run(self) -> None:
        random = Random(7)
        try:
            while not self._stop.is_set():
                with contextlib.suppress(psycopg.OperationalError):
                    self._write(random)
        except Exception as error:  # noqa: BLE001 (raised in the test's thread)
            self._errors.append(error)

    def _write(self, random: Random) -> None:
        address = self._pair.address
        where = self._pair.primary.dsn(host=address.host, port=address.port)
        with contextlib.closing(psycopg.connect(where, connect_timeout=5)) as connection:
            while not self._stop.is_set():
                for _ in range(random.randint(1, 4)):
                    connection.execute(random.choice(CHANGES), {"id": random.randint(1, 80), "n": self.committed})
                connection.commit()
                self.committed += 1


CHANGES = (
    "INSERT INTO t VALUES (%(id)s, %(n)s) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
    "UPDATE t SET n = n + 1 WHERE id BETWEEN %(id)s AND %(id)s + 5",
    "DELETE FROM t WHERE id = %(id)s",
)
Make = Callable[..., Captured]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the captures of the table through the address that moves."""
    made: list[Captured] = []

    def of(pair: Pair, **source: Any) -> Captured:
        def source_of(context: SourceContext) -> PostgresqlSource:
            where = {"host": pair.address.host, "port": pair.address.port, "user": pair.primary.user}
            return PostgresqlSource(PostgresqlConfig(**where, database="postgres", **source), context)

        made.append(Captured(folder=tmp_path, name="moved", make_source=source_of, tables=[T]))
        return made[-1]

    yield of
    for captured in made:
        captured.close()


def rows(server: PostgresServer) -> Counter[tuple[Any, ...]]:
    return Counter(server.execute("SELECT * FROM t"))


@pytest.mark.matrix
def test_a_promoted_standby_without_the_slot_is_a_gap_and_a_new_start_is_equal(pair: Pair, make: Make) -> None:
    pair.primary.execute(*TABLE)
    captured = make(pair)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        pair.primary.execute("UPDATE t SET n = 1 WHERE id <= 10")
        pair.promote()
        pair.standby.execute("DELETE FROM t WHERE id = 50", "UPDATE t SET n = 2 WHERE id <= 20")
        pair.address.cut()
        assert isinstance(running.error(), SourceUnavailableError)
    pair.address.restore()
    for _ in range(2):
        with captured.running() as running:
            error = running.error()
        assert isinstance(error, LogGapError)
        assert error.code == "slot_missing"
        assert "--restart" in (error.action or "")

    restart = captured.request("restart")
    with captured.running() as running:
        running.wait_until(lambda: captured.is_done(restart), "the log is opened at a new position")
        captured.wait_for_streaming(running)
        pair.standby.execute("UPDATE t SET n = 3 WHERE id <= 30")
        captured.catch_up(running)
        assert captured.rows(T) == rows(pair.standby)


@pytest.mark.matrix
def test_a_failover_without_the_slot_is_a_gap_and_a_new_start_is_equal_while_an_application_writes(
    pair: Pair, make: Make
) -> None:
    pair.primary.execute(*TABLE)
    captured = make(pair)
    with Writer(pair) as writer:
        with captured.running() as running:
            captured.wait_for_streaming(running)
            writer.wait_for(20)
            pair.fail_over()
            assert isinstance(running.error(), SourceUnavailableError)
        writer.wait_for(20)
        with captured.running() as running:
            error = running.error()
        assert isinstance(error, LogGapError)
        assert error.code == "slot_missing"
        restart = captured.request("restart")
        with captured.running() as running:
            running.wait_until(lambda: captured.is_done(restart), "the log is opened at a new position")
            captured.wait_for_streaming(running)
            writer.wait_for(20)
    with captured.running() as running:
        captured.catch_up(running)
    assert captured.rows(T) == rows(pair.standby)


@pytest.mark.matrix
def test_an_open_log_of_the_old_primary_is_noticed_by_the_next_check(pair: Pair, make: Make) -> None:
    """No connection breaks, as with an address that moves while the old primary lives on: everything we hold stays there."""
    pair.primary.execute(*TABLE)
    captured = make(pair)
    captured.settings = replace(captured.settings, check_every_s=0.2)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        pair.promote()
        error = running.error()
    assert isinstance(error, SourceUnavailableError)
    assert error.code == "another_server"
    with captured.running() as running:
        error = running.error()
    assert isinstance(error, LogGapError)


@pytest.mark.matrix
def test_rows_of_the_new_primary_never_meet_the_log_of_the_old_one(pair: Pair, make: Make) -> None:
    """All connections but that of the log break and come again, at the new primary; then a snapshot is asked for."""
    pair.primary.execute(*TABLE)
    captured = make(pair)
    captured.settings = UNTIL_THE_FIRST_CHECK
    with captured.running() as running:
        captured.wait_for_streaming(running)
        pair.promote()
        pair.standby.execute("UPDATE t SET n = 2", "DELETE FROM t WHERE id > 40")
        before = captured.rows(T)
        captured.request("snapshot", tables=[str(T)])
        pair.primary.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        error = running.error()
    assert isinstance(error, SourceUnavailableError)
    assert captured.rows(T) == before


@contextmanager
def with_a_failover_slot() -> Iterator[Pair]:
    """PostgreSQL 17 keeps slots in line on standbys: `ours`, which sends nothing that the standby has not got."""
    failover = {**settings(), "synchronized_standby_slots": "standby"}
    following = {"primary_slot_name": "standby", "sync_replication_slots": "off", "synchronized_standby_slots": ""}
    try:
        server = PostgresServer.embedded(version=18, settings=failover)
    except ServerProgramsNotFoundError as error:
        pytest.skip(str(error))
    with server as primary:
        primary.execute(
            *TABLE,
            "SELECT pg_create_physical_replication_slot('standby')",
            "SELECT pg_create_logical_replication_slot('ours', 'pgoutput', false, false, true)",
            "CREATE PUBLICATION ours FOR TABLE t",
        )
        with (
            PostgresServer.standby_of(primary, settings=following) as standby,
            FaultProxy(primary.host, primary.port) as address,
        ):
            yield Pair(primary=primary, standby=standby, address=address)


def give_the_standby_the_slot(pair: Pair, captured: Captured, running: RunningCapture) -> None:
    synced = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'ours' AND synced AND NOT temporary"

    def is_synced() -> bool:
        # The slot moves on behind such a record, once what comes after it was confirmed; nobody may write meanwhile.
        pair.primary.execute("SELECT pg_log_standby_snapshot()")
        return bool(pair.standby.execute("SELECT pg_sync_replication_slots()", synced))

    running.wait_until(is_synced, "the standby has the slot")
    captured.catch_up(running)


@pytest.mark.matrix
def test_a_promoted_standby_that_has_the_slot_is_followed(make: Make) -> None:
    with with_a_failover_slot() as pair:
        captured = make(pair, slot="ours", publication="ours")
        with captured.running() as running:
            captured.wait_for_streaming(running)
            pair.primary.execute("UPDATE t SET n = 1 WHERE id <= 10")
            captured.catch_up(running)
            give_the_standby_the_slot(pair, captured, running)
        pair.standby.execute("SELECT pg_sync_replication_slots()")
        pair.promote()
        pair.standby.execute("DELETE FROM t WHERE id = 50", "UPDATE t SET n = 2 WHERE id <= 20")
        with captured.running() as running:
            captured.catch_up(running)
            captured.snapshot(running, T)
            pair.standby.execute("UPDATE t SET n = 3 WHERE id <= 30")
            captured.catch_up(running)
            assert captured.rows(T) == rows(pair.standby)


@pytest.mark.matrix
@pytest.mark.parametrize("is_crash", [True, False], ids=["crash", "both_run"])
def test_a_failover_with_the_slot_loses_nothing_while_an_application_writes(make: Make, is_crash: bool) -> None:
    """What the old primary had and the standby had not is nowhere: the slot did not send it."""
    with with_a_failover_slot() as pair:
        captured = make(pair, slot="ours", publication="ours")
        captured.settings = replace(captured.settings, check_every_s=0.2)
        with captured.running() as running:
            captured.wait_for_streaming(running)
            give_the_standby_the_slot(pair, captured, running)
            with Writer(pair) as writer:
                writer.wait_for(50)
                if is_crash:
                    pair.fail_over()
                else:
                    # The application stays at the old primary, which no one stops; new connections go to the new one.
                    pair.standby.promote()
                    pair.address.lead_to(pair.standby.host, pair.standby.port)
                assert isinstance(running.error(), SourceUnavailableError)
                writer.wait_for(20)
        if not is_crash:
            pair.primary.stop("immediate")
        before = captured.rows(T)
        with Writer(pair) as writer:
            for _ in range(2):
                with captured.running() as running:
                    writer.wait_for(20)
                    captured.catch_up(running)
        with captured.running() as running:
            captured.catch_up(running)
        assert captured.rows(T) == rows(pair.standby) != before
        # Everything came of the log: nothing was read again.
        assert sum(isinstance(event, SnapshotEvent) for event in captured.events(T)) == 2
