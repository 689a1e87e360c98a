"""What relational sources share: a session over a driver (here sqlite3), and the bounds of chunks."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from typing_extensions import override

from replicator.model.errors import ReplicatorError, SchemaConflictError, SourceUnavailableError, TableError
from replicator.model.identity import TableIdentity
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.reads import ChunkBounds, FoundColumn, verify_shape
from replicator.plugins.kit.session import Session
from replicator.plugins.kit.table_reads import SnapshotRun
from replicator.plugins.source import ChunkRequest, Cursor, Visibility
from replicator_testing.defaults import chunk_request

SCHEMA = TableSchema(
    table=TableId("main", "t"),
    columns=(Column(name="id", type=pa.int64(), source_type="integer", nullable=False),),
    key=("id",),
)


class SqliteSession(Session[sqlite3.Connection]):
    driver_errors: ClassVar[tuple[type[Exception], ...]] = (sqlite3.Error,)

    def __init__(self, path: Path) -> None:
        super().__init__("here")
        self.path = path
        self.opened: list[sqlite3.Connection] = []
        self.closed = 0

    @override
    def connect(self) -> sqlite3.Connection:
        self.opened.append(sqlite3.connect(self.path, check_same_thread=False))
        return self.opened[-1]

    @override
    def is_open(self, connection: sqlite3.Connection) -> bool:
        return len(self.opened) > self.closed

    @override
    def is_reusable(self, connection: sqlite3.Connection, *, has_failed: bool) -> bool:
        return not has_failed

    @override
    def disconnect(self, connection: sqlite3.Connection) -> None:
        self.closed += 1
        connection.close()

    @override
    def interrupt(self, connection: sqlite3.Connection, wait_s: float) -> None:
        connection.interrupt()

    @override
    def translated(self, error: Exception, doing: str, table: str | None) -> ReplicatorError:
        return SourceUnavailableError(doing, code="source_unavailable", table=table)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SqliteSession]:
    made = SqliteSession(tmp_path / "db")
    yield made
    made.close()


def test_a_connection_is_opened_when_needed_and_used_again(session: SqliteSession) -> None:
    assert session.opened == []
    for _ in range(2):
        with session.use("reading") as connection:
            connection.execute("SELECT 1")
    assert len(session.opened) == 1
    session.release()
    with session.use("reading"):
        assert len(session.opened) == 2


def test_after_an_error_of_the_driver_another_connection_is_opened(session: SqliteSession) -> None:
    with (
        pytest.raises(SourceUnavailableError, match="reading on here") as caught,
        session.use("reading", table=SCHEMA.table) as c,
    ):
        c.execute("SELECT FROM nothing")
    assert caught.value.table == "main.t"
    with session.use("reading") as connection:
        connection.execute("SELECT 1")
    assert (len(session.opened), session.closed) == (2, 1)


def test_an_error_of_ours_passes_as_it_is(session: SqliteSession) -> None:
    with pytest.raises(SchemaConflictError), session.use("reading"):
        raise SchemaConflictError("changed", code="table_changed", table="main.t")


def test_closing_ends_what_another_thread_runs(session: SqliteSession) -> None:
    has_begun, errors = threading.Event(), []

    def endless() -> None:
        try:
            with session.use("reading") as connection:
                connection.create_function("begun", 0, lambda: has_begun.set() or 0)
                connection.execute(
                    "WITH RECURSIVE n(i) AS (SELECT begun() UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
                )
        except ReplicatorError as error:
            errors.append(error)

    thread = threading.Thread(target=endless)
    thread.start()
    assert has_begun.wait(timeout=60)
    session.close()
    thread.join(timeout=60)
    assert len(errors) == 1
    with pytest.raises(SourceUnavailableError) as caught, session.use("reading"):
        pass
    assert caught.value.code == "source_closed"


def batches(*counts: int) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows of eight bytes."""
    return (pa.RecordBatch.from_pydict({"id": pa.array(range(n), pa.int64())}) for n in counts)


def test_a_chunk_that_fits_is_not_cut() -> None:
    taken, is_cut = ChunkBounds(1000).take(ChunkRequest(schema=SCHEMA, limit=50), batches(10, 20))
    assert ([b.num_rows for b in taken], is_cut) == ([10, 20], False)


