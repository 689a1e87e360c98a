"""Translates errors of Google's services and clients into ours, by BigQuery's `reason`, then by status; nothing else does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.resumable_media import InvalidResponse
from requests import exceptions as http

from replicator.model.errors import (
    AccessDeniedError,
    BatchTooLargeError,
    FatalError,
    KeyMissingError,
    ReplicatorError,
    SchemaConflictError,
    TableError,
    TargetUnavailableError,
    ThrottledError,
)
from replicator.plugins.target import Batch, TargetTable
from replicator_target_bigquery import rules

FENCED: Final = "replicator_fenced"
"""The error text of a script whose ledger is not as its writer knew it."""
TOO_DEAR: Final = rules.TOO_MANY_BYTES_BILLED.code

_TRANSIENT: Final = frozenset(
    {
        "backendError", "internalError", "jobBackendError", "jobInternalError", "badGateway", "serviceUnavailable",
        "gatewayTimeout", "tableUnavailable",
    }
)  # fmt: skip
_THROTTLED: Final = frozenset({"rateLimitExceeded", "jobRateLimitExceeded", "userRateLimitExceeded"})
_USED_UP: Final = frozenset({"quotaExceeded", "dailyLimitExceeded", "billingTierLimitExceeded"})
_BUSY: Final = re.compile(
    r"due to concurrent update|could not serialize access|concurrent transaction|Transaction conflict|write-write conflict"
)
_NO_KEY: Final = re.compile(
    r"Required field \S+ cannot be null|NOT NULL constraint failed|null value in required field"
)
_TWO_ROWS: Final = re.compile(r"must match at most one source row")
_TOO_DEEP: Final = re.compile(r"[Rr]ecursi\w+ .*(?:maximum|limit|exceed)|maximum number of iterations")
_TOO_DEAR: Final = re.compile(r"[Bb]ytes billed limit|limit for bytes billed|bytesBilledLimitExceeded")
_BROKEN: Final = re.compile(r'"code": *5\d\d\b')
_QUERY: Final = re.compile(r"\?[^\s'\")]*[=&][^\s'\")]*")
_VALUES: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_OUTSTANDING: Final = re.compile(r"[Tt]oo many DML statements|DML statements? outstanding|jobs? queue")
_TOO_LARGE: Final = frozenset({"resourcesExceeded", "responseTooLarge"})
_MESSAGE_LENGTH: Final = 300
_THROTTLED_REST_S: Final = 10.0
"""BigQuery counts changes of one table in windows of ten seconds."""
_QUOTA_REST_S: Final = 600.0
"""Seconds: quotas of a day come back bit by bit in the course of it."""
_CLIENT_ERRORS: Final = (
    api.GoogleAPICallError, api.RetryError, auth.GoogleAuthError, http.RequestException, InvalidResponse, OSError,
)  # fmt: skip


class FencedAnswer(Exception):  # noqa: N818 - it is an answer; what it means the ledger says
    """The script's guard failed: nothing was changed."""


