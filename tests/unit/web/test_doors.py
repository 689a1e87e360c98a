"""Nothing that acts is reached without the scope that it needs, however a request is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import unquote

import pytest
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.routing import iter_route_contexts
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Request

from replicator.model.access import Scope
from replicator.model.errors import RequestError
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.service import lifecycle
from replicator.service.access import tokens
from replicator.service.access.listening import Listening
from replicator.state.store import StateStore
from replicator.web.access import Access
from replicator.web.app import WebApp, application
from replicator.web.configuring import Configurations
from replicator.web.demands import Demand, Rights, Route, demanding, grant

API: Final = "/api/v1/replicators/shop"
JSON, YAML, FORM = "application/json", "application/yaml", "application/x-www-form-urlencoded"
REACHED: Final = 299
DOORS: Final = (
    ("POST", "/api/v1/validate", YAML, Scope.CONFIGURE),
    ("PUT", API, YAML, Scope.CONFIGURE),
    ("POST", "/new", FORM, Scope.CONFIGURE),
    ("POST", f"{API}/pause", "", Scope.OPERATE),
    ("POST", f"{API}/resume", "", Scope.OPERATE),
    ("POST", f"{API}/snapshot", JSON, Scope.OPERATE),
    ("POST", f"{API}/restart", JSON, Scope.OPERATE),
    ("DELETE", API, "", Scope.OPERATE),
    *(
        ("POST", f"/replicators/shop/{action}", FORM, Scope.OPERATE)
        for action in ("pause", "resume", "snapshot", "restart", "delete")
    ),
)
"""What acts: method, path, content type, and the scope without which nobody gets there."""
ODD: Final = (
    "%0A", "%0a", "%0D", "%0D%0A", "%00", "%09", "%0B", "%0C", "%1C", "%1f", "%7F", "%85", "%C2%85", "%E2%80%A8", "%20", "%250A", "%2f",
    "%2F", "/", "//", ";x", "%3B", "?",
    "%3F", "#", "%23", ".", "/.", "/..", "/%2e%2e", "\\", "%5C", "\n", "\r", "\x00", "\t", "*", "@", "%",
)  # fmt: skip
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "post")
OVERRIDES: Final = tuple(
    (name, method)
    for name in (b"x-http-method-override", b"x-http-method", b"x-method-override")
    for method in (b"POST", b"PUT", b"DELETE")
)
BODIES: Final = {
    JSON: b"{}",
    YAML: b"name: shop\n",
    FORM: b"form=x&do=start&text=name%3A+shop&name=shop",
    "text/plain": b"{}",
    "": b"",
}
Caller = Scope | None
REGISTRY: Final = Registry.discover()
ROUTES: Final[Mapping[str, Scope | None]] = {
    "GET /": Scope.READ,
    "GET /api/v1/openapi.json": Scope.READ,
    "GET /api/v1/plugins": Scope.READ,
    "GET /api/v1/replicators": Scope.READ,
    "DELETE /api/v1/replicators/{name}": Scope.OPERATE,
    "GET /api/v1/replicators/{name}": Scope.READ,
    "PUT /api/v1/replicators/{name}": Scope.CONFIGURE,
    "GET /api/v1/replicators/{name}/history": Scope.READ,
    "GET /api/v1/replicators/{name}/logs": Scope.READ,
    "POST /api/v1/replicators/{name}/pause": Scope.OPERATE,
    "POST /api/v1/replicators/{name}/restart": Scope.OPERATE,
    "POST /api/v1/replicators/{name}/resume": Scope.OPERATE,
    "POST /api/v1/replicators/{name}/snapshot": Scope.OPERATE,
    "GET /api/v1/replicators/{name}/tables/{table:path}": Scope.READ,
    "POST /api/v1/validate": Scope.CONFIGURE,
    "GET /api/v1/workers": Scope.READ,
    "GET /healthz": None,
    "GET /login": None,
    "POST /login": None,
    "POST /logout": None,
    "GET /metrics": Scope.READ,
    "GET /new": Scope.READ,
    "POST /new": Scope.CONFIGURE,
    "GET /readyz": None,
    "GET /replicators/{name}": Scope.READ,
    "GET /replicators/{name}/logs": Scope.READ,
    "GET /replicators/{name}/tables/{table:path}": Scope.READ,
    "GET /replicators/{name}/{action}": Scope.READ,
    "POST /replicators/{name}/{action}": Scope.OPERATE,
    "GET /static/{file}": None,
}
"""Every route and the scope that it demands."""


def raised(what: str, scope: Scope, reached: list[Scope]) -> RequestError:
    reached.append(scope)
    return RequestError(f"{what} was reached.", status=REACHED, code="reached")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The application. `reached`: the scopes that belong to what acted in the last request; `said`: its answer."""

    app: ASGIApp
    routes: ASGIApp
    tokens: Mapping[Scope, str]
    is_open: bool
    home: Home
    reached: list[Scope] = field(default_factory=list)
    said: list[bytes] = field(default_factory=list)

    async def ask(
        self,
        method: str,
        target: str,
        caller: Caller = None,
        *,
        media_type: str = "",
        headers: Sequence[tuple[bytes, bytes]] = (),
        has_cookie: bool = False,
        path: str | None = None,
    ) -> int:
        """The status of an answer to a request that is written like this, as uvicorn passes it on."""
        raw, _, query = target.partition("?")
        sent = [(b"host", b"127.0.0.1"), (b"cookie", b"replicator_form=x"), *headers]
        body = BODIES[media_type]
        if media_type:
            sent += [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]
        if caller is not None and has_cookie:
            sent[1] = (b"cookie", b"replicator_form=x; replicator_token=" + self.tokens[caller].encode())
        elif caller is not None:
            sent.append((b"authorization", b"Bearer " + self.tokens[caller].encode()))
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": unquote(raw) if path is None else path,
            "raw_path": raw.encode(), "query_string": query.encode(), "root_path": "", "scheme": "http", "headers": sent,
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8410), "state": {},
        }  # fmt: skip
        told: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            told.append(message)

        self.reached.clear()
        await self.app(scope, receive, send)
        self.said[:] = [told[1]["body"]]
        return int(told[0]["status"])

    def unguarded(self, caller: Caller) -> Server:
        """The same without the guard that stands before the routes, which is only told who calls."""
        rights = Rights(allowed=self.may(caller), token=None if caller is None else caller.value)

        async def told(scope: Request, receive: Receive, send: Send) -> None:
            grant(scope, rights)
            await self.routes(scope, receive, send)

        return replace(self, app=told)

    def may(self, caller: Caller) -> Scope | None:
        """What a caller may do."""
        return Scope.OPERATE if caller is None and self.is_open else caller

    def check(self, caller: Caller, about: object) -> None:
        """Nothing acted for whom it may not."""
        for needed in self.reached:
            allowed = self.may(caller)
            assert allowed is not None, (about, needed)
            assert allowed.includes(needed), (about, needed)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("home")
    home = Home(folder=folder, state_url=f"sqlite:///{folder / 'state.db'}")
    with closing(StateStore(home.state_url)) as store:
        store.create_replicator("shop", "name: shop\n", str(folder / "journal"))
    return home


