"""The server's application: routes, and RFC 9457 problems for all errors."""

from __future__ import annotations

from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from replicator.model.access import Scope as TokenScope
from replicator.model.errors import ReplicatorError, RequestError
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.service.access import tokens
from replicator.service.access.listening import Listening
from replicator.web import acting, configuring, reading
from replicator.web.access import Access
from replicator.web.dashboard import create, forms, pages
from replicator.web.demands import demanding, demands, rights_of, unauthorized
from replicator.web.guard import Caller, Guard
from replicator.web.problems import MEDIA_TYPE, internal_error
from replicator.web.recording import Recorder
from replicator.web.repeated import Repeated

OPENAPI: Final = "/api/v1/openapi.json"
_SHOWN_MAX: Final = 10


class WebApp:
    """The application as uvicorn calls it."""

    def __init__(self, *, home: Home, registry: Registry, listening: Listening) -> None:
        self._access = Access(home, registry)
        self._recorder = Recorder(self._access)
        app = Repeated(application(self._access, listening), self._access.recent)
        self._guard = Guard(app, listening, self._identify, pages.refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        await self._guard(scope, receive, send)

    async def _identify(self, text: str) -> Caller | None:
        """Return the owner of a token. It is looked up for each request, so that it is invalid at once when it is revoked."""
        found = await self._access.run(lambda: tokens.find(self._access.store, text))
        return None if found is None else Caller(found.name, found.scope)

    def start(self) -> None:
        """Start recording the points of the charts."""
        self._recorder.start()

    def close(self) -> None:
        """Close the state store."""
        self._recorder.stop()
        self._access.close()


class _Described(FastAPI):
    """States in its OpenAPI document that problems have a media type of their own, and only that one."""

    @override
    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        for path in document["paths"].values():
            for operation in path.values():
                for response in operation["responses"].values():
                    content = response.get("content", {})
                    if MEDIA_TYPE in content:
                        content.pop("application/json", None)
        return document


def application(access: Access, listening: Listening) -> FastAPI:
    """Return the application with every route, without the guard."""
    app = _Described(
        title="Replicator",
        version=version("replicator"),
        summary="The commands over HTTP: docs/rest.md.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(_description(app), include_in_schema=False)
    app.include_router(reading.router(access))
    app.include_router(reading.surroundings(access))
    app.include_router(acting.router(access))
    configurations = configuring.Configurations(access)
    app.include_router(configuring.router(configurations))
    app.include_router(reading.probes(access))
    app.include_router(pages.router(access), include_in_schema=False)
    app.include_router(create.router(access, configurations), include_in_schema=False)
    app.include_router(forms.router(access, listening), include_in_schema=False)
    app.add_exception_handler(ReplicatorError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _not_routed)
    app.add_exception_handler(Exception, _failed)
    return app


def _description(app: FastAPI) -> APIRouter:
    """Return the route of the OpenAPI document. FastAPI's own one would demand nothing."""
    made = demanding()

    @made.get(OPENAPI)
    @demands(TokenScope.READ)
    async def described() -> JSONResponse:
        return JSONResponse(app.openapi())

    return made


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ReplicatorError)
    return pages.refuse(request.scope, error)


async def _invalid(request: Request, error: Exception) -> Response:
    """Report what is wrong and where, without repeating what was sent."""
    assert isinstance(error, RequestValidationError)
    found = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:_SHOWN_MAX]]
    return pages.refuse(
        request.scope,
        RequestError(
            f"The request is not valid. {'; '.join(found)}.",
            status=422,
            code="invalid_request",
            action=f"See {OPENAPI}.",
        ),
    )


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, ReplicatorError):
        # FastAPI wraps what interrupts the reading of a body.
        return pages.refuse(request.scope, error.__cause__)
    if error.status_code == HTTPStatus.BAD_REQUEST:
        return pages.refuse(
            request.scope,
            RequestError(
                "The body cannot be read as JSON.", status=422, code="invalid_request", action=f"See {OPENAPI}."
            ),
        )
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        response = pages.refuse(
            request.scope,
            RequestError(
                f"{request.url.path} does not take {request.method}.",
                status=405,
                code="method_not_allowed",
                action=f"It takes {allowed}." if allowed else None,
            ),
        )
        if allowed:
            response.headers["allow"] = allowed
        return response
    if rights_of(request.scope).allowed is None:
        return pages.refuse(request.scope, unauthorized("A token is needed."))
    return pages.refuse(
        request.scope,
        RequestError(
            "There is nothing at this path.", status=404, code="unknown_path", action=f"The paths are in {OPENAPI}."
        ),
    )


async def _failed(request: Request, error: Exception) -> Response:
    """Answer; the guard logs the error, which Starlette raises again."""
    del error
    return pages.refuse(request.scope, internal_error())
