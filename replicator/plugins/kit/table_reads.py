"""Reads of snapshots: chunks in key order, whole tables and samples, by one statement each.

Every read takes the same way, here and in no source:

1. The columns of the request's `schema` go in: `TableReads.reading` plans their read with the table's entry in the catalogue.
2. The source starts the statement (`SnapshotReads.run`).
3. Its rows become batches of these columns, and leave through `SnapshotRun.batches`.
4. At the end the source says what the statement saw, and whether the table is still the same.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from replicator.model.errors import ImpossibleKeyError, TableError
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableSchema
from replicator.plugins.kit.reads import ChunkBounds, PlanT, TableReads, TableT, impossible_key, joined
from replicator.plugins.kit.session import ConnectionT
from replicator.plugins.planning import RowSample
from replicator.plugins.source import Chunk, ChunkRequest, Cursor, Visibility, WholeRead

BlockT = TypeVar("BlockT")


class ReadKind(Enum):
    """Kinds of reads, each with the words for it in errors."""

    CHUNK = "reading a chunk"
    """Rows in key order, within the bounds of the request."""
    WHOLE = "reading a table"
    """All rows, in any order."""
    SAMPLE = "reading a sample"
    """The first rows in key order; of a table without a key any rows. What the statement saw is not asked: nothing is replicated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRead(Generic[ConnectionT, TableT, PlanT]):
    """A read that begins.

    Attributes:
        table: The table's entry in the catalogue.
        plan: How the columns of `request.schema` are read.
        request: The rows to read, as many as fit (`ChunkBounds`). Of a whole table it has the columns alone.
    """

    kind: ReadKind
    connection: ConnectionT
    table: TableT
    plan: PlanT
    request: ChunkRequest


class SnapshotRun(ABC, Generic[BlockT]):
    """One read that runs: its rows, and whether the table stayed the same.

    Args:
        schema: The columns of its rows.
        identity: The table's, when the read was planned.
    """

    is_locked: ClassVar[bool] = False
    """Nothing can change the table while the read runs. So rows that cannot be decoded are an error at once."""

    def __init__(self, schema: TableSchema, identity: TableIdentity) -> None:
        self.schema = schema
        self.has_ended = False
        self.has_changed = False
        """The table was found to be another one after the read."""
        self._identity = identity
        self._rows: Iterator[BlockT] = iter(())
        self._error: TableError | None = None

    @abstractmethod
    def blocks(self) -> Iterator[BlockT]:
        """Yield the statement's rows, block by block."""

    @abstractmethod
    def decode(self, block: BlockT) -> Sequence[pa.Array]:
        """Return the columns of `schema`. Raises TableError if they cannot be decoded."""

    @abstractmethod
    def visibility(self) -> Visibility:
        """Return what the statement saw. Called once, after the first block of a whole table, after the last one of a chunk."""

    @abstractmethod
    def is_same(self) -> bool:
        """Return whether nothing about the table changed from the plan to the end of the read. Called once, after the last block."""

    @abstractmethod
    def cursor(self, taken: Sequence[pa.RecordBatch]) -> Cursor | None:
        """Return the key of the last row of these batches: the first ones of this read, none of them empty."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Decode the rows, block by block; every row of a snapshot comes through here.

        Ends early where rows cannot be decoded: `identity` tells whether the table changed, or raises the error.
        """
        row_schema = pa.schema(list(self.schema.row_type))
        self._rows = self.blocks()
        for block in self._rows:
            try:
                arrays = self.decode(block)
            except TableError as error:
                if self.is_locked:
                    raise
                self._error = error
                self.end()
                return
            yield pa.RecordBatch.from_arrays(arrays, schema=row_schema)
        self.has_ended = True

    def end(self) -> None:
        """End the statement; the rest of its rows is read and discarded."""
        for _ in self._rows:
            pass
        self.has_ended = True

    def identity(self) -> TableIdentity | None:
        """Return the table's identity if nothing about it changed from the plan to the end of the read, else None.

        Raises:
            TableError: It is the same table, and its rows cannot be decoded.
        """
        if not self.has_ended:
            raise AssertionError("identity() before the last batch")
        self.has_changed = not self.is_same()
        if self.has_changed:
            return None
        if self._error is not None:
            raise self._error
        return self._identity


# No slots: a source's reader may have another base with fields.
@dataclass(kw_only=True)
class SnapshotReads(TableReads[ConnectionT, TableT, PlanT]):
    """Base for readers of chunks, whole tables and samples over one connection.

    Attributes:
        bounds: The bounds of chunks; a block of rows may exceed them.
    """

    bounds: ChunkBounds

    @abstractmethod
    def run(self, read: SnapshotRead[ConnectionT, TableT, PlanT]) -> AbstractContextManager[SnapshotRun[Any]]:
        """Yield the read's statement; whatever ends it early leaves nothing on the server."""

    @abstractmethod
    def is_impossible(self, request: ChunkRequest, error: TableError) -> bool:
        """Return whether an error is about one of the request's keys, which no row can have."""

    def read_chunk(self, request: ChunkRequest) -> Chunk:
        """See `SourceChunks.read_chunk`. Rows beyond the chunk's bound are discarded."""
        try:
            with self._running(ReadKind.CHUNK, request) as run:
                batches, is_cut = self.bounds.take(request, run.batches())
                run.end()
                visibility, identity = run.visibility(), run.identity()
        except ImpossibleKeyError:
            raise
        except TableError as error:
            if request.keys and self.is_impossible(request, error):
                raise impossible_key(request.schema.table) from error
            raise
        cursor = run.cursor(batches) if batches else None
        if cursor is not None and cursor == request.after:
            raise TableError(
                "A chunk ended at the key where it began: the server takes its last key for another one than the one that it gave. "
                "Some values of the key are not valid in their character set or code page.",
                code="cursor_stuck",
                table=str(request.schema.table),
                action="Correct these values, or convert the key to Unicode; then run `replicator snapshot NAME TABLE`.",
            )
        rows = joined(batches, request.schema)
        return Chunk(rows=rows, cursor=cursor, visibility=visibility, identity=identity, is_cut=is_cut)

    @contextmanager
    def read_whole(self, schema: TableSchema) -> Iterator[WholeRead]:
        """See `SourceChunks.read_whole`."""
        # Read rarely and whole: what an earlier read remembers of the table may be older than a change of it.
        self.forget(schema.table)
        with self._running(ReadKind.WHOLE, ChunkRequest(schema=schema, limit=0)) as run:
            batches = run.batches()
            # A statement may have its view of the table no sooner than its first row is here.
            first = list(itertools.islice(batches, 1))
            yield WholeRead(visibility=run.visibility(), batches=itertools.chain(first, batches), identity=run.identity)

    def sample(self, schema: TableSchema, rows: int) -> RowSample:
        """See `SupportsPlanning.sample`."""
        request = ChunkRequest(schema=schema, limit=rows)
        with self._running(ReadKind.SAMPLE, request) as run:
            batches, is_cut = self.bounds.take(request, run.batches())
            run.end()
            run.identity()
        found = joined(batches, schema)
        return RowSample(rows=found, is_whole=found.num_rows < rows and not is_cut)

    @contextmanager
    def _running(self, kind: ReadKind, request: ChunkRequest) -> Iterator[SnapshotRun[Any]]:
        asked = request if kind is ReadKind.WHOLE else self.bounds.bounded(request)
        with self.reading(request.schema, kind.value) as (connection, table, plan):
            read = SnapshotRead(kind=kind, connection=connection, table=table, plan=plan, request=asked)
            with self.run(read) as run:
                yield run
        if run.has_changed:
            self.forget(request.schema.table)
