"""The process on the side is started again, however it ends and whatever goes wrong where it is kept."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
import structlog

from replicator.observability import configure_logging
from replicator.runtime import watch_process
from replicator.runtime.watch_process import watched
from replicator_testing.waiting import wait_until


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    monkeypatch.setattr(watch_process, "_WANTED_S", 0.01)
    monkeypatch.setattr(watch_process, "_RESTART_S", (0.0, 60.0))
    configuration = structlog.get_config()
    stream = io.StringIO()
    configure_logging(format="json", stream=stream)
    yield stream
    structlog.configure(**configuration)


def sender() -> psutil.Process | None:
    found = [child for child in psutil.Process().children() if "replicator.service.watching" in child.cmdline()]
    return found[0] if found else None


def pauses(log: io.StringIO) -> list[int]:
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line["retry_in_ms"] for line in lines if line["event"] == "watch_ended"]


def ended_since(log: io.StringIO, before: int) -> bool:
    return len(pauses(log)) > before


def test_an_error_of_the_question_does_not_end_the_watch(log: io.StringIO) -> None:
    answers = iter([True])

    def wanted() -> bool:
        if next(answers, False):
            raise RuntimeError("a bug")
        return True

    with watched(wanted, (), list[str]().append):
        wait_until(sender, "it is started all the same")
    assert "watch_crashed" in log.getvalue()
    assert sender() is None


@pytest.mark.parametrize(("stable_s", "expected"), [(0.0, [0, 0]), (300.0, [0, 60_000])])
def test_only_ends_in_a_row_make_the_pause_longer(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch, stable_s: float, expected: list[int]
) -> None:
    monkeypatch.setattr(watch_process, "_STABLE_S", stable_s)
    with watched(lambda: True, (), list[str]().append):
        for _ in range(2):
            before = len(pauses(log))
            wait_until(sender, "it runs").send_signal(signal.SIGKILL)
            wait_until(partial(ended_since, log, before), "its end is seen")
    assert pauses(log) == expected
