"""How often a caller may ask, and how long an answer is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Request

from replicator.model.access import Scope
from replicator.model.errors import AccessDeniedError, ConfigError, FatalError, ReplicatorError, StateUnavailableError
from replicator.service.access.listening import Listening
from replicator.web.demands import Rights, grant
from replicator.web.guard import Caller, Guard, Rates
from replicator.web.problems import answer as refusal
from replicator.web.problems import problem, status_of
from replicator.web.recent import KEPT_S, Kept, Recent
from replicator.web.repeated import Repeated
from replicator.web.sparing import PER_MINUTE


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_caller_may_ask_twice_as_often_for_a_moment_and_then_at_its_rate() -> None:
    clock = Clock()
    rates = Rates(10, clock)
    assert [rates.take("a") for _ in range(21)] == [True] * 20 + [False]
    assert rates.take("b")
    clock.now += 0.5
    assert [rates.take("a") for _ in range(6)] == [True] * 5 + [False]


def test_an_answer_is_made_once_a_second_and_for_each_key() -> None:
    clock, made = Clock(), []
    recent = Recent(clock)

    def make() -> bytes:
        made.append(1)
        return b"%d" % len(made)

    assert recent.peek("a") is None
    assert [recent.get(key, make).body for key in "aab"] == [b"1", b"1", b"2"]
    assert [recent.peek(key) for key in "abc"] == [Kept.of(b"1"), Kept.of(b"2"), None]
    clock.now += KEPT_S
    assert recent.peek("a") is None
    assert recent.get("a", make).body == b"3"
    recent.forget()
    assert recent.peek("a") is None


def test_a_failure_is_not_kept() -> None:
    def fail() -> bytes:
        raise StateUnavailableError("away", code="state_locked")

    recent = Recent(Clock())
    with pytest.raises(StateUnavailableError):
        recent.get("a", fail)
    assert recent.peek("a") is None
    assert recent.get("a", lambda: b"there").body == b"there"


async def asked(
    app: ASGIApp, method: str, path: str, query: bytes = b"", tag: str = "", may_read: bool = True
) -> tuple[int, bytes]:
    """Status and body of an answer."""
    headers = [(b"if-none-match", tag.encode())] if tag else []
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}
    if may_read:
        grant(scope, Rights(allowed=Scope.READ))
    told: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        told.append(message)

    await app(scope, receive, send)
    return told[0]["status"], told[1]["body"]


def test_only_a_plain_read_is_answered_again_without_the_application() -> None:
    clock = Clock()
    recent = Recent(clock)
    kept = recent.get("/a", lambda: b"kept")
    app = Repeated(PlainTextResponse("made"), recent)

    def answer(method: str, path: str, **more: Any) -> tuple[int, bytes]:
        return asyncio.run(asked(app, method, path, **more))

    assert answer("GET", "/a") == (200, b"kept")
    assert answer("GET", "/a", may_read=False) == (200, b"made")
    assert answer("GET", "/a", tag=f'W/{kept.tag}, "other"') == (304, b"")
    assert answer("GET", "/a", tag='"other"') == (200, b"kept")
    assert answer("GET", "/b") == answer("DELETE", "/a") == answer("GET", "/a", query=b"x=1") == (200, b"made")
    clock.now += KEPT_S
    assert answer("GET", "/a") == (200, b"made")


class Asked:
    """A guard with nothing after it.

    Attributes:
        looked_up: How often the state store was asked whose token one is.
        scheme: What the last request that passed has after the guard.
    """

    def __init__(self, **options: Any) -> None:
        self.looked_up = 0
        self.valid: set[str] = set()
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None
        self.scheme = ""
        settings = Listening.model_validate({"host": "127.0.0.1", "port": 0, "needs_token": True, **options})
        self._guard = Guard(self._answer, settings, self._identify, lambda _, error: refusal(error))

    async def _identify(self, text: str) -> Caller | None:
        self.looked_up += 1
        return Caller(text, Scope.READ) if text in self.valid else None

    async def _answer(self, scope: Request, receive: Receive, send: Send) -> None:
        self.scheme = scope["scheme"]
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        await PlainTextResponse("made")(scope, receive, send)

    async def ask(
        self,
        token: str | None,
        path: str = "/metrics",
        method: str = "GET",
        address: str = "10.0.0.1",
        origin: str = "",
        host: str = "127.0.0.1",
    ) -> int:
        """The status of an answer."""
        headers = [(b"host", host.encode()), *([(b"origin", origin.encode())] if origin else [])]
        if token is not None:
            headers.append((b"authorization", b"Bearer " + token.encode()))
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "client": (address, 1), "scheme": "http",
        }  # fmt: skip
        told: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            told.append(message)

        await self._guard(scope, receive, send)
        return int(told[0]["status"]) if told else 0


def test_who_guesses_tokens_costs_the_store_little_and_the_callers_of_a_proxy_nothing() -> None:
    asked = Asked(requests_per_second=5)
    asked.valid.add("good")

    async def work() -> None:
        assert await asked.ask("good") == 200
        # Nine are left of the address's ten, however many tokens are tried.
        statuses = [await asked.ask(f"guess-{index}") for index in range(50)]
        assert statuses.count(401) + statuses.count(429) == 50
        assert statuses.count(401) < 15
        assert asked.looked_up == 1 + statuses.count(401)
        # The token that is known has requests of its own, and the probes do.
        assert await asked.ask("good") == 200
        assert await asked.ask("none", "/healthz") == 200
        # What was revoked is one that is guessed.
        asked.valid.clear()
        assert await asked.ask("good") == 401
        assert await asked.ask("good") == 429

    asyncio.run(work())


@pytest.mark.parametrize(
    ("is_behind_proxy", "host", "status"),
    [(True, "10.0.0.9", 403), (True, "127.0.0.1:1", 200), (False, "10.0.0.9", 200)],
)
def test_where_browsers_use_tls_a_page_without_it_is_another_site(
    is_behind_proxy: bool, host: str, status: int
) -> None:
    asked = Asked(is_behind_proxy=is_behind_proxy)
    asked.valid.add("good")

    async def work() -> None:
        assert await asked.ask("good", origin=f"http://{host}", host=host) == status
        assert await asked.ask("good", origin=f"https://{host}", host=host) == 200
        assert asked.scheme == ("https" if is_behind_proxy else "http")

    asyncio.run(work())


def test_behind_a_proxy_a_token_has_a_number_of_requests_under_way() -> None:
    asked = Asked(requests_per_second=100, connections_per_client=2, is_behind_proxy=True)
    asked.valid |= {"a", "b"}

    async def work() -> None:
        asked.gate = asyncio.Event()
        first = [asyncio.create_task(asked.ask("a")) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await asked.ask("a") == 429
        other = asyncio.create_task(asked.ask("b"))
        asked.gate.set()
        assert [await task for task in (*first, other)] == [200] * 3
        assert await asked.ask("a") == 200

    asyncio.run(work())


@pytest.mark.parametrize("token", ["none", None], ids=["a token that is not valid", "no token"])
@pytest.mark.parametrize("path", ["/" + "x" * 20_000, "/login"], ids=["long", "login"])
def test_a_stranger_writes_few_and_short_lines_into_the_log(token: str | None, path: str) -> None:
    asked = Asked(requests_per_second=100)

    async def work() -> None:
        with structlog.testing.capture_logs() as lines:
            for _ in range(100):
                await asked.ask(token, path, "POST")
        assert len(lines) == PER_MINUTE
        assert all(len(str(line)) < 500 for line in lines)

    asyncio.run(work())


@pytest.mark.parametrize("error", [ClientDisconnect(), RuntimeError("a bug")], ids=["gone", "a bug"])
def test_a_request_that_fails_again_and_again_is_in_the_log_a_few_times(error: Exception) -> None:
    asked = Asked(requests_per_second=100)
    asked.error = error

    async def work() -> None:
        with structlog.testing.capture_logs() as lines:
            for _ in range(100):
                await asked.ask(None, "/login", "POST")
        failed = [line for line in lines if line["event"] == "request_failed"]
        assert len(failed) == (0 if isinstance(error, ClientDisconnect) else PER_MINUTE)
        assert len(lines) - len(failed) == PER_MINUTE
        assert {line["status"] for line in lines if line not in failed} == {499 if not failed else 500}

    asyncio.run(work())


@pytest.mark.parametrize(
    "error",
    [
        StateUnavailableError("The state store u@db.shop.svc/state: refused", code="state_unavailable"),
        FatalError("The state store u@db.shop.svc/state: unknown", code="state_failed"),
        AccessDeniedError(
            "The state store u@db.shop.svc/state: no", code="state_access_denied", action="u@db.shop.svc"
        ),
        ConfigError("The state store u@db.shop.svc/state cannot be opened.", code="state_path"),
    ],
)
def test_where_the_state_store_is_nobody_is_told(error: ReplicatorError) -> None:
    told = problem(error)
    assert "db.shop.svc" not in told.model_dump_json()
    assert (told.code, told.status) == (error.code, status_of(error))
