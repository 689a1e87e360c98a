"""Facts about the server, its database and our account there, as far as the account may know them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Final

import pyodbc

from replicator.model.schema import TableId
from replicator_source_sqlserver.catalogue.discovery import read_tables
from replicator_source_sqlserver.catalogue.facts import TableFacts, read_table_facts
from replicator_source_sqlserver.catalogue.instance_names import free_name, free_names, read_instance_names
from replicator_source_sqlserver.catalogue.tables import CatalogTable
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Connection, Row
from replicator_source_sqlserver.connecting.errors import is_unknowable

# NULL as the name of a securable is the current database, whatever its own name has in it.
_PROPERTIES: Final = """
SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(128)), CAST(SERVERPROPERTY('Edition') AS nvarchar(128)),
  CAST(SERVERPROPERTY('EngineEdition') AS int), d.name, d.collation_name, d.is_cdc_enabled, d.snapshot_isolation_state,
  d.is_read_committed_snapshot_on, CAST(DATABASEPROPERTYEX(d.name, 'Updateability') AS nvarchar(128)),
  CAST(COLLATIONPROPERTY(d.collation_name, 'CodePage') AS int),
  USER_NAME(), IS_ROLEMEMBER(N'db_owner'), IS_SRVROLEMEMBER(N'sysadmin'),
  HAS_PERMS_BY_NAME(NULL, N'DATABASE', N'UNMASK'), DB_ID(N'rdsadmin'), d.is_published
FROM sys.databases d WHERE d.name = DB_NAME()
"""

# [DOC] Of SQL Server alone: Azure SQL Database may not have the view.
_TEXT_SIZE_MAX: Final = (
    "SELECT CAST(c.value_in_use AS bigint) FROM sys.configurations c WHERE c.name = N'max text repl size (B)'"
)

_REACHED: Final = "SELECT CAST(SERVERPROPERTY('ServerName') AS nvarchar(128)), DB_NAME()"
_CREATED: Final = "SELECT d.name, CAST(d.create_date AS datetime2(3)) FROM sys.databases d WHERE d.name = DB_NAME()"
_LINEAGE: Final = (
    "SELECT r.family_guid, r.recovery_fork_guid FROM sys.database_recovery_status r WHERE r.database_id = DB_ID()"
)

# A permission that this version does not know is NULL.
_VISIBLE: Final = """
SELECT ORIGINAL_LOGIN(), HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER STATE'),
  HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER PERFORMANCE STATE'),
  HAS_PERMS_BY_NAME(NULL, N'DATABASE', N'VIEW DATABASE STATE')
"""

_ACCOUNT: Final = "SELECT USER_NAME(), IS_ROLEMEMBER(N'db_owner'), ORIGINAL_LOGIN()"

# The column came with SQL Server 2019.
_RECOVERY: Final = "SELECT d.is_accelerated_database_recovery_on FROM sys.databases d WHERE d.name = DB_NAME()"
_RECOVERY_SINCE: Final = (15,)

_DURABILITY: Final = "SELECT d.delayed_durability FROM sys.databases d WHERE d.name = DB_NAME()"

_CAPTURED: Final = """
SELECT GETDATE(), (SELECT TOP (1) m.tran_end_time FROM cdc.lsn_time_mapping m ORDER BY m.start_lsn DESC),
  (SELECT MIN(t.create_date) FROM cdc.change_tables t)
"""

_AGENT: Final = "SELECT s.status FROM sys.dm_server_services s WHERE s.servicename LIKE N'SQL Server Agent%'"

_JOBS: Final = "SELECT j.job_type, j.retention, j.continuous FROM msdb.dbo.cdc_jobs j WHERE j.database_id = DB_ID()"
_JOBS_OF_AZURE: Final = "SELECT j.job_type, j.retention, NULL FROM cdc.cdc_jobs j"
"""The query for Azure SQL Database, which has no msdb: its scheduler's settings are in the database."""

# Agent notes runs under the number of its own last start.
_ACTIVITY: Final = """
SELECT j.job_type, s.name, s.enabled, CASE WHEN a.start_execution_date IS NOT NULL AND a.stop_execution_date IS NULL THEN 1 ELSE 0 END
FROM msdb.dbo.cdc_jobs j
JOIN msdb.dbo.sysjobs s ON s.job_id = j.job_id
LEFT JOIN msdb.dbo.sysjobactivity a ON a.job_id = j.job_id
  AND a.session_id = (SELECT MAX(b.session_id) FROM msdb.dbo.sysjobactivity b)
WHERE j.database_id = DB_ID()
"""

