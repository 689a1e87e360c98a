"""Contract of every target for columns that are added, dropped and renamed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pytest

from replicator.model import crash
from replicator.model.errors import FencedError, TableError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.target import TableOptions
from replicator_testing.alterations import AlteredTable, Killed, evolved, killed_at, numbered, text_column
from replicator_testing.batches import delete, insert, update
from replicator_testing.target_harness import (
    ITEMS,
    Copy,
    TargetHarness,
    TargetSuite,
    as_tuples,
    item,
    items_schema,
)


class AlterationContract(TargetSuite):
    """The part of `TargetContract` about ALTER_TABLE. A target without `alter_table` sets `alters` to False."""

    alters: ClassVar[bool] = True
    renames_keys: ClassVar[bool] = True
    """True if the target renames columns of the key; otherwise it refuses."""
    alteration_steps: ClassVar[int] = 12
    """Alterations of the random table."""

    @pytest.fixture
    def items(self, harness: TargetHarness, tmp_path: Path) -> Copy:
        """Create the contract's table with two rows, its columns numbered."""
        return self.altering(harness, tmp_path)

    def altering(
        self,
        harness: TargetHarness,
        folder: Path,
        schema: TableSchema | None = None,
        *,
        options: TableOptions | None = None,
        table: TableId | None = None,
    ) -> Copy:
        """Create a table of the schema, or the contract's, with two rows."""
        if not self.alters:
            pytest.skip("the target refuses alterations")
        schema = numbered(schema or items_schema(table=table or ITEMS))
        copy = self.copy(harness, folder, schema, options=options)
        copy.create()
        copy.apply(insert(1, item(1, "a", "1.00", "x")), insert(2, item(2, "b", None, "y")))
        return copy

    # -- refusals

    def test_a_target_alters_or_says_that_it_does_not(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.copy(harness, tmp_path, numbered(items_schema()))
        copy.create()
        copy.apply(insert(1, item(1, "a")))
        wanted, more = evolved(copy.schema, add=[text_column("extra", 5)]), {"extra": None}
        if self.alters:
            copy.alter(wanted, sequence_num=2)
        else:
            with pytest.raises(TableError) as refused:
                copy.alter(wanted, sequence_num=2)
            assert refused.value.code == "ddl_not_supported"
            more = {}
        assert copy.restart().last_applied == (2 if self.alters else 1)
        copy.apply(insert(3, item(2, "b", **more)))
        assert copy.live() == as_tuples(copy.schema, [item(1, "a", **more), item(2, "b", **more)])

    @pytest.mark.parametrize("what", ["type", "key"])
    def test_other_changes_are_refused_and_the_table_can_be_used(self, items: Copy, what: str) -> None:
        before = items.schema
        if what == "type":
            columns = [replace(c, type=pa.int64()) if c.name == "note" else c for c in before.columns]
            wanted = replace(before, columns=tuple(columns))
        else:
            wanted = replace(before, key=("name",))
        with pytest.raises(TableError) as refused:
            items.alter(wanted)
        assert refused.value.code == "ddl_not_supported"
        assert items.restart().last_applied == 2
        items.apply(delete(3, item(1)))
        assert items.live() == as_tuples(before, [item(2, "b", None, "y")])

    def test_a_table_of_another_shape_is_not_altered(self, items: Copy) -> None:
        before = items.schema
        items.schema = evolved(before, add=[text_column("never", 5)])
        with pytest.raises(TableError):
            items.alter(evolved(items.schema, add=[text_column("extra", 6)]))
        items.schema = before
        assert items.restart().last_applied == 2
        items.apply(delete(3, item(1)))
        assert items.live() == as_tuples(before, [item(2, "b", None, "y")])

    def test_a_batch_of_the_shape_before_is_refused(self, items: Copy) -> None:
        before = items.schema
        items.alter(evolved(before, rename={"note": "remark"}))
        after, items.schema = items.schema, before
        with pytest.raises(TableError):
            items.apply(insert(4, item(4)))
        items.schema = after
        assert items.restart().last_applied == 3
        assert len(items.live()) == 2

    def test_an_older_epoch_alters_nothing(self, items: Copy) -> None:
        heir = replace(items)
        heir.restart(epoch=2)
        wanted = evolved(items.schema, add=[text_column("extra", 5)], drop=["note"])
        with suppress(FencedError, TableError):
            items.alter(wanted, {"extra": "zombie"})
        heir.apply(insert(3, item(3, "c", None, "z")))
        rows = [item(1, "a", "1.00", "x"), item(2, "b", None, "y"), item(3, "c", None, "z")]
        assert heir.live() == as_tuples(heir.schema, rows)
        heir.alter(wanted, {"extra": "heir"})
        assert {row.values["extra"] for row in heir.stored()} == {"heir"}
        assert heir.restart().last_applied == 4

    # -- columns that come

    def test_an_added_column_is_null_until_it_is_written(self, items: Copy) -> None:
        items.alter(evolved(items.schema, add=[text_column("extra", 5), text_column("count", 6, pa.int64())]))
        rows = [item(1, "a", "1.00", "x", extra=None, count=None), item(2, "b", None, "y", extra=None, count=None)]
        assert items.live() == as_tuples(items.schema, rows)
        items.apply(
            insert(4, item(3, "c", extra="e", count=3)),
            update(5, item(1, "a", "1.00", "x", extra="f", count=None)),
            update(6, item(2, "B", count=2), absent=["note", "extra"]),
        )
        rows = [
            item(1, "a", "1.00", "x", extra="f", count=None),
            item(2, "B", None, "y", extra=None, count=2),
            item(3, "c", extra="e", count=3),
        ]
        assert items.live() == as_tuples(items.schema, rows)
        items.apply(
            update(7, item(9, None, None, None, extra=None, count=1), before=item(1), absent=["name", "note", "extra"]),
            delete(8, item(2)),
        )
        rows = [item(3, "c", extra="e", count=3), item(9, "a", None, "x", extra="f", count=1)]
        assert items.live() == as_tuples(items.schema, rows)

    def test_an_added_column_is_filled_in_rows_that_are_there(self, items: Copy) -> None:
        items.alter(evolved(items.schema, add=[text_column("extra", 5), text_column("none", 6)]), {"extra": "it's"})
        rows = {row.values["id"]: row for row in items.stored()}
        assert {n: (row.values["extra"], row.values["none"]) for n, row in rows.items()} == dict.fromkeys(
            (1, 2), ("it's", None)
        )
        assert {n: row.sequence_num for n, row in rows.items()} == {1: 1, 2: 2}
        items.apply(
            insert(4, item(3, extra=None, none=None)), update(5, item(1, extra=None, none="n"), absent=["extra"])
        )
        assert {r.values["id"]: r.values["extra"] for r in items.stored()} == {1: "it's", 2: "it's", 3: None}

    def test_rows_are_filled_with_values_of_every_kind(self, items: Copy) -> None:
        fill: Mapping[str, tuple[pa.DataType, Any]] = {
            "c_bool": (pa.bool_(), True),
            "c_int": (pa.int64(), -(2**63)),
            "c_small": (pa.int16(), 7),
            "c_double": (pa.float64(), 0.1),
            "c_decimal": (pa.decimal128(12, 2), Decimal("-1234567890.12")),
            "c_text": (pa.string(), 'it\'s "q" \\n \n é 🙂 `b` ${x} %s'),
            "c_empty": (pa.string(), ""),
            "c_binary": (pa.binary(), b"\x00\xff'\\"),
            "c_date": (pa.date32(), date(1999, 12, 31)),
            "c_local": (pa.timestamp("us"), datetime(2024, 2, 29, 1, 2, 3, 456789)),  # noqa: DTZ001 - has no zone
            "c_moment": (pa.timestamp("us", tz="UTC"), datetime(1969, 7, 20, 20, 17, 40, 5, tzinfo=UTC)),
        }
        columns = [text_column(name, n, type_) for n, (name, (type_, _)) in enumerate(fill.items(), start=5)]
        values = {name: value for name, (_, value) in fill.items()}
        items.alter(evolved(items.schema, add=columns), values)
        for row in items.stored():
            assert {name: row.values[name] for name in fill} == values

    def test_an_empty_table_gets_a_filled_column(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.altering(harness, tmp_path)
        copy.apply(delete(3, item(1)), delete(4, item(2)))
        copy.alter(evolved(copy.schema, add=[text_column("extra", 5)]), {"extra": "e"})
        assert copy.restart().last_applied == 5
        copy.apply(insert(6, item(1, "a", extra=None)), insert(7, item(2, "b", extra="f")))
        assert copy.live() == as_tuples(copy.schema, [item(1, "a", extra=None), item(2, "b", extra="f")])

    # -- columns that go, and columns that are kept

    def test_a_dropped_column_goes_and_its_name_is_free(self, items: Copy) -> None:
        items.alter(evolved(items.schema, drop=["note", "amount"]))
        items.apply(insert(4, {"id": 3, "name": "c"}), update(5, {"id": 1, "name": "A"}))
        assert items.live() == [(1, "A"), (2, "b"), (3, "c")]
        items.alter(evolved(items.schema, add=[text_column("note", 5)]))
        assert items.live() == [(1, "A", None), (2, "b", None), (3, "c", None)]

    def test_a_column_that_takes_the_name_of_a_dropped_one_has_nothing_of_it(self, items: Copy) -> None:
        items.alter(evolved(items.schema, drop=["note"], add=[text_column("note", 5)]))
        rows = [item(1, "a", "1.00"), item(2, "b")]
        assert items.live() == as_tuples(items.schema, rows)
        items.alter(evolved(items.schema, drop=["note"], add=[text_column("note", 6)]), {"note": "new"})
        assert {row.values["note"] for row in items.stored()} == {"new"}
        items.apply(update(5, item(1, "A", "1.00"), absent=["note"]), update(6, item(2, "b", None, "mine")))
        assert items.live() == as_tuples(items.schema, [item(1, "A", "1.00", "new"), item(2, "b", None, "mine")])

    def test_a_column_of_another_type_may_take_the_name_of_a_dropped_one(self, items: Copy) -> None:
        items.alter(evolved(items.schema, drop=["note"], add=[text_column("note", 5, pa.int64())]), {"note": 7})
        items.apply(insert(4, {**item(3, "c"), "note": 8}))
        assert {row.values["id"]: row.values["note"] for row in items.stored()} == {1: 7, 2: 7, 3: 8}

    @pytest.mark.parametrize("deletes", ["hard", "soft"])
    def test_a_kept_column_keeps_what_stands_at_a_key(
        self, harness: TargetHarness, tmp_path: Path, deletes: Literal["hard", "soft"]
    ) -> None:
        copy = self.altering(harness, tmp_path, options=TableOptions(deletes=deletes))
        copy.apply(*[insert(n, item(n, f"n{n}", None, f"note {n}")) for n in range(3, 9)])
        copy.alter(evolved(copy.schema, keep=["note"]))
        copy.restart()
        copy.apply(
            update(10, item(1, "A", "2.00")),
            update(11, item(2, "B"), absent=["amount"]),
            insert(12, item(20, "new")),
            insert(13, item(3, "again"), is_snapshot=True),
            update(14, item(21, "moved"), before=item(4)),
            update(15, item(22, None), before=item(5), absent=["name"]),
            delete(16, item(6)),
            update(17, item(7, "in the place of 7"), before=item(8)),
        )
        values = {row.values["id"]: (row.values["name"], row.values["note"]) for row in copy.stored()}
        live = {
            1: ("A", "x"),
            2: ("B", "y"),
            3: ("again", "note 3"),
            7: ("in the place of 7", "note 7"),
            20: ("new", None),
            21: ("moved", None),
            22: ("n5", None),
        }
        assert {n: values[n] for n in live} == live
        assert {n for n, *_ in copy.live()} == live.keys()
        copy.apply(insert(20, item(6, "back")), update(21, item(20, "newer")))
        values = {row.values["id"]: (row.values["name"], row.values["note"]) for row in copy.stored()}
        # A row that is marked as deleted still exists.
        assert values[6] == ("back", "note 6" if deletes == "soft" else None)
        assert values[20] == ("newer", None)

    def test_appended_rows_have_nothing_in_a_kept_column(self, items: Copy) -> None:
        items.alter(evolved(items.schema, keep=["note"]))
        items.apply(*[insert(n, item(n, "new"), is_snapshot=True) for n in (10, 11)], is_append=True)
        notes = {row.values["id"]: row.values["note"] for row in items.stored()}
        assert notes == {1: "x", 2: "y", 10: None, 11: None}

    def test_a_snapshot_in_place_leaves_kept_columns(self, items: Copy) -> None:
        items.alter(evolved(items.schema, keep=["note"]))
        items.apply(insert(10, item(1, "read"), is_snapshot=True), insert(11, item(3, "read"), is_snapshot=True))
        items.target.complete_snapshot(items.table, 10, 12)
        assert items.held() == [(1, "read", None, "x"), (3, "read", None, None)]

    def test_a_kept_column_gives_its_name_up(self, items: Copy) -> None:
        items.alter(evolved(items.schema, keep=["note"]))
        wanted = evolved(items.schema, add=[text_column("note", 5)], rename={"note": "note__dropped_4"})
        items.alter(replace(wanted, columns=tuple(replace(c, name="note") if c.id == 5 else c for c in wanted.columns)))
        items.apply(update(5, item(1, "a", None, "new")))
        assert items.held() == [(1, "a", None, "new", "x"), (2, "b", None, None, "y")]
        items.alter(evolved(items.schema, drop=["note__dropped_4"]))
        items.apply(insert(7, item(3, "c")))
        assert items.held() == [(1, "a", None, "new"), (2, "b", None, None), (3, "c", None, None)]

    def test_a_kept_column_gives_its_name_up_in_the_statement_that_drops_it(self, items: Copy) -> None:
        wanted = evolved(items.schema, keep=["note"], rename={"note": "note__dropped_4"})
        items.alter(replace(wanted, columns=(*wanted.columns, text_column("note", 5))), {"note": "filled"})
        assert items.held() == [(1, "a", Decimal("1.00"), "filled", "x"), (2, "b", None, "filled", "y")]

    # -- columns that get other names

    def test_a_renamed_column_keeps_its_values(self, items: Copy) -> None:
        items.alter(evolved(items.schema, rename={"note": "remark", "name": "title"}))
        assert items.live() == [(1, "a", Decimal("1.00"), "x"), (2, "b", None, "y")]
        items.apply(
            update(4, {"id": 1, "title": "A", "amount": None}, absent=["remark"]),
            insert(5, {"id": 3, "title": "c", "amount": None, "remark": "z"}),
        )
        assert items.live() == [(1, "A", None, "x"), (2, "b", None, "y"), (3, "c", None, "z")]

    def test_names_change_hands(self, items: Copy) -> None:
        """In a cycle, in a chain, and with a name that becomes free."""
        items.alter(evolved(items.schema, rename={"name": "note", "note": "name"}))
        assert [c.name for c in items.schema.columns] == ["id", "note", "amount", "name"]
        assert items.live() == [(1, "a", Decimal("1.00"), "x"), (2, "b", None, "y")]
        items.alter(evolved(items.schema, rename={"name": "amount", "note": "name", "amount": "note"}))
        assert [c.name for c in items.schema.columns] == ["id", "name", "note", "amount"]
        assert items.live() == [(1, "a", Decimal("1.00"), "x"), (2, "b", None, "y")]
        items.alter(evolved(items.schema, drop=["amount"], rename={"name": "amount", "note": "name"}))
        assert items.live() == [(1, "a", Decimal("1.00")), (2, "b", None)]
        items.apply(update(6, {"id": 2, "amount": "B", "name": Decimal("2.00")}))
        assert items.live() == [(1, "a", Decimal("1.00")), (2, "B", Decimal("2.00"))]

    def test_a_new_column_takes_the_name_of_a_renamed_one(self, items: Copy) -> None:
        wanted = evolved(items.schema, rename={"note": "remark"}, add=[text_column("note", 5)])
        items.alter(wanted, {"note": "filled"})
        rows = [item(1, "a", "1.00", "filled", remark="x"), item(2, "b", None, "filled", remark="y")]
        assert items.live() == as_tuples(items.schema, rows)
        items.apply(insert(4, item(3, "c", None, "n", remark="r")))
        assert items.live() == as_tuples(items.schema, [*rows, item(3, "c", None, "n", remark="r")])

    def test_a_column_of_the_key_gets_another_name(self, items: Copy) -> None:
        if not self.renames_keys:
            with pytest.raises(TableError) as refused:
                items.alter(evolved(items.schema, rename={"id": "number"}))
            assert refused.value.code == "ddl_not_supported"
            assert items.restart().last_applied == 2
            items.apply(delete(3, item(2)))
            assert items.live() == as_tuples(items.schema, [item(1, "a", "1.00", "x")])
            return
        items.alter(evolved(items.schema, rename={"id": "number"}))
        assert items.schema.key == ("number",)
        row = {"name": None, "amount": None, "note": None}
        items.apply(
            update(4, {**row, "number": 1, "name": "A"}, absent=["note"]),
            delete(5, {"number": 2}),
            insert(6, {**row, "number": 3}),
        )
        assert items.live() == [(1, "A", None, "x"), (3, None, None, None)]

    def test_columns_may_stand_in_another_order(self, items: Copy) -> None:
        columns = items.schema.columns
        items.alter(replace(items.schema, columns=(columns[3], columns[0], columns[2], columns[1])))
        items.apply(insert(4, item(3, "c", "3.00", "z")), update(5, item(2, "B"), absent=["note"]))
        rows = [item(1, "a", "1.00", "x"), item(2, "B", None, "y"), item(3, "c", "3.00", "z")]
        assert items.live() == as_tuples(items.schema, rows)

    # -- all at once

    @pytest.mark.parametrize("deletes", ["hard", "soft"])
    def test_tables_with_columns_of_ours_are_altered(
        self, harness: TargetHarness, tmp_path: Path, deletes: Literal["hard", "soft"]
    ) -> None:
        options = TableOptions(deletes=deletes, source_timestamp=True)
        copy = self.altering(harness, tmp_path, options=options)
        copy.apply(delete(3, item(2)))
        copy.alter(evolved(copy.schema, rename={"name": "title"}, add=[text_column("extra", 5)]), {"extra": "e"})
        found = {row.values["id"]: row for row in copy.stored()}
        if deletes == "soft":
            assert (found[2].is_deleted, found[2].sequence_num) == (True, 3)
            assert found[2].values["title"] == "b"
        assert not found[1].is_deleted
        rest = {"amount": None, "note": None, "extra": None}
        copy.apply(insert(5, {"id": 2, "title": "back", **rest}), delete(6, item(1)))
        assert copy.live() == [(2, "back", None, None, None)]
        copy.alter(evolved(copy.schema, keep=["title"], drop=["extra"]))
        copy.apply(update(8, {"id": 2, "amount": Decimal("2.00"), "note": "n"}))
        assert copy.held() == [(2, Decimal("2.00"), "n", "back")]

    def test_a_table_without_a_key_is_altered(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.altering(harness, tmp_path, items_schema(key=()))
        copy.alter(evolved(copy.schema, rename={"name": "title"}, drop=["amount"], keep=["note"]))
        assert copy.held() == [(1, "a", "x"), (2, "b", "y")]
        copy.apply(*[insert(n, {"id": 1, "title": "a"}) for n in (4, 5)])
        # Three rows are equal to it: the newest goes first, the one with a note last.
        copy.apply(delete(6, {"id": 1, "title": "a"}), delete(7, {"id": 1, "title": "a"}), expects_rows=True)
        assert copy.held() == [(1, "a", "x"), (2, "b", "y")]
        copy.apply(update(8, {"id": 2, "title": "B"}, before={"id": 2, "title": "b"}), expects_rows=True)
        assert copy.held() == [(1, "a", "x"), (2, "B", None)]
        assert copy.audit().not_found == 0
        copy.alter(evolved(copy.schema, add=[text_column("extra", 5)]), {"extra": "e"})
        copy.apply(delete(10, {"id": 1, "title": "a", "extra": "e"}), insert(11, {"id": 3, "title": "c"}))
        assert copy.held() == [(2, "B", "e", None), (3, "c", None, None)]

    def test_a_replayed_alteration_changes_nothing(self, items: Copy) -> None:
        before = items.schema
        after = evolved(before, rename={"name": "note", "note": "name"}, add=[text_column("extra", 5)])
        items.alter(after, {"extra": "e"})
        items.apply(update(4, {"id": 1, "note": "A", "amount": None, "name": "X", "extra": "mine"}))
        for begin in (lambda: None, items.restart):
            begin()
            items.schema = before
            items.alter(after, {"extra": "e"}, sequence_num=3)
            assert items.live() == [(1, "A", None, "X", "mine"), (2, "b", None, "y", "e")]
        assert items.restart().last_applied == 4

    def test_an_alteration_of_nothing_moves_the_ledger(self, items: Copy) -> None:
        items.alter(replace(items.schema, comment="another"))
        assert items.restart().last_applied == 3
        columns = [replace(c, comment="another", nullable=c.name != "name") for c in items.schema.columns]
        items.alter(replace(items.schema, columns=tuple(columns)))
        items.apply(insert(5, item(3, "c")))
        rows = [item(1, "a", "1.00", "x"), item(2, "b", None, "y"), item(3, "c")]
        assert items.live() == as_tuples(items.schema, rows)

    def test_creating_an_altered_table_again_keeps_it(self, items: Copy) -> None:
        items.alter(evolved(items.schema, rename={"note": "remark"}, keep=["name"], add=[text_column("extra", 5)]))
        items.restart()
        items.create(4)
        assert items.held() == [(1, Decimal("1.00"), "x", None, "a"), (2, None, "y", None, "b")]
        items.apply(delete(5, {"id": 1}))
        assert len(items.held()) == 1

    def test_an_altered_table_can_be_made_again(self, items: Copy) -> None:
        before = items.schema
        items.alter(evolved(before, rename={"note": "remark"}, keep=["name"]))
        items.table = replace(items.table, incarnation=2)
        items.schema = before
        items.create(4)
        items.publish(5)
        assert items.live() == []
        items.alter(evolved(before, rename={"note": "other"}))
        items.apply(insert(7, {"id": 1, "name": "a", "amount": None, "other": "o"}))
        assert items.live() == [(1, "a", None, "o")]

    def test_an_alteration_that_was_killed_anywhere_is_completed(
        self, harness: TargetHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def alter(copy: Copy) -> None:
            """Names are exchanged, columns are added, dropped and kept, and a new one takes the name of a renamed one."""
            copy.schema = numbered(items_schema(table=copy.table.table))
            renamed = evolved(
                copy.schema, rename={"name": "note", "note": "amount"}, keep=["amount"], add=[text_column("fresh", 5)]
            )
            columns = (*renamed.columns, text_column("name", 6))
            kept = tuple(replace(c, name="amount__dropped_3") for c in renamed.kept)
            copy.alter(replace(renamed, columns=columns, kept=kept), {"name": "filled"}, sequence_num=3)

        probe = self.altering(harness, tmp_path, table=TableId("shop", "probe"))
        with killed_at("nothing", monkeypatch):
            alter(probe)
            passed = {name: hits for name, hits in crash._hits.items() if name.startswith("target.")}  # noqa: SLF001
        wanted = [(1, "a", "x", None, "filled", Decimal("1.00")), (2, "b", "y", None, "filled", None)]
        assert probe.held() == wanted
        assert passed
        for number, point in enumerate(f"{name}:{n + 1}" for name, hits in passed.items() for n in range(hits)):
            copy = self.altering(harness, tmp_path, table=TableId("shop", f"killed{number}"))
            with killed_at(point, monkeypatch), pytest.raises(Killed):
                alter(copy)
            # The next process dies there, too, if it comes there at all.
            with killed_at(point, monkeypatch), suppress(Killed):
                copy.restart(epoch=2)
                alter(copy)
            copy.restart(epoch=3)
            alter(copy)
            assert copy.held() == wanted, point
            rest = {"fresh": None, "name": "n"}
            copy.apply(update(4, {"id": 1, "note": "A", **rest}, absent=["amount"]), insert(5, {"id": 3, **rest}))
            rows = [(1, "A", "x", None, "n", Decimal("1.00")), wanted[1], (3, None, None, None, "n", None)]
            assert copy.held() == rows, point

    def test_random_alterations_and_changes_equal_a_plain_replay(self, harness: TargetHarness, tmp_path: Path) -> None:
        copy = self.altering(harness, tmp_path)
        world = AlteredTable(
            schema=copy.schema,
            rows=[item(1, "a", "1.00", "x"), item(2, "b", None, "y")],
            draw=random.Random(16),
            renames_keys=self.renames_keys,
        )
        for step in range(self.alteration_steps):
            if step % 3 == 2:
                copy.restart()
            fill = world.alter()
            copy.alter(world.schema, fill)
            assert copy.held() == as_tuples(world.schema, world.rows, with_kept=True), f"step {step}"
            for _ in range(2):
                copy.apply(*world.change(copy.ledger, 12), expects_rows=True)
                assert copy.held() == as_tuples(world.schema, world.rows, with_kept=True), f"step {step}"
        assert copy.audit().not_found == 0
