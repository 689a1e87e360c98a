"""The jobs of CDC as SQL Server Agent has them: their settings in msdb, and the procedures that start, stop and change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from replicator_testbed.sqlserver.outcomes import Outcome, SqlError

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.database import Database
    from replicator_testbed.sqlserver.engine.session import Session

MAXTRANS: Final = 500
MAXSCANS: Final = 10
POLLING_SECONDS: Final = 5
RETENTION_MINUTES: Final = 4320
THRESHOLD_ROWS: Final = 5000
"""The defaults [DOC: sys.sp_cdc_add_job]."""
_SETTINGS: Final = ("maxtrans", "maxscans", "continuous", "pollinginterval", "retention", "threshold")
_TYPES: Final = ("capture", "cleanup")
Arguments = Mapping[str, Any]
Run = Callable[["Session", Arguments], list[Outcome]]


def add_missing(model: Database) -> None:
    """Make the jobs that are not there, as the first sp_cdc_enable_table does."""
    for job in _TYPES:
        _insert(model, job)


def _insert(model: Database, job: str) -> None:
    model.execute(
        "INSERT INTO sqlserver.cdc_jobs (job_type, maxtrans, maxscans, continuous, pollinginterval, retention, threshold)"
        " VALUES (%s, %s, %s, 1, %s, %s, %s) ON CONFLICT DO NOTHING",
        [job, MAXTRANS, MAXSCANS, POLLING_SECONDS, RETENTION_MINUTES, THRESHOLD_ROWS],
    )


def _add(session: Session, arguments: Arguments) -> list[Outcome]:
    # The log reader captures where there is a publication [DOC: sys.sp_cdc_add_job]. The number: K.
    if _type(arguments) == "capture" and session.model.execute("SELECT 1 FROM sqlserver.database WHERE is_published"):
        raise SqlError(22994, "The capture job is not allowed: the database has a transactional publication.")
    _insert(session.model, _type(arguments))
    return _change(session, arguments)


def _change(session: Session, arguments: Arguments) -> list[Outcome]:
    for setting in _SETTINGS:
        if (value := arguments.get(f"@{setting}")) is not None:
            session.model.execute(
                f"UPDATE sqlserver.cdc_jobs SET {setting} = %s WHERE job_type = %s", [int(value), _type(arguments)]
            )
    return []


def _running(is_running: bool) -> Run:
    def run(session: Session, arguments: Arguments) -> list[Outcome]:
        changed = session.model.execute(
            "UPDATE sqlserver.cdc_jobs SET is_running = %s WHERE job_type = %s RETURNING 1",
            [is_running, _type(arguments)],
        )
        if not changed:
            raise SqlError(22878, f"The specified '{_type(arguments)}' job does not exist.")
        return []

    return run


def _drop(session: Session, arguments: Arguments) -> list[Outcome]:
    session.model.execute("DELETE FROM sqlserver.cdc_jobs WHERE job_type = %s", [_type(arguments)])
    return []


def _update(session: Session, arguments: Arguments) -> list[Outcome]:
    """sp_update_job of msdb: `@enabled` of a job that is named as `sysjobs` has it [DOC: sp_update_job]."""
    changed = session.model.execute(
        "UPDATE sqlserver.cdc_jobs SET is_enabled = %s WHERE job_id = (SELECT job_id FROM msdb.sysjobs WHERE name = %s) RETURNING 1",
        [bool(arguments["@enabled"]), arguments["@job_name"]],
    )
    if not changed:
        raise SqlError(14262, f"The specified @job_name ('{arguments['@job_name']}') does not exist.")
    return []


def _help(session: Session, _: Arguments) -> list[Outcome]:
    return [session.select("SELECT * FROM msdb.dbo.cdc_jobs")]


def _type(arguments: Arguments) -> str:
    job = str(arguments.get("@job_type") or "capture").lower()
    if job not in _TYPES:
        raise SqlError(22992, f"The job type '{job}' is not valid: capture or cleanup.")
    return job


_PARAMETERS: Final = ("@job_type", *(f"@{setting}" for setting in _SETTINGS))
PROCEDURES: Final[Mapping[str, tuple[Run, tuple[str, ...]]]] = {
    "sp_cdc_add_job": (_add, _PARAMETERS),
    "sp_cdc_change_job": (_change, _PARAMETERS),
    "sp_cdc_drop_job": (_drop, ("@job_type",)),
    "sp_cdc_start_job": (_running(is_running=True), ("@job_type",)),
    "sp_cdc_stop_job": (_running(is_running=False), ("@job_type",)),
    "sp_cdc_help_jobs": (_help, ()),
    "sp_update_job": (_update, ("@job_id", "@job_name", "@new_name", "@enabled")),
}
