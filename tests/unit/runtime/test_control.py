"""A worker's side of the pipe to its supervisor."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from replicator.model.counts import CounterName
from replicator.model.processes.reports import ApplyReport
from replicator.runtime import control
from replicator.state.store import StateStore


def test_each_retry_of_a_table_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_REPORT_EVERY_S", 0.0)
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    store.create_replicator("shop", "name: shop", "/j")
    for retried in ({}, {"throttled": 2}, {"throttled": 2}, {"throttled": 3, "target_full": 1}):
        # The second process counts from 0 again.
        worker = control.WorkerControl(store, "shop", 1, commands=io.StringIO(), answers=io.StringIO())
        worker.report(ApplyReport(retried=retried))
        worker.report(ApplyReport(retried=retried))
    counts = store.counters("shop")
    assert counts[CounterName.RETRIES, ("table",)] == 8
    assert (counts[CounterName.ERRORS, ("throttled",)], counts[CounterName.ERRORS, ("target_full",)]) == (7, 1)
    store.close()
