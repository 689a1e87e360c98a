"""Explores small schedules of a source, its log, reads and crashes on the very window class, and plants faults that must be found.

The model: transactions of one change each over keys 1 to 3 and the columns `a` and `b`. Committing appends to the log;
    *later*, in any order, the transaction
becomes visible. Who wants to change a key waits until the key's last change is visible, which is the one thing that the
window relies on. A read sees the visible state, puts its mark into the log and is handed to the window at once or as
late as possible. A
crash goes back to what was sealed: either now or at
the last emission. When all choices are used up the schedule is brought to its end without further choices, and the
target, folded column by column in the order of sequence numbers, must equal the source.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from replicator.capture.snapshots.progress import (
    Reading,
    ReadingKind,
    after_chunk,
    is_complete,
    next_reading,
    start_over,
    with_moves,
)
from replicator.capture.window import Move, Read, RowVerdict, Window
from replicator.model.events import DDLEvent, DDLOperation, SnapshotKind, change_schema
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import TRANSACTION_SCHEMA, LogBatch, Seen, TableChanges, Visibility
from replicator.state.records import SnapshotProgress
from replicator_testbed.journals.captured import PublishedWindow

TABLE = TableId("public", "t")
SCHEMA = TableSchema(
    table=TABLE,
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="a", type=pa.int64(), source_type="bigint"),
        Column(name="b", type=pa.int64(), source_type="bigint"),
    ),
    key=("id",),
)
CHANGES = change_schema(SCHEMA)
MOMENT = datetime(2024, 1, 1, tzinfo=UTC)
KEYS = (1, 2, 3)
START = {1: (10, 11), 2: (20, 21)}

State = dict[int, tuple[int, int]]
# ("insert", key) ("update", key) ("partial", key) ("delete", key) ("move", key, key) ("partial_move", key, key)
# ("truncate",)
Op = tuple[Any, ...]


@dataclass(frozen=True)
class Saw(Visibility):
    """The read saw these transactions."""

    ids: frozenset[int]

    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        return pa.array(
            [int(Seen.SEEN if int(i) in self.ids else Seen.UNSEEN) for i in transaction_ids.to_pylist()], pa.int8()
        )


@dataclass(frozen=True)
class Transaction:
    """One committed change: what the log carries of it, and what it does to the source."""

    id: int
    op: Op
    value: int

    @property
    def keys(self) -> frozenset[int]:
        return frozenset(KEYS) if self.op[0] == "truncate" else frozenset(self.op[1:])

    def apply(self, state: State) -> State:
        kind, *keys = self.op
        after = dict(state)
        if kind == "truncate":
            return {}
        row = after.pop(keys[0], (0, 0))
        if kind in ("insert", "update"):
            after[keys[0]] = (self.value, self.value + 1)
        elif kind == "partial":
            after[keys[0]] = (self.value, row[1])
        elif kind == "move":
            after[keys[1]] = (self.value, self.value + 1)
        elif kind == "partial_move":
            after[keys[1]] = (self.value, row[1])
        return after

    def change(self) -> dict[str, Any]:
        """As the source decodes it."""
        kind, *keys = self.op
        change: dict[str, Any] = {
            "_sequence_num": 0, "_operation": "UPDATE", "_is_snapshot": False, "_source_timestamp": MOMENT,
            "_transaction_id": str(self.id), "_absent": None, "before": None, "row": None,
        }  # fmt: skip
        if kind == "delete":
            return change | {"_operation": "DELETE", "before": {"id": keys[0]}}
        if kind == "insert":
            change["_operation"] = "INSERT"
        if kind in ("move", "partial_move"):
            change["before"] = {"id": keys[0]}
        change["row"] = {"id": keys[-1], "a": self.value, "b": self.value + 1}
        if kind in ("partial", "partial_move"):
            change["row"]["b"] = None
            change["_absent"] = ["b"]
        return change


@dataclass(frozen=True)
class Mark:
    read: int


Emitted = tuple[int, dict[str, Any]]
"""A number and a change, or an event: {"event": "truncate"}, {"event": "complete", "start": N}."""


@dataclass(frozen=True)
class Faults:
    """What is planted."""

    make_window: Callable[..., Window] = Window
    forget_ring: bool = False
    start_at_next: bool = False
    forget_keys: bool = False
    forget_chains: bool = False
    """Once the ranges are done, a change of key leads to no other reading."""
    forget_unseen: bool = False
    """A range that did not see a change of key leads to no other reading, as if the key were always on the list."""


@dataclass(frozen=True)
class Waiting:
    """A read on its way: made, perhaps already in the window."""

    number: int
    reading: Reading
    rows: tuple[tuple[int, int, int], ...]
    saw: frozenset[int]


@dataclass(frozen=True)
class Durable:
    """What a crash leaves."""

    delivered: int
    ring: tuple[str, ...]
    progress: SnapshotProgress | None
    target: tuple[Emitted, ...]
    next_number: int
    is_repaired: bool


def fork(window: Window) -> Window:
    """An independent window with the same contents; the columns are shared."""
    twin = object.__new__(type(window))
    twin.__dict__.update(window.__dict__)
    twin._fresh = list(window._fresh)
    twin._watched, twin._known_from = dict(window._watched), dict(window._known_from)
    twin._touches, twin._sets = dict(window._touches), dict(window._sets)
    twin._readers = replace(window._readers, seen=dict(window._readers.seen))
    twin._reads = [replace(r, states=r.states.copy(), unsettled=list(r.unsettled)) for r in window._reads]
    return twin


@dataclass
class World:
    """One moment in one schedule."""

    faults: Faults
    chunk_rows: int
    is_in_place: bool
    is_recreated: bool
    ops_left: int
    reads_left: int
    crashes_left: int
    keys_max: int | None = None
    asked: tuple[int, ...] = ()
    """Keys of a target that is damaged: their rows are read again. Of all of them at any time, of some before anything happens."""
    is_repaired: bool = False
    state: State = field(default_factory=lambda: dict(START))
    visible: frozenset[int] = frozenset()
    hidden: tuple[Transaction, ...] = ()
    next_id: int = 1
    log: tuple[Transaction | Mark, ...] = ()
    delivered: int = 0
    window: Window = field(default_factory=Window)
    progress: SnapshotProgress | None = None
    target: tuple[Emitted, ...] = ()
    next_number: int = 0
    made: tuple[Waiting, ...] = ()
    is_reversed: bool = False
    """Of two reads that the window does not have yet, it gets the later one first."""
    readers: dict[int, int] = field(default_factory=dict)
    """The window's numbers of the reads' readers."""
    added: dict[int, int] = field(default_factory=dict)
    """The reads that the window has, by their numbers, with the order in which it got them."""
    next_read: int = 0
    durable: Durable | None = None
    trace: tuple[str, ...] = ()

    def begin(self) -> World:
        self.window = self.faults.make_window()
        if self.asked:
            # Another value, a row that is missing, and one that is too much.
            rows = {key: row for key, row in {1: (90, 91), 3: (92, 93)}.items() if key in self.asked}
            self.target = tuple((i, insert(key, row)) for i, (key, row) in enumerate(rows.items()))
            self.next_number = len(self.target)
            if self.asked != KEYS:
                self.start_snapshot()
        elif self.is_in_place:
            # An earlier copy, with a row that the source lost without a trace in the log.
            rows = {**START, 3: (90, 91)}
            self.target = tuple((i, insert(key, row)) for i, (key, row) in enumerate(rows.items()))
            self.next_number = len(self.target)
            if self.is_recreated:
                # Its snapshot runs already, and is asked for once more: its keys are being remembered.
                self.window.watch(SCHEMA)
        else:
            self.start_snapshot()
        self.seal()
        return self

    def fork(self, note: str) -> World:
        copy = replace(self)
        copy.window = fork(self.window)
        copy.added, copy.readers = dict(self.added), dict(self.readers)
        copy.trace = (*self.trace, note)
        return copy

    # --- steps --------------------------------------------------------------------------------------------------

    def commit(self, op: Op) -> None:
        keys = Transaction(0, op, 0).keys
        for blocker in [t for t in self.hidden if t.keys & keys]:
            self.show(blocker)
        transaction = Transaction(self.next_id, op, 100 * self.next_id)
        self.next_id += 1
        self.ops_left -= 1
        self.hidden = (*self.hidden, transaction)
        self.log = (*self.log, transaction)

    def show(self, transaction: Transaction) -> None:
        self.state = transaction.apply(self.state)
        self.visible |= {transaction.id}
        self.hidden = tuple(t for t in self.hidden if t is not transaction)

    def start_snapshot(self) -> None:
        self.progress = SnapshotProgress()
        if self.asked:
            keys = tuple((str(key),) for key in self.asked)
            self.progress = SnapshotProgress(kind=SnapshotKind.KEYS, ranges=(), keys=keys)
        elif self.is_in_place:
            start = self.next_number if self.faults.start_at_next else self.window.start_number(self.next_number)
            self.progress = SnapshotProgress(kind=SnapshotKind.IN_PLACE, start_number=start)
        self.window.watch(SCHEMA)

    def is_due(self) -> bool:
        """Whether rows are to be read, and that has not begun."""
        if self.progress is not None:
            return False
        if self.asked:
            return not self.is_repaired
        return self.is_in_place and not any(e[1].get("event") == "complete" for e in self.target)

    def read(self) -> None:
        reading = self.next_reading()
        assert reading is not None
        if reading.kind is ReadingKind.KEYS:
            wanted = [int(k[0]) for k in reading.keys]
            rows = [(k, *v) for k, v in sorted(self.state.items()) if k in wanted]
        else:
            after = int(reading.after[0]) if reading.after else 0
            rows = [(k, *v) for k, v in sorted(self.state.items()) if k > after][: self.chunk_rows]
        self.readers[self.next_read] = self.window.begin_reading()
        self.made = (*self.made, Waiting(self.next_read, reading, tuple(rows), self.visible))
        self.log = (*self.log, Mark(self.next_read))
        self.next_read += 1

    def next_reading(self) -> Reading | None:
        """What a reader that runs ahead of the emission reads next."""
        progress = self.progress
        if progress is None:
            return None
        for waiting in self.made:
            if waiting.reading.kind is ReadingKind.KEYS:
                return None
            progress = advanced(progress, waiting, ())
        return next_reading(progress, SCHEMA, self.chunk_rows)

    def add(self) -> None:
        """Hand over the oldest read that the window does not have yet, or the newest."""
        waiting = [w for w in self.made if w.number not in self.added][-1 if self.is_reversed else 0]
        columns = list(zip(*waiting.rows, strict=True)) or [(), (), ()]
        rows = pa.RecordBatch.from_arrays(
            [pa.array(c, pa.int64()) for c in columns], schema=pa.schema(list(SCHEMA.row_type))
        )
        asked = waiting.reading.keys if waiting.reading.deletes_missing else ()
        reader = self.readers[waiting.number]
        self.window.add_chunk(SCHEMA, rows, Saw(waiting.saw), reader=reader, asked=asked)
        self.window.end_reading(reader)
        self.added[waiting.number] = len(self.added)

    def deliver(self) -> None:
        entry = self.log[self.delivered]
        self.delivered += 1
        if isinstance(entry, Mark):
            self.reach(entry)
        else:
            self.deliver_transaction(entry)

    def deliver_transaction(self, transaction: Transaction) -> None:
        number = self.next_number
        self.next_number += 1
        ends = pa.RecordBatch.from_pylist(
            [{"id": str(transaction.id), "end_ordinal": 1, "committed_at": MOMENT}], schema=TRANSACTION_SCHEMA
        )
        if transaction.op[0] == "truncate":
            batch = LogBatch(
                open_transaction=None,
                ddl=[DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=TABLE)],
                events=1,
                transactions=ends,
            )
            self.target = (*self.target, (number, {"event": "truncate"}))
        else:
            change = transaction.change()
            rows = pa.RecordBatch.from_pylist([change], schema=CHANGES)
            batch = LogBatch(
                open_transaction=None, changes=[TableChanges(schema=SCHEMA, rows=rows)], events=1, transactions=ends
            )
            self.target = (*self.target, (number, change))
        moves = self.window.deliver(batch, number).get(TABLE, ())
        if moves and self.progress is not None and not self.faults.forget_keys:
            is_read = all(part.is_done for part in self.progress.ranges)
            if not (is_read and self.faults.forget_chains):
                before, self.progress = self.progress, with_moves(self.progress, moves, self.keys_max)
                if self.progress is not before and not self.progress.keys:
                    self.lose()
        self.after_verdicts()

    def reach(self, mark: Mark) -> None:
        while any(w.number == mark.read and w.number not in self.added for w in self.made):
            self.add()
        self.after_verdicts()
        waiting = next((w for w in self.made if w.number == mark.read), None)
        if waiting is None:
            return
        assert waiting is self.made[0], "reads are emitted in their order"
        assert self.progress is not None
        order = sorted((w.number for w in self.made if w.number in self.added), key=self.added.__getitem__)
        read = self.window.reads[order.index(waiting.number)]
        rows = self.window.emit(read)
        emitted = [(self.next_number + i, row) for i, row in enumerate(rows.to_pylist())]
        self.target = (*self.target, *emitted)
        self.next_number += len(emitted)
        self.made = self.made[1:]
        is_forgotten = self.faults.forget_keys or (
            self.faults.forget_unseen and waiting.reading.kind is ReadingKind.RANGE
        )
        self.progress = advanced(self.progress, waiting, () if is_forgotten else tuple(read.unsettled))
        if is_complete(self.progress):
            if self.asked:
                self.is_repaired = True
            else:
                end = {"event": "complete", "start": self.progress.start_number}
                self.target = (*self.target, (self.next_number, end))
                self.next_number += 1
            self.progress = None
            self.window.unwatch(TABLE)
        self.seal()

    def after_verdicts(self) -> None:
        """A lost read takes those with it that were made ahead of it."""
        verdicts = {r.verdict for r in self.window.reads}
        if verdicts <= {RowVerdict.GOOD}:
            return
        if RowVerdict.START_OVER in verdicts:
            assert self.progress is not None
            self.progress = start_over(self.progress)
        self.lose()

    def lose(self) -> None:
        for read in self.window.reads:
            self.window.drop(read)
        for waiting in self.made:
            if waiting.number not in self.added:
                self.window.end_reading(self.readers[waiting.number])
        self.made = ()

    def seal(self) -> None:
        self.window.prune(Saw(self.visible))
        self.durable = Durable(
            self.delivered,
            tuple(self.window.ring_texts()),
            self.progress,
            self.target,
            self.next_number,
            self.is_repaired,
        )

    def crash(self) -> None:
        durable = self.durable
        assert durable is not None
        self.crashes_left -= 1
        self.delivered, self.progress, self.target, self.next_number = (
            durable.delivered,
            durable.progress,
            durable.target,
            durable.next_number,
        )
        self.made, self.added, self.is_repaired = (), {}, durable.is_repaired
        self.window = self.faults.make_window(() if self.faults.forget_ring else durable.ring)
        if self.progress is not None:
            self.window.watch(SCHEMA)

    def fingerprint(self) -> Any:
        """Equal for schedules that cannot differ from here on."""
        return (
            tuple(sorted(self.state.items())), self.visible, self.hidden, self.log[self.delivered :], self.delivered,
            self.progress, repr(self.target), self.next_number, self.made, tuple(self.added), repr(self.durable),
            self.ops_left, self.reads_left, self.crashes_left, self.next_id, self.is_repaired, remembered(self.window),
        )  # fmt: skip

    # --- schedules ----------------------------------------------------------------------------------------------

    def choices(self, ops: Sequence[str]) -> Iterator[World]:
        if self.ops_left:
            for op in possible(self.state_of_writers(), ops):
                nxt = self.fork(f"commit {op}")
                nxt.commit(op)
                yield nxt
        if self.is_due():
            nxt = self.fork("start to read")
            nxt.start_snapshot()
            nxt.seal()
            yield nxt
        if self.reads_left and len(self.made) < 2 and self.next_reading() is not None:
            for shown in subsets(self.hidden):
                for lazily in (False, True):
                    nxt = self.fork(
                        f"read seeing also {[t.id for t in shown]}" + (", handed over late" if lazily else "")
                    )
                    for transaction in shown:
                        nxt.show(transaction)
                    nxt.reads_left -= 1
                    nxt.read()
                    if not lazily:
                        while any(w.number not in nxt.added for w in nxt.made):
                            nxt.add()
                        nxt.after_verdicts()
                    yield nxt
        if self.delivered < len(self.log):
            nxt = self.fork(f"deliver {self.log[self.delivered]}")
            nxt.deliver()
            yield nxt
        if self.crashes_left and self.trace and not self.trace[-1].startswith("crash"):
            nxt = self.fork("crash, back to the last emission")
            nxt.crash()
            yield nxt
            if self.durable is not None and self.durable.delivered != self.delivered:
                nxt = self.fork("crash right after a seal")
                nxt.seal()
                nxt.crash()
                yield nxt

    def state_of_writers(self) -> State:
        state = self.state
        for transaction in self.hidden:
            state = transaction.apply(state)
        return state

    def finish(self) -> None:
        """Everything becomes visible, is delivered, read and emitted."""
        if self.is_due():
            self.start_snapshot()
        for _ in range(100):
            while self.delivered < len(self.log):
                self.deliver()
            for transaction in self.hidden:
                self.show(transaction)
            if self.progress is None:
                return
            self.read()
        raise AssertionError("the snapshot does not end: " + "; ".join(self.trace))

    def wrong(self) -> str | None:
        found = fold(self.target)
        if found == self.state:
            return None
        return f"target {found}, source {self.state}: " + "; ".join(self.trace)


def remembered(window: Window) -> Any:
    """What a window knows, whatever the serials are."""
    ring = window._joined()
    ids = dict(zip(ring.serials.tolist(), ring.ids.to_pylist(), strict=True))
    known_from = window._known_from.get(TABLE, 0)
    touches = [
        (ids.get(serial), key, lacks)
        for part in window._touches.get(TABLE, ())
        for serial, key, lacks in zip(part.serials.tolist(), part.keys.to_pylist(), part.lacks.tolist(), strict=True)
    ]
    moves = [m for part in window._touches.get(TABLE, ()) for m in part.moves]
    truncates = [ids.get(serial) for serial, _ in window._truncates]
    reads = [(r.verdict, r.states.tobytes(), tuple(r.unsettled), repr(r.visibility)) for r in window._reads]
    unknown = [id_ for serial, id_ in ids.items() if serial < known_from]
    return repr(
        (
            window.ring_texts(),
            touches,
            moves,
            truncates,
            reads,
            unknown,
            list(window._readers.seen.values()),
            TABLE in window._watched,
        )
    )


def advanced(progress: SnapshotProgress, waiting: Waiting, unsettled: tuple[tuple[str, ...], ...]) -> SnapshotProgress:
    cursor = (str(waiting.rows[-1][0]),) if waiting.rows else None
    is_last = len(waiting.rows) < waiting.reading.limit
    return after_chunk(
        progress, waiting.reading, cursor=cursor, is_last=is_last, rows=len(waiting.rows), unsettled=unsettled
    )


def insert(key: int, row: tuple[int, int]) -> dict[str, Any]:
    return {"_operation": "INSERT", "_absent": None, "before": None, "row": {"id": key, "a": row[0], "b": row[1]}}


def fold(target: Sequence[Emitted]) -> dict[int, tuple[Any, Any]]:
    """Column by column the last value that was sent, by sequence number.

    What a change of key lacks comes from the row at the old key.
    """
    rows: dict[int, dict[str, Any]] = {}
    numbers: dict[int, int] = {}
    for number, change in target:
        if change.get("event") == "truncate":
            rows, numbers = {}, {}
        elif change.get("event") == "complete":
            if change["start"] is not None:
                rows = {k: v for k, v in rows.items() if numbers[k] >= change["start"]}
        elif change["_operation"] == "DELETE":
            rows.pop(change["before"]["id"], None)
        else:
            after, key = change["row"], change["row"]["id"]
            origin = change["before"]["id"] if change["before"] else key
            base = rows.pop(origin, {})
            absent = change["_absent"] or []
            rows[key] = {c: base.get(c) if c in absent else after[c] for c in ("a", "b")}
            numbers[key] = number
    return {k: (v["a"], v["b"]) for k, v in rows.items()}


def possible(state: State, kinds: Sequence[str]) -> Iterator[Op]:
    free = [k for k in KEYS if k not in state]
    if "insert" in kinds:
        yield from (("insert", k) for k in free)
    for key in sorted(state):
        yield from ((kind, key) for kind in ("update", "partial", "delete") if kind in kinds)
        yield from ((kind, key, to) for kind in ("move", "partial_move") if kind in kinds for to in free)
    if "truncate" in kinds:
        yield ("truncate",)


def subsets(transactions: Sequence[Transaction]) -> Iterator[list[Transaction]]:
    for bits in range(1 << len(transactions)):
        yield [t for i, t in enumerate(transactions) if bits >> i & 1]


@dataclass(frozen=True)
class Scope:
    """How much is explored."""

    ops: int
    reads: int
    crashes: int
    chunk_rows: int = 2
    is_in_place: bool = False
    is_recreated: bool = False
    keys_max: int | None = None
    asked: tuple[int, ...] = ()
    is_reversed: bool = False
    kinds: tuple[str, ...] = ("insert", "update", "partial", "delete", "move", "partial_move", "truncate")


@dataclass
class Count:
    schedules: int = 0
    steps: int = 0


def explore(scope: Scope, faults: Faults = Faults(), limit: int | None = None) -> tuple[Count, str | None]:
    """Run every schedule of the scope, depth first; return at the first wrong one."""
    count = Count()
    stack = [make(scope, faults)]
    known: set[Any] = set()
    while stack:
        world = stack.pop()
        if (fingerprint := world.fingerprint()) in known:
            continue
        known.add(fingerprint)
        nexts = list(world.choices(scope.kinds))
        count.steps += len(nexts)
        if not [n for n in nexts if not n.trace[-1].startswith("crash")]:
            count.schedules += 1
            if wrong := ended(world):
                return count, wrong
        stack.extend(nexts)
        if limit is not None and count.schedules >= limit:
            break
    return count, None


def sample(scope: Scope, faults: Faults, seed: int, schedules: int) -> tuple[Count, str | None]:
    """Random walks through the same choices."""
    rng = random.Random(seed)
    count = Count()
    for _ in range(schedules):
        world = make(scope, faults)
        while nexts := list(world.choices(scope.kinds)):
            world = rng.choice(nexts)
            count.steps += 1
            if rng.random() < 0.03:
                break
        count.schedules += 1
        if wrong := ended(world):
            return count, wrong
    return count, None


def make(scope: Scope, faults: Faults) -> World:
    world = World(
        faults=faults, chunk_rows=scope.chunk_rows, is_in_place=scope.is_in_place, is_recreated=scope.is_recreated,
        ops_left=scope.ops, reads_left=scope.reads, crashes_left=scope.crashes, keys_max=scope.keys_max,
        asked=scope.asked, is_reversed=scope.is_reversed,
    )  # fmt: skip
    return world.begin()


def ended(world: World) -> str | None:
    last = world.fork("end")
    last.finish()
    return last.wrong()


# --- planted faults
# -------------------------------------------------------------------------------------------------------


class AfterKeyOnly(Window):
    """Takes no notice of the key that a row had before."""

    def deliver(self, batch: LogBatch, base: int) -> Mapping[TableId, Sequence[Move]]:
        return super().deliver(changed(batch, {"before": None}, only="UPDATE"), base)


class TruncateIgnored(Window):
    """Takes no notice of TRUNCATE."""

    def deliver(self, batch: LogBatch, base: int) -> Mapping[TableId, Sequence[Move]]:
        return super().deliver(replace(batch, ddl=()), base)


class AbsentIsNull(Window):
    """Takes a row that lacks columns for a whole one."""

    def deliver(self, batch: LogBatch, base: int) -> Mapping[TableId, Sequence[Move]]:
        return super().deliver(changed(batch, {"_absent": None}), base)


class NeverCut(Window):
    """Leaves the read's row alone when a change lacks columns."""

    def deliver(self, batch: LogBatch, base: int) -> Mapping[TableId, Sequence[Move]]:
        partial = [
            c
            for c in batch.changes
            if c.rows.column("_absent").null_count == 0 and c.rows.column("before").null_count == 1
        ]
        return super().deliver(replace(batch, changes=[c for c in batch.changes if c not in partial]), base)


