"""Reads of tables: chunks in key order, and whole tables without a key.

On MariaDB a read is one transaction with a consistent snapshot, which lives as long as the read. On MySQL a chunk is one
statement between two looks at the executed GTIDs (without GTIDs: behind a watermark, and before a look at the end of the
log): what came in between is unknown, and left to the log. In a table without a key nothing can be left to the log row by
row, and its first row may be long in coming; so MySQL reads it in a consistent snapshot too, taken between two looks with
nothing in between, if a few tries find such a moment. Every read gives way to whoever waits for the table's metadata
lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from replicator.model.errors import (
    ReplicatorError,
    SchemaConflictError,
    SourceUnavailableError,
    TableError,
    UnsupportedTypeError,
)
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import Chunk, ChunkRequest, Cursor, Visibility, WholeRead
from replicator_source_mysql.binlog.types import Unrepresentable
from replicator_source_mysql.catalogue import CatalogTable, system_versioned, virtual_column
from replicator_source_mysql.chunksql import ReadPlan, chunk_query, whole_query
from replicator_source_mysql.connection import Connection, Session, is_mariadb, rows_of
from replicator_source_mysql.discovery import read_tables
from replicator_source_mysql.filepos import file_number
from replicator_source_mysql.gtid import GtidSet
from replicator_source_mysql.textrows import Rows, text_rows
from replicator_source_mysql.values import decoded, key_proof, verify_told_apart
from replicator_source_mysql.visibility import (
    FileVisibility,
    MariadbVisibility,
    MysqlVisibility,
    executed_or_committing,
    prepared_xids,
    snapshot_gtids,
)
from replicator_source_mysql.watermark import ordered_end_of_log, seen_but_for_others, write_watermark

_BLOCK_ROWS: Final = 50_000
_BLOCK_BYTES: Final = 32 << 20
_WHOLE_ROWS: Final = 10_000
_SILENCE_S: Final = 3600.0
# How often a moment without a commit is looked for; beyond it what was committed then is unknown.
_SNAPSHOT_TRIES: Final = 100

# Without GTIDs, where a moment without a commit of a change of the table is enough; each try is a small transaction.
_SNAPSHOT_TRIES_BY_FILE: Final = 500
_SNAPSHOT: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"

_WAITING_QUERY: Final = """
SELECT id FROM information_schema.processlist
WHERE state LIKE 'Waiting for table metadata lock%%' AND id <> %s AND INSTR(info, %s) > 0 LIMIT 1
"""


class LockWatch:
    """Watches, while a read runs, whether somebody waits for its table's metadata lock, and then ends the read.

    A read that takes less than one interval costs no query. The first time the statement is killed; if it is still there
    an interval later, because its client does not take its rows and so the server does not look, its connection is.
    """

    def __init__(self, session: Session, thread_id: int, table: TableId, every_s: float) -> None:
        self._session = session
        self._thread_id = thread_id
        self._table = table
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="replicator-lock-watch", daemon=True)
        self.waiting_id: int | None = None
        self.error: ReplicatorError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                with self._session.use("watching for waiting locks") as connection:
                    self._look(connection)
        except ReplicatorError as error:
            # Unwatched, the read might block somebody: it fails, in the thread that reads.
            self.error = error

    def _look(self, connection: Connection) -> None:
        rows = rows_of(connection, _WAITING_QUERY, [self._thread_id, self._table.name])
        if not rows or self._stop.is_set():
            return
        what = "QUERY" if self.waiting_id is None else "CONNECTION"
        self.waiting_id = rows[0][0]
        with connection.cursor() as cursor:
            cursor.execute(f"KILL {what} {self._thread_id}")


@dataclass(slots=True, kw_only=True)
class TableReader:
    """Reads chunks and whole tables over one connection; used from one thread.

    Attributes:
        session: The reading connection.
        watch_session: Another one, on which waiting locks, executed GTIDs and the end of the log are looked at.
        delivered: What the log has handed out so far (MySQL).
        is_by_gtid: Whether ids of another server's files have to be judged (MariaDB).
        watermark: Where watermarks are written; None where GTIDs tell, and on MariaDB.
        watch_every_s: How often a running read looks for waiting locks.
        statement_s: How long the reading of a chunk may take.
    """

    session: Session
    watch_session: Session
    unrepresentable: Unrepresentable
    chunk_bytes_max: int
    watch_every_s: float
    statement_s: float
    delivered: Callable[[], GtidSet]
    is_by_gtid: Callable[[], bool]
    watermark: Callable[[Connection], TableId | None]
    _tables: dict[TableId, CatalogTable] = field(default_factory=dict)

    def read_chunk(self, request: ChunkRequest) -> Chunk:
        """See `DeltaSource.read_chunk`."""
        table = request.schema.table
        with self._read(request.schema, "reading a chunk") as run:
            blocks = list(
                run.blocks(
                    run.bounded(chunk_query(run.plan, request)), rows_max=_BLOCK_ROWS, total_max=self.chunk_bytes_max
                )
            )
            batches = [batch for batch, _ in blocks]
            cursor = blocks[-1][1] if blocks else None
            visibility = run.visibility()
            identity = run.identity()
        if identity is None:
            self._tables.pop(table, None)
        if cursor is not None and cursor == request.after:
            raise TableError(
                "a chunk ends with the key after which it began: several values of its key are the same text in UTF-8, as bytes "
                "are that the key's character set does not define.",
                code="cursor_stuck",
                table=str(table),
                action="Correct these values, or convert the key to utf8mb4; then run `replicator snapshot NAME TABLE`.",
            )
        return Chunk(rows=_joined(batches, request.schema), cursor=cursor, visibility=visibility, identity=identity)

    @contextmanager
    def read_whole(self, schema: TableSchema) -> Iterator[WholeRead]:
        """See `DeltaSource.read_whole`."""
        with self._read(schema, "reading a table", is_whole=True) as run:
            blocks = run.blocks(whole_query(run.plan), rows_max=_WHOLE_ROWS, total_max=None)
            # The statement has its view of the table once its first row is here.
            first = [batch for batch, _ in (block for block in (next(blocks, None),) if block is not None)]
            visibility = run.visibility()

            def batches() -> Iterator[pa.RecordBatch]:
                yield from first
                for batch, _ in blocks:
                    yield batch
                run.has_ended = True

            yield WholeRead(visibility=visibility, batches=batches(), identity=run.identity)

    @contextmanager
    def _read(self, schema: TableSchema, doing: str, *, is_whole: bool = False) -> Iterator[_Run]:
        """Give a run; whatever ends it early leaves nothing behind on the server."""
        watch: LockWatch | None = None
        try:
            with self.session.use(doing, table=schema.table) as connection:
                table, plan = self._plan(connection, schema)
                thread_id = connection.thread_id()
                with LockWatch(self.watch_session, thread_id, schema.table, self.watch_every_s) as watch:
                    run = _Run(self, connection, table, plan, is_whole=is_whole)
                    run.begin()
                    yield run
                    run.end()
        except ReplicatorError as error:
            self._tables.pop(schema.table, None)
            if isinstance(error, SourceUnavailableError) and watch is not None and watch.waiting_id is not None:
                raise SourceUnavailableError(
                    f"the read gave way to the session {watch.waiting_id}, which waited for its table's metadata lock.",
                    code="gave_way",
                    table=str(schema.table),
                ) from error
            raise
        if watch is not None and watch.error is not None:
            raise watch.error

    def _plan(self, connection: Connection, schema: TableSchema) -> tuple[CatalogTable, ReadPlan]:
        if schema.table in self._tables:
            try:
                return self._tables[schema.table], read_plan(self._tables[schema.table], schema)
            except SchemaConflictError:
                # What is remembered is of the table before it was changed, or of the one before it.
                del self._tables[schema.table]
        found = read_tables(connection, [schema.table]).get(schema.table)
        if found is None:
            raise TableError("the table no longer exists.", code="table_not_found", table=str(schema.table))
        if found.is_system_versioned:
            raise system_versioned(schema.table)
        if changing := found.session_dependent("mariadb" if is_mariadb(connection) else "mysql"):
            raise virtual_column(schema.table, changing[0])
        plan = read_plan(found, schema)
        self._tables[schema.table] = found
        return found, plan


class _Run:
    """One read that runs: its visibility, its rows, and whether the table stayed the same."""

    def __init__(
        self, reader: TableReader, connection: Connection, table: CatalogTable, plan: ReadPlan, *, is_whole: bool
    ) -> None:
        self.plan = plan
        self.has_ended = False
        self._reader = reader
        self._connection = connection
        self._table = table
        self._is_mariadb = is_mariadb(connection)
        self._is_whole = is_whole
        self._visibility: Visibility | None = None
        self._before = GtidSet()
        self._watermark = reader.watermark(connection)
        self._before_place = (0, 0)
        self._identity: Mapping[str, Any] | None = None

    def begin(self) -> None:
        """Before the statement."""
        if self._is_mariadb:
            self._visibility = begin_snapshot(self._connection, is_by_gtid=self._reader.is_by_gtid())
        elif self._is_whole:
            quiet = self._quiet_snapshot if self._watermark is None else self._quiet_snapshot_by_file
            self._visibility = quiet()
        elif self._watermark is not None:
            self._before_place = write_watermark(self._connection, self._watermark).place
        else:
            self._before = executed_or_committing(self._connection)[0]

    def end(self) -> None:
        """Behind the last row: nothing of the read stays open."""
        if self._is_mariadb or self._is_whole:
            self._connection.commit()

    def _quiet_snapshot(self) -> MysqlVisibility:
        """Open MySQL's consistent snapshot in a moment in which nothing is being committed, if there is one."""
        before = after = GtidSet()
        for _ in range(_SNAPSHOT_TRIES):
            before, _ = executed_or_committing(self._connection)
            with self._connection.cursor() as cursor:
                # Ends the one before.
                cursor.execute(_SNAPSHOT)
            _, after = executed_or_committing(self._connection)
            if after == before:
                break
        return MysqlVisibility(before=before, after=after, delivered=self._reader.delivered())

    def _quiet_snapshot_by_file(self) -> FileVisibility:
        """Open the snapshot in a moment in which nothing that touches this table is being committed.

        Raises:
            TableError: There was no such moment.
        """
        assert self._watermark is not None
        table = self._table.table
        for _ in range(_SNAPSHOT_TRIES_BY_FILE):
            # One statement commits the watermark and opens the snapshot: the moment is as short as can be.
            before = write_watermark(self._connection, self._watermark, commit=_SNAPSHOT)
            after = ordered_end_of_log(self._connection)
            seen = seen_but_for_others(self._connection, table, watermark=self._watermark, before=before, after=after)
            if seen is not None:
                return FileVisibility(before=seen.place, after=after.place)
        raise TableError(
            f"it has no key and is written all the time: {_SNAPSHOT_TRIES_BY_FILE} attempts found a change of it being committed, "
            "and without GTIDs it is unknown whether a read sees such a change.",
            code="no_quiet_moment",
            table=str(table),
            action="Run `replicator snapshot NAME TABLE` while it is written less; or give it a key, or switch GTIDs on.",
        )

    def visibility(self) -> Visibility:
        """What the statement saw; asked for once it has given its first row, or ended."""
        if self._visibility is not None:
            return self._visibility
        if self._watermark is not None:
            with self._reader.watch_session.use("reading the end of the log") as connection:
                end = ordered_end_of_log(connection)
            return FileVisibility(before=self._before_place, after=end.place)
        with self._reader.watch_session.use("reading the executed GTIDs") as connection:
            _, after = executed_or_committing(connection)
        return MysqlVisibility(before=self._before, after=after, delivered=self._reader.delivered())

    def bounded(self, query: str) -> str:
        """The statement with a bound on its time."""
        seconds = self._reader.statement_s
        if self._is_mariadb:
            return f"SET STATEMENT max_statement_time = {seconds} FOR {query}"
        return query.replace("SELECT", f"SELECT /*+ MAX_EXECUTION_TIME({round(seconds * 1000)}) */", 1)

    def blocks(
        self, query: str, *, rows_max: int, total_max: int | None
    ) -> Iterator[tuple[pa.RecordBatch, Cursor | None]]:
        """Decode the rows, block by block, each with the key of its last row."""
        total = 0
        for rows in text_rows(self._connection, query, rows_max=rows_max, bytes_max=_BLOCK_BYTES, silence_s=_SILENCE_S):
            total += rows.size
            if total_max is not None and total > total_max:
                raise TableError(
                    f"a chunk has more than {total_max} bytes (source.chunk_bytes_max).",
                    code="chunk_too_large",
                    table=str(self._table.table),
                    action="Lower snapshot.chunk_rows.",
                )
            yield self._decode(rows)
        self.has_ended = True

    def identity(self) -> Mapping[str, Any] | None:
        """The table's identity if nothing about it changed from the plan to the end of the read."""
        if not self.has_ended:
            raise AssertionError("identity() before the last batch")
        if self._is_whole and not self._is_mariadb:
            # The rows are here, and MySQL keeps its catalogue in tables: it is asked for as it is now.
            self._connection.commit()
        after = read_tables(self._connection, [self._table.table]).get(self._table.table)
        is_same = (
            after is not None
            and after.identity == self._table.identity
            and after.columns == self._table.columns
            and after.key == self._table.key
        )
        return self._table.identity if is_same else None

    def _decode(self, rows: Rows) -> tuple[pa.RecordBatch, Cursor | None]:
        schema = self.plan.schema
        name = ""
        try:
            arrays = []
            for name, spec in self.plan.columns:
                policy: Unrepresentable = "fail" if name in schema.key else self._reader.unrepresentable
                arrays.append(decoded(rows.next_column(), spec, name=name, unrepresentable=policy))
            cursor = tuple(rows.last_text(rows.next_values()) for _ in schema.key) or None
            for name, spec in self.plan.key:
                if key_proof(name, spec) is not None:
                    verify_told_apart(rows.next_column(), spec, name=name)
        except UnsupportedTypeError as error:
            raise UnsupportedTypeError(
                error.message, code=error.code, table=str(schema.table), action=error.action
            ) from error
        except Exception as error:
            # Whatever it is, it is about this table's values. Arrow's own text may hold one.
            raise TableError(
                f"column {name}: the server's rows do not match their types ({type(error).__name__}).",
                code="corrupt_rows",
                table=str(schema.table),
                action="Run `replicator snapshot NAME TABLE`; if it fails again, exclude the table and report its CREATE TABLE.",
            ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(schema.row_type))), cursor


