"""A batch folded in Arrow does to a table of data files what its changes do one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from replicator.model.events import IS_DELETED
from replicator.model.merged import Merged
from replicator.model.schema import TableSchema
from replicator.plugins.kit.folding import needed
from replicator.plugins.kit.folding.arrow import net_changes
from replicator.plugins.kit.folding.fold import NetChanges, key_form
from replicator.plugins.kit.folding.found import FileHits, complete, found_at, merged
from replicator.plugins.kit.folding.keys import KeyForm, distinct, hashes
from replicator.plugins.kit.folding.layout import PLAIN, Layout
from replicator.plugins.kit.folding.needed import EngineNeededError, TooLargeError
from replicator.plugins.target import Batch, TableOptions, TargetTable
from replicator_testing.batches import RowChange, delete, insert, update, write_batch
from replicator_testing.histories import HISTORIES, History, random_batches
from replicator_testing.oracle import Oracle, StoredRow
from replicator_testing.target_harness import ITEMS, as_outcome, as_tuples, item, items_schema


class File:
    """A data file: rows that never change, and which of them are alive."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self.is_alive = np.ones(rows.num_rows, bool)


class Lake:
    """A table of data files: the smallest target that folds with the kit."""

    def __init__(self, schema: TableSchema, deletes: Literal["hard", "soft"] = "hard") -> None:
        self.schema = schema
        self.table = TargetTable(table=ITEMS, uuid="u", incarnation=0, epoch=1, options=TableOptions(deletes=deletes))
        self.form = key_form(schema, PLAIN)
        self.files: list[File] = []

    def apply(self, batch: Batch, spills: bool = False) -> Merged:
        counts = Merged()
        for net in net_changes(batch, self.table.options, PLAIN, spills=spills):
            counts += self.merge(net, expects_rows=batch.expects_rows)
        return counts

    def merge(self, net: NetChanges, *, expects_rows: bool) -> Merged:
        hits = self.find(net.keys)
        found = found_at(net, hits, self.table.options, self.read)
        rows = net.rows
        if not net.is_complete:
            rows, _ = complete(net, found, self.read)
        for hit in hits:
            hit.file.is_alive[hit.rows] = False
        self.files.append(File(rows))
        return merged(net, found, expects_rows=expects_rows)

    def find(self, keys: pa.Array) -> Sequence[FileHits[File]]:
        """Rows that are alive and have one of the keys."""
        hits = []
        for file in self.files if len(keys) else ():
            stored = self.form.keys([file.rows.column(name).combine_chunks() for name in self.schema.key])
            position = pc.index_in(stored, keys).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            rows = np.flatnonzero((position >= 0) & file.is_alive)
            if len(rows):
                hits.append(FileHits(file=file, positions=position[rows], rows=rows))
        return hits

    def read(self, file: File, rows: npt.NDArray[np.int64], fields: Sequence[pa.Field]) -> pa.Table:
        return file.rows.select([field.name for field in fields]).take(pa.array(rows)).cast(pa.schema(fields))

    def stored(self) -> list[dict[str, Any]]:
        return [row for file in self.files for row in file.rows.filter(pa.array(file.is_alive)).to_pylist()]

    def outcome(self) -> list[tuple[Any, ...]]:
        rows = [StoredRow(row, row["_sequence_num"], is_deleted=row.get(IS_DELETED, False)) for row in self.stored()]
        return as_outcome(self.schema, rows)

    def live(self) -> list[dict[str, Any]]:
        return [row for row in self.stored() if not row.get(IS_DELETED)]


@pytest.mark.parametrize("deletes", ["hard", "soft"])
@pytest.mark.parametrize("seed", range(5))
def test_random_batches_equal_the_oracle(tmp_path: Path, seed: int, deletes: Literal["hard", "soft"]) -> None:
    schema = items_schema(with_world=True)
    lake, oracle = Lake(schema, deletes), Oracle(schema, TableOptions(deletes=deletes))
    for changes in random_batches(seed, worlds=60, length=14, batches=3):
        batch = write_batch(tmp_path, schema, changes, files=2, expects_rows=True)
        assert lake.apply(batch) == oracle.apply(changes, expects_rows=True)
        assert lake.outcome() == as_outcome(schema, oracle.rows)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda h: h.__name__)
def test_a_history_in_one_batch_equals_a_plain_replay(tmp_path: Path, history: History) -> None:
    schema, reference = items_schema(), Oracle(items_schema())
    reference.apply(history())
    lake = Lake(schema)
    lake.apply(write_batch(tmp_path, schema, history()))
    assert as_tuples(schema, lake.live()) == as_tuples(schema, reference.live)


def test_an_append_looks_for_nothing(tmp_path: Path) -> None:
    lake = Lake(items_schema())
    rows = [insert(n, item(n), is_snapshot=True) for n in (3, 4)]
    assert lake.apply(write_batch(tmp_path, lake.schema, rows, is_append=True)) == Merged(inserted=2)
    assert [row["id"] for row in lake.live()] == [3, 4]


