"""Row images of one table version to Arrow columns, all rows of a pull at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.errors import TableError, UnsupportedTypeError
from replicator.model.schema import TableSchema
from replicator.plugins.kit.arrow import Bools, Longs
from replicator_source_mysql.binlog.buffer import Buffer
from replicator_source_mysql.binlog.columns import column_decoder, width
from replicator_source_mysql.binlog.events import PARTIAL_UPDATE, RowsEvent, corrupt
from replicator_source_mysql.binlog.images import Layout, Slices, walk
from replicator_source_mysql.binlog.tablemap import TableMap
from replicator_source_mysql.binlog.types import ColumnSpec, TypeKind, Unrepresentable, ambiguous_key

_HEADER_SIZE: Final = 8
_PACKED_ONE_BYTE_MAX: Final = 250
_OPERATIONS: Final = pa.array(["INSERT", "UPDATE", "DELETE"])
_INSERT: Final = 0
_UPDATE: Final = 1
_DELETE: Final = 2
_KINDS: Final = {
    RowsEvent.WRITE_V1: _INSERT,
    RowsEvent.UPDATE_V1: _UPDATE,
    RowsEvent.DELETE_V1: _DELETE,
    RowsEvent.WRITE_V2: _INSERT,
    RowsEvent.UPDATE_V2: _UPDATE,
    RowsEvent.DELETE_V2: _DELETE,
}
_CODES: Final = np.full(256, -1, np.int8)
for _event, _kind in _KINDS.items():
    _CODES[_event] = _kind
# Offsets into the joined bodies are 32 bits wide.
_BYTES_MAX: Final = (1 << 31) - 64


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """The columns of `change_schema` that rows events fill, one row per change (an UPDATE's two images are one).

    `event` (int64) says from which of the events given to `decode` each row came, ascending; `operation`, `before` and `row` are as in
    `replicator.model.events.change_schema`. Nothing is ever absent: images that lack columns are refused.
    """

    event: npt.NDArray[np.int64]
    operation: pa.Array
    before: pa.Array
    row: pa.Array


class RowDecoder:
    """Decodes rows events of one table version. Build one per `TableMap` (by identity) and schema version, and keep it.

    Args:
        table_map: The version.
        schema: Schema that the rows are decoded to.
        specs: One per column of `schema`: the type by which its values are read.
        positions: One per column of `schema`: its position in `table_map`. Columns of the map that are not named are skipped.
        unrepresentable: Handling of zero and partial dates outside the key; in key columns they always fail.
        on_nulled: Called with the column and the number of its values that became NULL for that.

    Raises:
        UnsupportedTypeError: A column, skipped ones included, has a type whose length cannot be known.
    """

    def __init__(
        self,
        table_map: TableMap,
        schema: TableSchema,
        specs: Sequence[ColumnSpec],
        positions: Sequence[int],
        *,
        unrepresentable: Unrepresentable,
        on_nulled: Callable[[str, int], None],
    ) -> None:
        self._schema = schema
        self._table = str(schema.table)
        self._unrepresentable: Unrepresentable = unrepresentable
        self._on_nulled = on_nulled
        columns = table_map.columns
        try:
            widths = [width(column, is_read=column.position in set(positions)) for column in columns]
        except ValueError:
            raise UnsupportedTypeError(
                "A column's type in the log is unknown, so the lengths of its values are unknown.",
                code="unsupported_type",
                table=self._table,
                action="Drop the column, then run `replicator snapshot NAME TABLE`; or exclude the table.",
            ) from None
        self._layout = Layout(widths, [column.is_nullable for column in columns], self._table)
        self._column_of = {position: index for index, position in enumerate(positions)}
        names = [c.name for c in schema.columns]
        self._decoders = [
            column_decoder(columns[position], spec, is_key=name in schema.key)
            for name, position, spec in zip(names, positions, specs, strict=True)
        ]
        self._kinds_of = [spec.kind for spec in specs]
        self._keys = {names.index(name) for name in schema.key}
        self._before = [names.index(name) for name in schema.key] or list(range(len(names)))
        self._wanted_after = self._wanted(positions)
        self._wanted_before = self._wanted([positions[index] for index in self._before])
        self._bitmap_head, self._bitmap_mask = _column_head(len(columns))

    def _wanted(self, positions: Sequence[int]) -> Bools:
        wanted = np.zeros(len(self._layout.widths), bool)
        wanted[list(positions)] = True
        return wanted

    def decode(self, events: Sequence[tuple[int, bytes | memoryview]]) -> DecodedRows:
        """Decode rows events, in order.

        Args:
            events: (type code, body) of each; V1 and V2 alike. Compressed events are uncompressed by the caller
                (`uncompressed_body`), those inside a TRANSACTION_PAYLOAD come from `transaction_payload`.

        Raises:
            CorruptStreamError: `corrupt_binlog_event`: the bytes are no rows of this table.
            TableError: `row_image_not_full` (an image lacks columns), `unsupported_row_event` (PARTIAL_JSON),
                `unrepresentable_value`, `row_event_too_large`, `corrupt_rows` (a value has not the form of its type).
        """
        codes, bodies = zip(*events, strict=True) if events else ((), ())
        if sum(map(len, bodies)) > _BYTES_MAX:
            return self._decode_halves(events)
        numbers = np.array(codes, np.int64)
        kinds = self._kinds(numbers)
        buffer = Buffer(bodies)
        starts = self._image_starts(buffer, kinds, numbers >= RowsEvent.WRITE_V2)
        images, owners = self._layout.image_offsets(buffer, starts, buffer.ends)
        return self._rows(buffer, images, owners, kinds)

    def _decode_halves(self, events: Sequence[tuple[int, bytes | memoryview]]) -> DecodedRows:
        if len(events) == 1:
            raise self._too_large(len(events[0][1]))
        middle = len(events) // 2
        first, second = self.decode(events[:middle]), self.decode(events[middle:])
        try:
            return DecodedRows(
                np.concatenate([first.event, second.event + middle]),
                pa.concat_arrays([first.operation, second.operation]),
                pa.concat_arrays([first.before, second.before]),
                pa.concat_arrays([first.row, second.row]),
            )
        except pa.ArrowInvalid:
            # A column's texts are more than 32-bit offsets reach.
            raise self._too_large(sum(len(body) for _, body in events)) from None

    def _too_large(self, size: int) -> TableError:
        return TableError(
            f"Rows events of {size} bytes are more than can be decoded at once.",
            code="row_event_too_large",
            table=self._table,
            action="Lower binlog_row_event_max_size, then run `replicator snapshot NAME TABLE`; or exclude the table.",
        )

    def _kinds(self, codes: Longs) -> npt.NDArray[np.int8]:
        if (codes == PARTIAL_UPDATE).any():
            raise TableError(
                "An update came as differences of JSON documents, which do not hold the whole row.",
                code="unsupported_row_event",
                table=self._table,
                action="Remove PARTIAL_JSON where it is set: by the session that wrote (SET SESSION binlog_row_value_options), or for all"
                " (SET GLOBAL binlog_row_value_options = ''). Then run `replicator snapshot NAME TABLE`.",
            )
        kinds = _CODES[codes]
        if (kinds < 0).any():
            raise corrupt(f"Event type {codes[kinds < 0][0]} is not a rows event.", table=self._table)
        return kinds

    # ---- where the images begin ----

    def _image_starts(self, buffer: Buffer, kinds: npt.NDArray[np.int8], is_v2: Bools) -> Longs:
        """Read the events' headers: table number, flags, extra data (V2), number of columns, bitmaps of columns."""
        starts = buffer.starts + _HEADER_SIZE
        self._check_bounds(starts + 2 * is_v2, buffer)
        if is_v2.any():
            extra = buffer.little(starts, 2).view(np.int64)
            if (extra[is_v2] < 2).any():  # noqa: PLR2004  (the length counts itself)
                raise corrupt("A rows event's extra data is shorter than its length.", table=self._table)
            starts = starts + np.where(is_v2, extra, 0)
        head, mask = self._bitmap_head, self._bitmap_mask
        updates = kinds == _UPDATE
        bitmap_size = self._layout.bitmap_size
        self._check_bounds(starts + len(head) + bitmap_size * updates, buffer)
        self._check_head(buffer, starts, head, mask)
        starts = starts + len(head)
        if updates.any():
            # The bitmap of the images afterwards.
            self._check_head(buffer, starts[updates], head[-bitmap_size:], mask[-bitmap_size:])
            starts = starts + bitmap_size * updates
        return starts

    def _check_bounds(self, starts: Longs, buffer: Buffer) -> None:
        if (starts > buffer.ends).any():
            raise corrupt("A rows event ends within its header.", table=self._table)

    def _check_head(
        self, buffer: Buffer, starts: Longs, head: npt.NDArray[np.uint8], mask: npt.NDArray[np.uint8]
    ) -> None:
        found = buffer.bytes[starts[:, None] + np.arange(len(head))] | mask
        if (found == head).all():
            return
        bitmap_size = self._layout.bitmap_size
        if (found[:, :-bitmap_size] != head[:-bitmap_size]).any():
            raise corrupt("A rows event has another number of columns than its table.", table=self._table)
        raise TableError(
            "A row image does not hold all columns.",
            code="row_image_not_full",
            table=self._table,
            action="Remove what sets it: the session that wrote (SET SESSION binlog_row_image), or for all (SET GLOBAL binlog_row_image ="
            " FULL). Then run `replicator snapshot NAME TABLE`."
            " If it is FULL and the table has generated columns, the server leaves these out: exclude the table"
            " (docs/sources/mysql.md, Limits).",
        )

    # ---- columns ----

    def _rows(self, buffer: Buffer, images: Longs, owners: Longs, kinds: npt.NDArray[np.int8]) -> DecodedRows:
        image_kinds = kinds[owners]
        updates = image_kinds == _UPDATE
        is_last = np.ones(len(images), bool)
        if updates.any():
            counts = np.bincount(owners, minlength=len(kinds))
            if (counts[kinds == _UPDATE] % 2).any():
                raise corrupt("An update ends without its second image.", table=self._table)
            within = np.arange(len(images)) - (np.cumsum(counts) - counts)[owners]
            is_last = ~updates | (within % 2 == 1)
        last = np.flatnonzero(is_last)
        row_kinds = image_kinds[last]
        is_delete = row_kinds == _DELETE
        afters = self._columns(buffer, images[last], self._wanted_after, ~is_delete if is_delete.any() else None)
        return DecodedRows(
            event=owners[last],
            operation=_OPERATIONS.take(pa.array(row_kinds)),
            before=self._befores(buffer, images, last, row_kinds, afters),
            row=_struct(self._schema.row_type, afters, is_delete),
        )

    def _columns(self, buffer: Buffer, images: Longs, wanted: Bools, there: Bools | None) -> dict[int, pa.Array]:
        """Columns of the schema, by their position in it; null where not `there`."""
        arrays = {}
        for position, slices in walk(self._layout, buffer, images, wanted):
            if there is not None:
                valid = there if slices.valid is None else slices.valid & there
                slices = Slices(slices.starts, slices.ends, valid)  # noqa: PLW2901  (the same slices, fewer of them)
            index = self._column_of[position]
            arrays[index] = self._decode(index, buffer, slices)
        return arrays

    def _decode(self, index: int, buffer: Buffer, slices: Slices) -> pa.Array:
        column = self._schema.columns[index]
        try:
            array, unheld = self._decoders[index](buffer, slices)
        except Exception as error:  # noqa: BLE001 (translated)
            # Whatever it is, it is about this table's values. ValueErrors are not chained: Arrow's messages hold values.
            raise TableError(
                f"Column {column.name} holds bytes that are not a valid {column.source_type} ({type(error).__name__}).",
                code="corrupt_rows",
                table=self._table,
                action="Run `replicator snapshot NAME TABLE`; if it fails again, exclude the table and report its CREATE TABLE.",
            ) from (None if isinstance(error, ValueError) else error)
        if unheld and index in self._keys and self._kinds_of[index] in {TypeKind.TEXT, TypeKind.ENUM, TypeKind.SET}:
            raise ambiguous_key(column.name, unheld, len(array), table=self._table)
        if unheld and (index in self._keys or self._unrepresentable == "fail"):
            raise UnsupportedTypeError(
                f"Column {column.name}: {unheld} of {len(array)} values of type {column.source_type} cannot be held as {column.type}.",
                code="unrepresentable_value",
                table=self._table,
                action="Fix the values, or set `unrepresentable: null` if they may become NULL; then run `replicator snapshot NAME TABLE`.",
            )
        if unheld:
            self._on_nulled(column.name, unheld)
        return array

    def _befores(
        self, buffer: Buffer, images: Longs, last: Longs, row_kinds: npt.NDArray[np.int8], afters: dict[int, pa.Array]
    ) -> pa.Array:
        before_type = self._schema.before_type
        rows = np.flatnonzero(row_kinds != _INSERT)
        if not len(rows):
            return pa.nulls(len(last), before_type)
        old = last[rows] - (row_kinds[rows] == _UPDATE)
        columns = self._columns(buffer, images[old], self._wanted_before, None)
        befores = [columns[index] for index in self._before]
        if self._schema.key:
            kept = row_kinds[rows] == _DELETE
            for index, before in zip(self._before, befores, strict=True):
                after = afters[index] if len(rows) == len(last) else afters[index].take(pa.array(rows))
                kept |= pc.not_equal(before, after).fill_null(True).to_numpy(zero_copy_only=False)
            if not kept.any():
                return pa.nulls(len(last), before_type)
            if not kept.all():
                rows = rows[kept]
                befores = [before.filter(pa.array(kept)) for before in befores]
        return _spread_struct(before_type, befores, rows, len(last))


def _column_head(count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The bytes in front of the images when all columns are there, number and bitmap, and the mask of the bits that do not matter."""
    number = bytes([count]) if count <= _PACKED_ONE_BYTE_MAX else b"\xfc" + count.to_bytes(2, "little")
    bitmap_size = (count + 7) // 8
    head = np.frombuffer(number + b"\xff" * bitmap_size, np.uint8)
    unused = 0xFF & (0xFF << (count % 8)) if count % 8 else 0
    mask = np.zeros(len(head), np.uint8)
    mask[-1] = unused
    return head, mask


def _struct(struct_type: pa.StructType, columns: dict[int, pa.Array], is_null: Bools) -> pa.Array:
    mask = pa.array(is_null) if is_null.any() else None
    return pa.StructArray.from_arrays([columns[i] for i in range(len(columns))], fields=list(struct_type), mask=mask)


def _spread_struct(struct_type: pa.StructType, columns: Sequence[pa.Array], rows: Longs, count: int) -> pa.Array:
    """Put values at their rows among `count`, with nulls elsewhere."""
    if len(rows) == count:
        return pa.StructArray.from_arrays(list(columns), fields=list(struct_type))
    index = np.zeros(count, np.int64)
    index[rows] = np.arange(len(rows))
    missing = np.ones(count, bool)
    missing[rows] = False
    lookup = pa.array(index, mask=missing)
    return pa.StructArray.from_arrays(
        [column.take(lookup) for column in columns], fields=list(struct_type), mask=pa.array(missing)
    )