# The message of an error may have values of rows.
_ERRORS: Final = """
SELECT e.session_id, e.error_number FROM sys.dm_cdc_errors e
WHERE e.entry_time > (
  SELECT COALESCE(MAX(s.end_time), CAST('19000101' AS datetime)) FROM sys.dm_cdc_log_scan_sessions s WHERE s.error_count = 0)
ORDER BY e.entry_time DESC
"""
_FOLLOWING: Final = frozenset({22858, 22859, 22860, 22863, 22864})
"""Errors that only say that another one came before them in the same session."""

_RUNNING: Final = 4
"""The status of a running service in `sys.dm_server_services`."""
_READ_ONLY: Final = "READ_ONLY"


class Engine(IntEnum):
    """The values of `SERVERPROPERTY('EngineEdition')` that matter."""

    STANDARD_OR_WEB = 2
    EXPRESS = 4
    AZURE_SQL_DATABASE = 5
    MANAGED_INSTANCE = 8
    AZURE_SQL_EDGE = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of change data capture. `is_enabled`, `is_running`: None if the account may not know; `name`: empty then.

    `is_continuous`: the job never ends; otherwise a schedule runs it. None where the server does not say.
    """

    name: str = ""
    retention: timedelta | None = None
    is_continuous: bool | None = None
    is_enabled: bool | None = None
    is_running: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Our account in the database.

    Attributes:
        user: The account's name in the database, for statements that grant it something.
        is_owner: The account may make capture instances.
        is_administrator: The account may do everything on the server.
        sees_masked: Columns that are masked are shown to it as they are.
        sees_sessions: The account is shown what sessions of others wait for, and where the log ends.
        login: The account's name on the server.
    """

    user: str
    is_owner: bool = False
    is_administrator: bool = False
    sees_masked: bool = True
    sees_sessions: bool = True
    login: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The server and its database.

    Attributes:
        version: The version, such as (16, 0, 4000).
        engine: `SERVERPROPERTY('EngineEdition')`.
        code_page: The code page of the database's collation.
        is_captured: Change data capture is on for the database.
        is_read_only: The database is a readable secondary, or was made read-only.
        uses_row_versions: READ COMMITTED reads versions of rows (`READ_COMMITTED_SNAPSHOT`) and takes no locks.
        text_size_max: `max text repl size` in bytes, -1 for no limit; None if it is unknown.
        is_agent_running: True if SQL Server Agent runs; None if there is none, or if the account may not know.
        jobs: The jobs of the database, by `capture` and `cleanup`; None if the account may not know.
        captured_age: Age, by the server's clock, of the newest captured commit, or of the first capture instance if that is younger.
        capture_error: Number of the error with which the capture job fails since its last scan.
        is_rds: The database is on Amazon RDS, whose own procedures replace statements that need an administrator.
        is_published: The database has a publication: the replication's log reader captures, and there is no capture job.
        delays_durability: A commit may be seen, or is seen, before it is on disk.
        is_accelerated: The database has accelerated database recovery. Not asked of Azure, where every database has it.
        mark_table: `source.mark_table` as it is; None if there is none.
        instances: Names of all capture instances of the database.
        instance_names: The name for a further instance of each table that is replicated or is the mark table: no two alike.
        tables: Further facts of tables, by `object_id`.
    """

    version: tuple[int, ...]
    edition: str
    engine: int
    database: str
    collation: str
    code_page: int
    is_captured: bool
    is_snapshot_allowed: bool
    uses_row_versions: bool
    is_read_only: bool
    text_size_max: int | None
    account: Account
    is_agent_running: bool | None = None
    jobs: Mapping[str, Job] | None = None
    capture_error: int | None = None
    captured_age: timedelta | None = None
    is_rds: bool = False
    is_published: bool = False
    is_accelerated: bool = False
    delays_durability: bool = False
    mark_table: CatalogTable | None = None
    instances: frozenset[str] = frozenset()
    instance_names: Mapping[TableId, str] = field(default_factory=dict)
    tables: Mapping[int, TableFacts] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The server's version and edition, for messages."""
        return f"SQL Server {'.'.join(map(str, self.version))}, {self.edition}"

    @property
    def has_jobs(self) -> bool:
        """Return whether SQL Server Agent runs capture and cleanup; Azure SQL Database has a scheduler of its own."""
        return self.engine != Engine.AZURE_SQL_DATABASE

    @property
    def is_azure(self) -> bool:
        """Return whether the server is a service of Azure: these are always current, and their version is 12 whatever they can do."""
        return self.engine in {Engine.AZURE_SQL_DATABASE, Engine.MANAGED_INSTANCE}

    @property
    def retention(self) -> timedelta | None:
        """The time for which changes are kept; None if it is unknown, or if nothing removes them."""
        cleanup = None if self.jobs is None else self.jobs.get("cleanup")
        return None if cleanup is None else cleanup.retention

    def instance_name(self, table: TableId) -> str:
        """Return the name for a further capture instance of a table."""
        given = self.instance_names
        return given[table] if table in given else free_name(table, [*self.instances, *given.values()])


