"""Read change tables in blocks: memory use has a bound that the caller sets, however large rows are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pyodbc

from replicator.model.errors import SourceUnavailableError
from replicator.model.isolation import of_table
from replicator.model.schema import TableId
from replicator_source_sqlserver.cdc.change_table import (
    ChangeTable,
    Decoded,
    Last,
    Query,
    joined,
    split_off_half,
    start_of,
)
from replicator_source_sqlserver.cdc.instances import Reading
from replicator_source_sqlserver.connecting.connection import Connection, Row
from replicator_source_sqlserver.connecting.errors import TABLE_CHANGED, facts_of, number_of
from replicator_source_sqlserver.snapshot.blocks import first_rows, next_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a change table that was read.

    Attributes:
        decoded: The changes.
        rows: The number of rows that the server returned.
        last: The last row that is in `decoded`; None if it is empty.
        cut: The first commit that may have more rows than were read; None: the server returned all that it was asked for.
    """

    decoded: Decoded
    rows: int
    last: Last | None
    cut: bytes | None


def read_piece(
    connection: Connection,
    change_table: ChangeTable,
    query: Query,
    *,
    bytes_max: int,
    limit: int | None = None,
) -> Piece:
    """Read rows until they have about `bytes_max` bytes.

    Args:
        connection: Any.
        change_table: The table that is read.
        query: The query of its rows, in the order of the log.
        bytes_max: Bound of the changes' size. One block may exceed it: it is the first one, or as many rows as should fit by those before.
        limit: The most rows that the query returns; if it returns so many, the other half of the last one may follow.

    Raises:
        TableFailedError: Rows cannot be decoded. The statement has ended then: the connection runs one at a time.
    """
    rows_max = first_rows(change_table.specs.values())
    found: list[Decoded] = []
    last: Last | None = None
    cut: bytes | None = None
    half: Sequence[Row] = ()
    read = size = 0

    def decoded(rows: Sequence[Row]) -> Decoded:
        with of_table(change_table.schema.table, "decoding its changes"):
            return change_table.decode(rows)

    with closing(connection.blocks(*query, lambda: rows_max)) as blocks:
        for block in blocks:
            read += len(block)
            rows, half = split_off_half([*half, *block])
            if not rows:
                continue
            found.append(decoded(rows))
            last, size = Last.of(rows[-1]), size + found[-1].bytes
            if size >= bytes_max:
                cut = start_of(block[-1])
                break
            rows_max = next_rows(rows_max, rows=read, size=size, left=bytes_max - size)
    if half and cut is None and (limit is None or read < limit):
        found.append(decoded(half))
        last = Last.of(half[-1])
    return Piece(decoded=joined(found or [decoded(())]), rows=read, last=last, cut=cut)


def by_table(parts: Sequence[Decoded]) -> Sequence[Decoded]:
    """Join the parts of each table: two instances of a table follow each other."""
    of_tables: dict[TableId, list[Decoded]] = {}
    for part in parts:
        of_tables.setdefault(part.schema.table, []).append(part)
    return [joined(one) for one in of_tables.values()]


def rows_missing(reading: Reading) -> SourceUnavailableError:
    """The error where rows of a change table are deleted while it is read."""
    return SourceUnavailableError(
        f"Rows of the change table of {reading.instance.name} that were counted are not there any more.",
        code="instance_changed",
    )


@contextmanager
def instances_kept() -> Iterator[None]:
    """Translate errors of an instance that was disabled, or whose table was dropped, since the catalogue was read: a new reader sees it."""
    try:
        yield
    except pyodbc.Error as error:
        if number_of(error) not in TABLE_CHANGED:
            raise
        raise SourceUnavailableError(f"reading changes: {facts_of(error)}", code="instance_changed") from error
