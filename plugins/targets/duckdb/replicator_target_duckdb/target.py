"""The DuckDB target: what `TransactionalTarget` asks for, in DuckDB's statements."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import duckdb

from replicator.model.errors import Problem
from replicator.model.events import IS_DELETED, SEQUENCE_NUM
from replicator.model.merged import Merged
from replicator.model.naming import check_columns
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.findings import type_findings
from replicator.plugins.kit.transactional import TransactionalTarget
from replicator.plugins.target import Batch, Ledger, TableOptions, TargetContext, TargetTable
from replicator.plugins.verification import SupportsTargetVerification, TableState
from replicator_target_duckdb import sql
from replicator_target_duckdb.config import DuckDBConfig
from replicator_target_duckdb.database import CATALOG, Database
from replicator_target_duckdb.merge import merge
from replicator_target_duckdb.types import changes_of
from replicator_target_duckdb.verification import table_state


class DuckDBTarget(TransactionalTarget[DuckDBConfig, duckdb.DuckDBPyConnection], SupportsTargetVerification):
    """Tables of one DuckDB file, in schemas with the names that they have in the source."""

    type_name: ClassVar[str] = "duckdb"
    config_model: ClassVar[type[DuckDBConfig]] = DuckDBConfig
    location_setting: ClassVar[str] = "target.path"
    keeps_states: ClassVar[bool] = False

    def __init__(self, config: DuckDBConfig, context: TargetContext) -> None:
        super().__init__(config, context)
        self._database = Database(config.file)

    @classmethod
    def default_max_wait_s(cls, config: DuckDBConfig) -> float:  # noqa: ARG003
        """A batch costs some ten milliseconds."""
        return 0.25

    def identity(self) -> Mapping[str, str]:
        """Return the file."""
        return {"path": self.config.path}

    @contextmanager
    def transaction(self, table: TableId) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open the file for one transaction."""
        with self._database.transaction(table) as connection:
            yield connection

    def check(self, tables: Sequence[TableSchema]) -> Sequence[Problem]:
        """Find what `TransactionalTarget` finds, and a file that cannot be used; makes no file."""
        file, folder = self.config.file, self.config.file.parent
        problems = [problem for schema in tables for problem in type_findings(schema, changes_of)]
        if not file.exists():
            problems += [problem for schema in tables for problem in check_columns(schema)]
            if not os.access(folder, os.W_OK | os.X_OK):
                what = "cannot be written" if folder.exists() else "does not exist"
                problems.append(
                    Problem(
                        code="target_not_writable",
                        message=f"The folder {folder} {what}.",
                        location="target.path",
                        action="Make the folder, writable for this process, or choose another target.path.",
                    )
                )
            return problems
        told = {(problem.code, problem.table, problem.location) for problem in problems}
        told |= {(problem.code, problem.table, None) for problem in problems}
        return [*problems, *(p for p in super().check(tables) if (p.code, p.table, p.location) not in told)]

    @contextmanager
    def open_state(
        self, table: TargetTable, schema: TableSchema, *, columns: Mapping[str, str], at: int
    ) -> Iterator[TableState]:
        """Copy what is compared out of the file."""
        with table_state(self._database, table, schema, columns, at) as state:
            yield state

    def read_ledger(self, table: TargetTable) -> Ledger | None:
        """Read the table's entry, if it is this replicator's; makes no file."""
        return super().read_ledger(table) if self.config.file.exists() else None

    # -- the ledger

    def read_entry(self, transaction: duckdb.DuckDBPyConnection, table: TableId) -> str | None:
        """Read the entry; the file's lock keeps others out."""
        if not self._exists(transaction, "_replicator", "ledger"):
            return None
        found = transaction.execute(f"SELECT entry FROM {sql.LEDGER} WHERE table_name = ?", [str(table)]).fetchone()
        return None if found is None else str(found[0])

    def write_entry(self, transaction: duckdb.DuckDBPyConnection, table: TableId, entry: str | None) -> None:
        """Write the entry; the ledger is made with the first one."""
        if entry is None and not self._exists(transaction, "_replicator", "ledger"):
            return
        transaction.execute(sql.CREATE_LEDGER)
        transaction.execute(f"DELETE FROM {sql.LEDGER} WHERE table_name = ?", [str(table)])
        if entry is not None:
            transaction.execute(f"INSERT INTO {sql.LEDGER} VALUES (?, ?)", [str(table), entry])

    # -- tables

    def has_table(self, transaction: duckdb.DuckDBPyConnection, table: TableId) -> bool:
        """Look for tables and views of this name."""
        return self._exists(transaction, table.namespace, table.name)

    def check_schema(self, schema: TableSchema) -> None:
        """Refuse types that DuckDB does not have."""
        sql.create_table(schema, TableOptions())

    def create(self, transaction: duckdb.DuckDBPyConnection, table: TargetTable, schema: TableSchema) -> None:
        """Create the table, and its schema with the first one."""
        for statement in sql.create_table(schema, table.options):
            transaction.execute(statement)

    def alter_columns(
        self,
        transaction: duckdb.DuckDBPyConnection,
        table: TargetTable,
        actual: TableSchema,
        wanted: TableSchema,
        fill: Mapping[str, Any],
    ) -> None:
        """Write the table again, in the transaction."""
        for statement in sql.rebuild(table, actual, wanted, fill):
            transaction.execute(statement)

    def remove(self, transaction: duckdb.DuckDBPyConnection, table: TableId) -> None:
        """Drop the table."""
        transaction.execute(f"DROP TABLE IF EXISTS {sql.path_of(table)}")

    def clear(self, transaction: duckdb.DuckDBPyConnection, table: TargetTable, below: int | None) -> None:
        """Delete or mark rows in one statement."""
        change = f"DELETE FROM {sql.path_of(table.table)}"
        if table.options.deletes == "soft":
            change = f"UPDATE {sql.path_of(table.table)} SET {IS_DELETED} = TRUE"
        transaction.execute(change if below is None else f"{change} WHERE {SEQUENCE_NUM} < {below}")

    def merge(self, transaction: duckdb.DuckDBPyConnection, table: TargetTable, batch: Batch) -> Merged:
        """Merge the batch, part by part."""
        return merge(transaction, table, batch)

    def close(self) -> None:
        """Forget every table, and let go of the file."""
        super().close()
        self._database.close()

    @staticmethod
    def _exists(transaction: duckdb.DuckDBPyConnection, schema: str, name: str) -> bool:
        """Whether the file has such a table or view. DuckDB compares names without case."""
        found = transaction.execute(
            "SELECT count(*) FROM (SELECT database_name, schema_name, table_name AS name FROM duckdb_tables() UNION ALL"
            " SELECT database_name, schema_name, view_name FROM duckdb_views())"
            " WHERE database_name = ? AND lower(schema_name) = lower(?) AND lower(name) = lower(?)",
            [CATALOG, schema, name],
        ).fetchone()
        return found is not None and found[0] > 0
