"""Chunks from the model through both drivers: their rows, what they saw, a table that changes meanwhile, and giving way."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyodbc
import pytest
from typing_extensions import override

from replicator.model.errors import (
    ImpossibleKeyError,
    SchemaConflictError,
    SourceUnavailableError,
    TableError,
    UnsupportedTypeError,
)
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.reads import ChunkBounds
from replicator.plugins.kit.table_reads import ReadKind, SnapshotRead
from replicator.plugins.source import Chunk, ChunkRequest, Cursor, Seen, Visibility
from replicator_source_sqlserver.catalogue.discovery import read_tables
from replicator_source_sqlserver.catalogue.tables import CatalogTable
from replicator_source_sqlserver.connecting.connection import Connection, Session
from replicator_source_sqlserver.lsn import ZERO, lsn_to_text
from replicator_source_sqlserver.snapshot.chunk_statements import KEYS_MAX, Query, ReadPlan, chunk_query
from replicator_source_sqlserver.snapshot.reader import TableReader, _Run
from replicator_source_sqlserver.snapshot.whole_reads import WholeReads
from replicator_testbed.sqlserver.drivers import Driver
from replicator_testbed.sqlserver.model import SqlServerModel

Open = Callable[..., pyodbc.Connection]
OpenSession = Callable[..., Session]
TABLE = TableId("dbo", "orders")
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class UpTo(Visibility):
    """Everything that was captured up to a commit."""

    lsn: str

    @override
    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        seen = [Seen.SEEN if lsn <= self.lsn else Seen.UNKNOWN for lsn in transaction_ids.to_pylist()]
        return pa.array([int(one) for one in seen], pa.int8())


def captured(connection: Connection) -> UpTo:
    """What a read that begins now surely sees."""
    ((lsn,),) = connection.rows("SELECT sys.fn_cdc_get_max_lsn()")
    return UpTo(lsn_to_text(ZERO if lsn is None else bytes(lsn)))


@pytest.fixture(params=[Driver.FREETDS, pytest.param(Driver.MICROSOFT, marks=pytest.mark.matrix)])
def driver(request: pytest.FixtureRequest) -> Driver:
    found: Driver = request.param
    return found


@pytest.fixture
def writer(model: SqlServerModel, open_: Open) -> pyodbc.Connection:
    """Another session, and an empty table."""
    connection = open_(model, Driver.FREETDS)
    connection.execute("DROP TABLE IF EXISTS dbo.orders")
    connection.execute(
        "CREATE TABLE dbo.orders (id varchar(20) COLLATE Latin1_General_CI_AS NOT NULL, n int NOT NULL, note nvarchar(max),"
        " PRIMARY KEY (n, id))"
    )
    return connection


@pytest.fixture
def make(model: SqlServerModel, open_session: OpenSession, driver: Driver) -> Callable[..., TableReader]:
    def reader(
        kind: type[TableReader] = TableReader,
        *,
        bytes_max: int = 64 * MIB,
        visibility: Callable[[Connection], Visibility] = captured,
        is_locking: bool = False,
        watch_every_s: float = 60.0,
    ) -> TableReader:
        return kind(
            session=open_session(model, driver),
            watch_session=open_session(model, driver),
            watch_every_s=watch_every_s,
            bounds=ChunkBounds(bytes_max),
            visibility=visibility,
            whole=WholeReads(),
            is_locking=is_locking,
        )

    return reader


def schema_of(reader: TableReader, table: TableId = TABLE) -> TableSchema:
    """The table as it is now."""
    with reader.session.use("reading the catalogue") as connection:
        return read_tables(connection, [table])[table].schema


def chunks(reader: TableReader, schema: TableSchema, limit: int) -> Iterator[Chunk]:
    """Chunk after chunk, as the host asks for them."""
    after: Cursor | None = None
    while True:
        chunk = reader.read_chunk(ChunkRequest(schema=schema, limit=limit, after=after))
        yield chunk
        if chunk.rows.num_rows < limit and not chunk.is_cut:
            return
        after = chunk.cursor


def fill(writer: pyodbc.Connection, count: int, note: str = "N'x'") -> None:
    values = ", ".join(f"('k{number % 7}{number}', {number // 3}, {note})" for number in range(count))
    writer.execute(f"INSERT INTO dbo.orders (id, n, note) VALUES {values}")


# -- rows ----------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_every_row_comes_once_in_the_order_of_the_key(
    make: Callable[..., TableReader], writer: pyodbc.Connection
) -> None:
    fill(writer, 100)
    reader = make()
    schema = schema_of(reader)
    found = list(chunks(reader, schema, 7))
    rows = pa.Table.from_batches([chunk.rows for chunk in found])
    expected = writer.execute("SELECT id, n, note FROM dbo.orders ORDER BY n, id").fetchall()
    assert [tuple(row.values()) for row in rows.to_pylist()] == [tuple(row) for row in expected]
    assert len(found) == 15
    assert all(chunk.rows.schema.equals(pa.schema(list(schema.row_type))) for chunk in found)
    assert all(chunk.identity is not None and not chunk.is_cut for chunk in found)


@pytest.mark.matrix
def test_an_empty_table_is_an_empty_chunk(make: Callable[..., TableReader], writer: pyodbc.Connection) -> None:
    reader = make()
    schema = schema_of(reader)
    chunk = reader.read_chunk(ChunkRequest(schema=schema, limit=10))
    assert (chunk.rows.num_rows, chunk.cursor, chunk.is_cut) == (0, None, False)
    assert chunk.rows.schema.equals(pa.schema(list(schema.row_type)))
    assert chunk.identity is not None


@pytest.mark.matrix
def test_keys_that_differ_only_for_us_are_one_position(
    make: Callable[..., TableReader], writer: pyodbc.Connection
) -> None:
    """The server takes N for n: a row whose key changes its case between two chunks is neither read twice nor passed over."""
    writer.execute("INSERT INTO dbo.orders (id, n) VALUES ('m', 1), ('n', 1), ('o', 1)")
    reader = make()
    schema = schema_of(reader)
    first = reader.read_chunk(ChunkRequest(schema=schema, limit=2))
    assert first.cursor == ("1", "n")
    writer.execute("UPDATE dbo.orders SET id = 'N' WHERE id = 'n'")
    second = reader.read_chunk(ChunkRequest(schema=schema, limit=2, after=first.cursor))
    assert second.rows.column("id").to_pylist() == ["o"]
    upto = reader.read_chunk(ChunkRequest(schema=schema, limit=9, upto=("1", "n")))
    assert upto.rows.column("id").to_pylist() == ["m", "N"]
    wanted = [("1", "N"), ("1", "M"), ("2", "o")]
    assert reader.read_chunk(ChunkRequest(schema=schema, limit=9, keys=wanted)).cursor == ("1", "N")


class Rounding(TableReader):
    """Takes the moments of a key for seconds when it gives them back to the server, which finds the row behind that."""

    @override
    def plan(self, table: CatalogTable, schema: TableSchema) -> ReadPlan:
        plan = super().plan(table, schema)
        return replace(
            plan,
            specs={
                name: replace(spec, key_value="CONVERT(datetime2(0), {}, 121)") for name, spec in plan.specs.items()
            },
        )


@pytest.mark.matrix
def test_a_chunk_that_does_not_get_past_its_beginning_is_told(
    make: Callable[..., TableReader], writer: pyodbc.Connection
) -> None:
    """The same rows would come again and again."""
    writer.execute("DROP TABLE IF EXISTS dbo.moments")
    writer.execute("CREATE TABLE dbo.moments (at datetime2(3) NOT NULL PRIMARY KEY)")
    writer.execute("INSERT INTO dbo.moments (at) VALUES ('2026-01-02T03:04:05.100')")
    reader = make(Rounding)
    schema = schema_of(reader, TableId("dbo", "moments"))
    first = reader.read_chunk(ChunkRequest(schema=schema, limit=1))
    with pytest.raises(TableError) as caught:
        reader.read_chunk(ChunkRequest(schema=schema, limit=1, after=first.cursor))
    assert caught.value.code == "cursor_stuck"


@pytest.mark.matrix
@pytest.mark.condition("D27")
def test_a_chunk_ends_where_it_grows_too_large(make: Callable[..., TableReader], writer: pyodbc.Connection) -> None:
    fill(writer, 120, "REPLICATE(N'ż', 20000)")
    reader = make(bytes_max=MIB)
    schema = schema_of(reader)
    found = list(chunks(reader, schema, 120))
    assert found[0].is_cut
    assert sum(chunk.rows.num_rows for chunk in found) == 120
    assert all(chunk.rows.nbytes <= 2 * MIB for chunk in found)
    assert len({row["n"] * 1000 + int(row["id"][2:]) for chunk in found for row in chunk.rows.to_pylist()}) == 120
    keys = [(str(row["n"]), row["id"]) for chunk in found for row in chunk.rows.to_pylist()]
    cut = reader.read_chunk(ChunkRequest(schema=schema, limit=120, keys=keys))
    assert (cut.rows.num_rows, cut.is_cut) == (0, True)


@pytest.mark.matrix
def test_more_keys_than_a_statement_takes_are_asked_for_in_parts(
    make: Callable[..., TableReader], writer: pyodbc.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(writer, 300)
    reader, asked = make(), list[int]()
    schema = schema_of(reader)
    keys = [(str(row["n"]), row["id"]) for chunk in chunks(reader, schema, 300) for row in chunk.rows.to_pylist()]
    assert len(keys) == 300

    def query(plan: ReadPlan, request: ChunkRequest) -> Query:
        asked.append(len(request.keys or ()))
        return chunk_query(plan, request)

    monkeypatch.setattr("replicator_source_sqlserver.snapshot.reader.chunk_query", query)
    cut = reader.read_chunk(ChunkRequest(schema=schema, limit=1000, keys=keys))
    assert (cut.rows.num_rows, cut.cursor, cut.is_cut) == (0, None, True)
    assert cut.visibility.classify(pa.array(["1"])).to_pylist() == [Seen.UNKNOWN]
    found = reader.read_chunk(ChunkRequest(schema=schema, limit=1000, keys=keys[:KEYS_MAX]))
    assert (found.rows.num_rows, found.is_cut, asked) == (KEYS_MAX, False, [KEYS_MAX])


@pytest.mark.matrix
def test_blocks_are_as_large_as_the_rows_allow(make: Callable[..., TableReader], writer: pyodbc.Connection) -> None:
    fill(writer, 120, "REPLICATE(N'ż', 20000)")
    reader = make()
    schema = schema_of(reader)
    with reader.reading(schema, "reading") as (connection, table, plan):
        request = ChunkRequest(schema=schema, limit=120)
        read = SnapshotRead(kind=ReadKind.CHUNK, connection=connection, table=table, plan=plan, request=request)
        blocks = list(_Run(read, block_bytes=MIB).batches())
    assert sum(block.num_rows for block in blocks) == 120
    assert all(block.nbytes <= MIB + MIB // 8 for block in blocks)
    assert len(blocks) <= 7


@pytest.mark.sampled(1)
@pytest.mark.parametrize("key", [("x", "a"), ("99999999999", "a")])
def test_a_key_that_is_no_value_of_its_type(
    make: Callable[..., TableReader], writer: pyodbc.Connection, key: Cursor
) -> None:
    reader = make()
    schema = schema_of(reader)
    with pytest.raises(ImpossibleKeyError):
        reader.read_chunk(ChunkRequest(schema=schema, limit=10, keys=[key]))
    assert reader.read_chunk(ChunkRequest(schema=schema, limit=10, keys=())).rows.num_rows == 0


@pytest.mark.matrix
@pytest.mark.sampled(2)
@pytest.mark.parametrize("key", ["", "1", "/1", "/x/", "/99999999999999999999/"])
def test_a_key_that_is_no_node_of_a_hierarchy(
    make: Callable[..., TableReader], writer: pyodbc.Connection, key: str
) -> None:
    writer.execute("DROP TABLE IF EXISTS dbo.nodes")
    writer.execute("CREATE TABLE dbo.nodes (node hierarchyid NOT NULL PRIMARY KEY)")
    writer.execute("INSERT INTO dbo.nodes (node) VALUES ('/1/'), ('/')")
    reader = make()
    schema = schema_of(reader, TableId("dbo", "nodes"))
    with pytest.raises(ImpossibleKeyError):
        reader.read_chunk(ChunkRequest(schema=schema, limit=10, keys=[(key,)]))
    found = reader.read_chunk(ChunkRequest(schema=schema, limit=10, keys=[("/1/",), ("/2/",)])).rows
    assert found.column(0).to_pylist() == ["/1/"]


# -- what it saw -----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.condition("D05")
@pytest.mark.parametrize("is_locking", [False, True])
def test_what_a_chunk_calls_seen_is_in_its_rows(
    make: Callable[..., TableReader], model: SqlServerModel, writer: pyodbc.Connection, *, is_locking: bool
) -> None:
    """What is committed and captured while the visibility is asked for counts as seen: the SELECT has to come behind that, once."""
    writer.execute("EXEC sys.sp_cdc_enable_db")
    writer.execute("EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'orders', @role_name = NULL")
    fill(writer, 5)
    notes = itertools.count()

    def late(connection: Connection) -> Visibility:
        writer.execute(f"UPDATE dbo.orders SET note = N'{next(notes)}'")
        model.capture.scan_all()
        return captured(connection)

    reader = make(visibility=late, is_locking=is_locking)
    chunk = reader.read_chunk(ChunkRequest(schema=schema_of(reader), limit=10))
    query = "SELECT DISTINCT [__$start_lsn], note FROM cdc.dbo_orders_CT WHERE [__$operation] IN (2, 4)"
    changes = [(lsn_to_text(bytes(lsn)), note) for lsn, note in writer.execute(query).fetchall()]
    writer.execute("EXEC sys.sp_cdc_disable_db")
    seen = chunk.visibility.classify(pa.array([lsn for lsn, _ in changes])).to_pylist()
    newest = max(change for change, one in zip(changes, seen, strict=True) if one == Seen.SEEN)
    assert set(chunk.rows.column("note").to_pylist()) == {newest[1]}
    assert len(changes) == 2


def test_locking_waits_for_who_writes_and_row_versions_do_not(
    make: Callable[..., TableReader], writer: pyodbc.Connection
) -> None:
    fill(writer, 5)
    plain, locking = make(), make(is_locking=True)
    schema = schema_of(plain)
    with locking.session.use("limiting a wait") as connection:
        connection.execute("SET LOCK_TIMEOUT 50")
    writer.execute("BEGIN TRANSACTION")
    writer.execute("UPDATE dbo.orders SET note = N'open'")
    assert set(plain.read_chunk(ChunkRequest(schema=schema, limit=10)).rows.column("note").to_pylist()) == {"x"}
    with pytest.raises(SourceUnavailableError) as caught:
        locking.read_chunk(ChunkRequest(schema=schema, limit=10))
    assert caught.value.code == "lock_timeout"
    writer.execute("ROLLBACK")
    assert locking.read_chunk(ChunkRequest(schema=schema, limit=10)).rows.num_rows == 5


# -- a table that changes ----------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("ALTER TABLE dbo.orders DROP COLUMN note", "column_gone"),
        ("ALTER TABLE dbo.orders ALTER COLUMN note nvarchar(50)", None),
        ("ALTER TABLE dbo.orders ALTER COLUMN note varbinary(max)", "column_type_changed"),
        ("DROP TABLE dbo.orders", "table_not_found"),
    ],
)
def test_a_table_of_another_shape_is_not_read(
    make: Callable[..., TableReader], writer: pyodbc.Connection, statement: str, code: str | None
) -> None:
    reader = make()
    schema = schema_of(reader)
    request = ChunkRequest(schema=schema, limit=10)
    reader.read_chunk(request)
    writer.execute(statement)
    reader.forget(TABLE)
    if code is None:
        assert reader.read_chunk(request).identity is not None
        return
    with pytest.raises(SchemaConflictError) as caught:
        reader.read_chunk(request)
    assert caught.value.code == code


@pytest.mark.matrix
def test_another_column_of_the_same_name_is_another_one(
    make: Callable[..., TableReader], writer: pyodbc.Connection
) -> None:
    reader = make()
    request = ChunkRequest(schema=schema_of(reader), limit=10)
    writer.execute("ALTER TABLE dbo.orders DROP COLUMN note")
    writer.execute("ALTER TABLE dbo.orders ADD note nvarchar(max)")
    with pytest.raises(SchemaConflictError) as caught:
        reader.read_chunk(request)
    assert caught.value.code == "column_gone"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE dbo.orders ADD more int",
        "ALTER TABLE dbo.orders ALTER COLUMN note varbinary(max)",
        "ALTER TABLE dbo.orders ALTER COLUMN note nvarchar(10)",
    ],
)
@pytest.mark.condition("D18")
def test_a_table_that_changes_while_it_is_read_is_read_again(
    make: Callable[..., TableReader], writer: pyodbc.Connection, statement: str
) -> None:
    """Its rows are of no use, even those that could not be decoded; and what was remembered of it is forgotten."""
    writer.execute("INSERT INTO dbo.orders (id, n, note) VALUES ('a', 1, N'abc')")
    changes = [statement]

    def changing(connection: Connection) -> Visibility:
        for change in changes:
            writer.execute(change)
        changes.clear()
        return captured(connection)

    reader = make(visibility=changing)
    request = ChunkRequest(schema=schema_of(reader), limit=10)
    assert reader.read_chunk(request).identity is None
    if "varbinary" in statement:
        with pytest.raises(SchemaConflictError):
            reader.read_chunk(request)
    else:
        assert reader.read_chunk(request).identity is not None


class Narrow(TableReader):
    """Takes every column for a smallint."""

    @override
    def plan(self, table: CatalogTable, schema: TableSchema) -> ReadPlan:
        plan = super().plan(table, schema)
        return replace(plan, specs={name: replace(spec, arrow=pa.int16()) for name, spec in plan.specs.items()})


@pytest.mark.matrix
def test_a_value_that_cannot_be_held_fails_its_table(
    make: Callable[..., TableReader], writer: pyodbc.Connection
) -> None:
    writer.execute("DROP TABLE IF EXISTS dbo.numbers")
    writer.execute("CREATE TABLE dbo.numbers (n int NOT NULL PRIMARY KEY)")
    writer.execute("INSERT INTO dbo.numbers (n) VALUES (1), (77777)")
    reader = make(Narrow)
    with pytest.raises(UnsupportedTypeError) as caught:
        reader.read_chunk(ChunkRequest(schema=schema_of(reader, TableId("dbo", "numbers")), limit=10))
    assert (caught.value.code, caught.value.table) == ("unrepresentable_value", "dbo.numbers")
    assert "77777" not in str(caught.value)


# -- giving way ------------------------------------------------------------------------------------------------------------


def test_a_chunk_gives_way_to_a_session_that_alters_the_table(
    make: Callable[..., TableReader], model: SqlServerModel, open_: Open, writer: pyodbc.Connection
) -> None:
    fill(writer, 5)
    altering = open_(model, Driver.FREETDS)
    reader = make(is_locking=True, watch_every_s=0.05)
    schema = schema_of(reader)
    writer.execute("BEGIN TRANSACTION")
    writer.execute("UPDATE dbo.orders SET note = N'open'")
    statement = threading.Thread(target=altering.execute, args=("ALTER TABLE dbo.orders ADD more int",))

    def begin(connection: Connection) -> Visibility:
        statement.start()
        return captured(connection)

    reader.visibility = begin
    with pytest.raises(SourceUnavailableError) as caught:
        reader.read_chunk(ChunkRequest(schema=schema, limit=10))
    assert caught.value.code == "gave_way"
    # By being cancelled: the end of the wait by lock_timeout would come too late.
    assert isinstance(caught.value.__cause__, SourceUnavailableError)
    assert caught.value.__cause__.code == "statement_interrupted"
    writer.execute("ROLLBACK")
    statement.join()
    reader.visibility = captured
    assert reader.read_chunk(ChunkRequest(schema=schema, limit=10)).rows.num_rows == 5
