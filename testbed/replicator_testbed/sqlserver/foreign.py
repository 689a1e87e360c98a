"""A server that is not ours in place of the model: what the environment variable REPLICATOR_TEST_MSSQL_DSN names.

Tests take `server_under_test`, which is a model unless the variable is set. Then it is the database that the variable names, which has to
be empty, and is emptied after each use. Whatever a test asks of the model that no statement of T-SQL can do ends it as left out, with
the reason.
"""

from __future__ import annotations

import contextlib
import os
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, cast

import pyodbc
import pytest
from typing_extensions import override

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.scratch_servers import TIMEOUT_SECONDS
from replicator_testbed.sqlserver.drivers import Address, Driver, connect
from replicator_testbed.sqlserver.model import SqlServerModel

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.capture.job import CaptureJob

DSN: Final = "REPLICATOR_TEST_MSSQL_DSN"
MARK: Final = "dbo.replicator_test_mark"
_POLL_S: Final = 0.05
_ACTIVITY: Final = """
SELECT COUNT(*) FROM msdb.dbo.cdc_jobs j JOIN msdb.dbo.sysjobactivity a ON a.job_id = j.job_id
WHERE j.database_id = DB_ID() AND j.job_type = N'capture' AND a.start_execution_date IS NOT NULL AND a.stop_execution_date IS NULL
  AND a.session_id = (SELECT MAX(b.session_id) FROM msdb.dbo.sysjobactivity b)
"""
_VERSIONS: Final = "SELECT is_read_committed_snapshot_on FROM sys.databases WHERE name = DB_NAME()"
_TABLES: Final = (
    "SELECT s.name, t.name FROM sys.tables t JOIN sys.schemas s ON s.schema_id = t.schema_id WHERE t.is_ms_shipped = 0"
    " AND s.name <> N'cdc' ORDER BY s.name, t.name"
)
_TYPES: Final = (
    "SELECT s.name, t.name FROM sys.types t JOIN sys.schemas s ON s.schema_id = t.schema_id WHERE t.is_user_defined = 1"
)
_TRACKED: Final = "SELECT 1 FROM sys.change_tracking_databases WHERE database_id = DB_ID()"


def server_under_test(postgres: PostgresServer, **options: Any) -> SqlServerModel:
    """A model, or the server that is to be tested in place of it; a context manager."""
    dsn = os.environ.get(DSN)
    return SqlServerModel(postgres, **options) if not dsn else ForeignServer(postgres, dsn, **options)


def address_of(dsn: str) -> Address:
    """What a connection string names: SERVER=host,port; UID; PWD; DATABASE."""
    parts = {name.strip().upper(): value for name, _, value in (part.partition("=") for part in dsn.split(";")) if name}
    host, _, port = parts["SERVER"].removeprefix("tcp:").partition(",")
    return Address(
        host=host,
        port=int(port or parts.get("PORT", "1433")),
        user=parts["UID"],
        password=parts["PWD"],
        database=parts["DATABASE"],
    )


def needs_model(what: str) -> NoReturn:
    """End the test as skipped."""
    pytest.skip(f"needs the model: {what}")


class ForeignServer(SqlServerModel):
    """The database of a server that runs, empty when a test gets it, as the model would be."""

    _used = False

    def __init__(self, postgres: PostgresServer, dsn: str, **options: Any) -> None:
        """Describe it. `options`: what the model can be made with, and this cannot."""
        super().__init__(postgres)
        for name in options:
            if name != "database":
                needs_model(f"SqlServerModel({name}=…)")
        self._foreign = address_of(dsn)

    @override
    def __enter__(self) -> Self:
        if ForeignServer._used:
            needs_model("a second database")
        ForeignServer._used = True
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, ForeignServer, "_used", False)
            sql = connect(Driver.FREETDS, self._foreign)
            stack.callback(sql.close)
            if tables := sql.execute(_TABLES).fetchall():
                raise ValueError(f"the database {self._foreign.database} of {DSN} has tables, such as {tables[0][1]}")
            stack.callback(_empty, sql)
            if not sql.execute(_VERSIONS).fetchall()[0][0]:
                # As the model has it from the start, and Azure.
                sql.execute("ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE")
            self.capture = cast("CaptureJob", ForeignCapture(sql))
            self._stack = stack.pop_all()
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    @override
    def host(self) -> str:
        return self._foreign.host

    @override
    def address_of(self, user: str) -> Address:
        return self._foreign

    @override
    def change(self, **facts: bool | int | str) -> None:
        needs_model("another edition, version or state of the server")

    @override
    def set_clock(self, ahead: Any) -> None:
        needs_model("another clock of the server")

    @override
    def grant(self, user: str, permission: str, schema: str, name: str) -> None:
        needs_model("other accounts")

    def __getattr__(self, name: str) -> NoReturn:
        """Its PostgreSQL, its protocol: what only the model has."""
        if name.startswith("__"):
            raise AttributeError(name)
        needs_model(f"SqlServerModel.{name}")


