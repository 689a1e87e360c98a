"""One session: the batches of one connection, run on one connection of PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg
from sqlglot import exp

from replicator_testbed.scratch_servers import TIMEOUT_SECONDS
from replicator_testbed.sqlserver.engine import results
from replicator_testbed.sqlserver.engine.batches import Statement, compiled, condition_and_rest, statements
from replicator_testbed.sqlserver.engine.captured_commits import wait_for_captured_commits
from replicator_testbed.sqlserver.engine.names import Names
from replicator_testbed.sqlserver.engine.settings import Isolation, Settings
from replicator_testbed.sqlserver.engine.transactions import Transactions
from replicator_testbed.sqlserver.engine.translate import Translated, Translator
from replicator_testbed.sqlserver.engine.types import parameter
from replicator_testbed.sqlserver.outcomes import Bound, Count, Failed, Outcome, Rows, SqlError
from replicator_testbed.sqlserver.sqltypes import SqlType
from replicator_testbed.sqlserver.tds.requests import TransactionCall
from replicator_testbed.sqlserver.tds.tokens import SERVER_NAME, Command

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.database import Database

VERSION: Final = "Microsoft SQL Server 2022 - 16.0.4000.0 (a model, not the product)"
_CHANGES: Final = {
    "INSERT": Command.INSERT,
    "UPDATE": Command.UPDATE,
    "DELETE": Command.DELETE,
    "MERGE": Command.UPDATE,
}
_SENT_AT_ONCE: Final = 1000
"""Rows that a network takes however slow the client is. A larger result is taken to keep its locks until the transaction ends."""
_CURRENT: Final = frozenset({"fn_cdc_get_max_lsn"})
"""Functions that show the present in a SNAPSHOT transaction, too [ISS: ingestr]."""

Handler = Callable[["Session", Statement], list[Outcome]]
"""Runs one kind of statement."""


class Session:
    """What a connection has: its settings, its transaction, its variables."""

    def __init__(self, database: Database, login: str, handlers: Mapping[str, Handler]) -> None:
        """Open a session; `handlers` run what is no query, by the statement's first word."""
        self.model = database
        self.login = login
        self.connection = database.connect()
        begun = "SELECT user_options, set_config('sqlserver.login', %s, false) FROM sqlserver.database"
        ((options, _),) = self.connection.execute(begun, (login,)).fetchall()
        self.settings = Settings.of(options)
        self.transactions = Transactions(self.connection, self.settings)
        self.variables: dict[str, Bound] = {}
        self.row_count = 0
        self._handlers = handlers
        self._names: tuple[int, Names] | None = None
        self._running = threading.Lock()
        self._is_running = False
        self._translator = Translator(make_type=database.make_type, check=partial(database.permissions.check, login))

    # -- what a connection asks --------------------------------------------------------------------------------------

    @property
    def database(self) -> str:
        """The database that it is in."""
        return self.model.name

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.transactions.count > 0

    def run(self, batch: str, parameters: Sequence[Bound] = ()) -> list[Outcome]:
        """Run a batch; errors are outcomes."""
        self.variables = {bound.name.lower(): bound for bound in parameters}
        outcomes: list[Outcome] = []
        with self._busy():
            try:
                for index, statement in enumerate(compiled(batch)):
                    try:
                        outcomes += self.statement(statement, may_call=index == 0)
                    except SqlError as failed:
                        outcomes += [*self.transactions.take_changes(), Failed(failed)]
                        if failed.ends_batch or self.settings.aborts:
                            break
            except SqlError as unread:
                outcomes.append(Failed(unread))
        return outcomes

    def transaction(self, call: TransactionCall) -> list[Outcome]:
        """Begin or end a transaction, as a driver asks."""
        with self._busy():
            try:
                self.transactions.called(call)
            except SqlError as failed:
                return [*self.transactions.take_changes(), Failed(failed)]
            return self.transactions.take_changes()

    def undeclared(self, batch: str) -> Rows:
        """Describe the parameters of a batch that declares none, by what PostgreSQL takes them for."""
        with self._busy():
            return results.undeclared(self, batch)

    def cancel(self) -> None:
        """End what runs, from any thread."""
        with self._running:
            if self._is_running:
                self.connection.cancel_safe(timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        """Roll back and end."""
        self.connection.close()

    @contextmanager
    def _busy(self) -> Iterator[None]:
        with self._running:
            self._is_running = True
        try:
            yield
        finally:
            # After a cancellation that came late nothing else may be hit by it: it holds this lock until it is through.
            with self._running:
                self._is_running = False

    # -- statements --------------------------------------------------------------------------------------------------

    def statement(self, statement: Statement, *, may_call: bool = False) -> list[Outcome]:
        """Run one statement; the first of a batch may call a procedure by its name alone (`may_call`).

        Raises:
            SqlError: It failed.
        """
        first = statement.words(1)
        if first in _CHANGES or first in {"SELECT", "WITH"}:
            outcomes = self._query(statement)
        elif first == "IF":
            outcomes = self._if(statement)
        elif first in self._handlers:
            outcomes = self._handlers[first](self, statement)
        elif may_call and statement.tokens[0].kind in {"word", "quoted"}:
            (called,) = statements(f"EXEC {statement.text}")
            outcomes = self._handlers["EXEC"](self, called)
        else:
            raise SqlError(102, f"Incorrect syntax near '{first}': the model has no such statement.", severity=15)
        return [*self.transactions.take_changes(), *outcomes]

    def names(self) -> Names:
        """The catalogue, read again where it may have changed."""
        version = self.model.version
        if self._names is None or self._names[0] != version:
            self._names = (version, self.model.names(self.connection))
            self.follow_database()
        return self._names[1]

    def schemas(self) -> list[str]:
        """The schemas of the database, spelled as they were created."""
        return [row[0] for row in self.execute("SELECT name FROM sqlserver.schemas")] + ["cdc", "msdb"]

    def follow_database(self) -> None:
        """Take over what the database says of READ COMMITTED: row versions, or shared locks."""
        ((uses_versions,),) = self.execute("SELECT is_read_committed_snapshot_on FROM sqlserver.database").fetchall()
        self.transactions.reads_with_locks = not uses_versions and self.settings.isolation is Isolation.READ_COMMITTED

    def translate(self, text: str) -> Translated:
        """A query or a change of rows for PostgreSQL."""
        text = self.model.tracking.rewritten(text, self.names(), self.login)
        return self._translator.translate(
            text, self.names(), self.variables, self._globals(), locks_all=self.transactions.reads_with_locks
        )

    def expression(self, text: str) -> str:
        """An expression for PostgreSQL, such as a default."""
        sql = self.translate(f"SELECT {text}").sql
        return sql.removeprefix("SELECT ")

    def value(self, text: str) -> tuple[Any, SqlType]:
        """The value of an expression, as the wire has it, and its type."""
        rows = self.select(f"SELECT {text}")
        return rows.rows[0][0], rows.columns[0].type

    def select(self, text: str) -> Rows:
        """The result of a query."""
        translated = self.translate(text)
        with self.transactions.statement(is_change=False):
            return results.fetch(self, *self._prepared(translated), translated.names)

    def execute(self, sql: str, arguments: Sequence[Any] = ()) -> psycopg.RawCursor[tuple[Any, ...]]:
        """Run a statement of PostgreSQL, with $1, $2 … for its arguments; the caller guards it."""
        cursor = psycopg.RawCursor(self.connection)
        return cursor.execute(sql.encode(), list(arguments) if arguments else None)

    def _query(self, statement: Statement) -> list[Outcome]:
        if assignment := self._assignment(statement):
            return assignment
        translated = self.translate(statement.text)
        is_change = statement.words(1) in _CHANGES or translated.sql.lstrip().split(" ", 1)[0] in _CHANGES
        self.transactions.check_snapshot(self.model)
        if self.transactions.is_snapshot:
            self._check_definitions(translated.tables)
        if self.settings.implicit_transactions:
            self.transactions.begin_implicitly()
        if self.transactions.reads_with_locks:
            self.model.scan_locks.wait(statement.text, self.settings.lock_timeout_ms)
        with self.transactions.statement(is_change=is_change):
            if translated.row_locks:
                wait_for_captured_commits(self.model, translated.row_locks, self.settings.lock_timeout_ms)
            if translated.locks and not self.is_in_transaction:
                raise SqlError(40510, "The model locks whole tables in transactions only.")
            for table in translated.locks:
                # SHARE conflicts with ROW EXCLUSIVE, which every writer has, as S conflicts with IX.
                self.execute(f"LOCK TABLE {table} IN SHARE MODE")
            sql, arguments = self._prepared(translated)
            if not is_change:
                rows = results.fetch(self, sql, arguments, translated.names)
                self.row_count = len(rows.rows)
                self.transactions.is_unread = len(rows.rows) > _SENT_AT_ONCE
                return [rows]
            cursor = self.execute(sql, arguments)
            self.row_count = max(cursor.rowcount, 0)
            if cursor.description:
                return [results.rows_of(self, cursor, None, ())]
            command = _CHANGES.get(statement.words(1), Command.UPDATE)
            return [Count(None if self.settings.no_count else self.row_count, command)]

    def _check_definitions(self, tables: frozenset[int]) -> None:
        """Refuse what was altered since the snapshot.

        Raises:
            SqlError: 3961.
        """
        listed = ", ".join(map(str, tables)) or "0"
        query = f"SELECT count(*) FROM sqlserver.definitions WHERE object_id IN ({listed})"
        with self.transactions.statement(is_change=False):
            seen = self.execute(query).fetchall()
        if seen != self.model.execute(query):
            self.transactions.rollback()
            raise SqlError(
                3961,
                f"Snapshot isolation transaction failed in database '{self.model.name}' because the object accessed by the statement has"
                " been modified by a DDL statement in another concurrent transaction since the start of this transaction. It is"
                " disallowed because the metadata is not versioned.",
            )

    def _prepared(self, translated: Translated) -> tuple[str, list[Any]]:
        """The SQL with its arguments; in a snapshot, functions that show the present are asked outside of it."""
        sql, arguments = translated.sql, [parameter(bound.value, bound.type) for bound in translated.arguments]
        if self.transactions.is_snapshot and translated.mentions & _CURRENT:
            ((lsn,),) = self.model.execute("SELECT sys.fn_cdc_get_max_lsn()")
            arguments.append(lsn)
            sql = sql.replace("sys.fn_cdc_get_max_lsn()", f'${len(arguments)}::sqlserver."binary(10)"')
        return sql, arguments

    def _assignment(self, statement: Statement) -> list[Outcome]:
        """SELECT @x = … without a table."""
        tokens = statement.tokens
        is_one = len(tokens) > 3 and tokens[1].text.startswith("@") and tokens[2].text == "="
        if not is_one:
            return []
        self.assign(tokens[1].text, statement.after(3))
        self.row_count = 1
        return [Count(None)]

    def assign(self, name: str, text: str) -> None:
        """Give a declared variable a value.

        Raises:
            SqlError: 137, it is not declared.
        """
        declared = self.variables.get(name.lower())
        if declared is None:
            raise SqlError(137, f'Must declare the scalar variable "{name}".', state=2, severity=15)
        source = f"CAST({text} AS {declared.type})" if declared.type is not None else text
        value, kind = self.value(source)
        self.variables[name.lower()] = Bound(name, declared.type or kind, value)

    def _if(self, statement: Statement) -> list[Outcome]:
        condition, rest = condition_and_rest(statement)
        holds, _ = self.value(f"CASE WHEN {condition} THEN 1 ELSE 0 END")
        outcomes: list[Outcome] = []
        if holds:
            for inner in statements(rest):
                outcomes += self.statement(inner)
        return outcomes

    def _globals(self) -> dict[str, exp.Expression]:
        number = exp.Literal.number
        return {
            "ROWCOUNT": number(self.row_count),
            "TRANCOUNT": number(self.transactions.count),
            "SPID": exp.cast(number(self.connection.info.backend_pid), "int"),
            "VERSION": exp.Literal.string(VERSION),
            "SERVERNAME": exp.Literal.string(SERVER_NAME),
            "LOCK_TIMEOUT": number(self.settings.lock_timeout_ms),
            "MICROSOFTVERSION": number(0x10000FA0),
            "MAX_PRECISION": number(38),
            "LANGUAGE": exp.Literal.string("us_english"),
            "ERROR": number(0),
        }
