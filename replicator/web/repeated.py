"""Answers of the last second, repeated without the application: a reader of a status then costs little more than its connection."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from replicator.model.access import Scope as TokenScope
from replicator.web.demands import rights_of
from replicator.web.recent import Kept, Recent

JSON: Final = "application/json"


class Repeated:
    """Sends the answer kept under a request's path, and passes on other requests. Only answers of routes with the scope `read` are kept."""

    def __init__(self, app: ASGIApp, recent: Recent) -> None:
        self._app, self._recent = app, recent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_plain = scope["method"] == "GET" and not scope["query_string"]
        kept = self._recent.peek(scope["path"]) if is_plain and rights_of(scope).include(TokenScope.READ) else None
        await (self._app if kept is None else tagged(kept, Headers(scope=scope)))(scope, receive, send)


def tagged(kept: Kept, headers: Headers) -> Response:
    """Return the document with its ETag, or status 304 if the caller has it."""
    # Weak comparison, as RFC 9110 asks of If-None-Match.
    named = {one.strip().removeprefix("W/") for one in headers.get("if-none-match", "").split(",")}
    answer = {"etag": kept.tag, "cache-control": "no-cache"}
    if kept.tag in named or "*" in named:
        return Response(status_code=304, headers=answer)
    return Response(kept.body, media_type=JSON, headers=answer)
