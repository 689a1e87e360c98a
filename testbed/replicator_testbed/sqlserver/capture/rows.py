"""Change rows: what CDC makes of the changes of one transaction, for one capture instance.

Pure. The rules are those of README.md; each has a test that names its source.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from replicator_testbed.sqlserver.capture.decoding import Change, Row
from replicator_testbed.sqlserver.sqltypes import OLD_LARGE, SqlType, TypeName

_LSN: Final = struct.Struct(">QH")


class Operation(IntEnum):
    """`__$operation`."""

    DELETE = 1
    INSERT = 2
    UPDATE_BEFORE = 3
    UPDATE_AFTER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedColumn:
    """A column of an instance; its ordinal is its position in the instance's columns, from 1.

    Another column that gets the name of one that was dropped is not captured. `is_required`: it is NOT NULL.
    """

    name: str
    type: SqlType
    is_computed: bool = False
    is_dropped: bool = False
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A capture instance: what it captures, and the columns of its table's key."""

    name: str
    columns: tuple[CapturedColumn, ...]
    key: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazards:
    """Where reports of real servers differ, or say that a value may be missing: on, a reader that trusts them is caught.

    Attributes:
        large_null_after: An unchanged (max) value is NULL in operation 4 too [ISS: DBZ-6884].
        bits_null_in_deletes: A BIT that is NOT NULL is NULL in operation 1 [ISS: a comment in Estuary's tests, BitNotNullDeletion: seen in
            production several times, and nowhere in their own tests].
    """

    large_null_after: bool = True
    bits_null_in_deletes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """A row of a change table, without `__$start_lsn`, which its transaction gives."""

    seqval: bytes
    operation: Operation
    mask: bytes
    command_id: int
    values: tuple[str | None, ...]


def to_lsn(position: int, slot: int = 1) -> bytes:
    """A position in PostgreSQL's log as the ten bytes of an LSN of SQL Server; order is kept."""
    return _LSN.pack(position, slot)


def to_seqval(position: int, number: int) -> bytes:
    """`__$seqval` of a change: its position, and then its number in the transaction, which may have very many.

    PostgreSQL's positions fit into six bytes.
    """
    return (position << 32 | number).to_bytes(10, "big")


def update_mask(ordinals: Sequence[int], count: int) -> bytes:
    """`__$update_mask`: the bits of the ordinals, the lowest in the last byte [ISS: debezium/dbz#2650]."""
    bits = sum(1 << (ordinal - 1) for ordinal in ordinals)
    return bits.to_bytes((count + 7) // 8, "big")


def change_rows(changes: Sequence[Change], instance: Instance, hazards: Hazards) -> list[ChangeRow]:
    """The change rows of one transaction's changes of the instance's table, in order.

    A command of `__$command_id` is a statement, numbered for this instance alone; a key that changes makes two of one.
    """
    rows: list[ChangeRow] = []
    command = 0
    for _, group in itertools.groupby(changes, lambda change: change.statement):
        statement = list(group)
        moved = [change for change in statement if _moves(change, instance)]
        plain = [change for change in statement if not _moves(change, instance)]
        made = [row for change in plain for row in _plain_rows(change, instance, hazards, command + 1)]
        command += bool(made)
        rows += made
        if moved:
            rows += _moved_rows(moved, instance, hazards, command + 1)
            command += 2
    return rows


def _moves(change: Change, instance: Instance) -> bool:
    """Whether an update changes the row's key: then it is logged as a delete and an insert."""
    old, new = change.old, change.new
    return old is not None and new is not None and any(old.get(name) != new.get(name) for name in instance.key)


def _moved_rows(changes: Sequence[Change], instance: Instance, hazards: Hazards, command: int) -> Iterator[ChangeRow]:
    """Deletes first, then inserts.

    One row: both share their seqval [ISS: debezium PR 7728]. Many rows, a deferred update: each has a seqval of its own
    [ISS: the same]. The insert is a command of its own.
    """
    everything = range(1, len(instance.columns) + 1)
    mask = update_mask(list(everything), len(instance.columns))
    shares = len(changes) == 1
    for change in changes:
        yield ChangeRow(
            seqval=to_seqval(change.lsn, 2 * change.serial),
            operation=Operation.DELETE,
            mask=mask,
            command_id=command,
            values=_deleted(change.old or {}, instance, hazards),
        )
    last = changes[-1].lsn
    for change in changes:
        yield ChangeRow(
            seqval=to_seqval(change.lsn, 2 * change.serial) if shares else to_seqval(last, 2 * change.serial + 1),
            operation=Operation.INSERT,
            mask=mask,
            command_id=command + 1,
            values=_values(change.new or {}, instance),
        )


def _plain_rows(change: Change, instance: Instance, hazards: Hazards, command: int) -> Iterator[ChangeRow]:
    count = len(instance.columns)
    seqval = to_seqval(change.lsn, 2 * change.serial)
    everything = update_mask(range(1, count + 1), count)
    old, new = change.old, change.new
    if old is None or new is None:
        is_insert = new is not None
        yield ChangeRow(
            seqval=seqval,
            operation=Operation.INSERT if is_insert else Operation.DELETE,
            mask=everything,
            command_id=command,
            values=_values(new, instance) if new is not None else _deleted(old or {}, instance, hazards),
        )
        return
    changed = {
        column.name
        for column in instance.columns
        if not (column.is_computed or column.is_dropped)
        and column.name in new
        and old.get(column.name) != new.get(column.name)
    }
    if not changed:
        # Nothing that is captured has changed [LAB: rule 7].
        return
    ordinals = [ordinal for ordinal, column in enumerate(instance.columns, 1) if column.name in changed]
    mask = update_mask(ordinals, count)
    for operation, row in ((Operation.UPDATE_BEFORE, old), (Operation.UPDATE_AFTER, new)):
        yield ChangeRow(
            seqval=seqval,
            operation=operation,
            mask=mask,
            command_id=command,
            values=_updated(row, instance, changed, operation, hazards),
        )


def _values(row: Row, instance: Instance) -> tuple[str | None, ...]:
    """Computed columns are always NULL [DOC: rule 8]; what the table has no longer is NULL [LAB: rule 7]."""
    return tuple(
        [None if column.is_computed or column.is_dropped else row.get(column.name) for column in instance.columns]
    )


def _deleted(row: Row, instance: Instance, hazards: Hazards) -> tuple[str | None, ...]:
    """text, ntext and image are NULL [DOC: rule 8]."""
    values = zip(instance.columns, _values(row, instance), strict=True)
    return tuple(
        [
            None
            if column.type.name in OLD_LARGE
            or (hazards.bits_null_in_deletes and column.type.name is TypeName.BIT and column.is_required)
            else value
            for column, value in values
        ]
    )


def _updated(
    row: Row, instance: Instance, changed: set[str], operation: Operation, hazards: Hazards
) -> tuple[str | None, ...]:
    """A large value is NULL before unless it changed; the old large types always are [DOC, ISS: rule 8]."""
    is_before = operation is Operation.UPDATE_BEFORE
    values: list[str | None] = []
    for column, value in zip(instance.columns, _values(row, instance), strict=True):
        is_missing = (
            column.type.is_large
            and (is_before or hazards.large_null_after)
            and (column.name not in changed or (is_before and column.type.name in OLD_LARGE))
        )
        values.append(None if is_missing else value)
    return tuple(values)


def by_source(changes: Sequence[Change]) -> Mapping[int, list[Change]]:
    """The changes of each table."""
    found: dict[int, list[Change]] = {}
    for change in changes:
        found.setdefault(change.source, []).append(change)
    return found