class JobFailedError(Exception):
    """A job ended with an error, as its status says."""

    def __init__(self, reason: str, message: str, job_id: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.job_id = job_id


@contextmanager
def translated(table: str | None = None) -> Iterator[None]:
    """Translate errors of Google's clients that the block raises.

    Args:
        table: The table of the operation, as `schema.table`.
    """
    try:
        yield
    except (ReplicatorError, FencedAnswer):
        raise
    except (JobFailedError, *_CLIENT_ERRORS) as error:
        raise translate(error, table) from error


def translate(error: BaseException, table: str | None = None) -> ReplicatorError | FencedAnswer:
    """Return our error for one of Google's clients, which says who acts."""
    reason, message = reason_of(error)
    if FENCED in message:
        return FencedAnswer()
    return _of_identity(error, table) or _of_service(error, reason, message, table) or _of_data(reason, message, table)


def sized(error: BatchTooLargeError, batch: Batch | None) -> BatchTooLargeError:
    """Return the error with the size of the batch that was tried."""
    if batch is None:
        return error
    size = sum(file.bytes for file in batch.files)
    message = f"{error.message} Changes in the batch: {batch.rows}; its bytes in the journal: {size}."
    return BatchTooLargeError(message, code=error.code, table=error.table, action=error.action)


def not_readable(table: TargetTable, why: str, *, action: str = "Run the command again.") -> TableError:
    """The error for a state of a table that is to be compared, and is not there any more, or cannot be read."""
    return rules.STATE_NOT_READABLE.error(TableError, table=str(table.table), why=why, action=action)


def used_up(table: TargetTable, room_s: float) -> ThrottledError:
    """The error for a table that has to wait until the budget has room for it."""
    return rules.BUDGET_USED_UP.error(ThrottledError, table=str(table.table), rest_s=room_s, is_limit=True)


def reason_of(error: BaseException) -> tuple[str, str]:
    """Return BigQuery's reason (`rateLimitExceeded`, …; empty if there is none) and message."""
    if isinstance(error, JobFailedError):
        return error.reason, error.message
    if isinstance(error, api.GoogleAPICallError):
        details: list[Any] = list(error.errors or ())
        reasons = [d.get("reason", "") for d in details if isinstance(d, dict)]
        return (reasons[0] if reasons else ""), str(error.message)
    return "", str(error)


def is_outcome_unknown(error: BaseException) -> bool:
    """Return whether the request may have been carried out although it failed: the answer was lost, or the service broke."""
    if isinstance(error, api.GoogleAPICallError):
        return error.code is None or error.code >= 500  # noqa: PLR2004 - HTTP
    if isinstance(error, auth.GoogleAuthError):
        return _is_token_away(error)
    return isinstance(error, api.RetryError | http.RequestException | OSError)


def _is_token_away(error: auth.GoogleAuthError) -> bool:
    """Return whether the token service was not reached, or failed: this says nothing about the credentials."""
    if isinstance(error, auth.TransportError) or isinstance(error.__cause__, auth.TransportError) or error.retryable:
        return True
    # The service that lets one account act as another: the library passes its answer on as it came.
    return any(isinstance(part, str) and _BROKEN.search(part) for part in error.args[1:])


def _of_identity(error: BaseException, table: str | None) -> ReplicatorError | None:
    if isinstance(error, auth.GoogleAuthError):
        # After the first argument comes the service's answer as a whole.
        return None if _is_token_away(error) else _credentials_refused(str(error.args[0] if error.args else ""))
    reason, message = reason_of(error)
    if reason == "authError" or isinstance(error, api.Unauthorized):
        return _credentials_refused(message)
    if reason in {"accessDenied", "forbidden"} or (
        isinstance(error, api.Forbidden) and reason not in _THROTTLED | _USED_UP
    ):
        if reason == "billingNotEnabled" or "billing" in message.lower():
            return rules.BILLING_NOT_ENABLED.error(FatalError, words=_without_values(message))
        return rules.ACCESS_DENIED.error(AccessDeniedError, table=table, words=_without_values(message))
    return None


def _credentials_refused(message: str) -> AccessDeniedError:
    return rules.CREDENTIALS_REFUSED.error(AccessDeniedError, words=_without_values(message))


def _of_service(error: BaseException, reason: str, message: str, table: str | None) -> ReplicatorError | None:
    again = "It is retried automatically."
    if _OUTSTANDING.search(message):
        return rules.STATEMENTS_QUEUED.error(
            ThrottledError,
            table=table,
            words=_without_values(message),
            action=again,
            rest_s=_THROTTLED_REST_S,
            is_limit=True,
        )
    if _BUSY.search(message):
        return rules.TRANSACTION_LOST.error(ThrottledError, table=table, words=_without_values(message), action=again)
    if reason in _USED_UP:
        return rules.QUOTA_EXCEEDED.error(
            ThrottledError, table=table, words=_without_values(message), rest_s=_QUOTA_REST_S, is_limit=True
        )
    if reason in _THROTTLED or isinstance(error, api.TooManyRequests):
        return rules.SLOW_DOWN.error(
            ThrottledError,
            table=table,
            words=_without_values(message),
            action=again,
            rest_s=_THROTTLED_REST_S,
            is_limit=True,
        )
    if reason in _TRANSIENT and isinstance(error, JobFailedError):
        # The service answers, and failed at this one job.
        return rules.JOB_FAILED.error(
            ThrottledError, table=table, reason=reason, words=_without_values(message), action=again
        )
    if reason in _TRANSIENT or is_outcome_unknown(error):
        is_sent_on = isinstance(error, http.TooManyRedirects)
        failed = "answers with a redirect, which is not followed" if is_sent_on else "cannot be reached or failed"
        return rules.SERVICE_UNREACHABLE.error(
            TargetUnavailableError,
            table=table,
            failed=failed,
            reason=reason or type(error).__name__,
            words=_without_values(message),
            action=again,
        )
    if isinstance(error, InvalidResponse):
        return rules.STORAGE_UNREACHABLE.error(
            TargetUnavailableError,
            table=table,
            status_code=error.response.status_code,
            words=_without_values(message),
            action=again,
        )
    return None


def _of_data(reason: str, message: str, table: str | None) -> ReplicatorError:
    if _NO_KEY.search(message):
        return rules.KEY_MISSING.error(KeyMissingError, table=table)
    if _TWO_ROWS.search(message):
        return rules.MERGE_NOT_UNIQUE.error(FatalError, table=table)
    if _TOO_DEEP.search(message):
        return rules.KEY_CHAIN_TOO_LONG.error(TableError, table=table)
    if reason in _TOO_LARGE:
        return rules.BATCH_TOO_LARGE.error(
            BatchTooLargeError, table=table, reason=reason, words=_without_values(message)
        )
    if reason == "bytesBilledLimitExceeded" or _TOO_DEAR.search(message):
        return rules.TOO_MANY_BYTES_BILLED.error(
            ThrottledError, table=table, words=_without_values(message), rest_s=_QUOTA_REST_S, is_limit=True
        )
    if reason == "stopped":
        return rules.JOB_STOPPED.error(TableError, table=table)
    return rules.BIGQUERY_REFUSED.error(
        SchemaConflictError, table=table, reason=reason or "no reason given", words=_without_values(message)
    )


def _without_values(message: str) -> str:
    """Return Google's words without the parts in quotes, which may be values of rows, and without the part of URLs after the path."""
    line = _QUERY.sub("?…", " ".join(message.split()))
    return _VALUES.sub("'…'", line)[:_MESSAGE_LENGTH].rstrip(".") + "."
