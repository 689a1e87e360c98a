"""Random journals, written as capture would write them, that know what every table must look like at every position."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from replicator.journal import JournalWriter
from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent, SnapshotKind, SnapshotPhase
from replicator.model.schema import TableId, TableSchema
from replicator.state.records import Segment, SnapshotProgress, Stage, TableRecord
from replicator.state.store import StateStore
from replicator_testing.batches import RowChange, delete, insert, record_batch, update
from replicator_testing.defaults import writer_limits
from replicator_testing.memory import HistoryEntry, State, state_of
from replicator_testing.target_harness import item, items_schema

START = datetime(2024, 1, 1, tzinfo=UTC)
_KEYS = 6
_CHUNK_ROWS = 2


@dataclass(kw_only=True)
class ScriptedTable:
    """A table of the imagined source.

    Attributes:
        content: Its rows now.
        states: What it looked like after the transaction that ended at a number.
        whole: Ranges of numbers `[from, to)`, per incarnation, in which a copy of it is a whole one.
        cursor: Of the snapshot that is under way: keys up to it have been read.
    """

    schema: TableSchema
    incarnation: int = 0
    content: list[dict[str, Any]] = field(default_factory=list)
    states: list[tuple[int, State]] = field(default_factory=lambda: [(-1, {})])
    whole: list[tuple[int, int, int | None]] = field(default_factory=list)
    has_snapshot: bool = False
    kind: SnapshotKind = SnapshotKind.FIRST
    start_number: int | None = None
    cursor: int = -1
    first_change: int | None = None

    def state_at(self, number: int) -> State:
        """The rows after everything up to a number."""
        index = bisect_right([n for n, _ in self.states], number)
        return self.states[index - 1][1]

    def is_whole_at(self, incarnation: int, number: int) -> bool:
        """Whether a copy with this ledger must equal a state of the source."""
        return any(i == incarnation and a <= number and (b is None or number < b) for i, a, b in self.whole)

    def remember(self, number: int) -> None:
        """Note what the table looks like after `number`."""
        self.states.append((number, state_of(self.schema, self.content)))

    def end_whole(self, number: int) -> None:
        """From here on a copy is not whole."""
        if self.whole and self.whole[-1][2] is None:
            self.whole[-1] = (*self.whole[-1][:2], number)

    def record(self) -> TableRecord:
        """What capture would know."""
        return TableRecord(
            table=self.schema.table,
            incarnation=self.incarnation,
            stage=Stage.SNAPSHOT if self.has_snapshot else Stage.STREAMING,
            schema=self.schema,
            snapshot=SnapshotProgress(kind=self.kind, start_number=self.start_number),
            first_change=self.first_change,
        )


class ScriptedJournal:
    """Stands in for source and capture. `open` begins, or continues, under an epoch; each `commit` seals some random work.

    Transactions span tables, and segments of a commit; snapshots run meanwhile, first ones and in place; tables are
    truncated and recreated.
    """

    def __init__(self, store: StateStore, name: str, uri: str, rng: random.Random, *, tables: int = 2) -> None:
        schemas = [items_schema(table=TableId("shop", f"keyed{n}")) for n in range(tables)]
        schemas.append(items_schema(key=(), table=TableId("shop", "keyless")))
        self.tables = {schema.table: ScriptedTable(schema=schema) for schema in schemas}
        self._store, self._name, self._uri, self._rng = store, name, uri, rng
        self._texts = itertools.count()
        self._writer: JournalWriter | None = None

    def open(self, epoch: int) -> None:
        """Begin to write under an epoch."""
        limits = writer_limits(segment_rows=3, row_group_rows=2)
        self._writer = JournalWriter(self._store, name=self._name, epoch=epoch, uri=self._uri, limits=limits)

    def commit(self) -> Sequence[Segment]:
        """Do a few random things and seal them together."""
        for _ in range(self._rng.randint(1, 4)):
            self._act()
        return self._seal()

    def finish(self) -> None:
        """Bring every snapshot to its end, and seal."""
        for table in self.tables.values():
            if table.incarnation == 0:
                self._begin(table)
            while table.has_snapshot:
                self._chunk(table)
        self._seal()

    def check(self, table: TableId, history: Sequence[HistoryEntry]) -> None:
        """Hold what a reader of the target could have seen against the source: whole copies show committed states only, in their order."""
        scripted = self.tables[table]
        claims = [(entry.incarnation, entry.ledger) for entry in history]
        assert claims == sorted(set(claims)), "the ledger only goes forward"
        for entry in history:
            if scripted.is_whole_at(entry.incarnation, entry.ledger):
                assert entry.state == scripted.state_at(entry.ledger), (
                    f"{table} after {entry.action} up to {entry.ledger}"
                )

    # -- random work

    def _seal(self) -> Sequence[Segment]:
        assert self._writer is not None
        return self._writer.commit(
            offset=None,
            source_time=START + timedelta(seconds=self._writer.next_sequence_num),
            tables=[table.record() for table in self.tables.values() if table.incarnation],
        )

    def _act(self) -> None:
        table = self._rng.choice(list(self.tables.values()))
        if table.incarnation == 0 or self._rng.random() < 0.03:
            self._begin(table)
        elif table.has_snapshot and self._rng.random() < 0.5:
            self._chunk(table)
        elif not table.has_snapshot and self._rng.random() < 0.05:
            self._start_in_place(table)
        elif self._rng.random() < 0.05:
            self._truncate(table)
        else:
            self._transaction()

    def _take(self, count: int = 1) -> int:
        assert self._writer is not None
        return self._writer.take(count)

    def _event(self, table: ScriptedTable, event: DDLEvent | SnapshotEvent) -> int:
        assert self._writer is not None
        number = self._take()
        self._writer.event(number, table.schema.table, table.incarnation, event)
        return number

    def _append(self, table: ScriptedTable, changes: Sequence[RowChange]) -> int:
        assert self._writer is not None
        first = self._take(len(changes))
        numbered = [replace(change, sequence_num=first + i) for i, change in enumerate(changes)]
        self._writer.append(table.schema, table.incarnation, record_batch(table.schema, numbered))
        return first

    def _begin(self, table: ScriptedTable) -> None:
        table.incarnation += 1
        table.has_snapshot, table.cursor, table.first_change = True, -1, None
        table.kind, table.start_number = SnapshotKind.FIRST, None
        number = self._event(
            table, DDLEvent(operation=DDLOperation.CREATE_TABLE, table=table.schema.table, schema=table.schema)
        )
        table.end_whole(number)
        self._event(table, SnapshotEvent(phase=SnapshotPhase.STARTED, table=table.schema.table))
        if not table.schema.key:
            self._chunk(table)

    def _start_in_place(self, table: ScriptedTable) -> None:
        assert self._writer is not None
        table.has_snapshot, table.cursor = True, -1
        table.kind, table.start_number = SnapshotKind.IN_PLACE, self._writer.next_sequence_num
        table.first_change = table.start_number if table.first_change is None else table.first_change
        started = SnapshotEvent(
            phase=SnapshotPhase.STARTED, table=table.schema.table, kind=table.kind, start_number=table.start_number
        )
        number = self._event(table, started)
        if not table.schema.key:
            table.end_whole(number)
            self._chunk(table)

    def _chunk(self, table: ScriptedTable) -> None:
        rest = sorted((r for r in table.content if r["id"] > table.cursor), key=lambda r: r["id"])
        rows = rest[:_CHUNK_ROWS] if table.schema.key else list(table.content)
        if rows:
            self._append(table, [insert(0, row, is_snapshot=True) for row in rows])
            table.cursor = rows[-1]["id"]
        if table.schema.key and len(rows) == _CHUNK_ROWS:
            return
        completed = SnapshotEvent(
            phase=SnapshotPhase.COMPLETED, table=table.schema.table, kind=table.kind, start_number=table.start_number
        )
        number = self._event(table, completed)
        table.has_snapshot = False
        if not table.whole or table.whole[-1][2] is not None:
            table.whole.append((table.incarnation, number, None))

    def _truncate(self, table: ScriptedTable) -> None:
        number = self._event(
            table, DDLEvent(operation=DDLOperation.TRUNCATE_TABLE, table=table.schema.table, schema=table.schema)
        )
        table.content.clear()
        table.first_change = number if table.first_change is None else table.first_change
        table.remember(number)

    def _transaction(self) -> None:
        touched: dict[TableId, int] = {}
        for _ in range(self._rng.randint(1, 6)):
            table = self._rng.choice([t for t in self.tables.values() if t.incarnation])
            change = self._change(table)
            number = self._append(table, [change])
            table.first_change = number if table.first_change is None else table.first_change
            touched[table.schema.table] = number
        for name, last in touched.items():
            self.tables[name].remember(last)

    def _change(self, table: ScriptedTable) -> RowChange:
        content, rng, keyed = table.content, self._rng, bool(table.schema.key)
        used = {row["id"] for row in content}
        free = [k for k in range(_KEYS) if k not in used] if keyed else list(range(2))
        kind = rng.choice(["insert", "update", "move", "delete"])
        if not content or (kind == "insert" and free) or (len(content) > 2 * _KEYS and kind != "delete"):
            content.append(self._row(rng.choice(free), keyed=keyed))
            return insert(0, content[-1])
        old = content.pop(rng.randrange(len(content)))
        if kind == "delete":
            return delete(0, old)
        new = self._row(old["id"], keyed=keyed)
        before = None if keyed else old
        if kind == "move" and free:
            new["id"], before = rng.choice(free), old
        content.append(new)
        # A key that moves while the table is copied may come to where the snapshot has been: its row is then sent whole.
        if keyed and rng.random() < 0.4 and (before is None or not table.has_snapshot):
            new["note"] = old["note"]
            return update(0, new, before=before, absent=["note"])
        return update(0, new, before=before)

    def _row(self, id_: int, *, keyed: bool) -> dict[str, Any]:
        text = next(self._texts) if keyed else 0
        return item(id_, f"n{text}", f"{text}.50", self._rng.choice([None, f"t{text}"]))