def test_only_what_is_above_the_ledger_is_folded(tmp_path: Path) -> None:
    lake = Lake(items_schema())
    lake.apply(write_batch(tmp_path, lake.schema, [insert(1, item(1)), insert(2, item(2))], skip_to=1))
    assert [row["id"] for row in lake.live()] == [2]


def test_a_row_is_complete_unless_the_table_has_some_of_it(tmp_path: Path) -> None:
    lake = Lake(items_schema())

    def is_complete(*changes: RowChange) -> bool:
        batch = write_batch(tmp_path, lake.schema, changes)
        (net,) = net_changes(batch, lake.table.options, PLAIN)
        return net.is_complete

    assert is_complete(update(1, item(1)))
    assert not is_complete(update(1, item(1), absent=["note"]))
    assert is_complete(insert(1, item(1)), update(2, item(1), absent=["note"]))
    assert is_complete(delete(1, item(1)), insert(2, item(1), absent=["note"], is_snapshot=True))
    lake = Lake(items_schema(), "soft")
    assert not is_complete(delete(1, item(1)))


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_columns_that_are_kept_stay_with_their_key(tmp_path: Path, deletes: Literal["hard", "soft"]) -> None:
    """Whatever row comes to the key, and whether the one that stands there is marked as deleted."""
    lake = Lake(items_schema(), deletes)
    lake.apply(write_batch(tmp_path, lake.schema, [insert(n, item(n, note=f"note {n}")) for n in range(1, 6)]))
    kept = lake.schema.column("note")
    lake.schema = replace(lake.schema, columns=tuple(c for c in lake.schema.columns if c != kept), kept=(kept,))
    changes = [
        update(11, item(1, "whole")),
        update(12, item(2, amount="2.00"), absent=["name"]),
        delete(13, item(3)),
        update(14, item(6, "moved"), before=item(4)),
        delete(15, item(5)), insert(16, item(5, "again")),
        insert(17, item(7)),
    ]  # fmt: skip
    lake.apply(write_batch(tmp_path, lake.schema, changes))
    notes = {1: "note 1", 2: "note 2", 5: "note 5", 6: None, 7: None}
    assert {row["id"]: row["note"] for row in lake.live()} == notes
    lake.apply(write_batch(tmp_path, lake.schema, [insert(20, item(3)), insert(21, item(4), is_snapshot=True)]))
    back = {3: "note 3", 4: "note 4"} if deletes == "soft" else {3: None, 4: None}
    assert {row["id"]: row["note"] for row in lake.live()} == notes | back
    lake.apply(write_batch(tmp_path, lake.schema, [insert(30, item(8), is_snapshot=True)], is_append=True))
    assert [row["note"] for row in lake.live() if row["id"] == 8] == [None]


def test_rows_of_whole_number_keys_come_in_the_order_of_the_keys(tmp_path: Path) -> None:
    lake = Lake(items_schema())
    batch = write_batch(tmp_path, lake.schema, [insert(n, item(9 - n)) for n in range(5)])
    (net,) = net_changes(batch, TableOptions(), PLAIN)
    assert net.row_keys.to_pylist() == net.rows["id"].to_pylist() == [5, 6, 7, 8, 9]


def test_values_are_folded_as_the_lake_holds_them(tmp_path: Path) -> None:
    def as_text(array: pa.Array) -> pa.Array:
        return array.cast(pa.string()) if pa.types.is_decimal(array.type) else array

    layout = Layout(type_of=lambda type_: pa.string() if pa.types.is_decimal(type_) else type_, stored=as_text)
    schema = items_schema(key=("id", "amount"))
    form = key_form(schema, layout)
    assert form.types == (pa.int64(), pa.string())
    batch = write_batch(tmp_path, schema, [insert(1, item(1, amount="2.50"))])
    (net,) = net_changes(batch, TableOptions(), layout)
    assert net.rows["amount"].to_pylist() == ["2.50"]
    assert net.row_keys.equals(form.keys([pa.array([1]), pa.array(["2.50"])]))


# -- what is the engine's ---------------------------------------------------------------------------------------------


def test_a_key_that_stands_in_the_table_twice_is_the_engine_s(tmp_path: Path) -> None:
    lake = Lake(items_schema())
    for n in (1, 2):
        lake.apply(write_batch(tmp_path, lake.schema, [insert(n, item(1))], is_append=True))
    with pytest.raises(EngineNeededError, match="twice"):
        lake.apply(write_batch(tmp_path, lake.schema, [update(3, item(1, "b"))]))


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("key has a null", [insert(1, item(None))]),
        ("no row", [RowChange(sequence_num=1, operation=delete(1, item(1)).operation)]),
        ("one number", [insert(1, item(1)), insert(1, item(2))]),
    ],
)
def test_what_a_source_does_not_make_is_the_engine_s(tmp_path: Path, match: str, changes: list[RowChange]) -> None:
    schema = items_schema()
    with pytest.raises(EngineNeededError, match=match) as caught:
        list(net_changes(write_batch(tmp_path, schema, changes), TableOptions(), PLAIN))
    assert not isinstance(caught.value, TooLargeError)


