"""Transactions of a session: begun, nested, saved and ended as in SQL Server, held by PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from replicator_testbed.sqlserver.engine import errors
from replicator_testbed.sqlserver.engine.names import quoted
from replicator_testbed.sqlserver.engine.settings import Isolation, Settings
from replicator_testbed.sqlserver.outcomes import Outcome, SqlError, TransactionChanged
from replicator_testbed.sqlserver.tds.requests import TransactionCall, TransactionRequest

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.database import Database

STATEMENT_MARK: Final = "SELECT pg_logical_emit_message(true, 'sqlserver.statement', '')"
"""Written into the log before each statement that changes rows: the capture job numbers commands by it."""
_SAVEPOINT: Final = quoted("sqlserver statement")
_LEVELS: Final = (
    Isolation.READ_UNCOMMITTED,
    Isolation.READ_COMMITTED,
    Isolation.REPEATABLE_READ,
    Isolation.SERIALIZABLE,
    Isolation.SNAPSHOT,
)
"""By the number of a driver's request, from 1."""
_descriptors = itertools.count(1)


class Transactions:
    """The transaction of one session, if there is one."""

    def __init__(self, connection: psycopg.Connection[Any], settings: Settings) -> None:
        self._connection = connection
        self._settings = settings
        self._descriptor = 0
        self._changes: list[Outcome] = []
        self.count = 0
        """@@TRANCOUNT"""
        self.reads_with_locks = False
        self.is_unread = False
        """Whether the client has not taken all rows of the statement that runs, so that it still runs when the next one comes."""

    @property
    def is_snapshot(self) -> bool:
        """Whether a transaction reads from its snapshot."""
        return self.count > 0 and self._settings.isolation is Isolation.SNAPSHOT

    def take_changes(self) -> list[Outcome]:
        """What began or ended since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def begin(self) -> None:
        """BEGIN TRANSACTION."""
        if not self.count:
            self._connection.execute(self._begin_sql())
            self._descriptor = next(_descriptors)
            self._changes.append(TransactionChanged(self._descriptor, is_begun=True))
        self.count += 1

    def begin_implicitly(self) -> None:
        """What IMPLICIT_TRANSACTIONS does before a statement."""
        if not self.count:
            self.begin()

    def commit(self) -> None:
        """COMMIT: the outermost one commits.

        Raises:
            SqlError: 3902, there is no transaction; or the commit failed.
        """
        if not self.count:
            raise SqlError(3902, "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION.")
        self.count -= 1
        if self.count:
            return
        try:
            self._connection.execute("COMMIT")
        except psycopg.Error as error:
            self._ended(is_committed=False)
            raise errors.from_postgresql(error) from error
        self._ended(is_committed=True)

    def rollback(self, savepoint: str = "") -> None:
        """ROLLBACK, of everything or to a savepoint.

        Raises:
            SqlError: 3903, there is no transaction; or 6401, no such savepoint.
        """
        if not self.count:
            raise SqlError(3903, "The ROLLBACK TRANSACTION request has no corresponding BEGIN TRANSACTION.")
        if not savepoint:
            self._roll_back()
            return
        try:
            self._connection.execute(f"ROLLBACK TO SAVEPOINT {quoted(savepoint.lower())}".encode())
        except psycopg.Error as error:
            raise SqlError(
                6401, f"Cannot roll back {savepoint}. No transaction or savepoint of that name was found."
            ) from error

    def save(self, savepoint: str) -> None:
        """SAVE TRANSACTION.

        Raises:
            SqlError: 628, there is no transaction.
        """
        if not self.count:
            raise SqlError(628, "Cannot issue SAVE TRANSACTION when there is no active transaction.")
        self._connection.execute(f"SAVEPOINT {quoted(savepoint.lower())}".encode())

    def called(self, call: TransactionCall) -> None:
        """What a driver asks."""
        match call.request:
            case TransactionRequest.BEGIN:
                if 0 < call.isolation <= len(_LEVELS):
                    self._settings.isolation = _LEVELS[call.isolation - 1]
                self.begin()
            case TransactionRequest.COMMIT:
                self.commit()
            case TransactionRequest.ROLLBACK:
                self.rollback(call.name)
            case TransactionRequest.SAVE:
                self.save(call.name)
        if call.begins_another:
            self.begin()

    def check_snapshot(self, database: Database) -> None:
        """Refuse SNAPSHOT in a database that does not allow it.

        Raises:
            SqlError: 3952.
        """
        if self._settings.isolation is not Isolation.SNAPSHOT:
            return
        ((state,),) = database.execute("SELECT snapshot_isolation_state FROM sqlserver.database")
        if state != 1:
            raise SqlError(
                3952,
                f"Snapshot isolation transaction failed accessing database '{database.name}' because snapshot isolation is not"
                " allowed in this database. Use ALTER DATABASE to allow snapshot isolation.",
            )

    @contextmanager
    def statement(self, *, is_change: bool) -> Iterator[None]:
        """Run a statement: all of it or nothing, in the open transaction or in one of its own.

        Raises:
            SqlError: What PostgreSQL refused, as SQL Server reports it.
        """
        self.is_unread = False
        try:
            if self.count:
                self._connection.execute(f"SAVEPOINT {_SAVEPOINT}".encode())
            elif is_change:
                self._connection.execute(self._begin_sql())
            if is_change:
                self._connection.execute(STATEMENT_MARK)
            yield
            if self.count:
                if self.is_snapshot and not is_change and not self.is_unread:
                    # A read from a snapshot keeps no lock behind its statement: others may alter the table [DOC: 3961].
                    self._connection.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}".encode())
                self._connection.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}".encode())
            elif is_change:
                self._connection.execute("COMMIT")
        except psycopg.Error as error:
            failed = errors.from_postgresql(error)
            self._undo(errors.ends_transaction(failed) or self._settings.aborts)
            raise failed from error
        except SqlError:
            self._undo(self._settings.aborts)
            raise

    def _undo(self, everything: bool) -> None:
        if self._connection.closed:
            self.count = 0
            return
        if self.count and everything:
            self._roll_back()
        elif self.count:
            if self._connection.info.transaction_status is not TransactionStatus.IDLE:
                self._connection.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}".encode())
        elif self._connection.info.transaction_status is not TransactionStatus.IDLE:
            self._connection.execute("ROLLBACK")

    def _roll_back(self) -> None:
        self._connection.execute("ROLLBACK")
        self._ended(is_committed=False)

    def _ended(self, *, is_committed: bool) -> None:
        self.count = 0
        self._changes.append(TransactionChanged(self._descriptor, is_begun=False, is_committed=is_committed))

    def _begin_sql(self) -> bytes:
        return f"BEGIN ISOLATION LEVEL {self._settings.isolation.postgresql}".encode()
