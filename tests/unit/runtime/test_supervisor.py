"""What the supervisor makes of news that come late."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest

from replicator.runtime.logfile import LogFile
from replicator.runtime.policy import RetryLimits
from replicator.runtime.process import Message, WorkerProcess
from replicator.runtime.supervisor import Supervisor
from replicator.state.records import Role
from replicator.state.store import StateStore


def test_the_end_of_a_worker_that_was_stopped_does_not_concern_its_successor(
    tmp_path: Path, replicator_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pause` and `resume` in a row: the next worker may run before the news of the first one's end is read."""
    news: queue.Queue[Message] = queue.Queue()
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    log = LogFile(tmp_path / "log.jsonl")
    supervisor = Supervisor(store, "nobody", log=log, limits=RetryLimits(), delete=lambda *_: None)
    first, second = (WorkerProcess(Role.APPLY, "nobody", 1, {}, deliver=news.put, log=lambda _: None) for _ in range(2))
    supervisor._workers[Role.APPLY] = second
    first.kill()
    try:
        assert supervisor._handle(_end_of(first, news)) is None
        assert supervisor._workers == {Role.APPLY: second}
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
        message = news.get(timeout=30)
        if (message.event, message.pid) == ("exit", worker.pid):
            return message
