"""Optional interface of sources and targets: checksums of a table's rows, by which `replicator verify` compares both sides.

Each side computes its checksums by its own SQL, never by the decoders of this project: a value that is decoded wrongly must not look
equal. So both sides write values in the same canonical form.

**The canonical form.** By a column's type (`Column.type`), NULL is nothing, and otherwise

- boolean: `0` or `1`;
- integer: its digits, with `-` before them if it is negative;
- decimal: its digits with exactly `scale` digits after the point; without a point if that is 0. Never `-0`;
- float32, float64: of the value as a float64 its shortest decimal digits that read back as the same value: `[-]digits` `e` `exponent`,
  for ±d.ddd·10^exponent, without point and without zeros at the end: 1500.0 is `15e3`, 0.1 is `1e-1`. Zero is `0` (also if it is negative),
  the rest `nan`, `inf`, `-inf`;
- date32: days since 1970-01-01, as an integer;
- time64: microseconds since midnight; timestamps: microseconds since 1970-01-01 00:00:00 (of UTC, if they have a time zone), as an integer;
- string: the number of its bytes in UTF-8, `:`, the string; from 257 bytes on: the number, `#`, the digest of its bytes;
- binary: the number of its bytes, `#`, their digest. In a key text: the number, `$`, and all bytes as hex digits;
- list: `[`, each element's canonical form followed by a comma, `]`: `[1,,3,]` has a NULL in the middle, `[]` no element.

A digest is the first 32 hex digits of SHA-256, which every database has (MySQL 9.7 has no MD5). Hex digits are lower-case. A **row text**
has the columns that are compared in the order of `TableSchema.columns`, each followed by a comma. A **key text** has the key columns in key
order, likewise; strings in it are whole, whatever their length. A row's **id** is the digest of its key text, and in a table without a
key of its row text; its **hash** is the digest of its row text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from replicator.model.identity import TableIdentity
from replicator.model.schema import TableSchema
from replicator.plugins.source import Visibility
from replicator.plugins.target import TargetTable

ROWS_SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("hash", pa.string(), nullable=False)])
"""Columns of `VerifiedState.rows`: 32 lower-case hex digits each."""
IDS_MAX: Final = 100_000
"""Maximum number of ids in a statement."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """Checksum of a group of rows. Additive: those of two disjoint groups add up to that of both.

    Attributes:
        rows: Number of the rows.
        high: Sum of the first 16 hex digits of the rows' hashes as unsigned numbers, modulo 2^64.
        low: The same sum of the last 16.
    """

    rows: int
    high: int
    low: int


@dataclass(frozen=True, slots=True)
class Below:
    """Rows whose id is below this one: a sample, because digests are uniform. 32 hex digits; they are compared as text."""

    id: str

    def __contains__(self, id_: str) -> bool:
        """Return whether rows of this id are among them."""
        return id_ < self.id


@dataclass(frozen=True, slots=True)
class Ids:
    """Rows that have one of these ids. A state is asked for at most `IDS_MAX` of them."""

    ids: frozenset[str]

    def __contains__(self, id_: str) -> bool:
        """Return whether rows of this id are among them."""
        return id_ in self.ids


Among = Below | Ids
"""Some of a table's rows. Both sides choose the same, because both know a row's id."""


Bound = tuple[str, ...]
"""A bound in the order of keys: the canonical forms, as in the key text, of the first columns of a key. None of them is NULL."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows by their keys: those after `after` and not after `upto`.

    A row is after a bound if the first of its columns that differs from the bound's is greater. A row with NULL there is not. So
    ranges of which each begins where the one before ends have every row of a table, whatever else is in it: each row that is not in one
    of them is in another.

    Attributes:
        columns: The source's names of the first columns of the key, some of `VerifiedState.range_key`: a bound has as many values.
        after: None: from the beginning.
        upto: None: to the end.
    """

    columns: tuple[str, ...]
    after: Bound | None = None
    upto: Bound | None = None


class VerifiedState(ABC):
    """One state of a table: every answer is from the same state. Used from one thread."""

    @property
    def range_key(self) -> Sequence[str]:
        """Return the first columns of the key, as many as possible, for which a `KeyRange` can be asked. Empty: only for the whole table.

        They have an order that is the same on both sides for every value that the source can hold: numbers, dates and moments by size,
        false before true, binary values by their bytes without sign, the shorter one first. Text only if it is compared by the bytes of
        its UTF-8, and there is one spelling of each value. Other values, which only others can have written into a target, have
        any order.
        """
        return ()

    @abstractmethod
    def checksums(
        self, digits: int, among: Among | None = None, within: KeyRange | None = None
    ) -> Mapping[str, Checksum]:
        """Return the checksums of the table's rows, grouped by the first `digits` (0 to 4) hex digits of their ids.

        Groups without rows may be left out. With 0 there is one group, `""`. Computed where the data is: only groups come back.

        Args:
            digits: Hex digits of a group.
            among: Only these rows count. Of others only the id is computed, where possible; a value of theirs that cannot
                be represented is no error, unless the id needs it. None: all.
            within: Of these only the rows in the range. None: all.
        """

    @abstractmethod
    def rows(self, groups: Collection[str], within: KeyRange | None = None) -> pa.Table:
        """Return id and hash (`ROWS_SCHEMA`) of every row of these groups, in any order. Groups have equally many digits; 32: an id."""

    @abstractmethod
    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> Mapping[str, Mapping[str, str | None]]:
        """Return, by the ids of at most 1,000 rows, the canonical form of each column, by the source's column names.

        Of key columns as in the key text; rows that do not exist are not in the answer. Of rows with the same id, any of them.
        """


class SourceState(VerifiedState):
    """A state of a source's table."""

    @property
    @abstractmethod
    def visibility(self) -> Visibility:
        """Return the transactions that it has."""

    @abstractmethod
    def identity(self) -> TableIdentity | None:
        """See `Chunk.identity`, for everything that was read of this state. None: the table changed meanwhile, and all of it is void."""

    def bound(self, columns: Sequence[str], after: Bound | None, rows: int) -> Bound | None:  # noqa: ARG002 - where there is a `range_key`
        """Return the end of a range of about this many rows; it is read from the key's index alone, where the server can.

        Args:
            columns: See `KeyRange`.
            after: Beginning of the range; None: the first key.
            rows: The bound is the key of the last of this many rows.

        Returns:
            None if there are fewer rows.
        """
        return None


