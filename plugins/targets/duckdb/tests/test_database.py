"""The file is open for one transaction, and another process's lock on it is waited for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from duckdb import DuckDBPyConnection

from replicator.model.errors import ConfigError, TargetUnavailableError
from replicator.model.schema import TableId
from replicator_target_duckdb.config import DuckDBConfig
from replicator_target_duckdb.database import Database

_HOLD = (
    "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.readline(); c.close()"
)


def _holder(file: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def test_a_file_that_another_process_has_open_is_waited_for_and_then_reported(tmp_path: Path) -> None:
    file = tmp_path / "x.duckdb"
    impatient, patient = Database(file, wait_s=0.0), Database(file)
    with _holder(file) as other:
        with pytest.raises(TargetUnavailableError, match="Another process") as raised, impatient.transaction(None):
            pass
        assert raised.value.code == "target_busy"
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()
        with patient.transaction(None) as connection:
            connection.execute("CREATE TABLE replicated.main.t (a INTEGER)")
    impatient.close()
    # Between two transactions others may open it.
    with _holder(file) as other:
        other.communicate("\n")
    patient.close()


def test_what_fails_in_a_transaction_leaves_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.duckdb")

    def fail(connection: DuckDBPyConnection) -> None:
        connection.execute("CREATE TABLE replicated.main.t (a INTEGER)")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), database.transaction(TableId("shop", "items")) as connection:
        fail(connection)
    with database.transaction(None) as connection:
        assert connection.execute("SELECT count(*) FROM duckdb_tables()").fetchone() == (0,)
    database.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.duckdb"
    file.write_bytes(b"no database" * 2000)
    database = Database(file)
    with pytest.raises(ConfigError) as raised, database.transaction(None):
        pass
    assert raised.value.code == "target_occupied"
    database.close()


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(ValueError, match="absolute path"):
        DuckDBConfig(path="shop.duckdb")
