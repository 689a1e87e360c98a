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
from replicator.plugins.verification import SupportsTargetVerification, VerifiedState
from replicator_target_duckdb import sql
from replicator_target_duckdb.config import DuckDBConfig
from replicator_target_duckdb.database import Database
from replicator_target_duckdb.merge import merge
from replicator_target_duckdb.tables import LEDGER_ID, changed, kind_of, read_entry, refuse_others
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
    ) -> Iterator[VerifiedState]:
        """Copy what is compared out of the file."""
        with table_state(self._database, table, schema, columns, at, self.entry) as state:
            yield state

    def read_ledger(self, table: TargetTable) -> Ledger | None:
        """Read the table's entry, if it is this replicator's; makes no file."""
        return super().read_ledger(table) if self.config.file.exists() else None

    # -- the ledger

    def read_entry(self, transaction: duckdb.DuckDBPyConnection, table: TableId) -> str | None:
        """Read the entry; the file's lock keeps others out."""
        try:
            return read_entry(transaction, table)
        except duckdb.Error as error:
            # The file itself can be used: the transaction has begun.
            what = "cannot be read"
            raise self.damaged(table, what, f"Undo that. Or drop {LEDGER_ID} and the table, and recreate it") from error

    def write_entry(self, transaction: duckdb.DuckDBPyConnection, table: TableId, entry: str | None) -> None:
        """Write the entry; the ledger is made with the first one."""
        if entry is None and kind_of(transaction, LEDGER_ID) is None:
            return
        transaction.execute(sql.CREATE_LEDGER)
        transaction.execute(f"DELETE FROM {sql.LEDGER} WHERE table_name = ?", [str(table)])
        if entry is not None:
            transaction.execute(f"INSERT INTO {sql.LEDGER} VALUES (?, ?)", [str(table), entry])

    # -- tables

    def has_table(self, transaction: duckdb.DuckDBPyConnection, table: TableId) -> bool:
        """Look for tables and views of this name."""
        return kind_of(transaction, table) is not None

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
        self._check_columns(transaction, table, actual)
        for statement in sql.rebuild(table, actual, wanted, fill):
            transaction.execute(statement)

    def remove(self, transaction: duckdb.DuckDBPyConnection, table: TableId) -> None:
        """Drop the table.

        Raises:
            TableError: Another kind of thing has its name.
            SchemaConflictError: DuckDB does not drop it.
        """
        refuse_others(transaction, table)
        transaction.execute(f"DROP TABLE IF EXISTS {sql.path_of(table)}")

    def clear(self, transaction: duckdb.DuckDBPyConnection, table: TargetTable, below: int | None) -> None:
        """Delete or mark rows in one statement."""
        change = f"DELETE FROM {sql.path_of(table.table)}"
        if table.options.deletes == "soft":
            change = f"UPDATE {sql.path_of(table.table)} SET {IS_DELETED} = TRUE"
        transaction.execute(change if below is None else f"{change} WHERE {SEQUENCE_NUM} < {below}")

    def merge(self, transaction: duckdb.DuckDBPyConnection, table: TargetTable, batch: Batch) -> Merged:
        """Merge the batch, part by part."""
        self._check_columns(transaction, table, batch.schema)
        return merge(transaction, table, batch)

    def _check_columns(self, transaction: duckdb.DuckDBPyConnection, table: TargetTable, schema: TableSchema) -> None:
        """Refuse a table whose columns somebody else changed: what is written would be cast, or get into another column."""
        refuse_others(transaction, table.table)
        if (why := changed(transaction, schema, table.options)) is not None:
            raise self.recreate(table, f"Somebody else changed the table in the target. {why}")

    def close(self) -> None:
        """Forget every table, and let go of the file."""
        super().close()
        self._database.close()
