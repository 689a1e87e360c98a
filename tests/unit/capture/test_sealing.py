"""Where the log is, and that a source's claim to be at a transaction boundary is not believed against what it delivered."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from replicator.capture.sealing import Unsealed
from replicator.model.errors import PluginError
from replicator.model.offset import Offset
from replicator.plugins.source import TRANSACTION_SCHEMA, LogBatch
from replicator.state.records import Stage
from replicator_testbed.present import present
from replicator_testing.memory.source import MemoryLogReader

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench, Running

START = Offset.of({"position": 1})


def batch(
    *ended: tuple[str, int], open_transaction: str | None, events: int = 0, offset: Offset | None = None
) -> LogBatch:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{"id": id_, "end_ordinal": end, "committed_at": moment} for id_, end in ended]
    transactions = pa.RecordBatch.from_pylist(rows, schema=TRANSACTION_SCHEMA)
    return LogBatch(open_transaction=open_transaction, events=events, transactions=transactions, offset=offset)


EMPTY = batch(open_transaction=None)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, EMPTY),
        (None, batch(open_transaction="7", events=2)),
        ("7", batch(open_transaction="7")),
        ("7", batch(open_transaction="7", events=2)),
        ("7", batch(("7", 2), open_transaction=None, events=2)),
        ("7", batch(("7", 0), open_transaction="8", events=3)),
        ("7", replace(EMPTY, offset=Offset.of({"position": 2}))),
        ("7", replace(EMPTY, is_rolled_back=True)),
    ],
)
def test_a_batch_that_accounts_for_the_open_transaction_is_taken(before: str | None, after: LogBatch) -> None:
    Unsealed(position=START, open_transaction=before).check(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("7", EMPTY),
        ("7", batch(("6", 0), open_transaction=None)),
        ("7", batch(open_transaction="8", events=1)),
        (None, batch(open_transaction=None, events=1)),
        (None, batch(("7", 1), open_transaction=None, events=2)),
    ],
)
def test_a_transaction_without_an_end_is_not_taken_for_ended(before: str | None, after: LogBatch) -> None:
    with pytest.raises(PluginError) as caught:
        Unsealed(position=START, open_transaction=before).check(after)
    assert caught.value.code == "transaction_not_closed"


def test_a_log_was_heard_when_it_delivered_something_or_told_a_newer_time() -> None:
    unsealed = Unsealed(position=START)
    told = replace(EMPTY, source_time=datetime(2026, 1, 1, tzinfo=UTC))
    heard: list[tuple[float | None, float | None, bool]] = []
    for now, next_batch in enumerate([EMPTY, batch(("7", 1), open_transaction=None, events=1), told, told, EMPTY]):
        unsealed.add(next_batch, float(now))
        heard.append((unsealed.heard_at, unsealed.since, unsealed.is_idle))
    assert heard == [(None, None, True), (1, 1, False), (2, 1, True), (2, 1, True), (2, 1, True)]


def has_read_beyond(capture: Running, position: str | None) -> bool:
    return capture.control.status.position != position


def test_transactions_are_sealed_together_until_the_time_for_it_is_over(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    with bench.running() as capture:
        capture.until(bench.is_at(Stage.STREAMING))
    before = present(bench.store.journal.last_segment("test")).id
    bench.settings = replace(bench.settings, seal_every_s=3600, seal_gap_s=3600, seal_rows=3)
    with bench.running() as capture:
        for n in range(1, 4):
            position = capture.control.status.position
            bench.fill(table, 1, first=n)
            capture.until(functools.partial(has_read_beyond, capture, position))
        capture.until(bench.holds(table))
    sealed = bench.store.journal.segments("test", before, 10)
    assert [sum(file.rows for file in segment.files) for segment in sealed if segment.files] == [3]


def test_nothing_is_sealed_of_a_transaction_that_the_source_forgot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a reader once did when a pull brought nothing in the middle of a large transaction."""
    table = bench.create(bench.schema("t"))
    bench.settings = replace(bench.settings, pull_rows=2, seal_rows=1)
    with bench.running() as capture:
        capture.until(bench.is_at(Stage.STREAMING))
    told = MemoryLogReader._open_transaction
    monkeypatch.setattr(MemoryLogReader, "_open_transaction", lambda self: told(self) if self._entry < 4 else None)
    bench.fill(table, 9)
    with pytest.raises(PluginError, match="has not ended"), bench.running() as capture:
        capture.join()
    assert not list(bench.folded(table))
    monkeypatch.undo()
    with bench.running() as capture:
        capture.until(bench.holds(table))


def test_an_answer_that_comes_right_behind_the_wait_for_it_ends_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What later reads see is asked with a bound; it was taken for an error of the source if it came when the time was up."""
    result = Future.result

    def too_late(call: Future[Any], timeout: float | None = None) -> Any:
        answer = result(call)
        if timeout is not None:
            raise TimeoutError
        return answer

    monkeypatch.setattr(Future, "result", too_late)
    table = bench.create(bench.schema("t"))
    with bench.running() as capture:
        capture.until(bench.is_at(Stage.STREAMING))
        hidden = bench.write(table, {"id": 1, "a": "late", "b": None}, visible=False)
        capture.until(
            lambda: any(
                text.startswith(f"{hidden}@") for text in present(bench.store.journal.last_segment("test")).ring
            )
        )
        bench.database.make_visible(hidden)
        bench.fill(table, 2, first=2)
        capture.until(lambda: bench.holds(table)() and not present(bench.store.journal.last_segment("test")).ring)
