"""Every type of the mapping that the model has, selected through both drivers: both read the same canonical value."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Mapping
from contextlib import closing
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyodbc
import pytest

from replicator.model.schema import TableId
from replicator_source_sqlserver.catalogue.discovery import read_tables
from replicator_source_sqlserver.connecting.connection import Connection, Session
from replicator_source_sqlserver.rows import columns_of, decoded
from replicator_source_sqlserver.snapshot.chunk_statements import whole_query
from replicator_source_sqlserver.snapshot.reader import read_plan
from replicator_source_sqlserver.types import ColumnSpec
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Driver
from replicator_testbed.sqlserver.model import SqlServerModel
from replicator_testbed.sqlserver.world import connector_of, drained, reader_of, world

Open = Callable[..., pyodbc.Connection]
UTC = dt.UTC
EVERY_BYTE = bytes(range(256))
CASES: dict[str, list[tuple[str, Any]]] = {
    "bit": [("0", False), ("1", True)],
    "tinyint": [("0", 0), ("255", 255)],
    "smallint": [("-32768", -(2**15)), ("32767", 2**15 - 1)],
    "int": [("-2147483648", -(2**31)), ("2147483647", 2**31 - 1)],
    "bigint": [("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)],
    "decimal(38,10)": [
        ("-1234567890123456789012345678.0123456789", Decimal("-1234567890123456789012345678.0123456789")),
        ("0.0000000001", Decimal("0.0000000001")),
    ],
    "decimal(38,0)": [("9" * 38, Decimal("9" * 38)), ("-" + "9" * 38, Decimal("-" + "9" * 38)), ("0", Decimal(0))],
    "decimal(38,38)": [("0." + "9" * 38, Decimal("0." + "9" * 38)), ("-0." + "0" * 37 + "1", Decimal("-1E-38"))],
    "numeric(5,0)": [("-99999", Decimal(-99999))],
    "money": [
        ("-922337203685477.5808", Decimal("-922337203685477.5808")),
        ("922337203685477.5807", Decimal("922337203685477.5807")),
        ("0.0001", Decimal("0.0001")),
    ],
    "smallmoney": [("-214748.3648", Decimal("-214748.3648")), ("214748.3647", Decimal("214748.3647"))],
    "float": [("0.1", 0.1), ("-1.7976931348623157E+308", -1.7976931348623157e308), ("5E-324", 5e-324)],
    "real": [("0.5", 0.5), ("3.4028235E+38", 3.4028234663852886e38)],
    "char(5)": [("'ab'", "ab   ")],
    "varchar(20)": [("N'café €'", "café €"), ("''", ""), ("'a  '", "a  "), ("' '", " "), ("CONCAT('a', CHAR(0))", "a\0")],
    "varchar(20) COLLATE Polish_CI_AS": [("N'żółw ąę'", "żółw ąę")],
    "varchar(20) COLLATE Latin1_General_100_CI_AS_SC_UTF8": [("N'żółw 🐢'", "żółw 🐢"), ("CONCAT('a', CHAR(0), 'b')", "a\0b")],
    "varchar(max)": [("REPLICATE('x', 5000)", "x" * 5000), ("N'café'", "café"), ("''", ""), ("'a '", "a ")],
    "nchar(5)": [("N'żó'", "żó   ")],
    "nvarchar(20)": [("N'żółw 🐢'", "żółw 🐢"), ("N' '", " "), ("N''", ""), ("N'a  '", "a  "), ("CONCAT(N'a', NCHAR(0), N'b')", "a\0b")],
    "nvarchar(max)": [("N''", ""), ("N'a '", "a "), ("CONCAT(REPLICATE(N'ż', 3000), N'🐢')", "ż" * 3000 + "🐢")],
    "text": [("'old text'", "old text")],
    "ntext": [("N'żółw 🐢'", "żółw 🐢")],
    "xml": [("N'<a>ż</a>'", "<a>ż</a>")],
    "binary(4)": [("0x0102", b"\1\2\0\0")],
    "varbinary(20)": [("0x00ff", b"\0\xff"), ("CONVERT(varbinary(20), '0x', 1)", b"")],
    "varbinary(max)": [("CONVERT(varbinary(20), '0x', 1)", b""), ("0x6100", b"a\0"), ("0x" + EVERY_BYTE.hex() * 40, EVERY_BYTE * 40)],
    "image": [("0x0505", b"\5\5")],
    "uniqueidentifier": [
        ("'ffffffff-ffff-ffff-ffff-ffffffffffff'", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
        ("'6F9619FF-8B86-D011-B42D-00C04FC964FF'", "6f9619ff-8b86-d011-b42d-00c04fc964ff"),
    ],
    "date": [("'0001-01-01'", dt.date.min), ("'9999-12-31'", dt.date.max)],
    "time(0)": [("'23:59:59'", dt.time(23, 59, 59))],
    "time(6)": [("'23:59:59.999999'", dt.time.max), ("'00:00:00'", dt.time.min)],
    "datetime": [
        ("'1753-01-01T00:00:00'", dt.datetime(1753, 1, 1)),
        ("'1998-01-02T03:04:05.678'", dt.datetime(1998, 1, 2, 3, 4, 5, 677_000)),
        ("'9999-12-31T23:59:59.997'", dt.datetime(9999, 12, 31, 23, 59, 59, 997_000)),
    ],
    "smalldatetime": [
        ("'1900-01-01T00:00:00'", dt.datetime(1900, 1, 1)),
        ("'2079-06-06T23:59:00'", dt.datetime(2079, 6, 6, 23, 59)),
        ("'2026-01-02T03:04:30'", dt.datetime(2026, 1, 2, 3, 5)),
    ],
    "datetime2(3)": [("'2026-01-02T03:04:05.678'", dt.datetime(2026, 1, 2, 3, 4, 5, 678_000))],
    "datetime2(6)": [("'0001-01-01T00:00:00'", dt.datetime.min), ("'9999-12-31T23:59:59.999999'", dt.datetime.max)],
    "datetimeoffset(6)": [
        ("'0001-01-01T00:00:00+00:00'", dt.datetime.min.replace(tzinfo=UTC)),
        ("'9999-12-31T23:59:59.999999+00:00'", dt.datetime.max.replace(tzinfo=UTC)),
        ("'2026-01-02T03:04:05.678901+05:30'", dt.datetime(2026, 1, 1, 21, 34, 5, 678_901, UTC)),
        ("'2026-01-02T03:04:05-14:00'", dt.datetime(2026, 1, 2, 17, 4, 5, 0, UTC)),
    ],
    "sysname": [("N'żółw'", "żółw")],
    "dbo.code": [("N'a  '", "a  "), ("N'🐢'", "🐢")],
    "dbo.price": [("-1.5", Decimal("-1.50"))],
    "dbo.moment": [("'2026-01-02T03:04:05.678'", dt.datetime(2026, 1, 2, 3, 4, 5, 678_000))],
    "hierarchyid": [("'/'", "/"), ("'/1/2.3/-4/'", "/1/2.3/-4/")],
    "geometry": [
        ("'POINT (1 2)'", struct.pack("<BI2d", 1, 1, 1, 2)),
        ("geometry::STGeomFromText('LINESTRING (0 0 7, 1.5 -1 8)', 27700)", struct.pack("<BII6d", 1, 1002, 2, 0, 0, 7, 1.5, -1, 8)),
        ("'POLYGON EMPTY'", struct.pack("<BII", 1, 3, 0)),
    ],
    "geography": [("'POINT (1 2 3 4)'", struct.pack("<BI4d", 1, 3001, 1, 2, 3, 4))],
}  # fmt: skip
ALIASES = (
    "CREATE TYPE dbo.code FROM nvarchar(20) NOT NULL",
    "CREATE TYPE dbo.price FROM decimal(9,2)",
    "CREATE TYPE dbo.moment FROM datetime2(3)",
)
SPARSE = frozenset({"int", "nvarchar(20)", "money", "datetime2(6)", "varbinary(20)"})


def declared(connection: pyodbc.Connection, table: str) -> Mapping[str, ColumnSpec]:
    """How each column is replicated, by what the catalogue says of it."""
    (found,) = read_tables(Connection(connection), [TableId("dbo", table)]).values()
    return found.specs


@pytest.mark.matrix
def test_a_value_is_one_through_both_drivers(model: SqlServerModel, open_: Open) -> None:
    by_driver = {driver: open_(model, driver) for driver in Driver}
    writer = by_driver[Driver.FREETDS]
    columns = {kind: f"v{number}" for number, kind in enumerate(CASES)}
    defined = ", ".join(f"{column} {kind} NULL" for kind, column in columns.items())
    for statement in ALIASES:
        writer.execute(statement)
    writer.execute(f"CREATE TABLE dbo.everything (id int NOT NULL PRIMARY KEY, {defined})")
    count = max(len(values) for values in CASES.values()) + 1
    for row in range(count):
        written = {columns[kind]: values[row][0] for kind, values in CASES.items() if row < len(values)}
        names, values = ", ".join(written), ", ".join(written.values())
        separator = ", " if written else ""
        writer.execute(f"INSERT INTO dbo.everything (id{separator}{names}) VALUES ({row}{separator}{values})")
    for driver, connection in by_driver.items():
        specs = declared(connection, "everything")
        selected = ", ".join(specs[column].selected.format(f"[{column}]") for column in columns.values())
        rows = connection.execute(f"SELECT {selected} FROM dbo.everything ORDER BY id").fetchall()
        for given, (kind, column) in zip(columns_of(rows), columns.items(), strict=True):
            read = decoded(given, specs[column], name=column)
            expected = [value for _, value in CASES[kind]]
            assert read.type == specs[column].arrow
            assert read.to_pylist() == expected + [None] * (count - len(expected)), (driver, kind)
        none = connection.execute(f"SELECT {selected} FROM dbo.everything WHERE id < 0").fetchall()
        assert columns_of(none) == []


@pytest.mark.matrix
@pytest.mark.condition("D07", "D29")
def test_a_value_is_the_same_from_a_chunk_and_from_the_log(postgres: PostgresServer) -> None:
    """Of every type at once, with sparse and computed columns next to them, through both drivers."""
    table = TableId("dbo", "everything")
    columns = {f"v{number}": kind for number, kind in enumerate(CASES)}
    defined = ", ".join(
        f"{column} {kind} {'SPARSE ' if kind in SPARSE else ''}NULL" for column, kind in columns.items()
    )
    with world(postgres) as here:
        here.execute(
            "EXEC sys.sp_configure N'max text repl size', -1",
            "RECONFIGURE",
            *ALIASES,
            f"CREATE TABLE dbo.everything (id int NOT NULL PRIMARY KEY, v rowversion, {defined}, made AS (id * 2))",
        )
        here.enable(table)
        here.tables = (table,)
        begin = here.position()
        count = max(len(values) for values in CASES.values()) + 1
        for row in range(count):
            written = {c: CASES[kind][row][0] for c, kind in columns.items() if row < len(CASES[kind])}
            names, values = ", ".join(["id", *written]), ", ".join([str(row), *written.values()])
            here.execute(f"INSERT INTO dbo.everything ({names}) VALUES ({values})")
        # Rows that were changed: whatever was not touched is what it was.
        here.execute(
            "UPDATE dbo.everything SET v0 = NULL WHERE id = 0", "UPDATE dbo.everything SET id = 100 WHERE id = 1"
        )
        here.capture()
        for driver in Driver:
            with closing(connector_of(here.model.address, driver)) as connector:
                with closing(Session(connector)) as session, session.use("reading") as connection:
                    found = read_tables(connection, [table])[table]
                    query = f"{whole_query(read_plan(found, found.schema))} ORDER BY id"
                    rows = connection.rows(query)
                fields = [column.name for column in found.schema.columns]
                specs = [found.specs[name] for name in fields]
                arrays = [
                    decoded(given, s, name=n) for given, s, n in zip(columns_of(rows), specs, fields, strict=True)
                ]
                chunk = dict(
                    zip(arrays[0].to_pylist(), zip(*(a.to_pylist() for a in arrays), strict=True), strict=True)
                )
                reader = reader_of(connector, begin, [table])
                replay: dict[int, dict[str, Any]] = {}
                for change in drained(reader).changes:
                    old = replay.pop(change.before["id"]) if change.before else {}
                    assert change.row is not None
                    replay[change.row["id"]] = {n: old[n] if n in change.absent else v for n, v in change.row.items()}
                reader.close()
            assert "made" not in fields
            assert len(fields) == len(CASES) + 2
            assert {key: tuple(row.values()) for key, row in replay.items()} == chunk, driver


@pytest.mark.matrix
def test_json_is_read_as_text_from_a_chunk_and_from_the_log(postgres: PostgresServer) -> None:
    table, document = TableId("dbo", "documents"), '{"ż": [1, 2]}'
    with world(postgres) as here:
        here.model.change(version="17.0.1000.7")
        here.execute("CREATE TABLE dbo.documents (id int NOT NULL PRIMARY KEY, j json NULL, n int NULL)")
        here.enable(table)
        begin = here.position()
        here.execute(
            f"INSERT INTO dbo.documents (id, j) VALUES (1, N'{document}'), (2, NULL)",
            "UPDATE dbo.documents SET n = 1 WHERE id = 1",
        )
        here.capture()
        for driver in Driver:
            with closing(connector_of(here.model.address, driver)) as connector:
                with closing(Session(connector)) as session, session.use("reading") as connection:
                    found = read_tables(connection, [table])[table]
                    rows = connection.rows(f"{whole_query(read_plan(found, found.schema))} ORDER BY id")
                assert [row[1] for row in rows] == [document, None], driver
                with closing(reader_of(connector, begin, [table])) as reader:
                    changes = drained(reader).changes
            assert [c.row and c.row["j"] for c in changes[:2]] == [document, None], driver
            assert changes[2].absent == frozenset({"j"}), driver


def test_a_rowversion_is_eight_bytes(connection: pyodbc.Connection) -> None:
    connection.execute("DROP TABLE IF EXISTS dbo.versioned")
    connection.execute("CREATE TABLE dbo.versioned (id int NOT NULL PRIMARY KEY, v rowversion)")
    connection.execute("INSERT INTO dbo.versioned (id) VALUES (1)")
    spec = declared(connection, "versioned")["v"]
    value = connection.execute(f"SELECT {spec.selected.format('[v]')} FROM dbo.versioned").fetchval()
    assert len(value) == 8
    assert spec.key_value is not None
    found = f"SELECT id FROM dbo.versioned WHERE v = {spec.key_value.format('?')}"
    assert connection.execute(found, "0x" + value.hex()).fetchval() == 1


IDENTITIES: dict[str, tuple[int, pa.DataType]] = {
    "tinyint": (254, pa.int16()),
    "smallint": (32766, pa.int16()),
    "int": (2147483646, pa.int32()),
    "bigint": (9223372036854775806, pa.int64()),
    "numeric(9,0)": (999999998, pa.decimal128(9, 0)),
    "numeric(18,0)": (999999999999999998, pa.decimal128(18, 0)),
    "decimal(1,0)": (8, pa.decimal128(1, 0)),
}


@pytest.mark.matrix
def test_an_identity_keeps_its_type_in_the_log(postgres: PostgresServer) -> None:
    """Change tables have it as an int or a bigint."""
    with world(postgres) as here:
        tables = {kind: TableId("dbo", f"numbered_{number}") for number, kind in enumerate(IDENTITIES)}
        for kind, table in tables.items():
            first, _ = IDENTITIES[kind]
            here.execute(f"CREATE TABLE {table} (id {kind} IDENTITY({first},1) NOT NULL PRIMARY KEY, n int)")
            here.enable(table)
        begin = here.position()
        here.execute(*(f"INSERT INTO {table} (n) VALUES (1), (2)" for table in tables.values()))
        here.execute(*(f"DELETE FROM {table} WHERE n = 1" for table in tables.values()))
        here.capture()
        with closing(reader_of(here.connector, begin, list(tables.values()))) as reader:
            delivered = drained(reader)
        assert not delivered.table_errors
        for kind, table in tables.items():
            first, arrow = IDENTITIES[kind]
            with closing(here.session()) as session, session.use("reading") as connection:
                found = read_tables(connection, [table])[table]
            assert found.schema.column("id").type == arrow, kind
            changes = [change for change in delivered.changes if change.table == table]
            given = [((change.row or change.before or {})["id"], change.row is None) for change in changes]
            assert given == [(first, False), (first + 1, False), (first, True)], kind
