"""Findings about the capture job: its presence, its state, and the time for which changes are kept. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from replicator.model.errors import Problem, Severity
from replicator_source_sqlserver import remedies, rules
from replicator_source_sqlserver.catalogue.server import Job, ServerFacts
from replicator_source_sqlserver.config import IDLE_S, SqlServerConfig

_DAY: Final = timedelta(days=1)
_WEEK: Final = timedelta(days=7)
_USUAL: Final = timedelta(days=3)
"""The time for which a server keeps changes unless it is told otherwise."""
_ACCELERATED: Final = (16, 0, 4185)
"""SQL Server 2022 CU 18, the first to support change data capture and accelerated database recovery together."""
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
            rules.CDC_DISABLED.finding(
                location=facts.database, database=facts.database, sql=(remedies.enable_database(facts),)
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
    return [rules.AGENT_STOPPED.finding()]


def _failing(facts: ServerFacts) -> list[Problem]:
    if facts.capture_error is None:
        return []
    return [
        rules.CAPTURE_JOB_FAILS.finding(
            capture_error=facts.capture_error, action=_AFTER.get(facts.capture_error, _LOOK)
        )
    ]


def _capture_job(facts: ServerFacts) -> list[Problem]:
    # With a publication the log reader captures, and a capture job is not allowed.
    if facts.jobs is None or not facts.has_jobs or facts.is_published:
        return []
    capture = facts.jobs.get("capture")
    if capture is None:
        return [rules.CAPTURE_JOB_MISSING.finding(sql=(remedies.add_job("capture"),))]
    if capture.is_enabled is False:
        return [_disabled(capture)]
    if capture.is_continuous is False:
        return [
            rules.CAPTURE_JOB_SCHEDULED.finding(
                sql=(remedies.CONTINUOUS, *(() if capture.is_running else (remedies.start_job("capture"),)))
            )
        ]
    if capture.is_running is False and facts.is_agent_running is not False:
        return [rules.CAPTURE_JOB_NOT_RUNNING.finding(sql=(remedies.start_job("capture"),))]
    return []


def _disabled(capture: Job) -> Problem:
    """Report a disabled job, which continues until it is stopped, and does not start with the server."""
    runs = capture.is_running is True
    return rules.CAPTURE_JOB_DISABLED.finding(
        fact="The capture job is disabled: it still runs, but will not start with the server."
        if runs
        else f"The capture job is disabled: {rules.WAITING}.",
        sql=(remedies.enable_job(capture.name), *(() if runs else (remedies.start_job("capture"),))),
    )


def _stalled(facts: ServerFacts) -> list[Problem]:
    """Report a standstill, for which no privilege is needed: even an idle database has a new entry about every five minutes."""
    age = facts.captured_age
    if age is None or age.total_seconds() <= IDLE_S:
        return []
    return [rules.NOTHING_CAPTURED.finding(length=_length(age), action=remedies.start_capture(facts))]


def _length(age: timedelta) -> str:
    minutes = int(age.total_seconds() // 60)
    return f"{minutes} minutes" if age < _DAY else f"{age / _DAY:.1f} days"


def _cleanup_job(facts: ServerFacts) -> list[Problem]:
    if facts.jobs is None or not facts.has_jobs or "cleanup" in facts.jobs:
        return []
    return [rules.CLEANUP_JOB_MISSING.finding(sql=(remedies.add_job("cleanup"),))]


def _recovery(facts: ServerFacts) -> list[Problem]:
    if not facts.is_accelerated or facts.version >= _ACCELERATED:
        return []
    return [rules.ACCELERATED_RECOVERY.finding(location=facts.database)]


def _durability(facts: ServerFacts) -> list[Problem]:
    if not facts.delays_durability:
        return []
    return [rules.DELAYED_DURABILITY.finding(location=facts.database, sql=(remedies.DURABLE,))]


def _retention_to_be(facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    """Report the retention of a database that will capture. The first capture instance makes the job, so the same script needs one."""
    if config.manage_capture:
        return []
    return [
        rules.RETENTION_TO_BE.finding(
            location="msdb.dbo.cdc_jobs" if facts.has_jobs else "cdc.cdc_jobs",
            days=_USUAL.days,
            sql=(remedies.keep_for(_WEEK),),
        )
    ]


def _retention(facts: ServerFacts) -> list[Problem]:
    kept = facts.retention
    if kept is None:
        return []
    return [
        rules.RETENTION.finding(
            location="msdb.dbo.cdc_jobs" if facts.has_jobs else "cdc.cdc_jobs",
            kept=kept / _DAY,
            action="If a pause may be longer, raise @retention with sys.sp_cdc_change_job." if kept >= _WEEK else None,
            sql=() if kept >= _WEEK else (remedies.keep_for(_WEEK),),
            severity=Severity.WARNING if kept < _DAY else Severity.NOTICE,
        )
    ]
