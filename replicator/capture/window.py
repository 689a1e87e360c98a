"""The window: which rows of a read of a table still hold once the log has been delivered up to a mark. Pure: no I/O, clock or thread.

A read of the source and the log overlap. A transaction may be delivered by the log although a read that begins later
does not see it (commit order is not the order of visibility), and a read may see a transaction that the log delivers
later. What makes the sum of the two right:

1.  *Per key, visibility follows the log.* Who changes a row that another transaction changed has waited until that one
    is visible. So of the transactions that touch one key, those that a read sees come first in the log and those that
    it does not see come after them.
2.  *A read is emitted at a mark made after it*, so every transaction that it saw has been delivered and has lower numbers.
    What the log delivered and the read did not see is newer than the read's row (1): its keys, before and after the change,
    are dropped from the read. What the read did see is contained in its row: nothing needs to be dropped, and the emitted
    row repeats or contains the delivered one.
3.  *Absent columns.* A change that the read did not see and that lacks columns replaces only the columns that it
    carries; the read's row, older by (1) than the first such change, still holds the lacking ones. With several such
    changes a column is the read's only if all of them lack it: the intersection. INSERT, DELETE and a change of the key
    lack nothing in this sense, and the intersection with nothing is nothing.
4.  *Visibility is monotone*, so a delivered transaction that a read saw is seen by every later one: it leaves the ring
    permanently. The ring is shared by all tables. An entry leaves it once each reader that reads now has seen it: a
    reader reads piece after piece, so its next read sees at least what its last one saw. Reads of several readers may
    be handed to the window in any order. While nobody reads, any visibility prunes: every later read sees as much.
5.  *Unknown keys.* Transactions whose keys were not recorded (delivered before the table was watched, before a restart,
    or in too large a transaction) cannot be subtracted: a read that does not see one of them is made again. Each
    becomes visible some time, so this ends.
6.  *TRUNCATE* that a read did not see touches every key: the table's reading starts over.
7.  *Rows that are not there.* Where some keys are read to see whether their rows exist, a key without a row is a DELETE: by (1)
    nothing that the read saw made the row, and if something touched the key that it did not see, that is newer, and there is no
    DELETE.

`tests/simulation/test_window_explorer.py` explores small schedules exhaustively on this very class.

The file is longer than others on purpose: the rules are one argument, and no part of the class holds without the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.events import (
    ABSENT,
    BEFORE,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    DDLEvent,
    DDLOperation,
    DMLOperation,
    change_schema,
)
from replicator.model.isolation import of_table
from replicator.model.keys import key_bytes
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.cursors import cursors, keys_of
from replicator.plugins.source import Cursor, LogBatch, Seen, TableChanges, Visibility

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

_SEPARATOR: Final = "\x1f"
_NOTHING: Final = 0
"""Code of the set of columns that is empty: nothing of the read's row remains."""
_ALL: Final = 1
"""Code of the set of all columns: nothing touched the row."""


@dataclass(frozen=True, slots=True)
class Move:
    """A change of a row's key from one to another that lacked columns."""

    before: Cursor
    after: Cursor


class RowVerdict(StrEnum):
    """The fate of a read."""

    GOOD = "good"
    READ_AGAIN = "read_again"
    START_OVER = "start_over"


@dataclass(frozen=True, slots=True)
class _Touches:
    """Keys of one table that delivered changes touched, in parallel arrays.

    The transaction's serial, the key, the code of the columns that the change lacked.

    `moves`: changes of keys that lacked columns, in the log's order, with their serials.
    """

    serials: Int64s
    keys: pa.BinaryArray
    lacks: Int32s
    moved_serials: Int64s
    moves: tuple[Move, ...]

    def of(self, serials: Int64s) -> _Touches:
        """Only those of the given transactions (ascending)."""
        keep, keep_moved = _contains(serials, self.serials), _contains(serials, self.moved_serials)
        if keep.all() and keep_moved.all():
            return self
        return _Touches(
            self.serials[keep],
            self.keys.filter(pa.array(keep)),
            self.lacks[keep],
            self.moved_serials[keep_moved],
            tuple(m for m, kept in zip(self.moves, keep_moved, strict=True) if kept),
        )


