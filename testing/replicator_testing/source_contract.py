"""Contract of every source.

A plugin's tests begin by subclassing `SourceContract`, with a fixture `harness` (docs/plugins.md).
Tables have one shape, `id bigint, name text, amount decimal(12,2), note text`, in three kinds (`TableKind`).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from replicator.model.deletion import Deletion
from replicator.model.errors import Severity, TableError
from replicator.model.events import DDLOperation
from replicator.model.schema import TableId
from replicator.plugins.source import ChunkRequest, Cursor, PullLimits, Seen
from replicator_testing.defaults import chunk_request
from replicator_testing.source_harness import (
    _PULLS_MAX,
    Change,
    Delivered,
    Row,
    Setting,
    SourceHarness,
    TableKind,
    classify,
    row,
    set_up,
)
from replicator_testing.waiting import wait_until


class SourceContract(ABC):
    """The suite. A class attribute says what a source cannot do: then the suite requires the replacement."""

    tells_transactions_apart: ClassVar[bool] = True
    """False: transactions that follow each other may be delivered as one, as a poll finds them."""
    log_lags: ClassVar[bool] = False
    """True: it may begin with changes committed a little earlier, and a read may not know yet whether it saw recent ones."""
    has_truncate: ClassVar[bool] = True
    """False: the database has no TRUNCATE, and tables are emptied by deleting every row."""

    @pytest.fixture
    @abstractmethod
    def harness(self) -> SourceHarness | Iterator[SourceHarness]:
        """Return an empty database."""

    def _check_transactions(self, delivered: Delivered, count: int) -> None:
        found = len(delivered.transactions)
        assert found == count if self.tells_transactions_apart else 1 <= found <= count

    @pytest.fixture
    def keyed(self, harness: SourceHarness) -> Iterator[Setting]:
        """A table with a key, and its open log."""
        setting = set_up(harness, TableKind.KEYED)
        yield setting
        setting.reader.close()
        setting.source.close()

    @pytest.fixture
    def composite(self, harness: SourceHarness) -> Iterator[Setting]:
        """A table with a composite key, and its open log."""
        setting = set_up(harness, TableKind.COMPOSITE)
        yield setting
        setting.reader.close()
        setting.source.close()

    @pytest.fixture
    def keyless(self, harness: SourceHarness) -> Iterator[Setting]:
        """A table without a key, and its open log."""
        setting = set_up(harness, TableKind.KEYLESS)
        yield setting
        setting.reader.close()
        setting.source.close()

    @pytest.fixture
    def pair(self, harness: SourceHarness) -> Iterator[Setting]:
        """Two tables with a key, and their open log."""
        setting = set_up(harness, TableKind.KEYED, TableKind.KEYED)
        yield setting
        setting.reader.close()
        setting.source.close()

    # -- catalogue

    def test_identity_is_the_same_for_every_object(self, harness: SourceHarness) -> None:
        first = harness.source().identity()
        assert first
        assert first == harness.source().identity()

    @pytest.mark.parametrize("kind", list(TableKind))
    def test_a_table_is_described_as_it_was_made(self, harness: SourceHarness, kind: TableKind) -> None:
        table = harness.create_table(kind)
        source = harness.source()
        description = source.describe([table, TableId(table.namespace, "no_such_table")])
        assert set(description) == {table}
        schema = description[table].schema
        assert [(c.name, c.type) for c in schema.columns] == [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("amount", pa.decimal128(12, 2)),
            ("note", pa.string()),
        ]
        assert (
            schema.key == {TableKind.KEYED: ("id",), TableKind.COMPOSITE: ("name", "id"), TableKind.KEYLESS: ()}[kind]
        )
        assert description[table].identity == source.describe([table])[table].identity
        assert table in [s.table for s in source.list_tables() if s.left_out is None]

    def test_a_table_made_again_is_another_object(self, keyed: Setting) -> None:
        before = keyed.source.describe([keyed.table])[keyed.table].identity
        keyed.harness.drop_table(keyed.table)
        assert keyed.source.describe([keyed.table]) == {}
        again = keyed.harness.create_table(TableKind.KEYED)
        assert keyed.source.describe([again])[again].identity != before

    @pytest.mark.parametrize("kind", list(TableKind))
    def test_check_has_nothing_against_these_tables(self, harness: SourceHarness, kind: TableKind) -> None:
        table = harness.create_table(kind)
        assert [p for p in harness.source().check([table]) if p.severity is Severity.BLOCKING] == []

    def test_check_names_a_table_that_is_not_there(self, keyed: Setting) -> None:
        missing = TableId(keyed.table.namespace, "no_such_table")
        blocking = [p for p in keyed.source.check([keyed.table, missing]) if p.severity is Severity.BLOCKING]
        assert {p.table for p in blocking} == {str(missing)}

    # -- log

    def test_every_committed_change_is_delivered_in_order(self, keyed: Setting) -> None:
        with keyed.transaction() as t:
            t.insert(keyed.table, row(1, "a"))
            t.insert(keyed.table, row(2, "b"))
            t.update(keyed.table, row(1), {"name": "a2"})
        undone = keyed.harness.begin()
        undone.insert(keyed.table, row(9, "never"))
        undone.rollback()
        with keyed.transaction() as t:
            t.update(keyed.table, row(1), {"id": 3})
            t.delete(keyed.table, row(2))
            t.insert(keyed.table, row(2, "b again"))
        delivered = keyed.drain()
        assert [(c.operation, c.row and (c.row["id"], c.row["name"])) for c in delivered.changes] == [
            ("INSERT", (1, "a")),
            ("INSERT", (2, "b")),
            ("UPDATE", (1, "a2")),
            ("UPDATE", (3, "a2")),
            ("DELETE", None),
            ("INSERT", (2, "b again")),
        ]
        assert [c.before and c.before["id"] for c in delivered.changes if c.operation != "INSERT"][1:] == [1, 2]
        self._check_transactions(delivered, 2)

    def test_transactions_are_never_interleaved(self, pair: Setting) -> None:
        one, two = pair.schemas
        first, second = pair.harness.begin(), pair.harness.begin()
        for id_ in range(1, 4):
            first.insert(one, row(id_))
            second.insert(two, row(id_))
            second.insert(one, row(id_ + 10))
            first.insert(two, row(id_ + 10))
        second.commit()
        first.commit()
        delivered = pair.drain(PullLimits(rows=2, bytes=64 << 20, wait_s=1.0))
        self._check_transactions(delivered, 2)
        assert [(c.table, c.row and c.row["id"]) for c in delivered.changes] == [
            change for id_ in range(1, 4) for change in ((two, id_), (one, id_ + 10))
        ] + [change for id_ in range(1, 4) for change in ((one, id_), (two, id_ + 10))]

    def test_a_pull_may_stop_inside_a_transaction_and_says_so(self, keyed: Setting) -> None:
        keyed.insert(*[row(n) for n in range(1, 41)])
        keyed.insert(row(50))
        delivered = keyed.drain(PullLimits(rows=3, bytes=64 << 20, wait_s=1.0))
        assert [c.row and c.row["id"] for c in delivered.changes] == [*range(1, 41), 50]
        assert set(delivered.open_seen) == {delivered.transactions[0]}
        assert delivered.open_transaction is None
        assert {events for _, events in delivered.offsets} <= {0, 40, 41}

    def test_resuming_behind_any_offset_gives_the_rest_and_no_more(self, keyed: Setting) -> None:
        for first in range(0, 40, 10):
            keyed.insert(*[row(first + n) for n in range(3)])
        delivered = keyed.drain(PullLimits(rows=2, bytes=64 << 20, wait_s=1.0))
        ids = [c.row and c.row["id"] for c in delivered.changes]
        assert len(ids) == 12
        for offset, events in [(keyed.start, 0), *delivered.offsets]:
            keyed.reopen(offset)
            assert [c.row and c.row["id"] for c in keyed.drain().changes] == ids[events:]

    def test_resuming_behind_an_acknowledged_offset_gives_the_rest(self, keyed: Setting) -> None:
        keyed.insert(row(1))
        delivered = keyed.drain()
        keyed.insert(row(2))
        offset = delivered.offsets[-1][0]
        for _ in range(2):
            keyed.reader.acknowledge(offset)
        keyed.reader.acknowledge(keyed.start)
        keyed.reopen(offset)
        keyed.insert(row(3))
        assert [c.row and c.row["id"] for c in keyed.drain().changes] == [2, 3]

    def test_a_transaction_cut_short_is_sent_again_whole(self, keyed: Setting) -> None:
        keyed.insert(*[row(n) for n in range(1, 21)])
        delivered = Delivered()
        for _ in range(_PULLS_MAX):
            delivered.add(keyed.reader.pull(PullLimits(rows=5, bytes=64 << 20, wait_s=1.0)))
            if delivered.open_transaction is not None:
                break
        assert delivered.open_transaction is not None
        last = delivered.offsets[-1][0] if delivered.offsets else keyed.start
        keyed.reopen(last)
        assert [c.row and c.row["id"] for c in keyed.drain().changes] == list(range(1, 21))

    def test_a_transaction_stays_open_until_its_end_whatever_a_pull_brings(self, keyed: Setting) -> None:
        keyed.insert(*[row(n, note="x" * 500) for n in range(1, 401)])
        delivered, before, is_empty = Delivered(), None, True
        for _ in range(_PULLS_MAX):
            # Without a wait a pull may bring nothing, also inside the transaction.
            batch = keyed.reader.pull(PullLimits(rows=7, bytes=1 << 12, wait_s=1.0 if is_empty else 0.0))
            delivered.add(batch)
            assert before in (None, batch.open_transaction) or batch.closes(before), "it continues until it has ended"
            assert batch.open_transaction is not None or not batch.has_open_rows
            before, is_empty = batch.open_transaction, not batch.events
            if delivered.transactions:
                break
        assert set(delivered.open_seen) == set(delivered.transactions)
        assert len(delivered.changes) == 400

    def test_preparing_again_loses_nothing(self, keyed: Setting) -> None:
        keyed.insert(row(1))
        keyed.source.prepare([keyed.table], is_first=False)
        keyed.insert(row(2))
        assert [c.row and c.row["id"] for c in keyed.drain().changes] == [1, 2]

    def test_a_table_added_later_is_in_the_log_from_then_on(self, keyed: Setting) -> None:
        added = keyed.harness.create_table(TableKind.KEYED)
        schemas = {**keyed.schemas, added: keyed.source.describe([added])[added].schema}
        keyed.source.prepare(list(schemas), is_first=False)
        with keyed.transaction() as t:
            t.insert(added, row(1))
            t.insert(keyed.table, row(2))
        keyed.reader.close()
        keyed.reader = keyed.source.open_log(keyed.start, schemas)
        assert [(c.table, c.row and c.row["id"]) for c in keyed.drain().changes] == [(added, 1), (keyed.table, 2)]

    @pytest.mark.condition("M02")
    def test_an_idle_log_answers_with_an_empty_pull(self, keyed: Setting) -> None:
        keyed.drain()
        batch = keyed.reader.pull(PullLimits(rows=10, bytes=1 << 20, wait_s=0.01))
        assert (batch.events, list(batch.changes), list(batch.ddl), batch.open_transaction) == (0, [], [], None)

    @pytest.mark.condition("M04")
    def test_everything_committed_before_the_source_time_has_been_delivered(self, keyed: Setting) -> None:
        keyed.insert(row(1))
        before = keyed.source.status().now
        assert before.utcoffset() == timedelta(0)
        delivered = keyed.drain()
        for _ in range(_PULLS_MAX):
            if delivered.source_time is not None and delivered.source_time >= before:
                break
            delivered.add(keyed.reader.pull(PullLimits(rows=10, bytes=1 << 20, wait_s=0.1)))
            keyed.source.mark()
        assert delivered.source_time is not None
        assert delivered.source_time >= before
        assert len(delivered.changes) == 1

    def test_a_mark_comes_after_everything_that_a_read_before_it_saw(self, keyed: Setting) -> None:
        keyed.insert(row(1), row(2))
        chunk = keyed.source.read_chunk(chunk_request(keyed.schema))
        mark = keyed.source.mark()
        keyed.insert(row(3))
        delivered = keyed.drain_to(mark, PullLimits(rows=1, bytes=1 << 20, wait_s=1.0))
        assert {c.row["id"] for c in delivered.changes if c.row} >= set(chunk.rows.column("id").to_pylist())

    def test_marks_are_delivered_once_and_in_order(self, keyed: Setting) -> None:
        marks = [keyed.source.mark() for _ in range(3)]
        assert len(set(marks)) == 3
        delivered = keyed.drain()
        assert [m for m in delivered.marks if m in marks] == marks

    def test_keep_alive_may_be_called_while_the_log_is_read(self, keyed: Setting) -> None:
        errors: list[BaseException] = []
        is_over = threading.Event()

        def keep_alive() -> None:
            try:
                while not is_over.wait(0.001):
                    keyed.reader.keep_alive()
            except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
                errors.append(error)

        thread = threading.Thread(target=keep_alive)
        thread.start()
        try:
            for n in range(5):
                keyed.insert(row(n))
                assert len(keyed.drain().changes) == 1
        finally:
            is_over.set()
            thread.join()
        assert errors == []

    @pytest.mark.condition("D21")
    def test_truncating_tables_is_an_event_for_each_at_its_position(self, pair: Setting) -> None:
        one, two = pair.schemas
        with pair.transaction() as t:
            t.insert(one, row(1))
        with pair.transaction() as t:
            t.insert(two, row(1))
            t.truncate(one, two)
            t.insert(one, row(2))
        events = pair.drain().events
        shown = [(e.table, e.operation) if isinstance(e, Change) else (e.table, str(e.operation)) for e in events]
        assert shown[:2] == [(one, "INSERT"), (two, "INSERT")]
        emptied = str(DDLOperation.TRUNCATE_TABLE) if self.has_truncate else "DELETE"
        assert sorted(shown[2:4]) == sorted((t, emptied) for t in (one, two))
        assert shown[4:] == [(one, "INSERT")]

    # -- chunks

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
    @pytest.mark.condition("D12")
    def test_chunks_joined_are_the_whole_table(self, composite: Setting, limit: int) -> None:
        names = ["b", "a", "B", "a b", "", "é", "z", "Z", "a'", "ab"]
        rows = [row(id_, name, note=f"{name}{id_}") for name in names for id_ in (-5, 2, 10)]
        composite.insert(*rows)
        read = composite.pages(limit)
        assert len(read) == len(rows)
        assert {(r["name"], r["id"], r["note"]) for r in read} == {(r["name"], r["id"], r["note"]) for r in rows}
        assert read == composite.pages(1000), "the order does not depend on the size"

    def test_a_chunk_stays_within_its_bounds(self, composite: Setting) -> None:
        composite.insert(*[row(id_, name) for name in "abc" for id_ in (1, 2, 3)])
        whole = composite.pages(100)
        half = composite.source.read_chunk(ChunkRequest(schema=composite.schema, limit=4))
        assert composite.pages(2, upto=half.cursor) == whole[:4]
        rest = composite.source.read_chunk(chunk_request(composite.schema, after=half.cursor))
        assert rest.rows.to_pylist() == whole[4:]

    def test_a_chunk_of_given_keys_has_just_their_rows(self, composite: Setting) -> None:
        composite.insert(*[row(id_, name) for name in "abc" for id_ in (1, 2, 3)])
        composite.insert(row(7, "deleted"))
        cursors = []
        after: Cursor | None = None
        while (
            chunk := composite.source.read_chunk(ChunkRequest(schema=composite.schema, after=after, limit=1))
        ).cursor is not None:
            after = chunk.cursor
            cursors.append((chunk.cursor, chunk.rows.to_pylist()[0]))
        with composite.transaction() as t:
            t.delete(composite.table, row(7, "deleted"))
        wanted = cursors[::2] + [c for c in cursors if c[1]["name"] == "deleted"]
        read = composite.source.read_chunk(chunk_request(composite.schema, keys=[c for c, _ in wanted]))
        expected = [r for _, r in wanted if r["name"] != "deleted"]
        assert sorted(read.rows.to_pylist(), key=repr) == sorted(expected, key=repr)

    def test_a_chunk_of_an_empty_table_is_empty(self, keyed: Setting) -> None:
        chunk = keyed.source.read_chunk(chunk_request(keyed.schema))
        assert (chunk.rows.num_rows, chunk.cursor) == (0, None)
        assert chunk.identity == keyed.source.describe([keyed.table])[keyed.table].identity

    def test_a_missing_table_is_the_table_s_error(self, keyed: Setting) -> None:
        keyed.harness.drop_table(keyed.table)
        with pytest.raises(TableError):
            keyed.source.read_chunk(chunk_request(keyed.schema))

    @pytest.mark.condition("D04", "D06")
    def test_a_read_saw_exactly_the_transactions_that_it_says(self, keyed: Setting) -> None:
        keyed.insert(row(1))
        early, late, undone = (keyed.harness.begin() for _ in range(3))
        early.insert(keyed.table, row(2))
        late.insert(keyed.table, row(3))
        undone.insert(keyed.table, row(4))
        keyed.insert(row(5))
        early.commit()
        before = keyed.source.visibility()
        chunk = keyed.source.read_chunk(chunk_request(keyed.schema))
        late.commit()
        undone.rollback()
        keyed.insert(row(6))
        delivered = keyed.drain()
        ids = [c.transaction for c in delivered.changes]
        rows = [c.row["id"] for c in delivered.changes if c.row]
        assert sorted(rows) == [1, 2, 3, 5, 6]
        in_chunk = set(chunk.rows.column("id").to_pylist())
        seen = classify(chunk.visibility, ids)
        assert in_chunk == {1, 2, 5}
        if self.log_lags:
            known = {(r in in_chunk, s) for r, s in zip(rows, seen, strict=True) if s is not Seen.UNKNOWN}
            assert known <= {(True, Seen.SEEN), (False, Seen.UNSEEN)}
            wait_until(lambda: set(classify(keyed.source.visibility(), ids)) == {Seen.SEEN}, "it is known to be seen")
            return
        assert {r for r, s in zip(rows, seen, strict=True) if s is Seen.SEEN} == in_chunk
        assert {r for r, s in zip(rows, seen, strict=True) if s is not Seen.SEEN} == {3, 6}
        assert all(s is Seen.SEEN for r, s in zip(rows, classify(before, ids), strict=True) if r in in_chunk)
        after = keyed.source.visibility()
        assert set(classify(after, ids)) == {Seen.SEEN}, (
            "monotone: later reads see what earlier ones saw, and all that is committed"
        )
        assert classify(after, []) == []

    # -- values

    def test_the_log_and_a_chunk_give_the_same_values(self, keyed: Setting) -> None:
        rows = [
            row(1, "", "0.00", ""),
            row(2, None, None, None),
            row(-3, "ключ \u0001 \\N \"'", "-1234567890.12", "line\nbreak\ttab"),
            row(2**63 - 1, "𝄞", "9999999999.99", " trailing "),
            row(-(2**63), "null", "0.10", "x" * 100_000),
        ]
        keyed.insert(*rows)
        delivered = keyed.drain()
        assert [dict(c.row or {}) for c in delivered.changes] == rows
        assert keyed.pages(2) == sorted(rows, key=lambda r: r["id"])

    def test_a_value_that_the_log_does_not_carry_is_absent_and_not_null(self, keyed: Setting) -> None:
        """A large value left as it was need not be sent; when it is not, the change says so."""
        large = "".join(chr(33 + (i * i * 7919 + i * 104_729) % 90) for i in range(200_000))
        keyed.insert(row(1, note=large))
        with keyed.transaction() as t:
            t.update(keyed.table, row(1), {"name": "b"})
        with keyed.transaction() as t:
            t.update(keyed.table, row(1), {"id": 2})
        changes = keyed.drain().changes[1:]
        assert [c.row and (c.row["id"], c.row["name"]) for c in changes] == [(1, "b"), (2, "b")]
        for change in changes:
            assert change.row is not None
            assert change.row["note"] == (None if "note" in change.absent else large)

    # -- tables without a key

    @pytest.mark.condition("D14")
    def test_a_table_without_a_key_is_read_whole(self, keyless: Setting) -> None:
        rows = [row(1), row(1), row(None, None, None, None), row(2, "b")]
        keyless.insert(*rows)
        waiting = keyless.harness.begin()
        waiting.insert(keyless.table, row(3))
        with keyless.source.read_whole(keyless.schema) as whole:
            visibility = whole.visibility
            read = [r for batch in whole.batches for r in batch.to_pylist()]
            identity = whole.identity()
        waiting.commit()
        assert Counter(map(_hashable, read)) == Counter(map(_hashable, rows))
        assert identity == keyless.source.describe([keyless.table])[keyless.table].identity
        ids = [c.transaction for c in keyless.drain().changes]
        assert [s is Seen.SEEN for s in classify(visibility, ids)] == [True, True, True, True, False]

    def test_a_table_without_a_key_that_was_changed_is_read_as_it_is_now(self, keyless: Setting) -> None:
        for _ in range(2):
            with keyless.source.read_whole(keyless.schema) as whole:
                *_, identity = [*whole.batches, whole.identity()]
            assert identity == keyless.source.describe([keyless.table])[keyless.table].identity
            with keyless.transaction() as t:
                t.truncate(keyless.table)

    def test_the_log_of_a_table_without_a_key_carries_whole_rows(self, keyless: Setting) -> None:
        keyless.insert(row(1, note="n"), row(1, note="n"))
        with keyless.transaction() as t:
            t.update(keyless.table, row(1, note="n"), {"amount": Decimal("2.50")})
            t.delete(keyless.table, row(1, note="n"))
        changes = keyless.drain().changes[2:]
        assert [c.before for c in changes] == [row(1, note="n")] * 2
        assert [c.row for c in changes] == [row(1, amount="2.50", note="n"), None]

    def test_removing_can_be_repeated(self, keyed: Setting) -> None:
        assert keyed.source.leftovers()
        assert isinstance(keyed.source.status().retained_bytes, int | None)
        keyed.reader.close()
        deletions = [keyed.source.remove() for _ in range(2)]
        assert all(isinstance(deletion, Deletion) for deletion in deletions), deletions
        start = keyed.source.prepare([keyed.table], is_first=True)
        keyed.reader = keyed.source.open_log(start, keyed.schemas)
        keyed.insert(row(1))
        assert len(keyed.drain().changes) == 1

    def test_what_an_unfinished_first_prepare_left_is_made_again(self, keyed: Setting) -> None:
        keyed.insert(row(1))
        keyed.reader.close()
        start = keyed.source.prepare([keyed.table], is_first=True)
        keyed.reader = keyed.source.open_log(start, keyed.schemas)
        keyed.insert(row(2))
        ids = [c.row and c.row["id"] for c in keyed.drain().changes][-1 if self.log_lags else 0 :]
        assert ids == [2]

    def test_close_may_be_called_twice(self, keyed: Setting) -> None:
        for _ in range(2):
            keyed.reader.close()
            keyed.source.close()


def _hashable(values: Row) -> tuple[Any, ...]:
    return tuple(values.values())
