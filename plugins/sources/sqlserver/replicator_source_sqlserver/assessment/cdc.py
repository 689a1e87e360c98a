"""Findings about the capture job: its presence, its state, and the time for which changes are kept. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from replicator.model.errors import Problem, Severity
from replicator_source_sqlserver import remedies
from replicator_source_sqlserver.catalogue.server import Job, ServerFacts
from replicator_source_sqlserver.config import IDLE_S, SqlServerConfig

_DAY: Final = timedelta(days=1)
_WEEK: Final = timedelta(days=7)
_USUAL: Final = timedelta(days=3)
"""The time for which a server keeps changes unless it is told otherwise."""
_ACCELERATED: Final = (16, 0, 4185)
"""SQL Server 2022 CU 18, the first to support change data capture and accelerated database recovery together."""
_WAITING: Final = "changes wait in the server's log, and the log grows"
_SMALLER: Final = (
    "A column became smaller than a value that was captured of it. SELECT * FROM sys.dm_cdc_errors; names the table. Once everything that"
    " was captured of it has been read, disable and enable its capture: EXEC sys.sp_cdc_disable_table …; EXEC sys.sp_cdc_enable_table …;"
    " Replicator then reads the table again by itself. A second instance is not enough: the first one keeps failing."
)
_AFTER: Final[Mapping[int, str]] = {
    608: "Partitions were split or merged while changes waited. SELECT * FROM sys.dm_cdc_errors; names the table. Disable and enable its"
    " capture; Replicator then reads the table again by itself.",
    913: "A table with hierarchyid, geometry or geography was altered while changes of it waited. Microsoft's advice: stop writing to the"
    " table, have everything captured, alter it, have that captured, then write again.",
    2628: _SMALLER,
    8115: _SMALLER,
}
"""Next steps after an error of the capture job, by the error's number."""
_LOOK: Final = "SELECT * FROM sys.dm_cdc_errors; -- and see docs/sources/sqlserver.md"


