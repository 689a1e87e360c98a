"""Demands of a route on its callers. They are checked by the route, before anything else of the request is read.

The guard (`guard.py`) identifies the caller, and looks at the path as text; only the router knows which route a path leads to. So scopes
are decided nowhere else, and a route that names none cannot be created.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Scope
from typing_extensions import override

from replicator.config.messages import nearest
from replicator.model.access import Scope as TokenScope
from replicator.model.errors import RequestError

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
JSON_TYPE: Final = "application/json"
"""Another site's form or plain request has another type."""
YAML_TYPE: Final = "application/yaml"
"""Type of a configuration. No form has it, so a page of another site cannot send it without asking first, either."""
FORM_TYPE: Final = "application/x-www-form-urlencoded"
"""Type of the dashboard's forms. They must also have the text that their page was given (`dashboard/forms.py`)."""
LOCAL: Final = TokenScope.OPERATE
"""Rights of a caller without a token at an address of the host. A configuration can start programs as the user of the server: that is
more than an account on the host should give."""
_RIGHTS: Final = "replicator.rights"
_DEMAND: Final = "replicator_demand"
_SHOWN_MAX: Final = 60

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Rights of a caller, as the guard found them.

    Attributes:
        allowed: Scope of the caller; None: no rights.
        token: Name of the token; None: there is none.
        is_cookie: The token came in the cookie that a browser keeps.
    """

    allowed: TokenScope | None = None
    token: str | None = None
    is_cookie: bool = False

    def include(self, needed: TokenScope) -> bool:
        """Return whether this includes the scope `needed`."""
        return self.allowed is not None and self.allowed.includes(needed)

    def check(self, needed: TokenScope) -> None:
        """Refuse a caller without the scope.

        Raises:
            RequestError: `unauthorized`, `scope_too_small`.
        """
        if self.include(needed):
            return
        if self.token is None:
            raise unauthorized(
                f"A token{'' if LOCAL.includes(needed) else f' with the scope {needed.value}'} is needed.", needed
            )
        assert self.allowed is not None
        raise RequestError(
            f"The token {self.token} has the scope {self.allowed.value}, which does not allow this.",
            status=403,
            code="scope_too_small",
            action=f"Use a token with the scope {needed.value}.",
        )


NONE: Final = Rights()


def rights_of(scope: Scope) -> Rights:
    """Return the rights of the caller of a request; none if no guard has granted any."""
    found = scope.get(_RIGHTS, NONE)
    assert isinstance(found, Rights)
    return found


def grant(scope: Scope, rights: Rights) -> None:
    """Set the rights of the caller of a request."""
    scope[_RIGHTS] = rights


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Demands of a route.

    Attributes:
        scope: Scope that a caller needs; None: no scope, as for a probe or the page that asks for a token.
        takes: Content types of its body.
        is_page: The token may be in a browser's cookie.
    """

    scope: TokenScope | None
    takes: tuple[str, ...] = (JSON_TYPE,)
    is_page: bool = False

    def check(self, request: Request) -> None:
        """Refuse a request that does not fulfil it.

        Raises:
            RequestError: `unauthorized`, `scope_too_small`, `unsupported_media_type`.
        """
        if self.scope is not None:
            rights = rights_of(request.scope)
            # Another site's page could make a browser send its cookie.
            (NONE if rights.is_cookie and not self.is_page else rights).check(self.scope)
        check_type(request.method, request.headers, self.takes)


def demands(
    scope: TokenScope | None, *, takes: tuple[str, ...] = (JSON_TYPE,), is_page: bool = False
) -> Callable[[Endpoint], Endpoint]:
    """Declare the demands of a route; stands between the route and its function."""
    demand = Demand(scope=scope, takes=takes, is_page=is_page)

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _DEMAND, demand)
        return endpoint

    return mark


def page(scope: TokenScope | None) -> Callable[[Endpoint], Endpoint]:
    """Declare the demands of a page of the dashboard; it takes forms, and the token may come in a cookie."""
    return demands(scope, takes=(FORM_TYPE,), is_page=True)


class Route(APIRoute):
    """A route that demands something of its callers, and refuses a parameter that it does not know."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.demand: Demand = getattr(endpoint, _DEMAND, None) or _no_demand(path)
        super().__init__(path, endpoint, **options)

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, known = super().get_route_handler(), [one.alias for one in self.dependant.query_params]

        async def demanding(request: Request) -> Response:
            self.demand.check(request)
            check_query([name for name, _ in request.query_params.multi_items()], known)
            return await handle(request)

        return demanding


def demanding(prefix: str = "") -> APIRouter:
    """Return a router all of whose routes demand something."""
    return APIRouter(prefix=prefix, route_class=Route)


def check_type(method: str, headers: Any, taken: Collection[str]) -> None:
    """Refuse a body of another content type: one that a page of another site may send without asking first.

    Raises:
        RequestError: `unsupported_media_type`.
    """
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method not in SAFE and (has_body or media_type) and media_type not in taken:
        raise RequestError(
            f"The body has another content type than {' or '.join(taken)}.",
            status=415,
            code="unsupported_media_type",
            action=f"Send the header Content-Type: {' or '.join(taken)}.",
        )


def check_query(given: Collection[str], known: Collection[str]) -> None:
    """Refuse a parameter that the route does not have: it would be ignored, and the answer would be to another question.

    Raises:
        RequestError: `invalid_request`.
    """
    listed = f"This path takes {', '.join(f'`{name}`' for name in known)}." if known else "This path takes none."
    for name in given:
        shown = repr(name[:_SHOWN_MAX])
        if name not in known:
            near = nearest(name, known)
            raise _invalid(
                f"There is no parameter {shown} here.", f"Did you mean `{near}`? {listed}" if near else listed
            )
        if list(given).count(name) > 1:
            raise _invalid(f"The parameter {shown} is given more than once.", "Give it once.")


def unauthorized(message: str, needed: TokenScope = TokenScope.READ) -> RequestError:
    """Return the refusal of a caller without a valid token."""
    option = "" if needed is TokenScope.READ else f" --scope {needed.value}"
    return RequestError(
        message,
        status=401,
        code="unauthorized",
        action=f"Send the header Authorization: Bearer TOKEN. To create a token: replicator token create NAME{option}",
    )


def _invalid(message: str, action: str) -> RequestError:
    return RequestError(message, status=422, code="invalid_request", action=action)


def _no_demand(path: str) -> Demand:
    raise TypeError(f"The route {path} does not say what it demands of its callers.")
