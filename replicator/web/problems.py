"""Errors as RFC 9457 problems, with our codes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from pydantic import Field
from starlette.responses import Response

from replicator.model.documents.status import Code, StatusModel
from replicator.model.errors import ConfigError, ReplicatorError, RequestError, TransientError, in_full

MEDIA_TYPE: Final = "application/problem+json"
_NOT_FOUND: Final = frozenset({"unknown_replicator", "unknown_table", "no_log"})
_OF_THE_STORE: Final = frozenset(
    {
        "state_unavailable", "state_locked", "state_disk_full", "state_read_only", "state_access_denied", "state_missing", "state_failed",
        "state_path", "corrupt_state", "newer_state", "older_state", "invalid_state_url", "home", "network_file_system",
    }
)  # fmt: skip
_NO_STORE: Final = "The state store cannot be used."
_NO_STORE_ACTION: Final = "See the log of `replicator serve`, or run `replicator list` on its host."
_CONFLICTS: Final = frozenset({"being_deleted"})


class HttpProblem(StatusModel):
    """Reason why a request was not done (RFC 9457)."""

    type: str = Field(description="`urn:replicator:error:` and the code.")
    title: str = Field(description="The code in words.")
    status: int = Field(description="The status of the answer.")
    detail: str = Field(description="Text of the error.")
    code: Code = Field(description="See docs/errors.md.")
    action: str | None = Field(default=None, description="The next step, where there is one.")
    table: str | None = Field(default=None, description="The table concerned; null if it concerns no single one.")


def status_of(error: ReplicatorError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, RequestError):
        return error.status
    if error.code in _NOT_FOUND:
        return HTTPStatus.NOT_FOUND
    if error.code in _CONFLICTS:
        return HTTPStatus.CONFLICT
    if isinstance(error, ConfigError):
        return HTTPStatus.UNPROCESSABLE_ENTITY
    return HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, TransientError) else HTTPStatus.INTERNAL_SERVER_ERROR


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the statuses that a route may answer with, for the OpenAPI document: these, and those of any refused request."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/HttpProblem"}}}
    all_statuses = sorted({400, 401, 403, 413, 415, 421, 429, 500, *statuses})
    return {
        status: {"description": HTTPStatus(status).phrase, "model": HttpProblem, "content": content}
        for status in all_statuses
    }


def problem(error: ReplicatorError) -> HttpProblem:
    """Return the document of an error, without secrets or the location of the store: without it no token can be checked."""
    # Its message names a path, or a host, user and database.
    is_of_store = error.code in _OF_THE_STORE and not isinstance(error, RequestError)
    return HttpProblem(
        type=f"urn:replicator:error:{error.code}",
        title=error.code.replace("_", " ").capitalize(),
        status=status_of(error),
        detail=_NO_STORE if is_of_store else error.message,
        code=error.code,
        action=_NO_STORE_ACTION if is_of_store else error.action,
        table=error.table,
    )


def internal_error() -> RequestError:
    """Return the response to an unknown error."""
    return RequestError(
        "The server failed at this request.",
        status=500,
        code="internal_error",
        action="The log of `replicator serve` has the cause; please report it.",
    )


def answer(error: ReplicatorError) -> Response:
    """Return the answer to a request that was not done."""
    document = problem(in_full(error))
    headers = {}
    if isinstance(error, RequestError) and error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if document.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = 'Bearer realm="replicator"'
    return Response(document.model_dump_json(), status_code=document.status, media_type=MEDIA_TYPE, headers=headers)