def read_facts(connection: Connection, config: SqlServerConfig, tables: Collection[CatalogTable] = ()) -> ServerFacts:
    """Ask the server: at most thirteen queries, and four more for tables.

    Args:
        connection: A connection of our account.
        config: The configuration, which names the mark table.
        tables: The replicated tables.
    """
    ((
        version, edition, engine, database, collation, is_captured, snapshot_isolation, uses_row_versions, updateability,
        code_page, user, is_owner, is_administrator, sees_masked, rds, is_published,
    ),) = connection.rows(_PROPERTIES)  # fmt: skip
    ((login, may_server, may_performance, may_database),) = connection.rows(_VISIBLE)
    mark_table = config.mark_table_id
    found = None if mark_table is None else read_tables(connection, [mark_table]).get(mark_table)
    is_captured = bool(is_captured)
    has_jobs = engine != Engine.AZURE_SQL_DATABASE
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    has_recovery = numbers >= _RECOVERY_SINCE and engine not in {Engine.AZURE_SQL_DATABASE, Engine.MANAGED_INSTANCE}
    agent = _rows_if_allowed(connection, _AGENT) if has_jobs else None
    instances = read_instance_names(connection) if is_captured else frozenset()
    described = [*tables, *([] if found is None else [found])]
    return ServerFacts(
        version=numbers,
        edition=edition,
        engine=int(engine),
        database=database,
        collation=collation,
        code_page=int(code_page or 0),
        is_captured=is_captured,
        is_snapshot_allowed=int(snapshot_isolation or 0) == 1,
        uses_row_versions=bool(uses_row_versions),
        is_read_only=updateability == _READ_ONLY,
        text_size_max=_text_size_max(connection),
        account=Account(
            user=user,
            is_owner=bool(is_owner) or bool(is_administrator),
            is_administrator=bool(is_administrator),
            sees_masked=bool(sees_masked),
            sees_sessions=bool(may_server or may_performance) if has_jobs else bool(may_database),
            login=login,
        ),
        is_agent_running=int(agent[0][0]) == _RUNNING if agent else None,
        jobs=_jobs(connection, hides=rds is not None),
        captured_age=_captured_age(connection) if is_captured else None,
        capture_error=read_capture_error(connection) if is_captured else None,
        is_rds=rds is not None,
        is_published=bool(is_published),
        delays_durability=bool(connection.rows(_DURABILITY)[0][0]),
        is_accelerated=has_recovery and bool(connection.rows(_RECOVERY)[0][0]),
        mark_table=found,
        instances=instances,
        instance_names=free_names(_in_need(mark_table, found, tables), instances),
        tables=read_table_facts(connection, described, is_captured=is_captured),
    )


def _in_need(
    mark_table: TableId | None, found: CatalogTable | None, tables: Collection[CatalogTable]
) -> Sequence[TableId]:
    """Return the tables that may get a further capture instance, those without one first: these get the server's own names."""
    known = [*(() if found is None else (found,)), *tables]
    named = [(bool(table.instances), table.table) for table in known]
    if mark_table is not None and found is None:
        named.append((False, mark_table))
    return [table for _, table in sorted(named)]


def read_account(connection: Connection) -> Account:
    """Read the account, as far as statements that grant it something name it."""
    ((user, is_owner, login),) = connection.rows(_ACCOUNT)
    return Account(user=user, is_owner=bool(is_owner), login=login)