class ForeignCapture:
    """The capture job of a server, as far as statements of T-SQL lead it: it stands still unless it is told to run."""

    def __init__(self, sql: pyodbc.Connection) -> None:
        """Take an administrator's connection."""
        self._sql = sql
        self._is_started = False

    def start(self) -> None:
        """Have it run, until `stop`."""
        self._is_started = True
        if self._is_enabled():
            self._run(to=True)

    def stop(self) -> None:
        """Have it stand still."""
        self._is_started = False
        if self._is_enabled():
            self._run(to=False)

    def scan_all(self) -> None:
        """Have everything captured that was committed."""
        if not self._is_enabled():
            return
        self._run(to=True)
        self._make_mark()
        self._sql.execute(f"INSERT INTO {MARK} (n) VALUES (0)")
        ((wanted,),) = self._sql.execute(f"SELECT MAX(id) FROM {MARK}").fetchall()
        captured = "SELECT COUNT(*) FROM cdc.dbo_replicator_test_mark_CT WHERE id = ?"
        _wait(lambda: self._sql.execute(captured, wanted).fetchall()[0][0], "the capture job has captured nothing")
        if not self._is_started:
            self._run(to=False)

    def raise_low_watermark(self, low: bytes, instance: str | None = None) -> None:
        """Clean up: a server raises the watermark, and deletes what is below, in one procedure."""
        rows = self._sql.execute("SELECT capture_instance FROM cdc.change_tables WHERE start_lsn < ?", low).fetchall()
        for (name,) in rows:
            if instance in {None, name}:
                self._sql.execute(
                    "EXEC sys.sp_cdc_cleanup_change_table @capture_instance = ?, @low_water_mark = ?", name, low
                )

    def delete_below(self) -> None:
        """It was done with `raise_low_watermark`."""

    def fail_over(self) -> None:
        """Drop the jobs: they do not exist after a failover."""
        for job in ("capture", "cleanup"):
            self._sql.execute(f"EXEC sys.sp_cdc_drop_job @job_type = N'{job}'")

    def __getattr__(self, name: str) -> NoReturn:
        """What only the model's job can do."""
        if name.startswith("__"):
            raise AttributeError(name)
        needs_model(f"capture.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Knobs of the model's job."""
        if not name.startswith("_"):
            needs_model(f"capture.{name}")
        object.__setattr__(self, name, value)

    def _is_enabled(self) -> bool:
        return bool(
            self._sql.execute("SELECT is_cdc_enabled FROM sys.databases WHERE name = DB_NAME()").fetchall()[0][0]
        )

    def _is_running(self) -> bool:
        return bool(self._sql.execute(_ACTIVITY).fetchall()[0][0])

    def _run(self, *, to: bool) -> None:
        if self._is_running() is not to:
            self._sql.execute(f"EXEC sys.sp_cdc_{'start' if to else 'stop'}_job @job_type = N'capture'")
            _wait(lambda: self._is_running() is to, "the capture job does not start, or does not stop")

    def _make_mark(self) -> None:
        if not self._sql.execute(f"SELECT OBJECT_ID(N'{MARK}')").fetchall()[0][0]:
            self._sql.execute(f"CREATE TABLE {MARK} (id int IDENTITY(1,1) NOT NULL PRIMARY KEY, n int)")
        captured = "SELECT COUNT(*) FROM cdc.change_tables WHERE capture_instance = N'dbo_replicator_test_mark'"
        if not self._sql.execute(captured).fetchall()[0][0]:
            self._sql.execute(
                "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'replicator_test_mark', @role_name = NULL,"
                " @supports_net_changes = 0"
            )


def _wait(is_done: Any, otherwise: str) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while not is_done():
        if time.monotonic() > until:
            raise TimeoutError(otherwise)
        time.sleep(_POLL_S)


def _empty(sql: pyodbc.Connection) -> None:
    """Leave the database as it was: without change data capture and change tracking, and without tables and types."""
    if sql.execute("SELECT is_cdc_enabled FROM sys.databases WHERE name = DB_NAME()").fetchall()[0][0]:
        sql.execute("EXEC sys.sp_cdc_disable_db")
    for schema, table in sql.execute(_TABLES).fetchall():
        sql.execute(f"DROP TABLE [{schema}].[{table}]")
    for kind in ("scheme", "function"):
        for (name,) in sql.execute(f"SELECT name FROM sys.partition_{kind}s").fetchall():
            sql.execute(f"DROP PARTITION {kind.upper()} [{name}]")
    for schema, name in sql.execute(_TYPES).fetchall():
        sql.execute(f"DROP TYPE [{schema}].[{name}]")
    if sql.execute(_TRACKED).fetchall():
        sql.execute("ALTER DATABASE CURRENT SET CHANGE_TRACKING = OFF")
    sql.execute("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION OFF")
    for statement in ("EXEC sys.sp_configure N'max text repl size', 65536", "RECONFIGURE"):
        sql.execute(statement)
