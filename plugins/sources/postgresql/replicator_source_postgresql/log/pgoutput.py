"""The messages of pgoutput, protocol version 1: their framing, and rows into Arrow.

Rows are decoded per table for all rows of a pull at once (`decode_rows`); the few other messages one by one
(`Relation`, `Truncate`, `Message`).
Format: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.errors import KeyMissingError, TableError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.arrow import Bools, Longs
from replicator_source_postgresql.connecting.errors import corrupt_rows
from replicator_source_postgresql.types import PgType, Unrepresentable
from replicator_source_postgresql.wire import (
    TEXT,
    UNCHANGED,
    Bytes,
    ColumnCountError,
    Frames,
    MalformedError,
    Slices,
    read_tuples,
)

BEGIN: Final = ord("B")
COMMIT: Final = ord("C")
ORIGIN: Final = ord("O")
RELATION: Final = ord("R")
TYPE: Final = ord("Y")
INSERT: Final = ord("I")
UPDATE: Final = ord("U")
DELETE: Final = ord("D")
TRUNCATE: Final = ord("T")
MESSAGE: Final = ord("M")

_NEW: Final = ord("N")
_OLD_KEY: Final = ord("K")
_OLD_ROW: Final = ord("O")
_OPERATIONS: Final = pa.array(["INSERT", "UPDATE", "DELETE"])


class MessageReader:
    """Reads one message's fields in order; MalformedError where they run over its end. `is_utf8`: every text until now was UTF-8."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._offset = 0
        self.is_utf8 = True

    def integer(self, size: int, *, signed: bool = False) -> int:
        """Read a big-endian integer."""
        return int.from_bytes(self.bytes(size), "big", signed=signed)

    def bytes(self, size: int) -> bytes:
        """Read `size` bytes."""
        end = self._offset + size
        if end > len(self._content):
            raise MalformedError("a message ends too early")
        part = self._content[self._offset : end]
        self._offset = end
        return part

    def text(self) -> str:
        """Read a text that ends with a zero byte. In a database without an encoding it may be any bytes."""
        end = self._content.find(b"\0", self._offset)
        if end < 0:
            raise MalformedError("a text in a message does not end")
        part = self._content[self._offset : end]
        self._offset = end + 1
        try:
            return part.decode()
        except UnicodeDecodeError:
            self.is_utf8 = False
            return part.decode(errors="replace")

    def finish(self) -> None:
        """Raise MalformedError if something is left."""
        if self._offset != len(self._content):
            raise MalformedError("a message is longer than its fields")


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as a Relation message describes it; `is_identity`: part of the replica identity."""

    name: str
    type_oid: int
    typmod: int
    is_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A Relation message: the shape of the rows that follow under this id.

    Names that are not UTF-8 have replacement characters. `is_named`: the table's name is UTF-8; `has_names`: its columns' names are, too.
    """

    id: int
    table: TableId
    identity: str
    columns: tuple[RelationColumn, ...]
    is_named: bool
    has_names: bool

    @classmethod
    def read(cls, content: bytes) -> Relation:
        """Read the message after its kind byte."""
        cursor = MessageReader(content)
        relation_id = cursor.integer(4)
        table = TableId(cursor.text() or "pg_catalog", cursor.text())
        is_named = cursor.is_utf8
        identity = chr(cursor.integer(1))
        columns = tuple(_relation_column(cursor) for _ in range(cursor.integer(2)))
        cursor.finish()
        return cls(relation_id, table, identity, columns, is_named, cursor.is_utf8)


def _relation_column(cursor: MessageReader) -> RelationColumn:
    flags = cursor.integer(1)
    return RelationColumn(cursor.text(), cursor.integer(4), cursor.integer(4, signed=True), bool(flags & 1))


@dataclass(frozen=True, slots=True)
class Message:
    """A message that `pg_logical_emit_message` wrote."""

    is_transactional: bool
    prefix: str
    content: bytes

    @classmethod
    def read(cls, content: bytes) -> Message:
        """Read the message after its kind byte."""
        cursor = MessageReader(content)
        flags = cursor.integer(1)
        cursor.integer(8)
        prefix = cursor.text()
        body = cursor.bytes(cursor.integer(4))
        cursor.finish()
        return cls(bool(flags & 1), prefix, body)