def read_lineage(connection: Connection) -> Mapping[str, str]:
    """Read the database's name and its `family_guid`, which a restore keeps; else the time of its creation."""
    ((database, created),) = connection.rows(_CREATED)
    forks = _forks(connection)
    return {"database": database, **({"family": forks[0]} if forks else {"created": created.isoformat()})}


def read_reached(connection: Connection) -> Mapping[str, str]:
    """Read the identity of the database and its server: copies that were restored elsewhere have the same name and family."""
    ((server, database),) = connection.rows(_REACHED)
    forks = _forks(connection)
    return {"server": server or "", "database": database, **({"family": forks[0]} if forks else {})}


def read_history(connection: Connection) -> Mapping[str, str]:
    """Read the identifiers of the database's history: its recovery fork, which a restore changes, and the time of its creation.

    A restore changes the second, too, as a new name does. It counts only where the server has no forks, or shows none to our account.
    """
    ((_, created),) = connection.rows(_CREATED)
    assert isinstance(created, datetime)
    forks = _forks(connection)
    return {"created": created.isoformat(), **({"fork": forks[1]} if forks else {})}


def read_retention(connection: Connection) -> timedelta | None:
    """Read the time for which changes are kept; None if the account may not know, or if nothing removes them."""
    for job, minutes, _ in _kept(connection) or ():
        if job == "cleanup" and minutes:
            return timedelta(minutes=int(minutes))
    return None


def read_capture_error(connection: Connection) -> int | None:
    """Read the error of the capture job since its last successful scan; None if there is none, or if the account may not know."""
    rows = _rows_if_allowed(connection, _ERRORS)
    return cause([(int(session), int(number)) for session, number in rows]) if rows else None


def cause(errors: Sequence[tuple[int, int]]) -> int:
    """Return the error that the last session of the capture job failed with.

    Args:
        errors: Sessions, and the numbers of their errors, the newest first. An error from outside of any session has 0.
    """
    last = max(session for session, _ in errors)
    found = [number for session, number in errors if session in {0, last}]
    return next((number for number in found if number not in _FOLLOWING), found[0])


def _forks(connection: Connection) -> tuple[str, str] | None:
    """Read the database's family and its recovery fork; None where the server has no such view, or does not show it to our account."""
    rows = _rows_if_allowed(connection, _LINEAGE)
    if not rows or None in rows[0]:
        return None
    family, fork = rows[0]
    return str(family).lower(), str(fork).lower()


def _captured_age(connection: Connection) -> timedelta | None:
    ((now, captured, enabled),) = connection.rows(_CAPTURED)
    return None if enabled is None else now - max(enabled, captured or enabled)


def _text_size_max(connection: Connection) -> int | None:
    """Read the limit in bytes, -1 for none; None where the server has no such setting, or does not show it to our account."""
    rows = _rows_if_allowed(connection, _TEXT_SIZE_MAX)
    return None if not rows or rows[0][0] is None else int(rows[0][0])


def _kept(connection: Connection) -> Sequence[Row] | None:
    """Read the jobs with their retention; None if the account may not know."""
    rows = _rows_if_allowed(connection, _JOBS)
    return (_rows_if_allowed(connection, _JOBS_OF_AZURE) or None) if rows is None else rows


def _jobs(connection: Connection, *, hides: bool) -> Mapping[str, Job] | None:
    """Read the jobs; None if they are unknown. `hides`: the server hides jobs that belong to its operator, as Amazon RDS does."""
    rows = _kept(connection)
    if rows is None or (hides and not rows):
        return None
    activity = {job: activity for job, *activity in _rows_if_allowed(connection, _ACTIVITY) or ()}
    found = {}
    for job, minutes, continuous in rows:
        name, enabled, running = activity.get(job, ("", None, None))
        found[str(job)] = Job(
            name=name,
            retention=timedelta(minutes=int(minutes)) if minutes else None,
            is_continuous=None if continuous is None else bool(continuous),
            is_enabled=None if enabled is None else bool(enabled),
            is_running=None if running is None else bool(running),
        )
    return found


def _rows_if_allowed(connection: Connection, query: str) -> Sequence[Row] | None:
    """Return the rows of a query; None if the account may not have them, or if this kind of server has no such view."""
    try:
        return connection.rows(query)
    except pyodbc.Error as error:
        if not is_unknowable(error):
            raise
        return None