@pytest.fixture(scope="module")
def given(home: Home) -> Mapping[Scope, str]:
    """A token of each scope."""
    with closing(StateStore(home.state_url)) as store:
        return {scope: tokens.create(store, scope.value, scope, None)[1] for scope in Scope}


@pytest.fixture
def server(home: Home, given: Mapping[Scope, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that wants a token of everybody, and of which everything that acts only says that it was reached."""
    app, access = web(home, needs_token=True), Access(home, REGISTRY)
    routes = application(access, Listening(host="127.0.0.1", port=8410))
    found = Server(app=app, routes=routes, tokens=given, is_open=False, home=home)

    def reach(what: str) -> Callable[..., Any]:
        def act(*_: Any, **__: Any) -> Any:
            raise raised(what, Scope.OPERATE, found.reached)

        return act

    async def configure(*_: Any) -> Any:
        raise raised("configure", Scope.CONFIGURE, found.reached)

    for name in ("pause", "resume", "snapshot", "request_delete"):
        monkeypatch.setattr(lifecycle, name, reach(name))
    monkeypatch.setattr(Configurations, "ask", configure)
    yield found
    app.close()
    access.close()


@pytest.fixture
def local(server: Server) -> Iterator[Server]:
    """The same, but at an address of the host itself, where no token is needed."""
    app = web(server.home, needs_token=False)
    yield replace(server, app=app, is_open=True)
    app.close()


def web(home: Home, *, needs_token: bool) -> WebApp:
    listening = Listening(host="127.0.0.1", port=8410, needs_token=needs_token, requests_per_second=1_000_000)
    return WebApp(home=home, registry=REGISTRY, listening=listening)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def spellings_of(path: str) -> Iterator[str]:
    before, _, last = path.rpartition("/")
    for odd in ODD:
        yield from (path + odd, odd + path, f"/{odd}{path[1:]}", f"{before}/{odd}{last}")


def strongest_below(needed: Scope) -> Scope:
    """The scope that lacks least."""
    return list(Scope)[list(Scope).index(needed) - 1]


def test_each_door_opens_for_its_scope_and_for_no_smaller_one(server: Server, local: Server) -> None:
    async def work() -> None:
        for one in (server, local):
            for method, path, media_type, needed in DOORS:
                for caller in (None, *Scope):
                    for asked in (one, one.unguarded(caller)):
                        status = await asked.ask(method, path, caller, media_type=media_type)
                        allowed = asked.may(caller)
                        is_open = allowed is not None and allowed.includes(needed)
                        assert (status == REACHED) == is_open, (method, path, caller, status)
                        assert asked.reached == [needed] * is_open

    run(work)


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.matrix)], ids=["suffixes", "all"])
def test_no_spelling_of_a_path_opens_a_door(server: Server, local: Server, is_whole: bool) -> None:
    async def work() -> None:
        for method, path, media_type, needed in DOORS:
            caller = strongest_below(needed)
            for spelling in spellings_of(path) if is_whole else (path + odd for odd in ODD):
                # JSON: `/new` with a newline was no page by its text, so that it took another type than its forms have.
                for sent in BODIES if is_whole else (media_type if needed is Scope.OPERATE else JSON,):
                    await server.ask(method, spelling, caller, media_type=sent)
                    server.check(caller, spelling)
                    if needed is Scope.CONFIGURE:
                        await local.ask(method, spelling, media_type=sent)
                        local.check(None, spelling)

    run(work)


def test_no_spelling_opens_a_door_where_no_guard_stands(server: Server) -> None:
    """The routes themselves demand: with a guard that took every path for a harmless one nothing would be open."""

    async def work() -> None:
        for method, path, media_type, needed in DOORS:
            caller = strongest_below(needed)
            asked = server.unguarded(caller)
            for spelling in (path, f"{path}%0A", f"{path}/", f"/{path}"):
                status = await asked.ask(method, spelling, caller, media_type=media_type)
                assert (status, asked.reached) == (403 if spelling in (path, f"{path}%0A") else 404, [])

    run(work)


def test_no_method_content_type_or_cookie_opens_a_door(server: Server) -> None:
    async def work() -> None:
        for _, path, _, needed in DOORS:
            caller = strongest_below(needed)
            for method in METHODS:
                for media_type in BODIES if method == "POST" else (JSON,):
                    await server.ask(method, path, caller, media_type=media_type)
                    server.check(caller, (method, path, media_type))
            for override in OVERRIDES:
                await server.ask("POST", path, caller, media_type=FORM, headers=[override])
                server.check(caller, (override, path))
            # The API never takes the cookie that a browser keeps; a page does.
            is_page = not path.startswith("/api/")
            status = await server.ask("POST", path, Scope.CONFIGURE, media_type=FORM, has_cookie=True)
            assert (status == REACHED) == is_page
            server.check(Scope.CONFIGURE if is_page else None, path)

    run(work)


def test_the_api_takes_no_cookie_where_no_guard_stands() -> None:
    rights = Rights(allowed=Scope.CONFIGURE, token="configure", is_cookie=True)
    for is_page in (True, False):
        scope = {"type": "http", "method": "GET", "headers": [], "path": "/", "query_string": b""}
        grant(scope, rights)
        demand = Demand(scope=Scope.READ, is_page=is_page)
        if is_page:
            demand.check(HttpRequest(scope))
        else:
            with pytest.raises(RequestError, match="A token is needed"):
                demand.check(HttpRequest(scope))


def test_control_characters_in_a_path_are_refused(server: Server) -> None:
    async def work() -> None:
        for odd in ("%0A", "%0d", "%00", "%09", "%1b", "%7f", "%C2%85", "%E2%80%A8", "\n", "\x7f"):
            for path in ("/healthz", "/login", API, "/api/v1/validate", "/new"):
                for spelling in (path + odd, odd + path, f"{path}/{odd}x"):
                    assert await server.ask("GET", spelling, Scope.CONFIGURE) == 400, spelling
        for target in ("workers", "http://127.0.0.1/healthz", "*", ""):
            assert await server.ask("GET", target, Scope.CONFIGURE) == 400, target

    run(work)


def test_every_route_of_the_application_demands_the_scope_that_stands_here(server: Server) -> None:
    app = server.routes
    assert isinstance(app, FastAPI)
    found = {}
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        assert isinstance(route, Route), f"{route} does not say what it demands"
        for method in route.methods or ():
            found[f"{method} {context.path}"] = route.demand.scope
            # What changes something takes no content type that a page of another site can send. Forms repeat a text of their page instead.
            assert route.demand.takes == ((FORM,) if route.demand.is_page else (JSON, YAML)[: len(route.demand.takes)])
    assert found == ROUTES


def test_a_route_that_demands_nothing_cannot_be_made() -> None:
    router = demanding()
    with pytest.raises(TypeError, match="/new-one does not say what it demands"):

        @router.post("/new-one")
        async def one() -> None: ...


def test_a_request_of_which_no_guard_said_who_sent_it_may_nothing(server: Server) -> None:
    async def work() -> None:
        for line, needed in ROUTES.items():
            method, _, path = line.partition(" ")
            status = await replace(server, app=server.routes).ask(method, filled(path))
            assert (status in (401, 303)) == (needed is not None), (line, status)

    run(work)


def test_every_route_names_a_parameter_that_it_does_not_have(server: Server) -> None:
    asked = server.unguarded(Scope.CONFIGURE)

    async def work() -> None:
        for line in ROUTES:
            method, _, path = line.partition(" ")
            media_type = next((kind for verb, door, kind, _ in DOORS if (verb, door) == (method, filled(path))), "")
            media_type = media_type or (FORM if path in ("/login", "/logout") else "")
            assert await asked.ask(method, f"{filled(path)}?levle=error", media_type=media_type) == 422, line
            assert b"There is no parameter" in asked.said[0], line
            assert b"levle" in asked.said[0], line

    run(work)


@pytest.mark.parametrize(
    ("query", "detail", "action"),
    [
        ("tabel=x", "There is no parameter 'tabel' here.", "Did you mean `table`? This path takes `table`, `since`, `limit`."),
        ("level=error", "There is no parameter 'level' here.", "This path takes `table`, `since`, `limit`."),
        ("limit=1&limit=2", "The parameter 'limit' is given more than once.", "Give it once."),
        ("&=x", "There is no parameter '' here.", "This path takes `table`, `since`, `limit`."),
    ],
)  # fmt: skip
def test_a_parameter_that_would_be_ignored_is_refused(server: Server, query: str, detail: str, action: str) -> None:
    async def work() -> None:
        assert await server.unguarded(Scope.READ).ask("GET", f"{API}/logs?{query}") == 422
        problem = json.loads(server.said[0])
        assert (problem["code"], problem["detail"], problem["action"]) == ("invalid_request", detail, action)

    run(work)


def filled(path: str) -> str:
    return path.replace("{name}", "shop").replace("{table:path}", "public.orders").replace("{action}", "delete")
