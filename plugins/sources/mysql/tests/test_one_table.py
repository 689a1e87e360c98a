"""What goes wrong while one table's part of the log is read is that table's error; the others continue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from replicator.model.errors import CorruptStreamError, FatalError, TableError
from replicator.model.events import ROW
from replicator.model.schema import TableId
from replicator.plugins.source import ChunkRequest, PullLimits
from replicator_source_mysql.binlog import RowDecoder, TableMap, TableMaps, uncompressed_body
from replicator_source_mysql.binlog.events import corrupt, too_large
from replicator_source_mysql.log import table_rows as tablerows
from replicator_source_mysql.source import MysqlSource
from replicator_source_mysql.versions import Versions
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer

Make = Callable[..., MysqlSource]

LIMITS = PullLimits(rows=10_000, bytes=64 << 20, wait_s=1.0)
NAMES = ("a", "bad", "c")
ERRORS: Sequence[Exception] = (
    ZeroDivisionError("secret value"),
    corrupt("An update ends without its second image."),
    TableError("as it is.", code="row_image_not_full", table="x.bad"),
)


def read(
    source: MysqlSource, database: MysqlDatabase, act: Callable[[], Any]
) -> tuple[dict[str, list[int]], dict[str, TableError]]:
    """Ids that the log brings of each table for what `act` writes, and the errors of tables."""
    tables = [TableId(database.name, name) for name in NAMES]
    schemas = {table: found.schema for table, found in source.describe(tables).items()}
    reader = source.open_log(source.prepare(tables, is_first=True), schemas)
    act()
    mark, rows, errors = source.mark(), {name: list[int]() for name in NAMES}, dict[str, TableError]()
    try:
        while True:
            batch = reader.pull(LIMITS)
            for changes in batch.changes:
                rows[changes.schema.table.name] += [row["id"] for row in changes.rows.column(ROW).to_pylist()]
            errors |= {table.name: error for table, error in batch.table_errors.items()}
            if mark in batch.marks:
                return rows, errors
    finally:
        reader.close()


@pytest.fixture
def database(mysql_database: MysqlDatabase) -> MysqlDatabase:
    mysql_database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(200))" for name in NAMES))
    return mysql_database


def write(database: MysqlDatabase) -> None:
    """All three tables, in one transaction and then in three."""
    with closing(database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        for id_ in (1, 2):
            for name in NAMES:
                cursor.execute(f"INSERT INTO {name} VALUES ({id_}, REPEAT('x', 200))")
        connection.commit()
    database.execute(*(f"INSERT INTO {name} VALUES (3, 'y')" for name in NAMES))


def check(rows: dict[str, list[int]], errors: dict[str, TableError], code: str) -> None:
    assert (rows["a"], rows["c"]) == ([1, 2, 3], [1, 2, 3])
    assert rows["bad"] == []
    assert list(errors) == ["bad"]
    error = errors["bad"]
    assert (error.code, (error.table or "").rpartition(".")[2]) == (code, "bad")
    assert error.action or code == "row_image_not_full"
    assert "secret" not in str(error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_rows_that_cannot_be_decoded_are_their_tables_error(
    database: MysqlDatabase,
    source_of: Make,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    decode = RowDecoder.decode

    def decoding(self: RowDecoder, events: Any) -> Any:
        if self._schema.table.name == "bad":
            raise error
        return decode(self, events)

    monkeypatch.setattr(RowDecoder, "decode", decoding)
    rows, errors = read(source_of(database.server), database, lambda: write(database))
    check(rows, errors, error.code if isinstance(error, TableError) else "corrupt_rows")
    # The traceback goes to the log.
    assert ("corrupt_rows" in caplog.text) is not isinstance(error, TableError)


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("where", ["table map", "version"])
def test_columns_that_cannot_be_read_are_their_tables_error(
    database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
) -> None:
    get, of = TableMaps.get, Versions.of

    def getting(self: TableMaps, body: Any) -> TableMap:
        if where == "table map" and b"\x03bad\x00" in bytes(body):
            raise error
        return get(self, body)

    def finding(self: Versions, table_map: TableMap) -> Any:
        if where == "version" and table_map.table == "bad":
            raise error
        return of(self, table_map)

    monkeypatch.setattr(TableMaps, "get", getting)
    monkeypatch.setattr(Versions, "of", finding)
    rows, errors = read(source_of(database.server), database, lambda: write(database))
    check(rows, errors, error.code if isinstance(error, TableError) else "corrupt_rows")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (corrupt("A compressed event cannot be uncompressed."), "corrupt_rows"),
        (too_large("An event", 9, 8), "transaction_too_large"),
    ],
)
def test_a_compressed_event_that_cannot_be_read_is_its_tables_error(
    mariadb: MysqlServer, source_of: Make, monkeypatch: pytest.MonkeyPatch, error: FatalError, code: str
) -> None:
    seen: list[int] = []

    def failing(kind: int, body: Any, *, size_max: int) -> Any:
        plain = uncompressed_body(kind, body, size_max=size_max)
        seen.append(kind)
        if len(seen) == 2:  # of the second table
            raise error
        return plain

    monkeypatch.setattr(tablerows, "uncompressed_body", failing)
    with mariadb.database() as database:
        database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(200))" for name in NAMES))
        mariadb.execute("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 100")
        try:
            rows, errors = read(source_of(mariadb), database, lambda: write(database))
        finally:
            mariadb.execute("SET GLOBAL log_bin_compress = OFF")
    assert seen, "the server compresses"
    check(rows, errors, code)


def test_of_a_large_compressed_transaction_only_the_table_of_a_too_large_event_fails(
    mysql: MysqlServer, source_of: Make
) -> None:
    if mysql.lacks((8, 0, 20)):
        pytest.skip("compressed transactions came with MySQL 8.0.20")
    with mysql.database() as database:
        database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v longtext)" for name in NAMES))

        def act() -> None:
            with closing(database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION binlog_transaction_compression = ON")
                cursor.execute("SET SESSION binlog_rows_query_log_events = ON")
                for id_ in (1, 2):
                    for name in NAMES:
                        # Of `a` and `c` the whole is too large, and no event.
                        size = 1_500_000 if name == "bad" else 700_000
                        cursor.execute(f"INSERT INTO {name} VALUES ({id_}, '{'x' * size}')")
                connection.commit()
            database.execute(*(f"INSERT INTO {name} VALUES (3, 'y')" for name in NAMES))

        rows, errors = read(source_of(mysql, transaction_bytes_max="1MiB"), database, act)
    check(rows, errors, "transaction_too_large")
    assert "A rows event would become 1500" in str(errors["bad"])


def test_an_xa_transaction_that_is_too_large_has_new_snapshots_of_its_tables(
    mysql_database: MysqlDatabase, source_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    database = mysql_database
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v longtext)" for name in NAMES))
    tables = [TableId(database.name, name) for name in NAMES]
    source = source_of(database.server, transaction_bytes_max="1MiB")
    schemas = {table: found.schema for table, found in source.describe(tables).items()}
    reader = source.open_log(source.prepare(tables, is_first=True), schemas)
    for xid, count in (("small", 1), ("large", 5), ("undone", 5)):
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"XA START '{xid}'")
            for id_ in range(count):
                cursor.execute(
                    f"INSERT INTO {'a' if xid == 'small' else 'c'} VALUES ({id_ + 10 * len(xid)}, REPEAT('x', 300000))"
                )
            cursor.execute(f"XA END '{xid}'")
            cursor.execute(f"XA PREPARE '{xid}'")
            cursor.execute(f"XA {'ROLLBACK' if xid == 'undone' else 'COMMIT'} '{xid}'")
    database.execute("INSERT INTO bad VALUES (1, 'x')")
    mark, rows, unlogged = source.mark(), dict[str, int](), list[str]()
    while True:
        batch = reader.pull(LIMITS)
        for changes in batch.changes:
            name = changes.schema.table.name
            rows[name] = rows.get(name, 0) + changes.rows.num_rows
        unlogged += [table.name for table in batch.unlogged]
        if mark in batch.marks:
            break
    reader.close()
    assert rows == {"a": 1, "bad": 1}
    assert unlogged == ["c"], "only the one that was committed counts"
    assert "source.transaction_bytes_max" in caplog.text


def test_what_a_large_xa_transaction_takes_back_is_not_delivered(mariadb: MysqlServer, source_of: Make) -> None:
    """The rows before the savepoint are not held any more when it is rolled back to."""
    with mariadb.database() as database:
        database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v longtext)" for name in NAMES))
        tables = [TableId(database.name, name) for name in NAMES]
        source = source_of(mariadb, transaction_bytes_max="1MiB")
        schemas = {table: found.schema for table, found in source.describe(tables).items()}
        reader = source.open_log(source.prepare(tables, is_first=True), schemas)
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            for statement in (
                "XA START 'x'",
                "CREATE TEMPORARY TABLE tt (id int)",
                *(f"INSERT INTO c VALUES ({id_}, 'small')" for id_ in range(3)),
                "SAVEPOINT s",
                *(f"INSERT INTO c VALUES ({id_}, REPEAT('x', 300000))" for id_ in range(10, 15)),
                "INSERT INTO a VALUES (1, 'undone')",
                "ROLLBACK TO SAVEPOINT s",
                "INSERT INTO a VALUES (2, 'kept')",
                "XA END 'x'",
                "XA PREPARE 'x'",
                "XA COMMIT 'x'",
            ):
                cursor.execute(statement)
        mark, ids, unlogged = source.mark(), list[int](), list[str]()
        while True:
            batch = reader.pull(LIMITS)
            for changes in batch.changes:
                ids += [row["id"] for row in changes.rows.column(ROW).to_pylist()]
            unlogged += [table.name for table in batch.unlogged]
            if mark in batch.marks:
                break
        reader.close()
    assert (ids, unlogged) == ([2], ["c"])


def test_what_is_about_the_log_itself_stops_the_reader(
    database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def getting(self: TableMaps, body: Any) -> TableMap:
        raise corrupt("A TABLE_MAP event is too short.")

    def unnamed(body: Any) -> tuple[str, str]:
        raise corrupt("A TABLE_MAP event is too short.")

    monkeypatch.setattr(TableMaps, "get", getting)
    monkeypatch.setattr(tablerows, "named_table", unnamed)
    with pytest.raises(CorruptStreamError):
        read(source_of(database.server), database, lambda: write(database))


def test_keys_that_are_one_text_fail_their_table_with_the_cause(mysql_database: MysqlDatabase, source_of: Make) -> None:
    mysql_database.execute(
        "CREATE TABLE bad (k varchar(5) CHARACTER SET cp1250 PRIMARY KEY, id int)",
        "INSERT INTO bad VALUES (x'81', 1), (x'83', 2), (x'88', 3)",
    )
    table = TableId(mysql_database.name, "bad")
    source = source_of(mysql_database.server)
    request = ChunkRequest(schema=source.describe([table])[table].schema, limit=1)
    with pytest.raises(TableError) as found:  # noqa: PT012 - which chunk it is does not matter
        for _ in range(4):
            request = replace(request, after=source.read_chunk(request).cursor)
    assert found.value.table == str(table)
    assert found.value.action
