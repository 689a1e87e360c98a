"""When work has waited long enough for a cluster's executors."""

from __future__ import annotations

from replicator.spark.executors import Starvation


def test_only_work_without_any_executor_waits() -> None:
    starvation = Starvation(timeout_s=10)
    assert starvation.look(executors=0, jobs=0, now=0) == 0
    assert starvation.look(executors=0, jobs=1, now=5) == 0
    assert starvation.look(executors=0, jobs=2, now=12) == 7
    assert starvation.look(executors=1, jobs=2, now=13) == 0
    assert starvation.look(executors=0, jobs=1, now=14) == 0
    waited = starvation.look(executors=0, jobs=1, now=24)
    assert waited == 10
    assert starvation.is_over(waited)
    assert not starvation.is_over(9.9)
