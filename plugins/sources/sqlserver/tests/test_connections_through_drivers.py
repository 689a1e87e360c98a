"""What the drivers are told, and what they say: passwords, certificates and errors, from the model through both drivers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyodbc
import pytest

from replicator.config import Secret
from replicator.model.errors import (
    AccessDeniedError,
    ConfigError,
    FatalError,
    ReplicatorError,
    SchemaConflictError,
    SourceUnavailableError,
)
from replicator.model.schema import TableId
from replicator_source_sqlserver.cdc.marks import read_token, write_token
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Session
from replicator_source_sqlserver.connecting.driver import settings_of
from replicator_source_sqlserver.connecting.errors import number_of, translate
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.certificates import Authority
from replicator_testbed.sqlserver.drivers import Driver
from replicator_testbed.sqlserver.engine.settings import UserOption
from replicator_testbed.sqlserver.foreign import server_under_test
from replicator_testbed.sqlserver.model import USER, SqlServerModel
from replicator_testing.waiting import wait_until

Open = Callable[..., pyodbc.Connection]
OpenSession = Callable[..., Session]
PASSWORDS = ["a}b", "{a}", "a}", "{a", "a;b", "a b=c'\"", "a}}b", "żółw", "};x=y"]


# -- accounts ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def accounts(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    """A model with a user for each password."""
    users = {f"u{number}": password for number, password in enumerate(PASSWORDS)}
    with server_under_test(postgres, users=users) as model:
        yield model


@pytest.mark.sampled(1)
@pytest.mark.parametrize("driver", Driver)
def test_a_password_arrives_as_it_is(accounts: SqlServerModel, open_: Open, driver: Driver) -> None:
    for number, password in enumerate(PASSWORDS):
        if driver is Driver.FREETDS and "};" in password:
            continue
        connection = open_(accounts, driver, user=f"u{number}", password=Secret(password))
        assert connection.execute("SELECT 1").fetchval() == 1


@pytest.mark.matrix
@pytest.mark.parametrize("driver", Driver)
def test_the_server_is_called_what_the_configuration_calls_it(
    model: SqlServerModel, open_: Open, driver: Driver
) -> None:
    """Azure's gateway knows by it which server is meant."""
    model.called.clear()
    open_(model, driver)
    assert {name.removeprefix("tcp:").partition(",")[0] for name in model.called} == {model.host}


@pytest.fixture
def with_options(model: SqlServerModel, open_: Open) -> Iterator[SqlServerModel]:
    """Every session begins with settings that few expect."""
    admin = open_(model, Driver.FREETDS)

    def configure(options: int) -> None:
        admin.execute(f"EXEC sys.sp_configure N'user options', {options}")
        admin.execute("RECONFIGURE")

    configure(UserOption.NOCOUNT | UserOption.XACT_ABORT | UserOption.IMPLICIT_TRANSACTIONS)
    yield model
    configure(0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("driver", Driver)
def test_what_the_server_gives_every_session_is_undone(
    with_options: SqlServerModel, open_session: OpenSession, driver: Driver
) -> None:
    with open_session(with_options, driver).use("writing") as connection:
        connection.execute("DROP TABLE IF EXISTS dbo.tokens")
        connection.execute("CREATE TABLE dbo.tokens (id int NOT NULL PRIMARY KEY, token nvarchar(100) NULL)")
        for token in ("first", "second"):
            write_token(connection, TableId("dbo", "tokens"), token)
        assert read_token(connection, TableId("dbo", "tokens")) == "second"
        assert connection.rows("SELECT @@TRANCOUNT")[0][0] == 0
        connection.execute("BEGIN TRANSACTION")
        with pytest.raises(pyodbc.Error):
            connection.execute("INSERT INTO dbo.tokens (id) VALUES (1)")
        connection.execute("COMMIT TRANSACTION")


@pytest.mark.matrix
@pytest.mark.parametrize("driver", Driver)
def test_an_error_behind_a_message_is_not_lost(
    model: SqlServerModel, open_session: OpenSession, driver: Driver
) -> None:
    with open_session(model, driver).use("testing") as connection:
        connection.execute("DROP TABLE IF EXISTS dbo.few")
        connection.execute("CREATE TABLE dbo.few (id int NOT NULL PRIMARY KEY)")
        connection.execute("INSERT INTO dbo.few (id) VALUES (1)")
        again = "INSERT INTO dbo.few (id) VALUES (1)"
        for before in ("PRINT N'begun'", "SELECT 1", "UPDATE dbo.few SET id = 1"):
            with pytest.raises(pyodbc.Error, match="2627"):
                connection.execute(f"{before}; {again}")
        with pytest.raises(pyodbc.Error, match="2627"):
            connection.changed(f"UPDATE dbo.few SET id = 1; {again}")


def test_what_freetds_cannot_be_told_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(SqlServerConfig(host="h", user="u", password=Secret("a};b"), database="d"))
    assert caught.value.code == "driver_cannot_be_told"
    assert "source.password" in caught.value.message
    assert "a};b" not in str(caught.value)


# -- certificates --------------------------------------------------------------------------------------------------------

RIGHT, WRONG_NAME = ("DNS:localhost", "IP:127.0.0.1"), ("DNS:elsewhere.example",)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Authority]:
    folder = tmp_path_factory.mktemp("authorities")
    return {name: Authority.make(folder, name) for name in ("trusted", "stranger")}


