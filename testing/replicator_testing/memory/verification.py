"""States of tables in memory, for `replicator verify`: from rows, by the encoder of the kit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

import pyarrow as pa

from replicator.model.identity import TableIdentity
from replicator.model.schema import TableSchema
from replicator.plugins.kit.canonical import column_texts, digest_of, key_texts, row_texts
from replicator.plugins.kit.keyranges import holds, is_ordered, sort_key
from replicator.plugins.source import Visibility
from replicator.plugins.verification import (
    ROWS_SCHEMA,
    Among,
    Bound,
    Checksum,
    KeyRange,
    SourceState,
    VerifiedState,
    order_of,
)

_MODULUS: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class _Row:
    id: str
    hash: str
    texts: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class RowsState(VerifiedState):
    """State of a table from rows in memory."""

    held: Sequence[_Row]
    key: Sequence[str]
    range_key: Sequence[str]

    @classmethod
    def of(cls, schema: TableSchema, columns: Collection[str], rows: Sequence[Mapping[str, Any]]) -> RowsState:
        """Make a state of rows by the source's column names."""
        names = order_of(list(columns), schema)
        compared, key = _batch(schema, names, rows), _batch(schema, schema.key, rows)
        hashes = [digest_of(text) for text in row_texts(compared)]
        ids = [digest_of(text) for text in key_texts(key)] if schema.key else hashes
        texts = {name: column_texts(compared.column(name), is_key=name in schema.key) for name in names}
        return cls(
            [
                _Row(id_, hash_, {name: texts[name][index] for name in names})
                for index, (id_, hash_) in enumerate(zip(ids, hashes, strict=True))
            ],
            schema.key,
            list(takewhile(lambda name: is_ordered(schema.column(name).type), schema.key)),
        )

    def bound(self, columns: Sequence[str], after: Bound | None, rows: int) -> Bound | None:
        behind = self._within(KeyRange(tuple(columns), after))
        bounds = sorted((tuple(str(row.texts[name]) for name in columns) for row in behind), key=sort_key)
        return bounds[rows - 1] if rows <= len(bounds) else None

    def _within(self, within: KeyRange | None) -> Sequence[_Row]:
        if within is None:
            return self.held
        return [row for row in self.held if holds(within, [row.texts[name] for name in self.key])]

    def checksums(
        self, digits: int, among: Among | None = None, within: KeyRange | None = None
    ) -> Mapping[str, Checksum]:
        found = dict[str, Checksum]()
        for row in self._within(within):
            if among is not None and row.id not in among:
                continue
            group = row.id[:digits]
            before = found.get(group, Checksum(0, 0, 0))
            found[group] = Checksum(
                before.rows + 1,
                (before.high + int(row.hash[:16], 16)) % _MODULUS,
                (before.low + int(row.hash[16:], 16)) % _MODULUS,
            )
        return found

    def rows(self, groups: Collection[str], within: KeyRange | None = None) -> pa.Table:
        digits = {len(group) for group in groups}
        assert len(digits) == 1, "all groups have equally many digits"
        wanted = [row for row in self._within(within) if row.id[: min(digits)] in set(groups)]
        return pa.table([[row.id for row in wanted], [row.hash for row in wanted]], schema=ROWS_SCHEMA)

    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> Mapping[str, Mapping[str, str | None]]:
        return {row.id: row.texts for row in self._within(within) if row.id in ids}


def _batch(schema: TableSchema, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    fields = [pa.field(name, schema.column(name).type) for name in names]
    return pa.RecordBatch.from_pylist([{name: row[name] for name in names} for row in rows], schema=pa.schema(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySourceState(SourceState):
    """A state of a table of a `MemoryDatabase`."""

    rows_state: RowsState = field(repr=False)
    snapshot: Visibility
    find: Callable[[], TableIdentity | None]

    @property
    def visibility(self) -> Visibility:
        return self.snapshot

    def identity(self) -> TableIdentity | None:
        return self.find()

    @property
    def range_key(self) -> Sequence[str]:
        return self.rows_state.range_key

    def bound(self, columns: Sequence[str], after: Bound | None, rows: int) -> Bound | None:
        return self.rows_state.bound(columns, after, rows)

    def checksums(
        self, digits: int, among: Among | None = None, within: KeyRange | None = None
    ) -> Mapping[str, Checksum]:
        return self.rows_state.checksums(digits, among, within)

    def rows(self, groups: Collection[str], within: KeyRange | None = None) -> pa.Table:
        return self.rows_state.rows(groups, within)

    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> Mapping[str, Mapping[str, str | None]]:
        return self.rows_state.texts(ids, within)