@dataclass(slots=True, kw_only=True)
class Read:
    """A read that waits for its mark. Made by `Window.add_chunk` and `add_whole`, changed by the window alone.

    Attributes:
        verdict: `GOOD` while its rows may be emitted.
        missing: Of the keys that were asked for: those without a row (`cursors.keys_of`). They are the last of `keys` and `states`.
        unsettled: Keys that came to be by incomplete changes which this read did not see: if it was to read them, that has to be
            repeated.
    """

    schema: TableSchema
    visibility: Visibility
    verdict: RowVerdict = RowVerdict.GOOD
    rows: pa.RecordBatch | None = None
    keys: pa.BinaryArray | None = None
    states: Int32s = field(default_factory=lambda: np.empty(0, np.int32))
    missing: pa.RecordBatch | None = None
    unsettled: list[Cursor] = field(default_factory=list)

    def unseen(self, ids: pa.StringArray) -> Bools:
        """Return those of the transactions that this read did not see, or may not have seen."""
        return _unseen(self.visibility, ids)


@dataclass(frozen=True, slots=True)
class _Ring:
    """Delivered transactions that some later read may not see, by ascending serial.

    `firsts` are their lowest sequence numbers.
    """

    serials: Int64s
    ids: pa.StringArray
    firsts: Int64s

    def filter(self, keep: Bools) -> _Ring:
        return _Ring(self.serials[keep], self.ids.filter(pa.array(keep)), self.firsts[keep])

    def extend(self, other: _Ring) -> _Ring:
        return _Ring(
            np.concatenate([self.serials, other.serials]),
            pa.concat_arrays([self.ids, other.ids]),
            np.concatenate([self.firsts, other.firsts]),
        )


@dataclass(slots=True)
class _Readers:
    """Those who read now. `seen`: by number, what each saw last; None: nothing yet."""

    seen: dict[int, Visibility | None] = field(default_factory=dict)
    _last: int = 0

    def begin(self) -> int:
        self._last += 1
        self.seen[self._last] = None
        return self._last


