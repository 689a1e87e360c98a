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

FENCED: Final = "replicator_fenced"
"""The error text of a script whose ledger is not as its writer knew it."""
TOO_DEAR: Final = "too_many_bytes_billed"

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
    return TableError(
        f"The state to compare cannot be read. {why}.",
        code="state_not_readable",
        table=str(table.table),
        action=action,
    )


def used_up(table: TargetTable, room_s: float) -> ThrottledError:
    """The error for a table that has to wait until the budget has room for it."""
    return ThrottledError(
        "The target.budget for 24 hours is used up.",
        code="budget_used_up",
        table=str(table.table),
        action="The table continues automatically when the budget allows it; raise target.budget to continue sooner.",
        rest_s=room_s,
        is_limit=True,
    )


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
            return FatalError(
                f"Google refuses because billing is not enabled: {_without_values(message)}",
                code="billing_not_enabled",
                action="Enable billing for the project, then resume.",
            )
        return AccessDeniedError(
            f"A privilege is missing: {_without_values(message)}",
            code="access_denied",
            table=table,
            action="Grant the roles that `replicator validate` names, then resume.",
        )
    return None


def _credentials_refused(message: str) -> AccessDeniedError:
    return AccessDeniedError(
        f"Google refuses the credentials: {_without_values(message)}",
        code="credentials_refused",
        action="Renew the credentials (target.credentials, or `gcloud auth application-default login`), then resume.",
    )


def _of_service(error: BaseException, reason: str, message: str, table: str | None) -> ReplicatorError | None:
    again = "It is retried automatically."
    if _OUTSTANDING.search(message):
        return ThrottledError(
            f"Too many statements are already waiting for the table: {_without_values(message)}",
            code="target_throttled",
            table=table,
            action=again,
            rest_s=_THROTTLED_REST_S,
            is_limit=True,
        )
    if _BUSY.search(message):
        return ThrottledError(
            f"Another transaction changed the table or its ledger at the same moment: {_without_values(message)}",
            code="target_busy",
            table=table,
            action=again,
        )
    if reason in _USED_UP:
        return ThrottledError(
            f"A quota of BigQuery is used up: {_without_values(message)}",
            code="quota_exceeded",
            table=table,
            action="It is retried every ten minutes. Daily quotas come back within 24 hours, a project's own at midnight Pacific "
            "Time. Raise the quota, or lengthen apply.max_wait.",
            rest_s=_QUOTA_REST_S,
            is_limit=True,
        )
    if reason in _THROTTLED or isinstance(error, api.TooManyRequests):
        return ThrottledError(
            f"BigQuery asks to slow down: {_without_values(message)}",
            code="target_throttled",
            table=table,
            action=again,
            rest_s=_THROTTLED_REST_S,
            is_limit=True,
        )
    if reason in _TRANSIENT and isinstance(error, JobFailedError):
        # The service answers, and failed at this one job.
        return ThrottledError(
            f"A BigQuery job failed ({reason}): {_without_values(message)}",
            code="job_failed",
            table=table,
            action=again,
        )
    if reason in _TRANSIENT or is_outcome_unknown(error):
        is_sent_on = isinstance(error, http.TooManyRedirects)
        failed = "answers with a redirect, which is not followed" if is_sent_on else "cannot be reached or failed"
        return TargetUnavailableError(
            f"Google's service {failed} ({reason or type(error).__name__}): {_without_values(message)}",
            code="target_unreachable",
            table=table,
            action=again,
        )
    if isinstance(error, InvalidResponse):
        return TargetUnavailableError(
            f"Cloud Storage answered {error.response.status_code}: {_without_values(message)}",
            code="target_unreachable",
            table=table,
            action=again,
        )
    return None


def _of_data(reason: str, message: str, table: str | None) -> ReplicatorError:
    if _NO_KEY.search(message):
        return KeyMissingError("A change has no value in a key column.", code="key_missing", table=table)
    if _TWO_ROWS.search(message):
        return FatalError(
            "Two rows of a merge's source have one key.",
            code="merge_not_unique",
            table=table,
            action="Report this as a bug.",
        )
    if _TOO_DEEP.search(message):
        return TableError(
            "In one batch a row that lacks columns changed its key more often than BigQuery can process (500 times).",
            code="key_chain_too_long",
            table=table,
            action="Run `replicator snapshot NAME TABLE`.",
        )
    if reason in _TOO_LARGE:
        return BatchTooLargeError(
            f"BigQuery does not have enough resources for so large a batch ({reason}): {_without_values(message)}",
            code="batch_too_large",
            table=table,
            action="Smaller batches were tried, but this one is a single transaction. Run `replicator snapshot NAME TABLE`.",
        )
    if reason == "bytesBilledLimitExceeded" or _TOO_DEAR.search(message):
        return ThrottledError(
            f"A script would be billed more than target.budget.maximum_bytes_billed: {_without_values(message)}",
            code=TOO_DEAR,
            table=table,
            action="Nothing is billed or lost; it is retried every ten minutes. Raise the limit, or partition the table by a column "
            "of its key and recreate it: replicator snapshot NAME TABLE --recreate.",
            rest_s=_QUOTA_REST_S,
            is_limit=True,
        )
    if reason == "stopped":
        return TableError(
            "A job of the table was cancelled, or took longer than target.job_timeout.",
            code="job_stopped",
            table=table,
            action="Run `replicator snapshot NAME TABLE`.",
        )
    return SchemaConflictError(
        f"BigQuery refuses ({reason or 'no reason given'}): {_without_values(message)}",
        code="bigquery_refused",
        table=table,
        action="Run `replicator snapshot NAME TABLE`. If that fails too, exclude the table.",
    )


def _without_values(message: str) -> str:
    """Return Google's words without the parts in quotes, which may be values of rows, and without the part of URLs after the path."""
    line = _QUERY.sub("?…", " ".join(message.split()))
    return _VALUES.sub("'…'", line)[:_MESSAGE_LENGTH].rstrip(".") + "."
