"""What `replicator verify` asks of the model: bytes of texts, hashes, differences of times, and locks of rows (rule 21, rule 22)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from decimal import Decimal

import pyodbc
import pytest

from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testbed.sqlserver.model import SqlServerModel
from tests.testbed.sqlserver.conftest import Client

pytestmark = pytest.mark.matrix

UTF8 = "Latin1_General_100_BIN2_UTF8"


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("N'ż🐢'", "ż🐢".encode("utf-16-le")),
        (f"N'ż🐢' COLLATE {UTF8}", "ż🐢".encode("utf-16-le")),
        (f"CAST(N'ż🐢 ' COLLATE {UTF8} AS varchar(max))", "ż🐢 ".encode()),
        (
            f"CONCAT(CAST('' AS varchar(max)) COLLATE {UTF8}, 3, ':', CAST(N'ż' COLLATE {UTF8} AS varchar(9)))",
            b"3:\xc5\xbc",
        ),
        ("'é€'", "é€".encode("cp1252")),
        ("CAST(N'é' AS varchar(9))", "é".encode("cp1252")),
        ("CAST(N'ab' AS nchar(4))", "ab  ".encode("utf-16-le")),
        ("CAST('ab' AS char(4))", b"ab  "),
        (f"CASE WHEN N'a' = N'b' THEN '' ELSE CAST(N'ż' COLLATE {UTF8} AS varchar(9)) END", "ż".encode()),
    ],
)
def test_the_bytes_of_a_text_are_those_of_its_type_and_collation(client: Client, text: str, bytes_: bytes) -> None:
    # rule 21 [DOC: Collation and Unicode support]
    ((found, size),) = client(f"SELECT CAST({text} AS varbinary(max)), DATALENGTH({text})")
    assert (bytes(found), size) == (bytes_, len(bytes_))


def test_the_bytes_of_a_column_are_those_of_its_type_and_collation(client: Client) -> None:
    # rule 21
    client("DROP TABLE IF EXISTS dbo.texts")
    client(f"CREATE TABLE dbo.texts (w nvarchar(9), u varchar(9) COLLATE {UTF8}, p varchar(9))")
    client("INSERT INTO dbo.texts VALUES (N'é', N'é', N'é')")
    ((wide, utf8, page),) = client(
        "SELECT CAST(w AS varbinary(9)), CAST(u AS varbinary(9)), CAST(p AS varbinary(9)) FROM dbo.texts"
    )
    assert (bytes(wide), bytes(utf8), bytes(page)) == (b"\xe9\0", b"\xc3\xa9", b"\xe9")


def test_collations_of_utf8_came_with_2019(model: SqlServerModel, client: Client) -> None:
    # rule 21 [DOC: Collation and Unicode support]
    asked = f"SELECT CAST(COLLATIONPROPERTY(N'{UTF8}', N'CodePage') AS int)"
    assert client.value(asked) == 65001
    model.change(version="14.0.3456.2")
    try:
        assert client.value(asked) is None
    finally:
        model.change(version="16.0.4000.0")


def test_hashes_and_numbers_of_bytes(client: Client) -> None:
    # rule 21 [DOC: HASHBYTES; CAST and CONVERT, binary styles]
    assert bytes(client.value("SELECT HASHBYTES('SHA2_256', 0x6162)")) == hashlib.sha256(b"ab").digest()
    assert client.value("SELECT HASHBYTES('SHA2_256', CAST(NULL AS varbinary(9)))") is None
    assert client.value("SELECT LOWER(CONVERT(varchar(32), SUBSTRING(0x00FF1A, 2, 2), 2))") == "ff1a"
    assert client.value("SELECT CAST(SUBSTRING(0x00FFFFFFFFFFFFFFFE, 2, 8) AS bigint)") == -2
    assert client.value("SELECT CAST(SUBSTRING(0x0102, 1, 2) AS int) / 16") == 16
    assert client.value(
        "SELECT SUM(CAST(n.b AS decimal(38,0))) FROM (SELECT CAST(0x7FFFFFFFFFFFFFFF AS bigint) AS b"
        " UNION ALL SELECT CAST(0x7FFFFFFFFFFFFFFF AS bigint)) AS n"
    ) == Decimal(2**64 - 2)


def test_differences_of_times_count_boundaries(client: Client) -> None:
    # rule 21 [DOC: DATEDIFF_BIG]. The model has six digits behind the second.
    epoch = "CONVERT(datetime2(7), '19700101', 112)"
    for moment, expected in (
        ("1969-12-31T23:59:59.999999", -1),
        ("0001-01-01T00:00:00", -62135596800000000),
        ("9999-12-31T23:59:59.999999", 253402300799999999),
    ):
        assert client.value(f"SELECT DATEDIFF_BIG(microsecond, {epoch}, CAST('{moment}' AS datetime2(6)))") == expected
    assert client.value("SELECT DATEDIFF(day, CONVERT(date, '19700101', 112), CAST('0001-01-01' AS date))") == -719162
    assert (
        client.value(
            "SELECT DATEDIFF_BIG(microsecond, CONVERT(time(7), '00:00:00', 108), CAST('23:59:59.9' AS time(1)))"
        )
        == 86_399_900_000
    )
    with pytest.raises(pyodbc.Error, match="DATEDIFF of MICROSECOND"):
        client(f"SELECT DATEDIFF(microsecond, {epoch}, GETDATE())")


def test_decimals_have_all_digits_of_their_scale(client: Client) -> None:
    # rule 21 [K]
    assert client.value("SELECT CONVERT(varchar(41), CAST(-0.5 AS decimal(5,2)))") == "-0.50"
    assert client.value("SELECT CONVERT(varchar(41), CAST(CAST(1.5 AS money) AS decimal(19,4)))") == "1.5000"


def test_concat_makes_nothing_of_null_and_takes_254_arguments(client: Client) -> None:
    # rule 21 [DOC: CONCAT]
    assert client.value("SELECT CONCAT('a', NULL, ',', 5)") == "a,5"
    assert (
        client.value(f"SELECT CONCAT({', '.join(['NULL', *(chr(39) + 'x' + chr(39) for _ in range(253))])})")
        == "x" * 253
    )
    with pytest.raises(pyodbc.Error, match="189"):
        client(f"SELECT CONCAT({', '.join('1' for _ in range(255))})")


@pytest.fixture
def writer(model: SqlServerModel) -> Iterator[pyodbc.Connection]:
    """Another session, in whose transaction each statement is."""
    connection = connect(Driver.FREETDS, model.address)
    connection.autocommit = False
    yield connection
    connection.rollback()
    connection.close()


@pytest.mark.parametrize("statement", ["UPDATE dbo.held SET v = 2 WHERE id = 1", "DELETE FROM dbo.held WHERE id = 1"])
def test_a_locking_read_waits_for_who_changed_or_deleted_the_row(
    client: Client, writer: pyodbc.Connection, statement: str
) -> None:
    # rule 22 [DOC: table hints]
    client("DROP TABLE IF EXISTS dbo.held; CREATE TABLE dbo.held (id int NOT NULL PRIMARY KEY, v int)")
    client("INSERT INTO dbo.held VALUES (1, 1), (2, 2)")
    client("SET LOCK_TIMEOUT 0")
    writer.execute(statement)
    read = (
        "SELECT t.id FROM (SELECT DISTINCT {0} AS id) AS k JOIN dbo.held AS t WITH (READCOMMITTEDLOCK) ON t.id = k.id"
    )
    assert client(read.format(2) + " OPTION (LOOP JOIN, FORCE ORDER)") == [(2,)]
    with pytest.raises(pyodbc.Error, match="1222"):
        client(read.format(1))
    writer.rollback()
    assert client(read.format(1)) == [(1,)]
    client("SET LOCK_TIMEOUT -1")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("tinyint", "300"),
        ("money", "922337203685478"),
        ("smallmoney", "-214749"),
        ("int", "2147483648"),
        ("decimal(3,1)", "100"),
        ("date", "-0044-12-31"),
        ("date", "10000-01-01"),
        ("datetime2(6)", "-0044-12-31T00:00:00"),
        ("datetimeoffset(3)", "-0044-12-31T00:00:00+00:00"),
        ("uniqueidentifier", "x"),
    ],
)
def test_what_is_no_value_of_a_type_says_so_by_its_number(client: Client, kind: str, text: str) -> None:
    # K for the numbers of errors
    with pytest.raises(pyodbc.Error, match=r"\((220|235|241|242|244|245|248|8114|8115|8169)\)"):
        client(f"SELECT CAST(N'{text}' AS {kind})")
