"""States of tables for `replicator verify`: checksums and hashes of rows, computed by the server in one consistent snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

import pyarrow as pa
import pymysql
from typing_extensions import override

from replicator.model.errors import TableError, UnsupportedTypeError
from replicator.model.identity import TableIdentity
from replicator.plugins.kit.keyranges import cursor_of, is_ordered
from replicator.plugins.source import Visibility
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
from replicator_source_mysql.binlog import TypeKind
from replicator_source_mysql.catalogue.discovery import read_tables
from replicator_source_mysql.catalogue.tables import CatalogColumn, CatalogTable
from replicator_source_mysql.connecting.connection import Connection, Session, literal, quoted, rows_of
from replicator_source_mysql.connecting.errors import PACKET_TOO_LARGE, RAISE_PACKET, number_of
from replicator_source_mysql.coordinates.base import ReadView
from replicator_source_mysql.rows.chunk_statements import ReadPlan, range_conditions
from replicator_source_mysql.rows.text_rows import Rows, text_rows
from replicator_source_mysql.verification.canonical import (
    OUT_OF_RANGE,
    column_text,
    digest,
    is_refused,
    joined_text,
    never_null,
)

_SILENCE_S: Final = 24 * 3600.0
_BLOCK_ROWS: Final = 100_000
_BLOCK_BYTES: Final = 16 << 20
# One sum has those of both halves: the low one takes 20 digits, and as many more as the number of rows has.
_HALF: Final = 10**30
_MODULUS: Final = 1 << 64
_HASH: Final = "@replicator_hash"
_RANGED: Final = frozenset(
    {TypeKind.INTEGER, TypeKind.DECIMAL, TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP, TypeKind.BYTES}
)
"""Kinds of columns that the server orders by the values that they have in the target.