@pytest.fixture(scope="module", params=["trusted", "stranger", "wrong name"])
def presented(
    postgres: PostgresServer, authorities: dict[str, Authority], request: pytest.FixtureRequest
) -> Iterator[tuple[str, SqlServerModel]]:
    """A model whose certificate is right, of another authority, or of another name."""
    signer = authorities["stranger" if request.param == "stranger" else "trusted"]
    names = WRONG_NAME if request.param == "wrong name" else RIGHT
    with server_under_test(postgres, tls=signer.server(*names)) as model:
        yield request.param, model


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("tls", "accepted"),
    [
        ("verify-full", {"trusted"}),
        ("verify-ca", {"trusted", "wrong name"}),
        ("require", {"trusted", "stranger", "wrong name"}),
    ],
)
def test_freetds_verifies_what_tls_asks_for(
    presented: tuple[str, SqlServerModel],
    authorities: dict[str, Authority],
    open_: Open,
    tls: str,
    accepted: set[str],
) -> None:
    what, model = presented

    def connect() -> None:
        ca = authorities["trusted"].certificate
        open_(model, Driver.FREETDS, host="localhost", tls=tls, tls_ca=ca).execute("SELECT 1")

    if what in accepted:
        connect()
        return
    with pytest.raises(pyodbc.Error) as refused:
        connect()
    assert translate(refused.value, doing="connecting").code == "source_unavailable"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("tls", "accepted"), [("verify-full", {"trusted"}), ("require", {"trusted", "stranger", "wrong name"})]
)
def test_microsofts_driver_verifies_by_what_the_system_trusts(
    presented: tuple[str, SqlServerModel],
    authorities: dict[str, Authority],
    open_: Open,
    monkeypatch: pytest.MonkeyPatch,
    tls: str,
    accepted: set[str],
) -> None:
    what, model = presented
    # OpenSSL's own variable: the file of authorities of the system.
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities["trusted"].certificate))
    if what in accepted:
        open_(model, Driver.MICROSOFT, host="localhost", tls=tls).execute("SELECT 1")
        return
    with pytest.raises(pyodbc.Error, match="certificate verify failed"):
        open_(model, Driver.MICROSOFT, host="localhost", tls=tls)


def remedy(session: Session) -> str:
    """What is told of a connection that fails."""
    with pytest.raises(SourceUnavailableError) as failed:
        session.rows("reading", "SELECT 1")
    assert failed.value.code == "source_unavailable"
    assert failed.value.action is not None
    assert failed.value.action.startswith("Check that the server runs, and that source.host and source.port are right.")
    return failed.value.action


