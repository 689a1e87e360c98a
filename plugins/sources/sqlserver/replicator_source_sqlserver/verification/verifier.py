"""States of tables, in checksums that the server computes (`SupportsSourceVerification`).

A state is one SNAPSHOT transaction: it takes no locks, and keeps nobody waiting. Where the database does not allow that, a table is not
verified: the statements that ask for groups, rows and values would each see another state, or would have to lock the table between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import pyarrow as pa
from typing_extensions import override

from replicator.model.errors import TableError
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import Visibility
from replicator.plugins.verification import ROWS_SCHEMA, Among, Bound, Checksum, KeyRange, SourceState
from replicator_source_sqlserver.catalogue.tables import CatalogTable
from replicator_source_sqlserver.connecting.connection import Connection, Row
from replicator_source_sqlserver.names import literal
from replicator_source_sqlserver.snapshot.reader import TableReader
from replicator_source_sqlserver.snapshot.whole_reads import verify_snapshot_allowed
from replicator_source_sqlserver.verification.canonical import UTF8, is_float
from replicator_source_sqlserver.verification.hashing import float_text, hash_of
from replicator_source_sqlserver.verification.state_statements import StateQueries

_BLOCK_ROWS: Final = 10_000
_LOB_BLOCK_ROWS: Final = 500
_HALF: Final = 8
_MODULUS: Final = 1 << 64
_KNOWN: Final = f"SELECT CAST(COLLATIONPROPERTY({literal(UTF8)}, N'CodePage') AS int)"
_ALLOW: Final = "and verify the table again."

Begin = Callable[[Connection, CatalogTable, Collection[str]], Visibility]
"""Makes the snapshot of some columns of a table on a connection that has no transaction, and returns what it sees."""


@contextmanager
def open_state(
    reader: TableReader, begin: Begin, schema: TableSchema, columns: Collection[str]
) -> Iterator[SourceState]:
    """See `SupportsSourceVerification.open_state`. The state uses the reader's connection until it ends."""
    with reader.reading(schema, "verifying a table") as (connection, table, plan):
        _verify_text_comparable(connection, schema.table)
        verify_snapshot_allowed(connection, schema.table, "a table is verified", _ALLOW)
        visibility = begin(connection, table, columns)
        # The snapshot needs no locks.
        queries = StateQueries.of(replace(plan, hint=""), columns)
        yield SqlServerState(connection, reader, table, visibility, queries)
        connection.end_snapshot()


def _verify_text_comparable(connection: Connection, table: TableId) -> None:
    if connection.rows(_KNOWN)[0][0] is None:
        raise TableError(
            "this server cannot write text in UTF-8, in which it is compared.",
            code="utf8_missing",
            table=str(table),
            action="Verification needs SQL Server 2019 or later, or Azure SQL.",
        )


class SqlServerState(SourceState):
    """One SNAPSHOT transaction, which lives as long as the state.

    Args:
        connection: In the transaction, whose snapshot is made.
        reader: Reads the catalogue, on another session.
        table: The table as the catalogue had it before.
        visibility: The visibility of the snapshot.
        queries: The statements about the table.
    """

    def __init__(
        self,
        connection: Connection,
        reader: TableReader,
        table: CatalogTable,
        visibility: Visibility,
        queries: StateQueries,
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._table = table
        self._visibility = visibility
        self._queries = queries

    @property
    @override
    def visibility(self) -> Visibility:
        return self._visibility

    @property
    @override
    def range_key(self) -> Sequence[str]:
        return self._queries.range_key

    @override
    def identity(self) -> TableIdentity | None:
        before = self._table
        with self._reader.watch_session.use("reading the catalogue") as connection:
            after = self._reader.find(connection, before.table)
        is_same = (
            after is not None
            and after.identity == before.identity
            and after.columns == before.columns
            and after.primary_key == before.primary_key
        )
        return before.identity if is_same else None

    @override
    def bound(self, columns: Sequence[str], after: Bound | None, rows: int) -> Bound | None:
        found = self._connection.rows(self._queries.bound(columns, after, rows))
        return tuple(_text(value) for value in found[0]) if found else None

    @override
    def checksums(
        self, digits: int, among: Among | None = None, within: KeyRange | None = None
    ) -> Mapping[str, Checksum]:
        query, has_to_choose = self._queries.rows(None, among, within)
        if not self._queries.is_hashed or has_to_choose:
            return _summed(self._hashes(query, among if has_to_choose else None), digits)
        found = {}
        for number, rows, high, low in self._connection.rows(self._queries.checksums(digits, among, within)):
            if int(rows):
                group = f"{int(number):0{digits}x}" if digits else ""
                found[group] = Checksum(rows=int(rows), high=int(high) % _MODULUS, low=int(low) % _MODULUS)
        return found

    @override
    def rows(self, groups: Collection[str], within: KeyRange | None = None) -> pa.Table:
        if not groups:
            return ROWS_SCHEMA.empty_table()
        query, has_to_choose = self._queries.rows(groups, None, within)
        digits, wanted = len(next(iter(groups))), frozenset(groups)
        ids, hashes = list[str](), list[str]()
        for id_, hash_ in self._hashes(query, None):
            if not has_to_choose or id_.hex()[:digits] in wanted:
                ids.append(id_.hex())
                hashes.append(hash_.hex())
        return pa.table([pa.array(ids, pa.string()), pa.array(hashes, pa.string())], schema=ROWS_SCHEMA)

    @override
    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> Mapping[str, Mapping[str, str | None]]:
        found: dict[str, Mapping[str, str | None]] = {}
        if not ids:
            return found
        width, columns = self._queries.width, self._queries.columns
        for row in self._blocks(self._queries.texts(ids, within)):
            id_ = (bytes(row[0]) if self._queries.knows_ids else hash_of(row[:width])).hex()
            if id_ in ids:
                forms = zip(columns, row[width:], strict=True)
                found[id_] = {
                    name: float_text(value) if is_float(spec) else None if value is None else _text(value)
                    for (name, spec), value in forms
                }
        return found

    def _hashes(self, query: str, among: Among | None) -> Iterator[tuple[bytes, bytes]]:
        """Read id and hash of the rows of a statement; of those that are among some, if these have to be chosen."""
        is_hashed, has_key = self._queries.is_hashed, bool(self._queries.key)
        for row in self._blocks(query):
            if is_hashed:
                id_, hash_ = bytes(row[0]), bytes(row[-1])
            elif has_key:
                id_, hash_ = bytes(row[0]), hash_of(row[1:])
            else:
                id_ = hash_ = hash_of(row)
            if among is None or id_.hex() in among:
                yield id_, hash_

    def _blocks(self, query: str) -> Iterator[Row]:
        rows = _LOB_BLOCK_ROWS if any(spec.is_lob for _, spec in self._queries.columns) else _BLOCK_ROWS
        for block in self._connection.blocks(query, (), rows):
            yield from block


def _summed(rows: Iterator[tuple[bytes, bytes]], digits: int) -> Mapping[str, Checksum]:
    sums: dict[str, list[int]] = {}
    for id_, hash_ in rows:
        of_group = sums.setdefault(id_.hex()[:digits], [0, 0, 0])
        of_group[0] += 1
        of_group[1] += int.from_bytes(hash_[:_HALF])
        of_group[2] += int.from_bytes(hash_[_HALF:])
    return {
        group: Checksum(rows=rows_, high=high % _MODULUS, low=low % _MODULUS)
        for group, (rows_, high, low) in sums.items()
    }


def _text(value: bytes) -> str:
    return bytes(value).decode()
