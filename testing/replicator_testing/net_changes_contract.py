"""Contract of a source that promises net changes (`Guarantee.NET_CHANGES`): the contract of sources without the states in between.

The changes between two offsets are the last state of each row that changed, once, in no particular order. So the suite requires
that the delivered changes, applied to the tables as they were, give the tables as they are; that a deleted row is deleted, and no
other; and that each transaction of the log is a state that was committed. Everything else is required as of any source.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from replicator.model.errors import Severity, TableError
from replicator.model.guarantee import Guarantee
from replicator.model.schema import TableId
from replicator.plugins.source import PullLimits, Seen
from replicator_testing.defaults import chunk_request
from replicator_testing.source_contract import SourceContract
from replicator_testing.source_harness import Change, Delivered, Row, Setting, SourceHarness, TableKind, classify, row

Tables = Mapping[TableId, Mapping[Any, Row]]
"""Rows by their key `id`."""


def applied(changes: list[Change], before: Tables | None = None) -> dict[TableId, dict[Any, Row]]:
    """Return tables with the key `id` after changes. A row may be written although it exists, and deleted although it does not."""
    tables = {table: dict(rows) for table, rows in (before or {}).items()}
    for change in changes:
        rows = tables.setdefault(change.table, {})
        if change.before is not None:
            rows.pop(change.before["id"], None)
        if change.row is not None:
            assert not change.absent, "net changes have whole rows"
            rows[change.row["id"]] = change.row
    return tables


def names(rows: Mapping[Any, Row]) -> dict[Any, Any]:
    """Return the column `name` by the key."""
    return {key: values["name"] for key, values in rows.items()}


class NetChangesContract(SourceContract, ABC):
    """The suite. Tables without a key are refused: net changes are identified by keys."""

    tells_transactions_apart: ClassVar[bool] = False
    has_truncate: ClassVar[bool] = False

    def test_it_says_that_it_promises_net_changes(self, keyed: Setting) -> None:
        assert keyed.source.status().guarantee is Guarantee.NET_CHANGES

    # -- catalogue

    @pytest.mark.parametrize("kind", [TableKind.KEYED, TableKind.COMPOSITE])
    def test_check_has_nothing_against_these_tables(self, harness: SourceHarness, kind: TableKind) -> None:
        super().test_check_has_nothing_against_these_tables(harness, kind)

    def test_check_refuses_a_table_without_a_key(self, harness: SourceHarness) -> None:
        table = harness.create_table(TableKind.KEYLESS)
        blocking = [p for p in harness.source().check([table]) if p.severity is Severity.BLOCKING]
        assert [(p.code, p.table) for p in blocking] == [("key_needed", str(table))]
        assert blocking[0].action

    # -- log

    def test_every_committed_change_is_delivered_in_order(self, keyed: Setting) -> None:
        with keyed.transaction() as t:
            t.insert(keyed.table, row(1, "a"))
            t.insert(keyed.table, row(2, "b"))
            t.update(keyed.table, row(1), {"name": "a2"})
        undone = keyed.harness.begin()
        undone.insert(keyed.table, row(9, "never"))
        undone.rollback()
        first = keyed.drain()
        assert names(applied(first.changes)[keyed.table]) == {1: "a2", 2: "b"}
        with keyed.transaction() as t:
            t.update(keyed.table, row(1), {"id": 3})
            t.delete(keyed.table, row(2))
            t.insert(keyed.table, row(2, "b again"))
        keyed.insert(row(4, "came"))
        with keyed.transaction() as t:
            t.delete(keyed.table, row(4))
        second = keyed.drain()
        assert names(applied(second.changes, applied(first.changes))[keyed.table]) == {2: "b again", 3: "a2"}
        touched = [image["id"] for c in second.changes if (image := c.row or c.before) is not None]
        assert sorted(touched) == [1, 2, 3, 4], "each key once"
        self._check_transactions(second, 3)

    def test_changes_say_that_they_are_net(self, keyed: Setting) -> None:
        keyed.insert(row(1))
        batches = [keyed.reader.pull(PullLimits(rows=10, bytes=1 << 20, wait_s=1.0)) for _ in range(3)]
        assert [changes.is_net for batch in batches for changes in batch.changes] == [True]

    def test_transactions_are_never_interleaved(self, pair: Setting) -> None:
        """All tables are as of one commit wherever a transaction of the log ends."""
        one, two = pair.schemas
        for number in range(1, 4):
            with pair.transaction() as t:
                t.insert(one, row(number))
                t.insert(two, row(number))
            delivered = pair.drain(PullLimits(rows=1, bytes=64 << 20, wait_s=1.0))
            self._check_transactions(delivered, 1)
            assert sorted((c.table, c.row and c.row["id"]) for c in delivered.changes) == sorted(
                (table, number) for table in (one, two)
            )
            assert {c.transaction for c in delivered.changes} == set(delivered.transactions)

    def test_what_is_committed_while_a_transaction_is_read_comes_behind_it(self, pair: Setting) -> None:
        """A row that was read already, and one that was not, changed meanwhile: both come again."""
        one, two = pair.schemas
        with pair.transaction() as t:
            for number in range(1, 6):
                t.insert(one, row(number))
                t.insert(two, row(number))
        delivered = Delivered()
        while delivered.open_transaction is None:
            delivered.add(pair.reader.pull(PullLimits(rows=2, bytes=64 << 20, wait_s=1.0)))
        with pair.transaction() as t:
            t.update(one, row(1), {"name": "late"})
            t.delete(two, row(5))
        while not delivered.transactions:
            delivered.add(pair.reader.pull(PullLimits(rows=2, bytes=64 << 20, wait_s=1.0)))
        as_of = applied(delivered.changes)
        assert {table: names(rows) for table, rows in as_of.items()} == dict.fromkeys(
            (one, two), dict.fromkeys(range(1, 6), "a")
        )
        now = applied(pair.drain().changes, as_of)
        assert names(now[one]) == {1: "late", 2: "a", 3: "a", 4: "a", 5: "a"}
        assert sorted(now[two]) == [1, 2, 3, 4]

    def test_a_table_added_later_is_in_the_log_from_then_on(self, keyed: Setting) -> None:
        added = keyed.harness.create_table(TableKind.KEYED)
        schemas = {**keyed.schemas, added: keyed.source.describe([added])[added].schema}
        keyed.source.prepare(list(schemas), is_first=False)
        with keyed.transaction() as t:
            t.insert(added, row(1))
            t.insert(keyed.table, row(2))
        keyed.reader.close()
        keyed.reader = keyed.source.open_log(keyed.start, schemas)
        delivered = {(c.table, c.row and c.row["id"]) for c in keyed.drain().changes}
        assert delivered == {(added, 1), (keyed.table, 2)}

    def test_truncating_tables_is_an_event_for_each_at_its_position(self, pair: Setting) -> None:
        """Deleting every row, where the database tells of no TRUNCATE."""
        one, two = pair.schemas
        with pair.transaction() as t:
            t.insert(one, row(1))
        first = pair.drain()
        with pair.transaction() as t:
            t.insert(two, row(1))
            t.truncate(one, two)
            t.insert(one, row(2))
        now = applied(pair.drain().changes, applied(first.changes))
        assert (sorted(now[one]), sorted(now.get(two, {}))) == ([2], [])

    # -- chunks

    @pytest.mark.condition("D04")
    def test_a_read_saw_exactly_the_transactions_that_it_says(self, keyed: Setting) -> None:
        keyed.insert(row(1))
        late, undone = (keyed.harness.begin() for _ in range(2))
        late.insert(keyed.table, row(3))
        undone.insert(keyed.table, row(4))
        keyed.insert(row(5))
        first = keyed.drain()
        before = keyed.source.visibility()
        chunk = keyed.source.read_chunk(chunk_request(keyed.schema))
        assert set(chunk.rows.column("id").to_pylist()) == {1, 5}
        late.commit()
        undone.rollback()
        keyed.insert(row(6))
        second = keyed.drain()
        assert sorted(applied(second.changes)[keyed.table]) == [3, 6]
        for visibility in (before, chunk.visibility):
            assert set(classify(visibility, first.transactions)) == {Seen.SEEN}
            assert set(classify(visibility, second.transactions)) == {Seen.UNSEEN}
        after = keyed.source.visibility()
        assert set(classify(after, [*first.transactions, *second.transactions])) == {Seen.SEEN}, "monotone"
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
        wanted = sorted(rows, key=lambda r: r["id"])
        assert sorted((dict(c.row or {}) for c in keyed.drain().changes), key=lambda r: r["id"]) == wanted
        assert keyed.pages(2) == wanted

    def test_a_value_that_the_log_does_not_carry_is_absent_and_not_null(self, keyed: Setting) -> None:
        """Net changes carry every value."""
        large = "".join(chr(33 + (i * i * 7919 + i * 104_729) % 90) for i in range(200_000))
        keyed.insert(row(1, note=large))
        keyed.drain()
        with keyed.transaction() as t:
            t.update(keyed.table, row(1), {"name": "b"})
        (change,) = keyed.drain().changes
        assert change.row == row(1, "b", note=large)
        assert not change.absent

    # -- tables without a key

    def test_a_table_without_a_key_is_read_whole(self, keyless: Setting) -> None:
        """It is not, and says why."""
        with pytest.raises(TableError) as raised, keyless.source.read_whole(keyless.schema):
            pass
        assert raised.value.code == "key_needed"

    def test_a_table_without_a_key_that_was_changed_is_read_as_it_is_now(self, keyless: Setting) -> None:
        """Its log is not followed, and says why."""
        batch = keyless.reader.pull(PullLimits(rows=10, bytes=1 << 20, wait_s=1.0))
        assert {table: error.code for table, error in batch.table_errors.items()} == {keyless.table: "key_needed"}

    def test_the_log_of_a_table_without_a_key_carries_whole_rows(self, keyless: Setting) -> None:
        """It carries none."""
        keyless.insert(row(1, note="n"))
        assert keyless.drain().changes == []