class MissingStaysWhatItWas(Window):
    """Asks nobody about keys without a row."""

    def add_chunk(self, *arguments: Any, asked: Sequence[Any] = (), **more: Any) -> Read:
        return super().add_chunk(*arguments, **more)


class MissingIsDeleted(Window):
    """Deletes the row of a key that had none, though a change that the read did not see has made it since."""

    def emit(self, read: Read) -> pa.RecordBatch:
        assert read.rows is not None
        read.states[read.rows.num_rows :] = 1
        return super().emit(read)


class PrunedInOrder(Window):
    """Believes that reads are handed over in the order in which they were made."""

    def _prune(self, visibility: Visibility) -> None:
        seen, self._readers.seen = self._readers.seen, {}
        super()._prune(visibility)
        self._readers.seen = seen


class UnknownKeysAreNoKeys(Window):
    """Believes that a transaction whose keys were not recorded touched nothing."""

    def watch(self, schema: TableSchema) -> None:
        super().watch(schema)
        self._known_from[schema.table] = 0


def changed(batch: LogBatch, values: Mapping[str, Any], only: str | None = None) -> LogBatch:
    changes = [
        replace(
            c,
            rows=pa.RecordBatch.from_pylist(
                [r | values if only in (None, r["_operation"]) else r for r in c.rows.to_pylist()], schema=CHANGES
            ),
        )
        for c in batch.changes
    ]
    return replace(batch, changes=changes)


