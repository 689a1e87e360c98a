"""The orders in which tables and replicators are shown."""

from __future__ import annotations

from random import Random
from typing import TypeVar

from replicator.model.documents import ordering
from replicator.model.documents.status import ReplicatorState, TableState
from replicator_testbed.statuses import replicator_status, table_status

T = TypeVar("T")
NAMES = ["", "7", "a", "a.t1", "a.t1b", "a.t2", "a.t02x", "a.t10", "b.t1"]


def shuffled(things: list[T]) -> list[T]:
    return Random(7).sample(things, len(things))


def test_numbers_in_names_sort_by_their_value() -> None:
    assert sorted(shuffled(NAMES), key=ordering.natural) == NAMES


def test_the_table_in_most_trouble_comes_first() -> None:
    tables = [
        table_status("t1", state=TableState.FAILED),
        table_status("t2", state=TableState.DROPPED),
        table_status("t3", alarmed=True, freshness_s=0.1),
        table_status("t4", waits=True, freshness_s=0.1),
        table_status("t5"),
        table_status("t6", freshness_s=9.0),
        table_status("t20", freshness_s=1.0),
        table_status("t100", freshness_s=1.0),
    ]
    assert sorted(shuffled(tables), key=ordering.worst_first) == tables


def test_the_replicator_in_most_trouble_comes_first() -> None:
    failed, fine = table_status("t", state=TableState.FAILED), table_status("t", freshness_s=1.0)
    found = [
        replicator_status("a", state=ReplicatorState.FAILED),
        replicator_status("b", state=ReplicatorState.NO_WORKER),
        replicator_status("c", state=ReplicatorState.RETRYING),
        replicator_status("d", tables=(failed, failed)),
        replicator_status("e", tables=(failed,)),
        replicator_status("f"),
        replicator_status("g", tables=(fine,), freshness_s=9.0),
        replicator_status("h", tables=(fine,), freshness_s=1.0),
    ]
    assert sorted(shuffled(found), key=ordering.worst_replicator_first) == found
