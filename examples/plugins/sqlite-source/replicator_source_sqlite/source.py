"""The SQLite source: what `PollingSource` asks for, in SQLite's statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from pydantic import Field

from replicator.model.errors import Problem, SourceUnavailableError
from replicator.model.identity import TableIdentity
from replicator.model.isolation import of_table
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins import ChunkRequest, ConfigModel, Cursor, SourceContext, TableDescription, TableSummary
from replicator.plugins.kit.polling import LoggedChange, PollingSource
from replicator_source_sqlite.values import quoted, text_of, type_of, value_of

_OPERATIONS = {"INSERT": ("NULL", "NEW"), "UPDATE": ("OLD", "NEW"), "DELETE": ("OLD", "NULL")}


class SqliteConfig(ConfigModel):
    """Settings of the SQLite source."""

    path: Path = Field(description="The database file, in WAL mode.")


class SqliteSource(PollingSource[SqliteConfig, sqlite3.Connection]):
    """A SQLite file. Triggers write each change of a replicated table into a table of ours."""

    type_name: ClassVar[str] = "sqlite"
    config_model: ClassVar[type[SqliteConfig]] = SqliteConfig

    def __init__(self, config: SqliteConfig, context: SourceContext) -> None:
        super().__init__(config, context)
        self._prefix = f"_replicator_{context.replicator}"
        self._log = quoted(self._prefix)

    def identity(self) -> Mapping[str, str]:
        """The file, and the table of changes in it."""
        return {"path": str(self.config.path.absolute()), "log": self._prefix}

    def connect(self) -> sqlite3.Connection:
        """The file must be there. The log is closed by another thread than the one that reads it."""
        uri = f"{self.config.path.absolute().as_uri()}?mode=rw"
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10, check_same_thread=False)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """The file is locked, or cannot be opened."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise SourceUnavailableError(f"SQLite cannot be used: {error}.", code="source_unavailable") from error

    def begin(self, connection: sqlite3.Connection) -> None:
        """In WAL mode a reader blocks no writer."""
        connection.execute("BEGIN")

    # -- tables

    def list_tables(self) -> Sequence[TableSummary]:
        """Tables, and views, which have no rows of their own."""
        with self.asking() as connection:
            found = connection.execute(
                "SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name"
            ).fetchall()
        return [
            TableSummary(table=TableId("main", name), left_out="It is a view." if kind == "view" else None)
            for name, kind in found
            if not name.startswith(("sqlite_", "_replicator_"))
        ]

    def describe_table(self, connection: sqlite3.Connection, table: TableId) -> TableDescription | None:
        """A table that is dropped takes its triggers along; each set of triggers has a token of its own."""
        statement = 'SELECT name, type, "notnull", pk FROM pragma_table_info(?)'
        found = connection.execute(statement, [table.name]).fetchall() if table.namespace == "main" else []
        if not found:
            return None
        with of_table(table, "reading its columns"):
            columns = tuple(
                Column(name=name, type=type_of(type_), source_type=type_, nullable=not is_set)
                for name, type_, is_set, _ in found
            )
        # A key's columns may be NULL in SQLite unless they say otherwise: such a table is replicated as one without a key.
        key = sorted((position, name) for name, _, _, position in found if position)
        is_key = all(is_set for _, _, is_set, position in found if position)
        schema = TableSchema(table=table, columns=columns, key=tuple(name for _, name in key) if is_key else ())
        tokens = {name.split(" ")[1] for name, owner, _ in self._triggers(connection) if owner == table.name}
        return TableDescription(schema=schema, identity=TableIdentity(object=" ".join(sorted(tokens)) or None))

    def check_database(self, connection: sqlite3.Connection) -> Sequence[Problem]:
        """The journal mode."""
        if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
            return []
        message, action = "The file is not in WAL mode: a read would block writers.", "Run: PRAGMA journal_mode = WAL"
        return [Problem(code="wal_off", message=message, location="source.path", action=action)]

    def select(
        self, connection: sqlite3.Connection, schema: TableSchema, request: ChunkRequest | None
    ) -> Iterator[str]:
        """SQLite compares rows as well as values: `(a, b) > (?, ?)`."""
        statement = f"SELECT {text_of(map(quoted, schema.fields))} FROM {quoted(schema.table.name)}"

        def run(rest: str, values: Iterable[str]) -> Iterator[str]:
            found = connection.execute(f"{statement} {rest}", [value_of(value) for value in values])
            return (text for (text,) in found)

        key, marks = ", ".join(map(quoted, schema.key)), ", ".join("?" * len(schema.key))
        if request is None:
            yield from run("", ())
        elif request.keys is not None:
            for wanted in request.keys:
                yield from run(f"WHERE ({key}) = ({marks})", wanted)
        else:
            bounds = {f"({key}) > ({marks})": request.after, f"({key}) <= ({marks})": request.upto}
            where = " AND ".join(["TRUE", *(condition for condition, bound in bounds.items() if bound)])
            values = [value for bound in bounds.values() for value in bound or ()]
            yield from run(f"WHERE {where} ORDER BY {key} LIMIT {request.limit}", values)

    def row_of(self, schema: TableSchema, text: str) -> Mapping[str, Any]:
        """Each part is a value."""
        parts = zip(schema.columns, text.split(","), strict=True)
        return {schema.fields[column.name]: value_of(part, column.type) for column, part in parts}

    def cursor_of(self, schema: TableSchema, text: str) -> Cursor:
        """The texts of the key's columns."""
        parts = dict(zip(schema.fields, text.split(","), strict=True))
        return tuple(parts[name] for name in schema.key)

    # -- the table of changes

    def begin_logging(self, connection: sqlite3.Connection, schemas: Sequence[TableSchema], *, is_first: bool) -> None:
        """Triggers that log a table already stay: no change is lost."""
        connection.execute("BEGIN IMMEDIATE")
        kept = [] if is_first else [schema for schema in schemas if self.is_logged(connection, schema)]
        self._drop_triggers(connection, keep={schema.table.name for schema in kept})
        if is_first:
            connection.execute(f"DROP TABLE IF EXISTS {self._log}")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._log} (number INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL"
            " DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')), table_name TEXT, operation TEXT, before TEXT, after TEXT)"
        )
        for schema in schemas:
            token = uuid4().hex
            for operation in _OPERATIONS if schema not in kept else ():
                connection.execute(self._trigger(schema, operation, token))
        connection.execute("COMMIT")

    def end_logging(self, connection: sqlite3.Connection) -> None:
        """In one transaction."""
        connection.execute("BEGIN IMMEDIATE")
        self._drop_triggers(connection, keep=set())
        connection.execute(f"DROP TABLE IF EXISTS {self._log}")
        connection.execute("COMMIT")

    def leftovers(self) -> Sequence[str]:
        """What to drop; without the file the triggers' names are not known."""
        return [f"DROP TRIGGER, for each trigger whose name begins with {self._prefix}", f"DROP TABLE {self._log}"]

    def is_logged(self, connection: sqlite3.Connection, schema: TableSchema) -> bool:
        """Whether the triggers are those that would be created now."""
        found = {
            (name.split(" ")[1], sql) for name, owner, sql in self._triggers(connection) if owner == schema.table.name
        }
        tokens = {token for token, _ in found}
        return len(tokens) == 1 and {sql for _, sql in found} == {
            self._trigger(schema, o, *tokens) for o in _OPERATIONS
        }

    def last_change(self, connection: sqlite3.Connection) -> int:
        """The highest number."""
        (number,) = connection.execute(f"SELECT coalesce(max(number), 0) FROM {self._log}").fetchone()
        return int(number)

    def changes(self, connection: sqlite3.Connection, after: int, upto: int) -> Iterator[LoggedChange]:
        """By number, which is the table's key."""
        statement = f"SELECT * FROM {self._log} WHERE number > ? AND number <= ? ORDER BY number"
        for number, at, name, operation, before, row in connection.execute(statement, [after, upto]):
            table = None if name is None else TableId("main", name)
            time = datetime.fromisoformat(at).replace(tzinfo=UTC)
            yield LoggedChange(number=number, at=time, table=table, operation=operation, before=before, after=row)

    def write_mark(self, connection: sqlite3.Connection, text: str) -> None:
        """A row without a table."""
        connection.execute(f"INSERT INTO {self._log} (after) VALUES (?)", [text])

    def delete_changes(self, connection: sqlite3.Connection, before: int) -> None:
        """One statement."""
        connection.execute(f"DELETE FROM {self._log} WHERE number < ?", [before])

    def _triggers(self, connection: sqlite3.Connection) -> Sequence[tuple[str, str, str]]:
        """Our triggers: `prefix token operation`, the table and the statement of each."""
        found = connection.execute("SELECT name, tbl_name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        return [row for row in found if row[0].startswith(f"{self._prefix} ")]

    def _trigger(self, schema: TableSchema, operation: str, token: str) -> str:
        before, after = (
            name if name == "NULL" else text_of(f"{name}.{quoted(column)}" for column in schema.fields)
            for name in _OPERATIONS[operation]
        )
        table = schema.table.name.replace("'", "''")
        return (
            f"CREATE TRIGGER {quoted(f'{self._prefix} {token} {operation}')} AFTER {operation} ON {quoted(schema.table.name)}"
            f" BEGIN INSERT INTO {self._log} (table_name, operation, before, after)"
            f" VALUES ('{table}', '{operation}', {before}, {after}); END"
        )

    def _drop_triggers(self, connection: sqlite3.Connection, *, keep: set[str]) -> None:
        for name, owner, _ in self._triggers(connection):
            if owner not in keep:
                connection.execute(f"DROP TRIGGER {quoted(name)}")
