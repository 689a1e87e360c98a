"""Arrow's executor of the fold against the oracle: random batches, possible and impossible ones, in memory and divided on disk."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from replicator.model.events import IS_DELETED, SEQUENCE_NUM, SOURCE_TIMESTAMP
from replicator.model.merged import Merged
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.folding import needed
from replicator.plugins.kit.folding.arrow import net_changes, net_rows
from replicator.plugins.kit.folding.fold import NetChanges
from replicator.plugins.kit.folding.found import needed_columns, replacement
from replicator.plugins.kit.folding.layout import PLAIN
from replicator.plugins.kit.folding.multiset import NetRows
from replicator.plugins.kit.folding.needed import TooLargeError
from replicator.plugins.target import Batch, TableOptions
from replicator_testing.batches import RowChange, delete, insert, update, write_batch
from replicator_testing.oracle import Oracle, StoredRow
from replicator_testing.target_harness import item, items_schema

NAN = float("nan")
KEYS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "a": (pa.int64(), range(6)),
    "b": (pa.string(), ["", "a", "A", "a ", "aa"]),
    "c": (pa.binary(), [b"", b"a", b"\0"]),
}
VALUES: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "x": (pa.float64(), [0.0, -0.0, NAN, 1.5, None]),
    "y": (pa.list_(pa.float32()), [[], [0.0], [-0.0], [NAN, None], None]),
    "z": (pa.string(), ["", "a", "b", None]),
}


@dataclass
class World:
    """A random table, the oracle of it, and the rows that a target has."""

    rng: random.Random
    key: Sequence[str]
    options: TableOptions
    has_kept: bool = False
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    is_cut: bool = False

    def __post_init__(self) -> None:
        columns = [Column(name=n, type=t, source_type="") for n, (t, _) in {**KEYS, **VALUES}.items()]
        columns = [c for c in columns if c.name in self.key or c.name in VALUES or not self.key]
        kept = (Column(name="old", type=pa.string(), source_type=""),) if self.has_kept else ()
        self.schema = TableSchema(
            table=TableId("fuzz", "items"), columns=tuple(columns), key=tuple(self.key), kept=kept
        )
        self.oracle = Oracle(self.schema, self.options)
        self.rows = list[StoredRow]()
        if kept:
            for n, key in enumerate(itertools.islice(self._keys(), 0, None, 2)):
                row = {c.name: None for c in self.schema.held} | key | {"old": f"old {n}"}
                self.oracle.rows.append(StoredRow(row, 0))
            self.rows = list(self.oracle.rows)

    def changes(self, count: int, *, lacks: bool, moves: bool) -> list[RowChange]:
        """Return changes as nobody's source makes them: of rows that are not there, arrivals at keys that are taken."""
        return [replace(self._change(lacks=lacks, moves=moves), source_timestamp=self._time()) for _ in range(count)]

    def _change(self, *, lacks: bool, moves: bool) -> RowChange:
        number, row, before = next(self.numbers), self._row(), self._row()
        others = [c.name for c in self.schema.columns if c.name not in self.key]
        absent = self.rng.sample(others, self.rng.randint(1, len(others))) if lacks and self.rng.random() < 0.5 else []
        kind = self.rng.choice(["insert", "update", "delete", "read", "gone", "move", "move"])
        if not self.key:
            absent = absent if kind == "update" else []
            kind = {"read": "insert", "gone": "delete", "move": "update"}.get(kind, kind)
        match kind:
            case "insert" | "read":
                is_snapshot = kind == "read"
                return insert(number, row, is_snapshot=is_snapshot, absent=absent if is_snapshot else [])
            case "delete" | "gone":
                return delete(number, before, is_snapshot=kind == "gone" and bool(self.key))
            case "move" if moves:
                return update(number, row, before=before, absent=absent)
        same = self.rng.random() < 0.3 or not self.key
        return update(number, row, before=(row if self.key else before) if same else None, absent=absent)

    def _row(self) -> dict[str, Any]:
        values = {**KEYS, **VALUES}
        return {c.name: self.rng.choice(values[c.name][1]) for c in self.schema.columns}

    def _keys(self) -> Iterator[dict[str, Any]]:
        for values in itertools.product(*(KEYS[name][1] for name in self.key)):
            yield dict(zip(self.key, values, strict=True))

    def _time(self) -> datetime:
        return datetime(2024, 2, 29, tzinfo=UTC) + timedelta(microseconds=self.rng.randrange(10**9))

    def check(self, batch: Batch, changes: Sequence[RowChange], *, spills: bool) -> None:
        """Apply a batch to both, and compare."""
        self.is_cut = False
        counts = self._merge(batch, spills=spills) if self.key else self._balance(batch, spills=spills)
        wanted = self.oracle.apply(changes, expects_rows=batch.expects_rows)
        assert self.outcome(self.rows) == self.outcome(self.oracle.rows)
        # Of what is cut into earlier and later changes, the counts are those of two batches.
        assert self.is_cut or counts == wanted

    def _merge(self, batch: Batch, *, spills: bool) -> Merged:
        counts, seen = Merged(), list[Any]()
        for net in net_changes(batch, self.options, PLAIN, spills=spills, with_key_columns=True):
            keys = list(zip(*(column.to_pylist() for column in net.key_columns), strict=True))
            assert len(keys) == len(set(keys)) == len(net.keys)
            at = {key: n for n, key in enumerate(keys)}
            found = [(at[key], row) for row in self.rows if (key := self._key(row)) in at]
            names = needed_columns(net, self.options)
            all_rows = [{**row.values, IS_DELETED: row.is_deleted} for _, row in found]
            types = pa.schema([net.rows.schema.field(name) for name in names])
            table = pa.table({name: [row[name] for row in all_rows] for name in names}, schema=types)
            positions = pa.array([n for n, _ in found], pa.int64()).to_numpy()
            rows, part = replacement(net, positions, table, self.options, expects_rows=batch.expects_rows)
            self.rows = [row for row in self.rows if self._key(row) not in at] + [
                self._stored(row) for row in rows.to_pylist()
            ]
            counts += part
            seen += keys
        self.is_cut = len(seen) > len(set(seen))
        return counts

    def _balance(self, batch: Batch, *, spills: bool) -> Merged:
        counts, seen = Merged(), list[str]()
        for net in net_rows(batch, self.options, PLAIN, spills=spills):
            counts += self._remove(net, expects_rows=batch.expects_rows)
            touched = {self._text(row) for row in [*net.added.to_pylist(), *net.removed.to_pylist()]}
            seen += touched
        self.is_cut = len(seen) > len(set(seen))
        return counts

    def _remove(self, net: NetRows, *, expects_rows: bool) -> Merged:
        removed = net.removed.to_pylist()
        assert len({self._text(row) for row in removed}) == len(removed)
        deleted = 0
        for row, times in zip(removed, net.times.tolist(), strict=True):
            equal = [r for r in self.rows if self._text(r.values) == self._text(row)]
            newest = sorted(equal, key=lambda r: -r.sequence_num)[:times]
            self.rows = [r for r in self.rows if not any(r is other for other in newest)]
            deleted += len(newest)
        self.rows += [self._stored(row) for row in net.added.to_pylist()]
        missing = int(net.times.sum()) - deleted
        return Merged(inserted=net.added.num_rows, deleted=deleted, not_found=missing if expects_rows else 0)

    def outcome(self, rows: Sequence[StoredRow]) -> list[str]:
        """Return everything that a table has."""
        return sorted(repr(self._told(row)) for row in rows)

    def _told(self, row: StoredRow) -> tuple[Any, ...]:
        time = row.source_timestamp if self.options.source_timestamp else None
        values = [row.values.get(column.name) for column in self.schema.held]
        return (*values, row.sequence_num, row.is_deleted, None if time is None else time.isoformat())

    def _key(self, row: StoredRow) -> tuple[Any, ...]:
        return tuple(row.values[name] for name in self.key)

    def _text(self, row: Any) -> str:
        return repr([row[c.name] for c in self.schema.columns])

    def _stored(self, row: dict[str, Any]) -> StoredRow:
        return StoredRow(
            {c.name: row.get(c.name) for c in self.schema.held},
            row[SEQUENCE_NUM],
            is_deleted=row.get(IS_DELETED, False),
            source_timestamp=row.get(SOURCE_TIMESTAMP),
        )