ONE = Scope(ops=1, reads=2, crashes=0)
ONE_CRASH = Scope(ops=1, reads=2, crashes=1)
ONE_REVERSED = Scope(ops=1, reads=2, crashes=0, is_reversed=True)
ONE_IN_PLACE = Scope(ops=1, reads=2, crashes=1, is_in_place=True)
ONE_RECREATED = Scope(ops=1, reads=2, crashes=0, is_in_place=True, is_recreated=True)
TWO = Scope(ops=2, reads=1, crashes=0)
SEVERAL = Scope(ops=3, reads=3, crashes=1)
SEVERAL_IN_PLACE = replace(SEVERAL, is_in_place=True)
SMALL_CHUNKS = Scope(ops=2, reads=3, crashes=1, chunk_rows=1)
TOO_MANY_KEYS = Scope(ops=2, reads=2, crashes=0, keys_max=0, kinds=("partial_move",))

REPAIR = Scope(ops=1, reads=3, crashes=1, asked=KEYS)
REPAIR_OF_SOME = Scope(
    ops=2, reads=2, crashes=0, chunk_rows=1, asked=(1, 2), kinds=("partial", "partial_move", "insert")
)
SEVERAL_IN_REPAIR = replace(SEVERAL, asked=KEYS)

BOUNDED = {
    "one change, two reads, a crash": ONE_CRASH,
    "the same in place": ONE_IN_PLACE,
    "two reads, the later one first": ONE_REVERSED,
    "in place, asked for again": ONE_RECREATED,
    "more keys than may be listed": TOO_MANY_KEYS,
    "rows are read again": REPAIR,
}
THOROUGH = {
    "two changes": TWO,
    "some rows are read again": REPAIR_OF_SOME,
    "two changes, rows are read again": replace(REPAIR, ops=2),
    "three changes, some rows are read again": replace(REPAIR_OF_SOME, ops=3),
    "two changes, two reads": Scope(ops=2, reads=2, crashes=0),
    "two changes, a crash": Scope(ops=2, reads=1, crashes=1),
    "two changes, two reads, in place": Scope(ops=2, reads=2, crashes=0, is_in_place=True),
    "two changes, two reads, a crash, keys only": Scope(
        ops=2, reads=2, crashes=1, kinds=("partial", "delete", "move", "partial_move")
    ),
    "chunks of one row": Scope(ops=1, reads=3, crashes=1, chunk_rows=1),
    "a truncate, then changes of key": Scope(ops=3, reads=2, crashes=0, kinds=("truncate", "insert", "partial_move")),
}
FAULTS: dict[str, tuple[Faults, Scope]] = {
    "no visibility rule": (Faults(make_window=PublishedWindow), ONE),
    "after key only": (Faults(make_window=AfterKeyOnly), ONE),
    "truncate ignored": (Faults(make_window=TruncateIgnored), ONE),
    "pruned in the order of reads": (Faults(make_window=PrunedInOrder), ONE_REVERSED),
    "ring forgotten at restart": (Faults(forget_ring=True), ONE_CRASH),
    "unknown keys taken for no keys": (Faults(make_window=UnknownKeysAreNoKeys), ONE_CRASH),
    "absent taken for NULL": (Faults(make_window=AbsentIsNull), ONE),
    "partial rows not cut": (Faults(make_window=NeverCut), ONE),
    "keys of incomplete rows forgotten": (Faults(forget_keys=True), ONE),
    "keys of incomplete rows that move on forgotten": (
        Faults(forget_chains=True),
        Scope(ops=2, reads=3, crashes=0, chunk_rows=3, kinds=("partial_move",)),
    ),
    "keys that a range did not see forgotten, more than may be listed": (Faults(forget_unseen=True), TOO_MANY_KEYS),
    "rows that are too much stay": (Faults(make_window=MissingStaysWhatItWas), REPAIR),
    "a row that came since is deleted": (Faults(make_window=MissingIsDeleted), REPAIR),
    "no visibility rule, rows are read again": (Faults(make_window=PublishedWindow), REPAIR),
    "ring forgotten at restart, rows are read again": (Faults(forget_ring=True), REPAIR),
    "keys that damaged rows got forgotten": (Faults(forget_keys=True), REPAIR_OF_SOME),
    "in-place start number above a delivered, unseen change": (Faults(start_at_next=True), ONE_RECREATED),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_every_schedule_ends_with_target_equal_to_source(name: str) -> None:
    count, wrong = explore(BOUNDED[name])
    assert wrong is None, wrong
    assert count.steps > 1000


@pytest.mark.parametrize(
    "scope",
    [SEVERAL, SEVERAL_IN_PLACE, SMALL_CHUNKS, SEVERAL_IN_REPAIR],
    ids=["several", "in place", "chunks of one row", "read again"],
)
def test_random_longer_schedules_end_with_target_equal_to_source(scope: Scope) -> None:
    _, wrong = sample(scope, Faults(), seed=7, schedules=40)
    assert wrong is None, wrong


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(name: str) -> None:
    faults, scope = FAULTS[name]
    _, wrong = explore(scope, faults)
    assert wrong is not None


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", THOROUGH)
def test_every_schedule_of_a_larger_scope_ends_with_target_equal_to_source(name: str) -> None:
    _, wrong = explore(THOROUGH[name])
    assert wrong is None, wrong


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "scope",
    [SEVERAL, SEVERAL_IN_PLACE, SMALL_CHUNKS, SEVERAL_IN_REPAIR],
    ids=["several", "in place", "chunks of one row", "read again"],
)
def test_many_random_longer_schedules_end_with_target_equal_to_source(scope: Scope) -> None:
    for seed in range(20):
        _, wrong = sample(scope, Faults(), seed=seed, schedules=100)
        assert wrong is None, f"seed {seed}: {wrong}"
