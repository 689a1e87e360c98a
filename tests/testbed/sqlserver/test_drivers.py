"""The model through the two real drivers: login, TLS, every type both ways, errors, cancellation.

What is marked [RUN] was seen with a throw-away server before, as the README says.
"""

from __future__ import annotations

import datetime as dt
import struct
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyodbc
import pytest

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.certificates import Authority
from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testbed.sqlserver.engine.session import Session
from replicator_testbed.sqlserver.model import SqlServerModel
from replicator_testbed.sqlserver.server import TdsServer
from replicator_testbed.sqlserver.tds.handshake import Login
from replicator_testing.waiting import wait_until
from tests.testbed.sqlserver.conftest import Client

pytestmark = pytest.mark.matrix

OFFSET = -155
TABLE = """
CREATE TABLE dbo.everything (
  id int NOT NULL PRIMARY KEY, big bigint, small smallint, tiny tinyint, flag bit, f float, r real, m money, sm smallmoney,
  d decimal(38,10), c char(5), vc varchar(20), vcm varchar(max), nc nchar(5), nv nvarchar(20), nvm nvarchar(max),
  b binary(4), vb varbinary(20), vbm varbinary(max), g uniqueidentifier, dd date, t time(6), dt datetime, sdt smalldatetime,
  dt2 datetime2(6), dto datetimeoffset(6), x xml, old text, nold ntext, img image)
"""
COLUMNS = [
    "big",
    "small",
    "tiny",
    "flag",
    "f",
    "r",
    "m",
    "sm",
    "d",
    "c",
    "vc",
    "vcm",
    "nc",
    "nv",
    "nvm",
    "b",
    "vb",
    "vbm",
    "g",
    "dd",
    "t",
    "dt",
    "sdt",
    "dt2",
    "dto",
    "x",
    "old",
    "nold",
    "img",
]
ROW: dict[str, Any] = {
    "big": -(2**63),
    "small": -(2**15),
    "tiny": 255,
    "flag": True,
    "f": 0.1,
    "r": 0.5,
    "m": Decimal("-922337203685477.5808"),
    "sm": Decimal("214748.3647"),
    "d": Decimal("1234567890123456789012345678.0123456789"),
    "c": "ab   ",
    "vc": "café €",
    "vcm": "x" * 9000,
    "nc": "żó   ",
    "nv": "żółw 🐢",
    "nvm": "ż" * 5000 + "🐢",
    "b": b"\1\2\3\4",
    "vb": b"\0\xff",
    "vbm": bytes(range(256)) * 40,
    "g": "6F9619FF-8B86-D011-B42D-00C04FC964FF",
    "dd": dt.date(1, 1, 1),
    "t": dt.time(23, 59, 59, 999999),
    "dt": dt.datetime(1998, 1, 2, 3, 4, 5, 677000),
    "sdt": dt.datetime(2026, 1, 2, 3, 4),
    "dt2": dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    "dto": (dt.datetime(2026, 1, 2, 3, 4, 5, 678901), 330),
    "x": "<a>ż</a>",
    "old": "old text",
    "nold": "żółw",
    "img": b"\5" * 10,
}


