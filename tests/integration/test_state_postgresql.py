"""The state store on PostgreSQL: what the unit tests show for SQLite, where the database makes a difference."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Queue
from threading import Event, Thread

import psycopg
import pytest

from replicator.journal import JournalReader, JournalWriter, Retention
from replicator.model.counts import BatchCount, CounterName
from replicator.model.documents.verdict import Result
from replicator.model.errors import (
    AccessDeniedError,
    ConfigError,
    CorruptStreamError,
    FatalError,
    FencedError,
    ReplicatorError,
    StateUnavailableError,
)
from replicator.model.events import DDLOperation, SnapshotEvent, SnapshotPhase
from replicator.model.offset import Offset
from replicator.model.processes.reports import AppliedTable, ApplyReport, RetryReport
from replicator.model.schema import TableId
from replicator.runtime.leases import renewed
from replicator.state import (
    AppliedRecord,
    Desired,
    ErrorRecord,
    EventEntry,
    RequestKind,
    Segment,
    SegmentFile,
    Stage,
    StateStore,
    TableRecord,
    holder_id,
)
from replicator.state.records import Decision, HistoryEntry
from replicator.state.verification.records import VerificationOutcome
from replicator_testbed.network.proxy import FaultProxy
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.present import present
from replicator_testing.defaults import writer_limits
from replicator_testing.waiting import PATIENCE, wait_until

A = TableId("public", "a")
NOW = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)

OPEN_AND_ACQUIRE = """
import sys
from replicator.model.errors import ConfigError
from replicator.state import StateStore, holder_id
print("ready", flush=True)
sys.stdin.readline()
store = StateStore(sys.argv[1])
try:
    store.create_replicator("r", "", "gs://b/j")
except ConfigError as error:
    assert error.code == "exists", error
