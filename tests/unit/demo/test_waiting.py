"""How long the demo waits, and what it says when it gives up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from replicator.model.documents.status import (
    ErrorStatus,
    MergedStatus,
    ReplicatorStatus,
    RetryStatus,
    TableState,
    TableStatus,
)
from replicator.service.status import assemble as status
from replicator.state.store import StateStore
from replicator_testbed.demo.waiting import STILL_S, reasons, wait_while_it_moves
from replicator_testing.defaults import NEVER_VERIFIED

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ERROR = ErrorStatus(code="schema_changed", message="Its columns changed.", action="Run this.", at=NOW)
TABLE = TableStatus(
    source_table=None,
    table="public.orders", state=TableState.SNAPSHOT, incarnation=1, snapshot=None, next_snapshot=None, changes_applied=1,
    snapshot_rows_applied=0, last_applied=1, freshness_s=None, last_batch=None, engine=None,
        waiting=None, upkeep=None, error=None, projection=None, kept_columns=(), alarms=(),
    freshness_objective_s=None, is_objective_met=None,
    resumes_by_itself=False,
    merged=MergedStatus(matched=0, inserted=0, deleted=0, not_found=0), verify=NEVER_VERIFIED,
)  # fmt: skip


class Clock:
    """A clock that only resting moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def rest(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def document(tmp_path: Path) -> Iterator[ReplicatorStatus]:
    """The status of a replicator that was only stored."""
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    yield status.status(store, store.create_replicator("demo", "config", "/j"))
    store.close()


def test_what_moves_is_waited_for_however_long_it_takes(document: ReplicatorStatus) -> None:
    clock, applied = Clock(), count()

    def look() -> ReplicatorStatus:
        clock.rest(0.9 * STILL_S)
        return document.model_copy(update={"tables": (TABLE.model_copy(update={"last_applied": next(applied)}),)})

    assert wait_while_it_moves(look, lambda s: s.tables[0].last_applied == 50, clock=clock, rest=clock.rest)


def test_what_is_counted_is_progress_too(document: ReplicatorStatus) -> None:
    clock, transactions = Clock(), count()

    def look() -> ReplicatorStatus:
        clock.rest(0.9 * STILL_S)
        return document

    counted = transactions.__next__
    assert wait_while_it_moves(look, lambda _: clock() > 9 * STILL_S, counted=counted, clock=clock, rest=clock.rest)


def test_it_gives_up_when_nothing_moves_but_the_source(document: ReplicatorStatus) -> None:
    clock, read = Clock(), count()

    def look() -> ReplicatorStatus:
        source = document.source.model_copy(update={"position": str(next(read))})
        return document.model_copy(update={"source": source, "tables": (TABLE,)})

    assert not wait_while_it_moves(look, lambda _: False, clock=clock, rest=clock.rest)
    assert not wait_while_it_moves(lambda: None, lambda _: True, clock=clock, rest=clock.rest)


def test_the_reasons_are_what_the_status_says(document: ReplicatorStatus) -> None:
    failed = TABLE.model_copy(update={"table": "public.items", "state": TableState.FAILED, "error": ERROR})
    streaming = TABLE.model_copy(update={"table": "public.fine", "state": TableState.STREAMING})
    retry = RetryStatus(role="apply", retry_in_s=1.0, code="spark_lost", message="Spark ended.")
    said = reasons(document.model_copy(update={"tables": (TABLE, failed, streaming), "retry": retry}))
    assert said.splitlines() == [
        "The replicator is no_worker.",
        "public.orders: snapshot, 1 changes applied",
        "public.items: failed, 1 changes applied",
        "public.items: [schema_changed] Its columns changed.",
        "    → Run this.",
        "retrying apply: [spark_lost] Spark ended.",
    ]
    assert reasons(None) == "No replicator is stored yet."
