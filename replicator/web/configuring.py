"""Routes that take a configuration. Each is read in a process of its own: see ADR 42."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from replicator.model.access import Scope as TokenScope
from replicator.model.errors import RequestError
from replicator.observability import get_logger
from replicator.runtime.process import python
from replicator.service.configuring.document import ConfiguredDocument, Findings, ValidationDocument
from replicator.service.configuring.process import Asked, ConfiguringOutcome, Deed
from replicator.web.access import Access
from replicator.web.demands import JSON_TYPE, YAML_TYPE, demanding, demands
from replicator.web.problems import MEDIA_TYPE as PROBLEM_TYPE
from replicator.web.problems import HttpProblem, internal_error, problem, refusals
from replicator.web.reading import Name
from replicator.web.repeated import JSON

AT_ONCE: Final = 2
WAIT_S: Final = 20.0
"""Time that a request waits for the ones before it."""
CONFIGURATION_S: Final = 60.0
"""Time that a configuration may take: its source and target are asked about every table."""
_BODY: Final[Mapping[str, Any]] = {
    "required": True,
    "description": "The YAML file of a replicator, or the same as JSON.",
    "content": {JSON_TYPE: {"schema": {"type": "object"}}, YAML_TYPE: {"schema": {"type": "object"}}},
}
_log = get_logger(__name__)


class ConfigurationProblem(HttpProblem, Findings):
    """Reason why a configuration was not taken (RFC 9457), with all findings."""


class Configurations:
    """Reads configurations, a few at a time."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._free = asyncio.Semaphore(AT_ONCE)

    async def ask(self, asked: Asked) -> ConfiguringOutcome:
        """Return the outcome of a configuration.

        Raises:
            RequestError: `server_busy`: others are being read, or it takes too long; `internal_error`.
        """
        try:
            await asyncio.wait_for(self._free.acquire(), WAIT_S)
        except TimeoutError:
            raise _busy(f"{AT_ONCE} other configurations are being read.") from None
        try:
            return await self._in_process(asked)
        finally:
            self._free.release()
            self._access.recent.forget()

    async def _in_process(self, asked: Asked) -> ConfiguringOutcome:
        home = self._access.home
        process = await asyncio.create_subprocess_exec(
            *python("replicator.service.configuring.process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "REPLICATOR_HOME": str(home.folder), "REPLICATOR_STATE_URL": home.state_url},
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(CONFIGURATION_S):
                # The pipe stays open: the process ends when it closes.
                process.stdin.write(asked.model_dump_json().encode() + b"\n")
                with suppress(ConnectionError):
                    await process.stdin.drain()
                said = await process.stdout.read()
        except TimeoutError:
            raise _busy(f"Source and target had no answer within {CONFIGURATION_S:.0f} seconds.") from None
        finally:
            process.stdin.close()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        try:
            return ConfiguringOutcome.model_validate_json(said)
        except ValidationError:
            _log.error("configuration_unanswered", status=process.returncode)
            raise internal_error() from None


def router(configurations: Configurations) -> APIRouter:
    """Return the routes."""
    routes = demanding("/api/v1")
    refused = {**refusals(404, 409, 503), **_refused(HTTPStatus.UNPROCESSABLE_ENTITY)}

    @routes.post(
        "/validate",
        summary="Check a configuration",
        response_model=ValidationDocument,
        responses=refused,
        openapi_extra={"requestBody": _BODY},
    )
    @demands(TokenScope.CONFIGURE, takes=(JSON_TYPE, YAML_TYPE))
    async def validate(request: Request) -> Response:
        """Check it as `replicator validate FILE` does. Changes nothing. 422 if the file is wrong; other findings are in the answer."""
        return _answer(await configurations.ask(await _asked(request, Deed.VALIDATE)))

    @routes.put(
        "/replicators/{name}",
        summary="Set a replicator's configuration",
        response_model=ConfiguredDocument,
        responses={HTTPStatus.CREATED: {"model": ConfiguredDocument, "description": "It is new."}, **refused},
        openapi_extra={"requestBody": _BODY},
    )
    @demands(TokenScope.CONFIGURE, takes=(JSON_TYPE, YAML_TYPE))
    async def configure(request: Request, name: Name) -> Response:
        """Store it: as `replicator start FILE` if new, as `replicator reload FILE` if stored before. The same file changes nothing."""
        return _answer(await configurations.ask(await _asked(request, Deed.CONFIGURE, name)))

    return routes


async def _asked(request: Request, deed: Deed, name: str = "") -> Asked:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        text = (await request.body()).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RequestError("The body is not UTF-8 text.", status=422, code="invalid_request") from None
    return Asked(deed=deed, text=text, is_json=media_type == JSON_TYPE, name=name)


def _answer(outcome: ConfiguringOutcome) -> Response:
    if outcome.refused is not None:
        document = ConfigurationProblem(
            **dict(problem(outcome.refused.error())),
            findings=outcome.refused.findings,
            findings_left_out=outcome.refused.findings_left_out,
        )
        return Response(document.model_dump_json(), status_code=document.status, media_type=PROBLEM_TYPE)
    made = outcome.configured or outcome.validated
    assert made is not None
    is_new = outcome.configured is not None and outcome.configured.is_new
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return Response(made.model_dump_json(), status_code=status, media_type=JSON)


def _refused(status: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    content = {PROBLEM_TYPE: {"schema": {"$ref": f"#/components/schemas/{ConfigurationProblem.__name__}"}}}
    return {int(status): {"description": status.phrase, "model": ConfigurationProblem, "content": content}}


def _busy(message: str) -> RequestError:
    return RequestError(message, status=503, code="server_busy", action="Try again later.", retry_after_s=5)
