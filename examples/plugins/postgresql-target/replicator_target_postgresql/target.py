"""The PostgreSQL target: what `TransactionalTarget` asks for, in PostgreSQL's statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg

from replicator.model.errors import TableError, TargetUnavailableError
from replicator.model.events import IS_DELETED, SEQUENCE_NUM
from replicator.model.merged import Merged
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins import Batch, TableOptions, TargetTable
from replicator.plugins.kit.findings import refuse_long_names
from replicator.plugins.kit.transactional import HeldEntry, TransactionalTarget
from replicator_target_postgresql.config import PostgresConfig
from replicator_target_postgresql.sql import (
    PgCursor,
    alter_statement,
    create_statement,
    merge,
    merge_multiset,
    path_of,
    quoted,
    run,
)

_NAME_BYTES_MAX = 63
# PostgreSQL's IF NOT EXISTS fails when two sessions create the same thing at once.
_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(0)"
_LEDGER = """
CREATE SCHEMA IF NOT EXISTS replicator;
CREATE TABLE IF NOT EXISTS replicator.ledger (table_name text PRIMARY KEY, entry text NOT NULL)"""
# A process that stops inside a transaction keeps its locks: others stop waiting for them, and the server ends its session.
_OPTIONS = "-c timezone=UTC -c lock_timeout=10s -c idle_in_transaction_session_timeout=60s"


class PostgresTarget(TransactionalTarget[PostgresConfig, PgCursor]):
    """Tables of a PostgreSQL database, in schemas with the names that they have in the source."""

    type_name: ClassVar[str] = "postgresql"
    config_model: ClassVar[type[PostgresConfig]] = PostgresConfig

    def identity(self) -> Mapping[str, str]:
        """Where the tables are."""
        return {"host": self.config.host, "port": str(self.config.port), "database": self.config.database}

    @contextmanager
    def transaction(self, table: TableId) -> Iterator[PgCursor]:
        """A connection for one transaction. A pool (`psycopg_pool`) would spare the time that it takes to connect."""
        config = self.config
        password = None if config.password is None else config.password.reveal()
        try:
            with (
                psycopg.connect(
                    host=config.host, port=config.port, user=config.user, dbname=config.database, password=password,
                    sslmode=config.sslmode, options=_OPTIONS,
                ) as connection,
                connection.cursor() as cursor,
            ):  # fmt: skip
                yield cursor
        except psycopg.OperationalError as error:
            # Without an answer from the server no table can be written: the error names none.
            name = str(table) if error.sqlstate else None
            message = f"PostgreSQL cannot be used: {error.sqlstate or 'there is no connection'}."
            raise TargetUnavailableError(message, code="target_unreachable", table=name) from error
        except psycopg.Error as error:
            # The driver's text may hold values of rows; the name of the condition does not.
            message = f"PostgreSQL refuses the change: {type(error).__name__}."
            raise TableError(message, code="schema_conflict", table=str(table)) from error

    def claim_table(self, table: TargetTable) -> HeldEntry:
        """Create the ledger, if this is the first claim of all."""
        with self.transaction(table.table) as cursor:
            run(cursor, _ONE_AT_A_TIME)
            run(cursor, _LEDGER)
        return super().claim_table(table)

    def read_entry(self, transaction: PgCursor, table: TableId) -> str | None:
        """An advisory lock is there even where there is no row to lock."""
        transaction.execute("SELECT pg_advisory_xact_lock(1, hashtext(%s))", [str(table)])
        if transaction.execute("SELECT to_regclass('replicator.ledger')").fetchone() == (None,):
            return None
        found = transaction.execute(
            "SELECT entry FROM replicator.ledger WHERE table_name = %s", [str(table)]
        ).fetchone()
        return None if found is None else str(found[0])

    def write_entry(self, transaction: PgCursor, table: TableId, entry: str | None) -> None:
        """Two statements: the lock keeps others out."""
        transaction.execute("DELETE FROM replicator.ledger WHERE table_name = %s", [str(table)])
        if entry is not None:
            transaction.execute("INSERT INTO replicator.ledger VALUES (%s, %s)", [str(table), entry])

    # -- tables

    def has_table(self, transaction: PgCursor, table: TableId) -> bool:
        """Tables, views and everything else that has such a name."""
        return transaction.execute("SELECT to_regclass(%s)", [path_of(table)]).fetchone() != (None,)

    def check_schema(self, schema: TableSchema) -> None:
        """PostgreSQL cuts longer names off, so two tables could become one."""
        create_statement(schema, TableOptions())
        refuse_long_names(schema, _NAME_BYTES_MAX)

    def create(self, transaction: PgCursor, table: TargetTable, schema: TableSchema) -> None:
        """The schema is created with its first table."""
        run(transaction, _ONE_AT_A_TIME)
        run(transaction, f"CREATE SCHEMA IF NOT EXISTS {quoted(schema.table.namespace)}")
        run(transaction, create_statement(schema, table.options))

    def alter(self, transaction: PgCursor, table: TableId, old: str | None, new: Column | None, value: Any) -> None:
        """PostgreSQL's DDL is transactional, so nobody sees what is in between."""
        run(transaction, alter_statement(table, old, new, value))

    def remove(self, transaction: PgCursor, table: TableId) -> None:
        """Fails if a view depends on the table."""
        run(transaction, f"DROP TABLE IF EXISTS {path_of(table)}")

    def clear(self, transaction: PgCursor, table: TargetTable, below: int | None) -> None:
        """One statement."""
        change = f"DELETE FROM {path_of(table.table)}"
        if table.options.deletes == "soft":
            change = f"UPDATE {path_of(table.table)} SET {IS_DELETED} = TRUE"
        run(transaction, change if below is None else f"{change} WHERE {SEQUENCE_NUM} < {below}")

    def merge(self, transaction: PgCursor, table: TargetTable, batch: Batch) -> Merged:
        """With a key rows are replaced, without one they are counted."""
        return (merge if batch.schema.key else merge_multiset)(transaction, batch, table.options)
