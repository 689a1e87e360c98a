"""Checks before every request: its host, its origin, its rate, its token, its size, and the time that it may take.

Another site's page in a browser must not be able to use this server, even where no token is needed: neither by a request of its own
(`Origin`, `Sec-Fetch-Site`; the routes check content types), nor by a name that it has pointed at this server (`Host`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from replicator.model.access import Scope as TokenScope
from replicator.model.errors import ReplicatorError, RequestError
from replicator.model.hosts import is_loopback
from replicator.observability import get_logger
from replicator.service.access.listening import Listening
from replicator.service.access.tokens import digest
from replicator.web.accepting import origin
from replicator.web.demands import LOCAL, SAFE, Rights, grant, rights_of, unauthorized
from replicator.web.paths import has_no_token, is_page
from replicator.web.problems import internal_error
from replicator.web.sparing import Sparing, short

HEAD_BYTES_MAX: Final = 32 << 10
BODY_BYTES_MAX: Final = 512 << 10
BODY_S: Final = 15.0
API: Final = "/api/"
PUBLIC: Final = frozenset({"/healthz", "/readyz"})
"""Paths that reveal nothing except that the server is there, so that probes need neither a token nor a name."""
COOKIE: Final = "replicator_token"
"""Cookie with the token of a user of the dashboard. The API does not read it: another site's page could make a browser send it."""
_CLIENTS_MAX: Final = 4096
_CLIENT_LEFT: Final = 499
"""Status for the log, as in that of nginx; HTTP has no status for it."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""A regular expression's `$` also matches before a last newline. A router, a log or a proxy may read such a path in another way."""
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
)

_HSTS: Final = (b"strict-transport-security", b"max-age=31536000")
"""Header for a server that adds TLS itself. Browsers keep it for names only, not for addresses."""

_log = get_logger(__name__)


Identify = Callable[[str], Awaitable["Caller | None"]]
Refuse = Callable[[Scope, ReplicatorError], ASGIApp]
"""Builds the answer to a refused request: a problem, or a page."""


class Caller:
    """Owner of the token of a request."""

    __slots__ = ("name", "scope")

    def __init__(self, name: str, scope: TokenScope) -> None:
        self.name, self.scope = name, scope


