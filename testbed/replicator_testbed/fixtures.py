"""pytest fixtures for the host's tests and for those of plugins: load them with `-p replicator_testbed.fixtures`.

Servers live as long as the test session and are shared, so a test that changes a server's settings, stops or kills it
makes its own with `PostgresServer`. Databases live as long as one test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from replicator.model import redaction
from replicator_testbed.mysql.programs import has_mysql
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testbed.network.proxy import FaultProxy
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from replicator_testbed.sqlserver.databases import SqlServers

pytest_plugins = ("replicator_testing.plugin",)


def pytest_report_header() -> list[str]:
    """Say loudly what cannot be tested here."""
    return (
        []
        if has_mysql()
        else ["NO MYSQL: the MySQL source is tested on MariaDB only (tools/install_mysql.sh says why)"]
    )


@pytest.fixture(autouse=True)
def secrets_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with no secret registered: one of another test would hide a leak here, or mask a word that is none."""
    monkeypatch.setattr(redaction, "_redactor", redaction.Redactor())


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The machine's own PostgreSQL, running."""
    with PostgresServer.distribution() as server:
        yield server


@pytest.fixture(scope="session")
def embedded_postgres() -> Iterator[PostgresServer]:
    """The embedded PostgreSQL, its newest version, running."""
    with PostgresServer.embedded() as server:
        yield server


@pytest.fixture(
    scope="session",
    params=["postgres", pytest.param("embedded_postgres", marks=pytest.mark.matrix)],
    ids=["distribution", "embedded"],
)
def any_postgres(request: pytest.FixtureRequest) -> PostgresServer:
    """The machine's own server; the embedded one in the matrix."""
    server: PostgresServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture(scope="session", params=["postgres", "embedded_postgres"], ids=["distribution", "embedded"])
def each_postgres(request: pytest.FixtureRequest) -> PostgresServer:
    """Each of the two servers in turn, in the default run too: for what most easily differs between them."""
    server: PostgresServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[ScratchDatabase]:
    """A fresh database on the machine's own PostgreSQL."""
    with postgres.database() as database:
        yield database


@pytest.fixture
def any_database(any_postgres: PostgresServer) -> Iterator[ScratchDatabase]:
    """A fresh database on `any_postgres`."""
    with any_postgres.database() as database:
        yield database


@pytest.fixture
def each_database(each_postgres: PostgresServer) -> Iterator[ScratchDatabase]:
    """A fresh database, once on each of the two servers."""
    with each_postgres.database() as database:
        yield database


@pytest.fixture
def fault_proxy(postgres: PostgresServer) -> Iterator[FaultProxy]:
    """A network to the machine's own PostgreSQL that fails on demand: `database.server.dsn(name, port=proxy.port)`."""
    with FaultProxy(postgres.host, postgres.port) as proxy:
        yield proxy


@pytest.fixture
def replicator_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A REPLICATOR_HOME of the test's own, for this process and those that it starts."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("REPLICATOR_HOME", str(home))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    return home


@pytest.fixture
def sqlserver(postgres: PostgresServer) -> SqlServers:
    """Models of a SQL Server, whose rows are in the machine's own PostgreSQL."""
    from replicator_testbed.sqlserver.databases import SqlServers  # with packages of an extra

    return SqlServers(postgres=postgres)


@pytest.fixture
def sqlserver_tracking(postgres: PostgresServer) -> SqlServers:
    """The same with change tracking."""
    from replicator_testbed.sqlserver.databases import SqlServers  # as above

    return SqlServers(postgres=postgres, is_tracked=True)


@pytest.fixture(scope="session", autouse=True)
def one_tls_context() -> Iterator[None]:
    """Let PyMySQL's connections share the TLS context that verifies nobody.

    It makes one for each, which takes longer than most tests' statements: all authorities of the system are read, and none is used.
    """
    try:
        from pymysql.connections import Connection  # with packages of an extra
    except ImportError:
        yield
        return
    make = Connection._create_ssl_ctx  # noqa: SLF001 - PyMySQL has no name for it
    made: list[Any] = []

    def shared(connection: Any, settings: Any) -> Any:
        if settings not in ({}, {"ca": None, "check_hostname": False, "verify_mode": False}):
            return make(connection, settings)
        if not made:
            made.append(make(connection, settings))
        return made[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "_create_ssl_ctx", shared)
        yield


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MysqlServer]:
    """The machine's own MariaDB, running."""
    with MysqlServer.mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[MysqlServer]:
    """The MySQL that was unpacked outside of the system, running; where there is none the test is skipped, and a warning says so."""
    if not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer.mysql() as server:
        yield server


@pytest.fixture(scope="session")
def mysql_without_gtids() -> Iterator[MysqlServer]:
    """As `mysql`, with GTIDs off, and with the table of watermarks."""
    if not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer.without_gtids() as server:
        yield server


@pytest.fixture(scope="session", params=["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def any_mysql(request: pytest.FixtureRequest) -> MysqlServer:
    """The machine's own MariaDB; MySQL in the matrix."""
    server: MysqlServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture(scope="session", params=["mariadb", "mysql"])
def each_mysql(request: pytest.FixtureRequest) -> MysqlServer:
    """Each of the two servers in turn, in the default run too: for what most easily differs between them."""
    server: MysqlServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def mysql_database(any_mysql: MysqlServer) -> Iterator[MysqlDatabase]:
    """A fresh database on `any_mysql`."""
    with any_mysql.database() as database:
        yield database


@pytest.fixture
def each_mysql_database(each_mysql: MysqlServer) -> Iterator[MysqlDatabase]:
    """A fresh database, once on each of the two servers."""
    with each_mysql.database() as database:
        yield database