def read_truncate(content: bytes) -> tuple[int, ...]:
    """Read the relation ids of a Truncate message, after its kind byte."""
    cursor = MessageReader(content)
    count = cursor.integer(4)
    cursor.integer(1)
    if count * 4 != len(content) - 5:
        raise MalformedError("a Truncate message does not have the length it says")
    return tuple(cursor.integer(4) for _ in range(count))


@dataclass(frozen=True)
class Shape:
    """A relation whose rows are replicated: its table version, and the type of each of its columns."""

    schema: TableSchema
    types: tuple[PgType, ...]

    @cached_property
    def key_positions(self) -> tuple[int, ...]:
        """Positions of the key columns, in key order; every column for a table without a key."""
        names = [c.name for c in self.schema.columns]
        return tuple(names.index(name) for name in self.schema.key) or tuple(range(len(names)))


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """The columns of `change_schema` that a row message fills."""

    operation: pa.Array
    absent: pa.Array
    before: pa.Array
    row: pa.Array


def decode_rows(
    frames: Frames,
    kinds: Bytes,
    offsets: Longs,
    limits: Longs,
    shape: Shape,
    unrepresentable: Unrepresentable,
    on_nulled: Callable[[str, int], None],
) -> DecodedRows:
    """Decode Insert, Update and Delete messages of one table.

    Args:
        frames: The messages.
        kinds: Each message's kind: I, U or D.
        offsets: Position in each message after the relation id.
        limits: End of each message.
        shape: The table version and the column types of the rows.
        unrepresentable: For columns outside the key; values in key columns that cannot be held always fail.
        on_nulled: Called with the column and the number of its values that became NULL for that.

    Raises:
        MalformedError: The bytes are no such messages.
        TableError: This table cannot be decoded: KeyMissingError, UnsupportedTypeError, or `corrupt_rows` (a value is none of its
            type, a row has another number of columns).
    """
    decoder = _RowDecoder(frames, kinds, offsets, limits, shape, unrepresentable, on_nulled)
    return decoder.decode()