Not UUID, which MariaDB orders by other bytes than those of its text, nor labels, which are ordered by their numbers. A year is
compared with numbers below 100 as if it were of this century.
"""


@dataclass(frozen=True, kw_only=True)
class StateQueries:
    """The statements that answer for a table.

    Attributes:
        table: The table in the catalogue.
        columns: Columns that are compared, in the order of the row text.
        key: Columns of the key, in key order.
        plan: Plan by which the table is read.
        fails: Values that cannot be represented are errors; else they are NULL.
    """

    table: CatalogTable
    columns: Sequence[CatalogColumn]
    key: Sequence[CatalogColumn]
    plan: ReadPlan
    fails: bool

    @classmethod
    def of(cls, table: CatalogTable, plan: ReadPlan, columns: Collection[str], *, fails: bool) -> StateQueries:
        """Build the queries of a table that is read by a plan."""
        by_name = {column.name: column for column in table.replicable}
        return cls(
            table=table,
            columns=[by_name[name] for name in order_of(list(columns), plan.schema)],
            key=[by_name[name] for name in plan.schema.key],
            plan=plan,
            fails=fails,
        )

    @property
    def range_key(self) -> Sequence[str]:
        """See `TableState.range_key`."""
        names = []
        for column in self.key:
            if column.spec is None or column.spec.kind not in _RANGED or not is_ordered(column.spec.arrow):
                break
            names.append(column.name)
        return names

    def bound(self, columns: Sequence[str], after: Bound | None, rows: int) -> str:
        """The canonical forms of the first columns of the key of one row."""
        names = ", ".join(map(quoted, columns))
        texts = ", ".join(self._text(column, is_key=True) for column in self.key[: len(columns)])
        some = self._from_range(KeyRange(tuple(columns), after))
        one = f"SELECT {names} {some} ORDER BY {names} LIMIT 1 OFFSET {rows - 1}"
        return f"SELECT {texts} FROM ({one}) AS t"  # noqa: S608 - quoted

    def checksums(self, digits: int, among: Among | None = None, within: KeyRange | None = None) -> str:
        """Group, number of rows, and the sum of both halves of their hashes.

        The hash is computed once for a row: IF evaluates its condition first, which leaves it in a variable.
        """
        high, low = (f"CAST(CONV(SUBSTR({_HASH}, {start}, 16), 16, 10) AS UNSIGNED)" for start in (1, 17))
        # Whether it is NULL MariaDB would know beforehand, and then evaluate nothing.
        value = f"IF(LENGTH({_HASH} := {never_null(self._hash)}) > 0, {high} * {_HALF} + {low}, NULL)"
        rows = self._from_range(within, None if among is None else self._is_among(among))
        # By its number: a name would be the table's column of this name.
        if not digits:
            return f"SELECT '', COUNT(*), SUM({value}) {rows}"
        return f"SELECT SQL_SMALL_RESULT LEFT({self._id}, {digits}), COUNT(*), SUM({value}) {rows} GROUP BY 1"

    def rows(self, groups: Collection[str], within: KeyRange | None = None) -> str:
        """Id and hash of each row."""
        digits = len(next(iter(groups)))
        some = f"LEFT({self._id}, {digits}) IN ({_literals(groups)})" if digits else None
        return f"SELECT {self._id}, {never_null(self._hash)} {self._from_range(within, some)}"

    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> str:
        """Id and canonical forms, of each column, of each row."""
        key = {column.name for column in self.key}
        texts = [self._text(column, is_key=column.name in key, proves_text=True) for column in self.columns]
        some = self._from_range(within, f"{self._id} IN ({_literals(ids)})")
        return f"SELECT {self._id}, {', '.join(texts)} {some}"

    def refused(self) -> tuple[Sequence[CatalogColumn], str]:
        """Columns, and a statement that counts all rows and each column's values that cannot be represented."""
        found = {c.name: condition for c in self.columns if (condition := is_refused(c)) is not None}
        sums = [f"COALESCE(SUM({condition}), 0)" for condition in found.values()]
        return [c for c in self.columns if c.name in found], f"SELECT {', '.join(['COUNT(*)', *sums])} {self._from}"

    def _is_among(self, among: Among) -> str:
        if isinstance(among, Below):
            return f"{self._id} < {literal(among.id)}"
        return f"{self._id} IN ({_literals(among.ids)})" if among.ids else "FALSE"

    @property
    def _from(self) -> str:
        return f"FROM {self.plan.source}"

    def _from_range(self, within: KeyRange | None, condition: str | None = None) -> str:
        """The rows in a range for which a condition holds.

        They are read through the key's index, whatever the statistics of the table say: their cost must not depend on the table's size.
        """
        source, conditions = self._from, [] if condition is None else [condition]
        if within is not None:
            after, upto = (
                None if bound is None else cursor_of(bound, within.columns, self.plan.schema)
                for bound in (within.after, within.upto)
            )
            conditions = [*range_conditions(self.plan, len(within.columns), after, upto), *conditions]
        return f"{source} WHERE {' AND '.join(conditions)}" if conditions else source

    @property
    def _hash(self) -> str:
        return digest(joined_text([self._text(column, is_key=False) for column in self.columns]))

    @property
    def _id(self) -> str:
        """The expression of a row's id. Keys are short: no text of one is longer than max_allowed_packet."""
        if not self.key:
            return never_null(self._hash)
        return digest(joined_text([self._text(column, is_key=True) for column in self.key]))

    def _text(self, column: CatalogColumn, *, is_key: bool, proves_text: bool = False) -> str:
        fails = self.fails or column in self.key
        # Text that is none is not equal to anything in the target, but NULL is.
        return column_text(column, is_key=is_key, fails=fails, proves_text=proves_text or not fails)