def assess_capture(facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    """Find problems with the capture of the database's changes, and with the time for which they are kept."""
    if not facts.is_captured:
        return [
            Problem(
                code="cdc_disabled",
                message=f"Change data capture is off for the database {facts.database}.",
                location=facts.database,
                sql=(remedies.enable_database(facts),),
            ),
            *_retention_to_be(facts, config),
        ]
    # A readable secondary has no jobs, and does not know the state of the primary's.
    if facts.is_read_only:
        return _retention(facts)
    stopped = [*_agent(facts), *_failing(facts), *_capture_job(facts)]
    # A finding that says why nothing is captured also says that nothing is.
    return [
        *(stopped or _stalled(facts)),
        *_cleanup_job(facts),
        *_recovery(facts),
        *_durability(facts),
        *_retention(facts),
    ]


def _agent(facts: ServerFacts) -> list[Problem]:
    if facts.is_agent_running is not False:
        return []
    return [
        Problem(
            code="agent_stopped",
            message=f"SQL Server Agent does not run: {_WAITING}.",
            location="SQL Server Agent",
            action="Start the service on the server, and let it start with the server.",
            severity=Severity.WARNING,
        )
    ]


def _failing(facts: ServerFacts) -> list[Problem]:
    if facts.capture_error is None:
        return []
    return [
        Problem(
            code="capture_failing",
            message=f"The capture job fails with error {facts.capture_error}: {_WAITING}.",
            location="sys.dm_cdc_errors",
            action=_AFTER.get(facts.capture_error, _LOOK),
            severity=Severity.WARNING,
        )
    ]


def _capture_job(facts: ServerFacts) -> list[Problem]:
    # With a publication the log reader captures, and a capture job is not allowed.
    if facts.jobs is None or not facts.has_jobs or facts.is_published:
        return []
    capture = facts.jobs.get("capture")
    if capture is None:
        return [
            Problem(
                code="capture_job_missing",
                message="The database has no capture job, as after a failover to a server that never had one: no change is captured, "
                "and no error tells it.",
                location="msdb.dbo.cdc_jobs",
                sql=(remedies.add_job("capture"),),
                severity=Severity.WARNING,
            )
        ]
    if capture.is_enabled is False:
        return [_disabled(capture)]
    if capture.is_continuous is False:
        return [
            Problem(
                code="capture_job_scheduled",
                message="A schedule runs the capture job: changes come only when it does, and whenever nothing was captured for a while the"
                " replicator takes it for stopped.",
                location="msdb.dbo.cdc_jobs",
                sql=(remedies.CONTINUOUS, *(() if capture.is_running else (remedies.start_job("capture"),))),
                severity=Severity.WARNING,
            )
        ]
    if capture.is_running is False and facts.is_agent_running is not False:
        return [
            Problem(
                code="capture_job_stopped",
                message=f"The capture job does not run: {_WAITING}.",
                location="msdb.dbo.sysjobactivity",
                sql=(remedies.start_job("capture"),),
                severity=Severity.WARNING,
            )
        ]
    return []


def _disabled(capture: Job) -> Problem:
    """Report a disabled job, which continues until it is stopped, and does not start with the server."""
    runs = capture.is_running is True
    return Problem(
        code="capture_job_stopped",
        message="The capture job is disabled: it still runs, but will not start with the server."
        if runs
        else f"The capture job is disabled: {_WAITING}.",
        location="msdb.dbo.sysjobs",
        sql=(remedies.enable_job(capture.name), *(() if runs else (remedies.start_job("capture"),))),
        severity=Severity.WARNING,
    )


def _stalled(facts: ServerFacts) -> list[Problem]:
    """Report a standstill, for which no privilege is needed: even an idle database has a new entry about every five minutes."""
    age = facts.captured_age
    if age is None or age.total_seconds() <= IDLE_S:
        return []
    return [
        Problem(
            code="capture_stalled",
            message=f"Nothing was captured for {_length(age)}, though an idle database has an entry every five minutes: {_WAITING}.",
            location="cdc.lsn_time_mapping",
            action=remedies.start_capture(facts),
            severity=Severity.WARNING,
        )
    ]


def _length(age: timedelta) -> str:
    minutes = int(age.total_seconds() // 60)
    return f"{minutes} minutes" if age < _DAY else f"{age / _DAY:.1f} days"


def _cleanup_job(facts: ServerFacts) -> list[Problem]:
    if facts.jobs is None or not facts.has_jobs or "cleanup" in facts.jobs:
        return []
    return [
        Problem(
            code="cleanup_job_missing",
            message="The database has no cleanup job: its change tables grow without a limit.",
            location="msdb.dbo.cdc_jobs",
            sql=(remedies.add_job("cleanup"),),
            severity=Severity.WARNING,
        )
    ]


def _recovery(facts: ServerFacts) -> list[Problem]:
    if not facts.is_accelerated or facts.version >= _ACCELERATED:
        return []
    return [
        Problem(
            code="accelerated_recovery",
            message="The database has accelerated database recovery, which Microsoft supports together with change data capture from"
            " SQL Server 2022 CU 18 on: the log may fill up, and what is captured may be wrong.",
            location=facts.database,
            action="Update the server. Or, while nobody is connected to the database: ALTER DATABASE CURRENT SET"
            " ACCELERATED_DATABASE_RECOVERY = OFF;",
            severity=Severity.WARNING,
        )
    ]


def _durability(facts: ServerFacts) -> list[Problem]:
    if not facts.delays_durability:
        return []
    return [
        Problem(
            code="delayed_durability",
            message="Commits may be delayed on their way to the disk, which Microsoft does not support together with change data capture:"
            " a snapshot may read rows that the server loses when it crashes.",
            location=facts.database,
            sql=(remedies.DURABLE,),
            severity=Severity.WARNING,
        )
    ]


def _retention_to_be(facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    """Report the retention of a database that will capture. The first capture instance makes the job, so the same script needs one."""
    if config.manage_capture:
        return []
    return [
        Problem(
            code="log_retention",
            message=f"The server will keep changes for {_USUAL.days} days; after a longer pause the position is lost.",
            location="msdb.dbo.cdc_jobs" if facts.has_jobs else "cdc.cdc_jobs",
            sql=(remedies.keep_for(_WEEK),),
            severity=Severity.NOTICE,
        )
    ]


def _retention(facts: ServerFacts) -> list[Problem]:
    kept = facts.retention
    if kept is None:
        return []
    return [
        Problem(
            code="log_retention",
            message=f"The server keeps changes for {kept / _DAY:.1f} days; after a longer pause the position is lost.",
            location="msdb.dbo.cdc_jobs" if facts.has_jobs else "cdc.cdc_jobs",
            action="If a pause may be longer, raise @retention with sys.sp_cdc_change_job." if kept >= _WEEK else None,
            sql=() if kept >= _WEEK else (remedies.keep_for(_WEEK),),
            severity=Severity.WARNING if kept < _DAY else Severity.NOTICE,
        )
    ]