class _RowDecoder:
    """Steps: find the tuples, read the old and the new ones, fill unchanged values from old ones, decode column by column."""

    def __init__(
        self,
        frames: Frames,
        kinds: Bytes,
        offsets: Longs,
        limits: Longs,
        shape: Shape,
        unrepresentable: Unrepresentable,
        on_nulled: Callable[[str, int], None],
    ) -> None:
        self._frames = frames
        self._shape = shape
        self._unrepresentable: Unrepresentable = unrepresentable
        self._on_nulled = on_nulled
        self._count = len(kinds)
        self._kinds = kinds
        self._is_delete = kinds == DELETE
        try:
            self._read_tuples(offsets, limits)
        except ColumnCountError as error:
            raise corrupt_rows(shape.schema.table, str(error), error) from error

    def _read_tuples(self, offsets: Longs, limits: Longs) -> None:
        frames, width = self._frames, len(self._shape.types)
        parts = frames.bytes[offsets]
        has_old = (parts == _OLD_KEY) | (parts == _OLD_ROW)
        has_new = parts == _NEW
        if not np.where(self._kinds == INSERT, has_new, np.where(self._is_delete, has_old, has_old | has_new)).all():
            raise MalformedError("a row message has an unexpected part")
        self._old_rows = np.flatnonzero(has_old)
        self._old_is_whole = parts[self._old_rows] == _OLD_ROW
        new_offsets = offsets + 1
        self._old: list[Slices] = []
        if len(self._old_rows):
            self._old, after = read_tuples(frames, new_offsets[self._old_rows], limits[self._old_rows], width)
            of_deletes = self._is_delete[self._old_rows]
            if (after[of_deletes] != limits[self._old_rows][of_deletes]).any() or (
                frames.bytes[after[~of_deletes]] != _NEW
            ).any():
                raise MalformedError("a row message is too long or too short")
            new_offsets[self._old_rows] = after + 1
        self._new_rows = np.flatnonzero(~self._is_delete)
        new_limits = limits[self._new_rows]
        self._new, after = read_tuples(frames, new_offsets[self._new_rows], new_limits, width)
        if (after != new_limits).any():
            raise MalformedError("a row message is longer than its row")

    def decode(self) -> DecodedRows:
        schema = self._shape.schema
        keys = set(self._shape.key_positions) if schema.key else set()
        columns, absent = [], {}
        for position in range(len(self._shape.types)):
            slices = self._fill(position, position in keys)
            unchanged = None if slices.kinds is None else slices.is_kind(UNCHANGED)
            if unchanged is not None and unchanged.any():
                self._check_inserts(position, unchanged)
                absent[schema.fields[schema.columns[position].name]] = unchanged
            if position in keys and slices.kinds is not None and (slices.kinds != TEXT).any():
                raise self._key_missing(position)
            columns.append(self._decode(position, slices, is_key=position in keys))
        return DecodedRows(
            operation=self._operations(),
            absent=self._absent_lists(absent),
            before=self._before(columns),
            row=self._struct(schema.row_type, self._all_rows(columns), self._is_delete),
        )

    def _fill(self, position: int, is_key: bool) -> Slices:
        """Return a column's slices of the new tuples; unchanged values come from the old one: a whole row has all, a key its own."""
        new = self._new[position]
        if new.kinds is None or not len(self._old_rows):
            return new
        unchanged = new.kinds == UNCHANGED
        if not unchanged.any():
            return new
        index = np.full(self._count, -1, np.int64)
        index[self._old_rows] = np.arange(len(self._old_rows))
        source = index[self._new_rows]
        old = self._old[position]
        has_value = old.is_kind(TEXT) & (self._old_is_whole | is_key)
        fill = unchanged & (source >= 0)
        fill[fill] = has_value[source[fill]]
        starts, ends, kinds = new.starts.copy(), new.ends.copy(), new.kinds.copy()
        starts[fill], ends[fill], kinds[fill] = old.starts[source[fill]], old.ends[source[fill]], TEXT
        return Slices(starts, ends, kinds)

    def _decode(self, position: int, slices: Slices, *, is_key: bool) -> pa.Array:
        mapping, table = self._shape.types[position], self._shape.schema.table
        name = self._shape.schema.columns[position].name
        values = slices.array(self._frames)
        try:
            decoded, unheld = mapping.from_text(values)
        except ValueError as wrong:
            # Not chained: Arrow's message holds the value.
            raise corrupt_rows(table, f"column {name} holds bytes that are no {mapping.source_type}", wrong) from None
        if unheld and (is_key or self._unrepresentable == "fail"):
            raise mapping.unheld_in(mapping.unheld_error(unheld, len(values)), table, name)
        if unheld:
            self._on_nulled(name, unheld)
        return decoded

    def _all_rows(self, columns: Sequence[pa.Array]) -> Sequence[pa.Array]:
        """Return the columns of the new tuples, with nulls for deletes."""
        if len(self._new_rows) == self._count:
            return columns
        return _spread(columns, self._new_rows, self._count)

    def _operations(self) -> pa.Array:
        codes = np.zeros(self._count, np.int8)
        codes[self._kinds == UPDATE] = 1
        codes[self._is_delete] = 2
        return _OPERATIONS.take(pa.array(codes))

    def _absent_lists(self, absent: Mapping[str, Bools]) -> pa.Array:
        list_type = pa.list_(pa.string())
        if not absent:
            return pa.nulls(self._count, list_type)
        lacks = np.stack(list(absent.values()), axis=1)
        counts = np.zeros(self._count, np.int64)
        counts[self._new_rows] = lacks.sum(axis=1)
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        names = pa.array(list(absent), pa.string()).take(pa.array(np.nonzero(lacks)[1]))
        return pa.ListArray.from_arrays(pa.array(offsets), names)

    def _before(self, columns: Sequence[pa.Array]) -> pa.Array:
        schema = self._shape.schema
        if not schema.key:
            self._check_whole_rows()
        if not len(self._old_rows):
            return pa.nulls(self._count, schema.before_type)
        positions = self._shape.key_positions
        olds = []
        for position in positions:
            if schema.key and not self._old[position].is_kind(TEXT).all():
                raise self._key_missing(position)
            olds.append(self._decode(position, self._old[position], is_key=bool(schema.key)))
        rows, kept = self._old_rows, np.ones(len(self._old_rows), bool)
        if schema.key:
            kept = self._is_delete[rows] | self._key_changed(olds, [columns[p] for p in positions])
        if not kept.all():
            rows = rows[kept]
            olds = [old.filter(pa.array(kept)) for old in olds]
        is_null = np.ones(self._count, bool)
        is_null[rows] = False
        return self._struct(schema.before_type, _spread(olds, rows, self._count), is_null)

    def _key_changed(self, olds: Sequence[pa.Array], news: Sequence[pa.Array]) -> Bools:
        """Mark the old tuples whose key differs from that of the new tuple of their message; true for deletes, which have none."""
        index = np.full(self._count, -1, np.int64)
        index[self._new_rows] = np.arange(len(self._new_rows))
        indexes = index[self._old_rows]
        lookup = pa.array(indexes, mask=indexes < 0)
        changed = np.zeros(len(indexes), bool)
        for old, new in zip(olds, news, strict=True):
            changed |= pc.not_equal(old, new.take(lookup)).fill_null(True).to_numpy(zero_copy_only=False)
        return changed

    def _check_whole_rows(self) -> None:
        """Check that each update and delete of a table without a key brings its old row: only whole rows tell its rows apart."""
        wanting = int((self._kinds != INSERT).sum())
        if wanting != len(self._old_rows) or not self._old_is_whole.all():
            raise KeyMissingError(
                f"{wanting - int(self._old_is_whole.sum())} changes came without the old row, which a table without a key needs.",
                code="old_row_missing",
                table=str(self._shape.schema.table),
                action="ALTER TABLE … REPLICA IDENTITY FULL, then run `replicator snapshot NAME TABLE`.",
            )

    def _check_inserts(self, position: int, unchanged: Bools) -> None:
        """Check that no row entered a row filter without a value: such an UPDATE comes as an INSERT, without what it did not change."""
        if (self._kinds[self._new_rows][unchanged] == INSERT).any():
            raise KeyMissingError(
                f"A row entered the publication's row filter without its unchanged value of column"
                f" {self._shape.schema.columns[position].name}.",
                code="filtered_row_incomplete",
                table=str(self._shape.schema.table),
                action="ALTER TABLE … REPLICA IDENTITY FULL, or take the filter off; then run `replicator snapshot NAME TABLE`.",
            )

    def _key_missing(self, position: int) -> TableError:
        return KeyMissingError(
            f"A change came without a value of key column {self._shape.schema.columns[position].name}.",
            code="key_missing",
            table=str(self._shape.schema.table),
            action="Compare the table's replica identity with its key, then run `replicator snapshot NAME TABLE`.",
        )

    def _struct(self, struct_type: pa.StructType, columns: Sequence[pa.Array], is_null: Bools) -> pa.Array:
        if not struct_type.num_fields:
            validity = None if not is_null.any() else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
            return pa.Array.from_buffers(struct_type, self._count, [validity])
        mask = pa.array(is_null) if is_null.any() else None
        return pa.StructArray.from_arrays(list(columns), fields=list(struct_type), mask=mask)


def _spread(columns: Sequence[pa.Array], rows: npt.NDArray[np.int64], count: int) -> list[pa.Array]:
    """Put values at their rows among `count`, with nulls elsewhere."""
    if len(rows) == count:
        return list(columns)
    index = np.zeros(count, np.int64)
    index[rows] = np.arange(len(rows))
    missing = np.ones(count, bool)
    missing[rows] = False
    lookup = pa.array(index, mask=missing)
    return [column.take(lookup) for column in columns]