class Window:
    """Keeps the ring of transactions and the reads that wait.

    Args:
        ring: What `ring_texts` gave when the journal was last sealed; empty at a new position in the log. The keys of
            these transactions are unknown.
        touches_max: Changes remembered per table; beyond it the transactions count as of unknown keys (5), which bounds
            memory.
    """

    def __init__(self, ring: Sequence[str] = (), *, touches_max: int = 2_000_000) -> None:
        entries = [_parse_entry(text) for text in ring]
        self._ring = _Ring(
            np.arange(len(entries), dtype=np.int64),
            pa.array([e[0] for e in entries], pa.string()),
            np.array([e[1] for e in entries], np.int64),
        )
        self._fresh: list[_Ring] = []
        self._next_serial = len(entries)
        self._open: tuple[str, int] | None = None
        self._watched: dict[TableId, TableSchema] = {}
        self._known_from: dict[TableId, int] = {}
        self._touches: dict[TableId, tuple[_Touches, ...]] = {}
        self._truncates: tuple[tuple[int, TableId], ...] = ()
        self._reads: list[Read] = []
        self._readers = _Readers()
        self._sets: dict[frozenset[str] | None, int] = {frozenset(): _NOTHING, None: _ALL}
        self._touches_max = touches_max

    # --- which tables are watched ---------------------------------------------------------------------------------

    def watch(self, schema: TableSchema) -> None:
        """From now on remember which keys of this table are touched.

        Its snapshot runs. Watching again in the same shape changes nothing.
        """
        if self._watched.get(schema.table) == schema:
            return
        self._watched[schema.table] = schema
        self._forget_touches(schema.table)

    def unwatch(self, table: TableId) -> None:
        """The table's snapshot has ended; reads of it that wait are dropped."""
        self._watched.pop(table, None)
        self._known_from.pop(table, None)
        self._touches.pop(table, None)
        self._truncates = tuple(t for t in self._truncates if t[1] != table)
        self._reads = [r for r in self._reads if r.schema.table != table]

    # --- the log --------------------------------------------------------------------------------------------------

    def deliver(self, batch: LogBatch, base: int) -> Mapping[TableId, Sequence[Move]]:
        """Take note of what the log delivered.

        Args:
            batch: As pulled: ordinals, not yet numbers.
            base: The sequence number of ordinal 0.

        Returns:
            Per watched table the changes of keys that lacked columns, in the log's order: if the rows at the keys before them
                are incomplete in the target, those at the keys after them will be (`progress.with_moves`).
        """
        ends = batch.transactions.column("end_ordinal").to_numpy().astype(np.int64)
        entries, serial_of_part = self._enter(batch, ends, base)
        moves: dict[TableId, Sequence[Move]] = {}
        if self._watched:
            for changes in batch.changes:
                if changes.schema.table in self._watched and changes.rows.num_rows:
                    with of_table(changes.schema.table, "comparing its changes with its snapshot"):
                        touches = self._touched(changes, serial_of_part, ends)
                        if touches.moves:
                            moves[changes.schema.table] = touches.moves
                        self._remember(changes.schema.table, touches)
                        for read in self._reads_of(changes.schema.table):
                            _subtract(read, touches.of(self._unseen_of(read, entries)), self._sets)
            for event in batch.ddl:
                self._deliver_ddl(
                    event, int(serial_of_part[np.searchsorted(ends, batch.events - 1, side="right")]), entries
                )
        return moves

    # --- reads ----------------------------------------------------------------------------------------------------

    def begin_reading(self) -> int:
        """Announce a reader, which may read any time from now on; return its number.

        The ring keeps what it might not see. Its reads are made one after the other, and added in that order.
        """
        return self._readers.begin()

    def end_reading(self, reader: int) -> None:
        """Take in that no read of this reader is still to be added."""
        del self._readers.seen[reader]

    def add_chunk(
        self,
        schema: TableSchema,
        rows: pa.RecordBatch,
        visibility: Visibility,
        *,
        reader: int | None = None,
        asked: Sequence[Cursor] = (),
    ) -> Read:
        """Take in what a statement read (columns as `schema.row_type`).

        It waits until `emit`. Look at its `verdict` first: a read may be lost at once.

        Args:
            schema: The table's shape.
            rows: What was read.
            visibility: What the statement saw.
            reader: Number of its reader; None: it reads nothing else.
            asked: Keys of which the statement would have read the rows; those without one are emitted as deleted.
        """
        keys, missing = key_bytes([rows.column(name) for name in schema.key_fields]), None
        if asked:
            missing = _without_rows(keys_of(schema, asked), keys)
            keys = pa.concat_arrays([keys, key_bytes(missing.columns)])
        read = Read(
            schema=schema,
            visibility=visibility,
            rows=rows,
            keys=keys,
            states=np.full(len(keys), _ALL, np.int32),
            missing=missing,
        )
        self._add(read, reader)
        return read

    def add_whole(self, schema: TableSchema, visibility: Visibility, *, reader: int | None = None) -> Read:
        """Take in the beginning of a read of a table without a key.

        Only `verdict` and `unseen` of the answer mean anything.
        """
        read = Read(schema=schema, visibility=visibility)
        self._add(read, reader)
        return read

    def emit(self, read: Read) -> pa.RecordBatch:
        """End the wait of a read at its mark, between transactions.

        Return what remains as changes (`change_schema`), numbered from 0.

        A row of which unseen changes carried some columns keeps only the others: `_absent` names the columns that the
            log carried. A key without a row that none of them touched is a DELETE.
        """
        assert read.verdict is RowVerdict.GOOD, "a lost read has nothing to emit"
        assert self._open is None, "reads are emitted between transactions"
        self.drop(read)
        assert read.rows is not None
        count = read.rows.num_rows
        changes = _as_changes(
            read.schema, read.rows, read.states[:count], {code: columns for columns, code in self._sets.items()}
        )
        if read.missing is None:
            return changes
        deleted = read.missing.filter(pa.array(read.states[count:] == _ALL))
        return _joined_changes(changes, _deletes(read.schema, deleted, changes.num_rows))

    def drop(self, read: Read) -> None:
        """The read no longer waits."""
        self._reads = [r for r in self._reads if r is not read]

    # --- the ring -------------------------------------------------------------------------------------------------

    def prune(self, visibility: Visibility) -> None:
        """Forget the transactions that every later read sees.

        Does nothing while somebody reads: that read may be older than `visibility`.
        """
        if not self._readers.seen:
            self._prune(visibility)

    def ring_texts(self) -> Sequence[str]:
        """The entries with which the ring survives a restart: `id@number`, the lowest sequence number of the transaction."""
        ring = self._joined()
        return [f"{id_}@{first}" for id_, first in zip(ring.ids.to_pylist(), ring.firsts.tolist(), strict=True)]

    @property
    def is_reading(self) -> bool:
        """Return whether somebody reads: then only reads prune the ring."""
        return bool(self._readers.seen)

    @property
    def ring_size(self) -> int:
        """Transactions in the ring."""
        return len(self._ring.serials) + sum(len(r.serials) for r in self._fresh)

    def start_number(self, next_number: int) -> int:
        """Below which number a row of the target is known to be superseded by a read that begins now.

        A delivered change that such a read does not see must survive.
        """
        firsts = self._joined().firsts
        return min(next_number, int(firsts.min())) if len(firsts) else next_number

    @property
    def reads(self) -> Sequence[Read]:
        """The reads that wait, in the order in which they were added."""
        return tuple(self._reads)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _enter(self, batch: LogBatch, ends: Int64s, base: int) -> tuple[_Ring, Int64s]:
        """Give the batch's transactions their entries in the ring.

        Returns:
            All transactions of the batch, and the serial of each part of it: those that ended, in order, and last the
                open one (-1: there is none).
        """
        ids = batch.transactions.column("id")
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends
        serials = np.arange(self._next_serial, self._next_serial + len(ends), dtype=np.int64)
        self._next_serial += len(ends)
        is_new = ends > starts
        parts = _Ring(serials, ids, base + starts)
        continued = self._open
        if continued is not None and len(ends) and ids[0].as_py() == continued[0]:
            serials[0], is_new[0] = continued[1], False
        if is_new.any():
            self._fresh.append(parts.filter(is_new))
        serial_of_open = -1
        if batch.open_transaction is None:
            self._open = None
        else:
            if continued is not None and not len(ends) and continued[0] == batch.open_transaction:
                serial_of_open = continued[1]
            else:
                serial_of_open = self._next_serial
                self._next_serial += 1
            first = base + (int(ends[-1]) if len(ends) else 0)
            entry = _Ring(
                np.array([serial_of_open], np.int64),
                pa.array([batch.open_transaction], pa.string()),
                np.array([first], np.int64),
            )
            if continued is None or continued[1] != serial_of_open:
                self._fresh.append(entry)
            parts = parts.extend(entry)
            self._open = (batch.open_transaction, serial_of_open)
        return parts, np.concatenate([serials, np.array([serial_of_open], np.int64)])

    def _touched(self, changes: TableChanges, serial_of_part: Int64s, ends: Int64s) -> _Touches:
        schema, rows = changes.schema, changes.rows
        if not schema.key:
            return _no_touches()
        ordinals = rows.column(SEQUENCE_NUM).to_numpy()
        serials = serial_of_part[np.searchsorted(ends, ordinals, side="right")]
        new_columns = [pc.struct_field(rows.column(ROW), [name]) for name in schema.key_fields]
        old_columns = [pc.struct_field(rows.column(BEFORE), [name]) for name in schema.key_fields]
        new = key_bytes(new_columns)
        old = pc.coalesce(key_bytes(old_columns), new)
        lacks = self._lacking(rows)
        is_moved = pc.fill_null(pc.not_equal(old, new), fill_value=False).to_numpy(zero_copy_only=False)
        has_new = pc.is_valid(new).to_numpy(zero_copy_only=False)
        # The columns that a moved row lacks are those of the row at its old key: nothing at the new key is of use.
        is_partial_move = is_moved & (lacks != _NOTHING)
        lacks = np.where(is_moved, _NOTHING, lacks).astype(np.int32)
        has_old = is_moved | ~has_new
        moves: tuple[Move, ...] = ()
        if is_partial_move.any():
            chosen = pa.array(is_partial_move)
            ends_ = [cursors([c.filter(chosen) for c in columns]) for columns in (old_columns, new_columns)]
            moves = tuple(map(Move, *ends_))
        return _Touches(
            np.concatenate([serials[has_new], serials[has_old]]),
            pa.concat_arrays([new.filter(pa.array(has_new)), old.filter(pa.array(has_old))]),
            np.concatenate([lacks[has_new], np.zeros(int(has_old.sum()), np.int32)]),
            serials[is_partial_move],
            moves,
        )

    def _lacking(self, rows: pa.RecordBatch) -> Int32s:
        """The code of the columns that each row lacks; only an UPDATE can lack any."""
        codes = np.zeros(rows.num_rows, np.int32)
        absent = rows.column(ABSENT)
        if absent.null_count == rows.num_rows:
            return codes
        is_partial = pc.and_(
            pc.greater(pc.fill_null(pc.list_value_length(absent), 0), 0),
            pc.equal(rows.column(OPERATION), DMLOperation.UPDATE.value),
        )
        rows_at = np.flatnonzero(is_partial.to_numpy(zero_copy_only=False))
        if not len(rows_at):
            return codes
        spelled = pc.dictionary_encode(pc.binary_join(absent.take(pa.array(rows_at)), _SEPARATOR))
        of_text = np.array(
            [self._code(frozenset(text.split(_SEPARATOR))) for text in spelled.dictionary.to_pylist()], np.int32
        )
        codes[rows_at] = of_text[spelled.indices.to_numpy()]
        return codes

    def _code(self, columns: frozenset[str]) -> int:
        return self._sets.setdefault(columns, len(self._sets))

    def _remember(self, table: TableId, touches: _Touches) -> None:
        known = (*self._touches.get(table, ()), touches)
        if sum(len(t.serials) for t in known) > self._touches_max:
            self._forget_touches(table)
            return
        self._touches[table] = known

    def _forget_touches(self, table: TableId) -> None:
        """Rule 5: the transactions so far, the open one included, count as of unknown keys for this table."""
        self._touches[table] = ()
        self._known_from[table] = self._next_serial

    def _deliver_ddl(self, event: DDLEvent, serial: int, entries: _Ring) -> None:
        table = event.table
        if table not in self._watched:
            return
        is_truncate = event.operation is DDLOperation.TRUNCATE_TABLE
        if is_truncate:
            self._truncates = (*self._truncates, (serial, table))
        for read in self._reads_of(table):
            if not is_truncate:
                read.verdict = RowVerdict.READ_AGAIN if read.verdict is RowVerdict.GOOD else read.verdict
            elif serial in self._unseen_of(read, entries):
                read.verdict = RowVerdict.START_OVER

    def _add(self, read: Read, reader: int | None) -> None:
        table = read.schema.table
        assert table in self._watched, "only tables that are watched are read"
        self._reads.append(read)
        unseen = self._unseen_of(read, self._joined())
        if reader is not None:
            assert reader in self._readers.seen, "a reader begins before it reads"
            self._readers.seen[reader] = read.visibility
        self._prune(read.visibility)
        truncated = np.array([s for s, t in self._truncates if t == table], np.int64)
        if np.isin(truncated, unseen).any():
            read.verdict = RowVerdict.START_OVER
        elif len(unseen) and unseen[0] < self._known_from[table]:
            read.verdict = RowVerdict.READ_AGAIN
        elif len(unseen):
            for touches in self._touches[table]:
                _subtract(read, touches.of(unseen), self._sets)

    def _unseen_of(self, read: Read, entries: _Ring) -> Int64s:
        """Serials of those of `entries` that the read did not see, ascending."""
        return np.sort(entries.serials[_unseen(read.visibility, entries.ids)])

    def _reads_of(self, table: TableId) -> Iterable[Read]:
        return [r for r in self._reads if r.schema.table == table]

    def _prune(self, visibility: Visibility) -> None:
        """Rule 4: forget what every coming read sees. `visibility`: that of a moment before now, for readers that begin later."""
        ring = self._joined()
        keep = _unseen(visibility, ring.ids)
        for seen in self._readers.seen.values():
            keep = keep | (_unseen(seen, ring.ids) if seen is not None else True)
        if keep.all():
            return
        self._ring = ring.filter(keep)
        left = np.sort(self._ring.serials)
        self._truncates = tuple(t for t in self._truncates if t[0] in left)
        for table, known in self._touches.items():
            kept = [touches.of(left) for touches in known]
            self._touches[table] = tuple(t for t in kept if len(t.serials) or t.moves)

    def _joined(self) -> _Ring:
        if self._fresh:
            parts = [self._ring, *self._fresh]
            self._ring = _Ring(
                np.concatenate([p.serials for p in parts]),
                pa.concat_arrays([_flat(p.ids) for p in parts]),
                np.concatenate([p.firsts for p in parts]),
            )
            self._fresh = []
        return self._ring


