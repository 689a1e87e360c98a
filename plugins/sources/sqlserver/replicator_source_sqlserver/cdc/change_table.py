"""Reads of a change table: its statements, and its rows as Arrow columns.

The table is read itself, not through `cdc.fn_cdc_get_all_changes_…`, which has no `__$command_id`. Its index has the order that is asked
for here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from replicator.model.errors import TableError
from replicator.model.schema import TableSchema
from replicator_source_sqlserver.catalogue.tables import CaptureInstance, unsupported
from replicator_source_sqlserver.cdc.changes import NONE, Image, Positions, UnpairedImageError, absent, paired
from replicator_source_sqlserver.connecting.connection import Row
from replicator_source_sqlserver.lsn import SIZE
from replicator_source_sqlserver.names import quoted
from replicator_source_sqlserver.remedies import bit_nullable
from replicator_source_sqlserver.rows import columns_of, decoded
from replicator_source_sqlserver.types import ColumnSpec, DeclaredType, spec_of

_START, _COMMAND, _SEQVAL, _OPERATION, _MASK = range(5)
_META: Final = ("[__$start_lsn]", "[__$command_id]", "[__$seqval]", "[__$operation]", "[__$update_mask]")
_ORDER: Final = ", ".join(_META[:4])
_ANY_INTEGER: Final = pa.decimal128(38, 0)
LSN: Final = np.dtype((np.bytes_, SIZE))

Query = tuple[str, Sequence[Any]]
"""A statement with its parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """The last row that a read of a large transaction has reached."""

    command: int
    seqval: bytes
    operation: int

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the position of a row."""
        return cls(command=row[_COMMAND], seqval=bytes(row[_SEQVAL]), operation=row[_OPERATION])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTable:
    """A change table, read in the shape that the host knows.

    Attributes:
        specs: The specs of the columns of `schema`, by name, as the change table has them.
    """

    schema: TableSchema
    instance: CaptureInstance
    specs: Mapping[str, ColumnSpec]

    @classmethod
    def of(cls, schema: TableSchema, instance: CaptureInstance, columns: Mapping[str, DeclaredType]) -> ChangeTable:
        """Plan the reading of an instance whose change table has these columns, all that the schema has among them.

        Raises:
            TableError: `unsupported_type`: a column has got a type that cannot be replicated.
        """
        specs = {}
        for column in schema.columns:
            declared = columns[column.name]
            spec = spec_of(declared)
            if spec is None:
                raise unsupported(schema.table, [f"{column.name} ({declared})"])
            specs[column.name] = spec
        return cls(schema=schema, instance=instance, specs=specs)

    @property
    def name(self) -> str:
        """The change table, as in a FROM."""
        return change_table(self.instance.name)

    @property
    def _selected(self) -> str:
        columns = [
            f"{self.specs[c.name].selected.format(quoted(c.name))} AS c{number}"
            for number, c in enumerate(self.schema.columns, start=1)
        ]
        return ", ".join([*_META, *columns])

    def commits(self, after: bytes, upto: bytes) -> Query:
        """Return the statement that reads all rows of the commits after `after`, up to and including `upto`."""
        return (
            f"SELECT {self._selected} FROM {self.name} WHERE [__$start_lsn] > ? AND [__$start_lsn] <= ? ORDER BY {_ORDER}",
            [after, upto],
        )

    def part(self, commit: bytes, last: Last | None, limit: int) -> Query:
        """Return the statement that reads some rows of one commit: those after `last`, at most `limit`.

        The rows after it are three ranges of the index, each of which the server finds at once.
        """
        if last is None:
            pieces: list[tuple[str, list[Any]]] = [("", [])]
        else:
            pieces = [
                (
                    " AND [__$command_id] = ? AND [__$seqval] = ? AND [__$operation] > ?",
                    [last.command, last.seqval, last.operation],
                ),
                (" AND [__$command_id] = ? AND [__$seqval] > ?", [last.command, last.seqval]),
                (" AND [__$command_id] > ?", [last.command]),
            ]
        parts = [
            f"SELECT * FROM (SELECT TOP ({limit}) {self._selected} FROM {self.name} WHERE [__$start_lsn] = ?{condition}"
            f" ORDER BY {_ORDER}) p{number}"
            for number, (condition, _) in enumerate(pieces)
        ]
        parameters = [value for _, values in pieces for value in (commit, *values)]
        return f"SELECT TOP ({limit}) * FROM ({' UNION ALL '.join(parts)}) u ORDER BY {_ORDER}", parameters

    def end(self, commit: bytes) -> Query:
        """Return the statement that reads the position of the last row of a commit; the index has it."""
        order = ", ".join(f"{name} DESC" for name in _META[1:4])
        return f"SELECT TOP (1) {', '.join(_META)} FROM {self.name} WHERE [__$start_lsn] = ? ORDER BY {order}", [commit]

    def decode(self, rows: Sequence[Row]) -> Decoded:
        """Convert rows in the order of the log to changes.

        Raises:
            TableError: The rows cannot be decoded.
        """
        table = str(self.schema.table)
        columns = columns_of(rows) if rows else [()] * (len(_META) + len(self.schema.columns))
        starts, seqvals = _lsns(columns[_START]), _lsns(columns[_SEQVAL])
        images, masks = columns[_OPERATION], columns[_MASK]
        try:
            changes = paired(starts, seqvals, images)
            lobs = {c.name: self.instance.ordinals[c.name] for c in self.schema.columns if self.specs[c.name].is_lob}
            missing = absent(masks, images, {self.schema.fields[name]: ordinal for name, ordinal in lobs.items()})
        except UnpairedImageError as error:
            raise TableError(
                f"The change table of {self.instance.name} has half of an UPDATE.",
                code="corrupt_rows",
                table=table,
                action="Run `replicator snapshot NAME TABLE`.",
            ) from error
        arrays = [
            self._column(values, column.name, column.type)
            for values, column in zip(columns[len(_META) :], self.schema.columns, strict=True)
        ]
        self._verify_bits(arrays, changes.before)
        first = np.where(changes.before == NONE, changes.after, changes.before)
        return Decoded(
            schema=self.schema,
            starts=starts[first],
            seqvals=seqvals[first],
            operations=changes.operations,
            before=_images(arrays, self.schema, changes.before, is_before=True),
            row=_images(arrays, self.schema, changes.after, is_before=False),
            absent=missing.take(_indices(changes.after)),
            bytes=sum(array.nbytes for array in arrays),
        )

    def _verify_bits(self, arrays: Sequence[pa.Array], before: Positions) -> None:
        """Check the BITs of deleted rows, which servers may leave out: a row is found by its key, or without one by all its values.

        Raises:
            TableError: `corrupt_rows`.
        """
        indices = pa.array(before[before != NONE])
        key = self.schema.key
        for column, array in zip(self.schema.columns, arrays, strict=True):
            tells = column.name in key if key else not column.nullable
            if pa.types.is_boolean(column.type) and tells and array.take(indices).null_count:
                raise TableError(
                    f"the change table of {self.instance.name} has NULL for {column.name}, which is NOT NULL, of a deleted row:"
                    f" which row that was is unknown{'' if key else ' without a key'}.",
                    code="corrupt_rows",
                    table=str(self.schema.table),
                    action=self._without_bits(column.name),
                )

    def _without_bits(self, column: str) -> str:
        if self.schema.key:
            return "Give the table a primary key that has no bit, or exclude it."
        # The rows that were deleted are still in the target.
        nullable = bit_nullable(self.schema.table, column)
        again = "run `replicator snapshot NAME TABLE`"
        return f"Give the table a primary key, or: {nullable} Then {again}. Or exclude the table."

    def _column(self, values: Sequence[Any], name: str, wanted: pa.DataType) -> pa.Array:
        spec = self.specs[name]
        array = decoded(values, spec, name=name)
        # A column's type was changed, and with it the change table, with all that is in it. Or it is an IDENTITY, which change tables
        # have as an int or a bigint: Arrow makes no decimal of fewer digits of one at once, whatever its values are.
        if pa.types.is_integer(array.type) and pa.types.is_decimal(wanted):
            array = array.cast(_ANY_INTEGER)
        return array if array.type == wanted else array.cast(wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Changes of one table in the order of the log. All columns have the same length.

    Attributes:
        starts, seqvals: The position of the row that each change begins at; arrays of `LSN`.
        before, row, absent: See `change_schema`.
        bytes: The size of the decoded columns.
    """

    schema: TableSchema
    starts: Any
    seqvals: Any
    operations: pa.StringArray
    before: pa.StructArray
    row: pa.StructArray
    absent: pa.ListArray
    bytes: int

    def __len__(self) -> int:
        """Return the number of changes."""
        return len(self.operations)


