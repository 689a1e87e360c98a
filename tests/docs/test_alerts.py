"""docs/alerts.md: its configuration loads, its message is one, and its example verifies what is sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replicator.config import AlertsConfig, Resolver, read_document
from replicator.model.documents.alerts import AlertEvent, AlertKind, AlertMessage
from replicator.service.alerts.webhook import headers

PAGE = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text(encoding="utf-8")
KEY = b"a key of somebody's own"


def block(language: str) -> str:
    """The first block of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[0]


def test_the_configuration_loads() -> None:
    document = read_document(block("yaml"), "alerts.md")
    names = re.findall(r"\$\{env:(\w+)\}", PAGE)
    resolver = Resolver(document, dict.fromkeys(names, "https://example.org/hook"))
    config = AlertsConfig.model_validate(resolver.resolve(document.values)["alerts"])
    assert sorted(config.channels) == ["mail", "ops", "pager"]


def test_the_message_is_one_and_every_field_is_there() -> None:
    message = AlertMessage.model_validate_json(block("json"))
    assert set(AlertMessage.model_fields) == set(re.findall(r'^  "(\w+)":', block("json"), re.MULTILINE))
    assert message.alerts[0].event is AlertEvent.OPENED


def test_every_kind_is_explained() -> None:
    assert re.findall(r"^\| `([a-z_]+)` \| [^|]+ \|$", PAGE, re.MULTILINE)[: len(AlertKind)] == [
        kind.value for kind in AlertKind
    ]
    assert all(f"`{event.value}`" in PAGE for event in AlertEvent)


@pytest.fixture
def is_authentic() -> Callable[..., bool]:
    found: dict[str, Any] = {}
    exec(block("python"), found)
    verifies: Callable[..., bool] = found["is_authentic"]
    return verifies


def test_the_example_verifies_what_is_sent_and_nothing_else(is_authentic: Callable[..., bool]) -> None:
    body = b'{"version":1}'
    sent = dict(headers(KEY.decode(), "u-7", 1_000_000, body))
    assert is_authentic(sent, body, KEY, now=1_000_100)
    assert not is_authentic(sent, body, KEY, now=1_000_400), "an old one"
    assert not is_authentic(sent, body + b" ", KEY, now=1_000_100)
    assert not is_authentic(sent, body, b"another key", now=1_000_100)
    assert not is_authentic({**sent, "webhook-timestamp": "1000001"}, body, KEY, now=1_000_100)
    assert not is_authentic({**sent, "webhook-id": "u-8"}, body, KEY, now=1_000_100)
