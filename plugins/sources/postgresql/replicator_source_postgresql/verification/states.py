"""States of tables, in checksums that the server computes (`SupportsSourceVerification`).

A state is one transaction in REPEATABLE READ on a connection of its own. The catalogue is asked on another one, because inside the
transaction it looks as it did at its beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import pyarrow as pa
from psycopg import sql
from psycopg.pq import TransactionStatus
from typing_extensions import override

from replicator.model.errors import UnsupportedTypeError
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableSchema
from replicator.plugins.kit.keyranges import cursor_of, is_ordered
from replicator.plugins.source import Cursor
from replicator.plugins.verification import (
    ROWS_SCHEMA,
    Among,
    Below,
    Bound,
    Checksum,
    KeyRange,
    SourceState,
    order_of,
)
from replicator_source_postgresql.catalogue.discovery import Connection
from replicator_source_postgresql.catalogue.tables import CatalogColumn, CatalogTable
from replicator_source_postgresql.snapshot.chunk_statements import (
    ReadPlan,
    nth_key,
    published_rows,
    quoted,
    range_conditions,
    table_source,
)
from replicator_source_postgresql.snapshot.copy_out import CopyScript, column_values, copy_columns
from replicator_source_postgresql.snapshot.reader import PgVisibility, PublishedReads
from replicator_source_postgresql.types import base_of
from replicator_source_postgresql.verification.canonical import (
    Form,
    Scope,
    digits_of,
    form_of,
    joined,
    number_of,
    sha256_of,
)

STATE_SETTINGS: Final[Mapping[str, str]] = {
    "row_security": "off",
    # As for chunks: the server has more to do than this.
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "idle_in_transaction_session_timeout": "0",
    # A table is read whole, for as long as that takes.
    "statement_timeout": "0",
    # 65,536 groups, in memory.
    "work_mem": "64MB",
}
RANGE_SETTINGS: Final = "SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off"
"""A range is read through the key's index, whatever the statistics of the table say: its cost must not depend on the table's size."""
_BLOCK_ROWS: Final = 50_000
_BLOCK_BYTES: Final = 4 << 20
_HALF_BYTES: Final = 8
_MODULUS: Final = 1 << 64


@dataclass(slots=True, kw_only=True)
class StateReader(PublishedReads):
    """Reads states of tables over one connection, which has `STATE_SETTINGS`."""

    @contextmanager
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> Iterator[SourceState]:
        """See `SupportsSourceVerification.open_state`."""
        self.forget(schema.table)
        with self.reading(schema, "verifying a table") as (connection, table, plan):
            assert connection.info.transaction_status == TransactionStatus.IDLE, "one state at a time"
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            row = connection.execute(
                "SELECT pg_current_snapshot()::text, current_setting('server_encoding')"
            ).fetchone()
            assert row is not None
            if not self.session.refuses_views:
                self.secure(connection, table, plan)
            # Takes the lock: from here on nothing rewrites the table. A rewrite before it left rows that the transaction cannot see.
            connection.execute(f"SELECT FROM {table_source(plan)} LIMIT 0".encode())
            query = StateQuery(plan, schema, order_of(list(columns), schema), row[1], self.unrepresentable)
            yield _State(self, connection, table, query, PgVisibility.of(row[0]))
            connection.execute("COMMIT")


class StateQuery:
    """The statements about one table. Rows are those of the subquery `s`, which has each column as `c…`."""

    def __init__(
        self,
        plan: ReadPlan,
        schema: TableSchema,
        compared: Sequence[str],
        encoding: str,
        unrepresentable: Literal["fail", "null"],
    ) -> None:
        """Plan the statements.

        Args:
            plan: The parts of the statements that read the table.
            schema: The table's shape.
            compared: The names of the compared columns, in order.
            encoding: The encoding of the database.
            unrepresentable: Treatment of a value that its Arrow type cannot hold. In a key it always fails the table.
        """
        self.compared = compared
        self._plan = plan
        self._schema = schema
        self._encoding = encoding
        self._fails = unrepresentable == "fail"
        self._columns = {column.name: column for column in plan.columns if column.name in set(compared)}
        self._numbers = {name: number for number, name in enumerate(self._columns)}
        self._scope = Scope("s", encoding, self._fails)
        self._key_forms = {name: self._form(name, self._scope, is_key=True) for name in schema.key}
        self._forms = {name: self._form(name, self._scope, is_key=False) for name in compared}

    @cached_property
    def range_key(self) -> Sequence[str]:
        """See `TableState.range_key`. An operator class of the user's may have another order."""
        names = []
        for part, column in zip(self._plan.key, self._plan.key_columns, strict=True):
            assert column.mapping is not None, "a key's column is replicable"
            base = base_of(column.mapping.info)
            # The server compares the 16 bytes, and always writes them as lower-case digits with dashes between the same ones.
            is_uuid = (base.namespace, base.name) == ("pg_catalog", "uuid")
            if not part.is_plain or not (is_uuid or is_ordered(column.mapping.arrow)):
                break
            names.append(part.column)
        return names

    def bound(self, columns: Sequence[str], after: Bound | None, rows: int) -> str:
        """Return the query for the canonical forms of the first columns of the key of one row."""
        selected = [f"t.{quoted(name)} AS c{self._numbers[name]}" for name in columns]
        scope = Scope("s", self._encoding, self._fails)
        forms = {name: self._form(name, scope, is_key=True) for name in columns}
        texts = ", ".join(f"({forms[name].text_if_held})::text" for name in columns)
        source = nth_key(self._plan, len(columns), self._cursor(columns, after), rows)
        return f"SELECT {texts} FROM {scope.query(selected, source)}"  # noqa: S608

    def _cursor(self, columns: Sequence[str], bound: Bound | None) -> Cursor | None:
        return None if bound is None else cursor_of(bound, columns, self._schema)

    def _source(self, within: KeyRange | None = None) -> str:
        """Return the subquery `s` of the rows."""
        selected = [f"t.{quoted(name)} AS c{number}" for name, number in self._numbers.items()]
        if within is None:
            return self._scope.query(selected, published_rows(self._plan))
        after, upto = (self._cursor(within.columns, bound) for bound in (within.after, within.upto))
        conditions = range_conditions(self._plan, len(within.columns), after, upto)
        return self._scope.query(selected, published_rows(self._plan, conditions))

    @cached_property
    def refused(self) -> Mapping[str, str]:
        """The condition for values that cannot be held, by name of each column that may not have them."""
        return {
            name: f"({form.held}) IS FALSE"
            for name, form in self._forms.items()
            if form.held is not None and (self._fails or name in self._key_forms)
        }

    def column(self, name: str) -> CatalogColumn:
        """Return a compared column."""
        return self._columns[name]

    def checksums(self, digits: int, among: Among | None = None, within: KeyRange | None = None) -> str:
        """Return the query, per group of rows, for its name, their count, that of their hashes, and the sums of both halves of these.

        A hash is NULL if the row has a value that is refused.
        """
        # Each digest is computed once a row.
        if among is None:
            digests = f"{self._hash} AS hash" + (f", {self._id} AS id" if digits and self._key_forms else "")
            rows = f"(SELECT {digests} FROM {self._source(within)} OFFSET 0) AS s"  # noqa: S608
            group = digits_of("s.id" if self._key_forms else "s.hash", digits) if digits else "''"
        else:
            some = f"{self._identified(within)} WHERE {_is_among(among)} OR s.id IS NULL"
            rows = f"(SELECT s.id, {self._hash} AS hash FROM {some} OFFSET 0) AS s"  # noqa: S608
            group = f"left(s.id, {digits})"
        high, low = (f"sum({number_of('s.hash', first)})" for first in (0, _HALF_BYTES))
        return f"SELECT {group}, count(*), count(s.hash), {high}, {low} FROM {rows} GROUP BY 1"  # noqa: S608

    def rows(self, groups: Collection[str], within: KeyRange | None = None) -> str:
        """Return the query for id and hash of the rows of these groups, and of those with values that are refused, which have no hash."""
        digits = len(next(iter(groups)))
        among = f" WHERE left(s.id, {digits}) = ANY ({_texts(groups)}) OR s.id IS NULL" if digits else ""
        hash_ = digits_of(self._hash) if self._key_forms else "s.id"
        return f"SELECT s.id, {hash_} FROM {self._identified(within)}{among}"  # noqa: S608

    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> str:
        """Return the query, per id, for the canonical forms of the compared columns."""
        forms = {**self._forms, **self._key_forms}
        texts = "".join(f", ({forms[name].text_if_held})::text" for name in self.compared)
        some = f"{self._identified(within)} WHERE s.id = ANY ({_texts(ids)})"
        return f"SELECT DISTINCT ON (s.id) s.id{texts} FROM {some}"  # noqa: S608

    def refusals(self) -> str:
        """Return the query that counts the rows, and those of them for which each of the `refused` holds."""
        counts = "".join(f", count(*) FILTER (WHERE {condition})" for condition in self.refused.values())
        return f"SELECT count(*){counts} FROM {self._source()}"  # noqa: S608

    def _identified(self, within: KeyRange | None) -> str:
        return f"(SELECT s.*, {digits_of(self._id)} AS id FROM {self._source(within)} OFFSET 0) AS s"  # noqa: S608

    @cached_property
    def _id(self) -> str:
        if not self._key_forms:
            return self._hash
        return self._sha256([form.text for form in self._key_forms.values()], self._key_forms)

    @cached_property
    def _hash(self) -> str:
        texts = [form.text if name in self.refused else form.text_if_held for name, form in self._forms.items()]
        return self._sha256(texts, self.refused)

    def _sha256(self, texts: Sequence[str], names: Collection[str]) -> str:
        """Return the digest of these canonical forms; NULL if one of these columns has a value that is refused."""
        digest = sha256_of(joined(texts), self._encoding)
        conditions = " OR ".join(self.refused[name] for name in names if name in self.refused)
        return f"CASE WHEN {conditions} THEN NULL ELSE {digest} END" if conditions else digest

    def _form(self, name: str, scope: Scope, *, is_key: bool) -> Form:
        mapping = self.column(name).mapping
        assert mapping is not None
        value, origin = f"s.c{self._numbers[name]}", f"t.{quoted(name)}"
        return form_of(mapping.info, mapping.arrow, value, origin, scope, is_key=is_key)


