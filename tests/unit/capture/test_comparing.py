"""Capture of tables that are compared, because a part of the log was lost: how that begins, what it survives, and how it ends."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from replicator.capture import pump
from replicator.model.schema import TableId
from replicator.state.records import Preparation, RequestKind, Stage
from replicator_testbed.present import present

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench

STREAMING = (Stage.STREAMING,)


class KilledError(BaseException):
    """The process was killed."""


def lost(bench: Bench, *wishes: bool) -> TableId:
    """A table that streamed, of which a part of the log was lost; a new position is asked for, each time with only what changed or not."""
    table = bench.create(bench.schema("t"))
    bench.fill(table, 4)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    with bench.database.begin() as changes:
        changes.delete(table, (1,))
    bench.database.forget_log()
    for changed_only in wishes:
        bench.store.requests.add("test", RequestKind.RESTART, {"tables": [str(table)], "changed_only": changed_only})
    return table


def prove(bench: Bench, table: TableId, started_at: datetime) -> None:
    """As the process that compares says it."""
    proven = {"table": str(table), "started_at": started_at.isoformat()}
    bench.store.requests.add("test", RequestKind.PROVEN, proven)


def test_a_table_that_is_compared_is_complete_when_that_comparison_finds_it_equal(bench: Bench) -> None:
    table = lost(bench, True)
    with bench.running() as capture:
        capture.until(bench.is_at(Stage.COMPARING))
        started_at = present(present(bench.known(table).snapshot).started_at)
        # What is written meanwhile is captured; what was lost is read only if somebody asks for it.
        bench.fill(table, 1, first=9)
        prove(bench, table, started_at - timedelta(seconds=1))
        capture.until(lambda: not bench.store.requests.open("test"))
        assert bench.known(table).stage is Stage.COMPARING
        bench.store.requests.add("test", RequestKind.REREAD, {"table": str(table), "keys": [["1"]]})
        capture.until(bench.holds(table))
        capture.until(lambda: bench.known(table).reread is None and not bench.store.requests.open("test"))
        prove(bench, table, started_at)
        capture.until(bench.is_at(*STREAMING))
    record = bench.known(table)
    assert (present(record.snapshot).rows, record.is_changed_only) == (1, False)
    assert present(record.snapshot).start_number is None


def test_a_comparison_that_began_is_continued_by_the_next_process_and_begun_again_at_another_position(
    bench: Bench,
) -> None:
    table = lost(bench, True)
    with bench.running() as capture:
        capture.until(bench.is_at(Stage.COMPARING))
    first = bench.known(table)
    with bench.running() as capture:
        bench.fill(table, 1, first=9)
        capture.until(lambda: any(isinstance(item, dict) and item["row"]["id"] == 9 for _, item in bench.items(table)))
    assert (bench.known(table).stage, bench.known(table).snapshot) == (Stage.COMPARING, first.snapshot)
    bench.store.requests.add("test", RequestKind.RESTART, {"tables": [str(table)], "changed_only": True})
    with bench.running() as capture:
        capture.until(lambda: not bench.store.requests.open("test") and bench.is_at(Stage.COMPARING)())
        prove(bench, table, present(present(first.snapshot).started_at))
        capture.until(lambda: not bench.store.requests.open("test"))
        assert bench.known(table).stage is Stage.COMPARING


@pytest.mark.parametrize("wishes", [(True, False), (False, True)])
def test_who_asks_for_everything_gets_everything(bench: Bench, wishes: tuple[bool, ...]) -> None:
    table = lost(bench, *wishes)
    with bench.running() as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert present(bench.known(table).snapshot).start_number is not None


def test_a_snapshot_that_is_asked_for_ends_the_comparison(bench: Bench) -> None:
    table = lost(bench, True)
    with bench.running() as capture:
        capture.until(bench.is_at(Stage.COMPARING))
        bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": [str(table)]})
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert present(bench.known(table).snapshot).start_number is not None


@pytest.mark.parametrize("point", ["capture.intent_recorded", "capture.start_recorded"])
def test_what_was_asked_for_survives_a_crash_at_the_new_position(
    bench: Bench, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lost(bench, True)

    def crash_point(name: str) -> None:
        if name == point:
            raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(pump, "crash_point", crash_point)
        with pytest.raises(KilledError), bench.running() as capture:
            capture.until(bench.is_at(Stage.COMPARING))
    # Between the commit of the new position and the note that it is prepared, too.
    if point == "capture.start_recorded":
        lease = present(bench.store.leases.acquire("test", "test:1:1", 3600))
        bench.store.set_preparation(lease, Preparation.INTENT)
    with bench.running() as capture:
        capture.until(bench.is_at(Stage.COMPARING))
    assert present(bench.known(table).snapshot).start_number is None
