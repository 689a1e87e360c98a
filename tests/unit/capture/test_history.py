"""What is noted of tables' definitions is sealed with the journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from replicator.model.difference import difference
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import Column
from replicator.state.records import Decision, EventEntry, HistoryEntry, Stage
from replicator_testbed.present import present
from tests.unit.capture.conftest import NAME

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench

EMAIL = Column(name="email", type=pa.string(), source_type="varchar(20)", id=4)


def altered(bench: Bench) -> Sequence[HistoryEntry]:
    """What the history has of alterations."""
    return [entry for entry in bench.store.histories.latest(NAME, 10) if entry.operation is DDLOperation.ALTER_TABLE]


def test_an_added_column_is_in_the_history_at_its_number(bench: Bench) -> None:
    first = bench.schema("t")
    first = replace(first, columns=tuple(replace(c, id=id_) for id_, c in enumerate(first.columns, start=1)))
    table = bench.create(first)
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(Stage.STREAMING))
        with bench.database.begin() as changes:
            changes.insert(table, {"id": 10, "a": "x", "b": "y"})
            changes.alter(replace(first, columns=(*first.columns, EMAIL)), fill={"email": None})
            changes.insert(table, {"id": 11, "a": "x", "b": "y", "email": "z"})
        capture.until(bench.holds(table))
    (entry,) = altered(bench)
    assert (entry.operation, entry.changes, entry.decision) == (
        DDLOperation.ALTER_TABLE,
        ("add_column",),
        Decision.APPLY,
    )
    assert difference(entry.before, entry.after) == ["+ email varchar(20)"]
    numbers = [n for n, item in bench.items(table) if isinstance(item, DDLEvent) and item.operation is entry.operation]
    assert numbers == [entry.sequence_num]
    events = {
        event.sequence_num: segment
        for segment in bench.store.journal.segments(NAME, 0, 100)
        for event in segment.events
        if isinstance(event, EventEntry)
    }
    assert entry.offset == present(events[entry.sequence_num].offset)


def test_what_the_log_delivers_again_is_in_the_history_once(bench: Bench) -> None:
    first = bench.schema("t")
    table = bench.create(first)
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(Stage.STREAMING))
    with bench.database.begin() as changes:
        changes.alter(bench.schema("t", extra=["c"]), fill={"c": None})
    bench.fill(table, 1, first=50)
    for _ in range(2):
        with bench.running() as capture:
            capture.until(bench.holds(table))
    assert [entry.changes for entry in altered(bench)] == [("add_column",)]


def test_what_the_target_keeps_is_in_the_history(bench: Bench) -> None:
    first = bench.schema("t")
    table = bench.create(first)
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(Stage.STREAMING))
        with bench.database.begin() as changes:
            changes.alter(replace(first, columns=first.columns[:2]))
        capture.until(lambda: bool(altered(bench)))
    (entry,) = altered(bench)
    assert (entry.changes, entry.decision) == (("drop_column",), Decision.KEEP)
    assert difference(entry.before, entry.after) == ["- b", "kept in the target: b"]