def offset(content: bytes) -> tuple[dt.datetime, int]:
    """A datetimeoffset as the drivers hand it over: local time, nanoseconds, hours and minutes [RUN]."""
    year, month, day, hour, minute, second, nanoseconds, hours, minutes = struct.unpack("<hHHHHHIhh", content)
    return dt.datetime(year, month, day, hour, minute, second, nanoseconds // 1000), 60 * hours + minutes


@pytest.fixture
def typed(any_client: Client) -> Client:
    any_client("DROP TABLE IF EXISTS dbo.everything")
    any_client(TABLE)
    any_client.connection.add_output_converter(OFFSET, offset)
    return any_client


def test_every_type_that_is_written_as_a_literal_is_read(typed: Client) -> None:
    typed(
        "INSERT INTO dbo.everything VALUES (1, -9223372036854775808, -32768, 255, 1, 0.1, 0.5, -922337203685477.5808, 214748.3647,"
        " 1234567890123456789012345678.0123456789, 'ab', N'café €', REPLICATE('x', 9000), N'żó', N'żółw 🐢',"
        " CONCAT(REPLICATE(N'ż', 5000), N'🐢'), 0x01020304, 0x00ff, ?, '6F9619FF-8B86-D011-B42D-00C04FC964FF', '0001-01-01',"
        " '23:59:59.999999', '1998-01-02T03:04:05.678', '2026-01-02T03:04:05', '9999-12-31T23:59:59.9999999',"
        " '2026-01-02T03:04:05.678901+05:30', N'<a>ż</a>', 'old text', N'żółw', 0x05050505050505050505)".replace(
            "?", "0x" + ROW["vbm"].hex()
        ),
    )
    (row,) = typed(f"SELECT {', '.join(COLUMNS)} FROM dbo.everything")
    assert dict(zip(COLUMNS, row, strict=True)) == ROW


def test_every_type_that_is_sent_as_a_parameter_is_read(typed: Client) -> None:
    sent = {
        **ROW,
        "dto": "2026-01-02 03:04:05.678901 +05:30",
        "t": "23:59:59.999999",
        "dd": "0001-01-01",
        "g": uuid.UUID(ROW["g"]),
    }
    for column in COLUMNS:
        typed(f"DELETE FROM dbo.everything; INSERT INTO dbo.everything (id, {column}) VALUES (?, ?)", 1, sent[column])
        assert (column, typed.value(f"SELECT {column} FROM dbo.everything")) == (column, ROW[column])
        typed(f"UPDATE dbo.everything SET {column} = NULL")
        assert (column, typed.value(f"SELECT {column} FROM dbo.everything")) == (column, None)


def test_a_time_is_sent_without_its_fraction(typed: Client) -> None:
    # [RUN, here] pyodbc binds a datetime.time so; the text of a time keeps it.
    typed("INSERT INTO dbo.everything (id, t) VALUES (1, ?)", ROW["t"])
    assert typed.value("SELECT t FROM dbo.everything") == dt.time(23, 59, 59)


def test_freetds_sends_early_dates_wrongly(typed: Client) -> None:
    # [RUN, here, FreeTDS 1.3.17] Off by a day before 1700, and not at all a date at its beginning: bounds go as text.
    is_freetds = "tds" in str(typed.connection.getinfo(pyodbc.SQL_DRIVER_NAME)).lower()
    early = dt.date(1600, 1, 1)
    assert typed.value("SELECT CAST(? AS date)", early) == (dt.date(1600, 1, 2) if is_freetds else early)
    assert typed.value("SELECT CAST(? AS date)", early.isoformat()) == early
    if is_freetds:
        assert typed.error("SELECT CAST(? AS date)", dt.date(1, 1, 1)) == 8023


def test_an_empty_result_is_described_as_a_full_one(typed: Client) -> None:
    cursor = typed.connection.cursor()
    cursor.execute(f"SELECT {', '.join(COLUMNS)} FROM dbo.everything WHERE 1 = 0")
    assert [column[0] for column in cursor.description] == COLUMNS
    sizes = {column[0]: column[3:6] for column in cursor.description}
    assert (sizes["d"][1:], sizes["nv"][0], sizes["b"][0]) == ((38, 10), 20, 4)
    cursor.close()


def test_many_nulls_are_read(typed: Client) -> None:
    typed("INSERT INTO dbo.everything (id, img) VALUES (7, 0x01)")
    ((*nulls, last),) = typed(f"SELECT {', '.join(COLUMNS)} FROM dbo.everything")
    assert (set(nulls), last) == ({None}, b"\1")


def test_datetimeoffset_is_refused_by_pyodbc_without_a_converter(any_client: Client) -> None:
    # [RUN, pyodbc #134]
    with pytest.raises(pyodbc.ProgrammingError, match="-155 is not yet supported"):
        any_client("SELECT CAST('2026-01-01T00:00:00Z' AS datetimeoffset(7))")


def test_a_large_result_comes_whole(any_client: Client) -> None:
    any_client("DROP TABLE IF EXISTS dbo.many; CREATE TABLE dbo.many (id int NOT NULL PRIMARY KEY, name nvarchar(50))")
    any_client("INSERT INTO dbo.many VALUES (0, N'n')")
    for power in range(12):
        any_client(f"INSERT INTO dbo.many SELECT id + {2**power}, CONCAT(N'n', id) FROM dbo.many")
    assert [row[0] for row in any_client("SELECT id, name FROM dbo.many ORDER BY id")] == list(range(2**12))


def test_a_statement_is_prepared_once_and_run_often(any_client: Client) -> None:
    cursor = any_client.connection.cursor()
    found = [cursor.execute("SELECT ? + 1", number).fetchval() for number in range(5)]
    assert found == [1, 2, 3, 4, 5]
    cursor.close()


def test_a_wrong_password_is_refused(model: SqlServerModel) -> None:
    for driver in Driver:
        for address in (replace(model.address, password="wrong"), replace(model.address, user="nobody")):
            with pytest.raises(pyodbc.Error, match="18456"):
                connect(driver, address)


def test_an_unknown_database_is_refused(model: SqlServerModel) -> None:
    for driver in Driver:
        with pytest.raises(pyodbc.Error, match=r"Cannot open database|4060"):
            connect(driver, replace(model.address, database="nowhere"))


def test_a_query_ends_when_its_time_is_over(model: SqlServerModel) -> None:
    # [RUN: ATTENTION, SQLSTATE HYT00]
    for driver in Driver:
        connection = connect(driver, model.address)
        connection.timeout = 1
        cursor = connection.cursor()
        with pytest.raises(pyodbc.Error) as ended:
            cursor.execute("WAITFOR DELAY '00:10:00'")
        assert ended.value.args[0] == "HYT00"
        cursor.close()
        # The connection is as it was.
        assert connection.execute("SELECT 5").fetchval() == 5
        connection.close()


def test_a_connection_that_is_lost_ends_its_session(model: SqlServerModel) -> None:
    connection = connect(Driver.FREETDS, model.address)
    connection.execute("SELECT 1").fetchval()
    model.server.disconnect_all()
    with pytest.raises(pyodbc.Error):
        connection.execute("SELECT 1").fetchval()
    assert connect(Driver.FREETDS, model.address).execute("SELECT 2").fetchval() == 2


def test_a_server_that_was_away_is_found_again_at_its_address(postgres: PostgresServer) -> None:
    with SqlServerModel(postgres) as model:
        model.capture.start()
        connection = connect(Driver.FREETDS, model.address)
        with model.away():
            with pytest.raises(pyodbc.Error):
                connection.execute("SELECT 1")
            with pytest.raises(pyodbc.Error):
                connect(Driver.FREETDS, model.address)
            assert not model.capture.is_started
        assert connect(Driver.FREETDS, model.address).execute("SELECT 2").fetchval() == 2
        assert model.capture.is_started


def test_a_session_that_opens_while_its_connection_ends_is_closed(model: SqlServerModel) -> None:
    begun, may_open, opened = threading.Event(), threading.Event(), list[Session]()

    def open_slowly(login: Login) -> Session:
        begun.set()
        may_open.wait(60)
        opened.append(model._open(login))
        return opened[0]

    with TdsServer(open_slowly) as server, ThreadPoolExecutor(2) as pool:
        driver = pool.submit(connect, Driver.FREETDS, replace(model.address, port=server.port))
        assert begun.wait(60)
        ending = pool.submit(server.disconnect_all)
        wait_until(lambda: any(task.cancelling() for task in server._connections), "the connection ends", every_s=0.01)
        may_open.set()
        ending.result(60)
        with pytest.raises(pyodbc.Error):
            driver.result(60)
    assert opened[0].connection.closed


def test_a_driver_ends_its_transaction(model: SqlServerModel, any_client: Client, client: Client) -> None:
    client("DROP TABLE IF EXISTS dbo.ended; CREATE TABLE dbo.ended (id int)")
    any_client.connection.autocommit = False
    any_client("INSERT INTO dbo.ended VALUES (1)")
    assert any_client.value("SELECT @@TRANCOUNT") == 1
    any_client.connection.rollback()
    any_client("INSERT INTO dbo.ended VALUES (2)")
    any_client.connection.commit()
    any_client.connection.autocommit = True
    assert client("SELECT id FROM dbo.ended") == [(2,)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secured(postgres: PostgresServer, authority: Authority) -> Iterator[SqlServerModel]:
    with SqlServerModel(postgres, tls=authority.server("DNS:localhost", "IP:127.0.0.1")) as model:
        yield model


def freetds_options(folder: Path, port: int, authority: Authority, host: str = "127.0.0.1") -> dict[str, str]:
    """FreeTDS verifies certificates only by freetds.conf [RUN]; what names a server there takes no address besides."""
    (folder / "freetds.conf").write_text(
        f"[secured]\nhost = {host}\nport = {port}\ntds version = 7.4\nclient charset = UTF-8\nencryption = require\n"
        f"ca file = {authority.certificate}\ncheck certificate hostname = yes\n"
    )
    return {"SERVERNAME": "secured", "SERVER": "", "PORT": "", "TDS_Version": ""}


def test_microsofts_driver_encrypts(secured: SqlServerModel) -> None:
    connection = connect(Driver.MICROSOFT, secured.address, options={"Encrypt": "yes", "TrustServerCertificate": "yes"})
    assert connection.execute("SELECT ?", "ż" * 20_000).fetchval() == "ż" * 20_000
    connection.close()


def test_microsofts_driver_refuses_an_authority_that_it_does_not_know(secured: SqlServerModel) -> None:
    # [RUN]
    with pytest.raises(pyodbc.Error, match="certificate verify failed"):
        connect(Driver.MICROSOFT, secured.address, options={"Encrypt": "yes"})


def test_freetds_encrypts_and_verifies_nothing_by_default(secured: SqlServerModel) -> None:
    # [RUN]
    connection = connect(Driver.FREETDS, secured.address, options={"Encryption": "require"})
    assert connection.execute("SELECT REPLICATE(N'ż', 20000)").fetchval() == "ż" * 20_000
    connection.close()


@pytest.mark.parametrize(
    ("authority_name", "names", "is_accepted"),
    [
        ("authority", ("DNS:localhost", "IP:127.0.0.1"), True),
        ("stranger", ("DNS:localhost", "IP:127.0.0.1"), False),
        ("authority", ("DNS:elsewhere.example",), False),
    ],
    ids=["right", "wrong authority", "wrong name"],
)
def test_freetds_verifies_by_freetds_conf(
    postgres: PostgresServer,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    authority_name: str,
    names: tuple[str, ...],
    is_accepted: bool,
) -> None:
    # [RUN]
    signer = authority if authority_name == "authority" else Authority.make(tmp_path, authority_name)
    with SqlServerModel(postgres, tls=signer.server(*names)) as model:
        options = freetds_options(tmp_path, model.port, authority, host="localhost")
        monkeypatch.setenv("FREETDSCONF", str(tmp_path / "freetds.conf"))
        if is_accepted:
            assert connect(Driver.FREETDS, model.address, options=options).execute("SELECT 3").fetchval() == 3
        else:
            with pytest.raises(pyodbc.Error, match="Unable to connect"):
                connect(Driver.FREETDS, model.address, options=options)


def test_a_result_that_is_not_read_to_its_end_is_cancelled(any_client: Client) -> None:
    """The cancellation may come while the answer is still being sent: it is acknowledged all the same."""
    any_client("DROP TABLE IF EXISTS dbo.wide")
    any_client("CREATE TABLE dbo.wide (n int, t nvarchar(max))")
    values = ", ".join(f"({n}, REPLICATE(N'x', 20000))" for n in range(300))
    any_client(f"INSERT INTO dbo.wide VALUES {values}")
    for _ in range(5):
        cursor = any_client.connection.cursor()
        cursor.execute("SELECT n, t FROM dbo.wide")
        assert len(cursor.fetchmany(16)) == 16
        cursor.close()
    assert any_client.value("SELECT COUNT(*) FROM dbo.wide") == 300