def test_a_chunk_that_grows_too_large_is_cut_and_the_next_asks_for_fewer_rows() -> None:
    bounds, request = ChunkBounds(250), ChunkRequest(schema=SCHEMA, limit=50)
    rest = batches(10, 20, 20)
    taken, is_cut = bounds.take(request, rest)
    assert ([b.num_rows for b in taken], is_cut) == ([10, 20], True)
    assert bounds.bounded(request).limit == 30
    assert bounds.take(request, batches(30)) == ([*batches(30)], True), "as many as were asked for: more may follow"
    assert bounds.take(request, batches(29))[1] is False, "the end of the table"


def test_one_batch_is_taken_however_large() -> None:
    taken, is_cut = ChunkBounds(1).take(chunk_request(SCHEMA), batches(10))
    assert (len(taken), is_cut) == (1, False)


def test_rows_of_too_many_keys_are_left_to_fewer_and_change_no_later_chunk() -> None:
    bounds = ChunkBounds(100)
    request = chunk_request(SCHEMA, keys=[(str(i),) for i in range(20)])
    assert bounds.take(request, batches(10, 10)) == ([], True)
    assert bounds.bounded(ChunkRequest(schema=SCHEMA, limit=50)).limit == 50


@pytest.mark.parametrize(
    ("columns", "key", "code"),
    [
        ({}, ("id",), "column_gone"),
        ({"id": FoundColumn(pa.int32(), "int")}, ("id",), "column_type_changed"),
        ({"id": FoundColumn(None, "odd")}, ("id",), "column_type_changed"),
        ({"id": FoundColumn(pa.int64(), "integer")}, (), "key_changed"),
    ],
)
def test_a_table_of_another_shape_is_refused(columns: dict[str, FoundColumn], key: tuple[str, ...], code: str) -> None:
    with pytest.raises(SchemaConflictError) as caught:
        verify_shape(SCHEMA, columns, key)
    assert caught.value.code == code


class Numbers(SnapshotRun[Sequence[int]]):
    """Reads blocks of numbers; one that is no number of 64 bits cannot be decoded."""

    def __init__(self, blocks: Sequence[Sequence[int]], *, is_still: bool) -> None:
        super().__init__(SCHEMA, TableIdentity(object="1"))
        self.given, self.is_still = iter(blocks), is_still

    @override
    def blocks(self) -> Iterator[Sequence[int]]:
        return self.given

    @override
    def decode(self, block: Sequence[int]) -> Sequence[pa.Array]:
        try:
            return [pa.array(block, pa.int64())]
        except OverflowError as error:
            raise TableError("A number is too large.", code="unrepresentable_value") from error

    @override
    def visibility(self) -> Visibility:
        raise NotImplementedError

    @override
    def cursor(self, taken: Sequence[pa.RecordBatch]) -> Cursor | None:
        raise NotImplementedError

    @override
    def is_same(self) -> bool:
        return self.is_still


@pytest.mark.parametrize("is_still", [True, False])
def test_rows_that_cannot_be_decoded_fail_a_table_only_if_it_is_still_the_same(*, is_still: bool) -> None:
    run = Numbers([[1, 2], [1 << 70], [3]], is_still=is_still)
    assert [batch.column(0).to_pylist() for batch in run.batches()] == [[1, 2]]
    assert next(run.given, None) is None, "the rest is read and discarded"
    if is_still:
        with pytest.raises(TableError, match="too large"):
            run.identity()
    else:
        assert run.identity() is None
    assert run.has_changed is not is_still


def test_numbers_of_columns_are_compared_where_both_sides_have_some() -> None:
    schema = replace(SCHEMA, columns=tuple(replace(c, id=i) for i, c in enumerate(SCHEMA.columns, start=1)))
    found = {c.name: FoundColumn(c.type, c.source_type, c.id) for c in schema.columns}
    verify_shape(schema, found, SCHEMA.key)
    verify_shape(SCHEMA, found, SCHEMA.key)
    # The host numbers the columns of an altered table even if its source has no numbers.
    verify_shape(schema, {name: one._replace(id=None) for name, one in found.items()}, SCHEMA.key)
    with pytest.raises(SchemaConflictError, match="another one"):
        verify_shape(schema, {name: one._replace(id=99) for name, one in found.items()}, SCHEMA.key)
