"""Actions of the dashboard's forms: the same as the API's routes that change the desired state. Also login and logout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from replicator.model.access import Scope as TokenScope
from replicator.model.errors import RequestError
from replicator.service import lifecycle
from replicator.service.access import tokens
from replicator.service.access.listening import Listening
from replicator.service.configuring.stored import find
from replicator.service.status import assemble as use_cases
from replicator.web.access import Access
from replicator.web.dashboard import csrf, pages
from replicator.web.demands import demanding, page
from replicator.web.guard import COOKIE
from replicator.web.paths import LOGIN, LOGOUT
from replicator.web.reading import Name

_FIELDS_MAX: Final = 20
_CONFIRMED: Final = frozenset({"snapshot", "restart", "delete"})


class Form:
    """The fields of a form."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._fields: Mapping[str, str] = dict(pairs)

    @property
    def texts(self) -> Mapping[str, str]:
        """Text of every field."""
        return self._fields

    def text(self, field: str) -> str:
        """Return a field's text; empty if it is missing."""
        return self._fields.get(field, "")

    def is_set(self, field: str) -> bool:
        """Return whether a box was ticked."""
        return field in self._fields


def router(access: Access, listening: Listening) -> APIRouter:
    """Return the routes that take forms, and the pages that ask for confirmation."""
    routes = demanding()

    @routes.get("/replicators/{name}/{action}")
    @page(TokenScope.READ)
    async def confirm(
        request: Request, name: Name, action: str, table: Annotated[str, Query(max_length=512)] = ""
    ) -> Response:
        if action not in _CONFIRMED:
            raise RequestError("There is nothing at this path.", status=404, code="unknown_path")
        one = await access.run(lambda: use_cases.status(access.store, find(access.store, name)))
        return pages.render(request, "confirm.html", one=one, action=action, table=table)

    @routes.post("/replicators/{name}/{action}")
    @page(TokenScope.OPERATE)
    async def act(request: Request, name: Name, action: str) -> Response:
        form = await read_form(request)
        do = _action(access, name, action, form)

        def work() -> None:
            do()
            access.recent.forget()

        await access.run(work)
        return RedirectResponse(f"/replicators/{quote(name, safe='')}?done={action}", HTTPStatus.SEE_OTHER)

    @routes.get(LOGIN)
    @page(None)
    async def ask_for_token(request: Request) -> Response:
        return pages.render(request, "login.html", is_wrong=False)

    @routes.post(LOGIN)
    @page(None)
    async def log_in(request: Request) -> Response:
        token = (await read_form(request)).text("token").strip()
        if await access.run(lambda: tokens.find(access.store, token)) is None:
            return pages.render(request, "login.html", HTTPStatus.FORBIDDEN, is_wrong=True)
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        # Where tokens are demanded, TLS is there: the server's own, or that of the proxy before it.
        response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=listening.needs_token)
        return response

    @routes.post(LOGOUT)
    @page(None)
    async def log_out(request: Request) -> Response:
        await read_form(request)
        response = RedirectResponse(LOGIN, HTTPStatus.SEE_OTHER)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=listening.needs_token)
        return response

    return routes


def _action(access: Access, name: str, action: str, form: Form) -> Callable[[], object]:
    match action:
        case "pause":
            return lambda: lifecycle.pause(access.store, name, apply_only=form.is_set("apply_only"))
        case "resume":
            return lambda: lifecycle.resume(access.store, name)
        case "snapshot":
            tables = [table] if (table := form.text("table")) else []
            return lambda: lifecycle.snapshot(access.store, name, tables, recreate=form.is_set("recreate"))
        case "restart":
            return lambda: lifecycle.snapshot(access.store, name, [], restart=True)
        case "delete":
            if form.text("name") != name:
                raise RequestError(
                    "The name does not match. Nothing was deleted.",
                    status=422,
                    code="invalid_request",
                    action=f"Go back and write {name} into the field.",
                )
            drop_target, force = form.is_set("drop_target"), form.is_set("force")
            return lambda: lifecycle.request_delete(access.store, name, drop_target=drop_target, force=force)
        case _:
            raise RequestError("There is nothing at this path.", status=404, code="unknown_path")


async def read_form(request: Request, fields_max: int = _FIELDS_MAX) -> Form:
    """Read a form of a page of ours.

    Raises:
        RequestError: `invalid_request`, `form_expired`.
    """
    try:
        pairs = parse_qsl(
            (await request.body()).decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=fields_max
        )
    except ValueError:
        raise RequestError("The form cannot be read.", status=422, code="invalid_request") from None
    form = Form(pairs)
    csrf.check(form.text(csrf.FIELD), request.cookies.get(csrf.COOKIE))
    return form