def test_files_that_cannot_be_read_are_the_engine_s(tmp_path: Path) -> None:
    batch = write_batch(tmp_path, items_schema(), [insert(1, item(1))])
    for file in tmp_path.rglob("*.parquet"):
        file.write_bytes(b"PAR1")
    with pytest.raises(EngineNeededError, match="cannot be read"):
        list(net_changes(batch, TableOptions(), PLAIN, spills=False))


def test_a_batch_that_does_not_fit_into_memory_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = write_batch(tmp_path, items_schema(), [insert(1, item(1))])
    monkeypatch.setattr(needed, "BYTES_MAX", 1)
    with pytest.raises(TooLargeError, match="batch is too large"):
        list(net_changes(batch, TableOptions(), PLAIN, spills=False))


def test_rows_of_the_table_that_do_not_fit_into_memory_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(items_schema())
    lake.apply(write_batch(tmp_path, lake.schema, [insert(n, item(n, note="x" * 1000)) for n in range(100)]))
    batch = write_batch(tmp_path, lake.schema, [update(100 + n, item(n), absent=["note"]) for n in range(100)])
    monkeypatch.setattr(needed, "BYTES_MAX", 50_000)
    with pytest.raises(TooLargeError, match="rows of the table"):
        lake.apply(batch)


# -- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.int16(), [-5, 0, 7]),
        (pa.date32(), [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)]),
        (pa.timestamp("us"), [-1, 0, 2**60]),
    ],
)
def test_a_whole_number_key_is_that_number(type_: pa.DataType, values: list[Any]) -> None:
    form = KeyForm([type_])
    assert form.is_integer
    keys = form.keys([pa.array(values, type_)])
    assert keys.type == pa.int64()
    assert keys.to_pylist() == sorted(keys.to_pylist())


@pytest.mark.parametrize(
    ("types", "rows"),
    [
        ([pa.string()], [("",), ("a",), ("a ",), ("A",), ("a\0",), ("\u00e9",), ("e\u0301",)]),
        ([pa.string(), pa.binary()], [("", b"aa"), ("a", b"a"), ("aa", b""), ("a", b"\0a")]),
        ([pa.decimal128(38, 2), pa.bool_()], [(Decimal("1.00"), True), (Decimal("1.00"), False), (Decimal(-1), True)]),
        ([pa.int32(), pa.int64()], [(1, 2), (2, 1), (0, 258), (1, 0)]),
    ],
)
@pytest.mark.parametrize("cut", [lambda array: array, lambda array: pa.concat_arrays([array[:1], array])[1:]])
def test_other_keys_are_equal_where_all_columns_are(
    types: list[pa.DataType], rows: list[tuple[Any, ...]], cut: Callable[[pa.Array], pa.Array]
) -> None:
    form = KeyForm(types)
    columns = [cut(pa.array(column, type_)) for column, type_ in zip(zip(*rows, strict=True), types, strict=True)]
    keys = form.keys(columns)
    assert keys.type == pa.large_binary()
    assert len(set(keys.to_pylist())) == len(rows)
    assert form.keys([column.take(pa.array([2])) for column in columns])[0] == keys[2]
    assert len(set(hashes(keys).tolist())) == len(rows)
    assert hashes(keys[1:]).tolist() == hashes(keys).tolist()[1:]


def test_hashes_differ_by_length_too() -> None:
    keys = pa.array([bytes(length) for length in range(40)], pa.large_binary())
    assert len(set(hashes(keys).tolist())) == 40


@pytest.mark.parametrize("type_", [pa.float64(), pa.list_(pa.int64()), pa.decimal256(50, 0)])
def test_keys_that_their_bytes_do_not_tell_apart_are_the_engine_s(type_: pa.DataType) -> None:
    with pytest.raises(EngineNeededError, match="type"):
        KeyForm([pa.int64(), type_])


def test_a_table_without_a_key_is_the_engine_s() -> None:
    with pytest.raises(EngineNeededError, match="no key"):
        key_form(items_schema(key=()), PLAIN)


def test_distinct_keys_that_are_whole_numbers_ascend_and_others_come_as_they_are_met() -> None:
    numbers, index = distinct(pa.array([7, -1, 7, 3]))
    assert (numbers.to_pylist(), index.tolist()) == ([-1, 3, 7], [2, 0, 2, 1])
    texts, index = distinct(pa.array([b"b", b"a", b"b"], pa.large_binary()))
    assert (texts.to_pylist(), index.tolist()) == ([b"b", b"a"], [0, 1, 0])
