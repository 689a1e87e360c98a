"""Jobs whose ids are known beforehand: sent once, found again, waited for, and never assumed to have succeeded.

1. A job's id is made of what it does and an attempt number. Two processes that would do the same thing, and one
   process that does it again, meet in the same id, and BigQuery runs an id once.
2. A request that was answered by "already exists" is looked up: running, it is waited for; done, it counts; failed,
   the next attempt number is tried. This is all the looking-up there is, and it costs nothing in the usual case.
3. A request without an answer is looked up by its id; if it cannot be found, the caller is told that it is not known
   what happened (`TargetUnavailableError`), and the next claim waits for it in the ledger's own queue.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from google.api_core import exceptions as api
from google.cloud import bigquery

from replicator_target_bigquery.calls.clients import READ_RETRY, TIMEOUT_S
from replicator_target_bigquery.errors import JobFailedError, is_outcome_unknown

NUMBERED_ATTEMPTS: Final = 10
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A job that succeeded. `was_there`: an earlier process, or an earlier attempt of this one, had sent it."""

    job: Any
    was_there: bool = False

    @property
    def usage(self) -> Mapping[str, int]:
        """Return bytes billed and milliseconds of slots; 0 where the service does not say."""
        return {
            "bytes_billed": int(getattr(self.job, "total_bytes_billed", None) or 0),
            "slot_ms": int(self.job.slot_millis or 0),
        }


class Jobs:
    """Sends jobs.

    Args:
        client: The client of BigQuery.
        location: The location of jobs.
        labels: Labels of the jobs.
        timeout_s: Seconds after which BigQuery ends a job.
    """

    def __init__(self, client: Any, *, location: str, labels: Mapping[str, str], timeout_s: float) -> None:
        self._client = client
        self._location = location
        self._labels = dict(labels)
        self._timeout_ms = int(timeout_s * 1000)
        self._pause = threading.Event()

    def script(self, sql: str, job_id: str, *, bytes_max: int | None = None) -> Done:
        """Run a script, and wait for its end.

        Raises:
            JobFailedError, google.api_core.exceptions.GoogleAPICallError: It failed.
            TargetUnavailableError: It is not known whether it ran.
        """

        def send(attempt_id: str) -> Any:
            config = bigquery.QueryJobConfig(labels=self._labels, use_legacy_sql=False)
            config.job_timeout_ms = self._timeout_ms
            if bytes_max is not None:
                config.maximum_bytes_billed = bytes_max
            return self._client.query(
                sql, config, job_id=attempt_id, location=self._location, retry=None, timeout=TIMEOUT_S, job_retry=None
            )

        return self._run(send, job_id, is_wanted=lambda _: True)

    def load(
        self,
        uris: Sequence[str],
        table: str,
        schema: Sequence[bigquery.SchemaField],
        job_id: str,
        is_there: Callable[[], bool],
    ) -> Done:
        """Load Parquet files into a table in place of what it holds.

        Args:
            uris: The files in Cloud Storage.
            table: `project.dataset.table`.
            schema: The schema of the table.
            job_id: The job's id, without attempt number.
            is_there: Returns whether the rows that an earlier attempt loaded still exist.
        """

        def send(attempt_id: str) -> Any:
            options = bigquery.ParquetOptions()
            options.enable_list_inference = True
            config = bigquery.LoadJobConfig(
                labels=self._labels,
                schema=list(schema),
                source_format=bigquery.SourceFormat.PARQUET,
                write_disposition=bigquery.WriteDisposition.WRITE_TRUNCATE,
                create_disposition=bigquery.CreateDisposition.CREATE_NEVER,
            )
            config.parquet_options = options
            config.job_timeout_ms = self._timeout_ms
            return self._client.load_table_from_uri(
                list(uris), table, job_id=attempt_id, location=self._location, job_config=config,
                retry=None, timeout=TIMEOUT_S,
            )  # fmt: skip

        return self._run(send, job_id, is_wanted=lambda _: is_there())

    def dry_run(self, sql: str) -> None:
        """Ask whether a query might run; it does not.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: It may not.
        """
        config = bigquery.QueryJobConfig(dry_run=True, use_query_cache=False, labels=self._labels)
        self._client.query(sql, config, location=self._location, retry=READ_RETRY, timeout=TIMEOUT_S, job_retry=None)

    def rows(self, sql: str) -> list[Mapping[str, Any]]:
        """Return the rows of a small query that changes nothing."""
        job = self._client.query(
            sql, location=self._location, retry=READ_RETRY, timeout=TIMEOUT_S, job_retry=None,
            job_config=bigquery.QueryJobConfig(labels=self._labels, use_query_cache=False),
        )  # fmt: skip
        return [dict(row) for row in job.result(retry=READ_RETRY, timeout=TIMEOUT_S)]

    def read(
        self, sql: str, parameters: Mapping[str, str] | None = None, *, bytes_max: int | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Generate the rows of a query that changes nothing, and may take long.

        Args:
            sql: The query.
            parameters: Texts that it names as `@name`.
            bytes_max: The most bytes that may be billed; the service refuses a more expensive query.
        """
        config = bigquery.QueryJobConfig(labels=self._labels, use_query_cache=False)
        config.query_parameters = [
            bigquery.ScalarQueryParameter(name, "STRING", value) for name, value in (parameters or {}).items()
        ]
        config.job_timeout_ms = self._timeout_ms
        if bytes_max is not None:
            config.maximum_bytes_billed = bytes_max
        job = self._client.query(
            sql, config, location=self._location, retry=READ_RETRY, timeout=TIMEOUT_S, job_retry=None
        )
        self._wait(job)
        for row in job.result(retry=READ_RETRY, timeout=TIMEOUT_S):
            yield row.values()

    def _run(self, send: Callable[[str], Any], job_id: str, *, is_wanted: Callable[[Any], bool]) -> Done:
        for attempt in itertools.count():
            # An attempt that is found under its number is not sent twice. After many that failed, one that nobody can find is sent:
            # a script's guard, and a load that replaces, keep a repetition from doing anything.
            is_numbered = attempt < NUMBERED_ATTEMPTS
            attempt_id = f"{job_id}_a{attempt}" if is_numbered else f"{job_id}_{uuid4().hex}"
            job, was_there = self._sent(send, attempt_id)
            try:
                self._wait(job)
            except JobFailedError:
                if was_there:
                    continue
                raise
            if not was_there or is_wanted(job):
                return Done(job=job, was_there=was_there)
        raise AssertionError("unreachable: an attempt that cannot be found is sent, and ends or fails")

    def _sent(self, send: Callable[[str], Any], attempt_id: str) -> tuple[Any, bool]:
        try:
            return send(attempt_id), False
        except api.Conflict:
            return self._poll(attempt_id), True
        except Exception as error:
            if not is_outcome_unknown(error):
                raise
            try:
                return self._poll(attempt_id), False
            except Exception:  # noqa: BLE001 - the first error is the one to tell
                raise error from None

    def _poll(self, attempt_id: str) -> Any:
        return self._client.get_job(attempt_id, location=self._location, retry=READ_RETRY, timeout=TIMEOUT_S)

    def _wait(self, job: Any) -> None:
        pause = _FIRST_PAUSE_S
        while job.state != "DONE":
            self._pause.wait(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 1.5)
            job.reload(retry=READ_RETRY, timeout=TIMEOUT_S)
        if job.error_result:
            raise JobFailedError(
                str(job.error_result.get("reason", "")), str(job.error_result.get("message", "")), str(job.job_id)
            )
