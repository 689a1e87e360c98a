"""The window's rules, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from replicator.capture.window import Move, RowVerdict, Window
from replicator.model.events import DDLEvent, DDLOperation, change_schema
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import TRANSACTION_SCHEMA, LogBatch, Seen, TableChanges, Visibility

MOMENT = datetime(2024, 1, 1, tzinfo=UTC)
TABLE = TableId("public", "t")
SCHEMA = TableSchema(
    table=TABLE,
    columns=(
        Column(name="region", type=pa.string(), source_type="text", nullable=False),
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="a", type=pa.string(), source_type="text"),
        Column(name="b", type=pa.string(), source_type="text"),
        Column(name="c", type=pa.string(), source_type="text"),
    ),
    key=("region", "id"),
)


@dataclass(frozen=True)
class Saw(Visibility):
    seen: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()

    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        def one(id_: str) -> Seen:
            return Seen.SEEN if id_ in self.seen else Seen.UNKNOWN if id_ in self.unknown else Seen.UNSEEN

        return pa.array([int(one(i)) for i in transaction_ids.to_pylist()], pa.int8())


def row(id_: int, **values: str) -> dict[str, Any]:
    return {"region": "eu", "id": id_, "a": None, "b": None, "c": None, **values}


def change(
    operation: str, transaction: str, after: Any = None, before: Any = None, absent: Sequence[str] | None = None
) -> dict[str, Any]:
    return {
        "_sequence_num": 0, "_operation": operation, "_is_snapshot": False, "_source_timestamp": MOMENT, "_transaction_id": transaction,
        "_absent": absent, "before": before, "row": after,
    }  # fmt: skip


def batch(
    *changes: dict[str, Any],
    open_transaction: str | None = None,
    ddl: Sequence[DDLEvent] = (),
    ddl_in: str | None = None,
) -> LogBatch:
    """Changes in log order; a transaction ends with its last change unless it is open."""
    order = [c["_transaction_id"] for c in changes] + [ddl_in] * len(ddl)
    rows = [c | {"_sequence_num": i} for i, c in enumerate(changes)]
    ends = {id_: i + 1 for i, id_ in enumerate(order) if id_ != open_transaction}
    return LogBatch(
        changes=[TableChanges(schema=SCHEMA, rows=pa.RecordBatch.from_pylist(rows, schema=change_schema(SCHEMA)))]
        if rows
        else [],
        ddl=ddl,
        events=len(order),
        transactions=pa.RecordBatch.from_pylist(
            [{"id": i, "end_ordinal": e, "committed_at": MOMENT} for i, e in ends.items()], schema=TRANSACTION_SCHEMA
        ),
        open_transaction=open_transaction,
    )


def chunk(*ids: int) -> pa.RecordBatch:
    rows = [row(i, a=f"a{i}", b=f"b{i}", c=f"c{i}") for i in ids]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(SCHEMA.row_type)))


def key(id_: int) -> dict[str, Any]:
    return {"region": "eu", "id": id_}


@pytest.fixture
def window() -> Window:
    made = Window()
    made.watch(SCHEMA)
    return made


def ids(rows: pa.RecordBatch) -> list[int]:
    return [r["row"]["id"] for r in rows.to_pylist()]


def test_untouched_rows_become_snapshot_inserts(window: Window) -> None:
    rows = window.emit(window.add_chunk(SCHEMA, chunk(1, 2), Saw()))
    assert rows.schema == change_schema(SCHEMA)
    first = rows.to_pylist()[0]
    assert first["row"] == row(1, a="a1", b="b1", c="c1")
    assert (first["_operation"], first["_is_snapshot"], first["_absent"], first["before"]) == (
        "INSERT",
        True,
        None,
        None,
    )
    assert rows.column("_sequence_num").to_pylist() == [0, 1]


def test_rows_of_unseen_transactions_are_dropped_before_and_after_the_read(window: Window) -> None:
    window.deliver(batch(change("UPDATE", "7", row(1, a="x"))), 0)
    read = window.add_chunk(SCHEMA, chunk(1, 2, 3, 4), Saw())
    window.deliver(batch(change("DELETE", "8", before=key(3))), 1)
    assert ids(window.emit(read)) == [2, 4]


def test_rows_of_seen_transactions_stay(window: Window) -> None:
    window.deliver(batch(change("UPDATE", "7", row(1, a="x"))), 0)
    read = window.add_chunk(SCHEMA, chunk(1, 2), Saw(frozenset({"7", "8"})))
    window.deliver(batch(change("UPDATE", "8", row(2, a="x"))), 1)
    assert ids(window.emit(read)) == [1, 2]


def test_unknown_is_as_good_as_unseen(window: Window) -> None:
    window.deliver(batch(change("UPDATE", "7", row(1, a="x"))), 0)
    assert ids(window.emit(window.add_chunk(SCHEMA, chunk(1, 2), Saw(unknown=frozenset({"7"}))))) == [2]


def test_both_keys_of_a_move_are_dropped(window: Window) -> None:
    read = window.add_chunk(SCHEMA, chunk(1, 2, 3), Saw())
    assert window.deliver(batch(change("UPDATE", "7", row(2), before=key(1))), 0) == {}
    assert ids(window.emit(read)) == [3]


def test_partial_change_leaves_the_columns_that_it_lacks(window: Window) -> None:
    read = window.add_chunk(SCHEMA, chunk(1), Saw())
    window.deliver(batch(change("UPDATE", "7", row(1, a="x"), absent=["b", "c"])), 0)
    (left,) = window.emit(read).to_pylist()
    assert left["row"] == row(1, b="b1", c="c1")
    assert left["_absent"] == ["a"]


def test_several_partial_changes_leave_the_intersection(window: Window) -> None:
    window.deliver(
        batch(
            change("UPDATE", "7", row(1, a="x"), absent=["b", "c"]),
            change("UPDATE", "7", row(1, b="y"), absent=["a", "c"]),
        ),
        0,
    )
    (left,) = window.emit(window.add_chunk(SCHEMA, chunk(1), Saw())).to_pylist()
    assert (left["row"], sorted(left["_absent"])) == (row(1, c="c1"), ["a", "b"])


@pytest.mark.parametrize(
    "between",
    [
        [change("DELETE", "8", before=key(1)), change("INSERT", "8", row(1, a="n", b="n", c="n"))],
        [change("UPDATE", "8", row(1, a="n", b="n", c="n"))],
    ],
    ids=["deleted and inserted", "whole update"],
)
def test_nothing_of_the_read_is_left_once_a_whole_row_came(window: Window, between: list[dict[str, Any]]) -> None:
    read = window.add_chunk(SCHEMA, chunk(1), Saw())
    partial = change("UPDATE", "8", row(1, a="x"), absent=["b"])
    window.deliver(batch(partial, *between, partial), 0)
    assert window.emit(read).num_rows == 0


def test_incomplete_move_asks_for_its_new_key_until_a_read_has_seen_it(window: Window) -> None:
    moved = window.deliver(batch(change("UPDATE", "7", row(2), before=key(1), absent=["b"])), 0)
    assert moved == {TABLE: (Move(("eu", "1"), ("eu", "2")),)}
    unseeing = window.add_chunk(SCHEMA, chunk(), Saw())
    assert unseeing.unsettled == [("eu", "2")]
    seeing = window.add_chunk(SCHEMA, chunk(2), Saw(frozenset({"7"})))
    assert seeing.unsettled == []
    window.drop(unseeing)
    assert ids(window.emit(seeing)) == [2]


def test_truncate_that_a_read_did_not_see_starts_the_table_over(window: Window) -> None:
    truncate = DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=TABLE)
    waiting = window.add_chunk(SCHEMA, chunk(1), Saw())
    seeing = window.add_chunk(SCHEMA, chunk(1), Saw(frozenset({"7"})))
    window.deliver(batch(ddl=[truncate], ddl_in="7"), 0)
    assert (waiting.verdict, seeing.verdict) == (RowVerdict.START_OVER, RowVerdict.GOOD)
    assert window.add_chunk(SCHEMA, chunk(1), Saw()).verdict is RowVerdict.START_OVER


def test_other_ddl_makes_the_read_repeat(window: Window) -> None:
    read = window.add_chunk(SCHEMA, chunk(1), Saw(frozenset({"7"})))
    window.deliver(batch(ddl=[DDLEvent(operation=DDLOperation.ALTER_TABLE, table=TABLE)], ddl_in="7"), 0)
    assert read.verdict is RowVerdict.READ_AGAIN


def test_ring_survives_a_restart_without_its_keys(window: Window) -> None:
    window.deliver(batch(change("INSERT", "7", row(1)), change("INSERT", "8@x", row(2))), 40)
    assert window.ring_texts() == ["7@40", "8@x@41"]
    again = Window(window.ring_texts())
    again.watch(SCHEMA)
    assert again.start_number(100) == 40
    assert again.add_chunk(SCHEMA, chunk(3), Saw(frozenset({"7"}))).verdict is RowVerdict.READ_AGAIN
    assert again.ring_texts() == ["8@x@41"]
    assert again.add_chunk(SCHEMA, chunk(3), Saw(frozenset({"7", "8@x"}))).verdict is RowVerdict.GOOD
    assert again.start_number(100) == 100


def test_transactions_from_before_the_table_was_watched_are_of_unknown_keys() -> None:
    window = Window()
    window.deliver(batch(change("INSERT", "7", row(1))), 0)
    window.watch(SCHEMA)
    assert window.add_chunk(SCHEMA, chunk(), Saw()).verdict is RowVerdict.READ_AGAIN


def test_transaction_over_several_pulls_counts_as_one(window: Window) -> None:
    window.deliver(batch(change("UPDATE", "7", row(1, a="x")), open_transaction="7"), 0)
    read = window.add_chunk(SCHEMA, chunk(1, 2, 3), Saw())
    window.deliver(batch(change("UPDATE", "7", row(2, a="x")), open_transaction="7"), 1)
    window.deliver(batch(change("INSERT", "8", row(9)), open_transaction=None), 2)
    assert window.ring_texts() == ["7@0", "8@2"]
    assert ids(window.emit(read)) == [3]


def test_too_many_touches_count_as_unknown_keys() -> None:
    window = Window(touches_max=2)
    window.watch(SCHEMA)
    window.deliver(batch(*[change("INSERT", "7", row(i)) for i in range(3)]), 0)
    assert window.add_chunk(SCHEMA, chunk(1), Saw()).verdict is RowVerdict.READ_AGAIN
    assert window.add_chunk(SCHEMA, chunk(1), Saw(frozenset({"7"}))).verdict is RowVerdict.GOOD


def test_too_many_touches_of_a_transaction_that_is_still_open_count_as_unknown_keys() -> None:
    window = Window(touches_max=2)
    window.watch(SCHEMA)
    window.deliver(batch(*[change("UPDATE", "7", row(i)) for i in range(3)], open_transaction="7"), 0)
    window.deliver(batch(change("UPDATE", "7", row(8))), 3)
    assert window.add_chunk(SCHEMA, chunk(1, 8), Saw()).verdict is RowVerdict.READ_AGAIN


def test_a_table_that_is_watched_from_amid_a_transaction_knows_nothing_of_its_keys() -> None:
    window = Window()
    window.deliver(batch(change("UPDATE", "7", row(1)), open_transaction="7"), 0)
    window.watch(SCHEMA)
    window.deliver(batch(change("UPDATE", "7", row(2))), 1)
    assert window.add_chunk(SCHEMA, chunk(1, 2), Saw()).verdict is RowVerdict.READ_AGAIN
    assert window.add_chunk(SCHEMA, chunk(1, 2), Saw(frozenset({"7"}))).verdict is RowVerdict.GOOD


def test_outstanding_reads_keep_the_ring(window: Window) -> None:
    window.deliver(batch(change("UPDATE", "7", row(1, a="x"))), 0)
    reader = window.begin_reading()
    window.prune(Saw(frozenset({"7"})))
    read = window.add_chunk(SCHEMA, chunk(1), Saw(), reader=reader)
    window.end_reading(reader)
    assert window.emit(read).num_rows == 0
    window.prune(Saw(frozenset({"7"})))
    assert window.ring_size == 0


def test_a_read_that_is_handed_over_late_is_compared_with_what_it_did_not_see(window: Window) -> None:
    window.deliver(batch(change("UPDATE", "7", row(1, a="x"))), 0)
    slow, quick = window.begin_reading(), window.begin_reading()
    newer = window.add_chunk(SCHEMA, chunk(1, 2), Saw(frozenset({"7"})), reader=quick)
    older = window.add_chunk(SCHEMA, chunk(1, 2), Saw(), reader=slow)
    assert (ids(window.emit(newer)), ids(window.emit(older))) == ([1, 2], [2])
    window.end_reading(slow)
    window.add_chunk(SCHEMA, chunk(), Saw(frozenset({"7"})), reader=quick)
    assert window.ring_size == 0


def test_keys_are_compared_as_bytes(window: Window) -> None:
    read = window.add_chunk(SCHEMA, chunk(1), Saw())
    other = row(1) | {"region": "EU"}
    window.deliver(batch(change("UPDATE", "7", other)), 0)
    assert ids(window.emit(read)) == [1]
