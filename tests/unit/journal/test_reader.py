"""Reading back: order over tables, damage, and what retention took away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replicator.journal import JournalReader
from replicator.model.errors import CorruptStreamError, JournalUnavailableError
from replicator.model.events import SEQUENCE_NUM
from replicator.model.schema import TableSchema
from replicator.state import EventEntry, SegmentFile

if TYPE_CHECKING:
    from tests.unit.journal.conftest import Journal


def flat(items: Iterable[EventEntry | tuple[TableSchema, pa.RecordBatch]]) -> list[tuple[str, int]]:
    """(table, number) of everything that `changes` gave."""
    found = []
    for item in items:
        if isinstance(item, EventEntry):
            found.append((item.table.name, item.sequence_num))
        else:
            schema, rows = item
            found += [(schema.table.name, n) for n in rows.column(SEQUENCE_NUM).to_pylist()]
    return found


@pytest.fixture
def filled(journal: Journal) -> Journal:
    a, b = journal.schema_of("a"), journal.schema_of("b")
    for _ in range(2):
        journal.event(a.table)
        journal.insert(a, 2)
        journal.insert(b, 1)
        journal.insert(a, 1)
        journal.commit()
        journal.commit()  # idle
    return journal


def test_changes_come_in_order_of_segments_and_of_each_table(filled: Journal) -> None:
    expected = [("a", 0), ("a", 1), ("a", 2), ("a", 4), ("b", 3), ("a", 5), ("a", 6), ("a", 7), ("a", 9), ("b", 8)]
    assert flat(filled.reader.changes()) == expected
    for after in range(-1, 11):
        assert flat(filled.reader.changes(after)) == [pair for pair in expected if pair[1] > after]
    only = filled.schema_of("b").table
    assert flat(filled.reader.changes(3, tables=[only])) == [("b", 8)]


def test_what_was_dropped_above_a_ledger_is_lost(filled: Journal) -> None:
    a = filled.schema_of("a").table
    assert not filled.reader.is_lost(a, 1, -1)
    filled.store.drop_segments("shop", filled.epoch, [1])
    assert [filled.reader.is_lost(a, 1, ledger) for ledger in (-1, 3, 4, 9)] == [True, True, False, False]
    assert not filled.reader.is_lost(a, 2, -1)
    assert not filled.reader.is_lost(filled.schema_of("c").table, 1, -1)


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[:-10])
    elif how == "flipped":
        path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["truncated", "flipped", "empty", "missing"])
def test_damage_is_named_with_file_and_remedy(filled: Journal, how: str) -> None:
    file = filled.store.journal.segments("shop", 0, 1)[0].files[0]
    filled.reader.check(file)
    damage(Path(file.uri.removeprefix("file://")), how)
    for read in (
        lambda: filled.reader.check(file),
        lambda: list(filled.reader.rows(file)),
        lambda: list(filled.reader.changes()),
    ):
        with pytest.raises(CorruptStreamError) as caught:
            read()
        assert caught.value.code == "corrupt_segment"
        assert file.uri in str(caught.value)
        assert "replicator snapshot shop --restart" in str(caught.value)


def test_a_file_of_another_table_is_refused_even_if_whole(filled: Journal) -> None:
    files = filled.store.journal.segments("shop", 0, 1)[0].files
    wrong = replace(files[1], uri=files[0].uri, bytes=files[0].bytes, sha256=files[0].sha256)
    with pytest.raises(CorruptStreamError, match="columns are not those"):
        list(filled.reader.rows(wrong))


def test_a_location_that_cannot_be_read_is_unavailable_not_corrupt(filled: Journal) -> None:
    file = filled.store.journal.segments("shop", 0, 1)[0].files[0]
    path = Path(file.uri.removeprefix("file://"))
    path.unlink()
    path.mkdir()
    with pytest.raises(JournalUnavailableError):
        filled.reader.check(file)


def test_other_readers_of_parquet_see_the_same(filled: Journal) -> None:
    file = filled.store.journal.segments("shop", 0, 1)[0].files[0]
    table = pq.read_table(file.uri.removeprefix("file://"))
    assert table.num_rows == file.rows
    assert table.schema.field(SEQUENCE_NUM).type == pa.int64()


def test_another_reader_finds_what_a_writer_sealed_meanwhile(filled: Journal) -> None:
    reader = JournalReader(filled.store, "shop")
    a = filled.schema_of("a")
    before = len(reader.feed(a.table, -1, 1000))
    filled.insert(a, 1)
    assert len(reader.feed(a.table, -1, 1000)) == before
    filled.commit()
    assert len(reader.feed(a.table, -1, 1000)) == before + 1
    (item,) = reader.feed(a.table, 9, 1000)
    assert isinstance(item, SegmentFile)
    assert item.last == 10