def _unseen(visibility: Visibility, ids: pa.StringArray) -> Bools:
    if not len(ids):
        return np.zeros(0, np.bool_)
    seen: Bools = visibility.classify(ids).to_numpy(zero_copy_only=False) != int(Seen.SEEN)
    return seen


def _contains(sorted_serials: Int64s, serials: Int64s) -> Bools:
    if not len(sorted_serials):
        return np.zeros(len(serials), np.bool_)
    indexes = np.minimum(np.searchsorted(sorted_serials, serials), len(sorted_serials) - 1)
    found: Bools = sorted_serials[indexes] == serials
    return found


def _subtract(read: Read, touches: _Touches, sets: dict[frozenset[str] | None, int]) -> None:
    """Rules 2 and 3.

    What unseen changes touched is dropped from the read, or cut down to the columns that all of them lacked.
    """
    read.unsettled.extend(move.after for move in touches.moves)
    if read.keys is None or not len(touches.serials) or not len(read.keys):
        return
    rows_at = pc.index_in(touches.keys, value_set=read.keys)
    is_hit = pc.is_valid(rows_at).to_numpy(zero_copy_only=False)
    hits = pc.fill_null(rows_at, 0).to_numpy(zero_copy_only=False)[is_hit]
    lacks = touches.lacks[is_hit]
    for code in np.unique(lacks):
        rows = np.unique(hits[lacks == code])
        before = read.states[rows]
        for state in np.unique(before):
            read.states[rows[before == state]] = _intersection(int(state), int(code), sets)