def begin_snapshot(connection: Connection, *, is_by_gtid: bool) -> MariadbVisibility:
    """Open MariaDB's consistent snapshot and learn its place in the log.

    The order matters: the end of the log, what is prepared, the snapshot, the end of the log again (see `visibility`).
    """
    settled_file, settled_pos = _end_of_log(connection)
    prepared = prepared_xids(connection)
    with connection.cursor() as cursor:
        # The level at which MariaDB heeds the rest; it holds for the next transaction.
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    status: dict[str, str] = dict(rows_of(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
    file, pos = status.get("Binlog_snapshot_file", ""), int(status.get("Binlog_snapshot_position", 0))
    end_file, end_pos = _end_of_log(connection)
    return MariadbVisibility(
        place=(file_number(file), pos),
        end=(file_number(end_file), end_pos),
        settled=(file_number(settled_file), settled_pos),
        prepared=prepared,
        gtids=snapshot_gtids(connection, file, pos) if is_by_gtid else None,
        settled_gtids=snapshot_gtids(connection, settled_file, settled_pos) if is_by_gtid else None,
    )


def _end_of_log(connection: Connection) -> tuple[str, int]:
    ((file, pos, *_),) = rows_of(connection, "SHOW MASTER STATUS")
    return file, int(pos)


def read_plan(table: CatalogTable, schema: TableSchema) -> ReadPlan:
    """What to read of a table so that the rows have the shape that the host follows.

    Raises:
        SchemaConflictError: A column of `schema` is gone or has another type, or the key is another.
    """
    columns = {c.name: c for c in table.replicable}
    for column in schema.columns:
        found = columns.get(column.name)
        if found is None:
            raise SchemaConflictError(
                f"the column {column.name} no longer exists.", code="column_gone", table=str(schema.table)
            )
        if found.spec is None or found.spec.arrow != column.type:
            raise SchemaConflictError(
                f"the column {column.name} is {found.column_type} now; {column.source_type} was expected.",
                code="column_type_changed",
                table=str(schema.table),
            )
    if table.key != schema.key:
        raise SchemaConflictError(
            f"the key is now ({', '.join(table.key)}); ({', '.join(schema.key)}) was expected.",
            code="key_changed",
            table=str(schema.table),
        )
    return ReadPlan(schema=schema, specs=table.specs)


def _joined(batches: list[pa.RecordBatch], schema: TableSchema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema=pa.schema(list(schema.row_type))).combine_chunks()
    if not table.num_rows:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    return table.to_batches()[0]
