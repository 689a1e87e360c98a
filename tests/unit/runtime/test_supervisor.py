"""What the supervisor makes of news that come late, of errors that nobody expected, and of a lease that it lost."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from replicator.model.errors import AccessDeniedError, ConfigError, FencedError, ReplicatorError
from replicator.model.events import SnapshotEvent, SnapshotPhase
from replicator.model.schema import TableId
from replicator.runtime import group, leases
from replicator.runtime.logfile import LogFile
from replicator.runtime.policy import RetryLimits
from replicator.runtime.process import Message, WorkerProcess
from replicator.runtime.supervisor import End, RunOutcome, Supervisor
from replicator.state import holder_id
from replicator.state.records import (
    AppliedRecord,
    Desired,
    EventEntry,
    Lease,
    ReplicatorRecord,
    RequestKind,
    Role,
    Segment,
    Stage,
    TableRecord,
)
from replicator.state.store import StateStore
from replicator_testbed.present import present
from replicator_testing.defaults import AT_ONCE, CONFIG
from replicator_testing.waiting import PATIENCE


def test_the_end_of_a_worker_that_was_stopped_does_not_concern_its_successor(
    tmp_path: Path, replicator_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pause` and `resume` in a row: the next worker may run before the news of the first one's end is read."""
    news: queue.Queue[Message] = queue.Queue()
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    log = LogFile(tmp_path / "log.jsonl")
    supervisor = Supervisor(store, "nobody", log=log, limits=RetryLimits.of(CONFIG.retry), delete=lambda *_: None)
    first, second = (WorkerProcess(Role.APPLY, "nobody", 1, {}, deliver=news.put, log=lambda _: None) for _ in range(2))
    supervisor._workers._workers[Role.APPLY] = second
    first.kill()
    try:
        assert supervisor._handle(_end_of(first, news)) is None
        assert supervisor._workers._workers == {Role.APPLY: second}
    finally:
        second.kill()
        _end_of(second, news)
        store.close()
        for worker in (first, second):
            for stream in (worker._process.stdin, worker._process.stdout, worker._process.stderr):
                assert stream is not None
                stream.close()


def _end_of(worker: WorkerProcess, news: queue.Queue[Message]) -> Message:
    while True:
        message = news.get(timeout=30 * PATIENCE)
        if (message.event, message.pid) == ("exit", worker.pid):
            return message


NAME = "shop"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator(NAME, f"name: {NAME}", f"file://{tmp_path}/journal")
    yield store
    store.close()


def _lease(store: StateStore) -> Lease:
    lease = store.leases.acquire(NAME, holder_id(), 60)
    assert lease is not None
    return lease


def _supervisor(store: StateStore, folder: Path, delete: Callable[..., object] = lambda *_: None) -> Supervisor:
    return Supervisor(
        store, NAME, log=LogFile(folder / "log.jsonl"), limits=RetryLimits.of(CONFIG.retry), delete=delete
    )


@pytest.mark.parametrize("error", [FencedError("over", code="fenced"), ReplicatorError("no", code="source_error")])
def test_who_was_taken_over_says_nothing_of_the_living_one(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ReplicatorError
) -> None:
    def fail_behind_a_takeover(_: threading.Event) -> RunOutcome:
        _lease(store)
        return RunOutcome(end=End.FAILED, error=error)

    old, supervisor = _lease(store), _supervisor(store, tmp_path)
    monkeypatch.setattr(supervisor, "_loop", fail_behind_a_takeover)
    assert supervisor.run(old, threading.Event()).error is error
    record, lease = store.replicator(NAME), store.leases.current(NAME)
    assert record is not None
    assert lease is not None
    assert (record.error, lease.epoch) == (None, old.epoch + 1)


