"""The statements for the contents of a table, in checksums. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from replicator.plugins.verification import Among, Below, Bound, KeyRange, order_of
from replicator_source_sqlserver.names import quoted
from replicator_source_sqlserver.snapshot.chunk_statements import ReadPlan
from replicator_source_sqlserver.types import ColumnSpec
from replicator_source_sqlserver.verification.canonical import column_text, digest, is_float, joined_text, text_bytes
from replicator_source_sqlserver.verification.hashing import Pieces
from replicator_source_sqlserver.verification.ranges import conditions, is_range_key

LISTED_MAX: Final = 1000
"""Upper bound of the values in an IN. With many thousands the server gives up (error 8623); above it all rows are read, and chosen here."""
DIGITS: Final = 4
"""Upper bound of the digits of an id that select a group."""
_HALF_BYTES: Final = 8


@dataclass(frozen=True, kw_only=True)
class StateQueries:
    """The statements about one table.

    A row is seen as `s`, which has its id as `i`, unless it is its hash, and its hash as `h`. Of a table with floats, `s` has the
    pieces of which the hash is made instead (`hashing`): `p1`, `p2` and so on.

    Attributes:
        plan: The parts of the statements that read the table.
        columns: The columns that are compared, in the order of the row text.
    """

    plan: ReadPlan
    columns: Sequence[tuple[str, ColumnSpec]]

    @classmethod
    def of(cls, plan: ReadPlan, columns: Collection[str]) -> StateQueries:
        """Make the statements of a table that is read by a plan."""
        return cls(plan=plan, columns=[(name, plan.specs[name]) for name in order_of(list(columns), plan.schema)])

    @property
    def key(self) -> Sequence[str]:
        """The names of the key's columns."""
        return self.plan.schema.key

    @property
    def is_hashed(self) -> bool:
        """Return whether the server computes the hashes."""
        return not any(is_float(spec) for _, spec in self.columns)

    @property
    def knows_ids(self) -> bool:
        """Return whether the server computes the ids."""
        return self.is_hashed or bool(self.key)

    @property
    def range_key(self) -> Sequence[str]:
        """See `TableState.range_key`."""
        names = []
        for name in self.key:
            if not is_range_key(self.plan.specs[name]):
                break
            names.append(name)
        return names

    def bound(self, columns: Sequence[str], after: Bound | None, rows: int) -> str:
        """Return the query for the canonical forms of the first columns of the key of one row."""
        names = ", ".join(map(quoted, columns))
        texts = [text_bytes(column_text(name, self.plan.specs[name], is_key=True)) for name in columns]
        parts = [
            f"SELECT * FROM (SELECT TOP ({rows}) {names} FROM {self.plan.table}{_where([condition])} ORDER BY {names}) AS q{n}"
            for n, condition in enumerate(conditions(self.plan, KeyRange(tuple(columns), after)))
        ]
        one = f"SELECT {names} FROM ({' UNION ALL '.join(parts)}) AS u ORDER BY {names} OFFSET {rows - 1} ROWS FETCH NEXT 1 ROWS ONLY"
        return f"SELECT {', '.join(texts)} FROM ({one}) AS s"

    def checksums(self, digits: int, among: Among | None = None, within: KeyRange | None = None) -> str:
        """Return the query for each group's number, its rows, and the sums of both halves of their hashes, counted as signed numbers."""
        assert self.is_hashed, "hashes of floats are not the server's"
        halves = [f"CAST(SUBSTRING(s.h, {first}, {_HALF_BYTES}) AS bigint)" for first in (1, 1 + _HALF_BYTES)]
        # A sum of bigint overflows with its second row.
        sums = ", ".join(f"SUM(CAST({half} AS decimal(38,0)))" for half in halves)
        rows = f"{self._rows(within)}{_where([self._is_among(among)])}"
        if not digits:
            return f"SELECT 0, COUNT_BIG(*), {sums} FROM {rows}"
        group = self._group(digits)
        return f"SELECT {group}, COUNT_BIG(*), {sums} FROM {rows} GROUP BY {group}"

    def rows(
        self, groups: Collection[str] | None, among: Among | None = None, within: KeyRange | None = None
    ) -> tuple[str, bool]:
        """Return the query for id and hash of each row, or the values that they are made of.

        Args:
            groups: The beginnings of ids, all equally long.
            among: The rows that are asked for.
            within: The range that they are in.

        Returns:
            The statement, and whether its rows have to be chosen still, because the server cannot.
        """
        chosen = [self._is_of(groups), self._is_among(among)] if self.knows_ids else [None, None]
        asked = [one for one in (groups, among) if one is not None]
        ids = [f"s.{self._id}"] if self.knows_ids else []
        made = ["s.h"] if self.is_hashed else [f"s.p{n}" for n in range(1, len(self._pieces) + 1)]
        query = f"SELECT {', '.join([*ids, *made])} FROM {self._rows(within)}{_where(chosen)}"
        return query, len(asked) > sum(one is not None for one in chosen)

    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> str:
        """Return the query for the id, or the values that it is made of, and the canonical form of each column; a float as it is."""
        forms = [
            quoted(name) if is_float(spec) else text_bytes(column_text(name, spec, is_key=name in self.key))
            for name, spec in self.columns
        ]
        named = [f"{form} AS t{number}" for number, form in enumerate(forms, start=1)]
        found = [f"s.t{number}" for number in range(1, len(forms) + 1)]
        ids_or_pieces = [f"s.{self._id}"] if self.knows_ids else [f"s.p{n}" for n in range(1, len(self._pieces) + 1)]
        chosen = self._is_of(ids) if self.knows_ids else None
        return f"SELECT {', '.join([*ids_or_pieces, *found])} FROM {self._rows(within, named)}{_where([chosen])}"

    @property
    def width(self) -> int:
        """The number of columns before the canonical forms in an answer of `texts`."""
        return 1 if self.knows_ids else len(self._pieces)

    # -- parts of statements ---------------------------------------------------------------------------------------------

    @property
    def _id(self) -> str:
        return "i" if self.key else "h"

    @property
    def _pieces(self) -> Sequence[str]:
        return Pieces.of(self.columns).selected

    def _rows(self, within: KeyRange | None, more: Sequence[str] = ()) -> str:
        """Return the rows in a range, as a derived table `s`."""
        selected = []
        if self.key:
            texts = [column_text(name, self.plan.specs[name], is_key=True) for name in self.key]
            selected.append(f"{digest(text_bytes(joined_text(texts)))} AS i")
        if self.is_hashed:
            texts = [column_text(name, spec, is_key=False) for name, spec in self.columns]
            selected.append(f"{digest(text_bytes(joined_text(texts)))} AS h")
        else:
            selected += [f"{piece} AS p{number}" for number, piece in enumerate(self._pieces, start=1)]
        listed = ", ".join([*selected, *more])
        pieces = [None] if within is None else conditions(self.plan, within)
        parts = [f"SELECT {listed} FROM {self.plan.table}{_where([piece])}" for piece in pieces or ["1 = 0"]]
        return f"({' UNION ALL '.join(parts)}) AS s"

    def _group(self, digits: int) -> str:
        """Return the expression for the number that the first digits of the id are."""
        return f"CAST(SUBSTRING(s.{self._id}, 1, {DIGITS // 2}) AS int) / {16 ** (DIGITS - digits)}"

    def _is_of(self, groups: Collection[str] | None) -> str | None:
        """Return a condition for ids that begin so; None: there is none, because all do or the server cannot be asked."""
        digits = len(next(iter(groups), "")) if groups is not None else 0
        if groups is None or len(groups) > LISTED_MAX:
            return None
        if not digits:
            return "1 = 1"
        if digits <= DIGITS:
            return f"{self._group(digits)} IN ({', '.join(str(int(group, 16)) for group in sorted(groups))})"
        return _is_one_of(f"s.{self._id}", groups)

    def _is_among(self, among: Among | None) -> str | None:
        if among is None:
            return None
        if isinstance(among, Below):
            return f"s.{self._id} < 0x{among.id}"
        if len(among.ids) > LISTED_MAX:
            return None
        return _is_one_of(f"s.{self._id}", among.ids)


def _is_one_of(value: str, ids: Collection[str]) -> str:
    return f"{value} IN ({', '.join(f'0x{id_}' for id_ in sorted(ids))})" if ids else "1 = 0"


def _where(chosen: Sequence[str | None]) -> str:
    found = [one for one in chosen if one]
    return f" WHERE {' AND '.join(found)}" if found else ""
