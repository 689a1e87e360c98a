"""What sources and targets may be able to do besides: say what a table holds, in checksums, so that `replicator verify` can compare it.

Each side computes its checksums by its own SQL, never by the decoders of this project: a value that is decoded wrongly must not look
equal. So both sides write values in the same canonical form.

**The canonical form.** By a column's type (`Column.type`), NULL is nothing, and otherwise

- boolean: `0` or `1`;
- integer: its digits, with `-` before them if it is negative;
- decimal: its digits with exactly `scale` digits behind the point; without a point if that is 0. Never `-0`;
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
"""Of `TableState.rows`: 32 lower-case hex digits each."""
IDS_MAX: Final = 100_000
"""A statement has at most so many ids."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """Of a group of rows. Additive: those of two disjoint groups add up to that of both.

    Attributes:
        rows: How many there are.
        high: Sum of the first 16 hex digits of the rows' hashes as unsigned numbers, modulo 2^64.
        low: The same of the last 16.
    """

    rows: int
    high: int
    low: int


@dataclass(frozen=True, slots=True)
class Below:
    """Rows whose id is below this one: a sample, because digests are uniform. 32 hex digits; they are compared as text."""

    id: str

    def __contains__(self, id_: str) -> bool:
        """Whether rows of this id are among them."""
        return id_ < self.id


@dataclass(frozen=True, slots=True)
class Ids:
    """Rows that have one of these ids. A state is asked for at most `IDS_MAX` of them."""

    ids: frozenset[str]

    def __contains__(self, id_: str) -> bool:
        """Whether rows of this id are among them."""
        return id_ in self.ids


Among = Below | Ids
"""Some of a table's rows. Both sides choose the same, because both know a row's id."""


Bound = tuple[str, ...]
"""A bound in the order of keys: the canonical forms, as in the key text, of the first columns of a key. None of them is NULL."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows by their keys: those behind `after` and not behind `upto`.

    A row is behind a bound if the first of its columns that is another one than the bound's is greater. A row with NULL there is not. So
    ranges of which each begins where the one before ends have every row of a table, whatever else is in it: each row that is not in one
    of them is in another.

    Attributes:
        columns: The source's names of the first columns of the key, some of `TableState.range_key`: a bound has as many values.
        after: None: from the beginning.
        upto: None: to the end.
    """

    columns: tuple[str, ...]
    after: Bound | None = None
    upto: Bound | None = None


class TableState(ABC):
    """One state of a table: everything that is asked of it is answered from the same state. Used from one thread."""

    @property
    def range_key(self) -> Sequence[str]:
        """The first columns of the key, as many as possible, by which a `KeyRange` can be asked for. None: only the whole table can.

        They have an order that is the same on both sides for every value that the source can hold: numbers, dates and moments by size,
        false before true, binary values by their bytes without sign, the shorter one first. Text only if it is compared by the bytes of
        its UTF-8, and there is one spelling of each value. Other values, which only somebody else can have written into a target, have
        any order.
        """
        return ()

    @abstractmethod
    def checksums(
        self, digits: int, among: Among | None = None, within: KeyRange | None = None
    ) -> Mapping[str, Checksum]:
        """The checksums of the table's rows, grouped by the first `digits` (0 to 4) hex digits of their ids.

        Groups without rows may be left out. With 0 there is one group, `""`. Computed where the data is: only groups come back.

        Args:
            digits: Of a group.
            among: Only these rows count. Of others the id is computed, where it can be avoided not the hash; a value of theirs that cannot
                be represented is no error, unless the id needs it. None: all.
            within: Of these only the rows in the range. None: all.
        """

    @abstractmethod
    def rows(self, groups: Collection[str], within: KeyRange | None = None) -> pa.Table:
        """Id and hash (`ROWS_SCHEMA`) of every row of these groups, in any order. All groups have equally many digits, 32 are an id."""

    @abstractmethod
    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> Mapping[str, Mapping[str, str | None]]:
        """By the ids of at most 1,000 rows: the canonical form of each column, by the source's column names.

        Of key columns as in the key text; rows that do not exist are not in the answer. Of rows with the same id, any of them.
        """


class SourceState(TableState):
    """A state of a source's table."""

    @property
    @abstractmethod
    def visibility(self) -> Visibility:
        """Which transactions it has."""

    @abstractmethod
    def identity(self) -> TableIdentity | None:
        """As `Chunk.identity`, about everything that was read of this state. None: the table changed meanwhile, and all of it is void."""

    def bound(self, columns: Sequence[str], after: Bound | None, rows: int) -> Bound | None:  # noqa: ARG002 - where there is a `range_key`
        """The end of a range that has about so many rows; it is read from the key's index alone, where the server can.

        Args:
            columns: As in `KeyRange`.
            after: Where the range begins; None: at the beginning.
            rows: The bound is the key of the last of so many rows.

        Returns:
            None if there are fewer rows.
        """
        return None


class SupportsSourceVerification(ABC):
    """A source whose tables can be verified."""

    @abstractmethod
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> AbstractContextManager[SourceState]:
        """Begin to read one state of a table; it is let go of at the end of the context.

        Reads like `SourceChunks.read_whole`: no lock beyond those of its own SELECTs, gives way to waiting DDL, with the same filters (row
        filters of a publication), and values that cannot be represented are those that a snapshot would have.

        Args:
            schema: The shape that the host knows.
            columns: The names of the columns that are compared; the key's are always among them.

        Raises:
            As `SourceChunks.read_chunk`.
        """


class SupportsTargetVerification(ABC):
    """A target whose tables can be verified."""

    def not_compared(self, schema: TableSchema) -> Collection[str]:  # noqa: ARG002
        """The names of columns whose values the target does not keep as they were, by its settings: they cannot be compared. No I/O.

        Args:
            schema: The shape of the source's rows. Columns of the key are never among the answer.
        """
        return ()

    @abstractmethod
    def open_state(
        self, table: TargetTable, schema: TableSchema, *, columns: Mapping[str, str], at: int
    ) -> AbstractContextManager[TableState]:
        """Begin to read the state of a table whose ledger had reached `at`, and nothing beyond it; let go of at the end of the context.

        Once it is open, later batches and other changes do not change what it gives. The ledger stood at `at` or below, and whatever came
        next took it above. Rows that are marked as deleted are not there. Claims
        nothing and changes nothing: another process continues with the table meanwhile.

        Args:
            table: Its epoch is not looked at.
            schema: The shape of the source's rows there.
            columns: By the source's names of the columns that are compared: their names in the target. Others (kept ones, ours) are not
                read.
            at: A sequence number.

        Raises:
            TableError: `state_not_readable`: this state cannot be read, now or any more. The message says why.
        """


def order_of(columns: Sequence[str], schema: TableSchema) -> Sequence[str]:
    """Those of a schema's column names that are compared, in the order of the row text."""
    wanted = set(columns)
    return [column.name for column in schema.columns if column.name in wanted]