@pytest.mark.matrix
@pytest.mark.parametrize("driver", Driver)
def test_a_certificate_that_was_not_verified_is_told_as_a_possibility(
    presented: tuple[str, SqlServerModel],
    authorities: dict[str, Authority],
    open_session: OpenSession,
    monkeypatch: pytest.MonkeyPatch,
    driver: Driver,
) -> None:
    what, model = presented
    # The system of Microsoft's driver; FreeTDS looks into `tls_ca` only.
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities["trusted"].certificate))
    ca = authorities["trusted"].certificate if driver is Driver.FREETDS else None
    session = open_session(model, driver, host="localhost", tls="verify-full", tls_ca=ca)
    if what == "trusted":
        assert session.rows("reading", "SELECT 1")[0][0] == 1
        return
    said = remedy(session)
    for setting in ("`source.tls: verify-full`", "source.tls_ca", "the certificate is for the name in source.host"):
        assert setting in said


@pytest.fixture(scope="module")
def without_tls(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    """A model; any other server would have TLS."""
    with server_under_test(postgres, tls=None) as model:
        yield model


@pytest.mark.sampled(1)
@pytest.mark.parametrize("driver", Driver)
@pytest.mark.parametrize(("tls", "names_authorities"), [("require", False), ("verify-full", True)])
def test_a_server_without_tls_may_be_why_there_is_no_connection(
    without_tls: SqlServerModel, open_session: OpenSession, driver: Driver, tls: str, names_authorities: bool
) -> None:
    said = remedy(open_session(without_tls, driver, tls=tls))
    assert "that the server offers TLS" in said
    assert f"`source.tls: {tls}`" in said
    assert ("source.tls_ca" in said) is names_authorities


@pytest.mark.matrix
@pytest.mark.parametrize("driver", Driver)
@pytest.mark.parametrize("tls", ["disable", "verify-full"])
def test_a_port_where_nothing_answers_is_no_matter_of_tls(
    model: SqlServerModel, open_session: OpenSession, driver: Driver, tls: str
) -> None:
    said = remedy(open_session(model, driver, port=1, tls=tls, connect_timeout="1s"))
    assert "TLS" not in said


@pytest.mark.matrix
def test_an_unknown_host_is_no_matter_of_tls_where_none_is_demanded(
    model: SqlServerModel, open_session: OpenSession
) -> None:
    for tls in ("disable", "prefer"):
        assert "TLS" not in remedy(open_session(model, Driver.FREETDS, host="nowhere.invalid", tls=tls))


# -- errors --------------------------------------------------------------------------------------------------------------


def told(error: Exception, table: str | None = "dbo.t") -> tuple[int | None, type[ReplicatorError], str]:
    """What becomes of a driver's error."""
    ours = translate(error, doing="reading", table=table)
    return number_of(error), type(ours), ours.code


@pytest.mark.matrix
def test_a_missing_table(connection: pyodbc.Connection) -> None:
    with pytest.raises(pyodbc.Error) as failed:
        connection.execute("SELECT * FROM dbo.nowhere")
    assert told(failed.value) == (208, SchemaConflictError, "table_changed")


def test_a_missing_permission(connection: pyodbc.Connection) -> None:
    connection.execute("DROP TABLE IF EXISTS dbo.closed")
    connection.execute("CREATE TABLE dbo.closed (id int)")
    connection.execute(f"DENY SELECT ON dbo.closed TO {USER}")
    with pytest.raises(pyodbc.Error) as failed:
        connection.execute("SELECT * FROM dbo.closed")
    assert told(failed.value) == (229, AccessDeniedError, "access_denied")
    connection.execute(f"GRANT SELECT ON dbo.closed TO {USER}")
    assert connection.execute("SELECT * FROM dbo.closed").fetchall() == []


@pytest.mark.matrix
@pytest.mark.parametrize("driver", Driver)
def test_a_lock_that_is_held_too_long(model: SqlServerModel, open_: Open, driver: Driver) -> None:
    holder, waiter = open_(model, driver), open_(model, driver)
    holder.execute("DROP TABLE IF EXISTS dbo.held")
    holder.execute("CREATE TABLE dbo.held (id int NOT NULL PRIMARY KEY, n int)")
    holder.execute("INSERT INTO dbo.held VALUES (1, 1)")
    holder.autocommit = False
    holder.execute("UPDATE dbo.held SET n = 2")
    waiter.execute("SET LOCK_TIMEOUT 50")
    with pytest.raises(pyodbc.Error) as failed:
        waiter.execute("SELECT * FROM dbo.held WITH (READCOMMITTEDLOCK)").fetchall()
    holder.rollback()
    assert told(failed.value) == (1222, SourceUnavailableError, "lock_timeout")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("driver", Driver)
def test_a_deadlock(model: SqlServerModel, open_: Open, driver: Driver) -> None:
    winner, loser, watching = (open_(model, driver) for _ in range(3))
    winner.execute("DROP TABLE IF EXISTS dbo.crossed")
    winner.execute("CREATE TABLE dbo.crossed (id int NOT NULL PRIMARY KEY, n int)")
    winner.execute("INSERT INTO dbo.crossed VALUES (1, 1), (2, 2)")
    winner.execute("SET DEADLOCK_PRIORITY HIGH")
    loser.execute("SET DEADLOCK_PRIORITY LOW")
    for connection, row in ((winner, 1), (loser, 2)):
        connection.autocommit = False
        connection.execute("UPDATE dbo.crossed SET n = 0 WHERE id = ?", row)
    waiting = threading.Thread(target=winner.execute, args=("UPDATE dbo.crossed SET n = 0 WHERE id = 2",))
    waiting.start()
    # The model's sessions look for a deadlock once, some time after they began to wait.
    waits = "SELECT COUNT(*) FROM sys.dm_exec_requests WHERE wait_type LIKE N'LCK%'"
    wait_until(lambda: watching.execute(waits).fetchval(), "the winner waits", every_s=0.01)
    with pytest.raises(pyodbc.Error) as failed:
        loser.execute("UPDATE dbo.crossed SET n = 0 WHERE id = 1")
    waiting.join()
    winner.rollback()
    assert told(failed.value) == (1205, SourceUnavailableError, "deadlock")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("driver", Driver)
def test_an_account_that_is_refused(model: SqlServerModel, open_: Open, driver: Driver) -> None:
    with pytest.raises(pyodbc.Error) as failed:
        open_(model, driver, password=Secret("wrong"))
    assert told(failed.value, table=None) == (18456, AccessDeniedError, "access_denied")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("driver", Driver)
def test_a_server_that_is_down(postgres: PostgresServer, open_: Open, driver: Driver) -> None:
    with server_under_test(postgres) as model:
        connection = open_(model, driver)
    with pytest.raises(pyodbc.Error) as lost:
        connection.execute("SELECT 1")
    with pytest.raises(pyodbc.Error) as refused:
        open_(model, driver, within_s=1)
    for failed in (lost, refused):
        assert told(failed.value, table=None)[1:] == (SourceUnavailableError, "source_unavailable")


@pytest.mark.matrix
def test_a_driver_that_is_missing(model: SqlServerModel, open_: Open, tmp_path: Path) -> None:
    with pytest.raises(pyodbc.Error) as failed:
        open_(model, Driver.FREETDS, driver=str(tmp_path / "libtdsodbc.so"))
    assert told(failed.value, table=None)[1:] == (FatalError, "driver_missing")


# -- cancellation ----------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("driver", Driver)
def test_what_was_cancelled_does_not_end_as_if_it_were_complete(
    model: SqlServerModel, open_session: OpenSession, driver: Driver
) -> None:
    session = open_session(model, driver)

    def cancelled(fetched_before: int) -> None:
        with session.use("reading") as connection:
            blocks = connection.blocks("SELECT n FROM (VALUES (1), (2), (3)) v (n)", (), rows_max=2)
            for _ in range(fetched_before):
                next(blocks)
            connection.cancel()
            list(blocks)

    for fetched_before in range(3):
        with pytest.raises(SourceUnavailableError) as caught:
            cancelled(fetched_before)
        assert caught.value.code == "statement_interrupted"
    # The session has another connection by now.
    assert session.rows("reading", "SELECT 1")[0][0] == 1
