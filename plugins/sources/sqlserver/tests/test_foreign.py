"""The suite on a server that is not the model of the test: on a model in another process, which is told nothing but T-SQL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.databases import SqlServers
from replicator_testbed.sqlserver.drivers import Address, Driver, connect
from replicator_testbed.sqlserver.foreign import DSN, address_of, server_under_test
from replicator_testbed.sqlserver.model import SqlServerModel
from replicator_testbed.sqlserver.world import drained, shown, world_of_two

TESTS = Path(__file__).parent
PATIENCE_S = 1200


@pytest.fixture
def served() -> Iterator[str]:
    """A connection string."""
    program = subprocess.Popen(
        [sys.executable, "-m", "replicator_testbed.sqlserver.served"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdout is not None
        yield program.stdout.readline().strip()
        assert program.stdin is not None
        program.stdin.close()
    assert program.returncode == 0


@pytest.mark.matrix
@pytest.mark.skipif(DSN in os.environ, reason="it is a run of the suite on another server itself")
def test_the_whole_suite_runs_elsewhere(served: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "not matrix", str(TESTS)],
        env={**os.environ, DSN: served}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert "needs the model: another clock of the server" in ran.stdout


@pytest.fixture
def foreign(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlServerModel]:
    """A model that a test reaches by a connection string alone."""
    with SqlServerModel(postgres) as model:
        model.capture.start()
        at = model.address
        monkeypatch.setenv(DSN, f"SERVER={at.host},{at.port};UID={at.user};PWD={at.password};DATABASE={at.database}")
        yield model


def names(model: SqlServerModel) -> list[str]:
    with closing(connect(Driver.FREETDS, model.address)) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM sys.tables ORDER BY name").fetchall()]


@pytest.mark.matrix
@pytest.mark.skipif(DSN in os.environ, reason="it needs a model that runs next to the server")
def test_another_server_is_used_as_the_model_would_be_and_left_empty(
    foreign: SqlServerModel, postgres: PostgresServer
) -> None:
    with world_of_two(postgres) as two:
        assert two.model.address == foreign.address
        reader = two.open(two.position())
        two.execute("INSERT INTO dbo.t (id) VALUES (1)")
        two.capture()
        assert shown(drained(reader)) == [("t", "INSERT", 1)]
        reader.close()
        with pytest.raises(pytest.skip.Exception, match="needs the model: another clock"):
            two.model.set_clock(timedelta(0))
        with pytest.raises(pytest.skip.Exception, match=r"needs the model: capture\.lag"):
            two.model.capture.lag = timedelta(0)
        assert "t" in names(foreign)
    assert names(foreign) == []


@pytest.mark.matrix
@pytest.mark.skipif(DSN in os.environ, reason="it needs a model that runs next to the server")
def test_each_database_of_a_test_is_as_the_first_one_was(foreign: SqlServerModel, postgres: PostgresServer) -> None:
    for is_tracked in (False, True, True, False):
        with SqlServers(postgres=postgres, is_tracked=is_tracked).database() as database:
            assert database.server.address == foreign.address
            database.execute(
                "CREATE TYPE dbo.code FROM nvarchar(20)",
                "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, c dbo.code NULL)",
            )
            database.capture("t")
            with (
                pytest.raises(pytest.skip.Exception, match="a second database"),
                SqlServers(postgres=postgres).database(),
            ):
                pass


@pytest.mark.matrix
@pytest.mark.skipif(DSN in os.environ, reason="it needs a model that runs next to the server")
def test_a_database_that_is_not_empty_is_left_alone(foreign: SqlServerModel, postgres: PostgresServer) -> None:
    with closing(connect(Driver.FREETDS, foreign.address)) as connection:
        connection.execute("CREATE TABLE dbo.theirs (id int)")
    with pytest.raises(ValueError, match="has tables, such as theirs"), server_under_test(postgres):
        pass
    assert names(foreign) == ["theirs"]


def test_a_connection_string_names_the_server() -> None:
    assert address_of("DRIVER={x};SERVER=tcp:db.internal,1444;UID=sa;PWD=a=b;DATABASE=scratch;Encrypt=yes") == Address(
        host="db.internal", port=1444, user="sa", password="a=b", database="scratch"
    )
    assert address_of("SERVER=db;UID=sa;PWD=x;DATABASE=scratch").port == 1433
