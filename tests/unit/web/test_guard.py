"""How often a caller may ask, and how long an answer is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message

from replicator.model.access import Scope
from replicator.model.errors import StateUnavailableError
from replicator.web.demands import Rights, grant
from replicator.web.guard import Rates
from replicator.web.recent import KEPT_S, Kept, Recent
from replicator.web.repeated import Repeated


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
