"""What the writer seals, where it cuts, and what is left of what it did not seal."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicator.journal import JournalWriter
from replicator.model.counts import CounterName
from replicator.model.errors import (
    ConfigError,
    FencedError,
    JournalUnavailableError,
    StateUnavailableError,
)
from replicator.model.isolation import TableFailedError
from replicator.model.offset import Offset
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state import SegmentFile, Stage, StateStore, TableRecord
from replicator.state.records import RequestKind
from replicator_testbed.present import present
from replicator_testing.defaults import writer_limits

if TYPE_CHECKING:
    from tests.unit.journal.conftest import Journal

WRITE = Path(__file__).with_name("write_and_crash.py")


def test_what_is_committed_comes_back(journal: Journal) -> None:
    a = journal.schema_of("a", extra=["n"])
    rows = [
        {"n": 0, "row": {"id": 1, "c2": "ű", "n": 5}, "snapshot": True},
        {"n": 1, "op": "UPDATE", "row": {"id": 1, "c2": None, "n": 6}, "before": {"id": 1}, "absent": ["c2"]},
        {"n": 2, "op": "DELETE", "before": {"id": 1}},
    ]
    journal.writer.take(3)
    journal.writer.append(a, 4, journal.changes(a, rows))
    assert (journal.writer.pending_rows, journal.writer.next_sequence_num) == (3, 3)
    assert journal.writer.pending_bytes > 0
    (segment,) = journal.commit(lsn=9, ring=["741"])
    assert (journal.writer.pending_rows, journal.writer.pending_bytes) == (0, 0)
    assert journal.store.journal.last_segment("shop") == segment
    assert (segment.id, segment.first, segment.last, segment.epoch, segment.ring) == (1, 0, 2, 1, ("741",))
    assert segment.offset == Offset.of({"lsn": 9})
    (file,) = segment.files
    assert (file.first, file.last, file.rows, file.snapshot_rows, file.incarnation, file.seal) == (0, 2, 3, 1, 4, 1)
    assert (file.has_absent, file.has_key_changes, file.schema_fingerprint) == (True, False, a.fingerprint)
    (batch,) = journal.reader.rows(file)
    assert batch.to_pylist() == journal.changes(a, rows).to_pylist()
    assert journal.reader.schema(file) == a


def test_a_seal_counts_changes_by_operation_and_rows_of_snapshots_apart(journal: Journal) -> None:
    a = journal.schema_of("a")
    rows = [
        {"n": 0, "row": {"id": 1, "c2": "a"}, "snapshot": True},
        {"n": 1, "op": "UPDATE", "row": {"id": 1, "c2": "b"}, "before": {"id": 1}},
        {"n": 2, "op": "DELETE", "before": {"id": 1}},
        {"n": 3, "row": {"id": 2, "c2": "c"}},
        {"n": 4, "row": {"id": 3, "c2": "d"}},
    ]
    journal.writer.take(5)
    journal.writer.append(a, 1, journal.changes(a, rows))
    journal.writer.discard()
    journal.writer.take(5)
    journal.writer.append(a, 1, journal.changes(a, rows))
    journal.commit()
    journal.commit()
    counts = journal.store.counters("shop")
    changes = {labels[0]: number for (name, labels), number in counts.items() if name is CounterName.CHANGES_CAPTURED}
    assert changes == {"INSERT": 2, "UPDATE": 1, "DELETE": 1}
    assert counts[CounterName.ROWS_SNAPSHOTTED, ()] == 1


def test_a_file_says_what_it_is(journal: Journal) -> None:
    a = journal.schema_of("a")
    journal.insert(a, 2)
    (segment,) = journal.commit()
    path = segment.files[0].uri.removeprefix("file://")
    document = json.loads(pq.read_schema(path).metadata[b"replicator"])
    assert document == {
        "format": 1, "table": ["public", "a"], "incarnation": 1, "fingerprint": a.fingerprint,
        "columns": {"id": "id", "text of": "c2"}, "key": ["id"],
    }  # fmt: skip
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert stat.S_IMODE(journal.folder.stat().st_mode) == 0o700
    assert Path(path).stat().st_size == segment.files[0].bytes


def test_names_are_never_used_twice_and_carry_the_epoch(journal: Journal) -> None:
    a = journal.schema_of("../../etc/pass wd%")
    seen: set[str] = set()
    for epoch in (1, 2):
        for _ in range(2):
            journal.insert(a, 1)
            journal.commit()
        new = set(journal.files()) - seen
        assert len(new) == 2
        assert all(name.startswith(f"{epoch:08d}-") for name in new)
        assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.") for name in new)
        seen |= new
        journal.new_epoch()
    assert len(seen) == 4


def test_an_idle_commit_moves_the_offset_only(journal: Journal) -> None:
    journal.insert(journal.schema_of("a"), 3)
    journal.commit(lsn=1)
    (second,) = journal.commit(lsn=2, ring=["8"])
    assert (second.first, second.last, second.files, second.ring) == (3, 2, (), ("8",))
    (third,) = journal.commit(offset=None, source_time=None)
    assert (third.offset, third.source_time, third.ring) == (Offset.of({"lsn": 2}), second.source_time, ())
    again = journal.new_epoch()
    assert again.next_sequence_num == 3
    (fourth,) = journal.commit(offset=None)
    assert (fourth.id, fourth.offset, fourth.epoch) == (4, Offset.of({"lsn": 2}), 2)


def test_unused_numbers_stay_unused(journal: Journal) -> None:
    a = journal.schema_of("a")
    journal.writer.take(10)
    journal.writer.append(a, 1, journal.inserts(a, [3, 7]))
    (segment,) = journal.commit()
    assert (segment.first, segment.last) == (0, 9)
    assert (segment.files[0].first, segment.files[0].last) == (3, 7)
    assert journal.insert(a, 1) == 10


def test_limits_cut_between_takes_and_the_commit_seals_all_parts(journal: Journal) -> None:
    journal.new_writer(segment_rows=10, row_group_rows=4)
    a, b = journal.schema_of("a"), journal.schema_of("b")
    journal.insert(a, 1)
    journal.commit(lsn=1, ring=["1"])
    for _ in range(5):
        base = journal.writer.take(6)
        journal.writer.append(a, 1, journal.inserts(a, [base, base + 2, base + 4]))
        journal.writer.append(b, 1, journal.inserts(b, [base + 1, base + 3, base + 5]))
    assert present(journal.store.journal.last_segment("shop")).id == 1
    segments = journal.commit(lsn=2, ring=["2"])
    assert [(s.id, s.first, s.last) for s in segments] == [(2, 1, 12), (3, 13, 24), (4, 25, 30)]
    assert [s.offset.value["lsn"] for s in segments] == [1, 1, 2]
    assert [s.ring for s in segments] == [("1",), ("1",), ("2",)]
    assert {f.seal for s in segments for f in s.files} == {4}
    assert journal.numbers(a.table) == [0, *range(1, 31, 2)]
    assert journal.numbers(b.table) == list(range(2, 31, 2))
    assert pq.ParquetFile(segments[0].files[0].uri.removeprefix("file://")).num_row_groups == 2


def test_bytes_cut_too(journal: Journal) -> None:
    journal.new_writer(segment_bytes=50_000)
    a = journal.schema_of("a")
    for _ in range(4):
        journal.insert(a, 10, text="y" * 10_000)
    assert len(journal.commit()) == 4


def test_an_event_is_a_barrier_for_its_table_only(journal: Journal) -> None:
    a, b = journal.schema_of("a"), journal.schema_of("b")
    journal.insert(b, 2)
    journal.event(a.table)
    journal.insert(a, 2)
    journal.event(b.table)
    journal.insert(b, 1)
    journal.event(a.table)
    journal.event(a.table)
    segments = journal.commit()
    assert [(s.first, s.last) for s in segments] == [(0, 4), (5, 8)]
    assert [[e.sequence_num for e in s.events] for s in segments] == [[2], [5, 7, 8]]
    assert journal.numbers(a.table) == [2, 3, 4, 7, 8]
    assert journal.numbers(b.table) == [0, 1, 5, 6]


def test_a_new_shape_or_incarnation_gets_a_file_of_its_own(journal: Journal) -> None:
    a, wider = journal.schema_of("a"), journal.schema_of("a", extra=["n"])
    journal.insert(a, 2)
    journal.insert(wider, 2)
    journal.insert(wider, 2, incarnation=2)
    (segment,) = journal.commit()
    found = [(f.first, f.last, f.schema_fingerprint, f.incarnation) for f in segment.files]
    assert found == [(0, 1, a.fingerprint, 1), (2, 3, wider.fingerprint, 1), (4, 5, wider.fingerprint, 2)]
    assert journal.numbers(a.table) == list(range(6))


@pytest.mark.parametrize(
    ("key", "rows", "expected"),
    [
        (("id",), [{"op": "UPDATE", "before": {"id": 1}, "row": {"id": 1}}], False),
        (("id",), [{"op": "UPDATE", "before": {"id": 1}, "row": {"id": 2}}], True),
        (("id",), [{"op": "UPDATE", "before": None, "row": {"id": 2}}, {"op": "DELETE", "before": {"id": 1}}], False),
        (("id", "text of"), [{"op": "UPDATE", "before": {"id": 1, "c2": "a"}, "row": {"id": 1, "c2": "A"}}], True),
        (("id", "text of"), [{"op": "UPDATE", "before": {"id": 1, "c2": "a"}, "row": {"id": 1, "c2": None}}], True),
        (("id", "text of"), [{"op": "UPDATE", "before": {"id": 1, "c2": None}, "row": {"id": 1, "c2": None}}], False),
        ((), [{"op": "UPDATE", "before": {"id": 1}, "row": {"id": 2}}], False),
    ],
)
def test_key_changes_are_noticed(
    journal: Journal, key: tuple[str, ...], rows: list[dict[str, Any]], expected: bool
) -> None:
    a = journal.schema_of("a", key=key)
    journal.writer.take(5)
    plain = [{"n": 0, "row": {"id": 9, "c2": "x"}}]
    journal.writer.append(
        a, 1, journal.changes(a, plain + [{"n": n} | r for n, r in enumerate(rows, start=1)]).slice(1)
    )
    (segment,) = journal.commit()
    assert segment.files[0].has_key_changes is expected


def test_an_empty_list_of_absent_columns_is_none(journal: Journal) -> None:
    a = journal.schema_of("a")
    journal.writer.take(2)
    journal.writer.append(
        a, 1, journal.changes(a, [{"n": 0, "row": {"id": 1}, "absent": []}, {"n": 1, "row": {"id": 2}}])
    )
    (segment,) = journal.commit()
    assert segment.files[0].has_absent is False


def test_many_small_batches_become_few_row_groups(journal: Journal) -> None:
    a = journal.schema_of("a")
    batch = journal.inserts(a, range(1200))
    journal.writer.take(1200)
    for position in range(1200):
        journal.writer.append(a, 1, batch.slice(position, 1))
    (segment,) = journal.commit()
    assert pq.ParquetFile(segment.files[0].uri.removeprefix("file://")).num_row_groups == 1
    assert journal.numbers(a.table) == list(range(1200))


def test_memory_is_bounded_over_many_tables(journal: Journal) -> None:
    journal.new_writer(buffer_bytes=100_000)
    schemas = [journal.schema_of(f"t{i}") for i in range(10)]
    for _ in range(3):
        for schema in schemas:
            journal.insert(schema, 10, text="z" * 1000)
    assert sum(f.buffered_bytes for f in journal.writer._pending.drafts[-1].open_files.values()) < 100_000
    assert journal.writer.pending_bytes > 300_000
    journal.commit()
    assert all(len(journal.numbers(schema.table)) == 30 for schema in schemas)


def test_records_and_requests_go_with_the_segment(journal: Journal) -> None:
    request = journal.store.requests.add("shop", RequestKind.SNAPSHOT, {})
    record = TableRecord(table=journal.schema_of("a").table, incarnation=1, stage=Stage.SNAPSHOT)
    journal.commit(tables=[record], done_requests=[request])
    assert journal.store.tables("shop") == [record]
    assert journal.store.requests.open("shop") == []


def test_discarded_work_leaves_nothing_and_its_numbers_come_again(journal: Journal) -> None:
    a = journal.schema_of("a")
    journal.new_writer(row_group_rows=2, segment_rows=4)
    journal.insert(a, 5)
    journal.commit()
    kept = journal.files()
    journal.insert(a, 5)
    journal.insert(a, 5)
    assert len(journal.files()) > len(kept)
    journal.writer.discard()
    assert journal.files() == kept
    assert journal.insert(a, 1) == 5
    journal.commit()
    assert journal.numbers(a.table) == list(range(6))


def test_a_closed_writer_leaves_no_files(journal: Journal) -> None:
    journal.new_writer(row_group_rows=1)
    journal.insert(journal.schema_of("a"), 5)
    assert len(journal.files()) == 1
    journal.writer.close()
    journal.writer.close()
    assert journal.files() == []


def test_a_writer_of_an_older_epoch_seals_nothing(journal: Journal) -> None:
    a = journal.schema_of("a")
    old = journal.writer
    journal.insert(a, 3)
    new = journal.new_epoch()
    with pytest.raises(FencedError):
        old.commit(offset=None, source_time=None)
    assert journal.files() == []
    assert journal.store.journal.last_segment("shop") is None
    journal.writer = new
    journal.insert(a, 2)
    journal.commit()
    with pytest.raises(AssertionError):
        old.take(1)
    assert journal.numbers(a.table) == [0, 1]


def test_a_batch_of_another_layout_is_refused(journal: Journal) -> None:
    a, b = journal.schema_of("a"), journal.schema_of("a", extra=["n"])
    journal.writer.take(1)
    with pytest.raises(TableFailedError) as caught:
        journal.writer.append(b, 1, journal.inserts(a, [0]))
    assert (caught.value.error.code, caught.value.error.table) == ("wrong_layout", "public.a")


def test_misuse_of_numbers_is_caught(journal: Journal) -> None:
    a = journal.schema_of("a")
    for numbers in ([0], [5], [2, 1]):
        writer = journal.new_writer()
        writer.take(1)
        writer.append(a, 1, journal.inserts(a, [0]))
        writer.take(2)
        with pytest.raises((AssertionError, TableFailedError)):
            writer.append(a, 1, journal.inserts(a, numbers))


def test_an_unknown_replicator_has_no_writer(journal: Journal) -> None:
    with pytest.raises(ConfigError):
        JournalWriter(journal.store, name="other", epoch=1, uri=str(journal.folder), limits=writer_limits())


def test_a_full_journal_stops_before_the_seal_and_continues_when_there_is_room(journal: Journal) -> None:
    a = journal.schema_of("a")
    journal.insert(a, 100)
    (segment,) = journal.commit()
    size = segment.files[0].bytes
    journal.new_writer(bytes_max=size + 10)
    journal.insert(a, 100)
    with pytest.raises(JournalUnavailableError) as caught:
        journal.commit()
    assert caught.value.code == "journal_full"
    assert str(journal.folder) in str(caught.value)
    assert journal.store.journal.last_segment("shop") == segment
    assert len(journal.files()) == 1

    writer = journal.new_writer(bytes_max=size + 10)
    writer.commit(offset=Offset.of({"lsn": 2}), source_time=None)  # an idle source still moves on
    journal.insert(a, 1)
    journal.store.drop_segments("shop", journal.epoch, [segment.id])
    journal.commit()
    assert journal.numbers(a.table) == [100]


def test_a_full_journal_stops_in_the_midst_of_a_transaction(journal: Journal) -> None:
    journal.new_writer(row_group_rows=10, bytes_max=20_000)
    a = journal.schema_of("a")

    def write_without_end() -> None:
        for position in range(1000):
            journal.insert(a, 10, text=os.urandom(50).hex() + str(position))

    with pytest.raises(JournalUnavailableError) as caught:
        write_without_end()
    assert caught.value.code == "journal_full"
    assert journal.files() == []


def test_a_disk_that_refuses_seals_nothing_and_recovers(journal: Journal) -> None:
    a = journal.schema_of("a")
    journal.insert(a, 5)
    journal.commit()
    kept = journal.files()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal.insert(a, 5000, text=os.urandom(500).hex())
    journal.insert(a, 50, text=os.urandom(5000).hex())
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(JournalUnavailableError) as caught:
            journal.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.code == "journal_disk_full"
    assert str(journal.folder) in str(caught.value)
    assert journal.files() == kept
    journal.new_writer()
    assert journal.insert(a, 1) == 5
    journal.commit()
    assert journal.numbers(a.table) == list(range(6))


def test_a_folder_that_is_missing_is_unavailable(journal: Journal) -> None:
    journal.insert(journal.schema_of("a"), 1)
    journal.folder.rename(journal.folder.with_name("moved"))
    with pytest.raises(JournalUnavailableError) as caught:
        journal.commit()
    assert caught.value.code == "journal_unavailable"


def test_a_locked_state_store_keeps_the_files_as_they_may_be_sealed(journal: Journal, tmp_path: Path) -> None:
    store = StateStore(journal.url, busy_timeout_s=0.05)
    writer = JournalWriter(store, name="shop", epoch=journal.epoch, uri=str(journal.folder), limits=writer_limits())
    a = journal.schema_of("a")
    writer.take(1)
    writer.append(a, 1, journal.inserts(a, [0]))
    other = sqlite3.connect(tmp_path / "home" / "state.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StateUnavailableError):
        writer.commit(offset=None, source_time=None)
    other.execute("ROLLBACK")
    other.close()
    store.close()
    assert len(journal.files()) == 1
    assert journal.new_epoch().sweep() == 1
    assert journal.files() == []


def test_sweep_takes_only_orphans_of_older_epochs(journal: Journal) -> None:
    a = journal.schema_of("a")
    journal.insert(a, 1)
    journal.commit()
    sealed = journal.files()
    strangers = ["notes.parquet", "00000001-short-000001-x.parquet", "00000009-0123456789abcdef-000001-newer.parquet"]
    mine = "00000002-0123456789abcdef-000001-mine.parquet"
    orphan = "00000001-0123456789abcdef-000001-orphan.parquet"
    for name in (*strangers, mine, orphan):
        (journal.folder / name).write_bytes(b"")
    old = journal.writer
    assert journal.new_epoch().sweep() == 1
    assert journal.files() == sorted([*sealed, *strangers, mine])
    with pytest.raises(FencedError):
        old.sweep()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("point", "is_sealed"),
    [
        ("journal.segment_closed", False),
        ("journal.files_written", False),
        ("journal.before_index", False),
        ("journal.after_index", True),
    ],
)
def test_a_crash_leaves_all_or_nothing(journal: Journal, point: str, is_sealed: bool) -> None:
    journal.insert(journal.schema_of("a"), 3)
    journal.commit()
    sealed = journal.files()
    child = subprocess.run(
        [sys.executable, WRITE, journal.url, str(journal.folder), str(journal.epoch)],
        env=os.environ | {"REPLICATOR_CRASH_AT": point}, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL
    files = journal.files()
    assert len(files) > len(sealed)
    writer = journal.new_epoch()
    assert writer.next_sequence_num == (23 if is_sealed else 3)
    assert writer.sweep() == (0 if is_sealed else len(files) - len(sealed))
    assert journal.numbers(journal.schema_of("a").table) == list(range(23 if is_sealed else 3))
    assert {Path(uri).name for uri in journal.store.journal.uris("shop")} == set(journal.files())


steps = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.sampled_from("ab"), st.integers(1, 7)),
        st.tuples(st.just("event"), st.sampled_from("ab"), st.just(1)),
        st.tuples(st.just("skip"), st.just("a"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["commit", "discard", "restart"]), st.just("a"), st.just(0)),
    ),
    max_size=40,
)


@given(steps=steps)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
def test_any_schedule_gives_contiguous_segments_and_feeds_in_order(
    journal: Journal, steps: list[tuple[str, str, int]]
) -> None:
    """Against a plain list: what was committed and nothing else is in the feeds, in order; segments join; barriers hold."""
    writer = journal.new_epoch(segment_rows=5, row_group_rows=3)
    base = writer.next_sequence_num
    schemas = {name: journal.schema_of(name) for name in "ab"}
    sealed: dict[str, list[int]] = {"a": [], "b": []}
    pending: dict[str, list[int]] = {"a": [], "b": []}
    for kind, name, count in [*steps, ("commit", "a", 0)]:
        if kind == "rows":
            first = journal.insert(schemas[name], count)
            pending[name] += range(first, first + count)
        elif kind == "event":
            pending[name].append(journal.event(schemas[name].table))
        elif kind == "skip":
            journal.writer.take(count)
        elif kind == "commit":
            journal.commit()
            for table, numbers in pending.items():
                sealed[table] += numbers
        elif kind == "discard":
            journal.writer.discard()
        else:
            journal.writer.close()
            journal.new_epoch(segment_rows=5, row_group_rows=3).sweep()
        if kind in {"commit", "discard", "restart"}:
            pending = {"a": [], "b": []}
    segments = journal.store.journal.segments("shop", 0, 10_000)
    assert all(later.id > earlier.id and later.first > earlier.last for earlier, later in pairwise(segments))
    for segment in segments:
        for entry in segment.events:
            assert not any(f.table == entry.table and f.first < entry.sequence_num for f in segment.files)
    for name, numbers in sealed.items():
        assert [n for n in journal.numbers(schemas[name].table) if n >= base] == numbers
    assert {Path(f.uri).name for s in segments for f in s.files} == set(journal.files())
    assert all(isinstance(f, SegmentFile) and f.rows > 0 for s in segments for f in s.files)


def test_arrow_types_survive(journal: Journal) -> None:
    types = [
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.float32(), pa.float64(), pa.decimal128(38, 10), pa.decimal256(76, 0),
        pa.binary(), pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.list_(pa.string()),
        pa.list_(pa.list_(pa.int64())),
    ]  # fmt: skip
    columns = [Column(name=f"c{i}", type=t, source_type="x") for i, t in enumerate(types)]
    schema = TableSchema(table=TableId("s", "wide"), columns=tuple(columns))
    batch = journal.changes(schema, [{"n": 0, "row": {}}, {"n": 1, "op": "DELETE", "before": {}}])
    journal.writer.take(2)
    journal.writer.append(schema, 1, batch)
    (segment,) = journal.commit()
    (found,) = journal.reader.rows(segment.files[0])
    assert found.schema.equals(batch.schema)
    assert found.to_pylist() == batch.to_pylist()