def _intersection(a: int, b: int, sets: dict[frozenset[str] | None, int]) -> int:
    if a in (b, _NOTHING) or b == _ALL:
        return a
    if a == _ALL or b == _NOTHING:
        return b
    by_code = {code: columns for columns, code in sets.items()}
    columns = (by_code[a] or frozenset()) & (by_code[b] or frozenset())
    return sets.setdefault(columns, len(sets))


def snapshot_changes(schema: TableSchema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a read (columns as `schema.row_type`) as snapshot inserts (`change_schema`), numbered from 0."""
    return _inserts(schema, rows.num_rows, list(rows.columns), pa.nulls(rows.num_rows, pa.list_(pa.string())))


def _without_rows(asked: pa.RecordBatch, keys: pa.BinaryArray) -> pa.RecordBatch:
    """Return the keys that are not there."""
    return asked.filter(pc.invert(pc.is_in(key_bytes(asked.columns), value_set=keys)))


def _as_changes(
    schema: TableSchema, rows: pa.RecordBatch, states: Int32s, sets: Mapping[int, frozenset[str] | None]
) -> pa.RecordBatch:
    if (states == _NOTHING).any():
        keep = states != _NOTHING
        rows, states = rows.filter(pa.array(keep)), states[keep]
    if (states == _ALL).all():
        return snapshot_changes(schema, rows)
    columns, absent = _cut(schema, list(rows.columns), states, sets)
    return _inserts(schema, rows.num_rows, columns, absent)


def _deletes(schema: TableSchema, keys: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Keys as snapshot deletes, numbered from `first`."""
    count = keys.num_rows
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(first, first + count, dtype=np.int64)),
            pa.repeat(pa.scalar(DMLOperation.DELETE.value), count),
            pa.repeat(pa.scalar(value=True), count),
            pa.nulls(count, pa.timestamp("us", tz="UTC")),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.list_(pa.string())),
            pa.StructArray.from_arrays(
                [keys.column(field.name) for field in schema.before_type], fields=list(schema.before_type)
            ),
            pa.nulls(count, schema.row_type),
        ],
        schema=change_schema(schema),
    )