class SupportsSourceVerification(ABC):
    """A source whose tables can be verified."""

    @abstractmethod
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> AbstractContextManager[SourceState]:
        """Begin to read one state of a table; it is released at the end of the context.

        Reads like `SourceChunks.read_whole`: no lock beyond those of its own SELECTs, gives way to waiting DDL, with the same filters (row
        filters of a publication), and values that cannot be represented are those that a snapshot would have.

        Args:
            schema: The schema that the host knows.
            columns: The names of the columns that are compared; the key's are always among them.

        Raises:
            As `SourceChunks.read_chunk`.
        """


class SupportsTargetVerification(ABC):
    """A target whose tables can be verified."""

    def not_compared(self, schema: TableSchema) -> Collection[str]:  # noqa: ARG002
        """Return the names of columns whose values the target changes, by its settings: they cannot be compared. No I/O.

        Args:
            schema: The schema of the source's rows. Columns of the key are never among the answer.
        """
        return ()

    @abstractmethod
    def open_state(
        self, table: TargetTable, schema: TableSchema, *, columns: Mapping[str, str], at: int
    ) -> AbstractContextManager[VerifiedState]:
        """Begin to read the state of a table whose ledger had reached `at`, and nothing beyond it; released at the end of the context.

        Once it is open, later batches and other changes do not change its answers. The ledger was at `at` or below, and the next
        change took it above. Rows that are marked as deleted are left out. Claims
        nothing and changes nothing: another process continues with the table meanwhile.

        Args:
            table: The table; its epoch is not used.
            schema: The schema of the source's rows there.
            columns: Names in the target of the columns that are compared, by their names in the source. Others (kept ones, ours) are not
                read.
            at: A sequence number.

        Raises:
            TableError: `state_not_readable`: this state cannot be read, now or any more. The message has the reason.
        """


def order_of(columns: Sequence[str], schema: TableSchema) -> Sequence[str]:
    """Return those of a schema's column names that are compared, in the order of the row text."""
    wanted = set(columns)
    return [column.name for column in schema.columns if column.name in wanted]
