"""The SQLite source: its tables, the triggers that log their changes, and chunks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

import pyarrow as pa
from pydantic import Field

from replicator.model.errors import LogGapError, OffsetExpiredError, Problem, SourceUnavailableError, TableError
from replicator.model.identity import TableIdentity
from replicator.model.isolation import of_table
from replicator.model.offset import Offset
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins import (
    Chunk,
    ChunkRequest,
    ConfigModel,
    DeltaSource,
    SourceContext,
    SourceStatus,
    TableDescription,
    TableSummary,
    Visibility,
    WholeRead,
)
from replicator_source_sqlite.log import Boundaries, SqliteLog, SqliteVisibility
from replicator_source_sqlite.values import literal, quoted, row_of, text_of, type_of

_BATCH_ROWS = 10_000
_OPERATIONS = {"INSERT": ("NULL", "NEW"), "UPDATE": ("OLD", "NEW"), "DELETE": ("OLD", "NULL")}


class SqliteConfig(ConfigModel):
    """Settings of the SQLite source."""

    path: Path = Field(description="The database file, in WAL mode.")


class SqliteSource(DeltaSource[SqliteConfig]):
    """A SQLite file. Triggers write each change of a replicated table into a table of ours."""

    type_name: ClassVar[str] = "sqlite"
    config_model: ClassVar[type[SqliteConfig]] = SqliteConfig

    def __init__(self, config: SqliteConfig, context: SourceContext) -> None:
        super().__init__(config, context)
        self._prefix = f"_replicator_{context.replicator}"
        self.log = quoted(self._prefix)
        self.boundaries = Boundaries(self.log)

    def connect(self) -> sqlite3.Connection:
        """A connection in autocommit mode. It may be closed by another thread than the one that uses it."""
        uri = f"file:{self.config.path}?mode=rw"
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10, check_same_thread=False)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """SQLite's errors become ours: the file is locked or cannot be opened."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise SourceUnavailableError(f"SQLite cannot be used: {error}.", code="source_unavailable") from error

    # -- catalogue

    def identity(self) -> Mapping[str, str]:
        """The file, and the table of changes in it."""
        return {"path": str(self.config.path.absolute()), "log": self._prefix}

    def list_tables(self) -> Sequence[TableSummary]:
        """Tables, and views, which have no rows of their own."""
        with self._asking() as connection:
            found = connection.execute(
                "SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
                " AND name NOT LIKE '\\_replicator\\_%' ESCAPE '\\' ORDER BY name"
            ).fetchall()
        return [
            TableSummary(table=TableId("main", name), kind=kind, left_out="It is a view." if kind == "view" else None)
            for name, kind in found
        ]

    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, TableDescription]:
        """Columns and key, and which triggers log the table."""
        with self._asking() as connection:
            found = {table: self._schema(connection, table) for table in tables}
            return {
                table: TableDescription(schema=schema, identity=self._identity(connection, table))
                for table, schema in found.items()
                if schema is not None
            }

    def check(self, tables: Sequence[TableId]) -> Sequence[Problem]:
        """The mode of the file, missing tables and types."""
        problems: list[Problem] = []
        with self._asking() as connection:
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                action = "Run: PRAGMA journal_mode = WAL"
                message = "The file is not in WAL mode: a read would block writers."
                problems.append(Problem(code="wal_off", message=message, place="source.path", action=action))
            for table in tables:
                try:
                    if self._schema(connection, table) is None:
                        raise TableError("The table does not exist.", code="table_missing", table=str(table))
                except TableError as error:
                    problems.append(Problem.of(error))
        return problems

    # -- log

    def prepare(self, tables: Sequence[TableId], *, is_first: bool) -> Offset:
        """Create the table of changes and the triggers, in one transaction."""
        with self._asking() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if is_first:
                self._remove(connection)
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self.log} (id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL"
                " DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')), table_name TEXT, operation TEXT, before TEXT, after TEXT)"
            )
            mark = f"INSERT INTO {self.log} (operation, after) VALUES ('MARK', '') RETURNING id"
            (number,) = connection.execute(mark).fetchone()
            for name in {owner for owner, _ in self._triggers(connection).values()} - {table.name for table in tables}:
                self._drop_triggers(connection, name)
            for schema in filter(None, (self._schema(connection, table) for table in tables)):
                if not self.is_logged(connection, schema):
                    self._drop_triggers(connection, schema.table.name)
                    token = uuid4().hex
                    for operation in _OPERATIONS:
                        connection.execute(self._trigger(schema, operation, token))
            connection.execute("COMMIT")
        return Offset.of({"id": number})

    def status(self, since: Visibility | None = None) -> SourceStatus:  # noqa: ARG002 - nothing is waited for
        """The clock is this machine's, as the file is."""
        return SourceStatus(now=datetime.now(UTC))

    def remove(self) -> None:
        """Drop the triggers and the table of changes."""
        with self._asking() as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._remove(connection)
            connection.execute("COMMIT")

    def leftovers(self) -> Sequence[str]:
        """The triggers go with their tables, and cannot be named without the file."""
        return [f"DROP TRIGGER, for every trigger whose name begins with {self._prefix}", f"DROP TABLE {self.log}"]

    def open_log(self, after: Offset, schemas: Mapping[TableId, TableSchema]) -> SqliteLog:
        """The row at the offset is there until something behind it is acknowledged."""
        with self._asking() as connection:
            try:
                found = connection.execute(f"SELECT 1 FROM {self.log} WHERE id = ?", [after.value["id"]]).fetchone()
            except sqlite3.OperationalError as error:
                raise LogGapError("The table of changes is missing.", code="log_gap") from error
        if found is None:
            raise OffsetExpiredError(f"Change {after.value['id']} is no longer in the log.", code="offset_expired")
        return SqliteLog(self, after, schemas)

    def mark(self) -> str:
        """A row among the changes."""
        text = uuid4().hex
        with self._asking() as connection:
            connection.execute(f"INSERT INTO {self.log} (operation, after) VALUES ('MARK', ?)", [text])
        return text

    def visibility(self) -> Visibility:
        """That of an empty read."""
        with self._asking() as connection:
            return self.boundaries.begin_read(connection)

    # -- chunks

    def read_chunk(self, request: ChunkRequest) -> Chunk:
        """One SELECT; readers and writers do not block each other in WAL mode."""
        schema, names = request.schema, [quoted(name) for name in request.schema.key]
        key, parts = ", ".join(names), f"({', '.join('?' * len(names))})"
        with self._reading(schema) as (connection, visibility, identity):
            select = f"SELECT {text_of(map(quoted, schema.fields))} FROM {quoted(schema.table.name)}"
            if request.keys is not None:
                statement = f"{select} WHERE ({key}) = {parts}"
                texts = [t for k in request.keys for t in connection.execute(statement, list(map(literal, k)))]
            else:
                bounds = [(">", request.after), ("<=", request.upto)]
                conditions = [f"({key}) {sign} {parts}" for sign, bound in bounds if bound is not None]
                values = [literal(text) for _, bound in bounds for text in bound or ()]
                where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
                found = connection.execute(f"{select} {where} ORDER BY {key} LIMIT ?", [*values, request.limit])
                texts = found.fetchall()
        cursor = None
        if texts:
            last = dict(zip(schema.fields, texts[-1][0].split(","), strict=True))
            cursor = tuple(last[name] for name in schema.key)
        return Chunk(rows=_batch(schema, texts), cursor=cursor, visibility=visibility, identity=identity)

    @contextmanager
    def read_whole(self, schema: TableSchema) -> Iterator[WholeRead]:
        """One SELECT, read in batches."""
        with self._reading(schema) as (connection, visibility, identity):
            found = connection.execute(f"SELECT {text_of(map(quoted, schema.fields))} FROM {quoted(schema.table.name)}")
            batches = (_batch(schema, texts) for texts in iter(lambda: found.fetchmany(_BATCH_ROWS), []))
            yield WholeRead(visibility=visibility, batches=batches, identity=lambda: identity)

    def close(self) -> None:
        """Nothing is kept open but the log."""

    # -- inside

    @contextmanager
    def _asking(self) -> Iterator[sqlite3.Connection]:
        with self.translated(), closing(self.connect()) as connection:
            yield connection

    @contextmanager
    def _reading(self, schema: TableSchema) -> Iterator[tuple[sqlite3.Connection, SqliteVisibility, TableIdentity]]:
        """A read transaction: rows, visibility and identity are of one moment."""
        with self._asking() as connection:
            visibility = self.boundaries.begin_read(connection)
            found = self._schema(connection, schema.table)
            if found is None or found.columns != schema.columns:
                raise TableError("The table was dropped or altered.", code="schema_changed", table=str(schema.table))
            yield connection, visibility, self._identity(connection, schema.table)

    def _schema(self, connection: sqlite3.Connection, table: TableId) -> TableSchema | None:
        found = connection.execute(
            'SELECT name, type, "notnull", pk FROM pragma_table_info(?)', [table.name]
        ).fetchall()
        if not found or table.namespace != "main":
            return None
        with of_table(table, "reading its columns"):
            columns = tuple(
                Column(name=name, type=type_of(declared), source_type=declared, nullable=not is_set)
                for name, declared, is_set, _ in found
            )
        key = [(place, name, is_set) for name, _, is_set, place in found if place]
        # SQLite lets columns of a key be NULL unless they say otherwise: such a table is replicated as one without a key.
        is_key = all(is_set for _, _, is_set in key)
        return TableSchema(
            table=table, columns=columns, key=tuple(name for _, name, _ in sorted(key)) if is_key else ()
        )

    def _triggers(self, connection: sqlite3.Connection) -> Mapping[str, tuple[str, str]]:
        """Our triggers by name, each with its table and statement."""
        found = connection.execute(
            "SELECT name, tbl_name, sql FROM sqlite_schema WHERE type = 'trigger' AND substr(name, 1, ?) = ?",
            [len(self._prefix) + 1, f"{self._prefix} "],
        )
        return {name: (table, sql) for name, table, sql in found}

    def _identity(self, connection: sqlite3.Connection, table: TableId) -> TableIdentity:
        """A table that is dropped takes its triggers along; each set of triggers has a token of its own."""
        tokens = {name.split(" ")[1] for name, (owner, _) in self._triggers(connection).items() if owner == table.name}
        return TableIdentity(object=" ".join(sorted(tokens)) or None)

    def is_logged(self, connection: sqlite3.Connection, schema: TableSchema) -> bool:
        """Whether the triggers of a table write all its columns."""
        found = {name: sql for name, (owner, sql) in self._triggers(connection).items() if owner == schema.table.name}
        tokens = {name.split(" ")[1] for name in found}
        return len(tokens) == 1 and set(found.values()) == {self._trigger(schema, o, *tokens) for o in _OPERATIONS}

    def _trigger(self, schema: TableSchema, operation: str, token: str) -> str:
        def row(name: str) -> str:
            return name if name == "NULL" else text_of(f"{name}.{quoted(column)}" for column in schema.fields)

        before, after = _OPERATIONS[operation]
        table = schema.table.name.replace("'", "''")
        return (
            f"CREATE TRIGGER {quoted(f'{self._prefix} {token} {operation}')} AFTER {operation} ON {quoted(schema.table.name)}"
            f" BEGIN INSERT INTO {self.log} (table_name, operation, before, after)"
            f" VALUES ('{table}', '{operation}', {row(before)}, {row(after)}); END"
        )

    def _drop_triggers(self, connection: sqlite3.Connection, table: str | None) -> None:
        for name, (owner, _) in self._triggers(connection).items():
            if table in {None, owner}:
                connection.execute(f"DROP TRIGGER {quoted(name)}")

    def _remove(self, connection: sqlite3.Connection) -> None:
        self._drop_triggers(connection, None)
        connection.execute(f"DROP TABLE IF EXISTS {self.log}")
        self.boundaries.forget()


def _batch(schema: TableSchema, texts: Sequence[tuple[str]]) -> pa.RecordBatch:
    with of_table(schema.table, "reading its rows"):
        rows = [row_of(schema, text) for (text,) in texts]
        return pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(schema.row_type)))