class MysqlState(SourceState):
    """One consistent snapshot, which lives as long as the state.

    Args:
        connection: Connection in the snapshot.
        watch: Another session.
        view: View that has begun.
        queries: Queries of the table.
    """

    def __init__(self, connection: Connection, watch: Session, view: ReadView, queries: StateQueries) -> None:
        self._connection = connection
        self._watch = watch
        self._view = view
        self._queries = queries
        with connection.cursor() as cursor:
            # Its type must be known to statements that set and use it.
            cursor.execute(f"SET {_HASH} = ''")

    @property
    @override
    def visibility(self) -> Visibility:
        return self._view.visibility()

    @property
    @override
    def range_key(self) -> Sequence[str]:
        return self._queries.range_key

    @override
    def bound(self, columns: Sequence[str], after: Bound | None, rows: int) -> Bound | None:
        for found in self._answer(self._queries.bound(columns, after, rows)):
            return tuple(found.next_column().cast(pa.string())[0].as_py() for _ in columns)
        return None

    @override
    def checksums(
        self, digits: int, among: Among | None = None, within: KeyRange | None = None
    ) -> Mapping[str, Checksum]:
        found = {}
        for rows in self._answer(self._queries.checksums(digits, among, within)):
            columns = [rows.next_column().cast(pa.string()).to_pylist() for _ in range(3)]
            for group, count, both in zip(*columns, strict=True):
                if int(count):
                    high, low = divmod(int(both), _HALF)
                    found[group] = Checksum(rows=int(count), high=high % _MODULUS, low=low % _MODULUS)
        return found

    @override
    def rows(self, groups: Collection[str], within: KeyRange | None = None) -> pa.Table:
        if not groups:
            return ROWS_SCHEMA.empty_table()
        batches = [
            pa.RecordBatch.from_arrays([rows.next_column().cast(pa.string()) for _ in ROWS_SCHEMA], schema=ROWS_SCHEMA)
            for rows in self._answer(self._queries.rows(groups, within))
        ]
        return pa.Table.from_batches(batches, schema=ROWS_SCHEMA)

    @override
    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> Mapping[str, Mapping[str, str | None]]:
        found: dict[str, Mapping[str, str | None]] = {}
        names = [column.name for column in self._queries.columns]
        for rows in self._answer(self._queries.texts(ids, within)) if ids else ():
            of_row, *columns = [rows.next_column().cast(pa.string()).to_pylist() for _ in range(len(names) + 1)]
            for id_, *texts in zip(of_row, *columns, strict=True):
                found[id_] = dict(zip(names, texts, strict=True))
        return found

    @override
    def identity(self) -> TableIdentity | None:
        # The snapshot shows MySQL's catalogue as it was.
        before = self._queries.table
        with self._watch.use("reading the catalogue") as connection:
            after = read_tables(connection, [before.table]).get(before.table)
        is_same = (
            after is not None
            and after.identity == before.identity
            and after.columns == before.columns
            and after.key == before.key
        )
        return before.identity if is_same else None

    def _answer(self, query: str) -> Iterator[Rows]:
        with self._explained():
            yield from text_rows(
                self._connection, query, rows_max=_BLOCK_ROWS, bytes_max=_BLOCK_BYTES, silence_s=_SILENCE_S
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Name the refused values if a statement ended with the error of a value that cannot be represented."""
        try:
            yield
        except pymysql.MySQLError as error:
            if number_of(error) != OUT_OF_RANGE:
                raise
            self._explain(error)

    def _explain(self, error: pymysql.MySQLError) -> NoReturn:
        columns, query = self._queries.refused()
        ((total, *counts),) = rows_of(self._connection, query)
        table = str(self._queries.table.table)
        for column, count in zip(columns, counts, strict=True):
            if count:
                raise UnsupportedTypeError(
                    f"Column {column.name}: {count} of {total} values are impossible dates, or invalid text in their character set.",
                    code="unrepresentable_value",
                    table=table,
                    action="Fix the values, exclude the table, or set `source.unrepresentable: null`.",
                ) from error
        raise TableError(
            "A text that the server computed of a row is longer than its max_allowed_packet.",
            code=PACKET_TOO_LARGE,
            table=table,
            action=RAISE_PACKET,
        ) from error


def _literals(texts: Collection[str]) -> str:
    return ", ".join(map(literal, texts))