def _joined_changes(*parts: pa.RecordBatch) -> pa.RecordBatch:
    filled = [part for part in parts if part.num_rows]
    if len(filled) <= 1:
        return filled[0] if filled else parts[0]
    columns = [pa.concat_arrays(list(columns)) for columns in zip(*(part.columns for part in filled), strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=parts[0].schema)


def _inserts(schema: TableSchema, count: int, columns: Sequence[pa.Array], absent: pa.ListArray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(count, dtype=np.int64)),
            pa.repeat(pa.scalar(DMLOperation.INSERT.value), count),
            pa.repeat(pa.scalar(value=True), count),
            pa.nulls(count, pa.timestamp("us", tz="UTC")),
            pa.nulls(count, pa.string()),
            absent,
            pa.nulls(count, schema.before_type),
            pa.StructArray.from_arrays(columns, fields=list(schema.row_type)),
        ],
        schema=change_schema(schema),
    )


def _cut(
    schema: TableSchema, columns: Sequence[pa.Array], states: Int32s, sets: Mapping[int, frozenset[str] | None]
) -> tuple[list[pa.Array], pa.ListArray]:
    """Take out of partial rows the columns that the log carried, and name them.

    The key is not among them: it is the same on both ways.
    """
    names = [f.name for f in schema.row_type]
    carried: dict[int, list[str] | None] = {}
    for code in np.unique(states):
        lacking = sets[int(code)]
        carried[int(code)] = (
            None if lacking is None else [n for n in names if n not in lacking and n not in schema.key_fields]
        )
    cut: list[pa.Array] = []
    for name, column in zip(names, columns, strict=True):
        cut_codes = [code for code, absent in carried.items() if absent is not None and name in absent]
        mask = pa.array(np.isin(states, cut_codes))
        cut.append(pc.if_else(mask, pa.nulls(len(column), column.type), column) if cut_codes else column)
    return cut, pa.array([carried[int(code)] for code in states], pa.list_(pa.string()))


def _no_touches() -> _Touches:
    empty = np.empty(0, np.int64)
    return _Touches(empty, pa.array([], pa.binary()), np.empty(0, np.int32), empty, ())


def _parse_entry(text: str) -> tuple[str, int]:
    id_, _, first = text.rpartition("@")
    return id_, int(first)


def _flat(ids: pa.StringArray | pa.ChunkedArray) -> pa.StringArray:
    return ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