def joined(parts: Sequence[Decoded]) -> Decoded:
    """Join changes of one table in one shape: at least one part, each later than the one before."""
    if len(parts) == 1:
        return parts[0]
    return Decoded(
        schema=parts[0].schema,
        starts=np.concatenate([part.starts for part in parts]),
        seqvals=np.concatenate([part.seqvals for part in parts]),
        operations=pa.concat_arrays([part.operations for part in parts]),
        before=pa.concat_arrays([part.before for part in parts]),
        row=pa.concat_arrays([part.row for part in parts]),
        absent=pa.concat_arrays([part.absent for part in parts]),
        bytes=sum(part.bytes for part in parts),
    )


def up_to(changes: Decoded, lsn: bytes) -> Decoded:
    """Return the changes of the commits up to and including one."""
    count = int(np.searchsorted(changes.starts, np.bytes_(lsn), side="right"))
    if count == len(changes):
        return changes
    return Decoded(
        schema=changes.schema,
        starts=changes.starts[:count],
        seqvals=changes.seqvals[:count],
        operations=changes.operations.slice(0, count),
        before=changes.before.slice(0, count),
        row=changes.row.slice(0, count),
        absent=changes.absent.slice(0, count),
        bytes=changes.bytes * count // len(changes),
    )


def change_table(instance: str) -> str:
    """Return the change table of an instance, as in a FROM."""
    return f"cdc.{quoted(f'{instance}_CT')}"


def split_off_half(rows: Sequence[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Split off the last row if its other half may follow; return the other rows, and that one."""
    has_half = bool(rows) and rows[-1][_OPERATION] in (Image.DELETED, Image.BEFORE)
    return (rows[:-1], rows[-1:]) if has_half else (rows, ())


def start_of(row: Row) -> bytes:
    """Return the commit of a row."""
    return bytes(row[_START])


def _lsns(values: Sequence[bytes]) -> Any:
    """Convert positions to an array, at once: numpy would look at each."""
    return np.frombuffer(b"".join(values), LSN)


def _indices(positions: Positions) -> pa.Array:
    return pa.array(positions, mask=positions == NONE)


def _images(
    arrays: Sequence[pa.Array], schema: TableSchema, positions: Positions, *, is_before: bool
) -> pa.StructArray:
    kind = schema.before_type if is_before else schema.row_type
    by_field = dict(zip((schema.fields[c.name] for c in schema.columns), arrays, strict=True))
    indices = _indices(positions)
    fields = list(kind)
    return pa.StructArray.from_arrays(
        [by_field[f.name].take(indices) for f in fields], fields=fields, mask=pa.array(positions == NONE)
    )
