"""Reads give way, notice what happens to their table, and know what they saw."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from replicator.model.errors import (
    ImpossibleKeyError,
    SchemaConflictError,
    SourceUnavailableError,
    TableError,
    UnsupportedTypeError,
)
from replicator.model.events import ROW, TRANSACTION_ID
from replicator.model.keys import key_bytes
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.cursors import cursors, keys_of
from replicator.plugins.source import ChunkRequest, PullLimits, Seen
from replicator_source_mysql import snapshot
from replicator_source_mysql.catalogue.discovery import read_tables
from replicator_source_mysql.connecting.connection import Connection
from replicator_source_mysql.coordinates import gtid
from replicator_source_mysql.positions.gtid_sets import GtidSet
from replicator_source_mysql.rows.chunk_statements import ReadPlan, chunk_query, whole_query
from replicator_source_mysql.rows.text_rows import Rows
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.mysql.tables import RandomLoad, tables_of_keys
from replicator_testbed.mysql.tables import make as make_tables
from replicator_testing.defaults import chunk_request

Make = Callable[..., MysqlSource]


def table_of(database: MysqlDatabase, name: str = "t") -> TableId:
    return TableId(database.name, name)


def schema_of(source: MysqlSource, table: TableId) -> TableSchema:
    return source.describe([table])[table].schema


@contextmanager
def altering(database: MysqlDatabase, statement: str) -> Iterator[threading.Thread]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with closing(database.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION lock_wait_timeout = 50")
                cursor.execute(statement)
        except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
            errors.append(error)

    thread = threading.Thread(target=run, name="alter")
    thread.start()
    try:
        yield thread
    finally:
        thread.join(timeout=60)
        assert not errors, errors


@contextmanager
def small_packets(database: MysqlDatabase) -> Iterator[None]:
    ((before,),) = database.execute("SELECT @@GLOBAL.max_allowed_packet")
    database.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        yield
    finally:
        database.execute(f"SET GLOBAL max_allowed_packet = {before}")


def test_rows_larger_than_a_packet_of_the_server_s_are_read(mysql_database: MysqlDatabase, source_of: Make) -> None:
    """Neither of the two servers is bound by its setting, where it sends rows or its log."""
    size, table = 3 << 20, table_of(mysql_database)
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v longblob, l longtext CHARACTER SET latin1, u longtext CHARACTER SET utf16)"
    )
    first = source_of(mysql_database.server)
    schema = schema_of(first, table)
    position = first.prepare([table], is_first=True)
    mysql_database.execute(
        f"INSERT INTO t VALUES (1, REPEAT('a', {size}), REPEAT('\u00e9', {size}), REPEAT('\u00e9', {size}))"
    )
    expected = {"id": 1, "v": b"a" * size, "l": "\u00e9" * size, "u": "\u00e9" * size}
    with small_packets(mysql_database):
        source = source_of(mysql_database.server)
        (row,) = source.read_chunk(chunk_request(schema)).rows.to_pylist()
        assert {name: row[name] == value for name, value in expected.items()} == dict.fromkeys(expected, True)
        reader, mark = source.open_log(position, {table: schema}), source.mark()
        rows, marks = list[dict[str, object]](), list[str]()
        while mark not in marks:
            batch = reader.pull(PullLimits(rows=10, bytes=1 << 26, wait_s=5.0))
            marks += batch.marks
            rows += [row for changes in batch.changes for row in changes.rows.column(ROW).to_pylist()]
        reader.close()
    (row,) = (dict(zip(expected, row.values(), strict=True)) for row in rows)
    assert {name: row[name] == value for name, value in expected.items()} == dict.fromkeys(expected, True)


def test_a_json_value_that_the_server_cannot_spell_fails_its_table(
    mysql_database: MysqlDatabase, source_of: Make
) -> None:
    """MySQL sends an empty text for it. MariaDB keeps JSON as text, and has no such bound."""
    is_text = mysql_database.server.flavor == "mariadb"
    table = table_of(mysql_database)
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, j json)")
    mysql_database.execute("INSERT INTO t VALUES (1, CONCAT('[\"', REPEAT('x', 3000000), '\"]')), (2, NULL)")
    with small_packets(mysql_database):
        source = source_of(mysql_database.server, unrepresentable="null")
        assert [p.code for p in source.check([table]) if p.code == "max_allowed_packet"] == ["max_allowed_packet"] * (
            not is_text
        )
        if is_text:
            read = source.read_chunk(chunk_request(schema_of(source, table))).rows.column(1).to_pylist()
            assert [None if text is None else len(text) for text in read] == [3_000_004, None]
            return
        with pytest.raises(TableError) as caught:
            source.read_chunk(chunk_request(schema_of(source, table)))
    assert (caught.value.code, caught.value.table) == ("max_allowed_packet", str(table))
    assert "Column j" in caught.value.message
    assert "max_allowed_packet is 1048576 bytes" in caught.value.message


def test_what_is_larger_than_a_packet_is_told_with_the_sizes_that_are_known(
    mysql_database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(mysql_database)
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    sent = []

    def refuse(_: Connection, query: str, **__: object) -> Iterator[Rows]:
        sent.append(query)
        raise pymysql.err.OperationalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes")

    with small_packets(mysql_database):
        source = source_of(mysql_database.server)
        schema = schema_of(source, table)
        monkeypatch.setattr(snapshot, "text_rows", refuse)
        with pytest.raises(TableError) as caught:
            source.read_chunk(chunk_request(schema))
    assert (caught.value.code, caught.value.table) == ("max_allowed_packet", str(table))
    assert "(1153)" in caught.value.message
    assert f"max_allowed_packet is 1048576 bytes, and the statement has {len(sent[0])}." in caught.value.message


def test_a_read_gives_way_to_an_alter_that_waits_for_it(mysql_database: MysqlDatabase, source_of: Make) -> None:
    mysql_database.execute("CREATE TABLE t (v int, note varchar(2000))", "INSERT INTO t VALUES (1, REPEAT('x', 2000))")
    for _ in range(14):
        mysql_database.execute("INSERT INTO t SELECT v, note FROM t")
    source = source_of(mysql_database.server, yield_after="50ms")
    schema = schema_of(source, table_of(mysql_database))

    def read_until_altered() -> None:
        with source.read_whole(schema) as whole:
            batches = iter(whole.batches)
            next(batches)
            # The rest of the rows waits in the server, whose statement holds the table meanwhile.
            with altering(mysql_database, "ALTER TABLE t ADD COLUMN w int") as thread:
                thread.join(timeout=60)
                assert not thread.is_alive(), "the ALTER waits for the read"
            for _ in batches:
                pass

    with pytest.raises(SourceUnavailableError) as gave_way:
        read_until_altered()
    assert gave_way.value.code == "gave_way"


def test_a_table_that_is_swapped_under_a_read_is_noticed(
    mysql_database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u LIKE t", "INSERT INTO t VALUES (1)")
    source = source_of(mysql_database.server)
    schema = schema_of(source, table_of(mysql_database))
    assert source.read_chunk(chunk_request(schema)).identity is not None

    def swapping(plan: ReadPlan, request: ChunkRequest) -> str:
        mysql_database.execute("RENAME TABLE t TO v, u TO t")
        return chunk_query(plan, request)

    monkeypatch.setattr(snapshot, "chunk_query", swapping)
    chunk = source.read_chunk(chunk_request(schema))
    assert chunk.identity is None, "another table was read"
    monkeypatch.undo()
    again = source.read_chunk(chunk_request(schema))
    assert again.identity == source.describe([schema.table])[schema.table].identity


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE t ADD COLUMN w int DEFAULT 7", "TRUNCATE t", "ALTER TABLE t MODIFY v bigint"]
)
@pytest.mark.condition("D18")
def test_a_table_that_changes_under_a_read_is_noticed(
    mysql_database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    source = source_of(mysql_database.server)
    schema = schema_of(source, table_of(mysql_database))

    def changing(plan: ReadPlan, request: ChunkRequest) -> str:
        mysql_database.execute(statement)
        return chunk_query(plan, request)

    monkeypatch.setattr(snapshot, "chunk_query", changing)
    # MariaDB's snapshot may refuse the table as it is now.
    try:
        identity = source.read_chunk(chunk_request(schema)).identity
    except SourceUnavailableError as error:
        assert error.code == "table_changed_under_snapshot"  # noqa: PT017
    else:
        assert identity is None


@pytest.mark.condition("D14")
def test_a_table_without_a_key_is_read_as_of_a_moment_that_is_known(
    mysql_database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mysql_database.execute("CREATE TABLE t (v int)", "INSERT INTO t VALUES (1)")
    source = source_of(mysql_database.server)
    table = table_of(mysql_database)
    schema = schema_of(source, table)
    reader = source.open_log(source.prepare([table], is_first=True), {table: schema})
    looks, asked = [0], gtid.executed_or_committing

    def disturbed(connection: Connection) -> tuple[GtidSet, GtidSet]:
        looks[0] += 1
        if looks[0] in (2, 4):
            mysql_database.execute("INSERT INTO t VALUES (2)")
        return asked(connection)

    def late(plan: ReadPlan) -> str:
        mysql_database.execute("INSERT INTO t VALUES (3)")
        return whole_query(plan)

    monkeypatch.setattr(gtid, "executed_or_committing", disturbed)
    monkeypatch.setattr(snapshot, "whole_query", late)
    with source.read_whole(schema) as whole:
        rows = [v for batch in whole.batches for v in batch.column("v").to_pylist()]
        assert whole.identity() is not None
        visibility = whole.visibility
    mark, ids, values = source.mark(), [], []
    marks: list[str] = []
    while mark not in marks:
        batch = reader.pull(PullLimits(rows=100, bytes=1 << 20, wait_s=5.0))
        marks += batch.marks
        for changes in batch.changes:
            ids += changes.rows.column(TRANSACTION_ID).to_pylist()
            values += [row["v"] for row in changes.rows.column(ROW).to_pylist()]
    reader.close()
    answers = visibility.classify(pa.array(ids)).to_pylist()
    assert Seen.UNKNOWN not in answers
    assert sorted([1, *(v for v, seen in zip(values, answers, strict=True) if seen == Seen.SEEN)]) == sorted(rows)
    assert 3 not in rows
    assert mysql_database.server.flavor == "mariadb" or looks[0] == 6, "twice somebody committed in between"


@pytest.mark.parametrize("statement", ["ALTER TABLE t ADD COLUMN w int DEFAULT 7", "RENAME TABLE t TO v, u TO t"])
def test_a_table_without_a_key_that_changes_under_its_read_is_noticed(
    mysql_database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    mysql_database.execute("CREATE TABLE t (v int)", "CREATE TABLE u LIKE t", "INSERT INTO t VALUES (1)")
    source = source_of(mysql_database.server)
    schema = schema_of(source, table_of(mysql_database))

    def changing(plan: ReadPlan) -> str:
        mysql_database.execute(statement)
        return whole_query(plan)

    monkeypatch.setattr(snapshot, "whole_query", changing)
    identity: object = None
    # The snapshot may refuse the table as it is now.
    try:
        with source.read_whole(schema) as whole:
            for _ in whole.batches:
                pass
            identity = whole.identity()
    except SourceUnavailableError as error:
        assert error.code == "table_changed_under_snapshot"  # noqa: PT017
    assert identity is None


@pytest.mark.condition("D04")
def test_each_chunk_sees_what_was_committed_before_it(mysql_database: MysqlDatabase, source_of: Make) -> None:
    server = mysql_database.server
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0)")
    # What would hold a view for longer than a statement, and locks next to it.
    isolation = "tx_isolation" if server.flavor == "mariadb" else "transaction_isolation"
    before = server.execute(f"SELECT @@GLOBAL.{isolation}")[0][0]
    server.execute("SET GLOBAL autocommit = OFF", f"SET GLOBAL {isolation} = 'SERIALIZABLE'")
    try:
        source = source_of(server)
        request = chunk_request(schema_of(source, table_of(mysql_database)))
        with closing(mysql_database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            for value in range(3):
                cursor.execute(f"UPDATE t SET v = {value}")
                connection.commit()
                assert source.read_chunk(request).rows.column("v").to_pylist() == [value]
    finally:
        server.execute("SET GLOBAL autocommit = ON", f"SET GLOBAL {isolation} = '{before}'")


@pytest.mark.parametrize(
    "key",
    ["a, b", "b, s", "s, b", "l, u", "d, m"],
)
@pytest.mark.condition("D12")
def test_a_chunk_reads_no_more_of_the_index_than_its_rows(
    mysql_database: MysqlDatabase, source_of: Make, key: str
) -> None:
    mysql_database.execute(
        "CREATE TABLE t (a int, b bigint unsigned, s varchar(20), l varchar(20) CHARACTER SET latin1, u varbinary(8),"
        f" d decimal(12,3), m datetime(6), PRIMARY KEY ({key}))",
        "INSERT INTO t SELECT n DIV 100, n, CONCAT('é', n DIV 30), CONCAT('é', n DIV 50), CHAR(n DIV 256, n MOD 256),"
        " n DIV 40 / 8, TIMESTAMP('2024-01-01 00:00:00') + INTERVAL n SECOND FROM"
        " (SELECT x.n + 10 * y.n + 100 * z.n AS n FROM"
        + ",".join(f"({' UNION ALL '.join(f'SELECT {i} AS n' for i in range(10))}) {name}" for name in "xyz")
        + ") numbers",
    )
    source = source_of(mysql_database.server)
    schema = schema_of(source, table_of(mysql_database))
    half = source.read_chunk(ChunkRequest(schema=schema, limit=500))
    request = ChunkRequest(schema=schema, after=half.cursor, limit=10)
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        found = read_tables(connection, [schema.table])[schema.table]
        cursor.execute("SET sql_mode = 'NO_BACKSLASH_ESCAPES'")
        cursor.execute("FLUSH STATUS")
        cursor.execute(chunk_query(snapshot.read_plan(found, schema), request))
        assert len(cursor.fetchall()) == 10
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        read = {name: int(value) for name, value in cursor.fetchall()}
    assert sum(read.values()) < 20, read


def test_a_read_waits_for_a_lock_only_so_long(mysql_database: MysqlDatabase, source_of: Make) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(mysql_database.server, lock_timeout="1s")
    schema = schema_of(source, table_of(mysql_database))
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")
        with pytest.raises(SourceUnavailableError) as waited:
            source.read_chunk(chunk_request(schema))
    assert waited.value.code == "lock_timeout"
    assert source.read_chunk(chunk_request(schema)).rows.num_rows == 0


def test_a_chunk_is_read_only_so_long(
    mysql_database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    source = source_of(mysql_database.server, statement_timeout="1s")
    schema = schema_of(source, table_of(mysql_database))

    def sleeping(plan: ReadPlan, request: ChunkRequest) -> str:
        return chunk_query(plan, request).replace(" ORDER BY", " WHERE SLEEP(20) = 0 ORDER BY")

    monkeypatch.setattr(snapshot, "chunk_query", sleeping)
    with pytest.raises(SourceUnavailableError) as timed_out:
        source.read_chunk(chunk_request(schema))
    assert timed_out.value.code in {"statement_timeout", "statement_interrupted"}
    monkeypatch.undo()
    assert source.read_chunk(chunk_request(schema)).rows.num_rows == 3


def test_missing_or_other_tables_are_their_own_error(mysql_database: MysqlDatabase, source_of: Make) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    source = source_of(mysql_database.server)
    schema = schema_of(source, table_of(mysql_database))
    for statement, code in (
        ("ALTER TABLE t DROP COLUMN v", "column_gone"),
        ("ALTER TABLE t ADD COLUMN v varchar(5)", "column_type_changed"),
        ("ALTER TABLE t MODIFY v int, DROP PRIMARY KEY", "key_changed"),
    ):
        mysql_database.execute(statement)
        with pytest.raises(SchemaConflictError) as changed:
            source.read_chunk(chunk_request(schema))
        assert changed.value.code == code
    mysql_database.execute("DROP TABLE t")
    with pytest.raises(TableError) as gone:
        source.read_chunk(chunk_request(schema))
    assert gone.value.code == "table_not_found"


def test_zero_dates_follow_the_setting(mysql_database: MysqlDatabase, source_of: Make) -> None:
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY, d date, m datetime(3), z timestamp NULL)")
        cursor.execute("INSERT INTO t VALUES (1, '0000-00-00', '2024-00-10 00:00:00', '0000-00-00 00:00:00')")
        cursor.execute("INSERT INTO t VALUES (2, '2024-02-31', '2024-02-28 01:02:03.004', NULL)")
    failing = source_of(mysql_database.server)
    schema = schema_of(failing, table_of(mysql_database))
    with pytest.raises(UnsupportedTypeError):
        failing.read_chunk(chunk_request(schema))
    rows = source_of(mysql_database.server, unrepresentable="null").read_chunk(chunk_request(schema)).rows
    assert [[v is None for v in row.values()] for row in rows.to_pylist()] == [
        [False, True, True, True],
        [False, True, False, True],
    ]


def test_year_zero_next_to_a_zero_date_is_the_year_zero(mysql_database: MysqlDatabase, source_of: Make) -> None:
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY, d date, m datetime(6))")
        cursor.execute(
            "INSERT INTO t VALUES (1, '0000-05-05', '0000-01-01 00:00:00.000001'), (2, '0000-00-00', '0000-12-00 00:00:00'),"
            " (3, '0000-02-29', '9999-12-31 23:59:59.999999'), (4, NULL, NULL)"
        )
    failing = source_of(mysql_database.server)
    schema = schema_of(failing, table_of(mysql_database))
    with pytest.raises(UnsupportedTypeError) as refused:
        failing.read_chunk(chunk_request(schema))
    assert (refused.value.code, refused.value.table) == ("unrepresentable_value", str(schema.table))
    rows = source_of(mysql_database.server, unrepresentable="null").read_chunk(chunk_request(schema)).rows
    assert rows.column("d").cast(pa.string()).to_pylist() == ["0000-05-05", None, "0000-02-29", None]
    assert rows.column("m").cast(pa.string()).to_pylist() == [
        "0000-01-01 00:00:00.000001",
        None,
        "9999-12-31 23:59:59.999999",
        None,
    ]


@pytest.mark.parametrize("is_whole", [False, True])
def test_rows_whose_types_changed_since_the_last_read_are_read_again(
    mysql_database: MysqlDatabase, source_of: Make, is_whole: bool
) -> None:
    key = "" if is_whole else " PRIMARY KEY"
    mysql_database.execute(f"CREATE TABLE t (id int{key}, v int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    source = source_of(mysql_database.server)
    schema = schema_of(source, table_of(mysql_database))
    alter = "ALTER TABLE t MODIFY v varchar(20)", "UPDATE t SET v = 'odd' WHERE id = 2"
    if is_whole:
        read_plan = snapshot.read_plan

        def planned(*arguments: Any) -> ReadPlan:
            plan = read_plan(*arguments)
            mysql_database.execute(*alter)
            return plan

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshot, "read_plan", planned)
            with source.read_whole(schema) as read:
                assert list(read.batches) == []
                assert read.identity() is None
        return
    assert source.read_chunk(chunk_request(schema)).identity is not None
    mysql_database.execute(*alter)
    assert source.read_chunk(chunk_request(schema)).identity is None
    with pytest.raises(SchemaConflictError):
        source.read_chunk(chunk_request(schema))


def test_rows_that_cannot_be_decoded_fail_their_table(
    mysql_database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    source = source_of(mysql_database.server)
    schema = schema_of(source, table_of(mysql_database))
    for error in (ValueError("odd"), OverflowError("odd"), pa.ArrowNotImplementedError("odd"), RuntimeError("odd")):

        def odd(*_: object, error: Exception = error, **__: object) -> pa.Array:
            raise error

        monkeypatch.setattr(snapshot, "decoded", odd)
        with pytest.raises(TableError) as failed:
            source.read_chunk(chunk_request(schema))
        assert (failed.value.code, failed.value.table) == ("corrupt_rows", str(schema.table))
        assert failed.value.__cause__ is error, "the log keeps the traceback"
        assert failed.value.action
    monkeypatch.undo()
    assert source.read_chunk(chunk_request(schema)).rows.num_rows == 1, "the connection is of use again"


@pytest.mark.condition("D27", "M14")
def test_a_chunk_of_wide_rows_is_cut_and_what_follows_is_read_next(
    mysql_database: MysqlDatabase, source_of: Make
) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v longtext)")
    for i in range(3):
        mysql_database.execute(f"INSERT INTO t VALUES ({i}, REPEAT('x', 20000000))")
    mysql_database.execute("INSERT INTO t VALUES (3, 'x'), (4, 'x')")
    source = source_of(mysql_database.server, chunk_bytes_max="32MiB")
    schema = schema_of(source, table_of(mysql_database))
    chunks = [source.read_chunk(chunk_request(schema))]
    while chunks[-1].is_cut:
        chunks.append(source.read_chunk(chunk_request(schema, after=chunks[-1].cursor)))
    assert [i for chunk in chunks for i in chunk.rows.column("id").to_pylist()] == list(range(5))
    assert all(chunk.identity is not None for chunk in chunks)
    assert len(chunks) >= 3
    assert len(chunks[0].rows.column("v")[0].as_py()) == 20_000_000, "more than one packet of the protocol"


def test_rows_that_are_read_by_too_many_keys_are_left_to_fewer(mysql_database: MysqlDatabase, source_of: Make) -> None:
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v longtext)")
    for i in range(3):
        mysql_database.execute(f"INSERT INTO t VALUES ({i}, REPEAT('x', 20000000))")
    source = source_of(mysql_database.server, chunk_bytes_max="1MiB")
    schema = schema_of(source, table_of(mysql_database))
    every = source.read_chunk(chunk_request(schema, keys=[("0",), ("1",), ("2",)]))
    assert (every.rows.num_rows, every.is_cut) == (0, True)
    one = source.read_chunk(chunk_request(schema, keys=[("1",)]))
    assert (one.rows.column("id").to_pylist(), one.is_cut) == ([1], False)


@pytest.mark.matrix
def test_rows_of_every_type_of_key_are_found_by_their_values(mysql_database: MysqlDatabase, source_of: Make) -> None:
    tables = list(tables_of_keys(mysql_database))
    make_tables(mysql_database, tables)
    RandomLoad(database=mysql_database, tables=tables, seed=1).run(400)
    source = source_of(mysql_database.server, unrepresentable="null")
    counts = {}
    for table in [table_of(mysql_database, odd.name) for odd in tables]:
        schema = schema_of(source, table)
        if not schema.key:
            continue
        try:
            found = source.read_chunk(chunk_request(schema, limit=1000)).rows
        except UnsupportedTypeError:
            continue  # A zero day, or values that are not told apart: such a table fails, too.
        wanted = cursors([found.column(name) for name in schema.key_fields])
        assert len(wanted) == found.num_rows
        assert key_bytes(keys_of(schema, wanted).columns) == key_bytes([found.column(n) for n in schema.key_fields])
        read = source.read_chunk(chunk_request(schema, keys=wanted)).rows
        assert read.equals(found), table
        counts[table.name] = found.num_rows
    assert len(counts) > 10
    assert sum(counts.values()) > 100


def test_a_key_that_is_no_value_of_its_type_has_no_row_or_is_said_to_be_one(
    mysql_database: MysqlDatabase, source_of: Make
) -> None:
    columns = {
        "d date": "20000-01-01", "m datetime": "-0043-03-15 00:00:00.000000", "e enum('a', 'b')": "c", "s set('a', 'b')": "a,c",
        "n int": "9999999999", "c decimal(4,2)": "1000.00", "t time": "900:00:00", "b bit(3)": "9",
    }  # fmt: skip
    source = source_of(mysql_database.server)
    for number, (column, text) in enumerate(columns.items()):
        mysql_database.execute(f"CREATE TABLE t{number} ({column} PRIMARY KEY)")
        schema = schema_of(source, table_of(mysql_database, f"t{number}"))
        with suppress(ImpossibleKeyError):
            assert source.read_chunk(chunk_request(schema, keys=[(text,)])).rows.num_rows == 0
        assert source.read_chunk(chunk_request(schema, keys=[])).rows.num_rows == 0


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("varchar(9) character set latin1", "日本"),
        ("varchar(9) character set latin1 collate latin1_german1_ci", "a😀"),
        ("char(9) character set ascii", "é"),
        ("varchar(9) character set sjis", "é"),
        ("varchar(9) character set cp932", "\x80"),
        ("varchar(9) character set gbk", "한"),
        ("varchar(9) character set tis620", "é"),
        ("varchar(9) character set ucs2", "😀"),
        ("varchar(9) character set utf8mb3", "😀"),
        ("enum('a') character set latin1", "日本"),
        ("set('a') character set latin1", "a,日本"),
        ("decimal(65,0)", "²"),
    ],
)
def test_a_key_that_its_column_cannot_hold_is_said_to_be_impossible(
    mysql_database: MysqlDatabase, source_of: Make, column: str, text: str
) -> None:
    mysql_database.execute(f"CREATE TABLE t (a int, k {column}, PRIMARY KEY (a, k))")
    source = source_of(mysql_database.server)
    schema = schema_of(source, table_of(mysql_database))
    with pytest.raises(ImpossibleKeyError) as refused:
        source.read_chunk(chunk_request(schema, keys=[("1", text)]))
    assert (refused.value.code, refused.value.table) == ("impossible_key", str(schema.table))


@pytest.mark.parametrize(
    "charset", ["latin1", "sjis", "cp932", "gbk", "big5", "ujis", "euckr", "ucs2", "utf16", "utf8mb3", "swe7"]
)
def test_a_key_is_found_by_its_text_whatever_bytes_its_character_set_has_for_it(
    mysql_database: MysqlDatabase, source_of: Make, charset: str
) -> None:
    mysql_database.execute(f"CREATE TABLE t (k varchar(20) character set {charset} PRIMARY KEY)")
    texts = ["", "it's", "A1", {"latin1": "Grüße €", "swe7": "åäö", "euckr": "한국어"}.get(charset, "日本"), "x" * 20]
    with closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s)", [(text,) for text in texts])
    source = source_of(mysql_database.server)
    schema = schema_of(source, table_of(mysql_database))
    for text in texts:
        # A collation may take other keys for it, too. They are read again, and stay as they are.
        found = source.read_chunk(chunk_request(schema, keys=[(text,)])).rows.column("k").to_pylist()
        assert text in found, charset
