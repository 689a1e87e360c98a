"""The status of replicators while they run, in a terminal and elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from replicator.cli import progress
from replicator.model.documents.status import ReplicatorStatus, TableState
from replicator.model.errors import StateUnavailableError
from replicator.state.store import StateStore
from replicator_testbed.statuses import replicator_status, snapshot_status, table_status
from replicator_testing.waiting import PATIENCE


def test_the_picture_stands_while_the_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    looks = threading.Semaphore(0)

    def away(name: str) -> None:
        looks.release()
        raise StateUnavailableError("locked", code="state_locked")

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(store, "replicator", away)
    with progress.ProgressDisplay(store, "shop"):
        assert all(looks.acquire(timeout=30 * PATIENCE) for _ in range(2))
    store.close()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_run_says_in_words_when_its_parts_are_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    monkeypatch.setenv("COLUMNS", "400")
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    store.create_replicator("shop", "config", "/j")
    lines = [
        '{"event": "log_opened", "tables": 2}',
        '{"event": "worker_started", "role": "apply", "epoch": 1}',
        '{"event": "spark_starting"}',
        '{"event": "spark_jvm_started"}',
        '{"event": "table_added"}',
        "no JSON",
        "7",
    ]
    with progress.ProgressDisplay(store, "shop") as display:
        display.say("starting.")
        for line in lines:
            display.log_line(line)
    store.close()
    printed = capsys.readouterr()
    assert printed.out == ""
    told = [line for line in click.unstyle(printed.err).splitlines() if line.startswith("shop: ")]
    assert told == [
        "shop: starting.",
        "shop: capture is running: it reads the source's log.",
        "shop: the process of apply is up.",
        "shop: Spark is starting. This can take a minute.",
        "shop: Spark's Java process is up, with its packages. It opens its session.",
    ]
    assert (lines[4] in printed.err) is not is_terminal


@pytest.mark.parametrize("is_terminal", [False, True])
def test_watching_shows_what_there_is_until_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    """In a terminal with a bar and the pace, elsewhere without; a store that is away for a moment ends nothing."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    monkeypatch.setenv("COLUMNS", "400")
    clock, stop = iter([0.0, 10.0]), threading.Event()
    looks = iter([0, None, 500])

    def look() -> Sequence[ReplicatorStatus]:
        in_target = next(looks)
        if in_target is None:
            raise StateUnavailableError("locked", code="state_locked")
        if in_target:
            stop.set()
        snapshot = snapshot_status(400 + in_target, in_target, estimated=1_000)
        table = table_status("public.a", state=TableState.SNAPSHOT, snapshot=snapshot)
        return [replicator_status("shop", tables=(table,))]

    progress.watch(look, stop, every_s=0.0, clock=lambda: next(clock))
    printed = click.unstyle(capsys.readouterr().out)
    assert "in the target: 0 %, captured: 400 of about 1,000" in printed
    assert "in the target: 50 %, captured: 900 of about 1,000" in printed
    assert ("50 rows/s, 10 s left" in printed) is is_terminal
    assert ("━━━" in printed) is is_terminal


def test_where_no_snapshot_runs_and_nobody_looks_the_status_is_asked_for_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    display = progress.ProgressDisplay(store, "shop")
    streaming, running = (
        table_status("public.a", state=state) for state in (TableState.STREAMING, TableState.SNAPSHOT)
    )
    quiet = display._show(replicator_status("shop", tables=(streaming,)))
    moving = {display._show(replicator_status("shop", tables=tables)) for tables in ((), (streaming, running))}
    store.close()
    assert all(pause_s < quiet for pause_s in moving)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_watching_says_that_nothing_is_stored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    stop = threading.Event()
    stop.set()
    progress.watch(list, stop)
    printed = capsys.readouterr()
    assert "No replicator is stored" in (printed.out if is_terminal else printed.err)
