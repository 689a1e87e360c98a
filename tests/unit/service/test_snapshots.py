"""What is shown of snapshots while they run."""

from __future__ import annotations

import pytest

from replicator.model.documents.status import ReplicatorStatus, SnapshotStatus, TableState
from replicator.model.processes.reports import RunningStep
from replicator.service.status.snapshots import (
    NEWS_S,
    WINDOW_S,
    Meter,
    News,
    SnapshotPace,
    duration,
    pace_in_words,
    share,
    text,
)
from replicator_testbed.statuses import replicator_status, snapshot_status, table_status


def running(progress: SnapshotStatus, state: TableState = TableState.SNAPSHOT) -> ReplicatorStatus:
    return replicator_status("shop", tables=(table_status("public.a", state=state, snapshot=progress),))


@pytest.mark.parametrize(
    ("progress", "state", "shown"),
    [
        (snapshot_status(60, 41, estimated=100), TableState.SNAPSHOT, "in the target: 41 %, captured: 60 of about 100"),
        (snapshot_status(60, 41), TableState.SNAPSHOT, "in the target: 41 rows, captured: 60 rows so far"),
        # The estimate was too low.
        (
            snapshot_status(160, 160, estimated=100),
            TableState.SNAPSHOT,
            "in the target: 99 %, captured: 160 of about 100",
        ),
        (snapshot_status(200, 150, is_complete=True), TableState.SNAPSHOT, "in the target: 75 %, captured: 200 rows"),
        (snapshot_status(200, 150, is_complete=True), TableState.FAILED, "in the target: 75 %, captured: 200 rows"),
        (snapshot_status(1, 1, is_complete=True), TableState.STREAMING, "1 row"),
        (snapshot_status(0, 0, is_complete=True), TableState.STREAMING, "0 rows"),
        (
            snapshot_status(7, 0, estimated=40, step=RunningStep.MARKING),
            TableState.SNAPSHOT,
            "in the target: 0 %, captured: 7 of about 40, waiting for the log",
        ),
    ],
)
def test_what_is_in_the_target_is_said_apart_from_what_is_captured(
    progress: SnapshotStatus, state: TableState, shown: str
) -> None:
    assert text(table_status("public.a", state=state, snapshot=progress)) == shown


def test_an_empty_table_is_complete() -> None:
    assert share(snapshot_status(0, 0, is_complete=True)) == 1.0


def test_the_pace_is_that_of_the_last_minute_and_the_rest_takes_as_long_as_it_says() -> None:
    meter, paces = Meter(), []
    for at, in_target in ((0.0, 0), (10.0, 1_000), (100.0, 100_000), (110.0, 120_000)):
        paces.append(meter.observe(running(snapshot_status(in_target + 5_000, in_target, estimated=200_000)), at))
    assert paces[0] == {}
    assert paces[1] == {"public.a": SnapshotPace(rows_per_s=100.0, left_s=1_990.0)}
    # What was more than a minute ago counts only as far as there is nothing newer.
    assert paces[3] == {"public.a": SnapshotPace(rows_per_s=1_190.0, left_s=80_000 / 1_190)}
    assert WINDOW_S < 100.0


def test_before_the_first_rows_are_in_the_target_the_pace_is_that_of_the_reader() -> None:
    meter = Meter()
    meter.observe(running(snapshot_status(0, 0, estimated=1_000)), 0.0)
    found = meter.observe(running(snapshot_status(500, 0, estimated=1_000)), 10.0)
    assert found == {"public.a": SnapshotPace(rows_per_s=50.0, left_s=None)}


def test_another_snapshot_of_the_table_begins_another_measurement() -> None:
    meter = Meter()
    meter.observe(running(snapshot_status(1_000, 1_000, estimated=1_000)), 0.0)
    assert meter.observe(running(snapshot_status(10, 0, estimated=1_000)), 10.0) == {}


def test_lines_tell_now_and_then_how_far_a_snapshot_is_and_when_it_is_in_the_target() -> None:
    news, pace = News(), {"public.a": SnapshotPace(rows_per_s=12_345.6, left_s=125.0)}
    half = running(snapshot_status(60, 41, estimated=100))
    whole = running(snapshot_status(100, 100, is_complete=True), TableState.STREAMING)
    assert list(news.lines(half, pace, 0.0)) == []
    assert list(news.lines(half, pace, NEWS_S - 0.1)) == []
    line = "public.a: snapshot in the target: 41 %, captured: 60 of about 100, 12,346 rows/s, 2 min left."
    assert list(news.lines(half, pace, NEWS_S)) == [line]
    assert list(news.lines(half, pace, NEWS_S + 1)) == []
    last = "public.a: its snapshot is in the target: 100 rows. Changes are applied as they arrive."
    assert list(news.lines(whole, {}, NEWS_S + 2)) == [last]
    assert list(news.lines(whole, {}, NEWS_S * 9)) == []


def test_a_table_that_streams_from_the_start_is_no_news() -> None:
    streaming = running(snapshot_status(100, 100, is_complete=True), TableState.STREAMING)
    assert list(News().lines(streaming, {}, 0.0)) == []


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0 s"), (59.0, "59 s"), (125.0, "2 min"), (3_600.0, "1 h 0 min"), (90_000.0, "25 h 0 min")],
)
def test_durations_are_in_their_largest_units(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
    assert pace_in_words(SnapshotPace(rows_per_s=1.0, left_s=seconds)) == f"1 rows/s, {shown} left"