class _State(SourceState):
    def __init__(
        self,
        reader: StateReader,
        connection: Connection,
        table: CatalogTable,
        query: StateQuery,
        visibility: PgVisibility,
    ) -> None:
        self._reader = reader
        self._connection = connection
        self._table = table
        self._query = query
        self._visibility = visibility
        # If it is another table than was planned for, the statements do not fit. Everything is void then.
        self._is_same = reader.is_same(table)
        self._reads_ranges = False

    @property
    @override
    def visibility(self) -> PgVisibility:
        return self._visibility

    @override
    def identity(self) -> TableIdentity | None:
        self._is_same = self._is_same and self._reader.is_same(self._table)
        return self._table.identity if self._is_same else None

    @property
    @override
    def range_key(self) -> Sequence[str]:
        return self._query.range_key

    @override
    def bound(self, columns: Sequence[str], after: Bound | None, rows: int) -> Bound | None:
        if not self._is_same:
            return None
        self._read_ranges()
        found = self._fetch(self._query.bound(columns, after, rows))
        # One that cannot be held comes after all others.
        return tuple(found[0]) if found and None not in found[0] else None

    @override
    def checksums(
        self, digits: int, among: Among | None = None, within: KeyRange | None = None
    ) -> Mapping[str, Checksum]:
        if not self._is_same:
            return {}
        self._prepare(within)
        groups = self._fetch(self._query.checksums(digits, among, within))
        if any(hashes < rows for _, rows, hashes, _, _ in groups):
            raise self._refusal()
        return {
            group: Checksum(rows=rows, high=int(high) % _MODULUS, low=int(low) % _MODULUS)
            for group, rows, _, high, low in groups
        }

    @override
    def rows(self, groups: Collection[str], within: KeyRange | None = None) -> pa.Table:
        empty = ROWS_SCHEMA.empty_table()
        if not self._is_same or not groups:
            return empty
        self._prepare(within)
        script = CopyScript(self._connection)
        script.start(f"COPY ({self._query.rows(groups, within)}) TO STDOUT (FORMAT binary)")
        batches = []
        while (frames := script.read(_BLOCK_ROWS, _BLOCK_BYTES)) is not None:
            arrays = [
                column_values(frames, slices).cast(pa.string()) for slices in copy_columns(frames, len(ROWS_SCHEMA))
            ]
            if any(array.null_count for array in arrays):
                raise self._refusal_behind(script)
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA))
        script.finish()
        return pa.Table.from_batches(batches, schema=ROWS_SCHEMA)

    @override
    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> Mapping[str, Mapping[str, str | None]]:
        if not self._is_same or not ids:
            return {}
        self._prepare(within)
        rows = self._fetch(self._query.texts(ids, within))
        return {row[0]: dict(zip(self._query.compared, row[1:], strict=True)) for row in rows}

    def _prepare(self, within: KeyRange | None) -> None:
        if within is not None and (within.after, within.upto) != (None, None):
            self._read_ranges()

    def _read_ranges(self) -> None:
        if not self._reads_ranges:
            self._connection.execute(RANGE_SETTINGS.encode())
            self._reads_ranges = True

    def _fetch(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query.encode()).fetchall()

    def _refusal_behind(self, script: CopyScript) -> UnsupportedTypeError:
        while script.read(_BLOCK_ROWS, _BLOCK_BYTES) is not None:
            pass
        script.finish()
        return self._refusal()

    def _refusal(self) -> UnsupportedTypeError:
        """Return the error of the first column that has values which cannot be held, as a snapshot has it."""
        ((total, *counts),) = self._fetch(self._query.refusals())
        name, count = next((n, c) for n, c in zip(self._query.refused, counts, strict=True) if c)
        mapping = self._query.column(name).mapping
        assert mapping is not None
        return mapping.unheld_in(mapping.unheld_error(count, total), self._table.table, name)


def _is_among(among: Among) -> str:
    """Return the condition that selects a row `s`: many ids are looked up in a hash table."""
    if isinstance(among, Below):
        return f"s.id < {sql.Literal(among.id).as_string(None)}"
    return f"s.id IN (SELECT unnest({_texts(among.ids)}))"


def _texts(texts: Collection[str]) -> str:
    """Return a list of hex digits as an SQL array."""
    listed = ", ".join(sql.Literal(text).as_string(None) for text in sorted(texts))
    return f"ARRAY[{listed}]::text[]"
