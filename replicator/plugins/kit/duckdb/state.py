"""The state of a table, computed by DuckDB's SQL in bounded memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

import duckdb
import pyarrow as pa

from replicator.plugins.kit.duckdb import canonical as sql
from replicator.plugins.verification import ROWS_SCHEMA, Among, Below, Checksum, KeyRange, VerifiedState


class DuckDBState(VerifiedState):
    """State of a table on a connection to DuckDB that only this state uses.

    Args:
        connection: The connection.
        columns: The compared columns, by the source's names: the name that `select` gives each, and its canonical type.
        key: The key columns.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        columns: Mapping[str, tuple[str, pa.DataType]],
        key: Sequence[str],
    ) -> None:
        self._connection = connection
        self._columns = columns
        self._key = key
        self._row = sql.joined(list(columns.values()), is_key=False)
        self._key_text = sql.joined([columns[name] for name in key], is_key=True) if key else self._row

    @abstractmethod
    def select(self, texts: Sequence[str], condition: str) -> str:
        """Return a query for these texts of every row that a condition holds for. Both are written with the names of the columns."""

    def run(self, statement: str, **parameters: Any) -> duckdb.DuckDBPyConnection:
        """Run a statement; a subclass adds parameters, and translates errors."""
        return self._connection.execute(statement, parameters)

    @property
    def range_key(self) -> Sequence[str]:
        """Return the key's columns up to the first that DuckDB orders otherwise. The source tells whether a text is ordered by bytes."""
        return list(takewhile(lambda name: sql.is_ordered_alike(self._columns[name][1]), self._key))

    def checksums(
        self, digits: int, among: Among | None = None, within: KeyRange | None = None
    ) -> Mapping[str, Checksum]:
        """Read the files once, in bounded memory. Of a range, files and row groups that have none of its first column are skipped."""
        inside = self._inside(within)
        id_ = sql.digest(self._key_text)
        group = f"left({id_}, {digits})" if digits else "''"
        texts = [f"{group} AS g", f"{self._row} AS t"]
        match among:
            case None:
                found = self.run(sql.sums(self.select(texts, inside)))
            case Below():
                found = self.run(sql.sums(self.select(texts, f"{inside} AND {id_} < $below")), below=among.id)
            case _:
                some = self.select(texts, f"{inside} AND {id_} IN (SELECT unnest($ids))")
                found = self.run(sql.sums(some), ids=sorted(among.ids))
        return {group: Checksum(rows, high % (1 << 64), low % (1 << 64)) for group, rows, high, low in found.fetchall()}

    def rows(self, groups: Collection[str], within: KeyRange | None = None) -> pa.Table:
        """Read the files once."""
        if not groups:
            return ROWS_SCHEMA.empty_table()
        texts = [f"{sql.digest(self._key_text)} AS id", f"{sql.digest(self._row)} AS hash"]
        digits = len(next(iter(groups)))
        some = self.select(texts, self._inside(within))
        statement = f"SELECT id, hash FROM ({some}) WHERE substr(id, 1, {digits}) IN (SELECT unnest($groups))"
        found = self.run(statement, groups=sorted(groups)).to_arrow_table()
        return pa.table([found.column("id"), found.column("hash")], schema=ROWS_SCHEMA)

    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> Mapping[str, Mapping[str, str | None]]:
        """Read the files once."""
        values = [
            f"{sql.value(alias, kind, is_key=name in self._key)} AS v{number}"
            for number, (name, (alias, kind)) in enumerate(self._columns.items())
        ]
        some = self.select([f"{sql.digest(self._key_text)} AS id", *values], self._inside(within))
        statement = f"SELECT * FROM ({some}) WHERE id IN (SELECT unnest($ids))"
        found = self.run(statement, ids=sorted(ids)).fetchall()
        return {id_: dict(zip(self._columns, of_row, strict=True)) for id_, *of_row in found}

    def _inside(self, within: KeyRange | None) -> str:
        if within is None:
            return "true"
        return sql.is_within([self._columns[name] for name in within.columns], within.after, within.upto)