lease = store.leases.acquire("r", holder_id(), 60)
print("none" if lease is None else lease.epoch, flush=True)
sys.stdin.readline()
"""


def url_of(database: ScratchDatabase, **changes: object) -> str:
    parts = {
        "user": database.server.user,
        "host": database.server.host,
        "port": database.server.port,
        "name": database.name,
    }
    return "postgresql://{user}@{host}:{port}/{name}".format(**(parts | changes))


@pytest.fixture
def url(database: ScratchDatabase) -> str:
    return url_of(database)


@pytest.fixture
def store(url: str) -> Iterator[StateStore]:
    store = StateStore(url, busy_timeout_s=5)
    yield store
    store.close()


def file(first: int, last: int, table: TableId = A) -> SegmentFile:
    return SegmentFile(
        table=table, incarnation=1, schema_fingerprint="f", uri=f"gs://b/{first}", rows=1, bytes=10, sha256="s", first=first, last=last,
        snapshot_rows=0, has_absent=False, has_key_changes=True, seal=1,
    )  # fmt: skip


def entry(number: int, table: TableId = A) -> EventEntry:
    event = SnapshotEvent(phase=SnapshotPhase.STARTED, table=table)
    return EventEntry(sequence_num=number, table=table, incarnation=1, event=event)


def segment(
    id_: int, first: int, last: int, files: tuple[SegmentFile, ...] = (), events: tuple[EventEntry, ...] = ()
) -> Segment:
    return Segment(
        id=id_, first=first, last=last, epoch=1, offset=Offset.of({"lsn": last}), source_time=NOW, ring=("7",), files=files,
        events=events, sealed_at=NOW,
    )  # fmt: skip


def test_records_round_trip(store: StateStore) -> None:
    made = store.create_replicator("r", "név", "gs://b/j")
    assert store.replicator("r") == made
    assert made.created_at.tzinfo is UTC
    with pytest.raises(ConfigError):
        made = store.create_replicator("r", "", "gs://b/j")
    lease = store.leases.acquire("r", holder_id(), 60)
    assert lease is not None
    store.set_desired("r", Desired.PAUSED)
    store.set_identity("r", {"a": 1})
    one = segment(1, 0, 9, files=(file(0, 4), file(6, 9)), events=(entry(5),))
    empty = segment(2, 10, 9)
    record = TableRecord(
        table=A,
        incarnation=1,
        stage=Stage.STREAMING,
        is_altered=True,
        error=ErrorRecord(code="c", message="m", action=None, at=NOW),
    )
    request = store.requests.add("r", RequestKind.SNAPSHOT, {"tables": []})
    noted = HistoryEntry(
        sequence_num=5, table=A, incarnation=1, operation=DDLOperation.TRUNCATE_TABLE, changes=("truncate_table",), decision=Decision.APPLY,
        at=NOW,
    )  # fmt: skip
    store.seal("r", 1, [one, empty], tables=[record], history=[noted, noted], done_requests=[request])
    assert store.histories.latest("r", 10, table=A) == [replace(noted, offset=empty.offset)] * 2
    assert store.journal.segments("r", 0, 10) == [one, empty]
    assert store.journal.feed("r", A, 3, 10) == [one.files[0], one.events[0], one.files[1]]
    assert store.journal.feed_tables("r") == {A: 9}
    assert store.journal.feed_end("r", A) == 9
    assert (store.tables("r"), store.requests.open("r"), store.journal.total_bytes("r")) == ([record], [], 20)
    applied = AppliedRecord(table=A, incarnation=1, last_applied=4)
    report = ApplyReport(tables={"public.a": AppliedTable()})
    for _ in range(2):
        store.put_applied("r", 1, [applied])
        store.put_report("r", report)
    assert store.applied("r") == {A: applied}
    assert present(store.reports("r").apply).report == report
    run = store.runs.start(lease)
    store.runs.end(lease, run, "ended", None)
    assert [r.id for r in store.runs.latest("r")] == [run]
    store.seal("r", 1, [segment(3, 10, 10, events=(entry(10),))])
    store.drop_segments("r", 1, [1])
    assert store.journal.dropped("r", A) == (1, 9)
    assert [s.id for s in store.journal.segments("r", 0, 10)] == [3]
    store.delete_replicator("r", made.uuid)
    assert store.replicators() == []


def test_what_two_processes_found_is_one_record(store: StateStore) -> None:
    """The command and the schedule may note what they found at the same time."""
    store.create_replicator("shop", "name: shop", "/j")
    found = [
        VerificationOutcome(
            table=TableId("shop", "a"),
            incarnation=1,
            result=Result.EQUAL,
            is_whole=True,
            begun_at=store.now(),
            position=n,
        )
        for n in range(20)
    ]
    store.verifications.note("shop", found[0])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda outcome: store.verifications.note("shop", outcome), found))
    (record,) = store.verifications.of("shop").values()
    assert (record.position, record.proven_position) == (19, 19)


def test_processes_that_count_at_once_lose_nothing(store: StateStore, url: str) -> None:
    store.create_replicator("r", "config", "/j")
    lease = present(store.leases.acquire("r", holder_id(), 60))
    others = [StateStore(url) for _ in range(3)]
    retry = RetryReport(role="apply", retry_in_s=1.0, code="target_full", message="no")

    def count(number: int) -> None:
        mine = others[number % len(others)]
        mine.put_report("r", retry)
        mine.put_report("r", ApplyReport(), retried={"throttled": 1, "target_full": 1})
        mine.put_applied("r", lease.epoch, [], batch=BatchCount(rows=number, seconds=0.5))
        found = VerificationOutcome(
            table=A, incarnation=1, result=Result.EQUAL, is_whole=True, begun_at=NOW, position=number, rows=3
        )
        mine.verifications.note("r", found)

    with ThreadPoolExecutor(len(others)) as pool:
        list(pool.map(count, range(30)))
    counts = store.counters("r")
    assert (counts[CounterName.RETRIES, ("apply",)], counts[CounterName.RETRIES, ("table",)]) == (30, 60)
    assert (counts[CounterName.ERRORS, ("target_full",)], counts[CounterName.ERRORS, ("throttled",)]) == (60, 30)
    assert counts[CounterName.BATCH_ROWS_SUM, ()] == sum(range(30))
    assert counts[CounterName.BATCH_SECONDS, ("1",)] == 30
    assert (counts[CounterName.VERIFY_ROWS, ()], counts[CounterName.VERIFICATIONS, ("equal",)]) == (90, 30)
    assert store.journal.oldest_above("r", {A: -1}) is None
    store.seal("r", lease.epoch, [segment(1, 0, 4, files=(file(0, 4),))], changes={"INSERT": 5})
    assert store.journal.oldest_above("r", {A: 3}) is not None
    assert store.journal.oldest_above("r", {A: 4, TableId("public", "b"): -1}) is None
    for other in others:
        other.close()


def test_a_gap_or_an_older_epoch_is_refused(store: StateStore) -> None:
    store.create_replicator("r", "", "gs://b/j")
    store.leases.acquire("r", holder_id(), 60)
    with pytest.raises(FatalError) as caught:
        store.seal("r", 1, [segment(1, 1, 2)])
    assert caught.value.code == "index_conflict"
    store.leases.acquire("r", holder_id(), 60)
    with pytest.raises(FencedError):
        store.seal("r", 1, [segment(1, 0, 2)])
    assert store.journal.last_segment("r") is None


def test_the_clock_is_the_servers(store: StateStore, database: ScratchDatabase) -> None:
    ((before,),) = database.execute("SELECT clock_timestamp()")
    found = store.now()
    ((after,),) = database.execute("SELECT clock_timestamp()")
    assert before <= found <= after


@pytest.mark.matrix
def test_processes_that_come_at_once_make_one_store_and_one_holder(url: str) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_AND_ACQUIRE, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for child in children:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.stdout.readline().strip() for child in children if child.stdout]
    for child in children:
        child.communicate("end\n")
    assert sorted(answers) == ["1", "none", "none"]


def test_nobody_takes_the_lease_in_the_midst_of_a_seal(store: StateStore, url: str) -> None:
    store.create_replicator("r", "", "gs://b/j")
    lease = store.leases.acquire("r", "elsewhere:1:boot/1/1", 0)
    assert lease is not None
    other = StateStore(url)
    taken, started = [], Event()

    def take() -> None:
        started.set()
        taken.append(other.leases.acquire("r", holder_id(), 60))

    with store._database.write() as connection:
        from replicator.state import leases

        leases.check_epoch(connection, "r", lease.epoch)
        thread = Thread(target=take)
        thread.start()
        started.wait()
        with psycopg.connect(url) as watcher:
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            while watcher.execute(waiting).fetchone() != (1,):
                watcher.commit()
        assert taken == []
    thread.join()
    other.close()
    assert taken[0] is not None
    assert taken[0].epoch == lease.epoch + 1


def test_a_feed_sees_one_state_while_segments_are_sealed(store: StateStore, url: str) -> None:
    """A file and the event after it are sealed together, so a feed never shows the event without the file."""
    store.create_replicator("r", "", "gs://b/j")
    store.leases.acquire("r", holder_id(), 60)
    done = Event()

    def seal() -> None:
        writer = StateStore(url)
        for n in range(60):
            store.seal(
                "r", 1, [segment(n + 1, 2 * n, 2 * n + 1, files=(file(2 * n, 2 * n),), events=(entry(2 * n + 1),))]
            )
        writer.close()
        done.set()

    thread = Thread(target=seal)
    thread.start()
    position = -1
    while not (done.is_set() and position == 119):
        for item in store.journal.feed("r", A, position, 1000):
            number = item.last if isinstance(item, SegmentFile) else item.sequence_num
            assert number == position + 1
            position = number
    thread.join()


def test_our_tables_have_a_schema_of_their_own(database: ScratchDatabase, url: str) -> None:
    database.execute("CREATE TABLE tables (x int)")
    store = StateStore(url)
    store.create_replicator("r", "", "gs://b/j")
    store.close()
    assert database.execute("SELECT name FROM replicator.replicators") == [("r",)]
    database.execute("UPDATE replicator.store SET format_version = 99 RETURNING id")
    with pytest.raises(FatalError) as caught:
        StateStore(url)
    assert caught.value.code == "newer_state"


def test_a_schema_that_is_not_ours_is_refused(database: ScratchDatabase, url: str) -> None:
    database.execute("CREATE SCHEMA replicator", "CREATE TABLE replicator.customers (x int)")
    with pytest.raises(CorruptStreamError) as caught:
        StateStore(url)
    assert caught.value.code == "corrupt_state"


def test_an_empty_schema_made_beforehand_is_used(database: ScratchDatabase, url: str) -> None:
    database.execute("CREATE SCHEMA replicator")
    StateStore(url).close()


def test_a_server_that_goes_away_is_unavailable_and_comes_back(
    database: ScratchDatabase, fault_proxy: FaultProxy
) -> None:
    store = StateStore(url_of(database, host="127.0.0.1", port=fault_proxy.port))
    store.create_replicator("r", "", "gs://b/j")

    def lose_the_connection() -> None:
        with store._database.write() as connection:
            fault_proxy.cut()
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(StateUnavailableError) as caught:
        lose_the_connection()
    assert caught.value.code == "state_unavailable"
    with pytest.raises(StateUnavailableError):
        store.replicator("r")
    fault_proxy.restore()
    assert store.replicator("r") is not None
    store.close()


def test_a_server_that_stops_answering_is_unavailable_and_comes_back(
    database: ScratchDatabase, fault_proxy: FaultProxy
) -> None:
    # To make the schema takes longer than an answer may.
    with closing(StateStore(url_of(database))) as ready:
        ready.create_replicator("r", "", "gs://b/j")
    store = StateStore(url_of(database, host="127.0.0.1", port=fault_proxy.port), busy_timeout_s=0.2)

    def ask_in_vain() -> None:
        with store._database.read() as connection:
            fault_proxy.blackhole()
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(StateUnavailableError) as caught:
        ask_in_vain()
    assert "did not answer within 1 s" in caught.value.message
    fault_proxy.restore()
    assert store.replicator("r") is not None
    store.close()


def test_a_lease_is_lost_in_time_while_the_server_does_not_answer(
    database: ScratchDatabase, fault_proxy: FaultProxy
) -> None:
    """Nothing fails meanwhile: the renewal is asked for, and its answer comes when somebody else may have the lease."""
    store = StateStore(url_of(database, host="127.0.0.1", port=fault_proxy.port))
    store.create_replicator("r", "", "gs://b/j")
    lease = present(store.leases.acquire("r", "elsewhere:1:boot/1/1", 1))
    lost: Queue[ReplicatorError] = Queue()
    with renewed(store, lease, lost.put, lease_s=1, renew_s=0.1):
        fault_proxy.blackhole()
        assert isinstance(lost.get(timeout=30 * PATIENCE), StateUnavailableError)
        fault_proxy.restore()
    assert lost.empty(), "it is lost once"
    wait_until(lambda: store.leases.current("r") is None, "the late renewal is over, too")
    store.close()


def test_a_connection_that_the_server_ended_while_idle_is_replaced(
    store: StateStore, database: ScratchDatabase
) -> None:
    store.create_replicator("r", "", "gs://b/j")
    ours = "application_name = 'replicator' AND datname = current_database()"
    assert database.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
    assert store.replicator("r") is not None


def test_errors_hide_the_password(database: ScratchDatabase) -> None:
    for text in (
        url_of(database, user="nobody:canary"),
        url_of(database, user="x:canary", port=1),
        url_of(database, name="missing"),
    ):
        with pytest.raises((StateUnavailableError, AccessDeniedError, FatalError)) as caught:
            StateStore(text)
        chain: list[BaseException] = []
        error: BaseException | None = caught.value
        while error is not None:
            chain.append(error)
            error = error.__cause__ or error.__context__
        assert not any("canary" in str(e) for e in chain)


def test_an_unforeseen_error_keeps_the_words_and_the_code_of_the_server(
    database: ScratchDatabase, store: StateStore
) -> None:
    database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'the auditors say no' USING DETAIL = 'canary'; END$$",
        "CREATE TRIGGER audit BEFORE INSERT ON replicator.replicators FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    with pytest.raises(FatalError) as caught:
        store.create_replicator("r", "", "gs://b/j")
    assert caught.value.code == "state_failed"
    assert caught.value.message.endswith(" failed with an unexpected error: the auditors say no (P0001).")


LOCK = "SELECT 1 FROM replicator.leases WHERE replicator = 'r' FOR UPDATE"
ENDLESS = "-c idle_in_transaction_session_timeout=0"


def test_a_row_that_somebody_else_has_locked_is_unavailable(url: str, store: StateStore) -> None:
    store.create_replicator("r", "", "gs://b/j")
    impatient = StateStore(url, busy_timeout_s=0.1)
    with psycopg.connect(url, application_name="somebody else", options=ENDLESS) as other:
        other.execute(LOCK)
        for _ in range(3):
            with pytest.raises(StateUnavailableError):
                impatient.leases.acquire("r", holder_id(), 60)
        other.execute("SELECT 1")
    assert impatient.leases.acquire("r", holder_id(), 60) is not None
    impatient.close()


def test_a_transaction_of_ours_that_sleeps_with_a_lock_is_ended_for_the_next_attempt(
    url: str, store: StateStore
) -> None:
    """Also where the server does not end it by itself."""
    store.create_replicator("r", "", "gs://b/j")
    impatient = StateStore(url, busy_timeout_s=0.5)
    sleeper = psycopg.connect(url, application_name="replicator", options=ENDLESS)
    sleeper.execute(LOCK)
    with pytest.raises(StateUnavailableError):
        impatient.leases.acquire("r", holder_id(), 60)
    assert impatient.leases.acquire("r", holder_id(), 60) is not None
    with pytest.raises(psycopg.OperationalError):
        sleeper.execute("SELECT 1")
    impatient.close()


def test_leases_expire_on_the_servers_clock(store: StateStore) -> None:
    store.create_replicator("r", "", "gs://b/j")
    first = store.leases.acquire("r", "elsewhere:1:boot/1/1", 60)
    assert first is not None
    assert timedelta(0) < first.expires_at - store.now() <= timedelta(seconds=60)
    assert store.leases.acquire("r", holder_id(), 60) is None
    store.leases.renew(first, 0)
    second = store.leases.acquire("r", holder_id(), 60)
    assert second is not None
    assert second.epoch == 2


def test_a_journal_works_on_it(store: StateStore, tmp_path: Path) -> None:
    record = store.create_replicator("r", "", f"{tmp_path}/j")
    lease = store.leases.acquire("r", holder_id(), 60)
    assert lease is not None
    writer = JournalWriter(store, name="r", epoch=lease.epoch, uri=record.journal_uri, limits=writer_limits())
    for _ in range(3):
        writer.event(writer.take(1), A, 1, SnapshotEvent(phase=SnapshotPhase.STARTED, table=A))
        writer.commit(offset=Offset.of({"lsn": 1}), source_time=NOW)
    reader = JournalReader(store, "r")
    assert [item.sequence_num for item in reader.feed(A, -1, 1000) if isinstance(item, EventEntry)] == [0, 1, 2]
    store.put_applied("r", lease.epoch, [AppliedRecord(table=A, incarnation=1, last_applied=9)])
    assert Retention(store, "r", epoch=lease.epoch, keep_s=0, bytes_max=1 << 30).sweep().segments == 2
    writer.close()


def test_a_server_that_does_not_answer_is_unavailable(postgres: PostgresServer) -> None:
    with pytest.raises(StateUnavailableError) as caught:
        StateStore(f"postgresql://{postgres.user}@127.0.0.1:1/x")
    assert caught.value.code == "state_unavailable"
