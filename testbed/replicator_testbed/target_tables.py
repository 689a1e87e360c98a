"""Row counts and checksums of the tables that a target holds.

They are read by clients that have no part in making them; no code of the replication path is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from replicator_testbed import compare
from replicator_testbed.delta import read_delta, rows_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

T = TypeVar("T")


class TargetTables(Protocol):
    """The tables of one target."""

    def wanted(self, rows: Iterable[Sequence[Any]]) -> compare.Sum:
        """Sum a source's rows as this target must hold them."""

    def found(self, namespace: str, table: str, columns: Sequence[str]) -> compare.Sum:
        """Sum the target table of a table of the source."""

    def rows(self, namespace: str, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """All rows of the target table, as one read sees them; in no order."""


class DeltaLakeTables:
    """Delta tables.

    Args:
        lake: The target's `path`.
    """

    def __init__(self, lake: Path) -> None:
        self._lake = lake

    def wanted(self, rows: Iterable[Sequence[Any]]) -> compare.Sum:
        """Delta has a type for each of theirs."""
        return compare.sum_rows(rows)

    def found(self, namespace: str, table: str, columns: Sequence[str]) -> compare.Sum:
        """Read with `read_delta`, not with the Spark that wrote it."""
        return compare.sum_rows(self.rows(namespace, table, columns))

    def rows(self, namespace: str, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Read one version."""
        return [tuple(row) for row in rows_of(read_delta(self._lake / namespace / table, columns))]


class BigQueryTables:
    """Tables of the emulator, read with Google's own client.

    Args:
        client: As `BigQueryEmulator.client` gives it.
        prefix: What the target's `dataset` puts before the namespace.
    """

    def __init__(self, client: Any, prefix: str = "") -> None:
        self._client, self._prefix = client, prefix

    def wanted(self, rows: Iterable[Sequence[Any]]) -> compare.Sum:
        """BigQuery holds some as text."""
        from replicator_testbed.bigquery import emulator as bigquery

        return bigquery.canonical_sum(rows)

    def found(self, namespace: str, table: str, columns: Sequence[str]) -> compare.Sum:
        """Query all of it."""
        from replicator_testbed.bigquery import emulator as bigquery

        return bigquery.canonical_sum(self.rows(namespace, table, columns))

    def rows(self, namespace: str, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Query all of it."""
        from replicator_testbed.bigquery import emulator as bigquery

        return bigquery.target_rows(self._client, f"{bigquery.PROJECT}.{self._prefix}{namespace}.{table}", columns)


class DuckDBTables:
    """Tables of a DuckDB file, read while nobody else has it open: DuckDB's lock is waited for.

    Args:
        file: The target's `path`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def wanted(self, rows: Iterable[Sequence[Any]]) -> compare.Sum:
        """DuckDB has a type for each of theirs."""
        return compare.sum_rows(rows)

    def found(self, namespace: str, table: str, columns: Sequence[str]) -> compare.Sum:
        """Query all of it."""
        return compare.sum_rows(self.rows(namespace, table, columns))

    def rows(self, namespace: str, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Query all of it."""
        names = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
        return query(self._file, f'SELECT {names} FROM "{namespace}"."{table}"')


def query(file: Path, statement: str, *, read_only: bool = True) -> list[tuple[Any, ...]]:
    """Rows of a DuckDB file, or of what a statement did to it."""
    found = with_duckdb(file, lambda connection: connection.execute(statement).to_arrow_table(), read_only=read_only)
    return [tuple(row) for row in rows_of(found)]


def with_duckdb(file: Path, use: Callable[[DuckDBPyConnection], T], *, read_only: bool = True) -> T:
    """Open a DuckDB file as soon as nobody else has it open, and use it."""
    import duckdb

    while True:
        try:
            connection = duckdb.connect(str(file), read_only=read_only)
        except duckdb.IOException as error:
            if "Could not set lock on file" not in str(error):
                raise
            time.sleep(0.01)
            continue
        with connection:
            return use(connection)