def run(folder: Path, seed: int, batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply random batches to one random table."""
    rng = random.Random(seed)
    key = rng.choice([("a",), ("b",), ("a", "b"), ("c", "a"), ("b", "c"), ()])
    deletes: Literal["hard", "soft"] = rng.choice(["hard", "soft"]) if key else "hard"
    options = TableOptions(deletes=deletes, source_timestamp=rng.random() < 0.5)
    has_kept = bool(key) and rng.random() < 0.3
    world, before, last = World(rng, key, options, has_kept), list[RowChange](), -1
    for _ in range(batches):
        lacks, moves = rng.random() < 0.6, rng.random() < 0.7
        changes = world.changes(rng.randint(1, 40), lacks=lacks, moves=moves)
        # A batch may begin in files of which the first changes are applied.
        batch = write_batch(
            folder,
            world.schema,
            [*before, *changes],
            skip_to=last,
            files=rng.randint(1, 3),
            expects_rows=rng.random() < 0.7,
        )
        spills = rng.random() < 0.5 and not has_kept
        monkeypatch.setattr(needed, "BYTES_MAX", rng.choice([500, 2_000, 4_000]) if spills else 1 << 28)
        world.check(batch, changes, spills=spills)
        before, last = changes[-rng.randint(0, 2) :] if rng.random() < 0.2 else [], changes[-1].sequence_num
        for file in folder.iterdir():
            file.unlink()


@pytest.mark.parametrize("seed", range(12))
def test_random_batches_equal_the_oracle(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, seed, 12, monkeypatch)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_twenty_thousand_random_batches_equal_the_oracle(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in range(10):
        run(tmp_path, seed * 10 + table, 20, monkeypatch)


# -- what does not fit into memory --------------------------------------------------------------------------------------


def parts_of(
    folder: Path, changes: Sequence[RowChange], monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> list[NetChanges]:
    batch = write_batch(folder, items_schema(), changes, files=3)
    assert len(list(net_changes(batch, TableOptions(), PLAIN))) == 1
    monkeypatch.setattr(needed, "BYTES_MAX", bytes_max)
    with pytest.raises(TooLargeError):
        list(net_changes(batch, TableOptions(), PLAIN, spills=False))
    return list(net_changes(batch, TableOptions(), PLAIN))


def keys(net: NetChanges) -> set[int]:
    return set(net.keys.to_pylist())


def test_no_key_is_in_two_parts_and_the_halves_of_a_moved_row_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [update(n, item(n + 1000, "a"), before=item(n)) for n in range(500)]
    parts = parts_of(tmp_path, changes, monkeypatch, 30_000)
    assert len(parts) > 3
    assert sum(len(net.keys) for net in parts) == 1000
    assert set().union(*map(keys, parts)) == {*range(500), *range(1000, 1500)}
    assert not all({key + 1000 for key in keys(net) if key < 500} <= keys(net) for net in parts)
    for net in parts:
        removed = dict(zip(net.keys.to_pylist(), net.is_removed.tolist(), strict=True))
        expects = dict(zip(net.keys.to_pylist(), net.expects.tolist(), strict=True))
        assert all(removed[key] == expects[key] == (key < 1000) for key in removed)
        assert net.rows["id"].to_pylist() == [key for key in net.keys.to_pylist() if key >= 1000]


def test_keys_that_partial_rows_link_are_in_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = list(range(300))
    random.Random(1).shuffle(order)
    numbers = itertools.count()
    steps = ((start, step) for step in range(4) for start in order)
    changes = [
        update(next(numbers), item(10 * start + step + 1, "a"), before=item(10 * start + step), absent=["note"])
        for start, step in steps
    ]
    parts = parts_of(tmp_path, changes, monkeypatch, 30_000)
    assert len(parts) > 3
    for net in parts:
        starts = {key // 10 for key in keys(net)}
        assert keys(net) == {10 * start + step for start in starts for step in range(5)}
        origins = [net.keys[int(n)].as_py() for n in net.origin]
        assert origins == [key - 4 for key in net.rows["id"].to_pylist()]


def test_changes_of_one_key_that_do_not_fit_are_cut_into_earlier_and_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [update(n, item(1, f"name {n}")) for n in range(1000)]
    parts = parts_of(tmp_path, changes, monkeypatch, 20_000)
    assert len(parts) > 2
    numbers = [net.rows["_sequence_num"].to_pylist() for net in parts]
    assert [len(part) for part in numbers] == [1] * len(parts)
    assert numbers == sorted(numbers)
    assert numbers[-1] == [999]


def test_rows_to_append_come_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [insert(n, item(n, "a" * 100), is_snapshot=True) for n in range(300)]
    batch = write_batch(tmp_path, items_schema(), changes, files=10, is_append=True)
    monkeypatch.setattr(needed, "BYTES_MAX", 10_000)
    parts = list(net_changes(batch, TableOptions(), PLAIN))
    assert all(net.is_append and not len(net.keys) for net in parts)
    assert [n for net in parts for n in net.rows["id"].to_pylist()] == list(range(300))
    assert len(parts) > 5


def test_what_a_part_takes_of_memory_does_not_grow_with_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [update(n, item(n % 9000, "a" * 200, note="b" * 200)) for n in range(20_000)]
    batch = write_batch(tmp_path, items_schema(), changes, files=40)
    monkeypatch.setattr(needed, "BYTES_MAX", 1 << 20)
    pool, most = pa.default_memory_pool(), 0
    before = pool.bytes_allocated()
    for _ in net_changes(batch, TableOptions(), PLAIN):
        most = max(most, pool.bytes_allocated() - before)
    assert most < 4 << 20, "of 9 MiB of changes"