class Rates:
    """Buckets of requests per caller, each filled again at a constant rate. The most recent callers are remembered."""

    def __init__(self, per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._most, self._clock = per_second, 2.0 * per_second, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> bool:
        """Count a request; return False if there have been too many."""
        now = self._clock()
        left, at = self._buckets.pop(caller, (self._most, now))
        left = min(self._most, left + (now - at) * self._per_second)
        is_granted = left >= 1
        self._buckets[caller] = (left - 1 if is_granted else left, now)
        if len(self._buckets) > _CLIENTS_MAX:
            self._buckets.popitem(last=False)
        return is_granted


class Guard:
    """Refuses requests that may not pass, and passes on the rest."""

    def __init__(self, app: ASGIApp, listening: Listening, identify: Identify, refuse: Refuse) -> None:
        self._app, self._listening, self._identify, self._refuse = app, listening, identify, refuse
        self._rates = Rates(listening.requests_per_second)
        self._known: OrderedDict[str, str] = OrderedDict()
        """Digest → name of the tokens that were valid when they were last used."""
        self._under_way: Counter[str] = Counter()
        self._refusals, self._failures = Sparing(), Sparing()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        if self._listening.is_behind_proxy:
            # The proxy adds TLS, and it is what browsers see.
            scope["scheme"] = "https"
        began, status = time.monotonic(), 0
        is_begun = False

        async def answered(message: Message) -> None:
            nonlocal is_begun, status
            if message["type"] == "http.response.start":
                is_begun, status = True, message["status"]
                names = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(h for h in self._added(status) if h[0] not in names)]
            await send(message)

        caller = ""
        try:
            caller = await self._admit(scope)
            with self._under_way_of(scope):
                await self._app(scope, _bounded(scope, receive), answered)
        except ReplicatorError as error:
            if is_begun:
                raise
            await self._refuse(scope, error)(scope, receive, answered)
        except ClientDisconnect:
            # Nobody is there to be answered. Any client can leave as often as it likes, so it is logged as sparingly as a refusal.
            status = _CLIENT_LEFT
        except Exception:  # noqa: BLE001 - a bug must not end the server; its traceback is in the log
            self._log_failure(scope)
            # Starlette raises again what it has answered; uvicorn closes the connection of an answer that is not whole.
            if not is_begun:
                await self._refuse(scope, internal_error())(scope, receive, answered)
        self._log_request(scope, status, caller, time.monotonic() - began)

    def _added(self, status: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the headers of every answer."""
        yield from (*_HEADERS, (b"cache-control", b"no-store"))
        if self._listening.tls_cert is not None:
            yield _HSTS
        if status == HTTPStatus.BAD_REQUEST:
            # The start of the next request is not known for sure.
            yield (b"connection", b"close")

    def _log_failure(self, scope: Scope) -> None:
        left_out = self._failures.take()
        if left_out is not None:
            more = {"left_out": left_out} if left_out else {}
            _log.exception("request_failed", method=short(scope["method"]), path=short(scope["path"]), **more)

    def _log_request(self, scope: Scope, status: int, caller: str, took_s: float) -> None:
        if scope["method"] in SAFE:
            return
        more: dict[str, int] = {}
        if rights_of(scope).allowed is None:
            # Of a caller without any rights, or not identified: anybody can send as many of these as it likes.
            left_out = self._refusals.take()
            if left_out is None:
                return
            more = {"left_out": left_out} if left_out else {}
        _log.info(
            "request",
            method=short(scope["method"]),
            path=short(scope["path"]),
            status=status,
            caller=caller,
            duration_ms=round(took_s * 1000),
            **more,
        )

    async def _admit(self, scope: Scope) -> str:
        """Return the name of the caller; raise RequestError if it may not pass."""
        headers = Headers(scope=scope)
        address = str(scope["client"][0]) if scope.get("client") else "local"
        client = origin(address)
        check_head(scope)
        if scope["path"] in PUBLIC:
            # A bucket of its own: a caller that asks too often at the same address must not fail the probes.
            self._count(f"probe:{client}")
            return address
        check_host(headers.get("host", ""), self._listening.allowed_hosts)
        check_origin(scope["method"], scope["path"], headers, is_tls=scope["scheme"] == "https")
        given = _token(headers)
        is_cookie = given is None and is_page(scope["path"])
        if is_cookie:
            given = _cookie(headers)
        caller = await self._identified(given, client)
        name = caller.name if caller else address
        if has_no_token(scope["path"]):
            return name
        if given is not None and caller is None:
            raise unauthorized("The token is not valid.")
        # The route decides what the caller may do with it (`demands.py`).
        if caller is not None:
            grant(scope, Rights(allowed=caller.scope, token=caller.name, is_cookie=is_cookie))
        else:
            grant(scope, Rights(allowed=None if self._listening.needs_token else LOCAL))
        return name

    async def _identified(self, given: str | None, client: str) -> Caller | None:
        """Return the owner of a token. The request is counted before the state store is asked, so that guessing tokens costs it little.

        It counts for its token if that was valid when it was last used, else for the address. So a caller that guesses uses up the
        requests of its address, not those of the callers that a proxy has given the same address.
        """
        if given is None:
            self._count(client)
            return None
        key = digest(given)
        known = self._known.pop(key, None)
        if known is not None:
            self._known[key] = known
        self._count(client if known is None else f"token:{known}")
        caller = await self._identify(given)
        if caller is None:
            self._known.pop(key, None)
            return None
        self._known[key] = caller.name
        if len(self._known) > _CLIENTS_MAX:
            self._known.popitem(last=False)
        return caller

    @contextmanager
    def _under_way_of(self, scope: Scope) -> Iterator[None]:
        """Bound the requests of one token that are under way: with `--behind-proxy` all connections have the proxy's address."""
        token, most = rights_of(scope).token, self._listening.connections_per_client
        if token is None or not self._listening.is_behind_proxy:
            yield
            return
        if self._under_way[token] >= most:
            raise RequestError(
                f"More than {most} requests of this token are under way.",
                status=429,
                code="too_many_requests",
                action="Wait for their answers, or start the server with a larger --connections-per-client.",
                retry_after_s=1,
            )
        self._under_way[token] += 1
        try:
            yield
        finally:
            self._under_way[token] -= 1
            if not self._under_way[token]:
                del self._under_way[token]

    def _count(self, caller: str) -> None:
        if not self._rates.take(caller):
            raise RequestError(
                f"More than {self._listening.requests_per_second} requests a second.",
                status=429,
                code="too_many_requests",
                action="Ask less often, or start the server with a larger --requests-per-second.",
                retry_after_s=1,
            )


def check_head(scope: Scope) -> None:
    """Refuse a head that is too large, which uvicorn bounds only until it has come as a whole, and one that can be read in two ways."""
    size = len(scope["raw_path"]) + len(scope["query_string"])
    if size + sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_BYTES_MAX:
        raise RequestError(
            f"Path, query and headers are larger than {HEAD_BYTES_MAX >> 10} KiB.", status=431, code="request_too_large"
        )
    path = scope["path"]
    if not path.startswith("/") or _CONTROL.search(path) or _CONTROL.search(scope["raw_path"].decode("latin-1")):
        raise RequestError(
            "The path has a control character, or does not begin with a slash.", status=400, code="malformed_request"
        )
    check_length(scope)


def check_length(scope: Scope) -> None:
    """Refuse a body whose length is given in two ways: a proxy might read the other one, and take the rest for the next request."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    is_chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
    is_odd = len(lengths) > 1 or any(not length.isdigit() for length in lengths)
    if is_odd or (is_chunked and (lengths or scope["http_version"] == "1.0")):
        raise RequestError(
            "The length of the body is given in several ways, or is not a number.",
            status=400,
            code="malformed_request",
            action="Send either Content-Length, once, or Transfer-Encoding: chunked.",
        )


def check_host(host: str, allowed: tuple[str, ...]) -> None:
    """Refuse a name that is not ours: a browser sends the name that its page was loaded from, which may be anybody's.

    An address is no such name, and `localhost` is everywhere the host itself.
    """
    name = _host_name(host)
    if name is None or not (name == "localhost" or name in allowed or _is_address(name)):
        raise RequestError(
            "The Host header names another server.",
            status=421,
            code="host_not_allowed",
            action="Use the address, or start the server with --allowed-host NAME.",
        )


def check_origin(method: str, path: str, headers: Mapping[str, str], *, is_tls: bool = False) -> None:
    """Refuse requests of another site's page. Anybody on the network may have written a page without TLS, whatever its host is called."""
    site, origin, host = headers.get("sec-fetch-site"), headers.get("origin"), headers.get("host", "")
    is_safe = method in SAFE
    allowed = ("same-origin",) if not is_safe else ("same-origin", "none")
    is_foreign = site is not None and site not in allowed and (not is_safe or path.startswith(API))
    # Browsers trust a page of the host itself without it, too.
    is_open = is_tls and origin is not None and not origin.lower().startswith("https:")
    is_open = is_open and not is_loopback(_host_name(host) or "")
    if is_open or (origin is not None and urlsplit_netloc(origin) != host.lower()):
        is_foreign = True
    if is_foreign:
        raise RequestError(
            "The request comes from a page of another site.",
            status=403,
            code="cross_site",
            action="Behind a proxy, let it pass on the Host header as the browser sent it.",
        )


def urlsplit_netloc(origin: str) -> str | None:
    """Return host and port of an origin; None if it has none (`null`), or is no origin."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _host_name(host: str) -> str | None:
    """Return the name in a Host header, without its port; None if it is not one."""
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return None
    return name.rstrip(".") if name and parts.netloc == host and "@" not in host else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _token(headers: Headers) -> str | None:
    """Return the token of a request; None if it has none. Another scheme counts as a token that is not valid."""
    given = headers.get("authorization")
    if given is None:
        return None
    scheme, _, text = given.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _cookie(headers: Headers) -> str | None:
    """Return the token that a browser keeps; None if it has none."""
    return cookie_parser(headers.get("cookie", "")).get(COOKIE) or None


def _bounded(scope: Scope, receive: Receive) -> Receive:
    """Read a body as long as it is neither too large nor too slow."""
    declared = Headers(scope=scope).get("content-length", "0")
    if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
        raise _too_large()
    until, total = time.monotonic() + BODY_S, 0
    is_read = False

    async def bounded() -> Message:
        nonlocal total, is_read
        if is_read:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            raise RequestError("The body came too slowly.", status=408, code="request_too_slow") from None
        if message["type"] == "http.request":
            total += len(message.get("body", b""))
            is_read = not message.get("more_body", False)
        if total > BODY_BYTES_MAX:
            raise _too_large()
        return message

    return bounded


def _too_large() -> RequestError:
    return RequestError(f"The body is larger than {BODY_BYTES_MAX >> 10} KiB.", status=413, code="request_too_large")