def test_an_unexpected_error_is_recorded(store: StateStore, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise ValueError("version 2 is missing")

    store.set_desired(NAME, Desired.DELETED)
    outcome = _supervisor(store, tmp_path, fail).run(_lease(store), threading.Event())
    record = store.replicator(NAME)
    assert record is not None
    assert record.error is not None
    assert (outcome.end, record.error.code, store.leases.current(NAME)) == (End.FAILED, "internal_error", None)


@pytest.mark.parametrize(
    ("error", "code"),
    [(AccessDeniedError("no", code="state_access_denied"), "state_access_denied"), (ValueError("x"), "internal_error")],
)
def test_a_lease_that_cannot_be_renewed_is_lost_whatever_the_error(
    store: StateStore, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    lost: queue.Queue[ReplicatorError] = queue.Queue()

    def refuse(*_: object) -> Lease:
        raise error

    monkeypatch.setattr(store.leases, "renew", refuse)
    with leases.renewed(store, _lease(store), lost.put, renew_s=0.01):
        assert lost.get(timeout=30 * PATIENCE).code == code


def test_a_run_that_ends_by_itself_names_the_failed_tables(store: StateStore, tmp_path: Path) -> None:
    tables = [TableId("public", name) for name in ("whole", "half", "gone")]
    lease = _lease(store)
    events = [
        EventEntry(sequence_num=n, table=t, incarnation=1, event=SnapshotEvent(phase=SnapshotPhase.STARTED, table=t))
        for n, t in enumerate(tables)
    ]
    segment = Segment(
        id=1, first=0, last=2, epoch=lease.epoch, offset=None, source_time=None, ring=(), files=(), events=events,
        sealed_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    records = [
        TableRecord(table=table, incarnation=1, stage=stage)
        for table, stage in zip(tables, (Stage.STREAMING, Stage.FAILED, Stage.REMOVED), strict=True)
    ]
    store.seal(NAME, lease.epoch, [segment], tables=records)
    store.put_applied(NAME, lease.epoch, [AppliedRecord(table=tables[0], incarnation=1, last_applied=0)])
    store.set_desired(NAME, Desired.RUNNING, apply_paused=True)
    supervisor = _supervisor(store, tmp_path)
    supervisor._lease = lease
    supervisor._workers.finished.add(Role.CAPTURE)
    assert supervisor._poll() == RunOutcome(end=End.COMPLETE, failed=("public.half",))


def test_a_worker_that_the_host_cannot_start_now_is_tried_again(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(group, "WorkerProcess", refuse)
    store.set_desired(NAME, Desired.RUNNING)
    record, limits = store.replicator(NAME), RetryLimits.of(AT_ONCE)
    assert record is not None
    patient, impatient = (
        Supervisor(store, NAME, log=LogFile(tmp_path / "log.jsonl"), limits=limits, delete=lambda *_: None)
        for limits in (RetryLimits.of(CONFIG.retry), limits)
    )
    for supervisor in (patient, impatient):
        supervisor._lease = _lease(store)
    assert patient._reconcile(record) is None
    assert present(store.reports(NAME).supervisor).report.code == "machine_exhausted"
    outcome = impatient._reconcile(record)
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.code == "machine_exhausted"


def test_progress_of_a_worker_is_told(store: StateStore, tmp_path: Path) -> None:
    told: list[str] = []
    supervisor = Supervisor(
        store, NAME, log=LogFile(tmp_path / "log.jsonl"), limits=RetryLimits.of(CONFIG.retry), delete=lambda *_: None,
        progressed=lambda: told.append("progress"),
    )  # fmt: skip
    for event in ("sealed", "progress", "log"):
        supervisor._handle(Message(role=Role.CAPTURE, pid=1, event=event, fields={}))
    assert told == ["progress", "progress"]


class FakeWorker:
    """A worker process that does nothing."""

    def __init__(self, role: Role, *_: object, **__: object) -> None:
        self.role, self.pid, self.told = role, 10 + len(role.value), list[str]()
        self.error: ReplicatorError | None = None
        self.has_finished = False

    def tell(self, line: str) -> None:
        self.told.append(line)

    def kill(self) -> None:
        self.told.append("kill")

    def wait(self, timeout_s: float) -> bool:
        del timeout_s
        return True


def _with_schedule(store: StateStore, folder: Path, *, is_on: Callable[[], bool] = lambda: True) -> Supervisor:
    supervisor = Supervisor(
        store, NAME, log=LogFile(folder / "log.jsonl"), limits=RetryLimits.of(CONFIG.retry), delete=lambda *_: None,
        verifies=lambda _: is_on(),
    )  # fmt: skip
    supervisor._lease = _lease(store)
    return supervisor


def test_tables_are_verified_by_a_process_of_its_own_while_the_replicator_runs(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "WorkerProcess", FakeWorker)
    is_on = True
    supervisor = _with_schedule(store, tmp_path, is_on=lambda: is_on)

    def roles(desired: Desired, *, apply_paused: bool = False) -> set[Role]:
        store.set_desired(NAME, desired, apply_paused=apply_paused)
        assert supervisor._reconcile(present(store.replicator(NAME))) is None
        return set(supervisor._workers._workers)

    assert roles(Desired.RUNNING) == {Role.CAPTURE, Role.APPLY, Role.VERIFY}
    assert roles(Desired.RUNNING, apply_paused=True) == {Role.CAPTURE}
    assert roles(Desired.RUNNING) == {Role.CAPTURE, Role.APPLY, Role.VERIFY}
    is_on = False
    assert roles(Desired.RUNNING) == {Role.CAPTURE, Role.APPLY}
    is_on = True
    assert roles(Desired.PAUSED) == set()


@pytest.mark.parametrize(
    "error",
    [
        AccessDeniedError("no", code="access_denied"),
        FencedError("over", code="fenced"),
        ReplicatorError("a bug", code="internal_error"),
        None,
    ],
    ids=["fatal", "fenced", "bug", "finished"],
)
def test_whatever_ends_the_process_that_verifies_the_replicator_continues(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ReplicatorError | None
) -> None:
    monkeypatch.setattr(group, "WorkerProcess", FakeWorker)
    supervisor = _with_schedule(store, tmp_path)
    record = present(store.replicator(NAME))
    assert supervisor._reconcile(record) is None
    worker = supervisor._workers._workers[Role.VERIFY]
    worker.error, worker.has_finished = error, error is None
    scheduled = store.requests.add(NAME, RequestKind.BARRIER, {"is_scheduled": True})
    by_command = store.requests.add(NAME, RequestKind.BARRIER, {})
    assert supervisor._handle(Message(role=Role.VERIFY, pid=worker.pid, event="exit", fields={})) is None
    # No batch waits for it any more.
    assert [request.id for request in store.requests.open(NAME)] == [by_command] != [scheduled]
    assert supervisor._reconcile(record) is None
    assert set(supervisor._workers._workers) == {Role.CAPTURE, Role.APPLY}
    supervisor._restarts._not_before[Role.VERIFY] = 0.0
    assert supervisor._reconcile(record) is None
    assert set(supervisor._workers._workers) == {Role.CAPTURE, Role.APPLY, Role.VERIFY}


def test_barriers_that_a_killed_schedule_left_are_removed_at_the_start(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.requests.add(NAME, RequestKind.BARRIER, {"is_scheduled": True, "position": 4, "ring": []})
    supervisor = _supervisor(store, tmp_path)
    monkeypatch.setattr(supervisor, "_loop", lambda _: RunOutcome(end=End.STOPPED))
    supervisor.run(_lease(store), threading.Event())
    assert store.requests.open(NAME) == []


class StuckWorker(FakeWorker):
    """A worker that does not find a clean point until it is killed, and for which nobody may wait."""

    def wait(self, timeout_s: float) -> bool:
        if "kill" in self.told:
            return True
        assert timeout_s == 0.0, "it is abandoned at once"
        return False


def test_a_worker_that_finds_no_clean_point_is_abandoned_once_all_is_to_end(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same seven seconds, and not two minutes each."""
    monkeypatch.setattr(group, "WorkerProcess", StuckWorker)
    monkeypatch.setattr(group, "_ABANDON_S", 0.0)
    stop, lease = threading.Event(), _lease(store)
    supervisor = _supervisor(store, tmp_path)
    supervisor._lease = lease
    assert supervisor._reconcile(present(store.replicator(NAME))) is None
    workers = list(supervisor._workers._workers.values())
    stop.set()
    assert supervisor.run(lease, stop).end is End.STOPPED
    assert [worker.role for worker in workers] == [Role.CAPTURE, Role.APPLY]
    assert all(worker.told[-1] == "kill" for worker in workers if isinstance(worker, StuckWorker))
    assert store.leases.current(NAME) is None


def test_a_stop_is_noticed_while_a_pause_waits_for_a_worker(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()

    class Waited(StuckWorker):
        """Somebody stops everything while it is waited for."""

        def wait(self, timeout_s: float) -> bool:
            if stop.is_set():
                return super().wait(timeout_s)
            stop.set()
            return False

    monkeypatch.setattr(group, "WorkerProcess", Waited)
    monkeypatch.setattr(group, "_ABANDON_S", 0.0)
    supervisor = _supervisor(store, tmp_path)
    supervisor._lease = _lease(store)
    supervisor._workers.hurry_when(stop)
    assert supervisor._reconcile(present(store.replicator(NAME))) is None
    store.set_desired(NAME, Desired.PAUSED)
    assert supervisor._reconcile(present(store.replicator(NAME))) is None
    assert supervisor._workers._workers == {}


DOCUMENT = "name: shop\nsource: {type: memory}\napply: {max_wait: 5s}\n"


def _reloading(
    store: StateStore, folder: Path, read_limits: Callable[[ReplicatorRecord], RetryLimits]
) -> tuple[Supervisor, Callable[[str], dict[Role, int]]]:
    """A supervisor with both processes, and what makes it see a document; then the processes by their identity."""
    store.set_config(NAME, DOCUMENT)
    supervisor = Supervisor(
        store, NAME, log=LogFile(folder / "log.jsonl"), limits=RetryLimits.of(CONFIG.retry), delete=lambda *_: None,
        read_limits=read_limits,
    )  # fmt: skip
    supervisor._lease = _lease(store)
    seen = list[object]()

    def see(document: str) -> dict[Role, int]:
        store.set_config(NAME, document)
        assert supervisor._poll() is None
        seen.extend(supervisor._workers._workers.values())  # one that is forgotten gives its identity to the next
        return {role: id(worker) for role, worker in supervisor._workers._workers.items()}

    return supervisor, see


def test_a_changed_configuration_starts_those_processes_again_that_read_it(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "WorkerProcess", FakeWorker)
    patient = RetryLimits.of(CONFIG.retry)
    supervisor, see = _reloading(store, tmp_path, lambda _: patient)
    first = see(DOCUMENT)
    assert set(first) == {Role.CAPTURE, Role.APPLY}
    workers = dict(supervisor._workers._workers)
    assert see(f"# the same\n{DOCUMENT}") == first
    second = see(DOCUMENT.replace("5s", "6s"))
    assert (second[Role.CAPTURE], second[Role.APPLY] != first[Role.APPLY]) == (first[Role.CAPTURE], True)
    old = workers[Role.APPLY]
    assert isinstance(old, FakeWorker)
    assert set(old.told) == {"stop"}
    third = see(DOCUMENT + "tables: {include: [public.a]}\n")
    assert not set(third.values()) & set(second.values())
    assert all(budget.limits is patient for budget in supervisor._restarts._budgets.values())


def test_a_capture_that_had_finished_runs_again_for_a_changed_configuration(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `snapshot.mode: only`, when a table is added."""
    monkeypatch.setattr(group, "WorkerProcess", FakeWorker)
    supervisor, see = _reloading(store, tmp_path, lambda _: RetryLimits.of(CONFIG.retry))
    see(DOCUMENT)
    supervisor._workers.finished.add(Role.CAPTURE)
    del supervisor._workers._workers[Role.CAPTURE]
    assert Role.CAPTURE in see(DOCUMENT + "tables: {include: [public.a]}\n")


def test_a_configuration_that_this_host_cannot_read_changes_nothing(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "WorkerProcess", FakeWorker)
    reads: list[str] = []

    def refuse(record: ReplicatorRecord) -> RetryLimits:
        reads.append(record.config)
        raise ConfigError("The variable PASSWORD is not set.", code="missing_variable")

    _, see = _reloading(store, tmp_path, refuse)
    first = see(DOCUMENT)
    changed = DOCUMENT.replace("5s", "6s")
    assert see(changed) == first
    assert see(changed) == first
    assert reads == [changed], "it is not read again and again"
    (refused,) = store.reports(NAME).refused
    assert (refused.report.of, refused.report.message) == ("reload", "The variable PASSWORD is not set.")
